/* The kernels of gradients for sm_90a as host code sees them: symbols, parameters, sizes. */
#ifndef ROPEKIT_GPU_ATTENTION_BACKWARD_SM90_KERNELS_H
#define ROPEKIT_GPU_ATTENTION_BACKWARD_SM90_KERNELS_H

#include "backends/gpu/attention/sm90/kernels.h"
#include "backends/gpu/attention_backward/sm90.h"
#include "common/math/portable.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Tensors move in boxes of 64 rows or keys: parts of 64 elements of a head, 64 times 128 bytes
 * each. A block owns two boxes and walks over others, SM90_STAGES of them at a time. It takes the
 * next tile when SM90_AHEAD boxes are left to copy. Boxes have room for heads of 128 elements. */
enum {
    SM90_BOX = 64,
    SM90_BOX_BYTES = SM90_BOX * 128 * 2,
    SM90_STAGES = 3,
    SM90_SLOTS = 4, /* those, or slots of wide heads */
    SM90_AHEAD = 2,
    SM90_BACKWARD_HEADER = 3072,
    SM90_BACKWARD_SHARED = SM90_BACKWARD_HEADER + 14 * SM90_BOX_BYTES,
    SM90_JOINT = 4,
    SM90_JOINT_SUMS = 128 * 64 /* numbers of a tile's sums */
};

/* A sequence: where its queries and keys begin and how many there are, the index of its first query
 * among its keys, what makes indices of keys those by which chunks count, where its rows of stats
 * begin: at a multiple of 4, as copies need; and the power of 2 that is the number of blocks which
 * share a tile of its keys, or SM90_JOINT: all its gradients are computed at once. */
typedef struct sm90_backward_sequence {
    int32_t q_row, q_first, q_count, k_row, k_first, k_count, index, chunk_index, stats, steps;
    int32_t sums; /* where those of dq begin, if all gradients are computed at once */
} sm90_backward_sequence;

/* That power, of a sequence of so many tiles of keys: 2 or 4 blocks share one while that makes no
 * more than 256 of a sequence's tiles, and leaves each 12 boxes of rows where as many queries are
 * causal; 8 share one where that leaves 8. Bits depend on it, so nothing of the batch counts. */
ROPE_FN int sm90_backward_steps(int64_t tiles, int64_t heads, int64_t shares) {
    int steps = 0;
    while (steps < 3 && heads * tiles <= 128 >> steps &&
           shares * tiles >= (steps < 2 ? 24 : 16) << steps)
        steps++;
    return steps;
}

/* Whether all gradients of a sequence are computed at once, where that is faster: each score is
 * made once, but what tiles of keys have for dq is added in memory. With longer heads no key may be
 * out of reach of rows behind it, with others so many rows see one. */
enum { SM90_JOINT_SPAN = 512 };
ROPE_FN int sm90_backward_joint(const sm90_mask *mask, int64_t keys, int64_t queries,
                                int64_t q_heads, int slab, int steps) {
    const int64_t span = slab < 128 ? keys : (int64_t)SM90_JOINT_SPAN;
    return steps == 0 && gpu_backward_may_join(queries, keys, q_heads, slab) &&
           mask->chunk >= span && (int64_t)mask->before + mask->behind >= span - 1;
}

/* A tile of those that are packed: of which sequence, and which one of it; below 0: there is none.
 */
typedef struct sm90_backward_place {
    int32_t sequence, tile;
} sm90_backward_place;

/* In which order tiles of rows or of keys are taken: as many of each unit, the longest ones first.
 * A unit is a head, or a head of a sequence where these are not packed. So many units run side by
 * side in each of `groups`, then the rest. */
typedef struct sm90_backward_order {
    int32_t each, units, side, groups;
    sm90_backward_place *places; /* of a head's tiles; NULL: sequences are not packed */
} sm90_backward_order;

/* Where a gradient goes, and how it is rotated back; data NULL: it is not wanted. */
typedef struct sm90_gradient {
    void *data;
    int64_t stride[4]; /* of [row, token, head, element] */
    int32_t chunks;    /* of 8 elements of a head */
    int32_t has_map;   /* else elements are written one by one */
    sm90_rotation rotation;
} sm90_gradient;

