/* No kernel reads or writes a byte beside what a call describes: every buffer ends at a page that
 * faults, then begins at one. */
#include "tests/device.h"
#include "tests/guard.h"
#include "tests/harness.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CASES = 400 };

#ifndef ROPE_TEST_PLAIN
static const char *fault_text = "";

/* A fault ends the process, so what repeats it is said first. */
static void on_fault(int number) {
    if (write(STDERR_FILENO, fault_text, strlen(fault_text)) < 0)
        _exit(2);
    signal(number, SIG_DFL);
    raise(number);
}
#endif

static void check_pieces(const guard_case *g, const test_case *c, const unsigned char *expected) {
    for (int32_t i = 0; i < c->pieces; i++)
        CHECK(memcmp(g->block[i].at, expected + c->piece[i].offset, c->piece[i].bytes) == 0,
              "piece %d differs from that of the same call elsewhere", i);
}

static void check_guarded(const test_case *c, const char *kernel, const unsigned char *expected) {
    rope_desc desc = c->desc;
    rope_plan *plan = NULL;
    case_describe(c, kernel);
#ifndef ROPE_TEST_PLAIN
    fault_text = test_failure("no fault", "memory outside a buffer was touched");
#endif
    device_choose(&desc);
    desc.kernel = kernel;
    rope_status status = rope_plan_create(&desc, &plan);
    if (status == ROPE_ERROR_UNSUPPORTED)
        return;
    CHECK_STATUS(ROPE_OK, status);
    for (guard_side side = GUARD_AFTER; side <= GUARD_BEFORE; side++) {
        guard_case g;
        CHECK(guard_make(&g, c, side), "no memory between guard pages");
        CHECK_STATUS(ROPE_OK, rope_apply(plan, &g.args));
        CHECK_STATUS(ROPE_OK, rope_device_synchronize(device_open()));
        check_pieces(&g, c, expected);
        guard_free(&g, c);
    }
    rope_plan_destroy(plan);
}

TEST(guard, every_buffer_between_pages_that_fault) {
    static const case_wish wish = {.in_range = 1, .tame = 1};
    if (!device_is_host() && !test_number("ROPE_TEST_EMULATED", 0))
        SKIP("guard pages are host memory");
#ifndef ROPE_TEST_PLAIN
    signal(SIGSEGV, on_fault);
    signal(SIGBUS, on_fault);
#endif
    for (int64_t i = -1; test_next(&i, CASES);) {
        test_case c;
        const char *kernel;
        case_make(&c, test_seed() + 2, i, &wish);
        unsigned char *expected = malloc(c.bytes);
        kernel = device_is_host() ? "scalar" : "generic";
        CHECK_STATUS(ROPE_OK, device_run(&c, &c.desc, &c.args, 1, kernel, expected));
        for (int k = 0; (kernel = device_kernel(k)); k++)
            check_guarded(&c, kernel, expected);
        free(expected);
        case_free(&c);
    }
}
