/*
 * From a call of "append" to its launch: kernel, grid, block and parameters. The first kernel that
 * strides, addresses and size of the call fit is taken: moved, latent or plain, vector, generic.
 */
#include "backends/gpu/append/launch_plan.h"

gpuError_t gpu_append_launch(const gpu_append_bound *bound, const rope_append_call *call,
                             void *stream) {
    gpu_append_plan l;
    l.shared = 0;
    if ((bound->most != GPU_APPEND_BY_MOVED || !gpu_append_plan_moved(bound, call, &l)) &&
        (bound->most != GPU_APPEND_BY_LATENT || !gpu_append_plan_latent(bound, call, &l)) &&
        (bound->most != GPU_APPEND_BY_PLAIN || !gpu_append_plan_plain(bound, call, &l)) &&
        (bound->most < GPU_APPEND_BY_VECTOR || !gpu_append_plan_vector(bound, call, &l)))
        gpu_append_plan_generic(bound, call, &l);
    return gpu_launch_kernel(l.kernel, l.grid, l.block, l.arguments, l.shared, stream,
                             bound->on.early);
}
