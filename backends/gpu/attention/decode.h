/*
 * Sequences of one query, in most calls: the same sums as splits.h in the same order, so the same
 * bits, by parameters cut down and little code, whose fetching a short call waits for.
 */
#ifndef ROPEKIT_GPU_ATTENTION_DECODE_H
#define ROPEKIT_GPU_ATTENTION_DECODE_H

#include "backends/gpu/attention/splits.h"

/* Threads of a block share this, beside queries, keys and values. */
struct gpu_decode_block {
    gpu_joint joint;
    gpu_tile_sums<GPU_SPLIT_ROWS> sums[GPU_ATTENTION_THREADS];
    alignas(16) uint32_t places[2][GPU_TILE_PLACES];
    int32_t lacks_page;
};

/* Keys of a sequence, those its query sees, and the splits that have some. */
struct gpu_decode_keys {
    int32_t count, first, split, splits; /* keys; the first seen; the first split, how many */
    int32_t size;                        /* keys of a split */
    int64_t row;                         /* of the query */
    bool fails, empty;                   /* lengths are out of range; there is no query */
};

GPU_FN int64_t gpu_decode_index(const void *list, bool wide, int64_t at) {
    return wide ? ((const int64_t *)list)[at] : ((const int32_t *)list)[at];
}

/* The row of a sequence's one query; -1: it has not one, or not the one of its last key. */
GPU_FN int64_t gpu_decode_row(const gpu_decode_call &c, int sequence) {
    if (!c.boundaries)
        return sequence;
    const bool wide = c.flags & GPU_DECODE_WIDE;
    const int64_t begin = gpu_decode_index(c.boundaries, wide, sequence),
                  last = gpu_decode_index(c.boundaries, wide, sequence + 1) - 1;
    return last == (begin < 0 ? 0 : begin) && last < c.rows ? last : -1;
}

GPU_FN gpu_decode_keys gpu_decode_keys_of(const gpu_decode_call &c, int sequence) {
    const int64_t row = gpu_decode_row(c, sequence);
    int64_t count = c.capacity;
    if (c.lengths)
        count = gpu_decode_index(c.lengths, c.flags & GPU_DECODE_WIDE, sequence);
    int64_t queries = 1;
    if (c.q_lengths)
        queries = gpu_decode_index(c.q_lengths, c.flags & GPU_DECODE_WIDE, sequence);
    gpu_decode_keys k = {(int32_t)count,
                         0,
                         0,
                         0,
                         0,
                         row,
                         row >= 0 &&
                             (count < 0 || count > c.capacity || queries < 0 || queries > 1),
                         row < 0 || queries == 0};
    if (k.fails)
        return k;
    const int32_t index = k.count - 1;
    if (index >= c.window)
        k.first = index - c.window + 1;
    if (c.chunk < INT32_MAX && index > 0 && index / c.chunk * c.chunk > k.first)
        k.first = index / c.chunk * c.chunk;
    k.size = gpu_split_size(k.count < c.most ? k.count : c.most);
    k.split = k.first / k.size;
    k.splits = k.count > 0 ? index / k.size + 1 - k.split : 0;
    return k;
}

GPU_FN auto gpu_decode_part(const gpu_decode_call &c, int sequence, int head, int split, int dv) {
    return gpu_global(c.parts.at) +
           ((sequence * c.parts.queries * c.heads + head) * c.parts.splits + split) * (dv + 2);
}

template <int DTYPE>
GPU_FN void gpu_decode_store(const gpu_decode_call &c, int64_t row, int head, int i, float out,
                             float largest, float sum) {
    gpu_end_joined<DTYPE>(c.sink_dtype, c.sinks, head, i, out, largest, sum,
                          (uint16_t *)c.out + row * c.out_stride[0] + head * c.out_stride[1] +
                              i * c.out_stride[2],
                          c.lse ? c.lse + row * c.lse_stride[0] + head * c.lse_stride[1] : NULL);
}

/* --- queries --- */

template <int D>
GPU_FN void gpu_decode_copy_queries(const gpu_decode_call &c, int64_t of, int key_head,
                                    char *queries) {
    const uint32_t at = (uint32_t)of * c.q_row + (uint32_t)(key_head * c.group) * c.q_head;
#pragma unroll 2
    for (int e = gpu_thread(); e < GPU_SPLIT_ROWS * D / 8; e += GPU_ATTENTION_THREADS) {
        const int row = e / (D / 8), chunk = e % (D / 8);
        const bool there = row < c.group && 8 * chunk < c.dim;
        gpu_copy_async(queries + gpu_swizzled<D>(row, chunk),
                       c.q + 16 * (uint64_t)(there ? at + row * c.q_head + chunk : 0), there);
    }
}

