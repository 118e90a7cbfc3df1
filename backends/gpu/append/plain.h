/*
 * What most calls are: whole heads that rotate by exact angles of one position a token, perhaps
 * behind a norm of weights that all heads share, and places by slots. As in rope/plain.h each
 * thread has the coefficients of its pairs in registers, and parameters lie in a line for all and a
 * line for each tensor. No thread waits for another but by shuffles.
 */
#ifndef ROPEKIT_GPU_APPEND_PLAIN_H
#define ROPEKIT_GPU_APPEND_PLAIN_H

#include "backends/gpu/append/kernels.h"
#include "backends/gpu/append/store.h"
#include "backends/gpu/append/vector.h"
#include "backends/gpu/rope/plain.h"
#include "common/math/norm.h"

/* The words of slot `at` as memory has them. */
GPU_FN gpu_id gpu_read_slot(const gpu_append_plain_call &call, int at) {
    const int wide = call.flags & GPU_APPEND_PLAIN_WIDE_SLOTS ? 1 : 0;
    const int32_t *word = (const int32_t *)call.slots + ((int64_t)at << wide);
    gpu_id slot = {0, 0};
    if (call.slots)
        slot.low = word[0];
    if (call.slots && wide)
        slot.high = word[1];
    return slot;
}

/* A token's place in store. */
struct gpu_plain_place {
    int64_t at;  /* bytes to its heads */
    bool stored; /* there is one */
    bool fails;  /* there is none, and slots that name none are negative */
};

/* The place of q's row n, else of a slot; without a branch, so that it is computed among the
 * angles. */
GPU_FN gpu_plain_place gpu_place_plain(const gpu_append_plain_call &call,
                                       const gpu_append_plain_operand &o, bool q, int n,
                                       gpu_id slot) {
    const int32_t high = call.flags & GPU_APPEND_PLAIN_WIDE_SLOTS ? slot.high : slot.low >> 31;
    const uint32_t index = (uint32_t)slot.low;
    const bool given = high == 0 && index < (uint32_t)o.slots;
    const uint32_t page = (uint32_t)((uint64_t)index * o.per_page >> o.page_shift);
    const int32_t row = q ? n : (int32_t)(index - page * (uint32_t)o.page_size);
    return {(int64_t)(q ? 0 : page) * o.store_page + (int64_t)row * o.store_slot, q || given,
            !q && !given && high >= 0};
}

/* --- norm --- */

/* The node of a vector: squares of V elements. */
template <int DTYPE, int V> GPU_FN float gpu_plain_node(const gpu_vector<DTYPE, V> &x) {
    float y[V];
    gpu_unpack<DTYPE, V>(x, y);
    float node = rope_norm_squares(y[0], y[1]);
    if constexpr (V == 4)
        node = node + rope_norm_squares(y[2], y[3]);
    return node;
}

/*
 * The reciprocals of a thread's heads. All threads of a head, a power of two from 2 * HEADS to 32,
 * ask. With each level of the sum a thread gives half of its partial sums to the neighbour and gets
 * the neighbour's of the other half, until it has those of half a head; the halves come last. The
 * mean of a power of two is a product, and the reciprocal that of rope_norm_reciprocal().
 */
template <typename S>
GPU_FN void gpu_plain_values(const gpu_append_plain_call &call, int tensor,
                             const gpu_vectors<S> x[S::HEADS], float values[S::HEADS]) {
    constexpr int LANES = S::HEADS; /* bits 2 (and 4) of a lane say which head it sums */
    float sum[S::HEADS];
#pragma unroll
    for (int h = 0; h < S::HEADS; h++)
        sum[h] = gpu_halve(gpu_plain_node<S::DTYPE, S::V>(x[h].a),
                           gpu_plain_node<S::DTYPE, S::V>(x[h].b), 1);
#pragma unroll
    for (int bit = 2; bit <= LANES; bit *= 2)
#pragma unroll
        for (int h = 0; h < S::HEADS / bit; h++)
            sum[h] = gpu_halve(sum[2 * h], sum[2 * h + 1], bit);
#pragma unroll
    for (int bit = 2 * LANES; bit < 32; bit *= 2) {
        const float other = gpu_shuffle_xor(sum[0], bit);
        sum[0] = bit < (int)blockDim.x ? sum[0] + other : sum[0];
    }
    sum[0] = sum[0] + gpu_shuffle_xor(sum[0], 1);
    values[0] = 1.0f / sqrtf(sum[0] * call.share + call.eps[tensor]);
    /* From what each lane has to all of them in order. */
#pragma unroll
    for (int bit = LANES; bit > 1; bit /= 2)
#pragma unroll
        for (int h = S::HEADS / bit - 1; h >= 0; h--) {
            const float mine = values[h], other = gpu_shuffle_xor(mine, bit);
            values[2 * h] = threadIdx.x & bit ? other : mine;
            values[2 * h + 1] = threadIdx.x & bit ? mine : other;
        }
}

