/* Which tile of which sequence a block has, and whether the sequence is in range. */
#ifndef ROPEKIT_GPU_ATTENTION_SEQUENCE_H
#define ROPEKIT_GPU_ATTENTION_SEQUENCE_H

#include "backends/gpu/attention/kernels.h"
#include "backends/gpu/element.h"
#include "common/math/attention.h"

/* Threads of a block share this of their tile. */
struct gpu_attention_tile {
    rope_attention_sequence s;
    int64_t first; /* row of the tile among those of its sequence */
    int32_t found, valid;
};

GPU_FN void gpu_attention_flag(const rope_attention_call *call) {
    if (call->rope.position_flag)
        *call->rope.position_flag = 1;
}

/* Heads of q that read one of k. */
GPU_FN int64_t gpu_attention_group(const rope_attention_call *call) {
    return call->rope.tensor[0].heads / call->k.heads;
}

GPU_FN rope_key_range gpu_within(rope_key_range keys, rope_key_range within) {
    return {keys.begin > within.begin ? keys.begin : within.begin,
            keys.end < within.end ? keys.end : within.end};
}

/* Keys that some query of a sequence may see. */
GPU_FN rope_key_range gpu_keys_used(const rope_attention_problem *p,
                                    const rope_attention_sequence *s) {
    rope_key_range used = {0, 0};
    if (s->q_count > 0) {
        used.begin = rope_keys_seen(p, s, rope_query_index(s, 0)).begin;
        used.end = rope_keys_seen(p, s, rope_query_index(s, s->q_count - 1)).end;
    }
    return used;
}

/* Keys that rotate: all where the caller asked for them, else those that are used. */
GPU_FN rope_key_range gpu_keys_rotated(const rope_attention_problem *p,
                                       const rope_attention_call *call,
                                       const rope_attention_sequence *s) {
    return call->k.cache ? gpu_keys_used(p, s) : rope_key_range{0, s->k_count};
}

/* Rows of a sequence: queries times `each` of tensor 0, keys that rotate of tensor 1. */
template <int TENSOR>
GPU_FN int64_t gpu_rows_of(const rope_attention_problem *p, const rope_attention_call *call,
                           const rope_attention_sequence *s, int64_t each) {
    if (TENSOR == 0)
        return s->q_count * each;
    const rope_key_range keys = gpu_keys_rotated(p, call, s);
    return keys.begin < keys.end ? keys.end - keys.begin : 0;
}

/* One of the sequences by boundaries: tiles are counted through, as many sequences at a time as a
 * block has THREADS, with dynamic shared memory for as many int64_t. Sequences that are out of
 * range have none and are flagged. */
template <int TENSOR, int THREADS>
GPU_FN void gpu_attention_find_packed(const rope_attention_problem *p,
                                      const rope_attention_call *call, int64_t n, int64_t each,
                                      int rows, gpu_attention_tile *tile, int thread) {
    extern __shared__ uint4 memory[];
    int64_t *sums = (int64_t *)(void *)memory;
    const int64_t sequences = rope_attention_sequences(gpu_reread(call));
    int64_t before = 0;
    for (int64_t first = 0; first < sequences && !tile->found; first += THREADS) {
        int64_t mine = 0;
        if (first + thread < sequences) {
            const rope_attention_sequence s =
                rope_attention_sequence_of(gpu_reread(p), gpu_reread(call), first + thread);
            if (s.fails)
                gpu_attention_flag(gpu_reread(call));
            else
                mine = (gpu_rows_of<TENSOR>(gpu_reread(p), gpu_reread(call), &s, each) + rows - 1) /
                       rows;
        }
        sums[thread] = mine;
        __syncthreads();
        for (int step = 1; step < THREADS; step *= 2) {
            const int64_t other = thread >= step ? sums[thread - step] : 0;
            __syncthreads();
            sums[thread] += other;
            __syncthreads();
        }
        const int64_t end = before + sums[thread];
        if (end - mine <= n && n < end) {
            tile->s.index = first + thread;
            tile->first = (TENSOR ? n - (end - mine) : end - 1 - n) * rows;
            tile->found = 1;
        }
        before += sums[THREADS - 1];
        __syncthreads();
    }
}

