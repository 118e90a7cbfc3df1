/*
 * The kernel of tiles for calls as most are: heads of all tensors in vectors of 16 bytes, no cap,
 * no tree, no ring, every query has a position, tokens and keys are counted in 31 bits. It has the
 * sums of tile.h in their order, so the same bits, by less code. Keys and values of a tile are
 * copied beside the products of the one before it.
 */
#ifndef ROPEKIT_GPU_ATTENTION_PROMPT_H
#define ROPEKIT_GPU_ATTENTION_PROMPT_H

#include "backends/gpu/attention/tile.h"

#if GPU_TILE_AHEAD

/* Where the heads of keys or values lie, in 16 bytes: of key 0 and page 0, and from one to the
 * next. */
struct gpu_prompt_source {
    uint32_t first, page, slot;
    int32_t paged; /* 0: key n is slot n of `first` */
};

/* Keys from..end - 1 are seen by some row, whole..whole_end - 1 by all. */
struct gpu_prompt_limits {
    int32_t from, end, whole, whole_end;
};

/* Keys that a row sees. */
struct gpu_prompt_row {
    int32_t first, last;
};

/* What threads of a block share, beside queries and tiles of keys and values. */
struct gpu_prompt_block {
    alignas(16) uint32_t places[2][2][GPU_TILE_KEYS]; /* [tile % 2, value, key] */
    gpu_prompt_source source[2];
    gpu_prompt_limits limits[GPU_TILE_WARPS], all; /* of a warp's rows, of the block's */
    const char *data[2];                           /* element 0 of keys, of values */
    gpu_prompt_row rows[GPU_TILE_ROWS];
    uint32_t pages[GPU_ATTENTION_THREADS]; /* of keys and values of one tile */
    gpu_attention_tile tile;
    int64_t next; /* what comes next */
    int32_t head; /* of keys */
    gpu_nonfinite_state nonfinite;
};

/* A block's call. */
struct gpu_prompt_call {
    const rope_attention_problem *p;
    const rope_attention_call *call;
    gpu_prompt_block *b;
    char *queries, *stage; /* in shared memory */
};

/* Heads of q a key head. */
GPU_FN uint32_t gpu_prompt_group(const gpu_prompt_call &t) {
    return (uint32_t)gpu_reread(t.call)->rope.tensor[0].heads /
           (uint32_t)gpu_reread(t.call)->k.heads;
}

/* A row of a sequence in 16 bytes from element 0 of a tensor of queries on. */
struct gpu_prompt_walk {
    uint32_t group, query, head; /* of a key head */
    uint32_t at, token_step, head_step;
};

GPU_FN gpu_prompt_walk gpu_prompt_walk_from(const gpu_prompt_call &t, int32_t key_head,
                                            const int64_t *stride, uint32_t row) {
    const rope_attention_sequence *s = &t.b->tile.s;
    gpu_prompt_walk w;
    w.group = gpu_prompt_group(t);
    w.query = row / w.group;
    w.head = row % w.group;
    w.token_step = (uint32_t)(stride[1] / 8);
    w.head_step = (uint32_t)(stride[2] / 8);
    w.at = (uint32_t)s->q_row * (uint32_t)(stride[0] / 8) +
           ((uint32_t)s->q_first + w.query) * w.token_step +
           ((uint32_t)key_head * w.group + w.head) * w.head_step;
    return w;
}

/* `rows` further; queries and heads: of so many rows. */
GPU_FN void gpu_prompt_step(gpu_prompt_walk &w, uint32_t queries, uint32_t heads) {
    w.query += queries;
    w.head += heads;
    w.at += queries * w.token_step + heads * w.head_step;
    if (w.head >= w.group) {
        w.query++;
        w.head -= w.group;
        w.at += w.token_step - w.group * w.head_step;
    }
}

template <int D> GPU_FN void gpu_prompt_copy_queries(const gpu_prompt_call &t, int32_t head) {
    enum { STEP = gpu_copy_step<D> };
    const rope_operand *o = &gpu_reread(t.call)->rope.tensor[0];
    const int thread = gpu_thread(), row = thread / (D / 8), chunk = thread % (D / 8);
    const char *from = (const char *)(o->out ? o->out : o->in) + 16 * chunk;
    char *to = t.queries + gpu_swizzled<D>(row, chunk);
    const uint32_t queries = (uint32_t)t.b->tile.s.q_count;
    gpu_prompt_walk w = gpu_prompt_walk_from(t, head, o->out ? o->out_stride : o->in_stride,
                                             (uint32_t)t.b->tile.first + (uint32_t)row);
    const uint32_t step = STEP / w.group, rest = STEP % w.group;
#pragma unroll 4
    for (int e = 0; e < GPU_TILE_ROWS / STEP; e++) {
        const bool there = w.query < queries;
        gpu_copy_async(to + e * STEP * D * 2, from + 16 * (uint64_t)(there ? w.at : 0), there);
        gpu_prompt_step(w, step, rest);
    }
}

