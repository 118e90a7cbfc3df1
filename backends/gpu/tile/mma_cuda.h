/* Matrix instructions of a warp and copies behind its back: PTX, of sm_75 what it has of it. */
#ifndef ROPEKIT_GPU_TILE_MMA_CUDA_H
#define ROPEKIT_GPU_TILE_MMA_CUDA_H

#include "backends/gpu/element.h"

/* Fragments are those of backends/gpu/tile/lanes_left.h, of a warp. */
#define GPU_QUERIES_LEFT
enum { GPU_TILE_LANES = 32 };

/* Whether this compilation has what came with sm_80. */
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define GPU_IS_SM_80 1
#else
#define GPU_IS_SM_80 0
#endif

/* Whether it has kernels of tiles for heads of D elements: sm_75 multiplies f16 alone, and its
 * shared memory has no room for wider heads. */
template <int DTYPE, int D>
constexpr bool gpu_has_tiles = GPU_IS_SM_80 || (DTYPE == ROPE_F16 && D <= 64);

GPU_FN unsigned gpu_shared_address(const void *p) {
    return (unsigned)__cvta_generic_to_shared(p);
}

GPU_FN float gpu_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Within 1 ulp, for x >= 1. */
GPU_FN float gpu_reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

GPU_FN void gpu_warp_barrier(void) {
    __syncwarp();
}

GPU_FN bool gpu_any(bool holds) {
    return __any_sync(0xffffffffu, holds);
}

/* c += a b of 16 x 8 by 8: fragments as PTX lays out mma.m16n8k8. */
GPU_FN void gpu_mma_half(float c[4], uint32_t a0, uint32_t a1, uint32_t b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
}

/* c += a b of 16 x 8 by 16: fragments as PTX lays out mma.m16n8k16. */
template <int DTYPE> GPU_FN void gpu_mma(float c[4], const uint32_t a[4], const uint32_t b[2]) {
    if constexpr (DTYPE == ROPE_BF16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
            "{%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    else if constexpr (!GPU_IS_SM_80) {
        gpu_mma_half(c, a[0], a[1], b[0]);
        gpu_mma_half(c, a[2], a[3], b[1]);
    } else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
            "{%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Four 8 x 8 matrices of 16-bit elements, of which lanes 8 i..8 i + 7 say where in a tile their
 * rows lie. */
GPU_FN void gpu_load_matrices(uint32_t r[4], const char *tile, int row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(gpu_shared_address(tile) + row)
                 : "memory");
}

GPU_FN void gpu_load_transposed(uint32_t r[4], const char *tile, int row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(gpu_shared_address(tile) + row)
                 : "memory");
}

#if GPU_IS_SM_80
/* 16 bytes to shared memory, or zeros. */
GPU_FN void gpu_copy_async(void *to, const void *from, bool there) {
    asm volatile(
        "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(gpu_shared_address(to)),
        "l"(from), "r"(there ? 16 : 0)
        : "memory");
}

/* A word to shared memory. */
GPU_FN void gpu_copy_word(void *to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(gpu_shared_address(to)), "l"(from)
                 : "memory");
}

/* Copies up to here, since the last mark, are one group. */
GPU_FN void gpu_copies_mark(void) {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits for all groups but the last `but`. */
template <int BUT> GPU_FN void gpu_copies_wait(void) {
    asm volatile("cp.async.wait_group %0;" ::"n"(BUT) : "memory");
}
#else
/* These copies are done when they return. */
GPU_FN void gpu_copy_async(void *to, const void *from, bool there) {
    *(uint4 *)to = there ? *(const uint4 *)from : uint4{0, 0, 0, 0};
}

GPU_FN void gpu_copy_word(void *to, const void *from) {
    *(uint32_t *)to = *(const uint32_t *)from;
}

GPU_FN void gpu_copies_mark(void) {}

template <int BUT> GPU_FN void gpu_copies_wait(void) {}
#endif

#endif
