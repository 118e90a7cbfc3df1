/* The operation "attention": its candidates, what they bind and how they run. */
#include "common/gpu/attention/launch.h"
#include "common/gpu/attention/workspace.h"
#include "common/gpu/candidate.h"
#include "common/gpu/candidate_lists.h"
#include "common/gpu/device.h"

#include <stdio.h>
#include <stdlib.h>

static const char tiles[] = "tiles", splits[] = "splits";

/* Bytes of shared memory. */
static int32_t shared_of(const rope_candidate *self, const rope_attention_problem *p) {
    const int32_t most = gpu_tiles_shared(p->head_dim, p->v_head_dim),
                  of_splits = gpu_splits_shared(p->head_dim, p->v_head_dim);
    return self->data == splits && of_splits > most ? of_splits : most;
}

static rope_status query(const rope_candidate *self, const void *canonical, int32_t device,
                         char *reason) {
    const rope_attention_problem *problem = canonical;
    int32_t which;
    if (!problem)
        return gpu_kernel_probe(gpu_attention_f32.check, device, reason);
    return self->data ? gpu_tiles_query(problem, shared_of(self, problem), device, &which, reason)
                      : ROPE_OK;
}

static gpuError_t allow_shared(gpu_attention_bound *bound) {
    const int32_t head_dim = bound->problem.head_dim, v_head_dim = bound->problem.v_head_dim;
    if (bound->tiles == GPU_GENERIC)
        return gpu_allow_shared(bound->kernels->generic[bound->generic],
                                gpu_generic_shared(gpu_generic_dim(bound->generic)));
    gpuError_t error = gpu_allow_shared(bound->kernels->tiles[bound->tiles],
                                        gpu_tiles_shared(head_dim, v_head_dim));
    if (error == gpuSuccess && bound->kernels->prompts[bound->tiles])
        error =
            gpu_allow_shared(bound->kernels->prompts[bound->tiles], gpu_prompts_shared(head_dim));
    if (error == gpuSuccess && bound->splits)
        error = gpu_allow_shared(bound->kernels->splits[bound->tiles],
                                 gpu_splits_shared(head_dim, v_head_dim));
    if (error == gpuSuccess && bound->splits)
        error = gpu_allow_shared(bound->kernels->decode[bound->tiles],
                                 gpu_splits_shared(head_dim, v_head_dim));
    return error;
}

static void release(void *kernel) {
    gpu_attention_bound *bound = kernel;
    if (bound)
        gpu_attention_unbind(bound);
    free(bound);
}

static rope_status bind(const rope_candidate *self, const void *canonical, int32_t device,
                        void **kernel, char *reason) {
    const rope_attention_problem *problem = canonical;
    gpu_attention_bound *bound = calloc(1, sizeof *bound);
    if (!bound)
        return gpu_refuse(gpuErrorMemoryAllocation, reason);
    int previous;
    gpuError_t error = gpu_enter(device, &previous);
    if (error == gpuSuccess) {
        error = gpu_attention_bind(bound, problem, device);
        bound->splits = self->data != tiles;
        if (self->data)
            (void)gpu_tiles_decline(problem, &bound->tiles);
        if (error == gpuSuccess)
            error = allow_shared(bound);
        gpu_leave(device, previous);
    }
    if (error != gpuSuccess) {
        release(bound);
        return gpu_refuse(error, reason);
    }
    *kernel = bound;
    return ROPE_OK;
}

/* A plan's first call alone is asked about: an answer takes as long as a launch. */
static rope_status check_memory(gpu_attention_bound *bound, const rope_attention_call *call,
                                const void *workspace) {
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
        {"workspace", call->workspace_bytes ? workspace : NULL},
    };
    rope_status status = gpu_check_pointers(bound->device, given, sizeof given / sizeof given[0]);
    if (status == ROPE_OK)
        status = gpu_attention_check_lists(bound, call);
    if (status == ROPE_OK)
        atomic_store_explicit(&bound->asked, 1, memory_order_relaxed);
    return status;
}

static rope_status run(const void *problem, const void *kernel, const void *call, void *workspace,
                       void *stream) {
    gpu_attention_bound *bound = (gpu_attention_bound *)(uintptr_t)kernel;
    (void)problem;
    rope_status status = gpu_attention_check_workspace(bound, call, workspace);
    if (status != ROPE_OK)
        return status;
    int previous;
    gpuError_t error = gpu_enter(bound->device, &previous);
    if (error == gpuSuccess) {
        status = gpu_check_stream(bound->device, bound->devices, stream);
        if (status == ROPE_OK && !atomic_load_explicit(&bound->asked, memory_order_relaxed))
            status = check_memory(bound, call, workspace);
        if (status == ROPE_OK)
            error = gpu_attention_launch(bound, call, workspace, stream);
        gpu_leave(bound->device, previous);
    }
    return error == gpuSuccess ? status : gpu_fail(error, "attending", bound->device);
}

/* takes: splits, tiles or NULL. */
#define CANDIDATE(label, takes)                                                                    \
    {                                                                                              \
        .operation = "attention", .version = ROPE_ATTENTION_VERSION, .numerics = ROPE_BOUNDED,     \
        .name = label, .data = (takes), .query = query, .bind = bind,                              \
        .workspace = gpu_attention_workspace, .run = run, .release = release                       \
    }

static const rope_candidate candidates[] = {CANDIDATE(splits, splits), CANDIDATE(tiles, tiles),
                                            CANDIDATE("generic", NULL)};

const rope_candidate_list gpu_attention_candidates = {sizeof(rope_candidate), candidates,
                                                      sizeof candidates / sizeof candidates[0]};