/* Keys that a thread's row sees. */
GPU_FN void gpu_prompt_see(const gpu_prompt_call &t) {
    static_assert(GPU_TILE_ROWS == (int)GPU_ATTENTION_THREADS, "a row each");
    const rope_attention_sequence *s = &t.b->tile.s;
    const uint32_t query =
                       ((uint32_t)t.b->tile.first + (uint32_t)gpu_thread()) / gpu_prompt_group(t),
                   last = (uint32_t)s->q_count - 1;
    const rope_key_range seen = rope_keys_seen(
        gpu_reread(t.p), s, rope_query_index(s, (int64_t)(query < last ? query : last)));
    t.b->rows[gpu_thread()] = {(int32_t)seen.first, (int32_t)seen.last};
}

/* The limits of rows first..last, of which both lie behind a barrier. */
GPU_FN gpu_prompt_limits gpu_prompt_limits_of(const gpu_prompt_call &t, int first, int last) {
    const gpu_prompt_row before = t.b->rows[first], after = t.b->rows[last];
    return {before.first, after.last, after.first, before.last};
}

/* Of all rows of the block: where they see the same, nothing is known of other keys. */
GPU_FN gpu_prompt_limits gpu_prompt_limits_of_all(const gpu_prompt_call &t) {
    gpu_prompt_limits all = gpu_prompt_limits_of(t, 0, GPU_TILE_ROWS - 1);
    if (all.from == all.whole && all.end == all.whole_end) {
        all.whole = 0;
        all.whole_end = INT32_MAX;
    }
    return all;
}

/* Keys, or values. */
GPU_FN const rope_append_operand *gpu_prompt_operand(const gpu_prompt_call &t, int value) {
    return value ? &gpu_reread(t.call)->v : &gpu_reread(t.call)->k;
}

GPU_FN void gpu_prompt_find_source(const gpu_prompt_call &t, int value, int32_t head) {
    const rope_append_operand *o = gpu_prompt_operand(t, value);
    const rope_attention_sequence *s = &t.b->tile.s;
    const gpu_key_source from = gpu_key_source_of(o, s, head);
    gpu_prompt_source source = {(uint32_t)(from.first / 8), (uint32_t)(from.page / 8),
                                (uint32_t)(from.slot / 8),
                                gpu_is_cached(o) && gpu_reread(t.p)->cache == ROPE_CACHE_TABLE};
    if (!source.paged)
        source.first += (uint32_t)s->index * source.page; /* a sequence's, or 0 */
    t.b->source[value] = source;
    t.b->data[value] = from.data;
}

/* Keys of a tile: a thread has one of them, or of its values. */
GPU_FN int gpu_prompt_value(void) {
    static_assert(2 * (int)GPU_TILE_KEYS == (int)GPU_ATTENTION_THREADS, "keys and values");
    return gpu_thread() / GPU_TILE_KEYS;
}

/* Sends for the page of a thread's key n. */
GPU_FN void gpu_prompt_prefetch_page(const gpu_prompt_call &t, int n) {
    const rope_attention_call *call = gpu_reread(t.call);
    const uint32_t turn = (uint32_t)n / (uint32_t)gpu_reread(t.p)->page_size;
    const int64_t at = t.b->tile.s.index * call->table_stride[0] + turn * call->table_stride[1];
    gpu_copy_word(t.b->pages + gpu_thread(),
                  (const char *)call->block_table + (gpu_reread(t.p)->table_wide ? 8 : 4) * at);
}

/* Where a thread's key of the tile from key n on lies. Its page is there; that of the next tile's
 * is sent for. */
GPU_FN uint32_t gpu_prompt_place(const gpu_prompt_call &t, const gpu_prompt_source &source,
                                 const gpu_prompt_limits &all, int n) {
    n += gpu_thread() % GPU_TILE_KEYS;
    uint32_t place = source.first + (uint32_t)n * source.slot;
    if (source.paged) {
        place = source.first + t.b->pages[gpu_thread()] * source.page +
                (uint32_t)n % (uint32_t)gpu_reread(t.p)->page_size * source.slot;
        if (n + GPU_TILE_KEYS >= all.from && n + GPU_TILE_KEYS < all.end)
            gpu_prompt_prefetch_page(t, n + GPU_TILE_KEYS);
    }
    return n >= all.from && n < all.end ? place : 0;
}

