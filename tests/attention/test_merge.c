/* Partial results joined by their logarithms: values beside sums in double, and bad input. */
#include "tests/oracle/oracle.h"
#include "tests/support/bad_field.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"
#include "tests/support/random.h"

#include <ropekit/attention.h>

#include <math.h>
#include <string.h>

enum { PARTS = 5, BATCH = 2, TOKENS = 3, HEADS = 4, DIM = 37, ROWS = BATCH * TOKENS * HEADS };
enum { ELEMENTS = PARTS * ROWS * DIM, LOGS = PARTS * ROWS, ROOM = 4 * ELEMENTS };

/* Parts, their logarithms, out and its logarithms, in one block of device memory. */
typedef struct merge_call {
    rope_plan *plan;
    int32_t dtype;
    unsigned char before[4 * ROOM], after[4 * ROOM];
    char *memory;
    rope_attention_merge_args args;
} merge_call;

static merge_call call;

static rope_attention_merge_desc merge_desc(int32_t dtype) {
    const rope_desc device = device_desc();
    return (rope_attention_merge_desc){.struct_size = sizeof(rope_attention_merge_desc),
                                       .dtype = dtype,
                                       .head_dim = DIM,
                                       .backend = device.backend,
                                       .device = device.device};
}

static void call_make(int32_t dtype) {
    const rope_attention_merge_desc desc = merge_desc(dtype);
    test_random r = random_stream(dtype, 1);
    void *memory;
    if (!device_kernel_of("attention_merge", 0))
        SKIP("backend %s has no kernel for the operation attention_merge", device_backend());
    CHECK_STATUS(ROPE_OK, rope_attention_merge_plan_create(&desc, &call.plan));
    CHECK_STATUS(ROPE_OK, rope_device_alloc(device_open(), sizeof call.before, &memory));
    for (int64_t i = 0; i < (int64_t)ROOM; i++)
        oracle_store(dtype, call.before, i, random_real(&r, -2, 2));
    for (int64_t i = 0; i < LOGS; i++)
        oracle_store(ROPE_F32, call.before + ROOM, i,
                     random_chance(&r, 20) ? -INFINITY : random_real(&r, -30, 90));
    call.dtype = dtype;
    call.memory = memory;
    CHECK_STATUS(ROPE_OK,
                 rope_device_copy_in(device_open(), memory, call.before, sizeof call.before));
    call.args = (rope_attention_merge_args){.struct_size = sizeof call.args,
                                            .parts = PARTS,
                                            .batch = BATCH,
                                            .tokens = TOKENS,
                                            .heads = HEADS,
                                            .in = call.memory,
                                            .in_lse = (float *)(void *)(call.memory + ROOM),
                                            .out = {.data = call.memory + 2 * ROOM},
                                            .lse = (float *)(void *)(call.memory + 3 * ROOM)};
}

static void call_free(void) {
    rope_plan_destroy(call.plan);
    CHECK_STATUS(ROPE_OK, rope_device_free(device_open(), call.memory));
}

static void call_run(const rope_attention_merge_args *args) {
    CHECK_STATUS(ROPE_OK,
                 rope_device_copy_in(device_open(), call.memory, call.before, sizeof call.before));
    CHECK_STATUS(ROPE_OK, rope_attention_merge(call.plan, args));
    CHECK_STATUS(ROPE_OK, rope_device_synchronize(device_open()));
    CHECK_STATUS(ROPE_OK,
                 rope_device_copy_out(device_open(), call.after, call.memory, sizeof call.after));
}

static const void *host(const void *pointer, const unsigned char *arena) {
    return arena + ((const char *)pointer - call.memory);
}

/* Row at [batch, token, head] of a view. */
static int64_t at_of(const int64_t *stride, int64_t row) {
    return row / (TOKENS * HEADS) * stride[0] + row / HEADS % TOKENS * stride[1] +
           row % HEADS * stride[2];
}

