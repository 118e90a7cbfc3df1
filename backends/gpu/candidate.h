/* Candidates of every operation need this: loaded kernels, memory and streams that fit the device.
 */
#ifndef ROPEKIT_GPU_CANDIDATE_H
#define ROPEKIT_GPU_CANDIDATE_H

#include "backends/gpu/platform/runtime.h"

#include <stdatomic.h>

#include <ropekit/backend.h>

/* The status of an error, with its text as the reason. */
rope_status gpu_refuse(gpuError_t error, char *reason);

/* Whether a device can run a kernel of ours. */
rope_status gpu_kernel_probe(const void *kernel, int32_t device, char *reason);

/* Asking for a kernel loads it, so that a first run inside a capture loads nothing. Of `count`
 * kernels NULL are passed over. *early: all may start early. */
gpuError_t gpu_kernels_load(const void *const *kernels, size_t count, int32_t *early);

/* The device that a plan is bound to; the first member of every operation's state. */
typedef struct gpu_binding {
    const struct gpu_operation *operation;
    void *lists; /* on the device, the plan's to free; or NULL */
    int32_t device;
    int32_t devices; /* of the machine */
    int32_t multiprocessors;
    int32_t early;    /* launches may begin before the one ahead of them has ended */
    atomic_int asked; /* the runtime was asked about a call's memory */
} gpu_binding;

/* Binds to the current device; `launch` is ROPE_LAUNCH_. Loads `count` kernels. */
gpuError_t gpu_bind(gpu_binding *binding, int32_t device, int32_t launch,
                    const void *const *kernels, size_t count);

/* A pointer of a call under its name in the arguments. */
typedef struct gpu_named_pointer {
    const char *name;
    const void *pointer; /* or NULL */
} gpu_named_pointer;

/* Refuses memory that a device is known not to reach, by name. */
rope_status gpu_check_pointers(int32_t device, const gpu_named_pointer *given, size_t count);

/* Refuses a stream of another of the machine's `devices`: such a launch is no error of every
 * runtime. */
rope_status gpu_check_stream(int32_t device, int32_t devices, void *stream);

/* The functions that bind an operation's problems and run its calls. */
typedef struct gpu_operation {
    const char *doing; /* as errors name it */
    size_t size;       /* of what bind makes */
    /* Fills what bind makes, zeros at first, for the current device. */
    gpuError_t (*fill)(void *state, const rope_candidate *self, const void *problem,
                       int32_t device);
    /* Refuses memory that the device does not reach; NULL: of no call. */
    rope_status (*check_memory)(const gpu_binding *binding, const void *call);
    gpuError_t (*launch)(const gpu_binding *binding, const void *call, void *stream);
} gpu_operation;

/* As rope_candidate.bind. */
rope_status gpu_bind_candidate(const gpu_operation *operation, const rope_candidate *self,
                               const void *problem, int32_t device, void **kernel, char *reason);

/* As rope_candidate.release. */
void gpu_release(void *kernel);

/* Runs a call of what gpu_bind_candidate made. Its memory is asked about in a plan's first call
 * alone: an answer takes as long as a launch. */
rope_status gpu_run(const void *kernel, const void *call, void *stream);

/* What gpu_run would return before it launches anything. */
rope_status gpu_check(const void *kernel, const void *call, void *stream);

/* As rope_candidate.run, of an operation without a workspace. */
rope_status gpu_run_call(const void *problem, const void *kernel, const void *call, void *workspace,
                         void *stream);

#endif
