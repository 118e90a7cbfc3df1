/* Where a consumer is among tiles of keys, and the products that it begins and ends there. */
#ifndef ROPEKIT_GPU_ATTENTION_SM90_PIPELINE_H
#define ROPEKIT_GPU_ATTENTION_SM90_PIPELINE_H

#include "backends/gpu/attention/sm90/softmax.h"
#include "backends/gpu/attention/sm90/tile.h"

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
    int consumer;                         /* 0 or 1 */
    int whole;                            /* behind the tile's rows are no others */
    int leads;                            /* this thread arrives for its group */
    int adds;                             /* 0: no product was added to these rows */
    uint32_t queries, keys_at, values_at; /* stage 0, as products are told of it */
};

GPU_FN sm90_tile *sm90_rows_at(const sm90_block &b, int tile) {
    return &b.header->tile[tile % SM90_KNOWN];
}

GPU_FN int sm90_is_part(const sm90_place &at) {
    return at.n < at.right || at.n >= at.whole_end;
}

/* Begins the product of queries and the next tile of keys. ORDERED: in order. */
template <class T, int ORDERED = T::ORDERED>
GPU_FN void sm90_begin_scores(const sm90_block &b, const sm90_place &at, float (&s)[T::SCORES]) {
    sm90_wait(SM90_BARRIER(b, keys_full, at.keys.stage), at.keys.parity);
    if (ORDERED)
        sm90_await_order<T>(at.consumer);
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

/* Ends the product of queries and keys; LEFT: groups of products that were begun behind it. Of
 * three consumers the next one waits the longest, so it is named at once. */
template <class T, int LEFT, int ORDERED = T::ORDERED>
GPU_FN void sm90_end_scores(const sm90_block &b, sm90_place &at, float (&s)[T::SCORES]) {
    sm90_products_wait<LEFT>();
    sm90_settle(s);
    if (T::TALL)
        sm90_next_in_order<T>(at.consumer);
    sm90_arrive_if(SM90_BARRIER(b, keys_free, at.keys.stage), at.leads);
    sm90_arrive_if(SM90_BARRIER(b, queries_free, at.tile & 1), at.leads && at.n + 1 == at.tiles);
    sm90_step(at.keys);
    if (ORDERED && !T::TALL)
        sm90_next_in_order<T>(at.consumer);
}

template <class T>
GPU_FN void sm90_end_sums(const sm90_block &b, sm90_place &at, float (&out)[T::ELEMENTS]) {
    sm90_products_wait<0>();
    sm90_settle(out);
    sm90_arrive_if(SM90_BARRIER(b, values_free, at.values.stage), at.leads);
    sm90_step(at.values);
}

#endif
