/* Gradients of keys and values: the blocks of a cluster own 128 keys, 64 of each group that
 * multiplies, and walk over the rows that see them, each over every 2nd, 4th or 8th box. Scores are
 * transposed, keys by rows, so that weights and their gradients stay in registers. */
#ifndef ROPEKIT_GPU_ATTENTION_BACKWARD_SM90_KEYS_H
#define ROPEKIT_GPU_ATTENTION_BACKWARD_SM90_KEYS_H

#include "backends/gpu/attention_backward/sm90/cluster.h"

struct sm90_keys_maps {
    const CUtensorMap *q, *k, *v, *dout, *stats, *dk, *dv;
};

/* Boxes of shared memory: k and v of two tiles, then q and dout of stages. Group c's half of k is
 * box c, of v box 2 + c. */
GPU_FN uint32_t sm90_own_keys(const sm90_backward_block &b, int n, int box) {
    return sm90_box_at(b, (n & 1) * 4 + box);
}
GPU_FN uint32_t sm90_walked_rows(const sm90_backward_block &b, int stage, int box) {
    return sm90_box_at(b, 8 + stage * 2 + box);
}

/* The number of tile n, which rank 0 takes and the others are told. */
template <int CAREFUL> GPU_FN int sm90_number_of_keys(const sm90_backward_block &b, int n) {
    const uint32_t numbered = SM90_BARRIER(b, numbered, n & 1);
    if (b.rank == 0)
        return sm90_next_number<CAREFUL>(b.schedule->turns[1]);
    sm90_expect(numbered, sizeof(int32_t));
    sm90_wait_for_far(numbered, (uint32_t)(n >> 1 & 1));
    return *(volatile int32_t *)&b.header->number[n & 1];
}

/* A thread finds all tiles, when all blocks are free of the last but one. */
template <int CAREFUL> GPU_FN void sm90_find_all_keys(const sm90_backward_block &b) {
    for (int n = 0;; n++) {
        sm90_backward_tile *t = &b.header->tile[n & 1];
        int number;
        sm90_wait_for_far(SM90_BARRIER(b, own_free, n & 1), (uint32_t)(n >> 1 & 1) ^ 1);
        if (n > 0)
            sm90_wait(SM90_BARRIER(b, wanted, 0), (uint32_t)(n - 1) & 1);
        do
            number = sm90_number_of_keys<CAREFUL>(b, n);
        while (!sm90_keys_tile<CAREFUL>(*b.schedule, number, b.steps, t));
        for (int rank = 1; rank < 1 << b.steps && b.rank == 0; rank++)
            sm90_send(sm90_far(SM90_BARRIER(b, number, 0) + 4 * (uint32_t)(n & 1), rank), number,
                      sm90_far(SM90_BARRIER(b, numbered, n & 1), rank));
        sm90_arrive(SM90_BARRIER(b, known, n & 1));
        if (t->head < 0)
            return;
    }
}

