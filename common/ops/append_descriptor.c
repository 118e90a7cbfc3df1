#include "common/ops/append_descriptor.h"

#include "common/abi.h"
#include "common/ops/rope_descriptor.h"
#include "common/status.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

_Static_assert(sizeof(rope_append_desc) <= ROPE_MAX_STRUCT_SIZE / 2, "room for fields to come");

/* A field that must be 0 where nothing reads it: a number, or of another kind. */
typedef enum field_kind { KIND_I32, KIND_I64, KIND_REAL, KIND_OTHER } field_kind;
typedef struct unread_field {
    const char *name;
    size_t offset, size;
    field_kind kind;
} unread_field;

#define UNREAD(type, field)                                                                        \
    {                                                                                              \
#field, offsetof(type, field), sizeof(((type *)0)->field),                                 \
            _Generic(((type *)0)->field, int32_t                                                   \
                     : KIND_I32, int64_t                                                           \
                     : KIND_I64, double                                                            \
                     : KIND_REAL, default                                                          \
                     : KIND_OTHER)                                                                 \
    }

/* What a rotation alone reads of a rope_desc. */
static const unread_field rotation_fields[] = {
    UNREAD(rope_desc, rotary_dim),
    UNREAD(rope_desc, rotary_offset),
    UNREAD(rope_desc, k_rotary_offset),
    UNREAD(rope_desc, pairing_in),
    UNREAD(rope_desc, pairing_out),
    UNREAD(rope_desc, direction),
    UNREAD(rope_desc, angle_mode),
    UNREAD(rope_desc, arithmetic),
    UNREAD(rope_desc, rope_type),
    UNREAD(rope_desc, rope_theta),
    UNREAD(rope_desc, factor),
    UNREAD(rope_desc, low_freq_factor),
    UNREAD(rope_desc, high_freq_factor),
    UNREAD(rope_desc, beta_fast),
    UNREAD(rope_desc, beta_slow),
    UNREAD(rope_desc, mscale),
    UNREAD(rope_desc, mscale_all_dim),
    UNREAD(rope_desc, attention_factor),
    UNREAD(rope_desc, alpha),
    UNREAD(rope_desc, partial_rotary_factor),
    UNREAD(rope_desc, short_mscale),
    UNREAD(rope_desc, long_mscale),
    UNREAD(rope_desc, xpos_scale_base),
    UNREAD(rope_desc, xpos_center),
    UNREAD(rope_desc, original_max_position_embeddings),
    UNREAD(rope_desc, max_position_embeddings),
    UNREAD(rope_desc, sequence_length),
    UNREAD(rope_desc, short_factor),
    UNREAD(rope_desc, long_factor),
    UNREAD(rope_desc, inv_freq),
    UNREAD(rope_desc, factor_count),
    UNREAD(rope_desc, truncate),
    UNREAD(rope_desc, longrope_select),
    UNREAD(rope_desc, axes),
    UNREAD(rope_desc, axis_layout),
    UNREAD(rope_desc, axis_frequency),
    UNREAD(rope_desc, sections),
    UNREAD(rope_desc, pair_axis),
    UNREAD(rope_desc, table_dtype),
    UNREAD(rope_desc, table_width),
    UNREAD(rope_desc, out_of_range),
};

/* What a norm reads beside its type, and what a cache reads. */
static const unread_field norm_fields[] = {
    UNREAD(rope_norm, scope),        UNREAD(rope_norm, offset),   UNREAD(rope_norm, dim),
    UNREAD(rope_norm, weight),       UNREAD(rope_norm, rounding), UNREAD(rope_norm, eps),
    UNREAD(rope_norm, weight_dtype),
};
static const unread_field cache_fields[] = {
    UNREAD(rope_append_desc, page_size),     UNREAD(rope_append_desc, ring),
    UNREAD(rope_append_desc, slot_dtype),    UNREAD(rope_append_desc, table_dtype),
    UNREAD(rope_append_desc, k_dim_block),   UNREAD(rope_append_desc, v_dim_block),
    UNREAD(rope_append_desc, k.store_dtype), UNREAD(rope_append_desc, v.store_dtype),
};

