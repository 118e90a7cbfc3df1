#include "common/frequency/frequency.h"

#include "common/frequency/rule.h"
#include "common/names.h"
#include "common/status.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A rule by what it reads: the ROPE_TYPE_ numbers, and two that they do not tell apart. */
enum { RULE_TABLE = 0, RULE_DYNAMIC_ALPHA = ROPE_TYPE_INV_FREQ + 1 };

static const char *const rule_names[] = {
    "angle_mode table",   "rope_type default",
    "rope_type linear",   "rope_type dynamic",
    "rope_type yarn",     "rope_type longrope",
    "rope_type llama3",   "rope_type proportional",
    "rope_type inv_freq", "rope_type dynamic with alpha",
};

static int rule_of(const rope_desc *desc) {
    if (desc->angle_mode == ROPE_ANGLE_TABLE)
        return RULE_TABLE;
    if (desc->rope_type == ROPE_TYPE_DYNAMIC && desc->alpha != 0)
        return RULE_DYNAMIC_ALPHA;
    return desc->rope_type;
}

/* Sets of rules. */
enum {
    LINEAR = 1 << ROPE_TYPE_LINEAR,
    DYNAMIC = 1 << ROPE_TYPE_DYNAMIC,
    YARN = 1 << ROPE_TYPE_YARN,
    LONGROPE = 1 << ROPE_TYPE_LONGROPE,
    LLAMA3 = 1 << ROPE_TYPE_LLAMA3,
    PROPORTIONAL = 1 << ROPE_TYPE_PROPORTIONAL,
    INV_FREQ = 1 << ROPE_TYPE_INV_FREQ,
    ALPHA = 1 << RULE_DYNAMIC_ALPHA,
    THETA = (1 << ROPE_TYPE_DEFAULT) | LINEAR | DYNAMIC | YARN | LONGROPE | LLAMA3 | PROPORTIONAL |
            ALPHA,
    RESTART = (1 << ROPE_TYPE_DEFAULT) | LINEAR | LONGROPE | LLAMA3
};

typedef enum field_kind {
    FIELD_REAL,
    FIELD_COUNT,
    FIELD_ENTRIES,
    FIELD_CHOICE,
    FIELD_LIST
} field_kind;

/* A field, the rules that read it, and those that cannot do without it. */
typedef struct frequency_field {
    const char *name;
    size_t offset;
    field_kind kind;
    int reads, needs;
    const char *names; /* of a FIELD_CHOICE */
} frequency_field;

#define FIELD(name, kind, reads, needs)                                                            \
    { #name, offsetof(rope_desc, name), kind, reads, needs, NULL }
#define CHOICE(name, reads, names)                                                                 \
    { #name, offsetof(rope_desc, name), FIELD_CHOICE, reads, 0, names }

static const frequency_field fields[] = {
    FIELD(rope_theta, FIELD_REAL, THETA, 0),
    FIELD(factor, FIELD_REAL, LINEAR | DYNAMIC | YARN | LONGROPE | LLAMA3 | PROPORTIONAL,
          LINEAR | DYNAMIC | YARN | LLAMA3),
    FIELD(low_freq_factor, FIELD_REAL, LLAMA3, LLAMA3),
    FIELD(high_freq_factor, FIELD_REAL, LLAMA3, LLAMA3),
    FIELD(beta_fast, FIELD_REAL, YARN, 0),
    FIELD(beta_slow, FIELD_REAL, YARN, 0),
    FIELD(mscale, FIELD_REAL, YARN, 0),
    FIELD(mscale_all_dim, FIELD_REAL, YARN, 0),
    FIELD(attention_factor, FIELD_REAL, THETA | INV_FREQ, 0),
    FIELD(alpha, FIELD_REAL, ALPHA, 0),
    FIELD(partial_rotary_factor, FIELD_REAL, PROPORTIONAL, 0),
    FIELD(short_mscale, FIELD_REAL, LONGROPE, 0),
    FIELD(long_mscale, FIELD_REAL, LONGROPE, 0),
    FIELD(xpos_scale_base, FIELD_REAL, THETA | INV_FREQ, 0),
    FIELD(original_max_position_embeddings, FIELD_COUNT, YARN | LONGROPE | LLAMA3,
          YARN | LONGROPE | LLAMA3),
    FIELD(max_position_embeddings, FIELD_COUNT, DYNAMIC | LONGROPE, DYNAMIC),
    FIELD(sequence_length, FIELD_COUNT, DYNAMIC, 0),
    FIELD(short_factor, FIELD_LIST, LONGROPE, 0),
    FIELD(long_factor, FIELD_LIST, LONGROPE, 0),
    FIELD(inv_freq, FIELD_LIST, INV_FREQ, 0),
    FIELD(factor_count, FIELD_ENTRIES, LONGROPE | INV_FREQ, LONGROPE | INV_FREQ),
    CHOICE(truncate, YARN, rope_truncate_names),
    CHOICE(longrope_select, LONGROPE, rope_longrope_names),
};

/* A field as a number; a list counts as 1. */
static double field_value(const rope_desc *desc, const frequency_field *field) {
    const char *at = (const char *)desc + field->offset;
    double real;
    int64_t count;
    int32_t choice;
    const double *list;
    switch (field->kind) {
    case FIELD_REAL:
        memcpy(&real, at, sizeof real);
        return real;
    case FIELD_COUNT:
        memcpy(&count, at, sizeof count);
        return (double)count;
    case FIELD_ENTRIES:
    case FIELD_CHOICE:
        memcpy(&choice, at, sizeof choice);
        return choice;
    default:
        memcpy(&list, at, sizeof list);
        return list != NULL;
    }
}

static rope_status check_field(const rope_desc *desc, const frequency_field *field) {
    int rule = rule_of(desc), bit = 1 << rule;
    double value = field_value(desc, field);
    if (value != 0 && !(field->reads & bit) && field->kind == FIELD_LIST)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "%s is given; allowed is NULL with %s",
                         field->name, rule_names[rule]);
    if (value != 0 && !(field->reads & bit) && field->names)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "%s is %s; allowed is 0 with %s", field->name,
                         rope_choice_name(field->names, (int32_t)value).text, rule_names[rule]);
    if (value != 0 && !(field->reads & bit))
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "%s is %g; allowed is 0 with %s", field->name,
                         value, rule_names[rule]);
    if (value == 0 && !(field->needs & bit))
        return ROPE_OK;
    if (value == 0)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "%s is not given; allowed is > 0 with %s",
                         field->name, rule_names[rule]);
    if (!(value > 0 && isfinite(value)))
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "%s is %g; allowed is %s and finite with %s",
                         field->name, value, field->needs & bit ? "> 0" : ">= 0", rule_names[rule]);
    return ROPE_OK;
}

