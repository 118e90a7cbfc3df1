#include "common/names.h"

#include "common/status.h"

#include <stdio.h>
#include <string.h>

const char rope_dtype_names[] =
    "ROPE_F32, ROPE_F16, ROPE_BF16, ROPE_F64, ROPE_I32, ROPE_I64, ROPE_F8E4M3, ROPE_F8E5M2, "
    "ROPE_F8E4M3FNUZ, ROPE_I8";
const char rope_pairing_names[] = "ROPE_PAIRING_HALF_SPLIT, ROPE_PAIRING_INTERLEAVED";
const char rope_direction_names[] = "ROPE_FORWARD, ROPE_TRANSPOSE, ROPE_INVERSE";
const char rope_angle_names[] = "ROPE_ANGLE_EXACT, ROPE_ANGLE_F32, ROPE_ANGLE_TABLE";
const char rope_arithmetic_names[] = "ROPE_ARITHMETIC_FP32, ROPE_ARITHMETIC_MODEL_DTYPE";
const char rope_type_names[] =
    "ROPE_TYPE_DEFAULT, ROPE_TYPE_LINEAR, ROPE_TYPE_DYNAMIC, ROPE_TYPE_YARN, ROPE_TYPE_LONGROPE, "
    "ROPE_TYPE_LLAMA3, ROPE_TYPE_PROPORTIONAL, ROPE_TYPE_INV_FREQ";
const char rope_truncate_names[] = "ROPE_TRUNCATE_ON, ROPE_TRUNCATE_OFF";
const char rope_longrope_names[] =
    "ROPE_LONGROPE_PER_SEQUENCE, ROPE_LONGROPE_STATIC, ROPE_LONGROPE_SHORT, ROPE_LONGROPE_LONG";
const char rope_axes_names[] =
    "ROPE_AXES_CHUNKED, ROPE_AXES_INTERLEAVED, ROPE_AXES_ALTERNATING, ROPE_AXES_CUSTOM";
const char rope_axis_frequency_names[] = "ROPE_AXIS_FREQUENCY_SHARED, ROPE_AXIS_FREQUENCY_RESTART";
const char rope_table_names[] = "ROPE_TABLE_HALF, ROPE_TABLE_FULL";
const char rope_out_of_range_names[] =
    "ROPE_OUT_OF_RANGE_ERROR, ROPE_OUT_OF_RANGE_IDENTITY, ROPE_OUT_OF_RANGE_CLAMP";
const char rope_launch_names[] = "ROPE_LAUNCH_SERIAL, ROPE_LAUNCH_PROGRAMMATIC";
const char rope_shard_names[] = "ROPE_SHARD_NONE, ROPE_SHARD_CONTIGUOUS, ROPE_SHARD_ZIGZAG";
const char rope_time_names[] =
    "ROPE_TIME_APPLY, ROPE_TIME_KERNEL, ROPE_TIME_COPY, ROPE_TIME_UPDATE";
const char rope_norm_names[] = "ROPE_NORM_RMS, ROPE_NORM_LAYER";
const char rope_norm_scope_names[] = "ROPE_NORM_HEAD, ROPE_NORM_TOKEN";
const char rope_norm_weight_names[] = "ROPE_NORM_WEIGHT, ROPE_NORM_ONE_PLUS_WEIGHT";
const char rope_norm_rounding_names[] = "ROPE_NORM_ROUND_ONCE, ROPE_NORM_ROUND_TWICE";
const char rope_scale_names[] =
    "ROPE_SCALE_TENSOR, ROPE_SCALE_HEAD, ROPE_SCALE_TOKEN_HEAD, ROPE_SCALE_TOKEN_HEAD_MAX";
const char rope_rotation_names[] = "ROPE_ROTATION_ON, ROPE_ROTATION_OFF";
const char rope_cache_names[] = "ROPE_CACHE_SLOTS, ROPE_CACHE_TABLE, ROPE_CACHE_SEQUENCE";
const char rope_source_names[] = "ROPE_SOURCE_TENSOR, ROPE_SOURCE_CACHE";
const char rope_attention_rotation_names[] =
    "ROPE_ATTENTION_ROTATE_QK, ROPE_ATTENTION_ROTATE_Q, ROPE_ATTENTION_ROTATE_NONE";
const char rope_mask_names[] = "ROPE_MASK_CAUSAL, ROPE_MASK_FULL, ROPE_MASK_TREE";

/* The name of a value, up to a comma; NULL where it has none. */
static const char *name_of(const char *names, int32_t value) {
    const char *at = value > 0 ? names : NULL;
    for (int32_t i = 1; at && i < value; i++) {
        at = strchr(at, ',');
        at = at ? at + 2 : NULL;
    }
    return at;
}

rope_choice_text rope_choice_name(const char *names, int32_t value) {
    rope_choice_text made;
    const char *name = name_of(names, value);
    if (name)
        snprintf(made.text, sizeof made.text, "%d (%.*s)", value, (int)strcspn(name, ","), name);
    else
        snprintf(made.text, sizeof made.text, "%d", value);
    return made;
}

rope_status rope_choice_check(const char *part, const char *name, int32_t *value, const char *names,
                              int32_t initial) {
    int32_t last = 1;
    while (name_of(names, last + 1))
        last++;
    if (*value < 0 || *value > last)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "%s%s is %d; allowed is 0 (%s), %s (1..%d)",
                         part, name, *value, initial ? "default" : "none", names, last);
    if (*value == 0 && initial != ROPE_CHOICE_LATER)
        *value = initial;
    return ROPE_OK;
}
