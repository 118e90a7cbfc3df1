/*
 * The steps of "append" on elements side by side, compiled by the file that includes this with its
 * vectors. Elements that no vector is left for go one by one, without SIMD_LANES all do.
 */
#ifndef ROPEKIT_CPU_APPEND_STEPS_H
#define ROPEKIT_CPU_APPEND_STEPS_H

#include "backends/cpu/append/kernel.h"
#include "common/math/fp8.h"

#if defined(SIMD_LANES)
#include "backends/cpu/append/vectors.h"
#endif

/* Node of elements i and i + 1; the last of an odd number stands alone. */
CPU_INLINE float steps_node(int sum, int dtype, const char *x, int64_t i, int64_t n, float mean) {
    float x0 = cpu_load(dtype, x, i), x1 = i + 1 < n ? cpu_load(dtype, x, i + 1) : 0;
    if (sum == CPU_SUM_ELEMENTS)
        return i + 1 < n ? x0 + x1 : x0;
    if (sum == CPU_SUM_DEVIATIONS) {
        x0 -= mean;
        x1 = i + 1 < n ? x1 - mean : 0;
    }
    return rope_norm_squares(x0, x1);
}

CPU_INLINE void steps_add_as(int sum, int dtype, const char *x, int64_t n, float mean,
                             rope_norm_tree *blocks) {
    int64_t i = 0;
#if defined(STEPS_VECTORS)
    for (; i + CPU_NORM_BLOCK <= n; i += CPU_NORM_BLOCK)
        rope_norm_add(blocks, vector_block(sum, dtype, x + i * cpu_dtype_size(dtype), mean));
#endif
    while (i < n) {
        rope_norm_tree block = {.nodes = 0};
        const int64_t end = i + CPU_NORM_BLOCK < n ? i + CPU_NORM_BLOCK : n;
        for (; i < end; i += 2)
            rope_norm_add(&block, steps_node(sum, dtype, x, i, n, mean));
        rope_norm_add(blocks, rope_norm_sum(&block));
    }
}

/* One copy of a step for each dtype. */
#define STEPS_BY_DTYPE(call)                                                                       \
    if (dtype == ROPE_F32) {                                                                       \
        const int dtype_ = ROPE_F32;                                                               \
        call;                                                                                      \
    } else if (dtype == ROPE_BF16) {                                                               \
        const int dtype_ = ROPE_BF16;                                                              \
        call;                                                                                      \
    } else {                                                                                       \
        const int dtype_ = ROPE_F16;                                                               \
        call;                                                                                      \
    }

static void steps_add(int sum, int dtype, const char *x, int64_t n, float mean,
                      rope_norm_tree *blocks) {
    if (sum == CPU_SUM_SQUARES) {
        STEPS_BY_DTYPE(steps_add_as(CPU_SUM_SQUARES, dtype_, x, n, mean, blocks))
    } else {
        STEPS_BY_DTYPE(steps_add_as(sum, dtype_, x, n, mean, blocks))
    }
}

/* Sums of the heads from x on. */
CPU_INLINE void steps_sums_as(int sum, int dtype, const char *const x[CPU_NORM_LISTS], int count,
                              int64_t n, const float *mean, float *sums) {
#if defined(STEPS_VECTORS)
    if ((n & (n - 1)) == 0 && n >= CPU_NORM_BLOCK && n <= CPU_NORM_LONGEST) {
        vector_sums(sum, dtype, x, count > 2 ? CPU_NORM_LISTS : count, n, mean, sums);
        return;
    }
#endif
    for (int list = 0; list < count; list++) {
        rope_norm_tree blocks;
        blocks.nodes = 0;
        steps_add_as(sum, dtype, x[list], n, mean[list], &blocks);
        sums[list] = rope_norm_sum(&blocks);
    }
}

static CPU_NOINLINE void steps_sums(int sum, int dtype, const char *const x[CPU_NORM_LISTS],
                                    int count, int64_t n, const float *mean, float *sums) {
    if (sum == CPU_SUM_SQUARES) {
        STEPS_BY_DTYPE(steps_sums_as(CPU_SUM_SQUARES, dtype_, x, count, n, mean, sums))
    } else {
        STEPS_BY_DTYPE(steps_sums_as(sum, dtype_, x, count, n, mean, sums))
    }
}

/* The values of `count` heads from `first` on, CPU_NORM_LISTS at most. */
CPU_INLINE void steps_head_values(const rope_append_steps *s, int dtype, const cpu_norm_heads *h,
                                  int64_t first, int count, rope_norm_values *values) {
    const char *x[CPU_NORM_LISTS];
    float mean[CPU_NORM_LISTS] = {0}, sums[CPU_NORM_LISTS];
    for (int i = 0; i < CPU_NORM_LISTS; i++)
        x[i] = h->x + (first + (i < count ? i : 0)) * h->x_stride;
    if (s->norm == ROPE_NORM_LAYER) {
        steps_sums(CPU_SUM_ELEMENTS, dtype, x, count, s->norm_dim, mean, sums);
        for (int i = 0; i < count; i++)
            mean[i] = rope_norm_mean(sums[i], s->norm_dim);
    }
    steps_sums(s->norm == ROPE_NORM_LAYER ? CPU_SUM_DEVIATIONS : CPU_SUM_SQUARES, dtype, x, count,
               s->norm_dim, mean, sums);
    for (int i = 0; i < count; i++)
        values[i] =
            (rope_norm_values){mean[i], rope_norm_reciprocal(sums[i], s->norm_dim, s->eps)};
}

