/* The merge of a head's outputs over parts of its keys, each weighed by its share of the sum. */
#include "backends/gpu/attention/merge.h"
#include "backends/gpu/element.h"

GPU_FN int64_t gpu_merge_at(const int64_t stride[3], int64_t batch, int64_t token, int64_t head) {
    return batch * stride[0] + token * stride[1] + head * stride[2];
}

/* The lse of all parts together. */
GPU_FN float gpu_merge_logs(const rope_attention_merge_call *call, const float *lse) {
    float most = -INFINITY, sum = 0;
    for (int64_t p = 0; p < call->parts; p++)
        most = fmaxf(most, lse[p * call->in_lse_stride[0]]);
    if (isinf(most))
        return most;
    for (int64_t p = 0; p < call->parts; p++)
        sum += expf(lse[p * call->in_lse_stride[0]] - most);
    return most + logf(sum);
}

/* An element of a head, from element 0 of part 0 on. */
template <int DTYPE>
GPU_FN float gpu_merge_element(const rope_attention_merge_call *call, const float *lse,
                               float joined, int64_t first) {
    const auto *in = (const typename gpu_element<DTYPE>::bits *)call->in + first;
    float sum = 0;
    for (int64_t p = 0; p < call->parts; p++) {
        const float part = lse[p * call->in_lse_stride[0]];
        if (part != -INFINITY)
            sum += expf(part - joined) * gpu_widen<DTYPE>(in[p * call->in_stride[0]]);
    }
    return sum;
}

template <int DTYPE>
__global__ void __launch_bounds__(GPU_MERGE_THREADS)
    gpu_attention_merge(GPU_PARAMETER rope_attention_merge_call given, int32_t head_dim) {
    typedef typename gpu_element<DTYPE>::bits bits;
    const rope_attention_merge_call *call = gpu_parameter<rope_attention_merge_call>(given);
    const int64_t heads = call->batch * call->tokens * call->heads;
    for (int64_t n = blockIdx.x; n < heads; n += gridDim.x) {
        const int64_t row = n / call->heads, head = n % call->heads;
        const int64_t batch = row / call->tokens, token = row % call->tokens;
        const float *lse = call->in_lse + gpu_merge_at(call->in_lse_stride + 1, batch, token, head);
        const float joined = gpu_merge_logs(call, lse);
        const int64_t in = gpu_merge_at(call->in_stride + 1, batch, token, head),
                      out = gpu_merge_at(call->out_stride, batch, token, head);
        for (int i = (int)threadIdx.x; i < head_dim; i += (int)blockDim.x)
            ((bits *)call->out)[out + i * call->out_stride[3]] = gpu_narrow<DTYPE>(
                gpu_merge_element<DTYPE>(call, lse, joined, in + i * call->in_stride[4]));
        __syncthreads(); /* lse may be part 0's own */
        if (call->lse && threadIdx.x == 0)
            call->lse[gpu_merge_at(call->lse_stride, batch, token, head)] = joined;
    }
}

const void *const gpu_attention_merge_kernels[3] = {GPU_KERNEL(gpu_attention_merge<ROPE_F32>),
                                                    GPU_KERNEL(gpu_attention_merge<ROPE_F16>),
                                                    GPU_KERNEL(gpu_attention_merge<ROPE_BF16>)};
