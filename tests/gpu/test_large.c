/* Tensors of more than 2^31 elements, in place, of one head, and of so many that blocks come out
 * even: the first token, the last, and those on either side of element 2^31 are compared with the
 * CPU's. */
#include "tests/gpu/fixture.h"

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
