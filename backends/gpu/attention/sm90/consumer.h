/* A warp group that multiplies: 64 rows of each tile, from scores to results. One pipeline runs
 * through all tiles: the product of a tile of keys runs beside the softmax of the one before it,
 * also from the last tile of keys of some rows to the first of the next. */
#ifndef ROPEKIT_GPU_ATTENTION_SM90_CONSUMER_H
#define ROPEKIT_GPU_ATTENTION_SM90_CONSUMER_H

#include "backends/gpu/attention/sm90/rotate.h"
#include "backends/gpu/attention/sm90/softmax.h"

/* A stage of two, and the parity of its phase. */
struct sm90_turn {
    int stage;
    uint32_t parity;
};

GPU_FN void sm90_step(sm90_turn &turn) {
    turn.stage ^= 1;
    turn.parity ^= (uint32_t)!turn.stage;
}

/* Where a consumer is. Tiles of keys of its rows are counted from the last one. */
struct sm90_place {
    sm90_turn keys, values;
    int tile;                             /* of the block */
    int n, tiles;                         /* tile of keys, of how many */
    int right, whole_end;                 /* those between are seen by all rows */
    int end;                              /* the key behind the first of them */
    int careful;                          /* values were cleaned */
    int consumer;                         /* 0 or 1 */
    int leads;                            /* this thread arrives for its group */
    int adds;                             /* 0: no product was added to these rows */
    uint32_t queries, keys_at, values_at; /* stage 0, as products are told of it */
};

GPU_FN int sm90_is_part(const sm90_place &at) {
    return at.n < at.right || at.n >= at.whole_end;
}

/* Begins the product of queries and the next tile of keys. */
template <class T>
GPU_FN void sm90_begin_scores(const sm90_block &b, const sm90_place &at, float (&s)[T::SCORES]) {
    sm90_wait(SM90_BARRIER(b, keys_full, at.keys.stage), at.keys.parity);
    if (T::ORDERED)
        sm90_await_order(at.consumer);
    sm90_products_begin();
    sm90_score<T>(s,
                  (uint32_t)sm90_uniform((int)(at.queries + (uint32_t)(at.tile & (T::QUERIES - 1)) *
                                                                (T::QUERY_BYTES / 16))),
                  at.keys_at + (uint32_t)at.keys.stage * (T::KEY_BYTES / 16));
    sm90_products_end();
}

/* Begins the product of the last weights and their values. */
template <class T>
GPU_FN void sm90_begin_sums(const sm90_block &b, const sm90_place &at,
                            const uint32_t (&weights)[T::WEIGHTS], float (&out)[T::ELEMENTS]) {
    sm90_wait(SM90_BARRIER(b, values_full, at.values.stage), at.values.parity);
    sm90_products_begin();
    sm90_add<T>(out, weights,
                (uint32_t)sm90_uniform(
                    (int)(at.values_at + (uint32_t)at.values.stage * (T::VALUE_BYTES / 16))),
                at.adds);
    sm90_products_end();
}

/* Ends the product of queries and keys; LEFT: groups of products that were begun behind it. */
template <class T, int LEFT>
GPU_FN void sm90_end_scores(const sm90_block &b, sm90_place &at, float (&s)[T::SCORES]) {
    sm90_products_wait<LEFT>();
    sm90_settle(s);
    sm90_arrive_if(SM90_BARRIER(b, keys_free, at.keys.stage), at.leads);
    sm90_arrive_if(SM90_BARRIER(b, queries_free, at.tile & 1), at.leads && at.n + 1 == at.tiles);
    sm90_step(at.keys);
}

template <class T>
GPU_FN void sm90_end_sums(const sm90_block &b, sm90_place &at, float (&out)[T::ELEMENTS]) {
    sm90_products_wait<0>();
    sm90_settle(out);
    sm90_arrive_if(SM90_BARRIER(b, values_free, at.values.stage), at.leads);
    sm90_step(at.values);
}

