/* Bad input: each gives its status and a text with field and value, and changes nothing. */
#include "tests/support/bad_field.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BAD_DESC(field, kind, value)                                                               \
    { #field, offsetof(rope_desc, field), value, kind, ROPE_ERROR_INVALID_VALUE }

static rope_plan *plan_of(const rope_desc *desc) {
    rope_plan *plan = NULL;
    CHECK_STATUS(ROPE_OK, rope_plan_create(desc, &plan));
    return plan;
}

static rope_status create(const void *desc, rope_plan **plan) {
    return rope_plan_create(desc, plan);
}

#define CHECK_DESC(base, ...) CHECK_BAD_FIELDS(base, create, __VA_ARGS__)

TEST(errors, shape) {
    rope_desc desc = device_desc();
    CHECK_DESC(desc, BAD_DESC(dtype, KIND_I32, 0), BAD_DESC(dtype, KIND_I32, 99),
               BAD_DESC(dtype, KIND_I32, ROPE_I32), BAD_DESC(dtype, KIND_I32, -1),
               BAD_DESC(head_dim, KIND_I32, 0), BAD_DESC(head_dim, KIND_I32, -64),
               BAD_DESC(head_dim, KIND_I32, 1), BAD_DESC(head_dim, KIND_I32, 65538),
               BAD_DESC(rotary_dim, KIND_I32, 7), BAD_DESC(rotary_dim, KIND_I32, -2),
               BAD_DESC(rotary_dim, KIND_I32, 66), BAD_DESC(rotary_offset, KIND_I32, 2),
               BAD_DESC(rotary_offset, KIND_I32, -2), BAD_DESC(k_head_dim, KIND_I32, 32),
               BAD_DESC(k_rotary_offset, KIND_I32, 2), BAD_DESC(pairing_in, KIND_I32, 3),
               BAD_DESC(pairing_out, KIND_I32, -1), BAD_DESC(direction, KIND_I32, 4),
               BAD_DESC(angle_mode, KIND_I32, 4), BAD_DESC(arithmetic, KIND_I32, 3),
               BAD_DESC(device, KIND_I32, -1));
    desc.head_dim = 65;
    desc.rotary_dim = 32;
    CHECK_DESC(desc, BAD_DESC(rotary_dim, KIND_I32, 65), BAD_DESC(rotary_offset, KIND_I32, 3),
               BAD_DESC(rotary_offset, KIND_I32, 34));
}

TEST(errors, a_rotary_dim_for_an_odd_head) {
    rope_desc desc = device_desc();
    desc.head_dim = 65;
    rope_plan *plan = NULL;
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_plan_create(&desc, &plan));
    CHECK(strstr(rope_last_error(), "head_dim (65)") && strstr(rope_last_error(), "2..64"), "%s",
          rope_last_error());
}

TEST(errors, frequencies) {
    rope_desc desc = device_desc();
    CHECK_DESC(desc, BAD_DESC(rope_type, KIND_I32, 9), BAD_DESC(rope_type, KIND_I32, -1),
               BAD_DESC(rope_theta, KIND_REAL, -1), BAD_DESC(rope_theta, KIND_REAL, NAN),
               BAD_DESC(rope_theta, KIND_REAL, INFINITY), BAD_DESC(factor, KIND_REAL, 2),
               BAD_DESC(attention_factor, KIND_REAL, -1), BAD_DESC(beta_fast, KIND_REAL, 32),
               BAD_DESC(xpos_scale_base, KIND_REAL, NAN), BAD_DESC(xpos_center, KIND_I64, 3),
               BAD_DESC(truncate, KIND_I32, 1), BAD_DESC(longrope_select, KIND_I32, 5),
               BAD_DESC(factor_count, KIND_I32, 32));
    desc.rope_type = ROPE_TYPE_LINEAR;
    desc.factor = 2;
    CHECK_DESC(desc, BAD_DESC(factor, KIND_REAL, 0), BAD_DESC(factor, KIND_REAL, -2),
               BAD_DESC(factor, KIND_REAL, NAN));
    double list[32];
    for (int i = 0; i < 32; i++)
        list[i] = 1;
    desc = device_desc();
    desc.rope_type = ROPE_TYPE_INV_FREQ;
    desc.inv_freq = list;
    desc.factor_count = 32;
    CHECK_DESC(desc, BAD_DESC(factor_count, KIND_I32, 31), BAD_DESC(rope_theta, KIND_REAL, 3),
               {"inv_freq", offsetof(rope_desc, inv_freq), 0, KIND_NULL, ROPE_ERROR_NULL_POINTER});
    list[5] = NAN;
    rope_plan *plan = NULL;
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_plan_create(&desc, &plan));
    CHECK(strstr(rope_last_error(), "inv_freq[5]"), "%s", rope_last_error());
}