static rope_status check_list(const rope_desc *desc, const char *name, const double *list,
                              double least, double most, const char *range) {
    if (!list)
        return rope_fail(ROPE_ERROR_NULL_POINTER,
                         "%s is NULL; allowed with %s is a list of numbers", name,
                         rule_names[desc->rope_type]);
    for (int32_t i = 0; i < desc->factor_count; i++)
        if (!(list[i] > least && list[i] < most))
            return rope_fail(ROPE_ERROR_INVALID_VALUE, "%s[%d] is %g; allowed is %s", name, i,
                             list[i], range);
    return ROPE_OK;
}

static rope_status check_lists(const rope_desc *desc) {
    if (desc->rope_type != ROPE_TYPE_LONGROPE && desc->rope_type != ROPE_TYPE_INV_FREQ)
        return ROPE_OK;
    if (desc->factor_count != desc->rotary_dim / 2)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "factor_count is %d; allowed is rotary_dim / 2 = %d with %s",
                         desc->factor_count, desc->rotary_dim / 2, rule_names[desc->rope_type]);
    if (desc->rope_type == ROPE_TYPE_INV_FREQ)
        return check_list(desc, "inv_freq", desc->inv_freq, -0x1p63, 0x1p63,
                          "finite and below 2^63 in magnitude");
    rope_status status = ROPE_OK;
    if (desc->short_factor || desc->longrope_select != ROPE_LONGROPE_LONG)
        status = check_list(desc, "short_factor", desc->short_factor, 0, INFINITY, "> 0");
    if (status == ROPE_OK && (desc->long_factor || desc->longrope_select != ROPE_LONGROPE_SHORT))
        status = check_list(desc, "long_factor", desc->long_factor, 0, INFINITY, "> 0");
    return status;
}

/* What one field alone does not show: the length ratio, and a logarithm that divides. */
static rope_status check_longrope(const rope_desc *desc) {
    if (desc->original_max_position_embeddings < 2)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "original_max_position_embeddings is %lld; allowed is >= 2 with %s",
                         (long long)desc->original_max_position_embeddings,
                         rule_names[desc->rope_type]);
    int given = desc->factor != 0 || desc->attention_factor != 0 ||
                (desc->short_mscale != 0 && desc->long_mscale != 0);
    if (desc->max_position_embeddings == 0 &&
        (!given || desc->longrope_select == ROPE_LONGROPE_STATIC))
        return rope_fail(
            ROPE_ERROR_INVALID_VALUE,
            "max_position_embeddings is not given; allowed is > 0 where longrope_select is "
            "static or neither factor nor attention_factor is given");
    return ROPE_OK;
}

static rope_status check_attention(const rope_desc *desc) {
    if ((desc->mscale != 0) != (desc->mscale_all_dim != 0))
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "mscale is %g and mscale_all_dim is %g; allowed is both, > 0, or neither",
                         desc->mscale, desc->mscale_all_dim);
    if (desc->attention_factor != 0 &&
        (desc->mscale != 0 || desc->short_mscale != 0 || desc->long_mscale != 0))
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "mscale is %g, short_mscale is %g, long_mscale is %g; allowed is 0 where "
                         "attention_factor (%g) replaces them",
                         desc->mscale, desc->short_mscale, desc->long_mscale,
                         desc->attention_factor);
    return ROPE_OK;
}

