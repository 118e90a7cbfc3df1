/* The kernels of "rope" as host code sees them: symbols, parameters, sizes. */
#ifndef ROPEKIT_GPU_ROPE_KERNELS_H
#define ROPEKIT_GPU_ROPE_KERNELS_H

#include <ropekit/backend.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How a kernel deals heads to threads; gpu_shape of fragment.h has the numbers. */
enum {
    GPU_NARROW = 0, /* two pairs of each of two heads: small calls, and small alignment */
    GPU_WIDE = 1, /* four pairs of each of two heads (f16, bf16) or of one (f32); f64: two of one */
    GPU_DEEP = 2, /* vectors of 8 bytes of each of four heads: plain calls of medium size */
    GPU_SINGLE_HEAD = 3, /* vectors of 8 bytes of one head: plain calls of one head a token */
    GPU_GEOMETRIES = 4
};

/* Pairings of what is read and written. */
enum {
    GPU_HALF_SPLIT = 0,
    GPU_INTERLEAVED = 1,
    GPU_TO_HALF_SPLIT = 2,  /* reads interleaved */
    GPU_TO_INTERLEAVED = 3, /* reads half-split */
    GPU_PAIRINGS = 4
};

/* Most threads of a block that a kernel is compiled for. */
enum { GPU_PLAIN_THREADS = 256, GPU_VECTOR_THREADS = 384 };

/* Most heads of a thread. */
enum { GPU_HEADS_MOST = 4 };

/* Most blocks of a grid along y and along z. */
#ifndef GPU_GRID_YZ_MOST
#define GPU_GRID_YZ_MOST 65535
#endif

/* Most threads of a block along z, which CUDA bounds apart from their number. */
enum { GPU_BLOCK_Z_MOST = 64 };

/* Most tokens of a thread of the vector kernel, and most rows of its block. */
enum { GPU_TOKENS_MOST = 2, GPU_ROWS_MOST = 64 };

/*
 * Where heads lie: strides in bytes, batch rows one after the other. A thread's heads are a unit; a
 * block has blockDim.y units of the list of q's, padded to whole blocks where one may not hold both
 * tensors, and k's.
 */
typedef struct gpu_operands {
    const char *in[2]; /* element 0 of the window of the first head */
    char *out[2];
    int64_t in_token[2], in_head[2], out_token[2], out_head[2];
    int64_t tokens, rows; /* of a batch row, of all */
    int32_t heads[2];
    int32_t q_units;
    int32_t pairs;
} gpu_operands;

/* Parameters of a vector kernel beside problem and call. */
typedef struct gpu_vector_call {
    gpu_operands operands;
    int32_t tokens;  /* of a thread, at most GPU_TOKENS_MOST; 1 for GPU_NARROW */
    int32_t in_line; /* batch rows follow each other as tokens do ... */
    int64_t in_batch[2],
        out_batch[2];            /* ... else 1 token a thread, and the bytes that a row adds */
    int32_t copies[2];           /* q and k have something outside the window to copy: */
    int32_t before[2], after[2]; /* so many vectors of a head on either side */
} gpu_vector_call;

/* q or k of a plain call, strides in bytes. */
typedef struct gpu_operand {
    const char *in; /* element 0 of the window of the first head */
    char *out;
    int32_t in_token, in_head, out_token, out_head;
} gpu_operand;

/*
 * All that a plain kernel is given: two lines of 64 bytes behind the 16 that precede parameters,
 * because every multiprocessor misses each line once a launch, one after the other. Batch rows in
 * line; rows of which each begins anew lie along z of the grid, else z takes what y cannot.
 */
typedef struct gpu_plain_call {
    const uint64_t *turns;
    const void *ids; /* or NULL */
    int64_t offset;
    int32_t rows;      /* of all */
    int32_t slab;      /* rows of one z */
    int32_t restart;   /* of z's rows, so many count for no index of an id, nor for a position */
    float factor;      /* attention factor */
    uint16_t heads[2]; /* of q and k */
    uint16_t q_units;  /* as in gpu_operands, padded */
    uint16_t flags;    /* GPU_CALL_ */
    gpu_operand operand[2]; /* the first alone for GPU_SINGLE_HEAD */
} gpu_plain_call;

