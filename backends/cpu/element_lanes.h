/* Elements of each dtype in vectors of fp32, side by side or as neighbours. */
#ifndef ROPEKIT_CPU_ELEMENT_LANES_H
#define ROPEKIT_CPU_ELEMENT_LANES_H

#include "backends/cpu/lanes.h"

CPU_INLINE lanes_f lanes_from_bf16(lanes_h h) {
    return (lanes_f)(lanes_words_of(h) << 16);
}

#if !defined(LANES_TO_BF16_NATIVE)
CPU_INLINE lanes_h lanes_to_bf16(lanes_f x) {
    return lanes_low_halves(lanes_bf16_words(x));
}
#endif

/* rope_round_to. */
CPU_INLINE lanes_f lanes_round_to(int dtype, lanes_f x) {
    if (dtype == ROPE_BF16)
        return (lanes_f)(lanes_bf16_words(x) << 16);
    return dtype == ROPE_F16 ? lanes_from_f16(lanes_to_f16(x)) : x;
}

typedef struct lanes_pair {
    lanes_f x1, x2;
} lanes_pair;

CPU_INLINE lanes_f lanes_widen(int dtype, const char *p) {
    if (dtype == ROPE_F32)
        return lanes_load_f(p);
    return dtype == ROPE_BF16 ? lanes_from_bf16(lanes_load_h(p)) : lanes_from_f16(lanes_load_h(p));
}

CPU_INLINE void lanes_narrow(int dtype, int stream, char *p, lanes_f x) {
    if (dtype == ROPE_F32) {
        if (stream)
            lanes_stream_f(p, x);
        else
            lanes_store_f(p, x);
        return;
    }
    lanes_h h = dtype == ROPE_BF16 ? lanes_to_bf16(x) : lanes_to_f16(x);
    if (stream)
        lanes_stream_h(p, h);
    else
        lanes_store_h(p, h);
}

/* Two neighbours of 16 bits are one word, the first in its low half. */
CPU_INLINE lanes_pair lanes_split_words(int dtype, lanes_u words) {
    lanes_pair x;
    if (dtype == ROPE_BF16) {
        x.x1 = (lanes_f)(words << 16);
        x.x2 = (lanes_f)(words & 0xffff0000u);
    } else {
        x.x1 = lanes_from_f16(lanes_low_halves(words));
        x.x2 = lanes_from_f16(lanes_low_halves(words >> 16));
    }
    return x;
}

#if !defined(LANES_PARITY)
#define LANES_PARITY 0
CPU_INLINE lanes_u lanes_neighbours_to_bf16(lanes_f even, lanes_f odd) {
    return lanes_bf16_words(even) | (lanes_bf16_words(odd) << 16);
}
#endif

CPU_INLINE lanes_u lanes_join_words(int dtype, lanes_pair y) {
    if (dtype == ROPE_BF16)
        return lanes_neighbours_to_bf16(y.x1, y.x2);
    return lanes_words_of(lanes_to_f16(y.x1)) | (lanes_words_of(lanes_to_f16(y.x2)) << 16);
}

CPU_INLINE lanes_pair lanes_load_neighbours(int dtype, const char *p) {
    if (dtype != ROPE_F32)
        return lanes_split_words(dtype, lanes_load_u(p));
    lanes_f a = lanes_load_f(p), b = lanes_load_f(p + sizeof a);
    lanes_pair x = {lanes_even(a, b), lanes_odd(a, b)};
    return x;
}

CPU_INLINE void lanes_store_neighbours(int dtype, int stream, char *p, lanes_pair y) {
    if (dtype != ROPE_F32) {
        lanes_u words = lanes_join_words(dtype, y);
        if (stream)
            lanes_stream_f(p, (lanes_f)words);
        else
            lanes_store_u(p, words);
        return;
    }
    lanes_narrow(dtype, stream, p, lanes_low(y.x1, y.x2));
    lanes_narrow(dtype, stream, p + sizeof y.x1, lanes_high(y.x1, y.x2));
}

