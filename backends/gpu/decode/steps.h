/* What a head of a new token goes through ahead of its product or of the cache, in words of two
 * elements. The arithmetic is that of "append". */
#ifndef ROPEKIT_GPU_DECODE_STEPS_H
#define ROPEKIT_GPU_DECODE_STEPS_H

#include "backends/gpu/decode/kernels.h"
#include "backends/gpu/rope/rotate.h"
#include "common/math/coefficients.h"
#include "common/math/norm.h"

/* A lane's elements of a head, two of each half: S::LANES lanes have its S::DIM. */
struct decode_words {
    uint32_t low, high;
};

template <int DTYPE>
GPU_FN uint32_t decode_normalize_word(int flags, float by, uint32_t x, uint32_t weight) {
    const float2 two = gpu_split<DTYPE>(x), w = gpu_split<DTYPE>(weight);
    float2 y = {two.x * by, two.y * by};
    if (flags & GPU_STEP_NORM_TWICE)
        y = gpu_round<DTYPE>(y.x, y.y);
    const bool plus = flags & GPU_STEP_NORM_ONE_PLUS;
    return gpu_join<DTYPE>(y.x * (plus ? 1.0f + w.x : w.x), y.y * (plus ? 1.0f + w.y : w.y));
}

/* By the root of the mean square, which is summed in the tree of common/math/norm.h. */
template <int DTYPE, class S>
GPU_FN decode_words decode_normalize(int flags, float eps, decode_words weight, decode_words x) {
    const float2 low = gpu_split<DTYPE>(x.low), high = gpu_split<DTYPE>(x.high);
    float node[2] = {rope_norm_squares(low.x, low.y), rope_norm_squares(high.x, high.y)};
#pragma unroll
    for (int bit = 1; bit < S::LANES; bit *= 2) {
        node[0] += gpu_shuffle_xor(node[0], bit);
        node[1] += gpu_shuffle_xor(node[1], bit);
    }
    const float by = rope_norm_reciprocal(node[0] + node[1], S::DIM, eps);
    return {decode_normalize_word<DTYPE>(flags, by, x.low, weight.low),
            decode_normalize_word<DTYPE>(flags, by, x.high, weight.high)};
}

GPU_FN rope_coefficients decode_angle(int flags, float factor, int64_t position, uint64_t turns) {
    const rope_cos_sin a = rope_cos_sin_turns((uint64_t)position * turns);
    const float cos = a.c * factor, sin = a.s * (flags & GPU_STEP_NEGATIVE ? -factor : factor);
    return {cos, sin, cos, sin};
}

GPU_FN int64_t decode_entry(const gpu_decode_table &t, int row, int64_t position, int pair) {
    return row * t.row + position * t.position + pair * t.pair;
}

/* As rope_tabled() of a table of half width. */
template <int DTYPE>
GPU_FN rope_coefficients decode_tabled(const gpu_decode_table &t, int row, int64_t position,
                                       int pair) {
    const int64_t at = decode_entry(t, row, position, pair);
    const float cos = rope_table_entry(DTYPE, t.cos, at), sin = rope_table_entry(DTYPE, t.sin, at);
    return {cos, sin, cos, sin};
}

template <int DTYPE>
GPU_FN rope_pair decode_rotate_pair(int model, rope_pair x, const rope_coefficients &m) {
    if (!model)
        return rope_rotate(x, m);
    const float2 a = gpu_round<DTYPE>(m.c1, m.s1);
    return gpu_rotate_model<DTYPE>(x, {a.x, a.y, a.x, a.y});
}

/* joined, then_joined: pairs are neighbours, as read and as written. model: GPU_STEP_MODEL. */
template <int DTYPE>
GPU_FN decode_words decode_rotate(int joined, int then_joined, int model,
                                  const rope_coefficients (&m)[2], decode_words x) {
    const float2 low = gpu_split<DTYPE>(x.low), high = gpu_split<DTYPE>(x.high);
    const rope_pair one = decode_rotate_pair<DTYPE>(model, {low.x, joined ? low.y : high.x}, m[0]),
                    two = decode_rotate_pair<DTYPE>(model, {joined ? high.x : low.y, high.y}, m[1]);
    return then_joined
               ? decode_words{gpu_join<DTYPE>(one.x1, one.x2), gpu_join<DTYPE>(two.x1, two.x2)}
               : decode_words{gpu_join<DTYPE>(one.x1, two.x1), gpu_join<DTYPE>(one.x2, two.x2)};
}

template <int DTYPE>
GPU_FN decode_words decode_rotate(int flags, const rope_coefficients (&m)[2], decode_words x) {
    const int joined = flags & GPU_STEP_INTERLEAVED;
    return decode_rotate<DTYPE>(joined, joined, flags & GPU_STEP_MODEL, m, x);
}

#endif
