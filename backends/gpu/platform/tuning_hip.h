/* Geometry by size, reasoned from data sheets: at a latency of 1 us two waves a SIMD, of 32 bytes a
 * thread, fill the memory of an MI300X. A multiprocessor, as HIP counts them, is a compute unit of
 * CDNA and a workgroup processor of RDNA: four SIMDs each. */
#ifndef ROPEKIT_GPU_PLATFORM_TUNING_HIP_H
#define ROPEKIT_GPU_PLATFORM_TUNING_HIP_H

/* Up to so many pairs a multiprocessor, a thread takes two pairs of two heads, or of four. */
#define GPU_NARROW_PAIRS(SIZE) ((void)(SIZE), 2048)
#define GPU_DEEP_PAIRS 8192
/* From so many on, window kernels without ids read a row of the caller's tables before q and k. */
#define GPU_TABLE_AHEAD_PAIRS 16384
/* Threads of a block of a geometry. */
#define GPU_THREADS(GEOMETRY, SIZE, EARLY)                                                         \
    ((void)(SIZE), (void)(EARLY), (GEOMETRY) == GPU_NARROW ? 64 : 256)
#define GPU_GENERIC_THREADS 128
/* Lanes of a head in the generic kernel are a multiple: a wave of RDNA, and half a wave of CDNA,
 * whose other half takes the next head. */
#define GPU_GENERIC_LANES 32
/* Blocks a multiprocessor from which the vector kernel gives a thread several tokens. */
#define GPU_BLOCKS_ENOUGH 4
/* The second argument of HIP's __launch_bounds__: waves of a SIMD for which kernels are given
 * registers. */
#define GPU_PLAIN_BLOCKS(SIZE, GEOMETRY) 1
#define GPU_WINDOW_BLOCKS 1
#define GPU_VECTOR_BLOCKS 1
#define GPU_APPEND_THREADS 256
#define GPU_APPEND_BLOCKS 1
#define GPU_APPEND_F32_BLOCKS 1
/* Heads of a thread, of a call that has so many threads a multiprocessor where each takes one. */
#define GPU_APPEND_HEADS_FOR(each) ((each) < 2048 ? 1 : 2)
/* Threads of a block of append's mla, and what it is given registers for. */
#define GPU_MLA_THREADS 256
#define GPU_MLA_BLOCKS 1
/* Blocks a multiprocessor below which threads of append's rerotate have fewer heads. */
#define GPU_APPEND_BLOCKS_ENOUGH 8
/* Heads that a thread of it loads before it stores one, of elements of SIZE bytes: of 8 bits, which
 * many instructions convert, two would spill scalar registers on CDNA. */
#define GPU_REROTATE_HEADS(SIZE) ((SIZE) == 1 ? 1 : 4)
#define GPU_LOADS_FIRST(GEOMETRY) true /* fewer registers */
#define GPU_ALWAYS_EARLY(GEOMETRY) false
#define GPU_LETS_LATE(GEOMETRY) false
/* Threads of a block that take units of one token; the rest take further tokens. */
#define GPU_UNITS_THREADS 256
#define GPU_WHOLE_THREADS(GEOMETRY, SIZE) ((void)(GEOMETRY), (void)(SIZE), GPU_UNITS_THREADS)
/* Rows of a block of attention by tiles, tiles of keys that are copied ahead, and the most elements
 * of a head: a block has 64 KiB of LDS, and no copies of which it does not wait for each. */
#ifndef GPU_TILE_ROWS
#define GPU_TILE_ROWS 64
#define GPU_TILE_AHEAD 0
#define GPU_TILE_DIM 128
#endif
/* Values of the widest heads that attention by fused operations reads at once: four spill on RDNA.
 */
#define GPU_GENERIC_AT_ONCE 2
/* Whether it asks a tree about a thread's rows and keys in a loop: code for each spills on CDNA. */
#define GPU_GENERIC_TREE_LOOP true
/* Kernels of tiles and of splits are given registers for so many, as others above. */
#define GPU_TILE_BLOCKS 2
#define GPU_SPLIT_BLOCKS 2
/* The generic kernel of attention's backward: the same, vectors that a thread loads at a time. */
#define GPU_BACKWARD_BLOCKS(DIM) 2
#define GPU_BACKWARD_LOADS 4

#endif
