/* The kernels of "append" as host code sees them: symbols, parameters, sizes. */
#ifndef ROPEKIT_GPU_APPEND_KERNELS_H
#define ROPEKIT_GPU_APPEND_KERNELS_H

#include "backends/gpu/rope/kernels.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Threads of a block of the generic kernel, and nodes of a norm that one pass over its shared
 * memory sums: a power of two. */
enum { GPU_APPEND_GENERIC_THREADS = 128, GPU_APPEND_SEGMENT = 1024 };

/* Numbers of the vector kernel: elements of a vector; most tokens of a block, and most heads of a
 * thread; nodes, one of each vector, that a norm sums in one go, and most such sums. */
enum { GPU_APPEND_V = 8, GPU_APPEND_TOKENS = 16, GPU_APPEND_HEADS = 2 };
enum { GPU_APPEND_NODES = 16, GPU_APPEND_SUMS = 4 };

/* Most tokens of a block of the kernel of rerotate.h. */
enum { GPU_APPEND_REROTATE_TOKENS = 64 };

/*
 * q, k or v of a call of the vector kernel, strides in bytes: in three lines of 64 bytes, because
 * every multiprocessor misses each line once a launch, one after the other. A head has `lanes`
 * threads, of which each moves two vectors: window_lanes of them two of the window, the others two
 * of the rest of the head, a vector of either half.
 */
typedef struct gpu_append_tensor {
    const char *in;             /* element 0; NULL: what store holds */
    char *store;                /* of q its out, of k and v the cache: in store_dtype, or NULL */
    char *out;                  /* of k and v in dtype, or NULL */
    int32_t heads, head_blocks; /* of all; blocks that share tokens: */
    uint16_t block_heads, block_tokens; /* tokens of a block, and heads of each, for as many ... */
    uint16_t thread_heads, units;       /* ... of a thread; heads a block has threads for */
    uint16_t lanes, window_lanes;
    uint32_t per_lane, per_head; /* 2^20 / lanes and / block_heads, rounded up */
    uint16_t window, width;      /* elements before the window, and of it */
    uint16_t rest, rest_lanes;   /* elements outside the window */
    int32_t in_token, in_head, out_token, out_head;
    int64_t store_page; /* of q from a batch row to the next, beyond store_slot ... */
    int32_t store_slot; /* ... for each of its tokens */
    int32_t store_head, store_block;
    uint8_t block_shift; /* log2 of the elements of a block of store */
    uint8_t sums;        /* of a norm: vectors, GPU_APPEND_NODES at a time */
    uint8_t shuffles;    /* threads of a head sum its nodes among themselves */
    uint8_t packed; /* RMS, rounded to dtype ahead of weights of dtype: two elements a product */
    rope_append_steps steps;
    const char *weight;
    float *scale;
    int32_t weight_head;            /* from a head to the next */
    int32_t scale_slot, scale_head; /* elements */
    int64_t scale_page;
    int64_t in_batch, out_batch; /* from a batch row to the next, beyond what its tokens add */
} gpu_append_tensor;

/* Flags of a call of the vector kernel. */
enum {
    GPU_APPEND_ROWS = 1,  /* several batch rows of several tokens */
    GPU_APPEND_EXACT = 2, /* exact angles of one rule, axis and sequence a batch row; no XPos */
    GPU_APPEND_SLOTS = 4, /* places are slots, one after the other, of every token */
    GPU_APPEND_MODEL_DTYPE = 8,
    GPU_APPEND_NEGATIVE = 16, /* transpose and inverse of angles */
    GPU_APPEND_WIDE_IDS = 32, /* int64, else int32 */
    GPU_APPEND_WIDE_SLOTS = 64,
    GPU_APPEND_PLACES = 128, /* q asks for places, since neither k nor v does */
    GPU_APPEND_ONE_ID = 256  /* of all tokens */
};

/* Parameters of a vector kernel; problem and call behind it are read where its flags say that more
 * is asked. Shared memory, in floats: a row of cos and sin for each token from 0 on, then nodes,
 * then largest magnitudes. */
typedef struct gpu_append_vectors {
    int32_t first_block[2]; /* of k and of v */
    int32_t flags;          /* GPU_APPEND_ */
    int32_t rows, tokens;   /* of all batch rows, of one */
    int32_t pairs;
    const uint64_t *turns;
    const void *ids; /* or NULL */
    int64_t offset;
    const void *slots;
    int64_t page_size, pages;
    float factor;      /* attention factor */
    uint32_t per_pair; /* 2^22 / pairs, rounded up */
    int32_t nodes, largest;
    uint32_t others; /* blocks of k and v among all, times 2^31, rounded up */
    gpu_append_tensor tensor[ROPE_APPEND_TENSORS];
} gpu_append_vectors;

