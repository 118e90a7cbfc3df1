/* What helper warps do an item ahead: they normalise and rotate queries, and keys of new tokens,
 * which they write to the cache with their values. The arithmetic is that of "append". */
#ifndef ROPEKIT_GPU_DECODE_SM90_PREPARE_H
#define ROPEKIT_GPU_DECODE_SM90_PREPARE_H

#include "backends/gpu/append/store.h"
#include "backends/gpu/append/token.h"
#include "backends/gpu/decode/counter.h"
#include "backends/gpu/decode/sm90/items.h"
#include "backends/gpu/decode/steps.h"

/* What a lane keeps: turns of its pairs, and weights of the norms of q and k. */
struct decode_constants {
    uint64_t turns[2];
    decode_words weight[2];
};

/* A helper's rows and new tokens of an item, as they were loaded: nothing looks at them until the
 * item is prepared. */
template <class S> struct decode_loaded {
    decode_words q[S::EACH], k[S::NEW], v[S::NEW];
    decode_raw q_id[S::EACH], k_id[S::NEW];
    decode_raw q_offset, k_offset;
    decode_raw place[S::NEW]; /* a slot or a page */
    unsigned long long counter;
};

/* Row or token e of a helper. */
GPU_FN int decode_nth(int helper, int e) {
    return helper + SM90_DECODE_HELPERS * e;
}

template <class S> GPU_FN decode_words decode_read_words(const char *head) {
    const uint32_t *word = (const uint32_t *)(const void *)head + decode_part_lane<S>();
    return {decode_read(word), decode_read(word + S::LANES)};
}

template <class S> GPU_FN void decode_write_words(char *head, decode_words x) {
    uint32_t *word = (uint32_t *)(void *)head + decode_part_lane<S>();
    if (!decode_writes<S>())
        return;
    word[0] = x.low;
    word[S::LANES] = x.high;
}

template <class S> GPU_FN decode_constants decode_constants_of(const sm90_decode_call *c) {
    const int lane = decode_part_lane<S>(), joined = c->steps[0].flags & GPU_STEP_INTERLEAVED;
    const unsigned long long *turns = (const unsigned long long *)c->turns;
    decode_constants made = {};
    if (turns) {
        made.turns[0] = __ldg(turns + (joined ? lane : 2 * lane));
        made.turns[1] = __ldg(turns + (joined ? lane + S::LANES : 2 * lane + 1));
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (c->steps[i].weight)
            made.weight[i] = decode_read_words<S>((const char *)c->steps[i].weight);
    return made;
}

/* --- counters of series --- */

/* head: over [band, key head]. */
GPU_FN unsigned long long *decode_counter(const sm90_decode_call *c, int sequence, int head,
                                          int helper) {
    return c->parts.counters + ((int64_t)sequence * c->band_heads + head) * SM90_DECODE_HELPERS +
           helper;
}

GPU_FN unsigned long long decode_read_counter(const unsigned long long *counter) {
    unsigned long long x;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(x) : "l"(counter) : "memory");
    return x;
}

/* --- loads --- */

/* Of a sequence's token n, which stands at `index` unless it has an id. */
GPU_FN decode_raw decode_read_id(const gpu_decode_steps *s, int sequence, int begin, int n,
                                 int index) {
    return s->ids ? decode_read_index(s->ids, s->flags & GPU_STEP_WIDE_IDS,
                                      sequence * s->id_row + (begin + n) * s->id_token)
                  : decode_raw{index, index >> 31};
}

GPU_FN decode_raw decode_read_offset(const gpu_decode_steps *s, int sequence) {
    return s->offsets ? decode_read_index(s->offsets, s->flags & GPU_STEP_WIDE_IDS, sequence)
                      : decode_raw{0, 0};
}

GPU_FN int64_t decode_position(const gpu_decode_steps *s, decode_raw id, decode_raw offset) {
    const int wide = s->flags & GPU_STEP_WIDE_IDS;
    return rope_sum(rope_sum(decode_value(id, wide), decode_value(offset, wide)), s->offset);
}

/* A place of an index that is not below 0. */
GPU_FN int decode_index_around(const sm90_decode_call *c, int index) {
    return decode_around(c, index / SM90_DECODE_CHUNK) * SM90_DECODE_CHUNK +
           index % SM90_DECODE_CHUNK;
}

