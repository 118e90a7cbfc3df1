/*
 * Where the keys of a block lie, counted from its first one: without a division of 64 bits, which
 * is a call and costs a loop its registers.
 */
#ifndef ROPEKIT_GPU_ATTENTION_KEY_ADDRESS_H
#define ROPEKIT_GPU_ATTENTION_KEY_ADDRESS_H

#include "backends/gpu/attention/element.h"

/* A key from which others count: its slot among those of its sequence, and the page where that
 * lies. */
struct gpu_key_origin {
    int64_t key, slot, page, within;
};

/* Page and slot of a key in a cache, or 0 and its token in a tensor. */
struct gpu_key_place {
    int64_t page, slot;
};

/* A tensor's element 0, elements from it to a head of place 0, and from a place to the next. */
struct gpu_key_source {
    const char *data;
    int64_t first, page, slot;
};

GPU_FN gpu_key_origin gpu_key_origin_of(const rope_attention_problem *p, int64_t key) {
    const int64_t slot = p->ring ? key % p->ring : key;
    if (!p->cache)
        return {key, slot, 0, 0};
    return {key, slot, slot / p->page_size, slot % p->page_size};
}

GPU_FN gpu_key_source gpu_key_source_of(const rope_append_operand *o,
                                        const rope_attention_sequence *s, int64_t head) {
    if (gpu_is_cached(o))
        return {(const char *)o->cache, head * o->cache_stride[2], o->cache_stride[0],
                o->cache_stride[1]};
    const int64_t *stride = o->out ? o->out_stride : o->in_stride;
    return {(const char *)(o->out ? o->out : o->in),
            s->k_row * stride[0] + s->k_first * stride[1] + head * stride[2], 0, stride[1]};
}

GPU_FN int64_t gpu_place_at(const gpu_key_source &from, const gpu_key_place &place) {
    return from.first + place.page * from.page + place.slot * from.slot;
}

/* Key `n` from an origin on, n >= 0, where keys lie rotated: its slot. */
GPU_FN int64_t gpu_slot_from(const rope_attention_problem *p, const gpu_key_origin &from,
                             int32_t n) {
    const int64_t slot = from.slot + n;
    if (!p->ring || slot < p->ring)
        return slot;
    return p->ring >> 31 ? slot - p->ring : (int64_t)((uint32_t)slot % (uint32_t)p->ring);
}

/* The place of such a key in a cache. */
GPU_FN gpu_key_place gpu_cached_from(const rope_attention_problem *p,
                                     const rope_attention_call *call,
                                     const rope_attention_sequence *s, const gpu_key_origin &from,
                                     int32_t n) {
    const int64_t slot = gpu_slot_from(p, from, n), size = p->page_size;
    const bool wraps = slot != from.slot + n;
    const int64_t within = wraps ? slot : from.within + n;
    const int64_t pages = size >> 31 ? within >= size : (uint32_t)within / (uint32_t)size;
    gpu_key_place place = {s->index, within - pages * size};
    if (p->cache == ROPE_CACHE_TABLE)
        place.page = rope_index_of(p->table_wide, call->block_table,
                                   s->index * call->table_stride[0] +
                                       (wraps ? pages : from.page + pages) * call->table_stride[1]);
    return place;
}

/* The place of such a key of an operand. */
GPU_FN gpu_key_place gpu_place_from(const rope_attention_problem *p,
                                    const rope_attention_call *call, const rope_append_operand *o,
                                    const rope_attention_sequence *s, const gpu_key_origin &from,
                                    int32_t n) {
    if (gpu_is_cached(o))
        return gpu_cached_from(p, call, s, from, n);
    return {0, o->out ? gpu_slot_from(p, from, n) : from.key + n};
}

#endif
