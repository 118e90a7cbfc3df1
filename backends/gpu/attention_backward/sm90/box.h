/* What groups that multiply do with boxes: weights, masks, products, results. */
#ifndef ROPEKIT_GPU_ATTENTION_BACKWARD_SM90_BOX_H
#define ROPEKIT_GPU_ATTENTION_BACKWARD_SM90_BOX_H

#include "backends/gpu/attention/sm90/angles.h"
#include "backends/gpu/attention_backward/sm90/tile.h"

/* --- weights --- */

template <int DTYPE> GPU_FN float2 sm90_two_of(uint32_t x) {
    if (DTYPE == ROPE_BF16)
        return make_float2(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u));
    float2 two;
    asm("{ .reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b; }"
        : "=f"(two.x), "=f"(two.y)
        : "r"(x));
    return two;
}

/* What gpu_tanh() is below SM90_TANH_NEAR, with its bits. */
#define SM90_TANH_NEAR 0.625f
GPU_FN float sm90_tanh_near(float x) {
    const float z = x * x;
    float p = fmaf(z, -0x1.76abf6p-8f, 0x1.5256cep-6f);
    p = fmaf(z, p, -0x1.b84448p-5f);
    p = fmaf(z, p, 0x1.110768p-3f);
    p = fmaf(z, p, -0x1.555534p-2f);
    return fmaf(x * z, p, x);
}

/* From scores to tanh. Where a warp's are all near 0, they have the same bits by less. */
GPU_FN void sm90_tanh(float (&s)[32], float to_cap) {
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < 32; i++) {
        s[i] *= to_cap;
        largest = fmaxf(largest, fabsf(s[i]));
    }
    if (__any_sync(~0u, largest >= SM90_TANH_NEAR)) {
#pragma unroll
        for (int i = 0; i < 32; i++)
            s[i] = gpu_tanh(s[i]);
    } else {
#pragma unroll
        for (int i = 0; i < 32; i++)
            s[i] = sm90_tanh_near(s[i]);
    }
}

/* By what a cap multiplies the gradient of a score. */
GPU_FN float sm90_slope(float tanh) {
    return fmaf(-tanh, tanh, 1.0f);
}

/* Weights of a joint tile to f16 and back, and what they are multiplied by. */
GPU_FN void sm90_round(float (&x)[32], float (&dp)[32]) {
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
        const float2 two = sm90_two_of<ROPE_F16>(sm90_join<ROPE_F16>(x[i], x[i + 1]));
        x[i] = two.x;
        x[i + 1] = two.y;
        dp[i] *= SM90_JOINT_LESS;
        dp[i + 1] *= SM90_JOINT_LESS;
    }
}

/* --- masks --- */

/* Bits of columns below `column` of those that a thread has of a row: 8 n, 8 n + 1 for n below 8.
 */
GPU_FN uint32_t sm90_box_columns(int column) {
    const int count = max(min((column >> 3) * 2 + min(column & 7, 2), 16), 0);
    return (1u << count) - 1;
}

/* Bits of the columns [x, y) that a thread has of its two rows, 16 each. */
GPU_FN uint32_t sm90_seen_columns(const int2 (&seen)[2]) {
    const int base = (int)threadIdx.x % 4 * 2;
    uint32_t bits[2];
#pragma unroll
    for (int h = 0; h < 2; h++)
        bits[h] = sm90_box_columns(seen[h].y - base) & ~sm90_box_columns(seen[h].x - base);
    return bits[0] | bits[1] << 16;
}

/* Numbers of columns that are not seen are 0, whatever they were. */
GPU_FN void sm90_hide(float (&x)[32], uint32_t seen) {
#pragma unroll
    for (int i = 0; i < 32; i++)
        if (!(seen >> ((i >> 1 & 1) * 16 + (i >> 2) * 2 + (i & 1)) & 1))
            x[i] = 0.0f;
}

