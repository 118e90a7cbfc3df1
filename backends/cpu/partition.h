/* Dealing a call to threads. */
#ifndef ROPEKIT_CPU_PARTITION_H
#define ROPEKIT_CPU_PARTITION_H

#include "backends/cpu/rope/kernel.h"

/* Runs a kernel over a whole call: the run of every candidate of "rope". */
rope_status cpu_rotate_call(const void *problem, const void *kernel, const void *call,
                            void *workspace, void *stream);

/* Threads that work of so many bytes, read and written, is worth. */
int cpu_threads_for(int64_t bytes);

/* Most threads a call may use. */
int cpu_threads_most(void);

#endif