/* From the nodes of a head to the next one's: apart in the banks of shared memory. */
#define GPU_APPEND_NODE_STRIDE(sums) (GPU_APPEND_NODES * (sums) + 8)

/* Flags of a plain call, beside GPU_CALL_, and of a tensor's steps. */
enum { GPU_APPEND_PLAIN_WIDE_SLOTS = 256 /* int64, else int32 */ };
enum {
    GPU_APPEND_PLAIN_ONCE = 1,    /* ROPE_NORM_ROUND_ONCE, else _TWICE */
    GPU_APPEND_PLAIN_ONE_PLUS = 2 /* ROPE_NORM_ONE_PLUS_WEIGHT, else _WEIGHT */
};

/* q, k or v of a plain call, strides in bytes: a line of 64. */
typedef struct gpu_append_plain_operand {
    const char *in;                                    /* element 0 */
    char *store;                                       /* of q its out, of k and v the cache */
    int32_t in_token, in_head, store_slot, store_head; /* q's tokens are its slots */
    int64_t store_page;
    const float *scale; /* or NULL */
    uint32_t per_page;  /* 2^page_shift / page_size, rounded up */
    int32_t page_size;
    int32_t slots; /* of all pages */
    uint8_t page_shift, store_dtype;
    uint16_t steps; /* GPU_APPEND_PLAIN_ */
} gpu_append_plain_operand;

/*
 * All that a plain kernel is given, in order of use: a line for all, which 16 bytes precede, a line
 * for each tensor, of which a block reads one, and what norms and failures ask for. Every
 * multiprocessor misses each line once a launch, one after the other.
 */
typedef struct gpu_append_plain_call {
    const uint64_t *turns;
    const void *ids;   /* or NULL */
    const void *slots; /* or NULL */
    int64_t offset;
    int32_t rows;           /* of all batch rows */
    float factor;           /* attention factor */
    uint16_t first_unit[2]; /* of k and of v; a unit is the heads of a thread */
    uint16_t flags;         /* GPU_CALL_ and GPU_APPEND_PLAIN_ */
    gpu_append_plain_operand operand[ROPE_APPEND_TENSORS];
    const char *weight[2]; /* of q and k, for all heads */
    float eps[2];
    float share; /* 1 / head_dim */
    int32_t *position_flag;
} gpu_append_plain_call;

/* Parameters of a kernel of mla.h: q from its window on, k whole, at bytes of its head. */
typedef struct gpu_append_mla_call {
    gpu_append_plain_call plain;
    uint16_t latent, window;
    int32_t vectors; /* of the latent a thread, 1 or 2: a 32nd of its elements, 8 each */
} gpu_append_mla_call;

#if defined(__cplusplus)
static_assert(offsetof(gpu_append_plain_call, operand) == 48, "16 bytes less than a line");
static_assert(sizeof(gpu_append_plain_operand) == 64, "a line");
#endif

/*
 * Kernels of one dtype, each a kernel function's host symbol or NULL.
 *   plain (gpu_append_plain_call), of a geometry, of pairings that do not change, with a norm and
 *     without, [1] for launches that start early: grid x over blocks of units of one tensor, y over
 *     blocks of rows; block is (lanes, units, rows). Rows fill the blocks of GPU_NARROW
 *   generic (rope_append_problem, rope_append_call): grid x strides over tokens and y over heads,
 * of which y is 1 with ROPE_NORM_TOKEN; block x strides over elements; dynamic shared memory holds
 *     two heads in fp32 and GPU_APPEND_SEGMENT nodes
 *   vector (rope_append_problem, rope_append_call, gpu_append_vectors), of a GPU_ pairing: grid x
 * over blocks of tokens and heads of q, then k's, then v's
 *   rerotate (the same), of pairings that do not change, [1] for stores of 8 bits: grid x over
 *     blocks of tokens, y over thread_heads of k; block is (lanes, tokens); dynamic shared memory
 *     holds rows
 *   mla (gpu_append_mla_call), of GPU_NARROW or GPU_WIDE and of a pairing: grid x over a block of
 *     k and blocks of units of q, y over blocks of rows; block is (lanes, units, rows), lanes
 *     divide 32, and a row has 32 threads or more
 *
 * All may be launched to start early.
 */
typedef struct gpu_append_kernels {
    const void *generic;
    const void *vector[GPU_PAIRINGS];
    const void *plain[GPU_GEOMETRIES][2][2][2];
    const void *rerotate[2][2];
    const void *mla[2][GPU_PAIRINGS];
} gpu_append_kernels;

extern const gpu_append_kernels gpu_append_f32;
extern const gpu_append_kernels gpu_append_f16;
extern const gpu_append_kernels gpu_append_bf16;

#ifdef __cplusplus
}
#endif

#endif