/* What keys that are read from the cache leave unread. */
static const unread_field source_fields[] = {
    UNREAD(rope_append_desc, q.norm.type),   UNREAD(rope_append_desc, q.factor),
    UNREAD(rope_append_desc, q.store_dtype), UNREAD(rope_append_desc, q.scale),
    UNREAD(rope_append_desc, k.norm.type),   UNREAD(rope_append_desc, v.norm.type),
    UNREAD(rope_append_desc, v.factor),      UNREAD(rope_append_desc, v.store_dtype),
    UNREAD(rope_append_desc, v.scale),       UNREAD(rope_append_desc, v_head_dim),
    UNREAD(rope_append_desc, v_dim_block),
};

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

static int is_zero(const char *bytes, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (bytes[i])
            return 0;
    return 1;
}

static void value_text(const unread_field *field, const char *at, char *text, size_t room) {
    int32_t small;
    int64_t large;
    double real;
    if (field->kind == KIND_I32) {
        memcpy(&small, at, sizeof small);
        snprintf(text, room, "%d", small);
    } else if (field->kind == KIND_I64) {
        memcpy(&large, at, sizeof large);
        snprintf(text, room, "%lld", (long long)large);
    } else if (field->kind == KIND_REAL) {
        memcpy(&real, at, sizeof real);
        snprintf(text, room, "%g", real);
    } else {
        snprintf(text, room, "set");
    }
}

static rope_status check_unread(const void *record, const unread_field *list, size_t count,
                                const char *prefix, const char *where) {
    for (size_t i = 0; i < count; i++) {
        const char *at = (const char *)record + list[i].offset;
        char value[32];
        if (is_zero(at, list[i].size))
            continue;
        value_text(&list[i], at, value, sizeof value);
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "%s%s is %s; allowed is 0 %s", prefix,
                         list[i].name, value, where);
    }
    return ROPE_OK;
}

static rope_status check_choice(const char *part, const char *name, int32_t *value, int32_t last,
                                int32_t initial) {
    if (*value < 0 || *value > last)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "%s%s is %d; allowed is 0..%d", part, name,
                         *value, last);
    if (*value == 0)
        *value = initial;
    return ROPE_OK;
}

/* A number that fp32 holds, too. */
static int is_finite(double x) {
    return isfinite((float)x);
}

static rope_status check_norm_window(const char *part, rope_norm *norm, int32_t head_dim) {
    if (norm->offset < 0 || norm->offset >= head_dim)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "%s.norm.offset is %d; allowed is 0..%d (head_dim %d - 1)", part,
                         norm->offset, head_dim - 1, head_dim);
    if (norm->dim < 0 || norm->dim > head_dim - norm->offset)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "%s.norm.dim is %d; allowed is 0..%d (head_dim %d - norm.offset %d)", part,
                         norm->dim, head_dim - norm->offset, head_dim, norm->offset);
    if (norm->dim == 0)
        norm->dim = head_dim - norm->offset;
    return ROPE_OK;
}

static rope_status check_norm_weight(const char *part, rope_norm *norm, int32_t dtype) {
    rope_status status =
        check_choice(part, ".norm.weight", &norm->weight, ROPE_NORM_ONE_PLUS_WEIGHT, 0);
    if (status != ROPE_OK)
        return status;
    if (norm->weight == 0 && norm->weight_dtype)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "%s.norm.weight_dtype is %d; allowed is 0 without norm.weight", part,
                         norm->weight_dtype);
    if (norm->weight_dtype == 0)
        norm->weight_dtype = dtype;
    if (norm->weight_dtype != ROPE_F32 && norm->weight_dtype != dtype)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "%s.norm.weight_dtype is %d; allowed is ROPE_F32 (1) or dtype (%d)", part,
                         norm->weight_dtype, dtype);
    return check_choice(part, ".norm.rounding", &norm->rounding, ROPE_NORM_ROUND_TWICE,
                        ROPE_NORM_ROUND_ONCE);
}

