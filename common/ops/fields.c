#include "common/ops/fields.h"

#include "common/ops/rope_descriptor.h"
#include "common/status.h"

#include <stdio.h>
#include <string.h>

/* What a rotation alone reads of a rope_desc. */
static const rope_unread rotation_fields[] = {
    ROPE_UNREAD(rope_desc, rotary_dim),
    ROPE_UNREAD(rope_desc, rotary_offset),
    ROPE_UNREAD(rope_desc, k_rotary_offset),
    ROPE_UNREAD_CHOICE(rope_desc, pairing_in, rope_pairing_names),
    ROPE_UNREAD_CHOICE(rope_desc, pairing_out, rope_pairing_names),
    ROPE_UNREAD_CHOICE(rope_desc, direction, rope_direction_names),
    ROPE_UNREAD_CHOICE(rope_desc, angle_mode, rope_angle_names),
    ROPE_UNREAD_CHOICE(rope_desc, arithmetic, rope_arithmetic_names),
    ROPE_UNREAD_CHOICE(rope_desc, rope_type, rope_type_names),
    ROPE_UNREAD(rope_desc, rope_theta),
    ROPE_UNREAD(rope_desc, factor),
    ROPE_UNREAD(rope_desc, low_freq_factor),
    ROPE_UNREAD(rope_desc, high_freq_factor),
    ROPE_UNREAD(rope_desc, beta_fast),
    ROPE_UNREAD(rope_desc, beta_slow),
    ROPE_UNREAD(rope_desc, mscale),
    ROPE_UNREAD(rope_desc, mscale_all_dim),
    ROPE_UNREAD(rope_desc, attention_factor),
    ROPE_UNREAD(rope_desc, alpha),
    ROPE_UNREAD(rope_desc, partial_rotary_factor),
    ROPE_UNREAD(rope_desc, short_mscale),
    ROPE_UNREAD(rope_desc, long_mscale),
    ROPE_UNREAD(rope_desc, xpos_scale_base),
    ROPE_UNREAD(rope_desc, xpos_center),
    ROPE_UNREAD(rope_desc, original_max_position_embeddings),
    ROPE_UNREAD(rope_desc, max_position_embeddings),
    ROPE_UNREAD(rope_desc, sequence_length),
    ROPE_UNREAD(rope_desc, short_factor),
    ROPE_UNREAD(rope_desc, long_factor),
    ROPE_UNREAD(rope_desc, inv_freq),
    ROPE_UNREAD(rope_desc, factor_count),
    ROPE_UNREAD_CHOICE(rope_desc, truncate, rope_truncate_names),
    ROPE_UNREAD_CHOICE(rope_desc, longrope_select, rope_longrope_names),
    ROPE_UNREAD(rope_desc, axes),
    ROPE_UNREAD_CHOICE(rope_desc, axis_layout, rope_axes_names),
    ROPE_UNREAD_CHOICE(rope_desc, axis_frequency, rope_axis_frequency_names),
    ROPE_UNREAD(rope_desc, sections),
    ROPE_UNREAD(rope_desc, pair_axis),
    ROPE_UNREAD_CHOICE(rope_desc, table_dtype, rope_dtype_names),
    ROPE_UNREAD_CHOICE(rope_desc, table_width, rope_table_names),
    ROPE_UNREAD_CHOICE(rope_desc, out_of_range, rope_out_of_range_names),
};

static int is_zero(const char *bytes, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (bytes[i])
            return 0;
    return 1;
}

