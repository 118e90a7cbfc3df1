/*
 * Heads whose elements lie side by side, 8 elements a vector. A block has heads of one tensor of a
 * few tokens. Its threads load, fill rows of cos and sin and find the tokens' places while the
 * loads are under way, meet, and each takes its own elements through all steps to where they are
 * stored. Norms meet once more often for what they sum in shared memory, so that no wave has a say.
 */
#ifndef ROPEKIT_GPU_APPEND_VECTOR_H
#define ROPEKIT_GPU_APPEND_VECTOR_H

#include "backends/gpu/append/kernels.h"
#include "backends/gpu/append/store.h"
#include "backends/gpu/append/token.h"
#include "backends/gpu/rope/model_arithmetic.h"
#include "common/math/norm.h"

/* As gpu_shape, for vectors of 8 elements. */
template <int DTYPE_, int PAIRING_> struct gpu_append_shape {
    typedef float real;
    static constexpr int DTYPE = DTYPE_, PAIRING = PAIRING_, V = GPU_APPEND_V,
                         SIZE = (int)sizeof(typename gpu_element<DTYPE>::bits);
    static constexpr bool JOINED_IN = PAIRING == GPU_INTERLEAVED || PAIRING == GPU_TO_HALF_SPLIT;
    static constexpr bool JOINED_OUT = PAIRING == GPU_INTERLEAVED || PAIRING == GPU_TO_INTERLEAVED;
};

/* A token as a block knows it. */
struct gpu_append_site {
    int32_t status;     /* ROPE_TOKEN_ */
    int32_t stored;     /* there is a place in store */
    int64_t out, store; /* bytes to the token's heads */
    int64_t scale;      /* elements to their scales */
};

/* A thread's `count` heads, block_heads apart, and the elements of one where its two vectors begin,
 * as read. */
struct gpu_append_unit {
    int token, unit, lane, head, count;
    bool window, second; /* vectors are the window's; there is a second */
    int in[2];
};

/* Where vectors of a window begin on a side. */
template <typename S, bool JOINED>
GPU_FN void gpu_place_window(const gpu_append_tensor &v, int lane, int at[2]) {
    const bool adjacent = JOINED && S::JOINED_IN != S::JOINED_OUT;
    at[0] = v.window + lane * S::V * (adjacent ? 2 : 1);
    at[1] = at[0] + (adjacent ? S::V : v.width / 2);
}

template <typename S>
GPU_FN void gpu_place_vectors(const gpu_append_tensor &v, gpu_append_unit *u) {
    const int rest = u->lane - v.window_lanes;
    u->window = rest < 0;
    u->second = true;
    if (u->window) {
        gpu_place_window<S, S::JOINED_IN>(v, u->lane, u->in);
        return;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int at = (rest + i * v.rest_lanes) * S::V;
        u->in[i] = at < v.window ? at : at + v.width;
        u->second = at < v.rest;
    }
}

/* Where a thread's vectors begin as written. */
template <typename S>
GPU_FN void gpu_written_at(const gpu_append_tensor &v, const gpu_append_unit &u, int out[2]) {
    out[0] = u.in[0];
    out[1] = u.in[1];
    if (S::JOINED_IN != S::JOINED_OUT && u.window)
        gpu_place_window<S, S::JOINED_OUT>(v, u.lane, out);
}

template <typename S>
GPU_FN gpu_append_unit gpu_append_unit_of(const gpu_append_tensor &v, int head_block, int tokens) {
    gpu_append_unit u;
    const int thread = (int)threadIdx.x;
    u.unit = (int)((uint32_t)thread * v.per_lane >> 20);
    u.lane = thread - u.unit * v.lanes;
    u.token = (int)((uint32_t)u.unit * v.per_head >> 20);
    u.head = u.unit + (head_block * v.thread_heads - u.token) * v.block_heads;
    u.count = u.token >= v.block_tokens || u.token >= tokens ? 0
              : u.head + v.block_heads < v.heads             ? v.thread_heads
                                                             : u.head < v.heads;
    gpu_place_vectors<S>(v, &u);
    return u;
}

/* The next head of a thread becomes its first: after as many turns as it has, all are where they
 * were. */
template <typename T> GPU_FN void gpu_turn(T x[GPU_APPEND_HEADS]) {
    const T first = x[0];
    x[0] = x[1];
    x[1] = first;
}

