/* From (batch row, token) to its position on each axis: every scheme of rope_args in one place. */
#ifndef ROPEKIT_COMMON_POSITION_H
#define ROPEKIT_COMMON_POSITION_H

#include "common/math/portable.h"

#include <ropekit/backend.h>

/* Where a token stands. */
typedef struct rope_site {
    int64_t batch, token;
    int64_t sequence; /* -1: outside every packed sequence, passes through */
    int64_t index;    /* in the whole sequence, shards undone */
    int64_t shift;    /* offset of the call plus the sequence's own */
    int64_t length;   /* of the whole sequence in this call, without what came before */
    int32_t divides;  /* 0: a packed sequence that its shard does not divide */
} rope_site;

ROPE_FN int64_t rope_index_at(const rope_position_map *map, const void *array, int64_t i) {
    return map->wide ? ((const int64_t *)array)[i] : ((const int32_t *)array)[i];
}

/* Index in the whole sequence of the n-th of `local` tokens that this rank holds. */
ROPE_FN int64_t rope_unshard(const rope_position_map *map, int64_t n, int64_t local) {
    if (map->shard == ROPE_SHARD_CONTIGUOUS)
        return map->shard_rank * local + n;
    if (map->shard == ROPE_SHARD_ZIGZAG) {
        int64_t chunk = local / 2;
        return n < chunk ? map->shard_rank * chunk + n
                         : (2 * (int64_t)map->shard_size - 2 - map->shard_rank) * chunk + n;
    }
    return n;
}

/* The packed sequence that holds local token t, or -1: the last whose start is not past t. */
ROPE_FN int64_t rope_find_sequence(const rope_position_map *map, int64_t t) {
    int64_t low = 0, high = map->sequences;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (rope_index_at(map, map->cu_seqlens, middle) / map->shard_size <= t)
            low = middle + 1;
        else
            high = middle;
    }
    int64_t s = low - 1;
    if (s < 0 || t >= rope_index_at(map, map->cu_seqlens, s + 1) / map->shard_size)
        return -1;
    return s;
}

ROPE_FN rope_site rope_site_of(const rope_position_map *map, int64_t batch, int64_t token) {
    rope_site site;
    int64_t start = 0, local = map->tokens;
    site.batch = batch;
    site.token = token;
    site.sequence = batch;
    site.length = local * map->shard_size;
    site.divides = 1;
    if (map->cu_seqlens) {
        site.sequence = rope_find_sequence(map, token);
        if (site.sequence >= 0) {
            int64_t begin = rope_index_at(map, map->cu_seqlens, site.sequence);
            int64_t end = rope_index_at(map, map->cu_seqlens, site.sequence + 1);
            site.length = rope_difference(end, begin);
            start = begin / map->shard_size;
            local = site.length / map->shard_size;
            site.divides = start * map->shard_size == begin &&
                           local * map->shard_size == site.length &&
                           (map->shard != ROPE_SHARD_ZIGZAG || local % 2 == 0);
        }
    }
    site.index = rope_unshard(map, rope_difference(token, start), local);
    site.shift = map->offset;
    if (map->offsets && site.sequence >= 0)
        site.shift = rope_sum(site.shift, rope_index_at(map, map->offsets, site.sequence));
    return site;
}

ROPE_FN int64_t rope_position_of(const rope_position_map *map, const rope_site *site, int axis) {
    if (!map->ids)
        return rope_sum(site->index, site->shift);
    int64_t at = axis * map->id_stride[0] + site->batch * map->id_stride[1] +
                 site->token * map->id_stride[2];
    return rope_sum(rope_index_at(map, map->ids, at), site->shift);
}

/* Which frequency list the token's sequence takes. */
ROPE_FN int rope_set_of(const rope_problem *problem, const rope_position_map *map,
                        const rope_site *site) {
    if (problem->frequency_sets < 2)
        return 0;
    int64_t length = map->lengths ? rope_index_at(map, map->lengths, site->sequence)
                                  : rope_sum(site->length, site->shift);
    return length > problem->long_from;
}

#endif
