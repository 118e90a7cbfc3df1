/* Gradients of queries: a block owns 128 rows, 64 of each group that multiplies, whose q and dout
 * stay in registers, or q of heads of 64 in shared memory, and walks over the keys that they see.
 */
#ifndef ROPEKIT_GPU_ATTENTION_BACKWARD_SM90_ROWS_H
#define ROPEKIT_GPU_ATTENTION_BACKWARD_SM90_ROWS_H

#include "backends/gpu/attention_backward/sm90/box.h"

struct sm90_rows_maps {
    const CUtensorMap *q, *k, *v, *dout, *out, *dq;
};

/* Boxes of shared memory: of each group q, dout, out and dq, then k and v of stages. */
enum { SM90_OWN_Q, SM90_OWN_DOUT, SM90_OWN_OUT, SM90_OWN_DQ, SM90_OWN };
GPU_FN uint32_t sm90_own_rows(const sm90_backward_block &b, int consumer, int box) {
    return sm90_box_at(b, consumer * SM90_OWN + box);
}
/* Of tile n. Products read queries of heads of 64 from there, so two tiles have room: of those in
 * registers ptxas 13.0 keeps the first round's alone (scripts/sm90_order). */
template <int DIM>
GPU_FN uint32_t sm90_own_queries(const sm90_backward_block &b, int consumer, int n) {
    return sm90_own_rows(b, consumer, SM90_OWN_Q) +
           (DIM == 64 ? (uint32_t)(n & 1) * (SM90_BOX_BYTES / 2) : 0);
}
GPU_FN uint32_t sm90_walked_keys(const sm90_backward_block &b, int stage, int box) {
    return sm90_box_at(b, 2 * SM90_OWN + stage * 2 + box);
}

/* Finds the block's tile n, into its header, when all that is owned was read of the last one; of
 * wide heads when the last but one is done. */
template <int CAREFUL, int WIDE> GPU_FN void sm90_find_rows(const sm90_backward_block &b, int n) {
    if (WIDE)
        sm90_wait(SM90_BARRIER(b, own_free, n & 1), (uint32_t)(n >> 1 & 1) ^ 1);
    else if (n > 0)
        sm90_wait(SM90_BARRIER(b, own_free, 0), (uint32_t)(n - 1) & 1);
    if (n > 0)
        sm90_wait(SM90_BARRIER(b, wanted, 0), (uint32_t)(n - 1) & 1);
    while (!sm90_rows_tile(*b.schedule, sm90_next_number<CAREFUL>(b.schedule->turns[0]),
                           &b.header->tile[n & 1]) ||
           sm90_is_apart<CAREFUL>(b.header->tile[n & 1]))
        ;
}

/* Reads lse of the rows of a tile; -infinity where nothing is seen, or there is no row. */
GPU_FN void sm90_read_lse(const sm90_backward_schedule &s, const sm90_backward_tile *t, int lane,
                          float *minus) {
    const float *from = s.lse + t->of.q_row * s.lse_stride[0] +
                        (t->of.q_first + t->first) * s.lse_stride[1] + t->head * s.lse_stride[2];
    const int rows = (t->of.q_count - t->first) << s.pack;
#pragma unroll 2
    for (int row = lane; row < 128; row += 32) {
        const float lse = row < rows ? from[(row >> s.pack) * s.lse_stride[1] +
                                            (row & ((1 << s.pack) - 1)) * s.lse_stride[2]]
                                     : -INFINITY;
        minus[row] = lse == -INFINITY ? -INFINITY : -1.44269504f * lse;
    }
}

/* A warp finds all tiles, and reads lse. */
template <int CAREFUL, int WIDE> GPU_FN void sm90_find_all_rows(const sm90_backward_block &b) {
    const int lane = (int)threadIdx.x % 32;
    for (int n = 0;; n++) {
        sm90_backward_tile *t = &b.header->tile[n & 1];
        if (lane == 0) {
            sm90_find_rows<CAREFUL, WIDE>(b, n);
            sm90_arrive(SM90_BARRIER(b, known, n & 1));
        }
        __syncwarp();
        if (t->head >= 0)
            sm90_read_lse(*b.schedule, t, lane, b.header->minus_lse[n & 1]);
        __syncwarp();
        if (lane == 0)
            sm90_arrive(SM90_BARRIER(b, own_full, n & 1));
        if (t->head < 0)
            return;
    }
}