CPU_INLINE float steps_weight(const rope_append_steps *s, const cpu_norm_heads *h, int64_t head,
                              int64_t i) {
    return rope_norm_weight_of(s,
                               cpu_load(s->weight_dtype, h->weight + head * h->weight_stride, i));
}

CPU_INLINE void steps_normalize_by(rope_append_steps s, int dtype, const cpu_norm_heads *heads) {
    const cpu_norm_heads h = *heads; /* copies, since stores may alias what pointers lead to */
    rope_norm_values values[CPU_NORM_LISTS];
    for (int64_t first = 0; first < h.count; first += CPU_NORM_LISTS) {
        const int count = h.count - first < CPU_NORM_LISTS ? (int)(h.count - first) : CPU_NORM_LISTS;
        int64_t done = 0;
        for (int n = 0; n < count && h.values; n++)
            values[n] = *h.values;
        if (!h.values)
            steps_head_values(&s, dtype, &h, first, count, values);
#if defined(STEPS_VECTORS)
        done = vector_normalize(&s, dtype, &h, values, first, count);
#endif
        for (int n = 0; n < count; n++)
            for (int64_t i = done; i < s.norm_dim; i++) {
                const float w = s.weight ? steps_weight(&s, &h, first + n, i) : 1,
                            x = cpu_load(dtype, h.x + (first + n) * h.x_stride, i);
                cpu_store(dtype, h.y + (first + n) * h.y_stride, i,
                          rope_normalized(&s, dtype, values[n], x, w));
            }
    }
}

/* The norms of Llama and Qwen, and of Gemma, have loops of their own. */
CPU_INLINE void steps_normalize_as(const rope_append_steps *steps, int dtype,
                                   const cpu_norm_heads *heads) {
    rope_append_steps s = *steps;
    const int plain = s.norm == ROPE_NORM_RMS && s.weight_dtype == dtype;
    if (plain && s.weight == ROPE_NORM_WEIGHT && s.rounding == ROPE_NORM_ROUND_TWICE) {
        s.norm = ROPE_NORM_RMS, s.weight_dtype = dtype;
        s.weight = ROPE_NORM_WEIGHT, s.rounding = ROPE_NORM_ROUND_TWICE;
        steps_normalize_by(s, dtype, heads);
    } else if (plain && s.weight == ROPE_NORM_ONE_PLUS_WEIGHT &&
               s.rounding == ROPE_NORM_ROUND_ONCE) {
        s.norm = ROPE_NORM_RMS, s.weight_dtype = dtype;
        s.weight = ROPE_NORM_ONE_PLUS_WEIGHT, s.rounding = ROPE_NORM_ROUND_ONCE;
        steps_normalize_by(s, dtype, heads);
    } else {
        steps_normalize_by(s, dtype, heads);
    }
}

static void steps_normalize(const rope_append_steps *s, int dtype, const cpu_norm_heads *heads) {
    STEPS_BY_DTYPE(steps_normalize_as(s, dtype_, heads))
}

static void steps_multiply(int dtype, float factor, const char *x, char *y, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        cpu_store(dtype, y, i, cpu_load(dtype, x, i) * factor);
}

CPU_INLINE void steps_store_as(int dtype, int store_dtype, float scale, const char *x, char *y,
                               int64_t n) {
    int64_t i = 0;
#if defined(STEPS_VECTORS)
    i = vector_store(dtype, store_dtype, scale, x, y, n);
#endif
    for (; i < n; i++) {
        const float value = cpu_load(dtype, x, i);
        if (store_dtype < ROPE_F8E4M3)
            cpu_store(store_dtype, y, i, value);
        else
            y[i] = (char)rope_to_8bit(store_dtype, value / scale);
    }
}

static void steps_store(int dtype, int store_dtype, float scale, const char *x, char *y, int64_t n){
    STEPS_BY_DTYPE(steps_store_as(dtype_, store_dtype, scale, x, y, n))}

CPU_INLINE
    void steps_load_as(int dtype, int store_dtype, float scale, const char *x, char *y, int64_t n) {
    int64_t i = 0;
#if defined(STEPS_VECTORS)
    i = vector_load(dtype, store_dtype, scale, x, y, n);
#endif
    for (; i < n; i++)
        cpu_store(dtype, y, i,
                  store_dtype < ROPE_F8E4M3 ? cpu_load(store_dtype, x, i)
                                            : rope_from_8bit(store_dtype, (uint8_t)x[i]) * scale);
}

static void steps_load(int dtype, int store_dtype, float scale, const char *x, char *y, int64_t n){
    STEPS_BY_DTYPE(steps_load_as(dtype_, store_dtype, scale, x, y, n))}

CPU_INLINE uint32_t steps_largest_as(int dtype, const char *x, int64_t n) {
    uint32_t largest = 0;
    int64_t i = 0;
#if defined(STEPS_VECTORS)
    i = vector_largest(dtype, x, n, &largest);
#endif
    for (; i < n; i++) {
        const uint32_t magnitude = rope_finite_magnitude(cpu_load(dtype, x, i));
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

static uint32_t steps_largest(int dtype, const char *x, int64_t n) {
    STEPS_BY_DTYPE(return steps_largest_as(dtype_, x, n))
}

#define APPEND_KERNEL(isa, rope_kernel)                                                            \
    {                                                                                              \
        .needs = (isa), .rope = &(rope_kernel), .add = steps_add,                                  \
        .normalize = steps_normalize, .multiply = steps_multiply, .store = steps_store,            \
        .load = steps_load, .largest = steps_largest                                               \
    }

#endif
