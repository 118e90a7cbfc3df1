/* Norms inside rope_attention have the bits of rope_append, which normalises and rotates at once,
 * ahead of attention that does neither; and a program that knows of none has none. */
#include "tests/attention/compare.h"
#include "tests/oracle/oracle.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <stdlib.h>
#include <string.h>

enum { BATCH = 2, TOKENS = 37, HEADS = 4, K_HEADS = 2, DIM = 64 };

/* Tensors of a call, in bf16, side by side in device memory. */
enum { Q, K, V, Q_WEIGHT, K_WEIGHT, OUT, Q_OUT, K_OUT, PARTS };
enum { PART = BATCH * TOKENS * HEADS * DIM, BYTES = PARTS * PART * 2 };

typedef struct model {
    rope_norm norm;
    char *memory;
    uint16_t host[PARTS][PART];
} model;

static void make(model *m) {
    test_random r = random_stream(test_seed(), 0);
    void *memory;
    m->norm = (rope_norm){.type = ROPE_NORM_RMS,
                          .weight = ROPE_NORM_WEIGHT,
                          .rounding = ROPE_NORM_ROUND_TWICE,
                          .eps = 1e-6};
    for (int64_t i = 0; i < (int64_t)PARTS * PART; i++)
        oracle_store(ROPE_BF16, m->host, i, random_real(&r, -2, 2));
    CHECK_STATUS(ROPE_OK, rope_device_alloc(device_open(), BYTES, &memory));
    CHECK_STATUS(ROPE_OK, rope_device_copy_in(device_open(), memory, m->host, BYTES));
    m->memory = memory;
}

static void *part_of(const model *m, int part) {
    return m->memory + (ptrdiff_t)part * PART * 2;
}

static rope_attention_desc desc_of(const char *kernel) {
    rope_attention_desc desc = ROPE_ATTENTION_DESC_INIT;
    desc.rope = device_desc();
    desc.rope.dtype = ROPE_BF16;
    desc.rope.head_dim = DIM;
    desc.rope.kernel = kernel;
    return desc;
}

static rope_attention_args args_of(const model *m) {
    rope_attention_args a = ROPE_ATTENTION_ARGS_INIT;
    a.rope.batch = BATCH;
    a.rope.tokens = TOKENS;
    a.rope.q = (rope_tensor){.in = part_of(m, Q), .heads = HEADS};
    a.rope.k = (rope_tensor){.in = part_of(m, K), .heads = K_HEADS};
    a.v = (rope_tensor){.in = part_of(m, V), .heads = K_HEADS};
    a.out.data = part_of(m, OUT);
    return a;
}

/* Attends, and brings what the call wrote. */
static void attend(const model *m, const rope_attention_desc *desc, rope_attention_args *a,
                   uint16_t result[PARTS][PART]) {
    const rope_attention_bounds bounds = {sizeof bounds, BATCH, TOKENS, TOKENS, 0, HEADS, K_HEADS};
    rope_plan *plan;
    CHECK_STATUS(ROPE_OK, rope_attention_plan_create(desc, &plan));
    CHECK_STATUS(ROPE_OK, rope_attention_workspace(plan, &bounds, &a->workspace_bytes));
    CHECK_STATUS(ROPE_OK,
                 rope_device_alloc(device_open(), a->workspace_bytes + 256, &a->workspace));
    void *workspace = a->workspace;
    a->workspace = (char *)workspace + (256 - (uintptr_t)workspace % 256) % 256;
    CHECK_STATUS(ROPE_OK, rope_attention(plan, a));
    CHECK_STATUS(ROPE_OK, rope_device_copy_out(device_open(), result, m->memory, BYTES));
    CHECK_STATUS(ROPE_OK, rope_device_free(device_open(), workspace));
    rope_plan_destroy(plan);
}

static void append(const model *m) {
    rope_append_desc desc = ROPE_APPEND_DESC_INIT;
    rope_append_args a = ROPE_APPEND_ARGS_INIT;
    rope_plan *plan;
    desc.rope = desc_of(NULL).rope;
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

static void check_kernel(const model *m, const char *kernel) {
    static uint16_t expected[PARTS][PART], result[PARTS][PART];
    rope_attention_desc desc = desc_of(kernel);
    rope_attention_args a = args_of(m);
    test_describe(kernel ? kernel : "");
    append(m);
    desc.rotation = ROPE_ATTENTION_ROTATE_NONE;
    a.rope.q.in = part_of(m, Q_OUT);
    a.rope.k.in = part_of(m, K_OUT);
    attend(m, &desc, &a, expected);
    CHECK_STATUS(ROPE_OK, rope_device_copy_in(device_open(), m->memory, m->host, BYTES));
    desc = desc_of(kernel);
    desc.q_norm = desc.k_norm = m->norm;
    a = args_of(m);
    a.rope.q.out = part_of(m, Q_OUT);
    a.rope.k.out = part_of(m, K_OUT);
    a.q_weight.data = part_of(m, Q_WEIGHT);
    a.k_weight.data = part_of(m, K_WEIGHT);
    attend(m, &desc, &a, result);
    for (int part = 0; part < PARTS; part++)
        CHECK(memcmp(expected[part], result[part], sizeof expected[part]) == 0,
              "part %d differs from that of rope_append and attention", part);
}

TEST(attention_norms, as_append_and_attention) {
    static model m;
    const char *kernel;
    attention_required();
    make(&m);
    check_kernel(&m, NULL);
    for (int32_t k = 0; (kernel = device_kernel_of("attention", k)); k++) {
        const rope_attention_desc desc = desc_of(kernel);
        rope_plan *plan = NULL;
        const rope_status status = rope_attention_plan_create(&desc, &plan);
        rope_plan_destroy(plan);
        if (status == ROPE_OK)
            check_kernel(&m, kernel);
    }
    CHECK_STATUS(ROPE_OK, rope_device_free(device_open(), m.memory));
}

/* Structs that end where norms begin. */
TEST(attention_norms, older_programs) {
    static uint16_t expected[PARTS][PART], result[PARTS][PART];
    static model m;
    attention_required();
    make(&m);
    rope_attention_desc desc = desc_of(NULL);
    rope_attention_args a = args_of(&m);
    attend(&m, &desc, &a, expected);
    desc.struct_size = offsetof(rope_attention_desc, q_norm);
    a = args_of(&m);
    a.struct_size = offsetof(rope_attention_args, q_weight);
    memset(&desc.q_norm, 0xff, sizeof desc.q_norm);
    memset(&a.q_weight, 0xff, sizeof a.q_weight);
    attend(&m, &desc, &a, result);
    CHECK(memcmp(expected, result, BYTES) == 0, "what lies behind a struct was read");
    CHECK_STATUS(ROPE_OK, rope_device_free(device_open(), m.memory));
}
