/* The kernel without vector instructions: the bits that every other kernel must reproduce. */
#include "backends/cpu/rope/f64.h"

typedef struct row {
    rope_coefficients pair[CPU_MAX_PAIRS];
    rope_pair window[CPU_MAX_PAIRS];
} row;

static void fill(const rope_problem *p, const rope_call *call, const rope_token *token, int tensor,
                 void *to) {
    for (int i = 0; i < p->pairs; i++)
        ((row *)to)->pair[i] = rope_coefficients_of(p, call, token, i, tensor);
}

/* The window is read first: where the pairing changes a pair is not written where it was read. */
CPU_INLINE void rotate_dtype(int dtype, int model, const rope_problem *p, row *r,
                             const cpu_head *head) {
    for (int i = 0; i < p->pairs; i++) {
        const int64_t first = rope_first_of(p->pairing_in, i),
                      second = rope_second_of(p->pairing_in, i, p->pairs);
        r->window[i].x1 = cpu_load(dtype, head->in, first * head->in_stride);
        r->window[i].x2 = cpu_load(dtype, head->in, second * head->in_stride);
    }
    for (int i = 0; i < p->pairs; i++) {
        const int64_t first = rope_first_of(p->pairing_out, i),
                      second = rope_second_of(p->pairing_out, i, p->pairs);
        const rope_pair x = r->window[i], y = model ? rope_rotate_model(dtype, x, r->pair[i])
                                                    : rope_rotate(x, r->pair[i]);
        cpu_store(dtype, head->out, first * head->out_stride, y.x1);
        cpu_store(dtype, head->out, second * head->out_stride, y.x2);
    }
}

static void rotate_window(const rope_problem *p, void *r, const cpu_head *window) {
    const int model = p->arithmetic == ROPE_ARITHMETIC_MODEL_DTYPE;
    if (p->dtype == ROPE_F32)
        rotate_dtype(ROPE_F32, model, p, r, window);
    else if (p->dtype == ROPE_BF16)
        rotate_dtype(ROPE_BF16, model, p, r, window);
    else
        rotate_dtype(ROPE_F16, model, p, r, window);
}

static void rotate(const rope_problem *p, const rope_call *call, const cpu_slice *slice) {
    static const cpu_pairwise kernel = {fill, rotate_window};
    row r;
    cpu_rotate_pairwise(&kernel, &r, p, call, slice);
}

const cpu_kernel cpu_kernel_scalar = {
    .needs = CPU_ISA_SCALAR, .slice = rotate, .slice_f64 = cpu_rotate_f64};
