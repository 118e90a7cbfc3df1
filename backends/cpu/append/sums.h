/*
 * Sums of a norm over elements side by side, in the one tree of norm.h: of the steps of "append"
 * and of its gradient. Compiled as elementwise.h.
 */
#ifndef ROPEKIT_CPU_APPEND_SUMS_H
#define ROPEKIT_CPU_APPEND_SUMS_H

#include "backends/cpu/append/kernel.h"

#if defined(SIMD_LANES)
#include "backends/cpu/simd/element.h"

/* Neighbours' rope_norm_weight_of. Of NaNs fp32 weights alone may have bits that simd_bf16_words
 * does not expect. */
CPU_INLINE simd_pair vector_weight_neighbours(const rope_append_steps *s, int dtype,
                                              const char *weight) {
    simd_pair w = simd_load_neighbours(s->weight_dtype, weight);
    if (dtype == ROPE_BF16 && s->weight_dtype == ROPE_F32)
        w = (simd_pair){simd_quiet_nan(w.x1), simd_quiet_nan(w.x2)};
    if (s->weight == ROPE_NORM_ONE_PLUS_WEIGHT)
        w = (simd_pair){simd_set_f(1) + w.x1, simd_set_f(1) + w.x2};
    return w;
}

/* rope_norm_weighted of 2 * SIMD_LANES neighbours from element i on. */
CPU_INLINE simd_pair vector_weighted(const rope_append_steps *s, int dtype, const cpu_norm_row *row,
                                     int64_t i) {
    simd_pair h = simd_load_neighbours(dtype, row->g + i * cpu_dtype_size(dtype));
    if (s->weight == 0)
        return h;
    const simd_pair w =
        vector_weight_neighbours(s, dtype, row->weight + i * cpu_dtype_size(s->weight_dtype));
    h = (simd_pair){h.x1 * w.x1, h.x2 * w.x2};
    if (s->rounding == ROPE_NORM_ROUND_TWICE)
        h = (simd_pair){simd_round_to(dtype, h.x1), simd_round_to(dtype, h.x2)};
    return h;
}

/* Nodes of the neighbours among 2 * SIMD_LANES elements from element i on. */
CPU_INLINE simd_f32 vector_node(int sum, const rope_append_steps *s, int dtype,
                                const cpu_norm_row *row, int64_t i, simd_f32 mean) {
    simd_pair h = {{0}, {0}};
    if (sum == CPU_SUM_PRODUCTS || sum == CPU_SUM_GRADIENTS)
        h = vector_weighted(s, dtype, row, i);
    if (sum == CPU_SUM_GRADIENTS)
        return h.x1 + h.x2;
    simd_pair pair = simd_load_neighbours(dtype, row->x + i * cpu_dtype_size(dtype));
    if (sum == CPU_SUM_ELEMENTS)
        return pair.x1 + pair.x2;
    if (sum == CPU_SUM_DEVIATIONS || (sum == CPU_SUM_PRODUCTS && s->norm == ROPE_NORM_LAYER)) {
        pair.x1 -= mean;
        pair.x2 -= mean;
    }
    if (sum == CPU_SUM_PRODUCTS)
        return simd_fma(h.x2, pair.x2, h.x1 * pair.x1);
    return simd_fma(pair.x2, pair.x2, pair.x1 * pair.x1);
}

CPU_INLINE simd_f32 vector_level(simd_f32 a, simd_f32 b) {
    return simd_even(a, b) + simd_odd(a, b);
}

/* Nodes of sixteen neighbours in lists of n elements; a list has `each` of the eight vectors of
 * nodes that go side by side. Returns how many vectors they are. */
CPU_INLINE int vector_sixteens(int each, int sum, const rope_append_steps *s, int dtype,
                               const cpu_norm_row *rows, int lists, int64_t n, const float *mean,
                               simd_f32 *node) {
    int count = 0;
    for (int list = 0; list < lists; list += 8 / each)
        for (int64_t i = 0; i < n; i += 2 * SIMD_LANES * each) {
            simd_f32 eight[8];
#pragma GCC unroll 8
            for (int v = 0; v < 8; v++)
                eight[v] =
                    vector_node(sum, s, dtype, &rows[list + v / each],
                                i + v % each * 2 * SIMD_LANES, simd_set_f(mean[list + v / each]));
            node[count++] = simd_add_eights(eight);
        }
    return count;
}

/* Levels that join `width` neighbours of vectors of nodes to one. */
static CPU_NOINLINE void vector_join(simd_f32 *node, int nodes, int64_t width) {
    for (; width >= 8; width /= 8, nodes = (nodes + 7) / 8) {
        for (int v = nodes; v < 8; v++)
            node[v] = node[0];
        for (int v = 0; v < nodes; v += 8)
            node[v / 8] = simd_add_eights(&node[v]);
    }
    for (; width > 1; width /= 2, nodes = (nodes + 1) / 2)
        for (int v = 0; v < nodes; v += 2)
            node[v / 2] = vector_level(node[v], node[nodes > 1 ? v + 1 : 0]);
}

