/* A problem of "attention" bound to a device, and the launches of its calls. */
#ifndef ROPEKIT_GPU_ATTENTION_LAUNCH_H
#define ROPEKIT_GPU_ATTENTION_LAUNCH_H

#include <gpu_alias.h>

#include <stdatomic.h>

#include "common/gpu/attention/kernels.h"
#include "common/gpu/rope/launch.h"

/* What bind makes and run is given. */
typedef struct gpu_attention_bound {
    rope_attention_problem problem; /* its lists lie on the device */
    void *lists;
    gpu_bound rotation; /* by "rope", with the same lists; unset where nothing rotates */
    const gpu_attention_kernels *kernels;
    int32_t device;
    int32_t devices;             /* of the machine */
    int32_t tiles;               /* of GPU_TILE_DIMS; or GPU_GENERIC */
    int32_t splits;              /* sequences of few queries take the kernel of splits */
    int32_t early, starts_early; /* launches may begin before the one ahead of a call has ended;
                                    those of a call before the one ahead of them */
    atomic_int asked;            /* the runtime was asked about a call's memory */
} gpu_attention_bound;

/* The kernel of tiles that a problem takes, of GPU_TILE_DIMS; or why there is none. */
const char *gpu_tiles_decline(const rope_attention_problem *problem,
                              const gpu_attention_kernels *kernels, int32_t *tiles);

/* Most splits that a sequence of at most so many keys uses. */
int64_t gpu_splits_most(const rope_attention_problem *problem, int64_t keys);

/* Whether a key may have no position. */
int gpu_attention_may_fail(const rope_attention_problem *problem);

/* Whether a call whose heads lie in vectors of 16 bytes takes the kernel of one query a sequence,
 * and its parameters but for parts. */
int gpu_decode_fits(const rope_attention_problem *problem, const rope_attention_call *call,
                    gpu_decode_call *decode);

/* Launches what rotates ahead, then what attends. */
gpuError_t gpu_attention_launch(const gpu_attention_bound *bound, const rope_attention_call *call,
                                void *workspace, void *stream);

#endif
