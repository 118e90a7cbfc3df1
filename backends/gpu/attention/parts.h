/*
 * Splits of a sequence's keys and their results: a split's size is a function of the most keys that
 * a query of the sequence sees, and results are joined in their order.
 */
#ifndef ROPEKIT_GPU_ATTENTION_PARTS_H
#define ROPEKIT_GPU_ATTENTION_PARTS_H

#include "backends/gpu/attention/epilogue.h"

/* Keys of a split, by the most that a query sees. */
template <typename INT> GPU_FN INT gpu_split_size(INT keys) {
    const INT size = keys / GPU_SPLITS_MOST + 1,
              least = keys <= GPU_SPLIT_SHORT ? GPU_SPLIT_LEAST / 2 : GPU_SPLIT_LEAST;
    return size <= least ? least : (size + GPU_TILE_KEYS - 1) / GPU_TILE_KEYS * GPU_TILE_KEYS;
}

/* Keys of split n of a sequence. */
GPU_FN rope_key_range gpu_split_of(const rope_attention_problem *p,
                                   const rope_attention_sequence *s, int64_t n) {
    const int64_t size = gpu_split_size(rope_keys_most(p, s->k_count));
    return {n * size, n * size + size < s->k_count ? n * size + size : s->k_count};
}

/* Splits that have keys that are used. */
GPU_FN rope_key_range gpu_splits_used(const rope_attention_problem *p,
                                      const rope_attention_sequence *s) {
    const rope_key_range used = gpu_keys_used(p, s);
    const int64_t size = gpu_split_size(rope_keys_most(p, s->k_count));
    if (used.begin >= used.end)
        return {0, 0};
    return {used.begin / size, (used.end - 1) / size + 1};
}

/* Whether a sequence has so few queries that its keys are read in splits. */
GPU_FN bool gpu_is_split(const gpu_attention_parts &parts, const rope_attention_sequence *s) {
    return s->q_count <= parts.queries;
}

/* A part of a row: out of DV elements, not divided, the largest logit in units of log 2, the sum.
 */
GPU_FN auto gpu_part(const gpu_attention_parts &parts, int64_t sequence, int64_t query,
                     int64_t head, int64_t heads, int64_t split, int dv) {
    return gpu_global(parts.at) +
           (((sequence * parts.queries + query) * heads + head) * parts.splits + split) * (dv + 2);
}

/* The sum of a part whose row is left out. */
constexpr float GPU_PART_LEFT_OUT = -1;

/* Of the parts of a row: largest logits, sums and how they weigh; of the row: its largest logit and
 * sum. */
enum { GPU_PARTS_MOST = 64 };
static_assert((int)GPU_SPLITS_MOST <= (int)GPU_PARTS_MOST, "parts of a row");
struct gpu_row_parts {
    float part_largest[GPU_PARTS_MOST], part_sum[GPU_PARTS_MOST], weight[GPU_PARTS_MOST];
    float largest, sum;
};

/* Weighs parts; of all threads, with a barrier before and behind. */
GPU_FN void gpu_parts_weigh(gpu_row_parts *j, int count) {
    const int part = (int)threadIdx.x;
    __syncthreads();
    if (part < count) {
        float most = -INFINITY;
#pragma unroll 8
        for (int n = 0; n < count; n++)
            most = fmaxf(most, j->part_largest[n]);
        j->weight[part] = exp2f(j->part_largest[part] - (most == -INFINITY ? 0 : most));
        if (part == 0)
            j->largest = most;
    }
    __syncthreads();
    if (part == 0) {
        float sum = 0;
        bool left_out = false;
#pragma unroll 8
        for (int n = 0; n < count; n++) {
            left_out |= j->part_sum[n] == GPU_PART_LEFT_OUT;
            sum = fmaf(j->weight[n], j->part_sum[n], sum);
        }
        j->sum = left_out ? GPU_PART_LEFT_OUT : sum;
    }
    __syncthreads();
}

/* An element of a row from those of its parts. */
template <typename PART>
GPU_FN float gpu_parts_joined(const float *weight, PART part, int count, int64_t stride) {
    float out = 0;
#pragma unroll 16
    for (int n = 0; n < count; n++)
        out = fmaf(weight[n], part[n * stride], out);
    return out;
}

