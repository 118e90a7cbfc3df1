/* Bad input of "decode": each gives its status and a text with field and value, and changes
 * nothing, the cache included. */
#include "tests/attention/compare.h"
#include "tests/decode/compare.h"
#include "tests/support/bad_call.h"
#include "tests/support/bad_field.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <ropekit/backend.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 2, TOKENS = 2, Q_HEADS = 4, K_HEADS = 2, DIM = 32, PAGES = 4, PAGE = 4 };

/* Parts of the memory. */
enum { Q_IN, K_IN, V_IN, Q_OUT, K_CACHE, V_CACHE, OUT, LSE, SCALES, INDICES, SPARE };

/* In INDICES: keys of each sequence, then first indices, the table, slots, boundaries. */
enum { LENGTHS = 0, STARTS = 8, TABLE = 16, SLOTS = 32, BOUNDARIES = 40 };

static rope_decode_desc decode_desc(void) {
    rope_decode_desc desc = ROPE_DECODE_DESC_INIT;
    desc.append.rope = device_desc();
    desc.append.rope.dtype = ROPE_BF16;
    desc.append.rope.head_dim = DIM;
    desc.append.cache = ROPE_CACHE_TABLE;
    desc.append.page_size = PAGE;
    return desc;
}

static rope_plan *plan_of(const rope_decode_desc *desc) {
    rope_plan *plan = NULL;
    decode_required();
    CHECK_STATUS(ROPE_OK, rope_decode_plan_create(desc, &plan));
    return plan;
}

/* --- descriptors --- */

#define BAD(field, kind, value)                                                                    \
    { #field, offsetof(rope_decode_desc, field), value, kind, ROPE_ERROR_INVALID_VALUE }
#define BAD_APPEND(field, kind, value)                                                             \
    { #field, offsetof(rope_decode_desc, append.field), value, kind, ROPE_ERROR_INVALID_VALUE }
#define BAD_ROPE(field, kind, value)                                                               \
    { #field, offsetof(rope_decode_desc, append.rope.field), value, kind, ROPE_ERROR_INVALID_VALUE }

static rope_status create(const void *desc, rope_plan **plan) {
    return rope_decode_plan_create(desc, plan);
}

#define CHECK_DESC(base, ...) CHECK_BAD_FIELDS(base, create, __VA_ARGS__)

TEST(decode_errors, descriptor) {
    rope_decode_desc desc = decode_desc();
    decode_required();
    CHECK_DESC(desc, BAD_ROPE(dtype, KIND_I32, ROPE_F64), BAD_ROPE(head_dim, KIND_I32, 578),
               BAD_ROPE(k_head_dim, KIND_I32, 64), BAD_ROPE(device, KIND_I32, -1),
               BAD_APPEND(v_head_dim, KIND_I32, 577), BAD_APPEND(cache, KIND_I32, 4),
               BAD_APPEND(k_source, KIND_I32, ROPE_SOURCE_CACHE),
               BAD_APPEND(page_size, KIND_I64, 0), BAD_APPEND(q.store_dtype, KIND_I32, ROPE_F8E4M3),
               BAD_APPEND(q.store_dtype, KIND_I32, ROPE_F16), BAD_APPEND(k.norm.type, KIND_I32, 3),
               BAD_APPEND(k.scale, KIND_I32, ROPE_SCALE_HEAD),
               BAD_APPEND(table_dtype, KIND_I32, ROPE_F64), BAD_APPEND(slot_dtype, KIND_I32, 5),
               BAD(mask, KIND_I32, 4), BAD(sink_dtype, KIND_I32, ROPE_F16),
               BAD(scale, KIND_REAL, -1), BAD(soft_cap, KIND_REAL, NAN), BAD(window, KIND_I64, -1),
               BAD(window_right, KIND_I64, 4), BAD(chunk, KIND_I64, -1));
    desc.append.cache = ROPE_CACHE_SLOTS;
    CHECK_DESC(desc, BAD_APPEND(table_dtype, KIND_I32, ROPE_F64), BAD_APPEND(ring, KIND_I64, 4));
    rope_plan *plan = NULL;
    desc = decode_desc();
    desc.append.cache = 0;
    desc.append.page_size = 0;
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_decode_plan_create(&desc, &plan));
    bad_text_check("cache is 0", "ROPE_CACHE_TABLE (2)");
    desc = decode_desc();
    desc.append.rope.shard = ROPE_SHARD_CONTIGUOUS;
    desc.append.rope.shard_size = 2;
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_decode_plan_create(&desc, &plan));
    bad_text_check("shard", "2");
}

TEST(decode_errors, kernel) {
    rope_decode_desc desc = decode_desc();
    rope_plan *plan = plan_of(&desc);
    rope_plan_destroy(plan);
    plan = NULL;
    desc.append.rope.kernel = "nonesuch";
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_decode_plan_create(&desc, &plan));
    bad_text_check("kernel", "nonesuch");
    CHECK(!plan, "a plan that could not be made was written");
    desc.append.rope.kernel = "composed";
    plan = plan_of(&desc);
    CHECK(strstr(rope_plan_kernel(plan), ":composed"), "%s", rope_plan_kernel(plan));
    CHECK(rope_plan_numerics(plan) == ROPE_BOUNDED, "%d", rope_plan_numerics(plan));
    rope_plan_destroy(plan);
}