#if defined(__cplusplus)
static_assert(sizeof(gpu_plain_call) == 112, "16 bytes less than two lines");
#endif

/* Flags of a plain or window call. */
enum {
    GPU_CALL_WIDE_IDS = 1, /* int64, else int32 */
    GPU_CALL_NEGATIVE = 2, /* transpose and inverse of angles */
    GPU_CALL_EARLY = 4,    /* starts early, and lets the next one start */
    GPU_CALL_AT_ONCE = 8,  /* before it waits */
    GPU_CALL_MODEL_DTYPE = 16,
    GPU_CALL_TABLE_AHEAD = 32, /* a row of the tables is read before q and k */
    GPU_CALL_COPIES = 64,      /* something outside a window */
    GPU_CALL_TABLE_F32 = 128   /* tables are fp32, else of q's dtype */
};

/* Where a window kernel has cos and sin from: frequencies, or tables of one entry a pair. */
enum { GPU_TURNS = 0, GPU_TABLE = 1, GPU_ANGLES = 2 };

/* Parameters of a window kernel; strides in bytes, *_batch from one z of the grid to the next. */
typedef struct gpu_window_call {
    gpu_operand operand[2];
    const uint64_t *turns;
    const void *ids; /* or NULL */
    int64_t offset;
    int64_t in_batch[2], out_batch[2];
    int32_t rows, slab; /* of all; of one z */
    int32_t id_batch;   /* ids, or positions where there are none */
    int32_t heads[2], pairs;
    int32_t q_units; /* as in gpu_operands, padded */
    int32_t flags;   /* GPU_CALL_ */
    float factor;    /* attention factor */
    int32_t table_row;
    const char *cos, *sin;
    int64_t table_batch, table_rows;
    int32_t *position_flag;
    int32_t out_of_range;
    int32_t before[2], after[2]; /* vectors of a head to copy on either side of the window */
} gpu_window_call;

/* Plain kernels for whole blocks check nothing: every thread has a row and as many heads as it
 * takes, rows lie along y alone, and GPU_SINGLE_HEAD has no ids and does not start early. Of those
 * that check, one knows its 32 pairs. */
enum { GPU_CHECKED = 0, GPU_WHOLE = 1, GPU_CHECKED_32 = 2, GPU_BLOCK_KINDS = 3 };

/* Whether a plain kernel starts early: as the call's flag says, or never, or always. */
enum { GPU_START_BY_FLAG = 0, GPU_START_IN_ORDER = 1, GPU_START_EARLY = 2 };

/*
 * Kernels of one dtype, each a kernel function's host symbol or NULL.
 *   generic (rope_problem, rope_call, int32_t staged): grid x strides over tokens and y over heads,
 *     block x strides over pairs; staged: block y is 1 and dynamic shared memory holds a window
 *   vector (rope_problem, rope_call, gpu_vector_call), window (gpu_window_call), plain
 *     (gpu_plain_call): grid x over blocks of units, z and y over blocks of tokens, block is
 *     (lanes, units, tokens), a lane for the pairs of a thread; dynamic shared memory of vector
 *     holds a row of coefficients for each token of the block
 *
 * All may be launched to start early but those for whole blocks of single heads.
 */
typedef struct gpu_rope_kernels {
    const void *generic;
    const void *vector[GPU_GEOMETRIES][GPU_PAIRINGS];
    const void *window[GPU_GEOMETRIES][GPU_PAIRINGS][GPU_ANGLES];
    /* No change of pairing; [1] for launches that start early. */
    const void *plain[GPU_GEOMETRIES][2][GPU_BLOCK_KINDS][2];
} gpu_rope_kernels;

extern const gpu_rope_kernels gpu_rope_f32;
extern const gpu_rope_kernels gpu_rope_f16;
extern const gpu_rope_kernels gpu_rope_bf16;
extern const gpu_rope_kernels gpu_rope_f64;

#ifdef __cplusplus
}
#endif
#endif