/* Weights, two by two, that are not seen are 0. */
GPU_FN void sm90_hide_weights(uint32_t (&x)[16], uint32_t seen) {
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const uint32_t two = seen >> ((i & 1) * 16 + (i >> 1) * 2);
        x[i] &= (two & 1 ? 0xffffu : 0) | (two & 2 ? 0xffff0000u : 0);
    }
}

/* --- what is not finite, and its products with weights of 0 --- */

/* Lists a tile, or tells of its sequence the second time, if a thread of a warp has something. */
template <int CAREFUL>
GPU_FN void sm90_tell(const sm90_backward_turns &turns, const sm90_backward_tile &t, int32_t *told,
                      int bad) {
    if (!__any_sync(~0u, bad) || threadIdx.x % 32)
        return;
    if (CAREFUL)
        turns.again[t.sequence] = 0;
    else if (atomicExch(told, t.number) != t.number)
        turns.list[atomicAdd(turns.listed, 1u) + 1] = t.number;
}

/* Of all threads that multiply. */
GPU_FN void sm90_consumers_barrier(void) {
    asm volatile("bar.sync 6, 256;" ::: "memory");
}

/* Where the chunk of 16 bytes i of a row lies, of DIM / 8 in a box and as many in another one. */
template <int DIM> GPU_FN uint32_t sm90_chunk_of(uint32_t box, uint32_t other, int row, int i) {
    return (i < DIM / 8 ? box : other) + (uint32_t)(i % (DIM / 8) / 8) * (SM90_BOX_BYTES / 2) +
           (uint32_t)row * 128 + (uint32_t)((i ^ row) & 7) * 16;
}

/* Puts zeros for rows of two boxes of which some element is not finite. Bits of such rows. */
template <int DTYPE, int DIM>
GPU_FN uint2 sm90_clean(const sm90_backward_block &b, uint32_t box, uint32_t other) {
    const int thread = (int)threadIdx.x - 128, row = thread / 4;
    uint32_t bad = 0;
    sm90_consumers_barrier();
    if (thread < 2)
        b.header->bad[thread] = 0;
    sm90_consumers_barrier();
#pragma unroll 1
    for (int i = thread % 4; i < DIM / 4; i += 4) {
        const uint4 x = sm90_read(sm90_chunk_of<DIM>(box, other, row, i));
        bad |= sm90_nonfinite<DTYPE>(x.x) | sm90_nonfinite<DTYPE>(x.y) |
               sm90_nonfinite<DTYPE>(x.z) | sm90_nonfinite<DTYPE>(x.w);
    }
    bad |= __shfl_xor_sync(~0u, bad, 1);
    bad |= __shfl_xor_sync(~0u, bad, 2);
    if (bad) {
        if (thread % 4 == 0)
            atomicOr(&b.header->bad[row / 32], 1u << row % 32);
#pragma unroll 1
        for (int i = thread % 4; i < DIM / 4; i += 4)
            sm90_write(sm90_chunk_of<DIM>(box, other, row, i), {0, 0, 0, 0});
    }
    sm90_writes_known();
    sm90_consumers_barrier();
    return make_uint2(b.header->bad[0], b.header->bad[1]);
}

/* Whether the thread's rows see such a row: bit 0 and bit 1. */
GPU_FN int sm90_meets(uint32_t seen, uint2 bad) {
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const int c = (i >> 1) * 8 + (int)threadIdx.x % 4 * 2 + (i & 1);
        bits |= ((c < 32 ? bad.x : bad.y) >> c % 32 & 1) << i;
    }
    return ((seen & bits) != 0) | ((seen >> 16 & bits) != 0) << 1;
}

/* Gradients of rows that see nothing are 0, and not -0. */
template <int N> GPU_FN void sm90_clear_unseen(float (&x)[N], int2 first, int2 second) {
    const int none = (first.x >= first.y) | (second.x >= second.y) << 1;
    if (!__any_sync(~0u, none))
        return;
#pragma unroll
    for (int i = 0; i < N; i++)
        if (none >> (i >> 1 & 1) & 1)
            x[i] = 0.0f;
}