/* N elements of a row, not divided, and the row's largest logit and sum, GPU_PART_LEFT_OUT where a
 * part's is. */
template <int N> struct gpu_joined { float out[N], largest, sum; };

template <int N>
GPU_FN void gpu_join_part(gpu_joined<N> &row, float largest, float sum, const float out[N]) {
    const float weight = exp2f(largest - (row.largest == -INFINITY ? 0 : row.largest));
    row.sum = fmaf(weight, sum, row.sum);
#pragma unroll
    for (int n = 0; n < N; n++)
        row.out[n] = fmaf(weight, out[n], row.out[n]);
}

/* Joins elements i, i + step... of parts, which have dv elements and two more and are asked for
 * many at a time. */
template <int N, typename PART>
GPU_FN gpu_joined<N> gpu_join(PART part, int i, int step, int dv, int count) {
    enum { MANY = 16 };
    gpu_joined<N> row = {{}, -INFINITY, 0};
    bool left_out = false;
#pragma unroll 1
    for (int first = 0; first < count; first += MANY) {
        float largest[MANY];
#pragma unroll
        for (int m = 0; m < MANY; m++)
            largest[m] = first + m < count ? part[(first + m) * (dv + 2) + dv] : -INFINITY;
#pragma unroll
        for (int m = 0; m < MANY; m++)
            row.largest = fmaxf(row.largest, largest[m]);
    }
#pragma unroll 1
    for (int first = 0; first < count; first += MANY) {
        float largest[MANY], sum[MANY], out[MANY][N];
#pragma unroll
        for (int m = 0; m < MANY; m++) {
            const auto at = part + (first + m) * (dv + 2);
            const bool there = first + m < count;
            largest[m] = there ? at[dv] : -INFINITY;
            sum[m] = there ? at[dv + 1] : 0;
#pragma unroll
            for (int n = 0; n < N; n++)
                out[m][n] = there ? at[i + n * step] : 0;
        }
#pragma unroll
        for (int m = 0; m < MANY; m++) {
            left_out |= sum[m] == GPU_PART_LEFT_OUT;
            gpu_join_part<N>(row, largest[m], sum[m], out[m]);
        }
    }
    row.sum = left_out ? GPU_PART_LEFT_OUT : row.sum;
    return row;
}

/* Ends element i of a row. */
template <int DTYPE>
GPU_FN void gpu_split_store(const rope_attention_problem *p, const rope_attention_call *call,
                            const rope_attention_sequence *s, int64_t query, int64_t head, int i,
                            float out, float largest, float sum) {
    out *= gpu_join_sink<true>(p->sink_dtype, call->sinks, head, &largest, &sum);
    gpu_attention_out<DTYPE>(call, s, query, head)[i * call->out_stride[3]] =
        gpu_narrow<DTYPE>(sum == 0 ? 0 : out / sum);
    if (i == 0)
        gpu_attention_store_lse(call, s, query, head, largest, sum);
}

/* All rows of a sequence and key head are left out; MANY: there may be more than threads. */
template <bool MANY>
GPU_FN void gpu_split_leave_out(const rope_attention_call *call, const rope_attention_sequence *s,
                                int64_t key_head, const gpu_attention_parts &parts, int64_t part,
                                int dv) {
    const int64_t group = gpu_attention_group(call), heads = call->rope.tensor[0].heads;
    if (threadIdx.x == 0)
        gpu_attention_flag(call);
    for (int64_t row = threadIdx.x; row < s->q_count * group; row += GPU_ATTENTION_THREADS) {
        gpu_part(parts, s->index, row / group, key_head * group + row % group, heads, part,
                 dv)[dv + 1] = GPU_PART_LEFT_OUT;
        if (!MANY)
            return;
    }
}

/* Whether keys of a sequence have a position and a page; of all threads, with a barrier before and
 * behind. */
GPU_FN bool gpu_split_valid(const rope_attention_problem *p, const rope_attention_call *call,
                            const int32_t *failed, rope_key_range keys,
                            const rope_attention_sequence &s, gpu_attention_tile *tile) {
    __syncthreads();
    if (threadIdx.x == 0) {
        tile->s = s;
        tile->first = 0;
        tile->valid = !(failed && gpu_global(failed)[s.index]);
    }
    __syncthreads();
    if (p->cache && !gpu_attention_has_pages(p, call, &tile->s, keys))
        tile->valid = 0;
    __syncthreads();
    return tile->valid;
}

