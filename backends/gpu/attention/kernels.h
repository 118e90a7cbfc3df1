/* The kernels of "attention" as host code sees them: symbols, parameters, sizes of blocks. */
#ifndef ROPEKIT_GPU_ATTENTION_KERNELS_H
#define ROPEKIT_GPU_ATTENTION_KERNELS_H

#include "backends/gpu/rope/kernels.h"

#include "backends/gpu/platform/tuning.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    GPU_ATTENTION_THREADS = 128, /* of a block of every kernel here */
    GPU_ATTENTION_TOKENS = 8,    /* of a block that rotates by elements */
    GPU_VECTOR_TOKENS = 16,      /* of a block that rotates by vectors */
    GPU_VECTOR_HEADS = 8         /* of its threads */
};

/* Kernels of tiles: a tile has GPU_TILE_KEYS keys and a block GPU_TILE_ROWS rows where heads have
 * room for at most GPU_TILE_NARROW elements; wider ones GPU_WIDE_KEYS, in splits GPU_TILE_KEYS, and
 * GPU_WIDE_ROWS. platform/tuning.h has GPU_TILE_ROWS, how many tiles of keys are copied ahead,
 * GPU_TILE_AHEAD, and the most elements for which there is a kernel, GPU_TILE_DIM. */
enum { GPU_TILE_KEYS = 64, GPU_TILE_NARROW = 128, GPU_WIDE_ROWS = 64, GPU_WIDE_KEYS = 32 };

/* Kernels of tiles are compiled for so many numbers of elements, gpu_tile_dim(). A head of q, k and
 * v has as many or fewer. */
enum { GPU_TILE_DIMS = 3 };

/* The generic kernel is compiled for so many numbers of elements, gpu_generic_dim(). Its blocks
 * have GPU_GENERIC_ROWS rows and read GPU_GENERIC_VALUES values of a tile at a time. */
enum { GPU_GENERIC_DIMS = 4 };
#define GPU_GENERIC_ROWS(dim) ((dim) > 256 ? 16 : 32)
#define GPU_GENERIC_VALUES(rows, dim) ((dim) > 512 ? 8 : ((rows) > 32 ? 2048 : 4096) / (dim))
/* Rows of a block of the forward. In fp32 prompts have as many as registers hold. Few queries have
 * 16, so that few rows are empty; so have short prompts, for blocks on all multiprocessors. */
#define GPU_PROMPT_ROWS(dtype, dim)                                                                \
    ((dtype) == ROPE_F32 && (dim) <= 128 ? 64 : GPU_GENERIC_ROWS(dim))
#define GPU_FEW_ROWS(dtype, dim) ((dtype) == ROPE_F32 ? 16 : GPU_GENERIC_ROWS(dim))
enum {
    GPU_GENERIC_ROWS_MOST = 32,
    GPU_GENERIC_DEPTH = 32,             /* elements of keys in shared memory at a time */
    GPU_GENERIC_STRIDE = GPU_TILE_KEYS, /* numbers between two of them */
    GPU_COLUMN_LANES = 16               /* lanes that share a row */
};

/* A launch as its kernel is told of it. Q, K and V: heads lie in vectors of 16 bytes. OUT: heads of
 * out lie in vectors of 4 bytes and fill the kernel's room. */
enum {
    GPU_TILE_Q = 1,
    GPU_TILE_K = 2,
    GPU_TILE_V = 4,
    GPU_TILE_OUT = 8,
    GPU_TILE_LEAVES_FEW = 16, /* sequences of few queries are left to the kernel of splits */
    GPU_TILE_ONCE = 32,       /* each block has one tile at most */
    GPU_TILE_SAME = 64,       /* values are the first elements of keys */
    GPU_TILE_K_STORED = 128,  /* keys of a cache are converted eight elements at a time */
    GPU_TILE_V_STORED = 256,  /* values of a cache are */
    GPU_TILE_BY_SPLITS = 512, /* blocks have splits, of kernels that have tiles in other launches */
    GPU_TILE_VECTORS = GPU_TILE_Q | GPU_TILE_K | GPU_TILE_V
};

/* The kernel of splits. */
enum {
    GPU_SPLIT_ROWS = 16,   /* of a block */
    GPU_SPLITS_MOST = 48,  /* that the most keys which a query sees are divided into */
    GPU_SPLIT_LEAST = 256, /* keys of a split; half as many up to GPU_SPLIT_SHORT seen keys */
    GPU_SPLIT_SHORT = 1024
};

