/* What the HIP backend uses of HIP's device language, as plain C++. */
#ifndef ROPEKIT_HIP_EMULATION_RUNTIME_H
#define ROPEKIT_HIP_EMULATION_RUNTIME_H

#include <hip/hip_runtime_api.h>

#include "tests/hip_emulation/kernel.h"

#include <array>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
/* Blocks run one after the other, so that one copy serves. Dynamic shared memory is called `memory`
 * in every kernel. */
#define __shared__ thread_local

struct alignas(8) uint2 {
    uint32_t x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct float2 {
    float x, y;
};

static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
    return {x, y, z, w};
}

extern "C" dim3 threadIdx, blockIdx, blockDim, gridDim;
#define warpSize emulated_wave()

static inline void __syncthreads() {
    emulated_block_barrier();
}

/* Threads take turns at barriers alone. */
static inline void __threadfence() {}

static inline unsigned long long atomicAdd(unsigned long long *to, unsigned long long x) {
    const unsigned long long before = *to;
    *to = before + x;
    return before;
}

static inline unsigned long long atomicCAS(unsigned long long *to, unsigned long long expected,
                                           unsigned long long x) {
    const unsigned long long before = *to;
    *to = before == expected ? x : before;
    return before;
}

static inline int emulated_lane() {
    return (int)(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % warpSize;
}

#ifdef EMULATED_FMA
/* Else a call of the C library. By -mfma gcc 12 would take -fmaf(x, y, -z) for -x y + z, which is
 * another zero. */
static inline float emulated_fmaf(float x, float y, float z) {
    asm("vfmadd231ss %2, %1, %0" : "+x"(z) : "x"(x), "x"(y));
    return z;
}
#define fmaf emulated_fmaf
#endif

template <typename T> T __shfl(T value, int lane, int width = warpSize) {
    static_assert(sizeof(T) <= sizeof(uint64_t));
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    int first = emulated_lane() / width * width;
    bits = emulated_wave_exchange(bits)[first + lane % width];
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

template <typename T> T __shfl_xor(T value, int mask, int width = warpSize) {
    int lane = emulated_lane() % width;
    return __shfl(value, (lane ^ mask) < width ? lane ^ mask : lane, width);
}

static inline uint64_t __ballot(int predicate) {
    const uint64_t *value = emulated_wave_exchange(predicate != 0);
    uint64_t mask = 0;
    for (int lane = 0; lane < warpSize; lane++)
        mask |= value[lane] << lane;
    return mask;
}

#define __builtin_amdgcn_kernarg_segment_ptr() emulated_arguments()

/* A kernel's arguments are copied when it is launched, and lie as AMD's processors find them: each
 * at a multiple of its alignment behind the one before. */
template <auto KERNEL> struct emulated_function;
template <typename... PARAMETERS, void (*KERNEL)(PARAMETERS...)> struct emulated_function<KERNEL> {
    static_assert((std::is_trivially_copyable_v<PARAMETERS> && ...));
    typedef std::index_sequence_for<PARAMETERS...> indices;

    static constexpr std::array<size_t, sizeof...(PARAMETERS) + 1> offsets = [] {
        std::array<size_t, sizeof...(PARAMETERS) + 1> at{};
        size_t i = 0, end = 0;
        ((at[i] = (end + alignof(PARAMETERS) - 1) / alignof(PARAMETERS) * alignof(PARAMETERS),
          end = at[i++] + sizeof(PARAMETERS)),
         ...);
        at[i] = end;
        return at;
    }();

    static const char *describe() { return __PRETTY_FUNCTION__; }

    template <size_t... I> static void copy(void **from, void *packed, std::index_sequence<I...>) {
        (std::memcpy((char *)packed + offsets[I], from[I], sizeof(PARAMETERS)), ...);
    }

    static void pack(void **from, void *packed) { copy(from, packed, indices()); }

    template <size_t... I> static void call(const void *packed, std::index_sequence<I...>) {
        KERNEL(*(const PARAMETERS *)((const char *)packed + offsets[I])...);
    }

    static void run(const void *packed) { call(packed, indices()); }

    static inline emulated_kernel kernel = {describe, offsets.back(), pack, run, 0, 0, 0, 0};
};

#define HIP_KERNEL_NAME(...) (&emulated_function<(__VA_ARGS__)>::kernel)

#endif
