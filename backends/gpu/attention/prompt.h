/*
 * The kernel of tiles for calls as most are: heads of all tensors in vectors of 16 bytes, no cap,
 * no tree, no ring, every query has a position, tokens and keys are counted in 31 bits. It has the
 * sums of tile.h in their order, so the same bits, by less code. Keys and values of a tile are
 * copied beside the products of the one before it.
 */
#ifndef ROPEKIT_GPU_ATTENTION_PROMPT_H
#define ROPEKIT_GPU_ATTENTION_PROMPT_H

#include "backends/gpu/attention/prompt_keys.h"

#if GPU_TILE_AHEAD

/* --- values that are not finite, which rows that do not see them may not meet --- */

/* Elements that are taken out of a tile, and which of its keys have a weight in a row, lie where
 * the tile's keys did. */
template <int D> struct gpu_prompt_nonfinite {
    gpu_nonfinite_tile<D, GPU_TILE_KEYS> removed;
    uint64_t weighed[GPU_TILE_ROWS];
};

/* Where a row's elements of out go; NULL where there are none. Until then its first bytes say what
 * reaches the row. */
template <int D>
GPU_FN gpu_nonfinite_row<D> *gpu_prompt_reached(const gpu_prompt_call &t, int row) {
    const gpu_prompt_walk w = gpu_prompt_walk_from(t, t.b->head, gpu_reread(t.call)->out_stride,
                                                   (uint32_t)t.b->tile.first + (uint32_t)row);
    return w.query < (uint32_t)t.b->tile.s.q_count
               ? (gpu_nonfinite_row<D> *)(void *)((char *)gpu_reread(t.call)->out +
                                                  16 * (uint64_t)w.at)
               : NULL;
}

/* Takes such values out of the tile from key n on that has some, whose keys a warp has multiplied.
 */
template <int DTYPE, int D>
GPU_FN void gpu_prompt_take_out(const gpu_prompt_call &t, int n, char *keys, char *values,
                                const gpu_tile_weights<GPU_TILE_ROWS> &w) {
    gpu_prompt_nonfinite<D> *in = (gpu_prompt_nonfinite<D> *)(void *)keys;
    static_assert(sizeof *in <= GPU_TILE_KEYS * D * 2, "in the room of keys");
    if (t.b->nonfinite.tile != n + 1)
        return;
    const bool none = !t.b->nonfinite.any;
    gpu_nonfinite_remove<DTYPE>(values, in->removed, &t.b->nonfinite);
    const int row = gpu_warp_row<GPU_TILE_ROWS>();
    gpu_nonfinite_weigh<GPU_TILE_ROWS>(w, in->weighed + row);
    const gpu_prompt_row seen = t.b->rows[row + gpu_lane()];
    gpu_nonfinite_row<D> *reached = gpu_prompt_reached<D>(t, row + gpu_lane());
    if (reached)
        gpu_nonfinite_gather(in->removed, 0, GPU_TILE_KEYS,
                             gpu_bits_between(seen.begin - n, seen.end - n),
                             in->weighed[row + gpu_lane()], none, reached);
}

/* Adds what was taken out to the thread's rows. */
template <int D>
GPU_FN void gpu_prompt_restore(const gpu_prompt_call &t, gpu_tile_rows<D, GPU_TILE_ROWS> &rows) {
    if (!t.b->nonfinite.any)
        return;
    gpu_for_each_block_row<GPU_TILE_ROWS>([&](int m, int h, int row) {
        const gpu_nonfinite_row<D> *reached = gpu_prompt_reached<D>(t, row);
        if (reached)
            gpu_nonfinite_restore<D, GPU_TILE_ROWS>(*reached, m, h, rows);
    });
}

/* --- a tile --- */