/* Batch rows, or sequences of a cache, have as many tiles each, some without a row. */
template <int TENSOR>
GPU_FN void gpu_attention_find_padded(const rope_attention_call *call, int64_t n, int64_t each,
                                      int rows, gpu_attention_tile *tile) {
    const int64_t most = TENSOR ? call->k_tokens : call->rope.tokens * each;
    const int64_t tiles = (most + rows - 1) / rows, sequence = n / tiles;
    if (threadIdx.x != 0 || sequence >= rope_attention_sequences(gpu_reread(call)))
        return;
    tile->s.index = sequence;
    tile->first = (TENSOR ? n % tiles : tiles - 1 - n % tiles) * rows;
    tile->found = 1;
}

/* Whether some of `count` slots of a ring, or of none, from `first` on are among `slots`. */
GPU_FN bool gpu_slots_meet(int64_t ring, rope_key_range slots, int64_t first, int64_t count) {
    return (first < slots.end && slots.begin < first + count) ||
           (ring && first - ring + count > slots.begin && first - ring < slots.end);
}

/* Whether every page of keys that a sequence uses is one of the cache's; of all threads, each of
 * which answers for its share. */
GPU_FN bool gpu_attention_has_pages(const rope_attention_problem *p,
                                    const rope_attention_call *call,
                                    const rope_attention_sequence *s, rope_key_range used) {
    if (used.begin >= used.end)
        return true;
    if (p->cache == ROPE_CACHE_SEQUENCE)
        return s->index < call->pages;
    const int64_t size = p->page_size, count = used.end - used.begin,
                  first = p->ring ? used.begin % p->ring : used.begin,
                  end = p->ring && first + count > p->ring ? p->ring : first + count;
    bool valid = true;
    for (int64_t page = (p->ring ? 0 : first / size) + threadIdx.x; page * size < end;
         page += GPU_ATTENTION_THREADS)
        if (gpu_slots_meet(p->ring, {page * size, page * size + size}, first, count)) {
            const int64_t at =
                rope_index_of(p->table_wide, call->block_table,
                              s->index * call->table_stride[0] + page * call->table_stride[1]);
            valid &= at >= 0 && at < call->pages;
        }
    return valid;
}

/* Finds tile n of `rows` rows, of a sequence's in the order in which a causal mask has the longest
 * first: queries from the last one, keys from the first; false where there are fewer. Of all
 * threads, which leave a barrier behind; a tile that is not `valid` is to be left out. thread: of
 * the block, for kernels that have no register to keep what is computed of it. */
template <int TENSOR, int THREADS = GPU_ATTENTION_THREADS>
GPU_FN bool gpu_attention_find(const rope_attention_problem *p, const rope_attention_call *call,
                               const int32_t *failed, int64_t n, int64_t each, int rows,
                               gpu_attention_tile *tile, int thread = (int)threadIdx.x) {
    const rope_position_map *map = TENSOR ? &call->k_position : &call->rope.position;
    __syncthreads(); /* all have read the last one */
    if (threadIdx.x == 0) {
        tile->found = 0;
        tile->valid = 1;
    }
    __syncthreads();
    if (map->cu_seqlens)
        gpu_attention_find_packed<TENSOR, THREADS>(p, call, n, each, rows, tile, thread);
    else
        gpu_attention_find_padded<TENSOR>(call, n, each, rows, tile);
    if (threadIdx.x == 0 && tile->found)
        tile->s =
            rope_attention_sequence_of(gpu_reread(p), gpu_reread(call), gpu_own(tile->s.index));
    __syncthreads();
    if (!tile->found)
        return false;
    const int32_t fails = failed ? gpu_global(failed)[tile->s.index] : 0;
    if (tile->s.fails || fails ||
        (gpu_reread(p)->cache && !gpu_attention_has_pages(gpu_reread(p), gpu_reread(call), &tile->s,
                                                          gpu_keys_used(gpu_reread(p), &tile->s))))
        tile->valid = 0;
    __syncthreads();
    if (!tile->valid && fails >= 0 && threadIdx.x == 0)
        gpu_attention_flag(gpu_reread(call));
    return true;
}

#endif
