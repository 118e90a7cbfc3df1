/* The operation "append": its candidates, what they bind and how they run. */
#include "backends/gpu/append/launch.h"
#include "backends/gpu/candidate.h"
#include "backends/gpu/candidate_lists.h"
#include "backends/gpu/rope/lists.h"

#include <stdio.h>

static const gpu_append_kernels *kernels_of(int32_t dtype) {
    return dtype == ROPE_F32   ? &gpu_append_f32
           : dtype == ROPE_F16 ? &gpu_append_f16
                               : &gpu_append_bf16;
}

/* The first of the kernels that its calls may take, GPU_APPEND_BY_; a forced geometry of plain
 * ones, or GPU_BY_SIZE. */
typedef struct choice {
    int32_t most, geometry;
} choice;

static rope_status query(const rope_candidate *self, const void *problem, int32_t device,
                         char *reason) {
    if (!problem)
        return gpu_kernel_probe(gpu_append_f32.generic, device, reason);
    const int32_t most = ((const choice *)self->data)->most;
    const char *declined = most == GPU_APPEND_BY_REROTATE ? gpu_append_rerotate_declines(problem)
                           : most == GPU_APPEND_BY_MLA    ? gpu_append_mla_declines(problem)
                           : most == GPU_APPEND_BY_PLAIN  ? gpu_append_plain_declines(problem)
                           : most == GPU_APPEND_BY_VECTOR ? gpu_append_vector_declines(problem)
                                                          : NULL;
    if (!declined)
        return ROPE_OK;
    snprintf(reason, ROPE_REASON_SIZE, "%s", declined);
    return ROPE_DECLINED;
}

static gpuError_t fill(void *to, const rope_candidate *self, const void *canonical,
                       int32_t device) {
    gpu_append_state *state = to;
    const rope_append_problem *problem = canonical;
    const choice *chosen = self->data;
    state->kernels = kernels_of(problem->rope.dtype);
    state->most = chosen->most;
    state->geometry = chosen->geometry;
    state->problem = *problem;
    const gpuError_t error =
        gpu_bind(&state->on, device, problem->rope.launch, (const void *const *)state->kernels,
                 sizeof *state->kernels / sizeof(void *));
    return error == gpuSuccess
               ? gpu_lists_copy(&problem->rope, &state->problem.rope, &state->on.lists)
               : error;
}

/* Names in rope_append_args of a tensor's pointers. */
typedef struct names {
    const char *in, *out, *weight, *cache, *scale;
} names;

static rope_status check_tensor(int32_t device, const rope_append_operand *o, const names *names) {
    const gpu_named_pointer given[] = {{names->in, o->in},
                                       {names->out, o->out},
                                       {names->weight, o->weight},
                                       {names->cache, o->cache},
                                       {names->scale, o->scale}};
    return o->heads ? gpu_check_pointers(device, given, sizeof given / sizeof given[0]) : ROPE_OK;
}

static rope_status check_memory(const gpu_binding *binding, const void *checked) {
    static const names of[ROPE_APPEND_TENSORS] = {
        {"q.in", "q.out", "q_weight", "", "q_scale"},
        {"k.in", "k.out", "k_weight", "k_cache", "k_cache.scale"},
        {"v.in", "v.out", "v_weight", "v_cache", "v_cache.scale"}};
    const rope_append_problem *p = &((const gpu_append_state *)binding)->problem;
    const rope_append_call *call = checked;
    const rope_position_map *map = &call->rope.position;
    const int table = p->rope.angle_mode == ROPE_ANGLE_TABLE, tabled = p->cache == ROPE_CACHE_TABLE,
              slots = p->cache == ROPE_CACHE_SLOTS;
    const gpu_named_pointer given[] = {
        {"position_ids", map->ids},
        {"sequence_offsets", map->offsets},
        {"cu_seqlens", map->cu_seqlens},
        {"sequence_lengths", map->lengths},
        {"cos", table ? call->rope.cos : NULL},
        {"sin", table ? call->rope.sin : NULL},
        {"position_flag", call->rope.position_flag},
        {"slots", slots ? call->slots : NULL},
        {"block_table", tabled ? call->block_table : NULL},
        {"cache_starts", call->starts},
    };
    rope_status status = gpu_check_pointers(binding->device, given, sizeof given / sizeof given[0]);
    for (int t = 0; t < ROPE_APPEND_TENSORS && status == ROPE_OK; t++)
        status = check_tensor(binding->device, &call->tensor[t], &of[t]);
    return status;
}

static gpuError_t launch(const gpu_binding *binding, const void *call, void *stream) {
    return gpu_append_launch((const gpu_append_state *)binding, call, stream);
}

static const gpu_operation operation = {"appending", sizeof(gpu_append_state), fill, check_memory,
                                        launch};

static rope_status bind(const rope_candidate *self, const void *problem, int32_t device,
                        void **kernel, char *reason) {
    return gpu_bind_candidate(&operation, self, problem, device, kernel, reason);
}

#define CANDIDATE(label, forced, ...)                                                              \
    {                                                                                              \
        .operation = "append", .version = ROPE_APPEND_VERSION, .numerics = ROPE_BITWISE,           \
        .name = label, .data = &(const choice){__VA_ARGS__}, .on_request = forced, .query = query, \
        .bind = bind, .run = gpu_run_call, .release = gpu_release                                  \
    }

static const rope_candidate candidates[] = {
    CANDIDATE("moved", 0, GPU_APPEND_BY_REROTATE, GPU_BY_SIZE),
    CANDIDATE("latent", 0, GPU_APPEND_BY_MLA, GPU_BY_SIZE),
    CANDIDATE("plain", 0, GPU_APPEND_BY_PLAIN, GPU_BY_SIZE),
    CANDIDATE("vector", 0, GPU_APPEND_BY_VECTOR, GPU_BY_SIZE),
    CANDIDATE("generic", 0, GPU_APPEND_BY_GENERIC, GPU_BY_SIZE),
    /* Plain kernels of one geometry whatever the size, to measure by. */
    CANDIDATE("narrow", 1, GPU_APPEND_BY_PLAIN, GPU_NARROW),
    CANDIDATE("wide", 1, GPU_APPEND_BY_PLAIN, GPU_WIDE),
    CANDIDATE("deep", 1, GPU_APPEND_BY_PLAIN, GPU_DEEP),
};

const rope_candidate_list gpu_append_candidates = {sizeof(rope_candidate), candidates,
                                                   sizeof candidates / sizeof candidates[0]};
