/* Attention by the matrix instructions of sm_90a, as sm90/ shows it to others. Builds without
 * ROPEKIT_SM90, as HIP's are, have nothing of it. */
#ifndef ROPEKIT_GPU_ATTENTION_SM90_H
#define ROPEKIT_GPU_ATTENTION_SM90_H

#include "backends/gpu/platform/runtime.h"
#include "common/math/attention.h"

#include <ropekit/backend.h>

/* Rows of a block, and bytes of its shared memory: a header with barriers and descriptions of
 * tiles, then two tiles each of queries, of keys and of values, and one of results. */
enum { GPU_SM90_ROWS = 128, SM90_HEADER = 2048 };
#define GPU_SM90_SHARED(dim) (SM90_HEADER + 7 * GPU_SM90_ROWS * (dim)*2)

/* Device memory that a launch writes to, at multiples of 16. */
typedef struct gpu_sm90_memory {
    void *tickets;   /* GPU_SM90_TICKETS bytes */
    void *angles;    /* gpu_sm90_angles() bytes of each query, where they rotate here */
    int32_t *failed; /* of each sequence, where gpu_sm90_looks_at_pages() */
} gpu_sm90_memory;
enum { GPU_SM90_TICKETS = 8 };

typedef struct gpu_sm90_call {
    const rope_attention_problem *problem;
    const rope_attention_call *call;
    const int32_t *failed; /* or NULL: no sequence fails */
    gpu_sm90_memory memory;
    int leaves_few; /* sequences of few queries are left out */
    int multiprocessors;
    int early, follows_early; /* the first launch may start early, and those behind it */
    gpuStream_t stream;
} gpu_sm90_call;

#define GPU_SM90_DECLINED                                                                          \
    "declined: heads are not of 64 or 128 elements of 16 bits, or there is a cap, a tree, a "      \
    "ring, a cache of another type or of other pages, or no GPU of sm_90"

#ifdef ROPEKIT_SM90

/* The kernel of a problem on a device; NULL: none, as where it is no GPU of sm_90, or heads are not
 * of 64 or 128 elements, or there is a cap, a tree or a ring, or a cache of other elements or whose
 * pages neither divide 128 keys nor are multiples of as many. */
const void *gpu_sm90_kernel(const rope_attention_problem *problem, int32_t device);

/* Loads that kernel, and the one of angles. */
gpuError_t gpu_sm90_load(const void *kernel);

/* Whether a call takes it: tensors that lie in vectors of 16 bytes, keys that are rotated in k.out,
 * and queries in q.out or of a rotation by exact angles of one axis. */
int gpu_sm90_fits(const rope_attention_problem *problem, const rope_attention_call *call);

/* Whether a launch looks at the pages of a problem's tables. */
int gpu_sm90_looks_at_pages(const rope_attention_problem *problem);

/* Whether queries of such a call rotate here. */
int gpu_sm90_rotates(const rope_attention_problem *problem, const rope_attention_call *call);

/* Bytes of a query's angles. */
size_t gpu_sm90_angles(const rope_attention_problem *problem);

gpuError_t gpu_sm90_launch(const gpu_sm90_call *call);

#else

static inline const void *gpu_sm90_kernel(const rope_attention_problem *problem, int32_t device) {
    (void)problem, (void)device;
    return NULL;
}

static inline gpuError_t gpu_sm90_load(const void *kernel) {
    (void)kernel;
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

static inline size_t gpu_sm90_angles(const rope_attention_problem *problem) {
    (void)problem;
    return 0;
}

static inline gpuError_t gpu_sm90_launch(const gpu_sm90_call *call) {
    (void)call;
    return gpuSuccess;
}

#endif

#endif
