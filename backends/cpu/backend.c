/* The CPU backend: its operations, its memory and its clock. */
#define _GNU_SOURCE
#include <ropekit/backend.h>

#include "backends/cpu/candidate_lists.h"
#include "backends/cpu/features.h"
#include "backends/cpu/model_name.h"
#include "backends/cpu/partition.h"
#include "common/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const rope_candidate_list *const lists[] = {&cpu_rope_candidates,
                                                   &cpu_append_candidates,
                                                   &cpu_append_backward_candidates,
                                                   &cpu_attention_candidates,
                                                   &cpu_attention_backward_candidates,
                                                   &cpu_attention_merge_candidates,
                                                   &cpu_membench_candidates};

static rope_status device_count(int32_t *count, char *reason) {
    const char *error = cpu_setting_error();
    *count = !error;
    if (error)
        snprintf(reason, ROPE_REASON_SIZE, "%s", error);
    return error ? ROPE_ERROR_INVALID_VALUE : ROPE_OK;
}

static rope_status device_info(int32_t device, rope_device_info *info) {
    size_t used = 0;
    cpu_model_name(info->name, sizeof info->name);
    for (int32_t i = 0; i < cpu_rope_candidates.count; i++) {
        const rope_candidate *kernel = &cpu_rope_candidates.candidates[i];
        char reason[ROPE_REASON_SIZE];
        if (kernel->on_request || kernel->query(kernel, NULL, device, reason) != ROPE_OK)
            continue;
        used += (size_t)snprintf(info->features + used, sizeof info->features - used, "%s%s",
                                 used ? " " : "", kernel->name);
    }
    info->memory_bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    info->cache_bytes = cpu_cache_bytes();
    info->compute_units = cpu_threads_most();
    return ROPE_OK;
}

static rope_status allocate(int32_t device, size_t bytes, void **pointer) {
    (void)device;
    enum { OF_A_WORKSPACE = 256 };
    void *memory = NULL;
    if (posix_memalign(&memory, OF_A_WORKSPACE, bytes) != 0)
        return rope_fail(ROPE_ERROR_OUT_OF_MEMORY, "no memory for %zu bytes", bytes);
    *pointer = memory;
    return ROPE_OK;
}

static rope_status release(int32_t device, void *pointer) {
    (void)device;
    free(pointer);
    return ROPE_OK;
}

static rope_status copy(int32_t device, void *target, const void *source, size_t bytes) {
    (void)device;
    memcpy(target, source, bytes);
    return ROPE_OK;
}

static rope_status synchronize(int32_t device) {
    (void)device;
    return ROPE_OK;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static rope_status measure(int32_t device, int32_t graph, int64_t iterations,
                           rope_iteration iteration, void *state, double *seconds,
                           double *host_seconds) {
    (void)device, (void)graph;
    double start = now();
    for (int64_t i = 0; i < iterations; i++) {
        rope_status status = iteration(state, i, NULL);
        if (status != ROPE_OK)
            return status;
    }
    *seconds = *host_seconds = (now() - start) / (double)iterations;
    return ROPE_OK;
}

static const rope_backend backend = {
    .abi = ROPE_BACKEND_ABI,
    .struct_size = sizeof backend,
    .name = "cpu",
    .lists = lists,
    .list_count = sizeof lists / sizeof lists[0],
    .settings = cpu_settings,
    .setting_count = CPU_SETTINGS,
    .device_count = device_count,
    .device_info = device_info,
    .alloc = allocate,
    .free = release,
    .copy_in = copy,
    .copy_out = copy,
    .synchronize = synchronize,
    .time = measure,
};

const rope_backend *rope_backend_cpu(const rope_host *host);

const rope_backend *rope_backend_cpu(const rope_host *host) {
    (void)host;
    return &backend;
}
