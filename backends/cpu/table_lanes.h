/* The coefficients of one token from the caller's tables, LANES pairs at a time. */
#ifndef ROPEKIT_CPU_TABLE_LANES_H
#define ROPEKIT_CPU_TABLE_LANES_H

#include "backends/cpu/row_lanes.h"

/* Entries side by side. Past the last pair stand ones, which no later step trips over. */
CPU_INLINE void lanes_read_entries(int dtype, const char *entry, int pairs, float *list) {
    int i = 0;
    for (; i + LANES <= pairs; i += LANES)
        lanes_store_f(list + i, lanes_widen(dtype, entry + i * cpu_dtype_size(dtype)));
    for (int end = i < pairs ? i + LANES : i; i < end; i++)
        list[i] = i < pairs ? cpu_load(dtype, entry, i) : 1;
}

/* Entries of first and second elements by turns. */
CPU_INLINE void lanes_read_neighbours(int dtype, const char *entry, int pairs, float *first,
                                      float *second) {
    int i = 0;
    for (; i + LANES <= pairs; i += LANES) {
        lanes_pair x = lanes_load_neighbours(dtype, entry + 2 * i * cpu_dtype_size(dtype));
        lanes_store_f(first + i, x.x1);
        lanes_store_f(second + i, x.x2);
    }
    for (int end = i < pairs ? i + LANES : i; i < end; i++) {
        first[i] = i < pairs ? cpu_load(dtype, entry, 2 * i) : 1;
        second[i] = i < pairs ? cpu_load(dtype, entry, 2 * i + 1) : 1;
    }
}

/* One row of a table into the list of first elements and, from a full row, that of second ones. */
CPU_INLINE void lanes_read_row(int dtype, const rope_problem *p, const void *table, int64_t from,
                               float *first, float *second) {
    const int size = cpu_dtype_size(dtype);
    const char *entry = (const char *)table + from * size;
    if (p->table_width == ROPE_TABLE_FULL && p->pairing_out == ROPE_PAIRING_INTERLEAVED) {
        lanes_read_neighbours(dtype, entry, p->pairs, first, second);
        return;
    }
    lanes_read_entries(dtype, entry, p->pairs, first);
    if (p->table_width == ROPE_TABLE_FULL)
        lanes_read_entries(dtype, entry + (int64_t)p->pairs * size, p->pairs, second);
}

static void lanes_read_table(const rope_problem *p, const void *table, int64_t from, float *first,
                             float *second) {
    if (p->table_dtype == ROPE_F32)
        lanes_read_row(ROPE_F32, p, table, from, first, second);
    else if (p->table_dtype == ROPE_BF16)
        lanes_read_row(ROPE_BF16, p, table, from, first, second);
    else
        lanes_read_row(ROPE_F16, p, table, from, first, second);
}

/* Tables may hold NaNs of any bits, and rounding to bfloat16 looks for none (lanes_bf16_words). */
static void lanes_quiet_row(const rope_problem *p, const cpu_row *row) {
    float *const lists[4] = {row->c1, row->s1, row->c2, row->s2};
    const int count = p->dtype != ROPE_BF16 ? 0 : row->c1 == row->c2 ? 2 : 4;
    for (int list = 0; list < count; list++)
        for (int i = 0; i < p->pairs; i += LANES) {
            lanes_f x = lanes_load_f(lists[list] + i);
            /* A NaN differs from itself. NOLINTNEXTLINE(misc-redundant-expression) */
            lanes_u nan = (lanes_u)(x != x), quiet = (lanes_u){0} + 0x7fc00000u;
            lanes_store_f(lists[list] + i, (lanes_f)lanes_select(nan, quiet, (lanes_u)x));
        }
}

/* rope_directed on whole lists; of a half row c2 and s2 are c1 and s1. */
CPU_INLINE void lanes_direct(int inverse, int pairs, float *c1, float *s1, float *c2, float *s2) {
    for (int i = 0; i < pairs; i += LANES) {
        lanes_f a = lanes_load_f(c1 + i), b = lanes_load_f(s1 + i);
        lanes_f c = lanes_load_f(c2 + i), d = lanes_load_f(s2 + i);
        if (inverse) {
            lanes_f determinant = lanes_fma(a, c, b * d);
            lanes_store_f(c1 + i, c / determinant);
            lanes_store_f(c2 + i, a / determinant);
            b = b / determinant;
            d = d / determinant;
        }
        lanes_store_f(s1 + i, inverse ? -b : -d);
        lanes_store_f(s2 + i, inverse ? -d : -b);
    }
}

/* One axis, and entries side by side; other tables are read pair by pair. */
static int lanes_reads(const rope_problem *p, const rope_call *call) {
    return p->axes == 1 && call->table_stride[2] == 1;
}

static void lanes_table_row(const rope_problem *p, const rope_call *call, const rope_token *token,
                            const cpu_row *row) {
    lanes_read_table(p, call->cos, token->at[0], row->c1, row->c2);
    lanes_read_table(p, call->sin, token->at[0], row->s1, row->s2);
    lanes_quiet_row(p, row);
    if (p->direction == ROPE_TRANSPOSE)
        lanes_direct(0, p->pairs, row->c1, row->s1, row->c2, row->s2);
    else if (p->direction == ROPE_INVERSE)
        lanes_direct(1, p->pairs, row->c1, row->s1, row->c2, row->s2);
    if (p->arithmetic == ROPE_ARITHMETIC_MODEL_DTYPE)
        lanes_round_row(p, row);
}

#endif
