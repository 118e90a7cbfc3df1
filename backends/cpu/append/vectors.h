/* Whole vectors of the steps of "append"; each returns how many elements it did. */
#ifndef ROPEKIT_CPU_APPEND_VECTORS_H
#define ROPEKIT_CPU_APPEND_VECTORS_H

#include "backends/cpu/simd/element.h"
#include "common/math/fp8.h"

#define STEPS_VECTORS

typedef uint8_t simd_u8 __attribute__((vector_size(SIMD_LANES)));

/* Nodes of neighbours: those of 2 * SIMD_LANES elements, and of two vectors of nodes. */
CPU_INLINE simd_f32 vector_node(int sum, int dtype, const char *x, simd_f32 mean) {
    simd_pair pair = simd_load_neighbours(dtype, x);
    if (sum == CPU_SUM_ELEMENTS)
        return pair.x1 + pair.x2;
    if (sum == CPU_SUM_DEVIATIONS) {
        pair.x1 -= mean;
        pair.x2 -= mean;
    }
    return simd_fma(pair.x2, pair.x2, pair.x1 * pair.x1);
}

CPU_INLINE simd_f32 vector_level(simd_f32 a, simd_f32 b) {
    return simd_even(a, b) + simd_odd(a, b);
}

/* Lists of n elements each, one after the other in a list of nodes: n is a power of two and at most
 * CPU_NORM_LONGEST. Levels join within a list up to its sum. */
CPU_INLINE void vector_sums(int sum, int dtype, const char *const x[CPU_NORM_LISTS], int64_t n,
                            const float *mean, float *sums) {
    const int step = 2 * SIMD_LANES * cpu_dtype_size(dtype);
    simd_f32 node[CPU_NORM_LISTS * CPU_NORM_LONGEST / 4 / SIMD_LANES];
    int count = 0;
    for (int list = 0; list < CPU_NORM_LISTS; list++) {
        const simd_f32 m = simd_set_f(mean[list]);
        for (int64_t i = 0; i < n / 2; i += 2 * SIMD_LANES, count++) {
            const char *at = x[list] + i * 2 * cpu_dtype_size(dtype);
            node[count] =
                vector_level(vector_node(sum, dtype, at, m), vector_node(sum, dtype, at + step, m));
        }
    }
    for (int64_t width = n / 4; width > 1; width /= 2) {
        if (count == 1) {
            node[0] = vector_level(node[0], node[0]);
            continue;
        }
        count /= 2;
        for (int v = 0; v < count; v++)
            node[v] = vector_level(node[2 * v], node[2 * v + 1]);
    }
    memcpy(sums, &node[0], CPU_NORM_LISTS * sizeof *sums);
}

/* The node of CPU_NORM_BLOCK elements. */
CPU_INLINE float vector_block(int sum, int dtype, const char *x, float mean) {
    enum { VECTORS = CPU_NORM_BLOCK / 2 / SIMD_LANES };
    simd_f32 node[VECTORS];
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++)
        node[v] = vector_node(sum, dtype, x + 2 * v * SIMD_LANES * cpu_dtype_size(dtype),
                              simd_set_f(mean));
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

/* x where it is a number, else a NaN whose low half is empty: for simd_bf16_words. */
CPU_INLINE simd_f32 vector_quiet(simd_f32 x) {
    /* A NaN differs from itself. NOLINTNEXTLINE(misc-redundant-expression) */
    const simd_u32 nan = (simd_u32)(x != x), quiet = (simd_u32){0} + 0x7fc00000u;
    return (simd_f32)simd_select(nan, quiet, (simd_u32)x);
}

/* Rounds to dtype whatever x is, but keeps no NaN's bits. */
CPU_INLINE void vector_put(int dtype, char *y, simd_f32 x) {
    simd_narrow(dtype, 0, y, dtype == ROPE_BF16 ? vector_quiet(x) : x);
}

CPU_INLINE simd_f32 vector_normalized(const rope_append_steps *s, int dtype, rope_norm_values v,
                                      const char *x, const char *weight, int64_t i) {
    const int size = cpu_dtype_size(dtype), wide = s->weight_dtype == ROPE_F32;
    simd_f32 a = simd_widen(dtype, x + i * size);
    if (s->norm == ROPE_NORM_LAYER)
        a = a - simd_set_f(v.mean);
    a = a * simd_set_f(v.reciprocal);
    if (s->weight == 0)
        return a;
    simd_f32 w = wide ? simd_load_f(weight + i * 4) : simd_widen(dtype, weight + i * size);
    if (s->rounding == ROPE_NORM_ROUND_TWICE)
        a = simd_round_to(dtype, a);
    if (s->weight == ROPE_NORM_ONE_PLUS_WEIGHT)
        w = simd_set_f(1) + w;
    a = a * w;
    return wide && dtype == ROPE_BF16 ? vector_quiet(a) : a;
}