TEST(errors, axes) {
    rope_desc desc = device_desc();
    CHECK_DESC(desc, BAD_DESC(axes, KIND_I32, -1), BAD_DESC(axes, KIND_I32, 5),
               BAD_DESC(axis_layout, KIND_I32, 5), BAD_DESC(axis_frequency, KIND_I32, 3),
               BAD_DESC(position_dtype, KIND_I32, ROPE_F32), BAD_DESC(shard, KIND_I32, 4),
               BAD_DESC(shard_size, KIND_I32, 2));
    desc.axes = 3;
    desc.axis_layout = ROPE_AXES_CHUNKED;
    desc.sections[0] = 16;
    desc.sections[1] = desc.sections[2] = 8;
    CHECK_DESC(desc,
               {"sections", offsetof(rope_desc, sections), -1, KIND_I32, ROPE_ERROR_INVALID_VALUE});
    desc.sections[2] = 9;
    rope_plan *plan = NULL;
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_plan_create(&desc, &plan));
    CHECK(strstr(rope_last_error(), "sections") && strstr(rope_last_error(), "33") &&
              strstr(rope_last_error(), "32"),
          "%s", rope_last_error());
    uint8_t axis[32] = {0};
    memset(desc.sections, 0, sizeof desc.sections);
    desc.axis_layout = ROPE_AXES_CUSTOM;
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_plan_create(&desc, &plan));
    axis[31] = 3;
    desc.pair_axis = axis;
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_plan_create(&desc, &plan));
    CHECK(strstr(rope_last_error(), "pair_axis[31]"), "%s", rope_last_error());
}

TEST(errors, shard) {
    rope_desc desc = device_desc();
    desc.shard = ROPE_SHARD_ZIGZAG;
    desc.shard_size = 2;
    CHECK_DESC(desc, BAD_DESC(shard_size, KIND_I32, 0), BAD_DESC(shard_size, KIND_I32, -1),
               BAD_DESC(shard_rank, KIND_I32, 2), BAD_DESC(shard_rank, KIND_I32, -1));
}

TEST(errors, tables) {
    rope_desc desc = device_desc();
    CHECK_DESC(desc, BAD_DESC(table_width, KIND_I32, ROPE_TABLE_FULL),
               BAD_DESC(out_of_range, KIND_I32, ROPE_OUT_OF_RANGE_CLAMP));
    desc.angle_mode = ROPE_ANGLE_TABLE;
    CHECK_DESC(desc, BAD_DESC(table_dtype, KIND_I32, ROPE_F16), BAD_DESC(table_width, KIND_I32, 3),
               BAD_DESC(out_of_range, KIND_I32, 4), BAD_DESC(launch, KIND_I32, 3),
               BAD_DESC(rope_theta, KIND_REAL, 500000),
               BAD_DESC(rope_type, KIND_I32, ROPE_TYPE_LINEAR));
}

