/*
 * 16-bit heads of up to D elements by matrix instructions: a block has ROWS rows, a warp some
 * 16s of them, and walks over tiles of keys and values. A tile's values and the next one's keys are
 * copied to shared memory while its products are summed. Tiles begin at multiples of their size,
 * and one that a row does not see leaves it as it is, so a row's bits do not depend on its
 * neighbours.
 */
#ifndef ROPEKIT_GPU_ATTENTION_TILE_H
#define ROPEKIT_GPU_ATTENTION_TILE_H

#include "backends/gpu/attention/epilogue.h"
#include "backends/gpu/attention/key_tiles.h"
#include "backends/gpu/attention/mask.h"

/* Values of so many tiles have room. Splits wait for memory: there a tile comes whole, ahead. */
template <int D, int ROWS>
constexpr int gpu_value_stages = ROWS == GPU_SPLIT_ROWS ? 1 + gpu_tiles_ahead<D, ROWS> : 1;

/* Where a tile's keys and its values lie. */
template <int D, int ROWS> GPU_FN char *gpu_tile_keys(const gpu_tile_call &t, int first) {
    enum { KEYS = gpu_block_keys<ROWS>, STAGES = 1 + gpu_tiles_ahead<D, ROWS> };
    return t.stage + first / KEYS % STAGES * KEYS * D * 2;
}

template <int D, int ROWS> GPU_FN char *gpu_tile_values(const gpu_tile_call &t, int first) {
    enum { KEYS = gpu_block_keys<ROWS>, STAGES = gpu_value_stages<D, ROWS> };
    return t.stage + ((1 + gpu_tiles_ahead<D, ROWS>)*KEYS + first / KEYS % STAGES * KEYS) * D * 2;
}

/* A tile's keys, or its values. */
template <int DTYPE, int D, int ROWS>
GPU_FN void gpu_tile_fetch(const gpu_tile_call &t, int value, int first) {
    char *to = value ? gpu_tile_values<D, ROWS>(t, first) : gpu_tile_keys<D, ROWS>(t, first);
    if (gpu_fits(t, value ? GPU_TILE_V : GPU_TILE_K))
        gpu_tile_copy<D, gpu_block_keys<ROWS>>(t, value, first, to);
#ifdef GPU_QUERIES_LEFT
    else if (gpu_shares_rows<ROWS> && /* else registers spill */
             gpu_fits(t, value ? GPU_TILE_V_STORED : GPU_TILE_K_STORED))
        gpu_tile_convert<DTYPE, D, gpu_block_keys<ROWS>>(t, value, first, to);
#endif
    else
        gpu_tile_read<DTYPE, D, gpu_block_keys<ROWS>>(t, value, first, to);
}

/* Queries and the first keys on their way. */
template <int DTYPE, int D, int ROWS>
GPU_FN void gpu_tile_begin(const gpu_tile_call &t, int32_t head, rope_key_range within) {
    gpu_tile_block_of<D, ROWS> &b = gpu_block_of<D, ROWS>(t);
    gpu_tile_see<D, ROWS>(t, head, within);
    if ((int)b.COUNT == (int)GPU_ATTENTION_THREADS || gpu_thread() < b.COUNT)
        b.reached[threadIdx.x] = {};
    t.b->nonfinite = {};
    __syncthreads();
    gpu_tile_fetch_queries<DTYPE, D, ROWS>(t);
    gpu_tile_place<D, gpu_block_keys<ROWS>>(t, 0);
    __syncthreads();
#pragma unroll 1
    for (int value = gpu_value_stages<D, ROWS> - 1; value >= 0; value--)
        gpu_tile_fetch<DTYPE, D, ROWS>(t, value, 0);
    gpu_copies_mark();
    if constexpr (ROWS == GPU_SPLIT_ROWS) {
        if (!gpu_rotates_queries(gpu_reread(t.p), gpu_reread(t.call)))
            return;
        gpu_copies_wait<0>();
        __syncthreads();
        gpu_tile_rotate_queries<DTYPE, D, ROWS>(
            t, (rope_token *)(void *)(gpu_tiles_ahead<D, ROWS>
                                          ? gpu_tile_keys<D, ROWS>(t, GPU_TILE_KEYS)
                                          : gpu_tile_values<D, ROWS>(t, 0)));
    }
}

/* Products of a tile: of wide heads not beyond what those of 192 and 128 have, as MLA's do. */
template <int DTYPE, int D, int ROWS>
GPU_FN void gpu_tile_multiply(const gpu_tile_call &t, const char *keys, gpu_tile_scores<ROWS> &s) {
    const int dim = gpu_reread(t.p)->head_dim;
    (void)dim;
#if GPU_TILE_DIM > 128
    if constexpr (D > GPU_TILE_NARROW && ROWS != GPU_SPLIT_ROWS)
        if (dim <= 192) {
            gpu_tile_products<DTYPE, D, ROWS, 192>(t.queries, keys, s);
            return;
        }
#endif
    gpu_tile_products<DTYPE, D, ROWS>(t.queries, keys, s);
}

