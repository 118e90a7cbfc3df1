/*
 * Every descriptor, in fp32: a block has GPU_BACKWARD_FEW rows or keys of its own, and a thread one
 * of the others in a tile while weights are made, then columns of the gradients. Tiles begin at
 * multiples of GPU_ATTENTION_THREADS, and what does not see is passed over, so the bits of a
 * gradient do not depend on what has nothing to do with it.
 */
#ifndef ROPEKIT_GPU_ATTENTION_BACKWARD_GENERIC_H
#define ROPEKIT_GPU_ATTENTION_BACKWARD_GENERIC_H

#include "common/gpu/attention_backward/item.h"

enum {
    GPU_BACKWARD_COLUMNS =
        (ROPE_MAX_ATTENTION_HEAD_DIM + GPU_ATTENTION_THREADS - 1) / GPU_ATTENTION_THREADS
};

/* What threads of a block share. */
struct gpu_backward_generic_block {
    gpu_attention_tile tile;
    gpu_backward_item own[GPU_BACKWARD_FEW], others[GPU_ATTENTION_THREADS];
    rope_token tokens[GPU_ATTENTION_THREADS];
    uint32_t sees[GPU_ATTENTION_THREADS]; /* which of the block's own see or are seen by another */
    int64_t to[2][GPU_BACKWARD_FEW];
    int64_t begin, end; /* others that may count */
    int64_t head;       /* of keys */
};

/* The block's dynamic shared memory, the block's own fastest but in `others`. */
struct gpu_backward_memory {
    float *others, *own, *weights, *gradients;
};

/* A sum of each of the block's own, by columns. */
typedef float gpu_backward_sums[GPU_BACKWARD_COLUMNS][GPU_BACKWARD_FEW];

/* Products of the thread's other one with the block's own: scores, or of dout and v. */
template <int DTYPE, int KEYS>
GPU_FN void gpu_backward_products(const gpu_backward_call &t, const gpu_backward_generic_block *b,
                                  gpu_backward_memory m, int which, int begin, int end,
                                  float product[GPU_BACKWARD_FEW]) {
    enum { DEPTH = GPU_BACKWARD_DEPTH, FEW = GPU_BACKWARD_FEW };
    const int thread = (int)threadIdx.x,
              dim = which ? gpu_reread(t.p)->v_head_dim : gpu_reread(t.p)->head_dim;
    for (int first = 0; first < dim; first += DEPTH) {
        const auto *own = gpu_backward_data<DTYPE>(gpu_reread(t.call), KEYS, which),
                   *other = gpu_backward_data<DTYPE>(gpu_reread(t.call), !KEYS, which);
        const int64_t own_step = gpu_backward_stride(gpu_reread(t.call), KEYS, which)[3],
                      step = gpu_backward_stride(gpu_reread(t.call), !KEYS, which)[3];
        const int depth = dim - first < DEPTH ? dim - first : (int)DEPTH;
        for (int e = thread; e < FEW * DEPTH; e += GPU_ATTENTION_THREADS) {
            const int n = e / DEPTH, i = e % DEPTH;
            m.own[i * FEW + n] =
                i < depth && b->own[n].at[which] != GPU_BACKWARD_NOWHERE
                    ? gpu_widen<DTYPE>(own[b->own[n].at[which] + (first + i) * own_step])
                    : 0;
        }
        for (int e = begin * DEPTH + thread; e < end * DEPTH; e += GPU_ATTENTION_THREADS) {
            const int n = e / DEPTH, i = e % DEPTH;
            if (i < depth && b->others[n].at[which] != GPU_BACKWARD_NOWHERE)
                m.others[n * (DEPTH + 1) + i] =
                    gpu_widen<DTYPE>(other[b->others[n].at[which] + (first + i) * step]);
        }
        __syncthreads();
        if (thread >= begin && thread < end)
            for (int i = 0; i < depth; i++) {
                const float x = m.others[thread * (DEPTH + 1) + i];
#pragma unroll
                for (int r = 0; r < FEW; r++)
                    product[r] = fmaf(m.own[i * FEW + r], x, product[r]);
            }
        __syncthreads();
    }
}

