/* Bad input of "append_backward": each gives its status and a text with field and value, and
 * changes nothing. */
#include "tests/append_backward/cases.h"
#include "tests/support/bad_call.h"
#include "tests/support/bad_field.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

enum { BATCH = 2, TOKENS = 4, HEADS = 2, DIM = 64 };
/* Parts of a call's memory. */
enum { QX, KX, VX, QW, KW, QG, KG, VG, QD, KD, VD, QS, KS, WORK };

static rope_append_desc backward_desc(void) {
    rope_append_desc desc = ROPE_APPEND_DESC_INIT;
    device_open(); /* skips where there is none */
    if (!device_kernel_of("append_backward", 0))
        SKIP("%s has no kernel for append_backward", device_backend());
    desc.rope = device_desc();
    desc.rope.dtype = ROPE_BF16;
    desc.q.norm = (rope_norm){.type = ROPE_NORM_RMS, .weight = ROPE_NORM_WEIGHT, .eps = 1e-6};
    desc.k.norm = desc.q.norm;
    desc.k.norm.scope = ROPE_NORM_TOKEN;
    return desc;
}

static rope_plan *plan_of(const rope_append_desc *desc) {
    rope_plan *plan = NULL;
    CHECK_STATUS(ROPE_OK, rope_append_backward_plan_create(desc, &plan));
    return plan;
}

/* --- descriptors --- */

static void check_desc(const rope_append_desc *desc, const char *field, const char *value) {
    rope_plan *untouched = (rope_plan *)(uintptr_t)desc, *plan = untouched;
    test_describe(field);
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_append_backward_plan_create(desc, &plan));
    CHECK(plan == untouched, "a failed rope_append_backward_plan_create wrote its result");
    bad_text_check(field, value);
}

TEST(append_backward_errors, descriptors) {
    rope_append_desc desc = backward_desc(), bad = desc;
    rope_plan_destroy(plan_of(&desc));
    bad.cache = ROPE_CACHE_SLOTS;
    bad.page_size = 16;
    check_desc(&bad, "cache", "1");
    bad.k.store_dtype = ROPE_F8E4M3;
    check_desc(&bad, "cache", "1");
    bad.q.norm = bad.k.norm = (rope_norm){0};
    bad.k_source = ROPE_SOURCE_CACHE;
    check_desc(&bad, "k_source", "ROPE_SOURCE_CACHE");
    bad = desc;
    bad.q.store_dtype = ROPE_I8;
    check_desc(&bad, "q.store_dtype", "ROPE_I8");
    bad.q.store_dtype = ROPE_F32;
    check_desc(&bad, "q.store_dtype", "ROPE_F32");
    bad.q.store_dtype = ROPE_BF16;
    rope_plan_destroy(plan_of(&bad));
    bad = desc;
    bad.rope.direction = ROPE_INVERSE;
    check_desc(&bad, "direction", "3");
    bad = desc;
    bad.rope.angle_mode = ROPE_ANGLE_TABLE;
    bad.rope.table_width = ROPE_TABLE_FULL;
    bad.rope.pairing_out = ROPE_PAIRING_INTERLEAVED;
    check_desc(&bad, "table_width", "2 (ROPE_TABLE_FULL)");
    bad = desc;
    bad.v.norm.type = 3;
    check_desc(&bad, "v.norm.type", "3");
}

