/*
 * Latent attention of few queries: keys of 576 elements, of which the value is the first 512, in
 * pages of a cache, or gathered to rows. A block has 64 heads of one query and a split of its keys.
 * One warp group multiplies queries by a tile of keys and writes weights over the elements of keys
 * that are not of values; two add weights times half the elements of values each; a warp of the
 * last one copies.
 */
#ifndef ROPEKIT_GPU_ATTENTION_SM90_LATENT_H
#define ROPEKIT_GPU_ATTENTION_SM90_LATENT_H

#include "backends/gpu/attention/sm90/kernels.h"
#include "backends/gpu/attention/sm90/wgmma.h"
#include "backends/gpu/attention/split_keys.h"

enum {
    SM90_LATENT_PARTS = SM90_LATENT_DIM / 64,
    SM90_LATENT_COLUMNS = SM90_LATENT_VALUE_DIM / 2, /* of a group that adds values */
    SM90_LATENT_PART = SM90_LATENT_KEYS * 128,       /* bytes of 64 elements of a tile */
    SM90_LATENT_TILE = SM90_LATENT_PARTS * SM90_LATENT_PART,
    SM90_LATENT_WEIGHTS = (SM90_LATENT_PARTS - 1) * SM90_LATENT_PART /* where they lie in a tile */
};

/* What a block has: heads of a query and keys of a split that it sees, from tile `base` on. parts:
 * splits of the sequence, 0 where the block has none of them. */
struct sm90_latent_item {
    int32_t found, alone; /* alone: there is no other split */
    int32_t sequence, query, head, key_head, rows, part, parts;
    int32_t base, begin, end;
};

/* The three ahead of the last are of stage n % 2: its keys are copied, its weights written, its
 * products done. */
struct sm90_latent_header {
    uint64_t queries[1], full[2], weighed[2], empty[2], ended[1];
    float rescale[2][SM90_LATENT_ROWS]; /* of what was added before a tile */
    float factor[SM90_LATENT_ROWS];     /* what elements of rows are multiplied by */
    rope_attention_sequence s;
    sm90_latent_item item;
};
static_assert(sizeof(sm90_latent_header) <= SM90_HEADER, "in its room");

struct sm90_latent_block {
    const rope_attention_problem *p;
    const rope_attention_call *call;
    const gpu_attention_parts *parts;
    sm90_latent_header *header;
    uint32_t queries, tiles;
    int box; /* keys of a copy */
    sm90_latent_item at;
};

/* Tiles of keys. */
GPU_FN int sm90_latent_count(const sm90_latent_block &b) {
    return b.at.begin < b.at.end ? (b.at.end + SM90_LATENT_KEYS - 1) / SM90_LATENT_KEYS : 0;
}

/* The phase of stage n % 2 that belongs to tile n. */
GPU_FN uint32_t sm90_latent_phase(int n) {
    return (uint32_t)n >> 1 & 1;
}

GPU_FN uint32_t sm90_latent_tile(const sm90_latent_block &b, int n) {
    return b.tiles + (uint32_t)(n & 1) * SM90_LATENT_TILE;
}

/* --- copies --- */

/* The page of key `at`, or where keys are gathered to ROWS its sequence, as the row of its box, and
 * the token. */
template <bool ROWS> GPU_FN sm90_box sm90_latent_find(const sm90_latent_block &b, int at) {
    if (ROWS)
        return {b.at.key_head, at, (int)b.header->s.index, 0};
    const int size = (int)b.p->page_size, page = at / size;
    const int64_t row =
        rope_index_of(b.p->table_wide, b.call->block_table,
                      b.header->s.index * b.call->table_stride[0] + page * b.call->table_stride[1]);
    return {b.at.key_head, at - page * size, (int)row, 0};
}