/* --- what a block shares --- */

/* Batch row and index of token n. */
GPU_FN void gpu_split_row(const gpu_append_vectors &call, int n, int *batch, int *index) {
    *batch = call.flags & GPU_APPEND_ROWS ? (int)((uint32_t)n / (uint32_t)call.tokens)
             : call.tokens == 1           ? n
                                          : 0;
    *index = n - *batch * call.tokens;
}

/* The place of token n: as rope_place_of() has it. */
GPU_FN rope_place gpu_place_of(const gpu_append_vectors &vectors, const rope_append_problem *p,
                               const rope_append_call *call, int n, int batch, int index) {
    rope_place place = {ROPE_PLACE_NONE, 0, 0, 0};
    if (!(vectors.flags & GPU_APPEND_SLOTS)) {
        const rope_site site = rope_site_of(&call->rope.position, batch, index);
        return rope_place_of(p, call, &site);
    }
    place.index = rope_index_of(vectors.flags & GPU_APPEND_WIDE_SLOTS, vectors.slots, n);
    if (place.index < 0)
        return place;
    place.page = (uint64_t)(place.index | vectors.page_size) >> 32
                     ? place.index / vectors.page_size
                     : (uint32_t)place.index / (uint32_t)vectors.page_size;
    place.slot = place.index - place.page * vectors.page_size;
    place.status = place.page < vectors.pages ? ROPE_PLACE_GIVEN : ROPE_PLACE_PAGE;
    return place;
}

/* One thread: the status of a token and its place in the tensor's store. */
GPU_FN gpu_append_site gpu_append_site_of(const gpu_append_vectors &vectors,
                                          const rope_append_problem *p,
                                          const rope_append_call *call, const gpu_append_tensor &v,
                                          int tensor, int n) {
    const bool q = tensor == ROPE_APPEND_Q;
    gpu_append_site at = {ROPE_TOKEN_ROTATES, 1, 0, 0, 0};
    int batch, index;
    gpu_split_row(vectors, n, &batch, &index);
    if (!(vectors.flags & GPU_APPEND_EXACT))
        at.status = gpu_token_of(&p->rope, &call->rope, batch, index, 0).status;
    at.out = (int64_t)n * v.out_token + batch * v.out_batch;
    int64_t page = batch, slot = n;
    bool fails = at.status == ROPE_TOKEN_FAILS;
    if (!q || vectors.flags & GPU_APPEND_PLACES) {
        const rope_place place = gpu_place_of(vectors, p, call, n, batch, index);
        fails |= place.status > ROPE_PLACE_GIVEN;
        at.stored = q || place.status == ROPE_PLACE_GIVEN;
        page = q ? page : place.page;
        slot = q ? slot : place.slot;
    }
    if (fails)
        gpu_append_flag(call);
    at.store = page * v.store_page + slot * v.store_slot;
    at.scale = page * v.scale_page + slot * v.scale_slot;
    return at;
}

/* A pair's entries of a row: as rope_computed() gives them, but rounded for the model's arithmetic
 * where they are used. */
template <int DTYPE>
GPU_FN void gpu_exact_entry(const gpu_append_vectors &call, int n, int pair, gpu_row<DTYPE> row) {
    int batch, index;
    gpu_split_row(call, n, &batch, &index);
    const int64_t position =
        rope_sum(call.ids ? rope_index_of(call.flags & GPU_APPEND_WIDE_IDS, call.ids,
                                          call.flags & GPU_APPEND_ONE_ID ? 0 : n)
                          : index,
                 call.offset);
    const rope_cos_sin a = rope_cos_sin_turns((uint64_t)position * call.turns[pair]);
    row.c1[pair] = a.c * call.factor;
    row.s1[pair] = a.s * (call.flags & GPU_APPEND_NEGATIVE ? -call.factor : call.factor);
}

