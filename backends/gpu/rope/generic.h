/*
 * Every descriptor, one pair a thread. Where the pairing changes in place a pair is not written
 * where it was read, so a block stages the window of one head in shared memory.
 */
#ifndef ROPEKIT_GPU_ROPE_GENERIC_H
#define ROPEKIT_GPU_ROPE_GENERIC_H

#include "backends/gpu/rope/kernels.h"
#include "backends/gpu/rope/rotate.h"
#include "common/math/layout.h"
#include "common/math/token.h"

/* One head: element 0 of what is read and written, and what separates its elements. */
template <typename BITS> struct gpu_head {
    const BITS *in;
    BITS *out;
    int64_t in_stride, out_stride;
};

template <typename BITS>
GPU_FN gpu_head<BITS> gpu_head_of(const rope_operand *o, int64_t batch, int64_t token,
                                  int64_t head) {
    gpu_head<BITS> h;
    h.in = (const BITS *)o->in + batch * o->in_stride[0] + token * o->in_stride[1] +
           head * o->in_stride[2];
    h.out = (BITS *)o->out + batch * o->out_stride[0] + token * o->out_stride[1] +
            head * o->out_stride[2];
    h.in_stride = o->in_stride[3];
    h.out_stride = o->out_stride[3];
    return h;
}

template <typename BITS> GPU_FN void gpu_copy_rest(const gpu_head<BITS> &h, int from, int to) {
    for (int i = from + (int)threadIdx.x; i < to; i += (int)blockDim.x)
        h.out[i * h.out_stride] = h.in[i * h.in_stride];
}

/* Replaces a pair's bits by those of the rotated pair. */
template <int DTYPE, typename BITS>
GPU_FN void gpu_rotate_bits(const rope_problem *p, const rope_call *call, const rope_token *token,
                            int pair, int tensor, BITS x[2]) {
    bool model = p->arithmetic == ROPE_ARITHMETIC_MODEL_DTYPE;
    if constexpr (DTYPE == ROPE_F64) {
        rope_coefficients64 m = rope_coefficients64_of(p, call, token, pair, tensor);
        rope_pair64 two = {rope_bits_double(x[0]), rope_bits_double(x[1])};
        two = model ? rope_rotate_model64(two, m) : rope_rotate64(two, m);
        x[0] = rope_double_bits(two.x1);
        x[1] = rope_double_bits(two.x2);
    } else {
        rope_coefficients m = rope_coefficients_of(p, call, token, pair, tensor);
        rope_pair two = {gpu_widen<DTYPE>(x[0]), gpu_widen<DTYPE>(x[1])};
        two = model ? gpu_rotate_model<DTYPE>(two, m) : rope_rotate(two, m);
        x[0] = gpu_narrow<DTYPE>(two.x1);
        x[1] = gpu_narrow<DTYPE>(two.x2);
    }
}

template <int DTYPE, typename BITS>
GPU_FN void gpu_rotate_window(const rope_problem *p, const rope_call *call, const rope_token *token,
                              int tensor, const BITS *in, int64_t in_stride, BITS *out,
                              int64_t out_stride) {
    for (int i = (int)threadIdx.x; i < p->pairs; i += (int)blockDim.x) {
        BITS x[2] = {in[rope_first_of(p->pairing_in, i) * in_stride],
                     in[rope_second_of(p->pairing_in, i, p->pairs) * in_stride]};
        if (token->status == ROPE_TOKEN_ROTATES)
            gpu_rotate_bits<DTYPE>(gpu_reread(p), gpu_reread(call), token, i, tensor, x);
        out[rope_first_of(p->pairing_out, i) * out_stride] = x[0];
        out[rope_second_of(p->pairing_out, i, p->pairs) * out_stride] = x[1];
    }
}

template <int DTYPE, typename BITS>
GPU_FN void gpu_generic_head(const rope_problem *p, const rope_call *call, const rope_token *token,
                             int tensor, gpu_head<BITS> h, BITS *stage) {
    int offset = p->rotary_offset[tensor], width = 2 * p->pairs;
    if (h.in != h.out) {
        gpu_copy_rest(h, 0, offset);
        gpu_copy_rest(h, offset + width, p->head_dim[tensor]);
    }
    const BITS *in = h.in + offset * h.in_stride;
    BITS *out = h.out + offset * h.out_stride;
    if (!stage) {
        gpu_rotate_window<DTYPE>(p, call, token, tensor, in, h.in_stride, out, h.out_stride);
        return;
    }
    for (int i = (int)threadIdx.x; i < width; i += (int)blockDim.x)
        stage[i] = in[i * h.in_stride];
    __syncthreads();
    gpu_rotate_window<DTYPE>(p, call, token, tensor, stage, 1, out, h.out_stride);
    __syncthreads();
}

template <int DTYPE>
__global__ void __launch_bounds__(GPU_PLAIN_THREADS, 1)
    gpu_generic(GPU_PARAMETER rope_problem problem, GPU_PARAMETER rope_call given,
                GPU_PARAMETER int32_t staged) {
    const rope_problem &p = *gpu_parameter<rope_problem>(problem);
    const rope_call &call = *gpu_parameter<rope_call, rope_problem>(given);
    typedef typename gpu_element<DTYPE>::bits bits;
    extern __shared__ uint4 memory[];
    __shared__ rope_token token;
    gpu_wait_for_last();
    gpu_let_next_start();
    bits *stage = staged ? (bits *)memory : nullptr;
    for (int64_t n = blockIdx.x; n < call.batch * call.tokens; n += gridDim.x) {
        int64_t batch = n / call.tokens, index = n % call.tokens;
        if (threadIdx.x == 0 && threadIdx.y == 0) {
            rope_token_read(&p, &call, batch, index, &token);
            if (token.status == ROPE_TOKEN_FAILS && call.position_flag)
                *call.position_flag = 1;
        }
        __syncthreads();
        if (token.status != ROPE_TOKEN_FAILS) {
#pragma unroll
            for (int t = 0; t < 2; t++)
                for (int64_t head = blockIdx.y * blockDim.y + threadIdx.y;
                     head < call.tensor[t].heads; head += gridDim.y * blockDim.y)
                    gpu_generic_head<DTYPE, bits>(
                        gpu_reread(&p), gpu_reread(&call), &token, t,
                        gpu_head_of<bits>(&call.tensor[t], batch, index, head), stage);
        }
        __syncthreads();
    }
}

#endif
