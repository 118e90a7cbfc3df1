/* Bad input of "append": each gives its status and a text with field and value, and changes
 * nothing. */
#include "tests/support/bad_call.h"
#include "tests/support/bad_field.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <ropekit/append.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 2, TOKENS = 4, HEADS = 2, DIM = 64, PAGES = 4, PAGE = 4 };

static rope_append_desc append_desc(void) {
    rope_append_desc desc = ROPE_APPEND_DESC_INIT;
    desc.rope = device_desc();
    desc.rope.dtype = ROPE_BF16;
    return desc;
}

static rope_append_desc cached_desc(int32_t cache) {
    rope_append_desc desc = append_desc();
    desc.cache = cache;
    desc.page_size = PAGE;
    return desc;
}

static rope_plan *plan_of(const rope_append_desc *desc) {
    rope_plan *plan = NULL;
    CHECK_STATUS(ROPE_OK, rope_append_plan_create(desc, &plan));
    return plan;
}

/* --- descriptors --- */

#define BAD(field, kind, value)                                                                    \
    { #field, offsetof(rope_append_desc, field), value, kind, ROPE_ERROR_INVALID_VALUE }
#define BAD_ROPE(field, kind, value)                                                               \
    { #field, offsetof(rope_append_desc, rope.field), value, kind, ROPE_ERROR_INVALID_VALUE }

static rope_status create(const void *desc, rope_plan **plan) {
    return rope_append_plan_create(desc, plan);
}

#define CHECK_DESC(base, ...) CHECK_BAD_FIELDS(base, create, __VA_ARGS__)

TEST(append_errors, shape) {
    rope_append_desc desc = append_desc();
    CHECK_DESC(desc, BAD_ROPE(dtype, KIND_I32, 0), BAD_ROPE(dtype, KIND_I32, ROPE_F64),
               BAD_ROPE(dtype, KIND_I32, ROPE_F8E4M3), BAD_ROPE(head_dim, KIND_I32, 4098),
               BAD_ROPE(k_head_dim, KIND_I32, 4098), BAD_ROPE(rotary_dim, KIND_I32, 7),
               BAD_ROPE(device, KIND_I32, -1), BAD(v_head_dim, KIND_I32, -1),
               BAD(v_head_dim, KIND_I32, 4097), BAD(rotation, KIND_I32, 3),
               BAD(rotation, KIND_I32, -1), BAD(cache, KIND_I32, 4), BAD(cache, KIND_I32, -1),
               BAD(k_source, KIND_I32, 3), BAD(k_source, KIND_I32, ROPE_SOURCE_CACHE));
    rope_plan *plan = NULL;
    desc.rope.dtype = ROPE_F64;
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_append_plan_create(&desc, &plan));
    CHECK(strstr(rope_last_error(), "ROPE_F64"), "%s", rope_last_error());
}

TEST(append_errors, norm) {
    rope_append_desc desc = append_desc();
    CHECK_DESC(desc, BAD(q.norm.type, KIND_I32, 3), BAD(k.norm.type, KIND_I32, -1),
               BAD(q.norm.scope, KIND_I32, 1), BAD(k.norm.offset, KIND_I32, 2),
               BAD(v.norm.dim, KIND_I32, 2), BAD(q.norm.weight, KIND_I32, 1),
               BAD(k.norm.weight_dtype, KIND_I32, 1), BAD(v.norm.rounding, KIND_I32, 2),
               BAD(q.norm.eps, KIND_REAL, 0.5));
    desc.v_head_dim = 32;
    desc.q.norm.type = desc.k.norm.type = desc.v.norm.type = ROPE_NORM_RMS;
    CHECK_DESC(desc, BAD(q.norm.scope, KIND_I32, 3), BAD(q.norm.scope, KIND_I32, -1),
               BAD(q.norm.offset, KIND_I32, -1), BAD(q.norm.offset, KIND_I32, 64),
               BAD(v.norm.offset, KIND_I32, 32), BAD(k.norm.dim, KIND_I32, -2),
               BAD(k.norm.dim, KIND_I32, 65), BAD(v.norm.dim, KIND_I32, 33),
               BAD(k.norm.weight, KIND_I32, 3), BAD(k.norm.weight, KIND_I32, -1),
               BAD(q.norm.weight_dtype, KIND_I32, 1), BAD(q.norm.eps, KIND_REAL, -1),
               BAD(q.norm.eps, KIND_REAL, NAN), BAD(k.norm.eps, KIND_REAL, INFINITY),
               BAD(v.norm.eps, KIND_REAL, 1e300));
    desc.q.norm.offset = 8;
    desc.q.norm.weight = ROPE_NORM_ONE_PLUS_WEIGHT;
    CHECK_DESC(desc, BAD(q.norm.dim, KIND_I32, 57), BAD(q.norm.weight_dtype, KIND_I32, ROPE_F16),
               BAD(q.norm.rounding, KIND_I32, 3), BAD(q.norm.rounding, KIND_I32, -1));
}

TEST(append_errors, factor_and_store) {
    rope_append_desc desc = append_desc();
    CHECK_DESC(desc, BAD(q.factor, KIND_REAL, NAN), BAD(k.factor, KIND_REAL, -INFINITY),
               BAD(v.factor, KIND_REAL, 1e39), BAD(q.factor, KIND_REAL, -1e-46),
               BAD(q.store_dtype, KIND_I32, ROPE_F64), BAD(q.store_dtype, KIND_I32, ROPE_I32),
               BAD(q.store_dtype, KIND_I32, 11), BAD(q.store_dtype, KIND_I32, -1),
               BAD(q.scale, KIND_I32, ROPE_SCALE_TENSOR), BAD(k.store_dtype, KIND_I32, ROPE_F16),
               BAD(v.store_dtype, KIND_I32, ROPE_I8), BAD(k.scale, KIND_I32, ROPE_SCALE_HEAD));
    desc = cached_desc(ROPE_CACHE_SLOTS);
    desc.q.store_dtype = desc.k.store_dtype = ROPE_F8E4M3;
    desc.v.store_dtype = ROPE_F16;
    CHECK_DESC(desc, BAD(q.scale, KIND_I32, 5), BAD(k.scale, KIND_I32, -1),
               BAD(k.store_dtype, KIND_I32, ROPE_I64), BAD(v.scale, KIND_I32, ROPE_SCALE_TENSOR));
}

/* An enumeration's value and what is allowed instead have their names. */
TEST(append_errors, names_of_values) {
    rope_append_desc plain = append_desc(), cached = cached_desc(ROPE_CACHE_SLOTS), normal = plain;
    normal.k.norm = (rope_norm){.type = ROPE_NORM_RMS, .weight = ROPE_NORM_WEIGHT};
    const struct {
        const rope_append_desc *base;
        size_t offset;
        int32_t value;
        const char *text;
    } bad[] = {
#define NAMED(base, field, value, text) {&(base), offsetof(rope_append_desc, field), value, text}
        NAMED(plain, k.store_dtype, ROPE_F8E4M3,
              "k.store_dtype is 7 (ROPE_F8E4M3); allowed is 0 without a cache"),
        NAMED(plain, rope.dtype, ROPE_F8E4M3,
              "dtype is 7 (ROPE_F8E4M3); allowed is ROPE_F32, ROPE_F16 or ROPE_BF16 (1..3)"),
        NAMED(plain, rope.dtype, 0,
              "dtype is not given; allowed is ROPE_F32, ROPE_F16 or ROPE_BF16 (1..3)"),
        NAMED(plain, rope.head_dim, 0, "head_dim is not given; allowed is 2..4096"),
        NAMED(plain, rope.head_dim, 1, "head_dim is 1; allowed is 2..4096"),
        NAMED(plain, rope.head_dim, 4098, "head_dim is 4098; allowed is 2..4096"),
        NAMED(plain, rope.head_dim, 70000, "head_dim is 70000; allowed is 2..4096"),
        NAMED(plain, rope.k_head_dim, 4098,
              "k_head_dim is 4098; allowed is 0 or 64 (rotary_dim)..4096"),
        NAMED(plain, v_head_dim, 4097, "v_head_dim is 4097; allowed is 0..4096"),
        NAMED(plain, slot_dtype, 11, "slot_dtype is 11; allowed is 0 without a cache"),
        NAMED(plain, q.scale, ROPE_SCALE_TENSOR,
              "q.scale is 1 (ROPE_SCALE_TENSOR); allowed is 0 unless q.store_dtype has 8 bits"),
        NAMED(plain, v.norm.scope, ROPE_NORM_TOKEN,
              "v.norm.scope is 2 (ROPE_NORM_TOKEN); allowed is 0 without norm.type"),
        NAMED(plain, k_source, ROPE_SOURCE_CACHE, "k_source is 2 (ROPE_SOURCE_CACHE); allowed is "),
        NAMED(plain, cache, 4,
              "cache is 4; allowed is 0 (none), ROPE_CACHE_SLOTS, ROPE_CACHE_TABLE, "
              "ROPE_CACHE_SEQUENCE (1..3)"),
        NAMED(plain, rotation, -1,
              "rotation is -1; allowed is 0 (default), ROPE_ROTATION_ON, ROPE_ROTATION_OFF (1..2)"),
        NAMED(cached, k.store_dtype, ROPE_I64,
              "k.store_dtype is 6 (ROPE_I64); allowed is 0 (dtype), ROPE_F32, "),
        NAMED(cached, table_dtype, ROPE_I32,
              "table_dtype is 5 (ROPE_I32); allowed is 0 unless cache is ROPE_CACHE_TABLE"),
        NAMED(normal, k.norm.weight_dtype, ROPE_F16,
              "k.norm.weight_dtype is 2 (ROPE_F16); allowed is 0 (dtype), 1 (ROPE_F32) or dtype, "
              "3 (ROPE_BF16)"),
#undef NAMED
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        rope_append_desc desc = *bad[i].base;
        rope_plan *plan = NULL;
        memcpy((char *)&desc + bad[i].offset, &bad[i].value, sizeof bad[i].value);
        CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_append_plan_create(&desc, &plan));
        bad_text_check(bad[i].text, NULL);
    }
}