/* The kernel of wide heads. A query has GPU_LATENT_TILES blocks of each key head. */
enum {
    GPU_LATENT_DIM = ROPE_MAX_ATTENTION_HEAD_DIM, /* most elements of a key */
    GPU_LATENT_VALUE_DIM = 512,                   /* most elements of a value */
    GPU_LATENT_ROWS = 32,                         /* of a block: heads of one query and key head */
    GPU_LATENT_QUERIES = 4 /* most queries of a sequence that is read in splits */
};
#define GPU_LATENT_TILES(group) (((group) + GPU_LATENT_ROWS - 1) / GPU_LATENT_ROWS)

/* Heads of a block that joins splits of one query. */
#define GPU_JOINED_HEADS(dim) (2 * GPU_ATTENTION_THREADS / (dim))

/* Partial results, [sequence, query, head, split]: v_head_dim elements, the largest logit and the
 * sum. */
typedef struct gpu_attention_parts {
    float *at;
    int64_t queries, splits; /* the most of a sequence */
    int32_t skips;           /* blocks are few: they look for sequences that are split */
    int32_t leaves_ones;     /* another launch has sequences of one query, by gpu_is_one() */
} gpu_attention_parts;

/* Keys or values as the kernel of one query reads them, in units of 16 bytes: where heads of page,
 * slot and head begin. Without a cache a page is a sequence. */
typedef struct gpu_decode_tensor {
    const char *data;
    uint32_t page, slot, head;
    int32_t paged; /* 0: a sequence is a page, a key its slot */
} gpu_decode_tensor;

enum {
    GPU_DECODE_WIDE = 1,       /* lengths and ids are int64 */
    GPU_DECODE_WIDE_TABLE = 2, /* block_table is */
    GPU_DECODE_INTERLEAVED = 4,
    GPU_DECODE_NEGATIVE = 8 /* sines are negated */
};

/*
 * A call of which sequences have one query, cut down to what most calls need: exact angles of one
 * axis and one list, heads in vectors of 16 bytes, no ring, no tree. Sequences are batch rows, or
 * packed: then others than those of one query are left out.
 */
typedef struct gpu_decode_call {
    gpu_decode_tensor k, v;
    const char *q; /* units of 16 bytes, over [row, head] */
    uint32_t q_row, q_head;
    int32_t heads, k_heads, group;
    int32_t dim, v_dim;  /* elements of a head */
    int32_t pairs, from; /* that rotate here, 0 none; the first element of a head that does */
    int32_t flags;       /* GPU_DECODE_ */
    int32_t capacity, page_size, pages; /* most keys of a sequence; tokens of a page; pages */
    int32_t window, chunk;              /* INT32_MAX: none */
    int32_t most;                       /* keys that a query sees at most */
    const void *boundaries; /* of packed sequences in rows, or NULL: a sequence is a row */
    int64_t rows;           /* that are there, where sequences are packed */
    const void *q_lengths;  /* 1 or 0 of each sequence, or NULL: 1 */
    const void *lengths;    /* of sequences, or NULL: capacity */
    const void *table;      /* or NULL: a sequence's page is its index */
    int64_t table_row, table_page;
    const void *ids; /* position of a row's query, or NULL: by its index */
    int64_t id_row, offset;
    const uint64_t *turns;
    float factor, scale, soft_cap;
    int32_t sink_dtype;
    const void *sinks;
    void *out; /* elements over [row, head, dim] */
    int64_t out_stride[3];
    float *lse; /* or NULL; over [row, head] */
    int64_t lse_stride[2];
    int32_t *flag; /* or NULL */
    gpu_attention_parts parts;
} gpu_decode_call;

/*
 * Kernels of one dtype, each a kernel function's host symbol or NULL. All read a call whose q.out
 * and k.out, where they are not NULL, hold what rotates already, and take (rope_attention_problem,
 * rope_attention_call, int32_t *failed): failed, or NULL, has an entry of each sequence, 1 where a
 * key of it has no position, -1 where it is left out. Grid x strides over tiles of sequences.
 *   check: grid x over sequences; fills failed
 *   rotate[0], [1]: queries and keys to their out; grid y strides over heads; dynamic shared memory
 *     holds GPU_ATTENTION_TOKENS heads in fp32
 *   rotate_vectors: as rotate, of heads that lie in vectors of 16 bytes and keep their pairing;
 *     dynamic shared memory holds GPU_ATTENTION_THREADS int64_t
 *   tiles: int32_t of GPU_TILE_; grid y strides over key heads, as gpu_tiles_shared() says
 *   prompt: as tiles, by gpu_prompt_shared(), of calls that prompt.h has
 *   splits: as tiles, and gpu_attention_parts, by gpu_splits_shared(), for sequences of at most
 *     GPU_SPLIT_ROWS rows; grid x strides over [sequence, split, key head]
 *   decode: gpu_decode_call alone; grid x over key heads, y splits, z sequences; dynamic shared
 *     memory as gpu_splits_shared() says
 *   decode_join: gpu_decode_call alone, of heads that fill its room; grid x over heads of q, y
 *     sequences
 *   wide_heads: int32_t of GPU_TILE_ and gpu_attention_parts; grid x strides over [tile, key
 *     head] or [split, query, rows]; dynamic shared memory as gpu_latent_shared() says
 *   join: problem, call and gpu_attention_parts: joins splits; grid x strides over sequences and
 *     their queries, y over heads
 */
