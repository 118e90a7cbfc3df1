#include "backends/gpu/attention/bind.h"

#include "backends/gpu/device.h"
#include "backends/gpu/rope/lists.h"
#include "common/math/attention.h"

#include <stdio.h>

static const gpu_attention_kernels *kernels_of(int32_t dtype) {
    return dtype == ROPE_F32   ? &gpu_attention_f32
           : dtype == ROPE_F16 ? &gpu_attention_f16
                               : &gpu_attention_bf16;
}

static const gpu_generic_kernels *generics_of(int32_t dtype) {
    return dtype == ROPE_F32   ? &gpu_attention_generic_f32
           : dtype == ROPE_F16 ? &gpu_attention_generic_f16
                               : &gpu_attention_generic_bf16;
}

static int32_t most_of(const rope_attention_problem *p) {
    return p->head_dim > p->v_head_dim ? p->head_dim : p->v_head_dim;
}

#define TEXT(number) #number
#define TEXT_OF(number) TEXT(number)

const char *gpu_tiles_decline(const rope_attention_problem *p, int32_t *tiles) {
    *tiles = 0;
    if (p->rope.dtype == ROPE_F32)
        return "declined: dtype is f32";
    if (p->head_dim % 8 || p->v_head_dim % 8 || most_of(p) > GPU_TILE_DIM)
        return "declined: head_dim and v_head_dim are not multiples of 8 up to " TEXT_OF(
            GPU_TILE_DIM);
    while (gpu_tile_dim(*tiles) < most_of(p))
        ++*tiles;
    return kernels_of(p->rope.dtype)->tiles[*tiles]
               ? NULL
               : "declined: no matrix instructions are compiled here";
}

const char *gpu_latent_decline(const rope_attention_problem *p) {
    if (p->rope.dtype == ROPE_F32)
        return "declined: dtype is f32";
    if (p->head_dim <= GPU_TILE_DIM || p->head_dim % 8 || p->v_head_dim % 8 ||
        p->v_head_dim > GPU_LATENT_VALUE_DIM)
        return "declined: head_dim is not a multiple of 8 beyond " TEXT_OF(
            GPU_TILE_DIM) ", or v_head_dim not one up to 512";
    return kernels_of(p->rope.dtype)->wide_heads
               ? NULL
               : "declined: no matrix instructions are compiled here";
}

int64_t gpu_split_queries(const gpu_attention_state *state, int64_t group) {
    if (!state->splits || group < 1)
        return 0;
    return state->wide_heads ? GPU_LATENT_QUERIES : GPU_SPLIT_ROWS / group;
}

rope_status gpu_tiles_query(const rope_attention_problem *p, const char *declined, int32_t shared,
                            int32_t device, char *reason) {
    int32_t most = 0;
    const gpuError_t error = declined ? gpuSuccess : gpu_tile_memory(device, p->rope.dtype, &most);
    if (error != gpuSuccess)
        return gpu_refuse(error, reason);
    if (!declined && most >= shared)
        return ROPE_OK;
    if (declined)
        snprintf(reason, ROPE_REASON_SIZE, "%s", declined);
    else
        snprintf(reason, ROPE_REASON_SIZE,
                 "declined: matrix instructions and %d bytes of shared memory are needed, the "
                 "device has %d",
                 shared, most);
    return ROPE_DECLINED;
}

int64_t gpu_splits_most(const rope_attention_problem *p, int64_t keys, int32_t longer) {
    const int64_t most = rope_keys_most(p, keys), least = (int64_t)GPU_SPLIT_LEAST << longer,
                  few = most < GPU_SPLIT_SHORT ? most : GPU_SPLIT_SHORT,
                  shorter = (few + least / 2 - 1) / (least / 2),
                  whole = most / least + (most % least > 0),
                  larger = whole < GPU_SPLITS_MOST ? whole : GPU_SPLITS_MOST,
                  splits = larger > shorter ? larger : shorter;
    /* what is seen may begin and end within a split */
    return p->ring || most < keys ? splits + 2 : splits < 1 ? 1 : splits;
}

int gpu_attention_may_fail(const rope_attention_problem *p) {
    return p->rotates[1] && p->rope.angle_mode == ROPE_ANGLE_TABLE &&
           p->rope.out_of_range == ROPE_OUT_OF_RANGE_ERROR;
}

gpuError_t gpu_attention_bind(gpu_attention_state *state, const rope_attention_problem *problem,
                              int32_t device) {
    int32_t early = 1;
    state->kernels = kernels_of(problem->rope.dtype);
    state->generics = generics_of(problem->rope.dtype);
    state->tiles = GPU_GENERIC;
    state->problem = *problem;
    while (gpu_generic_dim(state->generic) < most_of(problem))
        state->generic++;
    gpuError_t error =
        gpu_bind(&state->on, device, ROPE_LAUNCH_PROGRAMMATIC, (const void *const *)state->kernels,
                 sizeof *state->kernels / sizeof(void *));
    if (error == gpuSuccess)
        error = gpu_kernels_load(**state->generics, 2 * GPU_GENERIC_DIMS, &early);
    state->starts_early = state->on.early && early;
    if (error == gpuSuccess && problem->rotates[0]) {
        error = gpu_rope_bind(&state->rotation, &problem->rope, device,
                              ROPE_LAUNCH_PROGRAMMATIC); /* within a call, whatever the plan's */
        state->starts_early &= state->rotation.on.early;
    }
    state->on.early = state->starts_early && problem->rope.launch == ROPE_LAUNCH_PROGRAMMATIC;
    if (error == gpuSuccess)
        error = gpu_lists_copy(&problem->rope, &state->problem.rope, &state->on.lists);
    state->rotation.problem = state->problem.rope;
    return error;
}

rope_status gpu_attention_check_lists(const gpu_attention_state *state,
                                      const rope_attention_call *call) {
    const rope_position_map *q = &call->rope.position, *k = &call->k_position;
    const int table = state->problem.rope.angle_mode == ROPE_ANGLE_TABLE;
    const gpu_named_pointer given[] = {
        {"position_ids", q->ids},
        {"sequence_offsets", q->offsets},
        {"cu_seqlens", q->cu_seqlens},
        {"sequence_lengths", q->lengths},
        {"cos", table ? call->rope.cos : NULL},
        {"sin", table ? call->rope.sin : NULL},
        {"position_flag", call->rope.position_flag},
        {"q_lengths", call->q_lengths},
        {"k_lengths", call->k_lengths},
        {"k_cu_seqlens", k->cu_seqlens},
        {"k_position_ids", k->ids},
        {"sinks", call->sinks},
        {"tree_bits", call->tree_bits},
        {"block_table", call->block_table},
    };
    return gpu_check_pointers(state->on.device, given, sizeof given / sizeof given[0]);
}
