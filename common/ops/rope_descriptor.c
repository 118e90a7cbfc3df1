#include "common/ops/rope_descriptor.h"

#include "common/abi.h"
#include "common/frequency/frequency.h"
#include "common/ops/fields.h"
#include "common/status.h"

_Static_assert(sizeof(rope_desc) <= ROPE_MAX_STRUCT_SIZE / 4, "room for fields to come");

/* A field that holds a value of an enumeration; initial: as rope_choice_check takes it. */
typedef struct choice_field {
    const char *name;
    size_t offset;
    const char *names;
    int32_t initial;
} choice_field;

#define CHOICE(field, names, initial)                                                              \
    { #field, offsetof(rope_desc, field), names, initial }

static const choice_field choices[] = {
    CHOICE(pairing_in, rope_pairing_names, ROPE_PAIRING_HALF_SPLIT),
    CHOICE(pairing_out, rope_pairing_names, ROPE_CHOICE_LATER),
    CHOICE(direction, rope_direction_names, ROPE_FORWARD),
    CHOICE(angle_mode, rope_angle_names, ROPE_ANGLE_EXACT),
    CHOICE(arithmetic, rope_arithmetic_names, ROPE_ARITHMETIC_FP32),
    CHOICE(rope_type, rope_type_names, ROPE_CHOICE_LATER),
    CHOICE(truncate, rope_truncate_names, ROPE_CHOICE_LATER),
    CHOICE(longrope_select, rope_longrope_names, ROPE_CHOICE_LATER),
    CHOICE(axis_layout, rope_axes_names, 0),
    CHOICE(axis_frequency, rope_axis_frequency_names, ROPE_AXIS_FREQUENCY_SHARED),
    CHOICE(shard, rope_shard_names, ROPE_SHARD_NONE),
    CHOICE(table_width, rope_table_names, ROPE_CHOICE_LATER),
    CHOICE(out_of_range, rope_out_of_range_names, ROPE_CHOICE_LATER),
    CHOICE(launch, rope_launch_names, ROPE_LAUNCH_SERIAL),
};

static rope_status check_choices(rope_desc *desc) {
    rope_status status = ROPE_OK;
    for (size_t i = 0; i < sizeof choices / sizeof choices[0] && status == ROPE_OK; i++) {
        const choice_field *field = &choices[i];
        status = rope_choice_check("", field->name, (int32_t *)((char *)desc + field->offset),
                                   field->names, field->initial);
    }
    if (desc->pairing_out == 0)
        desc->pairing_out = desc->pairing_in;
    return status;
}

static rope_status check_window(const char *name, int32_t offset, int32_t rotary_dim,
                                const char *limit_name, int32_t limit) {
    if (offset < 0 || offset % 2 || offset > limit - rotary_dim)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "%s is %d; allowed is an even number in 0..%d (%s %d - rotary_dim %d)",
                         name, offset, limit - rotary_dim, limit_name, limit, rotary_dim);
    return ROPE_OK;
}

static rope_status check_shape(rope_desc *desc, int32_t most_elements) {
    static const char dtypes[] = "ROPE_F32, ROPE_F16, ROPE_BF16 or ROPE_F64 (1..4)";
    if (desc->dtype == 0)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "dtype is not given; allowed is %s", dtypes);
    if (desc->dtype < ROPE_F32 || desc->dtype > ROPE_F64)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "dtype is %s; allowed is %s",
                         rope_choice_name(rope_dtype_names, desc->dtype).text, dtypes);
    if (desc->head_dim == 0)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "head_dim is not given; allowed is 2..%d",
                         most_elements);
    if (desc->head_dim < 2 || desc->head_dim > most_elements)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "head_dim is %d; allowed is 2..%d",
                         desc->head_dim, most_elements);
    int32_t most = desc->head_dim < ROPE_MAX_ROTARY_DIM ? desc->head_dim & ~1 : ROPE_MAX_ROTARY_DIM;
    if (desc->rotary_dim == 0 && desc->head_dim != most)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "rotary_dim is not given, which stands for head_dim (%d); allowed is an "
                         "even number in 2..%d",
                         desc->head_dim, most);
    if (desc->rotary_dim == 0)
        desc->rotary_dim = desc->head_dim;
    if (desc->rotary_dim < 2 || desc->rotary_dim % 2 || desc->rotary_dim > most)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "rotary_dim is %d; allowed is an even number in 2..%d (head_dim is %d)",
                         desc->rotary_dim, most, desc->head_dim);
    rope_status status = check_window("rotary_offset", desc->rotary_offset, desc->rotary_dim,
                                      "head_dim", desc->head_dim);
    if (status != ROPE_OK)
        return status;
    if (desc->k_head_dim == 0) {
        if (desc->k_rotary_offset != 0)
            return rope_fail(ROPE_ERROR_INVALID_VALUE,
                             "k_rotary_offset is %d; allowed is 0 while k_head_dim is not given",
                             desc->k_rotary_offset);
        desc->k_head_dim = desc->head_dim;
        desc->k_rotary_offset = desc->rotary_offset;
        return ROPE_OK;
    }
    if (desc->k_head_dim < desc->rotary_dim || desc->k_head_dim > most_elements)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "k_head_dim is %d; allowed is 0 or %d (rotary_dim)..%d", desc->k_head_dim,
                         desc->rotary_dim, most_elements);
    return check_window("k_rotary_offset", desc->k_rotary_offset, desc->rotary_dim, "k_head_dim",
                        desc->k_head_dim);
}