typedef struct gpu_attention_kernels {
    const void *check;
    const void *rotate[2];
    const void *rotate_vectors[2];
    const void *join;
    const void *tiles[GPU_TILE_DIMS];
    const void *prompt[GPU_TILE_DIMS];
    const void *splits[GPU_TILE_DIMS];
    const void *decode[GPU_TILE_DIMS];
    const void *decode_join[GPU_TILE_DIMS];
    const void *wide_heads;
} gpu_attention_kernels;

/* The generic kernel of a dtype, for prompts and for splits: int32_t of GPU_TILE_ and
 * gpu_attention_parts behind what all take; grid x strides over [tile, key head], or over splits as
 * above; dynamic shared memory as gpu_generic_shared() says. */
typedef const void *gpu_generic_kernels[2][GPU_GENERIC_DIMS];

/* The room of the generic kernel's i-th instance. */
static inline int32_t gpu_generic_dim(int32_t i) {
    return i < 1 ? 64 : i < 2 ? 128 : i < 3 ? 256 : ROPE_MAX_ATTENTION_HEAD_DIM;
}

/* Bytes of the generic kernel: queries, weights, and elements of keys or values. */
static inline int32_t gpu_generic_shared(int32_t rows, int32_t dim) {
    const int32_t keys = GPU_GENERIC_DEPTH * GPU_GENERIC_STRIDE,
                  values = GPU_GENERIC_VALUES(rows, dim) * dim;
    return 4 * (rows * (dim + GPU_TILE_KEYS) + (keys > values ? keys : values));
}

/* Rows of a block of the i-th instance, of prompts or of splits. */
static inline int32_t gpu_generic_rows_of(int32_t dtype, int32_t i, int splits) {
    const int32_t dim = gpu_generic_dim(i);
    return splits ? GPU_FEW_ROWS(dtype, dim) : GPU_PROMPT_ROWS(dtype, dim);
}

/* The room of the i-th kernel of tiles, and rows of its block. */
static inline int32_t gpu_tile_dim(int32_t i) {
    return i < 1 ? 64 : i < 2 ? 128 : 256;
}

static inline int32_t gpu_tile_rows_of(int32_t i) {
    return gpu_tile_dim(i) > GPU_TILE_NARROW ? GPU_WIDE_ROWS : GPU_TILE_ROWS;
}

/* Bytes of the kernel of tiles: queries, tiles of keys and one of values. */
static inline int32_t gpu_tiles_shared(int32_t i) {
    const int32_t keys = gpu_tile_dim(i) > GPU_TILE_NARROW ? GPU_WIDE_KEYS : GPU_TILE_KEYS;
    return 2 * gpu_tile_dim(i) * (gpu_tile_rows_of(i) + (2 + GPU_TILE_AHEAD) * keys);
}

/* Bytes of the kernel of prompts: queries, two tiles of keys and two of values. */
static inline int32_t gpu_prompt_shared(int32_t i) {
    return 2 * gpu_tile_dim(i) * (GPU_TILE_ROWS + 4 * GPU_TILE_KEYS);
}

/* Bytes of the kernel of splits: queries, and as many tiles of values as of keys. */
static inline int32_t gpu_splits_shared(int32_t i) {
    const int32_t narrow = gpu_tile_dim(i) <= GPU_TILE_NARROW, stages = 1 + narrow * GPU_TILE_AHEAD;
    return 2 * gpu_tile_dim(i) * (GPU_SPLIT_ROWS + 2 * stages * GPU_TILE_KEYS);
}

/* Bytes of the kernel of wide heads: queries and one tile. */
static inline int32_t gpu_latent_shared(void) {
    return 2 * GPU_LATENT_DIM * (GPU_LATENT_ROWS + GPU_TILE_KEYS);
}

extern const gpu_generic_kernels gpu_attention_generic_f32;
extern const gpu_generic_kernels gpu_attention_generic_f16;
extern const gpu_generic_kernels gpu_attention_generic_bf16;
extern const gpu_attention_kernels gpu_attention_f32;
extern const gpu_attention_kernels gpu_attention_f16;
extern const gpu_attention_kernels gpu_attention_bf16;

#ifdef __cplusplus
}
#endif
#endif
