/*
 * Every descriptor, one pair at a time. Each kernel file includes this and compiles it with its own
 * instructions; the results are the same bits in all of them.
 */
#ifndef ROPEKIT_CPU_GENERIC_H
#define ROPEKIT_CPU_GENERIC_H

#include "backends/cpu/head.h"
#include "common/math/rotate.h"
#include "common/math/token.h"

/* Lists of one token's coefficients: c2 and s2 are the very lists of c1 and s1 where these rotate
 * both elements of a pair alike. */
typedef struct cpu_row {
    float *c1, *s1, *c2, *s2;
} cpu_row;

/* Memory of rows, each list padded to whole vectors. */
typedef struct cpu_row_buffer {
    float lists[4 * CPU_MAX_PAIRS];
} __attribute__((aligned(64))) cpu_row_buffer;

/* Row i of those that a buffer has room for: one, and four up to a quarter of CPU_MAX_PAIRS. */
CPU_INLINE cpu_row cpu_row_at(const rope_problem *p, cpu_row_buffer *buffer, int i) {
    int full = p->angle_mode == ROPE_ANGLE_TABLE && p->table_width == ROPE_TABLE_FULL;
    int list = (p->pairs + CPU_ROW_PADDING - 1) / CPU_ROW_PADDING * CPU_ROW_PADDING;
    float *c1 = buffer->lists + 4 * i * list, *s1 = c1 + list;
    cpu_row row = {c1, s1, full ? s1 + list : c1, full ? s1 + 2 * list : s1};
    return row;
}

CPU_INLINE rope_pair cpu_rotate_pair(int dtype, int model, rope_pair x, const cpu_row *row, int i) {
    rope_coefficients m = {row->c1[i], row->s1[i], row->c2[i], row->s2[i]};
    return model ? rope_rotate_model(dtype, x, m) : rope_rotate(x, m);
}

CPU_INLINE rope_pair cpu_load_pair(int dtype, const rope_problem *p, const cpu_head *head, int i) {
    rope_pair x;
    x.x1 = cpu_load(dtype, head->in, rope_first_of(p->pairing_in, i) * head->in_stride);
    x.x2 = cpu_load(dtype, head->in, rope_second_of(p->pairing_in, i, p->pairs) * head->in_stride);
    return x;
}

CPU_INLINE void cpu_store_pair(int dtype, const rope_problem *p, const cpu_head *head, int i,
                               rope_pair y) {
    cpu_store(dtype, head->out, rope_first_of(p->pairing_out, i) * head->out_stride, y.x1);
    cpu_store(dtype, head->out, rope_second_of(p->pairing_out, i, p->pairs) * head->out_stride,
              y.x2);
}

/* Where the pairing changes a pair is not written where it was read, so the window is read first.
 */
CPU_INLINE void cpu_rotate_head(int dtype, int model, const rope_problem *p, const cpu_row *row,
                                const cpu_head *head) {
    if (p->pairing_in == p->pairing_out) {
        for (int i = 0; i < p->pairs; i++)
            cpu_store_pair(dtype, p, head, i,
                           cpu_rotate_pair(dtype, model, cpu_load_pair(dtype, p, head, i), row, i));
        return;
    }
    rope_pair window[CPU_MAX_PAIRS];
    for (int i = 0; i < p->pairs; i++)
        window[i] = cpu_load_pair(dtype, p, head, i);
    for (int i = 0; i < p->pairs; i++)
        cpu_store_pair(dtype, p, head, i, cpu_rotate_pair(dtype, model, window[i], row, i));
}

static void cpu_rotate_head_f32(const rope_problem *p, const cpu_row *row, const cpu_head *head) {
    cpu_rotate_head(ROPE_F32, p->arithmetic == ROPE_ARITHMETIC_MODEL_DTYPE, p, row, head);
}

static void cpu_rotate_head_f16(const rope_problem *p, const cpu_row *row, const cpu_head *head) {
    cpu_rotate_head(ROPE_F16, p->arithmetic == ROPE_ARITHMETIC_MODEL_DTYPE, p, row, head);
}

static void cpu_rotate_head_bf16(const rope_problem *p, const cpu_row *row, const cpu_head *head) {
    cpu_rotate_head(ROPE_BF16, p->arithmetic == ROPE_ARITHMETIC_MODEL_DTYPE, p, row, head);
}

/* The coefficients of a token for q or k, pair by pair. */
static void cpu_fill_row(const rope_problem *p, const rope_call *call, const rope_token *token,
                         int tensor, const cpu_row *row) {
    for (int i = 0; i < p->pairs; i++) {
        rope_coefficients m = rope_coefficients_of(p, call, token, i, tensor);
        row->c1[i] = m.c1;
        row->s1[i] = m.s1;
        row->c2[i] = m.c2;
        row->s2[i] = m.s2;
    }
}

static void cpu_rotate_heads(const rope_problem *p, const rope_call *call, int tensor,
                             int64_t batch, int64_t index, const cpu_slice *slice,
                             const cpu_row *row) {
    int offset = p->rotary_offset[tensor], size = cpu_dtype_size(p->dtype);
    for (int64_t h = slice->first_head[tensor]; h < slice->last_head[tensor]; h++) {
        cpu_head head = cpu_head_of(&call->tensor[tensor], size, batch, index, h);
        cpu_head window = cpu_window_of(&head, size, offset);
        cpu_copy_elements(size, &head, 0, offset);
        if (p->dtype == ROPE_F32)
            cpu_rotate_head_f32(p, row, &window);
        else if (p->dtype == ROPE_BF16)
            cpu_rotate_head_bf16(p, row, &window);
        else
            cpu_rotate_head_f16(p, row, &window);
        cpu_copy_elements(size, &head, offset + 2 * p->pairs, p->head_dim[tensor]);
    }
}

#endif
