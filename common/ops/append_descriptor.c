#include "common/ops/append_descriptor.h"

#include "common/abi.h"
#include "common/ops/fields.h"
#include "common/status.h"

#include <math.h>
#include <stdio.h>

_Static_assert(sizeof(rope_append_desc) <= ROPE_MAX_STRUCT_SIZE / 2, "room for fields to come");

/* What a norm reads beside its type, and what a cache reads. */
static const rope_unread norm_fields[] = {
    ROPE_UNREAD_CHOICE(rope_norm, scope, rope_norm_scope_names),
    ROPE_UNREAD(rope_norm, offset),
    ROPE_UNREAD(rope_norm, dim),
    ROPE_UNREAD_CHOICE(rope_norm, weight, rope_norm_weight_names),
    ROPE_UNREAD_CHOICE(rope_norm, rounding, rope_norm_rounding_names),
    ROPE_UNREAD(rope_norm, eps),
    ROPE_UNREAD_CHOICE(rope_norm, weight_dtype, rope_dtype_names),
};
static const rope_unread cache_fields[] = {
    ROPE_UNREAD(rope_append_desc, page_size),
    ROPE_UNREAD(rope_append_desc, ring),
    ROPE_UNREAD_CHOICE(rope_append_desc, slot_dtype, rope_dtype_names),
    ROPE_UNREAD_CHOICE(rope_append_desc, table_dtype, rope_dtype_names),
    ROPE_UNREAD(rope_append_desc, k_dim_block),
    ROPE_UNREAD(rope_append_desc, v_dim_block),
    ROPE_UNREAD_CHOICE(rope_append_desc, k.store_dtype, rope_dtype_names),
    ROPE_UNREAD_CHOICE(rope_append_desc, v.store_dtype, rope_dtype_names),
};

/* What keys that are read from the cache leave unread. */
static const rope_unread source_fields[] = {
    ROPE_UNREAD_CHOICE(rope_append_desc, q.norm.type, rope_norm_names),
    ROPE_UNREAD(rope_append_desc, q.factor),
    ROPE_UNREAD_CHOICE(rope_append_desc, q.store_dtype, rope_dtype_names),
    ROPE_UNREAD_CHOICE(rope_append_desc, q.scale, rope_scale_names),
    ROPE_UNREAD_CHOICE(rope_append_desc, k.norm.type, rope_norm_names),
    ROPE_UNREAD_CHOICE(rope_append_desc, v.norm.type, rope_norm_names),
    ROPE_UNREAD(rope_append_desc, v.factor),
    ROPE_UNREAD_CHOICE(rope_append_desc, v.store_dtype, rope_dtype_names),
    ROPE_UNREAD_CHOICE(rope_append_desc, v.scale, rope_scale_names),
    ROPE_UNREAD(rope_append_desc, v_head_dim),
    ROPE_UNREAD(rope_append_desc, v_dim_block),
};

/* A number that fp32 holds, too. */
static int is_finite(double x) {
    return isfinite((float)x);
}

static rope_status check_norm_window(const char *name, rope_norm *norm, int32_t head_dim) {
    if (norm->offset < 0 || norm->offset >= head_dim)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "%s.offset is %d; allowed is 0..%d (head_dim %d - 1)", name, norm->offset,
                         head_dim - 1, head_dim);
    if (norm->dim < 0 || norm->dim > head_dim - norm->offset)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "%s.dim is %d; allowed is 0..%d (head_dim %d - norm.offset %d)", name,
                         norm->dim, head_dim - norm->offset, head_dim, norm->offset);
    if (norm->dim == 0)
        norm->dim = head_dim - norm->offset;
    return ROPE_OK;
}

static rope_status check_norm_weight(const char *name, rope_norm *norm, int32_t dtype) {
    rope_status status =
        rope_choice_check(name, ".weight", &norm->weight, rope_norm_weight_names, 0);
    if (status != ROPE_OK)
        return status;
    if (norm->weight == 0 && norm->weight_dtype)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "%s.weight_dtype is %s; allowed is 0 without norm.weight", name,
                         rope_choice_name(rope_dtype_names, norm->weight_dtype).text);
    if (norm->weight_dtype == 0)
        norm->weight_dtype = dtype;
    if (norm->weight_dtype != ROPE_F32 && norm->weight_dtype != dtype)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "%s.weight_dtype is %s; allowed is 0 (dtype), 1 (ROPE_F32) or dtype, "
                         "%s",
                         name, rope_choice_name(rope_dtype_names, norm->weight_dtype).text,
                         rope_choice_name(rope_dtype_names, dtype).text);
    return rope_choice_check(name, ".rounding", &norm->rounding, rope_norm_rounding_names,
                             ROPE_NORM_ROUND_ONCE);
}

rope_status rope_norm_check(const char *name, rope_norm *norm, int32_t dtype, int32_t head_dim) {
    rope_status status = rope_choice_check(name, ".type", &norm->type, rope_norm_names, 0);
    if (status == ROPE_OK && norm->type == 0) {
        char prefix[24];
        snprintf(prefix, sizeof prefix, "%s.", name);
        return rope_unread_check(norm, norm_fields, ROPE_COUNT(norm_fields), prefix,
                                 "without norm.type");
    }
    if (status == ROPE_OK)
        status =
            rope_choice_check(name, ".scope", &norm->scope, rope_norm_scope_names, ROPE_NORM_HEAD);
    if (status == ROPE_OK)
        status = check_norm_window(name, norm, head_dim);
    if (status == ROPE_OK)
        status = check_norm_weight(name, norm, dtype);
    if (status == ROPE_OK && !(norm->eps >= 0 && is_finite(norm->eps)))
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "%s.eps is %g; allowed is >= 0 and finite in fp32", name, norm->eps);
    return status;
}

