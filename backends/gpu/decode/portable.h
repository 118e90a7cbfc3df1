/*
 * Decoding in one launch on any GPU: the kernel of one query a sequence (attention/decode.h), whose
 * blocks rotate their queries themselves. The block of a sequence's last split writes the new key
 * and value before it reads keys, and the last block of a key head to end joins its splits. So bits
 * are those of "append", and of attention by `decode`.
 */
#ifndef ROPEKIT_GPU_DECODE_PORTABLE_H
#define ROPEKIT_GPU_DECODE_PORTABLE_H

#include "backends/gpu/attention/decode.h"
#include "backends/gpu/decode/counter.h"
#include "backends/gpu/decode/steps.h"

/* A head of D elements; a part of 32 threads has one. */
template <int D> struct decode_head {
    enum { DIM = D, LANES = D / 4, PARTS = GPU_ATTENTION_THREADS / 32 };
};

template <class S> GPU_FN decode_words decode_read_head(const void *head) {
    const auto *word = gpu_global((const uint32_t *)head) + gpu_thread() % S::LANES;
    return {word[0], word[S::LANES]};
}

/* To where a thread's first word and the one of the other half lie. */
template <class S> GPU_FN void decode_write_words(void *low, void *high, decode_words x) {
    if (gpu_thread() % 32 < S::LANES) {
        *(uint32_t *)low = x.low;
        *(uint32_t *)high = x.high;
    }
}

/* --- the new token --- */

/* A place in the cache: units of 16 bytes are asked of it. page -1: it is not to be cached, -2: it
 * cannot be. */
struct decode_place {
    int page, slot;
};

GPU_FN decode_place decode_place_of(const gpu_decode_portable_call &c, int sequence) {
    const gpu_decode_call &a = c.attend;
    const bool wide = a.flags & GPU_DECODE_WIDE;
    int64_t index, page;
    if (c.slots) {
        index = gpu_decode_index(c.slots, c.wide_slots, sequence * c.slot_row);
        page = index / a.page_size;
        return index < 0
                   ? decode_place{-1, 0}
                   : decode_place{page < a.pages ? (int)page : -2, (int)(index % a.page_size)};
    }
    index = c.starts ? rope_sum(c.start, gpu_decode_index(c.starts, wide, sequence)) : c.start;
    if (index < 0 || index >= c.held)
        return {-2, 0};
    page = a.table ? gpu_decode_index(a.table, a.flags & GPU_DECODE_WIDE_TABLE,
                                      sequence * a.table_row + index / a.page_size * a.table_page)
                   : sequence;
    return {page >= 0 && page < a.pages ? (int)page : -2, (int)(index % a.page_size)};
}

template <class S>
GPU_FN void decode_write_cache(const gpu_decode_tensor &o, decode_place place, int key_head,
                               decode_words x) {
    char *head = (char *)o.data +
                 16 * (uint64_t)((uint32_t)place.page * o.page + (uint32_t)place.slot * o.slot +
                                 (uint32_t)key_head * o.head);
    const int at = 4 * (gpu_thread() % S::LANES);
    decode_write_words<S>(head + at, head + S::DIM + at, x);
}

GPU_FN int64_t decode_position(const gpu_decode_steps &s, int sequence) {
    const bool wide = s.flags & GPU_STEP_WIDE_IDS;
    const int64_t id = s.ids ? gpu_decode_index(s.ids, wide, sequence * s.id_row) : 0,
                  offset = s.offsets ? gpu_decode_index(s.offsets, wide, sequence) : 0;
    return rope_sum(rope_sum(id, offset), s.offset);
}

/* cos and sin of a thread's pairs. */
template <class S> struct decode_angles { rope_coefficients of[2]; };

template <int DTYPE, class S>
GPU_FN decode_angles<S> decode_angles_of(const gpu_decode_portable_call &c, int sequence) {
    const int lane = gpu_thread() % S::LANES;
    const gpu_decode_steps &s = c.steps[0];
    if (!c.turns && !c.angles.cos)
        return {};
    const bool joined = s.flags & GPU_STEP_INTERLEAVED;
    const int first = joined ? lane : 2 * lane, second = joined ? lane + S::LANES : 2 * lane + 1;
    const int64_t position = decode_position(s, sequence);
    if (s.flags & GPU_STEP_TABLE)
        return {{decode_tabled<DTYPE>(c.angles, sequence, position, first),
                 decode_tabled<DTYPE>(c.angles, sequence, position, second)}};
    const auto turns = gpu_global(c.turns);
    return {{decode_angle(s.flags, c.factor, position, turns[first]),
             decode_angle(s.flags, c.factor, position, turns[second])}};
}