template <int DTYPE, int D, int ROWS>
GPU_FN void gpu_tile_add_values(const gpu_tile_call &t, const char *values,
                                const gpu_tile_weights<ROWS> &w, gpu_tile_rows<D, ROWS> &rows) {
    const int dim = gpu_reread(t.p)->v_head_dim;
    (void)dim;
#if GPU_TILE_DIM > 128
    if constexpr (D > GPU_TILE_NARROW && ROWS != GPU_SPLIT_ROWS)
        if (dim <= 128) {
            gpu_tile_add<DTYPE, D, ROWS, 128>(values, w, rows);
            return;
        }
#endif
    gpu_tile_add<DTYPE, D, ROWS>(values, w, rows);
}

/* From keys to weights: the tile from key `first` of the block's on, `keys` a warp's. */
template <int DTYPE, int D, int ROWS>
GPU_FN void gpu_tile_score(const gpu_tile_call &t, int first, const char *keys, int32_t state,
                           gpu_tile_weights<ROWS> &w, gpu_tile_rows<D, ROWS> &rows) {
    gpu_tile_scores<ROWS> s;
    gpu_tile_multiply<DTYPE, D, ROWS>(t, keys, s);
    const float unit = gpu_tile_cap<ROWS>(gpu_reread(t.p)->scale, gpu_reread(t.p)->soft_cap, s);
    if (state != GPU_TILE_WHOLE)
        gpu_tile_mask<ROWS>(t, first, s);
    gpu_tile_sums<ROWS> sums = gpu_sums_of<ROWS>(t);
    gpu_tile_weigh<DTYPE, D, ROWS>(unit, s, sums, w, rows, [] {});
    gpu_sums_of<ROWS>(t) = sums;
}

/* Sends for values, a tile ahead where they have room. */
template <int DTYPE, int D, int ROWS>
GPU_FN void gpu_tile_prefetch(const gpu_tile_call &t, int value, int first) {
    const int next = value && gpu_value_stages<D, ROWS> == 1 ? first : first + gpu_block_keys<ROWS>;
    if (next < t.b->seen.end)
        gpu_tile_fetch<DTYPE, D, ROWS>(t, value, next);
    gpu_copies_mark();
}

/* Sends for the keys behind the tile from key `first` of the block's on. */
template <int DTYPE, int D, int ROWS>
GPU_FN void gpu_tile_prefetch_keys(const gpu_tile_call &t, int first) {
    gpu_tile_prefetch<DTYPE, D, ROWS>(t, 0, first);
    if (first % GPU_ATTENTION_THREADS == 0)
        gpu_tile_place<D, gpu_block_keys<ROWS>>(t, first + GPU_ATTENTION_THREADS);
}

/* Takes values that are not finite out of a tile whose keys not all rows see; a warp's keys begin
 * `at` behind its first. */
template <int DTYPE, int D, int ROWS>
GPU_FN void gpu_tile_take_out(const gpu_tile_call &t, int first, int at, char *values, bool seen,
                              const gpu_tile_weights<ROWS> &w) {
    enum { KEYS = gpu_block_keys<ROWS> };
    const int lane = gpu_lane();
    gpu_nonfinite_look<DTYPE, D, KEYS>(values, first, &t.b->nonfinite);
    if (t.b->nonfinite.tile != first + 1)
        return;
    auto &removed = gpu_block_of<D, ROWS>(t).removed;
    gpu_nonfinite_remove<DTYPE>(values, removed, &t.b->nonfinite);
    if (!seen)
        return;
    uint64_t *weighed = t.b->sees + (gpu_thread() - lane);
    gpu_nonfinite_weigh<ROWS>(w, weighed);
    if (lane < 16 * gpu_row_blocks<ROWS>)
        gpu_nonfinite_gather(removed, at, gpu_warp_keys<ROWS>,
                             gpu_tile_sees(t, gpu_warp_row<ROWS>() + lane, first + at),
                             weighed[lane], false, &gpu_tile_reached<D, ROWS>(t, lane));
    gpu_warp_barrier();
}

/* Adds what was taken out to the thread's rows. */
template <int D, int ROWS>
GPU_FN void gpu_tile_restore(const gpu_tile_call &t, gpu_tile_rows<D, ROWS> &rows) {
    if (!t.b->nonfinite.any)
        return;
    gpu_for_each_row<gpu_row_blocks<ROWS>>([&](int m, int h) {
        gpu_nonfinite_restore<D, ROWS>(
            gpu_tile_reached<D, ROWS>(t, 16 * m + gpu_row_of(gpu_lane(), h)), m, h, rows);
    });
}

