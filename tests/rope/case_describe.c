/* A case as one line. */
#include "tests/rope/cases.h"
#include "tests/support/repeat.h"

#include <stdio.h>
#include <string.h>

typedef enum field_kind { FIELD_I32, FIELD_I64, FIELD_REAL } field_kind;

typedef struct printed_field {
    const char *name;
    size_t offset;
    field_kind kind;
} printed_field;

#define FIELD(name, kind)                                                                          \
    { #name, offsetof(rope_desc, name), kind }

static const printed_field fields[] = {
    FIELD(dtype, FIELD_I32),
    FIELD(head_dim, FIELD_I32),
    FIELD(rotary_dim, FIELD_I32),
    FIELD(rotary_offset, FIELD_I32),
    FIELD(k_head_dim, FIELD_I32),
    FIELD(k_rotary_offset, FIELD_I32),
    FIELD(pairing_in, FIELD_I32),
    FIELD(pairing_out, FIELD_I32),
    FIELD(direction, FIELD_I32),
    FIELD(angle_mode, FIELD_I32),
    FIELD(arithmetic, FIELD_I32),
    FIELD(rope_type, FIELD_I32),
    FIELD(rope_theta, FIELD_REAL),
    FIELD(factor, FIELD_REAL),
    FIELD(attention_factor, FIELD_REAL),
    FIELD(xpos_scale_base, FIELD_REAL),
    FIELD(original_max_position_embeddings, FIELD_I64),
    FIELD(longrope_select, FIELD_I32),
    FIELD(position_dtype, FIELD_I32),
    FIELD(axes, FIELD_I32),
    FIELD(axis_layout, FIELD_I32),
    FIELD(axis_frequency, FIELD_I32),
    FIELD(shard, FIELD_I32),
    FIELD(shard_rank, FIELD_I32),
    FIELD(shard_size, FIELD_I32),
    FIELD(table_dtype, FIELD_I32),
    FIELD(table_width, FIELD_I32),
    FIELD(out_of_range, FIELD_I32),
    FIELD(launch, FIELD_I32),
};

static void append_field(const rope_desc *desc, const printed_field *field, char *text,
                         size_t room) {
    const char *at = (const char *)desc + field->offset;
    int32_t narrow;
    int64_t wide;
    double real;
    memcpy(&narrow, at, sizeof narrow);
    memcpy(&wide, at, sizeof wide);
    memcpy(&real, at, sizeof real);
    if (field->kind == FIELD_I32 && narrow)
        test_append(text, room, "%s=%d ", field->name, narrow);
    if (field->kind == FIELD_I64 && wide)
        test_append(text, room, "%s=%lld ", field->name, (long long)wide);
    if (field->kind == FIELD_REAL && real != 0)
        test_append(text, room, "%s=%.6g ", field->name, real);
}

static void append_tensor(const char *name, const rope_tensor *t, char *text, size_t room) {
    if (t->heads == 0)
        return;
    test_append(text, room, "%s={heads=%lld%s", name, (long long)t->heads,
                t->in == t->out ? " in-place" : "");
    const int64_t *in = t->in_stride, *out = t->out_stride;
    test_append(text, room, " in=%lld,%lld,%lld,%lld out=%lld,%lld,%lld,%lld} ", (long long)in[0],
                (long long)in[1], (long long)in[2], (long long)in[3], (long long)out[0],
                (long long)out[1], (long long)out[2], (long long)out[3]);
}

void case_describe(const test_case *c, const char *kernel) {
    const rope_args *a = &c->args;
    char text[1000];
    const size_t room = sizeof text;
    snprintf(text, room, "kernel=%s ", kernel ? kernel : "(chosen)");
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        append_field(&c->desc, &fields[i], text, room);
    test_append(text, room, "| batch=%lld tokens=%lld ", (long long)a->batch, (long long)a->tokens);
    append_tensor("q", &a->q, text, room);
    append_tensor("k", &a->k, text, room);
    test_append(text, room, "offset=%lld%s%s", (long long)a->position_offset,
                a->position_ids ? " ids" : "", a->sequence_offsets ? " offsets" : "");
    if (a->cu_seqlens)
        test_append(text, room, " sequences=%lld", (long long)a->sequences);
    if (a->cos)
        test_append(text, room, " table_rows=%lld table_stride=%lld,%lld,%lld",
                    (long long)a->table_rows, (long long)a->table_stride[0],
                    (long long)a->table_stride[1], (long long)a->table_stride[2]);
    test_append(text, room, "%s", c->wild ? " wild" : "");
    test_describe(text);
}