static rope_status check_sections(const rope_desc *desc) {
    int64_t sum = 0;
    for (int32_t a = 0; a < ROPE_MAX_AXES; a++) {
        int32_t n = desc->sections[a];
        if (n < 0 || (a >= desc->axes && n != 0))
            return rope_fail(ROPE_ERROR_INVALID_VALUE, "sections[%d] is %d; allowed is %s", a, n,
                             n < 0 ? ">= 0" : "0 past the last axis");
        sum += n;
    }
    if (sum != desc->rotary_dim / 2)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "sections sum to %lld; allowed is rotary_dim / 2 = %d", (long long)sum,
                         desc->rotary_dim / 2);
    if (desc->axis_layout == ROPE_AXES_ALTERNATING && desc->sections[1] != desc->sections[2])
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "sections[2] is %d; allowed is sections[1] = %d where axes alternate",
                         desc->sections[2], desc->sections[1]);
    for (int32_t a = 1; a < 3 && desc->axis_layout == ROPE_AXES_INTERLEAVED; a++)
        if (3 * (int64_t)desc->sections[a] > desc->rotary_dim / 2 + 2 - a)
            return rope_fail(ROPE_ERROR_INVALID_VALUE,
                             "sections[%d] is %d; allowed is 0..%d where axes interleave", a,
                             desc->sections[a], (desc->rotary_dim / 2 + 2 - a) / 3);
    return ROPE_OK;
}

static rope_status check_pair_axis(const rope_desc *desc) {
    if (!desc->pair_axis)
        return rope_fail(ROPE_ERROR_NULL_POINTER,
                         "pair_axis is NULL; allowed with axis_layout custom is a list of axes");
    for (int32_t i = 0; i < desc->rotary_dim / 2; i++)
        if (desc->pair_axis[i] >= desc->axes)
            return rope_fail(ROPE_ERROR_INVALID_VALUE, "pair_axis[%d] is %d; allowed is 0..%d", i,
                             desc->pair_axis[i], desc->axes - 1);
    return ROPE_OK;
}

static rope_status check_axes(rope_desc *desc) {
    if (desc->axes == 0)
        desc->axes = 1;
    if (desc->axes < 1 || desc->axes > ROPE_MAX_AXES)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "axes is %d; allowed is 1..%d", desc->axes,
                         ROPE_MAX_AXES);
    int sectioned = desc->axis_layout != 0 && desc->axis_layout != ROPE_AXES_CUSTOM;
    if (desc->axes > 1 && desc->axis_layout == 0)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "axis_layout is not given; allowed is chunked, interleaved, alternating "
                         "or custom (1..4) with %d axes",
                         desc->axes);
    if (desc->axis_layout >= ROPE_AXES_INTERLEAVED && sectioned && desc->axes != 3)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "axes is %d; allowed is 3 where axes interleave or alternate", desc->axes);
    if (desc->pair_axis && desc->axis_layout != ROPE_AXES_CUSTOM)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "pair_axis is given; allowed is NULL unless axis_layout is custom");
    if (desc->axis_frequency == ROPE_AXIS_FREQUENCY_RESTART &&
        desc->axis_layout != ROPE_AXES_CHUNKED)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "axis_frequency is restart; allowed is shared unless axis_layout is "
                         "chunked");
    if (sectioned)
        return check_sections(desc);
    for (int32_t a = 0; a < ROPE_MAX_AXES; a++)
        if (desc->sections[a] != 0)
            return rope_fail(ROPE_ERROR_INVALID_VALUE,
                             "sections[%d] is %d; allowed is 0 without an axis_layout of sections",
                             a, desc->sections[a]);
    return desc->axis_layout == ROPE_AXES_CUSTOM ? check_pair_axis(desc) : ROPE_OK;
}