CPU_INLINE lanes_pair lanes_load_pairs(int dtype, int pairing, const char *window, int i,
                                       int pairs) {
    int size = cpu_dtype_size(dtype);
    if (pairing == ROPE_PAIRING_INTERLEAVED)
        return lanes_load_neighbours(dtype, window + 2 * i * size);
    lanes_pair x = {lanes_widen(dtype, window + i * size),
                    lanes_widen(dtype, window + (i + pairs) * size)};
    return x;
}

CPU_INLINE void lanes_store_pairs(int dtype, int pairing, int stream, char *window, int i,
                                  int pairs, lanes_pair y) {
    int size = cpu_dtype_size(dtype);
    if (pairing == ROPE_PAIRING_INTERLEAVED) {
        lanes_store_neighbours(dtype, stream, window + 2 * i * size, y);
        return;
    }
    lanes_narrow(dtype, stream, window + i * size, y.x1);
    lanes_narrow(dtype, stream, window + (i + pairs) * size, y.x2);
}

CPU_INLINE lanes_f lanes_widen_some(int dtype, const char *p, int count) {
    if (dtype == ROPE_F32)
        return (lanes_f)lanes_some_words(p, count);
    const lanes_h h = lanes_some_halves(p, count);
    return dtype == ROPE_BF16 ? lanes_from_bf16(h) : lanes_from_f16(h);
}

CPU_INLINE void lanes_narrow_some(int dtype, char *p, lanes_f x, int count) {
    if (dtype == ROPE_F32)
        lanes_put_words(p, (lanes_u)x, count);
    else
        lanes_put_halves(p, dtype == ROPE_BF16 ? lanes_to_bf16(x) : lanes_to_f16(x), count);
}

/* Bytes from the start of a window to pair i. */
CPU_INLINE int64_t lanes_pair_at(int dtype, int pairing, int i) {
    return (int64_t)(pairing == ROPE_PAIRING_HALF_SPLIT ? i : 2 * i) * cpu_dtype_size(dtype);
}

/* `count` pairs, at most LANES, from where the first one is. */
CPU_INLINE lanes_pair lanes_load_some(int dtype, int pairing, const char *p, int pairs, int count) {
    const int first = 2 * count < LANES ? 2 * count : LANES;
    if (pairing == ROPE_PAIRING_HALF_SPLIT)
        return (lanes_pair){lanes_widen_some(dtype, p, count),
                            lanes_widen_some(dtype, p + pairs * cpu_dtype_size(dtype), count)};
    if (dtype != ROPE_F32)
        return lanes_split_words(dtype, lanes_some_words(p, count));
    const lanes_f a = (lanes_f)lanes_some_words(p, first),
                  b = (lanes_f)lanes_some_words(p + 4 * first, 2 * count - first);
    return (lanes_pair){lanes_even(a, b), lanes_odd(a, b)};
}

CPU_INLINE void lanes_store_some(int dtype, int pairing, char *p, int pairs, int count,
                                 lanes_pair y) {
    const int first = 2 * count < LANES ? 2 * count : LANES;
    if (pairing == ROPE_PAIRING_HALF_SPLIT) {
        lanes_narrow_some(dtype, p, y.x1, count);
        lanes_narrow_some(dtype, p + pairs * cpu_dtype_size(dtype), y.x2, count);
    } else if (dtype != ROPE_F32) {
        lanes_put_words(p, lanes_join_words(dtype, y), count);
    } else {
        lanes_put_words(p, (lanes_u)lanes_low(y.x1, y.x2), first);
        lanes_put_words(p + 4 * first, (lanes_u)lanes_high(y.x1, y.x2), 2 * count - first);
    }
}

/* Two neighbouring vectors; lanes that round two at once say so. */
CPU_INLINE void lanes_narrow_two(int dtype, int stream, char *p, lanes_f low, lanes_f high) {
#if defined(LANES_TWO_TO_BF16)
    if (dtype == ROPE_BF16) {
        lanes_narrow(ROPE_F32, stream, p, (lanes_f)lanes_two_to_bf16(low, high));
        return;
    }
#endif
    lanes_narrow(dtype, stream, p, low);
    lanes_narrow(dtype, stream, p + LANES * cpu_dtype_size(dtype), high);
}

#endif