static void value_text(const rope_unread *field, const char *at, char *text, size_t room) {
    int32_t small;
    int64_t large;
    double real;
    if (field->kind == KIND_I32) {
        memcpy(&small, at, sizeof small);
        snprintf(text, room, "%s", rope_choice_name(field->names, small).text);
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

rope_status rope_unread_check(const void *record, const rope_unread *list, size_t count,
                              const char *prefix, const char *where) {
    for (size_t i = 0; i < count; i++) {
        const char *at = (const char *)record + list[i].offset;
        char value[sizeof(rope_choice_text)];
        if (is_zero(at, list[i].size))
            continue;
        value_text(&list[i], at, value, sizeof value);
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "%s%s is %s; allowed is 0 %s", prefix,
                         list[i].name, value, where);
    }
    return ROPE_OK;
}

rope_status rope_index_dtype_check(const char *name, int32_t *dtype, int is_read, const char *where,
                                   int32_t position_dtype) {
    if (*dtype && !is_read)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "%s is %s; allowed is 0 unless cache is %s",
                         name, rope_choice_name(rope_dtype_names, *dtype).text, where);
    if (*dtype && *dtype != ROPE_I32 && *dtype != ROPE_I64)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "%s is %s; allowed is 0 (position_dtype), ROPE_I32 or ROPE_I64 (5, 6)",
                         name, rope_choice_name(rope_dtype_names, *dtype).text);
    if (*dtype == 0)
        *dtype = position_dtype;
    return ROPE_OK;
}

rope_status rope_ring_check(int64_t ring, int32_t cache, int64_t page_size) {
    if (ring < 0)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "ring is %lld; allowed is >= 0",
                         (long long)ring);
    if (ring && cache == ROPE_CACHE_SLOTS)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "ring is %lld; allowed is 0 where cache is ROPE_CACHE_SLOTS",
                         (long long)ring);
    return cache != ROPE_CACHE_SEQUENCE || ring <= page_size
               ? ROPE_OK
               : rope_fail(ROPE_ERROR_INVALID_VALUE,
                           "ring is %lld; allowed is 0..%lld (page_size) where cache is "
                           "ROPE_CACHE_SEQUENCE",
                           (long long)ring, (long long)page_size);
}

rope_status rope_dim_block_check(const char *name, int32_t *block, int32_t head_dim) {
    if (*block == 0)
        *block = head_dim;
    if (*block < 1 || head_dim % *block != 0)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "%s is %d; allowed is 0 or a divisor of the head's %d elements", name,
                         *block, head_dim);
    return ROPE_OK;
}

rope_status rope_store_check(const char *part, const char *name, int32_t *store_dtype,
                             int32_t *scale, int32_t dtype) {
    const int32_t type = *store_dtype ? *store_dtype : dtype;
    if ((type < ROPE_F32 || type > ROPE_BF16) && (type < ROPE_F8E4M3 || type > ROPE_I8))
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "%s.%s is %s; allowed is 0 (dtype), ROPE_F32, ROPE_F16, ROPE_BF16 (1..3), "
                         "ROPE_F8E4M3, ROPE_F8E5M2, ROPE_F8E4M3FNUZ or ROPE_I8 (7..10)",
                         part, name, rope_choice_name(rope_dtype_names, type).text);
    *store_dtype = type;
    if (*scale && type <= ROPE_BF16)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "%s.scale is %s; allowed is 0 unless %s.%s has 8 bits", part,
                         rope_choice_name(rope_scale_names, *scale).text, part, name);
    return rope_choice_check(part, ".scale", scale, rope_scale_names, 0);
}

/* Without a rotation one pair stands for the window, which every head has. */
rope_status rope_embedded_read(const rope_desc *given, int32_t most, int rotates, const char *where,
                               rope_desc *full) {
    rope_desc desc = *given;
    rope_status status = ROPE_OK;
    if (given->dtype < ROPE_F32 || given->dtype > ROPE_BF16)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "dtype is %s; allowed is ROPE_F32, ROPE_F16 or ROPE_BF16 (1..3)",
                         given->dtype ? rope_choice_name(rope_dtype_names, given->dtype).text
                                      : "not given");
    if (!rotates) {
        status = rope_unread_check(given, rotation_fields, ROPE_COUNT(rotation_fields), "", where);
        desc.rotary_dim = 2;
    }
    if (status == ROPE_OK)
        status = rope_descriptor_read(&desc, most, full);
    if (!rotates)
        full->rotary_dim = 0;
    return status;
}

rope_status rope_bounds_check(const rope_bound *bounds, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (bounds[i].value < 0)
            return rope_fail(ROPE_ERROR_INVALID_VALUE, "bounds.%s is %lld; allowed is >= 0",
                             bounds[i].name, (long long)bounds[i].value);
    return ROPE_OK;
}
