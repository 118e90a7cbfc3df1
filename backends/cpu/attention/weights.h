/*
 * What kernels of a block share, compiled by the file that includes this with its vectors: which
 * keys rows see, weights of scores, rows of results.
 */
#ifndef ROPEKIT_CPU_ATTENTION_WEIGHTS_H
#define ROPEKIT_CPU_ATTENTION_WEIGHTS_H

#include "backends/cpu/attention/exp2.h"
#include "backends/cpu/attention/kernel.h"
#include "backends/cpu/simd/element.h"

#include <math.h>

enum { KEYS = CPU_ATTENTION_BLOCK };

/* The keys that rows of a group see: of all, and whether some row sees fewer. */
typedef struct group_range {
    int from, to, partial;
} group_range;

CPU_INLINE group_range range_of(const cpu_attention_block *b, int row, int count) {
    group_range g = {KEYS, 0, b->seen != NULL};
    for (int r = row; r < row + count; r++) {
        if (b->first[r] >= b->last[r])
            continue;
        g.from = b->first[r] < g.from ? b->first[r] : g.from;
        g.to = b->last[r] > g.to ? b->last[r] : g.to;
    }
    for (int r = row; r < row + count; r++)
        g.partial |= b->first[r] != g.from || b->last[r] != g.to;
    return g;
}

CPU_INLINE int sees(const cpu_attention_block *b, int row, int key) {
    return key >= b->first[row] && key < b->last[row] &&
           (!b->seen || (b->seen[row][key / 32] >> key % 32 & 1));
}

/* --- weights --- */

typedef float quad_f32 __attribute__((vector_size(16)));
typedef uint32_t quad_u32 __attribute__((vector_size(16)));

CPU_INLINE quad_f32 larger_of(quad_f32 a, quad_f32 b) {
    const quad_u32 more = (quad_u32)(a > b);
    return (quad_f32)(((quad_u32)a & more) | ((quad_u32)b & ~more));
}

CPU_INLINE quad_f32 joined(int sum, quad_f32 a, quad_f32 b) {
    return sum ? a + b : larger_of(a, b);
}

/* The sum of all lanes, or the largest, as a tree whose nodes join halves. */
CPU_INLINE float join_lanes(int sum, simd_f32 x) {
    quad_f32 part[SIMD_LANES / 4];
    memcpy(part, &x, sizeof x);
    for (int width = SIMD_LANES / 8; width > 0; width /= 2)
        for (int i = 0; i < width; i++)
            part[i] = joined(sum, part[i], part[i + width]);
    part[0] = joined(sum, part[0], __builtin_shufflevector(part[0], part[0], 2, 3, 0, 1));
    part[0] = joined(sum, part[0], __builtin_shufflevector(part[0], part[0], 1, 0, 3, 2));
    return part[0][0];
}

CPU_INLINE float largest_lane(simd_f32 x) {
    return join_lanes(0, x);
}

CPU_INLINE float sum_of_lanes(simd_f32 x) {
    return join_lanes(1, x);
}

/* Caps scores and hides those of keys that the row does not see; returns the largest. */
static float mask_row(const cpu_attention_block *b, int row, int from, int to) {
    float *s = b->scores + row * KEYS;
    simd_i32 key = {0};
    simd_f32 most = simd_set_f(-INFINITY);
    for (int i = 0; i < SIMD_LANES; i++)
        key[i] = i + from;
    for (int k = from; k < to; k += SIMD_LANES, key += SIMD_LANES) {
        simd_f32 x = simd_load_f(s + k);
        if (b->cap != 0)
            x = attention_tanh(x * simd_set_f(b->to_cap)) * simd_set_f(b->cap);
        simd_i32 sees = (key >= b->first[row]) & (key < b->last[row]);
        for (int i = 0; i < SIMD_LANES && b->seen; i++)
            sees[i] &= -(int32_t)(b->seen[row][(k + i) / 32] >> (k + i) % 32 & 1);
        x = attention_where(sees, x, simd_set_f(-INFINITY));
        most = attention_where(x > most, x, most);
        simd_store_f(s + k, x);
    }
    return largest_lane(most);
}

