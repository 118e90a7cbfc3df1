/* Windows of heads: loads, the rotation by a token's cos/sin row, and stores. */
#ifndef ROPEKIT_CPU_ROPE_ROTATE_H
#define ROPEKIT_CPU_ROPE_ROTATE_H

#include "backends/cpu/rope/kernel.h"
#include "backends/cpu/simd/element.h"

/* What is known of heads when an instance is compiled. */
typedef struct rope_kind {
    int dtype, pairing_in, pairing_out;
    int pairs;       /* 0: any number */
    int stream;      /* stores go around the cache */
    int model;       /* arithmetic of the dtype itself */
    int full;        /* the second element of a pair may have a cos and sin of its own */
    int parity;      /* of two vectors of pairs, one has the even ones */
    int split_loads; /* lines of f32 are read in several places: the split-load hint */
} rope_kind;

/* The coefficients of a vector of pairs. */
typedef struct rope_matrix {
    simd_f32 c1, s1, c2, s2;
} rope_matrix;

CPU_INLINE rope_matrix rope_load_matrix(rope_kind kind, const cpu_cos_sin_row *row, int i) {
    const simd_f32 c = simd_load_f(row->c1 + i), s = simd_load_f(row->s1 + i);
    return kind.full ? (rope_matrix){c, s, simd_load_f(row->c2 + i), simd_load_f(row->s2 + i)}
                     : (rope_matrix){c, s, c, s};
}

/* rope_rotate of common/math/rotate.h, and rope_rotate_model, of which the store does the last
 * rounding. */
CPU_INLINE simd_pair rope_rotate_vector(rope_kind kind, simd_pair x, rope_matrix m) {
    if (!kind.model)
        return (simd_pair){simd_fma(x.x1, m.c1, -(x.x2 * m.s1)), simd_fma(x.x2, m.c2, x.x1 * m.s2)};
    simd_f32 a = simd_round_to(kind.dtype, x.x1 * m.c1),
             b = simd_round_to(kind.dtype, -x.x2 * m.s1),
             c = simd_round_to(kind.dtype, x.x2 * m.c2), d = simd_round_to(kind.dtype, x.x1 * m.s2);
    return (simd_pair){a + b, c + d};
}

/* An address to be prefetched, which may lie outside of any buffer. */
CPU_INLINE const void *rope_ahead(const char *p, int64_t bytes) {
    return (const void *)((uintptr_t)p + (uintptr_t)bytes);
}

/* Prefetches what lies ahead of a window. */
CPU_INLINE void rope_prefetch(const cpu_heads *heads, int stream, const char *in, char *out,
                              int64_t bytes) {
    if (!heads->in_ahead)
        return;
#pragma GCC unroll 1
    for (int64_t line = 0; line < bytes; line += 64) {
        const void *next = rope_ahead(in + line, heads->in_ahead);
        if (heads->into_l2) {
            __builtin_prefetch(next, 0, 2);
            continue;
        }
        __builtin_prefetch(next, 0, 3);
        if (!stream && heads->out_ahead)
            __builtin_prefetch(rope_ahead(out + line, heads->out_ahead), 1, 3);
    }
}

/* An even number of bytes, less than a vector, by two moves that may overlap each other. */
static CPU_NOINLINE void rope_copy_tail(char *out, const char *in, int64_t bytes) {
#pragma GCC unroll 8
    for (int most = 2 * SIMD_LANES; most >= 2; most /= 2)
        if (bytes >= most) {
            memcpy(out, in, (size_t)most);
            memcpy(out + bytes - most, in + bytes - most, (size_t)most);
            return;
        }
}