/* All threads of a wave call it. */
template <int DTYPE, class S>
GPU_FN decode_words decode_stepped(const gpu_decode_steps &s, const decode_angles<S> &angles,
                                   decode_words x) {
    if (s.flags & GPU_STEP_NORM)
        x = decode_normalize<DTYPE, S>(s.flags, s.eps, decode_read_head<S>(s.weight), x);
    return s.flags & GPU_STEP_ROTATES ? decode_rotate<DTYPE>(s.flags, angles.of, x) : x;
}

template <class S> GPU_FN decode_words decode_read_unit(const char *data, uint32_t unit) {
    return decode_read_head<S>(data + 16 * (uint64_t)unit);
}

/* What a thread has of a block's heads, as they were loaded. */
template <class S> struct decode_loaded {
    decode_words q[GPU_SPLIT_ROWS / S::PARTS], k, v;
    decode_place place;
    decode_angles<S> angles;
};

/* appends: the block is the one that has the new key and value. */
template <int DTYPE, class S>
GPU_FN decode_loaded<S> decode_load(const gpu_decode_portable_call &c, int sequence, int key_head,
                                    bool appends) {
    const gpu_decode_call &a = c.attend;
    const uint32_t row = (uint32_t)sequence, head = (uint32_t)key_head;
    decode_loaded<S> x = {};
#pragma unroll
    for (int e = 0; e < GPU_SPLIT_ROWS / S::PARTS; e++) {
        const int n = gpu_thread() / 32 + e * S::PARTS;
        if (n < a.group)
            x.q[e] = decode_read_unit<S>(a.q, row * a.q_row + (head * a.group + n) * a.q_head);
    }
    if (appends) {
        x.place = decode_place_of(c, sequence);
        x.k = decode_read_unit<S>(c.k.data, row * c.k.row + head * c.k.head);
        x.v = decode_read_unit<S>(c.v.data, row * c.v.row + head * c.v.head);
    }
    x.angles = decode_angles_of<DTYPE, S>(c, sequence);
    return x;
}

/* Queries to shared memory, zeros for rows that there are not. */
template <int DTYPE, class S>
GPU_FN void decode_prepare_queries(const gpu_decode_portable_call &c, const decode_loaded<S> &x,
                                   char *queries) {
    const int at = 2 * (gpu_thread() % S::LANES);
#pragma unroll
    for (int e = 0; e < GPU_SPLIT_ROWS / S::PARTS; e++) {
        const int n = gpu_thread() / 32 + e * S::PARTS;
        const decode_words q = decode_stepped<DTYPE, S>(c.steps[0], x.angles, x.q[e]);
        decode_write_words<S>(gpu_swizzled_element<S::DIM>(queries, n, at),
                              gpu_swizzled_element<S::DIM>(queries, n, S::DIM / 2 + at),
                              n < c.attend.group ? q : decode_words{0, 0});
    }
}

/* The new key and value to the cache. */
template <int DTYPE, class S>
GPU_FN void decode_append(const gpu_decode_portable_call &c, const decode_loaded<S> &x,
                          int key_head) {
    const gpu_decode_call &a = c.attend;
    const int part = gpu_thread() / 32;
    const decode_words k = decode_stepped<DTYPE, S>(c.steps[1], x.angles, x.k);
    if (x.place.page >= 0 && part < 2)
        decode_write_cache<S>(part ? a.v : a.k, x.place, key_head, part ? x.v : k);
    if (x.place.page == -2 && gpu_thread() == 0 && a.flag)
        *a.flag = 1;
}

/* --- splits --- */

/* Whether this block is the last of its sequence and key head to have left its part. */
GPU_FN bool decode_is_last(const gpu_decode_portable_call &c, int sequence, int key_head,
                           int splits) {
    __shared__ int last;
    __threadfence();
    __syncthreads();
    if (gpu_thread() == 0) {
        unsigned long long *counter = c.counters + (int64_t)sequence * c.attend.k_heads + key_head;
        const volatile auto *given = gpu_global(counter);
        decode_mark(counter, *given);
        const unsigned long long before = atomicAdd(counter, 1ull);
        last = (int)(before & ((1u << DECODE_COUNT_BITS) - 1)) == splits - 1;
        if (last)
            *counter = DECODE_MARK;
    }
    __syncthreads();
    __threadfence();
    return last;
}

