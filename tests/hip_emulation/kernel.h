/* A kernel as the emulated device knows it: what HIP_KERNEL_NAME() makes of a function. */
#ifndef ROPEKIT_HIP_EMULATION_KERNEL_H
#define ROPEKIT_HIP_EMULATION_KERNEL_H

#include <hip/hip_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct emulated_kernel {
    const char *(*describe)(void); /* text that ends in the kernel's name and ']' */
    size_t bytes;                  /* of its arguments, packed as a struct of them */
    void (*pack)(void **arguments, void *packed);
    void (*run)(const void *packed); /* one thread */
    int32_t shared_most;             /* of dynamic shared memory, where it was set */
    int32_t is_loaded;
    int32_t is_load_reported, is_launch_reported;
} emulated_kernel;

typedef struct emulated_launch {
    emulated_kernel *kernel;
    dim3 grid, block;
    size_t shared_bytes;
    void *arguments; /* packed */
} emulated_launch;

enum { EMULATED_SHARED_BYTES = 64 << 10, EMULATED_BLOCK_THREADS = 1024, EMULATED_BLOCK_Z = 64 };

/* 32 or 64. */
int emulated_wave(void);

/* Runs every thread of a launch; hipErrorLaunchFailure where a barrier was not reached by all or
 * shared memory was overrun. */
hipError_t emulated_run(const emulated_launch *launch);

/* The packed arguments of the launch that runs. */
const void *emulated_arguments(void);

/* What device code calls: waits for the block, for 32 threads, or for the wave and gives each
 * lane's value. */
void emulated_block_barrier(void);
void emulated_warp_barrier(void);
const uint64_t *emulated_wave_exchange(uint64_t value);

#ifdef __cplusplus
}
#endif
#endif