/* Gradients of rows that have met one are no numbers. */
template <int N> GPU_FN void sm90_spoil(float (&x)[N], int met) {
    met |= __shfl_xor_sync(~0u, met, 1);
    met |= __shfl_xor_sync(~0u, met, 2);
#pragma unroll
    for (int i = 0; i < N; i++)
        if (met >> (i >> 1 & 1) & 1)
            x[i] = NAN;
}

/* --- products --- */

/* d = a b', both of 64 rows of a head in shared memory. */
template <int DTYPE, int DIM> GPU_FN void sm90_box_scores(float (&d)[32], uint32_t a, uint32_t b) {
#pragma unroll
    for (int i = 0; i < DIM / 16; i++)
        sm90_multiply<DTYPE>(d, sm90_descriptor(a + (i / 4) * 512 + (i % 4) * 2),
                             sm90_descriptor(b + (i / 4) * 512 + (i % 4) * 2), i != 0);
}

/* The same, of an a in registers. */
template <int DTYPE, int N>
GPU_FN void sm90_box_scores(float (&d)[32], const uint32_t (&a)[N], uint32_t b) {
#pragma unroll
    for (int i = 0; i < N / 4; i++)
        sm90_multiply_columns<DTYPE>(d, a + 4 * i, sm90_descriptor(b + (i / 4) * 512 + (i % 4) * 2),
                                     i != 0);
}

/* sums += weights b, 64 of each. */
template <int DTYPE, int N>
GPU_FN void sm90_box_add(float (&sums)[N], const uint32_t (&weights)[16], uint32_t b, int adds) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        sm90_multiply<DTYPE>(sums, weights + 4 * i, sm90_descriptor(b + i * 128),
                             i != 0 ? 1 : adds);
}

/* A box in shared memory as products are told of it: elements of a head side by side, or rows. They
 * have no room for the bits of an address that tell blocks of a cluster apart. */
GPU_FN uint32_t sm90_box_matrix(uint32_t at) {
    return sm90_matrix(at & 0x3ffff, 16);
}
GPU_FN uint32_t sm90_box_values(uint32_t at) {
    return sm90_matrix(at & 0x3ffff, SM90_BOX_BYTES / 2);
}

GPU_FN void sm90_read_matrices(uint32_t from, uint32_t *x) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(from)
                 : "memory");
}

/* 64 rows of a box as left operands of products. */
template <int N> GPU_FN void sm90_read_box(uint32_t box, uint32_t (&x)[N]) {
    const int thread = (int)threadIdx.x & 127, lane = thread % 32, r = thread / 32 * 16 + lane % 16,
              c = lane / 16;
#pragma unroll
    for (int i = 0; i < N / 4; i++)
        sm90_read_matrices(box + (uint32_t)(i >> 2) * (SM90_BOX_BYTES / 2) + (uint32_t)r * 128 +
                               (uint32_t)(((2 * i + c) ^ r) & 7) * 16,
                           x + 4 * i);
}

/* --- stages --- */

struct sm90_stage {
    int n;
    uint32_t parity;
};

GPU_FN void sm90_next_stage(sm90_stage &stage) {
    if (++stage.n == SM90_STAGES) {
        stage.n = 0;
        stage.parity ^= 1;
    }
}

/* --- results --- */

/* Writes 64 rows of sums, by scale and rounded, to a box of shared memory; zeros where nothing was
 * `added`. Whether some are not finite. */
