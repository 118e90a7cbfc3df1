/* Spans of keys: which a sequence of few rows and many keys has, and how their sums are joined. */
#ifndef ROPEKIT_GPU_ATTENTION_SM90_SPANS_H
#define ROPEKIT_GPU_ATTENTION_SM90_SPANS_H

#include "backends/gpu/attention/sm90/tile.h"

/* Leaves a tile one span of its keys, 0 where it has not so many. n: its number among `tiles` of
 * the sequence, by which alone, and by its keys, there are spans. */
GPU_FN int sm90_leave_span(const sm90_block &b, int64_t sequence, int tiles, int n, int span,
                           sm90_tile *t) {
    const int blocks = b.spans->blocks,
              spans = max(min(min(sm90_over_few(blocks, min(tiles, blocks + 1)),
                                  t->tiles / SM90_SPAN_TILES),
                              b.spans->most),
                          1);
    if (span >= spans) {
        t->head = -1;
        return 0;
    }
    const sm90_divisor over = {spans, b.spans->per[spans]};
    const int begin = sm90_over(over, span * t->tiles),
              end = sm90_over(over, (span + 1) * t->tiles),
              right = min(max(t->right - begin, 0), end - begin),
              whole_end = min(max(t->right + t->whole - begin, 0), end - begin);
    t->first += t->tiles - end;
    t->tiles = end - begin;
    t->right = right;
    t->whole = whole_end - right;
    t->span = span;
    t->spans = spans;
    t->slot = b.spans->arrived ? (int)sequence * blocks + n * spans : -1;
    return 1;
}

/* --- sums --- */

/* A thread's two rows as they end: logits' maxima, sums of all weights, and what elements are
 * multiplied by, which is 0 where a row sees no key. */
struct sm90_ended {
    float most[2], sum[2], factor[2];
};

/* What a thread has of some rows, in memory: vectors of a group's threads lie side by side. */
template <class T> GPU_FN float4 *sm90_span_at(const sm90_block &b, int slot, int consumer) {
    enum { VECTORS = T::ELEMENTS / 4 + 1 };
    return (float4 *)(void *)b.spans->sums +
           (int64_t)gpu_opaque((slot * T::CONSUMERS + consumer) * VECTORS * 128) +
           gpu_opaque((int)threadIdx.x) % 128;
}

template <class T>
GPU_FN void sm90_leave_sums(float4 *to, const sm90_ended &ended, const float (&out)[T::ELEMENTS]) {
#pragma unroll
    for (int i = 0; i < T::ELEMENTS / 4; i++)
        __stcg(to + i * 128, {out[4 * i], out[4 * i + 1], out[4 * i + 2], out[4 * i + 3]});
    __stcg(to + T::ELEMENTS / 4 * 128, {ended.most[0], ended.most[1], ended.sum[0], ended.sum[1]});
}

/* Adds what `count` other spans have, in order: whichever are in memory, the bits are the same.
 * step: from a span to the next. */
template <class T>
GPU_FN void sm90_add_sums(const float4 *from, int step, int count, sm90_ended &ended,
                          float (&out)[T::ELEMENTS]) {
#pragma unroll 1
    for (; count > 0; count--, from += step) {
        float4 x[T::ELEMENTS / 4 + 1]; /* all are on their way before the first is waited for */
#pragma unroll
        for (int i = 0; i <= T::ELEMENTS / 4; i++)
            x[i] = __ldcg(from + i * 128);
        const float4 ends = x[T::ELEMENTS / 4];
        const float most[2] = {fmaxf(ended.most[0], ends.x), fmaxf(ended.most[1], ends.y)},
                    own[2] = {sm90_exp2(ended.most[0] - most[0]),
                              sm90_exp2(ended.most[1] - most[1])},
                    other[2] = {sm90_exp2(ends.x - most[0]), sm90_exp2(ends.y - most[1])};
        ended.sum[0] = ended.sum[0] * own[0] + ends.z * other[0];
        ended.sum[1] = ended.sum[1] * own[1] + ends.w * other[1];
        ended.most[0] = most[0], ended.most[1] = most[1];
#pragma unroll
        for (int i = 0; i < T::ELEMENTS / 4; i++) {
            out[4 * i] = out[4 * i] * own[0] + x[i].x * other[0];
            out[4 * i + 1] = out[4 * i + 1] * own[0] + x[i].y * other[0];
            out[4 * i + 2] = out[4 * i + 2] * own[1] + x[i].z * other[1];
            out[4 * i + 3] = out[4 * i + 3] * own[1] + x[i].w * other[1];
        }
    }
}

/* Nothing, to which the first span adds what it has. */
template <class T> GPU_FN void sm90_clear_sums(sm90_ended &ended, float (&out)[T::ELEMENTS]) {
#pragma unroll
    for (int i = 0; i < T::ELEMENTS; i++)
        out[i] = 0.0f;
    ended.most[0] = ended.most[1] = -INFINITY;
    ended.sum[0] = ended.sum[1] = 0.0f;
}

/* Whether a consumer's span is the last of its tile to end: others' sums are then known. */
template <class T> GPU_FN int sm90_is_last(const sm90_block &b, const sm90_tile *t, int consumer) {
    uint32_t *arrived = b.spans->arrived + gpu_opaque(t->number * T::CONSUMERS + consumer);
    __threadfence();
    sm90_group_barrier<T>(consumer);
    if (threadIdx.x % 128 == 0) {
        const int is_last = atomicAdd(arrived, 1u) + 1 == (uint32_t)t->spans;
        b.header->last[consumer] = is_last;
        if (is_last)
            *arrived = 0; /* for the next launch */
    }
    sm90_group_barrier<T>(consumer);
    __threadfence();
    return *(volatile int32_t *)&b.header->last[consumer];
}

/* Joins spans in order. 1: rows are complete. */
template <class T>
GPU_FN int sm90_join_spans(const sm90_block &b, const sm90_tile *t, int consumer, sm90_ended &ended,
                           float (&out)[T::ELEMENTS]) {
    const int spans = t->spans, span = t->span, slot = t->slot, is_spread = slot >= 0,
              own = gpu_opaque(b.spans->own + (int)blockIdx.x);
    if (spans == 1)
        return 1;
    if (is_spread) {
        sm90_leave_sums<T>(sm90_span_at<T>(b, slot + span, consumer), ended, out);
        if (!sm90_is_last<T>(b, t, consumer))
            return 0;
        sm90_clear_sums<T>(ended, out);
    }
    sm90_add_sums<T>(sm90_span_at<T>(b, is_spread ? slot : own, consumer),
                     T::CONSUMERS * (T::ELEMENTS / 4 + 1) * 128, is_spread ? spans : span > 0,
                     ended, out);
    if (!is_spread && span + 1 < spans) {
        sm90_leave_sums<T>(sm90_span_at<T>(b, own, consumer), ended, out);
        return 0;
    }
#pragma unroll
    for (int h = 0; h < 2; h++)
        ended.factor[h] = ended.sum[h] == 0.0f ? 0.0f : sm90_reciprocal(ended.sum[h]);
    return 1;
}

#endif
