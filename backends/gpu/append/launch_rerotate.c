/* The launch of the kernel that moves keys in a cache. */
#include "backends/gpu/append/launch_plan.h"

#include "backends/gpu/platform/tuning.h"

const char *gpu_append_rerotate_declines(const rope_append_problem *p) {
    if (p->k_source != ROPE_SOURCE_CACHE)
        return "declined: keys do not move in a cache";
    const char *declined = gpu_append_declines_16_bits(p);
    if (!declined)
        declined = gpu_append_declines_angles(&p->rope);
    if (!declined)
        declined = gpu_append_declines_pairing(&p->rope);
    return declined ? declined
                    : gpu_append_declines_whole_heads(&p->rope, &p->steps[ROPE_APPEND_K], 1);
}

/* Blocks along y of heads of a thread: of all heads, or fewer where that leaves the device idle. */
static int64_t divide_heads(const gpu_append_state *state, int64_t blocks, int64_t heads,
                            gpu_append_tensor *v) {
    const int64_t enough = (int64_t)GPU_APPEND_BLOCKS_ENOUGH * state->on.multiprocessors;
    int64_t each = gpu_at_most(heads, UINT16_MAX);
    while (each > 1 && blocks * gpu_divide_up(heads, each) < enough)
        each = gpu_divide_up(each, 2);
    v->thread_heads = (uint16_t)each;
    return gpu_divide_up(heads, each);
}

int gpu_append_plan_rerotate(const gpu_append_state *state, const rope_append_call *call,
                             gpu_append_plan *l) {
    const rope_append_problem *p = &state->problem;
    const int64_t heads = call->tensor[ROPE_APPEND_K].heads, lanes = p->rope.pairs / GPU_APPEND_V;
    gpu_append_tensor *v = &l->vectors.tensor[ROPE_APPEND_K];
    l->vectors = (gpu_append_vectors){.rows = 0};
    if (lanes < 1 || lanes > GPU_APPEND_THREADS || heads > INT32_MAX / 2 ||
        call->rope.tokens > INT32_MAX / 2 / call->rope.batch || !gpu_append_is_exact(p, call) ||
        !gpu_append_has_vectors(p, call, ROPE_APPEND_K) ||
        !gpu_append_fill_tensor(p, call, ROPE_APPEND_K, v))
        return 0;
    gpu_append_fill_vectors(p, call, &l->vectors);
    v->width = (uint16_t)(2 * p->rope.pairs);
    const int64_t rows = l->vectors.rows,
                  tokens = gpu_at_most(
                      gpu_at_most(GPU_APPEND_THREADS / lanes, GPU_APPEND_REROTATE_TOKENS), rows),
                  blocks = gpu_divide_up(rows, tokens), y = divide_heads(state, blocks, heads, v);
    if (y > GPU_GRID_YZ_MOST)
        return 0;
    l->kernel =
        state->kernels->rerotate[gpu_pairing_of(&p->rope)][v->steps.store_dtype >= ROPE_F8E4M3];
    l->grid = (dim3){(uint32_t)blocks, (uint32_t)y, 1};
    l->block = (dim3){(uint32_t)lanes, (uint32_t)tokens, 1};
    l->shared =
        (size_t)((l->vectors.flags & GPU_APPEND_ONE_ID ? 1 : tokens) * v->width) * sizeof(float);
    gpu_append_set_arguments(p, call, l);
    return 1;
}