/* A warp copies tile n, each lane some boxes; with boxes of all keys a copy has all elements. */
template <bool ROWS>
GPU_FN void sm90_latent_copy(const sm90_latent_block &b, const CUtensorMap *keys, int n) {
    const int lane = (int)threadIdx.x % 32, first = n * SM90_LATENT_KEYS,
              count = (min(b.at.end - first, (int)SM90_LATENT_KEYS) + b.box - 1) / b.box,
              parts = b.box == SM90_LATENT_KEYS ? 1 : (int)SM90_LATENT_PARTS;
    const uint32_t full = SM90_BARRIER(b, full, n & 1), to = sm90_latent_tile(b, n);
    sm90_box at = {0, 0, 0, 0};
    if (lane < count)
        at = sm90_latent_find<ROWS>(b, b.at.base + first + lane * b.box);
    if (n >= 2)
        sm90_wait(SM90_BARRIER(b, empty, n & 1), sm90_latent_phase(n - 2));
    if (lane == 0)
        sm90_expect(full, (uint32_t)(count * b.box * SM90_LATENT_DIM * 2));
    __syncwarp();
    for (int first_copy = 0; first_copy < count * parts; first_copy += 32) {
        const int i = first_copy + lane, box = i % count, part = i / count;
        const sm90_box from = {b.at.key_head, __shfl_sync(~0u, at.token, box),
                               __shfl_sync(~0u, at.row, box), part * 64};
        if (part < parts)
            sm90_load(to + (uint32_t)(part * SM90_LATENT_PART + box * b.box * 128), keys, full,
                      from);
    }
}

template <bool ROWS = false>
GPU_FN void sm90_latent_load(const sm90_latent_block &b, const CUtensorMap *queries,
                             const CUtensorMap *keys) {
    const rope_attention_sequence *s = &b.header->s;
    const uint32_t known = SM90_BARRIER(b, queries, 0);
    if (threadIdx.x % 32 == 0) {
        sm90_expect(known, SM90_LATENT_TILE);
        sm90_load_heads(b.queries, queries, known,
                        {b.at.head, (int)s->q_first + b.at.query, (int)s->q_row, 0},
                        SM90_LATENT_PARTS, SM90_LATENT_ROWS);
    }
    for (int n = 0; n < sm90_latent_count(b); n++)
        sm90_latent_copy<ROWS>(b, keys, n);
}

/* --- scores --- */

template <int DTYPE>
GPU_FN void sm90_latent_score(float (&s)[32], uint32_t queries, uint32_t keys) {
    sm90_products_begin();
#pragma unroll
    for (int i = 0; i < SM90_LATENT_DIM / 16; i++) {
        const uint32_t at = (uint32_t)(i / 4 * (SM90_LATENT_PART / 16) + i % 4 * 2);
        sm90_multiply<DTYPE>(s, sm90_descriptor(queries + at), sm90_descriptor(keys + at), i != 0);
    }
    sm90_products_end();
    sm90_products_wait<0>();
    sm90_settle(s);
}

/* Scores of keys outside [begin, end) of the tile are -infinity. */
GPU_FN void sm90_latent_hide(float (&s)[32], int begin, int end) {
    const int column = (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 32; i++) {
        const int key = column + i / 4 * 8 + (i & 1);
        if (key < begin || key >= end)
            s[i] = -INFINITY;
    }
}

/* Values of those keys are 0, whatever was copied or was there before. */
GPU_FN void sm90_latent_clear(uint32_t tile, int begin, int end) {
    enum { CHUNKS = SM90_LATENT_VALUE_DIM / 8 };
    for (int i = (int)threadIdx.x; i < SM90_LATENT_KEYS * CHUNKS; i += 128) {
        const int key = i / CHUNKS, chunk = i % CHUNKS;
        if (key < begin || key >= end)
            sm90_write(tile + (uint32_t)(chunk / 8 * SM90_LATENT_PART + key * 128 + chunk % 8 * 16),
                       {0, 0, 0, 0});
    }
}

/* Largest scores and sums of two rows, the latter a thread's own. */
struct sm90_latent_sums {
    float most[2], sum[2];
};

/* The least that counts as a row's largest score. */
constexpr float SM90_LATENT_LEAST = -1e30f;

/* A row's maximum moves where it grows by more than 2^8, as in softmax.h. */
GPU_FN void sm90_latent_weigh(float (&s)[32], sm90_latent_sums &sums, float (&factor)[2],
                              float unit) {
    float x[2] = {s[0], s[2]}, minus[2];
#pragma unroll
    for (int i = 0; i < 32; i++)
        x[i >> 1 & 1] = fmaxf(x[i >> 1 & 1], s[i]);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        x[h] = fmaxf(x[h], __shfl_xor_sync(~0u, x[h], 1));
        x[h] = fmaxf(fmaxf(x[h], __shfl_xor_sync(~0u, x[h], 2)), sums.most[h]);
        if ((x[h] - sums.most[h]) * unit <= 8.0f)
            x[h] = sums.most[h];
        factor[h] = sm90_exp2((sums.most[h] - x[h]) * unit);
        sums.most[h] = x[h];
        sums.sum[h] *= factor[h];
        minus[h] = -(x[h] * unit);
    }
