/*
 * Sequences of few queries: a block has all rows of a key head and a split of the keys, and each
 * warp a quarter of every tile. Splits begin at multiples of their size, which is a function of the
 * sequence's keys alone; their results are joined in their order.
 */
#ifndef ROPEKIT_GPU_ATTENTION_SPLIT_H
#define ROPEKIT_GPU_ATTENTION_SPLIT_H

#include "common/gpu/attention/tile.h"

enum { GPU_SPLIT_WARPS = GPU_ATTENTION_THREADS / 32 };

/* Keys of a split of a sequence, by its keys alone. */
GPU_FN int64_t gpu_split_size(int64_t keys) {
    const int64_t size = keys / GPU_SPLITS_MOST + 1;
    return size <= GPU_SPLIT_LEAST ? (int64_t)GPU_SPLIT_LEAST
                                   : (size + GPU_TILE_KEYS - 1) / GPU_TILE_KEYS * GPU_TILE_KEYS;
}

/* Keys of split n of a sequence. */
GPU_FN rope_key_range gpu_split_of(const rope_attention_sequence *s, int64_t n) {
    const int64_t size = gpu_split_size(s->k_count);
    return {n * size, n * size + size < s->k_count ? n * size + size : s->k_count};
}

/* Splits first..last - 1 have keys that are used. */
GPU_FN rope_key_range gpu_splits_used(const rope_attention_problem *p,
                                      const rope_attention_sequence *s) {
    const rope_key_range used = gpu_keys_used(p, s);
    const int64_t size = gpu_split_size(s->k_count);
    if (used.first >= used.last)
        return {0, 0};
    return {used.first / size, (used.last - 1) / size + 1};
}

/* A part of a row: out of DV elements, not divided, the largest logit in units of log 2, the sum.
 */
GPU_FN float *gpu_part(const gpu_attention_parts &parts, int64_t sequence, int64_t query,
                       int64_t head, int64_t heads, int64_t split, int dv) {
    return parts.at +
           (((sequence * parts.queries + query) * heads + head) * parts.splits + split) * (dv + 2);
}

/* Element i of a row of parts, and its largest logit and sum. */
GPU_FN float gpu_joined(const float *part, int64_t count, int64_t stride, int dv, int i,
                        float *largest, float *sum) {
    float most = -INFINITY, out = 0, all = 0;
#pragma unroll 8
    for (int64_t n = 0; n < count; n++)
        most = fmaxf(most, part[n * stride + dv]);
    const float base = most == -INFINITY ? 0 : most;
#pragma unroll 8
    for (int64_t n = 0; n < count; n++) {
        const float weight = exp2f(part[n * stride + dv] - base);
        out = fmaf(weight, part[n * stride + i], out);
        all = fmaf(weight, part[n * stride + dv + 1], all);
    }
    *largest = most;
    *sum = all;
    return out;
}

/* Ends element i of a row. */
template <int DTYPE>
GPU_FN void gpu_split_store(const rope_attention_problem *p, const rope_attention_call *call,
                            const rope_attention_sequence *s, int64_t query, int64_t head, int i,
                            float out, float largest, float sum) {
    if (p->sink_dtype) {
        float one;
        const float sink = 1.44269504f * gpu_attention_sink(p, call, head, &one),
                    now = fmaxf(largest, sink), base = now == -INFINITY ? 0 : now,
                    kept = exp2f(largest - base);
        out *= kept;
        sum = fmaf(sum, kept, one * exp2f(sink - base));
        largest = now;
    }
    const int64_t *stride = call->out_stride, *lse = call->lse_stride;
    ((uint16_t *)call->out)[s->q_row * stride[0] + (s->q_first + query) * stride[1] +
                            head * stride[2] + i * stride[3]] =
        (uint16_t)gpu_narrow<DTYPE>(sum == 0 ? 0 : out / sum);
    if (call->lse && i == 0)
        call->lse[s->q_row * lse[0] + (s->q_first + query) * lse[1] + head * lse[2]] =
            sum == 0 ? -INFINITY : fmaf(largest, 0.693147182f, logf(sum));
}

