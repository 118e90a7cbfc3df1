/* Whole windows in blocks of pairs. */
#ifndef ROPEKIT_CPU_BLOCK_LANES_H
#define ROPEKIT_CPU_BLOCK_LANES_H

#include "backends/cpu/beside_lanes.h"

enum { LANES_BLOCK = 128 }; /* most pairs of a block */

/* Windows that go by blocks: one cos and sin rotate each pair where it is. */
CPU_INLINE int lanes_serves_blocks(const rope_problem *p) {
    return p->pairing_in == p->pairing_out && p->arithmetic != ROPE_ARITHMETIC_MODEL_DTYPE &&
           !(p->angle_mode == ROPE_ANGLE_TABLE && p->table_width == ROPE_TABLE_FULL);
}

/* Most bytes of one store into a window, or into part of a head. Vectors of 16 bits go by twos, but
 * for a block of an odd number of them. */
CPU_INLINE int lanes_store_bytes(const rope_problem *p, int size, int part) {
    const int one_block = p->pairs <= 16 || (p->pairs == 48 && !part);
    const int odd = one_block && p->pairs % (2 * LANES) == LANES;
    return odd && lanes_serves_blocks(p) ? size * LANES : 4 * LANES;
}

/* Some pairs of a window of `pairs`, from `first` on: `size` in vectors, and `rest`, less than
 * LANES, behind them. */
typedef struct lanes_block {
    int size, first, rest, pairs;
} lanes_block;

/* The block of such a size at a pair: its rest is all that is left, where that is less than LANES.
 */
CPU_INLINE lanes_block lanes_block_at(int size, int first, int pairs) {
    const int left = pairs - first - size;
    return (lanes_block){size, first, left < LANES ? left : 0, pairs};
}

/* The size of the block that begins where so many pairs are left. */
CPU_INLINE int lanes_block_size(int left) {
    return left >= 64          ? 64
           : left >= 32        ? 32
           : left >= 2 * LANES ? 2 * LANES
           : left >= LANES     ? LANES
                               : 0;
}

/* A window of so many pairs is one block. */
CPU_INLINE int lanes_is_block(int pairs) {
    return lanes_block_size(pairs) == pairs;
}

/* From the start of a block to the vector that holds its rest: the last whole one of the window, or
 * part of one where the window has none. */
CPU_INLINE int lanes_rest_at(lanes_block block) {
    return block.size ? block.size + block.rest - LANES : 0;
}

/* The block ends with the window. */
CPU_INLINE int lanes_is_last(lanes_block block) {
    return block.first + block.size + block.rest == block.pairs;
}

/* Bytes from the start of a window to the block. */
CPU_INLINE int64_t lanes_block_offset(lanes_kind kind, lanes_block block) {
    return lanes_pair_at(kind.dtype, kind.in_pairing, block.first);
}

/* One cos and sin for each pair of a block, or for each of its elements, in the order of the
 * vectors that are read. Where there are registers for it a row stays in them across heads. */
typedef struct lanes_row {
    lanes_f c[2 * LANES_BLOCK / LANES], s[2 * LANES_BLOCK / LANES];
    lanes_f rest_c, rest_s; /* of the vector of the rest */
    const float *cosines;   /* c in memory, in the order of pairs */
} lanes_row;

/* What is cheapest was measured (docs/performance.md): to round bfloat16 by neighbours, whose
 * halves of words widen by a shift and a mask; to leave other neighbours where they are. */
CPU_INLINE lanes_kind lanes_block_kind(lanes_kind kind, int size) {
    const int half = kind.in_pairing == ROPE_PAIRING_HALF_SPLIT;
    kind.parity = LANES_PARITY && half && kind.dtype == ROPE_BF16 && size % (2 * LANES) == 0;
    kind.swap = !half && kind.dtype != ROPE_BF16;
    return kind;
}

CPU_INLINE void lanes_part_row(int size, lanes_row *row) {
#pragma GCC unroll 16
    for (int v = 0; v * LANES < size; v += 2) {
        lanes_f c = row->c[v], s = row->s[v];
        row->c[v] = lanes_even(c, row->c[v + 1]);
        row->s[v] = lanes_even(s, row->s[v + 1]);
        row->c[v + 1] = lanes_odd(c, row->c[v + 1]);
        row->s[v + 1] = lanes_odd(s, row->s[v + 1]);
    }
}

CPU_INLINE void lanes_double_row(int size, lanes_row *row) {
#pragma GCC unroll 16
    for (int v = size / LANES - 1; v >= 0; v--) {
        lanes_f c = row->c[v], s = row->s[v];
        row->c[2 * v] = lanes_low(c, c);
        row->s[2 * v] = lanes_low(-s, s);
        row->c[2 * v + 1] = lanes_high(c, c);
        row->s[2 * v + 1] = lanes_high(-s, s);
    }
}