/* Which tile is next; and tiles whose gradients are not finite, which a second launch computes
 * again without what is not finite of rows or keys that are not seen. Counters are -1 ahead of the
 * first launch. */
typedef struct sm90_backward_turns {
    uint32_t *next;   /* of the launch */
    uint32_t *listed; /* tiles in the list */
    int32_t *list;    /* GPU_BACKWARD_SM90_TOLD of each tile */
    int32_t *again; /* by sequence: set to 0 where gradients are not finite the second time, too */
} sm90_backward_turns;

/* A call as blocks read it. Rows are [query, head] of 1 << pack heads that read one key head. */
typedef struct sm90_backward_schedule {
    int32_t wide;                      /* heads beyond 128: blocks share no tile */
    int32_t rows;                      /* of the batch */
    int32_t heads;                     /* of keys */
    int32_t shares;                    /* heads of q that read a key head */
    int32_t pack;                      /* the power of 2 that is so many heads' rows side by side */
    int32_t tokens;                    /* of q's row */
    sm90_backward_order order[2];      /* of rows, of keys */
    sm90_backward_sequence *sequences; /* of the call */
    int32_t stats_step;                /* numbers between two rows of stats */
    sm90_mask mask;
    float unit;  /* what makes scores, or tanh of capped ones, logits of base 2 */
    float scale; /* of scores */
    const float *lse;
    int64_t lse_stride[3];
    float *stats; /* [batch row, heads side by side, lse in base 2 or delta, row], negative */
    float *delta; /* [batch row, query, head] */
    sm90_gradient dq, dk, dv;
    sm90_backward_turns turns[2]; /* of rows, of keys */
    uint32_t *counters;           /* all that launches count by */
    float to_cap;                 /* what makes scores what tanh is taken of */
    sm90_gradient out, dout;      /* where they lie */
    float *sums;                  /* of dq, [key head, slab, thread's fours]; NULL: none at once */
    uint32_t *added; /* [key head, slab]: the tile of keys that was added last, or ~0u */
    int32_t slabs;   /* of a key head */
    int32_t slab;    /* its rows */
    int32_t mixed;   /* sequences, where only some may be computed at once; else 0 */
} sm90_backward_schedule;

/* Takes (rope_attention_problem, rope_attention_call, sm90_backward_schedule): fills what depends
 * on lengths, and begins counters. Grid x strides over sequences, blocks of SM90_PREPARE_THREADS.
 */
extern const void *const gpu_backward_sm90_prepare_kernel;
enum { SM90_PREPARE_THREADS = 128 };

/* A kernel of all tiles, and of those of the list, of finite numbers. They take (CUtensorMap, ...,
 * sm90_backward_schedule), with SM90_BACKWARD_SHARED bytes of dynamic shared memory and
 * SM90_THREADS threads. Rows: q, k, v, dout, out, dq; writes dq and stats. Keys: q, k, v, dout,
 * stats, dk, dv. */
typedef const void *sm90_backward_pair[2];

/* [capped scores][heads of up to 64 elements, of up to 128][f16, bf16] */
extern const sm90_backward_pair gpu_backward_sm90_rows_kernels[2][2][2];
extern const sm90_backward_pair gpu_backward_sm90_keys_kernels[2][2][2];

/* [heads of up to 64 elements, of up to 128][rows' numbers, all gradients, dq of its sums]. The
 * second takes (q, k, v, dout, stats, dk, dv, schedule) as above, others take the schedule and a
 * grid that strides over tiles of rows by blocks of SM90_JOINT_THREADS. */
enum { SM90_JOINT_THREADS = 256 };
extern const void *const gpu_backward_sm90_joint_kernels[2][3][2];

/* [dq, dk, dv][capped scores][heads of up to 192 elements with values of 128, of 256][f16, bf16] */
extern const sm90_backward_pair gpu_backward_sm90_wide_kernels[3][2][2][2];

#ifdef __cplusplus
}
#endif
#endif
