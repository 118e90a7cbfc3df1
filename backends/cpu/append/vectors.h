/* Whole vectors of the steps of "append"; each returns how many elements it did. */
#ifndef ROPEKIT_CPU_APPEND_VECTORS_H
#define ROPEKIT_CPU_APPEND_VECTORS_H

#include "backends/cpu/append/sums.h"
#include "common/math/fp8.h"

typedef int16_t simd_i16 __attribute__((vector_size(2 * SIMD_LANES)));

/* Rounds to dtype whatever x is, but keeps no NaN's bits. */
CPU_INLINE void vector_put(int dtype, char *y, simd_f32 x) {
    simd_narrow(dtype, 0, y, dtype == ROPE_BF16 ? simd_quiet_nan(x) : x);
}

/* Two vectors of elements in the order in which dtype widens at the least cost: bf16 has the even
 * ones and the odd ones, others one half after the other. */
CPU_INLINE simd_pair vector_load_two(int dtype, const char *p) {
    if (dtype == ROPE_BF16)
        return simd_load_neighbours(dtype, p);
    return (simd_pair){simd_widen(dtype, p),
                       simd_widen(dtype, p + SIMD_LANES * cpu_dtype_size(dtype))};
}

CPU_INLINE void vector_store_two(int dtype, char *p, simd_pair y) {
    if (dtype == ROPE_BF16)
        simd_store_neighbours(dtype, 0, p, y);
    else
        simd_narrow_two(dtype, 0, p, y.x1, y.x2);
}

/* rope_norm_weight_of in fp32, in the order of vector_load_two. Of NaNs fp32 weights alone may have
 * bits that simd_bf16_words does not expect. */
CPU_INLINE void vector_weights(const rope_append_steps *s, int dtype, int64_t n, const char *weight,
                               float *weights) {
    const int wide = s->weight_dtype == ROPE_F32, size = wide ? 4 : cpu_dtype_size(dtype);
    const simd_f32 one = simd_set_f(s->weight == ROPE_NORM_ONE_PLUS_WEIGHT);
    for (int64_t i = 0; i + 2 * SIMD_LANES <= n; i += 2 * SIMD_LANES) {
        const char *at = weight + i * size;
        simd_pair w = !wide                ? vector_load_two(dtype, at)
                      : dtype == ROPE_BF16 ? simd_load_neighbours(ROPE_F32, at)
                                           : vector_load_two(ROPE_F32, at);
        if (wide && dtype == ROPE_BF16)
            w = (simd_pair){simd_quiet_nan(w.x1), simd_quiet_nan(w.x2)};
        if (s->weight == ROPE_NORM_ONE_PLUS_WEIGHT)
            w = (simd_pair){one + w.x1, one + w.x2};
        simd_store_f(weights + i, w.x1);
        simd_store_f(weights + i + SIMD_LANES, w.x2);
    }
}

CPU_INLINE simd_f32 vector_normalized(const rope_append_steps *s, int dtype, rope_norm_values v,
                                      simd_f32 x, simd_f32 w) {
    if (s->norm == ROPE_NORM_LAYER)
        x = x - simd_set_f(v.mean);
    x = x * simd_set_f(v.reciprocal);
    if (s->weight == 0)
        return x;
    return (s->rounding == ROPE_NORM_ROUND_TWICE ? simd_round_to(dtype, x) : x) * w;
}

CPU_INLINE int64_t vector_normalize(const rope_append_steps *s, int dtype, int64_t n,
                                    rope_norm_values v, const char *x, const float *weights,
                                    char *y, int64_t ahead) {
    const int size = cpu_dtype_size(dtype);
    int64_t i = 0;
#pragma GCC unroll 2
    for (; i + 2 * SIMD_LANES <= n; i += 2 * SIMD_LANES) {
        const simd_pair a = vector_load_two(dtype, x + i * size);
        if (ahead && i * size % 64 == 0)
            __builtin_prefetch((const void *)((uintptr_t)x + (uintptr_t)(ahead + i * size)), 0, 2);
        const simd_f32 w1 = simd_load_f(weights + i), w2 = simd_load_f(weights + i + SIMD_LANES);
        vector_store_two(dtype, y + i * size,
                         (simd_pair){vector_normalized(s, dtype, v, a.x1, w1),
                                     vector_normalized(s, dtype, v, a.x2, w2)});
    }
    return i;
}