/* The slot of a new token; -1: it is not to be cached, -2: it cannot be. */
GPU_FN int decode_slot_of(const sm90_decode_call *c, decode_raw place, int index) {
    const int size = c->page_chunks * SM90_DECODE_CHUNK;
    if (c->slots) {
        const int64_t slot = decode_value(place, c->flags & SM90_DECODE_WIDE_SLOTS);
        return slot < 0 ? -1 : slot < (int64_t)c->pages * size ? (int)slot : -2;
    }
    const int at = index < 0 ? -1 : decode_index_around(c, index),
              page = at >= 0 && at < c->held ? decode_page(c, place) : -1;
    return page < 0 ? -2 : (page - decode_over(at / SM90_DECODE_CHUNK, c->per_page)) * size + at;
}

/* Whether an item is the one that caches a key: it has the key, or is the first or the last of a
 * sequence that does not reach it. */
GPU_FN bool decode_caches(const decode_item &item, int index) {
    const int chunk = index < 0 ? -1 : index / SM90_DECODE_CHUNK;
    return chunk >= item.first ? chunk < item.last || item.split + 1 == item.splits
                               : item.split == 0;
}

/* A head's place in the cache. */
struct decode_place {
    char *data;
    float *scale;
};

GPU_FN decode_place decode_cached(const sm90_decode_call *c, const sm90_decode_cache *cache,
                                  int head, int slot) {
    const int page = decode_over(slot / SM90_DECODE_CHUNK, c->per_page),
              token = slot - page * c->page_chunks * SM90_DECODE_CHUNK;
    return {decode_head_of(cache, page, token, head), cache->scales + page * cache->scale_page +
                                                          token * cache->scale_slot +
                                                          head * cache->scale_head};
}

GPU_FN char *decode_head(const sm90_decode_heads *x, int sequence, int token, int head) {
    return x->data + sequence * x->row + token * x->token + head * x->head;
}

/* Whether a sequence has a token n, which one that is out of range may not. */
GPU_FN bool decode_has(const sm90_decode_call *c, const decode_item &item, int n) {
    return n < decode_tokens(item.counts) && (unsigned)(item.begin + n) < (unsigned)c->row_tokens;
}

/* The row of a token's angles on its way to the L2 cache. */
template <class S>
GPU_FN void decode_fetch_angles(const sm90_decode_call *c, int sequence, int token) {
    const gpu_decode_table &t = c->angles;
    const int64_t at =
        decode_entry(t, sequence, rope_sum(token, c->steps[0].offset), 2 * decode_part_lane<S>());
    asm volatile("prefetch.global.L2 [%0];" ::"l"(t.cos + at));
    asm volatile("prefetch.global.L2 [%0];" ::"l"(t.sin + at));
}

template <class S>
GPU_FN void decode_load(const sm90_decode_call *c, const decode_item &item, int helper,
                        decode_loaded<S> &x) {
    x.counter = DECODE_MARK;
    if (item.is_last && item.splits > 1 << item.levels)
        x.counter = decode_read_counter(
            decode_counter(c, item.sequence, item.band * c->k_heads + item.head, helper));
    const int ahead = c->k.data ? 0 : decode_keys(item.counts) - decode_tokens(item.counts);
    x.k_offset = decode_read_offset(&c->steps[1], item.sequence);
    if (item.nth == 0) /* the others of a series have the same queries */
        x.q_offset = decode_read_offset(&c->steps[0], item.sequence);
#pragma unroll
    for (int e = 0; e < S::EACH && item.nth == 0; e++) {
        const int row = item.band * S::ROWS + decode_nth(helper, e),
                  token = decode_over(row, c->per_group),
                  head = item.head * c->group + row - token * c->group;
        if (!decode_has(c, item, token))
            continue;
        x.q[e] = decode_read_words<S>(decode_head(&c->q, item.sequence, item.begin + token, head));
        x.q_id[e] = decode_read_id(&c->steps[0], item.sequence, item.begin, token, ahead + token);
        if (c->steps[0].flags & GPU_STEP_TABLE)
            decode_fetch_angles<S>(c, item.sequence, token);
    }
#pragma unroll
    for (int e = 0; e < S::NEW; e++) {
        const int token = decode_nth(helper, e), index = item.start + token;
        const int at = item.begin + token;
        if (!c->k.data || !decode_has(c, item, token) || !decode_caches(item, index))
            continue;
        x.k[e] = decode_read_words<S>(decode_head(&c->k, item.sequence, at, item.head));
        x.v[e] = decode_read_words<S>(decode_head(&c->v, item.sequence, at, item.head));
        x.k_id[e] = decode_read_id(&c->steps[1], item.sequence, item.begin, token, token);
        if (c->slots)
            x.place[e] = decode_read_index(c->slots, c->flags & SM90_DECODE_WIDE_SLOTS,
                                           item.sequence * c->slot_row + at * c->slot_token);
        else if (index >= 0 && decode_index_around(c, index) < c->held)
            x.place[e] = decode_read_page(c, item.sequence, index / SM90_DECODE_CHUNK);
    }
}

