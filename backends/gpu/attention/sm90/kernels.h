/* The kernels for sm_90a as host code sees them: symbols, parameters, sizes of blocks. */
#ifndef ROPEKIT_GPU_ATTENTION_SM90_KERNELS_H
#define ROPEKIT_GPU_ATTENTION_SM90_KERNELS_H

#include "backends/gpu/attention/sm90.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One warp group of a block loads, each consumer multiplies 64 rows. */
enum { SM90_ROWS = GPU_SM90_ROWS, SM90_THREADS = 384 };

/* The kernel of latent attention. */
enum {
    SM90_LATENT_DIM = 576,
    SM90_LATENT_VALUE_DIM = 512,
    SM90_LATENT_ROWS = GPU_SM90_LATENT_ROWS,
    SM90_LATENT_KEYS = 64,   /* of a tile */
    SM90_LATENT_LOADER = 12, /* the warp that finds what a block has, and copies it */
    SM90_LATENT_THREADS = 512
};

/* Keys that a row sees before and behind its own, and the length of chunks; SM90_FAR: all, none. */
enum { SM90_FAR = 1 << 30 };
typedef struct sm90_mask {
    int32_t before, behind, chunk;
} sm90_mask;

sm90_mask sm90_mask_of(const rope_attention_problem *problem);

/* The power of 2 of heads of q that a tile has rows of: all that share a key head, where they
 * divide a consumer's rows. */
int32_t sm90_pack_of(int64_t shares);

/* Keys of a tile of a problem's kernel; tall: of the one of tall tiles. */
int32_t sm90_keys_of_tile(const rope_attention_problem *problem, int tall);

/* Keys of a table's page that one copy takes: the most that divide a page and a tile of keys. 0:
 * there is no table. */
int32_t sm90_page_of(const rope_attention_problem *problem, int tall);

/* How queries, whose pairs lie half a window apart, are rotated here: by angles that lie in memory,
 * [row, cosine or sine, pair]. */
typedef struct sm90_rotation {
    int32_t pairs;    /* of a head; 0: queries are rotated already */
    int32_t from;     /* the first element that rotates */
    int32_t row_step; /* rows of angles from a batch row to the next, 0 where they are the same */
    const float *angles;
    void *out;             /* where rotated queries of whole heads are written, too, or NULL */
    int64_t out_stride[3]; /* over [row, token, head] */
} sm90_rotation;

/* Positions and frequencies from which angles are computed: exact positions of one axis, and one
 * list of frequencies. */
typedef struct sm90_positions {
    int64_t count;         /* of angles, in fours */
    int32_t fours;         /* of a row */
    int32_t tokens;        /* rows of a batch row */
    int32_t negative;      /* sines are negated */
    int32_t wide;          /* ids are int64_t */
    int32_t depends;       /* on lengths: indices are those of the call's sequences */
    float factor;          /* of cosines and sines */
    const uint64_t *turns; /* of pairs */
    const void *ids;       /* over [row, token]; or NULL: tokens stand by their indices */
    int64_t id_row, id_token, offset;
    float *angles;
    uint32_t *tickets; /* all are set to 0, or NULL */
} sm90_positions;

/* Which sequences have tables with pages that the cache lacks. */
typedef struct sm90_pages {
    int32_t *failed; /* over sequences; or NULL: nobody looks */
    int32_t *none;   /* whether sequences of more than `few` rows, packed, are none; or NULL */
    int32_t few;     /* rows of sequences that are not looked at */
} sm90_pages;

enum {
    SM90_KEY_THREADS = 128,
    SM90_HEADS_AHEAD = 4 /* heads of keys that a thread rotates */
};

/* A norm by the root mean square of heads that rotate as a whole: of elements in vectors of 16
 * bytes, rounded ahead of the weight and behind it. */
typedef struct sm90_norm {
    const void *weight; /* NULL: there is none */
    float eps;
} sm90_norm;

/* Keys of all tokens; strides over [batch, token, head]. */
typedef struct sm90_keys_ahead {
    const void *in;
    void *out;
    int64_t in_stride[3], out_stride[3];
    int64_t count; /* of tokens */
    int32_t tokens, heads;
} sm90_keys_ahead;

/* What makes capped logits of base 2 of scores s: up to `end`, s times the sum of near[i] s^2i,
 * then most * (1 - 2 / (1 + 2^(rise * s))). */
typedef struct sm90_cap {
    float end, near[6], most, rise;
} sm90_cap;

/* Kernels of calls without chunks, sinks, lse and small pages, whose sequences all have as many
 * queries, take it in the place of sm90_cap: without the branches for these the compiler has a
 * row's end take less time. */
typedef struct sm90_simple {
    int32_t unused;
} sm90_simple;

/* Numbers in memory that all launches of a call share: tiles that were given out, of the tall ones
 * behind the others; whether there is none; of spans, those that have ended. */
enum {
    SM90_NONE_TICKET = 2,
    SM90_ARRIVED = 4,  /* the first, 2 of each tile */
    SM90_SPREAD = 256, /* most tiles whose spans are of several blocks */
    SM90_TICKETS = SM90_ARRIVED + 2 * SM90_SPREAD
};

/* The keys of a sequence whose tiles are few are taken in spans, so that it keeps all
 * multiprocessors at work where it is alone. Kernels take it in the place of sm90_cap. What they
 * have of a span's rows waits in memory. */
