/* Instructions of sm_90a that CUDA C++ has no name for: barriers of shared memory, bulk tensor
 * copies, matrix products of a warp group. Shared memory is addressed by 32 bits. */
#ifndef ROPEKIT_GPU_ATTENTION_SM90_PTX_H
#define ROPEKIT_GPU_ATTENTION_SM90_PTX_H

#include "backends/gpu/element.h"

#include <cuda.h>

/* Types of kernels for sm_90a. -DGPU_SM90_TYPE=TYPE: both are that one, which compiles in half the
 * time, for checks of what a compiler makes of them; it is for no call. */
#ifdef GPU_SM90_TYPE
#define GPU_SM90_F16 GPU_SM90_TYPE
#define GPU_SM90_BF16 GPU_SM90_TYPE
#else
#define GPU_SM90_F16 ROPE_F16
#define GPU_SM90_BF16 ROPE_BF16
#endif

/* --- barriers --- */

/* The address of a field of a block's header, 8 bytes an element. */
#define SM90_BARRIER(b, name, i)                                                                   \
    ((uint32_t)__cvta_generic_to_shared((b).header->name) + 8 * (uint32_t)(i))

GPU_FN void sm90_barrier_init(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)
                 : "memory");
}

/* Makes the barriers that this thread has begun known to tensor copies. */
GPU_FN void sm90_barriers_begun(void) {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* In builds that look for races, a warp that has waited goes on late now and then. */
GPU_FN void sm90_dawdle(void) {
#ifdef ROPEKIT_DAWDLES
    const uint32_t chance = (clock() + threadIdx.x / 32 * 977u) * 0x9e3779b9u;
    if (chance >> 29 == 0)
        __nanosleep(chance >> 18 & 2047);
#endif
}

/* Waits until a phase of this parity has ended. */
GPU_FN void sm90_wait(uint32_t barrier, uint32_t parity) {
    asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; "
                 "@p bra.uni done; bra.uni again; done: }" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
    sm90_dawdle();
}

GPU_FN void sm90_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Without a branch, which would end what the compiler overlaps. */
GPU_FN void sm90_arrive_if(uint32_t barrier, int arrives) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %1, 0; @p mbarrier.arrive.shared::cta.b64 _, "
                 "[%0]; }" ::"r"(barrier),
                 "r"(arrives)
                 : "memory");
}

/* Arrives, and has the phase wait for so many bytes of copies. */
GPU_FN void sm90_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

/* A barrier of the 128 threads of consumer 0 or 1. The compiler would take a number in a register
 * for any of the 16 barriers. */
GPU_FN void sm90_group_barrier(int consumer) {
    if (consumer == 0)
        asm volatile("bar.sync 3, 128;" ::: "memory");
    else
        asm volatile("bar.sync 4, 128;" ::: "memory");
}

/* Consumers 0 and 1 begin products in order: each waits until it is the next and then names the
 * other. Late warps are waited for, as all of them count. */
GPU_FN void sm90_await_order(int consumer) {
    asm volatile("bar.sync %0, 256;" ::"r"(6 + consumer) : "memory");
}

GPU_FN void sm90_next_in_order(int consumer) {
    asm volatile("bar.arrive %0, 256;" ::"r"(7 - consumer) : "memory");
}

/* A barrier of the 64 threads that help. */
GPU_FN void sm90_helpers_barrier(void) {
    asm volatile("bar.sync 5, 64;" ::: "memory");
}

/* --- tensor copies --- */

/* Where a box of 64 elements of heads begins. */
struct sm90_box {
    int head, token, row, element;
};

GPU_FN void sm90_prefetch_map(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* Copies a box to shared memory, whose bytes end on the barrier. */
GPU_FN void sm90_load(uint32_t to, const CUtensorMap *map, uint32_t barrier, sm90_box at) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(at.element), "r"(at.head), "r"(at.token), "r"(0),
                 "r"(at.row)
                 : "memory");
}

/* Copies heads by `parts` of 64 elements, each of so many rows. */
GPU_FN void sm90_load_heads(uint32_t to, const CUtensorMap *map, uint32_t barrier, sm90_box at,
                            int parts, int rows) {
#pragma unroll
    for (int i = 0; i < parts; i++, at.element += 64)
        sm90_load(to + (uint32_t)(i * rows * 128), map, barrier, at);
}

