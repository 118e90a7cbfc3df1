/**
 * @file append.h
 * @brief q/k normalisation, rotation and the KV-cache write in one pass.
 *
 * A call takes the tokens of q, k and v from the projection to where attention reads them. Each
 * tensor goes through the same steps, every one of which may be absent:
 *
 *     in -> norm -> rotation (q, k) -> factor -> out, in dtype, and the cache (k, v) or out (q), in
 *     store_dtype
 *
 * and is rounded to dtype between steps, so that one call equals several that do a step each, bit
 * for bit. docs/append.md draws the cache's layouts, docs/numerics.md has the norms' arithmetic.
 * Conventions are those of rope.h.
 */
#ifndef ROPEKIT_APPEND_H
#define ROPEKIT_APPEND_H

#include <ropekit/rope.h>

#ifdef __cplusplus
extern "C" {
#endif

/** @name Limits
 * @{ */
#define ROPE_MAX_APPEND_HEAD_DIM 4096 /**< Largest head_dim of q, k and v here. */
/** @} */

/** What is normalised to what, over n elements: y = x / sqrt(mean(x^2) + eps), or of x - mean(x).
 */
enum { ROPE_NORM_RMS = 1, ROPE_NORM_LAYER = 2 };

/** Which elements have one norm. */
enum {
    ROPE_NORM_HEAD = 1, /**< Those of a head (Qwen3, Gemma 3, Cohere). Default. */
    ROPE_NORM_TOKEN = 2 /**< Those of all heads of a token (OLMo 2). */
};

/** By what the normalised element is multiplied. */
enum {
    ROPE_NORM_WEIGHT = 1,         /**< w. */
    ROPE_NORM_ONE_PLUS_WEIGHT = 2 /**< 1 + w (Gemma). */
};

/** Where a norm rounds to dtype. */
enum {
    ROPE_NORM_ROUND_ONCE = 1, /**< Behind the weight (Gemma, OLMo 2, Cohere). Default. */
    ROPE_NORM_ROUND_TWICE = 2 /**< Ahead of the weight and behind it (Llama, Qwen3). */
};

/** What an element of store_dtype is multiplied by to give the element it stands for. */
enum {
    ROPE_SCALE_TENSOR = 1,        /**< One number, given. */
    ROPE_SCALE_HEAD = 2,          /**< One a head, given. */
    ROPE_SCALE_TOKEN_HEAD = 3,    /**< One a token and head, given. */
    ROPE_SCALE_TOKEN_HEAD_MAX = 4 /**< One a token and head, written: the head's largest finite
                                       magnitude over the type's, or 1 where that is 0. */
};

/** Whether q and k rotate. */
enum {
    ROPE_ROTATION_ON = 1, /**< As rope_append_desc.rope says. Default. */
    ROPE_ROTATION_OFF = 2 /**< Not: what only a rotation would read stays 0. */
};

/** Where in the cache the token of index n lies. Its page holds page_size tokens. */
enum {
    ROPE_CACHE_SLOTS = 1,   /**< n is a slot: page n / page_size. */
    ROPE_CACHE_TABLE = 2,   /**< Page block_table[sequence, n / page_size]. */
    ROPE_CACHE_SEQUENCE = 3 /**< Page `sequence`: [sequences, page_size, heads, dim], contiguous. */
};

/** From where k is read. */
enum {
    ROPE_SOURCE_TENSOR = 1, /**< rope_append_args.rope.k.in. Default. */
    ROPE_SOURCE_CACHE = 2 /**< Its place in the cache: keys are moved by a position in place. Their
                               attention factor counts as 1, xpos_center as 0 and pairing_in as
                               pairing_out, since they have all three already. */
};

/** A normalisation. All 0: none. */
typedef struct rope_norm {
    int32_t type;         /**< ROPE_NORM_RMS or ROPE_NORM_LAYER. 0: none. */
    int32_t scope;        /**< ROPE_NORM_HEAD or ROPE_NORM_TOKEN. */
    int32_t offset;       /**< First element of a head that is normalised. */
    int32_t dim;          /**< Elements of a head that are. 0: all from offset on. */
    int32_t weight;       /**< ROPE_NORM_WEIGHT or ROPE_NORM_ONE_PLUS_WEIGHT. 0: none. */
    int32_t weight_dtype; /**< ROPE_F32 or dtype. 0: dtype. */
    int32_t rounding;     /**< ROPE_NORM_ROUND_. */
    double eps;           /**< >= 0; rounded to fp32. */
} rope_norm;

/** What is done with q, k or v. All 0: nothing but the rotation and a copy. */
typedef struct rope_append_part {
    rope_norm norm;      /**< First step. */
    double factor;       /**< Last step: rounded to fp32, where it is neither 0 nor infinite,
                            multiplies. 0: none. */
    int32_t store_dtype; /**< Of q's out, and of k's and v's cache: ROPE_F32, F16, BF16, F8E4M3,
                            F8E5M2, F8E4M3FNUZ or I8. 0: dtype. 8 bits saturate; a NaN is a NaN,
                            and 0 in I8. */
    int32_t scale;       /**< ROPE_SCALE_, for 8 bits. 0: none. */
} rope_append_part;

/** A kind of layer. Set struct_size and zero the rest (ROPE_APPEND_DESC_INIT), then fill what
 * matters. */
typedef struct rope_append_desc {
    size_t struct_size; /**< sizeof(rope_append_desc). */
    rope_desc rope;     /**< Its struct_size, dtype (not ROPE_F64), head_dim; how q and k rotate;
                             how indices are typed; choice of backend and kernel. */
    int32_t rotation;   /**< ROPE_ROTATION_. */
    int32_t v_head_dim; /**< 0: head_dim. */
    rope_append_part q; /**< Of q; without a cache. */
    rope_append_part k; /**< Of k. */
    rope_append_part v; /**< Of v, which never rotates. */

    /* the cache of k and v */
    int32_t cache;       /**< ROPE_CACHE_. 0: none. */
    int32_t k_source;    /**< ROPE_SOURCE_. With ROPE_SOURCE_CACHE there are no q, v and norm. */
    int64_t page_size;   /**< Tokens of a page, > 0 with a cache. */
    int64_t ring;        /**< > 0: a sequence keeps its last `ring` tokens, that of index n at
                              n modulo ring; earlier ones of a call are left out. With TABLE, and
                              with SEQUENCE up to page_size. */
    int32_t slot_dtype;  /**< ROPE_I32 or ROPE_I64 of slots. 0: as position_dtype. */
    int32_t table_dtype; /**< ROPE_I32 or ROPE_I64 of block_table. 0: as position_dtype. */
    int32_t k_dim_block; /**< Elements of a head of k that lie side by side, a divisor of its
                              head_dim (vLLM's x). 0: all. */
    int32_t v_dim_block; /**< The same of v. */
} rope_append_desc;

/** Initialiser of a rope_append_desc: its sizes, and defaults for the rest. */
#if defined(__cplusplus)
#define ROPE_APPEND_DESC_INIT rope_append_desc_init()
static inline rope_append_desc rope_append_desc_init() {
    rope_append_desc made = rope_append_desc();
    made.struct_size = sizeof made;
    made.rope.struct_size = sizeof made.rope;
    return made;
}
#else
#define ROPE_APPEND_DESC_INIT                                                                      \
    { .struct_size = sizeof(rope_append_desc), .rope = ROPE_DESC_INIT }
#endif

/** Weights of a norm. */
typedef struct rope_norm_weight {
    const void *data;    /**< Entry of element norm.offset of head 0, in weight_dtype. */
    int64_t head_stride; /**< Elements from a head to the next. 0: every head has the same; with
                              ROPE_NORM_TOKEN 0 means norm.dim. */
} rope_norm_weight;

/** Scales of a tensor, in fp32. */
typedef struct rope_scale {
    void *data;        /**< Read, or written by ROPE_SCALE_TOKEN_HEAD_MAX. > 0, finite. */
    int64_t stride[3]; /**< Elements over [page, slot, head], for q over [batch, token, head]; of
                            ROPE_SCALE_HEAD the last one alone. All 0: contiguous. */
} rope_scale;

/** The cache of k or v. */
typedef struct rope_cache {
    void *data;        /**< Element 0 of page 0, in store_dtype. NULL: not written. */
    int64_t stride[5]; /**< Elements over [page, slot, head, block, dim], where a head is
                            dim / dim_block blocks. All 0: contiguous [page, slot, head, dim]. No
                            two elements may share an address. */
    rope_scale scale;  /**< With ROPE_SCALE_. */
} rope_cache;

/**
 * One call. With ROPE_CACHE_SLOTS the index of token t in the cache is slots[batch, t]. Otherwise,
 * with s the sequence of the token and n its index there, it is n + (cache_starts ? cache_starts[s]
 * : rope.position_offset + rope.sequence_offsets[s]), whatever rope.position_ids say. Tokens
 * outside every sequence are not cached, nor those whose slot is negative. Of a packed sequence
 * that begins before the first token or ends past the last, the tokens in between are cached, and a
 * ring keeps the last of those. ROPE_ERROR_POSITION_RANGE are a page that the cache does not have,
 * and an index for which its sequence has no page; an asynchronous backend leaves the token out of
 * the cache and sets rope.position_flag. Give each token of a call a place of its own: where
 * several share one, it may get elements and scales of any of them.
 */
typedef struct rope_append_args {
    size_t struct_size; /**< sizeof(rope_append_args). */
    rope_args rope;     /**< Its struct_size; batch, tokens, q, k, positions, tables, flag and
                             stream. k.out may be NULL where k has a cache; q.out is of
                             store_dtype. */
    rope_tensor v;      /**< As k: out may be NULL where v has a cache. */
    rope_norm_weight q_weight; /**< Of desc.q.norm. */
    rope_norm_weight k_weight; /**< Of desc.k.norm. */
    rope_norm_weight v_weight; /**< Of desc.v.norm. */
    rope_scale q_scale;        /**< Of desc.q.scale. */
    rope_cache k_cache;        /**< The cache of k; free while k.heads is 0. */
    rope_cache v_cache;        /**< The same of v. */
    int64_t pages;             /**< Of each cache: > 0 with one. */
    const void *slots;         /**< ROPE_CACHE_SLOTS: one a token. */
    int64_t slot_stride[2];    /**< slots: elements over [batch, token]. All 0: contiguous. */
    const void *block_table;   /**< ROPE_CACHE_TABLE: pages of each sequence. */
    int64_t table_stride[2]; /**< block_table: elements over [sequence, page]. All 0: contiguous. */
    int64_t table_pages;     /**< ROPE_CACHE_TABLE: pages of a sequence, > 0. */
    const void *cache_starts; /**< Index in the cache of the first token of each sequence, of
                                   position_dtype; NULL: as positions. */
} rope_append_args;

/** Initialiser of a rope_append_args: its sizes, and defaults for the rest. */
#if defined(__cplusplus)
#define ROPE_APPEND_ARGS_INIT rope_append_args_init()
static inline rope_append_args rope_append_args_init() {
    rope_append_args made = rope_append_args();
    made.struct_size = sizeof made;
    made.rope.struct_size = sizeof made.rope;
    return made;
}
#else
#define ROPE_APPEND_ARGS_INIT                                                                      \
    { .struct_size = sizeof(rope_append_args), .rope = ROPE_ARGS_INIT }
#endif

/**
 * Checks a descriptor, chooses a backend and binds a kernel, as rope_plan_create does.
 * @param desc  copied, with everything it points to
 * @param plan  receives the plan; untouched on error
 * @return what rope_plan_create returns
 */
ROPE_API rope_status rope_append_plan_create(const rope_append_desc *desc, rope_plan **plan);

/**
 * The norm of q and k by a configuration's model_type: dots1, flex_olmo, gemma3, olmo2, olmo3,
 * qwen3, qwen3_moe, qwen3_vl and qwen3_vl_moe, with or without "_text". Its type is 0 for any
 * other, whether or not the model has one.
 * @param config  what was read
 * @param norm    receives the norm. Untouched on error
 * @return ROPE_OK, INVALID_VALUE or NULL_POINTER
 */
ROPE_API rope_status rope_append_config_norm(rope_config *config, rope_norm *norm);

/**
 * Normalises, rotates, and stores. Allocates nothing, takes no lock, reads no environment and does
 * not wait for a device; slots, tables, starts, positions and scales may change in device memory
 * between replays of a graph.
 * @param plan  of rope_append_plan_create
 * @param args  what is written is disjoint from everything else, but that q.out, k.out and v.out
 *              may be their in; else ROPE_ERROR_OVERLAP
 * @return what rope_apply returns; nothing is written unless ROPE_OK
 */
ROPE_API rope_status rope_append(const rope_plan *plan, const rope_append_args *args);

/** Gradients of q, k or v. All 0: not wanted. */
typedef struct rope_append_gradient {
    const void *in;        /**< Element 0 of the gradient of what the forward made of the tensor, of
                                dtype: [batch, tokens, heads, head_dim]. */
    int64_t in_stride[4];  /**< Elements over [batch, token, head, dim]. All 0: contiguous. */
    void *out;             /**< The gradient of the tensor itself, of dtype; may be `in`. NULL: not
                                wanted. */
    int64_t out_stride[4]; /**< The same of out. All 0: contiguous, or as `in` where out is in. */
    float *weight;         /**< The gradient of the norm's weights: [norm.dim], or where weights
                                have a head_stride, as with ROPE_NORM_TOKEN, [heads, norm.dim];
                                written, not added to. NULL: not wanted. */
} rope_append_gradient;

/** One call of rope_append_backward. */
typedef struct rope_append_backward_args {
    size_t struct_size;              /**< sizeof(rope_append_backward_args). */
    const rope_append_args *forward; /**< As it was, in memory that still has what it read: q.in,
                                          k.in and v.in where they have a norm, weights, positions,
                                          tables. Its outs are not looked at. */
    rope_append_gradient q;          /**< Of forward->rope.q. */
    rope_append_gradient k;          /**< Of forward->rope.k. */
    rope_append_gradient v;          /**< Of forward->v. */
    void *workspace; /**< Device memory, 256-byte aligned, one call's at a time; or NULL where
                          rope_append_backward_workspace says 0, as it never does on the CPU. */
    size_t workspace_bytes; /**< Of workspace: as many as that says, or more. */
} rope_append_backward_args;

/** Initialiser of a rope_append_backward_args: its size, and nothing wanted. */
#if defined(__cplusplus)
#define ROPE_APPEND_BACKWARD_ARGS_INIT rope_append_backward_args_init()
static inline rope_append_backward_args rope_append_backward_args_init() {
    rope_append_backward_args made = rope_append_backward_args();
    made.struct_size = sizeof made;
    return made;
}
#else
#define ROPE_APPEND_BACKWARD_ARGS_INIT                                                             \
    { .struct_size = sizeof(rope_append_backward_args) }
#endif

/** The largest call that a workspace of rope_append_backward serves. */
typedef struct rope_append_bounds {
    size_t struct_size; /**< sizeof(rope_append_bounds). */
    int64_t batch;      /**< Batch rows. */
    int64_t tokens;     /**< Of a row. */
    int64_t q_heads;    /**< Of q. */
    int64_t k_heads;    /**< Of k. */
    int64_t v_heads;    /**< Of v. */
} rope_append_bounds;

/**
 * As rope_append_plan_create, for rope_append_backward. Refused is what has no gradient: caches and
 * keys that move, a store_dtype that is not dtype, ROPE_INVERSE, and tables of full width where
 * pairing_in is not pairing_out.
 * @param desc  of the forward, without a cache; copied, with everything it points to
 * @param plan  receives the plan; untouched on error
 * @return what rope_plan_create returns
 */
ROPE_API rope_status rope_append_backward_plan_create(const rope_append_desc *desc,
                                                      rope_plan **plan);

/**
 * Bytes of workspace that every call within bounds needs: sums over tokens for the gradients of
 * weights, and on the CPU memory of its threads, as many as the calling thread may have. A call
 * that wants none of those gradients may need less.
 * @param plan    of rope_append_backward_plan_create
 * @param bounds  the largest sizes
 * @param bytes   receives the bytes; untouched on error
 * @return ROPE_OK, INVALID_VALUE, NULL_POINTER, OVERFLOW or ABI
 */
ROPE_API rope_status rope_append_backward_workspace(const rope_plan *plan,
                                                    const rope_append_bounds *bounds,
                                                    size_t *bytes);

/**
 * Gradients of a call of rope_append: of q, k and v ahead of the norm, and of the norm's weights.
 * docs/append.md has the formulas. A call without tokens writes nothing.
 * @param plan  of rope_append_backward_plan_create
 * @param args  what is written is disjoint from everything else, but that an out may be its in;
 *              else ROPE_ERROR_OVERLAP
 * @return what rope_apply returns; nothing is written unless ROPE_OK
 */
ROPE_API rope_status rope_append_backward(const rope_plan *plan,
                                          const rope_append_backward_args *args);

#ifdef __cplusplus
}
#endif
#endif