/* rope_normalized() of a vector, rounded: of narrow vectors, whose calls wait rather than compute,
 * without a branch. */
template <int DTYPE, int V>
GPU_FN void gpu_plain_normalize(int steps, float reciprocal, const gpu_vector<DTYPE, V> &weight,
                                gpu_vector<DTYPE, V> &x) {
    const bool once = steps & GPU_APPEND_PLAIN_ONCE, one_plus = steps & GPU_APPEND_PLAIN_ONE_PLUS;
#pragma unroll
    for (int i = 0; i < V / 2; i++) {
        const float2 two = gpu_split<DTYPE>(x.word[i]), w = gpu_split<DTYPE>(weight.word[i]);
        const float a = two.x * reciprocal, b = two.y * reciprocal;
        const uint32_t joined = gpu_join<DTYPE>(a, b);
        if (V > 2 && !once && !one_plus) {
            x.word[i] = gpu_multiply<DTYPE>(joined, weight.word[i]);
            continue;
        }
        const float2 rounded = gpu_split<DTYPE>(joined);
        x.word[i] = gpu_join<DTYPE>((once ? a : rounded.x) * (one_plus ? 1.0f + w.x : w.x),
                                    (once ? b : rounded.y) * (one_plus ? 1.0f + w.y : w.y));
    }
}

/* --- 8 bits --- */

template <typename S>
GPU_FN void gpu_plain_store_8bit(int32_t dtype, gpu_scale scale, char *to, int pairs,
                                 const gpu_vectors<S> &x) {
    float q[2 * S::V];
    gpu_unpack<S::DTYPE, S::V>(x.a, q);
    gpu_unpack<S::DTYPE, S::V>(x.b, q + S::V);
#pragma unroll
    for (int i = 0; i < 2 * S::V; i++)
        q[i] = gpu_divided(q[i] * scale.up, scale);
    const uint32_t word = gpu_four_8bit(dtype, q);
    if constexpr (S::V == 2) {
        *(uint16_t *)to = (uint16_t)word;
        *(uint16_t *)(to + pairs) = (uint16_t)(word >> 16);
    } else {
        *(uint32_t *)to = word;
        *(uint32_t *)(to + pairs) = gpu_four_8bit(dtype, q + 4);
    }
}

/* Heads to a store of 8 bits: one copy of what makes them, where the scale is one. */
template <typename S>
GPU_FN void gpu_plain_store_heads_8bit(const gpu_append_plain_call &call,
                                       const gpu_append_plain_operand &o, char *to, int pairs,
                                       float scale, gpu_vectors<S> x[S::HEADS]) {
    if (!gpu_is_scale(scale)) {
        if (call.position_flag)
            *call.position_flag = 1;
        return;
    }
    const gpu_scale s = gpu_scale_from(scale);
    to += gpu_first_element<S, S::JOINED_OUT>();
#pragma unroll 1
    for (int i = 0; i < S::HEADS; i++) {
        gpu_plain_store_8bit<S>(o.store_dtype, s, to, pairs, x[0]);
        to += o.store_head;
#pragma unroll
        for (int h = 1; h < S::HEADS; h++)
            x[h - 1] = x[h];
    }
}

/* --- the kernel --- */

/* Norm and rotation of a thread's heads; in narrow calls angles first, so that they are computed
 * while sums wait. */
template <typename S, int NORM>
GPU_FN void gpu_plain_steps(const gpu_append_plain_call &call, const gpu_append_plain_operand &o,
                            int tensor, const uint64_t turns[S::V], gpu_id id,
                            const gpu_vectors<S> &weight, gpu_vectors<S> x[S::HEADS]) {
    constexpr bool FIRST = S::V == 2;
    gpu_lane_row<S> coefficients;
    float values[S::HEADS];
    if (FIRST)
        coefficients = gpu_exact_row<S, true>(&call, turns, id);
    if (NORM)
        gpu_plain_values<S>(call, tensor, x, values);
#pragma unroll
    for (int h = 0; NORM && h < S::HEADS; h++) {
        gpu_plain_normalize<S::DTYPE, S::V>(o.steps, values[h], weight.a, x[h].a);
        gpu_plain_normalize<S::DTYPE, S::V>(o.steps, values[h], weight.b, x[h].b);
    }
    if (!FIRST)
        coefficients = gpu_exact_row<S, true>(&call, turns, id);
#pragma unroll
    for (int h = 0; h < S::HEADS; h++)
        gpu_rotate_vectors<S, false>(x[h], coefficients, coefficients);
}