static rope_status check_norm(const char *part, rope_norm *norm, int32_t dtype, int32_t head_dim) {
    rope_status status = check_choice(part, ".norm.type", &norm->type, ROPE_NORM_LAYER, 0);
    if (status == ROPE_OK && norm->type == 0) {
        char prefix[16];
        snprintf(prefix, sizeof prefix, "%s.norm.", part);
        return check_unread(norm, norm_fields, COUNT(norm_fields), prefix, "without norm.type");
    }
    if (status == ROPE_OK)
        status = check_choice(part, ".norm.scope", &norm->scope, ROPE_NORM_TOKEN, ROPE_NORM_HEAD);
    if (status == ROPE_OK)
        status = check_norm_window(part, norm, head_dim);
    if (status == ROPE_OK)
        status = check_norm_weight(part, norm, dtype);
    if (status == ROPE_OK && !(norm->eps >= 0 && is_finite(norm->eps)))
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "%s.norm.eps is %g; allowed is >= 0 and finite in fp32", part, norm->eps);
    return status;
}

static rope_status check_store(const char *part, rope_append_part *steps, int32_t dtype) {
    const int32_t type = steps->store_dtype ? steps->store_dtype : dtype;
    if ((type < ROPE_F32 || type > ROPE_BF16) && (type < ROPE_F8E4M3 || type > ROPE_I8))
        return rope_fail(
            ROPE_ERROR_INVALID_VALUE,
            "%s.store_dtype is %d; allowed is 0, ROPE_F32, ROPE_F16, ROPE_BF16 (1..3), "
            "ROPE_F8E4M3, ROPE_F8E5M2, ROPE_F8E4M3FNUZ or ROPE_I8 (7..10)",
            part, type);
    steps->store_dtype = type;
    if (steps->scale && type <= ROPE_BF16)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "%s.scale is %d; allowed is 0 unless %s.store_dtype has 8 bits", part,
                         steps->scale, part);
    return check_choice(part, ".scale", &steps->scale, ROPE_SCALE_TOKEN_HEAD_MAX, 0);
}

static rope_status check_part(const char *part, rope_append_part *steps, int32_t dtype,
                              int32_t head_dim) {
    rope_status status = check_norm(part, &steps->norm, dtype, head_dim);
    if (status == ROPE_OK && !is_finite(steps->factor))
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "%s.factor is %g; allowed is finite in fp32",
                         part, steps->factor);
    if (steps->factor == 0)
        steps->factor = 1;
    return status == ROPE_OK ? check_store(part, steps, dtype) : status;
}

static rope_status check_index_dtype(const char *name, int32_t *dtype, int is_read,
                                     const char *where, int32_t position_dtype) {
    if (*dtype && !is_read)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "%s is %d; allowed is 0 unless cache is %s",
                         name, *dtype, where);
    if (*dtype && *dtype != ROPE_I32 && *dtype != ROPE_I64)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "%s is %d; allowed is 0, ROPE_I32 or ROPE_I64 (5, 6)", name, *dtype);
    if (*dtype == 0)
        *dtype = position_dtype;
    return ROPE_OK;
}

static rope_status check_dim_block(const char *name, int32_t *block, int32_t head_dim) {
    if (*block == 0)
        *block = head_dim;
    if (*block < 1 || head_dim % *block != 0)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "%s is %d; allowed is 0 or a divisor of the head's %d elements", name,
                         *block, head_dim);
    return ROPE_OK;
}

