/*
 * Exact angles, one position a token, nothing outside the window to copy: what most calls are. Each
 * thread has the coefficients of its pairs in registers, and parameters and addresses are cut down.
 */
#ifndef ROPEKIT_GPU_PLAIN_H
#define ROPEKIT_GPU_PLAIN_H

#include "common/gpu/vector.h"

/* Of a token in its batch row. */
GPU_FN int gpu_plain_index(const gpu_plain_call *call, int n) {
    int row = (int)(__umulhi(2u * (unsigned)n, call->reciprocal) >> call->shift);
    return n - row * call->tokens;
}

GPU_FN uint64_t gpu_plain_position(const gpu_plain_call *call, int n) {
    int index = gpu_plain_index(call, n);
    int64_t position = index;
    if (call->ids) {
        int at = call->flags & GPU_PLAIN_SHARED_IDS ? index : n;
        position = call->flags & GPU_PLAIN_WIDE_IDS ? ((const int64_t *)call->ids)[at]
                                                    : ((const int32_t *)call->ids)[at];
    }
    return (uint64_t)rope_sum(position, call->offset);
}

/* The words of an id as memory has them, else the index: what extends a sign waits for a load. */
struct gpu_plain_id {
    int32_t low, high;
};

GPU_FN gpu_plain_id gpu_plain_read_id(const gpu_plain_call *call, int n) {
    gpu_plain_id id = {gpu_plain_index(call, n), 0};
    if (call->ids) {
        const int wide = call->flags & GPU_PLAIN_WIDE_IDS;
        int at = call->flags & GPU_PLAIN_SHARED_IDS ? id.low : n;
        const int32_t *word = (const int32_t *)call->ids + (at << wide); /* rows < 2^30 */
        id.low = word[0];
        if (wide)
            id.high = word[1];
    }
    return id;
}

GPU_FN uint64_t gpu_plain_position_of(const gpu_plain_call *call, gpu_plain_id id) {
    int32_t high = call->flags & GPU_PLAIN_WIDE_IDS ? id.high : id.low >> 31;
    return (uint64_t)rope_sum((int64_t)((uint64_t)(uint32_t)high << 32 | (uint32_t)id.low),
                              call->offset);
}

/*
 * As rope_computed() gives it: a negative factor is a negative sine. Behind loads few pairs are
 * multiplied by a factor of 1 sooner than a branch spares them.
 */
template <typename S, bool BEHIND_LOADS>
GPU_FN gpu_lane_row<S> gpu_plain_row(const gpu_plain_call *call, const uint64_t turns[S::V], int n,
                                     gpu_plain_id id) {
    gpu_lane_row<S> row;
    const float negative = call->flags & GPU_PLAIN_NEGATIVE ? -call->factor : call->factor;
    const uint64_t position =
        BEHIND_LOADS ? gpu_plain_position(call, n) : gpu_plain_position_of(call, id);
#pragma unroll
    for (int i = 0; i < S::V; i++) {
        rope_cos_sin a = rope_cos_sin_turns(position * turns[i]);
        row.c[i] = BEHIND_LOADS ? a.c * call->factor : a.c;
        row.s[i] = BEHIND_LOADS ? a.s * negative : a.s;
    }
    if (!BEHIND_LOADS && call->flags & GPU_PLAIN_SCALED)
#pragma unroll
        for (int i = 0; i < S::V; i++) {
            row.c[i] *= call->factor;
            row.s[i] *= negative;
        }
    return row;
}

/*
 * A unit in four steps: read the id, load, compute the row while the loads are under way, store; or
 * read the id behind the loads. EARLY: the launch may start before the one ahead of it has ended,
 * and knows its addresses by then. It lets the next one start at once, behind its loads, or once
 * the id is there.
 */
template <int DTYPE, int PAIRING, int GEOMETRY, int PAIRS, bool EARLY>
__global__ void __launch_bounds__(GPU_PLAIN_THREADS,
                                  GPU_PLAIN_BLOCKS(DTYPE == ROPE_F32 ? 4 : 2, GEOMETRY))
    gpu_plain_kernel(GPU_PARAMETER gpu_plain_call call) {
    typedef gpu_shape<DTYPE, PAIRING, GEOMETRY> shape;
    constexpr bool BEHIND_LOADS = GPU_LOADS_FIRST(GEOMETRY) && !EARLY;
    constexpr bool STARTS_EARLY = EARLY || GPU_ALWAYS_EARLY(GEOMETRY);
    constexpr bool LETS_LATE = EARLY && GPU_LETS_LATE(GEOMETRY);
    const int n = (int)((blockIdx.z * gridDim.y + blockIdx.y) * blockDim.z + threadIdx.z);
    const int pairs = PAIRS == GPU_PAIRS_64 ? 64 : (int)blockDim.x * shape::V;
    uint64_t turns[shape::V];
    gpu_vectors<shape> x[shape::HEADS];
    gpu_plain_id id = {};
    if (EARLY && call.flags & GPU_PLAIN_AT_ONCE)
        gpu_let_next_start();
    if (n >= call.rows)
        return;
    if (shape::V <= 4) /* more would cost registers */
        gpu_load_list<shape>(call.turns, pairs, turns);
    if (!BEHIND_LOADS && !EARLY)
        id = gpu_plain_read_id(&call, n);
    const int first = (int)(blockIdx.x * blockDim.y), unit = first + (int)threadIdx.y;
    const int tensor = first >= call.q_units;
    const int head = (tensor ? unit - call.q_units : unit) * shape::HEADS;
    const int count = (tensor ? call.heads[1] : call.heads[0]) - head;
    const gpu_plain_operand o = call.operand[tensor];
    const char *in = o.in + (int64_t)head * o.in_head + (int64_t)n * o.in_token;
    char *out = o.out + (int64_t)head * o.out_head + (int64_t)n * o.out_token;
    if (STARTS_EARLY)
        gpu_wait_for_last();
    if (EARLY)
        id = gpu_plain_read_id(&call, n);
#pragma unroll
    for (int h = 0; h < shape::HEADS; h++)
        if (h < count)
            x[h] = gpu_load_vectors<shape>(in + h * o.in_head, pairs);
    if (STARTS_EARLY && !LETS_LATE)
        gpu_let_next_start();
    if (!BEHIND_LOADS && GEOMETRY == GPU_NARROW && count <= 0)
        return; /* and what waits for the id is no longer moved ahead of the loads */
    if (LETS_LATE && id.low != INT32_MIN) /* true but for one id, and known once it is there */
        gpu_let_next_start();
    if (shape::V > 4)
        gpu_load_list<shape>(call.turns, pairs, turns);
    gpu_lane_row<shape> row = gpu_plain_row<shape, BEHIND_LOADS>(&call, turns, n, id);
#pragma unroll
    for (int h = 0; h < shape::HEADS; h++)
        if (h < count) {
            gpu_rotate_vectors<shape, false>(x[h], row, row);
            gpu_store_vectors<shape>(out + h * o.out_head, pairs, x[h]);
        }
}

#endif