/* What passes through, before or after a window. Around the cache it is whole vectors. */
CPU_INLINE void rope_copy_inline(const cpu_heads *heads, int stream, char *out, const char *in,
                                 int64_t bytes) {
    const int width = 4 * SIMD_LANES;
    int64_t i = 0;
    rope_prefetch(heads, stream, in, out, bytes);
#pragma GCC unroll 1
    for (; i + width <= bytes; i += width)
        simd_narrow(ROPE_F32, stream, out + i, simd_load_f(in + i));
    if (i < bytes && i > 0)
        simd_store_f(out + bytes - width, simd_load_f(in + bytes - width));
    else if (i < bytes)
        rope_copy_tail(out, in, bytes);
}

static CPU_NOINLINE void rope_copy_bytes(const cpu_heads *heads, int stream, char *out,
                                         const char *in, int64_t bytes) {
    if (stream)
        rope_copy_inline(heads, 1, out, in, bytes);
    else
        rope_copy_inline(heads, 0, out, in, bytes);
}

/* Keeps compilers from loading an element once for each of its two products, and from moving loads
 * and stores across each other. */
CPU_INLINE simd_f32 rope_in_register(simd_f32 x) {
    __asm__ volatile("" : SIMD_REGISTER(x));
    return x;
}

CPU_INLINE simd_pair rope_pair_in_register(simd_pair x) {
    return (simd_pair){rope_in_register(x.x1), rope_in_register(x.x2)};
}

/* Reads a byte of each 16 of a vector but the last, before the vector is loaded: memory then serves
 * Zen 4 and 5 faster, f32 by a twentieth to a fifth. */
CPU_INLINE void rope_split_load(rope_kind kind, const char *vector) {
    if (!kind.split_loads)
        return;
#pragma GCC unroll 3
    for (int at = 0; at < 4 * SIMD_LANES - 16; at += 16)
        simd_read_byte(vector + at);
}

/* One or two vectors of pairs from pair i on. */
CPU_INLINE void rope_read(rope_kind kind, int count, const char *in, int i, int pairs,
                          simd_pair *x) {
    const int dtype = kind.dtype;
    if (kind.parity) {
        simd_pair first = simd_split_words(dtype, simd_load_u(in + 2 * i)),
                  second = simd_split_words(dtype, simd_load_u(in + 2 * (i + pairs)));
        first = rope_pair_in_register(first);
        second = rope_pair_in_register(second);
        x[0] = (simd_pair){first.x1, second.x1};
        x[1] = (simd_pair){first.x2, second.x2};
        return;
    }
#pragma GCC unroll 2
    for (int v = 0; v < count; v++) {
        const int at = i + v * SIMD_LANES;
        if (kind.pairing_in == ROPE_PAIRING_HALF_SPLIT) {
            rope_split_load(kind, in + 4 * at);
            rope_split_load(kind, in + 4 * (at + pairs));
        }
        x[v] = rope_pair_in_register(simd_load_pairs(dtype, kind.pairing_in, in, at, pairs));
    }
}

CPU_INLINE void rope_write(rope_kind kind, int count, char *out, int i, int pairs,
                           const simd_pair *y) {
    const int dtype = kind.dtype, size = cpu_dtype_size(dtype);
    if (kind.parity) {
        const simd_pair first = {y[0].x1, y[1].x1}, second = {y[0].x2, y[1].x2};
        simd_narrow(ROPE_F32, kind.stream, out + i * size, (simd_f32)simd_join_words(dtype, first));
        simd_narrow(ROPE_F32, kind.stream, out + (i + pairs) * size,
                    (simd_f32)simd_join_words(dtype, second));
        return;
    }
    if (count == 2 && kind.pairing_out == ROPE_PAIRING_HALF_SPLIT) {
        simd_narrow_two(dtype, kind.stream, out + i * size, y[0].x1, y[1].x1);
        simd_narrow_two(dtype, kind.stream, out + (i + pairs) * size, y[0].x2, y[1].x2);
        return;
    }
#pragma GCC unroll 2
    for (int v = 0; v < count; v++)
        simd_store_pairs(dtype, kind.pairing_out, kind.stream, out, i + v * SIMD_LANES, pairs,
                         y[v]);
}