static void check_abi(const rope_decode_desc *desc, const char *field, const char *value) {
    rope_plan *plan = NULL;
    CHECK_STATUS(ROPE_ERROR_ABI, rope_decode_plan_create(desc, &plan));
    bad_text_check(field, value);
}

/* A program that was built with fewer fields at the end of each struct. */
static void check_older(const rope_decode_desc *desc) {
    enum { CUT = sizeof(const char *) };
    const size_t rope = sizeof(rope_desc) - CUT, append = sizeof(rope_append_desc) - 2 * CUT;
    char older[sizeof *desc];
    size_t at = 2 * sizeof(size_t);
    rope_plan *plan = NULL;
    memcpy(older, desc, at);
    memcpy(older + at, &desc->append.rope, rope);
    memcpy(older + at + rope, &desc->append.rotation, append - sizeof(size_t) - rope);
    memcpy(older + sizeof(size_t) + append, &desc->mask,
           sizeof *desc - offsetof(rope_decode_desc, mask) - CUT);
    const size_t whole = sizeof *desc - 3 * CUT;
    memcpy(older, &whole, sizeof whole);
    memcpy(older + sizeof whole, &append, sizeof append);
    memcpy(older + at, &rope, sizeof rope);
    CHECK_STATUS(ROPE_OK, rope_decode_plan_create((const void *)older, &plan));
    rope_plan_destroy(plan);
}

TEST(decode_errors, struct_sizes) {
    rope_decode_desc desc = decode_desc(), bad = desc;
    rope_plan_destroy(plan_of(&desc));
    check_older(&desc);
    bad.struct_size = 0;
    check_abi(&bad, "rope_decode_desc.struct_size", "0");
    bad.struct_size = sizeof bad.append;
    check_abi(&bad, "rope_append_desc", "at most");
    bad.struct_size = ROPE_MAX_STRUCT_SIZE + 1;
    check_abi(&bad, "rope_decode_desc.struct_size", "4097");
    bad = desc;
    bad.append.struct_size = 0;
    check_abi(&bad, "rope_append_desc.struct_size", "0");
    bad = desc;
    bad.append.rope.struct_size = 0;
    check_abi(&bad, "rope_desc.struct_size", "0");
    bad.append.rope.struct_size = ROPE_MAX_STRUCT_SIZE;
    check_abi(&bad, "rope_desc", "4096");
}

TEST(decode_errors, null_arguments) {
    rope_decode_desc desc = decode_desc();
    rope_decode_args args = ROPE_DECODE_ARGS_INIT;
    rope_attention_bounds bounds = {.struct_size = sizeof bounds};
    rope_plan *plan = NULL;
    size_t bytes = 7;
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_decode_plan_create(NULL, &plan));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_decode_plan_create(&desc, NULL));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_decode(NULL, &args));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_decode_workspace(NULL, &bounds, &bytes));
    plan = plan_of(&desc);
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_decode(plan, NULL));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_decode_workspace(plan, NULL, &bytes));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_decode_workspace(plan, &bounds, NULL));
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_append(plan, &args.append));
    bad_text_check("plan is one of decode", "append");
    rope_plan_destroy(plan);
    CHECK(bytes == 7, "a failed rope_decode_workspace wrote its result");
}

