/* Kernels that decode in one launch, as candidates.c has them, and what they share on the host. */
#ifndef ROPEKIT_GPU_DECODE_LAUNCH_H
#define ROPEKIT_GPU_DECODE_LAUNCH_H

#include "backends/gpu/decode/kernels.h"
#include "backends/gpu/platform/runtime.h"

#include <ropekit/backend.h>

typedef struct gpu_decode_launch {
    const rope_decode_problem *problem; /* whose lists lie on the device */
    const rope_decode_call *call;
    void *workspace;
    int multiprocessors;
    int early;
    gpuStream_t stream;
} gpu_decode_launch;

typedef struct gpu_decode_kernel {
    /* As rope_candidate.query. */
    rope_status (*query)(const rope_decode_problem *problem, int32_t device, char *reason);
    gpuError_t (*load)(const rope_decode_problem *problem, int32_t *early);
    /* Whether a call takes it. */
    int (*fits)(const rope_decode_problem *problem, const rope_decode_call *call,
                int multiprocessors);
    /* Bytes of workspace that every call within bounds needs, 0 where none takes it; and that of a
     * call that does. */
    size_t (*workspace)(const rope_decode_problem *problem, const rope_attention_bounds *bounds,
                        int multiprocessors);
    size_t (*workspace_of)(const rope_decode_problem *problem, const rope_decode_call *call,
                           int multiprocessors);
    gpuError_t (*launch)(const gpu_decode_launch *launch);
} gpu_decode_kernel;

#ifdef ROPEKIT_SM90
extern const gpu_decode_kernel gpu_decode_sm90, gpu_decode_latent;
#endif
extern const gpu_decode_kernel gpu_decode_portable;

/* Why neither kernel of whole heads takes a problem, or NULL: heads are to have 64 or 128 elements
 * of 16 bits, to rotate as a whole by exact angles or a table, and norms are RMS of heads. */
const char *gpu_decode_decline(const rope_decode_problem *problem);

/* Elements of a head. */
static inline int32_t gpu_decode_dim(const rope_decode_problem *p) {
    return p->append->steps[ROPE_APPEND_Q].head_dim;
}

/* Attention as it reads queries that are not rotated. */
rope_attention_call gpu_decode_attention_of(const rope_decode_call *call);

/* Whether a table, if there is one, has a row for each token in its sequence, as the host sees. */
int gpu_decode_fits_table(const rope_decode_problem *p, const rope_decode_call *call);

gpu_decode_table gpu_decode_table_of(const rope_call *call);

gpu_decode_steps gpu_decode_steps_of(const rope_append_problem *problem,
                                     const rope_append_call *call, int tensor);

#endif