/* A tile of keys that all rows see. The wait stands between maximum and exponentials. */
template <class T>
GPU_FN void sm90_whole(const sm90_block &b, sm90_place &at, sm90_rows &rows, float unit,
                       uint32_t (&weights)[T::WEIGHTS], float (&out)[T::ELEMENTS]) {
    float s[T::SCORES], minus[2];
    sm90_begin_scores<T>(b, at, s);
    sm90_rescale<T>(out, rows);
    sm90_begin_sums<T>(b, at, weights, out);
    sm90_end_scores<T, 1>(b, at, s);
    if (T::ORDERED)
        sm90_next_in_order(at.consumer);
    const int are_near = sm90_near<T>(b.cap, s);
    sm90_maximum<T>(s, rows, minus, unit, b.cap);
    sm90_end_sums<T>(b, at, out);
    sm90_cap_scores<T>(b.cap, are_near, s);
    sm90_exponentiate<T>(s, rows, minus, unit, weights);
}

/* Waits for the next rows; 0 where there are none. */
GPU_FN int sm90_next_rows(const sm90_block &b, const sm90_place &at) {
    sm90_wait(SM90_BARRIER(b, tile_known, at.tile % SM90_KNOWN),
              (uint32_t)(at.tile / SM90_KNOWN & 1));
    if (sm90_uniform(b.header->tile[at.tile % SM90_KNOWN].head < 0))
        return 0;
    sm90_wait(SM90_BARRIER(b, queries_full, at.tile & 1), (uint32_t)(at.tile >> 1 & 1));
    return 1;
}

/* Rotates this consumer's rows of a block's first tile, when nobody else has something to do. */
template <class T> GPU_FN void sm90_rotate_first(const sm90_block &b, int tile, int consumer) {
    const sm90_tile *t = &b.header->tile[tile % SM90_KNOWN];
    const int pack = b.schedule->pack, first = consumer * 64 >> pack;
    float *norms = NULL;
    if constexpr (T::NORMS) { /* where results will lie */
        norms = (float *)(void *)((char *)b.header + SM90_HEADER +
                                  (sm90_results<T>(b, consumer) - b.memory)) -
                consumer * 64;
        sm90_find_norms<T>(b, norms, sm90_queries<T>(b, tile & 1), consumer * 64,
                           min(consumer * 64 + 64, t->rows), (int)threadIdx.x & 127, 128);
        sm90_group_barrier(consumer);
    }
    sm90_rotate<T>(b, t, sm90_queries<T>(b, tile & 1), first,
                   min(first + (64 >> pack), sm90_queries_of(b, t)), (int)threadIdx.x & 127, 128,
                   norms);
    sm90_group_barrier(consumer);
}

/* Finds which keys rows see, while their first product runs. */
template <class T>
GPU_FN void sm90_see(const sm90_block &b, sm90_place &at, int row, sm90_seen (&seen)[2]) {
    const sm90_tile *t = &b.header->tile[at.tile % SM90_KNOWN];
    const int4 keys = *(const int4 *)(const void *)&t->first,
               rows = *(const int4 *)(const void *)&t->head;
    at.n = 0;
    at.careful = sm90_uniform(rows.y & SM90_CAREFUL);
    at.tiles = sm90_uniform(keys.y);
    at.right = sm90_uniform(keys.z);
    at.whole_end = at.right + sm90_uniform(keys.w);
    at.end = (keys.x + keys.y) * T::KEYS;
#pragma unroll
    for (int h = 0; h < 2; h++)
        seen[h] = sm90_seen_of(b.schedule->mask, rows.z + ((row + 8 * h) >> b.schedule->pack),
                               rows.w, t->k_index);
}

/* Whether something was taken out of the values that are multiplied. The slot is another one than
 * that of the values two tiles on: some warp of the group may read late. */
GPU_FN int sm90_found(const sm90_block &b, const sm90_place &at) {
    return sm90_uniform(b.header->found[at.values.parity * 2 + (uint32_t)at.values.stage]);
}

/* Caps scores, but those that are hidden. */
template <class T>
GPU_FN void sm90_cap_part(const sm90_block &b, const sm90_place &at, const sm90_seen (&seen)[2],
                          int base, int are_near, float (&s)[T::SCORES]) {
    sm90_cap_scores<T>(b.cap, are_near, s);
    if (T::CAPS && sm90_is_part(at))
        sm90_hide(s, seen, base);
}

