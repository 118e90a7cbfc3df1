/* Where rows of D 16-bit elements lie in shared memory: eight of a column are in different banks.
 */
#ifndef ROPEKIT_GPU_TILE_SHARED_H
#define ROPEKIT_GPU_TILE_SHARED_H

#include "backends/gpu/element.h"

/* Where 16 bytes of a row lie. */
template <int D> GPU_FN int gpu_swizzled(int row, int chunk) {
    static_assert(D % 64 == 0, "a row has a multiple of eight chunks");
    return row * (D * 2) + (chunk ^ (row & 7)) * 16;
}

/* From where 16 bytes of one of the first rows lie to those `down` rows below: a multiple of four,
 * from one of the first four, or of eight. */
template <int D> GPU_FN int gpu_swizzled_further(int at, int down) {
    return (at ^ (down & 7) * 16) + down * D * 2;
}

/* From where a lane's row of a matrix of 16 by 16 lies to that of one some rows down and some
 * columns across, both in 16s, by four addresses and what is added to them. */
template <int D> GPU_FN int gpu_moved_by_groups(int at, int down, int across) {
    return (at ^ across % 4 * 32) + across / 4 * 128 + down * 32 * D;
}

/* gpu_moved_by_groups() by one address, where a row's chunks are bits of their own. */
template <int D> GPU_FN int gpu_moved(int at, int down, int across) {
    return D & (D - 1) ? gpu_moved_by_groups<D>(at, down, across)
                       : (at ^ 32 * across) + down * 32 * D;
}

template <int D> GPU_FN uint16_t *gpu_swizzled_element(char *tile, int row, int i) {
    return (uint16_t *)(tile + gpu_swizzled<D>(row, i / 8)) + i % 8;
}

/* Two elements of a row that lie side by side. */
template <int D> GPU_FN void gpu_store_pair(char *tile, int row, int i, uint32_t two) {
    *(uint32_t *)(void *)gpu_swizzled_element<D>(tile, row, i) = two;
}

#endif