/* From scores to weights, and to gradients of scores; unseen ones are set, and not used. */
template <int KEYS>
GPU_FN void gpu_backward_weigh(const gpu_backward_call &t, gpu_backward_generic_block *b,
                               gpu_backward_memory m, bool there,
                               const float score[GPU_BACKWARD_FEW],
                               const float dp[GPU_BACKWARD_FEW]) {
    const int thread = (int)threadIdx.x;
    const float scale = gpu_reread(t.p)->scale, cap = gpu_reread(t.p)->soft_cap;
    uint32_t sees = 0;
#pragma unroll
    for (int r = 0; r < GPU_BACKWARD_FEW; r++) {
        const gpu_backward_item *row = KEYS ? &b->others[thread] : &b->own[r];
        const int64_t key = KEYS ? b->own[r].key : b->others[thread].key;
        float x = score[r] * scale, slope = 1;
        if (cap > 0) {
            const float tanh = tanhf(x / cap);
            x = cap * tanh;
            slope = fmaf(-tanh, tanh, 1.0f);
        }
        const bool seen = there && key >= row->seen.first && key < row->seen.last;
        const float p = seen ? expf(x - row->lse) : 0;
        sees |= (uint32_t)seen << r;
        m.weights[thread * GPU_BACKWARD_FEW + r] = p;
        m.gradients[thread * GPU_BACKWARD_FEW + r] = seen ? p * (dp[r] - row->delta) * slope : 0;
    }
    b->sees[thread] = sees;
    __syncthreads();
}

/* Adds the others, by their weights, to the thread's columns. */
template <int DTYPE, int KEYS>
GPU_FN void gpu_backward_add(const gpu_backward_call &t, const gpu_backward_generic_block *b,
                             const float *weights, int which, int begin, int end,
                             gpu_backward_sums &sums) {
    const int dim = which ? gpu_reread(t.p)->v_head_dim : gpu_reread(t.p)->head_dim;
    const auto *data = gpu_backward_data<DTYPE>(gpu_reread(t.call), !KEYS, which);
    const int64_t step = gpu_backward_stride(gpu_reread(t.call), !KEYS, which)[3];
#pragma unroll
    for (int c = 0; c < GPU_BACKWARD_COLUMNS; c++) {
        const int column = c * GPU_ATTENTION_THREADS + (int)threadIdx.x;
        if (column >= dim)
            break;
        for (int n = begin; n < end; n++) {
            const uint32_t sees = b->sees[n];
            if (!sees)
                continue;
            const float x = gpu_widen<DTYPE>(data[b->others[n].at[which] + column * step]);
#pragma unroll
            for (int r = 0; r < GPU_BACKWARD_FEW; r++)
                sums[c][r] = sees >> r & 1 ? fmaf(weights[n * GPU_BACKWARD_FEW + r], x, sums[c][r])
                                           : sums[c][r];
        }
    }
}

/* The block's own, and which of the others may count. */
template <int KEYS>
GPU_FN void gpu_backward_begin(const gpu_backward_call &t, gpu_backward_generic_block *b) {
    const rope_attention_sequence *s = &b->tile.s;
    const int thread = (int)threadIdx.x;
    if (thread < GPU_BACKWARD_FEW)
        b->own[thread] =
            KEYS ? gpu_backward_key(t, s, b->head, b->tile.first + thread)
                 : gpu_backward_row(t, s, b->head, b->tile.first + thread, &b->tokens[thread]);
    __syncthreads();
    if (thread != 0)
        return;
    b->begin = b->end = 0;
    if constexpr (KEYS) {
        const int64_t group = gpu_attention_group(&gpu_reread(t.call)->forward);
        b->begin = group * gpu_first_query<false>(gpu_reread(t.p), s, b->tile.first);
        b->end =
            group * gpu_first_query<true>(gpu_reread(t.p), s, b->tile.first + GPU_BACKWARD_FEW);
    } else {
        for (int r = 0; r < GPU_BACKWARD_FEW; r++) {
            const rope_key_range seen = b->own[r].seen;
            if (seen.first >= seen.last)
                continue;
            b->begin = b->end == 0 || seen.first < b->begin ? seen.first : b->begin;
            b->end = seen.last > b->end ? seen.last : b->end;
        }
    }
}