template <int DTYPE, int N>
GPU_FN int sm90_write_box(uint32_t box, const float (&sums)[N], float scale, int added) {
    const int thread = (int)threadIdx.x & 127, lane = thread % 32, r = thread / 32 * 16 + lane % 16,
              c = lane / 16;
    uint32_t largest = 0;
#pragma unroll
    for (int j = 0; j < N / 4; j += 2) {
        uint32_t two[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
            two[k] = added ? sm90_join<DTYPE>(sums[4 * j + 2 * k] * scale,
                                              sums[4 * j + 2 * k + 1] * scale)
                           : 0;
#pragma unroll
        for (int k = 0; k < 4; k++)
            largest = sm90_largest<DTYPE>(largest, two[k]);
        sm90_store_matrices(box + (uint32_t)(j >> 3) * (SM90_BOX_BYTES / 2) + (uint32_t)r * 128 +
                                (uint32_t)(((j + c) ^ r) & 7) * 16,
                            two[0], two[1], two[2], two[3]);
    }
    return sm90_nonfinite<DTYPE>(largest) != 0;
}

/* Where a box of results goes: its first token and head, and how many of its rows are there. */
struct sm90_target {
    sm90_box at;
    int pack, rows;
};

/* Rotates a box back, with the bits of rope_apply. A thread has 8 pairs of some rows side by side,
 * whose angles and elements are read ahead of the first one's rotation. */
template <int DTYPE, int DIM>
GPU_FN void sm90_rotate_box(uint32_t box, const sm90_rotation &r, const sm90_target &to) {
    enum { ROWS = DIM == 128 ? 4 : 2 };
    const int thread = (int)threadIdx.x & 127, eights = r.pairs / 8, group = thread / eights,
              c = thread - group * eights, groups = 128 / eights, one = r.from / 8 + c,
              rows = min(to.rows, (int)SM90_BOX), step = r.pairs / 2;
    const float4 *angles = (const float4 *)(const void *)r.angles +
                           (int64_t)step * (to.at.row * (int64_t)r.row_step + to.at.token) + c * 2;
#pragma unroll 1
    for (int first = group * ROWS; group < groups && first < rows; first += groups * ROWS) {
        sm90_angles m[ROWS];
        uint4 x[ROWS], y[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) /* rows of a token share its angles */
            if (i && (first + i) & ((1 << to.pack) - 1))
                m[i] = m[i - 1];
            else
                m[i] = sm90_read_angles(angles + (min(first + i, rows - 1) >> to.pack) * step,
                                        r.pairs);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            x[i] = sm90_read(sm90_chunk_of<DIM>(box, box, first + i, one));
            y[i] = sm90_read(sm90_chunk_of<DIM>(box, box, first + i, one + eights));
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            sm90_rotate_eight<DTYPE>(m[i], x[i], y[i]);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            sm90_write(sm90_chunk_of<DIM>(box, box, first + i, one), x[i]);
            sm90_write(sm90_chunk_of<DIM>(box, box, first + i, one + eights), y[i]);
        }
    }
}

/* Stores a box that a group has written to shared memory; a barrier of the group is behind it where
 * it does so by all of its threads: some rows are not there, or it moves no vectors. */
template <int DTYPE, int DIM>
GPU_FN void sm90_store_box(uint32_t box, const sm90_gradient &g, const CUtensorMap *map,
                           int consumer, const sm90_target &to) {
    const int thread = (int)threadIdx.x & 127;
    if (!g.data)
        return;
    if (g.rotation.pairs) {
        sm90_rotate_box<DTYPE, DIM>(box, g.rotation, to);
        sm90_writes_known();
        sm90_group_barrier(consumer);
    }
    if (g.has_map && to.rows >= SM90_BOX) {
        if (thread == 0)
            sm90_store_heads(box, map, to.at, DIM / 64, SM90_BOX);
        return;
    }
#pragma unroll 1
    for (int i = thread; i < min(to.rows, (int)SM90_BOX) * g.chunks; i += 128) {
        const int row = i / g.chunks, c = i % g.chunks;
        const uint4 x = sm90_read(sm90_chunk_of<DIM>(box, box, row, c));
        const uint32_t twos[4] = {x.x, x.y, x.z, x.w};
        uint16_t *data = (uint16_t *)g.data + to.at.row * g.stride[0] +
                         (to.at.token + (row >> to.pack)) * g.stride[1] +
                         (to.at.head + (row & ((1 << to.pack) - 1))) * g.stride[2];
        if (g.has_map) {
            ((uint4 *)(void *)data)[c] = x;
            continue;
        }
#pragma unroll
        for (int e = 0; e < 8; e++)
            data[(8 * c + e) * g.stride[3]] = (uint16_t)(twos[e / 2] >> e % 2 * 16);
    }
    sm90_group_barrier(consumer);
}

#endif
