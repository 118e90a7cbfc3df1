/* A warp group that multiplies: 64 rows of each tile, from scores to results. One pipeline runs
 * through all tiles: the product of a tile of keys runs beside the softmax of the one before it,
 * also from the last tile of keys of some rows to the first of the next. */
#ifndef ROPEKIT_GPU_ATTENTION_SM90_CONSUMER_H
#define ROPEKIT_GPU_ATTENTION_SM90_CONSUMER_H

#include "backends/gpu/attention/sm90/epilogue.h"
#include "backends/gpu/attention/sm90/pipeline.h"
#include "backends/gpu/attention/sm90/rotate.h"

/* A tile of keys that all rows see. The wait stands between maximum and exponentials. */
template <class T>
GPU_FN void sm90_whole(const sm90_block &b, sm90_place &at, sm90_rows &rows, float unit,
                       uint32_t (&weights)[T::WEIGHTS], float (&out)[T::ELEMENTS]) {
    float s[T::SCORES], minus[2];
    sm90_begin_scores<T>(b, at, s);
    if (!T::TALL)
        sm90_rescale<T>(out, rows);
    sm90_begin_sums<T>(b, at, weights, out);
    sm90_end_scores<T, 1>(b, at, s);
    if constexpr (T::TALL) {
        sm90_end_sums<T>(b, at, out);
        sm90_weigh<T>(s, rows, unit, b.schedule->lowest, 0, weights, out);
        return;
    }
    const int are_near = sm90_near<T>(b.cap, s);
    sm90_maximum<T>(s, rows, minus, unit, b.cap);
    sm90_end_sums<T>(b, at, out);
    sm90_cap_scores<T>(b.cap, are_near, s);
    sm90_exponentiate<T>(s, rows, minus, unit, weights);
}

/* Waits for the next rows' queries, which are sent when the rows are known: whether there are some,
 * and whether their values are cleaned. */
enum { SM90_NONE, SM90_PLAIN, SM90_CLEANED };
GPU_FN int sm90_next_rows(const sm90_block &b, const sm90_place &at) {
    sm90_wait(SM90_BARRIER(b, queries_full, at.tile & 1), (uint32_t)(at.tile >> 1 & 1));
    const sm90_tile *t = sm90_rows_at(b, at.tile);
    return sm90_uniform(t->head < 0                 ? SM90_NONE
                        : t->careful & SM90_CAREFUL ? SM90_CLEANED
                                                    : SM90_PLAIN);
}

/* Goes on to the first tile of keys of tile at.tile. */
template <class T> GPU_FN void sm90_enter(const sm90_block &b, sm90_place &at) {
    const sm90_tile *t = sm90_rows_at(b, at.tile);
    const int4 keys = *(const int4 *)(const void *)&t->first;
    at.n = 0;
    at.whole = sm90_uniform(t->rows == T::ROWS || b.schedule->tokens >= 0);
    at.tiles = T::SIMPLE ? keys.y : sm90_uniform(keys.y);
    at.right = T::SIMPLE ? keys.z : sm90_uniform(keys.z);
    at.whole_end = at.right + (T::SIMPLE ? keys.w : sm90_uniform(keys.w));
    at.end = (keys.x + keys.y) * T::KEYS;
}

/* Whether something was taken out of the values that are multiplied. The slot is another one than
 * that of the values two tiles on: some warp of the group may read late. */
GPU_FN int sm90_found(const sm90_block &b, const sm90_place &at) {
    return sm90_uniform(b.header->found[at.values.parity * 2 + (uint32_t)at.values.stage]);
}

/* Hides what rows do not see of a tile of keys. */
template <class T>
GPU_FN void sm90_hide_part(const sm90_place &at, const sm90_seen (&seen)[2],
                           float (&s)[T::SCORES]) {
    if (sm90_is_part(at))
        sm90_hide(s, seen, at.end - (at.n + 1) * T::KEYS);
}

/* Caps scores, but those that are hidden. */
template <class T>
GPU_FN void sm90_cap_part(const sm90_block &b, const sm90_place &at, const sm90_seen (&seen)[2],
                          int are_near, float (&s)[T::SCORES]) {
    sm90_cap_scores<T>(b.cap, are_near, s);
    if (T::CAPS)
        sm90_hide_part<T>(at, seen, s);
}

