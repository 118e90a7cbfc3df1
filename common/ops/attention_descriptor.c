#include "common/ops/attention_descriptor.h"

#include "common/abi.h"
#include "common/ops/append_descriptor.h"
#include "common/ops/fields.h"
#include "common/status.h"

#include <math.h>
#include <stdint.h>

_Static_assert(sizeof(rope_attention_desc) <= ROPE_MAX_STRUCT_SIZE / 2, "room for fields to come");

static const rope_unread cache_fields[] = {
    ROPE_UNREAD(rope_attention_desc, page_size),
    ROPE_UNREAD(rope_attention_desc, ring),
    ROPE_UNREAD_CHOICE(rope_attention_desc, table_dtype, rope_dtype_names),
    ROPE_UNREAD_CHOICE(rope_attention_desc, k.dtype, rope_dtype_names),
    ROPE_UNREAD_CHOICE(rope_attention_desc, k.scale, rope_scale_names),
    ROPE_UNREAD(rope_attention_desc, k.dim_block),
    ROPE_UNREAD_CHOICE(rope_attention_desc, v.dtype, rope_dtype_names),
    ROPE_UNREAD_CHOICE(rope_attention_desc, v.scale, rope_scale_names),
    ROPE_UNREAD(rope_attention_desc, v.dim_block),
};

static rope_status check_head_dims(rope_attention_desc *desc) {
    const rope_desc *rope = &desc->rope;
    if (rope->k_head_dim != rope->head_dim || rope->k_rotary_offset != rope->rotary_offset)
        return rope_fail(
            ROPE_ERROR_INVALID_VALUE,
            "k_head_dim is %d and k_rotary_offset is %d; allowed is 0, or head_dim (%d) and "
            "rotary_offset (%d): keys are multiplied by queries element by element",
            rope->k_head_dim, rope->k_rotary_offset, rope->head_dim, rope->rotary_offset);
    if (desc->v_head_dim == 0)
        desc->v_head_dim = rope->head_dim;
    if (desc->v_head_dim < 1 || desc->v_head_dim > ROPE_MAX_ATTENTION_HEAD_DIM)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "v_head_dim is %d; allowed is 0..%d",
                         desc->v_head_dim, ROPE_MAX_ATTENTION_HEAD_DIM);
    return ROPE_OK;
}

/* A range within which quotients of the two, and products with log2(e), are normal fp32 numbers. */
static rope_status check_factor(const char *name, double x) {
    return x == 0 || (x >= 0x1p-60 && x <= 0x1p60)
               ? ROPE_OK
               : rope_fail(ROPE_ERROR_INVALID_VALUE, "%s is %g; allowed is 0, or 2^-60..2^60", name,
                           x);
}

static rope_status check_length(const char *name, int64_t length) {
    return length >= 0 ? ROPE_OK
                       : rope_fail(ROPE_ERROR_INVALID_VALUE, "%s is %lld; allowed is >= 0", name,
                                   (long long)length);
}

static rope_status check_mask(rope_attention_desc *desc) {
    rope_status status =
        rope_choice_check("", "mask", &desc->mask, rope_mask_names, ROPE_MASK_CAUSAL);
    if (status == ROPE_OK)
        status = check_length("window", desc->window);
    if (status == ROPE_OK)
        status = check_length("window_right", desc->window_right);
    if (status == ROPE_OK)
        status = check_length("chunk", desc->chunk);
    if (status == ROPE_OK && desc->window_right && desc->mask != ROPE_MASK_FULL)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "window_right is %lld; allowed is 0 unless mask is ROPE_MASK_FULL",
                         (long long)desc->window_right);
    return status;
}

static rope_status check_sinks(const rope_attention_desc *desc) {
    const int32_t dtype = desc->rope.dtype;
    if (desc->sink_dtype == 0 || desc->sink_dtype == ROPE_F32 || desc->sink_dtype == dtype)
        return ROPE_OK;
    return rope_fail(ROPE_ERROR_INVALID_VALUE,
                     "sink_dtype is %s; allowed is 0, 1 (ROPE_F32) or dtype, %s",
                     rope_choice_name(rope_dtype_names, desc->sink_dtype).text,
                     rope_choice_name(rope_dtype_names, dtype).text);
}

static rope_status check_order(int32_t nondeterministic) {
    return nondeterministic == 0 || nondeterministic == 1
               ? ROPE_OK
               : rope_fail(ROPE_ERROR_INVALID_VALUE, "nondeterministic is %d; allowed is 0 or 1",
                           nondeterministic);
}