/* cos and sin of a thread's pair at the query's position, as rope_computed() gives them. */
template <int D>
GPU_FN rope_coefficients gpu_decode_angle(const gpu_decode_call &c, const gpu_decode_keys &k) {
    const int pair = gpu_thread() % (D / 2);
    if (pair >= c.pairs)
        return {1, 0, 1, 0};
    const int64_t index =
        c.ids ? gpu_decode_index(c.ids, c.flags & GPU_DECODE_WIDE, k.row * c.id_row) : k.count - 1;
    const rope_cos_sin a =
        rope_cos_sin_turns((uint64_t)rope_sum(index, c.offset) * gpu_global(c.turns)[pair]);
    const float cos = a.c * c.factor, sin = a.s * c.factor;
    return {cos, c.flags & GPU_DECODE_NEGATIVE ? -sin : sin, cos,
            c.flags & GPU_DECODE_NEGATIVE ? -sin : sin};
}

/* Rotates a thread's pair of every so many heads. */
template <int DTYPE, int D>
GPU_FN void gpu_decode_rotate(const gpu_decode_call &c, const rope_coefficients &m, char *queries) {
    const int pair = gpu_thread() % (D / 2);
    const bool interleaved = c.flags & GPU_DECODE_INTERLEAVED;
    if (pair >= c.pairs)
        return;
    const int first = c.from + (interleaved ? 2 * pair : pair),
              second = interleaved ? first + 1 : first + c.pairs;
#pragma unroll 1
    for (int row = gpu_thread() / (D / 2); row < c.group; row += GPU_ATTENTION_THREADS / (D / 2)) {
        uint16_t *one = gpu_swizzled_element<D>(queries, row, first),
                 *two = gpu_swizzled_element<D>(queries, row, second);
        const rope_pair x = rope_rotate({gpu_widen<DTYPE>(*one), gpu_widen<DTYPE>(*two)}, m);
        const uint32_t joined = gpu_join<DTYPE>(x.x1, x.x2);
        *one = (uint16_t)joined;
        *two = (uint16_t)(joined >> 16);
    }
}

/* --- keys and values --- */

/* Where a head of one of so many tensors begins. */
GPU_FN uint32_t gpu_decode_at(const gpu_decode_tensor &o, int key_head, uint32_t sequence,
                              uint32_t key, uint32_t page, uint32_t slot) {
    return (o.paged ? page * o.page + slot * o.slot : sequence * o.page + key * o.slot) +
           (uint32_t)key_head * o.head;
}

/* Where the heads of a thread's key, of those from `n` of the block's on, begin; base: its first
 * key. 0 for a key that is not between `from` and `end`, or has no page. */
template <int D>
GPU_FN void gpu_decode_place(const gpu_decode_call &c, gpu_decode_block *b, int sequence,
                             int key_head, int base, int from, int end, int n) {
    n += gpu_thread();
    uint32_t at[2] = {0, 0};
    if (n >= from && n < end) {
        const uint32_t key = (uint32_t)(base + n), size = (uint32_t)c.page_size, turn = key / size;
        const int64_t page = c.table
                                 ? gpu_decode_index(c.table, c.flags & GPU_DECODE_WIDE_TABLE,
                                                    sequence * c.table_row + turn * c.table_page)
                                 : sequence;
        if (page >= 0 && page < c.pages) {
            at[0] = gpu_decode_at(c.k, key_head, sequence, key, (uint32_t)page, key - turn * size);
            at[1] = gpu_decode_at(c.v, key_head, sequence, key, (uint32_t)page, key - turn * size);
        } else {
            b->lacks_page = 1;
        }
    }
    b->places[0][gpu_place_index<D>(n)] = at[0];
    b->places[1][gpu_place_index<D>(n)] = at[1];
}

/* Keys and values of a tile, zeros for those that are not seen. */
template <int D>
GPU_FN void gpu_decode_copy(const gpu_decode_call &c, const gpu_decode_block *b, int from, int end,
                            int first, char *keys, char *values) {
    const int thread = gpu_thread(), row = thread / (D / 8), chunk = thread % (D / 8),
              at = gpu_swizzled<D>(row, chunk), place = gpu_place_index<D>(first + row);
    const unsigned count = (unsigned)(end - from);
    if (first >= from && first + GPU_TILE_KEYS <= end && c.dim == D && c.v_dim == D) {
        gpu_tile_copy_rows<D, true>(c.k.data + 16 * chunk, b->places[0] + place, 0, 0, keys, at);
        gpu_tile_copy_rows<D, true>(c.v.data + 16 * chunk, b->places[1] + place, 0, 0, values, at);
    } else {
        gpu_tile_copy_rows<D, false>(c.k.data + 16 * chunk, b->places[0] + place,
                                     first + row - from, 8 * chunk < c.dim ? count : 0, keys, at);
        gpu_tile_copy_rows<D, false>(c.v.data + 16 * chunk, b->places[1] + place,
                                     first + row - from, 8 * chunk < c.v_dim ? count : 0, values,
                                     at);
    }
}

