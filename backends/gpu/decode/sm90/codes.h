/* Caches of 8 bits. Copies bring codes, which become elements in the registers of a product, each
 * times its scale and rounded. */
#ifndef ROPEKIT_GPU_DECODE_SM90_CODES_H
#define ROPEKIT_GPU_DECODE_SM90_CODES_H

#include "backends/gpu/cache_element.h"
#include "backends/gpu/decode/sm90/rows.h"

/* The integer of a word's byte I, its sign turned: as the last digits of 2^23 and 128 more. */
template <int I> GPU_FN float decode_i8(uint32_t turned) {
    return rope_bits_float(__byte_perm(turned, 0x4b000000u, 0x7440 + I)) - 8388736.0f;
}

/* Numbers of a word's codes. */
template <int STORE> GPU_FN void decode_numbers(uint32_t codes, float2 (&x)[2]) {
    if constexpr (STORE == ROPE_I8) {
        const uint32_t turned = codes ^ 0x80808080u;
        x[0] = {decode_i8<0>(turned), decode_i8<1>(turned)};
        x[1] = {decode_i8<2>(turned), decode_i8<3>(turned)};
    } else {
        x[0] = gpu_split_8bit(STORE, codes);
        x[1] = gpu_split_8bit(STORE, codes >> 16);
    }
}

/* Four elements of a key. */
template <int DTYPE, int STORE>
GPU_FN void decode_key(uint32_t codes, float by, uint32_t &low, uint32_t &high) {
    float2 x[2];
    decode_numbers<STORE>(codes, x);
    low = gpu_join<DTYPE>(x[0].x * by, x[0].y * by);
    high = gpu_join<DTYPE>(x[1].x * by, x[1].y * by);
}

/* Two elements each of two values, of pairs of one element. */
template <int DTYPE, int STORE>
GPU_FN void decode_values(uint32_t codes, float2 by, uint32_t &first, uint32_t &second) {
    float2 x[2];
    decode_numbers<STORE>(codes, x);
    first = gpu_join<DTYPE>(x[0].x * by.x, x[1].x * by.y);
    second = gpu_join<DTYPE>(x[0].y * by.x, x[1].y * by.y);
}

/* --- scales --- */

/* Has the scales of a chunk's first `rows` keys copied; `token` of its page is its first. */
GPU_FN void decode_copy_scales(const sm90_decode_call *c, float *to, int head, int token, int page,
                               int rows) {
    const int lane = decode_lane(), row = lane % SM90_DECODE_CHUNK;
    const sm90_decode_cache *cache = lane < SM90_DECODE_CHUNK ? &c->k_cache : &c->v_cache;
    const float *from = cache->scales + page * cache->scale_page +
                        (token + row) * cache->scale_slot + head * cache->scale_head;
    if (row < rows)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(decode_address(to + lane)),
                     "l"(from)
                     : "memory");
}

/* Scales of caches without any. */
template <class S> GPU_FN void decode_scales_begin(const decode_block<S> &b, int warp) {
    for (int i = 0; i < S::STAGES; i++)
        decode_chunk_of(b, warp, i).scales[decode_lane()] = 1;
}

/* --- products --- */

/* Products of keys and queries: as decode_keys_times does, of codes. A lane has 16 elements of a
 * key side by side, so that a product's elements are in their order. */
template <int DTYPE, class S, int STORE>
GPU_FN void decode_codes_times(const decode_chunk &at, const char *queries, float (&s)[S::TILES][4],
                               float (&odd)[S::TILES][4]) {
    const int lane = decode_lane(), row = decode_row_of<S>(lane / 4);
    const float by[2] = {at.scales[row], at.scales[row + 8]};
#pragma unroll 1 /* registers are few */
    for (int j = 0; j < S::STEPS / 4; j++) {
        const uint4 one = sm90_read(decode_at(at.keys, row, j * 4 + lane % 4)),
                    two = sm90_read(decode_at(at.keys, row + 8, j * 4 + lane % 4));
        const uint32_t first[4] = {one.x, one.y, one.z, one.w},
                       second[4] = {two.x, two.y, two.z, two.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t x[4];
            decode_key<DTYPE, STORE>(first[i], by[0], x[0], x[2]);
            decode_key<DTYPE, STORE>(second[i], by[1], x[1], x[3]);
#pragma unroll
            for (int t = 0; t < S::TILES; t++) {
                uint32_t query[2];
                decode_read_query<S>(queries, t, j * 4 + i, query);
                gpu_mma<DTYPE>(i % 2 ? odd[t] : s[t], x, query);
            }
        }
    }
}

/* Adds weights times values of codes: rows 2 n and 2 n + 1 of 16 elements are row n and n + 8 of a
 * product. */
template <int DTYPE, class S, int STORE>
GPU_FN void decode_add_codes(const decode_chunk &at, const uint32_t (&weights)[S::TILES][2],
                             uint2 kept, decode_rows<S> &rows) {
    const int lane = decode_lane(), row = decode_row_of<S>(lane % 16), column = lane / 16;
    float2 by[2];
#pragma unroll
    for (int h = 0; h < 2; h++)
        by[h] = {at.scales[SM90_DECODE_CHUNK + decode_row_of<S>(h * 8 + lane % 4 * 2)],
                 at.scales[SM90_DECODE_CHUNK + decode_row_of<S>(h * 8 + lane % 4 * 2 + 1)]};
#pragma unroll
    for (int i = 0; i < S::STEPS; i += 2) {
        uint32_t codes[4];
        decode_transposed(codes, decode_at(at.values, row, i + column));
#pragma unroll
        for (int j = 0; j < 2; j++) {
            uint32_t x[4];
            decode_values<DTYPE, STORE>(codes[2 * j], by[0], x[0], x[1]);
            decode_values<DTYPE, STORE>(codes[2 * j + 1], by[1], x[2], x[3]);
            decode_keep(x, kept);
#pragma unroll
            for (int t = 0; t < S::TILES; t++)
                gpu_mma<DTYPE>(rows.out[t][i + j], x, weights[t]);
        }
    }
}

#endif