static rope_status check_store(const char *part, rope_attention_store *store, int32_t dtype,
                               int32_t head_dim) {
    rope_status status = rope_store_check(part, "dtype", &store->dtype, &store->scale, dtype);
    if (status == ROPE_OK)
        status = rope_dim_block_check(part[0] == 'k' ? "k.dim_block" : "v.dim_block",
                                      &store->dim_block, head_dim);
    return status;
}

static rope_status check_cache(rope_attention_desc *desc) {
    if (desc->cache == 0)
        return rope_unread_check(desc, cache_fields, ROPE_COUNT(cache_fields), "",
                                 "without a cache");
    if (desc->cache != ROPE_CACHE_TABLE && desc->cache != ROPE_CACHE_SEQUENCE)
        return rope_fail(
            ROPE_ERROR_INVALID_VALUE,
            "cache is %s; allowed is 0, ROPE_CACHE_TABLE (2) or ROPE_CACHE_SEQUENCE (3)",
            rope_choice_name(rope_cache_names, desc->cache).text);
    if (desc->page_size == 0)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "page_size is not given; allowed is > 0 with a cache");
    if (desc->page_size < 0)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "page_size is %lld; allowed is > 0 with a cache",
                         (long long)desc->page_size);
    rope_status status = rope_ring_check(desc->ring, desc->cache, desc->page_size);
    if (status == ROPE_OK)
        status = rope_index_dtype_check("table_dtype", &desc->table_dtype,
                                        desc->cache == ROPE_CACHE_TABLE, "ROPE_CACHE_TABLE",
                                        desc->rope.position_dtype);
    if (status == ROPE_OK)
        status = check_store("k", &desc->k, desc->rope.dtype, desc->rope.head_dim);
    return status == ROPE_OK ? check_store("v", &desc->v, desc->rope.dtype, desc->v_head_dim)
                             : status;
}

static rope_status check_norms(rope_attention_desc *desc) {
    const int32_t dtype = desc->rope.dtype, head_dim = desc->rope.head_dim;
    rope_status status = rope_norm_check("q_norm", &desc->q_norm, dtype, head_dim);
    if (status == ROPE_OK)
        status = rope_norm_check("k_norm", &desc->k_norm, dtype, head_dim);
    if (status == ROPE_OK && desc->k_norm.type &&
        (desc->cache || desc->rotation == ROPE_ATTENTION_ROTATE_Q))
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "k_norm.type is %s; allowed is 0 %s",
                         rope_choice_name(rope_norm_names, desc->k_norm.type).text,
                         desc->cache ? "with a cache, whose keys have had their norm"
                                     : "where keys were rotated, and so had their norm");
    return status;
}

static rope_status check_rope(const rope_desc *given, rope_attention_desc *full) {
    rope_status status = rope_embedded_read(
        given, ROPE_MAX_ATTENTION_HEAD_DIM, full->rotation != ROPE_ATTENTION_ROTATE_NONE,
        "where rotation is ROPE_ATTENTION_ROTATE_NONE", &full->rope);
    if (status == ROPE_OK && full->rope.shard != ROPE_SHARD_NONE)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "shard is %s; allowed is 0 or ROPE_SHARD_NONE",
                         rope_choice_name(rope_shard_names, full->rope.shard).text);
    return status;
}

rope_status rope_attention_descriptor_read(const rope_attention_desc *given,
                                           rope_attention_desc *full) {
    rope_attention_desc sized;
    rope_status status = rope_abi_read_embedding(&sized, sizeof sized, sizeof sized.rope, given,
                                                 "rope_attention_desc", "rope_desc");
    if (status != ROPE_OK)
        return status;
    *full = sized;
    status = rope_choice_check("", "rotation", &full->rotation, rope_attention_rotation_names,
                               ROPE_ATTENTION_ROTATE_QK);
    if (status == ROPE_OK)
        status = check_rope(&sized.rope, full);
    if (status == ROPE_OK)
        status = check_head_dims(full);
    if (status == ROPE_OK)
        status = check_factor("scale", full->scale);
    if (status == ROPE_OK)
        status = check_factor("soft_cap", full->soft_cap);
    if (status == ROPE_OK)
        status = check_mask(full);
    if (status == ROPE_OK)
        status = check_sinks(full);
    if (status == ROPE_OK)
        status = check_order(full->nondeterministic);
    if (status == ROPE_OK)
        status = check_cache(full);
    return status == ROPE_OK ? check_norms(full) : status;
}