/* From keys to weights, beside a copy of the next tile. */
template <int DTYPE, int D>
GPU_FN void gpu_prompt_score(const gpu_prompt_call &t, int n, bool masked, const char *keys,
                             int rows_at, int keys_at, gpu_tile_sums<GPU_TILE_ROWS> &sums,
                             gpu_tile_weights<GPU_TILE_ROWS> &w,
                             gpu_tile_rows<D, GPU_TILE_ROWS> &rows) {
    enum { ROWS = GPU_TILE_ROWS };
    const float unit = GPU_LOG2_E * gpu_reread(t.p)->scale;
    gpu_tile_scores<ROWS> s;
    gpu_tile_products_at<DTYPE, D, ROWS>(t.queries + gpu_warp_row<ROWS>() * D * 2, rows_at, keys,
                                         keys_at, s);
    if (masked)
        gpu_prompt_mask(t, n, s);
    gpu_tile_weigh<DTYPE, D, ROWS>(unit, s, sums, w, rows,
                                   [&] { gpu_prompt_copy<D>(t, n + GPU_TILE_KEYS); });
}

/* All tiles from key n on. */
template <int DTYPE, int D>
GPU_FN void gpu_prompt_loop(const gpu_prompt_call &t, int n, gpu_tile_sums<GPU_TILE_ROWS> &sums,
                            gpu_tile_rows<D, GPU_TILE_ROWS> &rows) {
    enum { ROWS = GPU_TILE_ROWS, KEYS = GPU_TILE_KEYS };
    const int keys_at = gpu_operand_keys<D>(gpu_lane()), rows_at = gpu_operand_rows<D>(gpu_lane());
#pragma unroll 1
    for (; n < t.b->all.end; n += KEYS) {
        const gpu_prompt_source source = t.b->source[gpu_prompt_value()];
        const gpu_prompt_limits limits = t.b->limits[gpu_thread() / GPU_TILE_LANES], all = t.b->all;
        const bool seen = n < limits.end && n + KEYS > limits.begin,
                   masked = n < limits.whole || n + KEYS > limits.whole_end;
        gpu_copies_wait<0>();
        __syncthreads();
        gpu_prompt_keep(t, n, gpu_prompt_place(t, source, all, n + 2 * KEYS));
        char *keys = gpu_prompt_tile<D>(t, n), *values = keys + 2 * KEYS * D * 2;
        if (n < all.whole || n + KEYS > all.whole_end)
            gpu_nonfinite_look<DTYPE, D, KEYS>(values, n, &t.b->nonfinite);
        gpu_tile_weights<ROWS> w;
        if (seen) {
            gpu_prompt_score<DTYPE, D>(t, n, masked, keys, gpu_opaque(rows_at), gpu_opaque(keys_at),
                                       sums, w, rows);
            gpu_prompt_take_out<DTYPE, D>(t, n, keys, values, w);
            gpu_tile_add_at<DTYPE, D, ROWS>(values, gpu_opaque(rows_at), w, rows);
        } else {
            w = {};
            gpu_prompt_copy<D>(t, n + KEYS);
            gpu_prompt_take_out<DTYPE, D>(t, n, keys, values, w);
        }
    }
}

/* --- the end of rows --- */

/* A row of a warp, a lane's own: largest logit and sum to what gpu_end_row() gives, and to where
 * its elements go. */
GPU_FN void gpu_prompt_end_row(const gpu_prompt_call &t, uint2 *end) {
    const int32_t key_head = t.b->head;
    const int row = gpu_warp_row<GPU_TILE_ROWS>() + gpu_lane();
    const rope_attention_sequence *s = &t.b->tile.s;
    const gpu_prompt_walk w = gpu_prompt_walk_from(t, key_head, gpu_reread(t.call)->out_stride,
                                                   (uint32_t)t.b->tile.first + (uint32_t)row);
    if (w.query >= (uint32_t)s->q_count) {
        *end = {0, GPU_TILE_NONE};
        return;
    }
    const float factor = gpu_end_row<false>(gpu_reread(t.p), gpu_reread(t.call), s, w.query,
                                            (int64_t)((uint32_t)key_head * w.group + w.head),
                                            rope_bits_float(end->x), rope_bits_float(end->y));
    *end = {rope_float_bits(factor), w.at};
}

