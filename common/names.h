/* Enumerations of the public headers: names of their values, and checks of fields that hold one. */
#ifndef ROPEKIT_COMMON_NAMES_H
#define ROPEKIT_COMMON_NAMES_H

#include <ropekit/rope.h>

/* Of the values from 1 on, as errors list them. */
extern const char rope_dtype_names[], rope_pairing_names[], rope_direction_names[],
    rope_angle_names[], rope_arithmetic_names[], rope_type_names[], rope_truncate_names[],
    rope_longrope_names[], rope_axes_names[], rope_axis_frequency_names[], rope_table_names[],
    rope_out_of_range_names[], rope_launch_names[], rope_shard_names[], rope_time_names[],
    rope_norm_names[], rope_norm_scope_names[], rope_norm_weight_names[],
    rope_norm_rounding_names[], rope_scale_names[], rope_rotation_names[], rope_cache_names[],
    rope_source_names[], rope_attention_rotation_names[], rope_mask_names[];

/* A value and, where it is one of them, its name: "7 (ROPE_F8E4M3)". */
typedef struct rope_choice_text {
    char text[48];
} rope_choice_text;
rope_choice_text rope_choice_name(const char *names, int32_t value);

/* 0 or one of names; 0 becomes `initial`. It stays 0, which is none, where `initial` is 0, and
 * until the field is read where it is ROPE_CHOICE_LATER. The field's name is part and name. */
enum { ROPE_CHOICE_LATER = -1 };
rope_status rope_choice_check(const char *part, const char *name, int32_t *value, const char *names,
                              int32_t initial);

#endif
