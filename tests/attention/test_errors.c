/* Bad input of "attention": each gives its status and a text with field and value, and changes
 * nothing. */
#include "tests/attention/compare.h"
#include "tests/support/bad_call.h"
#include "tests/support/bad_field.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 2, TOKENS = 4, KEYS = 8, Q_HEADS = 4, K_HEADS = 2, DIM = 64, PAGES = 4, PAGE = 8 };
/* Parts of a call's memory. */
enum {
    Q_IN,
    Q_OUT,
    K_IN,
    K_OUT,
    V_IN,
    OUT,
    LSE,
    K_CACHE,
    V_CACHE,
    INDICES,
    ONES,
    SINKS,
    SPARE = 14
};

static rope_attention_desc attention_desc(void) {
    rope_attention_desc desc = ROPE_ATTENTION_DESC_INIT;
    attention_required();
    desc.rope = device_desc();
    desc.rope.dtype = ROPE_BF16;
    return desc;
}

/* A provider reads keys of a cache as they are. */
static rope_attention_desc cached_desc(int32_t cache) {
    rope_attention_desc desc = attention_desc();
    desc.rotation = device_is_provider() ? ROPE_ATTENTION_ROTATE_Q : 0;
    desc.cache = cache;
    desc.page_size = PAGE;
    return desc;
}

/* Skips the rest of the test where a provider declines. */
static rope_plan *plan_of(const rope_attention_desc *desc) {
    rope_plan *plan = NULL;
    const rope_status status = rope_attention_plan_create(desc, &plan);
    if (status == ROPE_ERROR_UNSUPPORTED)
        device_not_provided(rope_last_error());
    CHECK_STATUS(ROPE_OK, status);
    return plan;
}

/* --- descriptors --- */

#define BAD(field, kind, value)                                                                    \
    { #field, offsetof(rope_attention_desc, field), value, kind, ROPE_ERROR_INVALID_VALUE }
#define BAD_ROPE(field, kind, value)                                                               \
    { #field, offsetof(rope_attention_desc, rope.field), value, kind, ROPE_ERROR_INVALID_VALUE }

static rope_status create(const void *desc, rope_plan **plan) {
    return rope_attention_plan_create(desc, plan);
}

#define CHECK_DESC(base, ...) CHECK_BAD_FIELDS(base, create, __VA_ARGS__)

TEST(attention_errors, shape) {
    rope_attention_desc desc = attention_desc();
    CHECK_DESC(desc, BAD_ROPE(dtype, KIND_I32, 0), BAD_ROPE(dtype, KIND_I32, ROPE_F64),
               BAD_ROPE(dtype, KIND_I32, ROPE_F8E4M3), BAD_ROPE(head_dim, KIND_I32, 578),
               BAD_ROPE(head_dim, KIND_I32, 1), BAD_ROPE(k_head_dim, KIND_I32, 128),
               BAD_ROPE(rotary_dim, KIND_I32, 7), BAD_ROPE(device, KIND_I32, -1),
               BAD_ROPE(shard, KIND_I32, 4), BAD(v_head_dim, KIND_I32, -1),
               BAD(v_head_dim, KIND_I32, 577), BAD(rotation, KIND_I32, 4),
               BAD(rotation, KIND_I32, -1), BAD(cache, KIND_I32, ROPE_CACHE_SLOTS),
               BAD(cache, KIND_I32, 4), BAD(cache, KIND_I32, -1));
    desc.rope.k_head_dim = 64;
    CHECK_DESC(desc, BAD_ROPE(k_head_dim, KIND_I32, 96));
    desc = attention_desc();
    desc.rope.rotary_dim = 32;
    desc.rope.k_head_dim = 64;
    CHECK_DESC(desc, BAD_ROPE(k_rotary_offset, KIND_I32, 16),
               BAD_ROPE(rotary_offset, KIND_I32, 16));
    rope_plan *plan = NULL;
    desc = attention_desc();
    desc.rope.head_dim = 1;
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_attention_plan_create(&desc, &plan));
    bad_text_check("head_dim is 1; allowed is 2..576", NULL);
    desc = attention_desc();
    desc.rope.shard = ROPE_SHARD_CONTIGUOUS;
    desc.rope.shard_size = 2;
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_attention_plan_create(&desc, &plan));
    bad_text_check("shard", "2");
}

TEST(attention_errors, scores) {
    rope_attention_desc desc = attention_desc();
    CHECK_DESC(
        desc, BAD(mask, KIND_I32, 4), BAD(mask, KIND_I32, -1), BAD(scale, KIND_REAL, -1),
        BAD(scale, KIND_REAL, NAN), BAD(scale, KIND_REAL, INFINITY), BAD(scale, KIND_REAL, 0x1p61),
        BAD(scale, KIND_REAL, 0x1p-61), BAD(soft_cap, KIND_REAL, -2), BAD(soft_cap, KIND_REAL, NAN),
        BAD(soft_cap, KIND_REAL, 0x1p61), BAD(soft_cap, KIND_REAL, 0x1p-61),
        BAD(window, KIND_I64, -1), BAD(window_right, KIND_I64, -1), BAD(window_right, KIND_I64, 4),
        BAD(chunk, KIND_I64, -1), BAD(sink_dtype, KIND_I32, ROPE_F16),
        BAD(sink_dtype, KIND_I32, -1), BAD(sink_dtype, KIND_I32, ROPE_F64),
        BAD(nondeterministic, KIND_I32, 2), BAD(nondeterministic, KIND_I32, -1));
    desc.mask = ROPE_MASK_FULL;
    CHECK_DESC(desc, BAD(window_right, KIND_I64, -3));
    desc.mask = ROPE_MASK_TREE;
    CHECK_DESC(desc, BAD(window, KIND_I64, -4), BAD(chunk, KIND_I64, -4),
               BAD(window_right, KIND_I64, 4));
}

TEST(attention_errors, cache) {
    rope_attention_desc desc = attention_desc();
    CHECK_DESC(desc, BAD(page_size, KIND_I64, 16), BAD(ring, KIND_I64, 4),
               BAD(table_dtype, KIND_I32, ROPE_I32), BAD(k.dtype, KIND_I32, ROPE_F16),
               BAD(v.dtype, KIND_I32, ROPE_I8), BAD(k.scale, KIND_I32, ROPE_SCALE_HEAD),
               BAD(v.scale, KIND_I32, ROPE_SCALE_TENSOR), BAD(k.dim_block, KIND_I32, 8),
               BAD(v.dim_block, KIND_I32, 8));
    desc = cached_desc(ROPE_CACHE_TABLE);
    desc.v_head_dim = 32;
    CHECK_DESC(desc, BAD(page_size, KIND_I64, 0), BAD(page_size, KIND_I64, -1),
               BAD(ring, KIND_I64, -4), BAD(table_dtype, KIND_I32, ROPE_F64),
               BAD(table_dtype, KIND_I32, -1), BAD(k.dtype, KIND_I32, ROPE_F64),
               BAD(k.dtype, KIND_I32, 11), BAD(v.dtype, KIND_I32, -1),
               BAD(k.scale, KIND_I32, ROPE_SCALE_TENSOR), BAD(k.dim_block, KIND_I32, 7),
               BAD(k.dim_block, KIND_I32, 128), BAD(v.dim_block, KIND_I32, 64),
               BAD(v.dim_block, KIND_I32, -8));
    desc.k.dtype = desc.v.dtype = ROPE_F8E4M3;
    CHECK_DESC(desc, BAD(k.scale, KIND_I32, 5), BAD(v.scale, KIND_I32, -1));
    desc = cached_desc(ROPE_CACHE_SEQUENCE);
    CHECK_DESC(desc, BAD(table_dtype, KIND_I32, ROPE_I64), BAD(ring, KIND_I64, 1000));
}