/* A warp's keys of a tile, from key `first` of the block's on. */
template <int DTYPE, int D>
GPU_FN void gpu_decode_attend(const gpu_decode_call &c, const char *queries, const char *keys,
                              const char *values, int from, int end, int first,
                              gpu_tile_sums<GPU_SPLIT_ROWS> &sums,
                              gpu_tile_rows<D, GPU_SPLIT_ROWS> &rows) {
    enum { ROWS = GPU_SPLIT_ROWS, KEYS = gpu_warp_keys<ROWS> };
    gpu_tile_scores<ROWS> s;
    gpu_tile_products<DTYPE, D, ROWS>(queries, keys, s);
    const float unit = gpu_tile_cap<ROWS>(c.scale, c.soft_cap, s);
    if (first < from || first + KEYS > end) {
        const int mine = first + gpu_first_key_of(gpu_lane());
        gpu_mask(s, [&](int, int) {
            return [&](int key) { return mine + key >= from && mine + key < end; };
        });
    }
    gpu_tile_weights<ROWS> w;
    gpu_tile_weigh<DTYPE, D, ROWS>(unit, s, sums, w, rows, [] {});
    gpu_tile_add<DTYPE, D, ROWS>(values, w, rows);
}

/* --- a split --- */

/* Joins the warps' parts: to results of the split, or where it is the only one, to out. */
template <int DTYPE, int D>
GPU_FN void gpu_decode_finish(const gpu_decode_call &c, const gpu_decode_block *b, int sequence,
                              int64_t query, int key_head, int split, bool alone,
                              const float *kept) {
    if (b->lacks_page && gpu_thread() == 0 && c.flag)
        *c.flag = 1;
    if (b->lacks_page && alone)
        return;
    gpu_join_rows<D, 4>(
        &b->joint, kept, c.group, [&](int row, int i, float out, float largest, float sum) {
            const int head = key_head * c.group + row;
            if (i < c.v_dim && alone)
                gpu_decode_store<DTYPE>(c, query, head, i, out, largest, sum);
            else if (i < c.v_dim)
                gpu_store_part(gpu_decode_part(c, sequence, head, split, c.v_dim), c.v_dim, i, out,
                               largest, b->lacks_page ? GPU_PART_LEFT_OUT : sum);
        });
}

/* Attends to keys of the block from `from` up to `end`; they begin at key `base`. */
template <int DTYPE, int D>
GPU_FN void gpu_decode_loop(const gpu_decode_call &c, gpu_decode_block *b, int sequence,
                            int key_head, int base, int from, int end, char *queries, char *stage,
                            gpu_tile_rows<D, GPU_SPLIT_ROWS> &rows) {
    enum {
        ROWS = GPU_SPLIT_ROWS,
        AHEAD = gpu_tiles_ahead<D, ROWS>,
        STAGES = 1 + AHEAD,
        TILE = GPU_TILE_KEYS * D * 2
    };
    gpu_tile_sums<ROWS> sums = gpu_no_sums<ROWS>();
    const int at = gpu_warp_key<ROWS>();
#pragma unroll 1
    for (int first = 0; first < end; first += GPU_TILE_KEYS) {
        const int next = first + AHEAD * GPU_TILE_KEYS;
        char *keys = stage + first / GPU_TILE_KEYS % STAGES * 2 * TILE,
             *to = stage + next / GPU_TILE_KEYS % STAGES * 2 * TILE;
        if (AHEAD)
            gpu_copies_wait<0>();
        __syncthreads();
        if (next > 0 && next < end)
            gpu_decode_copy<D>(c, b, from, end, next, to, to + TILE);
        gpu_copies_mark();
        if (first % GPU_ATTENTION_THREADS == 0)
            gpu_decode_place<D>(c, b, sequence, key_head, base, from, end,
                                first + GPU_ATTENTION_THREADS);
        if (!AHEAD) {
            gpu_copies_wait<0>();
            __syncthreads();
        }
        if (first + at < end && first + at + gpu_warp_keys < ROWS >> from)
            gpu_decode_attend<DTYPE, D>(c, queries, keys + at * D * 2, keys + TILE + at * D * 2,
                                        from, end, first + at, sums, rows);
    }
    b->sums[gpu_thread()] = sums;
}

/* The keys of a split that are seen: from `from` of the tile that begins at key `base` up to `end`.
 */