/* Sums of lists of n elements each, a power of two and four vectors of nodes or more: their nodes
 * are one list, of which levels join neighbours until each list is one node. */
CPU_INLINE void vector_sums(int sum, const rope_append_steps *s, int dtype,
                            const cpu_norm_row *rows, int count, int64_t n, const float *mean,
                            float *sums) {
    const int64_t vectors = n / 2 / SIMD_LANES;
    simd_f32 node[CPU_NORM_HEADS * CPU_NORM_LONGEST / 16 / SIMD_LANES + 8];
    int lists = vectors >= 8 ? 1 : 2, nodes;
    node[0] = simd_set_f(0);
    while (lists < count)
        lists *= 2;
    if (vectors >= 8)
        nodes = vector_sixteens(8, sum, s, dtype, rows, lists, n, mean, node);
    else
        nodes = vector_sixteens(4, sum, s, dtype, rows, lists, n, mean, node);
    vector_join(node, nodes, n / 16);
    memcpy(sums, node, (size_t)count * sizeof *sums);
}

/* The node of CPU_NORM_BLOCK elements from element i on. */
CPU_INLINE float vector_block(int sum, const rope_append_steps *s, int dtype,
                              const cpu_norm_row *row, int64_t i, float mean) {
    enum { VECTORS = CPU_NORM_BLOCK / 2 / SIMD_LANES };
    simd_f32 node[VECTORS];
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++)
        node[v] = vector_node(sum, s, dtype, row, i + 2 * v * SIMD_LANES, simd_set_f(mean));
#pragma GCC unroll 3
    for (int count = VECTORS / 2; count > 0; count /= 2)
#pragma GCC unroll 4
        for (int v = 0; v < count; v++)
            node[v] = vector_level(node[2 * v], node[2 * v + 1]);
#pragma GCC unroll 4
    for (int lanes = SIMD_LANES; lanes > 1; lanes /= 2)
        node[0] = vector_level(node[0], node[0]);
    return node[0][0];
}

/* rope_norm_reciprocal of CPU_NORM_HEADS sums. */
CPU_INLINE void vector_reciprocals(float *sums, int64_t n, float eps) {
    for (int i = 0; i < CPU_NORM_HEADS; i += SIMD_LANES) {
        const simd_f32 mean = (simd_load_f(sums + i) + simd_set_f(0)) / simd_set_f((float)n);
        simd_store_f(sums + i, simd_set_f(1) / simd_sqrt(mean + simd_set_f(eps)));
    }
}
#endif

CPU_INLINE float steps_weight(const rope_append_steps *s, const char *weight, int64_t i) {
    return rope_norm_weight_of(s, cpu_load(s->weight_dtype, weight, i));
}

/* h of an element. */
CPU_INLINE float steps_weighted(const rope_append_steps *s, int dtype, const cpu_norm_row *row,
                                int64_t i) {
    return rope_norm_weighted(s, dtype, cpu_load(dtype, row->g, i),
                              s->weight ? steps_weight(s, row->weight, i) : 1);
}

CPU_INLINE float steps_gradient_node(int sum, const rope_append_steps *s, int dtype,
                                     const cpu_norm_row *row, int64_t i, int64_t n, float mean) {
    const float h0 = steps_weighted(s, dtype, row, i),
                h1 = i + 1 < n ? steps_weighted(s, dtype, row, i + 1) : 0;
    if (sum == CPU_SUM_GRADIENTS)
        return i + 1 < n ? h0 + h1 : h0;
    const float d0 = rope_norm_deviation(s, mean, cpu_load(dtype, row->x, i));
    return i + 1 < n ? rope_norm_products(
                           h0, d0, h1, rope_norm_deviation(s, mean, cpu_load(dtype, row->x, i + 1)))
                     : h0 * d0;
}

/* Node of elements i and i + 1; the last of an odd number stands alone. */
CPU_INLINE float steps_node(int sum, const rope_append_steps *s, int dtype, const cpu_norm_row *row,
                            int64_t i, int64_t n, float mean) {
    if (sum == CPU_SUM_PRODUCTS || sum == CPU_SUM_GRADIENTS)
        return steps_gradient_node(sum, s, dtype, row, i, n, mean);
    float x0 = cpu_load(dtype, row->x, i), x1 = i + 1 < n ? cpu_load(dtype, row->x, i + 1) : 0;
    if (sum == CPU_SUM_ELEMENTS)
        return i + 1 < n ? x0 + x1 : x0;
    if (sum == CPU_SUM_DEVIATIONS) {
        x0 -= mean;
        x1 = i + 1 < n ? x1 - mean : 0;
    }
    return rope_norm_squares(x0, x1);
}

