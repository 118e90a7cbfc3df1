/*
 * Exact angles, one position a token, nothing outside the window to copy: what most calls are. Each
 * thread has the coefficients of its pairs in registers, and parameters and addresses are cut down.
 */
#ifndef ROPEKIT_GPU_ROPE_PLAIN_H
#define ROPEKIT_GPU_ROPE_PLAIN_H

#include "backends/gpu/rope/fragment.h"

/* The words of an id as memory has them, else its index: what extends a sign waits for a load. */
struct gpu_id {
    int32_t low, high;
};

/* A predicate is sooner done than a branch, which takes fewer instructions where there are no ids.
 */
template <bool BRANCH, typename CALL> GPU_FN gpu_id gpu_read_id(const CALL *call, int at) {
    const int wide = call->flags & GPU_CALL_WIDE_IDS;
    const int32_t *word = (const int32_t *)call->ids + ((int64_t)at << wide);
    gpu_id id = {at, 0};
    if (BRANCH && call->ids) {
        id.low = word[0];
        if (wide)
            id.high = word[1];
        return id;
    }
    if (!BRANCH && call->ids)
        id.low = word[0];
    if (!BRANCH && call->ids && wide)
        id.high = word[1];
    return id;
}

template <typename CALL> GPU_FN int64_t gpu_position(const CALL *call, gpu_id id) {
    int32_t high = call->flags & GPU_CALL_WIDE_IDS ? id.high : id.low >> 31;
    return rope_sum((int64_t)((uint64_t)(uint32_t)high << 32 | (uint32_t)id.low), call->offset);
}

/* As rope_computed() gives it: a negative factor is a negative sine. */
template <typename S, bool HAS_IDS, typename CALL>
GPU_FN gpu_lane_row<S> gpu_exact_row(const CALL *call, const uint64_t turns[S::V], gpu_id id) {
    gpu_lane_row<S> row;
    const float negative = call->flags & GPU_CALL_NEGATIVE ? -call->factor : call->factor;
    const uint64_t position =
        (uint64_t)(HAS_IDS ? gpu_position(call, id) : rope_sum(id.low, call->offset));
#pragma unroll
    for (int i = 0; i < S::V; i++) {
        rope_cos_sin a = rope_cos_sin_turns(position * turns[i]);
        row.c[i] = a.c * call->factor;
        row.s[i] = a.s * negative;
    }
    return row;
}

/*
 * A unit in four steps: read the id, load, compute the row while the loads are under way, store; or
 * read the id behind the loads. A launch that may start before the one ahead of it has ended waits
 * for that before it reads what the caller wrote. It lets the next one start at once, behind its
 * loads, or once the id is there. Whole blocks of single heads never start early: the flag costs
 * them up to 8 % (512 to 4096 rows of f32, H100).
 */
template <int DTYPE, int PAIRING, int GEOMETRY, int BLOCKS, int START>
__global__ void __launch_bounds__(GPU_PLAIN_THREADS,
                                  GPU_PLAIN_BLOCKS(DTYPE == ROPE_F32 ? 4 : 2, GEOMETRY))
    gpu_plain_kernel(GPU_PARAMETER gpu_plain_call call) {
    typedef gpu_shape<DTYPE, PAIRING, GEOMETRY> shape;
    constexpr bool WHOLE = BLOCKS == GPU_WHOLE, SINGLE = GEOMETRY == GPU_SINGLE_HEAD;
    constexpr bool HAS_IDS = !(WHOLE && SINGLE);
    constexpr bool BRANCH = !WHOLE && SINGLE;
    constexpr bool BEHIND_LOADS = GPU_LOADS_FIRST(GEOMETRY);
    const bool early = HAS_IDS && (START == GPU_START_BY_FLAG ? (call.flags & GPU_CALL_EARLY) != 0
                                                              : START == GPU_START_EARLY);
    const bool late = early && GPU_LETS_LATE(GEOMETRY);
    const int index = (int)(blockIdx.y * blockDim.z + threadIdx.z);
    const int n = WHOLE ? index : (int)blockIdx.z * call.slab + index;
    const int at = WHOLE ? index : n - (int)blockIdx.z * call.restart;
    const int pairs = BLOCKS == GPU_CHECKED_32 ? 32 : (int)blockDim.x * shape::V;
    uint64_t turns[shape::V];
    gpu_vectors<shape> x[shape::HEADS];
    gpu_id id = {at, 0};
    if (HAS_IDS && START != GPU_START_IN_ORDER && call.flags & GPU_CALL_AT_ONCE)
        gpu_let_next_start();
    if (!WHOLE && (index >= call.slab || n >= call.rows))
        return;
    gpu_load_list<shape>(call.turns, pairs, turns);
    if (!BEHIND_LOADS && early)
        gpu_wait_for_last();
    if (!BEHIND_LOADS && HAS_IDS)
        id = gpu_read_id<BRANCH>(&call, at);
    const int first = (int)(blockIdx.x * blockDim.y), unit = first + (int)threadIdx.y;
    const int tensor = !SINGLE && first >= call.q_units;
    const int head = SINGLE ? 0 : (tensor ? unit - call.q_units : unit) * shape::HEADS;
    const int count = WHOLE || SINGLE ? shape::HEADS : call.heads[tensor] - head;
    const gpu_operand o = call.operand[tensor];
    const char *in = o.in + (int64_t)head * o.in_head + (int64_t)n * o.in_token;
    char *out = o.out + (int64_t)head * o.out_head + (int64_t)n * o.out_token;
    if (BEHIND_LOADS && (GPU_ALWAYS_EARLY(GEOMETRY) || early))
        gpu_wait_for_last();
#pragma unroll
    for (int h = 0; h < shape::HEADS; h++)
        if (h < count)
            x[h] = gpu_load_vectors<shape>(in + h * o.in_head, pairs);
    if ((GPU_ALWAYS_EARLY(GEOMETRY) || early) && !late)
        gpu_let_next_start();
    if (HAS_IDS && BEHIND_LOADS)
        id = gpu_read_id<BRANCH>(&call, at);
    if (!BEHIND_LOADS && GEOMETRY == GPU_NARROW && count <= 0)
        return; /* and what waits for the id is no longer moved ahead of the loads */
    if (late && id.low != INT32_MIN) /* true but for one id, and known once it is there */
        gpu_let_next_start();
    gpu_lane_row<shape> row = gpu_exact_row<shape, HAS_IDS>(&call, turns, id);
#pragma unroll
    for (int h = 0; h < shape::HEADS; h++)
        if (h < count) {
            gpu_rotate_vectors<shape, false>(x[h], row, row);
            gpu_store_vectors<shape>(out + h * o.out_head, pairs, x[h]);
        }
}

#endif
