/* Every descriptor, an element a thread: a block takes heads of a token, each in shared memory. */
#ifndef ROPEKIT_GPU_APPEND_GENERIC_H
#define ROPEKIT_GPU_APPEND_GENERIC_H

#include "backends/gpu/append/kernels.h"
#include "backends/gpu/append/token.h"
#include "backends/gpu/rope/rotate.h"
#include "common/math/layout.h"
#include "common/math/norm.h"

/* A norm's sum over elements x. */
enum { GPU_SUM_SQUARES, GPU_SUM_ELEMENTS, GPU_SUM_DEVIATIONS };

/* A token as the threads of a block share it. */
struct gpu_append_token {
    rope_site site;
    rope_token token;
    rope_place place;
    rope_norm_tree tree;
};

/* A head, and the block's dynamic shared memory: its elements in dtype, its rotated window, and
 * room for sums. */
struct gpu_append_head {
    const rope_append_problem *problem;
    const rope_append_call *call;
    gpu_append_token *token;
    int tensor;
    int64_t head;
    float *x, *window, *nodes;
};

/* The head's tensor in problem and call, read anew where it is used: kept, it would spill. */
GPU_FN const rope_append_steps *gpu_steps(const gpu_append_head &h) {
    return gpu_reread(&h.problem->steps[h.tensor]);
}

GPU_FN const rope_append_operand *gpu_tensor(const gpu_append_head &h) {
    return gpu_reread(&h.call->tensor[h.tensor]);
}

/* By instructions, where rope_to_f16 branches. */
template <int DTYPE> GPU_FN float gpu_rounded(float x) {
    return gpu_round<DTYPE>(x, 0).x;
}

template <int DTYPE> GPU_FN float gpu_input(const gpu_append_head &h, int64_t head, int64_t i) {
    typedef typename gpu_element<DTYPE>::bits bits;
    const rope_append_operand *o = gpu_tensor(h);
    const rope_site *site = &h.token->site;
    return gpu_widen<DTYPE>(
        ((const bits *)o->in)[site->batch * o->in_stride[0] + site->token * o->in_stride[1] +
                              head * o->in_stride[2] + i * o->in_stride[3]]);
}

/* An element of the list that has one norm: of a head, which is in shared memory, or of a token. */
template <int DTYPE, bool HEAD> GPU_FN float gpu_normed(const gpu_append_head &h, int64_t i) {
    const rope_append_steps *s = gpu_steps(h);
    if constexpr (HEAD)
        return h.x[s->norm_offset + i];
    return gpu_input<DTYPE>(h, i / s->norm_dim, s->norm_offset + i % s->norm_dim);
}

template <int DTYPE, bool HEAD>
GPU_FN float gpu_node(const gpu_append_head &h, int sum, float mean, int64_t i, int64_t n) {
    float x0 = gpu_normed<DTYPE, HEAD>(h, i),
          x1 = i + 1 < n ? gpu_normed<DTYPE, HEAD>(h, i + 1) : 0;
    if (sum == GPU_SUM_ELEMENTS)
        return i + 1 < n ? x0 + x1 : x0;
    if (sum == GPU_SUM_DEVIATIONS) {
        x0 -= mean;
        x1 = i + 1 < n ? x1 - mean : 0;
    }
    return rope_norm_squares(x0, x1);
}

/* The sum of `count` nodes: those of a segment level by level, the segments by thread 0. */
template <class NODE>
GPU_FN float gpu_sum_nodes(const gpu_append_head &h, int64_t count, const NODE &node) {
    const int thread = (int)threadIdx.x, threads = (int)blockDim.x;
    rope_norm_tree *tree = &h.token->tree;
    if (thread == 0)
        tree->nodes = 0;
    for (int64_t first = 0; first < count; first += GPU_APPEND_SEGMENT) {
        const int held =
            count - first < GPU_APPEND_SEGMENT ? (int)(count - first) : (int)GPU_APPEND_SEGMENT;
        for (int j = thread; j < held; j += threads)
            h.nodes[j] = node(first + j);
        for (int step = 1; step < held; step *= 2) {
            __syncthreads();
            for (int j = thread * 2 * step; j + step < held; j += threads * 2 * step)
                h.nodes[j] = h.nodes[j] + h.nodes[j + step];
        }
        if (thread == 0)
            rope_norm_add(tree, h.nodes[0]);
        __syncthreads();
    }
    if (thread == 0)
        h.nodes[0] = rope_norm_sum(tree);
    __syncthreads();
    const float result = h.nodes[0];
    __syncthreads();
    return result;
}