/* Puts a row from the order of pairs in that of a kind. */
CPU_INLINE void lanes_arrange_row(lanes_kind kind, int size, lanes_row *row) {
    if (kind.parity)
        lanes_part_row(size, row);
    if (kind.swap)
        lanes_double_row(size, row);
}

CPU_INLINE void lanes_load_row(lanes_kind kind, lanes_block block, const cpu_row *from,
                               lanes_row *row) {
    const float *c = from->c1 + block.first, *s = from->s1 + block.first;
#pragma GCC unroll 16
    for (int v = 0; v * LANES < block.size; v++) {
        row->c[v] = lanes_load_f(c + v * LANES);
        row->s[v] = lanes_load_f(s + v * LANES);
    }
    row->rest_c = block.rest ? lanes_load_f(c + lanes_rest_at(block)) : (lanes_f){0};
    row->rest_s = block.rest ? lanes_load_f(s + lanes_rest_at(block)) : (lanes_f){0};
    row->cosines = c;
    lanes_arrange_row(kind, block.size, row);
}

/* The same address, which a compiler takes for another: what is loaded from both is loaded twice.
 */
CPU_INLINE const float *lanes_alias(const float *p) {
    __asm__("" : "+r"(p));
    return p;
}

/* Cosines of f16 are operands in memory, once for each product; what is best was measured
 * (docs/performance.md). */
CPU_INLINE lanes_matrix lanes_block_matrix(lanes_kind kind, const lanes_row *row,
                                           const float *again, int v) {
    lanes_matrix m = {row->c[v], row->s[v], row->c[v], row->s[v]};
    if (kind.dtype == ROPE_F16) {
        m.c1 = lanes_load_f(row->cosines + v * LANES);
        m.c2 = lanes_load_f(again + v * LANES);
    }
    return m;
}

/* Reads a byte of each 16 of a vector but the last, beside the load of the vector: memory then
 * serves Zen 4 and 5 faster (docs/performance.md). */
CPU_INLINE void lanes_touch(const lanes_heads *heads, const char *vector) {
    if (!heads->touch)
        return;
#pragma GCC unroll 3
    for (int at = 0; at < 4 * LANES - 16; at += 16)
        lanes_read_byte(vector + at);
}

/* A block of one window, a line of each half at a time. */
CPU_INLINE void lanes_rotate_pairs(lanes_kind kind, lanes_block block, const lanes_heads *heads,
                                   const char *in, char *out, const lanes_row *row) {
    const int even = block.size % (2 * LANES) == 0, pairs = block.pairs,
              count = LANES >= 8 && kind.dtype != ROPE_F32 && even ? 2 : 1;
    const float *again = lanes_alias(row->cosines);
#pragma GCC unroll 16
    for (int v = 0; v * LANES < block.size; v += count) {
        lanes_pair x[2];
        lanes_fetch(kind, heads, count, in, out, v * LANES, pairs);
        if (kind.dtype == ROPE_F32) {
            lanes_touch(heads, in + 4 * v * LANES);
            lanes_touch(heads, in + 4 * (v * LANES + pairs));
        }
        lanes_read_vectors(kind, count, in, v * LANES, pairs, x);
#pragma GCC unroll 2
        for (int w = 0; w < count; w++)
            x[w] = lanes_rotate(x[w], lanes_block_matrix(kind, row, again, v + w));
        lanes_write(kind, count, out, v * LANES, pairs, x);
    }
}

/* A block of neighbours that stay side by side: each element's other product is with its
 * neighbour. */
CPU_INLINE void lanes_rotate_neighbours(lanes_kind kind, int size, const lanes_heads *heads,
                                        const char *in, char *out, const lanes_row *row) {
    const int bytes = LANES * cpu_dtype_size(kind.dtype);
#pragma GCC unroll 32
    for (int v = 0; v * LANES < 2 * size; v += 2) {
        lanes_f x[2];
        lanes_fetch_lines(kind, heads, in, out, v * bytes, 2 * bytes);
#pragma GCC unroll 2
        for (int w = 0; w < 2; w++) {
            if (kind.dtype == ROPE_F32)
                lanes_touch(heads, in + (v + w) * bytes);
            x[w] = lanes_in_register(lanes_widen(kind.dtype, in + (v + w) * bytes));
        }
#pragma GCC unroll 2
        for (int w = 0; w < 2; w++)
            x[w] = lanes_fma(x[w], row->c[v + w], lanes_swap(x[w]) * row->s[v + w]);
        lanes_narrow_two(kind.dtype, kind.stream, out + v * bytes, x[0], x[1]);
    }
}

/* The block of one window, from where the block begins. The vector of its rest overlaps others: in
 * place it is read before they are written. */