/* Ends a warp's rows: sums are those of all lanes that share a row. */
GPU_FN void gpu_prompt_end_rows(const gpu_prompt_call &t, gpu_tile_sums<GPU_TILE_ROWS> &sums,
                                uint2 *ends) {
    const int lane = gpu_lane();
    gpu_for_each_row<gpu_row_blocks<GPU_TILE_ROWS>>([&](int m, int h) {
        const float sum = gpu_lanes_sum(sums.sum[m][h]);
        const int row = 16 * m + gpu_row_of(lane, h);
        if (gpu_first_lane_of(row) == lane)
            ends[row] = {rope_float_bits(sums.largest[m][h]), rope_float_bits(sum)};
    });
    gpu_warp_barrier();
    gpu_prompt_end_row(t, ends + lane);
    gpu_warp_barrier();
}

/* A thread's rows, divided and rounded, to where the warp's queries were. */
template <int DTYPE, int D>
GPU_FN void gpu_prompt_stage(const gpu_prompt_call &t, const uint2 *ends,
                             gpu_tile_rows<D, GPU_TILE_ROWS> &rows) {
    enum { ROWS = GPU_TILE_ROWS };
    const int lane = gpu_lane(), first = gpu_warp_row<ROWS>();
    gpu_for_each_row<gpu_row_blocks<ROWS>>([&](int m, int h) {
        const int row = 16 * m + gpu_row_of(lane, h);
        const float factor = rope_bits_float(ends[row].x);
        gpu_for_each_pair<D>(rows.out[m], h, [&](int i, float x, float y) {
            gpu_store_pair<D>(t.queries, first + row, i, gpu_end_pair<DTYPE>(x, y, factor));
        });
    });
}

template <int DTYPE, int D>
GPU_FN void gpu_prompt_finish(const gpu_prompt_call &t, gpu_tile_sums<GPU_TILE_ROWS> &sums,
                              gpu_tile_rows<D, GPU_TILE_ROWS> &rows) {
    enum { ROWS = GPU_TILE_ROWS, STEP = GPU_TILE_LANES * 8 / D };
    uint2 *ends = (uint2 *)(void *)(t.b->rows + gpu_warp_row<ROWS>());
    gpu_prompt_end_rows(t, sums, ends);
    gpu_prompt_restore<D>(t, rows);
    gpu_prompt_stage<DTYPE, D>(t, ends, rows);
    gpu_warp_barrier();
    const int row = gpu_lane() / (D / 8), chunk = gpu_lane() % (D / 8);
    char *out = (char *)gpu_reread(t.call)->out + 16 * chunk;
#pragma unroll 4
    for (int e = 0; e < 16 * gpu_row_blocks<ROWS>; e += STEP) {
        const uint4 eight =
            *(const uint4 *)(const void *)(t.queries +
                                           gpu_swizzled<D>(gpu_warp_row<ROWS>() + row + e, chunk));
        const uint32_t at = ends[row + e].y;
        if (at != GPU_TILE_NONE)
            *(uint4 *)(void *)(out + 16 * (uint64_t)at) = eight;
    }
}

/* Queries and the first tile on their way; the first key of that. */
template <int D> GPU_FN int gpu_prompt_begin(const gpu_prompt_call &t, int32_t head) {
    enum { KEYS = GPU_TILE_KEYS, WARP_ROWS = 16 * gpu_row_blocks<GPU_TILE_ROWS> };
    gpu_prompt_see(t);
    if (gpu_thread() % KEYS == 0)
        gpu_prompt_find_source(t, gpu_prompt_value(), head);
    gpu_prompt_copy_queries<D>(t, head);
    __syncthreads();
    const gpu_prompt_limits all = gpu_prompt_limits_of_all(t);
    const int n = all.begin / KEYS * KEYS, row = gpu_warp_row<GPU_TILE_ROWS>();
    gpu_prompt_find_places(t, all, n);
    if (gpu_lane() == 0)
        t.b->limits[row / WARP_ROWS] = gpu_prompt_limits_of(t, row, row + WARP_ROWS - 1);
    if (gpu_thread() == 0) {
        t.b->all = all;
        t.b->head = head;
        t.b->nonfinite = {};
    }
    __syncthreads();
    gpu_prompt_copy<D>(t, n);
    return n;
}

