/* The operation "attention": its candidates, what they bind and how they run. */
#include "backends/gpu/attention/choose.h"
#include "backends/gpu/attention/gather.h"
#include "backends/gpu/attention/launch.h"
#include "backends/gpu/attention/sm90.h"
#include "backends/gpu/attention/workspace.h"
#include "backends/gpu/candidate.h"
#include "backends/gpu/candidate_lists.h"

#include <stdio.h>

static const char sm90[] = "sm90", tiles[] = "tiles", splits[] = "splits", latent[] = "latent";

/* Bytes of shared memory. */
static int32_t shared_of(const rope_candidate *self, int32_t which) {
    const int32_t most = gpu_tiles_shared(which), of_splits = gpu_splits_shared(which);
    return self->data != tiles && of_splits > most ? of_splits : most;
}

static rope_status query(const rope_candidate *self, const void *canonical, int32_t device,
                         char *reason) {
    const rope_attention_problem *problem = canonical;
    if (!problem)
        return gpu_kernel_probe(gpu_attention_f32.check, device, reason);
    if (self->data == latent)
        return gpu_tiles_query(problem, gpu_latent_decline(problem), gpu_latent_shared(), device,
                               reason);
    if (self->data == sm90 && !gpu_sm90_kernel(problem, device)) {
        snprintf(reason, ROPE_REASON_SIZE, "%s", GPU_SM90_DECLINED);
        return ROPE_DECLINED;
    }
    int32_t which = 0;
    const char *declined = self->data ? gpu_tiles_decline(problem, &which) : NULL;
    return self->data ? gpu_tiles_query(problem, declined, shared_of(self, which), device, reason)
                      : ROPE_OK;
}

static gpuError_t allow_shared(const gpu_attention_state *state) {
    gpuError_t error = gpuSuccess;
    for (int32_t k = 0; k < GPU_ATTEND_KERNELS && error == gpuSuccess; k++) {
        const gpu_attention_function f = gpu_attention_function_of(state, k);
        if (f.symbol)
            error = gpu_allow_shared(f.symbol, f.shared);
    }
    return error;
}

static gpuError_t load_sm90(gpu_attention_state *state, const rope_attention_problem *problem,
                            int32_t device) {
    state->sm90 = gpu_sm90_kernel(problem, device);
    return gpu_sm90_load(problem);
}

static gpuError_t load_latent(gpu_attention_state *state, int32_t device) {
    int32_t early;
    state->latent = gpu_sm90_latent_kernels(&state->problem, device);
    return state->latent ? gpu_kernels_load(state->latent, 2, &early) : gpuSuccess;
}

static gpuError_t load_gather(const gpu_attention_state *state) {
    int32_t early;
    return state->tiles == GPU_GENERIC && !state->wide_heads
               ? gpuSuccess
               : gpu_kernels_load(
                     &gpu_attention_gather_kernels[state->problem.rope.dtype == ROPE_BF16], 1,
                     &early);
}

static gpuError_t fill(void *to, const rope_candidate *self, const void *problem, int32_t device) {
    gpu_attention_state *state = to;
    gpuError_t error = gpu_attention_bind(state, problem, device);
    state->splits = self->data != tiles;
    state->wide_heads = self->data == latent;
    if (self->data && !state->wide_heads)
        (void)gpu_tiles_decline(problem, &state->tiles);
    if (error == gpuSuccess && self->data == sm90)
        error = load_sm90(state, problem, device);
    if (error == gpuSuccess && state->wide_heads)
        error = load_latent(state, device);
    if (error == gpuSuccess)
        error = load_gather(state);
    return error == gpuSuccess ? allow_shared(state) : error;
}

/* A call with its workspace. */
typedef struct attention_work {
    const rope_attention_call *call;
    void *workspace;
    const gpu_sm90_norms *norms; /* or NULL */
} attention_work;

static rope_status check_memory(const gpu_binding *binding, const void *checked) {
    const attention_work *work = checked;
    const rope_attention_call *call = work->call;
    const gpu_named_pointer given[] = {
        {"q.in", call->rope.tensor[0].in},
        {"q.out", call->rope.tensor[0].out},
        {"k.in", call->k.in},
        {"k.out", call->k.out},
        {"v.in", call->v.in},
        {"k_cache", call->k.cache},
        {"k_cache.scale", call->k.scale},
        {"v_cache", call->v.cache},
        {"v_cache.scale", call->v.scale},
        {"out.data", call->out},
        {"lse", call->lse},
        {"workspace", call->workspace_bytes ? work->workspace : NULL},
    };
    const rope_status status =
        gpu_check_pointers(binding->device, given, sizeof given / sizeof given[0]);
    return status == ROPE_OK ? gpu_attention_check_lists((const gpu_attention_state *)binding, call)
                             : status;
}

static gpuError_t launch(const gpu_binding *binding, const void *given, void *stream) {
    const attention_work *work = given;
    return gpu_attention_launch((const gpu_attention_state *)binding, work->call, work->norms,
                                work->workspace, stream);
}

static const gpu_operation operation = {"attending", sizeof(gpu_attention_state), fill,
                                        check_memory, launch};

static rope_status bind(const rope_candidate *self, const void *problem, int32_t device,
                        void **kernel, char *reason) {
    return gpu_bind_candidate(&operation, self, problem, device, kernel, reason);
}

static rope_status check(const void *problem, const void *kernel, const void *call, void *workspace,
                         void *stream) {
    const attention_work work = {call, workspace, NULL};
    (void)problem;
    const rope_status status = gpu_attention_check_workspace(kernel, call, workspace);
    return status == ROPE_OK ? gpu_check(kernel, &work, stream) : status;
}

static rope_status run(const void *problem, const void *kernel, const void *call, void *workspace,
                       void *stream) {
    const attention_work work = {call, workspace, NULL};
    (void)problem;
    const rope_status status = gpu_attention_check_workspace(kernel, call, workspace);
    return status == ROPE_OK ? gpu_run(kernel, &work, stream) : status;
}

static rope_status run_normed(const void *problem, const void *kernel,
                              const rope_append_steps *steps, const rope_append_operand *operand,
                              const void *call, void *workspace, void *stream) {
    const gpu_sm90_norms norms = {steps, operand};
    const attention_work work = {call, workspace, &norms};
    (void)problem;
    if (!gpu_attention_normalises(kernel, call, &norms))
        return ROPE_DECLINED;
    const rope_status status = gpu_attention_check_workspace(kernel, call, workspace);
    return status == ROPE_OK ? gpu_run(kernel, &work, stream) : status;
}

/* takes: sm90, splits, tiles, latent or NULL. */
#define CANDIDATE(label, takes)                                                                    \
    {                                                                                              \
        .operation = "attention", .version = ROPE_ATTENTION_VERSION, .numerics = ROPE_BOUNDED,     \
        .name = label, .data = (takes), .query = query, .bind = bind,                              \
        .workspace = gpu_attention_workspace, .run = run, .release = gpu_release,                  \
        .kernel_of = gpu_attention_kernel_of, .check = check, .run_normed = run_normed             \
    }

static const rope_candidate candidates[] = {
#ifdef ROPEKIT_SM90
    CANDIDATE(sm90, sm90),
#endif
    CANDIDATE(splits, splits), CANDIDATE(tiles, tiles),
    CANDIDATE(latent, latent), CANDIDATE("generic", NULL),
};

const rope_candidate_list gpu_attention_candidates = {sizeof(rope_candidate), candidates,
                                                      sizeof candidates / sizeof candidates[0]};
