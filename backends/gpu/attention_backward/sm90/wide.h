/* Heads of 192 elements with values of 128, and of 256: of what a block owns there is one tile at a
 * time, and of what it walks over few boxes. A box that sums read as well as scores lies in one of
 * two slots by turns; the other one is free after scores, and has as many slots as there is room.
 */
#ifndef ROPEKIT_GPU_ATTENTION_BACKWARD_SM90_WIDE_H
#define ROPEKIT_GPU_ATTENTION_BACKWARD_SM90_WIDE_H

#include "backends/gpu/attention_backward/sm90/box.h"

/* KEEPS: a left operand of values' size stays in registers. */
template <int ELEMENTS> struct sm90_wide {
    enum {
        DIM = ELEMENTS,
        V_DIM = DIM > 192 ? DIM : 128,
        BOX = SM90_BOX * DIM * 2,
        V_BOX = SM90_BOX * V_DIM * 2,
        LASTING = 2,
        BRIEF = DIM > 192 ? 1 : 2,
        KEEPS = V_DIM <= 128
    };
    static_assert((4 + LASTING + BRIEF) * BOX - 2 * (BOX - V_BOX) <=
                          SM90_BACKWARD_SHARED - SM90_BACKWARD_HEADER &&
                      LASTING + BRIEF <= SM90_SLOTS && LASTING <= SM90_STAGES,
                  "in their room");
};

/* Of each group q or k, then dout or v; then slots. */
template <class T> GPU_FN uint32_t sm90_wide_own(const sm90_backward_block &b, int i, int group) {
    return b.memory + (uint32_t)(i * 2 * T::BOX + group * (i ? T::V_BOX : T::BOX));
}
template <class T> GPU_FN uint32_t sm90_wide_at(const sm90_backward_block &b, int slot) {
    return b.memory + (uint32_t)(2 * (T::BOX + T::V_BOX) + slot * T::BOX);
}

struct sm90_slot {
    int n;
    uint32_t parity;
};
/* Where boxes of either kind lie, behind as many pairs of them. */
template <class T> GPU_FN sm90_slot sm90_lasting(uint32_t pairs) {
    return {(int)(pairs % T::LASTING), pairs / T::LASTING & 1};
}
template <class T> GPU_FN sm90_slot sm90_brief(uint32_t pairs) {
    return {T::LASTING + (int)(pairs % T::BRIEF), pairs / T::BRIEF & 1};
}

/* Tile n, when the block may own it; NULL, and what is owned is there, behind the last one. */
GPU_FN const sm90_backward_tile *sm90_wait_to_own(const sm90_backward_block &b, int n) {
    const sm90_backward_tile *t = &b.header->tile[n & 1];
    sm90_wait(SM90_BARRIER(b, known, n & 1), (uint32_t)(n >> 1 & 1));
    if (t->head < 0) {
        sm90_arrive(SM90_BARRIER(b, own_full, n & 1));
        return NULL;
    }
    if (n > 0)
        sm90_wait(SM90_BARRIER(b, own_free, (n - 1) & 1), (uint32_t)(n - 1) >> 1 & 1);
    return t;
}

/* Has a box copied to a slot, ahead of so many bytes more. */
template <class T>
GPU_FN void sm90_wide_load(const sm90_backward_block &b, const sm90_slot &slot,
                           const CUtensorMap *map, const sm90_box &at, int dim, int leads,
                           uint32_t more = 0) {
    const uint32_t full = SM90_BARRIER(b, full, slot.n);
    sm90_wait(SM90_BARRIER(b, free, slot.n), slot.parity ^ 1);
    if (leads) {
        sm90_expect(full, (uint32_t)(SM90_BOX * dim * 2) + more);
        sm90_load_heads(sm90_wide_at<T>(b, slot.n), map, full, at, dim / 64, SM90_BOX);
    }
}

GPU_FN void sm90_wait_full(const sm90_backward_block &b, const sm90_slot &slot) {
    sm90_wait(SM90_BARRIER(b, full, slot.n), slot.parity);
}
GPU_FN void sm90_set_free(const sm90_backward_block &b, const sm90_slot &slot, int frees = 1) {
    sm90_arrive_if(SM90_BARRIER(b, free, slot.n), threadIdx.x % 128 == 0 && frees);
}

/* Frees the lasting box before this one. */
template <class T>
GPU_FN void sm90_free_last(const sm90_backward_block &b, uint32_t pairs, int frees) {
    sm90_set_free(b, sm90_lasting<T>(pairs - 1), frees);
}

/* Passes over a pair, with a group's warps together. */
template <class T>
GPU_FN void sm90_wide_pass(const sm90_backward_block &b, int consumer, uint32_t &pairs) {
    sm90_wait_full(b, sm90_lasting<T>(pairs));
    sm90_wait_full(b, sm90_brief<T>(pairs));
    sm90_group_barrier(consumer);
    sm90_set_free(b, sm90_lasting<T>(pairs));
    sm90_set_free(b, sm90_brief<T>(pairs));
    pairs++;
}

/* A left operand: its box, as products are told of it, or registers. */
template <int N> struct sm90_left { uint32_t box, x[N]; };
template <int N> GPU_FN void sm90_take_left(sm90_left<N> &left, uint32_t box) {
    left.box = (uint32_t)sm90_uniform((int)sm90_box_matrix(box));
    if constexpr (N > 1)
        sm90_read_box(box, left.x);
}
template <int DTYPE, int DIM, int N>
GPU_FN void sm90_left_scores(float (&d)[32], const sm90_left<N> &left, uint32_t b) {
    if constexpr (N > 1)
        sm90_box_scores<DTYPE>(d, left.x, sm90_box_matrix(b));
    else
        sm90_box_scores<DTYPE, DIM>(d, left.box, sm90_box_matrix(b));
}

#endif