CPU_INLINE void rope_rotate_vectors(rope_kind kind, int count, const char *in, char *out, int i,
                                    int pairs, const cpu_cos_sin_row *row) {
    simd_pair x[2];
    rope_read(kind, count, in, i, pairs, x);
#pragma GCC unroll 2
    for (int v = 0; v < count; v++)
        x[v] = rope_rotate_vector(kind, x[v], rope_load_matrix(kind, row, i + v * SIMD_LANES));
    rope_write(kind, count, out, i, pairs, x);
}

/* The first `count` of a window of any number of pairs by a row in memory. Two vectors at a time
 * are read before either is written: in place, a load of a line for which an older store waits
 * takes several times as long. Streaming stores of 16 bits are of one vector where two would not be
 * aligned. What no vector is left for is in one that overlaps others: it is read before they are
 * written. */
CPU_INLINE void rope_rotate_window(rope_kind kind, int count, int pairs, const char *in, char *out,
                                   const cpu_cos_sin_row *row) {
    const int last = count - SIMD_LANES, odd = count % (2 * SIMD_LANES) != 0;
    simd_pair rest = {{0}, {0}};
    int i = 0;
    if (last < 0) {
        simd_pair x = simd_load_some(kind.dtype, kind.pairing_in, in, pairs, count);
        simd_store_some(kind.dtype, kind.pairing_out, out, pairs, count,
                        rope_rotate_vector(kind, x, rope_load_matrix(kind, row, 0)));
        return;
    }
    if (count % SIMD_LANES)
        rope_read(kind, 1, in, last, pairs, &rest);
    if (!(kind.stream && odd))
        for (; i + 2 * SIMD_LANES <= count; i += 2 * SIMD_LANES)
            rope_rotate_vectors(kind, 2, in, out, i, pairs, row);
    for (; i + SIMD_LANES <= count; i += SIMD_LANES)
        rope_rotate_vectors(kind, 1, in, out, i, pairs, row);
    if (i < count) {
        rest = rope_rotate_vector(kind, rest, rope_load_matrix(kind, row, last));
        rope_write(kind, 1, out, last, pairs, &rest);
    }
}

enum { ROPE_REGISTER_PAIRS = 128 }; /* most whose part of a row is held in registers */

/* One cos and sin for each pair, or for each element of neighbours that stay side by side, in the
 * order of the vectors that are read. */
typedef struct rope_register_row {
    simd_f32 c[2 * ROPE_REGISTER_PAIRS / SIMD_LANES], s[2 * ROPE_REGISTER_PAIRS / SIMD_LANES];
    const float *cosines; /* c in memory, in the order of pairs */
} rope_register_row;

/* Neighbours but those of bfloat16, whose halves of words widen by a shift and a mask: on Zen 4 f32
 * took a seventh to a quarter less time by it, f16 a tenth. */
CPU_INLINE int rope_keeps_neighbours(rope_kind kind) {
    return kind.pairing_in == ROPE_PAIRING_INTERLEAVED && kind.dtype != ROPE_BF16;
}

CPU_INLINE void rope_load_row(rope_kind kind, const float *cosines, const float *sines,
                              rope_register_row *row) {
    row->cosines = cosines;
#pragma GCC unroll 16
    for (int v = 0; v * SIMD_LANES < kind.pairs; v++) {
        const simd_f32 c = simd_load_f(cosines + v * SIMD_LANES),
                       s = simd_load_f(sines + v * SIMD_LANES);
        if (rope_keeps_neighbours(kind)) {
            row->c[2 * v] = simd_low(c, c);
            row->s[2 * v] = simd_low(-s, s);
            row->c[2 * v + 1] = simd_high(c, c);
            row->s[2 * v + 1] = simd_high(-s, s);
        } else {
            row->c[v] = c;
            row->s[v] = s;
        }
    }
    if (!kind.parity)
        return;
#pragma GCC unroll 16
    for (int v = 0; v * SIMD_LANES < kind.pairs; v += 2) {
        const simd_f32 c = row->c[v], s = row->s[v];
        row->c[v] = simd_even(c, row->c[v + 1]);
        row->s[v] = simd_even(s, row->s[v + 1]);
        row->c[v + 1] = simd_odd(c, row->c[v + 1]);
        row->s[v + 1] = simd_odd(s, row->s[v + 1]);
    }
}

