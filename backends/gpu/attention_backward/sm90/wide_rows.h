/* Gradients of queries of wide heads. */
#ifndef ROPEKIT_GPU_ATTENTION_BACKWARD_SM90_WIDE_ROWS_H
#define ROPEKIT_GPU_ATTENTION_BACKWARD_SM90_WIDE_ROWS_H

#include "backends/gpu/attention_backward/sm90/rows.h"
#include "backends/gpu/attention_backward/sm90/wide.h"

/* A thread has what the block owns of all tiles copied. */
template <class T>
GPU_FN void sm90_wide_rows_own(const sm90_backward_block &b, const sm90_rows_maps &maps) {
    for (int n = 0;; n++) {
        const uint32_t full = SM90_BARRIER(b, own_full, n & 1);
        const sm90_backward_tile *t = sm90_wait_to_own(b, n);
        if (!t)
            return;
        sm90_expect(full, 2 * (T::BOX + T::V_BOX));
        for (int c = 0; c < 2; c++) {
            const sm90_box at = {
                t->head, t->of.q_first + t->first + c * sm90_box_queries(*b.schedule), t->of.q_row};
            sm90_load_heads(sm90_wide_own<T>(b, 0, c), maps.q, full, at, T::DIM / 64, SM90_BOX);
            sm90_load_heads(sm90_wide_own<T>(b, 1, c), maps.dout, full, at, T::V_DIM / 64,
                            SM90_BOX);
        }
    }
}

/* A warp has all others copied: of a tile out of both groups, then keys and values. */
template <class T>
GPU_FN void sm90_wide_rows_walk(const sm90_backward_block &b, const sm90_rows_maps &maps) {
    const sm90_backward_schedule &s = *b.schedule;
    const int leads = threadIdx.x == 0;
    uint32_t pairs = 0;
    for (int n = 0;; n++) {
        sm90_wait(SM90_BARRIER(b, known, n & 1), (uint32_t)(n >> 1 & 1));
        const sm90_backward_tile *t = &b.header->tile[n & 1];
        const int head = sm90_uniform(t->head), begin = sm90_uniform(t->begin),
                  end = sm90_uniform(t->end), row = sm90_uniform(t->of.k_row),
                  first = sm90_uniform(t->of.k_first);
        if (head < 0)
            return;
        sm90_box at = {head, t->of.q_first + t->first, t->of.q_row};
        sm90_wide_load<T>(b, sm90_lasting<T>(pairs), maps.out, at, T::V_DIM, leads);
        at.token += sm90_box_queries(s);
        sm90_wide_load<T>(b, sm90_brief<T>(pairs), maps.out, at, T::V_DIM, leads);
        pairs++;
        at = {head / s.shares, 0, row};
#pragma unroll 1
        for (int i = end;;) {
            sm90_arrive_if(SM90_BARRIER(b, wanted, 0), leads && i == min(end, begin + SM90_AHEAD));
            if (i-- == begin)
                break;
            at.token = first + i * SM90_BOX;
            sm90_wide_load<T>(b, sm90_lasting<T>(pairs), maps.k, at, T::DIM, leads);
            sm90_wide_load<T>(b, sm90_brief<T>(pairs), maps.v, at, T::V_DIM, leads);
            pairs++;
        }
    }
}

template <class T> struct sm90_wide_rows : sm90_rows_span {
    sm90_left<1> q;
    sm90_left<T::KEEPS ? T::V_DIM / 4 : 1> dout;
    uint32_t pairs; /* so far */
};

/* Reads what the group owns of a tile. */
template <int DTYPE, class T>
GPU_FN void sm90_wide_read_rows(const sm90_backward_block &b, const sm90_backward_tile &t, int n,
                                int consumer, int row, sm90_wide_rows<T> &at) {
    const sm90_slot slot = consumer ? sm90_brief<T>(at.pairs) : sm90_lasting<T>(at.pairs);
    sm90_take_left(at.q, sm90_wide_own<T>(b, 0, consumer));
    sm90_take_left(at.dout, sm90_wide_own<T>(b, 1, consumer));
    sm90_wait_full(b, slot);
    {
        uint32_t dout[T::V_DIM / 4], out[T::V_DIM / 4];
        sm90_read_box(sm90_wide_own<T>(b, 1, consumer), dout);
        sm90_read_box(sm90_wide_at<T>(b, slot.n), out);
        sm90_delta<DTYPE>(dout, out, at.delta);
    }
    sm90_wide_pass<T>(b, consumer, at.pairs);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        at.lse[h] = b.header->minus_lse[n & 1][row + 8 * h];
        sm90_store_stats(*b.schedule, t, row + 8 * h, at.lse[h], at.delta[h], 1.0f);
    }
}

