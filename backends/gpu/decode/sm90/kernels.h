/* The kernel that decodes in one launch, as host code sees it: symbols, parameters, memory. */
#ifndef ROPEKIT_GPU_DECODE_SM90_KERNELS_H
#define ROPEKIT_GPU_DECODE_SM90_KERNELS_H

#include "backends/gpu/attention/sm90/kernels.h"
#include "backends/gpu/decode/kernels.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A row is a query of a head. An item is a split of a sequence's keys for the rows of one key head,
 * or for a band of them where they are more than SM90_DECODE_ROWS. A block takes a series of 2^n
 * splits one after the other, and joins them: what it leaves of them is one part.
 * Each of a block's compute warps takes every so many chunks of 16 keys of an item, by copies of
 * its own. Helper warps prepare what compute warps read, sum what they give, and join splits of a
 * series; joiners count series, and join their parts.
 */
enum {
    SM90_DECODE_CHUNK = 16,    /* keys that a copy has */
    SM90_DECODE_HELPERS = 4,   /* warps */
    SM90_DECODE_ROWS = 16,     /* most rows of an item */
    SM90_DECODE_TOKENS = 8,    /* most new tokens of a sequence */
    SM90_DECODE_BANDS = 8,     /* most of a key head */
    SM90_DECODE_SPLITS = 64,   /* most splits of a sequence */
    SM90_DECODE_DIMS = 2,      /* kernels by elements of heads: 64, 128 */
    SM90_DECODE_INSTANCES = 4, /* of those, by rows: 4, 8, 16, bands of 16 */
    SM90_DECODE_CODES = 3      /* of those of caches of 8 bits: 8, 16, bands of 16 */
};

/* Types of codes that a kernel has: e5m2 beside the other two would slow those. */
enum { SM90_DECODE_E4M3_I8 = 1, SM90_DECODE_E5M2 };

/* Items whose queries, and whose sums, are in shared memory at a time. */
enum { SM90_DECODE_AHEAD = 2, SM90_DECODE_BEHIND = 1 };

/* Bytes of a chunk's keys, and of its values; codes: of 8 bits, in rows of 128 bytes. */
#define SM90_DECODE_CHUNK_BYTES(dim, codes)                                                        \
    ((codes) ? 128 * SM90_DECODE_CHUNK : 2 * SM90_DECODE_CHUNK * (dim))

/* Kernels of the i-th number of elements, and of rows: compute warps, and copies that each has
 * under way. */
#define SM90_DECODE_DIM_OF(i) (64 << (i))
#define SM90_DECODE_ROWS_OF(i) (4 << (i))
#define SM90_DECODE_WARPS_OF(rows, codes) ((rows) == 16 ? 6 : (rows) == 4 || (codes) ? 8 : 7)
#define SM90_DECODE_JOINERS_OF(rows, codes) ((codes) || (rows) == 16 ? 2 : 4)
#define SM90_DECODE_STAGES_OF(dim, codes) ((codes) ? 5 : 384 / (dim))
/* 2^n splits are the most of a series: n sums of each row wait in shared memory. */
#define SM90_DECODE_LEVELS_OF(rows, dim, codes) ((rows) == 16 && (dim) == 128 && !(codes) ? 1 : 4)
/* Most new tokens of a sequence. */
#define SM90_DECODE_TOKENS_OF(rows) ((rows) > 8 ? SM90_DECODE_TOKENS : 4)
#define SM90_DECODE_THREADS_OF(rows, codes)                                                        \
    (32 * (SM90_DECODE_WARPS_OF(rows, codes) + SM90_DECODE_HELPERS +                               \
           SM90_DECODE_JOINERS_OF(rows, codes)))

/* Rows of queries in shared memory are of so many bytes, those of sums of so many floats: in other
 * banks. */
#define SM90_DECODE_QUERY_BYTES(dim) (2 * (dim) + 16)
#define SM90_DECODE_SUM_FLOATS(dim) ((dim) + 4)

