/* From a token to its place in a KV cache: every mapping of rope_append_args in one place. */
#ifndef ROPEKIT_COMMON_CACHE_H
#define ROPEKIT_COMMON_CACHE_H

#include "common/math/position.h"

enum {
    ROPE_PLACE_NONE = 0,  /* the token is not cached */
    ROPE_PLACE_GIVEN = 1, /* it is, at page and slot */
    ROPE_PLACE_INDEX = 2, /* its sequence has no page for its index */
    ROPE_PLACE_PAGE = 3   /* the cache does not have its page */
};

typedef struct rope_place {
    int32_t status;
    int64_t index, page, slot;
} rope_place;

ROPE_FN int64_t rope_index_of(int32_t wide, const void *array, int64_t i) {
    return wide ? ((const int64_t *)array)[i] : ((const int32_t *)array)[i];
}

/* Index behind the last token that the call has of a sequence. */
ROPE_FN int64_t rope_call_end(const rope_position_map *map, const rope_site *site) {
    if (!map->cu_seqlens ||
        rope_index_at(map, map->cu_seqlens, site->sequence + 1) / map->shard_size <= map->tokens)
        return site->length;
    return rope_sum(rope_site_of(map, site->batch, map->tokens - 1).index, 1);
}

/* Index in the cache of a token of a sequence. */
ROPE_FN int64_t rope_cache_index(const rope_append_call *call, const rope_site *site) {
    const rope_position_map *map = &call->rope.position;
    return rope_sum(site->index,
                    call->starts ? rope_index_at(map, call->starts, site->sequence) : site->shift);
}

/* The page of an index of a sequence, which has one for it. */
ROPE_FN int64_t rope_page_of(const rope_append_problem *problem, const rope_append_call *call,
                             int64_t sequence, int64_t index) {
    if (problem->cache == ROPE_CACHE_SEQUENCE)
        return sequence;
    return rope_index_of(problem->table_wide, call->block_table,
                         sequence * call->table_stride[0] +
                             index / problem->page_size * call->table_stride[1]);
}

ROPE_FN rope_place rope_place_of(const rope_append_problem *problem, const rope_append_call *call,
                                 const rope_site *site) {
    rope_place place = {ROPE_PLACE_NONE, 0, 0, 0};
    if (call->pages == 0 || site->sequence < 0)
        return place;
    if (problem->cache == ROPE_CACHE_SLOTS) {
        place.index =
            rope_index_of(problem->slot_wide, call->slots,
                          site->batch * call->slot_stride[0] + site->token * call->slot_stride[1]);
        if (place.index < 0)
            return place;
        place.page = place.index / problem->page_size;
    } else {
        const int64_t pages = problem->cache == ROPE_CACHE_TABLE ? call->table_pages : 1;
        if (problem->ring &&
            rope_difference(rope_call_end(&call->rope.position, site), site->index) > problem->ring)
            return place;
        place.index = rope_cache_index(call, site);
        place.status = ROPE_PLACE_INDEX;
        if (place.index < 0 || !site->divides)
            return place;
        if (problem->ring)
            place.index %= problem->ring;
        if (place.index / problem->page_size >= pages)
            return place;
        place.page = rope_page_of(problem, call, site->sequence, place.index);
    }
    place.slot = place.index % problem->page_size;
    place.status = place.page >= 0 && place.page < call->pages ? ROPE_PLACE_GIVEN : ROPE_PLACE_PAGE;
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