/* Tokens by the block's last threads, pairs by its first. */
template <int DTYPE>
GPU_FN void gpu_fill_block(const gpu_append_vectors &vectors, const rope_append_problem *p,
                           const rope_append_call *call, const gpu_append_tensor &v, int tensor,
                           int first, int tokens, gpu_append_site *sites, void *rows) {
    const int mine = (int)blockDim.x - 1 - (int)threadIdx.x, pairs = vectors.pairs;
    if (v.window_lanes)
#pragma unroll 1
        for (int i = (int)threadIdx.x; i < tokens * pairs; i += (int)blockDim.x) {
            const int t = (int)((uint32_t)i * vectors.per_pair >> 22), pair = i - t * pairs;
            const gpu_row<DTYPE> row = gpu_row_of<DTYPE>(rows, t, pairs, false);
            int32_t status;
            if (vectors.flags & GPU_APPEND_EXACT)
                gpu_exact_entry<DTYPE>(vectors, first + t, pair, row);
            else
                gpu_row_fill<DTYPE>(&p->rope, &call->rope, tensor, first + t, pair, row, &status);
        }
    if (mine < tokens)
        sites[mine] = gpu_append_site_of(vectors, p, call, v, tensor, first + mine);
}

/* --- norm --- */

/* A norm's sum is over elements, squares, or squares of what is left of the mean. */
enum { GPU_NODE_ELEMENTS, GPU_NODE_SQUARES, GPU_NODE_DEVIATIONS };

/* The node of a vector. */
template <int DTYPE>
GPU_FN float gpu_vector_node(int what, const gpu_vector<DTYPE, GPU_APPEND_V> &x, float mean) {
    float y[GPU_APPEND_V], node[4];
    gpu_unpack<DTYPE, GPU_APPEND_V>(x, y);
    if (what == GPU_NODE_DEVIATIONS)
#pragma unroll
        for (int i = 0; i < GPU_APPEND_V; i++)
            y[i] = y[i] - mean;
#pragma unroll
    for (int i = 0; i < 4; i++)
        node[i] = what == GPU_NODE_ELEMENTS ? y[2 * i] + y[2 * i + 1]
                                            : rope_norm_squares(y[2 * i], y[2 * i + 1]);
    return (node[0] + node[1]) + (node[2] + node[3]);
}

GPU_FN float gpu_sum_4(const float *nodes) {
    float n[4];
    gpu_load_run<4>(nodes, n);
    return (n[0] + n[1]) + (n[2] + n[3]);
}

GPU_FN float gpu_sum_16(const float *nodes) {
    return (gpu_sum_4(nodes) + gpu_sum_4(nodes + 4)) +
           (gpu_sum_4(nodes + 8) + gpu_sum_4(nodes + 12));
}

