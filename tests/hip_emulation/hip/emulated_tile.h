/* CUDA's matrix instructions from the layouts that PTX publishes, for 32 lanes of the emulated
 * wave, and copies that are done at once. */
#ifndef ROPEKIT_HIP_EMULATION_TILE_H
#define ROPEKIT_HIP_EMULATION_TILE_H

#include <hip/hip_runtime.h>

static inline float gpu_exp2(float x) {
    return std::exp2(x);
}

static inline int gpu_anew(int x) {
    return x;
}

static inline float gpu_reciprocal(float x) {
    return 1 / x;
}

/* What each thread of a block hands to its warp: one exchange is read while the next is written. */
struct emulated_fragment {
    uint32_t word[6];
};
inline emulated_fragment emulated_fragments[2][EMULATED_BLOCK_THREADS];
inline int emulated_turns[EMULATED_BLOCK_THREADS];

/* Fragments of the 32 threads of the warp. */
static inline const emulated_fragment *emulated_gather(const emulated_fragment &mine) {
    const int thread = (int)threadIdx.x;
    emulated_fragment *all = emulated_fragments[emulated_turns[thread]++ % 2];
    all[thread] = mine;
    emulated_warp_barrier();
    return all + thread / 32 * 32;
}

static inline uint32_t gpu_shuffle_xor(uint32_t x, int mask) {
    return emulated_gather({{x}})[((int)threadIdx.x % 32) ^ mask].word[0];
}

static inline float gpu_shuffle_xor(float x, int mask) {
    const uint32_t bits = gpu_shuffle_xor(rope_float_bits(x), mask);
    float other;
    std::memcpy(&other, &bits, sizeof other);
    return other;
}

static inline void gpu_warp_barrier(void) {
    emulated_warp_barrier();
}

static inline bool gpu_any(bool holds) {
    const emulated_fragment *all = emulated_gather({{holds}});
    bool any = false;
    for (int lane = 0; lane < 32; lane++)
        any |= all[lane].word[0] != 0;
    return any;
}

/* 16-bit element i of a fragment's words. */
template <int DTYPE> static inline float emulated_element(const uint32_t *words, int i) {
    return gpu_widen<DTYPE>((uint16_t)(words[i / 2] >> (16 * (i % 2))));
}

template <int DTYPE>
static inline void gpu_mma(float c[4], const uint32_t a[4], const uint32_t b[2]) {
    const emulated_fragment *all = emulated_gather({{a[0], a[1], a[2], a[3], b[0], b[1]}});
    const int lane = (int)threadIdx.x % 32;
    for (int e = 0; e < 4; e++) {
        const int row = lane / 4 + 8 * (e / 2), column = 2 * (lane % 4) + e % 2;
        float sum = 0;
        for (int k = 0; k < 16; k++) {
            /* a: register 1 and 3 have rows 8.., 2 and 3 have k 8..; b: register 1 has k 8.. */
            const emulated_fragment *left = all + row % 8 * 4 + k % 8 / 2,
                                    *right = all + column * 4 + k % 8 / 2;
            const float x = emulated_element<DTYPE>(left->word + row / 8 + 2 * (k / 8), k % 2),
                        y = emulated_element<DTYPE>(right->word + 4 + k / 8, k % 2);
            sum += x * y;
        }
        c[e] += sum;
    }
}

template <bool TRANSPOSED> static inline void emulated_load(uint32_t r[4], const void *row) {
    const uint64_t address = (uint64_t)(uintptr_t)row;
    const emulated_fragment *all =
        emulated_gather({{(uint32_t)address, (uint32_t)(address >> 32), 0, 0, 0, 0}});
    const int lane = (int)threadIdx.x % 32;
    for (int m = 0; m < 4; m++) {
        uint32_t word = 0;
        for (int i = 0; i < 2; i++) {
            const int y = TRANSPOSED ? 2 * (lane % 4) + i : lane / 4,
                      x = TRANSPOSED ? lane / 4 : 2 * (lane % 4) + i;
            const uint32_t *at = all[8 * m + y].word;
            uint16_t element;
            std::memcpy(&element, (const char *)(uintptr_t)(at[0] | (uint64_t)at[1] << 32) + 2 * x,
                        sizeof element);
            word |= (uint32_t)element << (16 * i);
        }
        r[m] = word;
    }
}

static inline void gpu_load_matrices(uint32_t r[4], const char *tile, int row) {
    emulated_load<false>(r, tile + row);
}

static inline void gpu_load_transposed(uint32_t r[4], const char *tile, int row) {
    emulated_load<true>(r, tile + row);
}

static inline void gpu_copy_async(void *to, const void *from, bool there) {
    const uint4 none = {0, 0, 0, 0};
    *(uint4 *)to = there ? *(const uint4 *)from : none;
}

static inline void gpu_copies_mark(void) {}
template <int> static inline void gpu_copies_wait(void) {}

#endif