/* What a rotation alone reads stays 0 without one. */
TEST(attention_errors, no_rotation) {
    rope_attention_desc desc = attention_desc();
    desc.rotation = ROPE_ATTENTION_ROTATE_NONE;
    desc.rope.head_dim = 65;
    desc.rope.position_dtype = ROPE_I32;
    CHECK_DESC(desc, BAD_ROPE(rotary_dim, KIND_I32, 32), BAD_ROPE(rotary_offset, KIND_I32, 2),
               BAD_ROPE(pairing_in, KIND_I32, 1), BAD_ROPE(pairing_out, KIND_I32, 1),
               BAD_ROPE(direction, KIND_I32, 1), BAD_ROPE(angle_mode, KIND_I32, 1),
               BAD_ROPE(arithmetic, KIND_I32, 1), BAD_ROPE(rope_type, KIND_I32, 1),
               BAD_ROPE(rope_theta, KIND_REAL, 10000), BAD_ROPE(factor, KIND_REAL, 2),
               BAD_ROPE(attention_factor, KIND_REAL, 2), BAD_ROPE(xpos_scale_base, KIND_REAL, 512),
               BAD_ROPE(axes, KIND_I32, 1), BAD_ROPE(table_dtype, KIND_I32, 1),
               BAD_ROPE(out_of_range, KIND_I32, 1), BAD_ROPE(shard, KIND_I32, 4),
               BAD_ROPE(position_dtype, KIND_I32, 1));
}

TEST(attention_errors, norms) {
    rope_attention_desc desc = attention_desc();
    rope_plan *plan = NULL;
    CHECK_DESC(desc, BAD(q_norm.type, KIND_I32, 3), BAD(k_norm.type, KIND_I32, -1),
               BAD(q_norm.scope, KIND_I32, ROPE_NORM_TOKEN), BAD(k_norm.eps, KIND_REAL, 1e-6),
               BAD(k_norm.weight, KIND_I32, ROPE_NORM_WEIGHT));
    desc.q_norm = desc.k_norm = (rope_norm){.type = ROPE_NORM_RMS};
    CHECK_DESC(desc, BAD(q_norm.scope, KIND_I32, 3), BAD(q_norm.offset, KIND_I32, 64),
               BAD(k_norm.dim, KIND_I32, 65), BAD(q_norm.eps, KIND_REAL, -1),
               BAD(k_norm.eps, KIND_REAL, NAN), BAD(k_norm.weight, KIND_I32, 3),
               BAD(q_norm.weight_dtype, KIND_I32, ROPE_F32), BAD(q_norm.rounding, KIND_I32, 3));
    desc.rotation = ROPE_ATTENTION_ROTATE_Q;
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_attention_plan_create(&desc, &plan));
    bad_text_check("k_norm.type is 1 (ROPE_NORM_RMS); allowed is 0 where keys were rotated", NULL);
    desc = cached_desc(ROPE_CACHE_SEQUENCE);
    CHECK_DESC(desc, BAD(k_norm.type, KIND_I32, ROPE_NORM_RMS));
}

TEST(attention_errors, null_arguments) {
    rope_attention_desc desc = attention_desc();
    rope_attention_args args = ROPE_ATTENTION_ARGS_INIT;
    rope_attention_bounds bounds = {.struct_size = sizeof bounds};
    rope_append_args other = ROPE_APPEND_ARGS_INIT;
    rope_plan *plan = NULL;
    size_t bytes = 7;
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_attention_plan_create(NULL, &plan));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_attention_plan_create(&desc, NULL));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_attention(NULL, &args));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_attention_workspace(NULL, &bounds, &bytes));
    plan = plan_of(&desc);
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_attention(plan, NULL));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_attention_workspace(plan, NULL, &bytes));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_attention_workspace(plan, &bounds, NULL));
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_apply(plan, &args.rope));
    bad_text_check("plan is one of attention", "rope");
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_append(plan, &other));
    bad_text_check("plan is one of attention", "append");
    rope_plan_destroy(plan);
    CHECK_STATUS(ROPE_OK, rope_plan_create(&desc.rope, &plan));
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_attention(plan, &args));
    bad_text_check("plan is one of rope", "attention");
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_attention_workspace(plan, &bounds, &bytes));
    bad_text_check("plan is one of rope", "attention");
    rope_plan_destroy(plan);
    CHECK(bytes == 7, "a failed rope_attention_workspace wrote its result");
}

/* --- workspace --- */

TEST(attention_errors, bounds) {
    static const struct {
        const char *name;
        size_t offset;
    } fields[] = {
        {"bounds.batch", offsetof(rope_attention_bounds, batch)},
        {"bounds.tokens", offsetof(rope_attention_bounds, tokens)},
        {"bounds.k_tokens", offsetof(rope_attention_bounds, k_tokens)},
        {"bounds.sequences", offsetof(rope_attention_bounds, sequences)},
        {"bounds.q_heads", offsetof(rope_attention_bounds, q_heads)},
        {"bounds.k_heads", offsetof(rope_attention_bounds, k_heads)},
    };
    rope_attention_desc desc = attention_desc();
    rope_plan *plan = plan_of(&desc);
    size_t bytes = 7;
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        rope_attention_bounds bounds = {sizeof bounds, 2, 4, 8, 0, 4, 2};
        const int64_t bad = -3;
        memcpy((char *)&bounds + fields[i].offset, &bad, sizeof bad);
        CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_attention_workspace(plan, &bounds, &bytes));
        bad_text_check(fields[i].name, "-3");
    }
    rope_attention_bounds bounds = {sizeof bounds, 2, 4, INT64_C(1) << 60, 0, 4, 2};
    CHECK_STATUS(ROPE_ERROR_OVERFLOW, rope_attention_workspace(plan, &bounds, &bytes));
    bad_text_check("bounds.k_tokens", "1152921504606846976");
    bounds = (rope_attention_bounds){sizeof bounds, 1, 4, INT64_C(1) << 31, 0, 1, 1};
    if (device_is_provider()) { /* which counts in 31 bits */
        CHECK_STATUS(ROPE_ERROR_OVERFLOW, rope_attention_workspace(plan, &bounds, &bytes));
        bad_text_check("bounds.k_tokens", "2147483648");
    }
    bounds.struct_size = 0;
    CHECK_STATUS(ROPE_ERROR_ABI, rope_attention_workspace(plan, &bounds, &bytes));
    bad_text_check("rope_attention_bounds.struct_size", "0");
    CHECK(bytes == 7, "a failed rope_attention_workspace wrote its result");
    rope_plan_destroy(plan);
}

