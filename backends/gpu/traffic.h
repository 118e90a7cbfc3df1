/* Kernels of (target, source, bytes), each with a number of bytes a thread. */
#ifndef ROPEKIT_GPU_TRAFFIC_H
#define ROPEKIT_GPU_TRAFFIC_H

#include <stdint.h>

enum { GPU_TRAFFIC_THREADS = 256 };

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gpu_traffic_kernel {
    const void *aligned; /* target, source and bytes are multiples of 16 */
    const void *bytewise;
    int32_t bytes; /* a thread of the aligned kernel */
} gpu_traffic_kernel;

extern const gpu_traffic_kernel gpu_copy_vec16;
extern const gpu_traffic_kernel gpu_copy_vec16x4;
extern const gpu_traffic_kernel gpu_update_vec16;

#ifdef __cplusplus
}
#endif

#endif
