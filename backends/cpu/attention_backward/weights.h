/*
 * What kernels of cells share, compiled by the file that includes this with its vectors: what is
 * seen, weights and gradients of scores, sums of products.
 */
#ifndef ROPEKIT_CPU_ATTENTION_BACKWARD_WEIGHTS_H
#define ROPEKIT_CPU_ATTENTION_BACKWARD_WEIGHTS_H

#include "backends/cpu/attention/exp2.h"
#include "backends/cpu/attention_backward/kernel.h"
#include "backends/cpu/simd/element.h"

enum { CELL = CPU_BACKWARD_CELL };

/* What a group of i sees: of all, and whether some of them see less. */
typedef struct group_range {
    int from, to, partial;
} group_range;

CPU_INLINE group_range range_of(const int16_t *first, const int16_t *last, int i, int count) {
    group_range g = {CELL, 0, 0};
    for (int n = i; n < i + count; n++) {
        if (first[n] >= last[n])
            continue;
        g.from = first[n] < g.from ? first[n] : g.from;
        g.to = last[n] > g.to ? last[n] : g.to;
    }
    for (int n = i; n < i + count; n++)
        g.partial |= first[n] != g.from || last[n] != g.to;
    return g;
}

CPU_INLINE float sum_of_lanes(simd_f32 x) {
    float sum = 0;
    for (int i = 0; i < SIMD_LANES; i++)
        sum += x[i];
    return sum;
}

/* What is kept of the key that is alone. */
static CPU_NOINLINE void find_alone(backward_share *share, simd_f32 slopes, const float *p,
                                    const float *ds) {
    int k = 0;
    while (!simd_any((simd_u32)(simd_load_f(p + k) > simd_set_f(CPU_BACKWARD_ALONE))))
        k += SIMD_LANES;
    while (!(p[k] > CPU_BACKWARD_ALONE))
        k++;
    *share = (backward_share){share->others, share->weight, ds[k], slopes[k % SIMD_LANES], k};
}

/* Scores become weights, products of dout and v gradients of scores. */
static void weigh_row(backward_cell *c, int row, int gradients, float *p, float *ds) {
    const simd_f32 factor = simd_set_f(c->factor), less = simd_set_f(-c->lse[row]),
                   delta = simd_set_f(c->delta[row]), one = simd_set_f(1);
    simd_i32 lane = {0};
    simd_f32 others = {0}, weights = {0}, slopes = one;
    simd_i32 alone = {0};
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
                gradient = weight * (simd_load_f(ds + k) - delta);
            weight = attention_where(sees, weight, (simd_f32){0});
            if (gradients && c->balances) {
                const simd_i32 large = weight > simd_set_f(CPU_BACKWARD_ALONE);
                alone |= large;
                weights += weight;
                others += attention_where(sees & ~large, gradient, (simd_f32){0});
                if (c->cap != 0)
                    slopes = attention_where(large, slope, slopes);
            }
            gradient = attention_where(sees, gradient * slope, (simd_f32){0});
        }
        simd_store_f(p + k, weight);
        if (gradients)
            simd_store_f(ds + k, gradient);
    }
    if (!gradients || !c->balances)
        return;
    c->share[row] = (backward_share){sum_of_lanes(others), sum_of_lanes(weights), 0, 1, -1};
    if (simd_any((simd_u32)alone))
        find_alone(&c->share[row], slopes, p, ds);
}

/* A tree over lanes of eight chains. */
static float weights_dot(const float *a, const float *b, int n) {
    simd_f32 sum[2] = {{0}, {0}};
    float total = 0;
    int i = 0;
    for (; i + 2 * SIMD_LANES <= n; i += 2 * SIMD_LANES)
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

#endif
