/* Every generated case on every kernel: values against the oracle, and no other byte written. */
#include "tests/compare.h"
#include "tests/device.h"
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CASES = 2000, REFERENCE_CASES = 400 };

static void describe(const test_case *c, const char *kernel) {
    char text[900], line[1000];
    case_print(c, text, sizeof text);
    snprintf(line, sizeof line, "kernel=%s %s", kernel ? kernel : "(chosen)", text);
    test_describe(line);
}

/* A token out of range fails the call before it writes; a backend that does not wait for its work
 * leaves the token out and raises the flag. */
static void check_out_of_range(const test_case *c, oracle *o, rope_status status,
                               const unsigned char *result) {
    if (device_is_host()) {
        CHECK_STATUS(ROPE_ERROR_POSITION_RANGE, status);
        CHECK(memcmp(c->arena, result, c->bytes) == 0, "a call that failed wrote something");
        return;
    }
    int32_t flag = 1;
    if (c->args.position_flag)
        memcpy(&flag, result + ((unsigned char *)c->args.position_flag - c->arena), sizeof flag);
    CHECK_STATUS(ROPE_OK, status);
    CHECK(flag == 1, "position_flag is %d, not 1", flag);
    const char *wrong = compare_values(o, c, &c->desc, &c->args, result);
    CHECK(!wrong, "%s", wrong);
}

static void check_case(const test_case *c, oracle *o, const char *kernel, unsigned char *result) {
    describe(c, kernel);
    rope_status status = device_run(c, &c->desc, &c->args, 1, kernel, result);
    if (status == ROPE_ERROR_UNSUPPORTED && kernel && strcmp(kernel, "scalar") != 0)
        return;
    if (compare_out_of_range(o, &c->args)) {
        check_out_of_range(c, o, status, result);
        return;
    }
    CHECK_STATUS(ROPE_OK, status);
    const char *wrong = compare_values(o, c, &c->desc, &c->args, result);
    CHECK(!wrong, "%s", wrong);
    wrong = compare_untouched(c, &c->desc, &c->args, result);
    CHECK(!wrong, "%s", wrong);
}

/* The first kernel is checked element by element, the others in test_bitwise. */
TEST(generated, chosen_kernel) {
    for (int64_t i = -1; test_next(&i, CASES);) {
        test_case c;
        case_make(&c, test_seed(), i, NULL);
        describe(&c, NULL);
        oracle *o = compare_oracle(&c.desc);
        unsigned char *result = malloc(c.bytes);
        check_case(&c, o, NULL, result);
        free(result);
        oracle_destroy(o);
        case_free(&c);
    }
}

TEST(generated, reference_kernel) {
    if (!device_is_host())
        SKIP("the reference kernel is the CPU's");
    for (int64_t i = -1; test_next(&i, REFERENCE_CASES);) {
        test_case c;
        case_make(&c, test_seed() + 1, i, NULL);
        describe(&c, "reference");
        oracle *o = compare_oracle(&c.desc);
        unsigned char *result = malloc(c.bytes);
        check_case(&c, o, "reference", result);
        free(result);
        oracle_destroy(o);
        case_free(&c);
    }
}
