/* The heads of some tokens, LANES pairs at a time. */
#ifndef ROPEKIT_CPU_ROTATE_LANES_H
#define ROPEKIT_CPU_ROTATE_LANES_H

#include "backends/cpu/element_lanes.h"

/* The windows of some heads of some tokens, elements side by side. Strides from head to head and
 * steps from token to token are in bytes. */
typedef struct lanes_heads {
    const char *in;
    char *out;
    int64_t count, in_stride, out_stride, in_step, out_step;
    int64_t before, after;       /* bytes around the window that an out-of-place call copies */
    int64_t in_ahead, out_ahead; /* from a window to the one to be fetched meanwhile, or 0 */
    int pairs;
    int by_head; /* one head of every token, then the next head */
} lanes_heads;

/* What is known of heads when a kernel is compiled. */
typedef struct lanes_kind {
    int dtype, in_pairing, out_pairing;
    int model;  /* arithmetic of the dtype itself */
    int stream; /* stores go around the cache */
    int parity; /* of two vectors of pairs, one has the even ones */
    int fetch;  /* lines ahead are fetched: those to be read, and to be written into the cache */
} lanes_kind;

CPU_INLINE lanes_kind lanes_kind_of(int dtype, int pairing) {
    lanes_kind kind = {.dtype = dtype, .in_pairing = pairing, .out_pairing = pairing};
    return kind;
}

/* The coefficients of LANES pairs. */
typedef struct lanes_matrix {
    lanes_f c1, s1, c2, s2;
} lanes_matrix;

CPU_INLINE lanes_matrix lanes_load_matrix(const cpu_row *row, int i) {
    lanes_matrix m = {lanes_load_f(row->c1 + i), lanes_load_f(row->s1 + i),
                      lanes_load_f(row->c2 + i), lanes_load_f(row->s2 + i)};
    return m;
}

/* rope_rotate. */
CPU_INLINE lanes_pair lanes_rotate(lanes_pair x, lanes_matrix m) {
    lanes_pair y = {lanes_fma(x.x1, m.c1, -(x.x2 * m.s1)), lanes_fma(x.x2, m.c2, x.x1 * m.s2)};
    return y;
}

/* rope_rotate_model, of which the store does the last rounding. */
CPU_INLINE lanes_pair lanes_rotate_model(int dtype, lanes_pair x, lanes_matrix m) {
    lanes_f a = lanes_round_to(dtype, x.x1 * m.c1), b = lanes_round_to(dtype, -x.x2 * m.s1);
    lanes_f c = lanes_round_to(dtype, x.x2 * m.c2), d = lanes_round_to(dtype, x.x1 * m.s2);
    lanes_pair y = {a + b, c + d};
    return y;
}

CPU_INLINE lanes_pair lanes_turn(lanes_kind kind, lanes_pair x, lanes_matrix m) {
    return kind.model ? lanes_rotate_model(kind.dtype, x, m) : lanes_rotate(x, m);
}

CPU_INLINE void lanes_copy(char *out, const char *in, int64_t bytes) {
    int64_t i = 0;
    for (; i + (int64_t)sizeof(lanes_u) <= bytes; i += sizeof(lanes_u))
        lanes_store_u(out + i, lanes_load_u(in + i));
    if (i < bytes)
        memcpy(out + i, in + i, (size_t)(bytes - i));
}

CPU_INLINE void lanes_copy_rest(const lanes_heads *heads, const char *in, char *out, int size) {
    int64_t window = 2 * (int64_t)heads->pairs * size;
    if (heads->before)
        lanes_copy(out - heads->before, in - heads->before, heads->before);
    if (heads->after)
        lanes_copy(out + window, in + window, heads->after);
}

CPU_INLINE void lanes_fetch_line(lanes_kind kind, const lanes_heads *heads, const char *in,
                                 char *out, int at) {
    __builtin_prefetch(in + at + heads->in_ahead, 0, 3);
    if (!kind.stream)
        __builtin_prefetch(out + at + heads->out_ahead, 1, 3);
}

/* Fetches what lies ahead of `count` vectors of pairs from pair i on, a line of each half at a
 * time. */