TEST(append_backward_errors, null_arguments) {
    rope_append_desc desc = backward_desc();
    rope_append_args forward = ROPE_APPEND_ARGS_INIT;
    rope_append_backward_args args = ROPE_APPEND_BACKWARD_ARGS_INIT;
    rope_append_bounds bounds = {.struct_size = sizeof bounds};
    rope_plan *plan = NULL;
    size_t bytes = 7;
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_append_backward_plan_create(NULL, &plan));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_append_backward_plan_create(&desc, NULL));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_append_backward(NULL, &args));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_append_backward_workspace(NULL, &bounds, &bytes));
    plan = plan_of(&desc);
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_append_backward(plan, NULL));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_append_backward(plan, &args));
    bad_text_check("forward", "NULL");
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_append_backward_workspace(plan, NULL, &bytes));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_append_backward_workspace(plan, &bounds, NULL));
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_append(plan, &forward));
    bad_text_check("plan is one of append_backward", "append");
    bounds.k_heads = -3;
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_append_backward_workspace(plan, &bounds, &bytes));
    bad_text_check("bounds.k_heads", "-3");
    bounds = (rope_append_bounds){sizeof bounds, 1 << 20, INT64_C(1) << 50, 1 << 20, 4, 2};
    CHECK_STATUS(ROPE_ERROR_OVERFLOW, rope_append_backward_workspace(plan, &bounds, &bytes));
    bad_text_check("bounds.tokens", "1125899906842624");
    args.forward = &forward;
    args.struct_size = 0;
    CHECK_STATUS(ROPE_ERROR_ABI, rope_append_backward(plan, &args));
    bad_text_check("rope_append_backward_args.struct_size", "0");
    args.struct_size = sizeof args;
    forward.struct_size = 0;
    CHECK_STATUS(ROPE_ERROR_ABI, rope_append_backward(plan, &args));
    bad_text_check("rope_append_args.struct_size", "0");
    rope_plan_destroy(plan);
    CHECK_STATUS(ROPE_OK, rope_append_plan_create(&desc, &plan));
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_append_backward(plan, &args));
    bad_text_check("plan is one of append", "append_backward");
    rope_plan_destroy(plan);
    CHECK(bytes == 7, "a failed rope_append_backward_workspace wrote its result");
}

/* Each field is 0, 1 or the largest. */
TEST(append_backward_errors, bounds_of_any_size) {
    static const int64_t values[3] = {0, 1, INT64_MAX};
    rope_append_desc desc = backward_desc();
    rope_plan *plan = plan_of(&desc);
    for (int i = 0; i < 243; i++) {
        int64_t n[5];
        size_t bytes = 7;
        for (int f = 0, rest = i; f < 5; f++, rest /= 3)
            n[f] = values[rest % 3];
        const rope_append_bounds bounds = {sizeof bounds, n[0], n[1], n[2], n[3], n[4]};
        const rope_status status = rope_append_backward_workspace(plan, &bounds, &bytes);
        if (status == ROPE_OK)
            continue;
        CHECK_STATUS(ROPE_ERROR_OVERFLOW, status);
        bad_text_check("bounds.tokens", NULL);
        CHECK(bytes == 7, "a workspace that is none was written");
    }
    rope_plan_destroy(plan);
}

/* --- calls --- */

typedef struct call {
    rope_append_args forward;
    rope_append_backward_args args;
    char *memory;
    rope_plan *plan;
} call;

static bad_memory memory;

static call make_call(void) {
    const rope_append_desc desc = backward_desc();
    const rope_append_bounds bounds = {sizeof bounds, BATCH, TOKENS, HEADS, HEADS, HEADS};
    call c = {.forward = ROPE_APPEND_ARGS_INIT, .args = ROPE_APPEND_BACKWARD_ARGS_INIT};
    c.plan = plan_of(&desc);
    bad_memory_make(&memory);
    bad_memory_put(&memory);
    c.memory = memory.device;
#define AT(part) bad_memory_part(&memory, part)
    c.forward.rope.batch = BATCH, c.forward.rope.tokens = TOKENS;
    c.forward.rope.q = (rope_tensor){.in = AT(QX), .heads = HEADS};
    c.forward.rope.k = (rope_tensor){.in = AT(KX), .heads = HEADS};
    c.forward.v = (rope_tensor){.in = AT(VX), .heads = HEADS};
    c.forward.q_weight.data = AT(QW);
    c.forward.k_weight.data = AT(KW);
    c.args.q =
        (rope_append_gradient){.in = AT(QG), .out = AT(QD), .weight = (float *)(void *)AT(QS)};
    c.args.k =
        (rope_append_gradient){.in = AT(KG), .out = AT(KD), .weight = (float *)(void *)AT(KS)};
    c.args.v = (rope_append_gradient){.in = AT(VG), .out = AT(VD)};
    CHECK_STATUS(ROPE_OK, rope_append_backward_workspace(c.plan, &bounds, &c.args.workspace_bytes));
    CHECK(c.args.workspace_bytes + 256 < (size_t)(BAD_PARTS - WORK) * BAD_PART,
          "the memory is too small for a workspace");
    c.args.workspace = AT(WORK) + (256 - (uintptr_t)AT(WORK) % 256) % 256;
    return c;
}