/* Copies heads from shared memory, as one group of this thread's. */
GPU_FN void sm90_store_heads(uint32_t from, const CUtensorMap *map, sm90_box at, int parts,
                             int rows) {
#pragma unroll
    for (int i = 0; i < parts; i++, at.element += 64)
        asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group "
                     "[%1, {%2, %3, %4, %5, %6}], [%0];" ::"r"(from + (uint32_t)(i * rows * 128)),
                     "l"(map), "r"(at.element), "r"(at.head), "r"(at.token), "r"(0), "r"(at.row)
                     : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Until shared memory that this thread's groups read may be written again. */
GPU_FN void sm90_stores_read(void) {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

GPU_FN void sm90_stores_done(void) {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* Makes what this thread wrote to shared memory known to copies and to matrix products. */
GPU_FN void sm90_writes_known(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* --- registers and shared memory --- */

/* p; what is read there is kept in no registers for those who read it again. */
template <class T> GPU_FN const T *sm90_opaque(const T *p) {
    asm volatile("" : "+l"(p));
    return p;
}

template <int REGISTERS> GPU_FN void sm90_registers_fewer(void) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS> GPU_FN void sm90_registers_more(void) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

GPU_FN float sm90_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

GPU_FN float sm90_log2(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

GPU_FN float sm90_reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

GPU_FN float sm90_root_reciprocal(float x) {
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

template <int DTYPE> GPU_FN uint32_t sm90_join(float low, float high) {
    uint32_t two;
    if (DTYPE == ROPE_BF16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
    return two;
}

/* The larger absolute value of two pairs, element by element, with some sign; NaN where one is. */
template <int DTYPE> GPU_FN uint32_t sm90_largest(uint32_t a, uint32_t b) {
    uint32_t two;
    if (DTYPE == ROPE_BF16)
        asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(two) : "r"(a), "r"(b));
    else
        asm("max.NaN.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(two) : "r"(a), "r"(b));
    return two;
}

/* sum + 0 * two, which is 0 where that of sum is and elements of a pair are finite, else NaN. */
template <int DTYPE> GPU_FN uint32_t sm90_add_nothing(uint32_t sum, uint32_t two) {
    if (DTYPE == ROPE_BF16)
        asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(two), "r"(0));
    else
        asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(two), "r"(0));
    return sum;
}

/* Bits 15 and 31: whether an element of a pair is not finite. */
template <int DTYPE> GPU_FN uint32_t sm90_nonfinite(uint32_t two) {
    const uint32_t infinity = DTYPE == ROPE_BF16 ? 0x7f807f80u : 0x7c007c00u,
                   one = DTYPE == ROPE_BF16 ? 0x00800080u : 0x04000400u;
    return ((two & infinity) + one) & 0x80008000u;
}

/* Four matrices of 8 by 8 elements; a lane has the address of a row of 16 bytes. */
GPU_FN void sm90_store_matrices(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

/* x, which is equal in all lanes, in a way that the compiler knows it to be the same: loops and
 * addresses that follow from it take a warp's registers. */
GPU_FN int sm90_uniform(int x) {
    return (int)__ballot_sync(~0u, x >> (threadIdx.x % 32) & 1);
}

/* to = from, if so. The compiler would make an array in memory of registers among which it chooses.
 */
GPU_FN void sm90_take_if(uint32_t &to, uint32_t from, int takes) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; @p mov.b32 %0, %1; }"
                 : "+r"(to)
                 : "r"(from), "r"(takes));
}

GPU_FN uint32_t sm90_read_half(uint32_t from) {
    uint16_t x;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(from) : "memory");
    return x;
}

GPU_FN uint4 sm90_read(uint32_t from) {
    uint4 x;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(from)
                 : "memory");
    return x;
}

GPU_FN uint2 sm90_read_two(uint32_t from) {
    uint2 x;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(from) : "memory");
    return x;
}

/* Without a branch. */
GPU_FN void sm90_write_if(int32_t *to, int x, int writes) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; @p st.shared.b32 [%0], %1; }" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(to)),
                 "r"(x), "r"(writes)
                 : "memory");
}

GPU_FN void sm90_write(uint32_t to, uint4 x) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z),
                 "r"(x.w)
                 : "memory");
}

/* In builds that look for races, a block's dynamic shared memory begins as NaNs of every type. By
 * all threads, ahead of what else they do. */
GPU_FN void sm90_poison(const void *memory) {
#ifdef ROPEKIT_DAWDLES
    const uint32_t nans = 0x7fff7fffu, from = (uint32_t)__cvta_generic_to_shared(memory);
    uint32_t bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    for (uint32_t at = 16 * threadIdx.x; at < bytes; at += 16 * blockDim.x)
        sm90_write(from + at, {nans, nans, nans, nans});
    sm90_writes_known();
    __syncthreads();
#else
    (void)memory;
#endif
}

#endif
