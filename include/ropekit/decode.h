/**
 * @file decode.h
 * @brief From the projections of new tokens to the output of attention, in one call.
 *
 * A call gives what rope_append and then rope_attention give: q, k and v of new tokens are
 * normalised and rotated, k and v are written into the cache, and the queries attend to all keys of
 * their sequences there, the new ones included. The rotated queries need no memory of the caller's.
 * Where a kernel does all of it in one launch, that runs. Otherwise the kernels of append and
 * attention run one after the other, with the bits of those two calls.
 *
 * A call may have one token of each sequence, a few drafts, a prompt or a part of one.
 * docs/attention.md shows how to call. Conventions are those of append.h and attention.h.
 */
#ifndef ROPEKIT_DECODE_H
#define ROPEKIT_DECODE_H

#include <ropekit/attention.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A kind of layer: an append and what its attention has beside it. Set struct_size and zero the
 * rest (ROPE_DECODE_DESC_INIT), then fill what matters. */
typedef struct rope_decode_desc {
    size_t struct_size;      /**< sizeof(rope_decode_desc). */
    rope_append_desc append; /**< Its struct_size, rope.struct_size and what rope_append needs; a
                                  cache is required. q has no store_dtype, rope no shard, k is
                                  ROPE_SOURCE_TENSOR, and head_dim and v_head_dim are at most
                                  ROPE_MAX_ATTENTION_HEAD_DIM, of q and k alike. What attention
                                  shares with it is said here alone. rope.kernel names a kernel of
                                  "decode", "composed", or the kernel of attention to compose. */
    int32_t mask;            /**< As rope_attention_desc.mask, and so on below. */
    int32_t sink_dtype;      /**< ROPE_F32 or dtype. 0: none. */
    double scale;            /**< 0: 1 / sqrt(head_dim). */
    double soft_cap;         /**< 0: none. */
    int64_t window;          /**< 0: all. */
    int64_t window_right;    /**< With ROPE_MASK_FULL. 0: all. */
    int64_t chunk;           /**< 0: all. */
    const char *tuning;      /**< By which composed calls choose kernels of attention. */
} rope_decode_desc;

/** Initialiser of a rope_decode_desc: its sizes, and defaults for the rest. */
#if defined(__cplusplus)
#define ROPE_DECODE_DESC_INIT rope_decode_desc_init()
static inline rope_decode_desc rope_decode_desc_init() {
    rope_decode_desc made = rope_decode_desc();
    made.struct_size = sizeof made;
    made.append = rope_append_desc_init();
    return made;
}
#else
#define ROPE_DECODE_DESC_INIT                                                                      \
    { .struct_size = sizeof(rope_decode_desc), .append = ROPE_APPEND_DESC_INIT }
#endif

/**
 * One call. A sequence is a batch row of new tokens, or a part of append.rope.cu_seqlens. Sequence
 * s has k_lengths[s] keys, and its new tokens are the last of them. So they are to be appended
 * there: their first index is k_lengths[s] less their number. In rows of a batch, which all have as
 * many tokens, append.rope.sequence_offsets may be k_lengths and position_offset -tokens. A
 * sequence reads no key that the call appends to another one.
 *
 * With ROPE_CACHE_SLOTS tokens go to append.slots, which are to be their places by the
 * append.block_table. That is then required, and lists the pages that attention reads.
 *
 * Keys whose first elements are their values, as of MLA, are cached once: append.v.heads is 0, and
 * append.v_cache is k_cache. The descriptor's v then has k's store_dtype and scale, and no norm or
 * factor.
 */
typedef struct rope_decode_args {
    size_t struct_size; /**< sizeof(rope_decode_args). */
    rope_append_args
        append;             /**< Its struct_size, rope.struct_size and what rope_append needs: q, k
                                 and v of the new tokens and both caches. rope.q.out may be NULL. */
    rope_attention_out out; /**< [batch, tokens, q.heads, v_head_dim]. */
    float *lse;             /**< As rope_attention_args.lse, and so on below. */
    int64_t lse_stride[3];  /**< Elements over [batch, token, head]. All 0: contiguous. */
    int64_t k_tokens;       /**< The most keys of a sequence. 0: those of its pages. */
    const void *k_lengths;  /**< Keys of each sequence, the new ones included, of position_dtype. */
    const void *k_position_ids;   /**< Of all keys of a tree with a window or chunks, or NULL. */
    int64_t k_position_stride[3]; /**< Elements over [axis, sequence, key]. All 0: contiguous. */
    const void *sinks;            /**< One a head of q, of sink_dtype. */
    const void *tree_bits;        /**< ROPE_MASK_TREE: words of each query. */
    int64_t tree_stride[2];       /**< Words over [batch, token]. All 0: contiguous. */
    int64_t tree_keys;            /**< ROPE_MASK_TREE: > 0. */
    void *workspace; /**< Device memory, 256-byte aligned, one call's at a time; or NULL where
                          rope_decode_workspace says 0. */
    size_t workspace_bytes; /**< Of workspace: as many as that says, or more. */
    int64_t most_tokens;    /**< With cu_seqlens: no sequence has more new tokens, so that a few may
                                 take one launch. 0: all tokens. A sequence that has more is
                                 ROPE_ERROR_POSITION_RANGE on a CPU. A GPU leaves it out and sets
                                 rope.position_flag, or takes it. */
} rope_decode_args;

/** Initialiser of a rope_decode_args: its sizes, and defaults for the rest. */
#if defined(__cplusplus)
#define ROPE_DECODE_ARGS_INIT rope_decode_args_init()
static inline rope_decode_args rope_decode_args_init() {
    rope_decode_args made = rope_decode_args();
    made.struct_size = sizeof made;
    made.append = rope_append_args_init();
    return made;
}
#else
#define ROPE_DECODE_ARGS_INIT                                                                      \
    { .struct_size = sizeof(rope_decode_args), .append = ROPE_APPEND_ARGS_INIT }
#endif

/**
 * Checks a descriptor, chooses a backend and binds kernels, as rope_plan_create does.
 * @param desc  copied, with everything it points to
 * @param plan  receives the plan; untouched on error
 * @return what rope_plan_create returns
 */
ROPE_API rope_status rope_decode_plan_create(const rope_decode_desc *desc, rope_plan **plan);

/**
 * Bytes of workspace that every call within bounds needs: what rope_attention needs, and rotated
 * queries that no q.out receives.
 * @param plan    of rope_decode_plan_create
 * @param bounds  the largest sizes
 * @param bytes   receives the bytes; untouched on error
 * @return ROPE_OK, INVALID_VALUE, NULL_POINTER, OVERFLOW, OUT_OF_MEMORY or ABI
 */
ROPE_API rope_status rope_decode_workspace(const rope_plan *plan,
                                           const rope_attention_bounds *bounds, size_t *bytes);

/**
 * Appends new tokens and attends from them. Allocates nothing, takes no lock, reads no environment
 * and does not wait for a device, but where rope_attention does. Lengths, slots, tables, positions,
 * scales and bits may change in device memory between replays of a graph.
 * @param plan  of rope_decode_plan_create
 * @param args  what is written is disjoint from everything else, but that q.out, k.out and v.out
 *              may be their in; else ROPE_ERROR_OVERLAP
 * @return what rope_apply returns; nothing is written unless ROPE_OK, but where kernels of
 * attention that are not the library's own find an error after the append, as cuDNN's may
 */
ROPE_API rope_status rope_decode(const rope_plan *plan, const rope_decode_args *args);

#ifdef __cplusplus
}
#endif
#endif