/* The sum of n elements. */
template <int DTYPE, bool HEAD>
GPU_FN float gpu_sum(const gpu_append_head &h, int sum, float mean, int64_t n) {
    return gpu_sum_nodes(h, (n + 1) / 2,
                         [&](int64_t j) { return gpu_node<DTYPE, HEAD>(h, sum, mean, 2 * j, n); });
}

template <int DTYPE, bool HEAD> GPU_FN rope_norm_values gpu_values_of(const gpu_append_head &h) {
    const rope_append_steps *s = gpu_steps(h);
    const int64_t n = s->norm_dim * (HEAD ? 1 : gpu_tensor(h)->heads);
    const bool layer = s->norm == ROPE_NORM_LAYER;
    rope_norm_values v = {0, 0};
    if (layer)
        v.mean = rope_norm_mean(gpu_sum<DTYPE, HEAD>(h, GPU_SUM_ELEMENTS, 0, n), n);
    v.reciprocal = rope_norm_reciprocal(
        gpu_sum<DTYPE, HEAD>(h, layer ? GPU_SUM_DEVIATIONS : GPU_SUM_SQUARES, v.mean, n), n,
        s->eps);
    return v;
}

template <int DTYPE> GPU_FN void gpu_normalize(const gpu_append_head &h, rope_norm_values v) {
    const rope_append_steps *s = gpu_steps(h);
    const int64_t weight = h.head * gpu_tensor(h)->weight_stride;
    for (int i = (int)threadIdx.x; i < s->norm_dim; i += (int)blockDim.x) {
        float w = 1;
        if (s->weight)
            w = rope_norm_weight_of(s,
                                    gpu_entry(s->weight_dtype, gpu_tensor(h)->weight, weight + i));
        float *x = h.x + s->norm_offset + i;
        *x = gpu_rounded<DTYPE>(rope_normalized(s, DTYPE, v, *x, w));
    }
}

/* From x to window; a token that does not rotate changes its pairing all the same. */
template <int DTYPE> GPU_FN void gpu_rotate_staged(const gpu_append_head &h) {
    const rope_problem *p = gpu_reread(&h.problem->rope);
    const float *in = h.x + p->rotary_offset[h.tensor];
    for (int i = (int)threadIdx.x; i < p->pairs; i += (int)blockDim.x) {
        rope_pair x = {in[rope_first_of(p->pairing_in, i)],
                       in[rope_second_of(p->pairing_in, i, p->pairs)]};
        if (h.token->token.status == ROPE_TOKEN_ROTATES) {
            const rope_coefficients m =
                rope_coefficients_of(p, gpu_reread(&h.call->rope), &h.token->token, i, h.tensor);
            x = p->arithmetic == ROPE_ARITHMETIC_MODEL_DTYPE ? gpu_rotate_model<DTYPE>(x, m)
                                                             : rope_rotate(x, m);
            x.x1 = gpu_rounded<DTYPE>(x.x1);
            x.x2 = gpu_rounded<DTYPE>(x.x2);
        }
        h.window[rope_first_of(p->pairing_out, i)] = x.x1;
        h.window[rope_second_of(p->pairing_out, i, p->pairs)] = x.x2;
    }
}

/* x with the window and the factor in it, each element by the thread that stores it; the largest
 * finite magnitude of the thread's. */
