/* Geometry by size; docs/cuda.md says how each number is measured. */
#ifndef ROPEKIT_CUDA_GPU_TUNING_H
#define ROPEKIT_CUDA_GPU_TUNING_H

/* Up to so many pairs a multiprocessor, a thread takes two pairs. */
#define GPU_NARROW_PAIRS 2048
/* From so many bytes read and written a thread takes two heads of f32, and leaves out streaming
 * hints. Two heads of 16 bits always: their angles cost more beside their bytes. */
#define GPU_TWO_HEADS_BYTES (128ll << 20)
/* Threads of a block. */
#define GPU_NARROW_THREADS 128
#define GPU_WIDE_THREADS 256
#define GPU_GENERIC_THREADS 128
#define GPU_TRAFFIC_THREADS 256

#endif
