/*
 * From a call of "append" to its launch: kernel, grid, block and parameters. The first kernel that
 * strides, addresses and size of the call fit is taken: rerotate, mla or plain, vector, generic.
 */
#include "backends/gpu/append/launch_plan.h"

gpuError_t gpu_append_launch(const gpu_append_state *state, const rope_append_call *call,
                             void *stream) {
    gpu_append_plan l;
    l.shared = 0;
    if ((state->most != GPU_APPEND_BY_REROTATE || !gpu_append_plan_rerotate(state, call, &l)) &&
        (state->most != GPU_APPEND_BY_MLA || !gpu_append_plan_mla(state, call, &l)) &&
        (state->most != GPU_APPEND_BY_PLAIN || !gpu_append_plan_plain(state, call, &l)) &&
        (state->most < GPU_APPEND_BY_VECTOR || !gpu_append_plan_vector(state, call, &l)))
        gpu_append_plan_generic(state, call, &l);
    return gpu_launch_kernel(l.kernel, l.grid, l.block, l.arguments, l.shared, stream,
                             state->on.early);
}
