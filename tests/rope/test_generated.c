/* Generated cases on every kernel: values against the oracle, and no other byte written. */
#include "tests/rope/compare.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <stdlib.h>
#include <string.h>

enum { CASES = 1000, REFERENCE_CASES = 400 };

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

/* Values of a call that succeeds: those of `expected` (compare_gather), or with NULL the oracle's.
 */
static void check_values(const test_case *c, oracle *o, const void *expected,
                         const unsigned char *result) {
    const char *wrong = expected ? NULL : compare_values(o, c, &c->desc, &c->args, result);
    if (expected) {
        size_t bytes;
        void *got = compare_gather(c, &c->desc, &c->args, result, &bytes);
        if (memcmp(expected, got, bytes) != 0)
            wrong = "other bits than the chosen kernel's";
        free(got);
    }
    CHECK(!wrong, "%s", wrong);
    wrong = compare_untouched(c, &c->desc, &c->args, result);
    CHECK(!wrong, "%s", wrong);
}

static void check_case(const test_case *c, oracle *o, const char *kernel, const void *expected,
                       unsigned char *result) {
    case_describe(c, kernel);
    rope_status status = device_run(c, &c->desc, &c->args, 1, kernel, result);
    if (status == ROPE_ERROR_UNSUPPORTED && kernel && strcmp(kernel, "scalar") != 0)
        return;
    if (compare_out_of_range(o, &c->args)) {
        check_out_of_range(c, o, status, result);
        return;
    }
    CHECK_STATUS(ROPE_OK, status);
    check_values(c, o, expected, result);
}

static void check_every_kernel(const test_case *c, oracle *o, unsigned char *result) {
    size_t bytes;
    const char *kernel;
    check_case(c, o, NULL, NULL, result);
    void *expected = compare_gather(c, &c->desc, &c->args, result, &bytes);
    for (int k = 0; device_is_host() && (kernel = device_kernel(k)); k++)
        check_case(c, o, kernel, expected, result);
    free(expected);
}

static void check_reference(const test_case *c, oracle *o, unsigned char *result) {
    check_case(c, o, "reference", NULL, result);
}

typedef void check(const test_case *c, oracle *o, unsigned char *result);

static void for_each_case(uint64_t seed, int64_t cases, check *checks) {
    for (int64_t i = -1; test_next(&i, cases);) {
        test_case c;
        case_make(&c, seed, i, NULL);
        case_describe(&c, NULL);
        oracle *o = compare_oracle(&c.desc);
        unsigned char *result = malloc(c.bytes);
        checks(&c, o, result);
        free(result);
        oracle_destroy(o);
        case_free(&c);
    }
}

/* The chosen kernel is checked element by element, every other of the CPU against its bits;
 * backends/bits_of_the_cpu has those of a GPU. */
TEST(generated, every_kernel) {
    for_each_case(test_seed(), CASES, check_every_kernel);
}

TEST(generated, reference_kernel) {
    if (!device_is_host())
        SKIP("the reference kernel is the CPU's");
    for_each_case(test_seed() + 1, REFERENCE_CASES, check_reference);
}
