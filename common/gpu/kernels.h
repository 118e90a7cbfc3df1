/* What host code must know of the kernels. */
#ifndef ROPEKIT_GPU_KERNELS_H
#define ROPEKIT_GPU_KERNELS_H

#include <ropekit/backend.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How the vector kernel deals heads to threads. */
enum {
    GPU_NARROW = 0,    /* 2 pairs of one head */
    GPU_WIDE = 1,      /* two 16-byte vectors of one head, with streaming hints */
    GPU_TWO_HEADS = 2, /* two 16-byte vectors of each of two heads, not for GPU_WIDTH_64 */
    GPU_GEOMETRIES = 3
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
 * All that a kernel of fixed width is given. Small, because every multiprocessor misses each line
 * of the parameters once a launch, one after the other.
 */
typedef struct gpu_plain_call {
    const char *in[2];
    char *out[2];
    const void *list;           /* turns, or fp32 frequencies for ROPE_ANGLE_F32 */
    const void *ids;            /* of each token, or NULL */
    int64_t id_batch, id_token; /* strides of ids */
    int64_t offset;
    int64_t tokens, rows; /* of a batch row, of all */
    int32_t heads[2];
    int32_t q_blocks; /* as in gpu_vector_layout */
    float factor;
    uint8_t wide, f32_angles, negate; /* int64 ids; ROPE_ANGLE_F32; transpose or inverse */
} gpu_plain_call;

/*
 * Kernels of one dtype, each a kernel function's host symbol.
 *   generic (rope_problem, rope_call, int32_t staged): grid x strides over tokens and y over heads,
 *     block x strides over pairs; staged: block y is 1 and dynamic shared memory holds a window
 *   vector (rope_problem, rope_call, gpu_vector_layout), of fixed width (gpu_plain_call): grid x
 *     over blocks of heads, y strides over blocks of tokens, block is (pairs / pairs a thread,
 *     heads, tokens)
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