static float largest_score(const float *s, int from, int to) {
    simd_f32 most = simd_set_f(-INFINITY);
    for (int k = from; k < to; k += SIMD_LANES) {
        const simd_f32 x = simd_load_f(s + k);
        most = attention_where(x > most, x, most);
    }
    return largest_lane(most);
}

/* Most rows that are weighed at once, so that none waits for another one's largest score. */
enum { WEIGHED = 32 };

/* Raises the largest scores of some rows to those of a block. */
static void raise_rows(const cpu_attention_block *b, int row, int count, const float *most) {
    for (int i = 0; i < count; i += SIMD_LANES) {
        const int some = count - i < SIMD_LANES ? count - i : SIMD_LANES;
        const size_t bytes = (size_t)some * sizeof(float);
        simd_f32 old = {0}, max = {0};
        memcpy(&old, b->max + row + i, bytes);
        memcpy(&max, most + i, bytes);
        max = attention_where(max > old, max, old);
        const simd_f32 base = attention_where(max == -INFINITY, (simd_f32){0}, max),
                       rescale = attention_exp2((old - base) * simd_set_f(b->factor));
        memcpy(b->max + row + i, &max, bytes);
        memcpy(b->rescale + row + i, &rescale, bytes);
    }
}

/* Weights are stored as fp32, or as bf16 in the same place; their sum is that before the rounding.
 * The largest score is subtracted ahead of the factor, so that no weight exceeds 1, however large
 * the rounding errors of scores are. */
CPU_INLINE void weigh_row(const cpu_attention_block *b, int rounds, int row, int from, int to) {
    float *s = b->scores + row * KEYS;
    const float base = b->max[row] == -INFINITY ? 0 : b->max[row];
    const simd_f32 factor = simd_set_f(b->factor), less = simd_set_f(base);
    simd_f32 sum = {0};
    for (int k = from; k < to; k += SIMD_LANES) {
        const simd_f32 p = attention_exp2((simd_load_f(s + k) - less) * factor);
        if (rounds)
            simd_store_h((uint16_t *)(void *)s + k, simd_to_bf16(p));
        else
            simd_store_f(s + k, p);
        sum += p;
    }
    b->sum[row] = b->sum[row] * b->rescale[row] + sum_of_lanes(sum);
}

/* Of WEIGHED rows or fewer, with masks or none. */
CPU_INLINE void weigh_rows(const cpu_attention_block *b, int rounds, int row, int count, int from,
                           int to, int masks) {
    float most[WEIGHED];
    for (int i = 0; i < count; i++)
        most[i] = masks ? mask_row(b, row + i, from, to)
                        : largest_score(b->scores + (row + i) * KEYS, from, to);
    raise_rows(b, row, count, most);
    for (int i = 0; i < count; i++)
        weigh_row(b, rounds, row + i, from, to);
}

/* --- rows of results --- */

static void block_join(float factor, float *total, float *total_max, float *total_sum,
                       const float *o, float max, float sum, int n) {
    const float most = max > *total_max ? max : *total_max, base = most == -INFINITY ? 0 : most;
    const simd_f32 keep = attention_exp2(simd_set_f((*total_max - base) * factor)),
                   add = attention_exp2(simd_set_f((max - base) * factor));
    for (int i = 0; i < n; i += SIMD_LANES)
        simd_store_f(total + i, simd_fma(simd_load_f(total + i), keep, simd_load_f(o + i) * add));
    *total_max = most;
    *total_sum = *total_sum * keep[0] + sum * add[0];
}

static void block_scale(float *o, float factor, int n) {
    for (int i = 0; i < n; i += SIMD_LANES)
        simd_store_f(o + i, (simd_load_f(o + i) + simd_set_f(0)) * simd_set_f(factor));
}

#endif
