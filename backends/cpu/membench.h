/* Copy and read-modify-write of memory: the floors of this machine. */
#ifndef ROPEKIT_CPU_MEMBENCH_H
#define ROPEKIT_CPU_MEMBENCH_H

#include <stddef.h>

/* Copies source to target, or updates target; target and source may be any addresses. */
typedef void (*cpu_membench_function)(char *target, const char *source, size_t bytes);

typedef struct cpu_membench {
    cpu_membench_function copy, stream, stream_by_pages, update, update_by_pages;
} cpu_membench;

/* Of instruction sets that the build has. */
extern const cpu_membench cpu_membench_avx2, cpu_membench_avx512, cpu_membench_neon;

#endif
