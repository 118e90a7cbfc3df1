/* All gradients at once: groups that multiply have 64 keys each, and scores are transposed, keys by
 * rows. Sums have the order of the kernels of rows.h and keys.h that compute tiles again, bit by
 * bit: boxes of rows from the last one, those of a tile's keys from the first. */
#ifndef ROPEKIT_GPU_ATTENTION_BACKWARD_SM90_JOINT_H
#define ROPEKIT_GPU_ATTENTION_BACKWARD_SM90_JOINT_H

#include "backends/gpu/attention_backward/sm90/joint_tile.h"

/* --- products --- */

struct sm90_joint_place {
    uint32_t keys, values; /* as products are told of the group's */
    uint32_t all_keys;     /* as values, of both */
    int key;               /* the thread's first one */
    int i, begin;          /* slabs: the next one, the last one */
    int whole, whole_end;  /* those between are seen by all keys */
    uint32_t count;        /* of all slabs so far */
};

/* Columns of a slab's boxes that see the thread's keys. */
template <int BOXES>
GPU_FN void sm90_joint_seen(const sm90_backward_schedule &s, const sm90_backward_tile &t,
                            const sm90_joint_place &at, uint32_t (&seen)[BOXES]) {
    const int heads = s.shares >> s.pack;
    int2 rows[2];
#pragma unroll
    for (int h = 0; h < 2; h++)
        rows[h] = sm90_queries_of(s.mask, t.of, at.key + 8 * h);
#pragma unroll
    for (int c = 0; c < BOXES; c++) {
        const int base = (BOXES * at.i + c) / heads * sm90_box_queries(s);
        int2 columns[2];
#pragma unroll
        for (int h = 0; h < 2; h++)
            columns[h] = make_int2((rows[h].x - base) << s.pack, (rows[h].y - base) << s.pack);
        seen[c] = sm90_seen_columns(columns);
    }
}

/* sm90_hide_weights() of a half. */
GPU_FN void sm90_joint_hide(uint32_t *x, uint32_t seen) {
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const uint32_t two = seen >> ((i & 1) * 16 + (i >> 1) * 2);
        x[i] &= (two & 1 ? 0xffffu : 0) | (two & 2 ? 0xffff0000u : 0);
    }
}

/* Weights of 64 rows, and as gradients of scores are made of them: in f16, as registers are few. */
template <int DTYPE>
GPU_FN void sm90_joint_weights(float *s, uint32_t stats, float unit, int part, uint32_t seen,
                               uint32_t *weights, uint32_t *finer) {
    sm90_exponentials(s, stats, unit);
#pragma unroll
    for (int i = 0; i < 16; i++) {
        weights[i] = sm90_join<DTYPE>(s[2 * i], s[2 * i + 1]);
        finer[i] = sm90_join<ROPE_F16>(s[2 * i], s[2 * i + 1]);
    }
    if (part)
        sm90_joint_hide(weights, seen);
}

GPU_FN float sm90_joint_less(float dp, uint32_t delta) {
    return fmaf(dp, SM90_JOINT_LESS, __uint_as_float(delta));
}

/* d = a b', of 64 keys and the rows of a slab. */
template <int DTYPE, int DIM, int N>
GPU_FN void sm90_joint_scores(float (&d)[N], uint32_t a, uint32_t b) {
#pragma unroll
    for (int i = 0; i < DIM / 16; i++)
        sm90_multiply<DTYPE>(d, sm90_descriptor(a + i / 4 * 1024 + i % 4 * 2),
                             sm90_descriptor(b + i / 4 * 512 + i % 4 * 2), i != 0);
}

template <int DTYPE, int N, int M>
GPU_FN void sm90_joint_sum(float (&sums)[N], const uint32_t (&a)[M], uint32_t b) {
#pragma unroll
    for (int c = M / 16 - 1; c >= 0; c--)
#pragma unroll
        for (int i = 4 * c; i < 4 * c + 4; i++)
            sm90_multiply<DTYPE>(sums, a + 4 * i, sm90_descriptor(b + i * 128), 1);
}

/* Writes gradients of scores, rows by keys. */
template <int N> GPU_FN void sm90_joint_write(uint32_t to, const uint32_t (&x)[N]) {
    const int thread = (int)threadIdx.x & 127, lane = thread % 32, r = lane / 16 * 8 + lane % 8,
              c = thread / 32 * 2 + (lane / 8 & 1);
    to += (uint32_t)r * 128 + (uint32_t)((c ^ lane) & 7) * 16;
#pragma unroll
    for (int j = 0; j < N / 4; j++)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                         to + j * 2048),
                     "r"(x[4 * j]), "r"(x[4 * j + 1]), "r"(x[4 * j + 2]), "r"(x[4 * j + 3])
                     : "memory");
}