/* A warp has the copies of all tiles made. */
template <int DIM, int MAY_JOIN>
GPU_FN void sm90_keys_produce(const sm90_backward_block &b, const sm90_keys_maps &maps) {
    const sm90_backward_schedule &s = *b.schedule;
    const int leads = threadIdx.x == 0, heads = s.shares >> s.pack, size = 1 << b.steps;
    sm90_stage stage = {0, 1};
    for (int n = 0;; n++) {
        const uint32_t full = SM90_BARRIER(b, own_full, n & 1);
        sm90_wait(SM90_BARRIER(b, known, n & 1), (uint32_t)(n >> 1 & 1));
        const sm90_backward_tile *t = &b.header->tile[n & 1];
        const int head = sm90_uniform(t->head), row = sm90_uniform(t->of.q_row),
                  first = sm90_uniform(t->of.q_first), begin = sm90_uniform(t->begin),
                  boxes = (sm90_uniform(t->end) - begin) * heads, stats = sm90_uniform(t->of.stats);
        if (head < 0) {
            if (leads)
                sm90_arrive(full);
            return;
        }
        if (leads) {
            sm90_expect(full, 4 * SM90_BOX * DIM * 2);
            for (int c = 0; c < 2; c++) {
                const sm90_box at = {head, t->of.k_first + t->first + SM90_BOX * c, t->of.k_row};
                sm90_load_heads(sm90_own_keys(b, n, c), maps.k, full, at, DIM / 64, SM90_BOX);
                sm90_load_heads(sm90_own_keys(b, n, 2 + c), maps.v, full, at, DIM / 64, SM90_BOX);
            }
        }
        sm90_box at = {0, first + begin * sm90_box_queries(s), row};
        const int unit = row * s.heads * heads + head * heads;
        const int asks =
            b.rank + (max(((boxes - b.rank + size - 1) >> b.steps) - SM90_AHEAD, 0) << b.steps);
        const int turns = sm90_is_joint<MAY_JOIN>(*t); /* and begins with the last box */
        for (int i = b.rank, h = turns ? boxes - 1 : b.rank;; i += size, h += turns ? -1 : size) {
            sm90_arrive_if(SM90_BARRIER(b, wanted, 0), leads && i == asks);
            if (i >= boxes)
                break;
            for (; h >= heads; h -= heads)
                at.token += SM90_BOX >> s.pack;
            for (; MAY_JOIN && h < 0; h += heads)
                at.token -= SM90_BOX >> s.pack;
            at.head = head * s.shares + (h << s.pack);
            const uint32_t barrier = SM90_BARRIER(b, full, stage.n);
            sm90_wait(SM90_BARRIER(b, free, stage.n), stage.parity);
            if (leads) {
                sm90_expect(barrier, 2 * SM90_BOX * DIM * 2 + sizeof b.header->stats[0]);
                sm90_load_heads(sm90_walked_rows(b, stage.n, 0), maps.q, barrier, at, DIM / 64,
                                SM90_BOX);
                sm90_load_heads(sm90_walked_rows(b, stage.n, 1), maps.dout, barrier, at, DIM / 64,
                                SM90_BOX);
                sm90_load_stats(SM90_BARRIER(b, stats[stage.n], 0), maps.stats, barrier,
                                stats + ((at.token - first) << s.pack), unit + h);
            }
            sm90_next_stage(stage);
        }
    }
}

/* What a group knows of its keys. Boxes of rows are counted from the first one of the tile, over
 * which a block walks in steps of its cluster's size. */
struct sm90_keys_span {
    int key;              /* the thread's first one */
    int box, start, end;  /* boxes of rows: the next one, those of these keys */
    int stride;           /* from a box to the next one */
    int whole, whole_end; /* those between are seen by all keys */
    int shift;            /* what makes it one of [queries, heads side by side] */
    int met;              /* bits of the thread's keys: some row that sees them is not finite */
};

/* Where a group is. Boxes of joint tiles are taken from the last one. */
struct sm90_keys_place : sm90_keys_span {
    int joint;             /* whether the tile is */
    uint32_t keys, values; /* as products are told of them */
    sm90_stage stage;
    int last; /* stage of the one before */
};

/* Columns of rows of a box that see the thread's keys. */
GPU_FN uint32_t sm90_rows_seen(const sm90_backward_schedule &s, const sm90_backward_tile &t,
                               const sm90_keys_span &at, int box) {
    const int base = (box + at.shift) / (s.shares >> s.pack) * sm90_box_queries(s);
    int2 columns[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int2 seen = sm90_queries_of(s.mask, t.of, at.key + 8 * h);
        columns[h] = make_int2((seen.x - base) << s.pack, (seen.y - base) << s.pack);
    }
    return sm90_seen_columns(columns);
}

/* From scores to weights. stats: of the thread's first column. */
template <int DTYPE>
GPU_FN void sm90_weights(float (&s)[32], uint32_t stats, float unit, int part, uint32_t seen,
                         uint32_t (&weights)[16]) {
    sm90_exponentials(s, stats, unit);
    if (part)
        sm90_hide(s, seen);
#pragma unroll
    for (int i = 0; i < 16; i++)
        weights[i] = sm90_join<DTYPE>(s[2 * i], s[2 * i + 1]);
}