static const struct {
    size_t offset;
    int32_t value, angle_mode;
    const char *text;
} misnamed[] = {
#define NAMED(field, value, text)                                                                  \
    { offsetof(rope_desc, field), value, 0, text }
#define NAMED_TABLE(field, value, text)                                                            \
    { offsetof(rope_desc, field), value, ROPE_ANGLE_TABLE, text }
    NAMED(arithmetic, 9,
          "arithmetic is 9; allowed is 0 (default), ROPE_ARITHMETIC_FP32, "
          "ROPE_ARITHMETIC_MODEL_DTYPE (1..2)"),
    NAMED(pairing_in, 3,
          "pairing_in is 3; allowed is 0 (default), ROPE_PAIRING_HALF_SPLIT, "
          "ROPE_PAIRING_INTERLEAVED (1..2)"),
    NAMED(pairing_out, -1,
          "pairing_out is -1; allowed is 0 (default), ROPE_PAIRING_HALF_SPLIT, "
          "ROPE_PAIRING_INTERLEAVED (1..2)"),
    NAMED(direction, 4,
          "direction is 4; allowed is 0 (default), ROPE_FORWARD, ROPE_TRANSPOSE, ROPE_INVERSE "
          "(1..3)"),
    NAMED(angle_mode, 4,
          "angle_mode is 4; allowed is 0 (default), ROPE_ANGLE_EXACT, ROPE_ANGLE_F32, "
          "ROPE_ANGLE_TABLE (1..3)"),
    NAMED(rope_type, 9,
          "rope_type is 9; allowed is 0 (default), ROPE_TYPE_DEFAULT, ROPE_TYPE_LINEAR, "
          "ROPE_TYPE_DYNAMIC, ROPE_TYPE_YARN, ROPE_TYPE_LONGROPE, ROPE_TYPE_LLAMA3, "
          "ROPE_TYPE_PROPORTIONAL, ROPE_TYPE_INV_FREQ (1..8)"),
    NAMED(truncate, 3,
          "truncate is 3; allowed is 0 (default), ROPE_TRUNCATE_ON, ROPE_TRUNCATE_OFF (1..2)"),
    NAMED(truncate, ROPE_TRUNCATE_OFF,
          "truncate is 2 (ROPE_TRUNCATE_OFF); allowed is 0 with rope_type default"),
    NAMED(longrope_select, 5,
          "longrope_select is 5; allowed is 0 (default), ROPE_LONGROPE_PER_SEQUENCE, "
          "ROPE_LONGROPE_STATIC, ROPE_LONGROPE_SHORT, ROPE_LONGROPE_LONG (1..4)"),
    NAMED(longrope_select, ROPE_LONGROPE_LONG,
          "longrope_select is 4 (ROPE_LONGROPE_LONG); allowed is 0 with rope_type default"),
    NAMED(axis_layout, 5,
          "axis_layout is 5; allowed is 0 (none), ROPE_AXES_CHUNKED, ROPE_AXES_INTERLEAVED, "
          "ROPE_AXES_ALTERNATING, ROPE_AXES_CUSTOM (1..4)"),
    NAMED(axis_frequency, 3,
          "axis_frequency is 3; allowed is 0 (default), ROPE_AXIS_FREQUENCY_SHARED, "
          "ROPE_AXIS_FREQUENCY_RESTART (1..2)"),
    NAMED(shard, 4,
          "shard is 4; allowed is 0 (default), ROPE_SHARD_NONE, ROPE_SHARD_CONTIGUOUS, "
          "ROPE_SHARD_ZIGZAG (1..3)"),
    NAMED(table_width, 3,
          "table_width is 3; allowed is 0 (default), ROPE_TABLE_HALF, ROPE_TABLE_FULL (1..2)"),
    NAMED(table_width, ROPE_TABLE_FULL,
          "table_width is 2 (ROPE_TABLE_FULL); allowed is 0 unless angle_mode is table"),
    NAMED(out_of_range, 4,
          "out_of_range is 4; allowed is 0 (default), ROPE_OUT_OF_RANGE_ERROR, "
          "ROPE_OUT_OF_RANGE_IDENTITY, ROPE_OUT_OF_RANGE_CLAMP (1..3)"),
    NAMED(launch, 3,
          "launch is 3; allowed is 0 (default), ROPE_LAUNCH_SERIAL, ROPE_LAUNCH_PROGRAMMATIC "
          "(1..2)"),
    NAMED(dtype, ROPE_F8E4M3,
          "dtype is 7 (ROPE_F8E4M3); allowed is ROPE_F32, ROPE_F16, ROPE_BF16 or ROPE_F64 "
          "(1..4)"),
    NAMED(position_dtype, ROPE_BF16,
          "position_dtype is 3 (ROPE_BF16); allowed is ROPE_I32 or ROPE_I64 (5, 6)"),
    NAMED_TABLE(rope_type, ROPE_TYPE_YARN,
                "rope_type is 4 (ROPE_TYPE_YARN); allowed is 0 with angle_mode table"),
    NAMED_TABLE(table_dtype, ROPE_F64,
                "table_dtype is 4 (ROPE_F64); allowed is 0, 1 (ROPE_F32) or dtype, "),
};

