/* The CPU backend: its candidates, its memory and its clock. */
#define _GNU_SOURCE
#include <ropekit/backend.h>

#include "backends/cpu/features.h"
#include "backends/cpu/kernel.h"
#include "backends/cpu/partition.h"
#include "backends/cpu/traffic.h"
#include "common/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* What a rotate candidate needs and runs. */
typedef struct cpu_variant {
    cpu_isa needs;
    const cpu_kernel *kernel;
} cpu_variant;

static rope_status bind_variant(const rope_candidate *self, const rope_problem *problem,
                                int32_t device, void **kernel, char *reason) {
    (void)problem, (void)device;
    const cpu_variant *variant = self->data;
    const char *unknown;
    cpu_isa allowed = cpu_isa_allowed(&unknown);
    if (variant->needs > allowed) {
        snprintf(reason, ROPE_REASON_SIZE, "declined: %s",
                 variant->needs > cpu_isa_present() ? "not supported by this processor"
                                                    : "above ROPE_CPU_ISA");
        return ROPE_DECLINED;
    }
    *kernel = (void *)(uintptr_t)variant->kernel;
    return ROPE_OK;
}

#if defined(__x86_64__)
static const cpu_variant avx512_bf16 = {CPU_ISA_AVX512_BF16, &cpu_kernel_avx512_bf16};
static const cpu_variant avx512 = {CPU_ISA_AVX512, &cpu_kernel_avx512};
static const cpu_variant avx2 = {CPU_ISA_AVX2, &cpu_kernel_avx2};
#elif defined(__aarch64__)
static const cpu_variant neon = {CPU_ISA_NEON, &cpu_kernel_neon};
#endif
static const cpu_variant scalar = {CPU_ISA_SCALAR, &cpu_kernel_scalar};
static const cpu_variant reference = {CPU_ISA_SCALAR, &cpu_kernel_reference};

static const rope_candidate candidates[] = {
#if defined(__x86_64__)
    {.name = "avx512_bf16", .data = &avx512_bf16, .bind = bind_variant, .run = cpu_rotate_call},
    {.name = "avx512", .data = &avx512, .bind = bind_variant, .run = cpu_rotate_call},
    {.name = "avx2", .data = &avx2, .bind = bind_variant, .run = cpu_rotate_call},
#elif defined(__aarch64__)
    {.name = "neon", .data = &neon, .bind = bind_variant, .run = cpu_rotate_call},
#endif
    {.name = "scalar", .data = &scalar, .bind = bind_variant, .run = cpu_rotate_call},
    {.name = "reference",
     .data = &reference,
     .on_request = 1,
     .bind = bind_variant,
     .run = cpu_rotate_call},
};

static const rope_candidate *const rotate_candidates[] = {
    &candidates[0], &candidates[1],
#if defined(__x86_64__) || defined(__aarch64__)
    &candidates[2],
#endif
#if defined(__x86_64__)
    &candidates[3], &candidates[4],
#endif
};

static rope_status device_count(int32_t *count, char *reason) {
    const char *unknown;
    cpu_isa_allowed(&unknown);
    *count = 1;
    if (!unknown)
        return ROPE_OK;
    *count = 0;
    snprintf(reason, ROPE_REASON_SIZE,
             "ROPE_CPU_ISA is \"%.40s\"; allowed is scalar, neon, avx2, avx512 or avx512_bf16",
             unknown);
    return ROPE_ERROR_INVALID_VALUE;
}

static rope_status device_info(int32_t device, rope_device_info *info) {
    size_t used = 0;
    cpu_model_name(info->name, sizeof info->name);
    for (size_t i = 0; i < sizeof candidates / sizeof candidates[0]; i++) {
        char reason[ROPE_REASON_SIZE];
        void *kernel;
        if (candidates[i].on_request ||
            bind_variant(&candidates[i], NULL, device, &kernel, reason) != ROPE_OK)
            continue;
        used += (size_t)snprintf(info->features + used, sizeof info->features - used, "%s%s",
                                 used ? " " : "", candidates[i].name);
    }
    info->memory_bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    info->cache_bytes = cpu_cache_bytes();
    info->compute_units = cpu_threads_most();
    return ROPE_OK;
}

static rope_status allocate(int32_t device, size_t bytes, void **pointer) {
    (void)device;
    void *memory = NULL;
    if (posix_memalign(&memory, 64, bytes) != 0)
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

static const rope_operation rotate_operation = {rotate_candidates, sizeof rotate_candidates /
                                                                       sizeof rotate_candidates[0]};

static const rope_backend backend = {
    .abi = ROPE_BACKEND_ABI,
    .name = "cpu",
    .operation = {&rotate_operation, &cpu_copy_operation, &cpu_update_operation},
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