/* The same address, which a compiler takes for another: what is loaded from both is loaded twice.
 */
CPU_INLINE const float *rope_alias(const float *p) {
    __asm__("" : "+r"(p));
    return p;
}

/* A block of a window of `pairs` by a row in registers. Cosines of f16 are operands in memory, once
 * for each product: a tenth to a sixth faster for 8 and more tokens. */
CPU_INLINE void rope_rotate_pairs(rope_kind kind, int pairs, const char *in, char *out,
                                  const rope_register_row *row) {
    const int even = kind.pairs % (2 * SIMD_LANES) == 0,
              count = SIMD_LANES >= 8 && kind.dtype != ROPE_F32 && even ? 2 : 1;
    const float *again = rope_alias(row->cosines);
#pragma GCC unroll 16
    for (int v = 0; v * SIMD_LANES < kind.pairs; v += count) {
        simd_pair x[2];
        rope_read(kind, count, in, v * SIMD_LANES, pairs, x);
#pragma GCC unroll 2
        for (int w = 0; w < count; w++) {
            const int at = v + w;
            rope_matrix m = {row->c[at], row->s[at], row->c[at], row->s[at]};
            if (kind.dtype == ROPE_F16) {
                m.c1 = simd_load_f(row->cosines + at * SIMD_LANES);
                m.c2 = simd_load_f(again + at * SIMD_LANES);
            }
            x[w] = rope_rotate_vector(kind, x[w], m);
        }
        rope_write(kind, count, out, v * SIMD_LANES, pairs, x);
    }
}

/* Neighbours that stay side by side: each element's other product is with its neighbour. */
CPU_INLINE void rope_rotate_neighbours(rope_kind kind, const char *in, char *out,
                                       const rope_register_row *row) {
    const int bytes = SIMD_LANES * cpu_dtype_size(kind.dtype);
#pragma GCC unroll 32
    for (int v = 0; v * SIMD_LANES < 2 * kind.pairs; v += 2) {
        simd_f32 x[2];
#pragma GCC unroll 2
        for (int w = 0; w < 2; w++) {
            rope_split_load(kind, in + (v + w) * bytes);
            x[w] = rope_in_register(simd_widen(kind.dtype, in + (v + w) * bytes));
        }
#pragma GCC unroll 2
        for (int w = 0; w < 2; w++)
            x[w] = simd_fma(x[w], row->c[v + w], simd_swap(x[w]) * row->s[v + w]);
        simd_narrow_two(kind.dtype, kind.stream, out + v * bytes, x[0], x[1]);
    }
}

/* Heads of one token that rotate by one row: those of q, k or both. */
typedef struct rope_token_heads {
    const cpu_heads *tensor;
    int tensors, token;
    int64_t first, most; /* heads of each tensor */
} rope_token_heads;

/* One tensor's part: a copy, since stores may alias what pointers lead to. */
CPU_INLINE cpu_heads rope_heads_of(const rope_token_heads *t, int tensor) {
    cpu_heads h = t->tensor[tensor];
    h.in += t->token * h.in_step + t->first * h.in_stride;
    h.out += t->token * h.out_step + t->first * h.out_stride;
    h.count = h.count < t->most ? h.count : t->most;
    return h;
}

/* The block of kind.pairs from pair `first` on. The pairs that end the window behind it, if they
 * are less than a vector, are in one that overlaps others: it is read before they are written. */
