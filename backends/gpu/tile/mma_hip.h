/*
 * Matrix instructions of a wave: MFMA of CDNA 2 and later, WMMA of RDNA 3 and 4, and elsewhere
 * none, for which products_fma.h has fused operations. Layouts are those of AMD's instruction set
 * manuals. Not yet run on AMD hardware; tests/hip_emulation has every one of them.
 */
#ifndef ROPEKIT_GPU_TILE_MMA_HIP_H
#define ROPEKIT_GPU_TILE_MMA_HIP_H

#include "backends/gpu/element.h"

template <int DTYPE, int D> constexpr bool gpu_has_tiles = true;

/* Which products: those of backends/gpu/tile/lanes_right.h, of 16 by 16 elements. The
 * emulation names its own, of which EMULATED_MMA is CUDA's. */
#if defined(EMULATED_MMA)
#define GPU_QUERIES_LEFT
#elif defined(EMULATED_MFMA) || defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx950__)
#define GPU_TILE_MFMA
#elif defined(EMULATED_WMMA_RDNA3) || defined(__GFX11__)
#define GPU_TILE_WMMA_RDNA3
#elif !defined(EMULATED_WMMA_RDNA4) && !defined(__GFX12__)
#define GPU_TILE_FMA
#endif

/* Threads that multiply together; how often they hold an operand, which RDNA 3 wants in both halves
 * of a wave. */
#ifdef GPU_TILE_MFMA
enum { GPU_TILE_LANES = 64 };
#else
enum { GPU_TILE_LANES = 32 };
#endif
#ifdef GPU_TILE_WMMA_RDNA3
enum { GPU_OPERAND_COPIES = 2 };
#else
enum { GPU_OPERAND_COPIES = 1 };
#endif

#ifndef GPU_QUERIES_LEFT
/* Rows of a product that a lane holds: the first, and from there to element e of part n. RDNA 3
 * gives a lane every other row, the others as many side by side. */
GPU_FN int gpu_first_key_of(int lane) {
    return GPU_OPERAND_COPIES > 1 ? lane / 16 : lane / 16 * (256 / GPU_TILE_LANES);
}

GPU_FN constexpr int gpu_key_of(int n, int e) {
    return GPU_OPERAND_COPIES > 1 ? 8 * n + 2 * e
           : GPU_TILE_LANES == 64 ? 16 * n + e
                                  : n / 2 * 16 + n % 2 * 4 + e;
}
#endif

#ifdef EMULATED_TILES
#include <hip/emulated_tile.h>
#else

/* Within 2 ulp and 1 ulp; subnormal numbers are 0. */
GPU_FN float gpu_exp2(float x) {
#ifdef __HIP_DEVICE_COMPILE__
    return __builtin_amdgcn_exp2f(x);
#else
    return exp2f(x);
#endif
}

GPU_FN float gpu_reciprocal(float x) {
#ifdef __HIP_DEVICE_COMPILE__
    return __builtin_amdgcn_rcpf(x);
#else
    return 1 / x;
#endif
}

/* No read behind this one comes before: ahead of time they would fill the registers. */
GPU_FN void gpu_reads_stay(void) {
#ifdef __HIP_DEVICE_COMPILE__
    __builtin_amdgcn_sched_barrier(0);
#endif
}

/* A wave's threads are never apart; what they wrote to LDS is there for all of them. */
GPU_FN void gpu_warp_barrier(void) {
#ifdef __CUDACC__
    __syncwarp();
#elif defined(__HIP_DEVICE_COMPILE__)
    __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
    __builtin_amdgcn_wave_barrier();
#endif
}

GPU_FN bool gpu_any(bool holds) {
#ifdef __CUDACC__
    return __any_sync(0xffffffffu, holds);
#else
    return __any(holds);
#endif
}

/* 16 bytes to LDS, or zeros; done when it returns. Pointers that were read from LDS are told to be
 * global, lest the load be a flat one. */
GPU_FN void gpu_copy_async(void *to, const void *from, bool there) {
#ifdef __HIP_DEVICE_COMPILE__
    typedef uint32_t words __attribute__((ext_vector_type(4)));
    const words none = {0, 0, 0, 0};
    *(words *)to = there ? *gpu_global((const words *)from) : none;
#else
    *(uint4 *)to = there ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
#endif
}

GPU_FN void gpu_copies_mark(void) {}
template <int> GPU_FN void gpu_copies_wait(void) {}

/* --- c += a b --- */

#if defined(__HIP_DEVICE_COMPILE__) && !defined(GPU_TILE_FMA)
/* Operands as the compiler's names of instructions take them: f16, or bits of bf16. */
template <int WORDS> struct gpu_multiplied {
    typedef _Float16 f16 __attribute__((ext_vector_type(2 * WORDS)));
    typedef short bf16 __attribute__((ext_vector_type(2 * WORDS)));
};

template <typename T> GPU_FN T gpu_multiplied_of(const uint32_t *words) {
    T operand;
    memcpy(&operand, words, sizeof operand);
    return operand;
}
#endif

template <int DTYPE> GPU_FN void gpu_mma(float (*c)[4], const uint32_t *a, const uint32_t *b) {
#if defined(__HIP_DEVICE_COMPILE__) && !defined(GPU_TILE_FMA)
    typedef float sums __attribute__((ext_vector_type(256 / GPU_TILE_LANES)));
    typedef gpu_multiplied<128 / GPU_TILE_LANES * GPU_OPERAND_COPIES> operand;
    typedef typename operand::f16 f16;
    typedef typename operand::bf16 bf16;
    sums sum;
    memcpy(&sum, c, sizeof sum);
#if defined(GPU_TILE_MFMA)
    if constexpr (DTYPE == ROPE_BF16)
        sum = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(gpu_multiplied_of<bf16>(a),
                                                        gpu_multiplied_of<bf16>(b), sum, 0, 0, 0);
    else
        sum = __builtin_amdgcn_mfma_f32_16x16x16f16(gpu_multiplied_of<f16>(a),
                                                    gpu_multiplied_of<f16>(b), sum, 0, 0, 0);
#elif defined(GPU_TILE_WMMA_RDNA3)
    if constexpr (DTYPE == ROPE_BF16)
        sum = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(gpu_multiplied_of<bf16>(a),
                                                          gpu_multiplied_of<bf16>(b), sum);
    else
        sum = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(gpu_multiplied_of<f16>(a),
                                                         gpu_multiplied_of<f16>(b), sum);
#else
    if constexpr (DTYPE == ROPE_BF16)
        sum = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(gpu_multiplied_of<bf16>(a),
                                                                gpu_multiplied_of<bf16>(b), sum);
    else
        sum = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(gpu_multiplied_of<f16>(a),
                                                               gpu_multiplied_of<f16>(b), sum);
#endif
    memcpy(c, &sum, sizeof sum);
#else
    (void)c, (void)a, (void)b;
#endif
}

/* A word of the lane that is 16 away. */
GPU_FN uint32_t gpu_other_half(uint32_t word) {
#if defined(__HIP_DEVICE_COMPILE__) && defined(GPU_TILE_WMMA_RDNA3)
    return __builtin_amdgcn_permlanex16(word, word, 0x76543210u, 0xfedcba98u, false, false);
#else
    return gpu_shuffle_xor(word, 16);
#endif
}

#endif
#endif
