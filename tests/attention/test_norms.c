/* Norms inside rope_attention have the bits of rope_append, which normalises and rotates at once,
 * ahead of attention that does neither; and a program that knows of none has none. */
#include "tests/attention/compare.h"
#include "tests/oracle/oracle.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <stdlib.h>
#include <string.h>

enum { BATCH = 2, K_HEADS = 2 };

/* Tensors of a call, of 16 bits, side by side in device memory. */
enum { Q, K, V, Q_WEIGHT, K_WEIGHT, OUT, Q_OUT, K_OUT, PARTS };

typedef struct shape {
    int32_t dtype, tokens, heads, dim;
} shape;

typedef struct model {
    shape of;
    rope_norm norm;
    size_t part, bytes; /* of a tensor, of all */
    char *memory;
    unsigned char *host, *expected, *result;
} model;

static void make(model *m, shape of) {
    test_random r = random_stream(test_seed(), 0);
    void *memory;
    m->of = of;
    m->norm = (rope_norm){.type = ROPE_NORM_RMS,
                          .weight = ROPE_NORM_WEIGHT,
                          .rounding = ROPE_NORM_ROUND_TWICE,
                          .eps = 1e-6};
    m->part = (size_t)BATCH * (size_t)of.tokens * (size_t)of.heads * (size_t)of.dim * 2;
    m->bytes = PARTS * m->part;
    m->host = malloc(3 * m->bytes);
    CHECK(m->host, "no memory");
    m->expected = m->host + m->bytes;
    m->result = m->expected + m->bytes;
    for (size_t i = 0; i < m->bytes / 2; i++)
        oracle_store(of.dtype, m->host, (int64_t)i, random_real(&r, -2, 2));
    CHECK_STATUS(ROPE_OK, rope_device_alloc(device_open(), m->bytes, &memory));
    CHECK_STATUS(ROPE_OK, rope_device_copy_in(device_open(), memory, m->host, m->bytes));
    m->memory = memory;
}

static void forget(model *m) {
    CHECK_STATUS(ROPE_OK, rope_device_free(device_open(), m->memory));
    free(m->host);
}

static void *part_of(const model *m, int part) {
    return m->memory + (size_t)part * m->part;
}

static rope_attention_desc desc_of(const model *m, const char *kernel) {
    rope_attention_desc desc = ROPE_ATTENTION_DESC_INIT;
    desc.rope = device_desc();
    desc.rope.dtype = m->of.dtype;
    desc.rope.head_dim = m->of.dim;
    desc.rope.kernel = kernel;
    return desc;
}

static rope_attention_args args_of(const model *m) {
    rope_attention_args a = ROPE_ATTENTION_ARGS_INIT;
    a.rope.batch = BATCH;
    a.rope.tokens = m->of.tokens;
    a.rope.q = (rope_tensor){.in = part_of(m, Q), .heads = m->of.heads};
    a.rope.k = (rope_tensor){.in = part_of(m, K), .heads = K_HEADS};
    a.v = (rope_tensor){.in = part_of(m, V), .heads = K_HEADS};
    a.out.data = part_of(m, OUT);
    return a;
}

/* Attends, and brings what the call wrote. */
static void attend(const model *m, const rope_attention_desc *desc, rope_attention_args *a,
                   unsigned char *result) {
    const rope_attention_bounds bounds = {sizeof bounds, BATCH,  m->of.tokens, m->of.tokens, 0,
                                          m->of.heads,   K_HEADS};
    rope_plan *plan;
    CHECK_STATUS(ROPE_OK, rope_attention_plan_create(desc, &plan));
    CHECK_STATUS(ROPE_OK, rope_attention_workspace(plan, &bounds, &a->workspace_bytes));
    CHECK_STATUS(ROPE_OK,
                 rope_device_alloc(device_open(), a->workspace_bytes + 256, &a->workspace));
    void *workspace = a->workspace;
    a->workspace = (char *)workspace + (256 - (uintptr_t)workspace % 256) % 256;
    CHECK_STATUS(ROPE_OK, rope_attention(plan, a));
    CHECK_STATUS(ROPE_OK, rope_device_copy_out(device_open(), result, m->memory, m->bytes));
    CHECK_STATUS(ROPE_OK, rope_device_free(device_open(), workspace));
    rope_plan_destroy(plan);
}

