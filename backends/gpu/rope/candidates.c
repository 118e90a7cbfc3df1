/* The operation "rope": its candidates, what they bind and how they run. */
#include "backends/gpu/candidate.h"
#include "backends/gpu/candidate_lists.h"
#include "backends/gpu/rope/launch.h"
#include "backends/gpu/rope/lists.h"

#include <stdio.h>

static const gpu_rope_kernels *kernels_of(int32_t dtype) {
    switch (dtype) {
    case ROPE_F32:
        return &gpu_rope_f32;
    case ROPE_F16:
        return &gpu_rope_f16;
    case ROPE_BF16:
        return &gpu_rope_bf16;
    default:
        return &gpu_rope_f64;
    }
}

gpuError_t gpu_rope_bind(gpu_rope_state *state, const rope_problem *problem, int32_t device,
                         int32_t launch) {
    state->kernels = kernels_of(problem->dtype);
    state->geometry = GPU_BY_SIZE;
    state->plain = !gpu_plain_declines(problem);
    state->window = !gpu_window_declines(problem);
    return gpu_bind(&state->on, device, launch, (const void *const *)state->kernels,
                    sizeof *state->kernels / sizeof(void *));
}

/* Whether a dtype has a kernel of a geometry. */
static int has_geometry(const gpu_rope_kernels *kernels, int32_t geometry) {
    return kernels->vector[geometry][0] || kernels->plain[geometry][0][GPU_WHOLE][0];
}

/* The kernels that a candidate's calls take: the first of plain, window and vector kernels that
 * fits them, else the generic one. */
typedef struct choice {
    int32_t geometry;
    int32_t plain, window; /* SKIPPED, TRIED, or NEEDED: declined where no call could take one */
} choice;

enum { SKIPPED, TRIED, NEEDED };

static const char *declines(const rope_problem *problem, const choice *chosen) {
    if (chosen->geometry == GPU_GENERIC)
        return NULL;
    if (chosen->geometry >= 0 && !has_geometry(kernels_of(problem->dtype), chosen->geometry))
        return "declined: no kernel of the dtype has this geometry";
    if (chosen->plain == NEEDED && gpu_plain_declines(problem))
        return gpu_plain_declines(problem);
    if (chosen->window == NEEDED && gpu_window_declines(problem))
        return gpu_window_declines(problem);
    return gpu_vector_declines(problem);
}

static gpuError_t fill(void *to, const rope_candidate *self, const void *canonical,
                       int32_t device) {
    gpu_rope_state *state = to;
    const rope_problem *problem = canonical;
    const choice *chosen = self->data;
    const gpuError_t error = gpu_rope_bind(state, problem, device, problem->launch);
    state->geometry = chosen->geometry;
    state->plain &= chosen->plain != SKIPPED;
    state->window &= chosen->window != SKIPPED;
    return error == gpuSuccess ? gpu_lists_copy(problem, &state->problem, &state->on.lists) : error;
}

static rope_status query(const rope_candidate *self, const void *problem, int32_t device,
                         char *reason) {
    if (!problem)
        return gpu_kernel_probe(gpu_rope_f32.generic, device, reason);
    const char *declined = declines(problem, self->data);
    if (!declined)
        return ROPE_OK;
    snprintf(reason, ROPE_REASON_SIZE, "%s", declined);
    return ROPE_DECLINED;
}

static rope_status check_memory(const gpu_binding *binding, const void *given) {
    const rope_call *call = given;
    const rope_operand *q = &call->tensor[0], *k = &call->tensor[1];
    const int table = ((const gpu_rope_state *)binding)->problem.angle_mode == ROPE_ANGLE_TABLE;
    const gpu_named_pointer pointers[] = {
        {"q.in", q->heads ? q->in : NULL},         {"q.out", q->heads ? q->out : NULL},
        {"k.in", k->heads ? k->in : NULL},         {"k.out", k->heads ? k->out : NULL},
        {"position_ids", call->position.ids},      {"sequence_offsets", call->position.offsets},
        {"cu_seqlens", call->position.cu_seqlens}, {"sequence_lengths", call->position.lengths},
        {"cos", table ? call->cos : NULL},         {"sin", table ? call->sin : NULL},
        {"position_flag", call->position_flag},
    };
    return gpu_check_pointers(binding->device, pointers, sizeof pointers / sizeof pointers[0]);
}

static gpuError_t launch(const gpu_binding *binding, const void *call, void *stream) {
    return gpu_rope_launch((const gpu_rope_state *)binding, call, binding->early, stream);
}

static const gpu_operation operation = {"rotating", sizeof(gpu_rope_state), fill, check_memory,
                                        launch};

static rope_status bind(const rope_candidate *self, const void *problem, int32_t device,
                        void **kernel, char *reason) {
    return gpu_bind_candidate(&operation, self, problem, device, kernel, reason);
}

#define CANDIDATE(label, forced, ...)                                                              \
    {                                                                                              \
        .operation = "rope", .version = ROPE_ROPE_VERSION, .numerics = ROPE_BITWISE,               \
        .name = label, .data = &(const choice){__VA_ARGS__}, .on_request = forced, .query = query, \
        .bind = bind, .run = gpu_run_call, .release = gpu_release                                  \
    }

static const rope_candidate candidates[] = {
    CANDIDATE("plain", 0, GPU_BY_SIZE, NEEDED, TRIED),
    CANDIDATE("window", 0, GPU_BY_SIZE, SKIPPED, NEEDED),
    CANDIDATE("vector", 0, GPU_BY_SIZE, SKIPPED, SKIPPED),
    CANDIDATE("generic", 0, GPU_GENERIC, SKIPPED, SKIPPED),
    /* One geometry whatever the size, to measure by. */
    CANDIDATE("narrow", 1, GPU_NARROW, TRIED, TRIED),
    CANDIDATE("wide", 1, GPU_WIDE, TRIED, TRIED),
    CANDIDATE("deep", 1, GPU_DEEP, TRIED, TRIED),
    CANDIDATE("single_head", 1, GPU_SINGLE_HEAD, TRIED, TRIED),
};

const rope_candidate_list gpu_rope_candidates = {sizeof(rope_candidate), candidates,
                                                 sizeof candidates / sizeof candidates[0]};
