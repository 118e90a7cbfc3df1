/* The rotation of queries and keys, with the bits of rope_apply: a pair of a head, and the kernels
 * that run before anything attends. */
#ifndef ROPEKIT_GPU_ATTENTION_ROTATE_H
#define ROPEKIT_GPU_ATTENTION_ROTATE_H

#include "backends/gpu/attention/element.h"
#include "backends/gpu/rope/rotate.h"
#include "common/math/layout.h"

/* A pair rotated and rounded. */
template <int DTYPE>
GPU_FN rope_pair gpu_rotated_by(const rope_problem *p, rope_pair two, const rope_coefficients &m) {
    two = p->arithmetic == ROPE_ARITHMETIC_MODEL_DTYPE ? gpu_rotate_model<DTYPE>(two, m)
                                                       : rope_rotate(two, m);
    const float2 y = gpu_round<DTYPE>(two.x1, two.x2);
    return {y.x, y.y};
}

/* Pair i of a head x, rotated and rounded. */
template <int DTYPE>
GPU_FN rope_pair gpu_rotated_pair(const rope_problem *p, const rope_call *call,
                                  const rope_token *token, int tensor, const float *x, int i) {
    const float *window = x + p->rotary_offset[tensor];
    const rope_pair two = {window[rope_first_of(p->pairing_in, i)],
                           window[rope_second_of(p->pairing_in, i, p->pairs)]};
    return token->status == ROPE_TOKEN_ROTATES
               ? gpu_rotated_by<DTYPE>(p, two, rope_coefficients_of(p, call, token, i, tensor))
               : two;
}

/* Tokens of a block's tile that rotates: queries or keys first.. of a sequence. */
template <int TOKENS> struct gpu_attention_tokens {
    gpu_attention_tile tile;
    rope_token token[TOKENS];
    int64_t out[TOKENS]; /* element 0 of head 0 */
    int64_t first;       /* of the sequence's */
    int32_t count;
};

template <int TENSOR, int TOKENS>
GPU_FN void gpu_attention_tokens_read(const rope_attention_problem *p,
                                      const rope_attention_call *call, const rope_call *rope,
                                      gpu_attention_tokens<TOKENS> *t) {
    const rope_attention_sequence *s = &t->tile.s;
    const int64_t left = gpu_rows_of<TENSOR>(p, call, s, 1) - t->tile.first;
    const int n = (int)threadIdx.x;
    if (n == 0) {
        t->first = t->tile.first + (TENSOR ? gpu_keys_rotated(p, call, s).begin : 0);
        t->count = left < 0 ? 0 : left < TOKENS ? (int32_t)left : (int32_t)TOKENS;
    }
    __syncthreads();
    if (n >= t->count)
        return;
    const int64_t i = t->first + n;
    if (TENSOR) {
        rope_key_token(p, rope, s, i, &t->token[n]);
        t->out[n] =
            s->k_row * call->k.out_stride[0] + gpu_rotated_key(p, s, i) * call->k.out_stride[1];
    } else {
        const int64_t *stride = call->rope.tensor[0].out_stride;
        rope_query_token(p, call, s, i, &t->token[n]);
        t->out[n] = s->q_row * stride[0] + (s->q_first + i) * stride[1];
    }
    if (t->token[n].status == ROPE_TOKEN_FAILS)
        gpu_attention_flag(call);
}

/* An element as the caller gave it. */
template <int DTYPE, int TENSOR>
GPU_FN float gpu_given_element(const rope_attention_problem *p, const rope_attention_call *call,
                               const rope_attention_sequence *s, int64_t n, int64_t head, int i) {
    typedef typename gpu_element<DTYPE>::bits bits;
    if (TENSOR == 1 && !call->k.in) {
        const rope_append_operand *o = &call->k;
        return gpu_cached_element<DTYPE>(o, &p->k, gpu_cached_head(p, call, o, &p->k, s, n, head),
                                         i);
    }
    const int64_t *stride = TENSOR ? call->k.in_stride : call->rope.tensor[0].in_stride;
    const bits *in = (const bits *)(TENSOR ? call->k.in : call->rope.tensor[0].in);
    const int64_t row = TENSOR ? s->k_row : s->q_row, first = TENSOR ? s->k_first : s->q_first;
    return gpu_widen<DTYPE>(
        in[row * stride[0] + (first + n) * stride[1] + head * stride[2] + i * stride[3]]);
}

