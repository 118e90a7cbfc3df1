/*
 * Keys times queries, values times weights, both transposed, as lanes_right.h has them. Sums of
 * keys by queries are then weights as they are multiplied by values, and a lane's row of a product
 * of values is any element: it takes D / 16 that lie side by side.
 */
#ifndef ROPEKIT_GPU_ATTENTION_PRODUCTS_RIGHT_H
#define ROPEKIT_GPU_ATTENTION_PRODUCTS_RIGHT_H

#include "backends/gpu/attention/tile_shape.h"

#ifdef GPU_TILE_FMA
#include "backends/gpu/attention/products_fma.h"
#else

/* Words of an operand; of a row of keys or queries that a lane reads at a time, for the elements of
 * one operand or of two; and elements of a row that all lanes read then. With as many words as 16
 * elements the halves of a warp hold the same. */
enum {
    GPU_OPERAND_WORDS = 2 * GPU_PARTS * GPU_OPERAND_COPIES,
    GPU_READ_WORDS = GPU_OPERAND_WORDS < 4 ? 4 : GPU_OPERAND_WORDS,
    GPU_READ_ELEMENTS = 2 * GPU_READ_WORDS * GPU_TILE_LANES / 16 / GPU_OPERAND_COPIES
};

/* Where a lane's row of a tile begins. */
template <int D> GPU_FN int gpu_operand_row(int row, int lane) {
    return gpu_swizzled<D>(row + lane % 16, GPU_OPERAND_COPIES > 1 ? 0 : lane / 16);
}

/* The k-th words of it, `down` 16s of rows further. */
template <int D>
GPU_FN void gpu_read_operand(uint32_t (&w)[GPU_READ_WORDS], const char *tile, int at, int down,
                             int k) {
    gpu_repeat<GPU_READ_WORDS, 4>([&](int i) {
        const uint4 four =
            *(const uint4 *)(const void *)(tile +
                                           (gpu_moved<D>(at, down, k * GPU_READ_ELEMENTS / 16) ^
                                            4 * i));
        w[i] = four.x, w[i + 1] = four.y, w[i + 2] = four.z, w[i + 3] = four.w;
    });
}

template <int DTYPE, int D, int ROWS>
GPU_FN void gpu_tile_products(const char *queries, const char *keys, gpu_tile_scores<ROWS> &s) {
    enum { BLOCKS = gpu_row_blocks<ROWS> };
    const int lane = gpu_lane(), right = gpu_operand_row<D>(gpu_warp_row<ROWS>(), lane),
              left = gpu_operand_row<D>(0, lane);
    gpu_for_each(s, [](float &x) { x = 0; });
    gpu_repeat<D / GPU_READ_ELEMENTS>([&](int k) {
        uint32_t b[BLOCKS][GPU_READ_WORDS];
        gpu_repeat<BLOCKS>([&](int m) { gpu_read_operand<D>(b[m], queries, right, m, k); });
        gpu_repeat<gpu_warp_keys<ROWS> / 16>([&](int n) {
            uint32_t a[GPU_READ_WORDS];
            gpu_read_operand<D>(a, keys, left, n, k);
            gpu_repeat<GPU_READ_WORDS, GPU_OPERAND_WORDS>([&](int i) {
                gpu_repeat<BLOCKS>(
                    [&](int m) { gpu_mma<DTYPE>(s[m] + GPU_PARTS * n, a + i, b[m] + i); });
            });
        });
        gpu_reads_stay();
    });
}

/* Keys of 16 by which a lane's operand of values goes, and words of each that it reads at a time.
 */
enum { GPU_OPERAND_KEYS = 2 * GPU_OPERAND_WORDS };
template <int DV>
constexpr int gpu_value_words = DV / 32 * GPU_OPERAND_KEYS > 32 ? 32 / GPU_OPERAND_KEYS : DV / 32;

/* A lane's values: words of elements DV / 16 * (lane % 16) + first and on, of each of its keys. */
template <int DV>
GPU_FN void gpu_read_values(uint32_t x[GPU_OPERAND_KEYS][gpu_value_words<DV>], const char *values,
                            int first) {
    enum { WORDS = gpu_value_words<DV> };
    typedef typename gpu_word_type<WORDS>::type type;
    const int lane = gpu_lane(), i = DV / 16 * (lane % 16) + first;
    const int at =
        gpu_swizzled<DV>(GPU_OPERAND_COPIES > 1 ? 0 : gpu_first_key_of(lane), i / 8) + i % 8 * 2;
    gpu_repeat<GPU_OPERAND_KEYS>([&](int n) {
        /* a lane's first key is a multiple of so many */
        const int key = GPU_OPERAND_COPIES > 1 ? n % 8 * 2 + n / 8 : n;
        const type raw =
            *(const type *)(const void *)(values + (at ^ 16 * (key % 8)) + key * DV * 2);
        memcpy(x[n], &raw, sizeof raw);
    });
}

/* Weights of 16 keys as the right operand: in two halves each has those of both. */
GPU_FN void gpu_operand_weights(const uint32_t w[2 * GPU_PARTS], uint32_t b[GPU_OPERAND_WORDS]) {
    gpu_repeat<2 * GPU_PARTS>([&](int i) {
        b[i] = w[i];
        if (GPU_OPERAND_COPIES > 1) {
            const uint32_t other = gpu_other_half(w[i]);
            const bool second = gpu_lane() >= 16;
            b[i] = second ? other : w[i];
            b[i + 2 * GPU_PARTS * (GPU_OPERAND_COPIES - 1)] = second ? w[i] : other;
        }
    });
}

/* Element `at` of the words of a lane's keys as the left operand. */
template <int WORDS>
GPU_FN void gpu_operand_values(const uint32_t x[GPU_OPERAND_KEYS][WORDS], int at,
                               uint32_t a[GPU_OPERAND_WORDS]) {
    gpu_repeat<GPU_OPERAND_WORDS>([&](int i) {
        const uint32_t one = x[2 * i][at / 2], two = x[2 * i + 1][at / 2];
        a[i] = at % 2 ? one >> 16 | (two & 0xffff0000u) : (one & 0xffffu) | two << 16;
    });
}

template <int DTYPE, int D, int ROWS>
GPU_FN void gpu_tile_add(const char *values, const gpu_tile_weights<ROWS> &w,
                         gpu_tile_rows<D, ROWS> &rows) {
    enum { WORDS = gpu_value_words<D>, BLOCKS = gpu_row_blocks<ROWS> };
    gpu_repeat<gpu_warp_keys<ROWS> / 16>([&](int k) {
        uint32_t b[BLOCKS][GPU_OPERAND_WORDS];
        gpu_repeat<BLOCKS>([&](int m) { gpu_operand_weights(w.a[k][m], b[m]); });
        gpu_repeat<gpu_run<D>, 2 * WORDS>([&](int first) {
            uint32_t x[GPU_OPERAND_KEYS][WORDS], a[GPU_OPERAND_WORDS];
            gpu_read_values<D>(x, values + k * 32 * D, first);
            gpu_repeat<2 * WORDS>([&](int at) {
                gpu_operand_values<WORDS>(x, at, a);
                gpu_repeat<BLOCKS>([&](int m) {
                    gpu_mma<DTYPE>(rows.out[m] + GPU_PARTS * (first + at), a, b[m]);
                });
            });
            gpu_reads_stay();
        });
    });
}

#endif
#endif