/* From the scores of rows' first tile of keys to weights. */
template <class T>
GPU_FN void sm90_take_first(const sm90_block &b, sm90_place &at, float (&s)[T::SCORES],
                            sm90_lacks &lacks, sm90_rows &rows, uint32_t (&weights)[T::WEIGHTS]) {
    const float unit = b.schedule->unit;
    float minus[2];
    lacks.tile = at.tile;
    lacks.base = at.end - T::KEYS;
    const int are_near = sm90_near<T>(b.cap, s);
    if (sm90_is_part(at))
        sm90_hide(s, lacks.seen, lacks.base);
    sm90_begin(rows, b.schedule->lowest);
    sm90_maximum<T>(s, rows, minus, unit, b.cap);
    sm90_cap_part<T>(b, at, lacks.seen, lacks.base, are_near, s);
    sm90_exponentiate<T>(s, rows, minus, unit, weights);
    rows.rescale[0] = rows.rescale[1] = 1.0f;
    rows.moves = 0;
    at.adds = 0;
}

/* Ends the product of the last weights and their values. cleans: something may have been taken out
 * of these. */
template <class T>
GPU_FN void sm90_finish_sums(const sm90_block &b, sm90_place &at, const sm90_lacks &lacks,
                             int cleans, const uint32_t (&weights)[T::WEIGHTS],
                             float (&out)[T::ELEMENTS]) {
    const int found = cleans ? sm90_found(b, at) : 0;
    sm90_end_sums<T>(b, at, out);
    if (found)
        sm90_add_nonfinite<T>(b, lacks, weights, out);
}

/* Ends the rows of `lacks` beside the first product of the next ones. */
template <class T>
GPU_FN void sm90_change_rows(const sm90_block &b, const CUtensorMap *map, int consumer, int row,
                             sm90_place &at, sm90_lacks &lacks, sm90_rows &rows,
                             uint32_t (&weights)[T::WEIGHTS], float (&out)[T::ELEMENTS]) {
    float s[T::SCORES];
    sm90_begin_scores<T>(b, at, s);
    sm90_end<T>(b, &b.header->tile[lacks.tile % SM90_KNOWN], map, consumer, rows, out);
    sm90_see<T>(b, at, row, lacks.seen);
    sm90_end_scores<T, 0>(b, at, s);
    sm90_take_first<T>(b, at, s, lacks, rows, weights);
}

