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
    int32_t unused[3];
};

/* Barriers' phases are counted by those who wait. */
struct sm90_backward_header {
    uint64_t own_full[2], own_free[2];   /* what a block owns, by the parity of its number */
    uint64_t known[2], wanted[1];        /* a tile, and the next one */
    uint64_t numbered[2];                /* what rank 0 found */
    uint64_t may_send[3][2], sent[3][2]; /* sums of each group's keys, to this block, by step */
    uint64_t full[SM90_SLOTS], free[SM90_SLOTS];
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

/* Queries that see key k: what sm90_keys_of() is of queries. None begin behind the last query. */
GPU_FN int2 sm90_queries_of(const sm90_mask &m, const sm90_backward_sequence &s, int k) {
    int first = k - m.behind, end = min(k + m.before, SM90_FAR) + 1;
    if (m.chunk < SM90_FAR) {
        const int begin = (k + s.chunk_index) / m.chunk * m.chunk - s.chunk_index;
        first = max(first, begin);
        end = min(end, begin + m.chunk);
    }
    first = min(max(first - s.index, 0), s.q_count);
    end = min(end - s.index, s.q_count);
    return k < s.k_count ? make_int2(first, max(first, end)) : make_int2(0, 0);
}

/* Fills tile n of keys, 128 of them, which 1 << steps blocks share; 0 where it has none. Behind the
 * last one there is no head. CAREFUL: a block alone takes those of SM90_JOINT, too. */
template <int CAREFUL>
GPU_FN int sm90_keys_tile(const sm90_backward_schedule &s, int n, int steps,
                          sm90_backward_tile *t) {
    t->head = -1;
    if (n >= s.order[1].each * s.order[1].units)
        return 1;
    const int place = sm90_place_tile(s, n, 1, s.heads, t), queries = sm90_box_queries(s);
    t->first = place * 128;
    if (place < 0 || t->first >= t->of.k_count || (t->of.steps & (CAREFUL ? 3 : ~0)) != steps)
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

/* The next number of a tile; INT32_MAX: none is left. */
template <int CAREFUL> GPU_FN int sm90_next_number(const sm90_backward_turns &turns) {
    const int n = (int)(atomicAdd(turns.next, 1u) + 1);
    if (!CAREFUL)
        return n;
    return n < (int)(*turns.listed + 1) ? turns.list[n] : INT32_MAX;
}

/* Whether a tile is of a sequence whose gradients other kernels compute at once. */
template <int CAREFUL> GPU_FN int sm90_is_apart(const sm90_backward_tile &t) {
    return !CAREFUL && t.head >= 0 && t.of.steps == SM90_JOINT;
}

/* Weights of joint tiles are larger by this power of 2, so that small ones keep their bits in f16;
 * what they are multiplied by, or their sums, are smaller. */
#define SM90_JOINT_MORE 12.0f
#define SM90_JOINT_LESS 0x1p-12f

/* Whether a tile is computed again with the bits that joint.h has: it walks the other way, and
 * weights round to f16 before gradients of scores are made of them. */
template <int CAREFUL> GPU_FN int sm90_is_joint(const sm90_backward_tile &t) {
    return CAREFUL && t.of.steps == SM90_JOINT;
}

/* Box c of rows of a tile, counted from the first of the sequence. */
GPU_FN int sm90_joint_box(const sm90_backward_schedule &s, const sm90_backward_tile &t, int c) {
    return (t.first / sm90_box_queries(s) + c) * (s.shares >> s.pack) +
           (t.head % s.shares >> s.pack);
}

/* The slab of 128 / DIM boxes that has it, of all of the call. */
template <int DIM>
GPU_FN int sm90_joint_slab_of(const sm90_backward_schedule &s, const sm90_backward_tile &t, int c) {
    return t.head / s.shares * s.slabs + t.of.sums + sm90_joint_box(s, t, c) / (128 / DIM);
}

/* Sums of dq of a box, of which a thread has every 128th four. */
template <int DIM>
GPU_FN float4 *sm90_joint_sums_of(const sm90_backward_schedule &s, const sm90_backward_tile &t,
                                  int c) {
    return (float4 *)(s.sums + (int64_t)sm90_joint_slab_of<DIM>(s, t, c) * SM90_JOINT_SUMS) +
           sm90_joint_box(s, t, c) % (128 / DIM) * 1024 + threadIdx.x % 128;
}

/* --- blocks --- */

/* Registers of a thread that loads, and of one that multiplies. */
enum { SM90_FEW = 24, SM90_MANY = 240 };

/* fills, frees: arrivals of those who fill what a block owns, and of those who free it. */
GPU_FN void sm90_backward_start(const sm90_backward_block &b, int fills, int frees) {
    for (int i = 0; i < 2; i++) {
        sm90_barrier_init(SM90_BARRIER(b, own_full, i), fills);
        sm90_barrier_init(SM90_BARRIER(b, own_free, i), frees);
        sm90_barrier_init(SM90_BARRIER(b, known, i), 1);
        sm90_barrier_init(SM90_BARRIER(b, numbered, i), 1);
        for (int step = 0; step < 3; step++) {
            sm90_barrier_init(SM90_BARRIER(b, may_send[step], i), 1);
            sm90_barrier_init(SM90_BARRIER(b, sent[step], i), 1);
        }
    }
    sm90_barrier_init(SM90_BARRIER(b, wanted, 0), 1);
    for (int i = 0; i < SM90_SLOTS; i++) {
        sm90_barrier_init(SM90_BARRIER(b, full, i), 1);
        sm90_barrier_init(SM90_BARRIER(b, free, i), 2);
    }
    b.header->told[0] = b.header->told[1] = -1;
    sm90_barriers_begun();
}

GPU_FN sm90_backward_block sm90_backward_block_of(char *memory,
                                                  const sm90_backward_schedule *schedule) {
    return {schedule, (sm90_backward_header *)(void *)memory,
            (uint32_t)__cvta_generic_to_shared(memory) + SM90_BACKWARD_HEADER, 0, 0};
}

/* Scores of 64 columns to weights that nothing hides; stats: of the thread's first column. */
GPU_FN void sm90_exponentials(float *s, uint32_t stats, float unit) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const uint2 two = sm90_read_two(stats + (uint32_t)j * 32);
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[4 * j + i] =
                sm90_exp2(fmaf(s[4 * j + i], unit, __uint_as_float(i & 1 ? two.y : two.x)));
    }
}

#endif
