/* What host code must know of the kernels. */
#ifndef ROPEKIT_GPU_KERNELS_H
#define ROPEKIT_GPU_KERNELS_H

#include <ropekit/backend.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How the vector kernel deals heads to threads. */
enum {
    GPU_NARROW = 0,     /* 2 pairs of one head */
    GPU_WIDE = 1,       /* two 16-byte vectors of one head, with streaming hints */
    GPU_TWO_HEADS = 2,  /* two 16-byte vectors of each of two heads */
    GPU_FOUR_HEADS = 3, /* of each of four heads */
    GPU_GEOMETRIES = 4
};

/* Head sizes with a kernel of their own, for whole contiguous heads and plain positions. */
enum { GPU_ANY_WIDTH = 0, GPU_WIDTH_64 = 1, GPU_WIDTH_128 = 2, GPU_WIDTHS = 3 };

/* Most threads of a block that a kernel is compiled for. */
enum { GPU_MAX_THREADS = 256 };

/* What the vector kernel is given beside problem and call. */
typedef struct gpu_vector_layout {
    int32_t q_blocks; /* blocks along x for q, then come those for k */
    /* 16- or 4-byte vectors of each head of q and k outside the window, to be copied */
    int32_t before[2], after[2];
} gpu_vector_layout;

/*
 * Kernels of one dtype, each a kernel function's host symbol.
 *   generic (rope_problem, rope_call, int32_t staged): grid x strides over tokens and y over heads,
 *     block x strides over pairs; staged: block y is 1 and dynamic shared memory holds a window
 *   vector (rope_problem, rope_call, gpu_vector_layout): grid x over blocks of heads, y strides
 *     over blocks of tokens, block is (pairs / pairs a thread, heads, tokens)
 * A NULL vector kernel is replaced by that of GPU_ANY_WIDTH.
 */
typedef struct gpu_rotate_kernels {
    const void *generic;
    const void *vector[GPU_GEOMETRIES][GPU_WIDTHS][2]; /* last index: pairing is interleaved */
} gpu_rotate_kernels;

extern const gpu_rotate_kernels gpu_kernels_f32;
extern const gpu_rotate_kernels gpu_kernels_f16;
extern const gpu_rotate_kernels gpu_kernels_bf16;
extern const gpu_rotate_kernels gpu_kernels_f64;

/* Kernels of (target, source, bytes), each with a number of bytes a thread. */
typedef struct gpu_traffic_kernel {
    const void *aligned; /* target, source and bytes are multiples of 16 */
    const void *bytewise;
    int32_t bytes; /* a thread of the aligned kernel */
} gpu_traffic_kernel;

extern const gpu_traffic_kernel gpu_copy_vec16;
extern const gpu_traffic_kernel gpu_copy_vec16x4;
extern const gpu_traffic_kernel gpu_update_vec16;

#ifdef __cplusplus
}
#endif
#endif