/* What is done n-th of [sequence, used split, key head]. */
struct gpu_split_work {
    int64_t head, split, part; /* of keys; of the sequence; of those that are used */
    bool alone, valid;         /* no other split is used; there is something to do */
};

/* Finds it, and the sequence; false where there is no more. Of all threads. Where a split's keys
 * are out of range its rows are left out. */
template <bool MANY = false>
GPU_FN bool gpu_split_find(const rope_attention_problem *p, const rope_attention_call *call,
                           const int32_t *failed, const gpu_attention_parts &parts, int dv,
                           int64_t n, gpu_attention_tile *tile, gpu_split_work *w) {
    const int64_t heads = call->k.heads, each = heads * parts.splits;
    *w = {n % heads, 0, n % each / heads, false, false};
    if (n >= rope_attention_sequences(call) * each)
        return false;
    const rope_attention_sequence s = rope_attention_sequence_of(p, call, gpu_own(n / each));
    if (s.fails && threadIdx.x == 0)
        gpu_attention_flag(call);
    if (s.fails || s.q_count < 1 || !gpu_is_split(parts, &s))
        return true;
    const rope_key_range used = gpu_splits_used(p, &s);
    w->alone = used.end - used.begin <= 1;
    if (w->part > 0 && w->part >= used.end - used.begin) /* of no key, the first split ends rows */
        return true;
    w->split = used.begin + w->part;
    const rope_key_range keys = gpu_within(gpu_keys_used(p, &s), gpu_split_of(p, &s, w->split));
    w->valid = gpu_split_valid(p, call, failed, keys, s, tile);
    if (!w->valid && w->alone && threadIdx.x == 0)
        gpu_attention_flag(call);
    if (!w->valid && !w->alone)
        gpu_split_leave_out<MANY>(call, &tile->s, w->head, parts, w->part, dv);
    return true;
}

/* Grid x strides over sequences and their queries, y over heads. */
template <int DTYPE>
__global__ void __launch_bounds__(GPU_ATTENTION_THREADS, 1)
    gpu_attention_join(GPU_PARAMETER rope_attention_problem problem,
                       GPU_PARAMETER rope_attention_call given, gpu_attention_parts parts) {
    const rope_attention_problem &p = *gpu_parameter<rope_attention_problem>(problem);
    const rope_attention_call &call =
        *gpu_parameter<rope_attention_call, rope_attention_problem>(given);
    __shared__ gpu_row_parts j;
    gpu_wait_for_last();
    gpu_let_next_start();
    const int64_t heads = call.rope.tensor[0].heads;
    const int dv = p.v_head_dim;
    for (int64_t n = blockIdx.x; n < rope_attention_sequences(&call) * parts.queries;
         n += gridDim.x) {
        const int64_t query = n % parts.queries;
        const rope_attention_sequence s = rope_attention_sequence_of(
            gpu_reread(&p), gpu_reread(&call), gpu_own(n / parts.queries));
        if (s.fails || query >= s.q_count || !gpu_is_split(parts, &s))
            continue;
        const rope_key_range used = gpu_splits_used(gpu_reread(&p), &s);
        const int count = (int)(used.end - used.begin), thread = (int)threadIdx.x;
        if (count <= 1)
            continue;
        for (int64_t head = blockIdx.y; head < heads; head += gridDim.y) {
            const auto part = gpu_part(parts, s.index, query, head, heads, 0, dv);
            __syncthreads();
            if (thread < count) {
                j.part_largest[thread] = part[thread * (dv + 2) + dv];
                j.part_sum[thread] = part[thread * (dv + 2) + dv + 1];
            }
            gpu_parts_weigh(&j, count);
            for (int i = thread; i < dv && j.sum != GPU_PART_LEFT_OUT; i += GPU_ATTENTION_THREADS)
                gpu_split_store<DTYPE>(gpu_reread(&p), gpu_reread(&call), &s, query, head, i,
                                       gpu_parts_joined(j.weight, part + i, count, dv + 2),
                                       j.largest, j.sum);
        }
    }
}

#endif
