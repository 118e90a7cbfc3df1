/* Geometry by size; docs/gpu-kernels.md says how each number is measured. */
#ifndef ROPEKIT_GPU_PLATFORM_TUNING_CUDA_H
#define ROPEKIT_GPU_PLATFORM_TUNING_CUDA_H

/* Up to so many pairs a multiprocessor, a thread takes two pairs of two heads, or of four. */
#define GPU_NARROW_PAIRS(SIZE) ((SIZE) == 4 ? 2000 : 1500)
#define GPU_DEEP_PAIRS 12000
/* From so many on, window kernels without ids read a row of the caller's tables before q and k. */
#define GPU_TABLE_AHEAD_PAIRS 20000
/* Threads of a block of a geometry; SIZE is an element's. A device starts about one block a
 * nanosecond, and launches that start early wait for room in whole blocks. */
#define GPU_THREADS(GEOMETRY, SIZE, EARLY)                                                         \
    (((GEOMETRY) == GPU_WIDE && ((SIZE) == 4 || (EARLY))) ||                                       \
             ((GEOMETRY) == GPU_SINGLE_HEAD && (SIZE) == 4)                                        \
         ? 256                                                                                     \
         : 128)
#define GPU_GENERIC_THREADS 128
/* Lanes of a head in the generic kernel are a multiple: a warp takes one head. */
#define GPU_GENERIC_LANES 32
/* Blocks a multiprocessor from which the vector kernel gives a thread several tokens. */
#define GPU_BLOCKS_ENOUGH 4
/* Blocks of a multiprocessor for which kernels are given registers: 1536 threads, or what sm_75
 * has. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define GPU_BLOCKS_MOST 4
#else
#define GPU_BLOCKS_MOST 6
#endif
#define GPU_PLAIN_BLOCKS(SIZE, GEOMETRY)                                                           \
    ((SIZE) == 4 || (GEOMETRY) == GPU_SINGLE_HEAD ? GPU_BLOCKS_MOST : 1)
#define GPU_WINDOW_BLOCKS GPU_BLOCKS_MOST
#define GPU_VECTOR_BLOCKS 2
#define GPU_APPEND_THREADS 128
/* 72 registers a thread; others than sm_90 would spill, or were not measured. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
#define GPU_APPEND_BLOCKS 7
#else
#define GPU_APPEND_BLOCKS 6
#endif
#define GPU_APPEND_F32_BLOCKS 5
/* Heads of a thread, of a call that has so many threads a multiprocessor where each takes one. */
#define GPU_APPEND_HEADS_FOR(each) ((each) < 2048 ? 1 : 2)
/* Threads of a block of append's mla, and what it is given registers for: 48 a thread, or 64
 * where it would spill. */
#define GPU_MLA_THREADS 128
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ < 800 || __CUDA_ARCH__ >= 1000)
#define GPU_MLA_BLOCKS 8
#else
#define GPU_MLA_BLOCKS 10
#endif
/* Blocks a multiprocessor below which threads of append's rerotate have fewer heads. */
#define GPU_APPEND_BLOCKS_ENOUGH 8
/* Heads that a thread of it loads before it stores one, of elements of SIZE bytes: fewer where 8
 * bits are converted by many instructions. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
#define GPU_REROTATE_HEADS(SIZE) ((SIZE) == 1 ? 2 : 4)
#else
#define GPU_REROTATE_HEADS(SIZE) 4
#endif
/* Whether a plain kernel loads before it reads the id: where a token has several heads, their bytes
 * take longer than its angles. */
#define GPU_LOADS_FIRST(GEOMETRY) ((GEOMETRY) == GPU_WIDE)
/* Plain kernels that have the instructions of an early start even where they are not launched to.
 * The one that lets the next launch start costs every block some time, a tenth of a small call;
 * wide kernels are given a better order of loads around it. */
#define GPU_ALWAYS_EARLY(GEOMETRY) ((GEOMETRY) == GPU_WIDE)
/* Whether a launch that starts early lets the next one start once its ids are there, not as soon as
 * its loads are under way: by then the blocks of a larger one have found their places. */
#define GPU_LETS_LATE(GEOMETRY) ((GEOMETRY) == GPU_WIDE)
/* Threads of a block that take units of one token, and of a whole block; the rest take further
 * tokens. */
#define GPU_UNITS_THREADS 128
#define GPU_WHOLE_THREADS(GEOMETRY, SIZE) ((GEOMETRY) == GPU_WIDE && (SIZE) == 2 ? 32 : 128)
/* Rows of a block of attention by tiles, tiles of keys that are copied behind its back, and the
 * most elements of a head. */
#define GPU_TILE_ROWS 128
#define GPU_TILE_AHEAD 1
#define GPU_TILE_DIM 256
/* Values of the widest heads that attention by fused operations reads at once. */
#define GPU_GENERIC_AT_ONCE 4
/* Whether it asks a tree about rows and keys in a loop: code for each takes fewer registers. */
#define GPU_GENERIC_TREE_LOOP false
/* Kernels of tiles and of splits are given registers for so many, as others above. */
#define GPU_TILE_BLOCKS 2
#define GPU_SPLIT_BLOCKS 3
/* The generic kernel of attention's backward: what it is given registers for, vectors that a thread
 * loads at a time. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000 /* else f32's of keys spills on sm_120 */
#define GPU_BACKWARD_BLOCKS(DIM) ((DIM) > 64 ? 2 : 3)
#else
#define GPU_BACKWARD_BLOCKS(DIM) ((DIM) > 128 ? 2 : 3)
#endif
#define GPU_BACKWARD_LOADS 8

#endif
