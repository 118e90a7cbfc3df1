/*
 * Cells of bf16 by products of tiles of 16 rows of 64 bytes, compiled by the file that includes
 * this with its vectors and MATRIX_: operands of bf16, sums of fp32. Weights and gradients of
 * scores are rounded to bf16.
 */
#ifndef ROPEKIT_CPU_ATTENTION_BACKWARD_MATRIX_H
#define ROPEKIT_CPU_ATTENTION_BACKWARD_MATRIX_H

#include "backends/cpu/attention_backward/weights.h"

/* Columns and rows of a product of two tiles by two. */
enum { PANEL = 32, ROWS = 32, TILE = 1024, SIDE = 16, SQUARE = CELL * CELL };

_Static_assert(CELL % PANEL == 0 && (int)ROWS == (int)CPU_BACKWARD_SPARE, "whole panels");

CPU_INLINE int chunks_of(int n) {
    return (n + 31) / 32;
}

/* Tiles [32 elements][half of 32 rows], whose row n has words 16 m + n of 16 rows. */
static void matrix_pack(const float *rows, int count, int n, int64_t stride, float *panels) {
    char *tile = (char *)panels;
    for (int first = 0; first < count; first += PANEL)
        for (int c = 0; c < chunks_of(n); c++)
            for (int half = 0; half < PANEL; half += SIDE, tile += TILE)
                for (int i = 0; i < SIDE; i += SIMD_LANES)
                    for (int w = 0; w < SIDE; w += SIMD_LANES) {
                        simd_u32 x[SIMD_LANES];
                        for (int k = 0; k < SIMD_LANES; k++)
                            x[k] = first + half + i + k < count
                                       ? simd_load_u(rows + (first + half + i + k) * stride +
                                                     c * SIDE + w)
                                       : (simd_u32){0};
                        simd_transpose(x);
                        for (int k = 0; k < SIMD_LANES; k++)
                            simd_store_u(tile + (w + k) * 64 + i * 4, x[k]);
                    }
}

/* PANEL elements from `at` floats on of rows from..to - 1, zeros ahead of and behind them, for rows
 * of the chunks begin..end: tiles [32 rows][even or odd elements]. */
static void pack_pairs(const float *rows, int64_t stride, int64_t at, int begin, int end, int from,
                       int to, char *tiles) {
    for (int j = begin * 32; j < end * 32; j += 2) {
        char *tile = tiles + (int64_t)(j / 32 - begin) * 2 * TILE + j % 32 / 2 * 64;
        for (int w = 0; w < SIDE; w += SIMD_LANES) {
            simd_u32 x = {0}, y = {0};
            if (j >= from && j < to)
                x = simd_load_u(rows + j * stride + at + w);
            if (j + 1 >= from && j + 1 < to)
                y = simd_load_u(rows + (j + 1) * stride + at + w);
            simd_store_u(tile + w * 4, (x & 0xffffu) | y << 16);
            simd_store_u(tile + TILE + w * 4, x >> 16 | (y & 0xffff0000u));
        }
    }
}

/* --- weights --- */

/* [keys][rows] of a cell, or [rows][keys] behind it. */
CPU_INLINE uint16_t *square_of(float *array, int transposed) {
    return (uint16_t *)(void *)array + (transposed ? 0 : SQUARE);
}

/* ROWS rows by CELL keys of fp32 become bf16, by key and where wanted by row. */
CPU_INLINE void round_rows(const float *x, int row, int by_row, float *array) {
    for (int r = 0; r < ROWS; r += SIMD_LANES)
        for (int k = 0; k < CELL; k += SIMD_LANES) {
            simd_u32 square[SIMD_LANES];
            for (int i = 0; i < SIMD_LANES; i++) {
                square[i] = simd_load_u(x + (r + i) * CELL + k);
                if (by_row)
                    simd_store_h(square_of(array, 0) + (row + r + i) * CELL + k,
                                 simd_to_bf16((simd_f32)square[i]));
            }
            simd_transpose(square);
            for (int i = 0; i < SIMD_LANES; i++)
                simd_store_h(square_of(array, 1) + (k + i) * CELL + row + r,
                             simd_to_bf16((simd_f32)square[i]));
        }
}

CPU_INLINE void multiply_rows(const float *rows, int64_t stride, int count, int n,
                              const float *panels, group_range g, float *to) {
    const int chunks = chunks_of(n);
    for (int k = g.from / PANEL * PANEL; k < g.to; k += PANEL)
        MATRIX_MULTIPLY(count > SIDE, (const char *)rows, stride * (int64_t)sizeof *rows,
                        (const char *)panels + (int64_t)(k / PANEL) * chunks * 2 * TILE, chunks,
                        to + k, CELL);
}