TEST(append_errors, cache) {
    rope_append_desc desc = append_desc();
    CHECK_DESC(desc, BAD(page_size, KIND_I64, 16), BAD(ring, KIND_I64, 4),
               BAD(slot_dtype, KIND_I32, ROPE_I32), BAD(table_dtype, KIND_I32, ROPE_I32),
               BAD(k_dim_block, KIND_I32, 8), BAD(v_dim_block, KIND_I32, 8));
    desc = cached_desc(ROPE_CACHE_SLOTS);
    CHECK_DESC(desc, BAD(page_size, KIND_I64, 0), BAD(page_size, KIND_I64, -1),
               BAD(ring, KIND_I64, 4), BAD(ring, KIND_I64, -1),
               BAD(table_dtype, KIND_I32, ROPE_I32), BAD(slot_dtype, KIND_I32, ROPE_F32),
               BAD(slot_dtype, KIND_I32, -1), BAD(k_dim_block, KIND_I32, 7),
               BAD(k_dim_block, KIND_I32, 128), BAD(v_dim_block, KIND_I32, -8));
    desc = cached_desc(ROPE_CACHE_TABLE);
    CHECK_DESC(desc, BAD(slot_dtype, KIND_I32, ROPE_I64), BAD(ring, KIND_I64, -4),
               BAD(table_dtype, KIND_I32, ROPE_F64));
    desc = cached_desc(ROPE_CACHE_SEQUENCE);
    CHECK_DESC(desc, BAD(slot_dtype, KIND_I32, ROPE_I64), BAD(table_dtype, KIND_I32, ROPE_I64),
               BAD(ring, KIND_I64, 1000));
}

TEST(append_errors, keys_from_the_cache) {
    rope_append_desc desc = cached_desc(ROPE_CACHE_SLOTS);
    desc.k_source = ROPE_SOURCE_CACHE;
    CHECK_DESC(desc, BAD(q.norm.type, KIND_I32, ROPE_NORM_RMS), BAD(q.factor, KIND_REAL, 2),
               BAD(q.store_dtype, KIND_I32, ROPE_I8), BAD(q.scale, KIND_I32, 1),
               BAD(k.norm.type, KIND_I32, ROPE_NORM_RMS), BAD(v.norm.type, KIND_I32, 2),
               BAD(v.factor, KIND_REAL, 2), BAD(v.store_dtype, KIND_I32, ROPE_I8),
               BAD(v.scale, KIND_I32, 1), BAD(v_head_dim, KIND_I32, 32),
               BAD(v_dim_block, KIND_I32, 8));
}