CPU_INLINE void lanes_rotate_block(lanes_kind kind, lanes_block block, const lanes_heads *heads,
                                   const char *in, char *out, const lanes_row *row) {
    const lanes_matrix m = {row->rest_c, row->rest_s, row->rest_c, row->rest_s};
    const int at = lanes_rest_at(block);
    lanes_pair rest = {{0}, {0}};
    if (block.rest) {
        lanes_fetch(kind, heads, 1, in, out, at, block.pairs);
        if (block.size)
            rest = lanes_read(kind, in, at, block.pairs);
        else
            lanes_rotate_rest(kind, in, out, block.pairs, block.rest, m);
    }
    if (kind.swap)
        lanes_rotate_neighbours(kind, block.size, heads, in, out, row);
    else
        lanes_rotate_pairs(kind, block, heads, in, out, row);
    if (block.rest && block.size)
        lanes_store_pairs(kind.dtype, kind.out_pairing, 0, out, at, block.pairs,
                          lanes_rotate(rest, m));
}

/* The block of `count` heads of one token. */
CPU_INLINE void lanes_rotate_row(lanes_kind kind, lanes_block block, const lanes_heads *frame,
                                 const cpu_row *from, const char *in, char *out, int64_t count) {
    const int64_t at = lanes_block_offset(kind, block);
    const int window = 2 * block.pairs * cpu_dtype_size(kind.dtype),
              begins = kind.part && block.first == 0, ends = kind.part && lanes_is_last(block);
    lanes_row row;
    kind = lanes_block_kind(kind, block.size);
    lanes_load_row(kind, block, from, &row);
    for (int64_t h = 0; h < count; h++) {
        if (block.pairs == 64)
            lanes_fetch_far(kind, frame, in);
        if (begins)
            lanes_copy_before(kind, frame, in, out);
        lanes_rotate_block(kind, block, frame, in + at, out + at, &row);
        if (ends)
            lanes_copy_after(kind, frame, in + window, out + window);
        in += frame->in_stride;
        out += frame->out_stride;
    }
}

/* `count` heads of one token, block after block. */
CPU_INLINE void lanes_rotate_by_blocks(lanes_kind kind, const lanes_heads *frame,
                                       const cpu_row *row, const char *in, char *out,
                                       int64_t count) {
    const int pairs = frame->pairs;
    lanes_block block;
    for (int i = 0; i < pairs; i += block.size + block.rest) {
        block = lanes_block_at(lanes_block_size(pairs - i), i, pairs);
        if (block.size == 64)
            lanes_rotate_row(kind, lanes_block_at(64, i, pairs), frame, row, in, out, count);
        else if (block.size == 32)
            lanes_rotate_row(kind, lanes_block_at(32, i, pairs), frame, row, in, out, count);
        else if (block.size == 2 * LANES)
            lanes_rotate_row(kind, lanes_block_at(2 * LANES, i, pairs), frame, row, in, out, count);
        else if (block.size == LANES)
            lanes_rotate_row(kind, lanes_block_at(LANES, i, pairs), frame, row, in, out, count);
        else
            lanes_rotate_row(kind, lanes_block_at(0, i, pairs), frame, row, in, out, count);
    }
}

/* `count` heads of one token: whole heads of frequent sizes in one go, so that each instruction
 * walks through memory by the same step, which is how processors see what to fetch. Of parts only
 * windows of 48 pairs gained by it, and only in the cache. */
CPU_INLINE void lanes_rotate_token(lanes_kind kind, const lanes_heads *frame, const cpu_row *row,
                                   const char *in, char *out, int64_t count) {
    const int whole = kind.part && (kind.fetch || frame->pairs != 48) ? 0 : frame->pairs;
    if (whole == 64)
        lanes_rotate_row(kind, lanes_block_at(64, 0, 64), frame, row, in, out, count);
    else if (whole == 32)
        lanes_rotate_row(kind, lanes_block_at(32, 0, 32), frame, row, in, out, count);
    else if (whole == 128)
        lanes_rotate_row(kind, lanes_block_at(128, 0, 128), frame, row, in, out, count);
    else if (whole == 48)
        lanes_rotate_row(kind, lanes_block_at(48, 0, 48), frame, row, in, out, count);
    else
        lanes_rotate_by_blocks(kind, frame, row, in, out, count);
}

/* The heads of some tokens. */
CPU_INLINE void lanes_rotate_blocks(lanes_kind kind, const lanes_heads *heads, const cpu_row *rows,
                                    int tokens) {
    const lanes_heads frame = *heads; /* stores may alias what the pointers lead to */
    const int64_t each = frame.by_head ? 1 : frame.count;
    for (int64_t h = 0; h < frame.count; h += each)
        for (int t = 0; t < tokens; t++)
            lanes_rotate_token(kind, &frame, &rows[t],
                               frame.in + t * frame.in_step + h * frame.in_stride,
                               frame.out + t * frame.out_step + h * frame.out_stride, each);
}

#endif
