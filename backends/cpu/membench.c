#include "backends/cpu/membench.h"

#include "backends/cpu/candidate_lists.h"
#include "backends/cpu/features.h"
#include "backends/cpu/partition.h"

#include <stddef.h>
#include <string.h>

#if defined(_OPENMP)
#include <omp.h>
#endif

static void copy_memory(char *target, const char *source, size_t bytes) {
    memcpy(target, source, bytes);
}

static void update_memory(char *target, const char *source, size_t bytes) {
    (void)source;
    for (size_t i = 0; i < bytes; i++)
        target[i] ^= 1;
}

/* Without vectors. */
static const cpu_membench membench_memory = {copy_memory, copy_memory, copy_memory, update_memory,
                                             update_memory};

/* Of the highest instruction set that kernels may use. */
static const cpu_membench *membench_allowed(void) {
    const cpu_isa isa = cpu_isa_allowed();
#if defined(__x86_64__)
    if (isa >= CPU_ISA_AVX2)
        return isa >= CPU_ISA_AVX512 ? &cpu_membench_avx512 : &cpu_membench_avx2;
#elif defined(__aarch64__)
    if (isa >= CPU_ISA_NEON)
        return &cpu_membench_neon;
#endif
    return &membench_memory;
}

#if defined(_OPENMP)
static void run_part(cpu_membench_function function, const rope_traffic *t, size_t index,
                     size_t parts) {
    const size_t line = 64, lines = (t->bytes + line - 1) / line;
    size_t first = lines * index / parts * line, last = lines * (index + 1) / parts * line;
    if (last > t->bytes)
        last = t->bytes;
    const char *source = t->source ? (const char *)t->source + first : NULL;
    if (last > first)
        function((char *)t->target + first, source, last - first);
}
#endif

static rope_status run(const void *problem, const void *kernel, const void *given, void *workspace,
                       void *stream) {
    (void)problem, (void)workspace, (void)stream;
    const rope_traffic *t = given;
    cpu_membench_function function = *(const cpu_membench_function *)kernel;
    int parts = cpu_threads_for(2 * (int64_t)t->bytes);
    if (parts == 1) {
        function(t->target, t->source, t->bytes);
        return ROPE_OK;
    }
#if defined(_OPENMP)
#pragma omp parallel num_threads(parts)
    run_part(function, t, (size_t)omp_get_thread_num(), (size_t)omp_get_num_threads());
#endif
    return ROPE_OK;
}

static rope_status bind_memcpy(const rope_candidate *self, const void *problem, int32_t device,
                               void **kernel, char *reason) {
    static const cpu_membench_function function = copy_memory;
    (void)self, (void)problem, (void)device, (void)reason;
    *kernel = (void *)(uintptr_t)&function;
    return ROPE_OK;
}

/* A candidate's data is the place of its function in a cpu_membench. */
static rope_status bind_lines(const rope_candidate *self, const void *problem, int32_t device,
                              void **kernel, char *reason) {
    (void)problem, (void)device, (void)reason;
    const char *functions = (const char *)membench_allowed();
    *kernel = (void *)(uintptr_t)(functions + *(const size_t *)self->data);
    return ROPE_OK;
}

static const size_t at_copy = offsetof(cpu_membench, copy),
                    at_stream = offsetof(cpu_membench, stream),
                    at_stream_by_pages = offsetof(cpu_membench, stream_by_pages),
                    at_update = offsetof(cpu_membench, update),
                    at_update_by_pages = offsetof(cpu_membench, update_by_pages);

#define MEMBENCH(what, label, prepare, place)                                                      \
    {                                                                                              \
        .operation = what, .version = ROPE_TRAFFIC_VERSION, .numerics = ROPE_BITWISE,              \
        .name = label, .data = place, .bind = prepare, .run = run                                  \
    }

static const rope_candidate candidates[] = {
    MEMBENCH("copy", "memcpy", bind_memcpy, NULL),
    MEMBENCH("copy", "vector", bind_lines, &at_copy),
    MEMBENCH("copy", "nontemporal", bind_lines, &at_stream),
    MEMBENCH("copy", "nontemporal pages", bind_lines, &at_stream_by_pages),
    MEMBENCH("update", "vector", bind_lines, &at_update),
    MEMBENCH("update", "pages", bind_lines, &at_update_by_pages),
};

const rope_candidate_list cpu_membench_candidates = {sizeof(rope_candidate), candidates,
                                                     sizeof candidates / sizeof candidates[0]};
