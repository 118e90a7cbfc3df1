/* From a token to its place in a KV cache: every mapping of rope_append_args in one place. */
#ifndef ROPEKIT_COMMON_CACHE_H
#define ROPEKIT_COMMON_CACHE_H

#include "common/math/position.h"

enum {
    ROPE_PLACE_NONE = 0,  /* the token is not cached */
    ROPE_PLACE_GIVEN = 1, /* it is, at page and slot */
    ROPE_PLACE_FAILS = 2  /* it should be, and its page is not there */
};

typedef struct rope_place {
    int32_t status;
    int64_t page, slot;
} rope_place;

ROPE_FN int64_t rope_index_of(int32_t wide, const void *array, int64_t i) {
    return wide ? ((const int64_t *)array)[i] : ((const int32_t *)array)[i];
}

/* The page of the n-th of a sequence's pages, which the cache may not have. */
ROPE_FN int64_t rope_page_of(const rope_append_problem *problem, const rope_append_call *call,
                             int64_t sequence, int64_t n) {
    if (problem->cache == ROPE_CACHE_SEQUENCE)
        return n == 0 ? sequence : -1;
    return n < call->table_pages
               ? rope_index_of(problem->table_wide, call->block_table,
                               sequence * call->table_stride[0] + n * call->table_stride[1])
               : -1;
}

/* Index in the cache of a token of a sequence. */
ROPE_FN int64_t rope_cache_index(const rope_append_call *call, const rope_site *site) {
    const rope_position_map *map = &call->rope.position;
    return rope_sum(site->index,
                    call->starts ? rope_index_at(map, call->starts, site->sequence) : site->shift);
}

ROPE_FN rope_place rope_place_of(const rope_append_problem *problem, const rope_append_call *call,
                                 const rope_site *site) {
    rope_place place = {ROPE_PLACE_NONE, 0, 0};
    int64_t n;
    if (problem->cache == ROPE_CACHE_SLOTS) {
        n = rope_index_of(problem->slot_wide, call->slots,
                          site->batch * call->slot_stride[0] + site->token * call->slot_stride[1]);
        if (n < 0)
            return place;
        place.page = n / problem->page_size;
    } else {
        if (problem->cache == 0 || site->sequence < 0)
            return place;
        n = rope_cache_index(call, site);
        if (problem->ring && rope_difference(site->length, site->index) > problem->ring)
            return place;
        place.status = ROPE_PLACE_FAILS;
        if (n < 0 || !site->divides)
            return place;
        n = problem->ring ? n % problem->ring : n;
        place.page = rope_page_of(problem, call, site->sequence, n / problem->page_size);
    }
    place.slot = n % problem->page_size;
    place.status =
        place.page >= 0 && place.page < call->pages ? ROPE_PLACE_GIVEN : ROPE_PLACE_FAILS;
    return place;
}

/* Elements from element 0 of the cache to element i of a head there. */
ROPE_FN int64_t rope_cache_at(const rope_append_operand *t, const rope_append_steps *s,
                              const rope_place *place, int64_t head, int64_t i) {
    return place->page * t->cache_stride[0] + place->slot * t->cache_stride[1] +
           head * t->cache_stride[2] + i / s->dim_block * t->cache_stride[3] +
           i % s->dim_block * t->cache_stride[4];
}

#endif