CPU_INLINE void steps_add_as(int sum, const rope_append_steps *s, int dtype,
                             const cpu_norm_row *row, int64_t n, float mean,
                             rope_norm_tree *blocks) {
    int64_t i = 0;
#if defined(SIMD_LANES)
    for (; i + CPU_NORM_BLOCK <= n; i += CPU_NORM_BLOCK)
        rope_norm_add(blocks, vector_block(sum, s, dtype, row, i, mean));
#endif
    while (i < n) {
        rope_norm_tree block = {.nodes = 0};
        const int64_t end = i + CPU_NORM_BLOCK < n ? i + CPU_NORM_BLOCK : n;
        for (; i < end; i += 2)
            rope_norm_add(&block, steps_node(sum, s, dtype, row, i, n, mean));
        rope_norm_add(blocks, rope_norm_sum(&block));
    }
}

/* One of the sums over x but squares, as compilers should know it. */
CPU_INLINE int steps_of_elements(int sum) {
    return sum == CPU_SUM_ELEMENTS ? CPU_SUM_ELEMENTS : CPU_SUM_DEVIATIONS;
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

#if defined(SIMD_LANES)
/* Whether it is an RMS norm with a weight of dtype and these, constants then to the compiler. */
CPU_INLINE int steps_are(rope_append_steps *s, int dtype, int weight, int rounding) {
    const int equal = s->norm == ROPE_NORM_RMS && s->weight_dtype == dtype && s->weight == weight &&
                      s->rounding == rounding;
    if (equal)
        s->norm = ROPE_NORM_RMS, s->weight_dtype = dtype, s->weight = weight,
        s->rounding = rounding;
    return equal;
}

/* One copy of a function's last step for the norms of Llama and Qwen, one for Gemma's, one for all.
 */
#define STEPS_BY_NORM(call)                                                                        \
    if (steps_are(&s, dtype, ROPE_NORM_WEIGHT, ROPE_NORM_ROUND_TWICE)) {                           \
        call;                                                                                      \
        return;                                                                                    \
    }                                                                                              \
    if (steps_are(&s, dtype, ROPE_NORM_ONE_PLUS_WEIGHT, ROPE_NORM_ROUND_ONCE)) {                   \
        call;                                                                                      \
        return;                                                                                    \
    }                                                                                              \
    call;
#else
#define STEPS_BY_NORM(call) call;
#endif

CPU_INLINE void steps_sums_as(int sum, const rope_append_steps *s, int dtype,
                              const cpu_norm_row *rows, int count, int64_t n, const float *mean,
                              float *sums) {
#if defined(SIMD_LANES)
    if ((n & (n - 1)) == 0 && n >= 8 * SIMD_LANES && n <= CPU_NORM_LONGEST) {
        vector_sums(sum, s, dtype, rows, count, n, mean, sums);
        return;
    }
#endif
    for (int i = 0; i < count; i++) {
        rope_norm_tree blocks;
        blocks.nodes = 0;
        steps_add_as(sum, s, dtype, &rows[i], n, mean[i], &blocks);
        sums[i] = rope_norm_sum(&blocks);
    }
}

/* rope_norm_reciprocal of CPU_NORM_HEADS sums. */
CPU_INLINE void steps_reciprocals(float *sums, int64_t n, float eps) {
#if defined(SIMD_LANES)
    vector_reciprocals(sums, n, eps);
#else
    for (int i = 0; i < CPU_NORM_HEADS; i++)
        sums[i] = rope_norm_reciprocal(sums[i], n, eps);
#endif
}

/* A sum over the elements x of `count` rows, CPU_NORM_HEADS at most: of every norm alike. */
static CPU_NOINLINE void steps_sums(int sum, int dtype, const cpu_norm_row *rows, int count,
                                    int64_t n, const float *mean, float *sums) {
    if (sum == CPU_SUM_SQUARES) {
        STEPS_BY_DTYPE(steps_sums_as(CPU_SUM_SQUARES, NULL, dtype_, rows, count, n, mean, sums))
    } else {
        STEPS_BY_DTYPE(
            steps_sums_as(steps_of_elements(sum), NULL, dtype_, rows, count, n, mean, sums))
    }
}

/* The rope_norm_values of rows. */
CPU_INLINE void steps_values(const rope_append_steps *s, int dtype, const cpu_norm_row *rows,
                             int count, float *mean, float *reciprocal) {
    const int64_t n = s->norm_dim;
    const int layer = s->norm == ROPE_NORM_LAYER;
    if (layer)
        steps_sums(CPU_SUM_ELEMENTS, dtype, rows, count, n, mean, reciprocal);
    for (int i = 0; i < count && layer; i++)
        mean[i] = rope_norm_mean(reciprocal[i], n);
    steps_sums(layer ? CPU_SUM_DEVIATIONS : CPU_SUM_SQUARES, dtype, rows, count, n, mean,
               reciprocal);
    steps_reciprocals(reciprocal, n, s->eps);
}

#endif