static rope_status check_positions(rope_desc *desc) {
    if (desc->position_dtype == 0)
        desc->position_dtype = ROPE_I64;
    if (desc->position_dtype != ROPE_I32 && desc->position_dtype != ROPE_I64)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "position_dtype is %s; allowed is ROPE_I32 or ROPE_I64 (5, 6)",
                         rope_choice_name(rope_dtype_names, desc->position_dtype).text);
    if (desc->shard == ROPE_SHARD_NONE) {
        if (desc->shard_size != 0 || desc->shard_rank != 0)
            return rope_fail(ROPE_ERROR_INVALID_VALUE,
                             "shard_rank is %d and shard_size is %d; allowed is 0 without shard",
                             desc->shard_rank, desc->shard_size);
        desc->shard_size = 1;
        return ROPE_OK;
    }
    if (desc->shard_size == 0)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "shard_size is not given; allowed is > 0 with shard");
    if (desc->shard_size < 0)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "shard_size is %d; allowed is > 0",
                         desc->shard_size);
    if (desc->shard_rank < 0 || desc->shard_rank >= desc->shard_size)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "shard_rank is %d; allowed is 0..%d",
                         desc->shard_rank, desc->shard_size - 1);
    return ROPE_OK;
}

static rope_status check_tables(rope_desc *desc) {
    if (desc->angle_mode != ROPE_ANGLE_TABLE) {
        static const rope_unread unread[] = {
            ROPE_UNREAD_CHOICE(rope_desc, table_dtype, rope_dtype_names),
            ROPE_UNREAD_CHOICE(rope_desc, table_width, rope_table_names),
            ROPE_UNREAD_CHOICE(rope_desc, out_of_range, rope_out_of_range_names)};
        return rope_unread_check(desc, unread, ROPE_COUNT(unread), "",
                                 "unless angle_mode is table");
    }
    if (desc->axis_frequency == ROPE_AXIS_FREQUENCY_RESTART)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "axis_frequency is restart; allowed is shared where angle_mode is table");
    if (desc->table_dtype == 0)
        desc->table_dtype = ROPE_F32;
    if (desc->table_dtype != ROPE_F32 && desc->table_dtype != desc->dtype)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "table_dtype is %s; allowed is 0, 1 (ROPE_F32) or dtype, %s",
                         rope_choice_name(rope_dtype_names, desc->table_dtype).text,
                         rope_choice_name(rope_dtype_names, desc->dtype).text);
    if (desc->table_width == 0)
        desc->table_width = ROPE_TABLE_HALF;
    if (desc->out_of_range == 0)
        desc->out_of_range = ROPE_OUT_OF_RANGE_ERROR;
    return ROPE_OK;
}

rope_status rope_descriptor_read(const rope_desc *given, int32_t most, rope_desc *full) {
    rope_status status = rope_abi_read(full, sizeof *full, given, "rope_desc");
    if (status == ROPE_OK)
        status = check_choices(full);
    if (status == ROPE_OK)
        status = check_shape(full, most);
    if (status == ROPE_OK)
        status = check_axes(full);
    if (status == ROPE_OK)
        status = check_positions(full);
    if (status == ROPE_OK)
        status = check_tables(full);
    if (status != ROPE_OK)
        return status;
    if (full->device < 0)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "device is %d; allowed is >= 0", full->device);
    if (full->rope_type == 0 && full->angle_mode != ROPE_ANGLE_TABLE)
        full->rope_type = ROPE_TYPE_DEFAULT;
    return rope_frequency_check(full);
}

int32_t rope_descriptor_axis(const rope_desc *desc, int32_t pair) {
    const int32_t *n = desc->sections;
    switch (desc->axis_layout) {
    case ROPE_AXES_CHUNKED:
        return pair < n[0] ? 0 : pair < n[0] + n[1] ? 1 : pair < n[0] + n[1] + n[2] ? 2 : 3;
    case ROPE_AXES_INTERLEAVED:
        return pair % 3 != 0 && pair < 3 * n[pair % 3] ? pair % 3 : 0;
    case ROPE_AXES_ALTERNATING:
        return pair < n[1] + n[2] ? 1 + pair % 2 : 0;
    case ROPE_AXES_CUSTOM:
        return desc->pair_axis[pair];
    default:
        return 0;
    }
}

rope_status rope_transpose_check(const rope_desc *desc) {
    if (desc->direction == ROPE_INVERSE)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "direction is %s; allowed is ROPE_FORWARD (1) or ROPE_TRANSPOSE (2) for a "
                         "gradient",
                         rope_choice_name(rope_direction_names, desc->direction).text);
    if (desc->table_width == ROPE_TABLE_FULL && desc->pairing_in != desc->pairing_out)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "table_width is %s; allowed is ROPE_TABLE_HALF (1) for a gradient where "
                         "pairing_in is not pairing_out",
                         rope_choice_name(rope_table_names, desc->table_width).text);
    return ROPE_OK;
}
