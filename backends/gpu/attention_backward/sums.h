/* Sums of rows: delta, <dout, out> of each, and the gradients of sinks. */
#ifndef ROPEKIT_GPU_ATTENTION_BACKWARD_SUMS_H
#define ROPEKIT_GPU_ATTENTION_BACKWARD_SUMS_H

#include "backends/gpu/attention_backward/block.h"

/* Elements first..first + 7 of a head, 0 behind its last one. moves: 16 bytes at a time. */
template <int DTYPE>
GPU_FN void gpu_delta_read(const void *data, int64_t at, int64_t step, int first, int dim,
                           bool moves, float x[8]) {
    typedef typename gpu_element<DTYPE>::bits bits;
    const bits *from = (const bits *)data + at;
    enum { V = DTYPE == ROPE_F32 ? 4 : 8 };
    if (moves && first + 8 <= dim) {
#pragma unroll
        for (int i = 0; i < 8; i += V)
            gpu_unpack<DTYPE, V>(gpu_load<DTYPE, V>(from + first + i), x + i);
        return;
    }
    for (int i = 0; i < 8; i++)
        x[i] = first + i < dim ? gpu_widen<DTYPE>(from[(first + i) * step]) : 0;
}

template <int DTYPE>
__global__ void __launch_bounds__(GPU_ATTENTION_THREADS, 1)
    gpu_backward_delta(GPU_PARAMETER rope_attention_problem problem,
                       GPU_PARAMETER rope_attention_backward_call given, const int32_t *failed,
                       float *delta, int32_t fits) {
    const rope_attention_problem &p = *gpu_parameter<rope_attention_problem>(problem);
    const rope_attention_backward_call &c =
        *gpu_parameter<rope_attention_backward_call, rope_attention_problem>(given);
    enum { ROWS = GPU_ATTENTION_THREADS / GPU_DELTA_LANES };
    gpu_wait_for_last();
    gpu_let_next_start();
    (void)failed;
    const int lane = (int)threadIdx.x % GPU_DELTA_LANES, dim = p.v_head_dim;
    const rope_call *rope = &c.forward.rope;
    const int64_t heads = rope->tensor[0].heads, rows = rope->batch * rope->tokens * heads;
    for (int64_t n = blockIdx.x * (int64_t)ROWS; n < rows; n += gridDim.x * (int64_t)ROWS) {
        const int64_t mine = n + threadIdx.x / GPU_DELTA_LANES, row = mine < rows ? mine : rows - 1;
        const gpu_quotient token = gpu_divide(row, heads),
                           batch = gpu_divide(token.whole, rope->tokens);
        const int64_t out = gpu_backward_at(c.forward.out_stride, batch.whole, batch.left,
                                            token.left),
                      dout = gpu_backward_at(c.dout_stride, batch.whole, batch.left, token.left);
        float sum = 0;
        for (int first = 8 * lane; first < dim; first += 8 * GPU_DELTA_LANES) {
            float x[8], y[8];
            gpu_delta_read<DTYPE>(c.forward.out, out, c.forward.out_stride[3], first, dim,
                                  fits & GPU_BACKWARD_OUT, x);
            gpu_delta_read<DTYPE>(c.dout, dout, c.dout_stride[3], first, dim,
                                  fits & GPU_BACKWARD_DOUT, y);
#pragma unroll
            for (int e = 0; e < 8; e++)
                sum = fmaf(x[e], y[e], sum);
        }
#pragma unroll
        for (int bit = GPU_DELTA_LANES / 2; bit > 0; bit /= 2)
            sum += gpu_shuffle_xor(sum, bit);
        if (lane == 0 && mine < rows)
            delta[row] = sum;
    }
}

/* The part that a thread's rows of a sequence have in a sink's gradient; token: room for one. A
 * query without a position has none. */
GPU_FN double gpu_sink_part(const rope_attention_problem *p, const rope_attention_backward_call *c,
                            const rope_attention_sequence *s, const float *delta, int64_t head,
                            double sink, rope_token *token) {
    const int64_t *stride = c->forward.lse_stride;
    double sum = 0;
    for (int64_t i = threadIdx.x; i < s->q_count; i += GPU_ATTENTION_THREADS) {
        const rope_key_range seen = rope_keys_seen(p, s, rope_query_index(s, i));
        const int64_t at = s->q_first + i;
        if (gpu_queries_may_fail(p)) {
            rope_query_token(p, &c->forward, s, i, token);
            if (token->status == ROPE_TOKEN_FAILS) {
                gpu_attention_flag(&c->forward);
                continue;
            }
        }
        if (seen.begin < seen.end)
            sum -= exp(sink - (double)c->forward
                                  .lse[s->q_row * stride[0] + at * stride[1] + head * stride[2]]) *
                   (double)delta[gpu_delta_at(&c->forward.rope, s->q_row, at, head)];
    }
    return sum;
}

template <int DTYPE>
__global__ void __launch_bounds__(GPU_ATTENTION_THREADS, 1)
    gpu_backward_sinks(GPU_PARAMETER rope_attention_problem problem,
                       GPU_PARAMETER rope_attention_backward_call given, const int32_t *failed,
                       float *delta) {
    const rope_attention_problem &p = *gpu_parameter<rope_attention_problem>(problem);
    const rope_attention_backward_call &c =
        *gpu_parameter<rope_attention_backward_call, rope_attention_problem>(given);
    __shared__ double part[GPU_ATTENTION_THREADS];
    __shared__ rope_token tokens[GPU_ATTENTION_THREADS];
    gpu_wait_for_last();
    gpu_let_next_start();
    for (int64_t head = blockIdx.x; head < c.forward.rope.tensor[0].heads; head += gridDim.x) {
        const double sink = rope_table_entry(p.sink_dtype, c.forward.sinks, head);
        double sum = 0;
        for (int64_t n = 0; n < rope_attention_sequences(&c.forward) && sink != -INFINITY; n++) {
            const rope_attention_sequence s =
                rope_attention_sequence_of(gpu_reread(&p), gpu_reread(&c.forward), n);
            if (!s.fails && !(failed && failed[n]))
                sum += gpu_sink_part(gpu_reread(&p), gpu_reread(&c), &s, delta, head, sink,
                                     &tokens[threadIdx.x]);
        }
        part[threadIdx.x] = sum;
        __syncthreads();
        for (int step = GPU_ATTENTION_THREADS / 2; step > 0; step /= 2) {
            if ((int)threadIdx.x < step)
                part[threadIdx.x] += part[threadIdx.x + step];
            __syncthreads();
        }
        if (threadIdx.x == 0)
            c.dsinks[head] = (float)part[0];
        __syncthreads();
    }
}

#endif