template <int DTYPE> GPU_FN uint32_t gpu_gather_steps(const gpu_append_head &h) {
    const rope_append_steps *s = gpu_steps(h);
    const int offset = s->rotates ? h.problem->rope.rotary_offset[h.tensor] : 0,
              width = s->rotates ? 2 * h.problem->rope.pairs : 0;
    uint32_t largest = 0;
    for (int i = (int)threadIdx.x; i < s->head_dim; i += (int)blockDim.x) {
        float x = i >= offset && i < offset + width ? h.window[i - offset] : h.x[i];
        if (s->factor != 1)
            x = gpu_rounded<DTYPE>(x * s->factor);
        const uint32_t magnitude = rope_finite_magnitude(x);
        largest = magnitude > largest ? magnitude : largest;
        h.x[i] = x;
    }
    return largest;
}

GPU_FN uint32_t gpu_largest_of_block(uint32_t *room, uint32_t largest) {
    room[threadIdx.x] = largest;
    for (int step = (int)blockDim.x / 2; step; step /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < step && room[threadIdx.x + step] > room[threadIdx.x])
            room[threadIdx.x] = room[threadIdx.x + step];
    }
    __syncthreads();
    return room[0];
}

/* The scale of a head to store, written where it is asked for; not a scale where one is given that
 * is none. */
GPU_FN float gpu_scale_to_store(const gpu_append_head &h, uint32_t largest) {
    if (gpu_steps(h)->scale == 0)
        return 1;
    float *scale = gpu_scale_of(gpu_tensor(h), h.tensor, &h.token->site, &h.token->place, h.head);
    if (gpu_steps(h)->scale != ROPE_SCALE_TOKEN_HEAD_MAX)
        return *scale;
    const float made = rope_scale_of_largest(gpu_steps(h)->store_dtype,
                                             gpu_largest_of_block((uint32_t *)h.nodes, largest));
    if (threadIdx.x == 0)
        *scale = made;
    return made;
}

GPU_FN void gpu_store_out(const gpu_append_head &h, int32_t dtype, float scale) {
    const rope_append_operand *o = gpu_tensor(h);
    const rope_site *site = &h.token->site;
    const int64_t first =
        site->batch * o->out_stride[0] + site->token * o->out_stride[1] + h.head * o->out_stride[2];
    for (int i = (int)threadIdx.x; i < gpu_steps(h)->head_dim; i += (int)blockDim.x)
        gpu_to_stored(dtype, o->out, first + i * o->out_stride[3], h.x[i], scale);
}

GPU_FN void gpu_store_cached(const gpu_append_head &h, float scale) {
    for (int i = (int)threadIdx.x; i < gpu_steps(h)->head_dim; i += (int)blockDim.x)
        gpu_to_stored(gpu_steps(h)->store_dtype, gpu_tensor(h)->cache,
                      rope_cache_at(gpu_tensor(h), gpu_steps(h), &h.token->place, h.head, i),
                      h.x[i], scale);
}

template <int DTYPE> GPU_FN void gpu_store_head(const gpu_append_head &h, uint32_t largest) {
    const bool q = h.tensor == ROPE_APPEND_Q,
               cached = gpu_is_cached(gpu_tensor(h), &h.token->place);
    const float scale = q || cached ? gpu_scale_to_store(h, largest) : 1;
    const bool stores = gpu_is_scale(scale);
    if (!stores && threadIdx.x == 0)
        gpu_append_flag(gpu_reread(h.call));
    if (gpu_tensor(h)->out && (!q || stores))
        gpu_store_out(h, q ? gpu_steps(h)->store_dtype : DTYPE, scale);
    if (cached && stores)
        gpu_store_cached(h, scale);
}

/* Elements of a head from the caller's tensor, or from the cache; false where its scale is none. */
template <int DTYPE> GPU_FN bool gpu_load_head(const gpu_append_head &h) {
    const rope_append_steps *s = gpu_steps(h);
    const bool cache = !gpu_tensor(h)->in;
    const float scale = cache && s->scale ? *gpu_scale_of(gpu_tensor(h), h.tensor, &h.token->site,
                                                          &h.token->place, h.head)
                                          : 1;
    if (!gpu_is_scale(scale)) {
        if (threadIdx.x == 0)
            gpu_append_flag(gpu_reread(h.call));
        return false;
    }
    for (int i = (int)threadIdx.x; i < s->head_dim; i += (int)blockDim.x)
        h.x[i] = cache ? gpu_rounded<DTYPE>(gpu_from_stored(
                             s->store_dtype, gpu_tensor(h)->cache,
                             rope_cache_at(gpu_tensor(h), s, &h.token->place, h.head, i), scale))
                       : gpu_input<DTYPE>(h, h.head, i);
    return true;
}

