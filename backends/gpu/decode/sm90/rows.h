/* Rows of an item in the registers of a warp, and what its products read of shared memory. */
#ifndef ROPEKIT_GPU_DECODE_SM90_ROWS_H
#define ROPEKIT_GPU_DECODE_SM90_ROWS_H

#include "backends/gpu/attention/products.h"
#include "backends/gpu/decode/sm90/items.h"
#include "backends/gpu/tile/mma.h"

/* A chunk in shared memory, with scales of its keys and then of its values. */
struct decode_chunk {
    uint32_t keys, values;
    float *scales;
};

template <class S>
GPU_FN decode_chunk decode_chunk_of(const decode_block<S> &b, int warp, int slot) {
    const int at = warp * S::STAGES + slot;
    const uint32_t keys = b.ring + (uint32_t)at * S::SLOT;
    return {keys, keys + S::CHUNK_BYTES, b.scales + at * 2 * SM90_DECODE_CHUNK};
}

GPU_FN void decode_matrices(uint32_t (&r)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

GPU_FN void decode_transposed(uint32_t (&r)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* Of an operand's four words the bits of two kinds of keys. */
GPU_FN void decode_keep(uint32_t (&x)[4], uint2 kept) {
    x[0] &= kept.x;
    x[2] &= kept.y;
    x[1] &= kept.x;
    x[3] &= kept.y;
}

/* The row of a chunk that a product has as its key: of codes, keys 1, 3, 5 and 7 are rows 4 to 7,
 * so that no two of eight lanes read the same banks. */
template <class S> GPU_FN int decode_row_of(int key) {
    return S::CODES ? (key & 8) | (key & 1) << 2 | (key & 7) >> 1 : key;
}

GPU_FN uint32_t decode_transpose(uint32_t x) {
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* The rows of an item as a warp has them: a lane has elements lane / 4 (and 8 more) of each 16, of
 * rows lane % 4 * 2 and the next of each tile. */
template <class S> struct decode_rows {
    uint32_t query[S::REREADS ? 1 : S::STEPS][2];
    float out[S::TILES][S::STEPS][4];
    float top[S::TILES][2], sum[S::TILES][2];
};

/* Where a lane's elements of queries are: two and two more of each 16, or as codes lie. */
template <class S> GPU_FN const char *decode_queries_of(const decode_block<S> &b, int n) {
    const int lane = decode_lane(), row = n % SM90_DECODE_AHEAD * S::TILES * 8 + lane / 4;
    return b.queries + row * S::QUERY_BYTES + lane % 4 * (S::CODES ? 32 : 4);
}

template <class S>
GPU_FN void decode_read_query(const char *from, int tile, int i, uint32_t (&query)[2]) {
    const char *at =
        from + tile * 8 * S::QUERY_BYTES + (S::CODES ? i / 4 * 128 + i % 4 * 8 : i * 32);
    query[0] = *(const uint32_t *)(const void *)at;
    query[1] = *(const uint32_t *)(const void *)(at + (S::CODES ? 4 : 16));
}

#endif
