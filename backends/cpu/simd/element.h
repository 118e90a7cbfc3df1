/* Elements of each dtype in vectors of fp32, side by side or as neighbours. */
#ifndef ROPEKIT_CPU_ELEMENT_SIMD_H
#define ROPEKIT_CPU_ELEMENT_SIMD_H

#include "backends/cpu/simd/vector.h"

#if !defined(SIMD_TRANSPOSE)
/* As many vectors as lanes: lane i of vector j becomes lane j of vector i. Each round joins the
 * lanes of vectors that lie half of them apart. */
CPU_INLINE void simd_transpose(simd_u32 *x) {
    for (int rounds = SIMD_LANES; rounds > 1; rounds /= 2) {
        simd_f32 y[SIMD_LANES];
        for (int i = 0; i < SIMD_LANES / 2; i++) {
            const simd_f32 a = (simd_f32)x[i], b = (simd_f32)x[i + SIMD_LANES / 2];
            y[2 * i] = simd_low(a, b);
            y[2 * i + 1] = simd_high(a, b);
        }
        for (int i = 0; i < SIMD_LANES; i++)
            x[i] = (simd_u32)y[i];
    }
}
#endif

CPU_INLINE simd_f32 simd_from_bf16(simd_u16 h) {
    return (simd_f32)(simd_words_of(h) << 16);
}

#if !defined(SIMD_TO_BF16_NATIVE)
CPU_INLINE simd_u16 simd_to_bf16(simd_f32 x) {
    return simd_low_halves(simd_bf16_words(x));
}
#endif

/* rope_round_to. */
CPU_INLINE simd_f32 simd_round_to(int dtype, simd_f32 x) {
    if (dtype == ROPE_BF16)
        return (simd_f32)(simd_bf16_words(x) << 16);
    return dtype == ROPE_F16 ? simd_from_f16(simd_to_f16(x)) : x;
}

typedef struct simd_pair {
    simd_f32 x1, x2;
} simd_pair;

CPU_INLINE simd_f32 simd_widen(int dtype, const char *p) {
    if (dtype == ROPE_F32)
        return simd_load_f(p);
    return dtype == ROPE_BF16 ? simd_from_bf16(simd_load_h(p)) : simd_from_f16(simd_load_h(p));
}

CPU_INLINE void simd_narrow(int dtype, int stream, char *p, simd_f32 x) {
    if (dtype == ROPE_F32) {
        if (stream)
            simd_stream_f(p, x);
        else
            simd_store_f(p, x);
        return;
    }
    simd_u16 h = dtype == ROPE_BF16 ? simd_to_bf16(x) : simd_to_f16(x);
    if (stream)
        simd_stream_h(p, h);
    else
        simd_store_h(p, h);
}

/* Two neighbours of 16 bits are one word, the first in its low half. */
CPU_INLINE simd_pair simd_split_words(int dtype, simd_u32 words) {
    simd_pair x;
    if (dtype == ROPE_BF16) {
        x.x1 = (simd_f32)(words << 16);
        x.x2 = (simd_f32)(words & 0xffff0000u);
    } else {
        x.x1 = simd_from_f16(simd_low_halves(words));
        x.x2 = simd_from_f16(simd_low_halves(words >> 16));
    }
    return x;
}

#if !defined(SIMD_PARITY)
#define SIMD_PARITY 0
CPU_INLINE simd_u32 simd_neighbours_to_bf16(simd_f32 even, simd_f32 odd) {
    return simd_bf16_words(even) | (simd_bf16_words(odd) << 16);
}
#endif

CPU_INLINE simd_u32 simd_join_words(int dtype, simd_pair y) {
    if (dtype == ROPE_BF16)
        return simd_neighbours_to_bf16(y.x1, y.x2);
    return simd_words_of(simd_to_f16(y.x1)) | (simd_words_of(simd_to_f16(y.x2)) << 16);
}

CPU_INLINE simd_pair simd_load_neighbours(int dtype, const char *p) {
    if (dtype != ROPE_F32)
        return simd_split_words(dtype, simd_load_u(p));
    simd_f32 a = simd_load_f(p), b = simd_load_f(p + sizeof a);
    simd_pair x = {simd_even(a, b), simd_odd(a, b)};
    return x;
}

