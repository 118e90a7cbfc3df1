/* No kernel reads or writes a byte beside what a call describes: every buffer ends at a page that
 * faults, then begins at one. */
#include "tests/rope/cases.h"
#include "tests/support/device.h"
#include "tests/support/guard.h"
#include "tests/support/harness.h"

#include <stdlib.h>

enum { CASES = 400 };

static void check_guarded(const test_case *c, const char *kernel, const unsigned char *expected) {
    rope_desc desc = c->desc;
    rope_plan *plan = NULL;
    case_describe(c, kernel);
    guard_name_fault();
    device_choose(&desc);
    desc.kernel = kernel;
    rope_status status = rope_plan_create(&desc, &plan);
    if (status == ROPE_ERROR_UNSUPPORTED)
        return;
    CHECK_STATUS(ROPE_OK, status);
    for (guard_side side = GUARD_AFTER; side <= guard_last(); side++) {
        guard_case g;
        rope_args args = c->args;
        const void **list[CASE_POINTERS];
        CHECK(guard_make(&g, c, side), "no memory between guard pages");
        case_pointers(&args, list);
        guard_move(&g, c, list, CASE_POINTERS);
        CHECK_STATUS(ROPE_OK, rope_apply(plan, &args));
        CHECK_STATUS(ROPE_OK, rope_device_synchronize(device_open()));
        guard_check(&g, c, expected);
        guard_free(&g, c);
    }
    rope_plan_destroy(plan);
}

TEST(guard, every_buffer_between_pages_that_fault) {
    static const case_wish wish = {.in_range = 1, .tame = 1};
    device_not_provided("its kernels are not ours");
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
