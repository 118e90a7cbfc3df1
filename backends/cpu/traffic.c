#include "backends/cpu/traffic.h"

#include "backends/cpu/partition.h"

#include <string.h>

#if defined(_OPENMP)
#include <omp.h>
#endif
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

typedef void (*traffic_function)(char *target, const char *source, size_t bytes);

static void copy_plain(char *target, const char *source, size_t bytes) {
    memcpy(target, source, bytes);
}

typedef uint64_t vector __attribute__((vector_size(64)));

static void copy_vector(char *target, const char *source, size_t bytes) {
    size_t i = 0;
    for (; i + sizeof(vector) <= bytes; i += sizeof(vector)) {
        vector v;
        memcpy(&v, source + i, sizeof v);
        memcpy(target + i, &v, sizeof v);
        __asm__ volatile("" ::: "memory"); /* keeps the loop from becoming a call of memcpy */
    }
    memcpy(target + i, source + i, bytes - i);
}

#if defined(__SSE2__)
static void copy_streaming(char *target, const char *source, size_t bytes) {
    size_t head = (size_t)(-(uintptr_t)target & 15u), i = head < bytes ? head : bytes;
    memcpy(target, source, i);
    for (; i + 64 <= bytes; i += 64)
        for (size_t j = i; j < i + 64; j += 16)
            _mm_stream_si128((__m128i *)(target + j),
                             _mm_loadu_si128((const __m128i *)(source + j)));
    _mm_sfence();
    memcpy(target + i, source + i, bytes - i);
}
#endif

/* Changes the lowest bit of every element, so that no store can be left out and no number leaves
 * its class. */
static void update_vector(char *target, const char *source, size_t bytes) {
    (void)source;
    size_t i = 0;
    for (; i + sizeof(vector) <= bytes; i += sizeof(vector)) {
        vector v;
        memcpy(&v, target + i, sizeof v);
        v ^= 0x0001000100010001u;
        memcpy(target + i, &v, sizeof v);
    }
    for (; i < bytes; i++)
        target[i] = (char)(target[i] ^ 1);
}

#if defined(_OPENMP)
static void run_part(traffic_function function, const rope_traffic *t, size_t index, size_t parts) {
    const size_t line = 64, lines = (t->bytes + line - 1) / line;
    size_t first = lines * index / parts * line, last = lines * (index + 1) / parts * line;
    if (last > t->bytes)
        last = t->bytes;
    const char *source = t->source ? (const char *)t->source + first : NULL;
    if (last > first)
        function((char *)t->target + first, source, last - first);
}
#endif

static rope_status run(const rope_problem *problem, const void *kernel, const void *given) {
    (void)problem;
    const rope_traffic *t = given;
    traffic_function function = *(const traffic_function *)kernel;
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

static rope_status bind(const rope_candidate *self, const rope_problem *problem, int32_t device,
                        void **kernel, char *reason) {
    (void)problem, (void)device, (void)reason;
    *kernel = (void *)(uintptr_t)self->data;
    return ROPE_OK;
}

static const traffic_function plain = copy_plain, vectors = copy_vector, updating = update_vector;
static const rope_candidate copy_candidates[] = {
    {.name = "memcpy", .data = &plain, .bind = bind, .run = run},
    {.name = "vector", .data = &vectors, .bind = bind, .run = run},
};
static const rope_candidate update_candidate = {
    .name = "vector", .data = &updating, .bind = bind, .run = run};

#if defined(__SSE2__)
static const traffic_function streaming = copy_streaming;
static const rope_candidate streaming_candidate = {
    .name = "nontemporal", .data = &streaming, .bind = bind, .run = run};
#endif

static const rope_candidate *const copies[] = {
    &copy_candidates[0],
    &copy_candidates[1],
#if defined(__SSE2__)
    &streaming_candidate,
#endif
};
static const rope_candidate *const updates[] = {&update_candidate};

const rope_operation cpu_copy_operation = {copies, sizeof copies / sizeof copies[0]};
const rope_operation cpu_update_operation = {updates, 1};
