/* The vector kernel for every descriptor: blocks of units of a few tokens, a row for each token. */
#ifndef ROPEKIT_GPU_ROPE_VECTOR_H
#define ROPEKIT_GPU_ROPE_VECTOR_H

#include "backends/gpu/rope/pass_through.h"

/* The i-th row of the block. */
template <int DTYPE> GPU_FN gpu_row<DTYPE> gpu_block_row(const rope_problem *p, void *rows, int i) {
    bool both = p->angle_mode == ROPE_ANGLE_TABLE && p->table_width == ROPE_TABLE_FULL;
    return gpu_row_of<DTYPE>(rows, i, p->pairs, both);
}

/* The threads of a slice fill the rows of its tokens, from n on. */
template <int DTYPE>
GPU_FN void gpu_fill_rows(const rope_problem *p, const rope_call *call,
                          const gpu_vector_call *vector, int64_t n, void *rows, int32_t *fates) {
    const int tensor = (int)(blockIdx.x * blockDim.y) >= vector->operands.q_units;
    const int step = (int)(blockDim.x * blockDim.y), first = (int)threadIdx.z * vector->tokens;
    for (int i = (int)(threadIdx.y * blockDim.x + threadIdx.x); i < vector->tokens * p->pairs;
         i += step) {
        int t = i / p->pairs;
        if (n + t < vector->operands.rows)
            gpu_row_fill<DTYPE>(p, call, tensor, n + t, i - t * p->pairs,
                                gpu_block_row<DTYPE>(p, rows, first + t), &fates[first + t]);
    }
}

template <typename S>
GPU_FN void gpu_rotate_head(const rope_problem *p, const gpu_row<S::DTYPE> &row,
                            gpu_vectors<S> &x) {
    gpu_lane_row<S> first, second;
    gpu_load_list<S>(row.c1, p->pairs, first.c);
    gpu_load_list<S>(row.s1, p->pairs, first.s);
    gpu_load_list<S>(row.c2, p->pairs, second.c);
    gpu_load_list<S>(row.s2, p->pairs, second.s);
    if (p->arithmetic == ROPE_ARITHMETIC_MODEL_DTYPE)
        gpu_rotate_vectors<S, true>(x, first, second);
    else
        gpu_rotate_vectors<S, false>(x, first, second);
}

/* Stores what a unit holds of a token; in and out are its first head's. */
template <typename S>
GPU_FN void gpu_finish_unit(const rope_problem *p, const gpu_vector_call *vector, gpu_unit u,
                            const char *in, char *out, int status, const gpu_row<S::DTYPE> &row,
                            gpu_vectors<S> x[S::HEADS]) {
    const gpu_operands *o = &vector->operands;
    const int64_t in_head = u.tensor ? o->in_head[1] : o->in_head[0];
    const int64_t out_head = u.tensor ? o->out_head[1] : o->out_head[0];
#pragma unroll
    for (int h = 0; h < S::HEADS; h++) {
        if (h >= u.count)
            continue;
        if (u.tensor ? vector->copies[1] : vector->copies[0])
            gpu_copy_outside<S>(in + h * in_head, out + h * out_head,
                                u.tensor ? vector->before[1] : vector->before[0],
                                u.tensor ? vector->after[1] : vector->after[0], p->pairs);
        if (status == ROPE_TOKEN_ROTATES)
            gpu_rotate_head<S>(p, row, x[h]);
        else
            gpu_pass_vectors<S>(x[h]);
        gpu_store_vectors<S>(out + h * out_head, p->pairs, x[h]);
    }
}

/* Where the first head of a unit lies for token n. */
GPU_FN const char *gpu_unit_in(const gpu_vector_call *v, gpu_unit u, int64_t n) {
    const char *in = gpu_in_of(&v->operands, u.tensor, u.head, n);
    return v->in_line ? in
                      : in + n / v->operands.tokens * (u.tensor ? v->in_batch[1] : v->in_batch[0]);
}

GPU_FN char *gpu_unit_out(const gpu_vector_call *v, gpu_unit u, int64_t n) {
    char *out = gpu_out_of(&v->operands, u.tensor, u.head, n);
    return v->in_line
               ? out
               : out + n / v->operands.tokens * (u.tensor ? v->out_batch[1] : v->out_batch[0]);
}

/*
 * Units in three steps: fill the rows, load, rotate and store; a small call loads first, since it
 * has registers for that. A thread whose token is past the end, or that has no head, waits with the
 * rest.
 */
template <int DTYPE, int PAIRING, int GEOMETRY>
__global__ void __launch_bounds__(GPU_VECTOR_THREADS, GPU_VECTOR_BLOCKS)
    gpu_vector_kernel(GPU_PARAMETER rope_problem problem, GPU_PARAMETER rope_call given,
                      GPU_PARAMETER gpu_vector_call units) {
    const rope_problem &p = *gpu_parameter<rope_problem>(problem);
    const rope_call &call = *gpu_parameter<rope_call, rope_problem>(given);
    const gpu_vector_call &vector = *gpu_parameter<gpu_vector_call, rope_problem, rope_call>(units);
    typedef gpu_shape<DTYPE, PAIRING, GEOMETRY> shape;
    constexpr int TOKENS = GEOMETRY == GPU_NARROW ? 1 : GPU_TOKENS_MOST;
    extern __shared__ uint4 memory[];
    __shared__ int32_t fates[GPU_ROWS_MOST];
    const gpu_operands *o = &vector.operands;
    const int64_t n = gpu_token_of_thread() * vector.tokens;
    const int count =
        n >= o->rows ? 0 : (int)(o->rows - n < vector.tokens ? o->rows - n : vector.tokens);
    const gpu_unit unit = gpu_unit_of<shape>(o);
    gpu_vectors<shape> x[TOKENS][shape::HEADS];
    gpu_wait_for_last();
    if (GEOMETRY != GPU_NARROW)
        gpu_fill_rows<DTYPE>(&p, &call, &vector, n, memory, fates);
    const char *in = gpu_unit_in(&vector, unit, n);
    const int64_t in_token = unit.tensor ? o->in_token[1] : o->in_token[0];
    const int64_t in_head = unit.tensor ? o->in_head[1] : o->in_head[0];
#pragma unroll
    for (int t = 0; t < TOKENS; t++)
        if (t < count)
            gpu_load_heads<shape>(in + t * in_token, in_head, o->pairs, unit.count, x[t]);
    gpu_let_next_start();
    if (GEOMETRY == GPU_NARROW)
        gpu_fill_rows<DTYPE>(&p, &call, &vector, n, memory, fates);
    __syncthreads();
    char *out = gpu_unit_out(&vector, unit, n);
    const int64_t out_token = unit.tensor ? o->out_token[1] : o->out_token[0];
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
        if (t >= count)
            return;
        int i = (int)threadIdx.z * vector.tokens + t, status = fates[i];
        if (status != ROPE_TOKEN_FAILS)
            gpu_finish_unit<shape>(&p, &vector, unit, in + t * in_token, out + t * out_token,
                                   status, gpu_block_row<DTYPE>(&p, memory, i), x[t]);
        else if (call.position_flag)
            *call.position_flag = 1;
    }
}

#endif