/* Ids, slots, frequencies, heads, weights and scale are loaded before anything waits for one of
 * them, in large calls ids and slots last. Rows of narrow calls fill blocks; elsewhere threads
 * without a row take the last one's and store nothing. */
template <int DTYPE, int PAIRING, int GEOMETRY, int NORM, int START>
__global__ void __launch_bounds__(GPU_PLAIN_THREADS, GPU_PLAIN_BLOCKS(2, GEOMETRY))
    gpu_append_plain(GPU_PARAMETER gpu_append_plain_call parameter) {
    typedef gpu_shape<DTYPE, PAIRING, GEOMETRY> shape;
    constexpr bool FILLED = GEOMETRY == GPU_NARROW;
    constexpr bool BEHIND_LOADS = GPU_LOADS_FIRST(GEOMETRY);
    const gpu_append_plain_call &call = *gpu_parameter<gpu_append_plain_call>(parameter);
    const bool early =
        START == GPU_START_BY_FLAG ? (call.flags & GPU_CALL_EARLY) != 0 : START == GPU_START_EARLY;
    const int row = (int)(blockIdx.y * blockDim.z + threadIdx.z);
    const int n = FILLED || row < call.rows ? row : call.rows - 1;
    const int pairs = (int)blockDim.x * shape::V;
    uint64_t turns[shape::V];
    gpu_vectors<shape> x[shape::HEADS], weight;
    gpu_id id = {n, 0}, slot = {0, 0};
    if (START != GPU_START_IN_ORDER && call.flags & GPU_CALL_AT_ONCE)
        gpu_let_next_start();
    gpu_load_list<shape>(call.turns, pairs, turns);
    if (early)
        gpu_wait_for_last();
    if (!BEHIND_LOADS) {
        id = gpu_read_id<false>(&call, n);
        slot = gpu_read_slot(call, n);
    }
    const int first = (int)(blockIdx.x * blockDim.y), k = call.first_unit[0],
              v = call.first_unit[1];
    const int tensor = first < k ? ROPE_APPEND_Q : first < v ? ROPE_APPEND_K : ROPE_APPEND_V;
    const int unit = first + (int)threadIdx.y - (tensor == ROPE_APPEND_Q ? 0 : first < v ? k : v);
    const int head = unit * shape::HEADS;
    const gpu_append_plain_operand &o = call.operand[tensor];
    const char *in = o.in + (int64_t)head * o.in_head + (int64_t)n * o.in_token;
#pragma unroll
    for (int h = 0; h < shape::HEADS; h++)
        x[h] = gpu_load_vectors<shape>(in + (int64_t)h * o.in_head, pairs);
    const float scale = o.scale ? *o.scale : 1.0f;
    if (NORM)
        weight = gpu_load_vectors<shape>(call.weight[tensor == ROPE_APPEND_K], pairs);
    if (early)
        gpu_let_next_start();
    if (BEHIND_LOADS) {
        id = gpu_read_id<false>(&call, n);
        slot = gpu_read_slot(call, n);
    }
    gpu_plain_place place;
    if (FILLED) {
        place = gpu_place_plain(call, o, tensor == ROPE_APPEND_Q, n, slot);
        gpu_vectors<shape> y[shape::HEADS];
        memcpy(y, x, sizeof x);
        gpu_plain_steps<shape, NORM>(call, o, tensor == ROPE_APPEND_K, turns, id, weight, y);
#pragma unroll
        for (int h = 0; h < shape::HEADS; h++) {
            x[h].a.word[0] = tensor == ROPE_APPEND_V ? x[h].a.word[0] : y[h].a.word[0];
            x[h].b.word[0] = tensor == ROPE_APPEND_V ? x[h].b.word[0] : y[h].b.word[0];
        }
    } else if (tensor != ROPE_APPEND_V) {
        gpu_plain_steps<shape, NORM>(call, o, tensor, turns, id, weight, x);
    }
    if (!FILLED) {
        if (row >= call.rows)
            return;
        place = gpu_place_plain(call, o, tensor == ROPE_APPEND_Q, n, slot);
    }
    if (!place.stored) {
        if (place.fails && call.position_flag)
            *call.position_flag = 1;
        return;
    }
    char *to = o.store + place.at + (int64_t)head * o.store_head;
    if (__builtin_expect(o.store_dtype >= ROPE_F8E4M3, 0)) {
        gpu_plain_store_heads_8bit<shape>(call, o, to, pairs, scale, x);
        return;
    }
#pragma unroll
    for (int h = 0; h < shape::HEADS; h++)
        gpu_store_vectors<shape>(to + (int64_t)h * o.store_head, pairs, x[h]);
}

#endif
