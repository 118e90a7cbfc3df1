/* The operation "attention_backward": its candidates, what they bind and how they run. */
#include "common/gpu/attention_backward/launch.h"
#include "common/gpu/candidate_lists.h"
#include "common/gpu/device.h"
#include "common/math/attention.h"

#include <stdio.h>
#include <stdlib.h>

static const gpu_backward_kernels *kernels_of(int32_t dtype) {
    return dtype == ROPE_F32   ? &gpu_attention_backward_f32
           : dtype == ROPE_F16 ? &gpu_attention_backward_f16
                               : &gpu_attention_backward_bf16;
}

static const char fused[] = "fused", tiles[] = "tiles";

/* Bytes of shared memory, beside those that gpu_tile_memory() leaves a block. */
static int32_t shared_of(const rope_candidate *self, int32_t head_dim) {
    return self->data == fused ? gpu_backward_fused_shared(head_dim) + GPU_FUSED_BESIDE
                               : gpu_backward_tiles_shared(head_dim);
}

/* Whether a kernel's code is there for the device, which has kernels of tiles. */
static int has_code(const void *kernel, int32_t device) {
    gpuFuncAttributes attributes;
    int previous;
    gpuError_t error = gpu_enter(device, &previous);
    if (error != gpuSuccess)
        return 0;
    error = gpuFuncGetAttributes(&attributes, kernel);
    gpu_leave(device, previous);
    return error == gpuSuccess && gpu_has_fused(&attributes);
}

static rope_status query(const rope_candidate *self, const void *canonical, int32_t device,
                         char *reason) {
    const rope_attention_problem *problem = canonical;
    int32_t which;
    if (!problem)
        return gpu_kernel_probe(gpu_attention_backward_f32.delta, device, reason);
    if (!self->data)
        return ROPE_OK;
    const rope_status status =
        gpu_tiles_query(problem, shared_of(self, problem->head_dim), device, &which, reason);
    if (status != ROPE_OK)
        return status;
    const gpu_backward_kernels *kernels = kernels_of(problem->rope.dtype);
    if (kernels->tiles[0][which] &&
        (self->data != fused || has_code(kernels->fused[which], device)))
        return ROPE_OK;
    snprintf(reason, ROPE_REASON_SIZE, "declined: no kernel of this backend holds its sums");
    return ROPE_DECLINED;
}

static gpuError_t allow_shared(const gpu_backward_bound *bound) {
    const int32_t generic = bound->forward.generic, tiles = bound->forward.tiles;
    gpuError_t error = gpuSuccess;
    for (int i = 0; i < 2 && error == gpuSuccess; i++) {
        error = gpu_allow_shared(bound->kernels->generic[i][generic],
                                 gpu_backward_generic_shared(gpu_generic_dim(generic)));
        if (error == gpuSuccess && tiles != GPU_GENERIC)
            error = gpu_allow_shared(bound->kernels->tiles[i][tiles],
                                     gpu_backward_tiles_shared(bound->transposed.head_dim));
    }
    if (error == gpuSuccess && bound->fused)
        error = gpu_allow_shared(bound->kernels->fused[tiles],
                                 gpu_backward_fused_shared(bound->transposed.head_dim));
    return error;
}

static gpuError_t fill(gpu_backward_bound *bound, const rope_attention_problem *problem,
                       int32_t device, const void *takes) {
    const rope_problem transposed = rope_transposed(&problem->rope);
    int32_t early;
    gpuError_t error = gpu_attention_bind(&bound->forward, problem, device);
    bound->kernels = kernels_of(problem->rope.dtype);
    bound->transposed = bound->forward.problem;
    bound->transposed.rope = rope_transposed(&bound->forward.problem.rope);
    if (error == gpuSuccess && problem->rotates[0])
        error = gpu_rope_bind(&bound->transpose, &transposed, device, ROPE_LAUNCH_PROGRAMMATIC);
    bound->transpose.problem = bound->transposed.rope;
    bound->fused = takes == fused;
    if (takes)
        (void)gpu_tiles_decline(problem, &bound->forward.tiles);
    if (error == gpuSuccess)
        error = gpu_kernels_load((const void *const *)bound->kernels,
                                 sizeof *bound->kernels / sizeof(void *), &early);
    if (error == gpuSuccess)
        error = allow_shared(bound);
    if (error == gpuSuccess)
        bound->forward.starts_early &= early;
    bound->forward.early &= bound->forward.starts_early;
    return error;
}

