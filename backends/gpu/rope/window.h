/*
 * Windows of heads in fp32 or the model's arithmetic: exact angles or the caller's tables, one
 * position a token, batch rows anywhere, what lies outside the window copied. As in plain.h each
 * thread has the coefficients of its pairs in registers.
 */
#ifndef ROPEKIT_GPU_ROPE_WINDOW_H
#define ROPEKIT_GPU_ROPE_WINDOW_H

#include "backends/gpu/rope/model_arithmetic.h"
#include "backends/gpu/rope/pass_through.h"
#include "backends/gpu/rope/plain.h"

/* Bytes from a table to the row of a position, by the policy that may change the token's status. */
GPU_FN int64_t gpu_table_row(const gpu_window_call *call, int64_t position, int *status) {
    const int64_t last = call->table_rows - 1;
    int64_t row = position;
    if (row < 0 || row > last) {
        if (call->out_of_range == ROPE_OUT_OF_RANGE_ERROR)
            *status = ROPE_TOKEN_FAILS;
        else if (call->out_of_range == ROPE_OUT_OF_RANGE_IDENTITY || last < 0)
            *status = ROPE_TOKEN_PASSES;
        row = row < 0 || last < 0 ? 0 : last;
    }
    return (int64_t)blockIdx.z * call->table_batch + row * call->table_row;
}

/* As rope_tabled() gives it for tables of one entry a pair, of DTYPE. */
template <typename S, int DTYPE>
GPU_FN gpu_lane_row<S> gpu_table_entries(const gpu_window_call *call, int64_t at) {
    typedef typename gpu_element<DTYPE>::bits bits;
    bits c[S::V], s[S::V];
    gpu_load_list<S>((const bits *)(call->cos + at), call->pairs, c);
    gpu_load_list<S>((const bits *)(call->sin + at), call->pairs, s);
    gpu_lane_row<S> row;
#pragma unroll
    for (int i = 0; i < S::V; i++) {
        row.c[i] = gpu_widen<DTYPE>(c[i]);
        row.s[i] = gpu_widen<DTYPE>(s[i]);
        row.s[i] = call->flags & GPU_CALL_NEGATIVE ? -row.s[i] : row.s[i];
    }
    return row;
}

/* The row for a token's id, and the token's status. */
template <typename S, int ANGLES>
GPU_FN int gpu_window_row(const gpu_window_call *call, const uint64_t turns[S::V], gpu_id id,
                          gpu_lane_row<S> *row) {
    int status = ROPE_TOKEN_ROTATES;
    if constexpr (ANGLES == GPU_TURNS) {
        *row = gpu_exact_row<S, true>(call, turns, id);
    } else {
        const int64_t at = gpu_table_row(call, gpu_position(call, id), &status);
        if (status == ROPE_TOKEN_ROTATES)
            *row = call->flags & GPU_CALL_TABLE_F32 ? gpu_table_entries<S, ROPE_F32>(call, at)
                                                    : gpu_table_entries<S, S::DTYPE>(call, at);
    }
    return status;
}

/* Rotates a unit's vectors in place; a token that is out of a table's range may pass. */
template <typename S>
GPU_FN void gpu_rotate_unit(const gpu_window_call *call, int status, const gpu_lane_row<S> &row,
                            gpu_vectors<S> x[S::HEADS]) {
    if (status == ROPE_TOKEN_PASSES) {
#pragma unroll
        for (int h = 0; h < S::HEADS; h++)
            gpu_pass_vectors<S>(x[h]);
    } else if (!(call->flags & GPU_CALL_MODEL_DTYPE)) {
#pragma unroll
        for (int h = 0; h < S::HEADS; h++)
            gpu_rotate_vectors<S, false>(x[h], row, row);
    } else if constexpr (S::SIZE == 2) {
        const gpu_model_row<S> rounded = gpu_round_row<S>(row);
#pragma unroll
        for (int h = 0; h < S::HEADS; h++)
            gpu_rotate_model_vectors<S>(x[h], rounded);
    } else {
#pragma unroll
        for (int h = 0; h < S::HEADS; h++)
            gpu_rotate_vectors<S, true>(x[h], row, row);
    }
}

