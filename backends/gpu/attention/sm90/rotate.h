/* The rotation of queries in shared memory, with the bits of rope_apply. */
#ifndef ROPEKIT_GPU_ATTENTION_SM90_ROTATE_H
#define ROPEKIT_GPU_ATTENTION_SM90_ROTATE_H

#include "backends/gpu/attention/sm90/tile.h"
#include "common/math/angle.h"
#include "common/math/rotate.h"

/* --- angles --- */

/* Four cosines and sines of pairs side by side. */
struct sm90_angles {
    float4 c, s;
};

GPU_FN int64_t sm90_position(const sm90_positions &p, int64_t row) {
    const int64_t token = row % p.tokens, at = row / p.tokens * p.id_row + token * p.id_token;
    const int64_t position = !p.ids   ? token
                             : p.wide ? ((const int64_t *)p.ids)[at]
                                      : ((const int32_t *)p.ids)[at];
    return rope_sum(position, p.offset);
}

__global__ void __launch_bounds__(SM90_ANGLE_THREADS)
    gpu_attention_sm90_angles(GPU_PARAMETER sm90_positions p) {
    const int64_t n = (int64_t)blockIdx.x * SM90_ANGLE_THREADS + threadIdx.x;
    gpu_wait_for_last();
    gpu_let_next_start();
    if (n < 2 && p.tickets)
        p.tickets[n] = 0;
    if (n >= p.count)
        return;
    const int64_t position = sm90_position(p, n / p.fours);
    float c[4], s[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const rope_cos_sin a =
            rope_cos_sin_turns((uint64_t)position * p.turns[n % p.fours * 4 + i]);
        c[i] = a.c * p.factor;
        s[i] = p.negative ? -(a.s * p.factor) : a.s * p.factor;
    }
    float4 *to = (float4 *)(void *)p.angles + n / p.fours * p.fours * 2 + n % p.fours;
    to[0] = {c[0], c[1], c[2], c[3]};
    to[p.fours] = {s[0], s[1], s[2], s[3]};
}

/* --- rows --- */

/* Where element `element`, a multiple of 4, of a row lies. */
GPU_FN uint32_t sm90_element(uint32_t queries, int row, int element) {
    return queries + sm90_chunk(row, element >> 3) + (uint32_t)(element & 4) * 2;
}

/* Two pairs: elements of a and of b at the same place. */
template <int DTYPE> GPU_FN void sm90_rotate_two(float2 c, float2 s, uint32_t &a, uint32_t &b) {
    const float2 x = gpu_split<DTYPE>(a), y = gpu_split<DTYPE>(b);
    const rope_pair one = rope_rotate({x.x, y.x}, {c.x, s.x, c.x, s.x}),
                    two = rope_rotate({x.y, y.y}, {c.y, s.y, c.y, s.y});
    a = gpu_join<DTYPE>(one.x1, two.x1);
    b = gpu_join<DTYPE>(one.x2, two.x2);
}

/* Angles of the queries of a tile. */
GPU_FN const float4 *sm90_angles_of(const sm90_block &b, const sm90_tile *t) {
    const sm90_rotation &r = b.schedule->rotation;
    return (const float4 *)(const void *)r.angles +
           (int64_t)(r.pairs / 2) * (t->q_row * (int64_t)r.row_step + t->q_token);
}

/* Reads them, so that those who rotate find them in the L1. */
GPU_FN void sm90_fetch_angles(const sm90_block &b, const sm90_tile *t, int thread, int threads) {
    const int count = ((t->rows - 1 >> b.schedule->pack) + 1) * b.schedule->rotation.pairs / 2;
    const float4 *angles = sm90_angles_of(b, t);
#pragma unroll 1
    for (int n = 8 * thread; n < count; n += 8 * threads) /* lines of 128 bytes */
        asm volatile("prefetch.global.L1 [%0];" ::"l"(angles + n));
}

/* Rows that a thread rotates. */
enum { SM90_ROTATED = 8 };

/* Four pairs of rows first.. of a tile, each of whose queries has 1 << pack rows. angles: of the
 * pairs, from a query's to the next in `pairs` floats. */
template <int DTYPE>
GPU_FN void sm90_rotate_rows(const sm90_rotation &r, const float4 *angles, int pack, int last,
                             uint32_t queries, int first, int at) {
    sm90_angles m;
#pragma unroll
    for (int i = 0; i < SM90_ROTATED; i++) {
        const uint32_t one = sm90_element(queries, first + i, at),
                       two = sm90_element(queries, first + i, at + r.pairs);
        if (i == 0 || (i & ((1 << pack) - 1)) == 0) {
            const float4 *from = angles + min((first + i) >> pack, last) * (r.pairs / 2);
            m = {__ldg(from), __ldg(from + r.pairs / 4)};
        }
        uint2 x = sm90_read_two(one), y = sm90_read_two(two);
        sm90_rotate_two<DTYPE>({m.c.x, m.c.y}, {m.s.x, m.s.y}, x.x, y.x);
        sm90_rotate_two<DTYPE>({m.c.z, m.c.w}, {m.s.z, m.s.w}, x.y, y.y);
        sm90_write_two(one, x);
        sm90_write_two(two, y);
    }
}

/* A consumer's rows of a tile of queries, which ends with its barrier. */
template <int DTYPE>
GPU_FN void sm90_rotate(const sm90_block &b, const sm90_tile *t, uint32_t queries, int consumer) {
    const sm90_rotation &r = b.schedule->rotation;
    const int pack = b.schedule->pack, fours = r.pairs / 4, last = (t->rows - 1) >> pack;
    const float4 *angles = sm90_angles_of(b, t);
#pragma unroll 1
    for (int n = (int)threadIdx.x & 127; n < fours * 64 / SM90_ROTATED; n += 128) {
        const int four = n % fours;
        sm90_rotate_rows<DTYPE>(r, angles + four, pack, last, queries,
                                consumer * 64 + n / fours * SM90_ROTATED, r.from + 4 * four);
    }
    sm90_writes_known();
    sm90_group_barrier(consumer);
}

#endif
