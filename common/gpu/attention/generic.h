/*
 * Every descriptor, in fp32: a block has GPU_GENERIC_ROWS rows, and a thread a key of a tile while
 * scores are made, then columns of out. Tiles begin at multiples of GPU_GENERIC_KEYS, and a tile
 * that a row does not see leaves it as it is, so a row's bits do not depend on its neighbours.
 */
#ifndef ROPEKIT_GPU_ATTENTION_GENERIC_H
#define ROPEKIT_GPU_ATTENTION_GENERIC_H

#include "common/gpu/attention/rows.h"

enum {
    GPU_GENERIC_COLUMNS =
        (ROPE_MAX_ATTENTION_HEAD_DIM + GPU_ATTENTION_THREADS - 1) / GPU_ATTENTION_THREADS
};

/* What threads of a block share. A weight below 0 is of a key that the row does not see. */
struct gpu_generic_block {
    gpu_attention_tile tile;
    gpu_attention_row rows[GPU_GENERIC_ROWS];
    gpu_attention_head keys[GPU_GENERIC_KEYS], values[GPU_GENERIC_KEYS];
    float largest[GPU_GENERIC_ROWS], sum[GPU_GENERIC_ROWS], kept[GPU_GENERIC_ROWS];
    float part[GPU_GENERIC_ROWS][GPU_ATTENTION_THREADS / GPU_GENERIC_ROWS];
    int64_t key_head;
};

/* The block's dynamic shared memory, rows fastest in queries and weights. */
struct gpu_generic_memory {
    float *queries, *weights, *stage;
};

template <int DTYPE>
GPU_FN void gpu_generic_queries(const rope_attention_problem *p, const rope_attention_call *call,
                                const gpu_generic_block *b, gpu_generic_memory m) {
    const int dim = p->head_dim, pairs = gpu_rotates_queries(p, call) ? p->rope.pairs : 0;
    for (int e = (int)threadIdx.x; e < GPU_GENERIC_ROWS * dim; e += GPU_ATTENTION_THREADS) {
        const gpu_attention_row *r = &b->rows[e / dim];
        m.stage[e] = r->live ? gpu_query_element<DTYPE>(&gpu_reread(call)->rope.tensor[0],
                                                        &b->tile.s, r->query, r->head, e % dim)
                             : 0;
    }
    __syncthreads();
    for (int e = (int)threadIdx.x; e < GPU_GENERIC_ROWS * (dim - pairs);
         e += GPU_ATTENTION_THREADS) {
        const rope_problem *rope = gpu_reread(&p->rope);
        const int row = e / (dim - pairs), i = e % (dim - pairs), from = rope->rotary_offset[0];
        const float *x = m.stage + row * dim;
        if (i < pairs) {
            const int first = from + rope_first_of(rope->pairing_out, i),
                      second = from + rope_second_of(rope->pairing_out, i, pairs);
            rope_pair y = {0, 0};
            if (b->rows[row].live)
                y = gpu_rotated_pair<DTYPE>(rope, &gpu_reread(call)->rope, &b->rows[row].token, 0,
                                            x, i);
            m.queries[first * GPU_GENERIC_ROWS + row] = y.x1;
            m.queries[second * GPU_GENERIC_ROWS + row] = y.x2;
        } else {
            const int at = i - pairs < from || pairs == 0 ? i - pairs : i + pairs;
            m.queries[at * GPU_GENERIC_ROWS + row] = x[at];
        }
    }
    __syncthreads();
}

/* Products of the rows with the thread's key, of elements first..first + depth - 1. */
template <int DTYPE>
GPU_FN void gpu_generic_products(const rope_attention_problem *p, const rope_attention_call *call,
                                 const gpu_generic_block *b, gpu_generic_memory m, int first,
                                 int begin, int end, float product[GPU_GENERIC_ROWS]) {
    const int depth =
        p->head_dim - first < GPU_GENERIC_DEPTH ? p->head_dim - first : (int)GPU_GENERIC_DEPTH;
    for (int e = begin * GPU_GENERIC_DEPTH + (int)threadIdx.x; e < end * GPU_GENERIC_DEPTH;
         e += GPU_ATTENTION_THREADS) {
        const int key = e / GPU_GENERIC_DEPTH, i = e % GPU_GENERIC_DEPTH;
        if (i < depth)
            m.stage[key * (GPU_GENERIC_DEPTH + 1) + i] = gpu_attention_element<DTYPE>(
                &gpu_reread(call)->k, &gpu_reread(p)->k, b->keys[key], first + i);
    }
    __syncthreads();
    const float *key = m.stage + threadIdx.x * (GPU_GENERIC_DEPTH + 1);
    if ((int)threadIdx.x >= begin && (int)threadIdx.x < end)
        for (int i = 0; i < depth; i++) {
            const float *query = m.queries + (first + i) * GPU_GENERIC_ROWS, x = key[i];
#pragma unroll
            for (int r = 0; r < GPU_GENERIC_ROWS; r++)
                product[r] = fmaf(query[r], x, product[r]);
        }
    __syncthreads();
}