/* Of a row whose strides are those of the call. */
static void check_row(const rope_attention_merge_args *a, int64_t row) {
    double lse[PARTS] = {0}, most = -INFINITY, sum = 0;
    for (int p = 0; p < a->parts; p++) {
        lse[p] = oracle_load(ROPE_F32, host(a->in_lse, call.before),
                             p * a->in_lse_stride[0] + at_of(a->in_lse_stride + 1, row));
        most = fmax(most, lse[p]);
    }
    for (int p = 0; p < a->parts; p++)
        sum += most == -INFINITY ? 0 : exp(lse[p] - most);
    const double joined = sum > 0 ? most + log(sum) : -INFINITY;
    const double got = oracle_load(ROPE_F32, host(a->lse, call.after), at_of(a->lse_stride, row));
    CHECK(got == joined || fabs(got - joined) <= 0x1p-22 * fmax(1, fabs(joined)),
          "lse of row %lld is %.9g, not %.9g", (long long)row, got, joined);
    const double digits = call.dtype == ROPE_F32   ? 0x1p-23
                          : call.dtype == ROPE_F16 ? 0x1p-11
                                                   : 0x1p-8;
    for (int i = 0; i < DIM; i++) {
        double exact = 0, size = 0;
        for (int p = 0; p < a->parts; p++) {
            const double weight = lse[p] == -INFINITY ? 0 : exp(lse[p] - joined);
            const double x = oracle_load(call.dtype, host(a->in, call.before),
                                         p * a->in_stride[0] + at_of(a->in_stride + 1, row) +
                                             i * a->in_stride[4]);
            exact += weight * x;
            size += fabs(weight * x);
        }
        const double out = oracle_load(call.dtype, host(a->out.data, call.after),
                                       at_of(a->out.stride, row) + i * a->out.stride[3]);
        CHECK(fabs(out - exact) <= digits * fabs(exact) + 0x1p-18 * size,
              "element %d of row %lld is %.9g, not %.9g", i, (long long)row, out, exact);
    }
}

/* The arguments with every stride written out. */
static rope_attention_merge_args contiguous(void) {
    rope_attention_merge_args a = call.args;
    const int64_t in[] = {ROWS * DIM, TOKENS * HEADS * DIM, HEADS * DIM, DIM, 1};
    const int64_t in_lse[] = {ROWS, TOKENS * HEADS, HEADS, 1};
    memcpy(a.in_stride, in, sizeof in);
    memcpy(a.out.stride, in + 1, sizeof a.out.stride);
    memcpy(a.in_lse_stride, in_lse, sizeof in_lse);
    memcpy(a.lse_stride, in_lse + 1, sizeof a.lse_stride);
    return a;
}

static void check_all(const rope_attention_merge_args *a) {
    call_run(a);
    for (int64_t row = 0; row < ROWS; row++)
        check_row(a, row);
}

static void check_dtype(int32_t dtype) {
    call_make(dtype);
    rope_attention_merge_args full = contiguous(), a = full;
    call_run(&call.args);
    for (int64_t row = 0; row < ROWS; row++)
        check_row(&full, row);
    a.parts = 1;
    check_all(&a);
    a = full; /* heads ahead of tokens, and gaps */
    a.parts = 2;
    a.in_stride[1] = 2 * TOKENS * HEADS * DIM, a.in_stride[0] = BATCH * a.in_stride[1];
    a.in_stride[2] = 2 * DIM, a.in_stride[3] = 2 * TOKENS * DIM, a.in_stride[4] = 2;
    a.lse_stride[0] = 40, a.lse_stride[1] = 1, a.lse_stride[2] = TOKENS;
    check_all(&a);
    a = full; /* in place */
    a.out.data = call.memory;
    a.lse = (float *)(void *)(call.memory + ROOM);
    check_all(&a);
    call_free();
}

TEST(attention_merge, joins_f32) {
    check_dtype(ROPE_F32);
}

TEST(attention_merge, joins_f16) {
    check_dtype(ROPE_F16);
}

TEST(attention_merge, joins_bf16) {
    check_dtype(ROPE_BF16);
}

TEST(attention_merge, parts_that_saw_nothing_do_not_count) {
    call_make(ROPE_F32);
    for (int64_t row = 0; row < ROWS; row++) {
        oracle_store(ROPE_F32, call.before + ROOM, row, -INFINITY);
        for (int p = 1; row == 0 && p < PARTS; p++)
            oracle_store(ROPE_F32, call.before + ROOM, p * ROWS + row, -INFINITY);
        for (int i = 0; i < DIM; i++)
            oracle_store(ROPE_F32, call.before, row * DIM + i, i % 2 ? NAN : INFINITY);
    }
    const rope_attention_merge_args a = contiguous();
    call_run(&a);
    for (int i = 0; i < ROWS * DIM; i++)
        CHECK(isfinite(oracle_load(ROPE_F32, host(a.out.data, call.after), i)),
              "element %d has what its first part holds", i);
    for (int i = 0; i < DIM; i++)
        CHECK(oracle_load(ROPE_F32, host(a.out.data, call.after), i) == 0,
              "element %d of a row without keys is not 0", i);
    CHECK(oracle_load(ROPE_F32, host(a.lse, call.after), 0) == -INFINITY, "lse is not -infinity");
    call_free();
}