/* --- steps --- */

/* Norm and rotation of a head, by turns or by the row of a table. Not inline: one copy of it serves
 * all rows. */
template <int DTYPE, class S>
static __device__ __noinline__ decode_words decode_step(int flags, float factor, float eps,
                                                        uint64_t turns0, uint64_t turns1,
                                                        decode_words weight, int64_t position,
                                                        const gpu_decode_table *table, int row,
                                                        decode_words x) {
    if (flags & GPU_STEP_NORM)
        x = decode_normalize<DTYPE, S>(flags, eps, weight, x);
    if (!(flags & GPU_STEP_ROTATES))
        return x;
    if (flags & GPU_STEP_TABLE) {
        const int lane = decode_part_lane<S>(), joined = flags & GPU_STEP_INTERLEAVED;
        const rope_coefficients m[2] = {
            decode_tabled<DTYPE>(*table, row, position, joined ? lane : 2 * lane),
            decode_tabled<DTYPE>(*table, row, position, joined ? lane + S::LANES : 2 * lane + 1)};
        return decode_rotate<DTYPE>(flags, m, x);
    }
    const rope_coefficients m[2] = {decode_angle(flags, factor, position, turns0),
                                    decode_angle(flags, factor, position, turns1)};
    return decode_rotate<DTYPE>(flags, m, x);
}

template <int DTYPE, class S>
GPU_FN decode_words decode_stepped(const sm90_decode_call *c, int tensor,
                                   const decode_constants &by, int sequence, int64_t position,
                                   decode_words x) {
    const gpu_decode_steps *s = &c->steps[tensor];
    return decode_step<DTYPE, S>(s->flags, c->factor, s->eps, by.turns[0], by.turns[1],
                                 by.weight[tensor], position, &c->angles, sequence, x);
}

/* Behind the begin of windows, and ahead of new tokens and of keys that some query does not see. */
GPU_FN int2 decode_whole(const sm90_decode_call *c, const decode_item &item) {
    const int keys = decode_keys(item.counts),
              seen = min(decode_seen(c, keys, decode_tokens(item.counts) - 1), keys - c->tree_keys);
    return {decode_chunks(decode_seen_from(c, keys, 0)),
            max(min(seen, item.start), 0) / SM90_DECODE_CHUNK};
}

/* Queries of item n to shared memory. */
template <int DTYPE, class S>
GPU_FN void decode_prepare_queries(const decode_block<S> &b, const decode_constants &by, int n,
                                   const decode_item &item, int helper, const decode_loaded<S> &x) {
    const sm90_decode_call *c = b.call;
    if (helper == 0 && decode_lane() == 0)
        b.header->told[n % S::AHEAD] = {
            {item.first, item.last}, decode_whole(c, item), item.sequence, item.counts, item.begin,
            item.band * S::ROWS};
#pragma unroll
    for (int e = 0; e < S::EACH && item.nth < S::AHEAD; e++) {
        const int row = decode_nth(helper, e);
        if (item.band * S::ROWS + row >= decode_tokens(item.counts) * c->group)
            continue; /* 0, as the block began with, or of an item before */
        decode_write_words<S>(
            b.queries + (n % S::AHEAD * S::TILES * 8 + row) * S::QUERY_BYTES,
            decode_stepped<DTYPE, S>(c, 0, by, item.sequence,
                                     decode_position(&c->steps[0], x.q_id[e], x.q_offset), x.q[e]));
    }
}

/* The scale of a head's codes: the one in the cache, or written there. */
template <int DTYPE, class S>
GPU_FN float decode_scale(const sm90_decode_call *c, float *scale, decode_words x) {
    if (!(c->flags & SM90_DECODE_SCALED))
        return 1;
    if (!(c->flags & SM90_DECODE_MAKES_SCALES))
        return __uint_as_float(decode_read(scale));
    const float2 low = gpu_split<DTYPE>(x.low), high = gpu_split<DTYPE>(x.high);
    uint32_t most = max(max(rope_finite_magnitude(low.x), rope_finite_magnitude(low.y)),
                        max(rope_finite_magnitude(high.x), rope_finite_magnitude(high.y)));
    most = __reduce_max_sync(~0u, most);
    const float made = rope_scale_of_largest(c->store, most);
    if (decode_lane() == 0)
        *scale = made;
    return made;
}

