/* The kernels that decode in one launch, as host code sees them: what they share, and the portable
 * one's symbols and parameters. */
#ifndef ROPEKIT_GPU_DECODE_KERNELS_H
#define ROPEKIT_GPU_DECODE_KERNELS_H

#include "backends/gpu/attention/kernels.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A norm and a rotation of whole heads, ahead of the product or of the cache. */
enum {
    GPU_STEP_NORM = 1,
    GPU_STEP_NORM_TWICE = 2,    /* ROPE_NORM_ROUND_TWICE */
    GPU_STEP_NORM_ONE_PLUS = 4, /* ROPE_NORM_ONE_PLUS_WEIGHT */
    GPU_STEP_ROTATES = 8,
    GPU_STEP_INTERLEAVED = 16,
    GPU_STEP_NEGATIVE = 32, /* sines are negated */
    GPU_STEP_WIDE_IDS = 64, /* ids and offsets are int64_t */
    GPU_STEP_TABLE = 128,   /* cos and sin are the caller's */
    GPU_STEP_MODEL = 256    /* ROPE_ARITHMETIC_MODEL_DTYPE */
};
typedef struct gpu_decode_steps {
    const void *ids; /* over [row, token]; or NULL: indices */
    int64_t id_row, id_token, offset;
    const void *offsets; /* of sequences, or NULL */
    const void *weight;  /* of the norm, or NULL */
    float eps;
    int32_t flags;
} gpu_decode_steps;

/* The caller's cos and sin, over [row, position, pair] in elements. */
typedef struct gpu_decode_table {
    const uint16_t *cos, *sin;
    int64_t row, position, pair;
} gpu_decode_table;

/* Heads of the new tokens, in units of 16 bytes over [sequence, head]. */
typedef struct gpu_decode_heads {
    const char *data;
    uint32_t row, head;
} gpu_decode_heads;

/* A call of the portable kernel: sequences are batch rows of one token, which is their last key. */
typedef struct gpu_decode_portable_call {
    gpu_decode_call attend; /* its queries are not rotated, and it says nothing of positions */
    gpu_decode_heads k, v;
    gpu_decode_steps steps[2]; /* of q and of k */
    const uint64_t *turns;     /* of pairs, or NULL */
    float factor;              /* of cosines and sines */
    int64_t start;             /* index in the cache of each sequence's token, ... */
    const void *starts;        /* ... and what is added to it, or NULL */
    const void *slots;         /* of tokens, or NULL: by starts */
    int64_t slot_row;
    int32_t wide_slots;           /* int64, else int32 */
    int64_t held;                 /* tokens of a sequence's pages */
    unsigned long long *counters; /* of splits that are done, over [sequence, key head] */
    gpu_decode_table angles;      /* GPU_STEP_TABLE */
} gpu_decode_portable_call;

/* Kernels by elements of heads, 64 and 128, each a host symbol or NULL: gpu_decode_portable_call
 * alone. Grid x over key heads, y splits, z sequences; dynamic shared memory as gpu_splits_shared()
 * says. */
enum { GPU_DECODE_DIMS = 2 };
extern const void *const gpu_decode_portable_f16[GPU_DECODE_DIMS];
extern const void *const gpu_decode_portable_bf16[GPU_DECODE_DIMS];

#ifdef __cplusplus
}
#endif
#endif