/* A warp has the copies of all tiles made. */
template <int DIM, int MAY_JOIN>
GPU_FN void sm90_rows_produce(const sm90_backward_block &b, const sm90_rows_maps &maps) {
    const sm90_backward_schedule &s = *b.schedule;
    const int leads = threadIdx.x == 0;
    sm90_stage stage = {0, 1};
    for (int n = 0;; n++) {
        const uint32_t full = SM90_BARRIER(b, own_full, n & 1);
        sm90_wait(SM90_BARRIER(b, known, n & 1), (uint32_t)(n >> 1 & 1));
        const sm90_backward_tile *t = &b.header->tile[n & 1];
        const int head = sm90_uniform(t->head), begin = sm90_uniform(t->begin),
                  end = sm90_uniform(t->end), row = sm90_uniform(t->of.k_row),
                  first = sm90_uniform(t->of.k_first),
                  turned = sm90_is_joint<MAY_JOIN>(*t) ? begin + end - 1 : 0;
        if (head < 0) {
            if (leads)
                sm90_arrive(full);
            return;
        }
        if (leads) {
            sm90_expect(full, 6 * SM90_BOX * DIM * 2);
            for (int c = 0; c < 2; c++) {
                const sm90_box at = {head, t->of.q_first + t->first + c * sm90_box_queries(s),
                                     t->of.q_row};
                sm90_load_heads(sm90_own_queries<DIM>(b, c, n), maps.q, full, at, DIM / 64,
                                SM90_BOX);
                sm90_load_heads(sm90_own_rows(b, c, SM90_OWN_DOUT), maps.dout, full, at, DIM / 64,
                                SM90_BOX);
                sm90_load_heads(sm90_own_rows(b, c, SM90_OWN_OUT), maps.out, full, at, DIM / 64,
                                SM90_BOX);
            }
        }
        for (int i = end;;) {
            sm90_arrive_if(SM90_BARRIER(b, wanted, 0), leads && i == min(end, begin + SM90_AHEAD));
            if (i-- == begin)
                break;
            const uint32_t barrier = SM90_BARRIER(b, full, stage.n);
            sm90_wait(SM90_BARRIER(b, free, stage.n), stage.parity);
            if (leads) {
                const int box = turned ? turned - i : i;
                const sm90_box at = {head / s.shares, first + box * SM90_BOX, row};
                sm90_expect(barrier, 2 * SM90_BOX * DIM * 2);
                sm90_load_heads(sm90_walked_keys(b, stage.n, 0), maps.k, barrier, at, DIM / 64,
                                SM90_BOX);
                sm90_load_heads(sm90_walked_keys(b, stage.n, 1), maps.v, barrier, at, DIM / 64,
                                SM90_BOX);
            }
            sm90_next_stage(stage);
        }
    }
}

/* Sums of products of dout and out, negative, of the thread's two rows. */
template <int DTYPE, int N>
GPU_FN void sm90_delta(const uint32_t (&dout)[N], const uint32_t (&out)[N], float (&delta)[2]) {
    delta[0] = delta[1] = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float2 x = sm90_two_of<DTYPE>(dout[i]), y = sm90_two_of<DTYPE>(out[i]);
        delta[i & 1] = fmaf(x.y, y.y, fmaf(x.x, y.x, delta[i & 1]));
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        delta[h] = delta[h] + __shfl_xor_sync(~0u, delta[h], 1);
        delta[h] = -(delta[h] + __shfl_xor_sync(~0u, delta[h], 2));
    }
}

/* Rows' numbers for the kernel of keys, which reads them as boxes, and delta for others. */
GPU_FN void sm90_store_stats(const sm90_backward_schedule &s, const sm90_backward_tile &t, int row,
                             float lse, float delta, float less) {
    const int64_t heads = s.heads * s.shares, query = t.first + (row >> s.pack),
                  unit = t.of.q_row * (heads >> s.pack) + (t.head >> s.pack);
    float *to = s.stats + unit * 2 * s.stats_step + t.of.stats + (t.first << s.pack) + row;
    if (threadIdx.x % 4 == 0 && query < t.of.q_count) {
        to[0] = lse;
        to[s.stats_step] = delta * less;
        s.delta[((int64_t)t.of.q_row * s.tokens + t.of.q_first + query) * heads + t.head +
                (row & ((1 << s.pack) - 1))] = -delta;
    }
}