GPU_FN void sm90_joint_barrier(void) {
    asm volatile("bar.sync 7, 256;" ::: "memory");
}

/* Groups multiply in turns, so that one has products while the other has exponentials. */
GPU_FN void sm90_joint_await_turn(int consumer) {
    asm volatile("bar.sync %0, 256;" ::"r"(5 + consumer) : "memory");
}
GPU_FN void sm90_joint_pass_turn(int consumer) {
    asm volatile("bar.arrive %0, 256;" ::"r"(6 - consumer) : "memory");
}

/* Of the last slab: a product of what both groups have written. A group has half of its rows, or of
 * their elements. */
template <int DTYPE, int DIM>
GPU_FN void sm90_joint_rows_product(const sm90_joint_block &b, int consumer,
                                    const sm90_joint_place &at, uint32_t count, float (&dq)[32]) {
    enum { BOXES = sm90_joint_size<DIM>::BOXES, LAG = SM90_JOINT_LAG };
    const uint32_t a = sm90_box_matrix(sm90_joint_scores<DIM>(b, count) +
                                       (uint32_t)consumer * (BOXES - 1) * SM90_JOINT_HALF);
    sm90_wait(SM90_BARRIER(b, scores_full, count % LAG), sm90_joint_parity(count));
    sm90_products_begin();
#pragma unroll
    for (int i = 0; i < 8; i++)
        sm90_multiply_by_rows<DTYPE>(dq, sm90_descriptor(a + i / 4 * (BOXES * 512) + i % 4 * 2),
                                     sm90_descriptor(at.all_keys + i * 128), i != 0);
    sm90_products_end();
}

/* Writes it for the thread that adds. */
GPU_FN void sm90_joint_hand(const sm90_joint_block &b, int consumer, uint32_t count,
                            const float (&dq)[32]) {
    sm90_wait(SM90_BARRIER(b, sums_free, count & 1), (count >> 1 & 1) ^ 1);
    const uint32_t to = sm90_joint_sums(b, (int)(count & 1)) +
                        (uint32_t)consumer * 2 * SM90_JOINT_HALF + threadIdx.x % 128 * 16;
#pragma unroll
    for (int i = 0; i < 8; i++)
        sm90_write(to + (uint32_t)i * 2048,
                   {__float_as_uint(dq[4 * i]), __float_as_uint(dq[4 * i + 1]),
                    __float_as_uint(dq[4 * i + 2]), __float_as_uint(dq[4 * i + 3])});
}

template <int DTYPE, int DIM>
GPU_FN void sm90_joint_step(const sm90_joint_block &b, const sm90_backward_tile &t, int consumer,
                            sm90_joint_place &at, float (&dk)[DIM / 2], float (&dv)[DIM / 2],
                            int adds, int hands) {
    enum { BOXES = sm90_joint_size<DIM>::BOXES, LAG = SM90_JOINT_LAG };
    float s[32 * BOXES], dp[32 * BOXES];
    uint32_t weights[16 * BOXES], gradients[16 * BOXES], seen[BOXES] = {};
    const int stage = (int)(at.count & 1), leads = threadIdx.x % 128 == 0,
              part = at.i < at.whole || at.i >= at.whole_end;
    const uint32_t rows = sm90_joint_rows(b, stage), q = rows, dout = rows + 2 * SM90_JOINT_HALF,
                   stats = SM90_BARRIER(b, stats[stage], 0) + threadIdx.x % 4 * 8;
    sm90_wait(SM90_BARRIER(b, full, stage), at.count >> 1 & 1);
    sm90_joint_await_turn(consumer);
    {
        float dq[32];
        sm90_joint_rows_product<DTYPE, DIM>(b, consumer, at, at.count, dq);
        sm90_joint_scores<DTYPE, DIM>(s, at.keys, sm90_box_matrix(q));
        sm90_products_end();
        sm90_products_wait<1>();
        sm90_settle(dq);
        sm90_settle(dk);
        sm90_arrive_if(SM90_BARRIER(b, scores_free, at.count % LAG), leads && hands);
        sm90_arrive_if(SM90_BARRIER(b, free, stage ^ 1), leads && adds);
        if (hands)
            sm90_joint_hand(b, consumer, at.count - LAG, dq);
    }
    sm90_products_begin();
    sm90_joint_scores<DTYPE, DIM>(dp, at.values, sm90_box_matrix(dout));
    sm90_products_end();
    sm90_products_wait<1>();
    sm90_settle(s);
    sm90_joint_pass_turn(consumer);
    if (part)
        sm90_joint_seen(*b.schedule, t, at, seen);
#pragma unroll
    for (int c = BOXES - 1; c >= 0; c--) {
        sm90_joint_weights<DTYPE>(s + 32 * c, stats + (uint32_t)c * 512, b.schedule->unit, part,
                                  seen[c], weights + 16 * c, gradients + 16 * c);
        sm90_products_begin();
#pragma unroll
        for (int i = 4 * c; i < 4 * c + 4; i++)
            sm90_multiply<DTYPE>(dv, weights + 4 * i,
                                 sm90_descriptor(sm90_box_values(dout) + i * 128), 1);
        sm90_products_end();
    }
    sm90_products_wait<BOXES>();
    sm90_settle(dp);
#pragma unroll
    for (int j = 0; j < 8 * BOXES; j++) {
        const uint2 two =
            sm90_read_two(stats + (uint32_t)(j / 8 * 512 + SM90_BOX * 4 + j % 8 * 32));
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float2 p = sm90_two_of<ROPE_F16>(gradients[2 * j + h]);
            gradients[2 * j + h] =
                sm90_join<DTYPE>(p.x * sm90_joint_less(dp[4 * j + 2 * h], two.x),
                                 p.y * sm90_joint_less(dp[4 * j + 2 * h + 1], two.y));
        }
    }
    if (part) {
#pragma unroll
        for (int c = 0; c < BOXES; c++)
            sm90_joint_hide(gradients + 16 * c, seen[c]);
    }
    sm90_wait(SM90_BARRIER(b, scores_free, at.count % LAG), sm90_joint_parity(at.count));
    sm90_joint_write(sm90_joint_scores<DIM>(b, at.count) +
                         (uint32_t)consumer * BOXES * SM90_JOINT_HALF,
                     gradients);
    sm90_writes_known();
    __syncwarp();
    sm90_arrive_if(SM90_BARRIER(b, sums_full, (at.count - LAG) & 1),
                   threadIdx.x % 32 == 0 && hands);
    sm90_arrive_if(SM90_BARRIER(b, scores_full, at.count % LAG), threadIdx.x % 32 == 0);
    sm90_products_begin();
    sm90_joint_sum<DTYPE>(dk, gradients, sm90_box_values(q));
    sm90_products_end();
    sm90_products_wait<1>();
    sm90_settle(dv);
}

