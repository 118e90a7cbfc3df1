/* Tiles of rows and of keys that blocks take, and what a block's threads share. */
#ifndef ROPEKIT_GPU_ATTENTION_BACKWARD_SM90_TILE_H
#define ROPEKIT_GPU_ATTENTION_BACKWARD_SM90_TILE_H

#include "backends/gpu/attention/products.h"
#include "backends/gpu/attention_backward/sm90/kernels.h"
#include "backends/gpu/attention_backward/sm90/wgmma.h"

/* A tile: where its rows or keys begin, and the boxes over which its block walks. A box of keys
 * is a tile of 64 of them; boxes of rows are counted [tile of queries, heads side by side]. All are
 * counted from the first of the sequence. */
struct __align__(16) sm90_backward_tile {
    sm90_backward_sequence of;
    int32_t sequence;   /* its number */
    int32_t head;       /* the first one of q, or that of keys; -1: no tile is left */
    int32_t first;      /* query or key of the tile */
    int32_t begin, end; /* boxes of keys, or tiles of queries in boxes */
    int32_t number;
    int32_t unused;
};

/* Barriers' phases are counted by those who wait. */
struct sm90_backward_header {
    uint64_t own_full[2], own_free[2];   /* what a block owns, by the parity of its number */
    uint64_t known[2], wanted[1];        /* a tile, and the next one */
    uint64_t numbered[2];                /* what rank 0 found */
    uint64_t may_send[3][2], sent[3][2]; /* sums of each group's keys, to this block, by step */
    uint64_t full[SM90_STAGES], free[SM90_STAGES];
    sm90_backward_tile tile[2];
    int32_t number[2];       /* of tiles, as rank 0 found them */
    int32_t told[2];         /* the last tile that a group listed */
    uint32_t bad[2];         /* bits of a box's rows that are not finite */
    float minus_lse[2][128]; /* of rows that a block owns, in base 2 */
    __align__(128) float stats[SM90_STAGES][2][SM90_BOX]; /* of rows over which it walks */
};
static_assert(sizeof(sm90_backward_header) <= SM90_BACKWARD_HEADER &&
                  offsetof(sm90_backward_header, stats) % 128 == 0,
              "in its room");

struct sm90_backward_block {
    const sm90_backward_schedule *schedule;
    sm90_backward_header *header;
    uint32_t memory; /* address of the boxes */
    int rank, steps; /* in its cluster, of 1 << steps blocks */
};

GPU_FN uint32_t sm90_box_at(const sm90_backward_block &b, int n) {
    return b.memory + (uint32_t)n * SM90_BOX_BYTES;
}

GPU_FN void sm90_load_stats(uint32_t to, const CUtensorMap *map, uint32_t barrier, int row,
                            int unit) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(row), "r"(0), "r"(unit)
                 : "memory");
}

/* --- order --- */

/* Reads numbers one by one: SM90_FEW registers do not hold them beside what finds tiles. */
GPU_FN void sm90_read_sequence(const sm90_backward_sequence *from, sm90_backward_sequence *to) {
#pragma unroll 1
    for (size_t i = 0; i < sizeof *to / sizeof(int32_t); i++)
        ((int32_t *)to)[i] = ((const int32_t *)from)[i];
}

/* Fills whose tile n is, of `heads` of a sequence, and its head among these. Which one of the
 * sequence it is; below 0: none. Of steps the first is the longest tile: of rows the last one. */
GPU_FN int sm90_place_tile(const sm90_backward_schedule &s, int n, int of_keys, int heads,
                           sm90_backward_tile *t) {
    const sm90_backward_order &o = s.order[of_keys];
    const int group = min(n / (o.side * o.each), o.groups), before = group * o.side,
              within = n - before * o.each, some = group < o.groups ? o.side : o.units - before,
              step = within / some, unit = before + within - step * some;
    t->number = n;
    int place = of_keys ? step : o.each - 1 - step;
    if (o.places) {
        place = o.places[step].tile;
        t->sequence = o.places[step].sequence;
        t->head = unit;
    } else {
        t->sequence = unit / heads;
        t->head = unit - t->sequence * heads;
    }
    sm90_read_sequence(s.sequences + t->sequence, &t->of);
    return place;
}

