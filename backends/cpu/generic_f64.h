/*
 * Every descriptor of doubles, in loops over lists that compilers turn into the vectors of the file
 * that includes this.
 */
#ifndef ROPEKIT_CPU_GENERIC_F64_H
#define ROPEKIT_CPU_GENERIC_F64_H

#include "backends/cpu/head.h"
#include "common/math/rotate.h"
#include "common/math/token.h"

/* Lists of one token's coefficients, and of the elements of one window. */
typedef struct cpu_work64 {
    double c1[CPU_MAX_PAIRS], s1[CPU_MAX_PAIRS], c2[CPU_MAX_PAIRS], s2[CPU_MAX_PAIRS];
    double x1[CPU_MAX_PAIRS], x2[CPU_MAX_PAIRS];
} cpu_work64;

static void cpu_fill_row64(const rope_problem *p, const rope_call *call, const rope_token *token,
                           int tensor, cpu_work64 *w) {
    for (int i = 0; i < p->pairs; i++) {
        rope_coefficients64 m = rope_coefficients64_of(p, call, token, i, tensor);
        w->c1[i] = m.c1;
        w->s1[i] = m.s1;
        w->c2[i] = m.c2;
        w->s2[i] = m.s2;
    }
}

/* Of two lists of a window: where they begin, and what separates their entries. */
typedef struct cpu_halves64 {
    int64_t second, step;
} cpu_halves64;

CPU_INLINE cpu_halves64 cpu_halves64_of(int pairing, int pairs, int64_t stride) {
    cpu_halves64 h = {rope_second_of(pairing, 0, pairs) * stride,
                      (rope_first_of(pairing, 1) - rope_first_of(pairing, 0)) * stride};
    return h;
}

CPU_INLINE void cpu_read_window64(int64_t step, int64_t second, int pairs, const double *in,
                                  cpu_work64 *w) {
    for (int i = 0; i < pairs; i++) {
        w->x1[i] = in[i * step];
        w->x2[i] = in[i * step + second];
    }
}

CPU_INLINE void cpu_write_window64(int64_t step, int64_t second, int pairs, double *restrict out,
                                   const cpu_work64 *restrict w, int model) {
    for (int i = 0; i < pairs; i++) {
        rope_pair64 x = {w->x1[i], w->x2[i]};
        rope_coefficients64 m = {w->c1[i], w->s1[i], w->c2[i], w->s2[i]};
        rope_pair64 y = model ? rope_rotate_model64(x, m) : rope_rotate64(x, m);
        out[i * step] = y.x1;
        out[i * step + second] = y.x2;
    }
}

static void cpu_rotate_head64(const rope_problem *p, const cpu_head *head, cpu_work64 *w) {
    const int model = p->arithmetic == ROPE_ARITHMETIC_MODEL_DTYPE, pairs = p->pairs;
    cpu_halves64 in = cpu_halves64_of(p->pairing_in, pairs, head->in_stride);
    cpu_halves64 out = cpu_halves64_of(p->pairing_out, pairs, head->out_stride);
    if (in.step == 1)
        cpu_read_window64(1, in.second, pairs, (const double *)head->in, w);
    else
        cpu_read_window64(in.step, in.second, pairs, (const double *)head->in, w);
    if (out.step == 1)
        cpu_write_window64(1, out.second, pairs, (double *)head->out, w, model);
    else
        cpu_write_window64(out.step, out.second, pairs, (double *)head->out, w, model);
}

static void cpu_rotate_heads64(const rope_problem *p, const rope_call *call, int tensor,
                               int64_t batch, int64_t index, const cpu_slice *slice,
                               cpu_work64 *w) {
    const int offset = p->rotary_offset[tensor], size = sizeof(double);
    for (int64_t h = slice->first_head[tensor]; h < slice->last_head[tensor]; h++) {
        cpu_head head = cpu_head_of(&call->tensor[tensor], size, batch, index, h);
        cpu_head window = cpu_window_of(&head, size, offset);
        cpu_copy_elements(size, &head, 0, offset);
        cpu_rotate_head64(p, &window, w);
        cpu_copy_elements(size, &head, offset + 2 * p->pairs, p->head_dim[tensor]);
    }
}

static void cpu_rotate_f64(const rope_problem *p, const rope_call *call, const cpu_slice *slice) {
    cpu_work64 work;
    for (int64_t i = slice->first_token; i < slice->last_token; i++) {
        int64_t batch = i / call->tokens, index = i % call->tokens;
        rope_token token = rope_token_of(p, call, batch, index);
        int filled = 0;
        for (int t = 0; t < 2; t++) {
            if (call->tensor[t].heads == 0)
                continue;
            if (token.fate == ROPE_TOKEN_PASSES) {
                cpu_pass_heads(p, call, t, batch, index, slice);
                continue;
            }
            if (!filled || p->xpos_rate)
                cpu_fill_row64(p, call, &token, t, &work);
            filled = 1;
            cpu_rotate_heads64(p, call, t, batch, index, slice, &work);
        }
    }
}

#endif
