/* Tiles of keys whose blocks compute all gradients at once, copies of what they read, and sums of
 * dq. A block owns 128 keys and walks over the slabs of rows that see them, from the last one: two
 * boxes of heads of 64, one of 128. What a tile of keys adds to dq goes by way of shared memory to
 * sums in fp32, those of earlier keys first: their tiles are the longer ones and begin first, and
 * each is a slab ahead of the next. */
#ifndef ROPEKIT_GPU_ATTENTION_BACKWARD_SM90_JOINT_TILE_H
#define ROPEKIT_GPU_ATTENTION_BACKWARD_SM90_JOINT_TILE_H

#include "backends/gpu/attention_backward/sm90/rows.h"

enum { SM90_JOINT_STAGES = 2, SM90_JOINT_HALF = SM90_BOX * 128 };

/* Slabs from one to the product of its gradients of scores and keys: groups take turns, and one is
 * half a slab ahead. */
enum { SM90_JOINT_LAG = 2 };

/* Of a size of heads: boxes of rows in a slab; parts of a box, of 64 elements each; registers of a
 * thread that loads and of one that multiplies. */
template <int DIM> struct sm90_joint_size {
    enum {
        BOXES = 128 / DIM,
        PARTS = DIM / 64,
        FEW = DIM > 64 ? 24 : 40,
        MANY = DIM > 64 ? 240 : 232
    };
};

struct sm90_joint_maps {
    const CUtensorMap *q, *k, *v, *dout, *stats, *dk, *dv;
};

/* A tile of keys; slabs over which its block walks, and that of the tile before does; where sums of
 * the sequence's rows begin. */
struct sm90_joint_tile {
    sm90_backward_tile t;
    int32_t begin, end, before_begin, before_end, sums, unused[3];
};

struct sm90_joint_header {
    uint64_t own_full[2], own_free[2], own_read[1], known[2], wanted[1];
    uint64_t full[SM90_JOINT_STAGES], free[SM90_JOINT_STAGES];
    uint64_t scores_free[2], scores_full[2], sums_full[2], sums_free[2];
    sm90_joint_tile tile[2];
    int32_t told[2];
    __align__(128) float stats[SM90_JOINT_STAGES][2][2][SM90_BOX];
};
static_assert(sizeof(sm90_joint_header) <= SM90_BACKWARD_HEADER, "in its room");

struct sm90_joint_block {
    const sm90_backward_schedule *schedule;
    sm90_joint_header *header;
    uint32_t memory;
};

/* Keys and values come first. Where they are small, gradients of scores fill their room. */
GPU_FN uint32_t sm90_joint_rows(const sm90_joint_block &b, int stage) {
    return b.memory + (uint32_t)(8 + stage * 4) * SM90_JOINT_HALF;
}
template <int DIM> GPU_FN uint32_t sm90_joint_scores(const sm90_joint_block &b, uint32_t count) {
    const uint32_t n = count % SM90_JOINT_LAG;
    return b.memory + (DIM > 64 ? 16 + n * 2 : 4 + n * 12) * SM90_JOINT_HALF;
}
/* Parity of the phase that slab `count - SM90_JOINT_LAG` ends. */
GPU_FN uint32_t sm90_joint_parity(uint32_t count) {
    return (count / SM90_JOINT_LAG & 1) ^ 1;
}
GPU_FN uint32_t sm90_joint_sums(const sm90_joint_block &b, int n) {
    return b.memory + (uint32_t)(20 + n * 4) * SM90_JOINT_HALF;
}

/* --- tiles --- */

/* Slabs of rows that see some of 128 keys: none of keys behind the last query. */
template <int BOXES>
GPU_FN int2 sm90_joint_slabs(const sm90_backward_schedule &s, const sm90_backward_sequence &of,
                             int first) {
    if (first < 0 || first >= of.k_count)
        return make_int2(0, 0);
    const int queries = sm90_box_queries(s), heads = s.shares >> s.pack,
              begin = sm90_queries_of(s.mask, of, first).x,
              end = sm90_queries_of(s.mask, of, min(first + 128, of.k_count) - 1).y;
    if (begin >= end)
        return make_int2(0, 0);
    return make_int2(begin / queries * heads / BOXES,
                     ((end + queries - 1) / queries * heads + BOXES - 1) / BOXES);
}