static rope_status check_cache(rope_append_desc *desc) {
    const int32_t kind = desc->cache;
    if (desc->page_size == 0)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "page_size is not given; allowed is > 0 with a cache");
    if (desc->page_size < 1)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "page_size is %lld; allowed is > 0 with a cache",
                         (long long)desc->page_size);
    if (desc->ring < 0 || (desc->ring && kind == ROPE_CACHE_SLOTS))
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "ring is %lld; allowed is %s",
                         (long long)desc->ring,
                         desc->ring < 0 ? ">= 0" : "0 where cache is ROPE_CACHE_SLOTS");
    rope_status status =
        check_index_dtype("slot_dtype", &desc->slot_dtype, kind == ROPE_CACHE_SLOTS,
                          "ROPE_CACHE_SLOTS", desc->rope.position_dtype);
    if (status == ROPE_OK)
        status = check_index_dtype("table_dtype", &desc->table_dtype, kind == ROPE_CACHE_TABLE,
                                   "ROPE_CACHE_TABLE", desc->rope.position_dtype);
    if (status == ROPE_OK)
        status = check_dim_block("k_dim_block", &desc->k_dim_block, desc->rope.k_head_dim);
    if (status == ROPE_OK)
        status = check_dim_block("v_dim_block", &desc->v_dim_block, desc->v_head_dim);
    return status;
}

/* Ahead of the defaults of what it leaves unread. */
static rope_status check_source(rope_append_desc *desc) {
    rope_status status =
        check_choice("", "k_source", &desc->k_source, ROPE_SOURCE_CACHE, ROPE_SOURCE_TENSOR);
    if (status != ROPE_OK || desc->k_source == ROPE_SOURCE_TENSOR)
        return status;
    if (desc->cache == 0)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "k_source is %d; allowed is 0 or ROPE_SOURCE_TENSOR (1) without a cache",
                         desc->k_source);
    return check_unread(desc, source_fields, COUNT(source_fields), "",
                        "where k_source is ROPE_SOURCE_CACHE");
}

static rope_status check_head_dims(rope_append_desc *desc) {
    if (desc->v_head_dim == 0)
        desc->v_head_dim = desc->rope.head_dim;
    const char *const names[] = {"head_dim", "k_head_dim", "v_head_dim"};
    const int32_t dims[] = {desc->rope.head_dim, desc->rope.k_head_dim, desc->v_head_dim};
    for (int i = 0; i < 3; i++)
        if (dims[i] < 1 || dims[i] > ROPE_MAX_APPEND_HEAD_DIM)
            return rope_fail(ROPE_ERROR_INVALID_VALUE, "%s is %d; allowed is 1..%d", names[i],
                             dims[i], ROPE_MAX_APPEND_HEAD_DIM);
    return ROPE_OK;
}

/* Without a rotation one pair stands for the window, which every head has. */
static rope_status read_rope(const rope_desc *given, int32_t rotation, rope_desc *full) {
    rope_desc desc = *given;
    rope_status status = ROPE_OK;
    if (given->dtype == ROPE_F64)
        return rope_fail(
            ROPE_ERROR_INVALID_VALUE,
            "dtype is %d (ROPE_F64); allowed is ROPE_F32, ROPE_F16 or ROPE_BF16 (1..3)",
            given->dtype);
    if (rotation == ROPE_ROTATION_OFF) {
        status = check_unread(given, rotation_fields, COUNT(rotation_fields), "",
                              "where rotation is ROPE_ROTATION_OFF");
        desc.rotary_dim = 2;
    }
    if (status == ROPE_OK)
        status = rope_descriptor_read(&desc, full);
    if (rotation == ROPE_ROTATION_OFF)
        full->rotary_dim = 0;
    return status;
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
    status = check_choice("", "rotation", &full->rotation, ROPE_ROTATION_OFF, ROPE_ROTATION_ON);
    if (status == ROPE_OK)
        status = read_rope(&sized.rope, full->rotation, &full->rope);
    if (status == ROPE_OK)
        status = check_choice("", "cache", &full->cache, ROPE_CACHE_SEQUENCE, 0);
    if (status == ROPE_OK)
        status = check_source(full);
    if (status == ROPE_OK && full->cache == 0)
        status = check_unread(full, cache_fields, COUNT(cache_fields), "", "without a cache");
    if (status == ROPE_OK)
        status = check_head_dims(full);
    if (status == ROPE_OK && full->cache)
        status = check_cache(full);
    return status == ROPE_OK ? check_parts(full) : status;
}
