/*
 * Splits of a sequence's keys: a split's size is a function of the most keys that a query of the
 * sequence sees. Blocks find here which split they have.
 */
#ifndef ROPEKIT_GPU_ATTENTION_SPLIT_KEYS_H
#define ROPEKIT_GPU_ATTENTION_SPLIT_KEYS_H

#include "backends/gpu/attention/partial_results.h"

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

/* Whether the kernel of sequences of one query has a sequence. */
GPU_FN bool gpu_is_one(const gpu_attention_parts &parts, const rope_attention_sequence *s) {
    return parts.leaves_ones && s->q_count == 1 && rope_query_index(s, 0) == s->k_count - 1;
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

/* The n-th work of [sequence, used split, key head]. */
struct gpu_split_work {
    int64_t head, split, part; /* of keys; of the sequence; of those that are used */
    bool alone, valid;         /* no other split is used; there is something to do */
};

/* Finds it, and the sequence; false where there is no more. All threads call it. Where a split's
 * keys are out of range its rows are left out. */
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
    if (s.fails || s.q_count < 1 || !gpu_is_split(parts, &s) || gpu_is_one(parts, &s))
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

/* Whether a sequence has split `part` of those that are used, or is to be flagged. */
GPU_FN bool gpu_split_has(const rope_attention_problem *p, const rope_attention_call *call,
                          const gpu_attention_parts &parts, int64_t sequence, int64_t part) {
    const rope_attention_sequence s = rope_attention_sequence_of(p, call, gpu_own(sequence));
    if (s.fails || s.q_count < 1 || !gpu_is_split(parts, &s) || gpu_is_one(parts, &s))
        return s.fails && part == 0;
    const rope_key_range used = gpu_splits_used(p, &s);
    return part == 0 || part < used.end - used.begin;
}

/* The first of works n, n + every... that has something to do, of as many as there are threads, or
 * the one behind them. All call it. */
GPU_FN int64_t gpu_split_skip(const rope_attention_problem *p, const rope_attention_call *call,
                              const gpu_attention_parts &parts, int64_t n, int64_t every) {
    __shared__ int least[GPU_ATTENTION_THREADS];
    const int thread = (int)threadIdx.x;
    const int64_t each = call->k.heads * parts.splits, own = n + thread * every;
    const bool has = own < rope_attention_sequences(call) * each &&
                     gpu_split_has(p, call, parts, own / each, own % each / call->k.heads);
    __syncthreads();
    least[thread] = has ? thread : (int)GPU_ATTENTION_THREADS;
    __syncthreads();
    for (int step = GPU_ATTENTION_THREADS / 2; step > 0; step /= 2) {
        if (thread < step && least[thread + step] < least[thread])
            least[thread] = least[thread + step];
        __syncthreads();
    }
    return n + least[0] * every;
}

#endif