CPU_INLINE void rope_rotate_block(rope_kind kind, const rope_token_heads *heads, int first,
                                  int pairs, const cpu_cos_sin_row *row) {
    const int left = pairs - first - kind.pairs, last = pairs - SIMD_LANES,
              rest = kind.pairs <= 32 && left > 0 && left < SIMD_LANES;
    const int64_t at = simd_pair_at(kind.dtype, kind.pairing_in, first),
                  bytes = 2 * (int64_t)kind.pairs * cpu_dtype_size(kind.dtype);
    const rope_matrix m = rope_load_matrix(kind, row, rest ? last : 0);
    const rope_kind of_rest = kind;
    rope_register_row registers;
    simd_pair x = {{0}, {0}};
    kind.parity = SIMD_PARITY && kind.pairing_in == ROPE_PAIRING_HALF_SPLIT &&
                  kind.dtype == ROPE_BF16 && kind.pairs % (2 * SIMD_LANES) == 0;
    rope_load_row(kind, row->c1 + first, row->s1 + first, &registers);
    for (int t = 0; t < heads->tensors; t++) {
        cpu_heads h = rope_heads_of(heads, t);
        for (; h.count > 0; h.count--) {
            rope_prefetch(&h, kind.stream, h.in + at, h.out + at, bytes);
            if (rest)
                rope_read(of_rest, 1, h.in, last, pairs, &x);
            if (rope_keeps_neighbours(kind))
                rope_rotate_neighbours(kind, h.in + at, h.out + at, &registers);
            else
                rope_rotate_pairs(kind, pairs, h.in + at, h.out + at, &registers);
            if (rest) {
                x = rope_rotate_vector(of_rest, x, m);
                rope_write(of_rest, 1, h.out, last, pairs, &x);
            }
            h.in += h.in_stride;
            h.out += h.out_stride;
        }
    }
}

/* Whole heads, one after the other, by a row in memory: windows of any number of pairs, with what
 * lies around them. */
CPU_INLINE void rope_rotate_whole(rope_kind kind, const rope_token_heads *heads, int pairs,
                                  const cpu_cos_sin_row *from) {
    const int64_t window = 2 * (int64_t)pairs * cpu_dtype_size(kind.dtype);
    const cpu_cos_sin_row row = *from; /* a copy, as that of heads */
    for (int t = 0; t < heads->tensors; t++) {
        cpu_heads h = rope_heads_of(heads, t);
        for (; h.count > 0; h.count--) {
            if (h.before)
                rope_copy_bytes(&h, kind.stream, h.out - h.before, h.in - h.before, h.before);
            rope_prefetch(&h, kind.stream, h.in, h.out, window);
            rope_rotate_window(kind, pairs, pairs, h.in, h.out, &row);
            if (kind.stream && h.after)
                rope_copy_bytes(&h, 1, h.out + window, h.in + window, h.after);
            else if (h.after)
                rope_copy_inline(&h, 0, h.out + window, h.in + window, h.after);
            h.in += h.in_stride;
            h.out += h.out_stride;
        }
    }
}

/* Windows of any number of pairs, block after block; the last one has what is left. */
CPU_INLINE void rope_rotate_blocks(rope_kind kind, const rope_token_heads *heads, int pairs,
                                   const cpu_cos_sin_row *row) {
    rope_kind of_64 = kind, of_32 = kind, of_vector = kind;
    int i = 0;
    of_64.pairs = 64;
    of_32.pairs = 32;
    of_vector.pairs = SIMD_LANES;
    for (; i + 64 == pairs || i + 64 + SIMD_LANES <= pairs; i += 64)
        rope_rotate_block(of_64, heads, i, pairs, row);
    for (; i + 32 <= pairs; i += 32)
        rope_rotate_block(of_32, heads, i, pairs, row);
    for (; i + SIMD_LANES <= pairs; i += SIMD_LANES)
        rope_rotate_block(of_vector, heads, i, pairs, row);
}

/* Windows go block by block, for all heads of a token. What goes around the cache goes head by
 * head: memory then sees one sequence of lines. */
CPU_INLINE int rope_goes_by_blocks(rope_kind kind, const cpu_heads *heads) {
    return !kind.stream && !(heads->before | heads->after) && heads->problem->pairs >= SIMD_LANES;
}