TEST(attention_errors, bounds_of_any_size) {
    for (int32_t cache = 0; cache <= ROPE_CACHE_TABLE; cache += ROPE_CACHE_TABLE) {
        rope_attention_desc desc = cached_desc(cache);
        desc.page_size = cache ? PAGE : 0;
        desc.q_norm.type = ROPE_NORM_RMS;
        desc.k_norm.type = desc.rotation || cache ? 0 : ROPE_NORM_LAYER;
        rope_plan *plan = plan_of(&desc);
        attention_check_bounds(plan, rope_attention_workspace);
        rope_plan_destroy(plan);
    }
}

/* --- sizes of structs --- */

static void check_abi(const rope_attention_desc *desc, const char *field, const char *value) {
    rope_plan *plan = NULL;
    CHECK_STATUS(ROPE_ERROR_ABI, rope_attention_plan_create(desc, &plan));
    bad_text_check(field, value);
}

TEST(attention_errors, struct_sizes) {
    rope_attention_desc desc = attention_desc(), bad = desc;
    bad.struct_size = 0;
    check_abi(&bad, "rope_attention_desc.struct_size", "0");
    bad.struct_size = sizeof bad.rope;
    check_abi(&bad, "rope_desc", "at most");
    bad.struct_size = ROPE_MAX_STRUCT_SIZE + 1;
    check_abi(&bad, "rope_attention_desc.struct_size", "4097");
    bad = desc;
    bad.rope.struct_size = 0;
    check_abi(&bad, "rope_desc.struct_size", "0");
    bad.rope.struct_size = ROPE_MAX_STRUCT_SIZE;
    check_abi(&bad, "rope_desc", "4096");
}

/* --- calls --- */

typedef struct attention_call {
    rope_plan *plan;
    rope_attention_args args;
    bad_memory memory;
    void *workspace;
} attention_call;

static char *part_of(const attention_call *call, int part) {
    return bad_memory_part(&call->memory, part);
}

/* Lengths are 0 in part INDICES, which is also a table of pages. Of other keys than a row's queries
 * a provider wants lengths. */
static void call_make(attention_call *call, const rope_attention_desc *desc) {
    const rope_attention_bounds bounds = {
        sizeof bounds, BATCH, TOKENS, desc->cache ? 2 * PAGE : KEYS, 0, Q_HEADS, K_HEADS};
    call->plan = plan_of(desc);
    bad_memory_make(&call->memory);
    call->args = (rope_attention_args)ROPE_ATTENTION_ARGS_INIT;
    rope_attention_args *a = &call->args;
    a->rope.batch = BATCH;
    a->rope.tokens = TOKENS;
    a->k_tokens = device_is_provider() ? TOKENS : KEYS;
    a->rope.q = (rope_tensor){.in = part_of(call, Q_IN), .heads = Q_HEADS};
    a->rope.k = (rope_tensor){.in = part_of(call, K_IN), .heads = K_HEADS};
    a->v = (rope_tensor){.in = part_of(call, V_IN), .heads = K_HEADS};
    a->out.data = part_of(call, OUT);
    if (desc->cache) {
        a->rope.k.in = a->v.in = NULL;
        a->pages = PAGES;
        a->k_cache.data = part_of(call, K_CACHE);
        a->v_cache.data = part_of(call, V_CACHE);
        a->k_lengths = part_of(call, INDICES);
    }
    if (desc->cache == ROPE_CACHE_TABLE) {
        a->block_table = part_of(call, INDICES);
        a->table_pages = 2;
    }
    if (desc->sink_dtype)
        a->sinks = part_of(call, SINKS);
    if (desc->mask == ROPE_MASK_TREE) {
        a->tree_bits = part_of(call, SPARE);
        a->tree_keys = 3;
    }
    memset(bad_memory_before(&call->memory, INDICES), 0, BAD_PART);
    const float one = 1;
    for (size_t i = 0; i < BAD_PART; i += sizeof one)
        memcpy(bad_memory_before(&call->memory, ONES) + i, &one, sizeof one);
    bad_memory_put(&call->memory);
    CHECK_STATUS(ROPE_OK, rope_attention_workspace(call->plan, &bounds, &a->workspace_bytes));
    CHECK_STATUS(ROPE_OK,
                 rope_device_alloc(device_open(), a->workspace_bytes + 256, &call->workspace));
    a->workspace = (char *)call->workspace + (256 - (uintptr_t)call->workspace % 256) % 256;
}

static void call_free(attention_call *call) {
    rope_plan_destroy(call->plan);
    bad_memory_free(&call->memory);
    CHECK_STATUS(ROPE_OK, rope_device_free(device_open(), call->workspace));
}

static void check_call(const attention_call *call, const rope_attention_args *args,
                       rope_status status, const char *field, const char *value) {
    test_describe(field);
    CHECK_STATUS(status, rope_attention(call->plan, args));
    bad_memory_check(&call->memory, field, value);
}

/* Runs `statement` on a copy of the call's arguments `a`, and expects a failure. */
#define BAD_CALL(call, status, field, value, statement)                                            \
    do {                                                                                           \
        rope_attention_args a = (call).args;                                                       \
        statement;                                                                                 \
        check_call(&(call), &a, status, field, value);                                             \
    } while (0)

