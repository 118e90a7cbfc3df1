/* Gradients of every descriptor, an element a thread: a block takes heads of a token, each in
 * shared memory, and adds their products for weights to sums of its own. */
#ifndef ROPEKIT_GPU_APPEND_BACKWARD_TOKENS_H
#define ROPEKIT_GPU_APPEND_BACKWARD_TOKENS_H

#include "backends/gpu/append/generic.h"
#include "backends/gpu/append_backward/kernels.h"
#include "common/math/norm_gradient.h"

/* Sums, in the order in which they are needed: x, h, d^2 and h d. */
enum { GPU_OF_ELEMENTS, GPU_OF_GRADIENTS, GPU_OF_SQUARES, GPU_OF_PRODUCTS };

typedef decltype(gpu_global((float *)NULL)) gpu_sums;

/* A head as append's; x holds gradients ahead of the norm. */
struct gpu_gradient_head {
    gpu_append_head of;
    const rope_append_backward_call *call;
    gpu_sums row;  /* gradients of all heads of the token, where they have one norm */
    gpu_sums sums; /* of products of the head's chain, or NULL */
};

GPU_FN const rope_operand *gpu_gradient(const gpu_gradient_head &h) {
    return gpu_reread(&h.call->gradient[h.of.tensor]);
}

/* Element i of the list that has one norm: its head and its place there. */
template <bool HEAD> struct gpu_listed {
    int64_t head;
    int element; /* from the norm's first on */
};

template <bool HEAD>
GPU_FN gpu_listed<HEAD> gpu_list(const gpu_gradient_head &h, const rope_append_steps *s,
                                 int64_t i) {
    if (HEAD)
        return {h.of.head, (int)i};
    return {i / s->norm_dim, (int)(i % s->norm_dim)};
}

/* d, g and h of norm_gradient.h. */
template <int DTYPE, bool HEAD>
GPU_FN float gpu_deviation(const gpu_gradient_head &h, gpu_listed<HEAD> at, float mean) {
    const rope_append_steps *s = gpu_steps(h.of);
    return rope_norm_deviation(s, mean,
                               gpu_input<DTYPE>(h.of, at.head, s->norm_offset + at.element));
}

template <bool HEAD>
GPU_FN float gpu_ahead_of_norm(const gpu_gradient_head &h, gpu_listed<HEAD> at) {
    const rope_append_steps *s = gpu_steps(h.of);
    const int i = s->norm_offset + at.element;
    if (HEAD)
        return h.of.x[i];
    return h.row[at.head * s->head_dim + i];
}

/* Rounded where the forward rounds ahead of the weight. */
template <int DTYPE> GPU_FN float gpu_rounded_twice(const rope_append_steps *s, float x) {
    return s->rounding == ROPE_NORM_ROUND_TWICE ? gpu_rounded<DTYPE>(x) : x;
}

/* rope_norm_weighted. */
template <int DTYPE, bool HEAD>
GPU_FN float gpu_weighted(const gpu_gradient_head &h, gpu_listed<HEAD> at) {
    const rope_append_steps *s = gpu_steps(h.of);
    const rope_append_operand *o = gpu_tensor(h.of);
    const float g = gpu_ahead_of_norm<HEAD>(h, at);
    if (s->weight == 0)
        return g;
    const float w = rope_norm_weight_of(
        s, gpu_entry(s->weight_dtype, o->weight, at.head * o->weight_stride + at.element));
    return gpu_rounded_twice<DTYPE>(s, g * w);
}

template <int DTYPE, bool HEAD>
GPU_FN float gpu_gradient_node(const gpu_gradient_head &h, int sum, float mean, int64_t i,
                               int64_t n) {
    const rope_append_steps *s = gpu_steps(h.of);
    const bool pair = i + 1 < n;
    const auto first = gpu_list<HEAD>(h, s, i), second = gpu_list<HEAD>(h, s, pair ? i + 1 : i);
    float d0 = 0, d1 = 0, h0 = 0, h1 = 0;
    if (sum != GPU_OF_GRADIENTS) {
        d0 = gpu_deviation<DTYPE, HEAD>(h, first, mean);
        d1 = gpu_deviation<DTYPE, HEAD>(h, second, mean);
    }
    if (sum == GPU_OF_GRADIENTS || sum == GPU_OF_PRODUCTS) {
        h0 = gpu_weighted<DTYPE, HEAD>(h, first);
        h1 = gpu_weighted<DTYPE, HEAD>(h, second);
    }
    if (sum == GPU_OF_ELEMENTS)
        return pair ? d0 + d1 : d0;
    if (sum == GPU_OF_GRADIENTS)
        return pair ? h0 + h1 : h0;
    if (sum == GPU_OF_SQUARES)
        return rope_norm_squares(d0, pair ? d1 : 0);
    return pair ? rope_norm_products(h0, d0, h1, d1) : h0 * d0;
}

template <int DTYPE, bool HEAD>
GPU_FN float gpu_gradient_sum(const gpu_gradient_head &h, int sum, float mean, int64_t n) {
    return gpu_sum_nodes(h.of, (n + 1) / 2, [&](int64_t j) {
        return gpu_gradient_node<DTYPE, HEAD>(h, sum, mean, 2 * j, n);
    });
}