/* Sums of the block's own, by factor and rounded, where they wait to be written. */
template <int DTYPE>
GPU_FN void gpu_backward_stage(const gpu_backward_sums &sums, float factor, int dim, float *x) {
#pragma unroll
    for (int c = 0; c < GPU_BACKWARD_COLUMNS; c++) {
        const int column = c * GPU_ATTENTION_THREADS + (int)threadIdx.x;
#pragma unroll
        for (int r = 0; r < GPU_BACKWARD_FEW; r++)
            if (column < dim) /* a zero has no sign */
                x[r * dim + column] =
                    gpu_widen<DTYPE>(gpu_narrow<DTYPE>(fmaf(sums[c][r], factor, 0.0f)));
    }
    __syncthreads();
}

template <int DTYPE, int KEYS>
GPU_FN void gpu_backward_end(const gpu_backward_call &t, gpu_backward_generic_block *b, float *x,
                             const gpu_backward_sums (&sums)[1 + KEYS]) {
    const rope_attention_backward_call *c = gpu_reread(t.call);
    const int thread = (int)threadIdx.x, dim = gpu_reread(t.p)->head_dim,
              v_dim = gpu_reread(t.p)->v_head_dim;
    if (thread < GPU_BACKWARD_FEW) {
        int64_t to[2] = {0, 0};
        if (KEYS)
            gpu_backward_key_end(t, &b->tile.s, b->head, b->tile.first + thread, &b->tokens[thread],
                                 to);
        else
            to[0] = gpu_backward_row_end(t, &b->tile.s, b->head, b->tile.first + thread,
                                         &b->tokens[thread]);
        b->to[0][thread] = to[0];
        b->to[1][thread] = to[1];
    }
    gpu_backward_stage<DTYPE>(sums[0], gpu_reread(t.p)->scale, dim, x);
    if (!KEYS)
        gpu_backward_store<DTYPE, 0>(
            gpu_reread(t.p), &c->forward.rope, x, dim, dim, GPU_BACKWARD_FEW,
            gpu_reread(t.p)->rotates[0] ? b->tokens : NULL, b->to[0], c->dq, c->dq_stride[3]);
    else if (c->dk)
        gpu_backward_store<DTYPE, 1>(gpu_reread(t.p), t.keys, x, dim, dim, GPU_BACKWARD_FEW,
                                     gpu_reread(t.p)->rotates[1] ? b->tokens : NULL, b->to[0],
                                     c->dk, c->dk_stride[3]);
    __syncthreads();
    if (!KEYS || !c->dv)
        return;
    gpu_backward_stage<DTYPE>(sums[KEYS], 1, v_dim, x);
    gpu_backward_store<DTYPE, 1>(gpu_reread(t.p), t.keys, x, v_dim, v_dim, GPU_BACKWARD_FEW, NULL,
                                 b->to[1], c->dv, c->dv_stride[3]);
    __syncthreads();
}

