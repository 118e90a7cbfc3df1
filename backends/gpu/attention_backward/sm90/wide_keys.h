/* Gradients of keys, PART 0, and of values, PART 1, of wide heads, which registers do not hold
 * together. */
#ifndef ROPEKIT_GPU_ATTENTION_BACKWARD_SM90_WIDE_KEYS_H
#define ROPEKIT_GPU_ATTENTION_BACKWARD_SM90_WIDE_KEYS_H

#include "backends/gpu/attention_backward/sm90/keys.h"
#include "backends/gpu/attention_backward/sm90/wide.h"

/* A thread has what the block owns of all tiles copied. */
template <class T, int PART>
GPU_FN void sm90_wide_keys_own(const sm90_backward_block &b, const sm90_keys_maps &maps) {
    for (int n = 0;; n++) {
        const uint32_t full = SM90_BARRIER(b, own_full, n & 1);
        const sm90_backward_tile *t = sm90_wait_to_own(b, n);
        if (!t)
            return;
        sm90_expect(full, 2 * (T::BOX + (PART ? 0 : T::V_BOX)));
        for (int c = 0; c < 2; c++) {
            const sm90_box at = {t->head, t->of.k_first + t->first + SM90_BOX * c, t->of.k_row};
            sm90_load_heads(sm90_wide_own<T>(b, 0, c), maps.k, full, at, T::DIM / 64, SM90_BOX);
            if (!PART)
                sm90_load_heads(sm90_wide_own<T>(b, 1, c), maps.v, full, at, T::V_DIM / 64,
                                SM90_BOX);
        }
    }
}

/* A warp has the rows of all tiles copied. */
template <class T, int PART>
GPU_FN void sm90_wide_keys_walk(const sm90_backward_block &b, const sm90_keys_maps &maps) {
    const sm90_backward_schedule &s = *b.schedule;
    const int leads = threadIdx.x == 0, heads = s.shares >> s.pack;
    uint32_t pairs = 0;
    for (int n = 0;; n++) {
        sm90_wait(SM90_BARRIER(b, known, n & 1), (uint32_t)(n >> 1 & 1));
        const sm90_backward_tile *t = &b.header->tile[n & 1];
        const int head = sm90_uniform(t->head),
                  begin = sm90_uniform(t->begin) * sm90_box_queries(s),
                  boxes = (sm90_uniform(t->end) - sm90_uniform(t->begin)) * heads;
        if (head < 0)
            return;
        sm90_box at = {head * s.shares, sm90_uniform(t->of.q_first) + begin,
                       sm90_uniform(t->of.q_row)};
        int stats = sm90_uniform(t->of.stats) + (begin << s.pack),
            unit = (at.row * s.heads + head) * heads, h = 0;
#pragma unroll 1
        for (int i = boxes;; i--, pairs++) {
            sm90_arrive_if(SM90_BARRIER(b, wanted, 0), leads && i == min(boxes, (int)SM90_AHEAD));
            if (i == 0)
                break;
            const sm90_slot lasting = sm90_lasting<T>(pairs), brief = sm90_brief<T>(pairs);
            sm90_wide_load<T>(b, lasting, PART ? maps.dout : maps.q, at, PART ? T::V_DIM : T::DIM,
                              leads, sizeof b.header->stats[0]);
            if (leads)
                sm90_load_stats(SM90_BARRIER(b, stats[lasting.n], 0), maps.stats,
                                SM90_BARRIER(b, full, lasting.n), stats, unit + h);
            sm90_wide_load<T>(b, brief, PART ? maps.q : maps.dout, at, PART ? T::DIM : T::V_DIM,
                              leads);
            at.head += 1 << s.pack;
            if (++h == heads) {
                h = 0;
                at.head = head * s.shares;
                at.token += SM90_BOX >> s.pack;
                stats += SM90_BOX;
            }
        }
    }
}

template <class T, int PART> struct sm90_wide_keys : sm90_keys_span {
    sm90_left<T::KEEPS && PART ? T::DIM / 4 : 1> k;
    sm90_left<T::KEEPS && !PART ? T::V_DIM / 4 : 1> v;
    uint32_t pairs; /* so far */
};

/* From scores to weights, times slopes of capped ones for dk. */
template <int CAP, int PART>
GPU_FN void sm90_wide_weights(const sm90_backward_schedule &schedule, float (&s)[32],
                              uint32_t stats) {
    if (CAP)
        sm90_tanh(s, schedule.to_cap);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const uint2 two = sm90_read_two(stats + (uint32_t)j * 32);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float &x = s[4 * j + i];
            x = sm90_exp2(fmaf(x, schedule.unit, __uint_as_float(i & 1 ? two.y : two.x))) *
                (CAP && !PART ? sm90_slope(x) : 1.0f);
        }
    }
}