#if GPU_HAS_TILES

/* A warp's rows to its parts in shared memory. */
template <int DV>
GPU_FN void gpu_split_keep(const gpu_tile_call &t, const gpu_tile_rows<DV, 1> &rows, float *parts) {
    const int lane = gpu_lane(), warp = (int)threadIdx.x / 32;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = gpu_sums_of<1>(t).sum[0][h];
        sum += gpu_shuffle_xor(sum, 1);
        sum += gpu_shuffle_xor(sum, 2);
        float *part = parts + ((8 * h + lane / 4) * GPU_SPLIT_WARPS + warp) * (DV + 2);
#pragma unroll
        for (int n = 0; n < DV / 8; n++) {
            part[8 * n + lane % 4 * 2] = rows.out[0][n][2 * h];
            part[8 * n + lane % 4 * 2 + 1] = rows.out[0][n][2 * h + 1];
        }
        part[DV] = gpu_sums_of<1>(t).largest[0][h];
        part[DV + 1] = sum;
    }
}

/* Joins the warps' parts: to a part of the split, or where it is the only one, to out. */
template <int DTYPE, int DV>
GPU_FN void gpu_split_finish(const gpu_tile_call &t, const gpu_attention_parts &to, int64_t split,
                             bool alone, const float *parts) {
    const int64_t heads = t.call->rope.tensor[0].heads;
    for (int e = (int)threadIdx.x; e < GPU_SPLIT_ROWS * DV; e += GPU_ATTENTION_THREADS) {
        const int row = e / DV, i = e % DV;
        int64_t query, head;
        float largest, sum;
        if (!gpu_tile_query(t, row, &query, &head) || t.b->first[row] == INT32_MAX)
            continue;
        const float out = gpu_joined(parts + row * GPU_SPLIT_WARPS * (DV + 2), GPU_SPLIT_WARPS,
                                     DV + 2, DV, i, &largest, &sum);
        if (alone) {
            gpu_split_store<DTYPE>(t.p, t.call, &t.b->tile.s, query, head, i, out, largest, sum);
            continue;
        }
        float *part = gpu_part(to, t.b->tile.s.index, query, head, heads, split, DV);
        part[i] = out;
        if (i == 0) {
            part[DV] = largest;
            part[DV + 1] = sum;
        }
    }
}

template <int DTYPE, int D, int DV>
GPU_FN void gpu_split_attend(const gpu_tile_call &t, int32_t head, const gpu_attention_parts &parts,
                             int64_t split, int64_t part, bool alone) {
    gpu_tile_begin<DTYPE, D, DV, GPU_SPLIT_ROWS>(t, head, gpu_split_of(&t.b->tile.s, split));
    gpu_tile_rows<DV, 1> rows = {};
    gpu_tile_walk<DTYPE, D, DV, 1>(t, rows);
    __syncthreads();
    gpu_split_keep<DV>(t, rows, (float *)(void *)t.stage);
    __syncthreads();
    gpu_split_finish<DTYPE, DV>(t, parts, part, alone, (const float *)(const void *)t.stage);
    __syncthreads();
}

#endif

/* Whether a sequence is read in splits and has a query, found by all threads; a barrier is behind
 * it. */
GPU_FN bool gpu_split_find(const rope_attention_problem *p, const rope_attention_call *call,
                           const int32_t *failed, int64_t sequence, gpu_attention_tile *tile) {
    const rope_attention_sequence s = rope_attention_sequence_of(p, call, sequence);
    if (!s.fails && (s.q_count < 1 || !gpu_is_decoded(call, &s)))
        return false;
    __syncthreads();
    if (threadIdx.x == 0) {
        tile->s = s;
        tile->first = 0;
        tile->valid = 1;
    }
    __syncthreads();
    if (s.fails || (failed && failed[sequence]) ||
        (p->cache && !gpu_attention_has_pages(p, call, &tile->s)))
        tile->valid = 0;
    __syncthreads();
    if (!tile->valid && threadIdx.x == 0)
        gpu_attention_flag(call);
    return tile->valid;
}

