/* Bad input of "attention_backward": each gives its status and a text with field and value, and
 * changes nothing. */
#include "tests/attention_backward/cases.h"
#include "tests/support/bad_call.h"
#include "tests/support/bad_field.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <stdlib.h>
#include <string.h>

enum { BATCH = 2, TOKENS = 4, KEYS = 8, Q_HEADS = 4, K_HEADS = 2, DIM = 64 };
/* Parts of a call's memory. */
/* Bytes behind a workspace, so that a tensor that overlaps its end overlaps nothing else. */
enum { BEHIND = 1 << 16 };
enum { Q, Q_OUT, K, K_OUT, V, OUT, LSE, SINKS, DOUT, DQ, DK, DV, DSINKS, INDICES, SPARE };

static rope_attention_desc backward_desc(void) {
    rope_attention_desc desc = ROPE_ATTENTION_DESC_INIT;
    device_open(); /* skips where there is none */
    if (!device_is_host())
        backward_required();
    desc.rope = device_desc();
    desc.rope.dtype = ROPE_BF16;
    return desc;
}

/* Skips the rest of the test where a provider declines. */
static rope_plan *plan_of(const rope_attention_desc *desc) {
    rope_plan *plan = NULL;
    const rope_status status = rope_attention_backward_plan_create(desc, &plan);
    if (status == ROPE_ERROR_UNSUPPORTED)
        device_not_provided(rope_last_error());
    CHECK_STATUS(ROPE_OK, status);
    return plan;
}

/* --- descriptors --- */

static void check_desc(const rope_attention_desc *desc, const char *field, const char *value) {
    rope_plan *untouched = (rope_plan *)(uintptr_t)desc, *plan = untouched;
    test_describe(field);
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_attention_backward_plan_create(desc, &plan));
    CHECK(plan == untouched, "a failed rope_attention_backward_plan_create wrote its result");
    bad_text_check(field, value);
}

TEST(attention_backward_errors, descriptors) {
    rope_attention_desc desc = backward_desc(), bad = desc;
    rope_plan_destroy(plan_of(&desc));
    bad.mask = ROPE_MASK_TREE;
    check_desc(&bad, "mask", "3 (ROPE_MASK_TREE)");
    bad = desc;
    bad.cache = ROPE_CACHE_TABLE;
    bad.page_size = 16;
    check_desc(&bad, "cache", "2 (ROPE_CACHE_TABLE)");
    bad = desc;
    bad.v_head_dim = -1;
    check_desc(&bad, "v_head_dim", "-1");
    bad = desc;
    bad.rope.direction = ROPE_INVERSE;
    check_desc(&bad, "direction", "3 (ROPE_INVERSE)");
    bad.rope.direction = ROPE_TRANSPOSE;
    rope_plan_destroy(plan_of(&bad));
    bad.rope.angle_mode = ROPE_ANGLE_TABLE;
    bad.rope.table_width = ROPE_TABLE_FULL;
    bad.rope.pairing_in = ROPE_PAIRING_INTERLEAVED;
    bad.rope.pairing_out = ROPE_PAIRING_HALF_SPLIT;
    check_desc(&bad, "table_width", "2 (ROPE_TABLE_FULL)");
    bad.rope.pairing_out = 0;
    rope_plan_destroy(plan_of(&bad));
}

