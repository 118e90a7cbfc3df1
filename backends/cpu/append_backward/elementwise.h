/* A norm's gradient on elements side by side, compiled as append/elementwise.h. */
#ifndef ROPEKIT_CPU_APPEND_BACKWARD_ELEMENTWISE_H
#define ROPEKIT_CPU_APPEND_BACKWARD_ELEMENTWISE_H

#include "backends/cpu/append/sums.h"
#include "backends/cpu/append_backward/kernel.h"

#if defined(SIMD_LANES)
/* rope_norm_gradient of 2 * SIMD_LANES neighbours from element i on, and their products: even ones,
 * then odd ones. */
CPU_INLINE void vector_gradient(const rope_append_steps *s, int dtype, const cpu_norm_row *row,
                                rope_norm_slopes v, int64_t i, char *dx, float *sums) {
    const int size = cpu_dtype_size(dtype);
    const simd_f32 r = simd_set_f(v.of.reciprocal), slope = simd_set_f(v.slope);
    simd_pair y = simd_load_neighbours(dtype, row->x + i * size),
              g = simd_load_neighbours(dtype, row->g + i * size),
              h = vector_weighted(s, dtype, row, i);
    if (s->norm == ROPE_NORM_LAYER) {
        const simd_f32 mean = simd_set_f(v.of.mean), shift = simd_set_f(v.shift);
        y = (simd_pair){y.x1 - mean, y.x2 - mean};
        h = (simd_pair){h.x1 - shift, h.x2 - shift};
    }
    y = (simd_pair){y.x1 * r, y.x2 * r};
    if (dx)
        simd_store_neighbours(
            dtype, 0, dx + i * size,
            (simd_pair){simd_fma(-y.x1, slope, h.x1) * r, simd_fma(-y.x2, slope, h.x2) * r});
    if (!sums)
        return;
    if (s->rounding == ROPE_NORM_ROUND_TWICE)
        y = (simd_pair){simd_round_to(dtype, y.x1), simd_round_to(dtype, y.x2)};
    simd_store_f(sums + i, simd_fma(g.x1, y.x1, simd_load_f(sums + i)));
    simd_store_f(sums + i + SIMD_LANES, simd_fma(g.x2, y.x2, simd_load_f(sums + i + SIMD_LANES)));
}
#endif

CPU_INLINE void steps_gradient_row(const rope_append_steps *s, int dtype, const cpu_norm_row *row,
                                   rope_norm_slopes v, char *dx, float *sums, int64_t ahead) {
    int64_t i = 0;
#if defined(SIMD_LANES)
    for (; i + 2 * SIMD_LANES <= s->norm_dim; i += 2 * SIMD_LANES)
        vector_gradient(s, dtype, row, v, i, dx, sums);
    for (int64_t at = 0; ahead && at < s->norm_dim * cpu_dtype_size(dtype); at += 64)
        __builtin_prefetch((const void *)((uintptr_t)row->x + (uintptr_t)(ahead + at)), 0, 2);
#else
    (void)ahead;
#endif
    for (; i < s->norm_dim; i++) {
        const float d = rope_norm_deviation(s, v.of.mean, cpu_load(dtype, row->x, i)),
                    g = cpu_load(dtype, row->g, i), h = steps_weighted(s, dtype, row, i);
        if (dx)
            cpu_store(dtype, dx, i, rope_norm_gradient(s, v, d, h));
        if (sums)
            sums[i] = fmaf(g, rope_norm_ahead_of_weight(s, dtype, v, d), sums[i]);
    }
}

/* Slopes of up to ROPE_GRADIENT_CHAIN heads, all sums ahead of all elements. */
CPU_INLINE void steps_slopes(const rope_append_steps *s, int dtype, const cpu_norm_row *rows,
                             int count, rope_norm_slopes *slopes) {
    const int64_t n = s->norm_dim;
    float mean[CPU_NORM_HEADS] = {0}, r[CPU_NORM_HEADS] = {0}, products[CPU_NORM_HEADS],
          gradients[CPU_NORM_HEADS] = {0};
    steps_values(s, dtype, rows, count, mean, r);
    if (s->norm == ROPE_NORM_LAYER)
        steps_sums_as(CPU_SUM_GRADIENTS, s, dtype, rows, count, n, mean, gradients);
    steps_sums_as(CPU_SUM_PRODUCTS, s, dtype, rows, count, n, mean, products);
    for (int i = 0; i < count; i++)
        slopes[i] =
            rope_norm_slopes_of((rope_norm_values){mean[i], r[i]}, products[i], gradients[i], n);
}

CPU_INLINE void steps_gradient_by(rope_append_steps s, int dtype, const cpu_gradient_heads *heads) {
    const cpu_gradient_heads h = *heads; /* a copy, since stores may alias what pointers lead to */
    cpu_norm_row rows[CPU_NORM_HEADS];
    rope_norm_slopes slopes[CPU_NORM_HEADS];
    for (int64_t i = 0; i < CPU_NORM_HEADS; i++) {
        const int64_t n = i < h.count ? i : 0;
        rows[i] = (cpu_norm_row){h.x + n * h.x_stride, h.g + n * h.g_stride,
                                 s.weight ? h.weight + n * h.weight_stride : NULL};
    }
    if (!h.slopes)
        steps_slopes(&s, dtype, rows, (int)h.count, slopes);
    for (int64_t n = 0; n < h.count; n++)
        steps_gradient_row(&s, dtype, &rows[n], h.slopes ? *h.slopes : slopes[n],
                           h.dx ? h.dx + n * h.dx_stride : NULL,
                           h.sums ? h.sums + n * h.sums_stride : NULL, h.ahead);
}

CPU_INLINE void steps_gradient_as(const rope_append_steps *steps, int dtype,
                                  const cpu_gradient_heads *heads) {
    rope_append_steps s = *steps;
    STEPS_BY_NORM(steps_gradient_by(s, dtype, heads))
}

static void steps_gradient(const rope_append_steps *s, int dtype, const cpu_gradient_heads *heads) {
    STEPS_BY_DTYPE(steps_gradient_as(s, dtype_, heads))
}

static void steps_collect(float *sums, int64_t n, int adds, float *to) {
    int64_t i = 0;
#if defined(SIMD_LANES)
    for (; i + 2 * SIMD_LANES <= n; i += 2 * SIMD_LANES) {
        const simd_f32 even = simd_load_f(sums + i), odd = simd_load_f(sums + i + SIMD_LANES);
        simd_f32 low = simd_low(even, odd), high = simd_high(even, odd);
        if (adds) {
            low = simd_load_f(to + i) + low;
            high = simd_load_f(to + i + SIMD_LANES) + high;
        }
        simd_store_f(to + i, low);
        simd_store_f(to + i + SIMD_LANES, high);
    }
#endif
    for (; i < n; i++)
        to[i] = adds ? to[i] + sums[i] : sums[i];
    memset(sums, 0, (size_t)n * sizeof *sums);
}

#define APPEND_BACKWARD_KERNEL(append_kernel)                                                      \
    { .append = &(append_kernel), .gradient = steps_gradient, .collect = steps_collect }

#endif