static void matrix_weigh(backward_cell *c, int gradients) {
    float *p = c->spare, *ds = p + ROWS * CELL;
    MATRIX_BEGIN();
    for (int r = 0; r < c->rows; r += ROWS) {
        const int n = c->rows - r < ROWS ? c->rows - r : ROWS;
        const group_range g = range_of(c->first, c->last, r, n);
        multiply_rows(c->q + r * c->q_stride, c->q_stride, n, c->dim, c->k_panels, g, p);
        if (gradients)
            multiply_rows(c->dout + r * c->v_stride, c->v_stride, n, c->v_dim, c->v_panels, g, ds);
        for (int i = 0; i < n; i++)
            weigh_row(c, r + i, gradients, p + i * CELL, ds + i * CELL);
        for (int i = r; i < r + n && gradients && c->balances; i++) /* as ds is */
            c->share[i].own = rope_from_bf16(rope_to_bf16(c->share[i].own));
        memset(p + n * CELL, 0, (size_t)((ROWS - n) * CELL) * sizeof *p);
        memset(ds + n * CELL, 0, (size_t)((ROWS - n) * CELL) * sizeof *ds);
        round_rows(p, r, 0, c->p);
        if (gradients)
            round_rows(ds, r, 1, c->ds);
    }
    MATRIX_END();
}

/* --- sums --- */

/* The sums of an i over what it sees alone: 0 * infinity is not 0. */
static CPU_NOINLINE void multiply_seen(const backward_product *x, const uint16_t *a, int i, int e,
                                       float *sum) {
    char tiles[CELL / 32 * 2 * TILE] __attribute__((aligned(64)));
    float sums[SIDE * PANEL];
    const int begin = x->first[i] / 32, end = (x->last[i] + 31) / 32;
    pack_pairs(x->b, x->stride, e / 2, begin, end, x->first[i], x->last[i], tiles);
    MATRIX_MULTIPLY(0, (const char *)(a + i * CELL + begin * 32), 0, tiles, end - begin, sums,
                    PANEL);
    memcpy(sum, sums, PANEL * sizeof *sum);
}

/* Adds the sums of an i, of even and of odd elements, to elements e.. of it. */
CPU_INLINE void add_row(const backward_product *x, const uint16_t *a, int i, int e, float *sum) {
    simd_u32 odd = {0};
    for (int k = 0; k < PANEL; k += SIMD_LANES)
        odd |= (simd_u32)(simd_load_f(sum + k) * simd_set_f(0) != (simd_f32){0});
    if (simd_any(odd))
        multiply_seen(x, a, i, e, sum);
    float *to = x->to + i * x->stride + e;
    for (int k = 0; k < SIDE; k += SIMD_LANES, to += 2 * SIMD_LANES) {
        const simd_f32 even = simd_load_f(sum + k), uneven = simd_load_f(sum + SIDE + k);
        simd_store_f(to, simd_load_f(to) + simd_low(even, uneven));
        simd_store_f(to + SIMD_LANES, simd_load_f(to + SIMD_LANES) + simd_high(even, uneven));
    }
}

static void matrix_add(const backward_product *x) {
    char tiles[CELL / 32 * 2 * TILE] __attribute__((aligned(64)));
    float sums[ROWS * PANEL] __attribute__((aligned(64)));
    const uint16_t *a = square_of((float *)(uintptr_t)x->a, x->transposed);
    const group_range all = range_of(x->first, x->last, 0, x->count);
    const int begin = all.from / 32;
    MATRIX_BEGIN();
    for (int e = 0; e < x->n && all.from < all.to; e += PANEL) {
        pack_pairs(x->b, x->stride, e / 2, begin, (all.to + 31) / 32, all.from, all.to, tiles);
        for (int i = 0; i < x->count; i += ROWS) {
            const int n = x->count - i < ROWS ? x->count - i : ROWS;
            const group_range g = range_of(x->first, x->last, i, n);
            const int from = g.from / 32;
            if (g.from >= g.to)
                continue;
            MATRIX_MULTIPLY(n > SIDE, (const char *)(a + i * CELL + from * 32),
                            CELL * (int64_t)sizeof *a, tiles + (int64_t)(from - begin) * 2 * TILE,
                            (g.to + 31) / 32 - from, sums, PANEL);
            for (int m = 0; m < n; m++)
                if (x->first[i + m] < x->last[i + m])
                    add_row(x, a, i + m, e, sums + m * PANEL);
        }
    }
    MATRIX_END();
}

#define MATRIX_BACKWARD_KERNEL(attention_kernel)                                                   \
    {                                                                                              \
        .attention = &(attention_kernel), .dot = weights_dot, .pack = matrix_pack,                 \
        .weigh = matrix_weigh, .add = matrix_add                                                   \
    }

#endif
