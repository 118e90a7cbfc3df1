/* Elements of queries, keys and values, wherever they lie. */
#ifndef ROPEKIT_GPU_ATTENTION_ELEMENT_H
#define ROPEKIT_GPU_ATTENTION_ELEMENT_H

#include "common/gpu/attention/sequence.h"
#include "common/math/fp8.h"

/* A head of a key or a value: elements from the tensor's element 0 to its own, and what those of a
 * cache are multiplied by. */
struct gpu_attention_head {
    int64_t at;
    float scale;
};

/* Where a rotated key lies among those of its row. */
GPU_FN int64_t gpu_rotated_key(const rope_attention_problem *p, const rope_attention_sequence *s,
                               int64_t j) {
    return s->k_first + (p->ring ? j % p->ring : j);
}

/* Rotated elements are read where they were written. */
GPU_FN bool gpu_is_cached(const rope_append_operand *o) {
    return !o->out && !o->in;
}

/* Head `head` of the key at a place of a cache that has its page. A scale that is none raises the
 * flag. */
GPU_FN gpu_attention_head gpu_place_head(const rope_attention_call *call,
                                         const rope_append_operand *o,
                                         const rope_append_steps *steps, const rope_place &place,
                                         int64_t head) {
    const int64_t *stride = o->scale_stride;
    gpu_attention_head h = {place.page * o->cache_stride[0] + place.slot * o->cache_stride[1] +
                                head * o->cache_stride[2],
                            1};
    if (steps->scale) {
        h.scale = o->scale[place.page * stride[0] + place.slot * stride[1] + head * stride[2]];
        if (!(h.scale > 0 && h.scale <= 0x1.fffffep+127f))
            gpu_attention_flag(call);
    }
    return h;
}

/* The same of key j. */
GPU_FN gpu_attention_head gpu_cached_head(
    const rope_attention_problem *p, const rope_attention_call *call, const rope_append_operand *o,
    const rope_append_steps *steps, const rope_attention_sequence *s, int64_t j, int64_t head) {
    return gpu_place_head(call, o, steps, rope_key_place(p, call, s, j), head);
}

/* Elements to head `head` of key j, or of its slot where keys lie rotated, in a tensor that is no
 * cache. */
GPU_FN int64_t gpu_row_head(const rope_append_operand *o, const rope_attention_sequence *s,
                            int64_t j, int64_t slot, int64_t head) {
    const int64_t *stride = o->out ? o->out_stride : o->in_stride;
    return s->k_row * stride[0] + (s->k_first + (o->out ? slot : j)) * stride[1] + head * stride[2];
}

/* Head `head` of key j. */
GPU_FN gpu_attention_head gpu_attention_head_of(
    const rope_attention_problem *p, const rope_attention_call *call, const rope_append_operand *o,
    const rope_append_steps *steps, const rope_attention_sequence *s, int64_t j, int64_t head) {
    if (gpu_is_cached(o))
        return gpu_cached_head(p, call, o, steps, s, j, head);
    return {gpu_row_head(o, s, j, p->ring ? j % p->ring : j, head), 1};
}

/* A key from which others count: its slot among those of its sequence, and the page where that
 * lies. */
struct gpu_key_origin {
    int64_t key, slot, page, within;
};

GPU_FN gpu_key_origin gpu_key_origin_of(const rope_attention_problem *p, int64_t key) {
    const int64_t slot = p->ring ? key % p->ring : key;
    if (!p->cache)
        return {key, slot, 0, 0};
    return {key, slot, slot / p->page_size, slot % p->page_size};
}

/* Head `head` of key `n` from an origin on, n >= 0: without a division of 64 bits, which is a call
 * and costs a loop its registers. */
GPU_FN gpu_attention_head gpu_head_from(const rope_attention_problem *p,
                                        const rope_attention_call *call,
                                        const rope_append_operand *o,
                                        const rope_append_steps *steps,
                                        const rope_attention_sequence *s,
                                        const gpu_key_origin &from, int32_t n, int64_t head) {
    const int64_t ring = p->ring, size = p->page_size;
    int64_t slot = from.slot + n, page = from.page, within = from.within + n;
    if (ring && slot >= ring) {
        slot = ring >> 31 ? slot - ring : (int64_t)((uint32_t)slot % (uint32_t)ring);
        page = 0;
        within = slot;
    }
    if (!gpu_is_cached(o))
        return {gpu_row_head(o, s, from.key + n, slot, head), 1};
    const int64_t pages = size >> 31 ? within >= size : (uint32_t)within / (uint32_t)size;
    rope_place place = {ROPE_PLACE_GIVEN, slot, s->index, within - pages * size};
    if (p->cache == ROPE_CACHE_TABLE)
        place.page = rope_index_of(p->table_wide, call->block_table,
                                   s->index * call->table_stride[0] +
                                       (page + pages) * call->table_stride[1]);
    return gpu_place_head(call, o, steps, place, head);
}

/* Element i of a head of a cache, as an element of dtype. */
template <int DTYPE>
GPU_FN float gpu_cached_element(const rope_append_operand *o, const rope_append_steps *s,
                                const gpu_attention_head &h, int i) {
    const int64_t at = s->dim_block == s->head_dim ? h.at + i * o->cache_stride[4]
                                                   : h.at + i / s->dim_block * o->cache_stride[3] +
                                                         i % s->dim_block * o->cache_stride[4];
    float x;
    if (s->store_dtype >= ROPE_F8E4M3)
        x = rope_from_8bit(s->store_dtype, ((const uint8_t *)o->cache)[at]) * h.scale;
    else
        x = rope_table_entry(s->store_dtype, o->cache, at);
    return gpu_widen<DTYPE>(gpu_narrow<DTYPE>(x));
}

/* Element i of a head of a key or a value. */
template <int DTYPE>
GPU_FN float gpu_attention_element(const rope_append_operand *o, const rope_append_steps *s,
                                   const gpu_attention_head &h, int i) {
    typedef typename gpu_element<DTYPE>::bits bits;
    if (gpu_is_cached(o))
        return gpu_cached_element<DTYPE>(o, s, h, i);
    if (o->out)
        return gpu_widen<DTYPE>(((const bits *)o->out)[h.at + i * o->out_stride[3]]);
    return gpu_widen<DTYPE>(((const bits *)o->in)[h.at + i * o->in_stride[3]]);
}

/* Element i of a head of query i of a sequence. */
template <int DTYPE>
GPU_FN float gpu_query_element(const rope_operand *o, const rope_attention_sequence *s, int64_t n,
                               int64_t head, int i) {
    typedef typename gpu_element<DTYPE>::bits bits;
    const int64_t *stride = o->out ? o->out_stride : o->in_stride;
    const bits *x = (const bits *)(o->out ? o->out : o->in);
    return gpu_widen<DTYPE>(
        x[s->q_row * stride[0] + (s->q_first + n) * stride[1] + head * stride[2] + i * stride[3]]);
}

#endif
