/* A tensor of more than 2^31 elements, in place: its first token, its last, and those on either
 * side of element 2^31 are compared with the CPU's. */
#include "tests/gpu/fixture.h"

#include <stdlib.h>
#include <string.h>

enum { DIM = 128, SLAB = 1 << 15 };
static const int64_t tokens = (1ll << 24) + 5;

/* Exact angles take the plain kernel, those in fp32 the vector kernel. */
static rope_plan *plan_of(const char *backend, const char *kernel, int32_t angle_mode) {
    rope_desc desc = ROPE_DESC_INIT;
    desc.backend = backend;
    desc.kernel = kernel;
    desc.angle_mode = angle_mode;
    desc.dtype = ROPE_BF16;
    desc.head_dim = DIM;
    rope_plan *plan = NULL;
    CHECK_STATUS(ROPE_OK, rope_plan_create(&desc, &plan));
    return plan;
}

static void rotate_on_cpu(uint16_t *token, int64_t position, int32_t angle_mode) {
    rope_plan *plan = plan_of("cpu", NULL, angle_mode);
    rope_args args = ROPE_ARGS_INIT;
    args.batch = args.tokens = 1;
    args.position_offset = position;
    args.q = (rope_tensor){.in = token, .out = token, .heads = 1};
    CHECK_STATUS(ROPE_OK, rope_apply(plan, &args));
    rope_plan_destroy(plan);
}

static void fill(rope_device *device, char *memory, uint16_t *slab) {
    for (int64_t i = 0; i < (int64_t)SLAB * DIM; i++)
        slab[i] = (uint16_t)(0x3f00 + i * 2654435761u % 0x200);
    for (int64_t t = 0; t < tokens; t += SLAB) {
        int64_t count = tokens - t < SLAB ? tokens - t : SLAB;
        CHECK_STATUS(ROPE_OK, rope_device_copy_in(device, memory + t * DIM * 2, slab,
                                                  (size_t)count * DIM * 2));
    }
}

static void check_tokens(rope_device *device, const char *memory, const uint16_t *slab,
                         const char *kernel, int32_t angle_mode) {
    const int64_t looked_at[] = {0, 1, (1ll << 24) - 1, 1ll << 24, tokens - 1};
    for (size_t i = 0; i < sizeof looked_at / sizeof looked_at[0]; i++) {
        uint16_t expected[DIM], found[DIM];
        memcpy(expected, slab + looked_at[i] % SLAB * DIM, sizeof expected);
        rotate_on_cpu(expected, looked_at[i], angle_mode);
        CHECK_STATUS(ROPE_OK, rope_device_copy_out(device, found, memory + looked_at[i] * DIM * 2,
                                                   sizeof found));
        CHECK(memcmp(found, expected, sizeof found) == 0, "%s, angle mode %d: token %lld", kernel,
              angle_mode, (long long)looked_at[i]);
    }
}

static void rotate_and_check(rope_device *device, char *memory, const uint16_t *slab,
                             const char *kernel, int32_t angle_mode) {
    rope_plan *plan = plan_of(GPU_BACKEND_NAME, kernel, angle_mode);
    rope_args args = ROPE_ARGS_INIT;
    args.batch = 1;
    args.tokens = tokens;
    args.q = (rope_tensor){.in = memory, .out = memory, .heads = 1};
    CHECK_STATUS(ROPE_OK, rope_apply(plan, &args));
    CHECK_STATUS(ROPE_OK, rope_device_synchronize(device));
    check_tokens(device, memory, slab, kernel, angle_mode);
    rope_plan_destroy(plan);
}

TEST(large, more_than_31_bits_of_elements) {
    static fixture f;
    fixture_open(&f, 0, FIXTURE_PLAIN);
    void *memory = NULL;
    uint16_t *slab = malloc((size_t)SLAB * DIM * 2);
    CHECK(slab != NULL, "no memory");
    if (rope_device_alloc(f.device, (size_t)tokens * DIM * 2, &memory) != ROPE_OK)
        SKIP("%s", rope_last_error());
    static const char *const kernels[] = {"vec-narrow", "vec-wide", "vec-alone", "generic"};
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++) {
        for (int32_t mode = ROPE_ANGLE_EXACT; mode <= ROPE_ANGLE_F32; mode++) {
            fill(f.device, memory, slab);
            rotate_and_check(f.device, memory, slab, kernels[i], mode);
        }
    }
    CHECK_STATUS(ROPE_OK, rope_device_free(f.device, memory));
    free(slab);
    fixture_close(&f);
}
