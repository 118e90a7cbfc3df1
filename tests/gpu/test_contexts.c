/* A plan of one device leaves the others as they were: CUDA makes a context, of hundreds of
 * megabytes, on a device that is touched. */
#include "tests/gpu/fixture.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* 0 or 1; -1: the driver does not say. */
static int has_context(int device) {
    int (*state)(int device, unsigned *flags, int *active) = NULL;
    unsigned flags = 0;
    int active = -1;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library)
        *(void **)&state = dlsym(library, "cuDevicePrimaryCtxGetState");
    return state && state(device, &flags, &active) == 0 ? active : -1;
}

/* In a process of its own, where device 0 is the current one and was never used. Returns 0 where
 * it still is. */
static int use_device_1(void) {
    enum { BYTES = 64 * sizeof(float) };
    rope_desc desc = ROPE_DESC_INIT;
    desc.backend = "cuda";
    desc.dtype = ROPE_F32;
    desc.head_dim = 64;
    desc.device = 1;
    rope_plan *plan = NULL;
    rope_device *device = NULL;
    void *memory = NULL;
    int current = -1;
    if (rope_device_open("cuda", 1, &device) != ROPE_OK ||
        rope_device_alloc(device, BYTES, &memory) != ROPE_OK ||
        rope_plan_create(&desc, &plan) != ROPE_OK)
        return 1;
    rope_args args = ROPE_ARGS_INIT;
    args.batch = args.tokens = 1;
    args.q = (rope_tensor){.in = memory, .out = memory, .heads = 1};
    if (rope_apply(plan, &args) != ROPE_OK || rope_device_synchronize(device) != ROPE_OK)
        return 2;
    rope_plan_destroy(plan);
    if (rope_device_free(device, memory) != ROPE_OK)
        return 3;
    rope_device_close(device);
    if (cudaGetDevice(&current) != cudaSuccess || current != 0)
        return 4;
    return has_context(1) != 1 ? 5 : has_context(0) != 0 ? 6 : 0;
}

__attribute__((constructor)) static void use_if_asked(void) {
    if (getenv("ROPE_TEST_CONTEXTS"))
        _exit(use_device_1());
}

TEST(contexts, current_device_that_was_never_used_stays_so) {
    static fixture f;
    int count = 0;
    fixture_open(&f, 0, FIXTURE_PLAIN);
    fixture_close(&f);
    CHECK_GPU(gpuGetDeviceCount(&count));
    if (count < 2)
        SKIP("one device");
    int outcome = system("ROPE_TEST_CONTEXTS=1 /proc/$PPID/exe");
    CHECK(WIFEXITED(outcome) && WEXITSTATUS(outcome) == 0, "step %d of use_device_1() failed",
          outcome >> 8);
}
