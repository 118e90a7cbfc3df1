/*
 * Cells, compiled by the file that includes this with its vectors: weights, gradients of scores,
 * and sums of rows.
 */
#ifndef ROPEKIT_CPU_ATTENTION_BACKWARD_SCORE_TILE_H
#define ROPEKIT_CPU_ATTENTION_BACKWARD_SCORE_TILE_H

#include "backends/cpu/attention/row_groups.h"
#include "backends/cpu/attention_backward/weights.h"

_Static_assert(CPU_ATTENTION_PAD % PANEL == 0 && CELL % GROUP == 0 && CELL % PANEL == 0, "whole");

/* sum = the chain of a[i][j] * b[j] over `steps` j, for `count` i. */
CPU_INLINE void multiply(int count, const float *a, int64_t a_row, int64_t a_step, int steps,
                         const float *b, int64_t b_step, group_sum sum) {
    clear_sums(count, sum);
    multiply_on(count, a, a_row, a_step, steps, b, b_step, sum);
}

/* --- panels: element e of row n at [n / PANEL][e][n % PANEL] --- */

static void cell_pack(const float *rows, int count, int n, int64_t stride, float *panels) {
    for (int first = 0; first < (count + PANEL - 1) / PANEL * PANEL; first += SIMD_LANES) {
        float *panel = panels + (int64_t)(first / PANEL) * n * PANEL + first % PANEL;
        for (int e = 0; e < n; e += SIMD_LANES) {
            simd_u32 x[SIMD_LANES];
            for (int i = 0; i < SIMD_LANES; i++)
                x[i] = first + i < count ? simd_load_u(rows + (first + i) * stride + e)
                                         : (simd_u32){0};
            simd_transpose(x);
            for (int i = 0; i < SIMD_LANES && e + i < n; i++)
                simd_store_u(panel + (int64_t)(e + i) * PANEL, x[i]);
        }
    }
}

/* --- weights --- */

/* Products of a group of rows and of the panels of keys that it sees. Scores have the forward's
 * bits, as lse has their rounding. */
CPU_INLINE void multiply_panels(int count, const float *rows, int64_t stride, int n,
                                const float *panels, int from, int to, float *products) {
    waiting_nodes waiting;
    for (int key = from / PANEL * PANEL; key < to; key += PANEL)
        for (int chain = 0; chain < chains_of(n); chain++)
            add_chain(count, chain, rows, stride, n, panels + (int64_t)key * n, waiting,
                      products + key, CELL);
}

static void cell_weigh(backward_cell *c, int gradients) {
    for (int r = 0, n; r < c->rows; r += n) {
        n = group_of(c->rows - r);
        const group_range g = range_of(c->first, c->last, r, n);
        BY_COUNT(n, multiply_panels(n_, c->q + r * c->q_stride, c->q_stride, c->dim, c->k_panels,
                                    g.from, g.to, c->p + r * CELL))
        if (gradients)
            BY_COUNT(n, multiply_panels(n_, c->dout + r * c->v_stride, c->v_stride, c->v_dim,
                                        c->v_panels, g.from, g.to, c->ds + r * CELL))
        for (int i = r; i < r + n; i++)
            weigh_row(c, i, gradients, c->p + i * CELL, c->ds + i * CELL);
    }
}

/* --- sums --- */

/* Whether all is finite. */
CPU_INLINE int is_finite(int count, group_sum sum) {
    simd_u32 odd = {0};
#pragma GCC unroll 12
    for (int i = 0; i < count; i++)
        for (int part = 0; part < 2; part++)
            odd |= (simd_u32)(sum[i][part] * simd_set_f(0) != (simd_f32){0});
    return !simd_any(odd);
}

/* The chains of a group from key or row `from` on. Strides that are known leave registers. */
CPU_INLINE void multiply_cell(int transposed, int count, const backward_product *x, int i, int from,
                              int steps, int e, group_sum sum) {
    const int64_t row = transposed ? 1 : CELL, step = transposed ? CELL : 1;
    multiply(count, x->a + i * row + from * step, row, step, steps, x->b + from * x->stride + e,
             x->stride, sum);
}

CPU_INLINE void add_sums(const backward_product *x, int i, int count, int e, group_sum sum) {
#pragma GCC unroll 12
    for (int n = 0; n < count; n++)
        for (int part = 0; part < 2; part++) {
            float *at = x->to + (i + n) * x->stride + e + part * SIMD_LANES;
            simd_store_f(at, simd_load_f(at) + sum[n][part]);
        }
}

/* The same chain over what is seen alone: 0 * infinity is not 0. */
static CPU_NOINLINE void add_seen(const backward_product *x, int i, int e) {
    group_sum sum;
    const int from = x->first[i], steps = x->last[i] - from;
    if (x->transposed)
        multiply_cell(1, 1, x, i, from, steps, e, sum);
    else
        multiply_cell(0, 1, x, i, from, steps, e, sum);
    add_sums(x, i, 1, e, sum);
}

/* Elements e.. of a group; returns whether its numbers may be added. */
CPU_INLINE int add_group(int transposed, int count, const backward_product *x, int i, group_range g,
                         int e) {
    group_sum sum;
    multiply_cell(transposed, count, x, i, g.from, g.to - g.from, e, sum);
    if (g.partial && !is_finite(count, sum))
        return 0;
    add_sums(x, i, count, e, sum);
    return 1;
}

/* A group, or where its numbers may not be added what each of it sees. */
CPU_INLINE void add_panel(int transposed, const backward_product *x, int i, int n, group_range g,
                          int e) {
    int added = 0;
    BY_COUNT(n, added = add_group(transposed, n_, x, i, g, e))
    for (int m = i; m < i + n && !added; m++)
        if (x->first[m] < x->last[m])
            add_seen(x, m, e);
}

CPU_INLINE void add_all(int transposed, const backward_product *x) {
    for (int i = 0, n; i < x->count; i += n) {
        n = group_of(x->count - i);
        const group_range g = range_of(x->first, x->last, i, n);
        for (int e = 0; e < x->n && g.from < g.to; e += PANEL)
            add_panel(transposed, x, i, n, g, e);
    }
}

static void cell_add(const backward_product *x) {
    if (x->transposed)
        add_all(1, x);
    else
        add_all(0, x);
}

#define BACKWARD_KERNEL(attention_kernel)                                                          \
    {                                                                                              \
        .attention = &(attention_kernel), .dot = weights_dot, .pack = cell_pack,                   \
        .weigh = cell_weigh, .add = cell_add                                                       \
    }

#endif