/* All that concerns the block's own. */
template <int DTYPE, int KEYS>
GPU_FN void gpu_backward_block_own(const gpu_backward_call &t, gpu_backward_generic_block *b,
                                   gpu_backward_memory m) {
    gpu_backward_sums sums[1 + KEYS] = {};
    const int thread = (int)threadIdx.x;
    gpu_backward_begin<KEYS>(t, b);
    __syncthreads();
    const int64_t begin = b->begin, end = b->end;
    for (int64_t first = begin / GPU_ATTENTION_THREADS * GPU_ATTENTION_THREADS; first < end;
         first += GPU_ATTENTION_THREADS) {
        const int from = begin > first ? (int)(begin - first) : 0,
                  to = end - first < GPU_ATTENTION_THREADS ? (int)(end - first)
                                                           : (int)GPU_ATTENTION_THREADS;
        const bool there = thread >= from && thread < to;
        float score[GPU_BACKWARD_FEW] = {}, dp[GPU_BACKWARD_FEW] = {};
        if (there)
            b->others[thread] =
                KEYS ? gpu_backward_row(t, &b->tile.s, b->head, first + thread, &b->tokens[thread])
                     : gpu_backward_key(t, &b->tile.s, b->head, first + thread);
        __syncthreads();
        gpu_backward_products<DTYPE, KEYS>(t, b, m, 0, from, to, score);
        gpu_backward_products<DTYPE, KEYS>(t, b, m, 1, from, to, dp);
        gpu_backward_weigh<KEYS>(t, b, m, there, score, dp);
        gpu_backward_add<DTYPE, KEYS>(t, b, m.gradients, 0, from, to, sums[0]);
        if (KEYS)
            gpu_backward_add<DTYPE, KEYS>(t, b, m.weights, 1, from, to, sums[KEYS]);
        __syncthreads();
    }
    gpu_backward_end<DTYPE, KEYS>(t, b, m.others, sums);
}

template <int DTYPE, int KEYS>
__global__ void __launch_bounds__(GPU_ATTENTION_THREADS, 1)
    gpu_backward_generic(GPU_PARAMETER rope_attention_problem problem,
                         GPU_PARAMETER rope_attention_backward_call given, const int32_t *failed,
                         float *delta, GPU_PARAMETER rope_call tokens) {
    const rope_attention_problem &p = *gpu_parameter<rope_attention_problem>(problem);
    const rope_attention_backward_call &c =
        *gpu_parameter<rope_attention_backward_call, rope_attention_problem>(given);
    const rope_call &keys =
        *gpu_parameter<rope_call, rope_attention_problem, rope_attention_backward_call,
                       const int32_t *, float *>(tokens);
    extern __shared__ uint4 memory[];
    __shared__ gpu_backward_generic_block b;
    float *room = (float *)memory;
    enum { OTHERS = GPU_ATTENTION_THREADS * (GPU_BACKWARD_DEPTH + 1) };
    const gpu_backward_memory m = {room, room + OTHERS,
                                   room + OTHERS + GPU_BACKWARD_DEPTH * GPU_BACKWARD_FEW,
                                   room + OTHERS + GPU_BACKWARD_DEPTH * GPU_BACKWARD_FEW +
                                       GPU_ATTENTION_THREADS * GPU_BACKWARD_FEW};
    const gpu_backward_call t = {&p, &c, &keys, failed, delta};
    gpu_wait_for_last();
    gpu_let_next_start();
    const int64_t each = KEYS ? 1 : gpu_attention_group(&c.forward);
    for (int64_t n = blockIdx.x;
         gpu_attention_find<KEYS>(&p, &c.forward, failed, n, each, GPU_BACKWARD_FEW, &b.tile);
         n += gridDim.x) {
        if (!b.tile.valid || b.tile.first >= (KEYS ? b.tile.s.k_count : b.tile.s.q_count * each))
            continue;
        for (int64_t head = blockIdx.y; head < c.forward.k.heads; head += gridDim.y) {
            __syncthreads();
            if (threadIdx.x == 0)
                b.head = head;
            __syncthreads();
            gpu_backward_block_own<DTYPE, KEYS>(t, &b, m);
        }
    }
}

#endif
