/*
 * Every descriptor, one pair at a time. Each kernel file includes this and compiles it with its own
 * instructions; the results are the same bits in all of them.
 */
#ifndef ROPEKIT_CPU_GENERIC_H
#define ROPEKIT_CPU_GENERIC_H

#include "backends/cpu/head.h"
#include "common/rotate.h"
#include "common/token.h"

/* Coefficients of one token: c2 and s2 may be the very lists of c1 and s1. */
typedef struct cpu_row {
    const float *c1, *s1, *c2, *s2;
} cpu_row;

typedef union cpu_row_buffer {
    float list[4][CPU_MAX_PAIRS + CPU_ROW_PADDING];
    rope_coefficients64 wide[CPU_MAX_PAIRS];
} __attribute__((aligned(64))) cpu_row_buffer;

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

static void cpu_rotate_head_f64(const rope_problem *p, const rope_coefficients64 *row,
                                const cpu_head *head) {
    const double *in = (const double *)head->in;
    double *out = (double *)head->out;
    rope_pair64 window[CPU_MAX_PAIRS];
    for (int i = 0; i < p->pairs; i++) {
        window[i].x1 = in[rope_first_of(p->pairing_in, i) * head->in_stride];
        window[i].x2 = in[rope_second_of(p->pairing_in, i, p->pairs) * head->in_stride];
    }
    for (int i = 0; i < p->pairs; i++) {
        rope_pair64 y = p->arithmetic == ROPE_ARITHMETIC_MODEL_DTYPE
                            ? rope_rotate_model64(window[i], row[i])
                            : rope_rotate64(window[i], row[i]);
        out[rope_first_of(p->pairing_out, i) * head->out_stride] = y.x1;
        out[rope_second_of(p->pairing_out, i, p->pairs) * head->out_stride] = y.x2;
    }
}

/* The coefficients of a token for q or k, pair by pair. */
static cpu_row cpu_generic_row(const rope_problem *p, const rope_call *call,
                               const rope_token *token, int tensor, cpu_row_buffer *buffer) {
    for (int i = 0; i < p->pairs; i++) {
        rope_coefficients m = rope_coefficients_of(p, call, token, i, tensor);
        buffer->list[0][i] = m.c1;
        buffer->list[1][i] = m.s1;
        buffer->list[2][i] = m.c2;
        buffer->list[3][i] = m.s2;
    }
    cpu_row row = {buffer->list[0], buffer->list[1], buffer->list[2], buffer->list[3]};
    return row;
}

static void cpu_rotate_heads_f64(const rope_problem *p, const rope_call *call,
                                 const rope_token *token, int tensor, int64_t batch, int64_t index,
                                 const cpu_slice *slice, cpu_row_buffer *buffer) {
    for (int i = 0; i < p->pairs; i++)
        buffer->wide[i] = rope_coefficients64_of(p, call, token, i, tensor);
    int offset = p->rotary_offset[tensor];
    for (int64_t h = slice->first_head[tensor]; h < slice->last_head[tensor]; h++) {
        cpu_head head = cpu_head_of(&call->tensor[tensor], 8, batch, index, h);
        cpu_head window = cpu_window_of(&head, 8, offset);
        cpu_copy_elements(8, &head, 0, offset);
        cpu_rotate_head_f64(p, buffer->wide, &window);
        cpu_copy_elements(8, &head, offset + 2 * p->pairs, p->head_dim[tensor]);
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