CPU_INLINE void lanes_fetch(lanes_kind kind, const lanes_heads *heads, int count, const char *in,
                            char *out, int i, int pairs) {
    const int size = cpu_dtype_size(kind.dtype), width = count * LANES * size;
    if (!kind.fetch || (width < 64 && i * size % 64 != 0))
        return;
    const int half = kind.in_pairing == ROPE_PAIRING_HALF_SPLIT;
    const int first = half ? i * size : 2 * i * size,
              second = half ? first + pairs * size : first + width;
#pragma GCC unroll 2
    for (int at = 0; at < width; at += 64) {
        lanes_fetch_line(kind, heads, in, out, first + at);
        lanes_fetch_line(kind, heads, in, out, second + at);
    }
}

/* The `count` < LANES pairs past the last whole vector, by way of whole vectors on the stack. */
CPU_INLINE void lanes_rotate_rest(lanes_kind kind, const char *in, char *out, int i, int pairs,
                                  const cpu_row *row) {
    int size = cpu_dtype_size(kind.dtype), count = pairs - i;
    char x[2 * LANES * 4], y[2 * LANES * 4];
    if (kind.in_pairing == ROPE_PAIRING_INTERLEAVED) {
        memcpy(x, in + 2 * i * size, (size_t)(2 * count * size));
    } else {
        memcpy(x, in + i * size, (size_t)(count * size));
        memcpy(x + LANES * size, in + (i + pairs) * size, (size_t)(count * size));
    }
    lanes_pair read = lanes_load_pairs(kind.dtype, kind.in_pairing, x, 0, LANES);
    lanes_store_pairs(kind.dtype, kind.out_pairing, 0, y, 0, LANES,
                      lanes_turn(kind, read, lanes_load_matrix(row, i)));
    if (kind.out_pairing == ROPE_PAIRING_INTERLEAVED) {
        memcpy(out + 2 * i * size, y, (size_t)(2 * count * size));
    } else {
        memcpy(out + i * size, y, (size_t)(count * size));
        memcpy(out + (i + pairs) * size, y + LANES * size, (size_t)(count * size));
    }
}

/* Keeps compilers from loading an element once for each of its two products, and from moving loads
 * and stores across each other. */
CPU_INLINE lanes_f lanes_in_register(lanes_f x) {
    __asm__ volatile("" : LANES_REGISTER(x));
    return x;
}

/* One vector of pairs from pair i on. */
CPU_INLINE lanes_pair lanes_read(lanes_kind kind, const char *in, int i, int pairs) {
    lanes_pair x = lanes_load_pairs(kind.dtype, kind.in_pairing, in, i, pairs);
    x.x1 = lanes_in_register(x.x1);
    x.x2 = lanes_in_register(x.x2);
    return x;
}

CPU_INLINE lanes_pair lanes_split_at(lanes_kind kind, const char *p) {
    lanes_pair x = lanes_split_words(kind.dtype, lanes_load_u(p));
    x.x1 = lanes_in_register(x.x1);
    x.x2 = lanes_in_register(x.x2);
    return x;
}

/* One or two vectors of pairs from pair i on. */
CPU_INLINE void lanes_read_vectors(lanes_kind kind, int count, const char *in, int i, int pairs,
                                   lanes_pair *x) {
    if (kind.parity) {
        lanes_pair first = lanes_split_at(kind, in + 2 * i),
                   second = lanes_split_at(kind, in + 2 * (i + pairs));
        x[0] = (lanes_pair){first.x1, second.x1};
        x[1] = (lanes_pair){first.x2, second.x2};
        return;
    }
#pragma GCC unroll 2
    for (int v = 0; v < count; v++)
        x[v] = lanes_read(kind, in, i + v * LANES, pairs);
}

CPU_INLINE void lanes_join_at(lanes_kind kind, char *p, lanes_f even, lanes_f odd) {
    lanes_pair y = {even, odd};
    lanes_narrow(ROPE_F32, kind.stream, p, (lanes_f)lanes_join_words(kind.dtype, y));
}

