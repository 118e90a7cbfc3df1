/* The operation "attention_merge": its candidate. */
#include "common/gpu/attention/merge.h"

#include "common/gpu/candidate.h"
#include "common/gpu/candidate_lists.h"
#include "common/gpu/device.h"

#include <stdlib.h>

typedef struct bound_merge {
    const void *kernel;
    int32_t head_dim, device, devices;
} bound_merge;

static rope_status query(const rope_candidate *self, const void *problem, int32_t device,
                         char *reason) {
    (void)self;
    return problem ? ROPE_OK : gpu_kernel_probe(gpu_attention_merge_kernels[0], device, reason);
}

static rope_status bind(const rope_candidate *self, const void *canonical, int32_t device,
                        void **kernel, char *reason) {
    (void)self;
    const rope_attention_merge_problem *problem = canonical;
    bound_merge *bound = malloc(sizeof *bound);
    if (!bound)
        return gpu_refuse(gpuErrorMemoryAllocation, reason);
    *bound = (bound_merge){gpu_attention_merge_kernels[problem->dtype - ROPE_F32],
                           problem->head_dim, device, 0};
    int previous, early;
    gpuError_t error = gpu_enter(device, &previous);
    if (error == gpuSuccess) {
        error = gpu_kernels_load(&bound->kernel, 1, &early);
        if (error == gpuSuccess)
            error = gpuGetDeviceCount(&bound->devices);
        gpu_leave(device, previous);
    }
    if (error != gpuSuccess) {
        free(bound);
        return gpu_refuse(error, reason);
    }
    *kernel = bound;
    return ROPE_OK;
}

static gpuError_t launch(const bound_merge *bound, const rope_attention_merge_call *given,
                         void *stream) {
    rope_attention_merge_call call = *given;
    int32_t head_dim = bound->head_dim;
    const int64_t heads = call.batch * call.tokens * call.heads;
    void *arguments[] = {&call, &head_dim};
    dim3 grid = {(uint32_t)(heads < GPU_GRID_X_MOST ? heads : GPU_GRID_X_MOST), 1, 1},
         block = {GPU_MERGE_THREADS, 1, 1};
    return gpu_launch_kernel(bound->kernel, grid, block, arguments, 0, stream, 0);
}

static rope_status run(const void *problem, const void *kernel, const void *call, void *workspace,
                       void *stream) {
    (void)problem, (void)workspace;
    const bound_merge *bound = kernel;
    rope_status status = ROPE_OK;
    int previous;
    gpuError_t error = gpu_enter(bound->device, &previous);
    if (error == gpuSuccess) {
        status = gpu_check_stream(bound->device, bound->devices, stream);
        if (status == ROPE_OK)
            error = launch(bound, call, stream);
        gpu_leave(bound->device, previous);
    }
    return error == gpuSuccess ? status : gpu_fail(error, "merging", bound->device);
}

static const rope_candidate candidates[] = {{.operation = "attention_merge",
                                             .version = ROPE_ATTENTION_MERGE_VERSION,
                                             .numerics = ROPE_BOUNDED,
                                             .name = "generic",
                                             .query = query,
                                             .bind = bind,
                                             .run = run,
                                             .release = free}};

const rope_candidate_list gpu_attention_merge_candidates = {sizeof(rope_candidate), candidates, 1};