/* Bytes of shared memory ahead of parts that are described in block.h. */
#define SM90_DECODE_SLOTS_OF(rows, dim, codes)                                                     \
    (SM90_DECODE_WARPS_OF(rows, codes) * SM90_DECODE_STAGES_OF(dim, codes))
#define SM90_DECODE_RING_OF(rows, dim, codes)                                                      \
    (2 * SM90_DECODE_CHUNK_BYTES(dim, codes) * SM90_DECODE_SLOTS_OF(rows, dim, codes))
#define SM90_DECODE_SUMS_OF(rows, dim, codes)                                                      \
    (4 * SM90_DECODE_SUM_FLOATS(dim) * (rows)*SM90_DECODE_WARPS_OF(rows, codes) *                  \
     SM90_DECODE_BEHIND)
#define SM90_DECODE_WAITING_OF(rows, dim, codes)                                                   \
    (4 * SM90_DECODE_SUM_FLOATS(dim) * (rows)*SM90_DECODE_LEVELS_OF(rows, dim, codes))
#define SM90_DECODE_QUERIES_OF(rows, dim)                                                          \
    (SM90_DECODE_AHEAD * SM90_DECODE_QUERY_BYTES(dim) * ((rows) > 8 ? (rows) : 8))
#define SM90_DECODE_FRESH_OF(rows, dim) (SM90_DECODE_AHEAD * 4 * (dim)*SM90_DECODE_TOKENS_OF(rows))
#define SM90_DECODE_SCALES_OF(rows, dim, codes)                                                    \
    ((codes) ? 8 * SM90_DECODE_CHUNK * SM90_DECODE_SLOTS_OF(rows, dim, codes) : 0)
#define SM90_DECODE_SHARED_OF(rows, dim, codes)                                                    \
    (SM90_DECODE_RING_OF(rows, dim, codes) + SM90_DECODE_SUMS_OF(rows, dim, codes) +               \
     SM90_DECODE_WAITING_OF(rows, dim, codes) + SM90_DECODE_QUERIES_OF(rows, dim) +                \
     SM90_DECODE_FRESH_OF(rows, dim) + SM90_DECODE_SCALES_OF(rows, dim, codes) + 2048)

/* Flags of a call. */
enum {
    SM90_DECODE_WIDE_LENGTHS = 1, /* int64_t, else int32_t */
    SM90_DECODE_WIDE_TABLE = 2,
    SM90_DECODE_WIDE_STARTS = 4,
    SM90_DECODE_WIDE_SLOTS = 8,
    SM90_DECODE_CAUSAL = 16,
    SM90_DECODE_SCALED = 32,      /* codes have scales, ... */
    SM90_DECODE_MAKES_SCALES = 64 /* ... those of new tokens made of them */
};

/* Heads of tokens, over [row, token, head] in bytes. */
typedef struct sm90_decode_heads {
    char *data;
    int64_t row, token, head;
} sm90_decode_heads;

/* The cache of k or v, over [page, slot, head] in bytes, and its scales, in floats. */
typedef struct sm90_decode_cache {
    char *data;
    int64_t page, slot, head;
    float *scales; /* or NULL */
    int64_t scale_page, scale_slot, scale_head;
} sm90_decode_cache;

/* Where series leave what they give: of [sequence, band, key head] SM90_DECODE_HELPERS counters;
 * over [sequence, key head, series, row] the sums, and the largest logits with their sums of
 * weights. */
typedef struct sm90_decode_parts {
    unsigned long long *counters;
    float *tops;
    float *sums;
} sm90_decode_parts;