/* rope_to_f8, the bits of lanes in their low byte. Adding 2^23 of the units that x has in the
 * format, 2^shift of the power of two below x or of the least normal number, puts the unit at the
 * last bit of the sum: above that of what was added it has x in units. A NaN's code comes out
 * beyond every other. */
CPU_INLINE simd_u32 vector_to_f8(int store_dtype, simd_f32 x) {
    const rope_f8_format f = rope_f8_format_of(store_dtype);
    const int shift = 23 - f.mantissa;
    const uint32_t base = (uint32_t)(127 + 1 - f.bias) << 23;
    const simd_f32 a = simd_min_f((simd_f32)((simd_u32)x & 0x7fffffffu),
                                  simd_set_f(rope_8bit_largest(store_dtype)));
    const simd_u32 power = simd_max_i((simd_u32)a & 0x7f800000u, (simd_u32){0} + base);
    const simd_f32 sum = simd_fma((simd_f32)power, simd_set_f((float)(1 << shift)), a);
    const simd_u32 units = (simd_u32)sum - power +
                           ((power >> shift) - (base >> shift) - ((uint32_t)shift << 23)),
                   code = simd_min_u(units, (simd_u32){0} + f.nan),
                   sign = (simd_u32)x >> 24 & 0x80u;
    const simd_i32 has_sign = f.signed_zero ? (simd_i32)code < (int32_t)f.nan : (simd_i32)code > 0;
    return code | (sign & (simd_u32)has_sign);
}

/* rope_to_i8: adding 1.5 * 2^23 puts units at the last bit of the sum. */
CPU_INLINE simd_u32 vector_to_i8(simd_f32 x) {
    const simd_f32 a = -simd_min_f(-simd_min_f(x, simd_set_f(127)), simd_set_f(128));
    /* A NaN differs from itself. NOLINTNEXTLINE(misc-redundant-expression) */
    return (simd_u32)(a + simd_set_f(0x1.8p+23f)) & (simd_u32)(x == x) & 0xffu;
}

CPU_INLINE simd_u32 vector_to_8bit(int store_dtype, simd_f32 x) {
    return store_dtype == ROPE_F8E4M3   ? vector_to_f8(ROPE_F8E4M3, x)
           : store_dtype == ROPE_F8E5M2 ? vector_to_f8(ROPE_F8E5M2, x)
           : store_dtype == ROPE_I8     ? vector_to_i8(x)
                                        : vector_to_f8(ROPE_F8E4M3FNUZ, x);
}

/* x * 1 / scale where that is x / scale: for powers of two. */
CPU_INLINE int64_t vector_store_by(int exact, int dtype, int store_dtype, float scale,
                                   const char *x, char *y, int64_t n) {
    const simd_f32 by = simd_set_f(exact ? 1 / scale : scale);
    int64_t i = 0;
    for (; i + 2 * SIMD_LANES <= n; i += 2 * SIMD_LANES) {
        const simd_pair a = simd_load_neighbours(dtype, x + i * cpu_dtype_size(dtype));
        const simd_u32 even = vector_to_8bit(store_dtype, exact ? a.x1 * by : a.x1 / by),
                       odd = vector_to_8bit(store_dtype, exact ? a.x2 * by : a.x2 / by);
        simd_store_h(y + i, simd_low_halves(even | odd << 8));
    }
    return i;
}