/* Negative delta of a row, as a launch before has stored it. */
GPU_FN float sm90_stored_delta(const sm90_backward_schedule &s, const sm90_backward_tile &t,
                               int row) {
    const int query = t.first + (row >> s.pack), head = t.head + (row & ((1 << s.pack) - 1));
    return query < t.of.q_count ? -s.delta[((int64_t)t.of.q_row * s.tokens + t.of.q_first + query) *
                                               (s.heads * s.shares) +
                                           head]
                                : 0.0f;
}

/* What a group knows of its rows. Boxes of keys are taken from the last one; those of a joint tile
 * from the first. */
struct sm90_rows_span {
    float lse[2], delta[2]; /* negative, of the thread's rows */
    int2 seen[2];           /* keys that they see */
    int box, start, end;    /* boxes: the next one, those of these rows */
    int whole, whole_end;   /* those between are seen by all rows */
    int met;                /* bits of the thread's rows: some key that they see is not finite */
};

/* Where a group is. */
template <int DIM> struct sm90_rows_place : sm90_rows_span {
    uint32_t q[DIM / 4], dout[DIM / 4]; /* as left operands */
    uint32_t queries;                   /* as products are told of them, of heads of 64 */
    int joint, turned;                  /* whether the tile is; then a box and its turn make this */
    sm90_stage stage;
    int last; /* stage of the one before */
};

/* Reads what the group owns of a tile, and hands it back. */
template <int DTYPE, int MAY_JOIN, int DIM>
GPU_FN void sm90_read_rows(const sm90_backward_block &b, const sm90_backward_tile &t, int n,
                           int consumer, int row, sm90_rows_place<DIM> &at) {
    sm90_read_box(sm90_own_rows(b, consumer, SM90_OWN_DOUT), at.dout);
    {
        uint32_t out[DIM / 4];
        sm90_read_box(sm90_own_rows(b, consumer, SM90_OWN_OUT), out);
        sm90_delta<DTYPE>(at.dout, out, at.delta);
    }
    if (DIM == 64)
        at.queries =
            (uint32_t)sm90_uniform((int)sm90_box_matrix(sm90_own_queries<DIM>(b, consumer, n)));
    else
        sm90_read_box(sm90_own_queries<DIM>(b, consumer, n), at.q);
#pragma unroll
    for (int h = 0; h < 2; h++)
        at.lse[h] = b.header->minus_lse[n & 1][row + 8 * h];
    sm90_group_barrier(consumer);
    sm90_arrive_if(SM90_BARRIER(b, own_free, 0), threadIdx.x % 128 == 0);
    at.joint = sm90_is_joint<MAY_JOIN>(t);
    at.turned = t.begin + t.end - 1;
#pragma unroll
    for (int h = 0; h < 2; h++)
        if (at.joint) {
            at.lse[h] += SM90_JOINT_MORE;
            at.delta[h] = sm90_stored_delta(*b.schedule, t, row + 8 * h) * SM90_JOINT_LESS;
        } else
            sm90_store_stats(*b.schedule, t, row + 8 * h, at.lse[h], at.delta[h], 1.0f);
}

/* Finds the boxes of keys of a tile. */
template <int CAREFUL>
GPU_FN void sm90_find_span(const sm90_backward_block &b, const sm90_backward_tile &t, int consumer,
                           int row, sm90_rows_span &at) {
    const sm90_backward_schedule &s = *b.schedule;
    const int last = t.of.q_count - 1, first = t.first + (consumer * SM90_BOX >> s.pack);
    const int2 low = sm90_keys_of(s.mask, t.of, first),
               high = sm90_keys_of(s.mask, t.of, min(first + ((SM90_BOX - 1) >> s.pack), last));
    const int end =
        first > last ? t.begin : max(t.begin, min((high.y + SM90_BOX - 1) / SM90_BOX, t.end));
#pragma unroll
    for (int h = 0; h < 2; h++)
        at.seen[h] = sm90_keys_of(s.mask, t.of, t.first + ((row + 8 * h) >> s.pack));
    at.end = sm90_uniform(t.begin);
    at.box = sm90_uniform(t.end) - 1;
    at.whole = sm90_uniform((high.x + SM90_BOX - 1) / SM90_BOX);
    at.whole_end = sm90_uniform(low.y / SM90_BOX);
    at.start = CAREFUL ? at.box : sm90_uniform(end) - 1;
    at.met = 0;
}