struct gpu_decode_span {
    int base, from, end;
};

GPU_FN gpu_decode_span gpu_decode_span_of(const gpu_decode_keys &k, int split) {
    const int begin = (k.split + split) * k.size, seen = begin > k.first ? begin : k.first,
              base = seen / GPU_TILE_KEYS * GPU_TILE_KEYS,
              last = begin + k.size < k.count ? begin + k.size : k.count;
    return {base, seen - base, last - base};
}

/* Attends to a split whose places of keys are known and whose first tile is being copied. */
template <int DTYPE, int D>
GPU_FN void gpu_decode_split(const gpu_decode_call &c, gpu_decode_block *b,
                             const gpu_decode_keys &k, const gpu_decode_span &span, int sequence,
                             int key_head, int split, char *queries, char *stage) {
    gpu_tile_rows<D, GPU_SPLIT_ROWS> rows = {};
    gpu_decode_loop<DTYPE, D>(c, b, sequence, key_head, span.base, span.from, span.end, queries,
                              stage, rows);
    gpu_copies_wait<0>();
    __syncthreads();
    float *kept = (float *)(void *)stage;
    gpu_split_keep<D>(b->sums + gpu_thread(), rows, c.group, &b->joint, kept);
    gpu_decode_finish<DTYPE, D>(c, b, sequence, k.row, key_head, split, k.splits <= 1, kept);
}

template <int DTYPE, int D>
__global__ void __launch_bounds__(GPU_ATTENTION_THREADS, D > GPU_TILE_NARROW ? 2 : GPU_SPLIT_BLOCKS)
    gpu_attention_decode(GPU_PARAMETER gpu_decode_call call) {
    if constexpr (gpu_has_tiles<DTYPE, D>) {
        const gpu_decode_call &c = *gpu_parameter<gpu_decode_call>(call);
        extern __shared__ uint4 memory[];
        __shared__ gpu_decode_block b;
        const int key_head = (int)blockIdx.x, split = (int)blockIdx.y, sequence = (int)blockIdx.z;
        char *queries = (char *)memory, *stage = queries + GPU_SPLIT_ROWS * D * 2;
        gpu_wait_for_last();
        gpu_let_next_start();
        const gpu_decode_keys k = gpu_decode_keys_of(c, sequence);
        if (k.fails && threadIdx.x == 0 && c.flag)
            *c.flag = 1;
        if (k.fails || k.empty || (split > 0 && split >= k.splits))
            return;
        const gpu_decode_span span = gpu_decode_span_of(k, split);
        gpu_decode_copy_queries<D>(c, k.row, key_head, queries);
        if (threadIdx.x == 0)
            b.lacks_page = 0;
        __syncthreads();
        gpu_decode_place<D>(c, &b, sequence, key_head, span.base, span.from, span.end, 0);
        gpu_copies_mark();
        const rope_coefficients m = gpu_decode_angle<D>(c, k);
        __syncthreads();
        gpu_decode_copy<D>(c, &b, span.from, span.end, 0, stage, stage + GPU_TILE_KEYS * D * 2);
        gpu_copies_mark();
        if (c.pairs) {
            gpu_copies_wait<1>();
            __syncthreads();
            gpu_decode_rotate<DTYPE, D>(c, m, queries);
        }
        gpu_decode_split<DTYPE, D>(c, &b, k, span, sequence, key_head, split, queries, stage);
    }
}

/* Grid x over groups of GPU_JOINED_HEADS(D) heads, y over sequences. */
template <int DTYPE, int D>
__global__ void __launch_bounds__(GPU_ATTENTION_THREADS, 1)
    gpu_attention_decode_join(GPU_PARAMETER gpu_decode_call call) {
    const gpu_decode_call &c = *gpu_parameter<gpu_decode_call>(call);
    enum { N = 2, EACH = D / N };
    const int thread = (int)threadIdx.x, sequence = (int)blockIdx.y, first = thread % EACH,
              head = (int)blockIdx.x * GPU_JOINED_HEADS(D) + thread / EACH;
    gpu_wait_for_last();
    gpu_let_next_start();
    const gpu_decode_keys k = gpu_decode_keys_of(c, sequence);
    if (k.fails || k.empty || k.splits <= 1 || head >= c.heads)
        return;
    const gpu_joined<N> row =
        gpu_join<N>(gpu_decode_part(c, sequence, head, 0, D), first, EACH, D, k.splits);
    if (row.sum == GPU_PART_LEFT_OUT)
        return;
    gpu_repeat<N>([&](int n) {
        gpu_decode_store<DTYPE>(c, k.row, head, first + n * EACH, row.out[n], row.largest, row.sum);
    });
}

#endif
