/* cpu_isa NAME: 0 if the CPU backend has kernels of that name here, 77 (CTest: skip) if not. */
#include <ropekit/rope.h>

#include <stdio.h>
#include <string.h>

enum { SKIP = 77 };

int main(int argc, char **argv) {
    rope_device *device = NULL;
    if (argc != 2 || rope_device_open("cpu", 0, &device) != ROPE_OK) {
        fprintf(stderr, "usage: cpu_isa NAME; %s\n", rope_last_error());
        return 2;
    }
    const char *name = NULL;
    for (int32_t i = 0; (name = rope_device_kernel(device, ROPE_TIME_KERNEL, i)); ++i)
        if (strcmp(name, argv[1]) == 0)
            break;
    rope_device_close(device);
    if (!name)
        printf("skipped: this machine has no %s\n", argv[1]);
    return name ? 0 : SKIP;
}
