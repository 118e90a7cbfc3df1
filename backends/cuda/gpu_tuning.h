/* Geometry by size, as measured on an H100 (docs/cuda.md). */
#ifndef ROPEKIT_CUDA_GPU_TUNING_H
#define ROPEKIT_CUDA_GPU_TUNING_H

/* Up to so many pairs a multiprocessor, a thread takes two pairs. */
#define GPU_NARROW_PAIRS 2048
/* From so many bytes read and written, a thread takes two heads and leaves out streaming hints. */
#define GPU_TWO_HEADS_BYTES (512ll << 20)
/* Threads of a block. */
#define GPU_NARROW_THREADS 128
#define GPU_WIDE_THREADS 256
#define GPU_GENERIC_THREADS 128
#define GPU_TRAFFIC_THREADS 256

#endif
