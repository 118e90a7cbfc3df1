/* Tensors of more than 2^31 elements, in place, of one head, and of so many that blocks come out
 * even: the first token, the last, and those on either side of element 2^31 are compared with the
 * CPU's. More heads than a grid has blocks. */
#include "tests/gpu/fixture.h"

#include <ropekit/attention.h>

#include <stdlib.h>
#include <string.h>

enum { DIM = 128, SLAB_BYTES = 8 << 20, ROW_BYTES_MOST = 512 * DIM * 4 };

typedef struct shape {
    const char *kernel;
    int32_t dtype;
    int64_t tokens, heads;
} shape;

static const shape shapes[] = {
    {"narrow", ROPE_BF16, (1 << 24) + 5, 1},      {"wide", ROPE_BF16, (1 << 24) + 5, 1},
    {"single_head", ROPE_BF16, (1 << 24) + 5, 1}, {"generic", ROPE_BF16, (1 << 24) + 5, 1},
    {"narrow", ROPE_F16, (1 << 15) + 8, 512},     {"deep", ROPE_BF16, (1 << 15) + 8, 512},
    {"wide", ROPE_F32, (1 << 15) + 8, 512},
};

static size_t row_bytes(const shape *s) {
    return (size_t)s->heads * DIM * (s->dtype == ROPE_F32 ? 4 : 2);
}

/* Exact angles take the plain kernel, those in fp32 the vector kernel. */
static rope_plan *plan_of(const char *backend, const shape *s, int32_t angle_mode) {
    rope_desc desc = ROPE_DESC_INIT;
    desc.backend = backend;
    desc.kernel = strcmp(backend, "cpu") ? s->kernel : NULL;
    desc.angle_mode = angle_mode;
    desc.dtype = s->dtype;
    desc.head_dim = DIM;
    rope_plan *plan = NULL;
    CHECK_STATUS(ROPE_OK, rope_plan_create(&desc, &plan));
    return plan;
}

static void rotate(const rope_plan *plan, void *memory, const shape *s, int64_t tokens,
                   int64_t position) {
    rope_args args = ROPE_ARGS_INIT;
    args.batch = 1;
    args.tokens = tokens;
    args.position_offset = position;
    args.q = (rope_tensor){.in = memory, .out = memory, .heads = s->heads};
    CHECK_STATUS(ROPE_OK, rope_apply(plan, &args));
}

/* The slab again and again: numbers from a quarter to two at any width. */
static void fill(rope_device *device, char *memory, char *slab, const shape *s) {
    for (size_t i = 0; i < SLAB_BYTES; i += 2) {
        uint16_t x = (uint16_t)(0x3e80 + i * 2654435761u % 0x180);
        memcpy(slab + i, &x, 2);
    }
    size_t bytes = (size_t)s->tokens * row_bytes(s);
    for (size_t at = 0; at < bytes; at += SLAB_BYTES) {
        size_t part = bytes - at < SLAB_BYTES ? bytes - at : SLAB_BYTES;
        CHECK_STATUS(ROPE_OK, rope_device_copy_in(device, memory + at, slab, part));
    }
}

static void check_tokens(rope_device *device, const char *memory, const char *slab, const shape *s,
                         int32_t angle_mode) {
    static char expected[ROW_BYTES_MOST], found[ROW_BYTES_MOST];
    const int64_t middle = (1ll << 31) / (s->heads * DIM);
    const int64_t looked_at[] = {0, 1, middle - 1, middle, s->tokens - 1};
    const size_t bytes = row_bytes(s);
    rope_plan *plan = plan_of("cpu", s, angle_mode);
    for (size_t i = 0; i < sizeof looked_at / sizeof looked_at[0]; i++) {
        size_t at = (size_t)looked_at[i] * bytes;
        memcpy(expected, slab + at % SLAB_BYTES, bytes);
        rotate(plan, expected, s, 1, looked_at[i]);
        CHECK_STATUS(ROPE_OK, rope_device_copy_out(device, found, memory + at, bytes));
        CHECK(memcmp(found, expected, bytes) == 0, "%s, angle mode %d: token %lld", s->kernel,
              angle_mode, (long long)looked_at[i]);
    }
    rope_plan_destroy(plan);
}

static void rotate_and_check(rope_device *device, const shape *s, char *slab, int32_t angle_mode) {
    void *memory = NULL;
    if (rope_device_alloc(device, (size_t)s->tokens * row_bytes(s), &memory) != ROPE_OK)
        SKIP("%s", rope_last_error());
    fill(device, memory, slab, s);
    rope_plan *plan = plan_of(GPU_BACKEND_NAME, s, angle_mode);
    rotate(plan, memory, s, s->tokens, 0);
    CHECK_STATUS(ROPE_OK, rope_device_synchronize(device));
    check_tokens(device, memory, slab, s, angle_mode);
    rope_plan_destroy(plan);
    CHECK_STATUS(ROPE_OK, rope_device_free(device, memory));
}

TEST(large, more_than_31_bits_of_elements) {
    static fixture f;
    fixture_open(&f, 0, FIXTURE_PLAIN);
    char *slab = malloc(SLAB_BYTES);
    CHECK(slab != NULL, "no memory");
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int32_t mode = ROPE_ANGLE_EXACT; mode <= ROPE_ANGLE_F32; mode++)
            rotate_and_check(f.device, &shapes[i], slab, mode);
    free(slab);
    fixture_close(&f);
}