/* The tile from key `first` of the block's on. */
template <int DTYPE, int D, int ROWS>
GPU_FN void gpu_tile_attend(const gpu_tile_call &t, int first, gpu_tile_rows<D, ROWS> &rows) {
    enum { KEYS = gpu_block_keys<ROWS>, AHEAD = gpu_tiles_ahead<D, ROWS> };
    const int at = gpu_warp_key<ROWS>();
    const int32_t state = gpu_warp_state<ROWS>(t, t.b->seen, first + at);
    gpu_tile_weights<ROWS> w;
    gpu_copies_wait<0>();
    __syncthreads();
    gpu_tile_prefetch<DTYPE, D, ROWS>(t, 1, first);
    if (AHEAD)
        gpu_tile_prefetch_keys<DTYPE, D, ROWS>(t, first);
    if (state != GPU_TILE_UNSEEN)
        gpu_tile_score<DTYPE, D, ROWS>(t, first + at, gpu_tile_keys<D, ROWS>(t, first) + at * D * 2,
                                       state, w, rows);
    if (gpu_value_stages<D, ROWS> == 1) {
        gpu_copies_wait<AHEAD>();
        __syncthreads();
    }
    if (!AHEAD)
        gpu_tile_prefetch_keys<DTYPE, D, ROWS>(t, first);
    char *values = gpu_tile_values<D, ROWS>(t, first);
    if (gpu_tile_state(t, t.b->seen, first, KEYS) == GPU_TILE_APART)
        gpu_tile_take_out<DTYPE, D, ROWS>(t, first, at, values, state != GPU_TILE_UNSEEN, w);
    if (state != GPU_TILE_UNSEEN)
        gpu_tile_add_values<DTYPE, D, ROWS>(t, values + at * D * 2, w, rows);
}

/* All keys that the block's rows see. */
template <int DTYPE, int D, int ROWS>
GPU_FN void gpu_tile_loop(const gpu_tile_call &t, gpu_tile_rows<D, ROWS> &rows) {
    gpu_sums_of<ROWS>(t) = gpu_no_sums<ROWS>();
#pragma unroll 1
    for (int first = 0; first < t.b->seen.end; first += gpu_block_keys<ROWS>)
        gpu_tile_attend<DTYPE, D, ROWS>(t, first, rows);
    gpu_copies_wait<0>();
    __syncthreads();
    gpu_tile_restore<D, ROWS>(t, rows);
}

/* All rows of a block. */
template <int DTYPE, int D>
GPU_FN void gpu_tile_block_attend(const gpu_tile_call &t, int32_t head) {
    enum { ROWS = gpu_tiles_shape<D> };
    gpu_tile_begin<DTYPE, D, ROWS>(t, head, {0, INT64_MAX});
    gpu_tile_rows<D, ROWS> rows = {};
    gpu_tile_loop<DTYPE, D, ROWS>(t, rows);
    gpu_tile_finish<DTYPE, D, ROWS>(t, rows);
    __syncthreads();
}

template <int DTYPE, int D>
__global__ void __launch_bounds__(GPU_ATTENTION_THREADS, GPU_TILE_BLOCKS)
    gpu_attention_tiles(GPU_PARAMETER rope_attention_problem problem,
                        GPU_PARAMETER rope_attention_call given, const int32_t *failed,
                        int32_t fits) {
    if constexpr (gpu_has_tiles<DTYPE, D>) {
        const rope_attention_problem &p = *gpu_parameter<rope_attention_problem>(problem);
        const rope_attention_call &call =
            *gpu_parameter<rope_attention_call, rope_attention_problem>(given);
        enum { ROWS = gpu_block_rows<gpu_tiles_shape<D>> };
        extern __shared__ uint4 memory[];
        __shared__ gpu_tile_block_of<D, gpu_tiles_shape<D>> b;
        gpu_wait_for_last();
        gpu_let_next_start();
        for (int64_t n = blockIdx.x;
             gpu_attention_find<0>(&p, &call, failed, n, gpu_attention_group(&call), ROWS, &b.tile);
             n = b.next) {
            if (threadIdx.x == 0)
                b.next = n + gridDim.x;
            __syncthreads();
            if (!b.tile.valid || (fits & GPU_TILE_LEAVES_FEW && gpu_is_decoded(&call, &b.tile.s)) ||
                b.tile.first >= b.tile.s.q_count * gpu_attention_group(&call))
                continue;
            const gpu_tile_call t = {gpu_reread(&p),
                                     gpu_reread(&call),
                                     &b,
                                     (char *)memory,
                                     (char *)memory + ROWS * D * 2,
                                     fits};
            for (int32_t head = (int32_t)blockIdx.y; head < call.k.heads;
                 head = b.head + (int32_t)gridDim.y) {
                __syncthreads();
                gpu_tile_block_attend<DTYPE, D>(t, head);
            }
        }
    }
}

#endif