/* Of NaNs fp32 weights alone may have bits that simd_bf16_words does not expect. */
CPU_INLINE int64_t vector_normalize(const rope_append_steps *s, int dtype, rope_norm_values v,
                                    const char *x, const char *weight, char *y) {
    const int size = cpu_dtype_size(dtype);
    int64_t i = 0;
    for (; i + 2 * SIMD_LANES <= s->norm_dim; i += 2 * SIMD_LANES)
        simd_narrow_two(dtype, 0, y + i * size, vector_normalized(s, dtype, v, x, weight, i),
                        vector_normalized(s, dtype, v, x, weight, i + SIMD_LANES));
    for (; i + SIMD_LANES <= s->norm_dim; i += SIMD_LANES)
        simd_narrow(dtype, 0, y + i * size, vector_normalized(s, dtype, v, x, weight, i));
    return i;
}

/* rope_to_f8, the bits of lanes in their low byte. */
CPU_INLINE simd_u32 vector_to_f8(int store_dtype, simd_f32 x) {
    const rope_f8_format f = rope_f8_format_of(store_dtype);
    const int shift = 23 - f.mantissa;
    const uint32_t base = (uint32_t)(127 - f.bias) << 23,
                   magic = (uint32_t)(127 + 24 - f.bias - f.mantissa) << 23;
    const simd_u32 u = (simd_u32)x & 0x7fffffffu, sign = (simd_u32)x >> 24 & 0x80u;
    const simd_u32 small = (simd_u32)((simd_f32)u + (simd_f32)((simd_u32){0} + magic)) - magic,
                   whole = (u - base + (1u << (shift - 1)) - 1 + (u >> shift & 1u)) >> shift;
    const simd_i32 is_small =
        (simd_i32)u<(int32_t)(base + (1u << 23)), is_nan = (simd_i32)u> 0x7f800000;
    simd_u32 code = simd_select((simd_u32)is_small, small, whole);
    code = simd_select((simd_u32)((simd_i32)code > (int32_t)f.largest), (simd_u32){0} + f.largest,
                       code);
    if (f.signed_zero)
        code |= sign;
    else
        code |= sign & (simd_u32)(code != 0);
    return simd_select((simd_u32)is_nan, (simd_u32){0} + f.nan, code);
}

/* rope_to_i8: adding 1.5 * 2^23 puts units at the last bit of the sum. */
CPU_INLINE simd_u32 vector_to_i8(simd_f32 x) {
    const simd_f32 low = simd_set_f(-128), high = simd_set_f(127);
    x = (simd_f32)simd_select((simd_u32)(x < low), (simd_u32)low, (simd_u32)x);
    x = (simd_f32)simd_select((simd_u32)(x > high), (simd_u32)high, (simd_u32)x);
    /* A NaN differs from itself. NOLINTNEXTLINE(misc-redundant-expression) */
    return (simd_u32)(x + simd_set_f(0x1.8p+23f)) & (simd_u32)(x == x);
}

/* x / scale as far as 8 bits tell it from another number, for a scale within 2^-60..2^60. Each
 * fused step takes q nearer to the quotient: the first to within an ulp, and the second rounds it
 * correctly (Markstein) where the quotient is 2^-20 or more; below, every format has 0. A q whose
 * remainder may not be finite saturates as it is. */
CPU_INLINE simd_f32 vector_divided(simd_f32 x, simd_f32 scale, simd_f32 reciprocal) {
    const simd_f32 first = x * reciprocal;
    const simd_i32 small = (simd_i32)((simd_u32)first & 0x7fffffffu) < 0x4e800000; /* 2^30 */
    simd_f32 q = simd_fma(-simd_fma(first, scale, -x), reciprocal, first);
    q = simd_fma(-simd_fma(q, scale, -x), reciprocal, q);
    return (simd_f32)simd_select((simd_u32)small, (simd_u32)q, (simd_u32)first);
}

CPU_INLINE simd_u32 vector_to_8bit(int store_dtype, simd_f32 x) {
    return store_dtype == ROPE_F8E4M3   ? vector_to_f8(ROPE_F8E4M3, x)
           : store_dtype == ROPE_F8E5M2 ? vector_to_f8(ROPE_F8E5M2, x)
           : store_dtype == ROPE_I8     ? vector_to_i8(x)
                                        : vector_to_f8(ROPE_F8E4M3FNUZ, x);
}

CPU_INLINE int64_t vector_store_8bit(int dtype, int store_dtype, float scale, const char *x,
                                     char *y, int64_t n) {
    const int fast = scale >= 0x1p-60f && scale <= 0x1p60f;
    const simd_f32 divisor = simd_set_f(scale), reciprocal = simd_set_f(1 / scale);
    int64_t i = 0;
    for (; i + SIMD_LANES <= n; i += SIMD_LANES) {
        const simd_f32 a = simd_widen(dtype, x + i * cpu_dtype_size(dtype));
        const simd_u32 codes = vector_to_8bit(
            store_dtype, fast ? vector_divided(a, divisor, reciprocal) : a / divisor);
        const simd_u8 bytes = __builtin_convertvector(codes, simd_u8);
        memcpy(y + i, &bytes, sizeof bytes);
    }
    return i;
}