/* --- heads --- */

enum {
    SMALL_DIM = 16,
    SMALL_TOKENS = 9,
    K_HEADS = 4 * 65535 + 3, /* a block has four */
    Q_HEADS = 2 * K_HEADS,
    K_BYTES = SMALL_TOKENS * K_HEADS * SMALL_DIM * 2
};

/* Memory of queries, keys, values, results, queries and keys that are rotated. */
typedef struct parts {
    rope_device *device;
    void *q, *k, *v, *out[2], *q_out, *k_out;
} parts;

static void attend(const parts *m, int rotated) {
    rope_attention_desc desc = ROPE_ATTENTION_DESC_INIT;
    rope_attention_args a = ROPE_ATTENTION_ARGS_INIT;
    rope_attention_bounds bounds = {sizeof bounds, 1, SMALL_TOKENS, 0, 0, Q_HEADS, K_HEADS};
    rope_plan *plan = NULL;
    void *workspace = NULL;
    desc.rope.backend = GPU_BACKEND_NAME;
    desc.rope.kernel = "sm90";
    desc.rope.dtype = ROPE_BF16;
    desc.rope.head_dim = SMALL_DIM;
    desc.rotation = rotated ? ROPE_ATTENTION_ROTATE_NONE : ROPE_ATTENTION_ROTATE_QK;
    if (rope_attention_plan_create(&desc, &plan) != ROPE_OK)
        SKIP("%s", rope_last_error());
    a.rope.batch = 1;
    a.rope.tokens = SMALL_TOKENS;
    a.rope.q = (rope_tensor){.in = rotated ? m->q_out : m->q, .heads = Q_HEADS};
    a.rope.k = (rope_tensor){.in = rotated ? m->k_out : m->k, .heads = K_HEADS};
    a.v = (rope_tensor){.in = m->v, .heads = K_HEADS};
    a.out.data = m->out[rotated];
    CHECK_STATUS(ROPE_OK, rope_attention_workspace(plan, &bounds, &a.workspace_bytes));
    CHECK_STATUS(ROPE_OK, rope_device_alloc(m->device, a.workspace_bytes, &workspace));
    a.workspace = workspace;
    CHECK_STATUS(ROPE_OK, rope_attention(plan, &a));
    CHECK_STATUS(ROPE_OK, rope_device_synchronize(m->device));
    CHECK_STATUS(ROPE_OK, rope_device_free(m->device, workspace));
    rope_plan_destroy(plan);
}

static void rotate_heads(const parts *m) {
    rope_desc desc = ROPE_DESC_INIT;
    rope_args args = ROPE_ARGS_INIT;
    rope_plan *plan = NULL;
    desc.backend = GPU_BACKEND_NAME;
    desc.dtype = ROPE_BF16;
    desc.head_dim = SMALL_DIM;
    CHECK_STATUS(ROPE_OK, rope_plan_create(&desc, &plan));
    args.batch = 1;
    args.tokens = SMALL_TOKENS;
    args.q = (rope_tensor){.in = m->q, .out = m->q_out, .heads = Q_HEADS};
    args.k = (rope_tensor){.in = m->k, .out = m->k_out, .heads = K_HEADS};
    CHECK_STATUS(ROPE_OK, rope_apply(plan, &args));
    rope_plan_destroy(plan);
}

/* Hopper's kernel, whose launch ahead rotates keys in blocks of some heads. */
TEST(large, more_heads_of_k_than_blocks) {
    static fixture f;
    fixture_open(&f, 0, FIXTURE_PLAIN);
    parts m = {.device = f.device};
    void **const list[] = {&m.q, &m.out[0], &m.out[1], &m.q_out, &m.k, &m.v, &m.k_out};
    char *slab = malloc(2 * SLAB_BYTES), *other = slab + SLAB_BYTES;
    CHECK(slab != NULL, "no memory");
    for (int i = 0; i < 7; i++)
        if (rope_device_alloc(f.device, (size_t)K_BYTES * (i < 4 ? 2 : 1), list[i]) != ROPE_OK)
            SKIP("%s", rope_last_error());
    const shape q = {NULL, ROPE_BF16, (int64_t)K_BYTES / (DIM * 2) * 2, 1},
                k = {NULL, ROPE_BF16, (int64_t)K_BYTES / (DIM * 2), 1};
    fill(f.device, m.q, slab, &q);
    fill(f.device, m.k, slab, &k);
    fill(f.device, m.v, slab, &k);
    attend(&m, 0);
    rotate_heads(&m);
    attend(&m, 1);
    for (size_t at = 0; at < (size_t)K_BYTES * 2; at += SLAB_BYTES) {
        const size_t rest = (size_t)K_BYTES * 2 - at, part = rest < SLAB_BYTES ? rest : SLAB_BYTES;
        CHECK_STATUS(ROPE_OK, rope_device_copy_out(f.device, slab, (char *)m.out[0] + at, part));
        CHECK_STATUS(ROPE_OK, rope_device_copy_out(f.device, other, (char *)m.out[1] + at, part));
        CHECK(memcmp(slab, other, part) == 0, "bytes from %zu on differ", at);
    }
    for (int i = 0; i < 7; i++)
        CHECK_STATUS(ROPE_OK, rope_device_free(f.device, *list[i]));
    free(slab);
    fixture_close(&f);
}
