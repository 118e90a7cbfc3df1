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
    GPU_BACKWARD_AGAIN = 256 /* heads of gradients whose elements are all finite stay */
};

/*
 * Kernels of one dtype, each a kernel function's host symbol or NULL. All take
 * (rope_attention_problem, rope_attention_backward_call, int32_t *failed, float *delta): the
 * problem's rotation is the transpose, q.in and k.in are rotated, failed is as that of
 * gpu_attention_kernels, delta has a number of each [batch row, query, head].
 *   delta: fills it; int32_t of GPU_BACKWARD_; grid x strides over its numbers
 *   sinks: grid x strides over heads of q
 *   generic[GPU_BACKWARD_ROWS], by room for a head: dq; grid x strides over tiles of all
 *     sequences' rows, y over key heads; dynamic shared memory by gpu_backward_generic_shared()
 *   generic[GPU_BACKWARD_KEYS]: dk and dv, as the former, over tiles of keys
 *   tiles: as generic, by head_dim; dynamic shared memory by gpu_backward_tiles_shared(); of keys
 *     with room for more than GPU_TILE_NARROW elements grid y is over key heads and dk or dv
 * generic and tiles take the rope_call of the keys' positions, too, and an int32_t of
 * GPU_BACKWARD_.
 */
typedef struct gpu_backward_kernels {
    const void *delta;
    const void *sinks;
    const void *generic[2][GPU_GENERIC_DIMS];
    const void *tiles[2][GPU_TILE_DIMS];
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

extern const gpu_backward_kernels gpu_attention_backward_f32;
extern const gpu_backward_kernels gpu_attention_backward_f16;
extern const gpu_backward_kernels gpu_attention_backward_bf16;

#ifdef __cplusplus
}
#endif
#endif
