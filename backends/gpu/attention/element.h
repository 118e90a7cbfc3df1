/* Elements of queries, keys and values, wherever they lie. */
#ifndef ROPEKIT_GPU_ATTENTION_ELEMENT_H
#define ROPEKIT_GPU_ATTENTION_ELEMENT_H

#include "backends/gpu/attention/sequence.h"
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

/* The scale of a cached head, or 1. A scale that is no positive finite number raises the flag. */
GPU_FN float gpu_place_scale(const rope_attention_call *call, const rope_append_operand *o,
                             const rope_append_steps *steps, int64_t page, int64_t slot,
                             int64_t head) {
    if (!steps->scale)
        return 1;
    const int64_t *stride = o->scale_stride;
    const float scale = o->scale[page * stride[0] + slot * stride[1] + head * stride[2]];
    if (!(scale > 0 && scale <= 0x1.fffffep+127f))
        gpu_attention_flag(call);
    return scale;
}

/* Head `head` of key j in a cache that has its page. */
GPU_FN gpu_attention_head gpu_cached_head(
    const rope_attention_problem *p, const rope_attention_call *call, const rope_append_operand *o,
    const rope_append_steps *steps, const rope_attention_sequence *s, int64_t j, int64_t head) {
    const rope_place place = rope_key_place(p, call, s, j);
    const int64_t *stride = o->cache_stride;
    return {place.page * stride[0] + place.slot * stride[1] + head * stride[2],
            gpu_place_scale(call, o, steps, place.page, place.slot, head)};
}

/* Head `head` of key j. */
GPU_FN gpu_attention_head gpu_attention_head_of(
    const rope_attention_problem *p, const rope_attention_call *call, const rope_append_operand *o,
    const rope_append_steps *steps, const rope_attention_sequence *s, int64_t j, int64_t head) {
    if (gpu_is_cached(o))
        return gpu_cached_head(p, call, o, steps, s, j, head);
    const int64_t *stride = o->out ? o->out_stride : o->in_stride;
    const int64_t key = o->out ? gpu_rotated_key(p, s, j) : s->k_first + j;
    return {s->k_row * stride[0] + key * stride[1] + head * stride[2], 1};
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
    const auto x = gpu_global((const bits *)(o->out ? o->out : o->in));
    return gpu_widen<DTYPE>(
        x[s->q_row * stride[0] + (s->q_first + n) * stride[1] + head * stride[2] + i * stride[3]]);
}

#endif