/* Windows of 128 pairs around the cache took a tenth less time with their row in registers. */
CPU_INLINE void rope_rotate_token(rope_kind kind, const rope_token_heads *heads, int pairs,
                                  const cpu_cos_sin_row *row) {
    rope_kind of_128 = kind;
    of_128.pairs = 128;
    if (kind.pairs)
        rope_rotate_block(kind, heads, 0, kind.pairs, row);
    else if (rope_goes_by_blocks(kind, heads->tensor))
        rope_rotate_blocks(kind, heads, pairs, row);
    else if (kind.stream && pairs == 128 && !(heads->tensor->before | heads->tensor->after))
        rope_rotate_block(of_128, heads, 0, 128, row);
    else if (!kind.split_loads)
        rope_rotate_whole(kind, heads, pairs, row);
}

CPU_INLINE void rope_rotate_heads(rope_kind kind, const cpu_heads *heads, int tensors,
                                  const cpu_cos_sin_row *rows, int tokens) {
    const int pairs = kind.pairs ? kind.pairs : heads->problem->pairs;
    rope_token_heads part = {heads, tensors, 0, 0, heads->by_head ? 1 : INT64_MAX};
    for (int64_t h = 0, last = heads->by_head ? heads->count : 1; h < last; h++)
        for (int t = 0; t < tokens; t++) {
            part.first = h;
            part.token = t;
            rope_rotate_token(kind, &part, pairs, &rows[t]);
        }
}

/* The split-load hint is for windows that go by blocks: parts of heads lost by it, whole heads
 * around the cache gained 0 to 3 %. */
CPU_INLINE int rope_may_split_loads(rope_kind kind) {
    return kind.dtype == ROPE_F32 && SIMD_LANES > 4 && (kind.pairs || !kind.stream);
}

CPU_INLINE int rope_splits_loads(rope_kind kind, const cpu_heads *heads) {
    return heads->split_loads && (kind.pairs || rope_goes_by_blocks(kind, heads));
}

/* Every arithmetic and pairing, decided head by head. A window whose pairing changes in place is
 * first set aside. */
CPU_INLINE void rope_rotate_general(int dtype, const cpu_heads *heads, const cpu_cos_sin_row *rows,
                                    int tokens) {
    const cpu_heads frame = *heads;
    const rope_problem *p = frame.problem;
    const rope_kind kind = {.dtype = dtype,
                            .pairing_in = p->pairing_in,
                            .pairing_out = p->pairing_out,
                            .stream = frame.stream,
                            .full = 1,
                            .model = p->arithmetic == ROPE_ARITHMETIC_MODEL_DTYPE};
    const int64_t window = 2 * (int64_t)p->pairs * cpu_dtype_size(dtype);
    char aside[2 * CPU_ROW_PAIRS * 4];
    for (int64_t h = 0; frame.part && h < frame.count; h++)
        rope_rotate_window(kind, frame.part, p->pairs, frame.in + h * frame.in_stride,
                           frame.out + h * frame.out_stride, rows);
    for (int t = 0; t < tokens && !frame.part; t++)
        for (int64_t h = 0; h < frame.count; h++) {
            const char *in = frame.in + t * frame.in_step + h * frame.in_stride;
            char *out = frame.out + t * frame.out_step + h * frame.out_stride;
            const char *from = in;
            if (frame.before)
                rope_copy_bytes(&frame, kind.stream, out - frame.before, in - frame.before,
                                frame.before);
            rope_prefetch(&frame, kind.stream, in, out, window);
            if (in == out && p->pairing_in != p->pairing_out)
                from = memcpy(aside, in, (size_t)window);
            rope_rotate_window(kind, p->pairs, p->pairs, from, out, &rows[t]);
            if (frame.after)
                rope_copy_bytes(&frame, kind.stream, out + window, in + window, frame.after);
        }
}

#endif
