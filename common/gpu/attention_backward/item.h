/*
 * A block's own queries or keys, and the others: where they lie, what they see, and how a gradient
 * ends. A row is a query of one head of those that read a key head, in the order [query, head].
 */
#ifndef ROPEKIT_GPU_ATTENTION_BACKWARD_ITEM_H
#define ROPEKIT_GPU_ATTENTION_BACKWARD_ITEM_H

#include "common/gpu/attention/rows.h"
#include "common/gpu/attention_backward/kernels.h"

/* A kernel's call, and the keys' positions. */
struct gpu_backward_call {
    const rope_attention_problem *p;
    const rope_attention_backward_call *call;
    const rope_call *keys;
    const int32_t *failed;
    const float *delta;
};

/* Instead of elements from element 0 on: it is not there, or left out. */
constexpr int64_t GPU_BACKWARD_NOWHERE = INT64_MIN;

/* A row, or a key: elements from element 0 of q and dout, or of k and v, to its own. A key has
 * `key`, a row the keys that it sees. */
struct gpu_backward_item {
    int64_t at[2];
    int64_t key;
    rope_key_range seen;
    float lse, delta;
};

/* Element 0 of q or dout, of k or v. */
template <int DTYPE>
GPU_FN const typename gpu_element<DTYPE>::bits *
gpu_backward_data(const rope_attention_backward_call *c, int keys, int which) {
    const void *data = keys ? (which ? c->forward.v.in : c->forward.k.in)
                            : (which ? c->dout : c->forward.rope.tensor[0].in);
    return (const typename gpu_element<DTYPE>::bits *)data;
}

GPU_FN const int64_t *gpu_backward_stride(const rope_attention_backward_call *c, int keys,
                                          int which) {
    return keys ? (which ? c->forward.v.in_stride : c->forward.k.in_stride)
                : (which ? c->dout_stride : c->forward.rope.tensor[0].in_stride);
}

GPU_FN int64_t gpu_backward_at(const int64_t stride[4], int64_t row, int64_t token, int64_t head) {
    return row * stride[0] + token * stride[1] + head * stride[2];
}

GPU_FN int64_t gpu_delta_at(const rope_call *call, int64_t row, int64_t token, int64_t head) {
    return (row * call->tokens + token) * call->tensor[0].heads + head;
}

/* Row n of a sequence; token: room for one. A query without a position sees nothing. */
GPU_FN gpu_backward_item gpu_backward_row(const gpu_backward_call &t,
                                          const rope_attention_sequence *s, int64_t key_head,
                                          int64_t n, rope_token *token) {
    const rope_attention_backward_call *c = gpu_reread(t.call);
    const int64_t group = gpu_attention_group(&c->forward), query = n / group,
                  head = key_head * group + n % group, at = s->q_first + query;
    gpu_backward_item item = {{GPU_BACKWARD_NOWHERE, GPU_BACKWARD_NOWHERE}, 0, {0, 0}, 0, 0};
    if (query >= s->q_count)
        return item;
    if (gpu_queries_may_fail(gpu_reread(t.p))) {
        rope_query_token(gpu_reread(t.p), &c->forward, s, query, token);
        if (token->status == ROPE_TOKEN_FAILS) {
            gpu_attention_flag(&c->forward);
            return item;
        }
    }
#pragma unroll
    for (int which = 0; which < 2; which++)
        item.at[which] = gpu_backward_at(gpu_backward_stride(c, 0, which), s->q_row, at, head);
    const int64_t *lse = c->forward.lse_stride;
    item.seen = rope_keys_seen(gpu_reread(t.p), s, rope_query_index(s, query));
    item.lse = c->forward.lse[s->q_row * lse[0] + at * lse[1] + head * lse[2]];
    item.delta = t.delta[gpu_delta_at(&c->forward.rope, s->q_row, at, head)];
    return item;
}

/* Key n of a sequence. */
GPU_FN gpu_backward_item gpu_backward_key(const gpu_backward_call &t,
                                          const rope_attention_sequence *s, int64_t key_head,
                                          int64_t n) {
    const rope_attention_backward_call *c = gpu_reread(t.call);
    gpu_backward_item item = {
        {GPU_BACKWARD_NOWHERE, GPU_BACKWARD_NOWHERE}, INT64_MAX, {0, 0}, 0, 0};
    if (n >= s->k_count)
        return item;
#pragma unroll
    for (int which = 0; which < 2; which++)
        item.at[which] =
            gpu_backward_at(gpu_backward_stride(c, 1, which), s->k_row, s->k_first + n, key_head);
    item.key = n;
    return item;
}