/* The sum of a head's nodes; those that it lacks are 0. */
GPU_FN float gpu_sum_nodes(const float *nodes, int sums) {
    float sum[GPU_APPEND_SUMS];
#pragma unroll
    for (int i = 0; i < GPU_APPEND_SUMS; i++)
        sum[i] = i < sums ? gpu_sum_16(nodes + i * GPU_APPEND_NODES) : 0.0f;
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* The number that a sum gives: the mean, or the reciprocal of a root. */
GPU_FN float gpu_value_of(int what, const rope_append_steps *s, float sum) {
    return what == GPU_NODE_ELEMENTS ? rope_norm_mean(sum, s->norm_dim)
                                     : rope_norm_reciprocal(sum, s->norm_dim, s->eps);
}

/* Puts a head's nodes into its part of shared memory. */
template <typename S>
GPU_FN void gpu_put_nodes(int what, const gpu_append_tensor &v, const gpu_append_unit &u,
                          const gpu_vectors<S> &x, float mean, float *nodes) {
    const int offset = v.steps.norm_offset, dim = v.steps.norm_dim, a = u.in[0] - offset,
              b = u.in[1] - offset;
    if ((unsigned)a < (unsigned)dim)
        nodes[a / S::V] = gpu_vector_node<S::DTYPE>(what, x.a, mean);
    if (u.second && (unsigned)b < (unsigned)dim)
        nodes[b / S::V] = gpu_vector_node<S::DTYPE>(what, x.b, mean);
    for (int i = dim / S::V + u.lane; i < v.sums * GPU_APPEND_NODES; i += v.lanes)
        nodes[i] = 0;
}

/* The value of each head: a thread a head sums what its threads put into shared memory. Every
 * thread of the block comes here. */
template <typename S>
GPU_FN void gpu_meet_for_values(int what, const gpu_append_tensor &v, const gpu_append_unit &u,
                                const gpu_vectors<S> x[GPU_APPEND_HEADS], float *nodes,
                                const float mean[GPU_APPEND_HEADS],
                                float values[GPU_APPEND_HEADS]) {
    const int stride = GPU_APPEND_NODE_STRIDE(v.sums);
#pragma unroll
    for (int h = 0; h < GPU_APPEND_HEADS; h++)
        if (h < u.count)
            gpu_put_nodes<S>(what, v, u, x[h], mean[h], nodes + (u.unit + h * v.units) * stride);
    __syncthreads();
    for (int i = (int)threadIdx.x; i < v.units * v.thread_heads; i += (int)blockDim.x)
        nodes[i * stride] = gpu_value_of(what, &v.steps, gpu_sum_nodes(nodes + i * stride, v.sums));
    __syncthreads();
#pragma unroll
    for (int h = 0; h < GPU_APPEND_HEADS; h++)
        if (h < u.count)
            values[h] = nodes[(u.unit + h * v.units) * stride];
}

/* One of two numbers, the second where the lane has this bit, and what the thread whose lane
 * differs by it has of the same, summed. */
GPU_FN float gpu_halve(float first, float second, int bit) {
    const bool odd = threadIdx.x & bit;
    return (odd ? second : first) + gpu_shuffle_xor(odd ? first : second, bit);
}

/* The reciprocals of an RMS norm among the threads of a warp, where a head has 4 to 32 of them:
 * each sums a part of one of its two heads, then all have the sum of one, and get the other's value
 * from a neighbour. Sums are those of neighbours, in the order of shared memory. */
template <typename S>
GPU_FN void gpu_shuffle_values(const gpu_append_tensor &v, const gpu_vectors<S> x[GPU_APPEND_HEADS],
                               float values[GPU_APPEND_HEADS]) {
    constexpr bool ADJACENT = S::JOINED_IN && !S::JOINED_OUT;
    constexpr int HEAD = ADJACENT ? 1 : 2; /* the bit of a lane that says which head it sums */
    float a[GPU_APPEND_HEADS], b[GPU_APPEND_HEADS];
#pragma unroll
    for (int h = 0; h < GPU_APPEND_HEADS; h++) {
        a[h] = gpu_vector_node<S::DTYPE>(GPU_NODE_SQUARES, x[h].a, 0);
        b[h] = gpu_vector_node<S::DTYPE>(GPU_NODE_SQUARES, x[h].b, 0);
    }
    float sum = ADJACENT ? gpu_halve(a[0] + b[0], a[1] + b[1], 1)
                         : gpu_halve(gpu_halve(a[0], b[0], 1), gpu_halve(a[1], b[1], 1), 2);
#pragma unroll 1
    for (int bit = 2 * HEAD; bit < v.lanes; bit *= 2)
        sum = sum + gpu_shuffle_xor(sum, bit);
    if (!ADJACENT)
        sum = sum + gpu_shuffle_xor(sum, 1);
    const float mine = rope_norm_reciprocal(sum, v.steps.norm_dim, v.steps.eps),
                other = gpu_shuffle_xor(mine, HEAD);
    values[0] = threadIdx.x & HEAD ? other : mine;
    values[1] = threadIdx.x & HEAD ? mine : other;
}

/* The mean of each head, of a norm that has one, and the reciprocal. */
template <typename S>
GPU_FN void gpu_norm_values(const gpu_append_tensor &v, const gpu_append_unit &u,
                            const gpu_vectors<S> x[GPU_APPEND_HEADS], float *nodes,
                            float mean[GPU_APPEND_HEADS], float reciprocal[GPU_APPEND_HEADS]) {
    const bool layer = v.steps.norm == ROPE_NORM_LAYER;
    if (v.shuffles) {
        gpu_shuffle_values<S>(v, x, reciprocal);
        return;
    }
    if (layer) {
        gpu_meet_for_values<S>(GPU_NODE_ELEMENTS, v, u, x, nodes, mean, mean);
        __syncthreads();
    }
    gpu_meet_for_values<S>(layer ? GPU_NODE_DEVIATIONS : GPU_NODE_SQUARES, v, u, x, nodes, mean,
                           reciprocal);
}

/* Weights of a vector as they multiply. */
template <int DTYPE>
GPU_FN void gpu_load_weight(const rope_append_steps *s, const char *weight, int at,
                            float w[GPU_APPEND_V]) {
    if (s->weight_dtype == ROPE_F32)
        gpu_load_run<GPU_APPEND_V>((const float *)weight + at, w);
    else
        gpu_unpack<DTYPE, GPU_APPEND_V>(
            gpu_load<DTYPE, GPU_APPEND_V>((const typename gpu_element<DTYPE>::bits *)weight + at),
            w);
#pragma unroll
    for (int i = 0; i < GPU_APPEND_V; i++)
        w[i] = rope_norm_weight_of(s, w[i]);
}

/* rope_normalized() of a vector, rounded. */
template <int DTYPE>
GPU_FN void gpu_normalize_vector(const rope_append_steps *s, rope_norm_values v, const char *weight,
                                 int at, gpu_vector<DTYPE, GPU_APPEND_V> &x) {
    float y[GPU_APPEND_V], w[GPU_APPEND_V];
    gpu_unpack<DTYPE, GPU_APPEND_V>(x, y);
    if (s->norm == ROPE_NORM_LAYER)
#pragma unroll
        for (int i = 0; i < GPU_APPEND_V; i++)
            y[i] = y[i] - v.mean;
#pragma unroll
    for (int i = 0; i < GPU_APPEND_V; i++)
        y[i] = y[i] * v.reciprocal;
    if (s->weight) {
        gpu_load_weight<DTYPE>(s, weight, at, w);
        if (s->rounding == ROPE_NORM_ROUND_TWICE)
            gpu_unpack<DTYPE, GPU_APPEND_V>(gpu_pack<DTYPE, GPU_APPEND_V>(y), y);
#pragma unroll
        for (int i = 0; i < GPU_APPEND_V; i++)
            y[i] = y[i] * w[i];
    }
    x = gpu_pack<DTYPE, GPU_APPEND_V>(y);
}

/* Normalizes where v.packed. */
template <int DTYPE>
GPU_FN void gpu_normalize_packed(float reciprocal, const char *weight,
                                 gpu_vector<DTYPE, GPU_APPEND_V> &x) {
    const gpu_vector<DTYPE, GPU_APPEND_V> w = gpu_load<DTYPE, GPU_APPEND_V>(weight);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 two = gpu_split<DTYPE>(x.word[i]);
        x.word[i] =
            gpu_multiply<DTYPE>(gpu_join<DTYPE>(two.x * reciprocal, two.y * reciprocal), w.word[i]);
    }
}

