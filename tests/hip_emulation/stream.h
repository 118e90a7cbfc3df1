/* Work that was submitted and has not run: a queue for each device, and graphs. */
#ifndef ROPEKIT_HIP_EMULATION_STREAM_H
#define ROPEKIT_HIP_EMULATION_STREAM_H

#include "tests/hip_emulation/kernel.h"

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

/* Both run under the lock of device.h. */

/* Takes a copy of the work, into the stream's capture or the queue of its device. */
hipError_t stream_submit(hipStream_t stream, const work *item);
/* Runs the queues; the first error, which stays until the process ends. */
hipError_t queues_run(void);

#endif