/* What a rotation alone reads stays 0 without one; what the cache's index needs may be given. */
TEST(append_errors, no_rotation) {
    rope_append_desc desc = append_desc();
    desc.rotation = ROPE_ROTATION_OFF;
    desc.rope.head_dim = 65;
    desc.rope.position_dtype = ROPE_I32;
    desc.rope.shard = ROPE_SHARD_CONTIGUOUS;
    desc.rope.shard_size = 2;
    desc.rope.shard_rank = 1;
    CHECK_DESC(desc, BAD_ROPE(rotary_dim, KIND_I32, 32), BAD_ROPE(rotary_offset, KIND_I32, 2),
               BAD_ROPE(k_rotary_offset, KIND_I32, 2), BAD_ROPE(pairing_in, KIND_I32, 1),
               BAD_ROPE(pairing_out, KIND_I32, 1), BAD_ROPE(direction, KIND_I32, 1),
               BAD_ROPE(angle_mode, KIND_I32, 1), BAD_ROPE(arithmetic, KIND_I32, 1),
               BAD_ROPE(rope_type, KIND_I32, 1), BAD_ROPE(rope_theta, KIND_REAL, 10000),
               BAD_ROPE(factor, KIND_REAL, 2), BAD_ROPE(low_freq_factor, KIND_REAL, 2),
               BAD_ROPE(high_freq_factor, KIND_REAL, 2), BAD_ROPE(beta_fast, KIND_REAL, 2),
               BAD_ROPE(beta_slow, KIND_REAL, 2), BAD_ROPE(mscale, KIND_REAL, 2),
               BAD_ROPE(mscale_all_dim, KIND_REAL, 2), BAD_ROPE(attention_factor, KIND_REAL, 2),
               BAD_ROPE(alpha, KIND_REAL, 2), BAD_ROPE(partial_rotary_factor, KIND_REAL, 0.5),
               BAD_ROPE(short_mscale, KIND_REAL, 2), BAD_ROPE(long_mscale, KIND_REAL, 2),
               BAD_ROPE(xpos_scale_base, KIND_REAL, 512), BAD_ROPE(xpos_center, KIND_I64, 3),
               BAD_ROPE(original_max_position_embeddings, KIND_I64, 3),
               BAD_ROPE(max_position_embeddings, KIND_I64, 3),
               BAD_ROPE(sequence_length, KIND_I64, 3), BAD_ROPE(factor_count, KIND_I32, 3),
               BAD_ROPE(truncate, KIND_I32, 1), BAD_ROPE(longrope_select, KIND_I32, 1),
               BAD_ROPE(axes, KIND_I32, 1), BAD_ROPE(axis_layout, KIND_I32, 1),
               BAD_ROPE(axis_frequency, KIND_I32, 1), BAD_ROPE(table_dtype, KIND_I32, 1),
               BAD_ROPE(table_width, KIND_I32, 1), BAD_ROPE(out_of_range, KIND_I32, 1),
               BAD_ROPE(shard, KIND_I32, 4), BAD_ROPE(position_dtype, KIND_I32, 1));
    double list[1] = {0};
    uint8_t axis[1] = {0};
    rope_plan *plan = NULL;
    for (int field = 0; field < 5; field++) {
        static const char *const names[] = {"short_factor", "long_factor", "inv_freq", "pair_axis",
                                            "sections"};
        rope_append_desc bad = desc;
        bad.rope.short_factor = field == 0 ? list : NULL;
        bad.rope.long_factor = field == 1 ? list : NULL;
        bad.rope.inv_freq = field == 2 ? list : NULL;
        bad.rope.pair_axis = field == 3 ? axis : NULL;
        bad.rope.sections[1] = field == 4;
        CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_append_plan_create(&bad, &plan));
        bad_text_check(names[field], "ROPE_ROTATION_OFF");
    }
}

TEST(append_errors, null_arguments) {
    rope_append_desc desc = append_desc();
    rope_append_args args = ROPE_APPEND_ARGS_INIT;
    rope_plan *plan = NULL;
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_append_plan_create(NULL, &plan));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_append_plan_create(&desc, NULL));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_append(NULL, &args));
    plan = plan_of(&desc);
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_append(plan, NULL));
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_apply(plan, &args.rope));
    bad_text_check("plan is one of append", "rope");
    rope_plan_destroy(plan);
    CHECK_STATUS(ROPE_OK, rope_plan_create(&desc.rope, &plan));
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_append(plan, &args));
    bad_text_check("plan is one of rope", "append");
    rope_plan_destroy(plan);
}

/* --- sizes of structs --- */

static void check_abi(const rope_append_desc *desc, const char *field, const char *value) {
    rope_plan *plan = NULL;
    CHECK_STATUS(ROPE_ERROR_ABI, rope_append_plan_create(desc, &plan));
    bad_text_check(field, value);
}

TEST(append_errors, struct_sizes) {
    rope_append_desc desc = append_desc(), bad = desc;
    bad.struct_size = 0;
    check_abi(&bad, "rope_append_desc.struct_size", "0");
    bad.struct_size = sizeof(size_t);
    check_abi(&bad, "rope_append_desc.struct_size", "8");
    bad.struct_size = sizeof bad.rope;
    check_abi(&bad, "rope_desc", "at most");
    bad.struct_size = ROPE_MAX_STRUCT_SIZE + 1;
    check_abi(&bad, "rope_append_desc.struct_size", "4097");
    bad = desc;
    bad.rope.struct_size = 0;
    check_abi(&bad, "rope_desc.struct_size", "0");
    bad.rope.struct_size = ROPE_MAX_STRUCT_SIZE;
    check_abi(&bad, "rope_desc", "4096");
}

/* A caller of an older or a newer version, whose rope_desc has another size, and whose own fields
 * follow that. */
TEST(append_errors, an_embedded_struct_of_another_size) {
    enum { HEAD = sizeof(size_t), ROPE = sizeof(rope_desc) };
    enum { TAIL = sizeof(rope_append_desc) - HEAD - ROPE };
    const rope_append_desc desc = cached_desc(ROPE_CACHE_SLOTS);
    for (int longer = -8; longer <= 8; longer += 8)
        for (int more = -8; more <= 8; more += 8) {
            union {
                size_t size;
                unsigned char bytes[2 * sizeof(rope_append_desc)];
            } other = {0};
            const size_t inner = (size_t)(ROPE + longer), tail = (size_t)(TAIL + more);
            const size_t size = HEAD + inner + tail;
            memcpy(other.bytes + HEAD, &desc.rope, inner < ROPE ? inner : ROPE);
            memcpy(other.bytes, &size, sizeof size);
            memcpy(other.bytes + HEAD, &inner, sizeof inner);
            memcpy(other.bytes + HEAD + inner, (const char *)&desc + HEAD + ROPE,
                   tail < TAIL ? tail : TAIL);
            rope_plan *plan = plan_of((const rope_append_desc *)(const void *)&other);
            rope_plan_destroy(plan);
            other.bytes[HEAD + inner + offsetof(rope_append_desc, page_size) - HEAD - ROPE] = 0;
            CHECK_STATUS(
                ROPE_ERROR_INVALID_VALUE,
                rope_append_plan_create((const rope_append_desc *)(const void *)&other, &plan));
            bad_text_check("page_size", "0");
            if (more > 0) {
                other.bytes[size - 1] = 1;
                check_abi((const rope_append_desc *)(const void *)&other, "rope_append_desc",
                          "is set");
            }
        }
}