/* From scores to weights. starts: rows have no weights yet. */
template <class T>
GPU_FN void sm90_take(const sm90_block &b, const sm90_place &at, int row, int starts,
                      float (&s)[T::SCORES], sm90_rows &rows, uint32_t (&weights)[T::WEIGHTS],
                      float (&out)[T::ELEMENTS]) {
    const float unit = b.schedule->unit;
    sm90_seen seen[2];
    sm90_see_rows<1, !T::SIMPLE>(b, sm90_rows_at(b, at.tile), row, seen);
    const int are_near = sm90_near<T>(b.cap, s);
    sm90_hide_part<T>(at, seen, s);
    if constexpr (T::TALL) {
        sm90_weigh<T>(s, rows, unit, b.schedule->lowest, starts, weights, out);
    } else {
        float minus[2];
        sm90_maximum<T>(s, rows, minus, unit, b.cap);
        sm90_cap_part<T>(b, at, seen, are_near, s);
        sm90_exponentiate<T>(s, rows, minus, unit, weights);
    }
}

/* From the scores of rows' first tile of keys to weights. */
template <class T>
GPU_FN void sm90_take_first(const sm90_block &b, sm90_place &at, int row, float (&s)[T::SCORES],
                            sm90_rows &rows, uint32_t (&weights)[T::WEIGHTS],
                            float (&out)[T::ELEMENTS]) {
    sm90_begin(rows, b.schedule->lowest);
    sm90_take<T>(b, at, row, 1, s, rows, weights, out);
    rows.rescale[0] = rows.rescale[1] = 1.0f;
    rows.moves = 0;
    at.adds = 0;
}

/* Ends rows, whose sums are complete, beside the first product of the next ones. */
template <class T>
GPU_FN void sm90_change_rows(const sm90_block &b, const CUtensorMap *map, int row, sm90_place &at,
                             sm90_rows &rows, uint32_t (&weights)[T::WEIGHTS],
                             float (&out)[T::ELEMENTS]) {
    float s[T::SCORES];
    sm90_begin_scores<T>(b, at, s);
    sm90_end<T>(b, sm90_rows_at(b, at.tile - 1), map, at.consumer, row, at.whole, rows, out);
    sm90_enter<T>(b, at);
    sm90_end_scores<T, 0>(b, at, s);
    sm90_take_first<T>(b, at, row, s, rows, weights, out);
}

/* A tile of keys that is seen in part, or stands beside one, or is the first of the next rows:
 * these begin, and those before end. */
template <class T>
GPU_FN void sm90_some(const sm90_block &b, const CUtensorMap *map, int row, int begins,
                      sm90_place &at, sm90_rows &rows, uint32_t (&weights)[T::WEIGHTS],
                      float (&out)[T::ELEMENTS]) {
    const float unit = b.schedule->unit;
    float s[T::SCORES], minus[2];
    sm90_rows last;
    sm90_ended ended;
    const int whole = at.whole;
    sm90_tile *before = sm90_rows_at(b, at.tile - 1);
    sm90_begin_scores<T>(b, at, s);
    if (!T::TALL)
        sm90_rescale<T>(out, rows);
    sm90_begin_sums<T>(b, at, weights, out);
    if (begins) {
        last = rows;
        if (!T::SIMPLE)
            ended = sm90_sum_rows(b, rows);
        sm90_enter<T>(b, at);
    }
    sm90_seen seen[2];
    if (!T::TALL)
        sm90_see_rows<1, 0>(b, sm90_rows_at(b, at.tile), row, seen);
    if (!T::SIMPLE && !b.schedule->simple) {
        if (!T::TALL)
            sm90_see_rows<0, 1>(b, sm90_rows_at(b, at.tile), row, seen);
        if (begins)
            sm90_end_rows(b, before, row, ended);
    }
    sm90_end_scores<T, 1>(b, at, s);
    if (T::TALL) /* late, as registers are few */
        sm90_see_rows<1, 1>(b, sm90_rows_at(b, at.tile), gpu_opaque(row), seen);
    const int are_near = sm90_near<T>(b.cap, s);
    sm90_hide_part<T>(at, seen, s);
    if (begins)
        sm90_begin(rows, b.schedule->lowest);
    if constexpr (T::TALL) {
        sm90_end_sums<T>(b, at, out);
        sm90_weigh<T>(s, rows, unit, b.schedule->lowest, begins, weights, out);
    } else {
        sm90_maximum<T>(s, rows, minus, unit, b.cap);
        sm90_end_sums<T>(b, at, out);
        sm90_cap_part<T>(b, at, seen, are_near, s);
        sm90_exponentiate<T>(s, rows, minus, unit, weights);
        if (begins) { /* what there is of out is no sum of these rows */
            rows.rescale[0] = rows.rescale[1] = 1.0f;
            rows.moves = 0;
        }
    }
    sm90_settle(rows.sum); /* else the compiler adds them up behind the store */
    if (begins) {
        if (T::SIMPLE)
            ended = sm90_sum_rows(b, last);
        sm90_store<T>(b, before, map, at.consumer, row, whole, ended.factor, out);
    }
    at.adds = !begins;
}