#pragma unroll
    for (int i = 0; i < 32; i++) {
        s[i] = sm90_exp2(fmaf(s[i], unit, minus[i >> 1 & 1]));
        sums.sum[i >> 1 & 1] += s[i];
    }
}

template <int DTYPE> GPU_FN void sm90_latent_store_weights(uint32_t to, const float (&s)[32]) {
    const int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32 * 16 + lane % 16,
              half = lane / 16;
#pragma unroll
    for (int k = 0; k < 4; k++)
        sm90_store_matrices(to + (uint32_t)(row * 128 + ((2 * k + half) ^ (row & 7)) * 16),
                            sm90_join<DTYPE>(s[8 * k], s[8 * k + 1]),
                            sm90_join<DTYPE>(s[8 * k + 2], s[8 * k + 3]),
                            sm90_join<DTYPE>(s[8 * k + 4], s[8 * k + 5]),
                            sm90_join<DTYPE>(s[8 * k + 6], s[8 * k + 7]));
}

/* Largest logits and sums of rows: to a part of a split, or to what elements are multiplied by. */
GPU_FN void sm90_latent_end(const sm90_latent_block &b, const sm90_latent_sums &sums, float unit) {
    const int lane = (int)threadIdx.x % 32;
    const rope_attention_sequence *s = &b.header->s;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = (int)threadIdx.x / 32 * 16 + lane / 4 + 8 * h;
        float sum = sums.sum[h] + __shfl_xor_sync(~0u, sums.sum[h], 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        const float most = sums.most[h] == SM90_LATENT_LEAST ? -INFINITY : sums.most[h] * unit;
        if (lane % 4 || row >= b.at.rows)
            continue;
        if (b.at.alone) {
            b.header->factor[row] =
                gpu_end_row<true>(b.p, b.call, s, b.at.query, b.at.head + row, most, sum);
            continue;
        }
        const auto part = gpu_part(*b.parts, s->index, b.at.query, b.at.head + row,
                                   b.call->rope.tensor[0].heads, b.at.part, SM90_LATENT_VALUE_DIM);
        part[SM90_LATENT_VALUE_DIM] = most;
        part[SM90_LATENT_VALUE_DIM + 1] = sum;
    }
}

/* What the group that makes weights does with queries, and with tiles, that have been copied:
 * nothing. Decoding rotates those, and puts new keys into these. */
struct sm90_latent_plain {
    static __device__ void queries(const sm90_latent_block &) {}
    static __device__ void keys(const sm90_latent_block &, int, uint32_t) {}
};

/* The group that makes weights. */
template <int DTYPE, class COPIED>
GPU_FN void sm90_latent_rate(const sm90_latent_block &b, const COPIED &copied) {
    const int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32 * 16 + lane / 4,
              count = sm90_latent_count(b);
    const float unit = b.p->scale * GPU_LOG2_E;
    sm90_latent_sums sums = {{SM90_LATENT_LEAST, SM90_LATENT_LEAST}, {0, 0}};
    sm90_wait(SM90_BARRIER(b, queries, 0), 0);
    copied.queries(b);
#pragma unroll 1
    for (int n = 0; n < count; n++) {
        const uint32_t tile = sm90_latent_tile(b, n);
        const int begin = b.at.begin - n * SM90_LATENT_KEYS, end = b.at.end - n * SM90_LATENT_KEYS,
                  in_part = begin > 0 || end < SM90_LATENT_KEYS;
        float s[32], factor[2];
        sm90_wait(SM90_BARRIER(b, full, n & 1), sm90_latent_phase(n));
        copied.keys(b, n, tile);
        sm90_latent_score<DTYPE>(s, sm90_matrix(b.queries, 16), sm90_matrix(tile, 16));
        if (in_part)
            sm90_latent_hide(s, begin, end);
        sm90_latent_weigh(s, sums, factor, unit);
        sm90_group_barrier(0); /* all have read what weights are written over */
        if (in_part)
            sm90_latent_clear(tile, begin, end);
        sm90_latent_store_weights<DTYPE>(tile + SM90_LATENT_WEIGHTS, s);
        if (lane % 4 == 0) {
            b.header->rescale[n & 1][row] = factor[0];
            b.header->rescale[n & 1][row + 8] = factor[1];
        }
        sm90_writes_known();
        sm90_arrive(SM90_BARRIER(b, weighed, n & 1));
    }
    sm90_latent_end(b, sums, unit);
    sm90_arrive(SM90_BARRIER(b, ended, 0));
}