/* From scores to weights of capped ones, none of them hidden, and to these times slopes. */
template <int DTYPE>
GPU_FN void sm90_capped_weights(const sm90_backward_schedule &schedule, float (&s)[32],
                                uint32_t stats, uint32_t (&weights)[16]) {
    sm90_tanh(s, schedule.to_cap);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const uint2 two = sm90_read_two(stats + (uint32_t)j * 32);
        float x[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float &tanh = s[4 * j + i];
            x[i] = sm90_exp2(fmaf(tanh, schedule.unit, __uint_as_float(i & 1 ? two.y : two.x)));
            tanh = x[i] * sm90_slope(tanh);
        }
        weights[2 * j] = sm90_join<DTYPE>(x[0], x[1]);
        weights[2 * j + 1] = sm90_join<DTYPE>(x[2], x[3]);
    }
}

/* From weights and their gradients to gradients of scores. */
template <int DTYPE>
GPU_FN void sm90_score_gradients(const float (&s)[32], float (&dp)[32], uint32_t stats, int part,
                                 uint32_t seen, uint32_t (&gradients)[16]) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const uint2 two = sm90_read_two(stats + (uint32_t)j * 32);
#pragma unroll
        for (int i = 0; i < 4; i++)
            dp[4 * j + i] = s[4 * j + i] * (dp[4 * j + i] + __uint_as_float(i & 1 ? two.y : two.x));
    }
    if (part)
        sm90_hide(dp, seen);
#pragma unroll
    for (int i = 0; i < 16; i++)
        gradients[i] = sm90_join<DTYPE>(dp[2 * i], dp[2 * i + 1]);
}

/* Adds a box of rows to dk and dv: the exponentials run beside the product of values and dout, and
 * what follows beside the sums of dv. */
template <int DTYPE, int DIM, int CAREFUL, int CAP>
GPU_FN void sm90_keys_add(const sm90_backward_block &b, const sm90_backward_tile &t,
                          sm90_keys_place &at, float (&dk)[DIM / 2], float (&dv)[DIM / 2]) {
    enum { MAY_JOIN = CAREFUL && !CAP };
    float s[32], dp[32];
    uint32_t weights[16], gradients[16];
    const int stage = sm90_uniform(at.stage.n), adds = at.box != at.start,
              box = MAY_JOIN && at.joint ? at.end - 1 - at.box : at.box,
              part = CAREFUL || at.box < at.whole || at.box >= at.whole_end;
    uint32_t seen = 0;
    const uint32_t q = sm90_walked_rows(b, stage, 0), dout = sm90_walked_rows(b, stage, 1),
                   stats = SM90_BARRIER(b, stats[stage], 0) + threadIdx.x % 4 * 8;
    sm90_wait(SM90_BARRIER(b, full, stage), at.stage.parity);
    if (CAREFUL)
        at.met |=
            sm90_meets(sm90_rows_seen(*b.schedule, t, at, box), sm90_clean<DTYPE, DIM>(b, q, dout));
    sm90_products_begin();
    sm90_box_scores<DTYPE, DIM>(s, at.keys, sm90_box_matrix(q));
    sm90_products_end();
    sm90_box_scores<DTYPE, DIM>(dp, at.values, sm90_box_matrix(dout));
    sm90_products_end();
    sm90_products_wait<1>();
    sm90_settle(s);
    sm90_settle(dk);
    sm90_arrive_if(SM90_BARRIER(b, free, at.last), threadIdx.x % 128 == 0 && adds);
    if (part && !CAP)
        seen = sm90_rows_seen(*b.schedule, t, at, box);
    if (CAP)
        sm90_capped_weights<DTYPE>(*b.schedule, s, stats, weights);
    else
        sm90_weights<DTYPE>(s, stats, b.schedule->unit, part, seen, weights);
    if (part && CAP) { /* later, as registers are few */
        seen = sm90_rows_seen(*b.schedule, t, at, box);
        sm90_hide_weights(weights, seen);
    }
    sm90_products_begin();
    sm90_box_add<DTYPE>(dv, weights, sm90_box_values(dout), adds);
    sm90_products_end();
    sm90_products_wait<1>();
    sm90_settle(dp);
    if (MAY_JOIN && at.joint)
        sm90_round(s, dp);
    sm90_score_gradients<DTYPE>(s, dp, stats + SM90_BOX * 4, part, seen, gradients);
    sm90_products_begin();
    sm90_box_add<DTYPE>(dk, gradients, sm90_box_values(q), adds);
    sm90_products_end();
    sm90_products_wait<1>(); /* weights' registers are free */
    sm90_settle(dv);
}

