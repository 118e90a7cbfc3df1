/* A plan of one device leaves the others as they were: CUDA makes a context, of hundreds of
 * megabytes, on a device that is touched. */
#include "tests/gpu/fixture.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
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

/* A thread's work on device 1; 0 where all went well. */
static void *use(void *unused) {
    enum { BYTES = 64 * sizeof(float) };
    rope_desc desc = ROPE_DESC_INIT;
    desc.backend = "cuda";
    desc.dtype = ROPE_F32;
    desc.head_dim = 64;
    desc.device = 1;
    rope_plan *plan = NULL;
    rope_device *device = NULL;
    void *memory = NULL;
    rope_args args = ROPE_ARGS_INIT;
    args.batch = args.tokens = 1;
    (void)unused;
    int failed = rope_device_open("cuda", 1, &device) != ROPE_OK ||
                 rope_device_alloc(device, BYTES, &memory) != ROPE_OK ||
                 rope_plan_create(&desc, &plan) != ROPE_OK;
    args.q = (rope_tensor){.in = memory, .out = memory, .heads = 1};
    failed = failed || rope_apply(plan, &args) != ROPE_OK ||
             rope_device_synchronize(device) != ROPE_OK ||
             rope_device_free(device, memory) != ROPE_OK;
    if (failed)
        fprintf(stderr, "%s\n", rope_last_error());
    rope_plan_destroy(plan);
    rope_device_close(device);
    return failed ? "failed" : NULL;
}

static int use_by_threads(void) {
    pthread_t threads[4];
    void *outcome = NULL;
    int failed = 0;
    for (int i = 0; i < 4; i++)
        failed |= pthread_create(&threads[i], NULL, use, NULL);
    for (int i = 0; i < 4; i++)
        failed |= pthread_join(threads[i], &outcome) || outcome;
    return failed;
}

/* In a process of its own, where device 0 is the current one and was never used. Returns 0 where
 * it still is, and where device 1 works again behind a reset. */
static int use_device_1(void) {
    int current = -1;
    if (use_by_threads() || use(NULL))
        return 1;
    if (cudaGetDevice(&current) != cudaSuccess || current != 0)
        return 2;
    if (has_context(1) != 1)
        return 3;
    if (has_context(0) != 0)
        return 4;
    if (cudaSetDevice(1) != cudaSuccess || cudaDeviceReset() != cudaSuccess ||
        cudaSetDevice(0) != cudaSuccess)
        return 5;
    return use(NULL) ? 6 : 0;
}

__attribute__((constructor)) static void use_if_asked(void) {
    if (getenv("ROPE_TEST_CONTEXTS"))
        _exit(use_device_1());
}

TEST(contexts, current_device_that_was_never_used_stays_so) {
    static fixture f;
    fixture_open(&f, 0, FIXTURE_PLAIN);
    fixture_close(&f);
    fixture_require_two();
    int outcome = system("ROPE_TEST_CONTEXTS=1 /proc/$PPID/exe");
    CHECK(WIFEXITED(outcome) && WEXITSTATUS(outcome) == 0, "step %d of use_device_1() failed",
          outcome >> 8);
}