/* One head of every token: staged, so that out may be in whatever the pairings. */
template <int DTYPE, int TENSOR>
GPU_FN void gpu_attention_rotate_heads(const rope_attention_problem *p,
                                       const rope_attention_call *call, const rope_call *rope,
                                       const gpu_attention_tokens<GPU_ATTENTION_TOKENS> *t,
                                       int64_t head, float *x) {
    typedef typename gpu_element<DTYPE>::bits bits;
    const int dim = p->head_dim, pairs = p->rope.pairs, from = p->rope.rotary_offset[TENSOR];
    for (int e = (int)threadIdx.x; e < t->count * dim; e += GPU_ATTENTION_THREADS)
        x[e] = gpu_given_element<DTYPE, TENSOR>(gpu_reread(p), gpu_reread(call), &t->tile.s,
                                                t->first + e / dim, head, e % dim);
    __syncthreads();
    const int64_t *stride = TENSOR ? call->k.out_stride : call->rope.tensor[0].out_stride;
    bits *out = (bits *)(TENSOR ? call->k.out : call->rope.tensor[0].out) + head * stride[2];
    for (int e = (int)threadIdx.x; e < t->count * (dim - pairs); e += GPU_ATTENTION_THREADS) {
        const int n = e / (dim - pairs), i = e % (dim - pairs) - pairs;
        bits *to = out + t->out[n];
        if (t->token[n].status == ROPE_TOKEN_FAILS)
            continue;
        if (i >= 0) { /* an element outside the window */
            const int at = i < from ? i : i + 2 * pairs;
            to[at * stride[3]] = gpu_narrow<DTYPE>(x[n * dim + at]);
            continue;
        }
        const rope_problem *r = gpu_reread(&p->rope);
        const rope_pair y = gpu_rotated_pair<DTYPE>(r, gpu_reread(rope), &t->token[n], TENSOR,
                                                    x + n * dim, i + pairs);
        to[(from + rope_first_of(r->pairing_out, i + pairs)) * stride[3]] = gpu_narrow<DTYPE>(y.x1);
        to[(from + rope_second_of(r->pairing_out, i + pairs, pairs)) * stride[3]] =
            gpu_narrow<DTYPE>(y.x2);
    }
    __syncthreads();
}

/* rope: the call of tensor TENSOR's tokens. */
template <int DTYPE, int TENSOR>
__global__ void __launch_bounds__(GPU_ATTENTION_THREADS, 1)
    gpu_attention_rotate(GPU_PARAMETER rope_attention_problem problem,
                         GPU_PARAMETER rope_attention_call given, GPU_PARAMETER rope_call tokens,
                         const int32_t *failed) {
    const rope_attention_problem &p = *gpu_parameter<rope_attention_problem>(problem);
    const rope_attention_call &call =
        *gpu_parameter<rope_attention_call, rope_attention_problem>(given);
    const rope_call &rope =
        *gpu_parameter<rope_call, rope_attention_problem, rope_attention_call>(tokens);
    extern __shared__ uint4 memory[];
    __shared__ gpu_attention_tokens<GPU_ATTENTION_TOKENS> t;
    gpu_wait_for_last();
    gpu_let_next_start();
    for (int64_t n = blockIdx.x;
         gpu_attention_find<TENSOR>(&p, &call, failed, n, 1, GPU_ATTENTION_TOKENS, &t.tile);
         n += gridDim.x) {
        if (!t.tile.valid)
            continue;
        gpu_attention_tokens_read<TENSOR>(gpu_reread(&p), gpu_reread(&call), gpu_reread(&rope), &t);
        __syncthreads();
        const int64_t heads = TENSOR ? call.k.heads : call.rope.tensor[0].heads;
        for (int64_t head = blockIdx.y; head < heads; head += gridDim.y)
            gpu_attention_rotate_heads<DTYPE, TENSOR>(gpu_reread(&p), gpu_reread(&call),
                                                      gpu_reread(&rope), &t, head, (float *)memory);
    }
}