/* An enumeration's value and what is allowed instead have their names. */
TEST(errors, names_of_values) {
    for (size_t i = 0; i < sizeof misnamed / sizeof misnamed[0]; i++) {
        rope_desc desc = device_desc();
        rope_plan *plan = NULL;
        desc.angle_mode = misnamed[i].angle_mode;
        memcpy((char *)&desc + misnamed[i].offset, &misnamed[i].value, sizeof misnamed[i].value);
        CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_plan_create(&desc, &plan));
        CHECK(strncmp(rope_last_error(), misnamed[i].text, strlen(misnamed[i].text)) == 0,
              "%s, not %s", rope_last_error(), misnamed[i].text);
    }
    rope_timing timing = {.struct_size = sizeof timing, .kind = 5};
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_time(device_open(), &timing));
    CHECK(strcmp(rope_last_error(),
                 "timing.kind is 5; allowed is ROPE_TIME_APPLY, "
                 "ROPE_TIME_KERNEL, ROPE_TIME_COPY, ROPE_TIME_UPDATE (1..4)") == 0,
          "%s", rope_last_error());
}

TEST(errors, null_arguments) {
    rope_desc desc = device_desc();
    rope_plan *plan = NULL;
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_plan_create(NULL, &plan));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_plan_create(&desc, NULL));
    rope_args args = {.struct_size = sizeof args};
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_apply(NULL, &args));
    plan = plan_of(&desc);
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_apply(plan, NULL));
    rope_plan_destroy(plan);
    double inv_freq[32];
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_frequencies(&desc, 0, NULL, 32, NULL));
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_frequencies(&desc, 0, inv_freq, 31, NULL));
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_frequencies(&desc, 1, inv_freq, 32, NULL));
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_frequencies(&desc, -1, inv_freq, 32, NULL));
}

/* Calls. The memory is the device's; every failing call must leave all of it as it was. */
enum { BATCH = 2, TOKENS = 4, HEADS = 2, DIM = 64, ELEMENTS = BATCH * TOKENS * HEADS * DIM };
enum { PART = ELEMENTS * 4, BYTES = 4 * PART };

typedef struct error_call {
    rope_plan *plan;
    rope_args args;
    char *memory;
    unsigned char before[BYTES];
} error_call;

static void call_make(error_call *call, const rope_desc *desc) {
    void *memory = NULL;
    call->plan = plan_of(desc);
    CHECK_STATUS(ROPE_OK, rope_device_alloc(device_open(), BYTES, &memory));
    for (int i = 0; i < BYTES; i++)
        call->before[i] = (unsigned char)(i * 7 % 61);
    CHECK_STATUS(ROPE_OK, rope_device_copy_in(device_open(), memory, call->before, BYTES));
    char *m = call->memory = memory;
    call->args = (rope_args){.struct_size = sizeof(rope_args),
                             .batch = BATCH,
                             .tokens = TOKENS,
                             .q = {.in = m, .out = m + PART, .heads = HEADS},
                             .k = {.in = m + 2 * PART, .out = m + 3 * PART, .heads = HEADS}};
}

static void call_free(error_call *call) {
    rope_plan_destroy(call->plan);
    CHECK_STATUS(ROPE_OK, rope_device_free(device_open(), call->memory));
}

static void check_call(const error_call *call, const rope_args *args, rope_status status,
                       const char *field, const char *value) {
    static unsigned char after[BYTES];
    test_describe(field);
    CHECK_STATUS(status, rope_apply(call->plan, args));
    bad_text_check(field, value);
    CHECK_STATUS(ROPE_OK, rope_device_copy_out(device_open(), after, call->memory, BYTES));
    CHECK(memcmp(after, call->before, BYTES) == 0, "a call that failed wrote something");
}

/* Runs `statement` on a copy of the call's arguments `a`, and expects a failure. */
#define BAD_CALL(call, status, field, value, statement)                                            \
    do {                                                                                           \
        rope_args a = (call).args;                                                                 \
        statement;                                                                                 \
        check_call(&(call), &a, status, field, value);                                             \
    } while (0)

