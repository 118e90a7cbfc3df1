/*
 * Cells, compiled by the file that includes this with its vectors: weights, gradients of scores,
 * and sums of rows.
 */
#ifndef ROPEKIT_CPU_ATTENTION_BACKWARD_CELL_H
#define ROPEKIT_CPU_ATTENTION_BACKWARD_CELL_H

#include "backends/cpu/attention/exp2.h"
#include "backends/cpu/attention_backward/kernel.h"
#include "backends/cpu/simd/element.h"

/* Two vectors by as many rows as accumulators leave registers for. */
enum { PANEL = 2 * SIMD_LANES, GROUP = SIMD_LANES == 16 ? 12 : 6, CELL = CPU_BACKWARD_CELL };

_Static_assert(CPU_ATTENTION_PAD % PANEL == 0 && CELL % GROUP == 0 && CELL % PANEL == 0, "whole");

typedef simd_f32 group_sum[GROUP][2];

/* A count that has an instance. */
CPU_INLINE int group_of(int left) {
    return left >= GROUP ? GROUP : left >= 6 ? 6 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

#define BY_COUNT(count, call)                                                                      \
    switch (count) {                                                                               \
    case 1: {                                                                                      \
        enum { n_ = 1 };                                                                           \
        call;                                                                                      \
    } break;                                                                                       \
    case 2: {                                                                                      \
        enum { n_ = 2 };                                                                           \
        call;                                                                                      \
    } break;                                                                                       \
    case 4: {                                                                                      \
        enum { n_ = 4 };                                                                           \
        call;                                                                                      \
    } break;                                                                                       \
    case 6: {                                                                                      \
        enum { n_ = 6 };                                                                           \
        call;                                                                                      \
    } break;                                                                                       \
    default: {                                                                                     \
        enum { n_ = GROUP };                                                                       \
        call;                                                                                      \
    }                                                                                              \
    }

/* sum = the chain of a[i][j] * b[j] over `steps` j, for `count` i. */
CPU_INLINE void multiply(int count, const float *a, int64_t a_row, int64_t a_step, int steps,
                         const float *b, int64_t b_step, group_sum sum) {
#pragma GCC unroll 12
    for (int i = 0; i < count; i++)
        sum[i][0] = sum[i][1] = (simd_f32){0};
    for (int j = 0; j < steps; j++, a += a_step, b += b_step) {
        const simd_f32 low = simd_load_f(b), high = simd_load_f(b + SIMD_LANES);
#pragma GCC unroll 12
        for (int i = 0; i < count; i++) {
            const simd_f32 x = simd_set_f(a[i * a_row]);
            sum[i][0] = simd_fma(x, low, sum[i][0]);
            sum[i][1] = simd_fma(x, high, sum[i][1]);
        }
    }
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

/* Products of a group of rows and of the panels of keys that it sees. */
CPU_INLINE void multiply_panels(int count, const float *rows, int64_t stride, int n,
                                const float *panels, int from, int to, float *products) {
    for (int key = from / PANEL * PANEL; key < to; key += PANEL) {
        group_sum sum;
        multiply(count, rows, stride, 1, n, panels + (int64_t)key * n, PANEL, sum);
#pragma GCC unroll 12
        for (int i = 0; i < count; i++) {
            simd_store_f(products + i * CELL + key, sum[i][0]);
            simd_store_f(products + i * CELL + key + SIMD_LANES, sum[i][1]);
        }
    }
}

/* Scores become weights, products of dout and v gradients of scores. */
static void weigh_row(const backward_cell *c, int row, int gradients) {
    float *p = c->p + row * CELL, *ds = c->ds + row * CELL;
    const simd_f32 factor = simd_set_f(c->factor), less = simd_set_f(-c->lse[row]),
                   delta = simd_set_f(c->delta[row]), one = simd_set_f(1);
    simd_i32 lane = {0};
    for (int i = 0; i < SIMD_LANES; i++)
        lane[i] = i;
    for (int k = 0; k < CELL; k += SIMD_LANES, lane += SIMD_LANES) {
        simd_f32 weight = {0}, gradient = {0};
        if (k < c->last[row] && k + SIMD_LANES > c->first[row]) {
            const simd_i32 sees = (lane >= c->first[row]) & (lane < c->last[row]);
            simd_f32 s = simd_load_f(p + k), slope = one;
            if (c->cap != 0) {
                const simd_f32 t = attention_tanh(s * simd_set_f(c->to_cap));
                s = t * simd_set_f(c->cap);
                slope = simd_fma(-t, t, one);
            }
            weight = attention_exp2(simd_fma(s, factor, less));
            if (gradients)
                gradient = weight * (simd_load_f(ds + k) - delta) * slope;
            weight = attention_where(sees, weight, (simd_f32){0});
            gradient = attention_where(sees, gradient, (simd_f32){0});
        }
        simd_store_f(p + k, weight);
        if (gradients)
            simd_store_f(ds + k, gradient);
    }
}

static void cell_weigh(const backward_cell *c, int gradients) {
    for (int r = 0, n; r < c->rows; r += n) {
        int from = CELL, to = 0;
        n = group_of(c->rows - r);
        for (int i = r; i < r + n; i++) {
            if (c->first[i] >= c->last[i])
                continue;
            from = c->first[i] < from ? c->first[i] : from;
            to = c->last[i] > to ? c->last[i] : to;
        }
        BY_COUNT(n, multiply_panels(n_, c->q + r * c->q_stride, c->q_stride, c->dim, c->k_panels,
                                    from, to, c->p + r * CELL))
        if (gradients)
            BY_COUNT(n, multiply_panels(n_, c->dout + r * c->v_stride, c->v_stride, c->v_dim,
                                        c->v_panels, from, to, c->ds + r * CELL))
        for (int i = r; i < r + n; i++)
            weigh_row(c, i, gradients);
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

/* The same chain over what is seen alone: 0 * infinity is not 0. */
static CPU_NOINLINE void add_seen(const backward_product *x, int i, int e) {
    group_sum sum;
    const int first = x->first[i];
    multiply(1, x->a + i * x->a_row + first * x->a_step, x->a_row, x->a_step, x->last[i] - first,
             x->b + first * x->stride + e, x->stride, sum);
    float *to = x->to + i * x->stride + e;
    for (int part = 0; part < 2; part++, to += SIMD_LANES)
        simd_store_f(to, simd_load_f(to) + sum[0][part]);
}

/* Elements e.. of a group, over from..to - 1; returns whether its numbers may be added. */
CPU_INLINE int add_group(const backward_product *x, int i, int count, int from, int to, int partial,
                         int e) {
    group_sum sum;
    multiply(count, x->a + i * x->a_row + from * x->a_step, x->a_row, x->a_step, to - from,
             x->b + from * x->stride + e, x->stride, sum);
    if (partial && !is_finite(count, sum))
        return 0;
#pragma GCC unroll 12
    for (int n = 0; n < count; n++)
        for (int part = 0; part < 2; part++) {
            float *at = x->to + (i + n) * x->stride + e + part * SIMD_LANES;
            simd_store_f(at, simd_load_f(at) + sum[n][part]);
        }
    return 1;
}

static void cell_add(const backward_product *x) {
    for (int e = 0; e < x->n; e += PANEL)
        for (int i = 0, n; i < x->count; i += n) {
            int from = CELL, to = 0, partial = 0, added = 0;
            n = group_of(x->count - i);
            for (int m = i; m < i + n; m++) {
                if (x->first[m] >= x->last[m])
                    continue;
                from = x->first[m] < from ? x->first[m] : from;
                to = x->last[m] > to ? x->last[m] : to;
            }
            if (from >= to)
                continue;
            for (int m = i; m < i + n; m++)
                partial |= x->first[m] != from || x->last[m] != to;
            BY_COUNT(n, added = add_group(x, i, n_, from, to, partial, e))
            for (int m = i; m < i + n && !added; m++)
                if (x->first[m] < x->last[m])
                    add_seen(x, m, e);
        }
}

/* A tree over lanes of eight chains. */
static float cell_dot(const float *a, const float *b, int n) {
    simd_f32 sum[2] = {{0}, {0}};
    float total = 0;
    int i = 0;
    for (; i + PANEL <= n; i += PANEL)
        for (int part = 0; part < 2; part++)
            sum[part] = simd_fma(simd_load_f(a + i + part * SIMD_LANES),
                                 simd_load_f(b + i + part * SIMD_LANES), sum[part]);
    sum[0] += sum[1];
    for (int lane = 0; lane < SIMD_LANES; lane++)
        total += sum[0][lane];
    for (; i < n; i++)
        total += a[i] * b[i];
    return total;
}

#define BACKWARD_KERNEL(attention_kernel)                                                          \
    {                                                                                              \
        .attention = &(attention_kernel), .dot = cell_dot, .pack = cell_pack, .weigh = cell_weigh, \
        .add = cell_add                                                                            \
    }

#endif