/* Passes over boxes that none of the group's rows sees. No product holds its warps together there:
 * one that is late would miss the phase that was freed. */
template <int DIM>
GPU_FN void sm90_pass_keys(const sm90_backward_block &b, int consumer, sm90_rows_place<DIM> &at) {
    for (; at.box > at.start; at.box--) {
        sm90_wait(SM90_BARRIER(b, full, at.stage.n), at.stage.parity);
        sm90_group_barrier(consumer);
        sm90_arrive_if(SM90_BARRIER(b, free, at.stage.n), threadIdx.x % 128 == 0);
        sm90_next_stage(at.stage);
    }
}

/* Columns of keys of a box that the thread's rows see. */
GPU_FN uint32_t sm90_keys_seen(const sm90_rows_span &at, int box) {
    const int base = box * SM90_BOX;
    const int2 columns[2] = {make_int2(at.seen[0].x - base, at.seen[0].y - base),
                             make_int2(at.seen[1].x - base, at.seen[1].y - base)};
    return sm90_seen_columns(columns);
}

/* Adds a box of keys to dq: the exponentials run beside the product of dout and values. */
template <int DTYPE, int DIM, int CAREFUL, int CAP>
GPU_FN void sm90_rows_add(const sm90_backward_block &b, sm90_rows_place<DIM> &at,
                          float (&dq)[DIM / 2]) {
    enum { MAY_JOIN = CAREFUL && !CAP };
    float s[32], dp[32];
    uint32_t gradients[16];
    const int stage = sm90_uniform(at.stage.n), adds = at.box != at.start,
              box = MAY_JOIN && at.joint ? at.turned - at.box : at.box;
    const float unit = b.schedule->unit;
    const uint32_t k = sm90_walked_keys(b, stage, 0), v = sm90_walked_keys(b, stage, 1);
    sm90_wait(SM90_BARRIER(b, full, stage), at.stage.parity);
    if (CAREFUL)
        at.met |= sm90_meets(sm90_keys_seen(at, box), sm90_clean<DTYPE, DIM>(b, k, v));
    sm90_products_begin();
    if (DIM == 64)
        sm90_box_scores<DTYPE, DIM>(s, at.queries, sm90_box_matrix(k));
    else
        sm90_box_scores<DTYPE>(s, at.q, sm90_box_matrix(k));
    sm90_products_end();
    sm90_box_scores<DTYPE>(dp, at.dout, sm90_box_matrix(v));
    sm90_products_end();
    sm90_products_wait<1>();
    sm90_settle(s);
    sm90_settle(dq);
    sm90_arrive_if(SM90_BARRIER(b, free, at.last), threadIdx.x % 128 == 0 && adds);
    if (CAP)
        sm90_tanh(s, b.schedule->to_cap);
#pragma unroll
    for (int i = 0; i < 32; i++)
        s[i] = sm90_exp2(fmaf(s[i], unit, at.lse[i >> 1 & 1])) * (CAP ? sm90_slope(s[i]) : 1.0f);
    sm90_products_wait<0>();
    sm90_settle(dp);
    if (MAY_JOIN && at.joint)
        sm90_round(s, dp);
#pragma unroll
    for (int i = 0; i < 32; i++)
        s[i] = s[i] * (dp[i] + at.delta[i >> 1 & 1]);
    if (CAREFUL || at.box < at.whole || at.box >= at.whole_end)
        sm90_hide(s, sm90_keys_seen(at, box));
#pragma unroll
    for (int i = 0; i < 16; i++)
        gradients[i] = sm90_join<DTYPE>(s[2 * i], s[2 * i + 1]);
    sm90_products_begin();
    sm90_box_add<DTYPE>(dq, gradients, sm90_box_values(k),
                        MAY_JOIN && at.joint ? adds && box % 2 : adds);
    sm90_products_end();
}

GPU_FN float sm90_add_in_memory(float x, float y) {
    asm("add.rn.ftz.f32 %0, %0, %1;" : "+f"(x) : "f"(y));
    return x;
}