/* The sums one after the other in one loop: a copy of it for each would spill. Until the mean is
 * known deviations are elements. */
template <int DTYPE, bool HEAD> GPU_FN rope_norm_slopes gpu_slopes_of(const gpu_gradient_head &h) {
    const int64_t n = gpu_steps(h.of)->norm_dim * (HEAD ? 1 : gpu_tensor(h.of)->heads);
    const bool layer = gpu_steps(h.of)->norm == ROPE_NORM_LAYER;
    rope_norm_values v = {0, 0};
    float gradients = 0, products = 0;
#pragma unroll 1
    for (int of = layer ? GPU_OF_ELEMENTS : GPU_OF_SQUARES; of <= GPU_OF_PRODUCTS; of++) {
        const float sum = gpu_gradient_sum<DTYPE, HEAD>(h, of, v.mean, n);
        if (of == GPU_OF_ELEMENTS)
            v.mean = rope_norm_mean(sum, n);
        else if (of == GPU_OF_GRADIENTS)
            gradients = sum;
        else if (of == GPU_OF_SQUARES)
            v.reciprocal = rope_norm_reciprocal(sum, n, gpu_steps(h.of)->eps);
        else
            products = sum;
    }
    return rope_norm_slopes_of(v, products, gradients, n);
}

/* The head's gradients ahead of the norm to x: by the factor, then the rotation. */
template <int DTYPE> GPU_FN void gpu_turn_back(const gpu_gradient_head &h) {
    typedef typename gpu_element<DTYPE>::bits bits;
    const rope_operand *o = gpu_gradient(h);
    const rope_append_steps *s = gpu_steps(h.of);
    const rope_site *site = &h.of.token->site;
    const int64_t first =
        site->batch * o->in_stride[0] + site->token * o->in_stride[1] + h.of.head * o->in_stride[2];
    for (int i = (int)threadIdx.x; i < s->head_dim; i += (int)blockDim.x) {
        const float g = gpu_widen<DTYPE>(((const bits *)o->in)[first + i * o->in_stride[3]]);
        h.of.x[i] = s->factor != 1 ? gpu_rounded<DTYPE>(g * s->factor) : g;
    }
    __syncthreads();
    if (!s->rotates)
        return;
    gpu_rotate_staged<DTYPE>(h.of);
    __syncthreads();
    const rope_problem *p = gpu_reread(&h.of.problem->rope);
    float *window = h.of.x + p->rotary_offset[h.of.tensor];
    for (int i = (int)threadIdx.x; i < 2 * p->pairs; i += (int)blockDim.x)
        window[i] = h.of.window[i];
    __syncthreads();
}

template <int DTYPE> GPU_FN void gpu_store_one(void *list, int64_t i, float x) {
    if constexpr (DTYPE == ROPE_F32)
        ((float *)list)[i] = x;
    else
        ((uint16_t *)list)[i] = (uint16_t)gpu_join<DTYPE>(x, 0);
}

/* The head's gradients and products; HEAD: x holds what is ahead of the norm, else row. */
template <int DTYPE, bool HEAD>
GPU_FN void gpu_put_gradients(const gpu_gradient_head &h, rope_norm_slopes v) {
    const rope_operand *o = gpu_gradient(h);
    const rope_append_steps *s = gpu_steps(h.of);
    const rope_site *site = &h.of.token->site;
    const int64_t first = site->batch * o->out_stride[0] + site->token * o->out_stride[1] +
                          h.of.head * o->out_stride[2];
    for (int i = (int)threadIdx.x; i < s->head_dim; i += (int)blockDim.x) {
        const gpu_listed<HEAD> at = {h.of.head, i - s->norm_offset};
        const float g = gpu_ahead_of_norm<HEAD>(h, at);
        float dx = g;
        if ((!HEAD || s->norm) && at.element >= 0 && at.element < s->norm_dim) {
            const float d = gpu_deviation<DTYPE, HEAD>(h, at, v.of.mean);
            dx = rope_norm_gradient(s, v, d, gpu_weighted<DTYPE, HEAD>(h, at));
            const float y = gpu_rounded_twice<DTYPE>(s, d * v.of.reciprocal);
            if (h.sums)
                h.sums[at.element] = fmaf(g, y, h.sums[at.element]);
        }
        if (o->out)
            gpu_store_one<DTYPE>(o->out, first + i * o->out_stride[3], dx);
    }
}

/* A chain of heads, each with a norm of its own or none. */
template <int DTYPE> GPU_FN void gpu_gradient_chain(gpu_gradient_head h, int64_t first, int heads) {
    for (int i = 0; i < heads && first + i < gpu_tensor(h.of)->heads; i++) {
        h.of.head = first + i;
        rope_norm_slopes v = {{0, 0}, 0, 0};
        gpu_turn_back<DTYPE>(h);
        if (gpu_steps(h.of)->norm)
            v = gpu_slopes_of<DTYPE, true>(h);
        gpu_put_gradients<DTYPE, true>(h, v);
        __syncthreads();
    }
}