/* Finds the boxes of rows of a tile. */
template <int CAREFUL>
GPU_FN void sm90_find_span(const sm90_backward_block &b, const sm90_backward_tile &t, int consumer,
                           sm90_keys_span &at) {
    const sm90_backward_schedule &s = *b.schedule;
    const int thread = (int)threadIdx.x & 127, heads = s.shares >> s.pack,
              queries = sm90_box_queries(s), first = t.first + consumer * SM90_BOX;
    const int2 low = sm90_queries_of(s.mask, t.of, first),
               high = sm90_queries_of(s.mask, t.of, min(first + SM90_BOX, t.of.k_count) - 1);
    const int begin = first < t.of.k_count ? max(t.begin, min(low.x / queries, t.end)) : t.end;
    at.key = first + thread / 32 * 16 + thread % 32 / 4;
    at.shift = sm90_uniform(t.begin * heads);
    at.box = sm90_uniform(b.rank);
    at.stride = sm90_uniform(1 << b.steps);
    at.start = CAREFUL ? at.box : sm90_uniform(begin * heads - at.shift);
    at.start += (at.box - at.start) & (at.stride - 1);
    at.met = 0;
    at.end = sm90_uniform(t.end * heads - at.shift);
    at.whole = sm90_uniform((high.x + queries - 1) / queries * heads - at.shift);
    at.whole_end = sm90_uniform(low.y / queries * heads - at.shift);
}

/* Takes what the group owns; passes over boxes that see none of its keys, with its warps together,
 * as in rows.h. */
GPU_FN void sm90_begin_keys(const sm90_backward_block &b, int n, int consumer,
                            sm90_keys_place &at) {
    at.keys = (uint32_t)sm90_uniform((int)sm90_box_matrix(sm90_own_keys(b, n, consumer)));
    at.values = (uint32_t)sm90_uniform((int)sm90_box_matrix(sm90_own_keys(b, n, 2 + consumer)));
    for (; at.box < min(at.start, at.end); at.box += at.stride) {
        sm90_wait(SM90_BARRIER(b, full, at.stage.n), at.stage.parity);
        sm90_group_barrier(consumer);
        sm90_arrive_if(SM90_BARRIER(b, free, at.stage.n), threadIdx.x % 128 == 0);
        sm90_next_stage(at.stage);
    }
}

/* Rounds and stores a gradient of the group's keys. */
template <int DTYPE, int DIM, int CAREFUL>
GPU_FN void sm90_store_keys(const sm90_backward_block &b, int n, int consumer,
                            const sm90_keys_span &at, uint32_t box, float (&x)[DIM / 2], int added,
                            float scale, const sm90_gradient &to, const CUtensorMap *map) {
    const sm90_backward_schedule &s = *b.schedule;
    const sm90_backward_tile *t = &b.header->tile[n & 1];
    const int first = t->first + consumer * SM90_BOX;
    sm90_clear_unseen(x, sm90_queries_of(s.mask, t->of, at.key),
                      sm90_queries_of(s.mask, t->of, at.key + 8));
    sm90_group_barrier(consumer);
    const int bad = sm90_write_box<DTYPE>(box, x, scale, added);
    sm90_tell<CAREFUL>(s.turns[1], *t, &b.header->told[consumer], bad);
    sm90_writes_known();
    sm90_group_barrier(consumer);
    sm90_store_box<DTYPE, DIM>(
        box, to, map, consumer,
        {{t->head, t->of.k_first + first, t->of.k_row}, 0, t->of.k_count - first});
}

