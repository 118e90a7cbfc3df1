/* Gradients of attention by the matrix instructions of sm_90a, as sm90/ shows them to others.
 * Builds without ROPEKIT_SM90, as HIP's are, have nothing of them. */
#ifndef ROPEKIT_GPU_ATTENTION_BACKWARD_SM90_H
#define ROPEKIT_GPU_ATTENTION_BACKWARD_SM90_H

#include "backends/gpu/platform/runtime.h"
#include "common/math/attention.h"
#include "common/math/portable.h"

/* Counters: tiles that are listed of rows and of keys, then a counter of each launch, of which
 * there may be 5 that compute all tiles and 5 that compute some again. Bytes of what is known of a
 * sequence: where it lies, then whether its dq, and its dk or dv, are finite. */
enum {
    GPU_BACKWARD_SM90_COUNTERS = 2 + 2 * 5 + 1,
    GPU_BACKWARD_SM90_SEQUENCE = 44,
    GPU_BACKWARD_SM90_KNOWN = GPU_BACKWARD_SM90_SEQUENCE + 2 * sizeof(int32_t)
};

/* Tokens of a head that a tile has, and int32_t of each tile: of the list of those that are
 * computed again, which each group of its blocks may tell of, then where packed ones are. */
enum { GPU_BACKWARD_SM90_TILE = 128, GPU_BACKWARD_SM90_TOLD = 4, GPU_BACKWARD_SM90_LISTED = 6 };

/* Numbers of two rows of stats, of a batch row and head, and as many more of each sequence and head
 * where these are packed. */
#define GPU_BACKWARD_SM90_STATS(tokens) (2 * ((tokens) + 3))
enum { GPU_BACKWARD_SM90_STATS_PACKED = 8 };

/* Rows of a slab, of heads of up to 64 elements or of more. */
#define GPU_BACKWARD_JOINT_SLAB(is_longer) ((is_longer) ? 64 : 128)

/* Sequences whose gradients may be computed at once have so many queries and keys at least, and so
 * many rows of all heads: tiles of keys wait for each other, and fewer rows do not fill a GPU. */
enum { GPU_BACKWARD_JOINT_TOKENS = 1536 };
ROPE_FN int gpu_backward_may_join(int64_t queries, int64_t keys, int64_t q_heads, int slab) {
    const int64_t tokens = queries < keys ? queries : keys,
                  fewest = slab < 128 ? 4096 : (int64_t)GPU_BACKWARD_JOINT_TOKENS,
                  rows = slab < 128 ? 640 * 128 : 512 * 128;
    return tokens >= fewest && tokens * q_heads >= rows;
}

/* So those ahead of a token have so many slabs of a key head, which `shares` heads of q read. */
#define GPU_BACKWARD_JOINT_SLABS(tokens, shares, slab)                                             \
    ((tokens) * (shares) / (slab) + (tokens) / GPU_BACKWARD_JOINT_TOKENS * ((shares) + 2))

typedef struct gpu_backward_sm90_call {
    const rope_attention_problem *problem;
    const rope_attention_backward_call *call; /* its q.in and k.in are rotated */
    void *counters;
    void *sequences;  /* where all of them lie, then the rest */
    int32_t *list[2]; /* of tiles of rows, of keys */
    float *stats, *delta;
    void *angles;       /* gpu_sm90_angles() bytes of each query */
    void *sums, *added; /* of dq; NULL: there are none */
    int multiprocessors;
    int early, follows_early; /* the first launch may start early, and those behind it */
    gpuStream_t stream;
} gpu_backward_sm90_call;

#define GPU_BACKWARD_SM90_DECLINED                                                                 \
    "declined: heads are not of 8 n elements of 16 bits up to 256, or there is a scale below 0 "   \
    "or a token that may have no position, or no GPU of sm_90"

/* Of each sequence 0 where dq, or dk or dv, is not finite, so that kernels of tiles write such
 * elements, else -1. */
static inline int32_t *gpu_backward_sm90_again(const gpu_backward_sm90_call *l, int of_keys) {
    const int64_t sequences = rope_attention_sequences(&l->call->forward);
    return (int32_t *)(void *)((char *)l->sequences + GPU_BACKWARD_SM90_SEQUENCE * sequences) +
           of_keys * sequences;
}

#ifdef ROPEKIT_SM90

/* Whether gradients may be computed at once. */
int gpu_backward_sm90_joins(const rope_attention_problem *problem);

/* Whether a problem has kernels on a device. */
int gpu_backward_sm90_takes(const rope_attention_problem *problem, int32_t device);

gpuError_t gpu_backward_sm90_load(const rope_attention_problem *problem);

/* Whether a call takes them: what it reads lies in vectors of 16 bytes. */
int gpu_backward_sm90_fits(const rope_attention_problem *problem,
                           const rope_attention_backward_call *call);

/* Whether dq and dk of such a call may be rotated back where they are stored: keys stand where
 * queries do, and each is seen by its own. */
int gpu_backward_sm90_turns(const rope_attention_problem *problem,
                            const rope_attention_backward_call *call);

/* dq, delta and stats, then dk and dv, then what is computed again. dq and dk are rotated where the
 * problem rotates them. */
gpuError_t gpu_backward_sm90_launch(const gpu_backward_sm90_call *call);

#else

static inline int gpu_backward_sm90_joins(const rope_attention_problem *problem) {
    (void)problem;
    return 0;
}

static inline int gpu_backward_sm90_takes(const rope_attention_problem *problem, int32_t device) {
    (void)problem, (void)device;
    return 0;
}

static inline gpuError_t gpu_backward_sm90_load(const rope_attention_problem *problem) {
    (void)problem;
    return gpuSuccess;
}

static inline int gpu_backward_sm90_fits(const rope_attention_problem *problem,
                                         const rope_attention_backward_call *call) {
    (void)problem, (void)call;
    return 0;
}

static inline int gpu_backward_sm90_turns(const rope_attention_problem *problem,
                                          const rope_attention_backward_call *call) {
    (void)problem, (void)call;
    return 0;
}

static inline gpuError_t gpu_backward_sm90_launch(const gpu_backward_sm90_call *call) {
    (void)call;
    return gpuSuccess;
}

#endif

#endif