/* Other blocks have just written the parts: no cache may have older lines of them. */
template <int DTYPE, int D>
GPU_FN void decode_join(const gpu_decode_call &c, const gpu_decode_keys &k, int sequence,
                        int key_head) {
    enum { N = 2, EACH = D / N };
#pragma unroll 1
    for (int e = gpu_thread(); e < c.group * EACH; e += GPU_ATTENTION_THREADS) {
        const int head = key_head * c.group + e / EACH, first = e % EACH;
        const volatile auto *part = gpu_decode_part(c, sequence, head, 0, D);
        const gpu_joined<N> row = gpu_join<N>(part, first, EACH, D, k.splits);
        if (row.sum == GPU_PART_LEFT_OUT)
            continue;
        gpu_repeat<N>([&](int n) {
            gpu_decode_store<DTYPE>(c, k.row, head, first + n * EACH, row.out[n], row.largest,
                                    row.sum);
        });
    }
}

/* Queries to shared memory, the first tile of a split under way to it, and the new token's key and
 * value in the cache; false where the sequence fails, of which the first split knows. */
template <int DTYPE, int D>
GPU_FN bool decode_begin(const gpu_decode_portable_call &given, gpu_decode_block *b,
                         const gpu_decode_keys &k, const gpu_decode_span &span, int sequence,
                         int key_head, bool appends, char *queries, char *stage) {
    typedef decode_head<D> S;
    const gpu_decode_call &c = given.attend;
    char *values = stage + GPU_TILE_KEYS * D * 2;
    const decode_loaded<S> x = decode_load<DTYPE, S>(given, sequence, key_head, appends);
    if (threadIdx.x == 0)
        b->lacks_page = 0;
    __syncthreads();
    if (!k.fails)
        gpu_decode_place<D>(c, b, sequence, key_head, span.base, span.from, span.end, 0);
    __syncthreads();
    if (!appends) /* copied while queries rotate */
        gpu_decode_copy<D>(c, b, span.from, span.end, 0, stage, values);
    gpu_copies_mark();
    decode_prepare_queries<DTYPE, S>(given, x, queries);
    if (!appends)
        return true;
    decode_append<DTYPE, S>(given, x, key_head);
    if (k.fails && threadIdx.x == 0 && c.flag)
        *c.flag = 1;
    if (k.fails)
        return false;
    __syncthreads();
    gpu_decode_copy<D>(c, b, span.from, span.end, 0, stage, values);
    gpu_copies_mark();
    return true;
}

template <int DTYPE, int D>
__global__ void __launch_bounds__(GPU_ATTENTION_THREADS, GPU_SPLIT_BLOCKS)
    gpu_decode_portable(GPU_PARAMETER gpu_decode_portable_call call) {
    if constexpr (gpu_has_tiles<DTYPE, D>) {
        const gpu_decode_portable_call &given = *gpu_parameter<gpu_decode_portable_call>(call);
        const gpu_decode_call &c = given.attend;
        extern __shared__ uint4 memory[];
        __shared__ gpu_decode_block b;
        const int key_head = (int)blockIdx.x, split = (int)blockIdx.y, sequence = (int)blockIdx.z;
        char *queries = (char *)memory, *stage = queries + GPU_SPLIT_ROWS * D * 2;
        gpu_wait_for_last();
        gpu_let_next_start();
        const gpu_decode_keys k = gpu_decode_keys_of(c, sequence);
        if (split > 0 && split >= k.splits)
            return;
        const gpu_decode_span span = gpu_decode_span_of(k, split);
        if (!decode_begin<DTYPE, D>(given, &b, k, span, sequence, key_head, k.splits <= split + 1,
                                    queries, stage))
            return;
        gpu_decode_split<DTYPE, D>(c, &b, k, span, sequence, key_head, split, queries, stage);
        if (k.splits > 1 && decode_is_last(given, sequence, key_head, k.splits))
            decode_join<DTYPE, D>(c, k, sequence, key_head);
    }
}

/* By elements of heads. */
#define GPU_DECODE_PORTABLE(DTYPE)                                                                 \
    { GPU_KERNEL(gpu_decode_portable<DTYPE, 64>), GPU_KERNEL(gpu_decode_portable<DTYPE, 128>) }

#endif