/* A reduction over the keys of each row: threads of a row take a part each, then one joins them.
 * Negative weights are passed over where a sum is made. */
template <bool SUM> GPU_FN float gpu_generic_joined(gpu_generic_block *b, const float *x) {
    enum { PARTS = GPU_ATTENTION_THREADS / GPU_GENERIC_ROWS };
    const int row = (int)threadIdx.x % GPU_GENERIC_ROWS, part = (int)threadIdx.x / GPU_GENERIC_ROWS;
    float all = SUM ? 0 : -INFINITY;
    for (int key = part; key < GPU_GENERIC_KEYS; key += PARTS) {
        const float y = x[key * GPU_GENERIC_ROWS + row];
        all = !SUM ? fmaxf(all, y) : y < 0 ? all : all + y;
    }
    b->part[row][part] = all;
    __syncthreads();
    if (part != 0)
        return 0;
    all = b->part[row][0];
    for (int i = 1; i < PARTS; i++)
        all = SUM ? all + b->part[row][i] : fmaxf(all, b->part[row][i]);
    return all;
}

/* From logits, -infinity where a key is not seen by `sees`, to weights; largest and sum move on. */
GPU_FN void gpu_generic_weigh(gpu_generic_block *b, gpu_generic_memory m,
                              const float logit[GPU_GENERIC_ROWS], uint32_t sees) {
    const int thread = (int)threadIdx.x;
    float *mine = m.weights + thread * GPU_GENERIC_ROWS;
#pragma unroll
    for (int r = 0; r < GPU_GENERIC_ROWS; r++)
        mine[r] = logit[r];
    __syncthreads();
    const float largest = gpu_generic_joined<false>(b, m.weights);
    if (thread < GPU_GENERIC_ROWS) {
        const float before = b->largest[thread], now = fmaxf(before, largest);
        b->kept[thread] = before == now ? 1 : expf(before - now);
        b->largest[thread] = now;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < GPU_GENERIC_ROWS; r++) {
        const float now = b->largest[r];
        mine[r] = !(sees >> r & 1) ? -1 : logit[r] == -INFINITY ? 0 : expf(logit[r] - now);
    }
    __syncthreads();
    const float sum = gpu_generic_joined<true>(b, m.weights);
    if (thread < GPU_GENERIC_ROWS)
        b->sum[thread] = fmaf(b->sum[thread], b->kept[thread], sum);
    __syncthreads();
}

/* Adds the values of keys that a row sees, by their weights, to the thread's columns. */
template <int DTYPE>
GPU_FN void gpu_generic_add(const rope_attention_problem *p, const rope_attention_call *call,
                            const gpu_generic_block *b, gpu_generic_memory m, int begin, int end,
                            float out[GPU_GENERIC_COLUMNS][GPU_GENERIC_ROWS]) {
#pragma unroll
    for (int c = 0; c < GPU_GENERIC_COLUMNS; c++) {
        const int column = c * GPU_ATTENTION_THREADS + (int)threadIdx.x;
        if (column >= p->v_head_dim)
            break;
#pragma unroll
        for (int r = 0; r < GPU_GENERIC_ROWS; r++)
            out[c][r] *= b->kept[r];
        for (int key = begin; key < end; key++) {
            const float x = gpu_attention_element<DTYPE>(&gpu_reread(call)->v, &gpu_reread(p)->v,
                                                         b->values[key], column);
            const float *weight = m.weights + key * GPU_GENERIC_ROWS;
#pragma unroll
            for (int r = 0; r < GPU_GENERIC_ROWS; r++)
                out[c][r] = weight[r] < 0 ? out[c][r] : fmaf(weight[r], x, out[c][r]);
        }
    }
    __syncthreads();
}

/* One tile of keys, from `first` on, of which begin..end - 1 are there. */
template <int DTYPE>
GPU_FN void gpu_generic_tile(const rope_attention_problem *p, const rope_attention_call *call,
                             gpu_generic_block *b, gpu_generic_memory m, int64_t first, int begin,
                             int end, float out[GPU_GENERIC_COLUMNS][GPU_GENERIC_ROWS]) {
    const int thread = (int)threadIdx.x;
    float logit[GPU_GENERIC_ROWS] = {};
    uint32_t sees = 0;
    if (thread >= begin && thread < end) {
        b->keys[thread] = gpu_attention_head_of(p, call, &call->k, &p->k, &b->tile.s,
                                                first + thread, b->key_head);
        b->values[thread] = gpu_attention_head_of(p, call, &call->v, &p->v, &b->tile.s,
                                                  first + thread, b->key_head);
    }
    __syncthreads();
    for (int i = 0; i < gpu_reread(p)->head_dim; i += GPU_GENERIC_DEPTH)
        gpu_generic_products<DTYPE>(gpu_reread(p), gpu_reread(call), b, m, i, begin, end, logit);
#pragma unroll
    for (int r = 0; r < GPU_GENERIC_ROWS; r++) {
        if (thread >= begin && thread < end &&
            gpu_attention_sees(gpu_reread(p), gpu_reread(call), &b->tile.s, &b->rows[r],
                               first + thread))
            sees |= 1u << r;
        logit[r] = sees >> r & 1 ? gpu_attention_logit(gpu_reread(p), logit[r]) : -INFINITY;
    }
    gpu_generic_weigh(b, m, logit, sees);
    gpu_generic_add<DTYPE>(gpu_reread(p), gpu_reread(call), b, m, begin, end, out);
}

