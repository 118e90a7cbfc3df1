/* The heads of one token, LANES pairs at a time. */
#ifndef ROPEKIT_CPU_ROTATE_LANES_H
#define ROPEKIT_CPU_ROTATE_LANES_H

#include "backends/cpu/row_lanes.h"

/* The windows of some heads of a token, elements side by side. Strides in bytes. */
typedef struct lanes_heads {
    const char *in;
    char *out;
    int64_t count, in_stride, out_stride;
    int64_t before, after; /* bytes around the window that an out-of-place call copies */
    int pairs;
} lanes_heads;

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

CPU_INLINE lanes_u lanes_join_words(int dtype, lanes_pair y) {
    if (dtype == ROPE_BF16)
        return lanes_bf16_words(y.x1) | (lanes_bf16_words(y.x2) << 16);
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

/* Two neighbouring vectors; lanes that round two at once say so. */
CPU_INLINE void lanes_narrow_two(int dtype, int stream, char *p, lanes_f low, lanes_f high) {
#if defined(LANES_TO_BF16_NATIVE)
    if (dtype == ROPE_BF16) {
        lanes_narrow(ROPE_F32, stream, p, (lanes_f)lanes_two_to_bf16(low, high));
        return;
    }
#endif
    lanes_narrow(dtype, stream, p, low);
    lanes_narrow(dtype, stream, p + LANES * cpu_dtype_size(dtype), high);
}

/* A head of 64 pairs held in VECTORS vectors, in the order of its addresses. */
CPU_INLINE void lanes_store_head(int dtype, int pairing, int stream, char *out,
                                 const lanes_pair y[64 / LANES]) {
    enum { VECTORS = 64 / LANES };
    int step = LANES * cpu_dtype_size(dtype), half = 64 * cpu_dtype_size(dtype);
    if (pairing == ROPE_PAIRING_INTERLEAVED) {
#pragma GCC unroll 16
        for (int v = 0; v < VECTORS; v++)
            lanes_store_neighbours(dtype, stream, out + 2 * v * step, y[v]);
        return;
    }
#pragma GCC unroll 16
    for (int v = 0; v < VECTORS; v += 2)
        lanes_narrow_two(dtype, stream, out + v * step, y[v].x1, y[v + 1].x1);
#pragma GCC unroll 16
    for (int v = 0; v < VECTORS; v += 2)
        lanes_narrow_two(dtype, stream, out + half + v * step, y[v].x2, y[v + 1].x2);
}

/* Keeps compilers from loading an element once for each of its two products. */
CPU_INLINE lanes_pair lanes_in_registers(lanes_pair x) {
    __asm__("" : LANES_REGISTER(x.x1), LANES_REGISTER(x.x2));
    return x;
}

CPU_INLINE lanes_pair lanes_rotate(lanes_pair x, lanes_f c1, lanes_f s1, lanes_f c2, lanes_f s2) {
    lanes_pair y = {lanes_fma(x.x1, c1, -(x.x2 * s1)), lanes_fma(x.x2, c2, x.x1 * s2)};
    return y;
}

CPU_INLINE void lanes_copy_rest(const lanes_heads *heads, const char *in, char *out, int size) {
    int64_t window = 2 * (int64_t)heads->pairs * size;
    if (heads->before)
        memcpy(out - heads->before, in - heads->before, (size_t)heads->before);
    if (heads->after)
        memcpy(out + window, in + window, (size_t)heads->after);
}

/* The `count` < LANES pairs past the last whole vector, by way of whole vectors on the stack. */
CPU_INLINE void lanes_rotate_rest(int dtype, int in_pairing, int out_pairing, const char *in,
                                  char *out, int i, int pairs, const cpu_row *row) {
    int size = cpu_dtype_size(dtype), count = pairs - i;
    char x[2 * LANES * 4], y[2 * LANES * 4];
    if (count == 0)
        return;
    if (in_pairing == ROPE_PAIRING_INTERLEAVED) {
        memcpy(x, in + 2 * i * size, (size_t)(2 * count * size));
    } else {
        memcpy(x, in + i * size, (size_t)(count * size));
        memcpy(x + LANES * size, in + (i + pairs) * size, (size_t)(count * size));
    }
    lanes_store_pairs(dtype, out_pairing, 0, y, 0, LANES,
                      lanes_rotate(lanes_load_pairs(dtype, in_pairing, x, 0, LANES),
                                   lanes_load_f(row->c1 + i), lanes_load_f(row->s1 + i),
                                   lanes_load_f(row->c2 + i), lanes_load_f(row->s2 + i)));
    if (out_pairing == ROPE_PAIRING_INTERLEAVED) {
        memcpy(out + 2 * i * size, y, (size_t)(2 * count * size));
    } else {
        memcpy(out + i * size, y, (size_t)(count * size));
        memcpy(out + (i + pairs) * size, y + LANES * size, (size_t)(count * size));
    }
}

CPU_INLINE void lanes_rotate_any(int dtype, int in_pairing, int out_pairing, int stream,
                                 const lanes_heads *heads, const cpu_row *row) {
    const lanes_heads frame = *heads; /* stores may alias what the pointers lead to */
    const cpu_row lists = *row;
    const char *in = frame.in;
    char *out = frame.out;
    const int pairs = frame.pairs;
    for (int64_t h = 0; h < frame.count; h++) {
        int i = 0;
        for (; i + LANES <= pairs; i += LANES) {
            lanes_pair x = lanes_load_pairs(dtype, in_pairing, in, i, pairs);
            lanes_pair y = lanes_rotate(x, lanes_load_f(row->c1 + i), lanes_load_f(row->s1 + i),
                                        lanes_load_f(row->c2 + i), lanes_load_f(row->s2 + i));
            lanes_store_pairs(dtype, out_pairing, stream, out, i, pairs, y);
        }
        lanes_rotate_rest(dtype, in_pairing, out_pairing, in, out, i, pairs, &lists);
        lanes_copy_rest(&frame, in, out, cpu_dtype_size(dtype));
        in += frame.in_stride;
        out += frame.out_stride;
    }
}

/* Rotates vector v of a head of 64 pairs. */
CPU_INLINE lanes_pair lanes_rotate_vector(int dtype, int pairing, const char *in, int v, lanes_f c,
                                          lanes_f s) {
    lanes_pair x = lanes_load_pairs(dtype, pairing, in, v * LANES, 64);
    return lanes_rotate(lanes_in_registers(x), c, s, c, s);
}

/*
 * 64 pairs, the head size of most models. Where there are registers for it the row stays in them
 * across heads and a head's lines are written in ascending order.
 */
CPU_INLINE void lanes_rotate_64(int dtype, int pairing, int stream, const lanes_heads *heads,
                                const cpu_row *row) {
    enum { VECTORS = 64 / LANES };
    const lanes_heads frame = *heads; /* stores may alias what the pointers lead to */
    const char *in = frame.in;
    char *out = frame.out;
    lanes_f c[VECTORS], s[VECTORS];
    for (int v = 0; v < VECTORS; v++) {
        c[v] = lanes_load_f(row->c1 + v * LANES);
        s[v] = lanes_load_f(row->s1 + v * LANES);
    }
    for (int64_t h = 0; h < frame.count; h++) {
        lanes_pair y[VECTORS];
#pragma GCC unroll 16
        for (int v = 0; v < VECTORS; v++) {
            y[v] = lanes_rotate_vector(dtype, pairing, in, v, c[v], s[v]);
            if (LANES < 16)
                lanes_store_pairs(dtype, pairing, stream, out, v * LANES, 64, y[v]);
        }
        if (LANES == 16)
            lanes_store_head(dtype, pairing, stream, out, y);
        in += frame.in_stride;
        out += frame.out_stride;
    }
}

#endif