typedef struct sm90_decode_call {
    const void *lengths;    /* keys of sequences, or NULL: capacity */
    const void *boundaries; /* of packed sequences, which all lie in row 0, whose stride is 0; or
                               NULL: a sequence is a row of `tokens` */
    const void *q_lengths;  /* of rows, tokens that are there, or NULL: all */
    const void *table;      /* or NULL: a sequence's page is its index */
    int64_t table_row, table_page;
    int32_t sequences, k_heads, group;
    int32_t tokens, row_tokens;        /* the most of a sequence, and those of a row */
    int32_t band_heads;                /* key heads times the most bands of a sequence */
    int32_t part_tokens;               /* of which each sequence has room in parts; 0: of its own */
    int32_t pages, page_chunks;        /* of the cache; chunks of a page */
    int32_t capacity;                  /* most keys of a sequence */
    int32_t most_splits, least_chunks; /* of a sequence; of a split, unless it is the only one */
    float
        share; /* of a block in the chunks of the first 32 sequences; 0: series are of one split */
    /* 2^32 / page_chunks, k_heads, least_chunks and group, up; 0: 1 */
    uint32_t per_page, per_head, per_split, per_group;
    /* 2^32 / ring_chunks and span, up; 0: 1. Without a ring, or spans, 1 */
    uint32_t per_ring, per_span;
    int32_t ring_chunks, span; /* 0: none; a query sees keys whose index has its quotient by span */
    int32_t flags;             /* SM90_DECODE_ */
    int32_t store;             /* type of codes */
    int32_t held;              /* tokens of a sequence's pages */
    int32_t stay;              /* copies of a warp that stay in the L2 */
    int32_t window;            /* keys up to its own that a query sees; INT32_MAX / 2: all */
    int32_t ring;              /* last keys that are there; INT32_MAX / 2: all */
    int32_t tree_keys;         /* the last, of which a query sees those whose bit is set; 0: none */
    const uint32_t *tree_bits;
    int64_t tree_row, tree_token; /* words */
    int32_t sink_dtype;
    const void *sinks; /* of heads of q */
    /* What scores are multiplied by ahead of tanh, or 0; and what then makes them logits of base
     * 2. */
    float to_cap, unit;
    sm90_decode_heads q, k, v, out; /* k.data: or NULL, nothing is appended */
    sm90_decode_cache k_cache, v_cache;
    int64_t start;      /* index in the cache of each sequence's first token, ... */
    const void *starts; /* ... and what is added to it, or NULL */
    const void *slots;  /* of new tokens, the last keys of their sequences; or NULL: by starts */
    int64_t slot_row, slot_token;
    const uint64_t *turns;     /* of pairs, or NULL */
    float factor;              /* of cosines and sines */
    gpu_decode_steps steps[2]; /* of q and of k */
    float *lse;                /* or NULL */
    int64_t lse_stride[3];
    int32_t *position_flag; /* or NULL */
    sm90_decode_parts parts;
    gpu_decode_table angles; /* GPU_STEP_TABLE */
} sm90_decode_call;

/* Of f16 and of bf16, by elements of heads and rows: (sm90_decode_call), in blocks of
 * SM90_DECODE_THREADS_OF(rows, 0), of which any number takes a call; and those of codes. */
extern const void *const gpu_decode_sm90_kernels[2][SM90_DECODE_DIMS][SM90_DECODE_INSTANCES];
extern const void *const gpu_decode_sm90_codes[2][SM90_DECODE_DIMS][SM90_DECODE_CODES];
extern const void *const gpu_decode_sm90_e5m2[2][SM90_DECODE_DIMS][SM90_DECODE_CODES];

/* The kernel of latents: bytes of a cached row, of the window that rotates, and of a block's shared
 * memory, which has rows of new tokens behind what attention has. */
enum {
    SM90_LATENT_ROW = 2 * SM90_LATENT_DIM,
    SM90_LATENT_WINDOW = SM90_LATENT_DIM - SM90_LATENT_VALUE_DIM,
    SM90_DECODE_LATENT_SPLITS = 16, /* most that it joins */
    SM90_DECODE_LATENT_SHARED = GPU_SM90_LATENT_SHARED + GPU_LATENT_QUERIES * SM90_LATENT_ROW
};

/* Of f16 and of bf16: (CUtensorMap q, k, int keys of a copy, rope_attention_problem,
 * rope_attention_call, gpu_attention_parts, rope_append_problem, rope_append_call, uint64_t
 * *counters, int joins), in blocks as attention by `latent`. Where the launch joins, counters are
 * over [sequence, key head, query, rows]; else the join of `latent` follows. */
extern const void *const gpu_decode_latent_kernels[2];

#ifdef __cplusplus
}
#endif
#endif