/* Whole numbers of queries in a box. */
GPU_FN int sm90_box_queries(const sm90_backward_schedule &s) {
    return SM90_BOX >> s.pack;
}

/* Keys that query q of a sequence sees; none where it is not there. */
GPU_FN int2 sm90_keys_of(const sm90_mask &m, const sm90_backward_sequence &s, int q) {
    const int index = q + s.index;
    int first = max(index - m.before, 0), end = min(index + m.behind + 1, s.k_count);
    if (m.chunk < SM90_FAR) {
        const int whole = index + s.chunk_index,
                  begin =
                      (whole - (whole < 0 ? m.chunk - 1 : 0)) / m.chunk * m.chunk - s.chunk_index;
        first = max(first, begin);
        end = min(end, begin + m.chunk);
    }
    return q < s.q_count ? make_int2(first, max(first, end)) : make_int2(0, 0);
}

/* Queries that see key k: what sm90_keys_of() is of queries. */
GPU_FN int2 sm90_queries_of(const sm90_mask &m, const sm90_backward_sequence &s, int k) {
    int first = k - m.behind, end = min(k + m.before, SM90_FAR) + 1;
    if (m.chunk < SM90_FAR) {
        const int begin = (k + s.chunk_index) / m.chunk * m.chunk - s.chunk_index;
        first = max(first, begin);
        end = min(end, begin + m.chunk);
    }
    first = max(first - s.index, 0);
    end = min(end - s.index, s.q_count);
    return k < s.k_count ? make_int2(first, max(first, end)) : make_int2(0, 0);
}

/* Fills tile n of keys, 128 of them, which 1 << steps blocks share; 0 where it has none. Behind the
 * last one there is no head. */
GPU_FN int sm90_keys_tile(const sm90_backward_schedule &s, int n, int steps,
                          sm90_backward_tile *t) {
    t->head = -1;
    if (n >= s.order[1].each * s.order[1].units)
        return 1;
    const int place = sm90_place_tile(s, n, 1, s.heads, t), queries = sm90_box_queries(s);
    t->first = place * 128;
    if (place < 0 || t->first >= t->of.k_count || t->of.steps != steps)
        return 0;
    const int first = sm90_queries_of(s.mask, t->of, t->first).x,
              end = sm90_queries_of(s.mask, t->of, min(t->first + 128, t->of.k_count) - 1).y;
    t->begin = first / queries;
    t->end = max(t->begin, (end + queries - 1) / queries);
    return 1;
}

/* The same of rows, 128 of them. */
GPU_FN int sm90_rows_tile(const sm90_backward_schedule &s, int n, sm90_backward_tile *t) {
    t->head = -1;
    if (n >= s.order[0].each * s.order[0].units)
        return 1;
    const int place = sm90_place_tile(s, n, 0, s.heads * s.shares >> s.pack, t),
              queries = 2 * sm90_box_queries(s);
    t->first = place * queries;
    if (place < 0 || t->first >= t->of.q_count)
        return 0;
    const int first = sm90_keys_of(s.mask, t->of, t->first).x,
              end = sm90_keys_of(s.mask, t->of, min(t->first + queries, t->of.q_count) - 1).y;
    t->head <<= s.pack;
    t->begin = first / SM90_BOX;
    t->end = s.dq.data ? max(t->begin, (end + SM90_BOX - 1) / SM90_BOX) : t->begin;
    return 1;
}

/* --- weights --- */

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

/* The next number of a tile; INT32_MAX: none is left. */
template <int CAREFUL> GPU_FN int sm90_next_number(const sm90_backward_turns &turns) {
    const int n = (int)(atomicAdd(turns.next, 1u) + 1);
    if (!CAREFUL)
        return n;
    return n < (int)(*turns.listed + 1) ? turns.list[n] : INT32_MAX;
}

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

/* Stores a box that a group has written to shared memory; a barrier of the group is behind it where
 * it does so by all of its threads: some rows are not there, or it moves no vectors. */
template <int DIM>
GPU_FN void sm90_store_box(uint32_t box, const sm90_gradient &g, const CUtensorMap *map,
                           int consumer, const sm90_target &to) {
    const int thread = (int)threadIdx.x & 127;
    if (!g.data)
        return;
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
