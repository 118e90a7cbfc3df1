/* A problem of "attention" bound to a device. */
#ifndef ROPEKIT_GPU_ATTENTION_BIND_H
#define ROPEKIT_GPU_ATTENTION_BIND_H

#include "backends/gpu/attention/kernels.h"
#include "backends/gpu/rope/launch.h"

/* The state of a plan: bind makes it, run is given it. */
typedef struct gpu_attention_state {
    gpu_binding on;
    rope_attention_problem problem; /* its lists lie on the device */
    gpu_rope_state rotation; /* by "rope", with the same lists; unset where nothing rotates */
    const gpu_attention_kernels *kernels;
    const gpu_generic_kernels *generics;
    int32_t tiles;             /* of GPU_TILE_DIMS; or GPU_GENERIC */
    int32_t generic;           /* of GPU_GENERIC_DIMS, whatever `tiles` is */
    int32_t splits;            /* sequences of few queries take the kernel of splits */
    int32_t wide_heads;        /* all take the kernel of wide heads; `tiles` is GPU_GENERIC then */
    const void *const *latent; /* those of latent attention of sm90/, or NULL */
    const void *sm90;          /* the kernel of sm90/, or NULL: the plan has none */
    int32_t starts_early; /* launches of a call may begin before the one ahead of them has ended */
} gpu_attention_state;

/* Binds to a device, which is the current one: all but tiles, splits and sm90. */
gpuError_t gpu_attention_bind(gpu_attention_state *state, const rope_attention_problem *problem,
                              int32_t device);

/* Refuses lists of a call that the device is known not to reach, by name. */
rope_status gpu_attention_check_lists(const gpu_attention_state *state,
                                      const rope_attention_call *call);

/* Finds the kernel of tiles that a problem takes, the smallest of GPU_TILE_DIMS with room for its
 * heads; returns why there is none, or NULL. */
const char *gpu_tiles_decline(const rope_attention_problem *problem, int32_t *tiles);

/* Why a problem does not take the kernel of wide heads, or NULL. */
const char *gpu_latent_decline(const rope_attention_problem *problem);

/* Most queries of a sequence that is read in splits where so many heads of q share one of k. */
int64_t gpu_split_queries(const gpu_attention_state *state, int64_t group);

/* Declines for `declined`, a reason of the two above, if there is one; else accepts a device that
 * has matrix instructions and `shared` bytes of shared memory for a block. As
 * rope_candidate.query. */
rope_status gpu_tiles_query(const rope_attention_problem *problem, const char *declined,
                            int32_t shared, int32_t device, char *reason);

/* Most splits that a sequence of at most so many keys uses; longer: a split has at least 2^longer
 * times as many. */
int64_t gpu_splits_most(const rope_attention_problem *problem, int64_t keys, int32_t longer);

/* Whether a key may have no position. */
int gpu_attention_may_fail(const rope_attention_problem *problem);

#endif