TEST(decode_errors, bounds_of_any_size) {
    rope_decode_desc desc = decode_desc();
    rope_plan *plan = plan_of(&desc);
    attention_check_bounds(plan, rope_decode_workspace);
    rope_plan_destroy(plan);
}

/* --- calls --- */

typedef struct decode_call {
    rope_plan *plan;
    rope_decode_args args;
    bad_memory memory;
    void *workspace;
} decode_call;

static char *part_of(const decode_call *call, int part) {
    return bad_memory_part(&call->memory, part);
}

static const void *index_of(const decode_call *call, int first) {
    return part_of(call, INDICES) + 8 * first;
}

static void set_index(decode_call *call, int i, int64_t value) {
    memcpy(bad_memory_before(&call->memory, INDICES) + 8 * i, &value, sizeof value);
}

/* Of sequence s tokens 2 and 3 are new, in the first of its pages, 2 * s. */
static void fill_indices(decode_call *call) {
    memset(bad_memory_before(&call->memory, INDICES), 0, BAD_PART);
    for (int s = 0; s < BATCH; s++) {
        set_index(call, LENGTHS + s, PAGE);
        set_index(call, STARTS + s, PAGE - TOKENS);
        for (int i = 0; i < 2; i++) {
            set_index(call, TABLE + 2 * s + i, 2 * s + i);
            set_index(call, SLOTS + 2 * s + i, 2 * s * PAGE + PAGE - TOKENS + i);
        }
    }
    const float one = 1;
    for (size_t i = 0; i < BAD_PART; i += sizeof one)
        memcpy(bad_memory_before(&call->memory, SCALES) + i, &one, sizeof one);
    bad_memory_put(&call->memory);
}

static void set_append(decode_call *call, const rope_append_desc *desc) {
    rope_append_args *a = &call->args.append;
    a->rope.batch = BATCH;
    a->rope.tokens = TOKENS;
    a->rope.q = (rope_tensor){.in = part_of(call, Q_IN), .heads = Q_HEADS};
    a->rope.k = (rope_tensor){.in = part_of(call, K_IN), .heads = K_HEADS};
    a->v = (rope_tensor){.in = part_of(call, V_IN), .heads = K_HEADS};
    a->rope.sequence_offsets = index_of(call, STARTS);
    a->k_cache.data = part_of(call, K_CACHE);
    a->v_cache.data = part_of(call, V_CACHE);
    if (desc->k.scale)
        a->k_cache.scale.data = part_of(call, SCALES);
    if (desc->v.scale)
        a->v_cache.scale.data = part_of(call, SCALES) + BAD_PART / 2;
    a->pages = PAGES;
    a->block_table = index_of(call, TABLE);
    a->table_pages = 2;
    if (desc->cache == ROPE_CACHE_SLOTS)
        a->slots = index_of(call, SLOTS);
}

static void call_make(decode_call *call, const rope_decode_desc *desc) {
    const rope_attention_bounds bounds = {sizeof bounds, BATCH,  TOKENS, 2 * PAGE, 0,
                                          Q_HEADS,       K_HEADS};
    call->plan = plan_of(desc);
    bad_memory_make(&call->memory);
    call->args = (rope_decode_args)ROPE_DECODE_ARGS_INIT;
    fill_indices(call);
    set_append(call, &desc->append);
    rope_decode_args *a = &call->args;
    a->out.data = part_of(call, OUT);
    a->k_lengths = index_of(call, LENGTHS);
    CHECK_STATUS(ROPE_OK, rope_decode_workspace(call->plan, &bounds, &a->workspace_bytes));
    CHECK_STATUS(ROPE_OK,
                 rope_device_alloc(device_open(), a->workspace_bytes + 256, &call->workspace));
    a->workspace = (char *)call->workspace + (256 - (uintptr_t)call->workspace % 256) % 256;
}

static void call_free(decode_call *call) {
    rope_plan_destroy(call->plan);
    bad_memory_free(&call->memory);
    CHECK_STATUS(ROPE_OK, rope_device_free(device_open(), call->workspace));
}

static void check_call(const decode_call *call, const rope_decode_args *args, rope_status status,
                       const char *field, const char *value) {
    test_describe(field);
    CHECK_STATUS(status, rope_decode(call->plan, args));
    bad_memory_check(&call->memory, field, value);
}