static void append(const model *m) {
    rope_append_desc desc = ROPE_APPEND_DESC_INIT;
    rope_append_args a = ROPE_APPEND_ARGS_INIT;
    rope_plan *plan;
    desc.rope = desc_of(m, NULL).rope;
    desc.q.norm = desc.k.norm = m->norm;
    a.rope = args_of(m).rope;
    a.rope.q.out = part_of(m, Q_OUT);
    a.rope.k.out = part_of(m, K_OUT);
    a.q_weight.data = part_of(m, Q_WEIGHT);
    a.k_weight.data = part_of(m, K_WEIGHT);
    CHECK_STATUS(ROPE_OK, rope_append_plan_create(&desc, &plan));
    CHECK_STATUS(ROPE_OK, rope_append(plan, &a));
    CHECK_STATUS(ROPE_OK, rope_device_synchronize(device_open()));
    rope_plan_destroy(plan);
}

/* writes: also what is rotated. */
static void check_kernel(const model *m, const char *kernel, int writes) {
    rope_attention_desc desc = desc_of(m, kernel);
    rope_attention_args a = args_of(m);
    test_describe(kernel ? kernel : "");
    append(m);
    desc.rotation = ROPE_ATTENTION_ROTATE_NONE;
    a.rope.q.in = part_of(m, Q_OUT);
    a.rope.k.in = part_of(m, K_OUT);
    attend(m, &desc, &a, m->expected);
    CHECK_STATUS(ROPE_OK, rope_device_copy_in(device_open(), m->memory, m->host, m->bytes));
    desc = desc_of(m, kernel);
    desc.q_norm = desc.k_norm = m->norm;
    a = args_of(m);
    if (writes) {
        a.rope.q.out = part_of(m, Q_OUT);
        a.rope.k.out = part_of(m, K_OUT);
    }
    a.q_weight.data = part_of(m, Q_WEIGHT);
    a.k_weight.data = part_of(m, K_WEIGHT);
    attend(m, &desc, &a, m->result);
    for (size_t part = 0; part < (writes ? PARTS : Q_OUT); part++)
        CHECK(memcmp(m->expected + part * m->part, m->result + part * m->part, m->part) == 0,
              "part %zu differs from that of rope_append and attention", part);
}

static int takes(const model *m, const char *kernel) {
    const rope_attention_desc desc = desc_of(m, kernel);
    rope_plan *plan = NULL;
    const rope_status status = rope_attention_plan_create(&desc, &plan);
    rope_plan_destroy(plan);
    return status == ROPE_OK;
}

static const shape small = {ROPE_BF16, 37, 4, 64};

TEST(attention_norms, as_append_and_attention) {
    const char *kernel;
    model m;
    attention_required();
    make(&m, small);
    check_kernel(&m, NULL, 1);
    for (int32_t k = 0; (kernel = device_kernel_of("attention", k)); k++)
        if (takes(&m, kernel))
            check_kernel(&m, kernel, 1);
    forget(&m);
}

/* So many queries that Hopper's kernel normalises and rotates them beside its products. */
TEST(attention_norms, beside_products) {
    static const shape shapes[] = {{ROPE_F16, 2100, 8, 128}, {ROPE_BF16, 2100, 8, 128}};
    attention_required();
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        model m = {.of = shapes[i]};
        if (!takes(&m, "sm90"))
            SKIP("no kernel has norms");
        make(&m, shapes[i]);
        check_kernel(&m, "sm90", 0);
        forget(&m);
    }
}

/* Structs that end where norms begin. */
TEST(attention_norms, older_programs) {
    model m;
    attention_required();
    make(&m, small);
    rope_attention_desc desc = desc_of(&m, NULL);
    rope_attention_args a = args_of(&m);
    attend(&m, &desc, &a, m.expected);
    desc.struct_size = offsetof(rope_attention_desc, q_norm);
    a = args_of(&m);
    a.struct_size = offsetof(rope_attention_args, q_weight);
    memset(&desc.q_norm, 0xff, sizeof desc.q_norm);
    memset(&a.q_weight, 0xff, sizeof a.q_weight);
    attend(&m, &desc, &a, m.result);
    CHECK(memcmp(m.expected, m.result, m.bytes) == 0, "what lies behind a struct was read");
    forget(&m);
}
