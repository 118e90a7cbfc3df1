/* Dealing work to threads. */
#ifndef ROPEKIT_CPU_PARTITION_H
#define ROPEKIT_CPU_PARTITION_H

#include <stdint.h>

/* Threads that work of so many bytes, read and written, is worth. */
int cpu_threads_for(int64_t bytes);

/* Most threads a call may use. */
int cpu_threads_most(void);

/* Start of part `index` of `parts` of n, in order and without gaps. */
static inline int64_t cpu_part(int64_t n, int index, int parts) {
    if (parts == 1) /* without two divisions, which cost as much as a small call */
        return index ? n : 0;
    return n / parts * index + (n % parts < index ? n % parts : index);
}

#endif