/* Rows whose values were cleaned: product by product, as what is not finite is added to each. They
 * end here, or, of spans, leave what they end with in `last` and `sums`: the join of spans is long,
 * so it is there once. Others would spill registers for an end elsewhere. */
template <class T>
GPU_FN void sm90_attend_cleaned(const sm90_block &b, const CUtensorMap *map, int row,
                                sm90_place &at, sm90_rows *last, float (*sums)[T::ELEMENTS]) {
    float own[T::ELEMENTS], (&out)[T::ELEMENTS] = T::SPANS ? *sums : own;
    uint32_t weights[T::WEIGHTS];
    sm90_rows own_rows, &rows = T::SPANS ? *last : own_rows;
    sm90_tile *t = sm90_rows_at(b, at.tile);
    for (int i = 0; i < T::ELEMENTS; i++)
        out[i] = 0.0f;
    sm90_begin(rows, b.schedule->lowest);
    at.adds = 1;
#pragma unroll 1
    for (sm90_enter<T>(b, at); at.n < at.tiles; at.n++) {
        float s[T::SCORES];
        sm90_begin_scores<T>(b, at, s);
        sm90_end_scores<T, 0>(b, at, s);
        sm90_take<T>(b, at, row, at.n == 0, s, rows, weights, out);
        if (!T::TALL)
            sm90_rescale<T>(out, rows);
        sm90_begin_sums<T>(b, at, weights, out);
        const int found = sm90_is_part(at) ? sm90_found(b, at) : 0;
        sm90_end_sums<T>(b, at, out);
        if (found)
            sm90_add_nonfinite<T>(b, t, at.end - (at.n + 1) * T::KEYS, row, weights, out);
    }
    at.tile++;
    if (!T::SPANS)
        sm90_end<T>(b, t, map, at.consumer, row, at.whole, rows, out);
}

/* Rows of tile at.tile and, but of spans, of those behind it, up to one that is not plain: what
 * that is. last, sums: as above. A span ends beside no product of the next one: its join takes the
 * registers of that one's scores. */