/* The first query of a sequence that sees keys behind `key`, or, BEGINS, none ahead of it; what is
 * seen does not fall from a query to the next. */
template <bool BEGINS>
GPU_FN int64_t gpu_first_query(const rope_attention_problem *p, const rope_attention_sequence *s,
                               int64_t key) {
    int64_t low = 0, high = s->q_count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        const rope_key_range seen = rope_keys_seen(p, s, rope_query_index(s, middle));
        if (BEGINS ? seen.first >= key : seen.last > key)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* --- how a gradient ends --- */

/* Of row n: where its dq goes, and how it rotates. */
GPU_FN int64_t gpu_backward_row_end(const gpu_backward_call &t, const rope_attention_sequence *s,
                                    int64_t key_head, int64_t n, rope_token *token) {
    const rope_attention_backward_call *c = gpu_reread(t.call);
    const int64_t group = gpu_attention_group(&c->forward), query = n / group;
    token->status = ROPE_TOKEN_PASSES;
    if (query >= s->q_count)
        return GPU_BACKWARD_NOWHERE;
    if (gpu_reread(t.p)->rotates[0])
        rope_query_token(gpu_reread(t.p), &c->forward, s, query, token);
    return token->status == ROPE_TOKEN_FAILS
               ? GPU_BACKWARD_NOWHERE
               : gpu_backward_at(c->dq_stride, s->q_row, s->q_first + query,
                                 key_head * group + n % group);
}

/* Of key n: where its dk and dv go. A key that no query sees has zeros, which do not rotate. */
GPU_FN void gpu_backward_key_end(const gpu_backward_call &t, const rope_attention_sequence *s,
                                 int64_t key_head, int64_t n, rope_token *token, int64_t to[2]) {
    const rope_attention_backward_call *c = gpu_reread(t.call);
    token->status = ROPE_TOKEN_PASSES;
    to[0] = to[1] = GPU_BACKWARD_NOWHERE;
    if (n >= s->k_count)
        return;
    const rope_key_range used = gpu_keys_used(gpu_reread(t.p), s);
    if (gpu_reread(t.p)->rotates[1] && n >= used.first && n < used.last)
        rope_key_token(gpu_reread(t.p), gpu_reread(t.keys), s, n, token);
    to[0] = gpu_backward_at(c->dk_stride, s->k_row, s->k_first + n, key_head);
    to[1] = gpu_backward_at(c->dv_stride, s->k_row, s->k_first + n, key_head);
}

/* Writes `count` heads of `dim` numbers, `stride` apart and rounded, to where they go; with tokens,
 * which may be NULL, each rotated back. rope: the call of tensor TENSOR's tokens. */
template <int DTYPE, int TENSOR>
GPU_FN void gpu_backward_store(const rope_attention_problem *p, const rope_call *rope,
                               const float *x, int stride, int dim, int count,
                               const rope_token *tokens, const int64_t *to, void *data,
                               int64_t step) {
    typedef typename gpu_element<DTYPE>::bits bits;
    const rope_problem *r = gpu_reread(&p->rope);
    const int pairs = tokens ? r->pairs : 0, units = dim - pairs, from = r->rotary_offset[TENSOR];
    for (int e = (int)threadIdx.x; e < count * units; e += GPU_ATTENTION_THREADS) {
        const int n = e / units, i = e % units - pairs;
        if (to[n] == GPU_BACKWARD_NOWHERE)
            continue;
        bits *out = (bits *)data + to[n];
        if (i >= 0) { /* an element outside the window */
            const int at = pairs == 0 || i < from ? i : i + 2 * pairs;
            out[at * step] = gpu_narrow<DTYPE>(x[n * stride + at]);
            continue;
        }
        const rope_pair y = gpu_rotated_pair<DTYPE>(r, gpu_reread(rope), &tokens[n], TENSOR,
                                                    x + n * stride, i + pairs);
        out[(from + rope_first_of(r->pairing_out, i + pairs)) * step] = gpu_narrow<DTYPE>(y.x1);
        out[(from + rope_second_of(r->pairing_out, i + pairs, pairs)) * step] =
            gpu_narrow<DTYPE>(y.x2);
    }
}

#endif