#define BAD_CALL(expected, field, value, statement)                                                \
    do {                                                                                           \
        rope_attention_merge_args a = call.args;                                                   \
        statement;                                                                                 \
        CHECK_STATUS(expected, rope_attention_merge(call.plan, &a));                               \
        bad_text_check(field, value);                                                              \
    } while (0)

static void check_bad_calls(void) {
    const rope_status invalid = ROPE_ERROR_INVALID_VALUE;
    char *m = call.memory;
    BAD_CALL(invalid, "parts", "0", a.parts = 0);
    BAD_CALL(invalid, "batch", "-1", a.batch = -1);
    BAD_CALL(invalid, "tokens", "-2", a.tokens = -2);
    BAD_CALL(invalid, "heads", "-3", a.heads = -3);
    BAD_CALL(ROPE_ERROR_OVERFLOW, "tokens", NULL, a.tokens = INT64_MAX / 2);
    BAD_CALL(ROPE_ERROR_NULL_POINTER, "in ", NULL, a.in = NULL);
    BAD_CALL(ROPE_ERROR_NULL_POINTER, "in_lse", NULL, a.in_lse = NULL);
    BAD_CALL(ROPE_ERROR_NULL_POINTER, "out.data", NULL, a.out.data = NULL);
    BAD_CALL(ROPE_ERROR_MISALIGNED, "in ", NULL, a.in = m + 1);
    BAD_CALL(ROPE_ERROR_MISALIGNED, "lse", NULL, a.lse = (float *)(void *)(m + 3 * ROOM + 2));
    BAD_CALL(ROPE_ERROR_OVERLAP, "out.stride", "0", a.out.stride[3] = 1);
    BAD_CALL(ROPE_ERROR_OVERFLOW, "in_stride", NULL, a.in_stride[0] = INT64_MAX / 2);
    BAD_CALL(ROPE_ERROR_OVERLAP, "out.data", NULL, a.out.data = m + 4);
    BAD_CALL(ROPE_ERROR_OVERLAP, "in_lse", NULL, a.lse = (float *)(void *)(m + ROOM + 4));
    BAD_CALL(ROPE_ERROR_OVERLAP, "lse", NULL, a.lse = (float *)(void *)(m + 2 * ROOM));
    BAD_CALL(invalid, "lse_stride", "5", (a.lse = NULL, a.lse_stride[0] = 5));
    BAD_CALL(ROPE_ERROR_ABI, "struct_size", "1", a.struct_size = 1);
}

TEST(attention_merge, bad_calls_write_nothing) {
    call_make(ROPE_F32);
    check_bad_calls();
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_attention_merge(call.plan, NULL));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_attention_merge(NULL, &call.args));
    CHECK_STATUS(ROPE_OK,
                 rope_device_copy_out(device_open(), call.after, call.memory, sizeof call.after));
    CHECK(memcmp(call.before, call.after, sizeof call.after) == 0, "a call that failed wrote");
    call.args.heads = 0;
    CHECK_STATUS(ROPE_OK, rope_attention_merge(call.plan, &call.args));
    call_free();
}

TEST(attention_merge, bad_descriptors) {
    rope_attention_merge_desc good = merge_desc(ROPE_BF16), desc;
    rope_plan *plan = NULL;
    desc = good, desc.dtype = ROPE_F64;
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_attention_merge_plan_create(&desc, &plan));
    bad_text_check("dtype", "4");
    desc = good, desc.head_dim = ROPE_MAX_ATTENTION_HEAD_DIM + 1;
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_attention_merge_plan_create(&desc, &plan));
    bad_text_check("head_dim", "577");
    desc = good, desc.device = -1;
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_attention_merge_plan_create(&desc, &plan));
    bad_text_check("device", "-1");
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_attention_merge_plan_create(&good, NULL));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_attention_merge_plan_create(NULL, &plan));
    CHECK(plan == NULL, "a call that failed wrote a plan");
}