template <typename S>
GPU_FN void gpu_store_heads(char *out, int64_t stride, int pairs, int count,
                            const gpu_vectors<S> x[S::HEADS]) {
#pragma unroll
    for (int h = 0; h < S::HEADS; h++)
        if (h < count)
            gpu_store_vectors<S>(out + h * stride, pairs, x[h]);
}

template <typename S>
GPU_FN void gpu_copy_rests(const gpu_window_call *call, int tensor, const char *in, char *out,
                           int count) {
#pragma unroll
    for (int h = 0; h < S::HEADS; h++)
        if (h < count)
            gpu_copy_outside<S>(in + (int64_t)h * call->operand[tensor].in_head,
                                out + (int64_t)h * call->operand[tensor].out_head,
                                call->before[tensor], call->after[tensor], call->pairs);
}

/*
 * A unit in four steps: read the id, load, compute the row while the loads are under way, rotate
 * and store. Where the pairing changes, perhaps in place, every thread of a block has loaded before
 * one stores.
 */
template <int DTYPE, int PAIRING, int GEOMETRY, int ANGLES>
__global__ void __launch_bounds__(GPU_PLAIN_THREADS, GPU_WINDOW_BLOCKS)
    gpu_window_kernel(GPU_PARAMETER gpu_window_call parameter) {
    const gpu_window_call &call = *gpu_parameter<gpu_window_call>(parameter);
    typedef gpu_shape<DTYPE, PAIRING, GEOMETRY> shape;
    constexpr bool CHANGES = shape::JOINED_IN != shape::JOINED_OUT;
    const int index = (int)(blockIdx.y * blockDim.z + threadIdx.z), z = (int)blockIdx.z;
    const bool has_token = index < call.slab && (int64_t)z * call.slab + index < call.rows;
    const int first = (int)(blockIdx.x * blockDim.y), tensor = first >= call.q_units;
    const int unit = first + (int)threadIdx.y;
    const int head = (tensor ? unit - call.q_units : unit) * shape::HEADS;
    const int count = has_token ? call.heads[tensor] - head : 0;
    const gpu_operand &o = call.operand[tensor];
    const char *in =
        o.in + z * call.in_batch[tensor] + (int64_t)index * o.in_token + (int64_t)head * o.in_head;
    char *out = o.out + z * call.out_batch[tensor] + (int64_t)index * o.out_token +
                (int64_t)head * o.out_head;
    gpu_vectors<shape> x[shape::HEADS];
    uint64_t turns[shape::V];
    gpu_lane_row<shape> row;
    const bool ahead = ANGLES != GPU_TURNS && call.flags & GPU_CALL_TABLE_AHEAD;
    int status = ROPE_TOKEN_ROTATES;
    if (!CHANGES && count <= 0)
        return;
    if (ANGLES == GPU_TURNS)
        gpu_load_list<shape>(call.turns, call.pairs, turns);
    if (call.flags & GPU_CALL_EARLY)
        gpu_wait_for_last();
    gpu_id id = {z * call.id_batch + index, 0};
    if (count > 0)
        id = gpu_read_id<true>(&call, id.low);
    if (ahead)
        status = gpu_window_row<shape, ANGLES>(&call, turns, id, &row);
    gpu_load_heads<shape>(in, o.in_head, call.pairs, count, x);
    if (call.flags & GPU_CALL_EARLY)
        gpu_let_next_start();
    if (CHANGES)
        __syncthreads();
    if (CHANGES && count <= 0)
        return;
    if (!ahead)
        status = gpu_window_row<shape, ANGLES>(&call, turns, id, &row);
    if (status == ROPE_TOKEN_FAILS) {
        if (call.position_flag)
            *call.position_flag = 1;
        return;
    }
    gpu_rotate_unit<shape>(&call, status, row, x);
    gpu_store_heads<shape>(out, o.out_head, call.pairs, count, x);
    if (call.flags & GPU_CALL_COPIES)
        gpu_copy_rests<shape>(&call, tensor, in, out, count);
}

#endif
