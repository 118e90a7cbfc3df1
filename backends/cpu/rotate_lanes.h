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
    int64_t in_ahead, out_ahead; /* from a head to that which is fetched, or 0: none is */
    int64_t in_far;              /* to that which is fetched to the L2, or 0: none is */
    int pairs;
    int touch;   /* lines of f32 are touched before they are read */
    int by_head; /* one head of every token, then the next head */
} lanes_heads;

/* What is known of heads when a kernel is compiled. */
typedef struct lanes_kind {
    int dtype, in_pairing, out_pairing;
    int model;  /* arithmetic of the dtype itself */
    int stream; /* stores go around the cache */
    int parity; /* of two vectors of pairs, one has the even ones */
    int swap;   /* neighbours stay side by side */
    int fetch;  /* lines ahead are fetched: those to be read, and to be written into the cache */
    int part;   /* windows go by blocks and are parts of heads that are written whole */
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

/* An address to be fetched, which may lie outside of any buffer. */
CPU_INLINE const void *lanes_beyond(const char *p, int64_t bytes) {
    return (const void *)((uintptr_t)p + (uintptr_t)bytes);
}

/* Fetches what lies ahead of `bytes` from `at` on, where lines begin. */
CPU_INLINE void lanes_fetch_lines(lanes_kind kind, const lanes_heads *heads, const char *in,
                                  char *out, int at, int bytes) {
    if (!kind.fetch || !heads->in_ahead || (bytes < 64 && at % 64 != 0))
        return;
#pragma GCC unroll 4
    for (int line = 0; line < bytes; line += 64) {
        __builtin_prefetch(lanes_beyond(in + at + line, heads->in_ahead), 0, 3);
        if (!kind.stream && heads->out_ahead)
            __builtin_prefetch(lanes_beyond(out + at + line, heads->out_ahead), 1, 3);
    }
}

/* Fetches what lies ahead of `count` vectors of pairs from pair i on. */
CPU_INLINE void lanes_fetch(lanes_kind kind, const lanes_heads *heads, int count, const char *in,
                            char *out, int i, int pairs) {
    const int size = cpu_dtype_size(kind.dtype), width = count * LANES * size;
    if (kind.in_pairing == ROPE_PAIRING_INTERLEAVED) {
        lanes_fetch_lines(kind, heads, in, out, 2 * i * size, 2 * width);
        return;
    }
    lanes_fetch_lines(kind, heads, in, out, i * size, width);
    lanes_fetch_lines(kind, heads, in + pairs * size, out + pairs * size, i * size, width);
}

/* Fetches the window of 64 pairs of 16 bits that lies farther ahead, to the L2. */
CPU_INLINE void lanes_fetch_far(lanes_kind kind, const lanes_heads *heads, const char *in) {
    if (kind.dtype == ROPE_F32 || !heads->in_far)
        return;
#pragma GCC unroll 4
    for (int line = 0; line < 256; line += 64)
        __builtin_prefetch(lanes_beyond(in + line, heads->in_far), 0, 2);
}

/* `count` pairs, less than LANES, from where the first of them is. */
CPU_INLINE void lanes_rotate_rest(lanes_kind kind, const char *in, char *out, int pairs, int count,
                                  lanes_matrix m) {
    lanes_pair x = lanes_load_some(kind.dtype, kind.in_pairing, in, pairs, count);
    lanes_store_some(kind.dtype, kind.out_pairing, out, pairs, count, lanes_turn(kind, x, m));
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
        lanes_rotate_rest(kind, from + lanes_pair_at(kind.dtype, kind.in_pairing, i),
                          out + lanes_pair_at(kind.dtype, kind.out_pairing, i), pairs, pairs - i,
                          lanes_load_matrix(row, i));
    }
}

#endif