TEST(attention_backward_errors, null_arguments) {
    rope_attention_desc desc = backward_desc();
    rope_attention_args forward = ROPE_ATTENTION_ARGS_INIT;
    rope_attention_backward_args args = ROPE_ATTENTION_BACKWARD_ARGS_INIT;
    rope_attention_bounds bounds = {.struct_size = sizeof bounds};
    rope_plan *plan = NULL;
    size_t bytes = 7;
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_attention_backward_plan_create(NULL, &plan));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_attention_backward_plan_create(&desc, NULL));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_attention_backward(NULL, &args));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_attention_backward_workspace(NULL, &bounds, &bytes));
    plan = plan_of(&desc);
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_attention_backward(plan, NULL));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_attention_backward(plan, &args));
    bad_text_check("forward", "NULL");
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_attention_backward_workspace(plan, NULL, &bytes));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_attention_backward_workspace(plan, &bounds, NULL));
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_attention(plan, &forward));
    bad_text_check("plan is one of attention_backward", "attention");
    bounds.k_tokens = -3;
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE,
                 rope_attention_backward_workspace(plan, &bounds, &bytes));
    bad_text_check("bounds.k_tokens", "-3");
    bounds = (rope_attention_bounds){sizeof bounds, 2, INT64_C(1) << 61, 8, 0, 4, 2};
    CHECK_STATUS(ROPE_ERROR_OVERFLOW, rope_attention_backward_workspace(plan, &bounds, &bytes));
    bad_text_check("bounds.tokens", "2305843009213693952");
    args.forward = &forward;
    args.struct_size = 0;
    CHECK_STATUS(ROPE_ERROR_ABI, rope_attention_backward(plan, &args));
    bad_text_check("rope_attention_backward_args.struct_size", "0");
    args.struct_size = sizeof args;
    forward.struct_size = 0;
    CHECK_STATUS(ROPE_ERROR_ABI, rope_attention_backward(plan, &args));
    bad_text_check("rope_attention_args.struct_size", "0");
    rope_plan_destroy(plan);
    CHECK_STATUS(ROPE_OK, rope_attention_plan_create(&desc, &plan));
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_attention_backward(plan, &args));
    bad_text_check("plan is one of attention", "attention_backward");
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE,
                 rope_attention_backward_workspace(plan, &bounds, &bytes));
    rope_plan_destroy(plan);
    CHECK(bytes == 7, "a failed rope_attention_backward_workspace wrote its result");
}

TEST(attention_backward_errors, bounds_of_any_size) {
    for (int32_t normed = 0; normed < 2; normed++) {
        rope_attention_desc desc = backward_desc();
        desc.q_norm.type = desc.k_norm.type = normed ? ROPE_NORM_RMS : 0;
        rope_plan *plan = plan_of(&desc);
        attention_check_bounds(plan, rope_attention_backward_workspace);
        rope_plan_destroy(plan);
    }
}

/* --- calls --- */

typedef struct backward_call {
    rope_plan *plan;
    rope_attention_args forward;
    rope_attention_backward_args args;
    bad_memory memory;
    void *workspace;
} backward_call;

static char *part_of(const backward_call *call, int part) {
    return bad_memory_part(&call->memory, part);
}

static void call_make(backward_call *call, const rope_attention_desc *desc) {
    const rope_attention_bounds bounds = {sizeof bounds, BATCH, TOKENS, KEYS, 0, Q_HEADS, K_HEADS};
    call->plan = plan_of(desc);
    bad_memory_make(&call->memory);
    memset(bad_memory_before(&call->memory, INDICES), 0, BAD_PART);
    bad_memory_put(&call->memory);
    call->forward = (rope_attention_args)ROPE_ATTENTION_ARGS_INIT;
    rope_attention_args *f = &call->forward;
    f->rope.batch = BATCH;
    f->rope.tokens = TOKENS;
    f->k_tokens = device_is_provider() ? TOKENS : KEYS; /* which wants as many as queries */
    f->rope.q = (rope_tensor){.in = part_of(call, Q), .heads = Q_HEADS};
    f->rope.k = (rope_tensor){.in = part_of(call, K), .heads = K_HEADS};
    f->v = (rope_tensor){.in = part_of(call, V), .heads = K_HEADS};
    f->out.data = part_of(call, OUT);
    f->lse = (float *)(void *)part_of(call, LSE);
    f->sinks = desc->sink_dtype ? part_of(call, SINKS) : NULL;
    call->args = (rope_attention_backward_args)ROPE_ATTENTION_BACKWARD_ARGS_INIT;
    call->args.dout = part_of(call, DOUT);
    call->args.dq.data = part_of(call, DQ);
    call->args.dk.data = part_of(call, DK);
    call->args.dv.data = part_of(call, DV);
    call->args.dsinks = desc->sink_dtype ? (float *)(void *)part_of(call, DSINKS) : NULL;
    CHECK_STATUS(ROPE_OK,
                 rope_attention_backward_workspace(call->plan, &bounds, &f->workspace_bytes));
    CHECK_STATUS(ROPE_OK,
                 rope_device_alloc(device_open(), f->workspace_bytes + BEHIND, &call->workspace));
    f->workspace = (char *)call->workspace + (256 - (uintptr_t)call->workspace % 256) % 256;
}