CPU_INLINE void simd_store_neighbours(int dtype, int stream, char *p, simd_pair y) {
    if (dtype != ROPE_F32) {
        simd_u32 words = simd_join_words(dtype, y);
        if (stream)
            simd_stream_f(p, (simd_f32)words);
        else
            simd_store_u(p, words);
        return;
    }
    simd_narrow(dtype, stream, p, simd_low(y.x1, y.x2));
    simd_narrow(dtype, stream, p + sizeof y.x1, simd_high(y.x1, y.x2));
}

CPU_INLINE simd_pair simd_load_pairs(int dtype, int pairing, const char *window, int i, int pairs) {
    int size = cpu_dtype_size(dtype);
    if (pairing == ROPE_PAIRING_INTERLEAVED)
        return simd_load_neighbours(dtype, window + 2 * i * size);
    simd_pair x = {simd_widen(dtype, window + i * size),
                   simd_widen(dtype, window + (i + pairs) * size)};
    return x;
}

CPU_INLINE void simd_store_pairs(int dtype, int pairing, int stream, char *window, int i, int pairs,
                                 simd_pair y) {
    int size = cpu_dtype_size(dtype);
    if (pairing == ROPE_PAIRING_INTERLEAVED) {
        simd_store_neighbours(dtype, stream, window + 2 * i * size, y);
        return;
    }
    simd_narrow(dtype, stream, window + i * size, y.x1);
    simd_narrow(dtype, stream, window + (i + pairs) * size, y.x2);
}

CPU_INLINE simd_f32 simd_widen_some(int dtype, const char *p, int count) {
    if (dtype == ROPE_F32)
        return (simd_f32)simd_some_words(p, count);
    const simd_u16 h = simd_some_halves(p, count);
    return dtype == ROPE_BF16 ? simd_from_bf16(h) : simd_from_f16(h);
}

CPU_INLINE void simd_narrow_some(int dtype, char *p, simd_f32 x, int count) {
    if (dtype == ROPE_F32)
        simd_put_words(p, (simd_u32)x, count);
    else
        simd_put_halves(p, dtype == ROPE_BF16 ? simd_to_bf16(x) : simd_to_f16(x), count);
}

/* Bytes from the start of a window to pair i. */
CPU_INLINE int64_t simd_pair_at(int dtype, int pairing, int i) {
    return (int64_t)(pairing == ROPE_PAIRING_HALF_SPLIT ? i : 2 * i) * cpu_dtype_size(dtype);
}

/* `count` pairs, at most SIMD_LANES, from where the first one is. */
CPU_INLINE simd_pair simd_load_some(int dtype, int pairing, const char *p, int pairs, int count) {
    const int first = 2 * count < SIMD_LANES ? 2 * count : SIMD_LANES;
    if (pairing == ROPE_PAIRING_HALF_SPLIT)
        return (simd_pair){simd_widen_some(dtype, p, count),
                           simd_widen_some(dtype, p + pairs * cpu_dtype_size(dtype), count)};
    if (dtype != ROPE_F32)
        return simd_split_words(dtype, simd_some_words(p, count));
    const simd_f32 a = (simd_f32)simd_some_words(p, first),
                   b = (simd_f32)simd_some_words(p + 4 * first, 2 * count - first);
    return (simd_pair){simd_even(a, b), simd_odd(a, b)};
}

CPU_INLINE void simd_store_some(int dtype, int pairing, char *p, int pairs, int count,
                                simd_pair y) {
    const int first = 2 * count < SIMD_LANES ? 2 * count : SIMD_LANES;
    if (pairing == ROPE_PAIRING_HALF_SPLIT) {
        simd_narrow_some(dtype, p, y.x1, count);
        simd_narrow_some(dtype, p + pairs * cpu_dtype_size(dtype), y.x2, count);
    } else if (dtype != ROPE_F32) {
        simd_put_words(p, simd_join_words(dtype, y), count);
    } else {
        simd_put_words(p, (simd_u32)simd_low(y.x1, y.x2), first);
        simd_put_words(p + 4 * first, (simd_u32)simd_high(y.x1, y.x2), 2 * count - first);
    }
}

/* Two neighbouring vectors; lanes that round two at once say so. */
CPU_INLINE void simd_narrow_two(int dtype, int stream, char *p, simd_f32 low, simd_f32 high) {
#if defined(SIMD_TWO_TO_BF16)
    if (dtype == ROPE_BF16) {
        simd_narrow(ROPE_F32, stream, p, (simd_f32)simd_two_to_bf16(low, high));
        return;
    }
#endif
    simd_narrow(dtype, stream, p, low);
    simd_narrow(dtype, stream, p + SIMD_LANES * cpu_dtype_size(dtype), high);
}

#endif