template <typename S>
GPU_FN void gpu_normalize_head(const gpu_append_tensor &v, const gpu_append_unit &u, int head,
                               rope_norm_values values, gpu_vectors<S> &x) {
    const rope_append_steps *s = &v.steps;
    const char *weight = v.weight + (int64_t)head * v.weight_head;
    const int a = u.in[0] - s->norm_offset, b = u.in[1] - s->norm_offset;
    const bool first = (unsigned)a < (unsigned)s->norm_dim,
               second = u.second && (unsigned)b < (unsigned)s->norm_dim;
    if constexpr (S::SIZE == 2)
        if (v.packed) {
            if (first)
                gpu_normalize_packed<S::DTYPE>(values.reciprocal, weight + a * 2, x.a);
            if (second)
                gpu_normalize_packed<S::DTYPE>(values.reciprocal, weight + b * 2, x.b);
            return;
        }
    if (first)
        gpu_normalize_vector<S::DTYPE>(s, values, weight, a, x.a);
    if (second)
        gpu_normalize_vector<S::DTYPE>(s, values, weight, b, x.b);
}

/* --- rotation, factor --- */

/* A list's entries of a lane's pairs: one run of V, or two of V / 2 where both sides are
 * interleaved. */
template <typename S>
GPU_FN void gpu_load_entries(const float *list, int lane, int pairs, float run[S::V]) {
    if constexpr (S::PAIRING == GPU_INTERLEAVED) {
        gpu_load_run<S::V / 2>(list + lane * (S::V / 2), run);
        gpu_load_run<S::V / 2>(list + pairs / 2 + lane * (S::V / 2), run + S::V / 2);
    } else {
        gpu_load_run<S::V>(list + lane * S::V, run);
    }
}

