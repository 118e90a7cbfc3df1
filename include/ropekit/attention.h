/**
 * @file attention.h
 * @brief Attention from unrotated queries and keys: the rotation is inside.
 *
 * For each query token i and head h of a sequence,
 *
 *     s[j] = cap(scale * <rotated q[i], rotated k[j]>)    for each key j that the mask lets it see
 *
 *     lse = log(exp(sink) + sum of exp(s[j]))
 *
 *     out[i] = sum of exp(s[j] - lse) * v[j]
 *
 * where cap(x) is soft_cap * tanh(x / soft_cap), or x, and without a sink its term is 0. Rotated
 * elements are those that rope_apply writes, so a call gives the bits of the same kernel without
 * rotation on rope_apply's results. Queries and keys may have norms ahead of their rotation: then
 * these are the elements that rope_append writes. A query that sees no key has out 0 and lse
 * -infinity (log of its sink with one). Head h reads the keys of head h * k.heads / q.heads.
 *
 * The same call has the same bits. Between kernels results differ, within the bound of
 * docs/numerics.md. docs/attention.md shows how to call, draws masks, and says what more each
 * kernel promises; docs/append.md draws the layouts of caches. Conventions are those of rope.h and
 * append.h.
 */
#ifndef ROPEKIT_ATTENTION_H
#define ROPEKIT_ATTENTION_H

#include <ropekit/append.h>