/* Adds a box of keys to dq. */
template <int DTYPE, class T, int CAREFUL, int CAP>
GPU_FN void sm90_wide_rows_add(const sm90_backward_block &b, sm90_wide_rows<T> &at,
                               float (&dq)[T::DIM / 2]) {
    float s[32], dp[32];
    uint32_t gradients[16];
    const sm90_slot lasting = sm90_lasting<T>(at.pairs), brief = sm90_brief<T>(at.pairs);
    const uint32_t k = sm90_wide_at<T>(b, sm90_uniform(lasting.n)),
                   v = sm90_wide_at<T>(b, sm90_uniform(brief.n));
    const int adds = at.box != at.start;
    const float unit = b.schedule->unit;
    sm90_wait_full(b, lasting);
    if (CAREFUL) {
        sm90_wait_full(b, brief);
        at.met |= sm90_meets(sm90_keys_seen(at, at.box), sm90_clean<DTYPE, T::DIM>(b, k, v));
    }
    sm90_products_begin();
    sm90_left_scores<DTYPE, T::DIM>(s, at.q, k);
    sm90_products_end();
    if (!CAREFUL)
        sm90_wait_full(b, brief);
    sm90_products_begin();
    sm90_left_scores<DTYPE, T::V_DIM>(dp, at.dout, v);
    sm90_products_end();
    sm90_products_wait<1>();
    sm90_settle(s);
    sm90_settle(dq);
    sm90_free_last<T>(b, at.pairs, adds);
    if (CAP)
        sm90_tanh(s, b.schedule->to_cap);
#pragma unroll
    for (int i = 0; i < 32; i++)
        s[i] = sm90_exp2(fmaf(s[i], unit, at.lse[i >> 1 & 1])) * (CAP ? sm90_slope(s[i]) : 1.0f);
    sm90_products_wait<0>();
    sm90_settle(dp);
    sm90_set_free(b, brief);
#pragma unroll
    for (int i = 0; i < 32; i++)
        s[i] = s[i] * (dp[i] + at.delta[i >> 1 & 1]);
    if (CAREFUL || at.box < at.whole || at.box >= at.whole_end)
        sm90_hide(s, sm90_keys_seen(at, at.box));
#pragma unroll
    for (int i = 0; i < 16; i++)
        gradients[i] = sm90_join<DTYPE>(s[2 * i], s[2 * i + 1]);
    sm90_products_begin();
    sm90_box_add<DTYPE>(dq, gradients, sm90_box_values(k), adds);
    sm90_products_end();
    at.pairs++;
}

/* Rounds and stores the gradients of the group's rows, by way of their queries' box. */
template <int DTYPE, class T, int CAREFUL>
GPU_FN void sm90_wide_end_rows(const sm90_backward_block &b, const sm90_rows_maps &maps, int n,
                               int consumer, const sm90_wide_rows<T> &at,
                               const float (&dq)[T::DIM / 2]) {
    const sm90_backward_schedule &s = *b.schedule;
    const sm90_backward_tile &t = b.header->tile[n & 1];
    const int added = at.start >= at.end, first = t.first + (consumer * SM90_BOX >> s.pack);
    const uint32_t box = sm90_wide_own<T>(b, 0, consumer);
    sm90_free_last<T>(b, at.pairs, added);
    sm90_group_barrier(consumer);
    const int bad = sm90_write_box<DTYPE>(box, dq, s.scale, added);
    sm90_tell<CAREFUL>(s.turns[0], t, &b.header->told[consumer], bad);
    sm90_writes_known();
    sm90_group_barrier(consumer);
    sm90_store_box<DTYPE, T::DIM>(
        box, s.dq, maps.dq, consumer,
        {{t.head, t.of.q_first + first, t.of.q_row}, s.pack, (t.of.q_count - first) << s.pack});
    sm90_group_barrier(consumer);
    if (threadIdx.x % 128 == 0) {
        sm90_stores_read();
        sm90_arrive(SM90_BARRIER(b, own_free, n & 1));
    }
}

template <int DTYPE, class T, int CAREFUL, int CAP>
GPU_FN void sm90_wide_rows_consume(const sm90_backward_block &b, const sm90_rows_maps &maps,
                                   int consumer) {
    const int thread = (int)threadIdx.x & 127,
              row = consumer * SM90_BOX + thread / 32 * 16 + thread % 32 / 4;
    sm90_wide_rows<T> at = {};
    for (int n = 0;; n++) {
        float dq[T::DIM / 2];
        sm90_wait(SM90_BARRIER(b, own_full, n & 1), (uint32_t)(n >> 1 & 1));
        const sm90_backward_tile &t = b.header->tile[n & 1];
        if (sm90_uniform(t.head) < 0)
            break;
        sm90_wide_read_rows<DTYPE, T>(b, t, n, consumer, row, at);
        sm90_find_span<CAREFUL>(b, t, consumer, row, at);
#pragma unroll 1
        for (; at.box > at.start; at.box--)
            sm90_wide_pass<T>(b, consumer, at.pairs);
#pragma unroll 1
        for (; at.box >= at.end; at.box--)
            sm90_wide_rows_add<DTYPE, T, CAREFUL, CAP>(b, at, dq);
        sm90_products_wait<0>();
        sm90_settle(dq);
        if (CAREFUL)
            sm90_spoil(dq, at.met);
        sm90_clear_unseen(dq, at.seen[0], at.seen[1]);
        sm90_wide_end_rows<DTYPE, T, CAREFUL>(b, maps, n, consumer, at, dq);
    }
    if (thread == 0)
        sm90_stores_done();
}

#endif