template <class T>
GPU_FN int sm90_attend_plain(const sm90_block &b, const CUtensorMap *map, int row, sm90_place &at,
                             sm90_rows *last, float (*sums)[T::ELEMENTS]) {
    const float unit = b.schedule->unit;
    float own[T::ELEMENTS], (&out)[T::ELEMENTS] = T::SPANS ? *sums : own;
    uint32_t weights[T::WEIGHTS];
    sm90_rows own_rows, &rows = T::SPANS ? *last : own_rows;
    int next = SM90_PLAIN;
    sm90_enter<T>(b, at);
    {
        float s[T::SCORES];
        sm90_begin_scores<T, T::TALL>(b, at, s);
        sm90_end_scores<T, 0, T::TALL>(b, at, s);
        sm90_take_first<T>(b, at, row, s, rows, weights, out);
    }
    for (;;) {
        if (at.n + 1 >= at.right && at.n + 1 < at.whole_end) {
#pragma unroll 1
            do {
                at.n++;
                sm90_whole<T>(b, at, rows, unit, weights, out);
                at.adds = 1;
            } while (at.n + 1 < at.whole_end);
        }
        const int ends = at.n + 1 == at.tiles;
        at.n++;
        if (ends)
            at.tile++;
        if (T::QUERIES == 1 && ends) {
            sm90_rescale<T>(out, rows);
            sm90_begin_sums<T>(b, at, weights, out);
            next = sm90_next_rows(b, at);
            sm90_end_sums<T>(b, at, out);
            if (next != SM90_PLAIN)
                break;
            sm90_change_rows<T>(b, map, row, at, rows, weights, out);
            continue;
        }
        if (ends && (T::SPANS || (next = sm90_next_rows(b, at)) != SM90_PLAIN))
            break;
        sm90_some<T>(b, map, row, !T::SPANS && ends, at, rows, weights, out);
    }
    if (T::QUERIES == 2) {
        if (!T::TALL)
            sm90_rescale<T>(out, rows);
        sm90_begin_sums<T>(b, at, weights, out);
        sm90_end_sums<T>(b, at, out);
    }
    if (!T::SPANS)
        sm90_end<T>(b, sm90_rows_at(b, at.tile - 1), map, at.consumer, row, at.whole, rows, out);
    return next;
}

/* All tiles of the block from at.tile on, which the next one ends. */
template <class T>
GPU_FN void sm90_attend(const sm90_block &b, const CUtensorMap *map, sm90_place &at) {
    const int thread = (int)threadIdx.x & 127,
              row = at.consumer * 64 + thread / 32 * 16 + thread % 32 / 4;
    int next = sm90_next_rows(b, at);
    if (T::QUERIES == 2 && next != SM90_NONE && b.schedule->rotation.pairs)
        sm90_rotate_first<T>(b, at.tile, at.consumer);
#pragma unroll 1
    while (next != SM90_NONE) {
        if constexpr (T::SPANS) {
            float out[T::ELEMENTS];
            sm90_rows rows;
            if (next == SM90_PLAIN)
                (void)sm90_attend_plain<T>(b, map, row, at, &rows, &out);
            else
                sm90_attend_cleaned<T>(b, map, row, at, &rows, &out);
            sm90_end<T>(b, sm90_rows_at(b, at.tile - 1), map, at.consumer, row, at.whole, rows,
                        out);
            next = sm90_next_rows(b, at);
        } else if (next == SM90_PLAIN) {
            next = sm90_attend_plain<T>(b, map, row, at, NULL, NULL);
        } else {
            sm90_attend_cleaned<T>(b, map, row, at, NULL, NULL);
            next = sm90_next_rows(b, at);
        }
    }
}

/* All tiles of the block, then those that are computed again. */
template <class T>
GPU_FN void sm90_consume(const sm90_block &b, const CUtensorMap *map, int consumer) {
    sm90_place at = {};
    at.consumer = consumer;
    at.leads = gpu_opaque(threadIdx.x % 128 == 0);
    at.queries = sm90_matrix(sm90_queries<T>(b, 0) + (uint32_t)consumer * 8192, 16);
    at.keys_at = sm90_matrix(sm90_keys<T>(b, 0), 16);
    at.values_at = sm90_matrix(sm90_values<T>(b, 0), T::KEYS * 128);
    if (T::ORDERED && consumer == T::CONSUMERS - 1)
        sm90_next_in_order<T>(at.consumer);
#pragma unroll 1
    for (int careful = 0; careful < 2; careful++) {
        sm90_attend<T>(b, map, at);
        if (at.leads) /* copies have no order, and what is computed again goes where these go */
            sm90_stores_done();
        sm90_group_barrier<T>(consumer);
        sm90_arrive_if(SM90_BARRIER(b, all_ended, 0), at.leads && !careful);
        sm90_arrive_if(SM90_BARRIER(b, queries_free, at.tile & 1), at.leads);
        at.tile++;
        if (careful || !sm90_ends_again(b))
            break;
    }
    if (T::ORDERED && consumer == 0) /* nothing is left of the barrier */
        sm90_await_order<T>(at.consumer);
}

#endif