/* --- values --- */

/* A thread's elements of two rows: column 8 n of row h at [n / 16][n % 16 * 4 + 2 * h]. */
typedef float sm90_latent_rows[2][64];

GPU_FN void sm90_latent_rescale(sm90_latent_rows &out, float low, float high) {
    if (!__any_sync(~0u, low != 1 || high != 1))
        return;
#pragma unroll
    for (int i = 0; i < 128; i++)
        out[i / 64][i % 64] *= i & 2 ? high : low;
}

template <int DTYPE>
GPU_FN void sm90_latent_add(sm90_latent_rows &out, uint32_t weights, uint32_t values) {
    sm90_products_begin();
#pragma unroll
    for (int i = 0; i < 8; i++)
        sm90_multiply_by_rows<DTYPE>(
            out[i / 4], sm90_descriptor(weights + i % 4 * 2),
            sm90_descriptor(values + i / 4 * (2 * SM90_LATENT_PART / 16) + i % 4 * 128), 1);
    sm90_products_end();
    sm90_products_wait<0>();
    sm90_settle(out[0]);
    sm90_settle(out[1]);
}

template <int DTYPE>
GPU_FN void sm90_latent_store(const sm90_latent_block &b, const sm90_latent_rows &out, int row,
                              int column) {
    const rope_attention_sequence *s = &b.header->s;
#pragma unroll
    for (int h = 0; h < 2; h++, row += 8) {
        if (row >= b.at.rows)
            continue;
        const auto part = gpu_part(*b.parts, s->index, b.at.query, b.at.head + row,
                                   b.call->rope.tensor[0].heads, b.at.part, SM90_LATENT_VALUE_DIM) +
                          column;
        uint16_t *to = gpu_attention_out<DTYPE>(b.call, s, b.at.query, b.at.head + row) + column;
        const float factor = b.header->factor[row];
#pragma unroll
        for (int n = 0; n < 32; n++) {
            const float x = out[n / 16][n % 16 * 4 + 2 * h],
                        y = out[n / 16][n % 16 * 4 + 2 * h + 1];
            if (b.at.alone)
                *(uint32_t *)(void *)(to + 8 * n) = gpu_end_pair<DTYPE>(x, y, factor);
            else
                *(float2 *)(void *)(part + 8 * n) = {x, y};
        }
    }
}

/* A group that adds values: group 0 or 1. */
template <int DTYPE> GPU_FN void sm90_latent_sum(const sm90_latent_block &b, int group) {
    const int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32 % 4 * 16 + lane / 4,
              count = sm90_latent_count(b);
    sm90_latent_rows out = {};
#pragma unroll 1
    for (int n = 0; n < count; n++) {
        const uint32_t tile = sm90_latent_tile(b, n);
        sm90_wait(SM90_BARRIER(b, weighed, n & 1), sm90_latent_phase(n));
        sm90_latent_rescale(out, b.header->rescale[n & 1][row], b.header->rescale[n & 1][row + 8]);
        sm90_latent_add<DTYPE>(
            out, sm90_matrix(tile + SM90_LATENT_WEIGHTS, 16),
            sm90_matrix(tile + (uint32_t)group * 4 * SM90_LATENT_PART, SM90_LATENT_PART));
        sm90_arrive_if(SM90_BARRIER(b, empty, n & 1), lane == 0);
    }
    sm90_wait(SM90_BARRIER(b, ended, 0), 0);
    sm90_latent_store<DTYPE>(b, out, row, group * SM90_LATENT_COLUMNS + lane % 4 * 2);
}

#endif