TEST(errors, call_sizes) {
    static error_call call;
    rope_desc desc = device_desc();
    call_make(&call, &desc);
    const rope_status invalid = ROPE_ERROR_INVALID_VALUE;
    BAD_CALL(call, invalid, "batch", "-1", a.batch = -1);
    BAD_CALL(call, invalid, "tokens", "-3", a.tokens = -3);
    BAD_CALL(call, invalid, "q.heads", "-2", a.q.heads = -2);
    BAD_CALL(call, invalid, "k.heads", "-2", a.k.heads = -2);
    BAD_CALL(call, invalid, "sequences", "3", a.sequences = 3);
    BAD_CALL(call, invalid, "batch", "2", a.cu_seqlens = call.memory);
    BAD_CALL(call, invalid, "sequences", "-1",
             (a.cu_seqlens = call.memory, a.batch = 1, a.sequences = -1));
    BAD_CALL(call, invalid, "sequences", "576460752303423488",
             (a.cu_seqlens = call.memory, a.batch = 1, a.sequences = INT64_C(1) << 59));
    BAD_CALL(call, ROPE_ERROR_OVERFLOW, "tokens", "1152921504606846976",
             a.tokens = INT64_C(1) << 60);
    BAD_CALL(call, ROPE_ERROR_OVERFLOW, "heads", "4611686018427387904",
             a.q.heads = INT64_C(1) << 62);
    BAD_CALL(call, ROPE_ERROR_OVERFLOW, "batch", NULL,
             (a.batch = INT64_C(1) << 40, a.tokens = INT64_C(1) << 40));
    BAD_CALL(call, ROPE_ERROR_OVERFLOW, "batch", "4611686018427387904",
             (a.batch = INT64_C(1) << 62, a.tokens = 4, a.q.heads = a.k.heads = 0));
    BAD_CALL(call, ROPE_ERROR_OVERFLOW, "position_stride", "2305843009213693952",
             (a.position_ids = call.memory, a.position_stride[1] = INT64_C(1) << 61));
    BAD_CALL(call, ROPE_ERROR_OVERFLOW, "q", "2305843009213693952",
             (a.q.in_stride[0] = INT64_C(1) << 61, a.q.in_stride[3] = 1));
    BAD_CALL(call, ROPE_ERROR_OVERFLOW, "k", "-9223372036854775808",
             (a.k.out_stride[1] = INT64_MIN, a.k.out_stride[3] = 1));
    call_free(&call);
}

/* Fields that nothing would read, with and without elements to rotate. */
TEST(errors, call_fields_that_nothing_reads) {
    static error_call call;
    rope_desc desc = device_desc();
    const rope_status invalid = ROPE_ERROR_INVALID_VALUE;
    call_make(&call, &desc);
    for (int empty = 0; empty < 2; empty++) {
        call.args.batch = empty ? 0 : BATCH;
        BAD_CALL(call, invalid, "sequences", "3", a.sequences = 3);
        BAD_CALL(call, invalid, "position_stride", "[0, 4, 1]",
                 (a.position_stride[1] = 4, a.position_stride[2] = 1));
        BAD_CALL(call, invalid, "sequence_lengths", NULL, a.sequence_lengths = call.memory);
        BAD_CALL(call, invalid, "cos", NULL, a.cos = call.memory);
        BAD_CALL(call, invalid, "sin", NULL, a.sin = call.memory);
        BAD_CALL(call, invalid, "table_rows", "7", a.table_rows = 7);
        BAD_CALL(call, invalid, "table_stride", "[0, 0, 2]", a.table_stride[2] = 2);
    }
    call_free(&call);
}

TEST(errors, call_pointers) {
    static error_call call;
    rope_desc desc = device_desc();
    call_make(&call, &desc);
    char *m = call.memory;
    BAD_CALL(call, ROPE_ERROR_NULL_POINTER, "q.in", NULL, a.q.in = NULL);
    BAD_CALL(call, ROPE_ERROR_NULL_POINTER, "q.out", NULL, a.q.out = NULL);
    BAD_CALL(call, ROPE_ERROR_NULL_POINTER, "k.in", NULL, a.k.in = NULL);
    BAD_CALL(call, ROPE_ERROR_NULL_POINTER, "k.out", NULL, a.k.out = NULL);
    BAD_CALL(call, ROPE_ERROR_MISALIGNED, "q.in", NULL, a.q.in = m + 2);
    BAD_CALL(call, ROPE_ERROR_MISALIGNED, "q.out", NULL, a.q.out = m + PART + 1);
    BAD_CALL(call, ROPE_ERROR_MISALIGNED, "k.in", NULL, a.k.in = m + 2 * PART + 3);
    BAD_CALL(call, ROPE_ERROR_MISALIGNED, "position_ids", NULL, a.position_ids = m + 4);
    BAD_CALL(call, ROPE_ERROR_MISALIGNED, "sequence_offsets", NULL, a.sequence_offsets = m + 4);
    BAD_CALL(call, ROPE_ERROR_MISALIGNED, "cu_seqlens", NULL, (a.cu_seqlens = m + 4, a.batch = 1));
    BAD_CALL(call, ROPE_ERROR_MISALIGNED, "position_flag", NULL,
             a.position_flag = (int32_t *)(void *)(m + 2));
    call_free(&call);
}