/* Rows of a tile that threads copy at a time. Places of a thread's lie side by side. */
enum { GPU_PROMPT_STEP = GPU_ATTENTION_THREADS / 8 };
static_assert((int)GPU_TILE_KEYS == 4 * (int)GPU_PROMPT_STEP, "four places a thread");

GPU_FN void gpu_prompt_keep(const gpu_prompt_call &t, int n, uint32_t place) {
    const int key = gpu_thread() % GPU_TILE_KEYS;
    t.b->places[n / GPU_TILE_KEYS % 2][gpu_prompt_value()]
               [key % GPU_PROMPT_STEP * 4 + key / GPU_PROMPT_STEP] = place;
}

/* Where the tile of keys from key n on lies; its values are two tiles behind. */
template <int D> GPU_FN char *gpu_prompt_tile(const gpu_prompt_call &t, int n) {
    return t.stage + (n & GPU_TILE_KEYS) * (D * 2);
}

/* Copies the tile from key n on to shared memory, zeros for keys that no row sees: a thread copies
 * every eighth chunk of its rows. */
template <int D> GPU_FN void gpu_prompt_copy(const gpu_prompt_call &t, int n) {
    enum { STEP = GPU_PROMPT_STEP };
    const int row = gpu_thread() / 8, chunk = gpu_thread() % 8, from = t.b->all.from,
              end = t.b->all.end;
    const unsigned first = (unsigned)(n + row - from),
                   count = end > from ? (unsigned)(end - from) : 0;
#pragma unroll
    for (int value = 0; value < 2; value++) {
        const uint4 four =
            *(const uint4 *)(const void *)(t.b->places[n / GPU_TILE_KEYS % 2][value] +
                                           row * (GPU_TILE_KEYS / STEP));
        const uint32_t at[4] = {four.x, four.y, four.z, four.w};
        char *to = gpu_prompt_tile<D>(t, n) + value * 2 * GPU_TILE_KEYS * D * 2 +
                   gpu_swizzled<D>(row, chunk);
#pragma unroll
        for (int e = 0; e < GPU_TILE_KEYS / STEP; e++) {
            const char *place = t.b->data[value] + 16 * chunk + 16 * (uint64_t)at[e];
#pragma unroll
            for (int c = 0; c < D / 64; c++)
                gpu_copy_async(to + e * STEP * D * 2 + 128 * c, place + 128 * c,
                               first + e * STEP < count);
        }
    }
}

/* -infinity for keys of the tile from key n on that a row does not see. */
GPU_FN void gpu_prompt_mask(const gpu_prompt_call &t, int n, gpu_tile_scores<GPU_TILE_ROWS> &s) {
    const int lane = gpu_lane();
    n += gpu_first_key_of(lane);
    gpu_mask(s, [&](int m, int h) {
        const gpu_prompt_row row =
            t.b->rows[gpu_warp_row<GPU_TILE_ROWS>() + 16 * m + gpu_row_of(lane, h)];
        const int first = row.first - n, last = row.last - n;
        return [first, last](int key) { return key >= first && key < last; };
    });
}

/* --- values that are not finite, which rows that do not see them may not meet --- */

/* What is taken out of a tile, and which of its keys have a weight in a row. They lie where the
 * tile's keys did. */
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
                             gpu_bits_between(seen.first - n, seen.last - n),
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
    gpu_tile_rescale<D, ROWS>(unit, s, sums, rows);
    gpu_prompt_copy<D>(t, n + GPU_TILE_KEYS);
    gpu_copies_mark();
    gpu_tile_exponentiate<ROWS>(unit, s, sums);
    gpu_tile_round<DTYPE, ROWS>(s, w);
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
        const bool seen = n < limits.end && n + KEYS > limits.from,
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
            gpu_copies_mark();
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

/* Of a thread's rows, sums of all lanes that share them. */
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

/* Places of a thread's keys of the first two tiles. */
GPU_FN void gpu_prompt_find_places(const gpu_prompt_call &t, const gpu_prompt_limits &all, int n) {
    const gpu_prompt_source source = t.b->source[gpu_prompt_value()];
    const int mine = n + gpu_thread() % GPU_TILE_KEYS;
    if (source.paged && mine >= all.from && mine < all.end)
        gpu_prompt_prefetch_page(t, mine);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (source.paged) {
            gpu_copies_mark();
            gpu_copies_wait<0>();
        }
        gpu_prompt_keep(t, n + i * GPU_TILE_KEYS,
                        gpu_prompt_place(t, source, all, n + i * GPU_TILE_KEYS));
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
    const int n = all.from / KEYS * KEYS, row = gpu_warp_row<GPU_TILE_ROWS>();
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
    gpu_copies_mark();
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