enum {
    SM90_SPANS = 16,    /* most of a tile */
    SM90_SPAN_TILES = 8 /* least tiles of keys of one: more serve batches, fewer a sequence alone */
};
typedef struct sm90_spans {
    float *sums;       /* of [sequence, span], of `blocks` spans each, and of blocks */
    uint32_t *arrived; /* over [tile, consumer], 0 ahead of the launch: spans that have ended; or
                          NULL: a block has all spans of a tile, one after the other */
    int32_t most;      /* spans of a tile */
    uint32_t per[SM90_SPANS + 1]; /* of so many spans, as a divisor's */
    int32_t blocks;               /* for which a sequence's spans are */
    int32_t heads;                /* of the whole call, divided by those side by side */
    int32_t own;                  /* where sums of blocks begin */
} sm90_spans;

/* A divisor from 1 to 2^31 - 1, and (2^32 - 1) / it, rounded down. */
typedef struct sm90_divisor {
    int32_t by;
    uint32_t per;
} sm90_divisor;

ROPE_FN sm90_divisor sm90_divisor_of(int64_t by) {
    const sm90_divisor d = {(int32_t)by, UINT32_MAX / (uint32_t)by};
    return d;
}

/* A call as blocks read it, apart from all that depends on lengths. Tiles are counted over `heads`
 * of rows, one key head's where rows are packed, in groups that run side by side, the longest tiles
 * of a group first. */
typedef struct sm90_schedule {
    int32_t tiles;       /* of all */
    int32_t each;        /* of a sequence, or of all that are packed */
    int32_t units;       /* heads, times sequences where they are not packed */
    sm90_divisor heads;  /* of q, divided by those side by side */
    sm90_divisor group;  /* units that run side by side */
    sm90_divisor last;   /* those of the last group */
    sm90_divisor chunk;  /* tiles of a group */
    sm90_divisor shares; /* heads of q that read a key head */
    int32_t pack;        /* the power of 2 that is so many heads' rows side by side */
    int32_t tall_from;   /* queries of sequences that have tall tiles, in a launch of their own */
    int32_t behind;      /* a launch of the call's other tiles is ahead */
    int32_t ahead;       /* a launch of the call is: all but what that finds is older than it */
    int32_t tokens, k_tokens; /* of all sequences; tokens -1: they differ, and the call is read */
    int32_t early;            /* blocks find a tile when the one before begins */
    int32_t page;             /* keys of a copy from a page of a table; 0: keys lie in order */
    sm90_divisor page_size;   /* keys of a page */
    sm90_mask mask;
    float unit;   /* what makes scores logits of base 2 */
    float lowest; /* no score is below, and this times `unit` is finite */
    int32_t has_sinks;
    int32_t simple;      /* there are no chunks, no sinks and no lse */
    int32_t splits;      /* sequences of few queries are left out */
    uint32_t *tickets;   /* 0 ahead of the launch; or NULL: tiles are dealt in turn */
    const int32_t *none; /* not 0: all sequences are left out; or NULL: it is not known */
    sm90_rotation rotation;
    float *lse; /* or NULL */
    int64_t lse_stride[3];
} sm90_schedule;

/* Kernels of heads of up to 64, to 128, to 192 with values of 128, and to 256 elements, of f16 and
 * of bf16, that take (CUtensorMap q, k, v, out, sm90_schedule, rope_attention_problem,
 * rope_attention_call, int32_t *failed); GPU_SM90_SHARED() bytes of dynamic shared memory.
 */
enum { SM90_64, SM90_128, SM90_192, SM90_256, SM90_HEADS };
extern const void *const gpu_attention_sm90_kernels[SM90_HEADS][2];

/* Those of tall tiles, of heads of up to 64. */
extern const void *const gpu_attention_sm90_tall_kernels[2];

/* Those of scores with a soft cap take (..., sm90_cap) behind that. */
extern const void *const gpu_attention_sm90_cap_kernels[SM90_HEADS][2];

/* Those of simple calls with heads of 128 take (..., sm90_simple). */
extern const void *const gpu_attention_sm90_simple_kernels[2];

/* Those of sequences in spans take (..., sm90_spans), of heads of up to 64 and to 128. */
extern const void *const gpu_attention_sm90_span_kernels[SM90_192][2];

/* Those of heads of 128 whose queries have a norm take (..., sm90_norm) behind that. */
extern const void *const gpu_attention_sm90_norm_kernels[2];

/* Of f16 and of bf16, of keys in pages and of gathered ones; the first takes (CUtensorMap q, k, int
 * keys of a copy, rope_attention_problem, rope_attention_call, int32_t *failed,
 * gpu_attention_parts); a block has an item of [sequence, split, key head, query, rows] and
 * GPU_SM90_LATENT_SHARED bytes of dynamic shared memory. The second joins splits:
 * (rope_attention_problem, rope_attention_call, gpu_attention_parts), in blocks over [sequence,
 * query] and heads of q. */
extern const void *const gpu_attention_sm90_latent_kernels[2][2][2];

/* Of f16 and of bf16; take (sm90_keys_ahead, sm90_positions, sm90_norm): a thread of
 * SM90_KEY_THREADS computes angles of 8 pairs of a token, and normalises and rotates these of
 * SM90_HEADS_AHEAD heads, in blocks over tokens and heads. Positions depend on no lengths. */
extern const void *const gpu_attention_sm90_keys_kernels[2];

/* Takes (sm90_positions, sm90_pages, rope_attention_problem, rope_attention_call): a thread of
 * GPU_ATTENTION_THREADS computes four angles, of which there may be none, and blocks behind theirs
 * look at pages, a sequence each in turn. */
extern const void *const gpu_attention_sm90_ahead_kernel;

#ifdef __cplusplus
}
#endif
#endif