/* One or two vectors of pairs from pair i on. */
CPU_INLINE void lanes_write(lanes_kind kind, int count, char *out, int i, int pairs,
                            const lanes_pair *y) {
    const int dtype = kind.dtype, size = cpu_dtype_size(dtype);
    if (kind.parity) {
        lanes_join_at(kind, out + i * size, y[0].x1, y[1].x1);
        lanes_join_at(kind, out + (i + pairs) * size, y[0].x2, y[1].x2);
        return;
    }
    if (count == 2 && kind.out_pairing == ROPE_PAIRING_HALF_SPLIT) {
        lanes_narrow_two(dtype, kind.stream, out + i * size, y[0].x1, y[1].x1);
        lanes_narrow_two(dtype, kind.stream, out + (i + pairs) * size, y[0].x2, y[1].x2);
        return;
    }
#pragma GCC unroll 2
    for (int v = 0; v < count; v++)
        lanes_store_pairs(dtype, kind.out_pairing, kind.stream, out, i + v * LANES, pairs, y[v]);
}

CPU_INLINE void lanes_rotate_vectors(lanes_kind kind, const lanes_heads *heads, int count,
                                     const char *in, const char *from, char *out, int i,
                                     const cpu_row *row) {
    const int pairs = heads->pairs;
    lanes_pair x[2];
    lanes_fetch(kind, heads, count, in, out, i, pairs);
    lanes_read_vectors(kind, count, from, i, pairs, x);
#pragma GCC unroll 2
    for (int v = 0; v < count; v++)
        x[v] = lanes_turn(kind, x[v], lanes_load_matrix(row, i + v * LANES));
    lanes_write(kind, count, out, i, pairs, x);
}

/* Two vectors at a time are read before either is written: in place, a load of a line for which an
 * older store waits takes several times as long. */
CPU_INLINE void lanes_rotate_window(lanes_kind kind, const lanes_heads *heads, const char *in,
                                    const char *from, char *out, const cpu_row *row) {
    const int pairs = heads->pairs;
    int i = 0;
    for (; i + 2 * LANES <= pairs; i += 2 * LANES)
        lanes_rotate_vectors(kind, heads, 2, in, from, out, i, row);
    for (; i + LANES <= pairs; i += LANES)
        lanes_rotate_vectors(kind, heads, 1, in, from, out, i, row);
    if (i < pairs) {
        lanes_fetch(kind, heads, 1, in, out, i, pairs);
        lanes_rotate_rest(kind, from, out, i, pairs, row);
    }
}

/* A head of any number of pairs. A window whose pairing changes in place is first set aside. */
CPU_INLINE void lanes_rotate_any_head(lanes_kind kind, const lanes_heads *frame, const char *in,
                                      char *out, const cpu_row *row, char *aside) {
    const int size = cpu_dtype_size(kind.dtype);
    const char *from = in;
    if (kind.in_pairing != kind.out_pairing && in == out) {
        lanes_copy(aside, in, 2 * (int64_t)frame->pairs * size);
        from = aside;
    }
    lanes_rotate_window(kind, frame, in, from, out, row);
    lanes_copy_rest(frame, in, out, size);
}

CPU_INLINE void lanes_rotate_any(lanes_kind kind, const lanes_heads *heads, const cpu_row *rows,
                                 int tokens) {
    const lanes_heads frame = *heads; /* stores may alias what the pointers lead to */
    char aside[2 * CPU_MAX_PAIRS * 4];
    int64_t outer = frame.by_head ? frame.count : tokens,
            inner = frame.by_head ? tokens : frame.count;
    for (int64_t i = 0; i < outer; i++)
        for (int64_t j = 0; j < inner; j++) {
            int64_t t = frame.by_head ? j : i, h = frame.by_head ? i : j;
            const cpu_row row = rows[t];
            lanes_rotate_any_head(kind, &frame, frame.in + t * frame.in_step + h * frame.in_stride,
                                  frame.out + t * frame.out_step + h * frame.out_stride, &row,
                                  aside);
        }
}

/* 64 pairs of one cos and sin each. */
typedef struct lanes_row {
    lanes_f c[64 / LANES], s[64 / LANES];
    const float *cosines; /* c in memory */
} lanes_row;