TEST(errors, overlap) {
    static error_call call;
    rope_desc desc = device_desc();
    call_make(&call, &desc);
    char *m = call.memory;
    const rope_status overlap = ROPE_ERROR_OVERLAP;
    BAD_CALL(call, overlap, "q.out", NULL, a.q.out = m + 4);
    BAD_CALL(call, overlap, "q.out", NULL, a.q.out = m + PART - 4);
    BAD_CALL(call, overlap, "q.out", NULL, a.k.out = a.q.out);
    BAD_CALL(call, overlap, "k.in", NULL, a.k.in = m + PART + 256);
    BAD_CALL(call, overlap, "q.in", NULL, a.k.out = (char *)m);
    BAD_CALL(call, overlap, "q.out_stride", "[512, 128, 0, 1]",
             memcpy(a.q.out_stride, ((int64_t[4]){512, 128, 0, 1}), 32));
    BAD_CALL(call, overlap, "q.out_stride", "[512, 128, 63, 1]",
             memcpy(a.q.out_stride, ((int64_t[4]){512, 128, 63, 1}), 32));
    BAD_CALL(call, overlap, "k.out_stride", "[0, 128, 64, 1]",
             memcpy(a.k.out_stride, ((int64_t[4]){0, 128, 64, 1}), 32));
    BAD_CALL(call, overlap, "q", NULL,
             (a.q.out = m, a.q.out_stride[0] = 256, a.q.out_stride[1] = 64, a.q.out_stride[2] = 512,
              a.q.out_stride[3] = 1));
    call_free(&call);
}

/* What a call reads beside its tensors is not among what it writes. */
TEST(errors, overlap_of_lists) {
    static error_call call;
    const rope_status overlap = ROPE_ERROR_OVERLAP;
    rope_desc desc = device_desc();
    call_make(&call, &desc);
    char *q_out = call.memory + PART, *k_out = call.memory + 3 * PART;
    BAD_CALL(call, overlap, "position_ids", "q.out", a.position_ids = q_out);
    BAD_CALL(call, overlap, "position_ids", "k.out", a.position_ids = k_out - 56);
    BAD_CALL(call, overlap, "sequence_offsets", "q.out", a.sequence_offsets = q_out - 8);
    BAD_CALL(call, overlap, "cu_seqlens", "k.out",
             (a.batch = 1, a.sequences = 1, a.cu_seqlens = k_out - 8));
    BAD_CALL(call, overlap, "position_flag", "q.out",
             a.position_flag = (int32_t *)(void *)(q_out + 4));
    call_free(&call);
    desc.angle_mode = ROPE_ANGLE_TABLE;
    call_make(&call, &desc);
    BAD_CALL(call, overlap, "sin", "q.out",
             (a.cos = call.memory, a.sin = call.memory + PART - 4, a.table_rows = 4));
    call_free(&call);
}

TEST(errors, table_positions) {
    static error_call call;
    rope_desc desc = device_desc();
    desc.angle_mode = ROPE_ANGLE_TABLE;
    call_make(&call, &desc);
    call.args.cos = call.memory;
    call.args.sin = call.memory;
    call.args.table_rows = 4;
    BAD_CALL(call, ROPE_ERROR_NULL_POINTER, "cos", NULL, a.cos = NULL);
    BAD_CALL(call, ROPE_ERROR_NULL_POINTER, "sin", NULL, a.sin = NULL);
    BAD_CALL(call, ROPE_ERROR_MISALIGNED, "sin", NULL, a.sin = call.memory + 1);
    BAD_CALL(call, ROPE_ERROR_INVALID_VALUE, "table_rows", "-4", a.table_rows = -4);
    BAD_CALL(call, ROPE_ERROR_OVERFLOW, "table_stride", "4611686018427387904",
             (a.table_stride[1] = INT64_C(1) << 62, a.table_stride[2] = 1));
    if (device_is_host()) {
        BAD_CALL(call, ROPE_ERROR_POSITION_RANGE, "position", "4", a.position_offset = 1);
        BAD_CALL(call, ROPE_ERROR_POSITION_RANGE, "position", "-1", a.position_offset = -1);
        BAD_CALL(call, ROPE_ERROR_POSITION_RANGE, "position", "3", a.table_rows = 3);
        BAD_CALL(call, ROPE_ERROR_POSITION_RANGE, "table_rows is 0", NULL, a.table_rows = 0);
    }
    call_free(&call);
}

