/* Rows that are multiplied together, compiled by the file that includes this with its vectors. */
#ifndef ROPEKIT_CPU_ATTENTION_ROW_GROUPS_H
#define ROPEKIT_CPU_ATTENTION_ROW_GROUPS_H

#include "backends/cpu/attention/kernel.h"
#include "backends/cpu/simd/vector.h"

/* Two vectors by as many rows as accumulators leave registers for. */
enum {
    PANEL = 2 * SIMD_LANES,
    GROUP = SIMD_LANES == 16 ? 12 : 6,
    CHAIN = CPU_ATTENTION_CHAIN,
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

/* Stores the first chains of `count` rows of scores, or adds to those before. */
CPU_INLINE void add_chains(int count, int first, group_sum sum, float *scores, int stride) {
#pragma GCC unroll 12
    for (int r = 0; r < count; r++)
        for (int part = 0; part < 2; part++) {
            float *at = scores + r * stride + part * SIMD_LANES;
            simd_store_f(at, first ? sum[r][part] : simd_load_f(at) + sum[r][part]);
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
