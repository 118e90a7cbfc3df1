/* can_run BACKEND [LEVEL]: 0 if the backend has a device here, with kernels of that instruction
 * set; 77 (CTest: skip) if not, or 1 where ROPE_TEST_REQUIRE names the backend. 77 too where the
 * level is the highest, which calls take without naming it, whatever ROPE_CPU_ISA is. */
#define _GNU_SOURCE
#include "tests/support/required.h"

#include <ropekit/rope.h>

static int skip(const char *backend, const char *why) {
    printf("skipped: %s\n", why);
    return test_requires(backend) ? 1 : 77;
}

/* Its place among the levels, the highest first; -1: there is none. */
static int32_t level_of(const rope_device *device, const char *wanted) {
    const char *name;
    for (int32_t i = 0; (name = rope_device_kernel(device, "rope", i)); i++)
        if (strcmp(name, wanted) == 0)
            return i;
    return -1;
}

int main(int argc, char **argv) {
    rope_device *device = NULL;
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: can_run BACKEND [LEVEL]\n");
        return 2;
    }
    unsetenv("ROPE_CPU_ISA"); /* which would be the first of the levels */
    if (rope_device_open(argv[1], 0, &device) != ROPE_OK)
        return skip(argv[1], rope_last_error());
    const int32_t level = argc == 3 ? level_of(device, argv[2]) : 1;
    rope_device_close(device);
    if (level < 0)
        return skip(argv[1], "this machine has no such kernel");
    if (level > 0)
        return 0;
    printf("skipped: suite.cpu runs the highest level\n");
    return 77;
}
