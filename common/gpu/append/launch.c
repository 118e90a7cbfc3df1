/* From a call of "append" to its launch. */
#include "common/gpu/append/launch.h"

/* Blocks of the generic kernel, which takes a call of any size with any number of them. */
#ifndef GPU_GENERIC_X_MOST
#define GPU_GENERIC_X_MOST INT32_MAX
#define GPU_GENERIC_Y_MOST 65535
#endif

typedef struct launch {
    const void *kernel;
    dim3 grid, block;
    size_t shared; /* bytes of dynamic shared memory */
    void *arguments[2];
} launch;

static int64_t at_most(int64_t n, int64_t most) {
    return n < most ? n : most;
}

static void plan_generic(const gpu_append_bound *bound, const rope_append_call *call, launch *l) {
    const rope_append_problem *p = &bound->problem;
    int64_t heads = 1, dim = 0;
    int of_token = 0;
    for (int t = 0; t < ROPE_APPEND_TENSORS; t++) {
        if (!call->tensor[t].heads)
            continue;
        heads = call->tensor[t].heads > heads ? call->tensor[t].heads : heads;
        dim = p->steps[t].head_dim > dim ? p->steps[t].head_dim : dim;
        of_token |= p->steps[t].norm && p->steps[t].norm_scope == ROPE_NORM_TOKEN;
    }
    l->kernel = bound->kernels->generic;
    l->block = (dim3){GPU_APPEND_GENERIC_THREADS, 1, 1};
    l->grid = (dim3){(uint32_t)at_most(call->rope.batch * call->rope.tokens, GPU_GENERIC_X_MOST),
                     of_token ? 1 : (uint32_t)at_most(heads, GPU_GENERIC_Y_MOST), 1};
    l->shared = (2 * (size_t)dim + GPU_APPEND_SEGMENT) * sizeof(float);
    l->arguments[0] = (void *)(uintptr_t)p;
    l->arguments[1] = (void *)(uintptr_t)call;
}

gpuError_t gpu_append_launch(const gpu_append_bound *bound, const rope_append_call *call,
                             void *stream) {
    launch l;
    plan_generic(bound, call, &l);
    return gpu_launch_kernel(l.kernel, l.grid, l.block, l.arguments, l.shared, stream,
                             bound->early);
}