/* One head; v: of its token. The next one's elements are loaded when all threads have stored this
 * one's. */
template <int DTYPE> GPU_FN void gpu_append_one(const gpu_append_head &h, rope_norm_values v) {
    const rope_append_steps *s = gpu_steps(h);
    if (!gpu_load_head<DTYPE>(h))
        return;
    __syncthreads();
    if (s->norm) {
        if (s->norm_scope == ROPE_NORM_HEAD)
            v = gpu_values_of<DTYPE, true>(h);
        gpu_normalize<DTYPE>(h, v);
        __syncthreads();
    }
    if (s->rotates) {
        gpu_rotate_staged<DTYPE>(h);
        __syncthreads();
    }
    gpu_store_head<DTYPE>(h, gpu_gather_steps<DTYPE>(h));
    __syncthreads();
}

template <int DTYPE> GPU_FN void gpu_append_heads(gpu_append_head h) {
    const rope_append_steps *s = gpu_steps(h);
    if (!gpu_tensor(h)->heads ||
        !(gpu_tensor(h)->out || gpu_is_cached(gpu_tensor(h), &h.token->place)))
        return;
    rope_norm_values v = {0, 0};
    if (s->norm && s->norm_scope == ROPE_NORM_TOKEN)
        v = gpu_values_of<DTYPE, false>(h);
    for (h.head = blockIdx.y; h.head < gpu_tensor(h)->heads; h.head += gridDim.y)
        gpu_append_one<DTYPE>(h, v);
}

/* Thread 0 finds out what the block must know of a token; CACHED: it may have a place. */
template <bool CACHED = true>
GPU_FN void gpu_append_token_read(const rope_append_problem *p, const rope_append_call *call,
                                  int64_t n, gpu_append_token *t) {
    const int64_t batch = n / call->rope.tokens, index = n % call->rope.tokens;
    t->site = rope_site_of(&call->rope.position, batch, index);
    t->place = {ROPE_PLACE_NONE, 0, 0, 0};
    if constexpr (CACHED)
        t->place = rope_place_of(p, call, &t->site);
    rope_token_read(&p->rope, &call->rope, batch, index, &t->token);
    if (t->token.status == ROPE_TOKEN_FAILS ||
        (t->place.status != ROPE_PLACE_NONE && t->place.status != ROPE_PLACE_GIVEN))
        gpu_append_flag(call);
}

template <int DTYPE>
__global__ void __launch_bounds__(GPU_APPEND_GENERIC_THREADS, 1)
    gpu_append_generic(GPU_PARAMETER rope_append_problem problem,
                       GPU_PARAMETER rope_append_call given) {
    const rope_append_problem &p = *gpu_parameter<rope_append_problem>(problem);
    const rope_append_call &call = *gpu_parameter<rope_append_call, rope_append_problem>(given);
    extern __shared__ uint4 memory[];
    __shared__ gpu_append_token token;
    int dim = 0;
    for (int t = 0; t < ROPE_APPEND_TENSORS; t++)
        if (call.tensor[t].heads && p.steps[t].head_dim > dim)
            dim = p.steps[t].head_dim;
    float *room = (float *)memory;
    gpu_wait_for_last();
    gpu_let_next_start();
    for (int64_t n = blockIdx.x; n < call.rope.batch * call.rope.tokens; n += gridDim.x) {
        if (threadIdx.x == 0)
            gpu_append_token_read(&p, &call, n, &token);
        __syncthreads();
        if (token.token.status != ROPE_TOKEN_FAILS)
            for (int t = 0; t < ROPE_APPEND_TENSORS; t++)
                gpu_append_heads<DTYPE>(
                    {&p, &call, &token, t, 0, room, room + dim, room + 2 * dim});
        __syncthreads();
    }
}

#endif
