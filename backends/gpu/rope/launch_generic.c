/* The launch of the generic kernel, which takes every call. */
#include "backends/gpu/rope/launch_plan.h"

#include "backends/gpu/platform/tuning.h"

/* In place with another pairing: the window is staged, a head at a time. */
static int is_staged(const rope_problem *p, const rope_call *call) {
    int in_place = 0;
    for (int t = 0; t < 2; t++)
        in_place |= call->tensor[t].heads && call->tensor[t].in == call->tensor[t].out;
    return in_place && p->pairing_in != p->pairing_out;
}

void gpu_plan_generic(const gpu_rope_state *state, const rope_call *call, const gpu_rope_shape *s,
                      gpu_rope_plan *l) {
    const rope_problem *p = &state->problem;
    const int64_t q = call->tensor[0].heads, k = call->tensor[1].heads, heads = q > k ? q : k;
    const int64_t whole = gpu_divide_up(p->pairs, GPU_GENERIC_LANES) * GPU_GENERIC_LANES;
    const uint32_t lanes = (uint32_t)gpu_at_most(whole, GPU_GENERIC_THREADS);
    l->staged = is_staged(p, call);
    const int one_head = l->staged || heads < 2;
    const uint32_t rows = one_head ? 1 : (uint32_t)gpu_at_most(heads, GPU_GENERIC_THREADS / lanes);
    l->kernel = state->kernels->generic;
    l->block = (dim3){lanes, rows, 1};
    l->grid = (dim3){(uint32_t)gpu_at_most(s->rows, GPU_GENERIC_X_MOST),
                     (uint32_t)gpu_at_most(gpu_divide_up(heads, rows), GPU_GENERIC_Y_MOST), 1};
    l->shared = l->staged ? 2 * (size_t)p->pairs * (size_t)s->size : 0;
    l->arguments[0] = (void *)(uintptr_t)p;
    l->arguments[1] = (void *)(uintptr_t)call;
    l->arguments[2] = &l->staged;
}
