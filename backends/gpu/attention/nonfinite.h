/*
 * Values that are not finite, which rows that do not see them may not meet: they are taken out of a
 * tile, and added to the rows that see their keys. Kernels in which all rows of a block see the
 * same keys need none of this: they copy zeros for all other keys.
 */
#ifndef ROPEKIT_GPU_ATTENTION_NONFINITE_H
#define ROPEKIT_GPU_ATTENTION_NONFINITE_H

#include "backends/gpu/attention/softmax.h"

/* A block's last tile of which a value is not finite, as 1 + its first key; whether there was one.
 */
struct gpu_nonfinite_state {
    int32_t tile, any;
};

/* A tile of KEYS has a bit for each element that is infinite and above 0, and for each that is
 * below; NaN is both. */
template <int D, int KEYS> struct gpu_nonfinite_tile {
    uint8_t above[KEYS][D / 8], below[KEYS][D / 8];
};

/* A bit for each element of values that reaches a row and is not finite, by its sign. */
template <int D> struct gpu_nonfinite_row { uint32_t above[D / 32], below[D / 32]; };

/* Whether the tile's values are not all finite; of all threads, with a barrier behind, until which
 * the answer is in `state` alone. */
template <int DTYPE, int D, int KEYS>
GPU_FN void gpu_nonfinite_look(const char *values, int first, gpu_nonfinite_state *state) {
    const uint32_t infinity = DTYPE == ROPE_BF16 ? 0x7f807f80u : 0x7c007c00u,
                   one = DTYPE == ROPE_BF16 ? 0x00800080u : 0x04000400u;
    uint32_t found = 0;
    gpu_repeat<KEYS * D / 8, GPU_ATTENTION_THREADS>([&](int e) {
        const uint4 eight = ((const uint4 *)(const void *)values)[gpu_thread() + e];
        found |= (eight.x & infinity) + one;
        found |= (eight.y & infinity) + one;
        found |= (eight.z & infinity) + one;
        found |= (eight.w & infinity) + one;
    });
    if (found & 0x80008000u)
        state->tile = first + 1;
    __syncthreads();
}

/* Bits of eight elements that are NaN or the infinity of a sign. */
template <int DTYPE> GPU_FN uint32_t gpu_nonfinite_bits(uint4 eight, uint32_t sign) {
    const uint32_t infinity = DTYPE == ROPE_BF16 ? 0x7f80u : 0x7c00u,
                   words[4] = {eight.x, eight.y, eight.z, eight.w};
    uint32_t found = 0;
    gpu_repeat<8>([&](int i) {
        const uint32_t x = words[i / 2] >> 16 * (i % 2) & 0xffffu;
        found |= (uint32_t)((x & infinity) == infinity && x != (infinity | (sign ^ 0x8000u))) << i;
    });
    return found;
}

/* Takes such values out of a tile; of all threads, with a barrier before and behind. */
template <int DTYPE, int D, int KEYS>
GPU_FN void gpu_nonfinite_remove(char *values, gpu_nonfinite_tile<D, KEYS> &removed,
                                 gpu_nonfinite_state *state) {
    __syncthreads();
#pragma unroll 1
    for (int e = gpu_thread(); e < KEYS * D / 8; e += GPU_ATTENTION_THREADS) {
        const int key = e / (D / 8), chunk = e % (D / 8);
        uint4 *eight = (uint4 *)(void *)(values + gpu_swizzled<D>(key, chunk));
        const uint32_t above = gpu_nonfinite_bits<DTYPE>(*eight, 0),
                       below = gpu_nonfinite_bits<DTYPE>(*eight, 0x8000u);
        removed.above[key][chunk] = (uint8_t)above;
        removed.below[key][chunk] = (uint8_t)below;
#pragma unroll 1
        for (int i = 0; i < 8; i++)
            if ((above | below) >> i & 1)
                ((uint16_t *)(void *)eight)[i] = 0;
    }
    if (gpu_thread() == 0)
        state->any = 1;
    __syncthreads();
}

/* Which keys of a tile have a weight in a row, one of a thread's. */
template <int ROWS>
GPU_FN uint64_t gpu_weighted_keys(const gpu_tile_weights<ROWS> &w, int m, int h) {
    uint32_t keys[2] = {};
    gpu_repeat<gpu_key_parts<ROWS>>([&](int n) {
        gpu_repeat<GPU_LANE_ELEMENTS, 2>([&](int i) {
            const int e = h * GPU_LANE_ELEMENTS + i, key = gpu_key_of(n, e);
            const uint32_t two = w.a[n / GPU_PARTS][m][n % GPU_PARTS * 2 + e / 2];
            keys[key / 32] |= (two & 0x7fffu ? 1u << key % 32 : 0) |
                              (two & 0x7fff0000u ? 1u << gpu_key_of(n, e + 1) % 32 : 0);
        });
    });
    gpu_repeat<2>([&](int i) { keys[i] = gpu_lanes_or(keys[i] << gpu_first_key_of(gpu_lane())); });
    return keys[0] | (uint64_t)keys[1] << 32;
}

/* Writes gpu_weighted_keys() of all rows of a warp to `weighed`. */
template <int ROWS>
GPU_FN void gpu_nonfinite_weigh(const gpu_tile_weights<ROWS> &w, uint64_t *weighed) {
    gpu_for_each_row<gpu_row_blocks<ROWS>>([&](int m, int h) {
        weighed[16 * m + gpu_row_of(gpu_lane(), h)] = gpu_weighted_keys<ROWS>(w, m, h);
    });
    gpu_warp_barrier();
}

/* An element that was taken out reaches a row that sees its key, as its product does: a weight of 0
 * makes NaN of it. sees, weighed: bits of `count` keys of the tile, from key `at` of it on; none:
 * nothing is in `row` yet. */
template <int D, int KEYS>
GPU_FN void gpu_nonfinite_gather(const gpu_nonfinite_tile<D, KEYS> &removed, int at, int count,
                                 uint64_t sees, uint64_t weighed, bool none,
                                 gpu_nonfinite_row<D> *row) {
#pragma unroll 1
    for (int i = 0; i < D / 32; i++) {
        uint32_t above = none ? 0 : row->above[i], below = none ? 0 : row->below[i];
#pragma unroll 1
        for (int key = 0; key < count; key++) {
            if (!(sees >> key & 1))
                continue;
            const uint32_t zero = weighed >> key & 1 ? 0 : 0xffffffffu,
                           a = ((const uint32_t *)(const void *)removed.above[at + key])[i],
                           b = ((const uint32_t *)(const void *)removed.below[at + key])[i];
            above |= a | (b & zero);
            below |= b | (a & zero);
        }
        row->above[i] = above;
        row->below[i] = below;
    }
}

/* Adds such elements to a thread's own of row (m, h). */
template <int D, int ROWS>
GPU_FN void gpu_nonfinite_restore(const gpu_nonfinite_row<D> &row, int m, int h,
                                  gpu_tile_rows<D, ROWS> &rows) {
    gpu_for_each_pair<D>(rows.out[m], h, [&](int i, float &x, float &y) {
        const uint32_t above = row.above[i / 32] >> i % 32, below = row.below[i / 32] >> i % 32;
        if (above & 1)
            x += INFINITY;
        if (below & 1)
            x -= INFINITY;
        if (above & 2)
            y += INFINITY;
        if (below & 2)
            y -= INFINITY;
    });
}

#endif
