/* The kernels of "attention_backward" as host code sees them: symbols, parameters, sizes. */
#ifndef ROPEKIT_GPU_ATTENTION_BACKWARD_KERNELS_H
#define ROPEKIT_GPU_ATTENTION_BACKWARD_KERNELS_H

#include "backends/gpu/attention/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A block has queries' rows, or keys: its own. It goes over tiles of the others. */
enum { GPU_BACKWARD_ROWS = 0, GPU_BACKWARD_KEYS = 1 };

/* Lanes that sum a row's delta. */
enum { GPU_DELTA_LANES = 16 };

/* Numbers of the generic kernels, whose blocks have GPU_GENERIC_ROWS of their own and a tile of the
 * others one for each thread: elements of which products are summed at a time, numbers between two
 * heads of them, and between the weights of two others. */
enum { GPU_BACKWARD_DEPTH = 32, GPU_BACKWARD_HEAD = GPU_BACKWARD_DEPTH + 4 };
#define GPU_BACKWARD_WEIGHTS(dim) (GPU_GENERIC_ROWS(dim) + 4)

/* Numbers of the kernels of tiles: a block's own, and the others of a tile; numbers between two
 * rows of a gradient of D elements that waits in shared memory to be rotated. */
enum { GPU_BACKWARD_OWN = 64, GPU_BACKWARD_TILE = 32 };
#define GPU_BACKWARD_STRIDE(D) ((D) + 8)

/* Numbers of the fused kernels: threads and keys of a block, sums of dq of a tile, rows of one;
 * most bytes of static shared memory. */
enum {
    GPU_FUSED_THREADS = 256,
    GPU_FUSED_KEYS = 128,
    GPU_FUSED_SUMS = 8192,
    GPU_FUSED_BESIDE = 22 << 10
};
#define GPU_FUSED_ROWS(D) (GPU_FUSED_SUMS / (D))

/* Tensors of a call that kernels of tiles move 16 bytes at a time: heads of whole vectors that lie
 * side by side. */
enum {
    GPU_BACKWARD_Q = 1,
    GPU_BACKWARD_DOUT = 2,
    GPU_BACKWARD_K = 4,
    GPU_BACKWARD_V = 8,
    GPU_BACKWARD_DQ = 16,
    GPU_BACKWARD_DK = 32,
    GPU_BACKWARD_DV = 64,
    GPU_BACKWARD_OUT = 128,
    GPU_BACKWARD_AGAIN = 256 /* elements of gradients that are finite stay as they are */
};

/* fp32 sums of dq: [key head, tile of rows, 8192], in the order of what threads have, NULL where
 * they are not wanted; how many blocks have added to each tile's; blocks that took what to do. */
typedef struct gpu_backward_dq_sums {
    float *dq;
    int32_t *turns; /* [key head, tile of rows] */
    int32_t *ticket;
    int64_t tiles, key_tiles; /* of a head */
} gpu_backward_dq_sums;

/*
 * Kernels of one dtype, each a kernel function's host symbol or NULL. All take
 * (rope_attention_problem, rope_attention_backward_call, int32_t *failed, float *delta): the
 * problem's rotation is the transpose, q.in and k.in are rotated, failed is as that of
 * gpu_attention_kernels, delta has a number of each [batch row, query, head].
 *   delta: fills it; int32_t of GPU_BACKWARD_, an int32_t * and how many of those become 0; grid x
 *     strides over its numbers
 *   sinks: grid x strides over heads of q
 *   generic[GPU_BACKWARD_ROWS], by room for a head: dq; grid x strides over tiles of all
 *     sequences' rows, y over key heads; dynamic shared memory by gpu_backward_generic_shared()
 *   generic[GPU_BACKWARD_KEYS]: dk and dv, as the former, over tiles of keys
 *   tiles: as generic, by head_dim; dynamic shared memory by gpu_backward_tiles_shared(); of keys
 *     with room for more than GPU_TILE_NARROW elements grid y is over key heads and dk or dv
 *   fused: dk, dv and sums of dq, gpu_backward_dq_sums behind what tiles take; grid x strides over
 *     tiles of keys and key heads; dynamic shared memory by gpu_backward_fused_shared()
 *   dq: as fused, from the sums to dq; grid x strides over tiles of rows, y over key heads; dynamic
 *     shared memory by gpu_backward_dq_shared()
 * generic and tiles take the rope_call of the keys' positions, too, and an int32_t of
 * GPU_BACKWARD_.
 */
typedef struct gpu_backward_kernels {
    const void *delta;
    const void *sinks;
    const void *generic[2][GPU_GENERIC_DIMS];
    const void *tiles[2][GPU_TILE_DIMS];
    const void *fused[GPU_TILE_DIMS];
    const void *dq[GPU_TILE_DIMS];
} gpu_backward_kernels;

/* Bytes of a kernel with room for heads of `dim` elements: elements of the block's own and of the
 * others, which are as many as are added at a time, and weights; or one gradient of its own. */
static inline int32_t gpu_backward_generic_shared(int32_t dim) {
    const int32_t tile = GPU_BACKWARD_HEAD * (GPU_GENERIC_ROWS(dim) + GPU_ATTENTION_THREADS) +
                         GPU_BACKWARD_WEIGHTS(dim) * GPU_ATTENTION_THREADS,
                  gradient = GPU_GENERIC_ROWS(dim) * dim;
    return 4 * (tile > gradient ? tile : gradient);
}

/* Bytes: both tensors of the block's own, and as many tiles of the others' as are under way; or one
 * gradient. */
static inline int32_t gpu_backward_tiles_shared(int32_t head_dim) {
    const int32_t tiles =
                      4 * head_dim * (GPU_BACKWARD_OWN + (1 + GPU_TILE_AHEAD) * GPU_BACKWARD_TILE),
                  gradient = 4 * GPU_BACKWARD_OWN * GPU_BACKWARD_STRIDE(head_dim);
    return tiles > gradient ? tiles : gradient;
}

/* Bytes: k and v, two tiles of q and dout, weights and gradients of a tile's scores. */
static inline int32_t gpu_backward_fused_shared(int32_t head_dim) {
    return 4 *
           (GPU_FUSED_KEYS * head_dim + GPU_FUSED_ROWS(head_dim) * (2 * head_dim + GPU_FUSED_KEYS));
}

static inline int32_t gpu_backward_dq_shared(int32_t head_dim) {
    return 4 * GPU_FUSED_ROWS(head_dim) * GPU_BACKWARD_STRIDE(head_dim);
}

extern const gpu_backward_kernels gpu_attention_backward_f32;
extern const gpu_backward_kernels gpu_attention_backward_f16;
extern const gpu_backward_kernels gpu_attention_backward_bf16;

#ifdef __cplusplus
}
#endif
#endif