#ifdef __cplusplus
extern "C" {
#endif

/** @name Limits
 * @{ */
#define ROPE_MAX_ATTENTION_HEAD_DIM 576 /**< Largest head_dim of q, k and v here. */
/** @} */

/** What a call rotates. */
enum {
    ROPE_ATTENTION_ROTATE_QK = 1,  /**< Queries and keys. Default. */
    ROPE_ATTENTION_ROTATE_Q = 2,   /**< Queries; keys were rotated when they were cached. */
    ROPE_ATTENTION_ROTATE_NONE = 3 /**< Nothing: what only a rotation would read stays 0. */
};

/** Which keys a query sees. With n keys and m queries in a sequence, query i has index n - m + i
 * among the keys. A window and chunks narrow what the mask leaves, by these indices.
 *
 * In a tree whose queries have position_ids, a window and chunks count by ids, since siblings have
 * one position. The tree begins at index f = n - tree_keys, at least 0. In it a query or a key of
 * id p counts as index p, but as f where p is less and as its own index where p is more. Keys ahead
 * of f count as their own index. Ids are those of axis 0, without offsets. A key's id is in
 * k_position_ids. Without these it is its query's, and a key that has no query in the call counts
 * as its own index. */
enum {
    ROPE_MASK_CAUSAL = 1, /**< Those up to its own index. Default. */
    ROPE_MASK_FULL = 2,   /**< All. */
    ROPE_MASK_TREE = 3    /**< All but the last tree_keys; of those, the ones whose bit is set.
                               A window has no end to the right. */
};

/** A cached tensor. All 0: of dtype. */
typedef struct rope_attention_store {
    int32_t dtype;     /**< As rope_append_part.store_dtype. An element x of 8 bits stands for
                            x * scale, rounded to rope.dtype like those of other types. */
    int32_t scale;     /**< As rope_append_part.scale; TOKEN_HEAD_MAX reads as TOKEN_HEAD does. */
    int32_t dim_block; /**< As rope_append_desc.k_dim_block. */
} rope_attention_store;

/** A kind of layer. Set struct_size and zero the rest (ROPE_ATTENTION_DESC_INIT), then fill what
 * matters. */
typedef struct rope_attention_desc {
    size_t struct_size; /**< sizeof(rope_attention_desc). */
    rope_desc rope;     /**< Its struct_size, dtype (not ROPE_F64), head_dim, of q and k alike; how
                             they rotate; choice of backend and kernel. No shard. */
    int32_t rotation;   /**< ROPE_ATTENTION_ROTATE_. */
    int32_t v_head_dim; /**< 0: head_dim. */
    int32_t mask;       /**< ROPE_MASK_. */
    int32_t sink_dtype; /**< ROPE_F32 or dtype: each head of q has a sink. 0: none. */
    double scale;       /**< 2^-60..2^60. 0: 1 / sqrt(head_dim). */
    double soft_cap;    /**< 2^-60..2^60. 0: none. */
    int64_t window;     /**< Keys up to its own that a query sees, as Transformers'
                             sliding_window. 0: all. */
    int64_t window_right; /**< Keys after its own, with ROPE_MASK_FULL. 0: all. */
    int64_t chunk;        /**< A query sees keys whose index has the same quotient by this
                               (Llama 4). 0: all. */

    /* the cache of k and v */
    int32_t cache;          /**< ROPE_CACHE_TABLE or ROPE_CACHE_SEQUENCE. 0: k.in and v.in. */
    int32_t table_dtype;    /**< ROPE_I32 or ROPE_I64 of block_table. 0: as position_dtype. */
    int64_t page_size;      /**< Tokens of a page, > 0 with a cache. */
    int64_t ring;           /**< > 0: a sequence has its last `ring` keys, that of index n at n
                                 modulo ring. With SEQUENCE up to page_size. */
    rope_attention_store k; /**< Of the cache. */
    rope_attention_store v; /**< Of the cache. */

    const char *tuning; /**< A file of `ropekit tune`, by whose measurements calls choose among
                             kernels where rope.kernel is NULL. NULL: that of ROPE_TUNING, else what
                             the library knows of the device. "", or a ROPE_TUNING of none: calls
                             take the first kernel that accepts. */

    int32_t nondeterministic; /**< 1: the backward may take a provider's kernel that sums in no
                                   fixed order, so that the same call may have other bits. 0:
                                   none. */

    rope_norm q_norm; /**< Of queries, ahead of their rotation, as rope_append_desc.q.norm. */
    rope_norm k_norm; /**< Of keys; none with a cache, and none with ROPE_ATTENTION_ROTATE_Q: what
                           was rotated or cached had its norm before. */
} rope_attention_desc;

/** Initialiser of a rope_attention_desc: its sizes, and defaults for the rest. */
#if defined(__cplusplus)
#define ROPE_ATTENTION_DESC_INIT rope_attention_desc_init()
static inline rope_attention_desc rope_attention_desc_init() {
    rope_attention_desc made = rope_attention_desc();
    made.struct_size = sizeof made;
    made.rope.struct_size = sizeof made.rope;
    return made;
}
#else
#define ROPE_ATTENTION_DESC_INIT                                                                   \
    { .struct_size = sizeof(rope_attention_desc), .rope = ROPE_DESC_INIT }
#endif

/** What is written. */
typedef struct rope_attention_out {
    void *data;        /**< Element 0, of dtype. */
    int64_t stride[4]; /**< Elements over [batch, token, head, dim]. All 0: contiguous. */
} rope_attention_out;

/**
 * One call. A sequence is a batch row, or a part of cu_seqlens. Its queries are the tokens there,
 * or the first q_lengths of them. Its keys are those of its row or of its part of k_cu_seqlens, or
 * the first k_lengths of them. The position of a query or of a key is its index among the keys, or
 * its id, plus rope.position_offset and sequence_offsets. A packed sequence may begin before the
 * first token and end past the last, as in rope_args. Its tokens of the call have the indices that
 * they have in the whole, and keys that are not there are seen by none.
 *
 * ROPE_ERROR_POSITION_RANGE are: lengths below 0, or beyond the row, the boundaries or the pages of
 * the sequence; boundaries that fall or lie 2^63 or more apart; pages outside the cache. An
 * asynchronous backend leaves the sequence out and sets rope.position_flag. Where boundaries fall,
 * other sequences of that call may be wrong. Queries outside every sequence and those beyond
 * q_lengths are left out.
 */
typedef struct rope_attention_args {
    size_t struct_size;     /**< sizeof(rope_attention_args). */
    rope_args rope;         /**< Its struct_size; batch and tokens of the queries; q.in; k.in unless
                                 there is a cache, of k.heads either way; positions of the queries,
                                 tables, flag and stream. q.out and k.out: NULL, or what receives
                                 them rotated, behind their norms. */
    rope_tensor v;          /**< in: values, NULL with a cache; out NULL; as many heads as k. */
    rope_attention_out out; /**< [batch, tokens, q.heads, v_head_dim]. */
    float *lse;             /**< [batch, token, head], natural logarithm; or NULL. */
    int64_t lse_stride[3];  /**< Elements over [batch, token, head]. All 0: contiguous. */
    int64_t k_tokens;       /**< Keys of a batch row of k.in and v. 0: tokens. With a cache the
                                 most keys of a sequence; 0: those of its pages. */
    const void *q_lengths;  /**< Queries of each sequence, of position_dtype. NULL: all. */
    const void *k_lengths;  /**< Keys of each sequence, of position_dtype. NULL: all. Required with
                                 a cache. */
    const void *k_cu_seqlens;   /**< Boundaries of the sequences' keys in k.in and v, whose batch is
                                     then 1. Required with rope.cu_seqlens and without a cache. */
    const void *k_position_ids; /**< As rope.position_ids, of the keys; required with them where
                                     keys rotate. Else NULL, but where they narrow a tree. */
    int64_t k_position_stride[3]; /**< k_position_ids: elements over [axis, batch, key]. All 0:
                                       contiguous. */
    const void *sinks;            /**< One a head of q, of sink_dtype. -infinity: none; +infinity
                                       and NaN: out and lse of the head are NaN. */
    const void *tree_bits;        /**< ROPE_MASK_TREE: 32-bit words of each query; key j of the last
                                       tree_keys is bit j % 32 of word j / 32. */
    int64_t tree_stride[2];       /**< tree_bits: words over [batch, token]. All 0: contiguous. */
    int64_t tree_keys;            /**< ROPE_MASK_TREE: > 0; a sequence with fewer keys has the last
                                       of these bits. */
    rope_cache k_cache;           /**< As in rope_append_args; only read. */
    rope_cache v_cache;           /**< As in rope_append_args; may share elements with k_cache. */
    int64_t pages;                /**< As in rope_append_args. */
    const void *block_table;      /**< As in rope_append_args. */
    int64_t table_stride[2];      /**< As in rope_append_args. */
    int64_t table_pages;          /**< As in rope_append_args. */
    void *workspace; /**< Device memory, 256-byte aligned, one call's at a time; or NULL where
                          rope_attention_workspace says 0, as it never does on the CPU. */
    size_t workspace_bytes; /**< Of workspace: as many as rope_attention_workspace says, or more. */
    rope_norm_weight q_weight; /**< Of desc.q_norm. */
    rope_norm_weight k_weight; /**< Of desc.k_norm. */
} rope_attention_args;

/** Initialiser of a rope_attention_args: its sizes, and defaults for the rest. */
#if defined(__cplusplus)
#define ROPE_ATTENTION_ARGS_INIT rope_attention_args_init()
static inline rope_attention_args rope_attention_args_init() {
    rope_attention_args made = rope_attention_args();
    made.struct_size = sizeof made;
    made.rope.struct_size = sizeof made.rope;
    return made;
}
#else
#define ROPE_ATTENTION_ARGS_INIT                                                                   \
    { .struct_size = sizeof(rope_attention_args), .rope = ROPE_ARGS_INIT }
#endif

/** The largest call that a workspace serves. */
typedef struct rope_attention_bounds {
    size_t struct_size; /**< sizeof(rope_attention_bounds). */
    int64_t batch;      /**< Batch rows; 1 with cu_seqlens. */
    int64_t tokens;     /**< Queries of a row. */
    int64_t k_tokens;   /**< Keys of a row, with a cache the most of a sequence. 0: tokens. */
    int64_t sequences;  /**< Of cu_seqlens. 0: none. */
    int64_t q_heads;    /**< Of q. */
    int64_t k_heads;    /**< Of k and v. */
} rope_attention_bounds;

/**
 * Checks a descriptor, chooses a backend and binds a kernel, as rope_plan_create does.
 * @param desc  copied, with everything it points to
 * @param plan  receives the plan; untouched on error
 * @return what rope_plan_create returns
 */
ROPE_API rope_status rope_attention_plan_create(const rope_attention_desc *desc, rope_plan **plan);

/**
 * Bytes of workspace that every call within bounds needs: normalised keys and queries, rotated ones
 * that no k.out or q.out receives, partial results, and on the CPU memory of its threads, as many
 * as the calling thread may have. A call uses no more threads than its workspace has room for.
 * @param plan    of rope_attention_plan_create
 * @param bounds  the largest sizes
 * @param bytes   receives the bytes; untouched on error
 * @return ROPE_OK, INVALID_VALUE, NULL_POINTER, OVERFLOW, OUT_OF_MEMORY or ABI
 */
ROPE_API rope_status rope_attention_workspace(const rope_plan *plan,
                                              const rope_attention_bounds *bounds, size_t *bytes);

/**
 * Normalises, rotates and attends; without queries k.out is written all the same. Allocates
 * nothing, takes no lock, reads no environment and does not wait for a device, but in the first
 * call of a shape that cuDNN takes. Lengths, tables, positions, scales and bits may change in
 * device memory between replays of a graph.
 * @param plan  of rope_attention_plan_create
 * @param args  what is written is disjoint from everything else, but that q.out and k.out may be
 *              their in; else ROPE_ERROR_OVERLAP
 * @return what rope_apply returns; nothing is written unless ROPE_OK
 */
ROPE_API rope_status rope_attention(const rope_plan *plan, const rope_attention_args *args);

/**
 * Gradients of a call of rope_attention. Its arguments are given as they were, and what it wrote is
 * read: out and lse, and rotated q and k where it had a q.out or a k.out; in is then not read and
 * may be NULL. Gradients are of unrotated q.in and k.in, of k.in as it is where the call rotates
 * queries alone, and of dtype. With s, lse and out as above and the sums over what the mask lets
 * see,
 *
 *     p[i][j]  = exp(s[i][j] - lse[i])
 *     ds[i][j] = p[i][j] * (<dout[i], v[j]> - <dout[i], out[i]>) * cap'(s[i][j])
 *     dv[j]    = sum over i of p[i][j] * dout[i]
 *     dq[i]    = the rotation's transpose of scale * sum over j of ds[i][j] * rotated k[j]
 *     dk[j]    = the rotation's transpose of scale * sum over i of ds[i][j] * rotated q[i]
 *     dsink    = -sum over i of exp(sink - lse[i]) * <dout[i], out[i]>
 *
 * where i is a query of any head that reads the head of j. Sums are rounded to dtype ahead of the
 * transpose, so a call gives the bits of the same kernel without rotation on rotated tensors,
 * followed by rope_apply with ROPE_TRANSPOSE. Every sum has one order, which lengths and sizes
 * alone decide, unless nondeterministic is 1. A query that sees no key and a key that no query sees
 * have gradients of 0. In 16 bits a CPU makes ds of a key that has most of a query's weight from
 * the other keys', which out's rounding does not reach (docs/numerics.md).
 *
 * With a norm rope_append_backward follows on what that gives: dq and dk are of q.in and k.in ahead
 * of their norms, which are then read even where there is an out, from other memory than that.
 */
typedef struct rope_attention_backward_args {
    size_t struct_size;                 /**< sizeof(rope_attention_backward_args). */
    const rope_attention_args *forward; /**< lse is required; workspace is this call's, as large as
                                             rope_attention_backward_workspace says. */
    const void *dout;                   /**< Element 0 of out's gradient, of dtype. */
    int64_t dout_stride[4];             /**< Elements over [batch, token, head, dim]. All 0:
                                             contiguous. */
    rope_attention_out dq;              /**< [batch, tokens, q.heads, head_dim]. data NULL here and
                                             below: not wanted. */
    rope_attention_out dk;              /**< [batch, k_tokens, k.heads, head_dim]. */
    rope_attention_out dv;              /**< [batch, k_tokens, k.heads, v_head_dim]. */
    float *dsinks;                      /**< One a head of q, side by side; NULL: not wanted. */
    float *dq_weight;                   /**< Of q_weight, as rope_append_gradient.weight; without
                                             queries not written. */
    float *dk_weight;                   /**< Of k_weight. */
} rope_attention_backward_args;

/** Initialiser of a rope_attention_backward_args: its size, and nothing wanted. */
#if defined(__cplusplus)
#define ROPE_ATTENTION_BACKWARD_ARGS_INIT rope_attention_backward_args_init()
static inline rope_attention_backward_args rope_attention_backward_args_init() {
    rope_attention_backward_args made = rope_attention_backward_args();
    made.struct_size = sizeof made;
    return made;
}
#else
#define ROPE_ATTENTION_BACKWARD_ARGS_INIT                                                          \
    { .struct_size = sizeof(rope_attention_backward_args) }
#endif

/**
 * As rope_attention_plan_create, for rope_attention_backward. Caches, ROPE_MASK_TREE and
 * ROPE_INVERSE have no gradient here and are refused, as are tables of full width where pairing_in
 * is not pairing_out.
 * @param desc  of the forward; copied, with everything it points to
 * @param plan  receives the plan; untouched on error
 * @return what rope_plan_create returns
 */
ROPE_API rope_status rope_attention_backward_plan_create(const rope_attention_desc *desc,
                                                         rope_plan **plan);

/**
 * As rope_attention_workspace: normalised and rotated queries and keys that the forward did not
 * write, gradients that norms need, numbers for each row, and on some GPUs dq of long sequences in
 * fp32.
 * @param plan    of rope_attention_backward_plan_create
 * @param bounds  the largest sizes
 * @param bytes   receives the bytes; untouched on error
 * @return ROPE_OK, INVALID_VALUE, NULL_POINTER, OVERFLOW, OUT_OF_MEMORY or ABI
 */
ROPE_API rope_status rope_attention_backward_workspace(const rope_plan *plan,
                                                       const rope_attention_bounds *bounds,
                                                       size_t *bytes);

/**
 * Computes the gradients that are wanted of a call that wrote out, as rope_attention does it. Those
 * of keys and sinks without a query are 0. Tokens that no sequence has, and those beyond its
 * lengths, are left as they are.
 * @param plan  of rope_attention_backward_plan_create
 * @param args  what is written is disjoint from everything else; else ROPE_ERROR_OVERLAP
 * @return what rope_apply returns; nothing is written unless ROPE_OK
 */
ROPE_API rope_status rope_attention_backward(const rope_plan *plan,
                                             const rope_attention_backward_args *args);

/** How partial results of rope_attention are joined. Set struct_size and zero the rest, then fill
 * what matters. */
typedef struct rope_attention_merge_desc {
    size_t struct_size;  /**< sizeof(rope_attention_merge_desc). */
    int32_t dtype;       /**< ROPE_F32, ROPE_F16 or ROPE_BF16, of in and out. */
    int32_t head_dim;    /**< Elements of a head of in and out, 1..ROPE_MAX_ATTENTION_HEAD_DIM. */
    const char *backend; /**< As rope_desc.backend. */
    int32_t device;      /**< As rope_desc.device. */
    const char *kernel;  /**< As rope_desc.kernel. */
} rope_attention_merge_desc;

/**
 * Partial results of the same queries over parts of the keys that have none in common:
 *
 *     lse = log(sum of exp(in_lse[p])),  out = sum of exp(in_lse[p] - lse) * in[p]
 *
 * in the order of the parts. A part whose lse is -infinity counts for nothing, whatever its
 * elements are; where all are, out is 0. At most one part has the sinks.
 */
typedef struct rope_attention_merge_args {
    size_t struct_size;       /**< sizeof(rope_attention_merge_args). */
    int64_t parts;            /**< > 0. */
    int64_t batch;            /**< >= 0. */
    int64_t tokens;           /**< >= 0. */
    int64_t heads;            /**< >= 0. */
    const void *in;           /**< Element 0 of part 0. */
    int64_t in_stride[5];     /**< Elements over [part, batch, token, head, dim]. All 0:
                                   contiguous. */
    const float *in_lse;      /**< Of part 0. */
    int64_t in_lse_stride[4]; /**< Elements over [part, batch, token, head]. All 0: contiguous. */
    rope_attention_out out;   /**< [batch, tokens, heads, head_dim]; may be part 0. */
    float *lse;               /**< [batch, token, head], or NULL. */
    int64_t lse_stride[3];    /**< Elements over [batch, token, head]. All 0: contiguous. */
    void *stream;             /**< As rope_args.stream. */
} rope_attention_merge_args;

/**
 * Checks a descriptor, chooses a backend and binds a kernel, as rope_plan_create does.
 * @param desc  copied, with everything it points to
 * @param plan  receives the plan; untouched on error
 * @return what rope_plan_create returns
 */
ROPE_API rope_status rope_attention_merge_plan_create(const rope_attention_merge_desc *desc,
                                                      rope_plan **plan);

/**
 * Joins partial results. Allocates nothing and does not wait for a device.
 * @param plan  of rope_attention_merge_plan_create
 * @param args  what is written is disjoint from everything else, but for out and part 0
 * @return what rope_apply returns, without POSITION_RANGE; nothing is written unless ROPE_OK
 */
ROPE_API rope_status rope_attention_merge(const rope_plan *plan,
                                          const rope_attention_merge_args *args);

#ifdef __cplusplus
}
#endif
#endif