/* All tiles of the block from at.tile on, which the next one ends. */
template <class T>
GPU_FN void sm90_attend(const sm90_block &b, const CUtensorMap *map, int consumer, sm90_place &at) {
    const int thread = (int)threadIdx.x & 127,
              row = consumer * 64 + thread / 32 * 16 + thread % 32 / 4;
    const float unit = b.schedule->unit;
    float out[T::ELEMENTS];
    uint32_t weights[T::WEIGHTS];
    sm90_rows rows;
    sm90_lacks lacks = {};
    if (!sm90_next_rows(b, at))
        return;
    if (T::QUERIES == 2 && b.schedule->rotation.pairs)
        sm90_rotate_first<T>(b, at.tile, consumer);
    sm90_see<T>(b, at, row, lacks.seen);
    {
        float s[T::SCORES];
        sm90_wait(SM90_BARRIER(b, keys_full, at.keys.stage), at.keys.parity);
        sm90_products_begin();
        sm90_score<T>(s,
                      at.queries + (uint32_t)(at.tile & (T::QUERIES - 1)) * (T::QUERY_BYTES / 16),
                      at.keys_at + (uint32_t)at.keys.stage * (T::KEY_BYTES / 16));
        sm90_products_end();
        sm90_products_wait<0>();
        sm90_settle(s);
        sm90_arrive_if(SM90_BARRIER(b, keys_free, at.keys.stage), at.leads);
        sm90_arrive_if(SM90_BARRIER(b, queries_free, at.tile & 1), at.leads && at.tiles == 1);
        sm90_step(at.keys);
        sm90_take_first<T>(b, at, s, lacks, rows, weights);
    }
    sm90_rows before = rows;
    int old = -1; /* rows of the block that are summed and not stored, and what they had */
    for (;;) {
        if (old < 0 && at.n + 1 >= at.right && at.n + 1 < at.whole_end && !at.careful) {
#pragma unroll 1
            do {
                at.n++;
                sm90_whole<T>(b, at, rows, unit, weights, out);
                at.adds = 1;
            } while (at.n + 1 < at.whole_end);
        }
        /* beside or within what is seen in part, or the first tile of the next rows */
        const int lacks_some = at.careful && sm90_is_part(at), ends = at.n + 1 == at.tiles;
        sm90_seen seen[2] = {lacks.seen[0], lacks.seen[1]};
        at.n++;
        if (T::QUERIES == 1 && ends) {
            at.tile++;
            sm90_rescale<T>(out, rows);
            sm90_begin_sums<T>(b, at, weights, out);
            const int more = sm90_next_rows(b, at);
            sm90_finish_sums<T>(b, at, lacks, lacks_some, weights, out);
            if (!more)
                break;
            sm90_change_rows<T>(b, map, consumer, row, at, lacks, rows, weights, out);
            continue;
        }
        if (ends) {
            at.tile++;
            if (!sm90_next_rows(b, at))
                break;
        }
        float s[T::SCORES], minus[2];
        sm90_begin_scores<T>(b, at, s);
        const int names = old < 0; /* or while rows end */
        if (T::ORDERED && !names)
            sm90_next_in_order(consumer);
        if (old >= 0)
            sm90_end<T>(b, &b.header->tile[old % SM90_KNOWN], map, consumer, before, out);
        else
            sm90_rescale<T>(out, rows);
        sm90_begin_sums<T>(b, at, weights, out);
        if (ends)
            sm90_see<T>(b, at, row, seen);
        sm90_end_scores<T, 1>(b, at, s);
        if (T::ORDERED && names)
            sm90_next_in_order(consumer);
        before = rows;
        old = ends ? lacks.tile : -1;
        const int base = at.end - (at.n + 1) * T::KEYS;
        const int are_near = sm90_near<T>(b.cap, s);
        if (sm90_is_part(at))
            sm90_hide(s, seen, base);
        if (ends)
            sm90_begin(rows, b.schedule->lowest);
        sm90_maximum<T>(s, rows, minus, unit, b.cap);
        sm90_finish_sums<T>(b, at, lacks, lacks_some, weights, out);
        sm90_cap_part<T>(b, at, seen, base, are_near, s);
        sm90_exponentiate<T>(s, rows, minus, unit, weights);
        at.adds = !ends;
        lacks = {at.tile, base, {seen[0], seen[1]}};
    }
    if (T::QUERIES == 2) {
        if (old >= 0)
            sm90_end<T>(b, &b.header->tile[old % SM90_KNOWN], map, consumer, before, out);
        else
            sm90_rescale<T>(out, rows);
        sm90_begin_sums<T>(b, at, weights, out);
        const int was_part = at.n - 1 < at.right || at.n - 1 >= at.whole_end;
        sm90_finish_sums<T>(b, at, lacks, at.careful && was_part, weights, out);
    }
    sm90_end<T>(b, &b.header->tile[lacks.tile % SM90_KNOWN], map, consumer, rows, out);
}

/* All tiles of the block, then those that are computed again. */
template <class T>
GPU_FN void sm90_consume(const sm90_block &b, const CUtensorMap *map, int consumer) {
    sm90_place at = {};
    at.consumer = consumer;
    at.leads = threadIdx.x % 128 == 0;
    at.queries = sm90_matrix(sm90_queries<T>(b, 0) + (uint32_t)consumer * 8192, 16);
    at.keys_at = sm90_matrix(sm90_keys<T>(b, 0), 16);
    at.values_at = sm90_matrix(sm90_values<T>(b, 0), T::KEYS * 128);
    if (T::ORDERED && consumer == 1)
        sm90_next_in_order(consumer);
#pragma unroll 1
    for (int careful = 0; careful < 2; careful++) {
        sm90_attend<T>(b, map, consumer, at);
        if (at.leads) /* copies have no order, and what is computed again goes where these go */
            sm90_stores_done();
        sm90_group_barrier(consumer);
        sm90_arrive_if(SM90_BARRIER(b, all_ended, 0), at.leads && !careful);
        sm90_arrive_if(SM90_BARRIER(b, queries_free, at.tile & 1), at.leads);
        at.tile++;
        if (careful || !sm90_ends_again(b))
            break;
    }
    if (T::ORDERED && consumer == 0) /* nothing is left of the barrier */
        sm90_await_order(consumer);
}

#endif
