/*
 * From a call to its launch: kernel, grid, block and parameters, in nanoseconds of integer
 * arithmetic. The first kernel that fits the call is taken: plain, window, vector, generic.
 */
#include "backends/gpu/rope/launch_plan.h"

#include "common/math/portable.h"

static int32_t set_of(const rope_problem *p, const rope_position_map *map) {
    if (p->frequency_sets < 2)
        return 0;
    if (map->lengths || map->offsets || map->cu_seqlens)
        return -1;
    return rope_sum(map->tokens * map->shard_size, map->offset) > p->long_from;
}

static int is_near(const rope_call *call, const int64_t stride[4], int32_t size) {
    const int64_t most = INT32_MAX / (GPU_HEADS_MOST - 1) / size,
                  token = gpu_token_stride(call, stride);
    return token <= most && token >= -most && stride[2] <= most && stride[2] >= -most;
}

static gpu_rope_shape shape_of(const gpu_rope_state *state, const rope_call *call) {
    const rope_problem *p = &state->problem;
    const rope_position_map *map = &call->position;
    const int64_t heads = call->tensor[0].heads + call->tensor[1].heads;
    gpu_rope_shape s = {.rows = call->batch * call->tokens,
                        .size = gpu_dtype_size(p->dtype),
                        .pairing = gpu_pairing_of(p),
                        .set = set_of(p, map),
                        .tokens_in_line = 1,
                        .near = 1};
    s.pairs_each = s.rows * heads * p->pairs / state->on.multiprocessors;
    s.ids_in_line = call->batch == 1 || (map->ids && map->id_stride[1] == call->tokens);
    s.one_position = !map->cu_seqlens && !map->offsets && s.set >= 0 &&
                     (!map->ids || call->tokens == 1 || map->id_stride[2] == 1);
    for (int t = 0; t < 2; t++) {
        const rope_operand *o = &call->tensor[t];
        if (!o->heads)
            continue;
        s.near &= is_near(call, o->in_stride, s.size) && is_near(call, o->out_stride, s.size);
        if (call->batch > 1 && call->tokens > 1)
            s.tokens_in_line &= o->in_stride[0] == call->tokens * o->in_stride[1] &&
                                o->out_stride[0] == call->tokens * o->out_stride[1];
    }
    return s;
}

gpuError_t gpu_rope_launch(const gpu_rope_state *state, const rope_call *call, int32_t early,
                           void *stream) {
    const gpu_rope_shape s = shape_of(state, call);
    gpu_rope_plan l;
    l.shared = 0;
    if (state->geometry == GPU_GENERIC ||
        (!gpu_plan_plain(state, call, &s, &l) && !gpu_plan_window(state, call, &s, &l) &&
         !gpu_plan_vector(state, call, &s, &l)))
        gpu_plan_generic(state, call, &s, &l);
    return gpu_launch_kernel(l.kernel, l.grid, l.block, l.arguments, l.shared, stream, early);
}