/* Where rounding to 16 bits and widening are cheaper for neighbours than for halves of a vector. */
CPU_INLINE int lanes_parity(lanes_kind kind) {
#if defined(LANES_PARITY)
    return kind.dtype == ROPE_BF16 && kind.in_pairing == ROPE_PAIRING_HALF_SPLIT;
#else
    (void)kind;
    return 0;
#endif
}

/* Puts a row in the order of the vectors that are read. */
CPU_INLINE void lanes_arrange_row(lanes_kind kind, lanes_row *row) {
    for (int v = 0; v < 64 / LANES && kind.parity; v += 2) {
        lanes_f c = row->c[v], s = row->s[v];
        row->c[v] = lanes_even(c, row->c[v + 1]);
        row->s[v] = lanes_even(s, row->s[v + 1]);
        row->c[v + 1] = lanes_odd(c, row->c[v + 1]);
        row->s[v + 1] = lanes_odd(s, row->s[v + 1]);
    }
}

CPU_INLINE void lanes_load_row(lanes_kind kind, const cpu_row *from, lanes_row *row) {
    for (int v = 0; v < 64 / LANES; v++) {
        row->c[v] = lanes_load_f(from->c1 + v * LANES);
        row->s[v] = lanes_load_f(from->s1 + v * LANES);
    }
    row->cosines = from->c1;
    lanes_arrange_row(kind, row);
}

/* The same address, which a compiler takes for another: what is loaded from both is loaded twice.
 */
CPU_INLINE const float *lanes_alias(const float *p) {
    __asm__("" : "+r"(p));
    return p;
}

/* Cosines of f16 are operands in memory, once for each product; what is best was measured
 * (docs/performance.md). */
CPU_INLINE lanes_matrix lanes_matrix_64(lanes_kind kind, const lanes_row *row, const float *again,
                                        int v) {
    lanes_matrix m = {row->c[v], row->s[v], row->c[v], row->s[v]};
    if (kind.dtype == ROPE_F16) {
        m.c1 = lanes_load_f(row->cosines + v * LANES);
        m.c2 = lanes_load_f(again + v * LANES);
    }
    return m;
}

/* Rotates a head of 64 pairs, a line of each half at a time. */
CPU_INLINE void lanes_rotate_head(lanes_kind kind, const lanes_heads *heads, const char *in,
                                  char *out, const lanes_row *row) {
    const int count = LANES >= 8 && kind.dtype != ROPE_F32 ? 2 : 1;
    const float *again = lanes_alias(row->cosines);
#pragma GCC unroll 16
    for (int v = 0; v < 64 / LANES; v += count) {
        lanes_pair x[2];
        lanes_fetch(kind, heads, count, in, out, v * LANES, 64);
        lanes_read_vectors(kind, count, in, v * LANES, 64, x);
#pragma GCC unroll 2
        for (int w = 0; w < count; w++)
            x[w] = lanes_rotate(x[w], lanes_matrix_64(kind, row, again, v + w));
        lanes_write(kind, count, out, v * LANES, 64, x);
    }
}

/* 64 pairs of one cos and sin each, the head size of most models. Where there are registers for it
 * the row stays in them across heads. */
CPU_INLINE void lanes_rotate_64(lanes_kind kind, const lanes_heads *heads, const cpu_row *rows,
                                int tokens) {
    const lanes_heads frame = *heads; /* stores may alias what the pointers lead to */
    lanes_row row;
    kind.parity = lanes_parity(kind);
    for (int64_t h = 0; h < frame.count && frame.by_head; h++)
        for (int t = 0; t < tokens; t++) {
            lanes_load_row(kind, &rows[t], &row);
            lanes_rotate_head(kind, &frame, frame.in + t * frame.in_step + h * frame.in_stride,
                              frame.out + t * frame.out_step + h * frame.out_stride, &row);
        }
    for (int t = 0; t < tokens && !frame.by_head; t++) {
        const char *in = frame.in + t * frame.in_step;
        char *out = frame.out + t * frame.out_step;
        lanes_load_row(kind, &rows[t], &row);
        for (int64_t h = 0; h < frame.count; h++) {
            lanes_rotate_head(kind, &frame, in, out, &row);
            in += frame.in_stride;
            out += frame.out_stride;
        }
    }
}

#endif