static rope_status run(call *c) {
    c->args.forward = &c->forward;
    return rope_append_backward(c->plan, &c->args);
}

static void end(call *c) {
    CHECK_STATUS(ROPE_OK, rope_device_synchronize(device_open()));
    bad_memory_free(&memory);
    rope_plan_destroy(c->plan);
}

/* A call that fails leaves memory as it was. */
static void check(call *c, rope_status status, const char *field, const char *value) {
    test_describe(field);
    bad_memory_put(&memory);
    CHECK_STATUS(status, run(c));
    bad_memory_check(&memory, field, value);
}

#define CHECK_CALL(change, status, field, value)                                                   \
    do {                                                                                           \
        call c = made;                                                                             \
        change;                                                                                    \
        check(&c, status, field, value);                                                           \
    } while (0)

TEST(append_backward_errors, gradients) {
    call made = make_call();
    CHECK_STATUS(ROPE_OK, run(&made));
    CHECK_CALL(c.args.q.in = NULL, ROPE_ERROR_NULL_POINTER, "q.in", "NULL");
    CHECK_CALL((c.args.q.out = NULL, c.args.q.weight = NULL), ROPE_ERROR_NULL_POINTER,
               "q.out and q.weight", "NULL");
    CHECK_CALL(c.args.v.in_stride[1] = INT64_MAX / 2, ROPE_ERROR_OVERFLOW, "v.in_stride",
               "4611686018427387903");
    CHECK_CALL((c.args.v = (rope_append_gradient){.in_stride = {0, 7}}), ROPE_ERROR_INVALID_VALUE,
               "v.in_stride", "[0, 7, 0, 0]");
    CHECK_CALL((c.args.q.out = NULL, c.args.q.out_stride[3] = 1), ROPE_ERROR_INVALID_VALUE,
               "q.out_stride", "[0, 0, 0, 1]");
    CHECK_CALL(c.args.v.weight = c.args.q.weight, ROPE_ERROR_INVALID_VALUE, "v.weight",
               "no weight");
    CHECK_CALL(c.args.q.weight = (float *)(void *)(c.memory + 2), ROPE_ERROR_MISALIGNED, "q.weight",
               "4 bytes");
    CHECK_CALL(c.args.k.in = c.memory + 1, ROPE_ERROR_MISALIGNED, "k.in", "2 bytes");
    CHECK_CALL(c.args.k.out = c.memory + 1, ROPE_ERROR_MISALIGNED, "k.out", "2 bytes");
    CHECK_CALL(c.forward.v.heads = 0, ROPE_ERROR_INVALID_VALUE, "v.in", "no heads of v");
    CHECK_CALL(c.args.q.out_stride[0] = c.args.q.out_stride[1] = c.args.q.out_stride[3] = 1,
               ROPE_ERROR_OVERLAP, "q.out_stride", "[1, 1, 0, 1]");
    end(&made);
}