/* The same, expecting success; what it wrote is taken back. */
#define GOOD_CALL(call, statement)                                                                 \
    do {                                                                                           \
        rope_attention_args a = (call).args;                                                       \
        statement;                                                                                 \
        test_describe(#statement);                                                                 \
        bad_memory_good(&(call).memory, rope_attention((call).plan, &a));                          \
    } while (0)

static const rope_status invalid = ROPE_ERROR_INVALID_VALUE, overlap = ROPE_ERROR_OVERLAP,
                         overflow = ROPE_ERROR_OVERFLOW, null = ROPE_ERROR_NULL_POINTER,
                         misaligned = ROPE_ERROR_MISALIGNED;

TEST(attention_errors, call_sizes) {
    static attention_call call;
    rope_attention_desc desc = attention_desc();
    call_make(&call, &desc);
    CHECK_STATUS(ROPE_OK, rope_attention(call.plan, &call.args));
    bad_memory_put(&call.memory);
    BAD_CALL(call, invalid, "batch", "-1", a.rope.batch = -1);
    BAD_CALL(call, invalid, "tokens", "-3", a.rope.tokens = -3);
    BAD_CALL(call, invalid, "k_tokens", "-3", a.k_tokens = -3);
    BAD_CALL(call, invalid, "q.heads", "-2", a.rope.q.heads = -2);
    BAD_CALL(call, invalid, "k.heads", "-2", a.rope.k.heads = -2);
    BAD_CALL(call, invalid, "k.heads", "0", a.rope.k.heads = 0);
    BAD_CALL(call, invalid, "k.heads is 0; allowed is > 0 and a divisor of q.heads (4)", NULL,
             a.rope.k.heads = 0);
    GOOD_CALL(call, a.rope.q.heads = a.rope.k.heads = 0);
    BAD_CALL(call, invalid, "k.heads", "3", a.rope.k.heads = a.v.heads = 3);
    BAD_CALL(call, invalid, "k.heads", "8", a.rope.k.heads = a.v.heads = 8);
    BAD_CALL(call, invalid, "v.heads", "1", a.v.heads = 1);
    BAD_CALL(call, invalid, "v.heads", "0", a.v.heads = 0);
    BAD_CALL(call, overflow, "q.heads", "4611686018427387904", a.rope.q.heads = INT64_C(1) << 62);
    BAD_CALL(call, overflow, "tokens", "1152921504606846976", a.rope.tokens = INT64_C(1) << 60);
    BAD_CALL(call, overflow, "k.heads", "1152921504606846976", a.k_tokens = INT64_C(1) << 60);
    BAD_CALL(call, overflow, "v.in_stride", "4611686018427387904",
             STRIDE(a.v.in_stride, INT64_C(1) << 62, 1, 1, 1));
    BAD_CALL(call, overflow, "out.data", "4611686018427387904",
             STRIDE(a.out.stride, INT64_C(1) << 62, 256, 64, 1));
    BAD_CALL(call, overflow, "lse", "4611686018427387904",
             (a.lse = (float *)(void *)part_of(&call, LSE),
              STRIDE(a.lse_stride, INT64_C(1) << 62, 4, 1)));
    call_free(&call);
}

TEST(attention_errors, call_pointers) {
    static attention_call call;
    rope_attention_desc desc = attention_desc();
    call_make(&call, &desc);
    float *lse = (float *)(void *)part_of(&call, LSE);
    GOOD_CALL(call, a.lse = lse);
    GOOD_CALL(call, (a.rope.q.out = part_of(&call, Q_OUT), a.rope.k.out = part_of(&call, K_OUT)));
    BAD_CALL(call, null, "q.in", NULL, a.rope.q.in = NULL);
    BAD_CALL(call, null, "k.in", NULL, a.rope.k.in = NULL);
    BAD_CALL(call, null, "v.in", NULL, a.v.in = NULL);
    BAD_CALL(call, null, "out.data", NULL, a.out.data = NULL);
    BAD_CALL(call, misaligned, "q.in", NULL, a.rope.q.in = part_of(&call, Q_IN) + 1);
    BAD_CALL(call, misaligned, "q.out", NULL, a.rope.q.out = part_of(&call, Q_OUT) + 1);
    BAD_CALL(call, misaligned, "k.out", NULL, a.rope.k.out = part_of(&call, K_OUT) + 1);
    BAD_CALL(call, misaligned, "v.in", NULL, a.v.in = part_of(&call, V_IN) + 1);
    BAD_CALL(call, misaligned, "out.data", NULL, a.out.data = part_of(&call, OUT) + 1);
    BAD_CALL(call, misaligned, "lse", NULL, a.lse = (float *)(void *)(part_of(&call, LSE) + 2));
    BAD_CALL(call, misaligned, "q_lengths", NULL, a.q_lengths = part_of(&call, INDICES) + 4);
    BAD_CALL(call, misaligned, "k_lengths", NULL, a.k_lengths = part_of(&call, INDICES) + 4);
    BAD_CALL(call, invalid, "v.out", NULL, a.v.out = part_of(&call, SPARE));
    BAD_CALL(call, invalid, "q.out_stride", "[0, 0, 2, 1]",
             STRIDE(a.rope.q.out_stride, 0, 0, 2, 1));
    BAD_CALL(call, invalid, "k.out_stride", "[0, 0, 2, 1]",
             STRIDE(a.rope.k.out_stride, 0, 0, 2, 1));
    BAD_CALL(call, invalid, "lse_stride", "[0, 2, 1]", STRIDE(a.lse_stride, 0, 2, 1));
    call_free(&call);
}

TEST(attention_errors, call_norms) {
    static attention_call call;
    rope_attention_desc desc = attention_desc();
    call_make(&call, &desc);
    BAD_CALL(call, invalid, "q_weight.data", NULL, a.q_weight.data = part_of(&call, ONES));
    BAD_CALL(call, invalid, "k_weight.head_stride", "64", a.k_weight.head_stride = 64);
    call_free(&call);
    desc.q_norm = desc.k_norm = (rope_norm){.type = ROPE_NORM_RMS, .weight = ROPE_NORM_WEIGHT};
    call_make(&call, &desc);
    call.args.q_weight.data = call.args.k_weight.data = part_of(&call, ONES);
    GOOD_CALL(call, a.lse = NULL);
    GOOD_CALL(call, a.q_weight.head_stride = DIM);
    GOOD_CALL(call, (a.rope.q.out = part_of(&call, Q_OUT), a.rope.k.out = part_of(&call, K_IN)));
    BAD_CALL(call, null, "q_weight.data", NULL, a.q_weight.data = NULL);
    BAD_CALL(call, misaligned, "k_weight.data", NULL, a.k_weight.data = part_of(&call, ONES) + 1);
    BAD_CALL(call, overflow, "q_weight.head_stride", NULL,
             a.q_weight.head_stride = INT64_C(1) << 62);
    BAD_CALL(call, overlap, "q_weight", NULL, a.q_weight.data = part_of(&call, OUT));
    BAD_CALL(call, overlap, "k_weight", NULL,
             (a.rope.q.out = part_of(&call, Q_OUT), a.k_weight.data = part_of(&call, Q_OUT)));
    BAD_CALL(call, null, "workspace", NULL, a.workspace = NULL);
    BAD_CALL(call, invalid, "workspace_bytes", "1", a.workspace_bytes = 1);
    BAD_CALL(call, overflow, "tokens", "1152921504606846976", a.rope.tokens = INT64_C(1) << 60);
    call_free(&call);
}

TEST(attention_errors, call_workspace) {
    static attention_call call;
    rope_attention_desc desc = attention_desc();
    call_make(&call, &desc);
    if (call.args.workspace_bytes == 0) {
        call_free(&call);
        SKIP("the chosen kernel needs no workspace");
    }
    BAD_CALL(call, null, "workspace", NULL, a.workspace = NULL);
    BAD_CALL(call, invalid, "workspace_bytes", "1", a.workspace_bytes = 1);
    BAD_CALL(call, invalid, "workspace_bytes", "0", (a.workspace = NULL, a.workspace_bytes = 0));
    BAD_CALL(call, misaligned, "workspace", NULL, a.workspace = (char *)a.workspace + 64);
    call_free(&call);
}

TEST(attention_errors, call_positions_without_a_rotation) {
    static attention_call call;
    rope_attention_desc desc = attention_desc();
    desc.rotation = ROPE_ATTENTION_ROTATE_NONE;
    call_make(&call, &desc);
    char *some = part_of(&call, INDICES);
    BAD_CALL(call, invalid, "q.out", NULL, a.rope.q.out = part_of(&call, Q_OUT));
    BAD_CALL(call, invalid, "k.out", NULL, a.rope.k.out = part_of(&call, K_OUT));
    BAD_CALL(call, invalid, "position_ids", NULL, a.rope.position_ids = some);
    BAD_CALL(call, invalid, "position_offset", "7", a.rope.position_offset = 7);
    BAD_CALL(call, invalid, "sequence_offsets", NULL, a.rope.sequence_offsets = some);
    BAD_CALL(call, invalid, "k_position_ids", NULL, a.k_position_ids = some);
    BAD_CALL(call, invalid, "cos", NULL, a.rope.cos = some);
    call_free(&call);
    desc.rotation = ROPE_ATTENTION_ROTATE_Q;
    call_make(&call, &desc);
    some = part_of(&call, INDICES);
    GOOD_CALL(call, a.rope.position_ids = some);
    BAD_CALL(call, invalid, "k.out", NULL, a.rope.k.out = part_of(&call, K_OUT));
    BAD_CALL(call, invalid, "k_position_ids", NULL, a.k_position_ids = some);
    call_free(&call);
}

/* A tree's window counts by them. */
TEST(attention_errors, call_positions_of_a_tree) {
    static attention_call call;
    rope_attention_desc desc = attention_desc();
    device_not_provided("trees are declined");
    desc.rotation = ROPE_ATTENTION_ROTATE_NONE;
    desc.mask = ROPE_MASK_TREE;
    desc.window = 4;
    call_make(&call, &desc);
    char *some = part_of(&call, INDICES);
    GOOD_CALL(call, a.rope.position_ids = some);
    GOOD_CALL(call, a.rope.position_ids = a.k_position_ids = some);
    BAD_CALL(call, invalid, "k_position_ids", "without position_ids", a.k_position_ids = some);
    BAD_CALL(call, misaligned, "position_ids", NULL, a.rope.position_ids = some + 4);
    BAD_CALL(call, invalid, "position_offset", "7", a.rope.position_offset = 7);
    BAD_CALL(call, invalid, "sequence_offsets", NULL, a.rope.sequence_offsets = some);
    call_free(&call);
    desc.window = 0;
    call_make(&call, &desc);
    some = part_of(&call, INDICES);
    BAD_CALL(call, invalid, "position_ids", NULL, a.rope.position_ids = some);
    BAD_CALL(call, invalid, "k_position_ids", NULL, a.k_position_ids = some);
    call_free(&call);
}

TEST(attention_errors, call_positions) {
    static attention_call call;
    rope_attention_desc desc = attention_desc();
    call_make(&call, &desc);
    char *some = part_of(&call, INDICES);
    GOOD_CALL(call, a.rope.position_ids = a.k_position_ids = some);
    BAD_CALL(call, invalid, "k_position_ids", NULL, a.rope.position_ids = some);
    BAD_CALL(call, invalid, "position_ids", NULL, a.k_position_ids = some);
    BAD_CALL(call, invalid, "k_position_stride", "[0, 8, 1]", STRIDE(a.k_position_stride, 0, 8, 1));
    BAD_CALL(call, invalid, "position_stride", "[0, 8, 1]",
             STRIDE(a.rope.position_stride, 0, 8, 1));
    BAD_CALL(call, misaligned, "k_position_ids", NULL,
             (a.rope.position_ids = some, a.k_position_ids = some + 4));
    BAD_CALL(
        call, overflow, "k_position_stride", "2305843009213693952",
        (a.rope.position_ids = a.k_position_ids = some, a.k_position_stride[1] = INT64_C(1) << 61));
    call_free(&call);
}

TEST(attention_errors, call_sequences) {
    static attention_call call;
    rope_attention_desc desc = attention_desc();
    call_make(&call, &desc);
    char *some = part_of(&call, INDICES);
    GOOD_CALL(call, a.q_lengths = a.k_lengths = some);
    GOOD_CALL(call, (a.rope.batch = 1, a.rope.sequences = 2, a.rope.cu_seqlens = some,
                     a.k_cu_seqlens = some));
    BAD_CALL(call, null, "k_cu_seqlens", NULL,
             (a.rope.batch = 1, a.rope.sequences = 2, a.rope.cu_seqlens = some));
    BAD_CALL(call, invalid, "k_cu_seqlens", NULL, a.k_cu_seqlens = some);
    BAD_CALL(call, invalid, "batch", "2",
             (a.rope.sequences = 2, a.rope.cu_seqlens = a.k_cu_seqlens = some));
    BAD_CALL(call, invalid, "sequences", "3", a.rope.sequences = 3);
    GOOD_CALL(call, (a.rope.batch = 1, a.rope.sequences = 2, a.rope.cu_seqlens = some,
                     a.k_cu_seqlens = a.q_lengths = a.k_lengths = some));
    BAD_CALL(call, misaligned, "k_cu_seqlens", NULL,
             (a.rope.batch = 1, a.rope.sequences = 2, a.rope.cu_seqlens = some,
              a.k_cu_seqlens = some + 4));
    BAD_CALL(call, invalid, "sequence_lengths", NULL, a.rope.sequence_lengths = some);
    call_free(&call);
}

TEST(attention_errors, call_sinks_and_trees) {
    static attention_call call;
    rope_attention_desc desc = attention_desc();
    call_make(&call, &desc);
    BAD_CALL(call, invalid, "sinks", NULL, a.sinks = part_of(&call, SINKS));
    BAD_CALL(call, invalid, "tree_bits", NULL, a.tree_bits = part_of(&call, SPARE));
    BAD_CALL(call, invalid, "tree_keys", "4", a.tree_keys = 4);
    BAD_CALL(call, invalid, "tree_stride", "[4, 1]", STRIDE(a.tree_stride, 4, 1));
    call_free(&call);
    desc.sink_dtype = ROPE_F32;
    call_make(&call, &desc);
    GOOD_CALL(call, (void)a);
    BAD_CALL(call, null, "sinks", NULL, a.sinks = NULL);
    BAD_CALL(call, misaligned, "sinks", NULL, a.sinks = part_of(&call, SINKS) + 2);
    call_free(&call);
    desc.mask = ROPE_MASK_TREE;
    call_make(&call, &desc);
    GOOD_CALL(call, (void)a);
    BAD_CALL(call, null, "tree_bits", NULL, a.tree_bits = NULL);
    BAD_CALL(call, misaligned, "tree_bits", NULL, a.tree_bits = part_of(&call, SPARE) + 2);
    BAD_CALL(call, invalid, "tree_keys", "0", a.tree_keys = 0);
    BAD_CALL(call, invalid, "tree_keys", "-4", a.tree_keys = -4);
    BAD_CALL(call, overflow, "tree_keys", "9223372036854775807", a.tree_keys = INT64_MAX);
    BAD_CALL(call, overflow, "tree_stride", "4611686018427387904",
             STRIDE(a.tree_stride, INT64_C(1) << 62, 1));
    call_free(&call);
}

TEST(attention_errors, call_without_a_cache) {
    static attention_call call;
    rope_attention_desc desc = attention_desc();
    call_make(&call, &desc);
    char *some = part_of(&call, SPARE);
    BAD_CALL(call, invalid, "k_cache.data", NULL, a.k_cache.data = some);
    BAD_CALL(call, invalid, "v_cache.data", NULL, a.v_cache.data = some);
    BAD_CALL(call, invalid, "k_cache.stride", "[0, 0, 0, 8, 1]",
             STRIDE(a.k_cache.stride, 0, 0, 0, 8, 1));
    BAD_CALL(call, invalid, "v_cache.scale", NULL, a.v_cache.scale.data = some);
    BAD_CALL(call, invalid, "block_table", NULL, a.block_table = some);
    BAD_CALL(call, invalid, "table_stride", "[2, 1]", STRIDE(a.table_stride, 2, 1));
    BAD_CALL(call, invalid, "table_pages", "2", a.table_pages = 2);
    BAD_CALL(call, invalid, "pages", "4", a.pages = 4);
    call_free(&call);
}

TEST(attention_errors, call_with_a_cache) {
    static attention_call call;
    rope_attention_desc desc = cached_desc(ROPE_CACHE_TABLE);
    call_make(&call, &desc);
    char *some = part_of(&call, SPARE);
    GOOD_CALL(call, (void)a);
    GOOD_CALL(call, a.v.heads = 0);
    GOOD_CALL(call, a.k_tokens = 0);
    GOOD_CALL(call, a.v_cache.data = a.k_cache.data);
    BAD_CALL(call, invalid, "k.in", NULL, a.rope.k.in = some);
    BAD_CALL(call, invalid, "v.in", NULL, a.v.in = some);
    BAD_CALL(call, invalid, "k.out", NULL, a.rope.k.out = some);
    BAD_CALL(call, invalid, "k.in_stride", "[0, 0, 2, 1]", STRIDE(a.rope.k.in_stride, 0, 0, 2, 1));
    BAD_CALL(call, invalid, "v.in_stride", "[0, 0, 2, 1]", STRIDE(a.v.in_stride, 0, 0, 2, 1));
    BAD_CALL(call, null, "k_lengths", NULL, a.k_lengths = NULL);
    BAD_CALL(call, invalid, "k_cu_seqlens", NULL,
             (a.rope.batch = 1, a.rope.sequences = 2, a.rope.cu_seqlens = part_of(&call, INDICES),
              a.k_cu_seqlens = part_of(&call, INDICES)));
    BAD_CALL(call, invalid, "v.heads", "1", a.v.heads = 1);
    BAD_CALL(call, null, "k_cache.data", NULL, a.k_cache.data = NULL);
    BAD_CALL(call, null, "v_cache.data", NULL, a.v_cache.data = NULL);
    BAD_CALL(call, misaligned, "k_cache.data", NULL, a.k_cache.data = part_of(&call, K_CACHE) + 1);
    BAD_CALL(call, invalid, "pages", "0", a.pages = 0);
    BAD_CALL(call, invalid, "pages", "-1", a.pages = -1);
    BAD_CALL(call, overflow, "k_cache.stride", "9223372036854775807", a.pages = INT64_MAX);
    BAD_CALL(call, overflow, "v_cache.stride", "4611686018427387904",
             STRIDE(a.v_cache.stride, INT64_C(1) << 62, 128, 64, 8, 1));
    BAD_CALL(call, null, "block_table", NULL, a.block_table = NULL);
    BAD_CALL(call, misaligned, "block_table", NULL, a.block_table = part_of(&call, INDICES) + 4);
    BAD_CALL(call, invalid, "table_pages", "0", a.table_pages = 0);
    BAD_CALL(call, invalid, "table_pages", "-2", a.table_pages = -2);
    BAD_CALL(call, overflow, "block_table", "1152921504606846976",
             STRIDE(a.table_stride, INT64_MAX / 8 + 1, 1));
    BAD_CALL(call, overflow, "table_pages", "4611686018427387904",
             (a.table_pages = INT64_C(1) << 62, a.k_tokens = 0));
    BAD_CALL(call, invalid, "k_cache.scale", NULL, a.k_cache.scale.data = some);
    call_free(&call);
    desc = cached_desc(ROPE_CACHE_SEQUENCE);
    call_make(&call, &desc);
    BAD_CALL(call, invalid, "block_table", NULL, a.block_table = part_of(&call, INDICES));
    BAD_CALL(call, invalid, "table_pages", "2", a.table_pages = 2);
    call_free(&call);
}

TEST(attention_errors, scales) {
    static attention_call call;
    rope_attention_desc desc = cached_desc(ROPE_CACHE_TABLE);
    desc.k.dtype = desc.v.dtype = ROPE_F8E4M3;
    desc.k.scale = ROPE_SCALE_HEAD;
    desc.v.scale = ROPE_SCALE_TOKEN_HEAD_MAX;
    call_make(&call, &desc);
    call.args.k_cache.scale.data = call.args.v_cache.scale.data = part_of(&call, ONES);
    GOOD_CALL(call, (void)a);
    GOOD_CALL(call, STRIDE(a.v_cache.scale.stride, 0, 0, 1));
    BAD_CALL(call, null, "k_cache.scale.data", NULL, a.k_cache.scale.data = NULL);
    BAD_CALL(call, null, "v_cache.scale.data", NULL, a.v_cache.scale.data = NULL);
    BAD_CALL(call, misaligned, "k_cache.scale.data", NULL,
             a.k_cache.scale.data = part_of(&call, ONES) + 2);
    BAD_CALL(call, invalid, "k_cache.scale", "[0, 2, 1]", STRIDE(a.k_cache.scale.stride, 0, 2, 1));
    BAD_CALL(call, overflow, "v_cache.scale.stride", "4611686018427387904",
             STRIDE(a.v_cache.scale.stride, INT64_C(1) << 62, 2, 1));
    call_free(&call);
}

TEST(attention_errors, overlap) {
    static attention_call call;
    rope_attention_desc desc = attention_desc();
    call_make(&call, &desc);
    float *lse = (float *)(void *)part_of(&call, LSE);
    GOOD_CALL(call, (a.rope.q.out = part_of(&call, Q_IN), a.rope.k.out = part_of(&call, K_IN)));
    GOOD_CALL(call, a.v.in = a.rope.k.in);
    GOOD_CALL(call, a.rope.k.in = a.rope.q.in);
    BAD_CALL(call, overlap, "q.out", NULL, a.rope.q.out = part_of(&call, Q_IN) + 4);
    BAD_CALL(call, overlap, "k.out", NULL, a.rope.k.out = part_of(&call, K_IN) + 4);
    BAD_CALL(call, overlap, "out.data", "q.in", a.out.data = part_of(&call, Q_IN));
    BAD_CALL(call, overlap, "out.data", "k.in", a.out.data = part_of(&call, K_IN));
    BAD_CALL(call, overlap, "out.data", "v.in", a.out.data = part_of(&call, V_IN) + 64);
    BAD_CALL(call, overlap, "out.data", "q.out", a.rope.q.out = a.out.data);
    BAD_CALL(call, overlap, "out.data", "k.out", a.rope.k.out = a.out.data);
    BAD_CALL(call, overlap, "q.out", "k.out", a.rope.q.out = a.rope.k.out = part_of(&call, SPARE));
    BAD_CALL(call, overlap, "v.in", "k.out", a.rope.k.out = part_of(&call, V_IN));
    BAD_CALL(call, overlap, "lse", "out.data", a.lse = (float *)a.out.data);
    BAD_CALL(call, overlap, "workspace", "out.data",
             (a.workspace_bytes = 256, a.out.data = a.workspace));
    BAD_CALL(call, overlap, "workspace", "q.in",
             (a.workspace_bytes = 256, a.rope.q.in = a.workspace));
    BAD_CALL(call, overlap, "workspace", "k.out",
             (a.workspace_bytes = 256, a.rope.k.out = (char *)a.workspace + 192));
    BAD_CALL(call, overlap, "lse", "q.in", a.lse = (float *)(void *)part_of(&call, Q_IN));
    BAD_CALL(call, overlap, "out.data", "[256, 64, 64", STRIDE(a.out.stride, 256, 64, 64, 1));
    BAD_CALL(call, overlap, "lse", "[4, 4, 1", (a.lse = lse, STRIDE(a.lse_stride, 4, 4, 1)));
    call_free(&call);
    desc = cached_desc(ROPE_CACHE_TABLE);
    call_make(&call, &desc);
    BAD_CALL(call, overlap, "out.data", "k_cache", a.out.data = part_of(&call, K_CACHE));
    BAD_CALL(call, overlap, "lse", "v_cache", a.lse = (float *)(void *)part_of(&call, V_CACHE));
    call_free(&call);
}

/* What a call reads beside its tensors. */
TEST(attention_errors, overlap_of_lists) {
    static attention_call call;
    rope_attention_desc desc = attention_desc();
    desc.sink_dtype = ROPE_F32;
    call_make(&call, &desc);
    char *out = part_of(&call, OUT), *some = part_of(&call, INDICES);
    BAD_CALL(call, overlap, "q_lengths", "q.out",
             a.q_lengths = a.rope.q.out = part_of(&call, Q_OUT));
    BAD_CALL(call, overlap, "q_lengths", "out.data", a.q_lengths = out);
    BAD_CALL(call, overlap, "k_lengths", "out.data", a.k_lengths = out - 8);
    BAD_CALL(call, overlap, "k_lengths", "workspace",
             (a.workspace_bytes = 256, a.k_lengths = a.workspace));
    BAD_CALL(call, overlap, "sequence_offsets", "out.data", a.rope.sequence_offsets = out);
    BAD_CALL(call, overlap, "k_position_ids", "out.data",
             (a.rope.position_ids = some, a.k_position_ids = out));
    BAD_CALL(call, overlap, "position_ids", "out.data",
             (a.rope.position_ids = out, a.k_position_ids = some));
    BAD_CALL(
        call, overlap, "cu_seqlens", "out.data",
        (a.rope.batch = 1, a.rope.sequences = 1, a.rope.cu_seqlens = out, a.k_cu_seqlens = some));
    BAD_CALL(
        call, overlap, "k_cu_seqlens", "out.data",
        (a.rope.batch = 1, a.rope.sequences = 1, a.rope.cu_seqlens = some, a.k_cu_seqlens = out));
    BAD_CALL(call, overlap, "sinks", "out.data", a.sinks = out);
    call_free(&call);
    desc = cached_desc(ROPE_CACHE_TABLE);
    desc.mask = ROPE_MASK_TREE;
    call_make(&call, &desc);
    out = part_of(&call, OUT);
    BAD_CALL(call, overlap, "block_table", "out.data", a.block_table = out);
    BAD_CALL(call, overlap, "tree_bits", "out.data", a.tree_bits = out + 4);
    call_free(&call);
}

/* --- values in memory, which the host sees where the tensors lie there --- */

static void set_index(attention_call *call, int64_t i, int64_t value) {
    memcpy(bad_memory_before(&call->memory, INDICES) + (size_t)i * 8, &value, sizeof value);
    bad_memory_put(&call->memory);
}

/* Entry i is `value` for one call and 0 again. */
#define BAD_INDEX(call, i, value, field, text, statement)                                          \
    do {                                                                                           \
        set_index(&(call), i, value);                                                              \
        BAD_CALL(call, ROPE_ERROR_POSITION_RANGE, field, text, statement);                         \
        set_index(&(call), i, 0);                                                                  \
    } while (0)

TEST(attention_errors, lengths) {
    static attention_call call;
    rope_attention_desc desc = attention_desc();
    call_make(&call, &desc);
    char *some = part_of(&call, INDICES);
    if (device_is_host()) {
        BAD_INDEX(call, 1, 5, "q_lengths[1]", "5", a.q_lengths = some);
        BAD_INDEX(call, 1, -1, "q_lengths[1]", "-1", a.q_lengths = some);
        BAD_INDEX(call, 1, 9, "k_lengths[1]", "9", a.k_lengths = some);
        BAD_INDEX(call, 0, INT64_MIN, "k_lengths[0]", "-9223372036854775808", a.k_lengths = some);
        call.args.rope.batch = 1;
        call.args.rope.sequences = 2;
        call.args.rope.cu_seqlens = some;
        call.args.k_cu_seqlens = some + 800;
        BAD_INDEX(call, 1, 3, "cu_seqlens[1]", "3", (void)a);
        BAD_INDEX(call, 0, INT64_MIN, "cu_seqlens[0]", "-9223372036854775808", (void)a);
        BAD_INDEX(call, 101, 3, "k_cu_seqlens[1]", "3", (void)a);
        BAD_INDEX(call, 201, 1, "q_lengths[1] is 1; allowed is 0..0", "cu_seqlens[2]",
                  a.q_lengths = some + 1600);
        BAD_INDEX(call, 200, -1, "q_lengths[0] is -1; allowed is 0..0", "cu_seqlens[1]",
                  a.q_lengths = some + 1600);
        BAD_INDEX(call, 201, 1, "k_lengths[1] is 1; allowed is 0..0", "k_cu_seqlens[2]",
                  a.k_lengths = some + 1600);
    }
    call_free(&call);
}

static void check_cached_scales(const attention_call *call) {
    BAD_CALL(*call, invalid, "k_cache.scale", "0",
             a.k_cache.scale.data = part_of(call, INDICES) + 400);
    BAD_CALL(*call, invalid, "v_cache.scale", "0",
             a.v_cache.scale.data = part_of(call, INDICES) + 400);
}

static void check_cached_lengths(attention_call *call) {
    BAD_INDEX(*call, 0, 9, "k_lengths[0]", "9", (void)a);
    BAD_INDEX(*call, 0, 17, "k_lengths[0]", "17", a.k_tokens = 0);
    BAD_INDEX(*call, 0, -3, "k_lengths[0]", "-3", a.k_tokens = 0);
}

/* A scale that is none, of key 1 on page 2, is named as far as scales of its kind differ. */
static void check_place_of_scale(int32_t scale, int entry, const char *text) {
    static attention_call call;
    const float none = -2;
    rope_attention_desc desc = cached_desc(ROPE_CACHE_TABLE);
    desc.k.dtype = desc.v.dtype = ROPE_F8E4M3;
    desc.v.scale = scale;
    call_make(&call, &desc);
    call.args.block_table = part_of(&call, INDICES) + 800;
    call.args.v_cache.scale.data = part_of(&call, ONES);
    memcpy(bad_memory_before(&call.memory, ONES) + (size_t)entry * sizeof none, &none, sizeof none);
    set_index(&call, 0, 2);
    set_index(&call, 100, 2);
    BAD_CALL(call, invalid, text, "allowed is > 0 and finite", (void)a);
    call_free(&call);
}

/* Of keys that no sequence has. */
static void check_unused_page(attention_call *call) {
    set_index(call, 101, 99);
    GOOD_CALL(*call, (void)a);
}

static void check_pages(attention_call *call) {
    set_index(call, 0, 3);
    set_index(call, 1, 4);
    BAD_INDEX(*call, 100, 4, "page", "4", (void)a);
    BAD_INDEX(*call, 102, -1, "page", "-1", (void)a);
}

TEST(attention_errors, pages) {
    static attention_call call;
    rope_attention_desc desc = cached_desc(ROPE_CACHE_TABLE);
    desc.k.dtype = desc.v.dtype = ROPE_F8E4M3;
    desc.k.scale = desc.v.scale = ROPE_SCALE_TENSOR;
    call_make(&call, &desc);
    call.args.block_table = part_of(&call, INDICES) + 800;
    call.args.k_cache.scale.data = call.args.v_cache.scale.data = part_of(&call, ONES);
    if (device_is_host()) {
        check_cached_lengths(&call);
        check_pages(&call);
        check_cached_scales(&call);
        check_place_of_scale(ROPE_SCALE_TENSOR, 0, "v_cache.scale is -2;");
        check_place_of_scale(ROPE_SCALE_HEAD, 1, "v_cache.scale of head 1 is -2;");
        check_place_of_scale(ROPE_SCALE_TOKEN_HEAD, (2 * PAGE + 1) * K_HEADS + 1,
                             "v_cache.scale[2, 1, 1] is -2;");
        check_unused_page(&call);
    }
    call_free(&call);
}

/* One sequence, but for the last query and the last key, whose ids are out of range. */
static void check_gaps(attention_call *call) {
    char *some = part_of(call, INDICES);
    rope_args *rope = &call->args.rope;
    int32_t flag = 1;
    set_index(call, 1, TOKENS - 1);
    set_index(call, 3, KEYS - 1);
    set_index(call, 100 + TOKENS - 1, KEYS);
    set_index(call, 200 + KEYS - 1, KEYS);
    rope->batch = rope->sequences = 1;
    rope->cu_seqlens = some;
    call->args.k_cu_seqlens = some + 2 * 8;
    rope->position_ids = some + 100 * 8;
    call->args.k_position_ids = some + 200 * 8;
    rope->position_flag = (int32_t *)(void *)(some + 300 * 8);
    CHECK_STATUS(ROPE_OK, rope_attention(call->plan, &call->args));
    CHECK_STATUS(ROPE_OK, rope_device_copy_out(device_open(), &flag, rope->position_flag, 4));
    CHECK(flag == 0, "position_flag is %d for ids that no sequence has", flag);
}

static void check_table_positions(int32_t dtype) {
    static attention_call call;
    rope_attention_desc desc = attention_desc();
    desc.rope.dtype = dtype;
    desc.rope.angle_mode = ROPE_ANGLE_TABLE;
    call_make(&call, &desc);
    call.args.rope.cos = call.args.rope.sin = part_of(&call, ONES);
    call.args.rope.table_rows = KEYS;
    GOOD_CALL(call, (void)a);
    if (device_is_host()) {
        BAD_CALL(call, ROPE_ERROR_POSITION_RANGE, "position of query", "8",
                 a.rope.position_offset = 1);
        BAD_CALL(call, ROPE_ERROR_POSITION_RANGE, "position of key", "-1",
                 a.rope.position_offset = -1);
    }
    BAD_CALL(call, null, "cos", NULL, a.rope.cos = NULL);
    check_gaps(&call);
    call_free(&call);
}

TEST(attention_errors, table_positions) {
    check_table_positions(ROPE_BF16);
    check_table_positions(ROPE_F16);
}

/* Nothing to write: success, whatever the pointers. */
TEST(attention_errors, empty_calls_succeed) {
    rope_attention_desc desc = cached_desc(ROPE_CACHE_TABLE);
    rope_plan *plan = plan_of(&desc);
    rope_attention_args args = ROPE_ATTENTION_ARGS_INIT;
    CHECK_STATUS(ROPE_OK, rope_attention(plan, &args));
    args.rope.batch = 3;
    args.rope.tokens = 5;
    CHECK_STATUS(ROPE_OK, rope_attention(plan, &args));
    args.rope.tokens = 0;
    args.rope.q.heads = args.rope.k.heads = 8;
    CHECK_STATUS(ROPE_OK, rope_attention(plan, &args));
    rope_plan_destroy(plan);
}