#define BAD_CALL(call, status, field, value, statement)                                            \
    do {                                                                                           \
        rope_decode_args a = (call).args;                                                          \
        statement;                                                                                 \
        check_call(&(call), &a, status, field, value);                                             \
    } while (0)

#define GOOD_CALL(call, statement)                                                                 \
    do {                                                                                           \
        rope_decode_args a = (call).args;                                                          \
        statement;                                                                                 \
        test_describe(#statement);                                                                 \
        bad_memory_good(&(call).memory, rope_decode((call).plan, &a));                             \
    } while (0)

static const rope_status invalid = ROPE_ERROR_INVALID_VALUE, overlap = ROPE_ERROR_OVERLAP,
                         null = ROPE_ERROR_NULL_POINTER, misaligned = ROPE_ERROR_MISALIGNED,
                         range = ROPE_ERROR_POSITION_RANGE;

TEST(decode_errors, call) {
    static decode_call call;
    rope_decode_desc desc = decode_desc();
    call_make(&call, &desc);
    GOOD_CALL(call, (void)a);
    GOOD_CALL(call, a.append.rope.q.out = part_of(&call, Q_OUT));
    GOOD_CALL(call, a.append.rope.q.out = part_of(&call, Q_IN));
    GOOD_CALL(call, a.lse = (float *)(void *)part_of(&call, LSE));
    GOOD_CALL(call, a.append.rope.tokens = 0);
    GOOD_CALL(call, (a.append.rope.sequence_offsets = a.k_lengths,
                     a.append.rope.position_offset = -TOKENS));
    GOOD_CALL(call, (a.append.v = (rope_tensor){0}, a.append.v_cache = a.append.k_cache));
    BAD_CALL(call, invalid, "tokens", "-3", a.append.rope.tokens = -3);
    BAD_CALL(call, invalid, "q.heads is 0; allowed is > 0 and a multiple of k.heads (2)", NULL,
             a.append.rope.q.heads = 0);
    BAD_CALL(call, invalid, "k.heads", "3", a.append.rope.k.heads = a.append.v.heads = 3);
    BAD_CALL(call, invalid, "k.heads", "0", a.append.rope.k.heads = 0);
    BAD_CALL(call, invalid, "v.heads", "1", a.append.v.heads = 1);
    BAD_CALL(call, null, "q.in", NULL, a.append.rope.q.in = NULL);
    BAD_CALL(call, null, "k.in", NULL, a.append.rope.k.in = NULL);
    BAD_CALL(call, null, "out.data", NULL, a.out.data = NULL);
    BAD_CALL(call, invalid, "q.out_stride", "[0, 0, 2, 1]",
             STRIDE(a.append.rope.q.out_stride, 0, 0, 2, 1));
    BAD_CALL(call, null, "k_lengths", NULL, a.k_lengths = NULL);
    BAD_CALL(call, null, "block_table", NULL, a.append.block_table = NULL);
    BAD_CALL(call, null, "v_cache.data", NULL,
             (a.append.v_cache.data = NULL, a.append.v.out = part_of(&call, SPARE)));
    BAD_CALL(call, misaligned, "out.data", NULL, a.out.data = part_of(&call, OUT) + 1);
    BAD_CALL(call, invalid, "sinks", NULL, a.sinks = part_of(&call, SPARE));
    BAD_CALL(call, invalid, "tree_keys", "4", a.tree_keys = 4);
    BAD_CALL(call, invalid, "most_tokens is 4; allowed is 0 while cu_seqlens is NULL", NULL,
             a.most_tokens = 4);
    BAD_CALL(call, invalid, "most_tokens is -1", NULL, a.most_tokens = -1);
    BAD_CALL(call, invalid, "k_position_ids", NULL, a.k_position_ids = part_of(&call, SPARE));
    BAD_CALL(call, invalid, "slots", NULL, a.append.slots = index_of(&call, SLOTS));
    BAD_CALL(call, null, "workspace", NULL, a.workspace = NULL);
    BAD_CALL(call, invalid, "workspace_bytes", "1", a.workspace_bytes = 1);
    BAD_CALL(call, misaligned, "workspace", NULL, a.workspace = (char *)a.workspace + 64);
    call_free(&call);
}

/* Room for rotated queries, and for nothing of attention. */
TEST(decode_errors, workspace_of_attention) {
    static decode_call call;
    rope_decode_desc desc = decode_desc();
    call_make(&call, &desc);
    const size_t queries = BATCH * TOKENS * Q_HEADS * DIM * sizeof(uint16_t);
    if (call.args.workspace_bytes == queries) {
        call_free(&call);
        SKIP("attention needs no workspace");
    }
    BAD_CALL(call, invalid, "workspace_bytes", NULL, a.workspace_bytes = queries);
    call_free(&call);
}

TEST(decode_errors, slots) {
    static decode_call call;
    rope_decode_desc desc = decode_desc();
    desc.append.cache = ROPE_CACHE_SLOTS;
    call_make(&call, &desc);
    GOOD_CALL(call, (void)a);
    BAD_CALL(call, null, "slots", NULL, a.append.slots = NULL);
    BAD_CALL(call, null, "block_table", NULL, a.append.block_table = NULL);
    BAD_CALL(call, invalid, "table_pages", "0", a.append.table_pages = 0);
    call_free(&call);
}

TEST(decode_errors, overlap) {
    static decode_call call;
    rope_decode_desc desc = decode_desc();
    call_make(&call, &desc);
    BAD_CALL(call, overlap, "out.data", "q.in", a.out.data = part_of(&call, Q_IN));
    BAD_CALL(call, overlap, "out.data", "k.in", a.out.data = part_of(&call, K_IN));
    BAD_CALL(call, overlap, "out.data", "v.in", a.out.data = part_of(&call, V_IN) + 64);
    BAD_CALL(call, overlap, "out.data", "k_cache", a.out.data = part_of(&call, K_CACHE));
    BAD_CALL(call, overlap, "out.data", "q.out", a.append.rope.q.out = a.out.data);
    BAD_CALL(call, overlap, "out.data", "v.out", a.append.v.out = a.out.data);
    BAD_CALL(call, overlap, "lse", "out.data", a.lse = (float *)a.out.data);
    BAD_CALL(call, overlap, "lse", "v_cache", a.lse = (float *)(void *)part_of(&call, V_CACHE));
    BAD_CALL(call, overlap, "v_cache", "k_cache", a.append.v_cache.data = a.append.k_cache.data);
    BAD_CALL(call, overlap, "workspace", "q.in", a.append.rope.q.in = a.workspace);
    BAD_CALL(call, overlap, "workspace", "out.data", a.out.data = a.workspace);
    BAD_CALL(call, overlap, "workspace", "k_cache", a.append.k_cache.data = a.workspace);
    BAD_CALL(call, overlap, "block_table", "out.data", a.append.block_table = a.out.data);
    BAD_CALL(call, overlap, "k_lengths", "out.data", a.k_lengths = a.out.data);
    BAD_CALL(call, overlap, "k_lengths", "k_cache", a.k_lengths = a.append.k_cache.data);
    BAD_CALL(call, overlap, "sequence_offsets", "out.data",
             a.append.rope.sequence_offsets = a.out.data);
    BAD_CALL(call, overlap, "cache_starts", "out.data", a.append.cache_starts = a.out.data);
    BAD_CALL(call, overlap, "k_lengths", "workspace", a.k_lengths = a.workspace);
    call_free(&call);
}

/* --- values in memory, which the host sees where the tensors lie there --- */

/* One call with another index. */
static void check_index(decode_call *call, int i, int64_t value, const char *field) {
    int64_t before;
    memcpy(&before, bad_memory_before(&call->memory, INDICES) + 8 * i, sizeof before);
    set_index(call, i, value);
    bad_memory_put(&call->memory);
    check_call(call, &call->args, range, field, NULL);
    set_index(call, i, before);
    bad_memory_put(&call->memory);
}

TEST(decode_errors, indices) {
    static decode_call call;
    rope_decode_desc desc = decode_desc();
    if (!device_is_host())
        SKIP("indices lie on a device");
    call_make(&call, &desc);
    check_index(&call, LENGTHS + 1, 2 * PAGE + 1, "k_lengths[1] is 9");
    check_index(&call, LENGTHS, -1, "k_lengths[0] is -1");
    check_index(&call, STARTS + 1, 2 * PAGE - 1, "the index in the cache of batch 1, token 1 is 8");
    check_index(&call, TABLE + 2, PAGES, "page of key 0 of sequence 1 is 4");
    call_free(&call);
}

static void set_boundaries(decode_call *call, int64_t middle, int64_t end) {
    set_index(call, BOUNDARIES + 1, middle);
    set_index(call, BOUNDARIES + 2, end);
    bad_memory_put(&call->memory);
}

/* Those that fall are what they are to rope_append. */
TEST(decode_errors, boundaries) {
    static decode_call call;
    rope_decode_desc desc = decode_desc();
    if (!device_is_host())
        SKIP("boundaries lie on a device");
    call_make(&call, &desc);
    rope_args *rope = &call.args.append.rope;
    rope->batch = 1;
    rope->tokens = BATCH * TOKENS;
    rope->sequences = BATCH;
    rope->cu_seqlens = index_of(&call, BOUNDARIES);
    set_boundaries(&call, 1, BATCH * TOKENS);
    GOOD_CALL(call, (void)a);
    GOOD_CALL(call, a.most_tokens = 3);
    BAD_CALL(call, range,
             "cu_seqlens[1] is 1 and cu_seqlens[2] is 4; allowed is at most most_tokens (2) apart",
             NULL, a.most_tokens = 2);
    set_boundaries(&call, 3, 2);
    BAD_CALL(call, invalid, "cu_seqlens[1] is 3 and cu_seqlens[2] is 2", "fall", (void)a);
    call_free(&call);
}

TEST(decode_errors, values_within_keys_of_another_type) {
    static decode_call call;
    rope_decode_desc desc = decode_desc();
    desc.append.k.store_dtype = ROPE_F32;
    call_make(&call, &desc);
    BAD_CALL(call, invalid,
             "v.store_dtype is 3 (ROPE_BF16); allowed is k's, 1 (ROPE_F32), where v.heads is 0",
             NULL, (a.append.v = (rope_tensor){0}, a.append.v_cache = a.append.k_cache));
    call_free(&call);
}

TEST(decode_errors, steps_of_values_within_keys) {
    static decode_call call;
    rope_decode_desc normed = decode_desc(), scaled = decode_desc();
    normed.append.v.norm.type = ROPE_NORM_RMS;
    scaled.append.v.factor = 2;
    call_make(&call, &normed);
    BAD_CALL(call, invalid,
             "v.norm.type is 1 (ROPE_NORM_RMS); allowed is 0 where v.heads is 0 and v_cache is",
             NULL, (a.append.v = (rope_tensor){0}, a.append.v_cache = a.append.k_cache));
    call_free(&call);
    call_make(&call, &scaled);
    BAD_CALL(call, invalid, "v.factor is 2; allowed is 1 where v.heads is 0 and v_cache is", NULL,
             (a.append.v = (rope_tensor){0}, a.append.v_cache = a.append.k_cache));
    call_free(&call);
}

/* Scales that the call writes need not be there ahead of it; those of earlier keys must. */
TEST(decode_errors, scales) {
    static decode_call call;
    rope_decode_desc desc = decode_desc();
    if (!device_is_host())
        SKIP("scales lie on a device");
    desc.append.k.store_dtype = desc.append.v.store_dtype = ROPE_F8E4M3;
    desc.append.k.scale = desc.append.v.scale = ROPE_SCALE_TOKEN_HEAD_MAX;
    call_make(&call, &desc);
    float *scale = (float *)(void *)bad_memory_before(&call.memory, SCALES);
    for (int i = 0; i < TOKENS * K_HEADS; i++)
        scale[(PAGE - TOKENS) * K_HEADS + i] = NAN;
    bad_memory_put(&call.memory);
    GOOD_CALL(call, (void)a);
    scale[1] = NAN;
    bad_memory_put(&call.memory);
    BAD_CALL(call, invalid, "k_cache.scale[0, 0, 1] is nan", NULL, (void)a);
    call_free(&call);
    desc.append.k.scale = desc.append.v.scale = ROPE_SCALE_TOKEN_HEAD;
    call_make(&call, &desc);
    scale = (float *)(void *)bad_memory_before(&call.memory, SCALES);
    scale[(PAGE - TOKENS) * K_HEADS] = 0;
    bad_memory_put(&call.memory);
    BAD_CALL(call, invalid, "k_cache.scale[0, 2, 0] is 0", NULL, (void)a);
    call_free(&call);
}