TEST(errors, schemes_that_exclude_each_other) {
    static error_call call;
    rope_desc desc = device_desc();
    desc.shard = ROPE_SHARD_ZIGZAG;
    desc.shard_size = 2;
    call_make(&call, &desc);
    BAD_CALL(call, ROPE_ERROR_INVALID_VALUE, "position_ids", NULL, a.position_ids = call.memory);
    BAD_CALL(call, ROPE_ERROR_INVALID_VALUE, "tokens", "3", a.tokens = 3);
    BAD_CALL(call, ROPE_ERROR_OVERFLOW, "shard_size", "4611686018427387904",
             (a.tokens = INT64_C(1) << 62, a.batch = 1, a.q.heads = a.k.heads = 0));
    call_free(&call);
    double factors[32];
    for (int i = 0; i < 32; i++)
        factors[i] = 1 + i;
    desc = device_desc();
    desc.rope_type = ROPE_TYPE_LONGROPE;
    desc.short_factor = desc.long_factor = factors;
    desc.factor_count = 32;
    desc.original_max_position_embeddings = 4096;
    desc.max_position_embeddings = 131072;
    call_make(&call, &desc);
    BAD_CALL(call, ROPE_ERROR_NULL_POINTER, "sequence_lengths", NULL, a.position_ids = call.memory);
    call_free(&call);
}

/* A rank of 2 holds 8 packed tokens of two sequences, which its shard may not divide. */
static void check_packed_shard(int32_t shard, int64_t first, int64_t second, int64_t last,
                               int32_t allowed) {
    static error_call call;
    rope_desc desc = device_desc();
    desc.shard = shard;
    desc.shard_size = 2;
    call_make(&call, &desc);
    int64_t boundary[3] = {first, second, last};
    int32_t flag = 0;
    char *indices = call.memory, *raised = indices + sizeof boundary;
    CHECK_STATUS(ROPE_OK, rope_device_copy_in(device_open(), indices, boundary, sizeof boundary));
    CHECK_STATUS(ROPE_OK, rope_device_copy_in(device_open(), raised, &flag, sizeof flag));
    CHECK_STATUS(ROPE_OK, rope_device_copy_out(device_open(), call.before, call.memory, BYTES));
    rope_args args = call.args;
    args.batch = 1;
    args.tokens = 8;
    args.q.heads = 0;
    args.cu_seqlens = indices;
    args.sequences = 2;
    args.position_flag = (int32_t *)(void *)raised;
    char text[64];
    snprintf(text, sizeof text, "shard %d of %lld, %lld, %lld", shard, (long long)first,
             (long long)second, (long long)last);
    test_describe(text);
    if (!allowed && device_is_host()) {
        check_call(&call, &args, ROPE_ERROR_INVALID_VALUE, "cu_seqlens", "shard_size (2)");
    } else {
        CHECK_STATUS(ROPE_OK, rope_apply(call.plan, &args));
        CHECK_STATUS(ROPE_OK, rope_device_copy_out(device_open(), &flag, raised, sizeof flag));
        CHECK(flag == !allowed, "position_flag is %d", flag);
    }
    call_free(&call);
}

TEST(errors, packed_lengths_that_a_shard_does_not_divide) {
    check_packed_shard(ROPE_SHARD_CONTIGUOUS, 0, 6, 16, 1);
    check_packed_shard(ROPE_SHARD_CONTIGUOUS, 0, 7, 16, 0);
    check_packed_shard(ROPE_SHARD_CONTIGUOUS, 1, 7, 15, 0);
    check_packed_shard(ROPE_SHARD_CONTIGUOUS, 0, 6, 15, 0);
    check_packed_shard(ROPE_SHARD_ZIGZAG, 0, 8, 16, 1);
    check_packed_shard(ROPE_SHARD_ZIGZAG, 0, 6, 16, 0);
    check_packed_shard(ROPE_SHARD_ZIGZAG, 0, 8, 14, 0);
}

