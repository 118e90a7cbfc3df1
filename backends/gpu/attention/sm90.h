/* Attention by the matrix instructions of sm_90a, as sm90/ shows it to others. Builds without
 * ROPEKIT_SM90, as HIP's are, have nothing of it. */
#ifndef ROPEKIT_GPU_ATTENTION_SM90_H
#define ROPEKIT_GPU_ATTENTION_SM90_H

#include "backends/gpu/attention/kernels.h"
#include "backends/gpu/attention/sizes.h"
#include "backends/gpu/platform/runtime.h"
#include "common/math/attention.h"

#include <ropekit/backend.h>

/* A block of GPU_SM90_ROWS rows, and the keys that it takes at a time; those of tall tiles, which
 * heads of up to 64 have in long sequences. */
enum { GPU_SM90_ROWS = 128, SM90_TALL_ROWS = 192, SM90_TALL_KEYS = 96, SM90_HEADER = 2048 };

/* Packed sequences of which a block keeps where tiles begin, and what it has seen of the first
 * ones. */
enum { SM90_LOOKED = 2048, SM90_SEEN = 384, SM90_SIGHT = 4 * SM90_LOOKED + 128 + 32 * SM90_SEEN };
#define GPU_SM90_KEYS(dim) ((dim) > 192 ? 80 : 128)

/* Tiles of queries in shared memory; with two there is one of results. */
#define GPU_SM90_QUERIES(dim) ((dim) > 128 ? 1 : 2)

/* Bytes of a block's shared memory: a header with barriers and descriptions of tiles, then tiles of
 * queries, two each of keys and of values, and one of results. */
#define GPU_SM90_SHARED(dim, v_dim, rows, keys)                                                    \
    (SM90_HEADER + 2 * (rows)*GPU_SM90_QUERIES(dim) * (dim) + 4 * (keys) * ((dim) + (v_dim)) +     \
     (GPU_SM90_QUERIES(dim) == 2 ? 2 * (rows) * (v_dim) : 0))

/* Latent attention of few queries: a block has heads of one query, a key head
 * GPU_SM90_LATENT_BLOCKS of them, and a header, queries and two tiles of keys in shared memory. A
 * split's results are as many bytes as hundreds of keys: it has at least 2^LONGER times as many. */
enum {
    GPU_SM90_LATENT_ROWS = 64,
    GPU_SM90_LATENT_SHARED = SM90_HEADER + 3 * 64 * 2 * ROPE_MAX_ATTENTION_HEAD_DIM,
    GPU_SM90_LATENT_LONGER = 1
};
#define GPU_SM90_LATENT_BLOCKS(group) (((group) + GPU_SM90_LATENT_ROWS - 1) / GPU_SM90_LATENT_ROWS)

/* Device memory that a launch writes to, at multiples of 16. */
typedef struct gpu_sm90_memory {
    void *tickets;        /* GPU_SM90_TICKETS bytes */
    void *angles;         /* gpu_sm90_angles() bytes of each query, where they rotate here */
    int32_t *failed;      /* of each sequence, where gpu_sm90_looks_at_pages() */
    void *gathered;       /* the first part of keys and values, where they are gathered */
    void *spans;          /* gpu_sm90_span_bytes() */
    rope_operand rotated; /* its out, where there is one, has queries that rotate here */
} gpu_sm90_memory;
enum { GPU_SM90_TICKETS = 4 * 516 };

/* Norms ahead of the rotation: of queries, then of keys. */
typedef struct gpu_sm90_norms {
    const rope_append_steps *steps;
    const rope_append_operand *operand; /* heads, 0: without a norm; weights */
} gpu_sm90_norms;

typedef struct gpu_sm90_call {
    const rope_attention_problem *problem;
    const rope_attention_call *call;
    const gpu_sm90_norms *norms; /* or NULL */
    int keys_too;          /* keys rotate here, as gpu_sm90_rotates_keys() says, else before */
    const int32_t *failed; /* or NULL: no sequence fails */
    gpu_sm90_memory memory;
    int leaves_few; /* sequences of few queries are left out */
    int multiprocessors;
    int early, follows_early; /* the first launch may start early, and those behind it */
    gpuStream_t stream;
} gpu_sm90_call;

#define GPU_SM90_DECLINED                                                                          \
    "declined: heads are not of 8 n elements of 16 bits up to 256, or there is a tree, ring, "     \
    "other cache or large cap, or no GPU of sm_90"

#ifdef ROPEKIT_SM90

/* The kernel of a problem on a device; NULL: none, as where it is no GPU of sm_90, or heads are not
 * of 8 n elements up to 256, or there is a tree, a ring, a cap of which fp32 lacks the polynomial,
 * a cache of heads of more than 128 with values of up to 128, or one that is not converted, of
 * pages that do not lie in tiles of keys by 8 keys, by 16 with heads of more than 128. */
const void *gpu_sm90_kernel(const rope_attention_problem *problem, int32_t device);

/* Bytes of shared memory of a block. */
int32_t gpu_sm90_shared(const rope_attention_problem *problem);

/* Loads that kernel, those that run ahead of it, and that of norms. */
gpuError_t gpu_sm90_load(const rope_attention_problem *problem);

