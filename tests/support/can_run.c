/* can_run BACKEND [KERNEL]: 0 if the backend has a device here, with kernels of that name; 77
 * (CTest: skip) if not, or 1 where ROPE_TEST_REQUIRE names the backend. */
#include "tests/support/required.h"

#include <ropekit/rope.h>

static int skip(const char *backend, const char *why) {
    printf("skipped: %s\n", why);
    return test_requires(backend) ? 1 : 77;
}

static int has_kernel(const rope_device *device, const char *wanted) {
    const char *name;
    for (int32_t i = 0; (name = rope_device_kernel(device, "rope", i)); i++)
        if (strcmp(name, wanted) == 0)
            return 1;
    return 0;
}

int main(int argc, char **argv) {
    rope_device *device = NULL;
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: can_run BACKEND [KERNEL]\n");
        return 2;
    }
    if (rope_device_open(argv[1], 0, &device) != ROPE_OK)
        return skip(argv[1], rope_last_error());
    int found = argc == 2 || has_kernel(device, argv[2]);
    rope_device_close(device);
    return found ? 0 : skip(argv[1], "this machine has no such kernel");
}