/* Where a token's head 0 begins in what the caller gave, and from a head to the next. */
template <int TENSOR>
GPU_FN const char *gpu_given_token(const rope_attention_problem *p, const rope_attention_call *call,
                                   const rope_attention_sequence *s, int64_t n, int64_t *step) {
    const rope_append_operand *k = &call->k;
    if (TENSOR == 1 && !k->in) {
        *step = k->cache_stride[2];
        return (const char *)k->cache + 2 * gpu_cached_head(p, call, k, &p->k, s, n, 0).at;
    }
    const int64_t *stride = TENSOR ? k->in_stride : call->rope.tensor[0].in_stride;
    *step = stride[2];
    return (const char *)(TENSOR ? k->in : call->rope.tensor[0].in) +
           2 * ((TENSOR ? s->k_row : s->q_row) * stride[0] +
                ((TENSOR ? s->k_first : s->q_first) + n) * stride[1]);
}

/* V pairs in two vectors, from one pairing to the same. */
template <int DTYPE, int V>
GPU_FN void gpu_rotate_vectors(bool half, bool model, const rope_coefficients m[V],
                               gpu_vector<DTYPE, V> v[2]) {
    float x[2 * V], y[2 * V];
    gpu_unpack<DTYPE, V>(v[0], x);
    gpu_unpack<DTYPE, V>(v[1], x + V);
#pragma unroll
    for (int i = 0; i < V; i++) {
        const rope_pair two = {half ? x[i] : x[2 * i], half ? x[V + i] : x[2 * i + 1]},
                        z = model ? gpu_rotate_model<DTYPE>(two, m[i]) : rope_rotate(two, m[i]);
        y[i] = z.x1;
        y[V + i] = z.x2;
    }
#pragma unroll
    for (int i = 0; i < 2 * V; i++)
        x[i] = half ? y[i] : y[i % 2 * V + i / 2];
    v[0] = gpu_pack<DTYPE, V>(x);
    v[1] = gpu_pack<DTYPE, V>(x + V);
}

/* Unit `unit` of a token's heads head0, head0 + heads_step..: eight pairs, or eight elements
 * outside the window. */
template <int DTYPE, int TENSOR>
GPU_FN void gpu_attention_rotate_unit(const rope_attention_problem *p,
                                      const rope_attention_call *call, const rope_call *rope,
                                      const gpu_attention_tokens<GPU_VECTOR_TOKENS> *t, int n,
                                      int unit, int64_t head0, int64_t heads_step) {
    const rope_problem *r = &p->rope;
    const int pairs = r->pairs, from = r->rotary_offset[TENSOR], outside = unit - pairs / 8;
    const bool half = r->pairing_in == ROPE_PAIRING_HALF_SPLIT,
               rotates = outside < 0 && t->token[n].status == ROPE_TOKEN_ROTATES,
               model = r->arithmetic == ROPE_ARITHMETIC_MODEL_DTYPE;
    int at[2] = {from + (half ? 8 : 16) * unit, from + (half ? pairs + 8 * unit : 16 * unit + 8)};
    if (outside >= 0)
        at[0] = at[1] = 8 * outside < from ? 8 * outside : 8 * outside + 2 * pairs;
    rope_coefficients m[8] = {};
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (rotates)
            m[i] = rope_coefficients_of(r, rope, &t->token[n], 8 * unit + i, TENSOR);
    int64_t step;
    const char *in = gpu_given_token<TENSOR>(p, call, &t->tile.s, t->first + n, &step);
    const int64_t to = TENSOR ? call->k.out_stride[2] : call->rope.tensor[0].out_stride[2],
                  heads = TENSOR ? call->k.heads : call->rope.tensor[0].heads;
    char *out = (char *)(TENSOR ? call->k.out : call->rope.tensor[0].out) + 2 * t->out[n];
#pragma unroll 4
    for (int64_t head = head0; head < heads; head += heads_step) {
        gpu_vector<DTYPE, 8> v[2] = {gpu_load<DTYPE, 8>(in + 2 * (head * step + at[0])),
                                     gpu_load<DTYPE, 8>(in + 2 * (head * step + at[1]))};
        if (rotates)
            gpu_rotate_vectors<DTYPE, 8>(half, model, m, v);
        gpu_store<DTYPE, 8>(out + 2 * (head * to + at[0]), v[0]);
        gpu_store<DTYPE, 8>(out + 2 * (head * to + at[1]), v[1]);
    }
}

