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
 * the rows of a panel. Chains are added in their order. */
CPU_INLINE int chains_of(int dim) {
    return (dim + SEGMENT - 1) / SEGMENT * CHAINS;
}

/* A chain of `count` rows by a panel; the first is stored, others are added to those before. */
CPU_INLINE void add_chain(int count, int chain, const float *rows, int64_t row, int dim,
                          const float *panel, float *products, int stride) {
    const int segment = chain / CHAINS * SEGMENT, first = segment + chain % CHAINS,
              last = segment + SEGMENT < dim ? segment + SEGMENT : dim;
    group_sum sum;
    clear_sums(count, sum);
    multiply_on(count, rows + first, row, CHAINS, (last - first + CHAINS - 1) / CHAINS,
                panel + first * PANEL, CHAINS * PANEL, sum);
#pragma GCC unroll 12
    for (int r = 0; r < count; r++)
        for (int part = 0; part < 2; part++) {
            float *at = products + r * stride + part * SIMD_LANES;
            simd_store_f(at, chain == 0 ? sum[r][part] : simd_load_f(at) + sum[r][part]);
        }
}

/* How many of the rows that are left: a count that has an instance. */
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

#endif