template <typename S>
GPU_FN void gpu_rotate_unit(const gpu_append_vectors &call, const gpu_append_unit &u, void *rows,
                            gpu_vectors<S> &x) {
    const gpu_row<S::DTYPE> list = gpu_row_of<S::DTYPE>(rows, u.token, call.pairs, false);
    gpu_lane_row<S> row;
    gpu_load_entries<S>(list.c1, u.lane, call.pairs, row.c);
    gpu_load_entries<S>(list.s1, u.lane, call.pairs, row.s);
    if (!(call.flags & GPU_APPEND_MODEL_DTYPE))
        gpu_rotate_vectors<S, false>(x, row, row);
    else if constexpr (S::SIZE == 2)
        gpu_rotate_model_vectors<S>(x, gpu_round_row<S>(row));
    else
        gpu_rotate_vectors<S, true>(x, row, row);
}

template <int DTYPE>
GPU_FN void gpu_multiply_vector(float factor, gpu_vector<DTYPE, GPU_APPEND_V> &x) {
    float y[GPU_APPEND_V];
    gpu_unpack<DTYPE, GPU_APPEND_V>(x, y);
#pragma unroll
    for (int i = 0; i < GPU_APPEND_V; i++)
        y[i] = y[i] * factor;
    x = gpu_pack<DTYPE, GPU_APPEND_V>(y);
}

