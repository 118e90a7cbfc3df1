/* The device under test gives the bits of the CPU, whichever of its kernels runs. */
#include "tests/compare.h"
#include "tests/device.h"
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CASES = 1000 };

/* What the CPU makes of a case. */
static void *cpu_outputs(const test_case *c, size_t *bytes) {
    rope_desc desc = c->desc;
    rope_args args = c->args;
    rope_device *cpu;
    rope_plan *plan;
    void *memory;
    desc.backend = "cpu";
    CHECK_STATUS(ROPE_OK, rope_device_open("cpu", 0, &cpu));
    CHECK_STATUS(ROPE_OK, rope_device_alloc(cpu, c->bytes, &memory));
    memcpy(memory, c->arena, c->bytes);
    case_relocate(&args, c->arena, memory);
    CHECK_STATUS(ROPE_OK, rope_plan_create(&desc, &plan));
    CHECK_STATUS(ROPE_OK, rope_apply(plan, &args));
    void *dense = compare_gather(c, &c->desc, &c->args, memory, bytes);
    rope_plan_destroy(plan);
    rope_device_free(cpu, memory);
    rope_device_close(cpu);
    return dense;
}

static void check_kernel(const test_case *c, const char *kernel, const void *expected,
                         size_t bytes) {
    char text[900], line[1000];
    case_print(c, text, sizeof text);
    snprintf(line, sizeof line, "kernel=%s %s", kernel ? kernel : "(chosen)", text);
    test_describe(line);
    unsigned char *result = malloc(c->bytes);
    rope_status status = device_run(c, &c->desc, &c->args, 1, kernel, result);
    if (!kernel || status != ROPE_ERROR_UNSUPPORTED) {
        size_t got_bytes;
        CHECK_STATUS(ROPE_OK, status);
        void *got = compare_gather(c, &c->desc, &c->args, result, &got_bytes);
        CHECK(bytes == got_bytes && memcmp(expected, got, bytes) == 0, "other bits than the CPU's");
        free(got);
    }
    free(result);
}

TEST(backends, bits_of_the_cpu) {
    static const case_wish wish = {.in_range = 1};
    for (int64_t i = -1; test_next(&i, CASES);) {
        test_case c;
        size_t bytes;
        case_make(&c, test_seed(), i, &wish);
        void *expected = cpu_outputs(&c, &bytes);
        check_kernel(&c, NULL, expected, bytes);
        const char *kernel;
        for (int k = 0; (kernel = device_kernel(k)); k++)
            check_kernel(&c, kernel, expected, bytes);
        free(expected);
        case_free(&c);
    }
}