/* As gpu_attention_rotate, 16 bytes at a time; a pair's coefficients serve all heads of a thread.
 */
template <int DTYPE, int TENSOR>
__global__ void __launch_bounds__(GPU_ATTENTION_THREADS, 1)
    gpu_attention_rotate_vectors(GPU_PARAMETER rope_attention_problem problem,
                                 GPU_PARAMETER rope_attention_call given,
                                 GPU_PARAMETER rope_call tokens, const int32_t *failed) {
    const rope_attention_problem &p = *gpu_parameter<rope_attention_problem>(problem);
    const rope_attention_call &call =
        *gpu_parameter<rope_attention_call, rope_attention_problem>(given);
    const rope_call &rope =
        *gpu_parameter<rope_call, rope_attention_problem, rope_attention_call>(tokens);
    __shared__ gpu_attention_tokens<GPU_VECTOR_TOKENS> t;
    gpu_wait_for_last();
    gpu_let_next_start();
    for (int64_t n = blockIdx.x;
         gpu_attention_find<TENSOR>(&p, &call, failed, n, 1, GPU_VECTOR_TOKENS, &t.tile);
         n += gridDim.x) {
        if (!t.tile.valid)
            continue;
        gpu_attention_tokens_read<TENSOR>(gpu_reread(&p), gpu_reread(&call), gpu_reread(&rope), &t);
        __syncthreads();
        const int units = p.rope.pairs / 8 + (p.head_dim - 2 * p.rope.pairs) / 8;
        for (int e = (int)threadIdx.x; e < t.count * units; e += GPU_ATTENTION_THREADS)
            if (t.token[e / units].status != ROPE_TOKEN_FAILS)
                gpu_attention_rotate_unit<DTYPE, TENSOR>(gpu_reread(&p), gpu_reread(&call),
                                                         gpu_reread(&rope), &t, e / units,
                                                         e % units, blockIdx.y, gridDim.y);
    }
}

/* Whether a key of a sequence has no position, one entry a sequence. */
template <int>
__global__ void __launch_bounds__(GPU_ATTENTION_THREADS, 1)
    gpu_attention_check(GPU_PARAMETER rope_attention_problem problem,
                        GPU_PARAMETER rope_attention_call given, GPU_PARAMETER rope_call tokens,
                        int32_t *failed) {
    const rope_attention_problem &p = *gpu_parameter<rope_attention_problem>(problem);
    const rope_attention_call &call =
        *gpu_parameter<rope_attention_call, rope_attention_problem>(given);
    const rope_call &keys =
        *gpu_parameter<rope_call, rope_attention_problem, rope_attention_call>(tokens);
    __shared__ rope_token token[GPU_ATTENTION_THREADS];
    __shared__ int32_t fails;
    gpu_wait_for_last();
    gpu_let_next_start();
    for (int64_t n = blockIdx.x; n < rope_attention_sequences(&call); n += gridDim.x) {
        if (threadIdx.x == 0)
            fails = 0;
        __syncthreads();
        const rope_attention_sequence s = rope_attention_sequence_of(&p, &call, n);
        const rope_key_range rotated = gpu_keys_rotated(gpu_reread(&p), gpu_reread(&call), &s);
        if (!s.fails)
            for (int64_t j = rotated.begin + threadIdx.x; j < rotated.end;
                 j += GPU_ATTENTION_THREADS) {
                rope_key_token(gpu_reread(&p), gpu_reread(&keys), &s, j, &token[threadIdx.x]);
                if (token[threadIdx.x].status == ROPE_TOKEN_FAILS)
                    fails = 1;
            }
        __syncthreads();
        if (threadIdx.x == 0)
            failed[n] = fails;
        __syncthreads();
    }
}

#endif
