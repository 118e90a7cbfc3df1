/* Work that was submitted and has not run: a queue for each device, and graphs. */
#ifndef ROPEKIT_HIP_EMULATION_STREAM_H
#define ROPEKIT_HIP_EMULATION_STREAM_H

#include "tests/hip_emulation/kernel.h"

enum { EMULATED_DEVICES = 2 };

/* A launch, a copy, a function of the host or the recording of an event. */
typedef struct work {
    emulated_launch launch; /* with a kernel */
    hipHostFn_t function;   /* with target as its data */
    void *target;           /* of a copy */
    const void *source;
    size_t bytes;
    hipEvent_t event;
    struct work *next;
} work;

typedef struct work_list {
    work *first, *last;
} work_list;

/* Everything below runs under the lock, which all devices share. */
void device_lock(void);
void device_unlock(void);

/* Takes a copy of the work, into the stream's capture or the queue of its device. */
hipError_t stream_submit(hipStream_t stream, const work *item);
/* Runs the queues; the first error, which stays until the process ends. */
hipError_t queues_run(void);
/* 1 where `bytes` from a pointer on lie in one allocation of the thread's current device, as
 * ropekit has it for every copy; HIP copies memory of the others too. */
int memory_holds(const void *pointer, size_t bytes);

#endif