/* Rounds and stores gradients of the group's keys, by way of where these lay. */
template <int DTYPE, int DIM>
GPU_FN void sm90_joint_store(const sm90_joint_block &b, const sm90_backward_tile &t, int consumer,
                             int key, float (&dk)[DIM / 2], float (&dv)[DIM / 2],
                             const sm90_joint_maps &maps) {
    enum { PARTS = sm90_joint_size<DIM>::PARTS };
    const sm90_backward_schedule &s = *b.schedule;
    const int first = t.first + consumer * SM90_BOX;
    const int2 low = sm90_queries_of(s.mask, t.of, key),
               high = sm90_queries_of(s.mask, t.of, key + 8);
    const sm90_target to = {{t.head, t.of.k_first + first, t.of.k_row}, 0, t.of.k_count - first};
    const uint32_t keys = b.memory + (uint32_t)consumer * PARTS * SM90_JOINT_HALF,
                   values = keys + 2 * PARTS * SM90_JOINT_HALF;
    sm90_clear_unseen(dk, low, high);
    sm90_clear_unseen(dv, low, high);
    const int bad = sm90_write_box<DTYPE>(keys, dk, s.scale, 1) |
                    sm90_write_box<DTYPE>(values, dv, SM90_JOINT_LESS, 1);
    sm90_tell<0>(s.turns[1], t, &b.header->told[consumer], bad);
    sm90_writes_known();
    sm90_group_barrier(consumer);
    sm90_store_box<DTYPE, DIM>(values, s.dv, maps.dv, consumer, to);
    sm90_store_box<DTYPE, DIM>(keys, s.dk, maps.dk, consumer, to);
}

template <int DIM>
GPU_FN void sm90_joint_begin(const sm90_joint_block &b, const sm90_joint_tile &tile, int consumer,
                             sm90_joint_place &at) {
    const sm90_backward_schedule &s = *b.schedule;
    const sm90_backward_tile &t = tile.t;
    const int thread = (int)threadIdx.x & 127, heads = s.shares >> s.pack,
              queries = sm90_box_queries(s), first = t.first + consumer * SM90_BOX;
    const int2 low = sm90_queries_of(s.mask, t.of, t.first),
               high = sm90_queries_of(s.mask, t.of, t.first + 127);
    enum { BOXES = sm90_joint_size<DIM>::BOXES, PARTS = sm90_joint_size<DIM>::PARTS };
    const uint32_t own = b.memory;
    at.keys =
        (uint32_t)sm90_uniform((int)sm90_box_matrix(own + (uint32_t)consumer * SM90_JOINT_HALF));
    at.values = (uint32_t)sm90_uniform(
        (int)sm90_box_matrix(own + (uint32_t)(2 * PARTS + consumer) * SM90_JOINT_HALF));
    at.all_keys = (uint32_t)sm90_uniform(
        (int)sm90_box_values(own + (uint32_t)consumer * 2 * (PARTS - 1) * SM90_JOINT_HALF));
    at.key = first + thread / 32 * 16 + thread % 32 / 4;
    at.i = sm90_uniform(tile.end) - 1;
    at.begin = sm90_uniform(tile.begin);
    at.whole = sm90_uniform(((high.x + queries - 1) / queries * heads + BOXES - 1) / BOXES);
    at.whole_end = sm90_uniform(t.first + 128 > t.of.k_count ? 0 : low.y / queries * heads / BOXES);
}