static void release(void *kernel) {
    gpu_backward_bound *bound = kernel;
    if (bound)
        gpu_attention_unbind(&bound->forward);
    free(bound);
}

static rope_status bind(const rope_candidate *self, const void *problem, int32_t device,
                        void **kernel, char *reason) {
    gpu_backward_bound *bound = calloc(1, sizeof *bound);
    int previous;
    if (!bound)
        return gpu_refuse(gpuErrorMemoryAllocation, reason);
    gpuError_t error = gpu_enter(device, &previous);
    if (error == gpuSuccess) {
        error = fill(bound, problem, device, self->data);
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
static rope_status check_memory(gpu_backward_bound *bound, const rope_attention_backward_call *call,
                                const void *workspace) {
    const rope_attention_call *f = &call->forward;
    const gpu_named_pointer given[] = {
        {"q.in", f->rope.tensor[0].in},
        {"k.in", f->k.in},
        {"v.in", f->v.in},
        {"out.data", f->out},
        {"lse", f->lse},
        {"dout", call->dout},
        {"dq.data", call->dq},
        {"dk.data", call->dk},
        {"dv.data", call->dv},
        {"dsinks", call->dsinks},
        {"workspace", f->workspace_bytes ? workspace : NULL},
    };
    rope_status status =
        gpu_check_pointers(bound->forward.device, given, sizeof given / sizeof given[0]);
    if (status == ROPE_OK)
        status = gpu_attention_check_lists(&bound->forward, f);
    if (status == ROPE_OK)
        atomic_store_explicit(&bound->forward.asked, 1, memory_order_relaxed);
    return status;
}

static rope_status run(const void *problem, const void *kernel, const void *call, void *workspace,
                       void *stream) {
    gpu_backward_bound *bound = (gpu_backward_bound *)(uintptr_t)kernel;
    gpu_attention_bound *forward = &bound->forward;
    gpu_backward_room room;
    (void)problem;
    rope_status status = gpu_backward_check_workspace(bound, call, workspace, &room);
    if (status != ROPE_OK)
        return status;
    int previous;
    gpuError_t error = gpu_enter(forward->device, &previous);
    if (error == gpuSuccess) {
        status = gpu_check_stream(forward->device, forward->devices, stream);
        if (status == ROPE_OK && !atomic_load_explicit(&forward->asked, memory_order_relaxed))
            status = check_memory(bound, call, workspace);
        if (status == ROPE_OK)
            error = gpu_backward_launch(bound, call, &room, workspace, stream);
        gpu_leave(forward->device, previous);
    }
    return error == gpuSuccess ? status : gpu_fail(error, "attending backward", forward->device);
}

/* takes: fused, tiles or NULL. */
#define CANDIDATE(label, takes)                                                                    \
    {                                                                                              \
        .operation = "attention_backward", .version = ROPE_ATTENTION_BACKWARD_VERSION,             \
        .numerics = ROPE_BOUNDED, .name = label, .data = (takes), .query = query, .bind = bind,    \
        .workspace = gpu_backward_workspace, .run = run, .release = release                        \
    }

static const rope_candidate candidates[] = {CANDIDATE(fused, fused), CANDIDATE(tiles, tiles),
                                            CANDIDATE("generic", NULL)};

const rope_candidate_list gpu_attention_backward_candidates = {
    sizeof(rope_candidate), candidates, sizeof candidates / sizeof candidates[0]};
