/* The launch of the generic kernel, which takes every call. */
#include "backends/gpu/append/launch_plan.h"

#include "backends/gpu/platform/tuning.h"

void gpu_append_plan_generic(const gpu_append_state *state, const rope_append_call *call,
                             gpu_append_plan *l) {
    const rope_append_problem *p = &state->problem;
    int64_t heads = 1, dim = 0;
    int of_token = 0;
    for (int t = 0; t < ROPE_APPEND_TENSORS; t++) {
        if (!call->tensor[t].heads)
            continue;
        heads = call->tensor[t].heads > heads ? call->tensor[t].heads : heads;
        dim = p->steps[t].head_dim > dim ? p->steps[t].head_dim : dim;
        of_token |= p->steps[t].norm && p->steps[t].norm_scope == ROPE_NORM_TOKEN;
    }
    l->kernel = state->kernels->generic;
    l->block = (dim3){GPU_APPEND_GENERIC_THREADS, 1, 1};
    l->grid =
        (dim3){(uint32_t)gpu_at_most(call->rope.batch * call->rope.tokens, GPU_GENERIC_X_MOST),
               of_token ? 1 : (uint32_t)gpu_at_most(heads, GPU_GENERIC_Y_MOST), 1};
    l->shared = (2 * (size_t)dim + GPU_APPEND_SEGMENT) * sizeof(float);
    l->arguments[0] = (void *)(uintptr_t)p;
    l->arguments[1] = (void *)(uintptr_t)call;
}