/* Grid x strides over [sequence, used split, key head]. */
template <int DTYPE, int D, int DV>
__global__ void __launch_bounds__(GPU_ATTENTION_THREADS, 3)
    gpu_attention_splits(GPU_PARAMETER rope_attention_problem problem,
                         GPU_PARAMETER rope_attention_call given, const int32_t *failed,
                         int32_t fits, gpu_attention_parts parts) {
#if GPU_HAS_TILES
    const rope_attention_problem &p = *gpu_parameter<rope_attention_problem>(problem);
    const rope_attention_call &call =
        *gpu_parameter<rope_attention_call, rope_attention_problem>(given);
    extern __shared__ uint4 memory[];
    __shared__ gpu_tile_block b;
    gpu_wait_for_last();
    gpu_let_next_start();
    const int64_t heads = call.k.heads, each = heads * parts.splits;
    for (int64_t n = blockIdx.x; n < rope_attention_sequences(&call) * each; n += gridDim.x) {
        const int64_t sequence = n / each, part = n % each / heads;
        const rope_attention_sequence s = rope_attention_sequence_of(&p, &call, sequence);
        const rope_key_range used = gpu_splits_used(&p, &s);
        /* Of no key, the first split ends rows. */
        const bool alone = used.last - used.first <= 1;
        if (part > 0 && (s.fails || part >= used.last - used.first))
            continue;
        if (!gpu_split_find(&p, &call, failed, sequence, &b.tile))
            continue;
        const gpu_tile_call t = {
            &p, &call, &b, (char *)memory, (char *)memory + GPU_SPLIT_ROWS * D * 2, fits};
        gpu_split_attend<DTYPE, D, DV>(t, (int32_t)(n % heads), parts, used.first + part, part,
                                       alone);
    }
#endif
}

/* Grid x strides over sequences and their queries, y over heads. */
template <int DTYPE, int DV>
__global__ void __launch_bounds__(GPU_ATTENTION_THREADS, 1)
    gpu_attention_join(GPU_PARAMETER rope_attention_problem problem,
                       GPU_PARAMETER rope_attention_call given, const int32_t *failed,
                       gpu_attention_parts parts) {
    const rope_attention_problem &p = *gpu_parameter<rope_attention_problem>(problem);
    const rope_attention_call &call =
        *gpu_parameter<rope_attention_call, rope_attention_problem>(given);
    __shared__ gpu_attention_tile tile;
    __shared__ rope_token token;
    gpu_wait_for_last();
    gpu_let_next_start();
    const int64_t heads = call.rope.tensor[0].heads;
    for (int64_t n = blockIdx.x; n < rope_attention_sequences(&call) * parts.queries;
         n += gridDim.x) {
        const int64_t sequence = n / parts.queries, query = n % parts.queries;
        const rope_attention_sequence s = rope_attention_sequence_of(&p, &call, sequence);
        const rope_key_range used = gpu_splits_used(&p, &s);
        if (s.fails || query >= s.q_count || used.last - used.first <= 1 ||
            !gpu_split_find(&p, &call, failed, sequence, &tile))
            continue;
        if (gpu_queries_may_fail(&p)) {
            if (threadIdx.x == 0)
                rope_query_token(&p, &call, &tile.s, query, &token);
            __syncthreads();
            if (token.status == ROPE_TOKEN_FAILS)
                continue;
        }
        for (int64_t head = blockIdx.y; head < heads; head += gridDim.y)
            for (int i = (int)threadIdx.x; i < DV; i += GPU_ATTENTION_THREADS) {
                float largest, sum;
                const float *part = gpu_part(parts, sequence, query, head, heads, 0, DV),
                            out = gpu_joined(part, used.last - used.first, DV + 2, DV, i, &largest,
                                             &sum);
                gpu_split_store<DTYPE>(&p, &call, &tile.s, query, head, i, out, largest, sum);
            }
    }
}

#endif