static void call_free(backward_call *call) {
    rope_plan_destroy(call->plan);
    bad_memory_free(&call->memory);
    CHECK_STATUS(ROPE_OK, rope_device_free(device_open(), call->workspace));
}

static void check_call(const backward_call *call, const rope_attention_args *forward,
                       rope_attention_backward_args *args, rope_status status, const char *field,
                       const char *value) {
    args->forward = forward;
    test_describe(field);
    CHECK_STATUS(status, rope_attention_backward(call->plan, args));
    bad_memory_check(&call->memory, field, value);
}

/* Runs `statement` on copies of the call's arguments `a` and of the forward's `f`, and expects a
 * failure. */
#define BAD_CALL(call, status, field, value, statement)                                            \
    do {                                                                                           \
        rope_attention_args f = (call).forward;                                                    \
        rope_attention_backward_args a = (call).args;                                              \
        statement;                                                                                 \
        check_call(&(call), &f, &a, status, field, value);                                         \
    } while (0)

/* The same, expecting success; what it wrote is taken back. */
#define GOOD_CALL(call, statement)                                                                 \
    do {                                                                                           \
        rope_attention_args f = (call).forward;                                                    \
        rope_attention_backward_args a = (call).args;                                              \
        statement;                                                                                 \
        a.forward = &f;                                                                            \
        test_describe(#statement);                                                                 \
        bad_memory_good(&(call).memory, rope_attention_backward((call).plan, &a));                 \
    } while (0)

static const rope_status invalid = ROPE_ERROR_INVALID_VALUE, overlap = ROPE_ERROR_OVERLAP,
                         overflow = ROPE_ERROR_OVERFLOW, null = ROPE_ERROR_NULL_POINTER,
                         misaligned = ROPE_ERROR_MISALIGNED, range = ROPE_ERROR_POSITION_RANGE;

TEST(attention_backward_errors, call_pointers) {
    static backward_call call;
    rope_attention_desc desc = backward_desc();
    call_make(&call, &desc);
    call.args.forward = &call.forward;
    CHECK_STATUS(ROPE_OK, rope_attention_backward(call.plan, &call.args));
    bad_memory_put(&call.memory);
    GOOD_CALL(call, (f.rope.q.out = part_of(&call, Q_OUT), f.rope.k.out = part_of(&call, K_OUT)));
    GOOD_CALL(call, (f.rope.q.out = part_of(&call, Q), f.rope.k.out = part_of(&call, K)));
    GOOD_CALL(call, (f.rope.q.in = NULL, f.rope.q.out = part_of(&call, Q_OUT)));
    GOOD_CALL(call, (f.rope.k.in = NULL, f.rope.k.out = part_of(&call, K_OUT)));
    GOOD_CALL(call, a.dout = f.out.data);
    BAD_CALL(call, null, "q.in", NULL, f.rope.q.in = NULL);
    BAD_CALL(call, null, "k.in", NULL, f.rope.k.in = NULL);
    BAD_CALL(call, null, "v.in", NULL, f.v.in = NULL);
    BAD_CALL(call, null, "out.data", NULL, f.out.data = NULL);
    BAD_CALL(call, null, "lse", NULL, f.lse = NULL);
    BAD_CALL(call, null, "dout", NULL, a.dout = NULL);
    BAD_CALL(call, misaligned, "q.out", NULL, f.rope.q.out = part_of(&call, Q_OUT) + 1);
    BAD_CALL(call, misaligned, "k.out", NULL, f.rope.k.out = part_of(&call, K_OUT) + 1);
    BAD_CALL(call, misaligned, "lse", NULL, f.lse = (float *)(void *)(part_of(&call, LSE) + 2));
    BAD_CALL(call, misaligned, "dout", NULL, a.dout = part_of(&call, DOUT) + 1);
    BAD_CALL(call, misaligned, "dq.data", NULL, a.dq.data = part_of(&call, DQ) + 1);
    BAD_CALL(call, misaligned, "dk.data", NULL, a.dk.data = part_of(&call, DK) + 1);
    BAD_CALL(call, misaligned, "dv.data", NULL, a.dv.data = part_of(&call, DV) + 1);
    BAD_CALL(call, invalid, "dsinks", NULL, a.dsinks = (float *)(void *)part_of(&call, DSINKS));
    BAD_CALL(call, invalid, "batch", "-1", f.rope.batch = -1);
    BAD_CALL(call, invalid, "k.heads", "3", f.rope.k.heads = f.v.heads = 3);
    if (device_is_host())
        BAD_CALL(
            call, range, "k_lengths", "7",
            (f.k_tokens = 4, a.dk.data = a.dv.data = NULL, f.k_lengths = part_of(&call, SPARE)));
    call_free(&call);
    desc.rotation = ROPE_ATTENTION_ROTATE_NONE;
    call_make(&call, &desc);
    BAD_CALL(call, invalid, "q.out", NULL, f.rope.q.out = part_of(&call, Q_OUT));
    BAD_CALL(call, invalid, "k.out", NULL, f.rope.k.out = part_of(&call, K_OUT));
    call_free(&call);
}

TEST(attention_backward_errors, call_norms) {
    static backward_call call;
    rope_attention_desc desc = backward_desc();
    call_make(&call, &desc);
    float *weight = (float *)(void *)part_of(&call, SPARE);
    BAD_CALL(call, invalid, "dq_weight", NULL, a.dq_weight = weight);
    BAD_CALL(call, invalid, "k_weight.data", NULL, f.k_weight.data = part_of(&call, Q));
    call_free(&call);
    desc.q_norm = desc.k_norm = (rope_norm){.type = ROPE_NORM_RMS, .weight = ROPE_NORM_WEIGHT};
    call_make(&call, &desc);
    weight = (float *)(void *)part_of(&call, SPARE);
    call.forward.q_weight.data = call.forward.k_weight.data = part_of(&call, K);
    GOOD_CALL(call, a.dq_weight = a.dk_weight = NULL);
    GOOD_CALL(call, (a.dq_weight = weight, a.dk_weight = weight + 64));
    GOOD_CALL(call, (a.dq.data = a.dk.data = a.dv.data = NULL, a.dq_weight = weight));
    GOOD_CALL(call, (f.rope.q.out = part_of(&call, Q_OUT), a.dq_weight = weight));
    GOOD_CALL(call, (f.rope.q.out = part_of(&call, Q), a.dq.data = NULL));
    BAD_CALL(call, invalid, "q.out is q.in", NULL, f.rope.q.out = part_of(&call, Q));
    BAD_CALL(call, null, "q.in", NULL, (f.rope.q.out = part_of(&call, Q_OUT), f.rope.q.in = NULL));
    BAD_CALL(call, misaligned, "dk_weight", NULL,
             a.dk_weight = (float *)(void *)((char *)weight + 2));
    BAD_CALL(call, overlap, "dq_weight", NULL, a.dq_weight = (float *)a.dk.data);
    BAD_CALL(call, overlap, "dk_weight", NULL, a.dq_weight = a.dk_weight = weight);
    BAD_CALL(call, overlap, "q_weight", NULL, f.q_weight.data = a.dq.data);
    BAD_CALL(call, overlap, "q.in", NULL,
             (f.rope.q.out = part_of(&call, Q_OUT), f.rope.q.in = a.dk.data));
    BAD_CALL(call, null, "workspace", NULL, f.workspace = NULL);
    BAD_CALL(call, invalid, "workspace_bytes", "1", f.workspace_bytes = 1);
    call_free(&call);
}

TEST(attention_backward_errors, call_gradients) {
    static backward_call call;
    rope_attention_desc desc = backward_desc();
    desc.sink_dtype = ROPE_F32;
    call_make(&call, &desc);
    GOOD_CALL(call, (a.dq.data = a.dk.data = a.dv.data = NULL, a.dsinks = NULL));
    GOOD_CALL(call, STRIDE(a.dout_stride, 0, 0, 64, 1));
    BAD_CALL(call, invalid, "dq.data", "[0, 0, 2, 1]",
             (a.dq.data = NULL, STRIDE(a.dq.stride, 0, 0, 2, 1)));
    BAD_CALL(call, invalid, "dk.data", "[0, 0, 2, 1]",
             (a.dk.data = NULL, STRIDE(a.dk.stride, 0, 0, 2, 1)));
    BAD_CALL(call, invalid, "dv.data", "[0, 0, 2, 1]",
             (a.dv.data = NULL, STRIDE(a.dv.stride, 0, 0, 2, 1)));
    BAD_CALL(call, overflow, "dout", "4611686018427387904",
             STRIDE(a.dout_stride, INT64_C(1) << 62, 256, 64, 1));
    BAD_CALL(call, overflow, "dq.data", "4611686018427387904",
             STRIDE(a.dq.stride, INT64_C(1) << 62, 256, 64, 1));
    BAD_CALL(call, overlap, "dk.data", "[512, 64, 64", STRIDE(a.dk.stride, 512, 64, 64, 1));
    BAD_CALL(call, overlap, "dv.data", "[512, 64, 64", STRIDE(a.dv.stride, 512, 64, 64, 1));
    BAD_CALL(call, overlap, "dq.data", "q.in", a.dq.data = part_of(&call, Q));
    BAD_CALL(call, overlap, "dq.data", "q.out",
             (f.rope.q.out = part_of(&call, Q_OUT), a.dq.data = f.rope.q.out));
    BAD_CALL(call, overlap, "dk.data", "k.out",
             (f.rope.k.out = part_of(&call, K_OUT), a.dk.data = f.rope.k.out));
    BAD_CALL(call, overlap, "workspace", "dq.data", a.dq.data = f.workspace);
    BAD_CALL(call, overlap, "workspace", "dv.data",
             a.dv.data = (char *)f.workspace + (f.workspace_bytes - 1) / 64 * 64);
    BAD_CALL(call, overlap, "workspace", "dout", a.dout = f.workspace);
    BAD_CALL(call, overlap, "workspace", "lse", f.lse = f.workspace);
    BAD_CALL(call, overlap, "workspace", "v.in", f.v.in = f.workspace);
    BAD_CALL(call, overlap, "dk.data", "k.in", a.dk.data = part_of(&call, K));
    BAD_CALL(call, overlap, "dv.data", "v.in", a.dv.data = part_of(&call, V) + 64);
    BAD_CALL(call, overlap, "dq.data", "dout", a.dq.data = part_of(&call, DOUT));
    BAD_CALL(call, overlap, "dq.data", "out.data", a.dq.data = part_of(&call, OUT));
    BAD_CALL(call, overlap, "dq.data", "dk.data", a.dq.data = a.dk.data);
    BAD_CALL(call, overlap, "dv.data", "dk.data", a.dv.data = a.dk.data);
    BAD_CALL(call, overlap, "dsinks", "lse", a.dsinks = f.lse);
    BAD_CALL(call, overlap, "q_lengths", "dq.data", f.q_lengths = a.dq.data);
    BAD_CALL(call, overlap, "k_lengths", "workspace", f.k_lengths = f.workspace);
    BAD_CALL(call, overlap, "sequence_offsets", "dv.data", f.rope.sequence_offsets = a.dv.data);
    BAD_CALL(call, overlap, "sinks", "dsinks", f.sinks = a.dsinks);
    BAD_CALL(call, misaligned, "dsinks", NULL, a.dsinks = (float *)(void *)((char *)a.dsinks + 2));
    BAD_CALL(call, null, "sinks", NULL, f.sinks = NULL);
    call_free(&call);
}

TEST(attention_backward_errors, call_workspace) {
    static backward_call call;
    rope_attention_desc desc = backward_desc();
    call_make(&call, &desc);
    BAD_CALL(call, null, "workspace", NULL, f.workspace = NULL);
    BAD_CALL(call, invalid, "workspace_bytes", "1", f.workspace_bytes = 1);
    BAD_CALL(call, misaligned, "workspace", NULL, f.workspace = (char *)f.workspace + 64);
    call_free(&call);
}
