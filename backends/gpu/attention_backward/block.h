/*
 * A block's own queries or keys, and the others: where they lie, what they see, and how a gradient
 * ends. A row is a query of one head of those that read a key head, in the order [query, head].
 */
#ifndef ROPEKIT_GPU_ATTENTION_BACKWARD_BLOCK_H
#define ROPEKIT_GPU_ATTENTION_BACKWARD_BLOCK_H

#include "backends/gpu/attention/rows.h"
#include "backends/gpu/attention_backward/kernels.h"

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

/* A key from another one on. */
GPU_FN int32_t gpu_backward_near(int64_t key, int64_t from) {
    const int64_t n = key - from;
    return (int32_t)(n < INT32_MIN ? INT32_MIN : n > INT32_MAX ? INT32_MAX : n);
}

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

/* Elements of a head of q and k, or of dout and v. */
GPU_FN int gpu_backward_dim(const gpu_backward_call &t, int which) {
    return which ? gpu_reread(t.p)->v_head_dim : gpu_reread(t.p)->head_dim;
}

GPU_FN int64_t gpu_backward_at(const int64_t stride[4], int64_t row, int64_t token, int64_t head) {
    return row * stride[0] + token * stride[1] + head * stride[2];
}

GPU_FN int64_t gpu_delta_at(const rope_call *call, int64_t row, int64_t token, int64_t head) {
    return (row * call->tokens + token) * call->tensor[0].heads + head;
}

/* n / by, and what is left, neither below 0: of 32 bits where they fit, as a division of 64 is a
 * call. */
struct gpu_quotient {
    int64_t whole, left;
};

GPU_FN gpu_quotient gpu_divide(int64_t n, int64_t by) {
    if ((n | by) >> 32)
        return {n / by, n % by};
    const uint32_t whole = (uint32_t)n / (uint32_t)by;
    return {whole, (uint32_t)n - whole * (uint32_t)by};
}

