/* Calls of rope_append_backward with tokens that fail: a backend that sees them writes nothing,
 * another leaves them out and raises the flag. */
#include "tests/append_backward/cases.h"
#include "tests/oracle/oracle.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <stdlib.h>
#include <string.h>

enum { CASES = 2000 };

static unsigned char *failing_tokens(const gradient_case *c, int64_t *count) {
    const rope_args *a = &c->forward.args.rope;
    unsigned char *fails = calloc((size_t)(a->batch * a->tokens) + 1, 1);
    oracle *o =
        c->forward.desc.rotation == ROPE_ROTATION_OFF ? NULL : oracle_create(&c->forward.desc.rope);
    *count = 0;
    for (int64_t i = 0; o && i < a->batch * a->tokens; i++) {
        fails[i] = oracle_locate(o, a, i / a->tokens, i % a->tokens).status == ORACLE_FAILS;
        *count += fails[i];
    }
    oracle_destroy(o);
    return fails;
}

static void check_failure(const gradient_case *c, const unsigned char *fails, const char *kernel) {
    const test_case *base = &c->forward.base;
    unsigned char *result = malloc(base->bytes);
    append_describe(&c->forward, kernel);
    const rope_status status = gradient_run(c, kernel, result);
    if (device_is_host()) {
        CHECK_STATUS(ROPE_ERROR_POSITION_RANGE, status);
        CHECK(memcmp(base->arena, result, base->bytes) == 0, "a call that failed wrote something");
    } else {
        CHECK_STATUS(ROPE_OK, status);
        device_check_flag(base, &c->forward.args.rope, result);
        const char *wrong = gradient_untouched(c, fails, result);
        CHECK(!wrong, "%s", wrong);
    }
    free(result);
}

TEST(append_backward, tokens_that_fail) {
    int64_t seen = 0;
    if (!device_kernel_of("append_backward", 0))
        SKIP("%s has no kernel for append_backward", device_backend());
    for (int64_t i = -1; test_next(&i, CASES);) {
        gradient_case c;
        int64_t failing;
        gradient_make(&c, test_seed() + 2, i, &(append_wish){.rotation = ROPE_ROTATION_ON});
        unsigned char *fails = failing_tokens(&c, &failing);
        if (failing && (c.args.q.in || c.args.k.in || c.args.v.in)) {
            check_failure(&c, fails, NULL);
            seen++;
        }
        free(fails);
        gradient_free(&c);
    }
    CHECK(seen > 0 || test_number("ROPE_TEST_CASES", 0), "no case had a token that fails");
}
