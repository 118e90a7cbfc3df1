/* Matrix instructions from the layouts that PTX and AMD's instruction set manuals publish, for
 * GPU_TILE_LANES threads of the emulated wave, and copies that are done at once. */
#ifndef ROPEKIT_HIP_EMULATION_TILE_H
#define ROPEKIT_HIP_EMULATION_TILE_H

#include <hip/hip_runtime.h>

#include <cstdlib>

static inline float gpu_exp2(float x) {
    return std::exp2(x);
}

static inline int gpu_opaque(int x) {
    return x;
}

static inline void gpu_reads_stay(void) {}

static inline float gpu_reciprocal(float x) {
    return 1 / x;
}

/* What each thread of a block hands to its warp: one exchange is read while the next is written. */
struct emulated_fragment {
    uint32_t word[16];
};
inline emulated_fragment emulated_fragments[2][EMULATED_BLOCK_THREADS];
inline int emulated_turns[EMULATED_BLOCK_THREADS];

static inline void gpu_warp_barrier(void) {
    if (GPU_TILE_LANES == 64)
        (void)emulated_wave_exchange(0);
    else
        emulated_warp_barrier();
}

static inline int emulated_tile_lane(void) {
    return (int)threadIdx.x % GPU_TILE_LANES;
}

/* Fragments of the threads of the warp. */
static inline const emulated_fragment *emulated_gather(const emulated_fragment &mine) {
    const int thread = (int)threadIdx.x;
    emulated_fragment *all = emulated_fragments[emulated_turns[thread]++ % 2];
    all[thread] = mine;
    gpu_warp_barrier();
    return all + thread / GPU_TILE_LANES * GPU_TILE_LANES;
}

static inline uint32_t gpu_shuffle_xor(uint32_t x, int mask) {
    return emulated_gather({{x}})[emulated_tile_lane() ^ mask].word[0];
}

static inline uint32_t gpu_other_half(uint32_t x) {
    return gpu_shuffle_xor(x, 16);
}

static inline float gpu_shuffle_xor(float x, int mask) {
    const uint32_t bits = gpu_shuffle_xor(rope_float_bits(x), mask);
    float other;
    std::memcpy(&other, &bits, sizeof other);
    return other;
}

static inline bool gpu_any(bool holds) {
    const emulated_fragment *all = emulated_gather({{holds}});
    bool any = false;
    for (int lane = 0; lane < GPU_TILE_LANES; lane++)
        any |= all[lane].word[0] != 0;
    return any;
}

/* 16-bit element i of a fragment's words. */
template <int DTYPE> static inline float emulated_element(const uint32_t *words, int i) {
    return gpu_widen<DTYPE>((uint16_t)(words[i / 2] >> (16 * (i % 2))));
}

#ifdef GPU_QUERIES_LEFT
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

#else
/* Where element k of row or column n of an operand is: MFMA and RDNA 4's WMMA have as many of k
 * side by side in each sixteenth lane as there are lanes for; RDNA 3's has all 16 in each. */
struct emulated_operand {
    int lane, element;
};

static inline emulated_operand emulated_operand_of(int n, int k) {
#if defined(EMULATED_WMMA_RDNA3)
    return {n, k};
#elif defined(EMULATED_WMMA_RDNA4)
    return {n + 16 * (k / 8), k % 8};
#else
    return {n + 16 * (k / 4), k % 4};
#endif
}

/* The row of element e of a lane's sums, of which the column is lane % 16. */
static inline int emulated_sum_row(int lane, int e) {
#if defined(EMULATED_WMMA_RDNA3)
    return 2 * e + lane / 16;
#elif defined(EMULATED_WMMA_RDNA4)
    return 8 * (lane / 16) + e;
#else
    return 4 * (lane / 16) + e;
#endif
}

#ifdef EMULATED_WMMA_RDNA3
/* RDNA 3 multiplies by whichever half of a wave it likes: they must hold the same. */
static inline void emulated_check_halves(const emulated_fragment *all) {
    for (int lane = 0; lane < 16; lane++)
        if (std::memcmp(all + lane, all + lane + 16, sizeof *all) != 0)
            std::abort();
}
#endif

template <int DTYPE>
static inline void gpu_mma(float (*c)[4], const uint32_t *a, const uint32_t *b) {
#if defined(EMULATED_WMMA_RDNA3)
    enum { WORDS = 8 };
#else
    enum { WORDS = 128 / GPU_TILE_LANES };
#endif
    emulated_fragment mine = {};
    std::memcpy(mine.word, a, WORDS * sizeof *a);
    std::memcpy(mine.word + 8, b, WORDS * sizeof *b);
    const emulated_fragment *all = emulated_gather(mine);
#if defined(EMULATED_WMMA_RDNA3)
    emulated_check_halves(all);
#endif
    const int lane = emulated_tile_lane();
    for (int e = 0; e < 256 / GPU_TILE_LANES; e++) {
        float sum = 0;
        for (int k = 0; k < 16; k++) {
            const emulated_operand left = emulated_operand_of(emulated_sum_row(lane, e), k),
                                   right = emulated_operand_of(lane % 16, k);
            sum += emulated_element<DTYPE>(all[left.lane].word, left.element) *
                   emulated_element<DTYPE>(all[right.lane].word + 8, right.element);
        }
        c[e / 4][e % 4] += sum;
    }
}
#endif

static inline void gpu_copy_async(void *to, const void *from, bool there) {
    const uint4 none = {0, 0, 0, 0};
    *(uint4 *)to = there ? *(const uint4 *)from : none;
}

static inline void gpu_copy_word(void *to, const void *from) {
    *(uint32_t *)to = *(const uint32_t *)from;
}

/* Blocks run one after the other: none waits. */
static inline int32_t gpu_take_ticket(int32_t *ticket) {
    return (*ticket)++;
}

static inline void gpu_device_fence(void) {}

static inline int32_t gpu_turn_read(const int32_t *turn) {
    return *turn;
}

static inline void gpu_turn_pass(int32_t *turn, int32_t n) {
    *turn = n > *turn ? n : *turn;
}

static inline void gpu_read_coherent(const float *from, float x[4]) {
    std::memcpy(x, from, 4 * sizeof *x);
}

static inline void gpu_copies_mark(void) {}
template <int> static inline void gpu_copies_wait(void) {}

#endif