TEST(append_backward_errors, forward_arguments) {
    call made = make_call();
    CHECK_CALL(c.forward.rope.q.out = (void *)(uintptr_t)c.forward.rope.q.in,
               ROPE_ERROR_INVALID_VALUE, "forward's q.out", NULL);
    CHECK_CALL(c.forward.rope.q.in = NULL, ROPE_ERROR_NULL_POINTER, "q.in", "NULL");
    CHECK_CALL(c.forward.rope.tokens = -1, ROPE_ERROR_INVALID_VALUE, "tokens", "-1");
    CHECK_CALL(c.forward.rope.q.heads = -2, ROPE_ERROR_INVALID_VALUE, "q.heads", "-2");
    CHECK_CALL(c.forward.q_weight.data = NULL, ROPE_ERROR_NULL_POINTER, "q_weight.data", "NULL");
    CHECK_CALL(c.forward.v_weight.data = c.memory, ROPE_ERROR_INVALID_VALUE, "v_weight.data", NULL);
    CHECK_CALL(c.forward.pages = 3, ROPE_ERROR_INVALID_VALUE, "pages", "3");
    CHECK_CALL(c.forward.k_cache.data = c.memory, ROPE_ERROR_INVALID_VALUE, "k_cache.data", NULL);
    CHECK_CALL(c.forward.rope.cos = c.memory, ROPE_ERROR_INVALID_VALUE, "cos", NULL);
    /* v has no norm, whose input then is not looked at; nor are outs. */
    made.forward.v.in = made.forward.v.out = (void *)(uintptr_t)1;
    made.forward.rope.q.out = made.args.q.out;
    CHECK_STATUS(ROPE_OK, run(&made));
    end(&made);
}

TEST(append_backward_errors, workspace) {
    call made = make_call();
    CHECK_CALL(c.args.workspace_bytes = 255, ROPE_ERROR_INVALID_VALUE, "workspace_bytes", "255");
    CHECK_CALL(c.args.workspace = NULL, ROPE_ERROR_NULL_POINTER, "workspace", "NULL");
    CHECK_CALL(c.args.workspace = (char *)c.args.workspace + 4, ROPE_ERROR_MISALIGNED, "workspace",
               "256 bytes");
    end(&made);
}

/* What is written lies in nothing else, but that an out may be its in. */
TEST(append_backward_errors, overlap) {
    call made = make_call();
    CHECK_CALL(c.args.q.out = AT(QX), ROPE_ERROR_OVERLAP, "q.out", "forward's q.in");
    CHECK_CALL(c.args.q.out = AT(QW), ROPE_ERROR_OVERLAP, "q.out", "q_weight");
    CHECK_CALL(c.args.q.out = AT(KG), ROPE_ERROR_OVERLAP, "q.out", "k.in");
    CHECK_CALL(c.args.q.out = AT(KD) + 512, ROPE_ERROR_OVERLAP, "q.out", "k.out");
    CHECK_CALL(c.args.q.out = AT(QG) + 2, ROPE_ERROR_OVERLAP, "q.out", "q.in");
    CHECK_CALL(c.args.q.out = c.args.workspace, ROPE_ERROR_OVERLAP, "workspace", "q.out");
    CHECK_CALL(c.args.q.weight = c.args.k.weight, ROPE_ERROR_OVERLAP, "q.weight", "k.weight");
    CHECK_CALL(c.args.q.weight = (float *)(void *)(AT(QD)), ROPE_ERROR_OVERLAP, "q.weight",
               "q.out");
    CHECK_CALL(c.args.k.weight = (float *)(void *)(AT(VG)), ROPE_ERROR_OVERLAP, "k.weight", "v.in");
    CHECK_CALL(c.forward.rope.position_ids = AT(QD), ROPE_ERROR_OVERLAP, "position_ids", "q.out");
    CHECK_CALL(c.forward.rope.sequence_offsets = c.args.workspace, ROPE_ERROR_OVERLAP,
               "sequence_offsets", "workspace");
    made.args.q.out = (void *)(uintptr_t)made.args.q.in;
    made.args.k.out = (void *)(uintptr_t)made.args.k.in;
    made.args.v.out = (void *)(uintptr_t)made.args.v.in;
    CHECK_STATUS(ROPE_OK, run(&made));
    end(&made);
}

TEST(append_backward_errors, nothing_to_do) {
    call made = make_call();
    made.args.workspace = NULL;
    made.args.workspace_bytes = 0;
    made.args.q = made.args.k = made.args.v = (rope_append_gradient){0};
    CHECK_STATUS(ROPE_OK, run(&made));
    end(&made);
    made = make_call();
    made.forward.rope.tokens = 0;
    CHECK_STATUS(ROPE_OK, run(&made));
    end(&made);
}