template <int DTYPE> GPU_FN uint32_t gpu_vector_largest(const gpu_vector<DTYPE, GPU_APPEND_V> &x) {
    float y[GPU_APPEND_V];
    uint32_t largest = 0;
    gpu_unpack<DTYPE, GPU_APPEND_V>(x, y);
#pragma unroll
    for (int i = 0; i < GPU_APPEND_V; i++) {
        const uint32_t magnitude = rope_finite_magnitude(y[i]);
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

/* The largest of a head's finite magnitudes among a thread's. */
template <typename S>
GPU_FN uint32_t gpu_thread_largest(const gpu_append_unit &u, const gpu_vectors<S> &x) {
    const uint32_t a = gpu_vector_largest<S::DTYPE>(x.a),
                   b = u.second ? gpu_vector_largest<S::DTYPE>(x.b) : 0;
    return a > b ? a : b;
}

/* The largest of a head; room: what the threads of the block found. */
GPU_FN uint32_t gpu_head_largest(const gpu_append_tensor &v, const gpu_append_unit &u,
                                 const uint32_t *room) {
    uint32_t largest = 0;
    for (int i = 0; i < v.lanes; i++) {
        const uint32_t other = room[u.unit * v.lanes + i];
        largest = other > largest ? other : largest;
    }
    return largest;
}

/* --- the kernel --- */

template <typename S>
GPU_FN void gpu_run_steps(const gpu_append_vectors &call, const gpu_append_tensor &v,
                          const gpu_append_unit &u, int head, rope_norm_values values,
                          int32_t status, void *rows, gpu_vectors<S> &x) {
    if (v.steps.norm)
        gpu_normalize_head<S>(v, u, head, values, x);
    if (u.window && status == ROPE_TOKEN_ROTATES)
        gpu_rotate_unit<S>(call, u, rows, x);
    else if (u.window)
        gpu_pass_vectors<S>(x);
    if (v.steps.factor != 1) {
        gpu_multiply_vector<S::DTYPE>(v.steps.factor, x.a);
        gpu_multiply_vector<S::DTYPE>(v.steps.factor, x.b);
    }
}

/* Where a head lies in store, and bytes from there to its i-th element. */
GPU_FN char *gpu_stored_head(const gpu_append_tensor &v, const gpu_append_site &site, int head) {
    return v.store + site.store + (int64_t)head * v.store_head;
}

GPU_FN int64_t gpu_stored_at(const gpu_append_tensor &v, int i) {
    return gpu_element_at(v.steps.store_dtype, v.store_block, v.block_shift, i);
}

/* The scale of a head; not one where one is given that is none. */
GPU_FN float gpu_store_scale(const gpu_append_tensor &v, const gpu_append_unit &u, int head,
                             const gpu_append_site &site, const uint32_t *room) {
    if (v.steps.scale == 0)
        return 1;
    float *scale = v.scale + site.scale + (int64_t)head * v.scale_head;
    if (v.steps.scale != ROPE_SCALE_TOKEN_HEAD_MAX)
        return *scale;
    const float made = rope_scale_of_largest(v.steps.store_dtype, gpu_head_largest(v, u, room));
    if (u.lane == 0)
        *scale = made;
    return made;
}

/* A head to out and to store; room: as gpu_head_largest(). */
template <typename S>
GPU_FN void gpu_store_head(const rope_append_call *call, const gpu_append_tensor &v,
                           const gpu_append_unit &u, int head, const gpu_append_site &site,
                           const uint32_t *room, const gpu_vectors<S> &x) {
    int at[2];
    gpu_written_at<S>(v, u, at);
    if (v.out) {
        char *out = v.out + site.out + (int64_t)head * v.out_head;
        gpu_store<S::DTYPE, S::V>(out + at[0] * S::SIZE, x.a);
        if (u.second)
            gpu_store<S::DTYPE, S::V>(out + at[1] * S::SIZE, x.b);
    }
    if (!v.store || !site.stored)
        return;
    const float scale = gpu_store_scale(v, u, head, site, room);
    char *to = gpu_stored_head(v, site, head);
    if (gpu_is_scale(scale))
        gpu_store_as<S::DTYPE>(v.steps.store_dtype, to + gpu_stored_at(v, at[0]),
                               to + gpu_stored_at(v, at[1]), scale, u.second, x.a, x.b);
    else
        gpu_append_flag(call);
}

template <typename S>
GPU_FN void gpu_load_tensor(const gpu_append_vectors &call, const gpu_append_tensor &v,
                            const gpu_append_unit &u, int n, gpu_vectors<S> x[GPU_APPEND_HEADS]) {
    const char *in = v.in + (int64_t)n * v.in_token + (int64_t)u.head * v.in_head;
    if (call.flags & GPU_APPEND_ROWS)
        in += (int64_t)((uint32_t)n / (uint32_t)call.tokens) * v.in_batch;
#pragma unroll
    for (int h = 0; h < GPU_APPEND_HEADS; h++) {
        const char *head = in + (int64_t)h * v.block_heads * v.in_head;
        if (h < u.count)
            x[h].a = gpu_load<S::DTYPE, S::V>(head + u.in[0] * S::SIZE);
        if (h < u.count && u.second)
            x[h].b = gpu_load<S::DTYPE, S::V>(head + u.in[1] * S::SIZE);
    }
}

/* Replaces 8 bits by the numbers that they stand for, in two heads' vectors; one copy of the
 * code. */
template <typename S>
GPU_FN void gpu_dequantize_heads(int32_t dtype, float scale[GPU_APPEND_HEADS],
                                 gpu_vectors<S> x[GPU_APPEND_HEADS]) {
#pragma unroll 1
    for (int i = 0; i < 2 * GPU_APPEND_HEADS; i++) {
        const gpu_vector<S::DTYPE, S::V> made = gpu_dequantize<S::DTYPE>(dtype, scale[0], x[0].a);
        x[0].a = x[0].b;
        x[0].b = x[1].a;
        x[1].a = x[1].b;
        x[1].b = made;
        if (i & 1)
            gpu_turn(scale);
    }
}

/* Loads the heads that store has of a token, which becomes none where it has no place.
 * Returns a bit for each head whose scale is none. */
template <typename S>
GPU_FN int gpu_load_stored(const rope_append_call *call, const gpu_append_tensor &v,
                           const gpu_append_site &site, gpu_append_unit *u,
                           gpu_vectors<S> x[GPU_APPEND_HEADS]) {
    const int32_t dtype = v.steps.store_dtype;
    const int64_t a = gpu_stored_at(v, u->in[0]), b = gpu_stored_at(v, u->in[1]);
    float scale[GPU_APPEND_HEADS] = {1, 1};
    int lost = 0;
    u->count = site.stored ? u->count : 0;
#pragma unroll
    for (int h = 0; h < GPU_APPEND_HEADS; h++) {
        const int head = u->head + h * v.block_heads;
        const char *from = gpu_stored_head(v, site, head);
        if (h < u->count)
            x[h].a = gpu_load_vector_as<S::DTYPE>(dtype, from + a);
        if (h < u->count && u->second)
            x[h].b = gpu_load_vector_as<S::DTYPE>(dtype, from + b);
        if (h < u->count && v.steps.scale)
            scale[h] = v.scale[site.scale + (int64_t)head * v.scale_head];
        lost |= gpu_is_scale(scale[h]) ? 0 : 1 << h;
    }
    if (lost)
        gpu_append_flag(call);
    if (dtype >= ROPE_F8E4M3)
        gpu_dequantize_heads<S>(dtype, scale, x);
    return lost;
}

/* The tensor of a block, which becomes its index among the tensor's. */
GPU_FN int gpu_tensor_of(const gpu_append_vectors &vectors, int *block) {
    const int q = vectors.first_block[0], k = vectors.first_block[1];
    const uint64_t before = (uint64_t)(uint32_t)*block * vectors.others;
    const int other = (int)(before >> 31), next = (int)((before + vectors.others) >> 31);
    if (next == other) {
        *block -= other;
        return ROPE_APPEND_Q;
    }
    *block = other < k - q ? other : other - (k - q);
    return other < k - q ? ROPE_APPEND_K : ROPE_APPEND_V;
}

/* The steps of a thread's heads go through one copy of the code, one head after the other. */
template <int DTYPE, int PAIRING>
__global__ void __launch_bounds__(GPU_APPEND_THREADS,
                                  DTYPE == ROPE_F32 ? GPU_APPEND_F32_BLOCKS : GPU_APPEND_BLOCKS)
    gpu_append_vector(GPU_PARAMETER gpu_append_vectors units,
                      GPU_PARAMETER rope_append_problem problem,
                      GPU_PARAMETER rope_append_call given) {
    const gpu_append_vectors &vectors = *gpu_parameter<gpu_append_vectors>(units);
    const rope_append_problem &p = *gpu_parameter<rope_append_problem, gpu_append_vectors>(problem);
    const rope_append_call &call =
        *gpu_parameter<rope_append_call, gpu_append_vectors, rope_append_problem>(given);
    typedef gpu_append_shape<DTYPE, PAIRING> shape;
    extern __shared__ uint4 memory[];
    __shared__ gpu_append_site sites[GPU_APPEND_TOKENS];
    float *nodes = (float *)memory + vectors.nodes;
    uint32_t *room = (uint32_t *)memory + vectors.largest;
    int block = (int)blockIdx.x;
    const int tensor = gpu_tensor_of(vectors, &block);
    const gpu_append_tensor &v = vectors.tensor[tensor];
    const int token_block = v.head_blocks == 1 ? block : block / v.head_blocks;
    const int first = token_block * v.block_tokens, left = vectors.rows - first;
    gpu_append_unit u = gpu_append_unit_of<shape>(v, block - token_block * v.head_blocks, left);
    gpu_vectors<shape> x[GPU_APPEND_HEADS] = {};
    float mean[GPU_APPEND_HEADS] = {}, reciprocal[GPU_APPEND_HEADS] = {};
    int lost = 0;
    gpu_wait_for_last();
    if (v.in)
        gpu_load_tensor<shape>(vectors, v, u, first + u.token, x);
    gpu_let_next_start();
    gpu_fill_block<DTYPE>(vectors, &p, &call, v, tensor, first,
                          left < v.block_tokens ? left : v.block_tokens, sites, memory);
    if (!v.in) {
        __syncthreads();
        lost = gpu_load_stored<shape>(&call, v, sites[u.count ? u.token : 0], &u, x);
    }
    if (v.steps.norm)
        gpu_norm_values<shape>(v, u, x, nodes, mean, reciprocal);
    if (!v.steps.norm || v.shuffles)
        __syncthreads();
    const gpu_append_site site = sites[u.count ? u.token : 0];
    const int count = site.status == ROPE_TOKEN_FAILS ? 0 : u.count;
#pragma unroll 1
    for (int h = 0; h < count; h++) {
        gpu_run_steps<shape>(vectors, v, u, u.head + h * v.block_heads, {mean[0], reciprocal[0]},
                             site.status, memory, x[0]);
        if (v.steps.scale == ROPE_SCALE_TOKEN_HEAD_MAX)
            room[h * blockDim.x + threadIdx.x] = gpu_thread_largest<shape>(u, x[0]);
        if (count > 1) {
            gpu_turn(x);
            gpu_turn(mean);
            gpu_turn(reciprocal);
        }
    }
    if (v.steps.scale == ROPE_SCALE_TOKEN_HEAD_MAX)
        __syncthreads();
#pragma unroll 1
    for (int h = 0; h < count; h++) {
        if (!(lost >> h & 1))
            gpu_store_head<shape>(&call, v, u, u.head + h * v.block_heads, site,
                                  room + h * blockDim.x, x[0]);
        x[0] = x[1];
    }
}

#endif