/* Whether token t of the result is that of a sequence that holds it, or what went in. */
static int is_of_a_sequence(const error_call *call, const int64_t *boundary, int sequences, int t) {
    enum { ROW = HEADS * DIM * 4 };
    unsigned char found[ROW], expected[ROW];
    char *in = call->memory + (size_t)t * ROW, *one = call->memory + 3 * PART;
    CHECK_STATUS(ROPE_OK, rope_device_copy_out(device_open(), found, in + PART, ROW));
    int is_one = memcmp(found, call->before + (size_t)t * ROW, ROW) == 0;
    for (int s = 0; s < sequences; s++) {
        if (t < boundary[s] || t >= boundary[s + 1])
            continue;
        rope_args args = {.struct_size = sizeof args,
                          .batch = 1,
                          .tokens = 1,
                          .q = {.in = in, .out = one, .heads = HEADS},
                          .position_offset = t - boundary[s]};
        CHECK_STATUS(ROPE_OK, rope_apply(call->plan, &args));
        CHECK_STATUS(ROPE_OK, rope_device_copy_out(device_open(), expected, one, ROW));
        is_one |= memcmp(found, expected, ROW) == 0;
    }
    return is_one;
}

/* The host sees them; a device does no harm. */
TEST(errors, packed_boundaries_that_fall) {
    static error_call call;
    static unsigned char after[BYTES];
    enum { SEQUENCES = 4, PACKED = BATCH * TOKENS };
    const int64_t boundary[SEQUENCES + 1] = {-3, 6, 2, INT64_MAX, INT64_MIN};
    rope_desc desc = device_desc();
    call_make(&call, &desc);
    char *bounds = call.memory + 2 * PART;
    CHECK_STATUS(ROPE_OK, rope_device_copy_in(device_open(), bounds, boundary, sizeof boundary));
    memcpy(call.before + 2 * PART, boundary, sizeof boundary);
    rope_args args = call.args;
    args.batch = 1;
    args.tokens = PACKED;
    args.k = (rope_tensor){0};
    args.cu_seqlens = bounds;
    args.sequences = SEQUENCES;
    if (device_is_host()) {
        check_call(&call, &args, ROPE_ERROR_INVALID_VALUE, "cu_seqlens", "cu_seqlens[2] is 2");
    } else {
        CHECK_STATUS(ROPE_OK, rope_apply(call.plan, &args));
        CHECK_STATUS(ROPE_OK, rope_device_copy_out(device_open(), after, call.memory, BYTES));
        memcpy(call.before + PART, after + PART, PART);
        CHECK(memcmp(after, call.before, BYTES) == 0, "another tensor was written");
        for (int t = 0; t < PACKED; t++)
            CHECK(is_of_a_sequence(&call, boundary, SEQUENCES, t), "token %d", t);
    }
    call_free(&call);
}

/* Nothing to write: success, whatever the pointers. */
TEST(errors, empty_tensors_succeed) {
    rope_desc desc = device_desc();
    rope_plan *plan = plan_of(&desc);
    rope_args args = {.struct_size = sizeof args};
    CHECK_STATUS(ROPE_OK, rope_apply(plan, &args));
    args.batch = 3;
    CHECK_STATUS(ROPE_OK, rope_apply(plan, &args));
    args.tokens = 5;
    CHECK_STATUS(ROPE_OK, rope_apply(plan, &args));
    args.tokens = 0;
    args.q.heads = args.k.heads = 8;
    CHECK_STATUS(ROPE_OK, rope_apply(plan, &args));
    rope_plan_destroy(plan);
}

/* A NaN or an infinity is seen in its own pair only. */
TEST(errors, nan_stays_in_its_pair) {
    rope_desc desc = device_desc();
    const char *kernel;
    for (int k = 0; (kernel = device_kernel(k)); k++)
        for (int at = 0; at < DIM; at++) {
            static float x[DIM], y[DIM];
            test_case c = {.desc = desc, .arena = (unsigned char *)x, .bytes = sizeof x};
            for (int i = 0; i < DIM; i++)
                x[i] = i == at ? (at % 2 ? NAN : INFINITY) : 1;
            c.args = (rope_args){.struct_size = sizeof c.args,
                                 .batch = 1,
                                 .tokens = 1,
                                 .q = {.in = x, .out = x, .heads = 1},
                                 .position_offset = 12345};
            rope_status status = device_run(&c, &desc, &c.args, 1, kernel, (unsigned char *)y);
            if (status == ROPE_ERROR_UNSUPPORTED) /* a geometry that f32 lacks */
                break;
            CHECK_STATUS(ROPE_OK, status);
            for (int i = 0; i < DIM; i++)
                CHECK(!isfinite(y[i]) == (i % (DIM / 2) == at % (DIM / 2)),
                      "%s: element %d is %g where element %d is not finite", kernel, i, y[i], at);
        }
}
