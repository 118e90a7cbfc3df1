/* Rows that are multiplied together, compiled by the file that includes this with its vectors. */
#ifndef ROPEKIT_CPU_ATTENTION_ROW_GROUPS_H
#define ROPEKIT_CPU_ATTENTION_ROW_GROUPS_H

#include "backends/cpu/attention/kernel.h"
#include "backends/cpu/simd/vector.h"

/* Two vectors by as many rows as accumulators leave registers for. */
enum {
    PANEL = 2 * SIMD_LANES,
    GROUP = SIMD_LANES == 16 ? 12 : 6,
    CHAINS = SIMD_LANES == 4 ? 4 : 8,
    SEGMENT = CHAINS * CPU_ATTENTION_CHAIN,
};

typedef simd_f32 group_sum[GROUP][2];

CPU_INLINE void clear_sums(int count, group_sum sum) {
#pragma GCC unroll 12
    for (int i = 0; i < count; i++)
        sum[i][0] = sum[i][1] = (simd_f32){0};
}

/* Goes on with the chains of a[i][j] * b[j] over `steps` j, for `count` i. */
CPU_INLINE void multiply_on(int count, const float *a, int64_t a_row, int64_t a_step, int steps,
                            const float *b, int64_t b_step, group_sum sum) {
#pragma GCC unroll 2
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

/* Chains of a product of two rows, of SEGMENT elements after SEGMENT elements. A chain has each
 * CHAINS-th element of a segment, so that lanes can be the chains of a row as it lies in memory, or
 * the rows of a panel. A segment's are joined as neighbours of a tree, segments in their order. */
CPU_INLINE int chains_of(int dim) {
    return (dim + SEGMENT - 1) / SEGMENT * CHAINS;
}

/* Of each level of the tree a node that waits for its neighbour. */
typedef float waiting_nodes[3][GROUP][PANEL];

_Static_assert(CHAINS <= 1 << 3, "as many levels");

/* sum[i] = to[i] + sum[i]. */
CPU_INLINE void add_stored(int count, const float *to, int stride, group_sum sum) {
#pragma GCC unroll 12
    for (int r = 0; r < count; r++)
        for (int part = 0; part < 2; part++)
            sum[r][part] = simd_load_f(to + r * stride + part * SIMD_LANES) + sum[r][part];
}

CPU_INLINE void store_sums(int count, group_sum sum, float *to, int64_t stride) {
#pragma GCC unroll 12
    for (int r = 0; r < count; r++)
        for (int part = 0; part < 2; part++)
            simd_store_f(to + r * stride + part * SIMD_LANES, sum[r][part]);
}

/* A chain of `count` rows by a panel; a segment's last one completes its part of the products. */
CPU_INLINE void add_chain(int count, int chain, const float *rows, int64_t row, int dim,
                          const float *panel, waiting_nodes waiting, float *products, int stride) {
    const int node = chain % CHAINS, segment = chain / CHAINS * SEGMENT, first = segment + node,
              last = segment + SEGMENT < dim ? segment + SEGMENT : dim;
    group_sum sum;
    int level = 0;
    clear_sums(count, sum);
    multiply_on(count, rows + first, row, CHAINS, (last - first + CHAINS - 1) / CHAINS,
                panel + first * PANEL, CHAINS * PANEL, sum);
    for (; node >> level & 1; level++)
        add_stored(count, waiting[level][0], PANEL, sum);
    if (node < CHAINS - 1) {
        store_sums(count, sum, waiting[level][0], PANEL);
        return;
    }
    if (segment > 0)
        add_stored(count, products, stride, sum);
    store_sums(count, sum, products, stride);
}

/* How many of the rows that are left: a count that has an instance. */
CPU_INLINE int group_of(int left) {
    return left >= GROUP            ? GROUP
           : GROUP > 8 && left >= 8 ? 8
           : left >= 6              ? 6
           : left >= 4              ? 4
           : left >= 2              ? 2
                                    : 1;
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
    case 8: {                                                                                      \
        enum { n_ = GROUP > 8 ? 8 : GROUP };                                                       \
        call;                                                                                      \
    } break;                                                                                       \
    default: {                                                                                     \
        enum { n_ = GROUP };                                                                       \
        call;                                                                                      \
    }                                                                                              \
    }

#endif