template <int DTYPE>
GPU_FN void gpu_generic_store(const rope_attention_problem *p, const rope_attention_call *call,
                              const gpu_generic_block *b,
                              const float out[GPU_GENERIC_COLUMNS][GPU_GENERIC_ROWS]) {
    typedef typename gpu_element<DTYPE>::bits bits;
    const int64_t *stride = call->out_stride;
    const rope_attention_sequence *s = &b->tile.s;
#pragma unroll
    for (int c = 0; c < GPU_GENERIC_COLUMNS; c++) {
        const int column = c * GPU_ATTENTION_THREADS + (int)threadIdx.x;
#pragma unroll
        for (int r = 0; r < GPU_GENERIC_ROWS; r++) {
            const gpu_attention_row *row = &b->rows[r];
            if (column < p->v_head_dim && row->live)
                ((bits *)call->out)[s->q_row * stride[0] + (s->q_first + row->query) * stride[1] +
                                    row->head * stride[2] + column * stride[3]] =
                    gpu_narrow<DTYPE>(b->sum[r] == 0 ? 0 : out[c][r] / b->sum[r]);
        }
    }
    const int r = (int)threadIdx.x;
    if (r < GPU_GENERIC_ROWS && b->rows[r].live)
        gpu_attention_store_lse(call, s, &b->rows[r], b->largest[r], b->sum[r]);
}

/* All keys of the block's rows. */
template <int DTYPE>
GPU_FN void gpu_generic_attend(const rope_attention_problem *p, const rope_attention_call *call,
                               gpu_generic_block *b, gpu_generic_memory m) {
    float out[GPU_GENERIC_COLUMNS][GPU_GENERIC_ROWS] = {};
    const int r = (int)threadIdx.x;
    if (r < GPU_GENERIC_ROWS) {
        gpu_attention_row_read(p, call, &b->tile.s, b->tile.first + r, b->key_head, &b->rows[r]);
        b->sum[r] = 0;
        b->largest[r] = -INFINITY;
        if (b->rows[r].live)
            b->largest[r] =
                gpu_attention_sink(p->sink_dtype, call->sinks, b->rows[r].head, &b->sum[r]);
    }
    __syncthreads();
    gpu_generic_queries<DTYPE>(gpu_reread(p), gpu_reread(call), b, m);
    const rope_key_range all = gpu_attention_seen(b->rows, GPU_GENERIC_ROWS);
    for (int64_t first = all.first / GPU_GENERIC_KEYS * GPU_GENERIC_KEYS; first < all.last;
         first += GPU_GENERIC_KEYS) {
        const int64_t left = all.last - first, before = all.first - first;
        gpu_generic_tile<DTYPE>(gpu_reread(p), gpu_reread(call), b, m, first,
                                before > 0 ? (int)before : 0,
                                left < GPU_GENERIC_KEYS ? (int)left : (int)GPU_GENERIC_KEYS, out);
    }
    gpu_generic_store<DTYPE>(gpu_reread(p), gpu_reread(call), b, out);
    __syncthreads();
}

template <int DTYPE>
__global__ void __launch_bounds__(GPU_ATTENTION_THREADS, 1)
    gpu_attention_generic(GPU_PARAMETER rope_attention_problem problem,
                          GPU_PARAMETER rope_attention_call given, const int32_t *failed) {
    const rope_attention_problem &p = *gpu_parameter<rope_attention_problem>(problem);
    const rope_attention_call &call =
        *gpu_parameter<rope_attention_call, rope_attention_problem>(given);
    extern __shared__ uint4 memory[];
    __shared__ gpu_generic_block b;
    float *room = (float *)memory;
    const gpu_generic_memory m = {room, room + GPU_GENERIC_ROWS * p.head_dim,
                                  room + GPU_GENERIC_ROWS * (p.head_dim + GPU_GENERIC_KEYS)};
    gpu_wait_for_last();
    gpu_let_next_start();
    for (int64_t n = blockIdx.x; gpu_attention_find<0>(
             &p, &call, failed, n, gpu_attention_group(&call), GPU_GENERIC_ROWS, &b.tile);
         n += gridDim.x) {
        if (!b.tile.valid)
            continue;
        for (int64_t head = blockIdx.y; head < call.k.heads; head += gridDim.y) {
            if (threadIdx.x == 0)
                b.key_head = head;
            __syncthreads();
            gpu_generic_attend<DTYPE>(gpu_reread(&p), gpu_reread(&call), &b, m);
        }
    }
}

#endif