/* Adds the sums of a joint tile's last 128 keys, as additions in memory do, and begins others; the
 * last ones are all. */
template <int DIM>
GPU_FN void sm90_rows_join(const sm90_backward_block &b, const sm90_backward_tile &t, int consumer,
                           const sm90_rows_place<DIM> &at, float (&dq)[DIM / 2]) {
    sm90_products_wait<0>();
    sm90_settle(dq);
    const int box = at.turned - at.box;
    if (!at.joint || (box % 2 == 0 && at.box > at.end))
        return;
    float4 *sums = sm90_joint_sums_of<DIM>(*b.schedule, t, consumer);
#pragma unroll
    for (int i = 0; i < DIM / 8; i++) {
        if (box / 2 > at.end / 2) {
            const float4 x = sums[i * 128];
            dq[4 * i] = sm90_add_in_memory(x.x, dq[4 * i]);
            dq[4 * i + 1] = sm90_add_in_memory(x.y, dq[4 * i + 1]);
            dq[4 * i + 2] = sm90_add_in_memory(x.z, dq[4 * i + 2]);
            dq[4 * i + 3] = sm90_add_in_memory(x.w, dq[4 * i + 3]);
        }
        sums[i * 128] = make_float4(dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
    }
}

/* Rounds and stores the gradients of the group's rows. */
template <int DTYPE, int DIM, int CAREFUL>
GPU_FN void sm90_end_rows(const sm90_backward_block &b, const sm90_rows_maps &maps,
                          const sm90_backward_tile &t, int consumer, const sm90_rows_place<DIM> &at,
                          const float (&dq)[DIM / 2]) {
    const sm90_backward_schedule &s = *b.schedule;
    const int added = at.start >= at.end, leads = threadIdx.x % 128 == 0,
              first = t.first + (consumer * SM90_BOX >> s.pack);
    const uint32_t box = sm90_own_rows(b, consumer, SM90_OWN_DQ);
    sm90_arrive_if(SM90_BARRIER(b, free, at.last), leads && added);
    if (leads)
        sm90_stores_read();
    sm90_group_barrier(consumer);
    const int bad = sm90_write_box<DTYPE>(box, dq, s.scale, added);
    sm90_tell<CAREFUL>(s.turns[0], t, &b.header->told[consumer], bad);
    sm90_writes_known();
    sm90_group_barrier(consumer);
    sm90_store_box<DTYPE, DIM>(
        box, s.dq, maps.dq, consumer,
        {{t.head, t.of.q_first + first, t.of.q_row}, s.pack, (t.of.q_count - first) << s.pack});
}

template <int DTYPE, int DIM, int CAREFUL, int CAP>
GPU_FN void sm90_rows_consume(const sm90_backward_block &b, const sm90_rows_maps &maps,
                              int consumer) {
    const int thread = (int)threadIdx.x & 127,
              row = consumer * SM90_BOX + thread / 32 * 16 + thread % 32 / 4;
    enum { MAY_JOIN = CAREFUL && !CAP };
    sm90_rows_place<DIM> at = {};
    for (int n = 0;; n++) {
        float dq[DIM / 2];
        sm90_wait(SM90_BARRIER(b, own_full, n & 1), (uint32_t)(n >> 1 & 1));
        const sm90_backward_tile &t = b.header->tile[n & 1];
        if (sm90_uniform(t.head) < 0)
            break;
        sm90_read_rows<DTYPE, MAY_JOIN>(b, t, n, consumer, row, at);
        sm90_find_span<CAREFUL>(b, t, consumer, row, at);
        sm90_pass_keys(b, consumer, at);
#pragma unroll 1
        for (; at.box >= at.end; at.box--) {
            sm90_rows_add<DTYPE, DIM, CAREFUL, CAP>(b, at, dq);
            if (MAY_JOIN)
                sm90_rows_join(b, t, consumer, at, dq);
            at.last = at.stage.n;
            sm90_next_stage(at.stage);
        }
        sm90_products_wait<0>();
        sm90_settle(dq);
        if (CAREFUL)
            sm90_spoil(dq, at.met);
        sm90_clear_unseen(dq, at.seen[0], at.seen[1]);
        sm90_end_rows<DTYPE, DIM, CAREFUL>(b, maps, t, consumer, at, dq);
    }
    if (thread == 0)
        sm90_stores_done();
}

#endif
