/* rope_decode, composed, gives the bits of rope_append and then rope_attention, in one call and
 * from a graph. Where it fails it writes nothing. */
#include "tests/decode/compare.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <stdlib.h>
#include <string.h>

enum { CASES = 120 };

/* The arena after one call of a kernel, or NULL where it declines. */
static unsigned char *arena_of_decode(const decode_case *c, const char *kernel, int32_t graph) {
    unsigned char *result = malloc(c->append.base.bytes);
    const rope_status status = decode_run(c, kernel, graph, result);
    if (status == ROPE_ERROR_UNSUPPORTED && kernel) {
        free(result);
        return NULL;
    }
    CHECK_STATUS(ROPE_OK, status);
    return result;
}

static unsigned char *arena_of_both(const decode_case *c, const char *kernel) {
    unsigned char *result = malloc(c->append.base.bytes);
    CHECK_STATUS(ROPE_OK, decode_run_both(c, kernel, result));
    return result;
}

static void check_same(const decode_case *c, unsigned char *expected, unsigned char *result,
                       const char *what) {
    size_t at = 0;
    while (result && at < c->append.base.bytes && result[at] == expected[at])
        at++;
    CHECK(!result || at == c->append.base.bytes, "%s: byte %zu of the arena differs", what, at);
    free(expected);
    free(result);
}

TEST(decode_bits, append_then_attention) {
    decode_required();
    device_not_provided("it may decline a call");
    for (int64_t i = -1; test_next(&i, CASES);) {
        decode_case c;
        const char *kernel;
        decode_make(&c, test_seed(), i, 0);
        decode_describe(&c, "composed");
        check_same(&c, arena_of_both(&c, NULL), arena_of_decode(&c, "composed", 0), "composed");
        for (int32_t k = 0; (kernel = device_kernel_of("attention", k)); k++) {
            decode_describe(&c, kernel);
            unsigned char *result = arena_of_decode(&c, kernel, 0);
            if (result)
                check_same(&c, arena_of_both(&c, kernel), result, "of a kernel of attention");
        }
        decode_free(&c);
    }
}

/* Attention reads those of the caller. */
TEST(decode_bits, queries_without_a_step_need_no_memory) {
    const rope_attention_bounds bounds = {sizeof bounds, 2, 3, 64, 0, 4, 2};
    rope_decode_desc desc = ROPE_DECODE_DESC_INIT;
    rope_append_desc append;
    rope_attention_desc attention;
    size_t bytes[3];
    decode_required();
    desc.append.rope.dtype = ROPE_F32, desc.append.rope.head_dim = 64;
    desc.append.cache = ROPE_CACHE_SEQUENCE, desc.append.page_size = 64;
    for (int i = 0; i < 3; i++) { /* rotated, as they are, attention alone */
        rope_plan *plan;
        desc.append.rotation = i ? ROPE_ROTATION_OFF : ROPE_ROTATION_ON;
        desc.append.rope.kernel = i == 2 ? NULL : "composed";
        device_choose(&desc.append.rope);
        decode_split_desc(&desc, &append, &attention);
        attention.rope.backend = desc.append.rope.backend;
        attention.rope.device = desc.append.rope.device;
        CHECK_STATUS(ROPE_OK, i == 2 ? rope_attention_plan_create(&attention, &plan)
                                     : rope_decode_plan_create(&desc, &plan));
        CHECK_STATUS(ROPE_OK, i == 2 ? rope_attention_workspace(plan, &bounds, &bytes[i])
                                     : rope_decode_workspace(plan, &bounds, &bytes[i]));
        rope_plan_destroy(plan);
    }
    CHECK(bytes[0] == bytes[2] + 2 * 3 * 4 * 64 * sizeof(float), "rotated: %zu of %zu", bytes[0],
          bytes[2]);
    CHECK(bytes[1] == bytes[2], "as they are: %zu of %zu", bytes[1], bytes[2]);
}

TEST(decode_bits, from_a_graph) {
    decode_required();
    for (int64_t i = -1; test_next(&i, CASES / 4);) {
        decode_case c;
        decode_make(&c, test_seed() + 1, i, 0);
        decode_describe(&c, NULL);
        check_same(&c, arena_of_decode(&c, NULL, 0), arena_of_decode(&c, NULL, 1), "replayed");
        decode_free(&c);
    }
}

/* What the host sees wrong in memory: each operation finds some of it. */
TEST(decode_bits, a_call_that_fails_writes_nothing) {
    int64_t failed = 0;
    decode_required();
    if (!device_is_host())
        SKIP("a device leaves out what fails");
    for (int64_t i = -1; test_next(&i, 4 * CASES);) {
        decode_case c;
        decode_make(&c, test_seed() + 2, i, 1);
        decode_describe(&c, NULL);
        unsigned char *result = malloc(c.append.base.bytes);
        if (decode_run(&c, NULL, 0, result) != ROPE_OK) {
            CHECK(memcmp(result, c.append.base.arena, c.append.base.bytes) == 0,
                  "something was written: %s", rope_last_error());
            failed++;
        }
        free(result);
        decode_free(&c);
    }
    CHECK(failed > 0 || test_scaled(4 * CASES) < 100, "no case failed");
}