/* Adds a box of rows to dk. */
template <int DTYPE, class T, int CAREFUL, int CAP>
GPU_FN void sm90_wide_add(const sm90_backward_block &b, const sm90_backward_tile &t,
                          sm90_wide_keys<T, 0> &at, float (&dk)[T::DIM / 2]) {
    float s[32], dp[32];
    uint32_t gradients[16], seen = 0;
    const sm90_slot lasting = sm90_lasting<T>(at.pairs), brief = sm90_brief<T>(at.pairs);
    const int slot = sm90_uniform(lasting.n), adds = at.box != at.start,
              part = CAREFUL || at.box < at.whole || at.box >= at.whole_end;
    const uint32_t q = sm90_wide_at<T>(b, slot), dout = sm90_wide_at<T>(b, sm90_uniform(brief.n)),
                   stats = SM90_BARRIER(b, stats[slot], 0) + threadIdx.x % 4 * 8;
    sm90_wait_full(b, lasting);
    if (CAREFUL) {
        sm90_wait_full(b, brief);
        at.met |= sm90_meets(sm90_rows_seen(*b.schedule, t, at, at.box),
                             sm90_clean<DTYPE, T::DIM>(b, q, dout));
    }
    sm90_products_begin();
    sm90_left_scores<DTYPE, T::DIM>(s, at.k, q);
    sm90_products_end();
    if (!CAREFUL)
        sm90_wait_full(b, brief);
    sm90_products_begin();
    sm90_left_scores<DTYPE, T::V_DIM>(dp, at.v, dout);
    sm90_products_end();
    sm90_products_wait<1>();
    sm90_settle(s);
    sm90_settle(dk);
    sm90_free_last<T>(b, at.pairs, adds);
    sm90_wide_weights<CAP, 0>(*b.schedule, s, stats);
    sm90_products_wait<0>();
    sm90_settle(dp);
    sm90_set_free(b, brief);
    if (part)
        seen = sm90_rows_seen(*b.schedule, t, at, at.box);
    sm90_score_gradients<DTYPE>(s, dp, stats + SM90_BOX * 4, part, seen, gradients);
    sm90_products_begin();
    sm90_box_add<DTYPE>(dk, gradients, sm90_box_values(q), adds);
    sm90_products_end();
    at.pairs++;
}

/* The same of dv. */
template <int DTYPE, class T, int CAREFUL, int CAP>
GPU_FN void sm90_wide_add(const sm90_backward_block &b, const sm90_backward_tile &t,
                          sm90_wide_keys<T, 1> &at, float (&dv)[T::V_DIM / 2]) {
    float s[32];
    uint32_t weights[16];
    const sm90_slot lasting = sm90_lasting<T>(at.pairs), brief = sm90_brief<T>(at.pairs);
    const int slot = sm90_uniform(lasting.n), adds = at.box != at.start;
    const uint32_t dout = sm90_wide_at<T>(b, slot), q = sm90_wide_at<T>(b, sm90_uniform(brief.n)),
                   stats = SM90_BARRIER(b, stats[slot], 0) + threadIdx.x % 4 * 8;
    sm90_wait_full(b, brief);
    if (CAREFUL) {
        sm90_wait_full(b, lasting);
        at.met |= sm90_meets(sm90_rows_seen(*b.schedule, t, at, at.box),
                             sm90_clean<DTYPE, T::DIM>(b, q, dout));
    }
    sm90_products_begin();
    sm90_left_scores<DTYPE, T::DIM>(s, at.k, q);
    sm90_products_end();
    if (!CAREFUL)
        sm90_wait_full(b, lasting);
    sm90_products_wait<0>();
    sm90_settle(s);
    sm90_settle(dv);
    sm90_set_free(b, brief);
    sm90_free_last<T>(b, at.pairs, adds);
    sm90_wide_weights<CAP, 1>(*b.schedule, s, stats);
    if (CAREFUL || at.box < at.whole || at.box >= at.whole_end)
        sm90_hide(s, sm90_rows_seen(*b.schedule, t, at, at.box));
#pragma unroll
    for (int i = 0; i < 16; i++)
        weights[i] = sm90_join<DTYPE>(s[2 * i], s[2 * i + 1]);
    sm90_products_begin();
    sm90_box_add<DTYPE>(dv, weights, sm90_box_values(dout), adds);
    sm90_products_end();
    at.pairs++;
}

template <int DTYPE, class T, int CAREFUL, int CAP, int PART>
GPU_FN void sm90_wide_keys_consume(const sm90_backward_block &b, const sm90_keys_maps &maps,
                                   int consumer) {
    constexpr int dim = PART ? T::V_DIM : T::DIM;
    const sm90_backward_schedule &s = *b.schedule;
    sm90_wide_keys<T, PART> at = {};
    for (int n = 0;; n++) {
        float sums[dim / 2];
        sm90_wait(SM90_BARRIER(b, own_full, n & 1), (uint32_t)(n >> 1 & 1));
        const sm90_backward_tile &t = b.header->tile[n & 1];
        if (sm90_uniform(t.head) < 0)
            break;
        sm90_take_left(at.k, sm90_wide_own<T>(b, 0, consumer));
        if (!PART)
            sm90_take_left(at.v, sm90_wide_own<T>(b, 1, consumer));
        sm90_find_span<CAREFUL>(b, t, consumer, at);
#pragma unroll 1
        for (; at.box < min(at.start, at.end); at.box++)
            sm90_wide_pass<T>(b, consumer, at.pairs);
#pragma unroll 1
        for (; at.box < at.end; at.box++)
            sm90_wide_add<DTYPE, T, CAREFUL, CAP>(b, t, at, sums);
        sm90_products_wait<0>();
        sm90_settle(sums);
        sm90_free_last<T>(b, at.pairs, at.end > at.start);
        if (CAREFUL)
            sm90_spoil(sums, at.met);
        sm90_store_keys<DTYPE, dim, CAREFUL>(b, n, consumer, at, sm90_wide_own<T>(b, 0, consumer),
                                             sums, at.end > at.start, PART ? 1.0f : s.scale,
                                             PART ? s.dv : s.dk, PART ? maps.dv : maps.dk);
        sm90_group_barrier(consumer);
        if (threadIdx.x % 128 == 0) {
            sm90_stores_read();
            sm90_arrive(SM90_BARRIER(b, own_free, n & 1));
        }
    }
    if (threadIdx.x % 128 == 0)
        sm90_stores_done();
}

#endif