/* Joins the gradients of the group's keys, and stores what is this block's of them. */
template <int DTYPE, int DIM, int CAREFUL>
GPU_FN void sm90_end_keys(const sm90_backward_block &b, const sm90_keys_maps &maps, int n,
                          int consumer, const sm90_keys_place &at, float (&dk)[DIM / 2],
                          float (&dv)[DIM / 2]) {
    const sm90_backward_schedule &s = *b.schedule;
    const int leads = threadIdx.x % 128 == 0;
    const uint32_t boxes[2] = {sm90_own_keys(b, n, consumer), sm90_own_keys(b, n, 2 + consumer)},
                   freed = SM90_BARRIER(b, own_free, n & 1);
    sm90_arrive_if(SM90_BARRIER(b, free, at.last), leads && at.end > at.start);
    const int keeps_dk = b.rank % 2 == 0, keeps_dv = b.rank % 2 || b.steps == 0,
              has_sums = b.steps == 0 || (keeps_dk ? sm90_join(b, n, consumer, boxes, dv, dk)
                                                   : sm90_join(b, n, consumer, boxes, dk, dv));
    if (has_sums && keeps_dk)
        sm90_store_keys<DTYPE, DIM, CAREFUL>(b, n, consumer, at, boxes[0], dk, 1, s.scale, s.dk,
                                             maps.dk);
    if (has_sums && keeps_dv)
        sm90_store_keys<DTYPE, DIM, CAREFUL>(b, n, consumer, at, boxes[1], dv, 1,
                                             at.joint ? SM90_JOINT_LESS : 1.0f, s.dv, maps.dv);
    sm90_group_barrier(consumer);
    if (leads) {
        sm90_stores_read();
        sm90_arrive(freed);
        if (b.rank)
            sm90_arrive_far(sm90_far(freed, 0));
    }
}

template <int DTYPE, int DIM, int CAREFUL, int CAP>
GPU_FN void sm90_keys_consume(const sm90_backward_block &b, const sm90_keys_maps &maps,
                              int consumer) {
    enum { MAY_JOIN = CAREFUL && !CAP };
    sm90_keys_place at = {};
    for (int n = 0;; n++) {
        float dk[DIM / 2], dv[DIM / 2];
        sm90_wait(SM90_BARRIER(b, own_full, n & 1), (uint32_t)(n >> 1 & 1));
        if (sm90_uniform(b.header->tile[n & 1].head) < 0)
            break;
        const sm90_backward_tile &t = b.header->tile[n & 1];
        sm90_find_span<CAREFUL>(b, t, consumer, at);
        at.joint = sm90_is_joint<MAY_JOIN>(t);
        sm90_begin_keys(b, n, consumer, at);
#pragma unroll 1
        for (; at.box < at.end; at.box += at.stride) {
            sm90_keys_add<DTYPE, DIM, CAREFUL, CAP>(b, t, at, dk, dv);
            at.last = at.stage.n;
            sm90_next_stage(at.stage);
        }
        sm90_products_wait<0>();
        sm90_settle(dk);
        sm90_settle(dv);
        if (at.start >= at.end)
#pragma unroll
            for (int i = 0; i < DIM / 2; i++)
                dk[i] = dv[i] = 0.0f;
        if (CAREFUL) {
            sm90_spoil(dk, at.met);
            sm90_spoil(dv, at.met);
        }
        sm90_end_keys<DTYPE, DIM, CAREFUL>(b, maps, n, consumer, at, dk, dv);
    }
    if (threadIdx.x % 128 == 0)
        sm90_stores_done();
}

#endif
