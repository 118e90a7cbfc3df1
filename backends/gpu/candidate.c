#include "backends/gpu/candidate.h"

#include "backends/gpu/device.h"

#include <stdio.h>
#include <stdlib.h>

rope_status gpu_refuse(gpuError_t error, char *reason) {
    snprintf(reason, ROPE_REASON_SIZE, "%s", gpuGetErrorString(error));
    return gpu_status(error);
}

rope_status gpu_kernel_probe(const void *kernel, int32_t device, char *reason) {
    gpuFuncAttributes attributes;
    int previous;
    gpuError_t error = gpu_enter(device, &previous);
    if (error == gpuSuccess) {
        error = gpuFuncGetAttributes(&attributes, kernel);
        gpu_leave(device, previous);
    }
    return error == gpuSuccess ? ROPE_OK : gpu_refuse(error, reason);
}

gpuError_t gpu_kernels_load(const void *const *kernels, size_t count, int32_t *early) {
    gpuFuncAttributes attributes;
    gpuError_t error = gpuSuccess;
    *early = 1;
    for (size_t i = 0; i < count && error == gpuSuccess; i++)
        if (kernels[i]) {
            error = gpuFuncGetAttributes(&attributes, kernels[i]);
            *early &= error == gpuSuccess && gpu_starts_early(&attributes);
        }
    return error;
}

gpuError_t gpu_bind(gpu_binding *binding, int32_t device, int32_t launch,
                    const void *const *kernels, size_t count) {
    binding->device = device;
    gpuError_t error =
        gpuDeviceGetAttribute(&binding->multiprocessors, gpuDevAttrMultiprocessorCount, device);
    if (error == gpuSuccess)
        error = gpuGetDeviceCount(&binding->devices);
    if (error == gpuSuccess)
        error = gpu_kernels_load(kernels, count, &binding->early);
    binding->early &= launch == ROPE_LAUNCH_PROGRAMMATIC;
    return error;
}

rope_status gpu_bind_candidate(const gpu_operation *operation, const rope_candidate *self,
                               const void *problem, int32_t device, void **kernel, char *reason) {
    gpu_binding *state = calloc(1, operation->size);
    int previous;
    if (!state)
        return gpu_refuse(gpuErrorMemoryAllocation, reason);
    state->operation = operation;
    state->device = device;
    gpuError_t error = gpu_enter(device, &previous);
    if (error == gpuSuccess) {
        error = operation->fill(state, self, problem, device);
        gpu_leave(device, previous);
    }
    if (error != gpuSuccess) {
        gpu_release(state);
        return gpu_refuse(error, reason);
    }
    *kernel = state;
    return ROPE_OK;
}

void gpu_release(void *kernel) {
    const gpu_binding *state = kernel;
    if (state && state->lists)
        (void)gpu_free(state->device, state->lists);
    free(kernel);
}

rope_status gpu_check_pointers(int32_t device, const gpu_named_pointer *given, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (given[i].pointer && gpu_is_out_of_reach(device, given[i].pointer))
            return gpu_host->fail(ROPE_ERROR_INVALID_VALUE,
                                  "%s is %p; allowed is memory that %s device %d reaches",
                                  given[i].name, given[i].pointer, GPU_BACKEND_NAME, device);
    return ROPE_OK;
}

rope_status gpu_check_stream(int32_t device, int32_t devices, void *stream) {
    const int found = stream && devices > 1 ? gpu_device_of_stream(stream, device) : device;
    return found == device
               ? ROPE_OK
               : gpu_host->fail(ROPE_ERROR_INVALID_VALUE,
                                "stream is of %s device %d; allowed is one of device %d, or NULL",
                                GPU_BACKEND_NAME, found, device);
}

static rope_status check_call(gpu_binding *binding, const void *call, void *stream) {
    const rope_status status = gpu_check_stream(binding->device, binding->devices, stream);
    if (status != ROPE_OK || !binding->operation->check_memory ||
        atomic_load_explicit(&binding->asked, memory_order_relaxed))
        return status;
    const rope_status found = binding->operation->check_memory(binding, call);
    if (found == ROPE_OK)
        atomic_store_explicit(&binding->asked, 1, memory_order_relaxed);
    return found;
}

/* Launches what is checked, or only checks. */
static rope_status run(const void *kernel, const void *call, void *stream, int launches) {
    gpu_binding *binding = (gpu_binding *)(uintptr_t)kernel;
    rope_status status = ROPE_OK;
    int previous;
    gpuError_t error = gpu_enter(binding->device, &previous);
    if (error == gpuSuccess) {
        status = check_call(binding, call, stream);
        if (status == ROPE_OK && launches)
            error = binding->operation->launch(binding, call, stream);
        gpu_leave(binding->device, previous);
    }
    return error == gpuSuccess ? status
                               : gpu_fail(error, binding->operation->doing, binding->device);
}

rope_status gpu_run(const void *kernel, const void *call, void *stream) {
    return run(kernel, call, stream, 1);
}

rope_status gpu_check(const void *kernel, const void *call, void *stream) {
    return run(kernel, call, stream, 0);
}

rope_status gpu_run_call(const void *problem, const void *kernel, const void *call, void *workspace,
                         void *stream) {
    (void)problem, (void)workspace;
    return gpu_run(kernel, call, stream);
}