/* A head to shared memory and to the cache, as codes behind which lies their scale. */
template <int DTYPE, class S>
GPU_FN void decode_write_codes(const sm90_decode_call *c, decode_place to, char *fresh, int tensor,
                               decode_words x) {
    const float scale = decode_scale<DTYPE, S>(c, to.scale, x);
    const gpu_scale by = gpu_scale_from(scale);
    const float2 low = gpu_split<DTYPE>(x.low), high = gpu_split<DTYPE>(x.high);
    const float q[4] = {gpu_divided(low.x * by.up, by), gpu_divided(low.y * by.up, by),
                        gpu_divided(high.x * by.up, by), gpu_divided(high.y * by.up, by)};
    const uint32_t codes = gpu_four_8bit(c->store, q);
    const bool is_scale = gpu_is_scale(scale);
    if (decode_lane() == 0)
        ((float *)(void *)(fresh + 2 * S::STORED))[tensor] = scale;
    if (!is_scale && c->position_flag)
        *c->position_flag = 1;
#pragma unroll
    for (int h = 0; h < 2 && decode_writes<S>(); h++) {
        const int at = h * S::DIM / 2 + 2 * decode_part_lane<S>();
        const uint16_t two = (uint16_t)(codes >> 16 * h);
        *(uint16_t *)(void *)(fresh + tensor * S::STORED + at) = two;
        if (is_scale)
            *(uint16_t *)(void *)(to.data + at) = two;
    }
}

/* Not inline: what else a helper keeps has no registers beside it. */
template <int DTYPE, class S>
static __device__ __noinline__ void decode_write_new_codes(const sm90_decode_call *c, int head,
                                                           int slot, char *fresh, decode_words k,
                                                           decode_words v) {
#pragma unroll 1
    for (int i = 0; i < 2; i++, k = v)
        decode_write_codes<DTYPE, S>(
            c, decode_cached(c, i == 0 ? &c->k_cache : &c->v_cache, head, slot), fresh, i, k);
}

/* A new token's key and value. */
template <int DTYPE, class S>
GPU_FN void decode_write_new(const sm90_decode_call *c, int head, int slot, char *fresh,
                             decode_words k, decode_words v) {
    if constexpr (S::CODES) {
        decode_write_new_codes<DTYPE, S>(c, head, slot, fresh, k, v);
    } else {
        decode_write_words<S>(fresh, k);
        decode_write_words<S>(fresh + S::STORED, v);
        decode_write_words<S>(decode_cached(c, &c->k_cache, head, slot).data, k);
        decode_write_words<S>(decode_cached(c, &c->v_cache, head, slot).data, v);
    }
}

/* New tokens of item n to shared memory and to the cache. */
template <int DTYPE, class S>
GPU_FN void decode_prepare_fresh(const decode_block<S> &b, const decode_constants &by, int n,
                                 const decode_item &item, int helper, const decode_loaded<S> &x) {
    const sm90_decode_call *c = b.call;
#pragma unroll
    for (int e = 0; e < S::NEW; e++) {
        const int token = decode_nth(helper, e), index = item.start + token;
        if (token >= decode_tokens(item.counts))
            continue;
        const int is_mine = c->k.data && decode_has(c, item, token) && decode_caches(item, index),
                  slot = is_mine ? decode_slot_of(c, x.place[e], index) : -1;
        if (decode_lane() == 0)
            b.header->place[n % S::AHEAD][token] = slot < 0 ? -1 : index;
        if (slot == -2 && c->position_flag)
            *c->position_flag = 1;
        if (slot < 0)
            continue;
        const decode_words k = decode_stepped<DTYPE, S>(
            c, 1, by, item.sequence, decode_position(&c->steps[1], x.k_id[e], x.k_offset), x.k[e]);
        decode_write_new<DTYPE, S>(c, item.head, slot,
                                   b.fresh + (n % S::AHEAD * S::TOKENS + token) * 4 * S::DIM, k,
                                   x.v[e]);
    }
}

#endif
