/* can_run BACKEND [LEVEL]: 0 if the backend has a device here, with kernels of that instruction set
 * below its highest, which is chosen without being named; 77 (CTest: skip) if not, or 1 where
 * ROPE_TEST_REQUIRE names a backend without a device. */
#include "tests/support/required.h"

#include <ropekit/rope.h>

/* Kernels are listed from the highest level down. */
static int is_lower(const rope_device *device, const char *level) {
    const char *name;
    for (int32_t i = 1; (name = rope_device_kernel(device, "rope", i)); i++)
        if (strcmp(name, level) == 0)
            return 1;
    return 0;
}

int main(int argc, char **argv) {
    rope_device *device = NULL;
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: can_run BACKEND [LEVEL]\n");
        return 2;
    }
    if (rope_device_open(argv[1], 0, &device) != ROPE_OK) {
        printf("skipped: %s\n", rope_last_error());
        return test_requires(argv[1]) ? 1 : 77;
    }
    int runs = argc == 2 || is_lower(device, argv[2]);
    rope_device_close(device);
    if (runs)
        return 0;
    printf("skipped: this machine lacks %s, or suite.cpu has it\n", argv[2]);
    return 77;
}