static rope_status check_store(const char *part, rope_append_part *steps, int32_t dtype) {
    return rope_store_check(part, "store_dtype", &steps->store_dtype, &steps->scale, dtype);
}

static rope_status check_part(const char *part, rope_append_part *steps, int32_t dtype,
                              int32_t head_dim) {
    char norm[16];
    snprintf(norm, sizeof norm, "%s.norm", part);
    rope_status status = rope_norm_check(norm, &steps->norm, dtype, head_dim);
    if (status == ROPE_OK &&
        (!is_finite(steps->factor) || (steps->factor != 0 && (float)steps->factor == 0)))
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "%s.factor is %g; allowed is 0 (none) or what is neither 0 nor infinite "
                         "in fp32",
                         part, steps->factor);
    if (steps->factor == 0)
        steps->factor = 1;
    return status == ROPE_OK ? check_store(part, steps, dtype) : status;
}

static rope_status check_cache(rope_append_desc *desc) {
    const int32_t kind = desc->cache;
    if (desc->page_size == 0)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "page_size is not given; allowed is > 0 with a cache");
    if (desc->page_size < 1)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "page_size is %lld; allowed is > 0 with a cache",
                         (long long)desc->page_size);
    rope_status status = rope_ring_check(desc->ring, kind, desc->page_size);
    if (status == ROPE_OK)
        status = rope_index_dtype_check("slot_dtype", &desc->slot_dtype, kind == ROPE_CACHE_SLOTS,
                                        "ROPE_CACHE_SLOTS", desc->rope.position_dtype);
    if (status == ROPE_OK)
        status = rope_index_dtype_check("table_dtype", &desc->table_dtype, kind == ROPE_CACHE_TABLE,
                                        "ROPE_CACHE_TABLE", desc->rope.position_dtype);
    if (status == ROPE_OK)
        status = rope_dim_block_check("k_dim_block", &desc->k_dim_block, desc->rope.k_head_dim);
    if (status == ROPE_OK)
        status = rope_dim_block_check("v_dim_block", &desc->v_dim_block, desc->v_head_dim);
    return status;
}

/* Ahead of the defaults of what it leaves unread. */
static rope_status check_source(rope_append_desc *desc) {
    rope_status status =
        rope_choice_check("", "k_source", &desc->k_source, rope_source_names, ROPE_SOURCE_TENSOR);
    if (status != ROPE_OK || desc->k_source == ROPE_SOURCE_TENSOR)
        return status;
    if (desc->cache == 0)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "k_source is %s; allowed is 0 (default) or ROPE_SOURCE_TENSOR (1) without "
                         "a cache",
                         rope_choice_name(rope_source_names, desc->k_source).text);
    return rope_unread_check(desc, source_fields, ROPE_COUNT(source_fields), "",
                             "where k_source is ROPE_SOURCE_CACHE");
}

static rope_status check_v_head_dim(rope_append_desc *desc) {
    if (desc->v_head_dim < 0 || desc->v_head_dim > ROPE_MAX_APPEND_HEAD_DIM)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "v_head_dim is %d; allowed is 0..%d",
                         desc->v_head_dim, ROPE_MAX_APPEND_HEAD_DIM);
    if (desc->v_head_dim == 0)
        desc->v_head_dim = desc->rope.head_dim;
    return ROPE_OK;
}

static rope_status check_parts(rope_append_desc *desc) {
    const int32_t dtype = desc->rope.dtype;
    rope_status status = check_part("q", &desc->q, dtype, desc->rope.head_dim);
    if (status == ROPE_OK)
        status = check_part("k", &desc->k, dtype, desc->rope.k_head_dim);
    return status == ROPE_OK ? check_part("v", &desc->v, dtype, desc->v_head_dim) : status;
}

rope_status rope_append_descriptor_read(const rope_append_desc *given, rope_append_desc *full) {
    rope_append_desc sized;
    rope_status status = rope_abi_read_embedding(&sized, sizeof sized, sizeof sized.rope, given,
                                                 "rope_append_desc", "rope_desc");
    if (status != ROPE_OK)
        return status;
    *full = sized;
    status =
        rope_choice_check("", "rotation", &full->rotation, rope_rotation_names, ROPE_ROTATION_ON);
    if (status == ROPE_OK)
        status = rope_embedded_read(&sized.rope, ROPE_MAX_APPEND_HEAD_DIM,
                                    full->rotation == ROPE_ROTATION_ON,
                                    "where rotation is ROPE_ROTATION_OFF", &full->rope);
    if (status == ROPE_OK)
        status = rope_choice_check("", "cache", &full->cache, rope_cache_names, 0);
    if (status == ROPE_OK)
        status = check_source(full);
    if (status == ROPE_OK && full->cache == 0)
        status =
            rope_unread_check(full, cache_fields, ROPE_COUNT(cache_fields), "", "without a cache");
    if (status == ROPE_OK)
        status = check_v_head_dim(full);
    if (status == ROPE_OK && full->cache)
        status = check_cache(full);
    return status == ROPE_OK ? check_parts(full) : status;
}