CPU_INLINE int64_t vector_store_whole(int dtype, int store_dtype, const char *x, char *y,
                                      int64_t n) {
    int64_t i = 0;
    for (; i + SIMD_LANES <= n; i += SIMD_LANES)
        vector_put(store_dtype, y + i * cpu_dtype_size(store_dtype),
                   simd_widen(dtype, x + i * cpu_dtype_size(dtype)));
    return i;
}

/* One loop for each type. */
CPU_INLINE int64_t vector_store(int dtype, int store_dtype, float scale, const char *x, char *y,
                                int64_t n) {
    switch (store_dtype) {
    case ROPE_F32:
        return vector_store_whole(dtype, ROPE_F32, x, y, n);
    case ROPE_F16:
        return vector_store_whole(dtype, ROPE_F16, x, y, n);
    case ROPE_BF16:
        return vector_store_whole(dtype, ROPE_BF16, x, y, n);
    case ROPE_F8E4M3:
        return vector_store_8bit(dtype, ROPE_F8E4M3, scale, x, y, n);
    case ROPE_F8E5M2:
        return vector_store_8bit(dtype, ROPE_F8E5M2, scale, x, y, n);
    case ROPE_I8:
        return vector_store_8bit(dtype, ROPE_I8, scale, x, y, n);
    default:
        return vector_store_8bit(dtype, ROPE_F8E4M3FNUZ, scale, x, y, n);
    }
}

/* rope_from_f8 of the codes in lanes. */
CPU_INLINE simd_f32 vector_from_f8(int store_dtype, simd_u32 h) {
    const rope_f8_format f = rope_f8_format_of(store_dtype);
    const simd_u32 code = h & 0x7fu, sign = (h & 0x80u) << 24;
    const uint32_t unit = (uint32_t)(127 + 1 - f.bias - f.mantissa) << 23;
    const simd_f32 units =
        __builtin_convertvector((simd_i32)code, simd_f32) * (simd_f32)((simd_u32){0} + unit);
    const simd_u32 whole = (code << (23 - f.mantissa)) + ((uint32_t)(127 - f.bias) << 23),
                   is_small = (simd_u32)(code >> f.mantissa == 0),
                   is_nan = f.signed_zero ? (simd_u32)((simd_i32)code > (int32_t)f.largest)
                                          : (simd_u32)(h == f.nan);
    simd_u32 x = simd_select(is_small, (simd_u32)units, whole) | sign;
    x = simd_select(is_nan, (simd_u32){0} + 0x7fc00000u, x);
    if (store_dtype == ROPE_F8E5M2)
        x = simd_select((simd_u32)(code == 0x7cu), 0x7f800000u | sign, x);
    return (simd_f32)x;
}

CPU_INLINE simd_f32 vector_from_8bit(int store_dtype, const char *x) {
    simd_u8 bytes;
    memcpy(&bytes, x, sizeof bytes);
    const simd_u32 h = __builtin_convertvector(bytes, simd_u32);
    if (store_dtype == ROPE_I8)
        return __builtin_convertvector((simd_i32)(h << 24) >> 24, simd_f32);
    return store_dtype == ROPE_F8E4M3   ? vector_from_f8(ROPE_F8E4M3, h)
           : store_dtype == ROPE_F8E5M2 ? vector_from_f8(ROPE_F8E5M2, h)
                                        : vector_from_f8(ROPE_F8E4M3FNUZ, h);
}

CPU_INLINE int64_t vector_load(int dtype, int store_dtype, float scale, const char *x, char *y,
                               int64_t n) {
    const int size = cpu_dtype_size(dtype);
    const simd_f32 scales = simd_set_f(scale);
    int64_t i = 0;
    for (; i + SIMD_LANES <= n; i += SIMD_LANES) {
        const simd_f32 a = store_dtype == ROPE_F32    ? simd_load_f(x + i * 4)
                           : store_dtype == ROPE_BF16 ? simd_widen(ROPE_BF16, x + i * 2)
                           : store_dtype == ROPE_F16
                               ? simd_widen(ROPE_F16, x + i * 2)
                               : vector_from_8bit(store_dtype, x + i) * scales;
        vector_put(dtype, y + i * size, a);
    }
    return i;
}

CPU_INLINE int64_t vector_largest(int dtype, const char *x, int64_t n, uint32_t *largest) {
    simd_u32 most = {0};
    int64_t i = 0;
    for (; i + SIMD_LANES <= n; i += SIMD_LANES) {
        const simd_u32 u = (simd_u32)simd_widen(dtype, x + i * cpu_dtype_size(dtype)) & 0x7fffffffu;
        const simd_u32 finite = (simd_u32)((simd_i32)u < 0x7f800000),
                       above = (simd_u32)((simd_i32)u > (simd_i32)most);
        most = simd_select(finite & above, u, most);
    }
    for (int lane = 0; lane < SIMD_LANES; lane++)
        *largest = most[lane] > *largest ? most[lane] : *largest;
    return i;
}

#endif
