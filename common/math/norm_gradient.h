/*
 * The gradient of a norm, whose bits depend on nothing but elements and the order of tokens. With
 * n elements x, d = x - mean (layer) or x, r the reciprocal, y = d r, g the gradient of what the
 * norm made and h = g w the gradient of y:
 *
 *     gradient of x = r (h - mean(h) - y r mean(h d)), where RMS has no mean(h)
 *     gradient of w = sum of g y, over tokens, and over heads that share w
 *
 * Where the forward rounds y to dtype ahead of w, h is rounded to dtype too, and y in the gradient
 * of w. Sums over n are trees as those of norm.h; docs/numerics.md has the sum over tokens.
 */
#ifndef ROPEKIT_COMMON_NORM_GRADIENT_H
#define ROPEKIT_COMMON_NORM_GRADIENT_H

#include "common/math/norm.h"
#include "common/math/position.h"

/* Rows, each a head of a token, whose products for a weight are one chain of fused operations. */
enum { ROPE_GRADIENT_CHAIN = 8 };

/* A norm as applied, and what its sums take from a gradient: mean(h), and r mean(h d). */
typedef struct rope_norm_slopes {
    rope_norm_values of;
    float shift, slope;
} rope_norm_slopes;

/* d of an element. */
ROPE_FN float rope_norm_deviation(const rope_append_steps *s, float mean, float x) {
    return s->norm == ROPE_NORM_LAYER ? x - mean : x;
}

/* h of an element; w: rope_norm_weight_of, read where there is a weight. */
ROPE_FN float rope_norm_weighted(const rope_append_steps *s, int32_t dtype, float g, float w) {
    if (s->weight == 0)
        return g;
    return s->rounding == ROPE_NORM_ROUND_TWICE ? rope_round_to(dtype, g * w) : g * w;
}

/* From the sums of h d and of h, the latter 0 for RMS. */
ROPE_FN rope_norm_slopes rope_norm_slopes_of(rope_norm_values v, float products, float gradients,
                                             int64_t n) {
    rope_norm_slopes s;
    s.of = v;
    s.shift = rope_norm_mean(gradients, n);
    s.slope = rope_norm_mean(products, n) * v.reciprocal;
    return s;
}

/* Node of two elements in a sum of h d. */
ROPE_FN float rope_norm_products(float h0, float d0, float h1, float d1) {
    return fmaf(h1, d1, h0 * d0);
}

/* The gradient of an element; the caller rounds to dtype. */
ROPE_FN float rope_norm_gradient(const rope_append_steps *s, rope_norm_slopes v, float d, float h) {
    const float y = d * v.of.reciprocal;
    return fmaf(-y, v.slope, s->norm == ROPE_NORM_LAYER ? h - v.shift : h) * v.of.reciprocal;
}

/* What multiplies the weight of an element. */
ROPE_FN float rope_norm_ahead_of_weight(const rope_append_steps *s, int32_t dtype,
                                        rope_norm_slopes v, float d) {
    const float y = d * v.of.reciprocal;
    return s->rounding == ROPE_NORM_ROUND_TWICE ? rope_round_to(dtype, y) : y;
}

/* Tokens of a block: where heads share weights, the power of two of them that makes a chain. */
ROPE_FN int64_t rope_gradient_block(int64_t heads, int64_t weight_stride) {
    int64_t tokens = ROPE_GRADIENT_CHAIN, most = 1; /* heads of a chain of so many tokens */
    while (weight_stride == 0 && tokens > 1 && heads > most) {
        tokens /= 2;
        most *= 2;
    }
    return tokens;
}

/* Whether a sequence has as many tokens as are used of it. */
ROPE_FN int rope_gradient_has(const rope_position_map *map, const void *lengths, int64_t sequence) {
    const int64_t most = map->cu_seqlens
                             ? rope_difference(rope_index_at(map, map->cu_seqlens, sequence + 1),
                                               rope_index_at(map, map->cu_seqlens, sequence))
                             : map->tokens,
                  used = lengths ? rope_index_at(map, lengths, sequence) : most;
    return used >= 0 && used <= most;
}

/* Whether a call differentiates a token. */
ROPE_FN int rope_gradient_takes(const rope_append_backward_call *call, int64_t batch,
                                int64_t token) {
    const rope_position_map *map = &call->forward.rope.position;
    if (!call->attended)
        return 1;
    const rope_site site = rope_site_of(map, batch, token);
    return site.sequence >= 0 && rope_gradient_has(map, call->lengths, site.sequence) &&
           rope_gradient_has(&call->other, call->other_lengths, site.sequence) &&
           (!call->lengths || site.index < rope_index_at(map, call->lengths, site.sequence));
}

#endif