static rope_status check_rule(const rope_desc *desc) {
    int rule = rule_of(desc);
    if (desc->rope_type == ROPE_TYPE_DYNAMIC && desc->rotary_dim == 2)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "rotary_dim is 2; allowed is > 2 with %s",
                         rule_names[rule]);
    if (rule == ROPE_TYPE_YARN && desc->rope_theta != 0 && desc->rope_theta <= 1)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "rope_theta is %g; allowed is > 1 with %s",
                         desc->rope_theta, rule_names[rule]);
    if (desc->partial_rotary_factor > 1)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "partial_rotary_factor is %g; allowed is at most 1",
                         desc->partial_rotary_factor);
    if (rule == ROPE_TYPE_LLAMA3 && desc->high_freq_factor < desc->low_freq_factor)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "high_freq_factor is %g; allowed is >= low_freq_factor (%g)",
                         desc->high_freq_factor, desc->low_freq_factor);
    if (desc->axis_frequency == ROPE_AXIS_FREQUENCY_RESTART && !(RESTART & (1 << rule)))
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "axis_frequency is restart; allowed is shared with %s", rule_names[rule]);
    return rule == ROPE_TYPE_LONGROPE ? check_longrope(desc) : ROPE_OK;
}

/* XPos holds log2((2i + 0.4 r) / 1.4 r) / scale_base, above -1.81 / scale_base, as a fraction. */
static rope_status check_xpos(const rope_desc *desc) {
    if (desc->xpos_scale_base != 0 && desc->xpos_scale_base < 2)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "xpos_scale_base is %g; allowed is 0 or >= 2",
                         desc->xpos_scale_base);
    if (desc->xpos_center != 0 && desc->xpos_scale_base == 0)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "xpos_center is %lld; allowed is 0 without xpos_scale_base",
                         (long long)desc->xpos_center);
    return ROPE_OK;
}

/* What comes out: frequencies that fixed point holds, and a factor that fp32 holds and inverts. */
static rope_status check_set(const rope_desc *desc, int32_t set) {
    const double factor = rope_rule_attention(desc, set);
    rope_rule rule;
    rope_rule_begin(&rule, desc, set);
    for (int32_t i = 0; i < desc->rotary_dim / 2; i++) {
        double omega = rope_real_double(rope_rule_next(&rule));
        if (!(fabs(omega) < 0x1p63))
            return rope_fail(ROPE_ERROR_INVALID_VALUE,
                             "the frequency of pair %d is %g with %s; allowed is finite and below "
                             "2^63 in magnitude",
                             i, omega, rule_names[rule_of(desc)]);
    }
    if (!(factor >= 0x1p-126 && factor <= 0x1p126))
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "the attention factor is %g with %s; allowed is 2^-126..2^126", factor,
                         rule_names[rule_of(desc)]);
    return ROPE_OK;
}

static rope_status check_result(const rope_desc *desc) {
    rope_status status = ROPE_OK;
    double base = desc->rope_type == ROPE_TYPE_DYNAMIC ? rope_rule_base(desc) : 1;
    if (!isfinite(base))
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "the base that rope_theta %g becomes is %g with %s; allowed is finite",
                         desc->rope_theta, base, rule_names[rule_of(desc)]);
    for (int32_t set = 0; set < rope_frequency_sets(desc) && status == ROPE_OK; set++)
        status = check_set(desc, set);
    return status;
}

rope_status rope_frequency_check(const rope_desc *desc) {
    if (desc->angle_mode == ROPE_ANGLE_TABLE && desc->rope_type != 0)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "rope_type is %s; allowed is 0 with %s",
                         rope_choice_name(rope_type_names, desc->rope_type).text,
                         rule_names[RULE_TABLE]);
    rope_status status = ROPE_OK;
    for (size_t i = 0; i < sizeof fields / sizeof fields[0] && status == ROPE_OK; i++)
        status = check_field(desc, &fields[i]);
    if (status == ROPE_OK)
        status = check_lists(desc);
    if (status == ROPE_OK)
        status = check_attention(desc);
    if (status == ROPE_OK)
        status = check_xpos(desc);
    if (status != ROPE_OK || desc->angle_mode == ROPE_ANGLE_TABLE)
        return status;
    status = check_rule(desc);
    return status == ROPE_OK ? check_result(desc) : status;
}

int32_t rope_frequency_sets(const rope_desc *desc) {
    return desc->rope_type == ROPE_TYPE_LONGROPE &&
                   (desc->longrope_select == 0 ||
                    desc->longrope_select == ROPE_LONGROPE_PER_SEQUENCE)
               ? 2
               : 1;
}
