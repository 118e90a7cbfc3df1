/*
 * The steps of "append" on elements side by side, compiled by the file that includes this with its
 * vectors. Elements that no vector is left for go one by one, without SIMD_LANES all do.
 */
#ifndef ROPEKIT_CPU_APPEND_ELEMENTWISE_H
#define ROPEKIT_CPU_APPEND_ELEMENTWISE_H

#include "backends/cpu/append/sums.h"
#include "common/math/fp8.h"

#if defined(SIMD_LANES)
#include "backends/cpu/append/vectors.h"
#endif

static void steps_add(int sum, const rope_append_steps *s, int dtype, const cpu_norm_row *row,
                      int64_t n, float mean, rope_norm_tree *blocks) {
    if (sum == CPU_SUM_SQUARES) {
        STEPS_BY_DTYPE(steps_add_as(CPU_SUM_SQUARES, s, dtype_, row, n, mean, blocks))
    } else if (sum <= CPU_SUM_DEVIATIONS) {
        STEPS_BY_DTYPE(steps_add_as(steps_of_elements(sum), s, dtype_, row, n, mean, blocks))
    } else {
        STEPS_BY_DTYPE(steps_add_as(sum, s, dtype_, row, n, mean, blocks))
    }
}

#if defined(SIMD_LANES)
/* More elements than there are widened weights at once. */
static CPU_NOINLINE int64_t steps_normalize_long(const rope_append_steps *s, int dtype,
                                                 rope_norm_values v, const char *x,
                                                 const char *weight, char *y) {
    float weights[CPU_NORM_PART];
    int64_t done = 0;
    for (int64_t first = 0; first < s->norm_dim; first += CPU_NORM_PART) {
        const int64_t at = first * cpu_dtype_size(dtype), left = s->norm_dim - first,
                      n = left < CPU_NORM_PART ? left : CPU_NORM_PART;
        if (s->weight) {
            STEPS_BY_DTYPE(vector_weights(
                s, dtype_, n, weight + first * cpu_dtype_size(s->weight_dtype), weights))
        }
        STEPS_BY_DTYPE(done = first + vector_normalize(s, dtype_, n, v, x + at, weights, y + at, 0))
    }
    return done;
}
#endif

/* All sums of some heads go ahead of their elements: one alone waits for its own results. */
CPU_INLINE void steps_normalize_by(rope_append_steps s, int dtype, const cpu_norm_heads *heads) {
    const cpu_norm_heads h = *heads; /* copies, since stores may alias what pointers lead to */
    const int64_t dim = s.norm_dim;
    float mean[CPU_NORM_HEADS] = {0}, r[CPU_NORM_HEADS] = {0};
#if defined(SIMD_LANES)
    float weights[CPU_NORM_PART];
#endif
    for (int64_t n = 0; n < h.count; n++) {
        const int at = (int)(n % CPU_NORM_HEADS),
                  left = (int)(h.count - n < CPU_NORM_HEADS ? h.count - n : CPU_NORM_HEADS);
        if (at == 0 && !h.values) {
            cpu_norm_row rows[CPU_NORM_HEADS];
            for (int i = 0; i < CPU_NORM_HEADS; i++)
                rows[i] = (cpu_norm_row){h.x + (n + (i < left ? i : 0)) * h.x_stride, NULL, NULL};
            steps_values(&s, dtype, rows, left, mean, r);
        }
        const rope_norm_values v = h.values ? *h.values : (rope_norm_values){mean[at], r[at]};
        const char *x = h.x + n * h.x_stride,
                   *weight = s.weight ? h.weight + n * h.weight_stride : NULL;
        char *y = h.y + n * h.y_stride;
        int64_t i = 0;
#if defined(SIMD_LANES)
        if (dim > CPU_NORM_PART) {
            i = steps_normalize_long(&s, dtype, v, x, weight, y);
        } else {
            if (s.weight && (n == 0 || h.weight_stride))
                vector_weights(&s, dtype, dim, weight, weights);
            i = vector_normalize(&s, dtype, dim, v, x, weights, y, h.ahead);
        }
#endif
        for (; i < dim; i++)
            cpu_store(dtype, y, i,
                      rope_normalized(&s, dtype, v, cpu_load(dtype, x, i),
                                      s.weight ? steps_weight(&s, weight, i) : 1));
    }
}

CPU_INLINE void steps_normalize_as(const rope_append_steps *steps, int dtype,
                                   const cpu_norm_heads *heads) {
    rope_append_steps s = *steps;
    STEPS_BY_NORM(steps_normalize_by(s, dtype, heads))
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
#if defined(SIMD_LANES)
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
#if defined(SIMD_LANES)
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
#if defined(SIMD_LANES)
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

#if !defined(APPEND_LOOK_UP)
#define APPEND_LOOK_UP NULL
#endif
#if !defined(APPEND_LOOK_UP_SHORT)
#define APPEND_LOOK_UP_SHORT NULL
#endif

#define APPEND_KERNEL(isa, rope_kernel)                                                            \
    {                                                                                              \
        .needs = (isa), .rope = &(rope_kernel), .add = steps_add, .normalize = steps_normalize,    \
        .multiply = steps_multiply, .store = steps_store, .load = steps_load,                      \
        .look_up = APPEND_LOOK_UP, .look_up_short = APPEND_LOOK_UP_SHORT, .largest = steps_largest \
    }

#endif