/* --- calls --- */

typedef struct append_call {
    rope_plan *plan;
    rope_append_args args;
    bad_memory memory;
} append_call;

static char *part_of(const append_call *call, int part) {
    return bad_memory_part(&call->memory, part);
}

/* q, k and v, each in a part and out of another; caches and slots where the plan has them. */
static void call_make(append_call *call, const rope_append_desc *desc) {
    call->plan = plan_of(desc);
    bad_memory_make(&call->memory);
    call->args = (rope_append_args)ROPE_APPEND_ARGS_INIT;
    rope_append_args *a = &call->args;
    a->rope.batch = BATCH;
    a->rope.tokens = TOKENS;
    a->rope.q = (rope_tensor){.in = part_of(call, 0), .out = part_of(call, 1), .heads = HEADS};
    a->rope.k = (rope_tensor){.in = part_of(call, 2), .out = part_of(call, 3), .heads = HEADS};
    a->v = (rope_tensor){.in = part_of(call, 4), .out = part_of(call, 5), .heads = HEADS};
    if (desc->cache) {
        a->pages = PAGES;
        a->k_cache.data = part_of(call, 6);
        a->v_cache.data = part_of(call, 7);
    }
    if (desc->cache == ROPE_CACHE_SLOTS)
        a->slots = part_of(call, 8);
    if (desc->cache == ROPE_CACHE_TABLE) {
        a->block_table = part_of(call, 8);
        a->table_pages = 2;
    }
    memset(bad_memory_before(&call->memory, 8), 0, BAD_PART);
    const float one = 1;
    for (size_t i = 0; i < BAD_PART; i += sizeof one)
        memcpy(bad_memory_before(&call->memory, 9) + i, &one, sizeof one);
    bad_memory_put(&call->memory);
}

static void call_free(append_call *call) {
    rope_plan_destroy(call->plan);
    bad_memory_free(&call->memory);
}

static void check_call(const append_call *call, const rope_append_args *args, rope_status status,
                       const char *field, const char *value) {
    test_describe(field);
    CHECK_STATUS(status, rope_append(call->plan, args));
    bad_memory_check(&call->memory, field, value);
}

/* Runs `statement` on a copy of the call's arguments `a`, and expects a failure. */
#define BAD_CALL(call, status, field, value, statement)                                            \
    do {                                                                                           \
        rope_append_args a = (call).args;                                                          \
        statement;                                                                                 \
        check_call(&(call), &a, status, field, value);                                             \
    } while (0)