template <int DTYPE, int DIM>
GPU_FN void sm90_joint_consume(const sm90_joint_block &b, const sm90_joint_maps &maps,
                               int consumer) {
    enum { LAG = SM90_JOINT_LAG };
    sm90_joint_place at = {};
    const int leads = threadIdx.x % 128 == 0;
    if (consumer)
        sm90_joint_pass_turn(consumer);
    for (int n = 0;; n++) {
        float dk[DIM / 2], dv[DIM / 2];
        sm90_wait(SM90_BARRIER(b, own_full, n & 1), (uint32_t)(n >> 1 & 1));
        const sm90_joint_tile &tile = b.header->tile[n & 1];
        if (sm90_uniform(tile.t.head) < 0)
            break;
        sm90_joint_begin<DIM>(b, tile, consumer, at);
        const int start = at.i;
#pragma unroll
        for (int i = 0; i < DIM / 2; i++) /* ptxas wants them set ahead of the loop */
            dk[i] = dv[i] = 0.0f;
        sm90_settle(dk);
        sm90_settle(dv);
        if (start >= at.begin) {
#pragma unroll 1
            do {
                sm90_joint_step<DTYPE, DIM>(b, tile.t, consumer, at, dk, dv, at.i != start,
                                            start - at.i >= LAG);
                at.count++;
            } while (--at.i >= at.begin);
            sm90_products_wait<0>();
            sm90_settle(dk);
            sm90_settle(dv);
#pragma unroll
            for (int i = LAG; i > 0; i--) {
                if (start - at.i < i)
                    continue;
                const uint32_t count = at.count - (uint32_t)i;
                float dq[32];
                sm90_joint_rows_product<DTYPE, DIM>(b, consumer, at, count + LAG, dq);
                sm90_products_wait<0>();
                sm90_settle(dq);
                sm90_joint_hand(b, consumer, count, dq);
                sm90_writes_known();
                __syncwarp();
                sm90_arrive_if(SM90_BARRIER(b, sums_full, count & 1), threadIdx.x % 32 == 0);
                sm90_arrive_if(SM90_BARRIER(b, scores_free, count % LAG), leads);
            }
            sm90_arrive_if(SM90_BARRIER(b, free, (at.count & 1) ^ 1), leads);
        }
        sm90_joint_barrier(); /* no product reads keys */
        sm90_joint_store<DTYPE, DIM>(b, tile.t, consumer, at.key, dk, dv, maps);
        sm90_group_barrier(consumer);
        if (leads) {
            sm90_stores_read();
            sm90_arrive(SM90_BARRIER(b, own_free, n & 1));
            sm90_arrive(SM90_BARRIER(b, own_read, 0));
        }
    }
    if (leads)
        sm90_stores_done();
}

GPU_FN void sm90_joint_start(const sm90_joint_block &b) {
    for (int i = 0; i < 2; i++) {
        sm90_barrier_init(SM90_BARRIER(b, own_full, i), 1);
        sm90_barrier_init(SM90_BARRIER(b, own_free, i), 4);
        sm90_barrier_init(SM90_BARRIER(b, known, i), 1);
        sm90_barrier_init(SM90_BARRIER(b, sums_full, i), 8);
        sm90_barrier_init(SM90_BARRIER(b, sums_free, i), 1);
        sm90_barrier_init(SM90_BARRIER(b, scores_free, i), 2);
        sm90_barrier_init(SM90_BARRIER(b, scores_full, i), 8);
    }
    for (int i = 0; i < SM90_JOINT_STAGES; i++) {
        sm90_barrier_init(SM90_BARRIER(b, full, i), 1);
        sm90_barrier_init(SM90_BARRIER(b, free, i), 2);
    }
    sm90_barrier_init(SM90_BARRIER(b, own_read, 0), 2);
    sm90_barrier_init(SM90_BARRIER(b, wanted, 0), 1);
    b.header->told[0] = b.header->told[1] = -1;
    sm90_barriers_begun();
}

#endif
