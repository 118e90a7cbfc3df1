/* What depends on a call's lengths, found ahead: its sequences, and the tiles of packed ones. */
#ifndef ROPEKIT_GPU_ATTENTION_BACKWARD_SM90_PREPARE_H
#define ROPEKIT_GPU_ATTENTION_BACKWARD_SM90_PREPARE_H

#include "backends/gpu/attention/sequence.h"
#include "backends/gpu/attention_backward/sm90.h"
#include "backends/gpu/attention_backward/sm90/kernels.h"

/* An index beyond all that a mask tells apart is as good as one at the end of that. */
GPU_FN int32_t sm90_near_index(int64_t index) {
    const int64_t most = SM90_FAR / 2;
    return (int32_t)(index < -most ? -most : index > most ? most : index);
}

/* One that is out of range has no tokens. Rows of stats of packed ones begin behind those of the
 * one before, at the next multiple of 4. */
GPU_FN sm90_backward_sequence sm90_backward_sequence_of(const sm90_backward_schedule &order,
                                                        const rope_attention_sequence &s) {
    const sm90_mask &m = order.mask;
    const int there = !s.fails;
    const int64_t row = (s.q_first << order.pack) + 3,
                  tiles = (s.k_count + GPU_BACKWARD_SM90_TILE - 1) / GPU_BACKWARD_SM90_TILE,
                  token = s.q_row * order.tokens + s.q_first;
    const int steps = order.wide ? 0 : sm90_backward_steps(tiles, order.heads, order.shares);
    return {(int32_t)s.q_row,
            (int32_t)s.q_first,
            there ? (int32_t)s.q_count : 0,
            (int32_t)s.k_row,
            (int32_t)s.k_first,
            there ? (int32_t)s.k_count : 0,
            sm90_near_index(rope_query_index(&s, 0)),
            m.chunk < SM90_FAR ? (int32_t)(s.k_index % m.chunk) : 0,
            order.order[0].places ? (int32_t)(row / 4 + s.index) * 4 : 0,
            there && order.sums &&
                    sm90_backward_joint(&m, s.k_count, s.q_count, order.heads * order.shares,
                                        order.slab, steps)
                ? (int)SM90_JOINT
                : steps,
            (int32_t)GPU_BACKWARD_JOINT_SLABS(token, order.shares, order.slab)};
}

/* Tiles of `each` tokens of packed sequence n have places from here on: those of n sequences are
 * at most n more than whole ones of their tokens. */
GPU_FN int64_t sm90_packed_start(const rope_position_map *map, int64_t n, int each) {
    const int64_t begin = rope_index_at(map, map->cu_seqlens, n), first = begin < 0 ? 0
                                                                          : begin < map->tokens
                                                                              ? begin
                                                                              : map->tokens;
    return first / each + n;
}

/* Lists the tiles of sequence n, which has `count` tokens, and that there is none in the rest of
 * its places. reverse: the last one first. */
GPU_FN void sm90_list_tiles(const sm90_backward_order &order, const rope_position_map *map,
                            int64_t n, int64_t sequences, int each, int count, int reverse) {
    if (!order.places)
        return;
    const int64_t begin = n == 0 ? 0 : sm90_packed_start(map, n, each),
                  end = n + 1 == sequences ? order.each : sm90_packed_start(map, n + 1, each);
    const int tiles = (count + each - 1) / each;
    for (int64_t i = threadIdx.x; i < end - begin; i += SM90_PREPARE_THREADS) {
        const int tile = (int)(reverse ? tiles - 1 - i : i);
        order.places[begin + i] = {(int32_t)n, i < tiles ? tile : -1};
    }
}

__global__ void __launch_bounds__(SM90_PREPARE_THREADS)
    gpu_backward_sm90_prepare(GPU_PARAMETER rope_attention_problem problem,
                              GPU_PARAMETER rope_attention_call call,
                              GPU_PARAMETER sm90_backward_schedule s) {
    gpu_wait_for_last();
    gpu_let_next_start();
    const int64_t sequences = rope_attention_sequences(&call);
    if (threadIdx.x < GPU_BACKWARD_SM90_COUNTERS && blockIdx.x == 0)
        s.counters[threadIdx.x] = ~0u;
    for (int64_t n = blockIdx.x; n < sequences; n += gridDim.x) {
        const rope_attention_sequence all = rope_attention_sequence_of(&problem, &call, n);
        const sm90_backward_sequence own = sm90_backward_sequence_of(s, all);
        if (threadIdx.x == 0) {
            if (all.fails)
                gpu_attention_flag(&call);
            s.sequences[n] = own;
            s.turns[0].again[n] = s.turns[1].again[n] = -1;
        }
        sm90_list_tiles(s.order[0], &call.rope.position, n, sequences, SM90_ROWS >> s.pack,
                        own.q_count, 1);
        sm90_list_tiles(s.order[1], &call.k_position, n, sequences, 2 * SM90_BOX, own.k_count, 0);
    }
}

#endif