/* Row n of a sequence; token: room for one. A query without a position sees nothing. */
GPU_FN gpu_backward_item gpu_backward_row(const gpu_backward_call &t,
                                          const rope_attention_sequence *s, int64_t key_head,
                                          int64_t n, rope_token *token) {
    const rope_attention_backward_call *c = gpu_reread(t.call);
    const int64_t group = gpu_attention_group(&c->forward);
    const gpu_quotient row = gpu_divide(n, group);
    const int64_t query = row.whole, head = key_head * group + row.left, at = s->q_first + query;
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

/* The first query of a sequence that sees keys behind `key`, or, `begins`, none ahead of it; what
 * is seen does not fall from a query to the next. */
GPU_FN int64_t gpu_first_query(const rope_attention_problem *p, const rope_attention_sequence *s,
                               int64_t key, bool begins) {
    int64_t low = 0, high = s->q_count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        const rope_key_range seen = rope_keys_seen(p, s, rope_query_index(s, middle));
        if (begins ? seen.begin >= key : seen.end > key)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* --- how a gradient ends --- */

/* Where dq of row n goes, and how it rotates. */
GPU_FN int64_t gpu_backward_row_end(const gpu_backward_call &t, const rope_attention_sequence *s,
                                    int64_t key_head, int64_t n, rope_token *token) {
    const rope_attention_backward_call *c = gpu_reread(t.call);
    const int64_t group = gpu_attention_group(&c->forward);
    const gpu_quotient row = gpu_divide(n, group);
    const int64_t query = row.whole;
    token->status = ROPE_TOKEN_PASSES;
    if (query >= s->q_count)
        return GPU_BACKWARD_NOWHERE;
    if (gpu_reread(t.p)->rotates[0])
        rope_query_token(gpu_reread(t.p), &c->forward, s, query, token);
    return token->status == ROPE_TOKEN_FAILS
               ? GPU_BACKWARD_NOWHERE
               : gpu_backward_at(c->dq_stride, s->q_row, s->q_first + query,
                                 key_head * group + row.left);
}

/* Where dk and dv of key n go. A key that no query sees has zeros, which do not rotate. */
GPU_FN void gpu_backward_key_end(const gpu_backward_call &t, const rope_attention_sequence *s,
                                 int64_t key_head, int64_t n, rope_token *token, int64_t to[2]) {
    const rope_attention_backward_call *c = gpu_reread(t.call);
    token->status = ROPE_TOKEN_PASSES;
    to[0] = to[1] = GPU_BACKWARD_NOWHERE;
    if (n >= s->k_count)
        return;
    const rope_key_range used = gpu_keys_used(gpu_reread(t.p), s);
    if (gpu_reread(t.p)->rotates[1] && n >= used.begin && n < used.end)
        rope_key_token(gpu_reread(t.p), gpu_reread(t.keys), s, n, token);
    to[0] = gpu_backward_at(c->dk_stride, s->k_row, s->k_first + n, key_head);
    to[1] = gpu_backward_at(c->dv_stride, s->k_row, s->k_first + n, key_head);
}

/* A thread of the block: computed anew, and known not to be below 0. */
GPU_FN int gpu_backward_thread(void) {
    return gpu_opaque((int)threadIdx.x) & (GPU_ATTENTION_THREADS - 1);
}

/* Heads that wait to be written: `count`, `stride` apart, each in room for `dim` numbers of which
 * it has `used`, rounded. Where they rotate back, head n does by tokens[n], as do all of its
 * `alike`: those from head -before on are some, and so on. */
struct gpu_backward_waiting {
    float *x;
    int stride, dim, used, count;
    bool rotates;
    const rope_token *tokens;
    int alike, before;
};

/* Rotates heads where they wait; a thread has a pair of several heads. A barrier is behind it. */
template <int DTYPE, int TENSOR>
GPU_FN void gpu_backward_rotate(const rope_problem *r, const rope_call *rope,
                                const gpu_backward_waiting &w) {
    enum { THREADS = GPU_ATTENTION_THREADS };
    const int pairs = r->pairs, lanes = pairs < THREADS ? pairs : THREADS, slices = THREADS / lanes,
              each = (w.count + slices - 1) / slices, slice = gpu_backward_thread() / lanes,
              begin = slice * each, end = begin + each < w.count ? begin + each : w.count;
    for (int i = gpu_backward_thread() % lanes; i < pairs && slice < slices; i += lanes) {
        float *first = w.x + r->rotary_offset[TENSOR] + rope_first_of(r->pairing_in, i),
              *second = w.x + r->rotary_offset[TENSOR] + rope_second_of(r->pairing_in, i, pairs);
        for (int n = begin, next; n < end; n = next) {
            next = n + w.alike - (w.before + n) % w.alike;
            next = next < end ? next : end;
            if (w.tokens[n].status != ROPE_TOKEN_ROTATES)
                continue;
            const rope_coefficients m =
                rope_coefficients_of(r, gpu_reread(rope), &w.tokens[n], i, TENSOR);
            for (int k = n * w.stride; k < next * w.stride; k += w.stride) {
                const rope_pair y = gpu_rotated_by<DTYPE>(r, {first[k], second[k]}, m);
                first[k] = y.x1;
                second[k] = y.x2;
            }
        }
    }
    __syncthreads();
}

/* Leaves out heads whose elements were all finite ahead of their rotation, by halves: of finite
 * numbers that makes one of a pair infinite at most, of others both. A barrier is behind it. */
template <int DTYPE>
GPU_FN void gpu_backward_leave_finite(const gpu_backward_waiting &w, int from, int pairs,
                                      int64_t *to, const void *data, int64_t step) {
    typedef typename gpu_element<DTYPE>::bits bits;
    for (int n = gpu_backward_thread(); n < w.count; n += GPU_ATTENTION_THREADS) {
        const bits *head = (const bits *)data + to[n];
        int i = to[n] == GPU_BACKWARD_NOWHERE ? w.used : 0;
        for (; i < w.used; i++)
            if (!gpu_is_finite(gpu_widen<DTYPE>(head[i * step])) &&
                (i < from || i >= from + 2 * pairs ||
                 (i < from + pairs && !gpu_is_finite(gpu_widen<DTYPE>(head[(i + pairs) * step])))))
                break;
        if (i == w.used)
            to[n] = GPU_BACKWARD_NOWHERE;
    }
    __syncthreads();
}

/* Writes heads to where they go, 16 bytes at a time. */
template <int DTYPE>
GPU_FN void gpu_backward_store_vectors(const gpu_backward_waiting &w, const int64_t *to,
                                       void *data) {
    enum { V = DTYPE == ROPE_F32 ? 4 : 8, SIZE = DTYPE == ROPE_F32 ? 4 : 2 };
    const int units = w.dim / V;
    for (int e = gpu_backward_thread(); e < w.count * units; e += GPU_ATTENTION_THREADS) {
        const int n = e / units, i = e % units * V;
        float x[V];
        if (to[n] == GPU_BACKWARD_NOWHERE || i >= w.used)
            continue;
#pragma unroll
        for (int k = 0; k < V; k += 4)
            gpu_read_numbers<4>(w.x + n * w.stride + i + k, x + k);
        gpu_store<DTYPE, V>((char *)data + (to[n] + i) * SIZE, gpu_pack<DTYPE, V>(x));
    }
}

/* Writes heads to where they go, rotated back. rope: the call of tensor TENSOR's tokens; moves:
 * whether 16 bytes can be written at a time. */
template <int DTYPE, int TENSOR>
GPU_FN void gpu_backward_store(const rope_attention_problem *p, const rope_call *rope,
                               const gpu_backward_waiting &w, const int64_t *to, void *data,
                               int64_t step, bool moves) {
    typedef typename gpu_element<DTYPE>::bits bits;
    const rope_problem *r = gpu_reread(&p->rope);
    if (moves && (!w.rotates || r->pairing_in == r->pairing_out)) {
        if (w.rotates)
            gpu_backward_rotate<DTYPE, TENSOR>(r, rope, w);
        gpu_backward_store_vectors<DTYPE>(w, to, data);
        return;
    }
    const int pairs = w.rotates ? r->pairs : 0, units = w.dim - pairs,
              from = r->rotary_offset[TENSOR];
    for (int e = gpu_backward_thread(); e < w.count * units; e += GPU_ATTENTION_THREADS) {
        const int n = e / units, i = e % units - pairs;
        if (to[n] == GPU_BACKWARD_NOWHERE)
            continue;
        bits *out = (bits *)data + to[n];
        if (i >= 0) { /* an element outside the window */
            const int at = pairs == 0 || i < from ? i : i + 2 * pairs;
            if (at < w.used)
                out[at * step] = gpu_narrow<DTYPE>(w.x[n * w.stride + at]);
            continue;
        }
        const rope_pair y = gpu_rotated_pair<DTYPE>(r, gpu_reread(rope), &w.tokens[n], TENSOR,
                                                    w.x + n * w.stride, i + pairs);
        out[(from + rope_first_of(r->pairing_out, i + pairs)) * step] = gpu_narrow<DTYPE>(y.x1);
        out[(from + rope_second_of(r->pairing_out, i + pairs, pairs)) * step] =
            gpu_narrow<DTYPE>(y.x2);
    }
}

/* Writes a gradient of a tile, that of its queries or, KEYS, of its keys or values, where it is
 * wanted: `count` heads of x, `stride` apart, with room for `dim` numbers. A barrier is behind it.
 */
template <int DTYPE, int KEYS>
GPU_FN void gpu_backward_write(const gpu_backward_call &t, const gpu_attention_tile *tile,
                               int which, const rope_token *tokens, int64_t *to, int32_t fits,
                               int count, int stride, int dim, float *x) {
    const rope_attention_backward_call *c = gpu_reread(t.call);
    const rope_attention_problem *p = gpu_reread(t.p);
    const int group = KEYS ? 1 : (int)gpu_attention_group(&c->forward);
    const gpu_backward_waiting w = {x,
                                    stride,
                                    dim,
                                    gpu_backward_dim(t, which),
                                    count,
                                    !which && p->rotates[KEYS],
                                    tokens,
                                    group,
                                    (int)(tile->first % group)};
    void *data = !KEYS ? c->dq : which ? c->dv : c->dk;
    const int64_t step = (!KEYS ? c->dq_stride : which ? c->dv_stride : c->dk_stride)[3];
    const int32_t moves = !KEYS ? GPU_BACKWARD_DQ : which ? GPU_BACKWARD_DV : GPU_BACKWARD_DK;
    if (data && gpu_reread(fits) & GPU_BACKWARD_AGAIN)
        gpu_backward_leave_finite<DTYPE>(w, p->rope.rotary_offset[KEYS],
                                         w.rotates ? p->rope.pairs : 0, to, data, step);
    if (data)
        gpu_backward_store<DTYPE, KEYS>(p, KEYS ? t.keys : &c->forward.rope, w, to, data, step,
                                        gpu_reread(fits) & moves);
    __syncthreads();
}

#endif