template <int BOXES>
GPU_FN int sm90_joint_find(const sm90_backward_schedule &s, int number, sm90_joint_tile *tile) {
    sm90_backward_tile *t = &tile->t;
    if (!sm90_keys_tile<0>(s, number, SM90_JOINT, t))
        return 0;
    if (t->head < 0)
        return 1;
    const int2 slabs = sm90_joint_slabs<BOXES>(s, t->of, t->first);
    tile->begin = slabs.x;
    tile->end = slabs.y;
    const int2 before = sm90_joint_slabs<BOXES>(s, t->of, t->first - 128);
    tile->before_begin = before.x;
    tile->before_end = before.y;
    tile->sums = t->head * s.slabs + t->of.sums;
    return 1;
}

template <int BOXES> GPU_FN void sm90_joint_find_all(const sm90_joint_block &b) {
    for (int n = 0;; n++) {
        sm90_joint_tile *t = &b.header->tile[n & 1];
        sm90_wait(SM90_BARRIER(b, own_free, n & 1), (uint32_t)(n >> 1 & 1) ^ 1);
        if (n > 0)
            sm90_wait(SM90_BARRIER(b, wanted, 0), (uint32_t)(n - 1) & 1);
        while (!sm90_joint_find<BOXES>(*b.schedule, sm90_next_number<0>(b.schedule->turns[1]), t))
            ;
        sm90_arrive(SM90_BARRIER(b, known, n & 1));
        if (t->t.head < 0)
            return;
    }
}

/* --- copies --- */

struct sm90_joint_stage {
    int n;
    uint32_t parity;
};
GPU_FN void sm90_joint_next(sm90_joint_stage &stage) {
    stage.n ^= 1;
    stage.parity ^= stage.n == 0;
}

/* What a block owns of a tile. */
template <int DIM>
GPU_FN void sm90_joint_load_own(const sm90_joint_block &b, const sm90_joint_maps &maps, int n) {
    enum { PARTS = sm90_joint_size<DIM>::PARTS };
    const sm90_backward_tile &t = b.header->tile[n & 1].t;
    const uint32_t own = SM90_BARRIER(b, own_full, n & 1), to = b.memory;
    sm90_expect(own, 4 * PARTS * SM90_JOINT_HALF);
    for (int c = 0; c < 2; c++) {
        const sm90_box at = {t.head, t.of.k_first + t.first + SM90_BOX * c, t.of.k_row};
        sm90_load_heads(to + (uint32_t)c * SM90_JOINT_HALF, maps.k, own, at, PARTS, 2 * SM90_BOX);
        sm90_load_heads(to + (uint32_t)(2 * PARTS + c) * SM90_JOINT_HALF, maps.v, own, at, PARTS,
                        2 * SM90_BOX);
    }
}

/* Slab i. */
template <int DIM>
GPU_FN void sm90_joint_load_rows(const sm90_joint_block &b, const sm90_joint_maps &maps,
                                 const sm90_backward_tile &t, int i, int stage) {
    enum { BOXES = sm90_joint_size<DIM>::BOXES, PARTS = sm90_joint_size<DIM>::PARTS };
    const sm90_backward_schedule &s = *b.schedule;
    const int heads = s.shares >> s.pack;
    const uint32_t to = sm90_joint_rows(b, stage), full = SM90_BARRIER(b, full, stage);
    sm90_expect(full, 4 * SM90_JOINT_HALF + BOXES * sizeof b.header->stats[0][0]);
    for (int c = 0; c < BOXES; c++) {
        const int queries = (BOXES * i + c) / heads, h = BOXES * i + c - queries * heads;
        const sm90_box at = {t.head * s.shares + (h << s.pack),
                             t.of.q_first + queries * sm90_box_queries(s), t.of.q_row};
        sm90_load_heads(to + (uint32_t)c * SM90_JOINT_HALF, maps.q, full, at, PARTS, SM90_BOX);
        sm90_load_heads(to + (uint32_t)(2 + c) * SM90_JOINT_HALF, maps.dout, full, at, PARTS,
                        SM90_BOX);
        sm90_load_stats(SM90_BARRIER(b, stats[stage][c], 0), maps.stats, full,
                        t.of.stats + queries * SM90_BOX,
                        (t.of.q_row * s.heads + t.head) * heads + h);
    }
}

