/* Every descriptor of doubles, in loops over lists that compilers turn into the vectors of the file
 * that includes this. */
#ifndef ROPEKIT_CPU_ROPE_F64_H
#define ROPEKIT_CPU_ROPE_F64_H

#include "backends/cpu/rope/head.h"
#include "common/math/rotate.h"

/* Lists of coefficients and elements of a part of a token's window. */
typedef struct cpu_row64 {
    double c1[CPU_PART_PAIRS], s1[CPU_PART_PAIRS], c2[CPU_PART_PAIRS], s2[CPU_PART_PAIRS];
    double x1[CPU_PART_PAIRS], x2[CPU_PART_PAIRS];
} cpu_row64;

static void cpu_fill_row64(const rope_problem *p, const rope_call *call, const rope_token *token,
                           int tensor, cpu_pairs pairs, void *row) {
    cpu_row64 *w = row;
    for (int i = 0; i < pairs.count; i++) {
        rope_coefficients64 m = rope_coefficients64_of(p, call, token, pairs.first + i, tensor);
        w->c1[i] = m.c1;
        w->s1[i] = m.s1;
        w->c2[i] = m.c2;
        w->s2[i] = m.s2;
    }
}

CPU_INLINE void cpu_write_window64(int64_t step, int64_t second, int pairs, double *restrict out,
                                   const cpu_row64 *restrict w, int model) {
    for (int i = 0; i < pairs; i++) {
        rope_pair64 x = {w->x1[i], w->x2[i]};
        rope_coefficients64 m = {w->c1[i], w->s1[i], w->c2[i], w->s2[i]};
        rope_pair64 y = model ? rope_rotate_model64(x, m) : rope_rotate64(x, m);
        out[i * step] = y.x1;
        out[i * step + second] = y.x2;
    }
}

static void cpu_rotate_window64(const rope_problem *p, cpu_pairs pairs, void *row,
                                const cpu_head *head) {
    const int model = p->arithmetic == ROPE_ARITHMETIC_MODEL_DTYPE;
    const int64_t in_second = rope_second_of(p->pairing_in, 0, p->pairs) * head->in_stride,
                  in_step = rope_first_of(p->pairing_in, 1) * head->in_stride,
                  second = rope_second_of(p->pairing_out, 0, p->pairs) * head->out_stride,
                  step = rope_first_of(p->pairing_out, 1) * head->out_stride;
    const double *in = (const double *)head->in + pairs.first * in_step;
    double *out = (double *)head->out + pairs.first * step;
    cpu_row64 *w = row;
    for (int i = 0; i < pairs.count; i++) {
        w->x1[i] = in[i * in_step];
        w->x2[i] = in[i * in_step + in_second];
    }
    if (step == 1) /* a seventh less time where it is known */
        cpu_write_window64(1, second, pairs.count, out, w, model);
    else
        cpu_write_window64(step, second, pairs.count, out, w, model);
}

static void cpu_rotate_f64(const rope_problem *p, const rope_call *call, const cpu_slice *slice) {
    static const cpu_pairwise kernel = {cpu_fill_row64, cpu_rotate_window64};
    cpu_row64 row;
    cpu_rotate_pairwise(&kernel, &row, p, call, slice);
}

#endif