/* All heads of a token that have one norm. */
template <int DTYPE> GPU_FN void gpu_gradient_heads(gpu_gradient_head h) {
    const rope_append_steps *s = gpu_steps(h.of);
    const int64_t heads = gpu_tensor(h.of)->heads;
    for (h.of.head = 0; h.of.head < heads; h.of.head++) {
        gpu_turn_back<DTYPE>(h);
        for (int i = (int)threadIdx.x; i < s->head_dim; i += (int)blockDim.x)
            h.row[h.of.head * s->head_dim + i] = h.of.x[i];
        __syncthreads();
    }
    const rope_norm_slopes v = gpu_slopes_of<DTYPE, false>(h);
    const gpu_sums sums = h.sums;
    for (h.of.head = 0; h.of.head < heads; h.of.head++) {
        h.sums = sums ? sums + h.of.head * s->norm_dim : sums;
        gpu_put_gradients<DTYPE, false>(h, v);
    }
    __syncthreads();
}

/* One chain of a block of tokens; of heads with one norm all of them. */
template <int DTYPE, bool HEAD>
GPU_FN void gpu_gradient_block(gpu_gradient_head h, const gpu_gradient_tensor *dealt, int64_t block,
                               int64_t chain) {
    const gpu_gradient_tensor *t = gpu_reread(dealt);
    const int dim = gpu_steps(h.of)->norm_dim;
    const int64_t width = dim * (HEAD ? 1 : gpu_tensor(h.of)->heads);
    h.sums = gpu_global(t->sums);
    if (h.sums)
        h.sums += (block * t->chains + chain) * dim;
    h.row = gpu_global(t->gradients);
    if (!HEAD)
        h.row += block * gpu_tensor(h.of)->heads * gpu_steps(h.of)->head_dim;
    for (int64_t i = threadIdx.x; h.sums && i < width; i += blockDim.x)
        h.sums[i] = 0;
    for (int i = 0; i < gpu_reread(dealt)->tokens; i++) {
        const rope_call *call = gpu_reread(&h.of.call->rope);
        const int64_t n = block * gpu_reread(dealt)->tokens + i;
        if (n >= call->batch * call->tokens)
            break;
        if (threadIdx.x == 0) {
            gpu_append_token_read<false>(gpu_reread(h.of.problem), gpu_reread(h.of.call), n,
                                         h.of.token);
            if (!rope_gradient_takes(gpu_reread(h.call), n / call->tokens, n % call->tokens))
                h.of.token->token.status = ROPE_TOKEN_FAILS;
        }
        __syncthreads();
        if (h.of.token->token.status != ROPE_TOKEN_FAILS) {
            if constexpr (HEAD)
                gpu_gradient_chain<DTYPE>(h, chain * gpu_reread(dealt)->heads,
                                          gpu_reread(dealt)->heads);
            else
                gpu_gradient_heads<DTYPE>(h);
        }
        __syncthreads();
    }
}

/* HEAD: tensors whose heads have norms of their own or none; else those with one over all heads. */
template <int DTYPE, bool HEAD>
__global__ void __launch_bounds__(GPU_APPEND_GENERIC_THREADS, 1)
    gpu_gradient_tokens(GPU_PARAMETER rope_append_problem problem,
                        GPU_PARAMETER rope_append_backward_call given,
                        GPU_PARAMETER gpu_gradient_tensors dealt) {
    const rope_append_problem &p = *gpu_parameter<rope_append_problem>(problem);
    const rope_append_backward_call &call =
        *gpu_parameter<rope_append_backward_call, rope_append_problem>(given);
    const gpu_gradient_tensors &tensors =
        *gpu_parameter<gpu_gradient_tensors, rope_append_problem, rope_append_backward_call>(dealt);
    extern __shared__ uint4 memory[];
    __shared__ gpu_append_token token;
    const int t = (int)blockIdx.z;
    const rope_append_steps *s = gpu_reread(&p.steps[t]);
    const gpu_gradient_tensor *tensor = &tensors.tensor[t];
    float *room = (float *)memory;
    const gpu_gradient_head h = {
        {&p, &call.forward, &token, t, 0, room, room + s->head_dim, room + 2 * s->head_dim},
        &call,
        gpu_global((float *)NULL),
        gpu_global((float *)NULL)};
    if (HEAD != (!s->norm || s->norm_scope == ROPE_NORM_HEAD))
        return;
    for (int64_t block = blockIdx.x; block < gpu_reread(tensor)->blocks; block += gridDim.x)
        for (int64_t chain = blockIdx.y; chain < (HEAD ? gpu_reread(tensor)->chains : 1);
             chain += gridDim.y)
            gpu_gradient_block<DTYPE, HEAD>(h, tensor, block, chain);
}

/* Both kernels of a dtype. */
#define GPU_GRADIENT_KERNELS(DTYPE)                                                                \
    { GPU_KERNEL(gpu_gradient_tokens<DTYPE, false>), GPU_KERNEL(gpu_gradient_tokens<DTYPE, true>) }

#endif