/* A warp has the copies of all tiles made: rows first, as there is room for one tile's keys. */
template <int DIM>
GPU_FN void sm90_joint_produce(const sm90_joint_block &b, const sm90_joint_maps &maps) {
    const int leads = threadIdx.x == 0;
    sm90_joint_stage stage = {0, 1};
    for (int n = 0;; n++) {
        sm90_wait(SM90_BARRIER(b, known, n & 1), (uint32_t)(n >> 1 & 1));
        const sm90_joint_tile *t = &b.header->tile[n & 1];
        const int begin = sm90_uniform(t->begin), end = sm90_uniform(t->end);
        if (sm90_uniform(t->t.head) < 0) {
            sm90_arrive_if(SM90_BARRIER(b, own_full, n & 1), leads);
            return;
        }
        for (int i = end;;) {
            sm90_arrive_if(SM90_BARRIER(b, wanted, 0), leads && i == min(end, begin + 1));
            if (i == max(end - SM90_JOINT_STAGES, begin)) {
                if (n > 0)
                    sm90_wait(SM90_BARRIER(b, own_read, 0), (uint32_t)(n - 1) & 1);
                if (leads)
                    sm90_joint_load_own<DIM>(b, maps, n);
            }
            if (i-- == begin)
                break;
            sm90_wait(SM90_BARRIER(b, free, stage.n), stage.parity);
            if (leads)
                sm90_joint_load_rows<DIM>(b, maps, t->t, i, stage.n);
            sm90_joint_next(stage);
        }
    }
}

/* --- sums --- */

GPU_FN uint32_t sm90_load_acquire(const uint32_t *from) {
    uint32_t x;
    asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    return x;
}
GPU_FN void sm90_store_release(uint32_t *to, uint32_t x) {
    asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}
GPU_FN void sm90_proxies_meet(void) {
    asm volatile("fence.proxy.async;" ::: "memory");
}
GPU_FN void sm90_bulk(float *to, uint32_t from, uint32_t bytes, int adds) {
    if (adds)
        asm volatile(
            "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
            "r"(from), "r"(bytes)
            : "memory");
    else
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                     "r"(from), "r"(bytes)
                     : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* A thread adds what groups have for dq in one of two buffers, behind the tile of the keys before:
 * an addition takes about as long as a step. */
GPU_FN void sm90_joint_add(const sm90_joint_block &b, int buffer) {
    int count = 0;
    for (int n = 0;; n++) {
        sm90_wait(SM90_BARRIER(b, known, n & 1), (uint32_t)(n >> 1 & 1));
        const sm90_joint_tile *t = &b.header->tile[n & 1];
        if (t->t.head < 0)
            return;
        const uint32_t tile = (uint32_t)t->t.first / 128;
        const int begin = t->begin, before_begin = t->before_begin, before_end = t->before_end;
        float *sums = b.schedule->sums + (int64_t)t->sums * SM90_JOINT_SUMS;
        uint32_t *added = b.schedule->added + t->sums;
        for (int i = t->end - 1; i >= begin; i--, count++) {
            if ((count & 1) != buffer)
                continue;
            const int adds = i >= before_begin && i < before_end;
            sm90_wait(SM90_BARRIER(b, sums_full, buffer), (uint32_t)count >> 1 & 1);
            if (!b.schedule->dq.data) {
                sm90_arrive(SM90_BARRIER(b, sums_free, buffer));
                continue;
            }
            if (adds) {
                while (sm90_load_acquire(added + i) != tile - 1)
                    ;
                sm90_proxies_meet();
            }
            sm90_bulk(sums + (int64_t)i * SM90_JOINT_SUMS, sm90_joint_sums(b, buffer),
                      SM90_JOINT_SUMS * sizeof(float), adds);
            sm90_stores_read();
            sm90_arrive(SM90_BARRIER(b, sums_free, buffer));
            sm90_stores_done();
            sm90_proxies_meet();
            sm90_store_release(added + i, tile);
        }
        sm90_arrive(SM90_BARRIER(b, own_free, n & 1));
    }
}

#endif
