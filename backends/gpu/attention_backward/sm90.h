/* Gradients of attention by the matrix instructions of sm_90a, as sm90/ shows them to others.
 * Builds without ROPEKIT_SM90, as HIP's are, have nothing of them. */
#ifndef ROPEKIT_GPU_ATTENTION_BACKWARD_SM90_H
#define ROPEKIT_GPU_ATTENTION_BACKWARD_SM90_H

#include "backends/gpu/platform/runtime.h"
#include "common/math/attention.h"

/* Bytes of counters, behind which an int32_t of each batch row for dq lies, then one for dk and dv:
 * 0 where such gradients are not finite, so that kernels of tiles write those elements, else -1. */
enum { GPU_BACKWARD_SM90_COUNTERS = 32 };

/* Numbers of a list of tiles that are computed again, of a batch row and head. */
#define GPU_BACKWARD_SM90_LIST(tokens) (2 * ((tokens) / 128 + 1))

/* Numbers of two rows of stats, of a batch row and head. */
#define GPU_BACKWARD_SM90_STATS(tokens) (2 * ((tokens) + 3))

typedef struct gpu_backward_sm90_call {
    const rope_attention_problem *problem;
    const rope_attention_backward_call *call; /* its q.in and k.in are rotated */
    void *counters;
    int32_t *list[2]; /* of tiles of rows, of keys */
    float *stats, *delta;
    int multiprocessors;
    int follows_early; /* launches behind the first may start early */
    gpuStream_t stream;
} gpu_backward_sm90_call;

#define GPU_BACKWARD_SM90_DECLINED                                                                 \
    "declined: heads are not of 128 elements of 16 bits, or there is a soft cap or a scale below " \
    "0, or no GPU of sm_90"

static inline int32_t *gpu_backward_sm90_again(const gpu_backward_sm90_call *l, int which) {
    return (int32_t *)(void *)((char *)l->counters + GPU_BACKWARD_SM90_COUNTERS) +
           which * l->call->forward.rope.batch;
}

#ifdef ROPEKIT_SM90

/* Whether a problem has kernels on a device. */
int gpu_backward_sm90_takes(const rope_attention_problem *problem, int32_t device);

gpuError_t gpu_backward_sm90_load(int32_t dtype);

/* Whether a call takes them: sequences of the same length in tensors that lie in vectors of 16
 * bytes. */
int gpu_backward_sm90_fits(const rope_attention_backward_call *call);

/* dq, delta and stats, then dk and dv, none of which rotates, then what is computed again. */
gpuError_t gpu_backward_sm90_launch(const gpu_backward_sm90_call *call);

#else

static inline int gpu_backward_sm90_takes(const rope_attention_problem *problem, int32_t device) {
    (void)problem, (void)device;
    return 0;
}

static inline gpuError_t gpu_backward_sm90_load(int32_t dtype) {
    (void)dtype;
    return gpuSuccess;
}

static inline int gpu_backward_sm90_fits(const rope_attention_backward_call *call) {
    (void)call;
    return 0;
}

static inline gpuError_t gpu_backward_sm90_launch(const gpu_backward_sm90_call *call) {
    (void)call;
    return gpuSuccess;
}

#endif

#endif
