/* Matrix instructions from the layouts that PTX and AMD's instruction set manuals publish, for
 * GPU_TILE_LANES threads of the emulated wave, and copies that are done at once. */
#ifndef ROPEKIT_HIP_EMULATION_TILE_H
#define ROPEKIT_HIP_EMULATION_TILE_H

#include <hip/hip_runtime.h>

#include <cstdlib>

static inline float gpu_exp2(float x) {
    return std::exp2(x);
}

static inline void gpu_reads_stay(void) {}

static inline float gpu_reciprocal(float x) {
    return 1 / x;
}

/* What each thread of a block hands to its warp: one exchange is read while the next is written. */
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

/* Of the threads of the warp. */
template <typename T> static const T *emulated_gather(const T &mine) {
    static T handed[2][EMULATED_BLOCK_THREADS];
    const int thread = (int)threadIdx.x;
    T *all = handed[emulated_turns[thread]++ % 2];
    all[thread] = mine;
    gpu_warp_barrier();
    return all + thread / GPU_TILE_LANES * GPU_TILE_LANES;
}

static inline uint32_t gpu_shuffle_xor(uint32_t x, int mask) {
    return emulated_gather(x)[emulated_tile_lane() ^ mask];
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
    const bool *all = emulated_gather(holds);
    bool any = false;
    for (int lane = 0; lane < GPU_TILE_LANES; lane++)
        any |= all[lane];
    return any;
}

/* --- c += a b --- */

/* Row and column of a thread's element of an operand or of the sums. */
struct emulated_place {
    int row, column;
};

#ifdef GPU_QUERIES_LEFT
enum { EMULATED_A = 8, EMULATED_B = 4, EMULATED_COLUMNS = 8 };

/* Register 1 and 3 have rows 8.., 2 and 3 have columns 8... */
static inline emulated_place emulated_a(int lane, int i) {
    return {lane / 4 + i / 2 % 2 * 8, lane % 4 * 2 + i % 2 + i / 4 * 8};
}

/* Register 1 has rows 8... */
static inline emulated_place emulated_b(int lane, int i) {
    return {lane % 4 * 2 + i % 2 + i / 2 * 8, lane / 4};
}

static inline emulated_place emulated_sum(int lane, int i) {
    return {lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2};
}
#else
enum {
    EMULATED_A = 256 / GPU_TILE_LANES * GPU_OPERAND_COPIES,
    EMULATED_B = EMULATED_A,
    EMULATED_COLUMNS = 16
};

/* MFMA and RDNA 4's WMMA have as many columns side by side in each sixteenth lane as there are
 * lanes for; RDNA 3's has all 16 in each. */
static inline emulated_place emulated_a(int lane, int i) {
    return {lane % 16, (GPU_OPERAND_COPIES > 1 ? 0 : lane / 16 * EMULATED_A) + i};
}

static inline emulated_place emulated_b(int lane, int i) {
    return {emulated_a(lane, i).column, lane % 16};
}

static inline emulated_place emulated_sum(int lane, int i) {
#if defined(EMULATED_WMMA_RDNA3)
    return {2 * i + lane / 16, lane % 16};
#elif defined(EMULATED_WMMA_RDNA4)
    return {8 * (lane / 16) + i, lane % 16};
#else
    return {4 * (lane / 16) + i, lane % 16};
#endif
}
#endif

/* Of a warp: each thread has stored its elements, and the first that goes on multiplies. */
struct emulated_product {
    float a[GPU_OPERAND_COPIES][16][16];
    alignas(16) float b[GPU_OPERAND_COPIES][16][EMULATED_COLUMNS], sum[16][EMULATED_COLUMNS];
    bool is_done;
};

static inline void emulated_multiply(emulated_product *p) {
    typedef float four __attribute__((vector_size(16)));
    /* RDNA 3 multiplies by whichever half of a wave it likes: they must hold the same. */
    if (GPU_OPERAND_COPIES > 1 && (std::memcmp(p->a[0], p->a[1], sizeof p->a[0]) != 0 ||
                                   std::memcmp(p->b[0], p->b[1], sizeof p->b[0]) != 0))
        std::abort();
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < EMULATED_COLUMNS; j += 4) {
            four sum = {0, 0, 0, 0};
            for (int k = 0; k < 16; k++)
                sum += p->a[0][i][k] * *(const four *)(p->b[0][k] + j);
            *(four *)(p->sum[i] + j) = sum;
        }
    p->is_done = true;
}

template <int DTYPE> static inline float emulated_element(const uint32_t *words, int i) {
    return gpu_widen<DTYPE>((uint16_t)(words[i / 2] >> (16 * (i % 2))));
}

template <int DTYPE>
__attribute__((noinline)) static void emulated_mma(float *c, const uint32_t *a, const uint32_t *b) {
    static emulated_product products[2][EMULATED_BLOCK_THREADS / GPU_TILE_LANES];
    const int thread = (int)threadIdx.x, lane = emulated_tile_lane(),
              copy = GPU_OPERAND_COPIES > 1 ? lane / 16 : 0;
    emulated_product *p = &products[emulated_turns[thread]++ % 2][thread / GPU_TILE_LANES];
#pragma GCC unroll 16
    for (int i = 0; i < EMULATED_A; i++) {
        const emulated_place at = emulated_a(lane, i);
        p->a[copy][at.row][at.column] = emulated_element<DTYPE>(a, i);
    }
#pragma GCC unroll 16
    for (int i = 0; i < EMULATED_B; i++) {
        const emulated_place at = emulated_b(lane, i);
        p->b[copy][at.row][at.column] = emulated_element<DTYPE>(b, i);
    }
    p->is_done = false;
    gpu_warp_barrier();
    if (!p->is_done)
        emulated_multiply(p);
#pragma GCC unroll 16
    for (int i = 0; i < 16 * EMULATED_COLUMNS / GPU_TILE_LANES; i++) {
        const emulated_place at = emulated_sum(lane, i);
        c[i] += p->sum[at.row][at.column];
    }
}

#ifdef GPU_QUERIES_LEFT
template <int DTYPE>
static inline void gpu_mma(float c[4], const uint32_t a[4], const uint32_t b[2]) {
    emulated_mma<DTYPE>(c, a, b);
}

template <bool TRANSPOSED> static inline void emulated_load(uint32_t r[4], const void *row) {
    const char *const *all = emulated_gather((const char *)row);
    const int lane = (int)threadIdx.x % 32;
    for (int m = 0; m < 4; m++) {
        uint32_t word = 0;
        for (int i = 0; i < 2; i++) {
            const int y = TRANSPOSED ? 2 * (lane % 4) + i : lane / 4,
                      x = TRANSPOSED ? lane / 4 : 2 * (lane % 4) + i;
            uint16_t element;
            std::memcpy(&element, all[8 * m + y] + 2 * x, sizeof element);
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
template <int DTYPE>
static inline void gpu_mma(float (*c)[4], const uint32_t *a, const uint32_t *b) {
    emulated_mma<DTYPE>(*c, a, b);
}
#endif

static inline void gpu_copy_async(void *to, const void *from, bool there) {
    const uint4 none = {0, 0, 0, 0};
    *(uint4 *)to = there ? *(const uint4 *)from : none;
}

static inline void gpu_copy_word(void *to, const void *from) {
    *(uint32_t *)to = *(const uint32_t *)from;
}

static inline void gpu_copies_mark(void) {}
template <int> static inline void gpu_copies_wait(void) {}

#endif