/* All rows of a block. */
template <int DTYPE, int D> GPU_FN void gpu_prompt_attend(const gpu_prompt_call &t, int32_t head) {
    enum { ROWS = GPU_TILE_ROWS };
    const int n = gpu_prompt_begin<D>(t, head);
    gpu_tile_sums<ROWS> sums = gpu_no_sums<ROWS>();
    gpu_tile_rows<D, ROWS> rows = {};
    gpu_prompt_loop<DTYPE, D>(t, n, sums, rows);
    gpu_copies_wait<0>();
    gpu_prompt_finish<DTYPE, D>(t, sums, rows);
    __syncthreads();
}

/* Finds tile n, as gpu_attention_find(), and says what comes next. */
GPU_FN bool gpu_prompt_find(const gpu_prompt_call &t, const int32_t *failed, int64_t n) {
    const rope_attention_problem *p = gpu_reread(t.p);
    const rope_attention_call *call = gpu_reread(t.call);
    const uint32_t group = gpu_prompt_group(t);
    if (call->rope.position.cu_seqlens || p->cache) {
        const bool found = gpu_attention_find<0>(p, call, failed, n, group, GPU_TILE_ROWS,
                                                 &t.b->tile, gpu_thread());
        if (gpu_thread() == 0)
            t.b->next = n + gridDim.x;
        __syncthreads();
        return found;
    }
    const uint32_t tiles =
                       ((uint32_t)call->rope.tokens * group + GPU_TILE_ROWS - 1) / GPU_TILE_ROWS,
                   sequence = (uint32_t)n / tiles;
    if (sequence >= rope_attention_sequences(call))
        return false;
    if (gpu_thread() == 0) {
        gpu_attention_tile tile = {rope_attention_sequence_of(p, call, sequence),
                                   (int64_t)(tiles - 1 - (uint32_t)n % tiles) * GPU_TILE_ROWS, 1,
                                   1};
        if (tile.s.fails || (failed && gpu_global(failed)[sequence])) {
            tile.valid = 0;
            gpu_attention_flag(call);
        }
        t.b->tile = tile;
        t.b->next = n + gridDim.x;
    }
    __syncthreads();
    return true;
}

template <int DTYPE, int D>
__global__ void __launch_bounds__(GPU_ATTENTION_THREADS, GPU_TILE_BLOCKS)
    gpu_attention_prompt(GPU_PARAMETER rope_attention_problem problem,
                         GPU_PARAMETER rope_attention_call given, const int32_t *failed,
                         int32_t fits) {
    if constexpr (gpu_has_tiles<DTYPE, D>) {
        const rope_attention_problem &p = *gpu_parameter<rope_attention_problem>(problem);
        const rope_attention_call &call =
            *gpu_parameter<rope_attention_call, rope_attention_problem>(given);
        extern __shared__ uint4 memory[];
        __shared__ gpu_prompt_block b;
        gpu_wait_for_last();
        gpu_let_next_start();
        const gpu_prompt_call t = {gpu_reread(&p), gpu_reread(&call), &b, (char *)memory,
                                   (char *)memory + GPU_TILE_ROWS * D * 2};
        for (int64_t n = blockIdx.x; gpu_prompt_find(t, failed, n);) {
            if (b.tile.valid && !(fits & GPU_TILE_LEAVES_FEW && gpu_is_decoded(&call, &b.tile.s)) &&
                b.tile.first < b.tile.s.q_count * gpu_prompt_group(t))
                for (int32_t head = (int32_t)blockIdx.y; head < call.k.heads;
                     head = b.head + (int32_t)gridDim.y)
                    gpu_prompt_attend<DTYPE, D>(t, head);
            if (fits & GPU_TILE_ONCE)
                return;
            n = b.next;
            __syncthreads();
        }
    }
}

#endif
#endif