/* The same, expecting success; what it wrote is taken back. */
#define GOOD_CALL(call, statement)                                                                 \
    do {                                                                                           \
        rope_append_args a = (call).args;                                                          \
        statement;                                                                                 \
        test_describe(#statement);                                                                 \
        CHECK_STATUS(ROPE_OK, rope_append((call).plan, &a));                                       \
        bad_memory_put(&(call).memory);                                                            \
    } while (0)

static const rope_status invalid = ROPE_ERROR_INVALID_VALUE, overlap = ROPE_ERROR_OVERLAP,
                         overflow = ROPE_ERROR_OVERFLOW, null = ROPE_ERROR_NULL_POINTER,
                         misaligned = ROPE_ERROR_MISALIGNED;

TEST(append_errors, call_sizes) {
    static append_call call;
    rope_append_desc desc = append_desc();
    call_make(&call, &desc);
    GOOD_CALL(call, (void)a);
    BAD_CALL(call, invalid, "batch", "-1", a.rope.batch = -1);
    BAD_CALL(call, invalid, "tokens", "-3", a.rope.tokens = -3);
    BAD_CALL(call, invalid, "q.heads", "-2", a.rope.q.heads = -2);
    BAD_CALL(call, invalid, "v.heads", "-2", a.v.heads = -2);
    BAD_CALL(call, overflow, "v.heads", "4611686018427387904", a.v.heads = INT64_C(1) << 62);
    BAD_CALL(call, overflow, "tokens", "1152921504606846976", a.rope.tokens = INT64_C(1) << 60);
    BAD_CALL(call, overflow, "v.in_stride", "4611686018427387904",
             STRIDE(a.v.in_stride, INT64_C(1) << 62, 1, 1, 1));
    BAD_CALL(
        call, overflow, "position_stride", "2305843009213693952",
        (a.rope.position_ids = part_of(&call, 8), a.rope.position_stride[1] = INT64_C(1) << 61));
    call_free(&call);
}

TEST(append_errors, call_pointers) {
    static append_call call;
    rope_append_desc desc = append_desc();
    call_make(&call, &desc);
    BAD_CALL(call, null, "q.in", NULL, a.rope.q.in = NULL);
    BAD_CALL(call, null, "q.out", NULL, a.rope.q.out = NULL);
    BAD_CALL(call, null, "k.out", NULL, a.rope.k.out = NULL);
    BAD_CALL(call, null, "v.out", NULL, a.v.out = NULL);
    BAD_CALL(call, null, "v.in", NULL, a.v.in = NULL);
    BAD_CALL(call, misaligned, "v.in", NULL, a.v.in = part_of(&call, 4) + 1);
    BAD_CALL(call, misaligned, "k.out", NULL, a.rope.k.out = part_of(&call, 3) + 1);
    call_free(&call);
    desc.cache = ROPE_CACHE_SLOTS;
    desc.page_size = PAGE;
    call_make(&call, &desc);
    GOOD_CALL(call, (a.rope.k.out = NULL, a.v.out = NULL));
    BAD_CALL(call, null, "q.out", NULL, a.rope.q.out = NULL);
    BAD_CALL(call, null, "k.out and k_cache.data", NULL,
             (a.rope.k.out = NULL, a.k_cache.data = NULL));
    BAD_CALL(call, null, "v.out and v_cache.data", NULL, (a.v.out = NULL, a.v_cache.data = NULL));
    BAD_CALL(call, invalid, "k.out_stride", "[0, 0, 2, 1]",
             (a.rope.k.out = NULL, STRIDE(a.rope.k.out_stride, 0, 0, 2, 1)));
    BAD_CALL(call, misaligned, "k_cache.data", NULL, a.k_cache.data = part_of(&call, 6) + 1);
    call_free(&call);
}

TEST(append_errors, call_weights) {
    static append_call call;
    rope_append_desc desc = append_desc();
    call_make(&call, &desc);
    BAD_CALL(call, invalid, "q_weight.data", NULL, a.q_weight.data = part_of(&call, 9));
    BAD_CALL(call, invalid, "v_weight.head_stride", "64", a.v_weight.head_stride = 64);
    call_free(&call);
    desc.k.norm =
        (rope_norm){.type = ROPE_NORM_RMS, .weight = ROPE_NORM_WEIGHT, .weight_dtype = ROPE_F32};
    call_make(&call, &desc);
    call.args.k_weight.data = part_of(&call, 9);
    GOOD_CALL(call, a.k_weight.head_stride = DIM);
    BAD_CALL(call, null, "k_weight.data", NULL, a.k_weight.data = NULL);
    BAD_CALL(call, misaligned, "k_weight.data", NULL, a.k_weight.data = part_of(&call, 9) + 2);
    BAD_CALL(call, invalid, "q_weight.data", NULL, a.q_weight.data = part_of(&call, 9));
    BAD_CALL(call, overflow, "k_weight.head_stride", "4611686018427387904",
             a.k_weight.head_stride = INT64_C(1) << 62);
    call_free(&call);
}

/* Fields that nothing would read, with and without elements. */
TEST(append_errors, call_fields_that_nothing_reads) {
    static append_call call;
    rope_append_desc desc = append_desc();
    call_make(&call, &desc);
    for (int empty = 0; empty < 2; empty++) {
        call.args.rope.batch = empty ? 0 : BATCH;
        BAD_CALL(call, invalid, "k_cache.data", NULL, a.k_cache.data = part_of(&call, 6));
        BAD_CALL(call, invalid, "v_cache.stride", "[0, 0, 0, 8, 1]",
                 STRIDE(a.v_cache.stride, 0, 0, 0, 8, 1));
        BAD_CALL(call, invalid, "k_cache.scale", NULL, a.k_cache.scale.data = part_of(&call, 9));
        BAD_CALL(call, invalid, "q_scale", "[0, 0, 1]", a.q_scale.stride[2] = 1);
        BAD_CALL(call, invalid, "slots", NULL, a.slots = part_of(&call, 8));
        BAD_CALL(call, invalid, "slots", "[4, 1]", STRIDE(a.slot_stride, 4, 1));
        BAD_CALL(call, invalid, "block_table", NULL, a.block_table = part_of(&call, 8));
        BAD_CALL(call, invalid, "block_table", "[2, 1]", STRIDE(a.table_stride, 2, 1));
        BAD_CALL(call, invalid, "table_pages", "2", a.table_pages = 2);
        BAD_CALL(call, invalid, "pages", "4", a.pages = 4);
        BAD_CALL(call, invalid, "cache_starts", NULL, a.cache_starts = part_of(&call, 8));
        BAD_CALL(call, invalid, "sequences", "3", a.rope.sequences = 3);
        BAD_CALL(call, invalid, "cos", NULL, a.rope.cos = part_of(&call, 9));
    }
    call_free(&call);
    desc = cached_desc(ROPE_CACHE_SLOTS);
    call_make(&call, &desc);
    GOOD_CALL(call, (a.k_cache.data = a.v_cache.data = NULL, a.slots = NULL, a.pages = 0));
    BAD_CALL(call, invalid, "slots", NULL, a.k_cache.data = a.v_cache.data = NULL);
    BAD_CALL(call, invalid, "pages", "4", (a.k_cache.data = a.v_cache.data = NULL, a.slots = NULL));
    BAD_CALL(call, invalid, "k_cache.stride", "[0, 0, 0, 0, 1]",
             (a.k_cache.data = NULL, a.k_cache.stride[4] = 1));
    BAD_CALL(call, invalid, "block_table", NULL, a.block_table = part_of(&call, 8));
    BAD_CALL(call, invalid, "cache_starts", NULL, a.cache_starts = part_of(&call, 8));
    call_free(&call);
}

TEST(append_errors, call_positions_without_a_rotation) {
    static append_call call;
    rope_append_desc desc = append_desc();
    desc.rotation = ROPE_ROTATION_OFF;
    call_make(&call, &desc);
    BAD_CALL(call, invalid, "position_ids", NULL, a.rope.position_ids = part_of(&call, 8));
    BAD_CALL(call, invalid, "position_offset", "7", a.rope.position_offset = 7);
    BAD_CALL(call, invalid, "sequence_offsets", NULL, a.rope.sequence_offsets = part_of(&call, 8));
    call_free(&call);
    desc.cache = ROPE_CACHE_SEQUENCE;
    desc.page_size = PAGE;
    call_make(&call, &desc);
    GOOD_CALL(call, (a.rope.position_offset = 1, a.rope.tokens = 3));
    GOOD_CALL(call, a.cache_starts = part_of(&call, 8));
    BAD_CALL(call, invalid, "position_offset", "1",
             (a.cache_starts = part_of(&call, 8), a.rope.position_offset = 1));
    call_free(&call);
}

TEST(append_errors, slots) {
    static append_call call;
    rope_append_desc desc = cached_desc(ROPE_CACHE_SLOTS);
    desc.slot_dtype = ROPE_I32;
    call_make(&call, &desc);
    GOOD_CALL(call, STRIDE(a.slot_stride, 0, 1));
    BAD_CALL(call, null, "slots", NULL, a.slots = NULL);
    BAD_CALL(call, misaligned, "slots", NULL, a.slots = part_of(&call, 8) + 2);
    BAD_CALL(call, overflow, "slots", "2305843009213693952",
             STRIDE(a.slot_stride, INT64_MAX / 4 + 1, 1));
    BAD_CALL(call, invalid, "pages", "0", a.pages = 0);
    BAD_CALL(call, invalid, "pages", "-1", a.pages = -1);
    call_free(&call);
}

TEST(append_errors, tables) {
    static append_call call;
    rope_append_desc desc = cached_desc(ROPE_CACHE_TABLE);
    call_make(&call, &desc);
    GOOD_CALL(call, a.cache_starts = part_of(&call, 8));
    BAD_CALL(call, null, "block_table", NULL, a.block_table = NULL);
    BAD_CALL(call, misaligned, "block_table", NULL, a.block_table = part_of(&call, 8) + 4);
    BAD_CALL(call, overflow, "block_table", "1152921504606846976",
             STRIDE(a.table_stride, INT64_MAX / 8 + 1, 1));
    BAD_CALL(call, invalid, "table_pages", "0", a.table_pages = 0);
    BAD_CALL(call, invalid, "table_pages", "-2", a.table_pages = -2);
    BAD_CALL(call, overflow, "block_table", "4611686018427387904",
             a.table_pages = INT64_C(1) << 62);
    BAD_CALL(call, misaligned, "cache_starts", NULL, a.cache_starts = part_of(&call, 8) + 4);
    BAD_CALL(call, invalid, "slots", NULL, a.slots = part_of(&call, 8));
    call_free(&call);
    desc = cached_desc(ROPE_CACHE_SEQUENCE);
    call_make(&call, &desc);
    BAD_CALL(call, invalid, "block_table", NULL, a.block_table = part_of(&call, 8));
    BAD_CALL(call, invalid, "table_pages", "2", a.table_pages = 2);
    call_free(&call);
}

TEST(append_errors, cache_strides) {
    static append_call call;
    rope_append_desc desc = cached_desc(ROPE_CACHE_SLOTS);
    desc.k_dim_block = 8;
    call_make(&call, &desc);
    GOOD_CALL(call, STRIDE(a.k_cache.stride, 512, 8, 256, 32, 1));
    BAD_CALL(call, overlap, "k_cache.stride", "[512, 8, 256, 24, 1]",
             STRIDE(a.k_cache.stride, 512, 8, 256, 24, 1));
    BAD_CALL(call, overlap, "k_cache.stride", "[0, 128, 64, 8, 1]",
             STRIDE(a.k_cache.stride, 0, 128, 64, 8, 1));
    BAD_CALL(call, overlap, "v_cache.stride", "[512, 128, 63, 64, 1]",
             STRIDE(a.v_cache.stride, 512, 128, 63, 64, 1));
    BAD_CALL(call, overflow, "k_cache.stride", "4611686018427387904",
             STRIDE(a.k_cache.stride, INT64_C(1) << 62, 128, 64, 8, 1));
    BAD_CALL(call, overflow, "k_cache.stride", "9223372036854775807", a.pages = INT64_MAX);
    call_free(&call);
    desc.page_size = INT64_MAX;
    call_make(&call, &desc);
    BAD_CALL(call, overflow, "page_size", "9223372036854775807", (void)a);
    call_free(&call);
}

TEST(append_errors, scales) {
    static append_call call;
    rope_append_desc desc = cached_desc(ROPE_CACHE_SLOTS);
    desc.q.store_dtype = desc.k.store_dtype = desc.v.store_dtype = ROPE_F8E4M3;
    desc.q.scale = ROPE_SCALE_TENSOR;
    desc.k.scale = ROPE_SCALE_HEAD;
    desc.v.scale = ROPE_SCALE_TOKEN_HEAD_MAX;
    call_make(&call, &desc);
    call.args.q_scale.data = part_of(&call, 9);
    call.args.k_cache.scale.data = part_of(&call, 9);
    call.args.v_cache.scale.data = part_of(&call, 10);
    GOOD_CALL(call, (void)a);
    BAD_CALL(call, null, "q_scale.data", NULL, a.q_scale.data = NULL);
    BAD_CALL(call, null, "k_cache.scale.data", NULL, a.k_cache.scale.data = NULL);
    BAD_CALL(call, null, "v_cache.scale.data", NULL, a.v_cache.scale.data = NULL);
    BAD_CALL(call, misaligned, "q_scale.data", NULL, a.q_scale.data = part_of(&call, 9) + 2);
    BAD_CALL(call, invalid, "q_scale", "[0, 0, 1]", a.q_scale.stride[2] = 1);
    BAD_CALL(call, invalid, "k_cache.scale", "[0, 2, 1]", STRIDE(a.k_cache.scale.stride, 0, 2, 1));
    BAD_CALL(call, overlap, "v_cache.scale.stride", "[8, 1, 1]",
             STRIDE(a.v_cache.scale.stride, 8, 1, 1));
    BAD_CALL(call, overflow, "v_cache.scale.stride", "4611686018427387904",
             STRIDE(a.v_cache.scale.stride, INT64_C(1) << 62, 2, 1));
    BAD_CALL(call, overlap, "v_cache.scale", "v_cache",
             a.v_cache.scale.data = part_of(&call, 7) + 64);
    BAD_CALL(call, overlap, "q.in", "v_cache.scale", a.v_cache.scale.data = part_of(&call, 0));
    BAD_CALL(call, invalid, "v_cache.scale", NULL,
             (a.v_cache.data = NULL, a.v_cache.scale.stride[2] = 1));
    call_free(&call);
}

TEST(append_errors, overlap_of_tensors) {
    static append_call call;
    rope_append_desc desc = cached_desc(ROPE_CACHE_SLOTS);
    call_make(&call, &desc);
    GOOD_CALL(call, (a.rope.q.out = part_of(&call, 0), a.rope.k.out = part_of(&call, 2),
                     a.v.out = part_of(&call, 4)));
    GOOD_CALL(call, a.v.in = a.rope.k.in);
    BAD_CALL(call, overlap, "q.out", NULL, a.rope.q.out = part_of(&call, 0) + 4);
    BAD_CALL(call, overlap, "v.out", "k.out", a.v.out = a.rope.k.out);
    BAD_CALL(call, overlap, "v.in", "q.out", a.v.in = a.rope.q.out);
    BAD_CALL(call, overlap, "v.out", "k.in", a.v.out = part_of(&call, 2));
    BAD_CALL(call, overlap, "k_cache", "q.in", a.k_cache.data = part_of(&call, 0));
    BAD_CALL(call, overlap, "k_cache", "k.in", a.k_cache.data = part_of(&call, 2));
    BAD_CALL(call, overlap, "v_cache", "k.out", a.v_cache.data = part_of(&call, 3));
    BAD_CALL(call, overlap, "v_cache", "k_cache", a.v_cache.data = a.k_cache.data);
    BAD_CALL(call, overlap, "v_cache", "k_cache", a.v_cache.data = part_of(&call, 6) + 2048);
    call_free(&call);
}

/* What a call reads beside its tensors. */
TEST(append_errors, overlap_of_lists) {
    static append_call call;
    rope_append_desc desc = cached_desc(ROPE_CACHE_SLOTS);
    desc.q.norm = desc.v.norm =
        (rope_norm){.type = ROPE_NORM_RMS, .weight = ROPE_NORM_WEIGHT, .weight_dtype = ROPE_F32};
    desc.q.store_dtype = desc.k.store_dtype = ROPE_F8E4M3;
    desc.q.scale = ROPE_SCALE_TENSOR;
    desc.k.scale = ROPE_SCALE_TOKEN_HEAD;
    call_make(&call, &desc);
    call.args.q_weight.data = call.args.v_weight.data = part_of(&call, 9);
    call.args.q_scale.data = call.args.k_cache.scale.data = part_of(&call, 9);
    GOOD_CALL(call, (void)a);
    BAD_CALL(call, overlap, "slots", "v_cache", a.slots = part_of(&call, 7));
    BAD_CALL(call, overlap, "slots", "q.out", a.slots = part_of(&call, 1) - 8);
    BAD_CALL(call, overlap, "q_weight", "k_cache", a.q_weight.data = part_of(&call, 6));
    BAD_CALL(call, overlap, "v_weight", "v.out", a.v_weight.data = part_of(&call, 5) - 4);
    BAD_CALL(call, overlap, "q_scale", "q.out", a.q_scale.data = part_of(&call, 1));
    BAD_CALL(call, overlap, "k_cache.scale", "k_cache", a.k_cache.scale.data = part_of(&call, 6));
    BAD_CALL(call, overlap, "position_ids", "k_cache", a.rope.position_ids = part_of(&call, 6));
    BAD_CALL(call, overlap, "cu_seqlens", "q.out",
             (a.rope.batch = 1, a.rope.sequences = 1, a.rope.cu_seqlens = part_of(&call, 1)));
    call_free(&call);
    desc = cached_desc(ROPE_CACHE_TABLE);
    call_make(&call, &desc);
    BAD_CALL(call, overlap, "block_table", "k_cache", a.block_table = part_of(&call, 6));
    BAD_CALL(call, overlap, "cache_starts", "v_cache", a.cache_starts = part_of(&call, 7));
    BAD_CALL(call, overlap, "sequence_offsets", "k.out",
             a.rope.sequence_offsets = part_of(&call, 3) - 8);
    call_free(&call);
}

/* K and V in one tensor, as [pages, 2, page, heads, dim], [pages, page, heads, 2, dim] and
 * [pages, heads, page, 2 * dim]. */
TEST(append_errors, caches_in_one_tensor) {
    enum { ALL = HEADS * DIM };
    static append_call call;
    rope_append_desc desc = cached_desc(ROPE_CACHE_SLOTS);
    call_make(&call, &desc);
    GOOD_CALL(call, (STRIDE(a.k_cache.stride, 2 * PAGE * ALL, ALL, DIM, DIM, 1),
                     STRIDE(a.v_cache.stride, 2 * PAGE * ALL, ALL, DIM, DIM, 1),
                     a.v_cache.data = part_of(&call, 6) + (ptrdiff_t)PAGE * ALL * 2));
    GOOD_CALL(call, (STRIDE(a.k_cache.stride, 2 * PAGE * ALL, 2 * ALL, 2 * DIM, DIM, 1),
                     STRIDE(a.v_cache.stride, 2 * PAGE * ALL, 2 * ALL, 2 * DIM, DIM, 1),
                     a.v_cache.data = part_of(&call, 6) + (ptrdiff_t)DIM * 2));
    GOOD_CALL(call, (STRIDE(a.k_cache.stride, 2 * PAGE * ALL, 2 * DIM, 2 * PAGE * DIM, DIM, 1),
                     STRIDE(a.v_cache.stride, 2 * PAGE * ALL, 2 * DIM, 2 * PAGE * DIM, DIM, 1),
                     a.v_cache.data = part_of(&call, 6) + (ptrdiff_t)DIM * 2));
    BAD_CALL(call, overlap, "v_cache", "k_cache",
             (STRIDE(a.k_cache.stride, 2 * PAGE * ALL, 2 * ALL, 2 * DIM, DIM, 1),
              STRIDE(a.v_cache.stride, 2 * PAGE * ALL, 2 * ALL, 2 * DIM, DIM, 1),
              a.v_cache.data = part_of(&call, 6) + (ptrdiff_t)DIM * 2 - 2));
    call_free(&call);
}

/* Scales behind each row of fp8 in the cache, as [pages, page, heads, dim + 4 bytes]. */
TEST(append_errors, scales_in_the_cache) {
    enum { ROW = DIM + 4, ALL = HEADS * ROW };
    static append_call call;
    rope_append_desc desc = cached_desc(ROPE_CACHE_SLOTS);
    desc.k.store_dtype = ROPE_F8E4M3;
    desc.k.scale = ROPE_SCALE_TOKEN_HEAD_MAX;
    call_make(&call, &desc);
    STRIDE(call.args.k_cache.stride, PAGE * ALL, ALL, ROW, DIM, 1);
    STRIDE(call.args.k_cache.scale.stride, PAGE * ALL / 4, ALL / 4, ROW / 4);
    call.args.k_cache.scale.data = part_of(&call, 6) + DIM;
    GOOD_CALL(call, (void)a);
    BAD_CALL(call, overlap, "k_cache.scale", "k_cache",
             a.k_cache.scale.data = part_of(&call, 6) + DIM - 4);
    rope_plan_destroy(call.plan);
    desc.k.scale = ROPE_SCALE_TOKEN_HEAD;
    call.plan = plan_of(&desc);
    GOOD_CALL(call, (void)a);
    call_free(&call);
}

TEST(append_errors, q_in_another_type) {
    static append_call call;
    rope_append_desc desc = append_desc();
    desc.q.store_dtype = ROPE_F8E5M2;
    call_make(&call, &desc);
    GOOD_CALL(call, (void)a);
    BAD_CALL(call, overlap, "q.store_dtype", NULL, a.rope.q.out = part_of(&call, 0));
    call_free(&call);
    desc.q.store_dtype = ROPE_F16;
    call_make(&call, &desc);
    GOOD_CALL(call, a.rope.q.out = part_of(&call, 0));
    call_free(&call);
    desc.q.store_dtype = ROPE_F32;
    call_make(&call, &desc);
    BAD_CALL(call, misaligned, "q.out", NULL, a.rope.q.out = part_of(&call, 1) + 2);
    call_free(&call);
}

TEST(append_errors, call_with_keys_from_the_cache) {
    static append_call call;
    rope_append_desc desc = cached_desc(ROPE_CACHE_SLOTS);
    desc.k_source = ROPE_SOURCE_CACHE;
    call_make(&call, &desc);
    call.args.rope.q = call.args.v = (rope_tensor){0};
    call.args.rope.k = (rope_tensor){.heads = HEADS};
    call.args.v_cache = (rope_cache){0};
    GOOD_CALL(call, a.rope.tokens = 1; a.rope.batch = 1);
    BAD_CALL(call, invalid, "q.heads", "2", a.rope.q.heads = 2);
    BAD_CALL(call, invalid, "v.heads", "1", a.v.heads = 1);
    BAD_CALL(call, invalid, "k.heads", "-1", a.rope.k.heads = -1);
    BAD_CALL(call, overflow, "k.heads", "4611686018427387904", a.rope.k.heads = INT64_C(1) << 62);
    BAD_CALL(call, invalid, "k.in", NULL, a.rope.k.in = part_of(&call, 2));
    BAD_CALL(call, invalid, "k.out", NULL, a.rope.k.out = part_of(&call, 2));
    BAD_CALL(call, invalid, "strides", "64", a.rope.k.in_stride[0] = 64);
    BAD_CALL(call, invalid, "v_cache.data", NULL, a.v_cache.data = part_of(&call, 7));
    BAD_CALL(call, null, "k_cache.data", NULL,
             (a.k_cache.data = NULL, a.slots = NULL, a.pages = 0));
    call_free(&call);
}

/* An entry of the caller's mapping that names no page of the cache is what the error names. */
static void check_index(int32_t cache, int entry, int64_t value, const char *field,
                        const char *allowed) {
    static append_call call;
    const rope_append_desc desc = cached_desc(cache);
    call_make(&call, &desc);
    memcpy(bad_memory_before(&call.memory, 8) + (size_t)entry * sizeof value, &value, sizeof value);
    bad_memory_put(&call.memory);
    BAD_CALL(call, ROPE_ERROR_POSITION_RANGE, field, allowed, (void)a);
    call_free(&call);
}

/* Values in memory, which the host sees where the tensors lie there. */
TEST(append_errors, values) {
    static append_call call;
    rope_append_desc desc = cached_desc(ROPE_CACHE_SEQUENCE);
    call_make(&call, &desc);
    if (!device_is_host()) {
        call_free(&call);
        return;
    }
    BAD_CALL(call, ROPE_ERROR_POSITION_RANGE, "index", "4", a.rope.position_offset = 1);
    BAD_CALL(call, ROPE_ERROR_POSITION_RANGE, "page", "1", a.pages = 1);
    call_free(&call);
    desc.ring = 3;
    call_make(&call, &desc);
    BAD_CALL(call, ROPE_ERROR_POSITION_RANGE, "token 1 is -1", "allowed is >= 0",
             a.rope.position_offset = -2);
    call_free(&call);
    check_index(ROPE_CACHE_SLOTS, 6, 16, "slots[1, 2] is 16", "below 0, or 0..15");
    check_index(ROPE_CACHE_SLOTS, 3, INT64_MAX, "slots[0, 3] is 9223372036854775807", "0..15");
    check_index(ROPE_CACHE_TABLE, 2, 4, "block_table[1, 0] is 4", "batch 1, token 0");
    check_index(ROPE_CACHE_TABLE, 0, -1, "block_table[0, 0] is -1", "0..3 (pages - 1)");
    desc = cached_desc(ROPE_CACHE_TABLE);
    call_make(&call, &desc);
    BAD_CALL(
        call, ROPE_ERROR_POSITION_RANGE, "token 0 is -1", "0..9223372036854775806",
        (STRIDE(a.table_stride, 1, 0), a.table_pages = INT64_MAX, a.rope.position_offset = -1));
    call_free(&call);
}

/* A scale that is none is named by its place. */
static void check_scale(int32_t scale, int entry, float value, const char *text) {
    static append_call call;
    rope_append_desc desc = cached_desc(ROPE_CACHE_SLOTS);
    desc.v.store_dtype = ROPE_I8;
    desc.v.scale = scale;
    call_make(&call, &desc);
    call.args.v_cache.scale.data = part_of(&call, 9);
    for (int64_t slot = 0; slot < BATCH * TOKENS; slot++)
        memcpy(bad_memory_before(&call.memory, 8) + (size_t)slot * 8, &slot, sizeof slot);
    memcpy(bad_memory_before(&call.memory, 9) + (size_t)entry * sizeof value, &value, sizeof value);
    bad_memory_put(&call.memory);
    BAD_CALL(call, invalid, text, "allowed is > 0 and finite", (void)a);
    call_free(&call);
}

TEST(append_errors, values_of_scales) {
    if (!device_is_host())
        SKIP("scales are read on the device");
    check_scale(ROPE_SCALE_TENSOR, 0, 0, "v_cache.scale is 0;");
    check_scale(ROPE_SCALE_TENSOR, 0, -0.0F, "v_cache.scale is -0;");
    check_scale(ROPE_SCALE_HEAD, 1, NAN, "v_cache.scale of head 1 is nan;");
    check_scale(ROPE_SCALE_HEAD, 1, -2, "v_cache.scale of head 1 is -2;");
    check_scale(ROPE_SCALE_TOKEN_HEAD, 11, INFINITY, "v_cache.scale[1, 1, 1] is inf;");
}

/* Nothing to write: success, whatever the pointers. */
TEST(append_errors, empty_tensors_succeed) {
    rope_append_desc desc = cached_desc(ROPE_CACHE_TABLE);
    desc.k.norm = (rope_norm){.type = ROPE_NORM_RMS, .weight = ROPE_NORM_WEIGHT};
    desc.k.store_dtype = ROPE_I8;
    desc.k.scale = ROPE_SCALE_TENSOR;
    rope_plan *plan = plan_of(&desc);
    rope_append_args args = ROPE_APPEND_ARGS_INIT;
    CHECK_STATUS(ROPE_OK, rope_append(plan, &args));
    args.rope.batch = 3;
    args.rope.tokens = 5;
    CHECK_STATUS(ROPE_OK, rope_append(plan, &args));
    args.rope.tokens = 0;
    args.rope.q.heads = args.rope.k.heads = args.v.heads = 8;
    CHECK_STATUS(ROPE_OK, rope_append(plan, &args));
    rope_plan_destroy(plan);
}