/* Whether a call takes it: tensors that lie in vectors of 16 bytes, keys that are rotated in k.out,
 * and queries in q.out or of a rotation by exact angles of one axis. */
int gpu_sm90_fits(const rope_attention_problem *problem, const rope_attention_call *call);

/* Whether a launch looks at the pages of a problem's tables. */
int gpu_sm90_looks_at_pages(const rope_attention_problem *problem);

/* Whether queries of such a call rotate here. */
int gpu_sm90_rotates(const rope_attention_problem *problem, const rope_attention_call *call);

/* Whether queries that rotate here may be written, too, to such an out, by vectors of 16 bytes. */
int gpu_sm90_writes(const rope_attention_problem *problem, const rope_attention_call *call,
                    const rope_operand *rotated);

/* Whether keys rotate beside the angles of queries, by the same ones. */
int gpu_sm90_rotates_keys(const rope_attention_problem *problem, const rope_attention_call *call);

/* Whether queries and keys of such a call have their norms here. */
int gpu_sm90_normalises(const rope_attention_problem *problem, const rope_attention_call *call,
                        const gpu_sm90_norms *norms, int multiprocessors);

/* Bytes of a query's angles. */
size_t gpu_sm90_angles(const rope_attention_problem *problem);

/* Whether calls up to these sizes may gather keys and values of pages. */
int gpu_sm90_may_gather(const rope_attention_problem *problem, const gpu_attention_sizes *sizes);

/* Bytes for spans of keys, of calls up to these sizes. */
size_t gpu_sm90_span_bytes(const rope_attention_problem *problem, const gpu_attention_sizes *sizes,
                           int multiprocessors);

gpuError_t gpu_sm90_launch(const gpu_sm90_call *call);

/* The kernels of latent attention and of its join, of heads of 576 elements with values of 512 in
 * pages of 16 n tokens, or where the cache is converted, in gathered rows; or NULL, as with a cap,
 * a tree, a ring or keys that rotate. */
const void *const *gpu_sm90_latent_kernels(const rope_attention_problem *problem, int32_t device);

/* Whether a call takes it, of so many blocks. fits: GPU_TILE_. */
int gpu_sm90_latent_fits(const rope_attention_problem *problem, const rope_attention_call *call,
                         int32_t fits, int64_t blocks);

/* Launches them, of a call that fits. */
gpuError_t gpu_sm90_latent_launch(const void *const kernels[2], const gpu_sm90_call *call,
                                  const gpu_attention_parts *parts, int64_t blocks);

#else

static inline const void *gpu_sm90_kernel(const rope_attention_problem *problem, int32_t device) {
    (void)problem, (void)device;
    return NULL;
}

static inline int32_t gpu_sm90_shared(const rope_attention_problem *problem) {
    (void)problem;
    return 0;
}

static inline gpuError_t gpu_sm90_load(const rope_attention_problem *problem) {
    (void)problem;
    return gpuSuccess;
}

static inline int gpu_sm90_fits(const rope_attention_problem *problem,
                                const rope_attention_call *call) {
    (void)problem, (void)call;
    return 0;
}

static inline int gpu_sm90_looks_at_pages(const rope_attention_problem *problem) {
    (void)problem;
    return 0;
}

static inline int gpu_sm90_writes(const rope_attention_problem *problem,
                                  const rope_attention_call *call, const rope_operand *rotated) {
    (void)problem, (void)call, (void)rotated;
    return 0;
}

static inline int gpu_sm90_rotates_keys(const rope_attention_problem *problem,
                                        const rope_attention_call *call) {
    (void)problem, (void)call;
    return 0;
}

static inline int gpu_sm90_normalises(const rope_attention_problem *problem,
                                      const rope_attention_call *call, const gpu_sm90_norms *norms,
                                      int multiprocessors) {
    (void)problem, (void)call, (void)norms, (void)multiprocessors;
    return 0;
}

static inline size_t gpu_sm90_angles(const rope_attention_problem *problem) {
    (void)problem;
    return 0;
}

static inline int gpu_sm90_may_gather(const rope_attention_problem *problem,
                                      const gpu_attention_sizes *sizes) {
    (void)problem, (void)sizes;
    return 0;
}

static inline size_t gpu_sm90_span_bytes(const rope_attention_problem *problem,
                                         const gpu_attention_sizes *sizes, int multiprocessors) {
    (void)problem, (void)sizes, (void)multiprocessors;
    return 0;
}

static inline gpuError_t gpu_sm90_launch(const gpu_sm90_call *call) {
    (void)call;
    return gpuSuccess;
}

static inline const void *const *gpu_sm90_latent_kernels(const rope_attention_problem *problem,
                                                         int32_t device) {
    (void)problem, (void)device;
    return NULL;
}

static inline int gpu_sm90_latent_fits(const rope_attention_problem *problem,
                                       const rope_attention_call *call, int32_t fits,
                                       int64_t blocks) {
    (void)problem, (void)call, (void)fits, (void)blocks;
    return 0;
}

static inline gpuError_t gpu_sm90_latent_launch(const void *const kernels[2],
                                                const gpu_sm90_call *call,
                                                const gpu_attention_parts *parts, int64_t blocks) {
    (void)kernels, (void)call, (void)parts, (void)blocks;
    return gpuSuccess;
}

#endif

#endif