CPU_INLINE int64_t vector_store_8bit(int dtype, int store_dtype, float scale, const char *x,
                                     char *y, int64_t n) {
    const int exact =
        (rope_float_bits(scale) & 0x7fffffu) == 0 && scale >= 0x1p-126f && scale <= 0x1p126f;
    return exact ? vector_store_by(1, dtype, store_dtype, scale, x, y, n)
                 : vector_store_by(0, dtype, store_dtype, scale, x, y, n);
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

/* rope_from_f8 of codes in the high bytes of lanes, as f16, which has them all but for a power of
 * two; e5m2 is its upper half. A NaN's low bits are empty: for simd_bf16_words. */
CPU_INLINE simd_f32 vector_from_f8(int store_dtype, simd_u16 high) {
    if (store_dtype == ROPE_F8E5M2)
        return simd_from_f16(high);
    const rope_f8_format f = rope_f8_format_of(store_dtype);
    const simd_u16 code = f.signed_zero ? high & 0x7fff : high,
                   nan = (simd_u16)(code == (uint16_t)(f.nan << 8));
    const simd_u16 half = (simd_u16)((simd_i16)high >> 1 & (int16_t)0xbf80) | (nan & 0x7e00);
    return simd_from_f16(half) * simd_set_f((float)(1 << (15 - f.bias)));
}

CPU_INLINE simd_f32 vector_from_8bit(int store_dtype, simd_u16 high) {
    if (store_dtype == ROPE_I8)
        return __builtin_convertvector((simd_i32)(simd_words_of(high) << 16) >> 24, simd_f32);
    return store_dtype == ROPE_F8E4M3   ? vector_from_f8(ROPE_F8E4M3, high)
           : store_dtype == ROPE_F8E5M2 ? vector_from_f8(ROPE_F8E5M2, high)
                                        : vector_from_f8(ROPE_F8E4M3FNUZ, high);
}

CPU_INLINE int64_t vector_load_8bit(int dtype, int store_dtype, float scale, const char *x, char *y,
                                    int64_t n) {
    const simd_f32 scales = simd_set_f(scale);
    int64_t i = 0;
    for (; i + 2 * SIMD_LANES <= n; i += 2 * SIMD_LANES) {
        const simd_u16 two = simd_load_h(x + i);
        const simd_pair a = {vector_from_8bit(store_dtype, two << 8) * scales,
                             vector_from_8bit(store_dtype, two & 0xff00) * scales};
        simd_store_neighbours(dtype, 0, y + i * cpu_dtype_size(dtype), a);
    }
    return i;
}

CPU_INLINE int64_t vector_load(int dtype, int store_dtype, float scale, const char *x, char *y,
                               int64_t n) {
    switch (store_dtype) {
    case ROPE_F8E4M3:
        return vector_load_8bit(dtype, ROPE_F8E4M3, scale, x, y, n);
    case ROPE_F8E5M2:
        return vector_load_8bit(dtype, ROPE_F8E5M2, scale, x, y, n);
    case ROPE_F8E4M3FNUZ:
        return vector_load_8bit(dtype, ROPE_F8E4M3FNUZ, scale, x, y, n);
    case ROPE_I8:
        return vector_load_8bit(dtype, ROPE_I8, scale, x, y, n);
    case ROPE_F32:
        return vector_store_whole(ROPE_F32, dtype, x, y, n);
    case ROPE_F16:
        return vector_store_whole(ROPE_F16, dtype, x, y, n);
    default:
        return vector_store_whole(ROPE_BF16, dtype, x, y, n);
    }
}

CPU_INLINE int64_t vector_largest(int dtype, const char *x, int64_t n, uint32_t *largest) {
    simd_u32 most = {0};
    int64_t i = 0;
    for (; i + SIMD_LANES <= n; i += SIMD_LANES) {
        const simd_u32 u = (simd_u32)simd_widen(dtype, x + i * cpu_dtype_size(dtype)) & 0x7fffffffu;
        most = simd_max_i(most, u & (simd_u32)((simd_i32)u < 0x7f800000));
    }
    for (int lane = 0; lane < SIMD_LANES; lane++)
        *largest = most[lane] > *largest ? most[lane] : *largest;
    return i;
}

#endif
