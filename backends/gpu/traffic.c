/* The copy and update operations. */
#include "backends/gpu/traffic.h"
#include "backends/gpu/candidate_lists.h"
#include "backends/gpu/device.h"

#include "backends/gpu/platform/tuning.h"

#include <stdio.h>
#include <stdlib.h>

/* A candidate on a device; without a kernel it is the runtime's own copy. */
typedef struct bound_traffic {
    const gpu_traffic_kernel *kernel;
    int32_t device;
} bound_traffic;

static gpuError_t load_kernels(const gpu_traffic_kernel *kernel) {
    gpuFuncAttributes attributes;
    if (!kernel)
        return gpuSuccess;
    gpuError_t error = gpuFuncGetAttributes(&attributes, kernel->aligned);
    return error == gpuSuccess ? gpuFuncGetAttributes(&attributes, kernel->bytewise) : error;
}

static rope_status bind(const rope_candidate *self, const void *problem, int32_t device,
                        void **kernel, char *reason) {
    (void)problem;
    int previous;
    gpuError_t error = gpu_enter(device, &previous);
    if (error == gpuSuccess) {
        error = load_kernels(self->data);
        gpu_leave(device, previous);
    }
    bound_traffic *state = error == gpuSuccess ? malloc(sizeof *state) : NULL;
    if (error == gpuSuccess && !state)
        error = gpuErrorMemoryAllocation;
    if (error != gpuSuccess) {
        snprintf(reason, ROPE_REASON_SIZE, "%s", gpuGetErrorString(error));
        return gpu_status(error);
    }
    state->kernel = self->data;
    state->device = device;
    *kernel = state;
    return ROPE_OK;
}

static gpuError_t launch(const gpu_traffic_kernel *kernel, const rope_traffic *t, int aligned,
                         size_t blocks, void *stream) {
    rope_traffic traffic = *t;
    void *arguments[] = {&traffic.target, &traffic.source, &traffic.bytes};
    dim3 grid = {(uint32_t)blocks, 1, 1}, block = {GPU_TRAFFIC_THREADS, 1, 1};
    return gpu_launch_kernel(aligned ? kernel->aligned : kernel->bytewise, grid, block, arguments,
                             0, stream, 0);
}

static rope_status run(const void *problem, const void *opaque, const void *given, void *workspace,
                       void *stream) {
    (void)problem, (void)workspace;
    const bound_traffic *state = opaque;
    const gpu_traffic_kernel *kernel = state->kernel;
    const rope_traffic *t = given;
    int aligned = ((uintptr_t)t->target | (uintptr_t)t->source | t->bytes) % 16 == 0;
    size_t step = (size_t)(kernel && aligned ? kernel->bytes : 1) * GPU_TRAFFIC_THREADS;
    size_t blocks = t->bytes / step + (t->bytes % step != 0);
    if (kernel && blocks > GPU_GRID_X_MOST)
        return gpu_host->fail(ROPE_ERROR_INVALID_VALUE, "bytes is %zu; allowed is at most %zu",
                              t->bytes, step * GPU_GRID_X_MOST);
    int previous;
    gpuError_t error = gpu_enter(state->device, &previous);
    if (error == gpuSuccess) {
        if (!kernel)
            error = gpuMemcpyAsync(t->target, t->source, t->bytes, gpuMemcpyDeviceToDevice, stream);
        else if (blocks)
            error = launch(kernel, t, aligned, blocks, stream);
        gpu_leave(state->device, previous);
    }
    return error == gpuSuccess ? ROPE_OK : gpu_fail(error, "moving memory", state->device);
}

#define TRAFFIC(what, label, kernel)                                                               \
    {                                                                                              \
        .operation = what, .version = ROPE_TRAFFIC_VERSION, .numerics = ROPE_BITWISE,              \
        .name = label, .data = kernel, .bind = bind, .run = run, .release = free                   \
    }

static const rope_candidate candidates[] = {
    TRAFFIC("copy", "vec16", &gpu_copy_vec16),
    TRAFFIC("copy", "vec16x4", &gpu_copy_vec16x4),
    TRAFFIC("copy", "memcpy", NULL),
    TRAFFIC("update", "vec16", &gpu_update_vec16),
};

const rope_candidate_list gpu_traffic_candidates = {sizeof(rope_candidate), candidates,
                                                    sizeof candidates / sizeof candidates[0]};
