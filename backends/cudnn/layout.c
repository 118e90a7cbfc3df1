#include "backends/cudnn/layout.h"

#include "backends/cudnn/visible_keys.h"
#include "backends/gpu/geometry.h"

#include <stdarg.h>
#include <stdio.h>

/* --- what is declined --- */

enum { FEWEST_QUERIES = 128 };

static rope_status decline(char *reason, const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(reason, ROPE_REASON_SIZE, format, list);
    va_end(list);
    return ROPE_ERROR_UNSUPPORTED;
}

static const char *decline_cache(const rope_attention_problem *p) {
    const rope_append_steps *steps[2] = {&p->k, &p->v};
    if (!p->cache)
        return NULL;
    if (p->rotates[1])
        return "declined: keys of a cache rotate here";
    if (p->ring)
        return "declined: ring";
    for (int i = 0; i < 2; i++)
        if (steps[i]->store_dtype != p->rope.dtype || steps[i]->dim_block != steps[i]->head_dim)
            return "declined: a cache of another dtype, or of blocks of elements";
    return NULL;
}

const char *dnn_problem_decline(const rope_attention_problem *p, int backward) {
    if (p->rope.dtype != ROPE_F16 && p->rope.dtype != ROPE_BF16)
        return "declined: dtype is neither f16 nor bf16";
    if (backward && p->rope.dtype == ROPE_F16) /* no factor keeps its sums in range */
        return "declined: the backward of f16";
    if (p->mask == ROPE_MASK_TREE || p->chunk < INT64_MAX)
        return "declined: trees and chunks";
    if (p->soft_cap > 0)
        return "declined: soft_cap with a mask";
    if (p->rotates[0] && p->rope.angle_mode == ROPE_ANGLE_TABLE &&
        p->rope.out_of_range == ROPE_OUT_OF_RANGE_ERROR)
        return "declined: out_of_range leaves tokens out";
    return decline_cache(p);
}

/* --- tensors --- */

static const char *const names[DNN_TENSORS] = {"q",    "k",  "v",  "out", "lse",
                                               "dout", "dq", "dk", "dv"};

int dnn_is_of_keys(int which) {
    return which == DNN_K || which == DNN_V || which == DNN_DK || which == DNN_DV;
}

static int64_t dim_of(const dnn_layout *l, int which) {
    if (which == DNN_LSE)
        return 1;
    return which == DNN_Q || which == DNN_K || which == DNN_DQ || which == DNN_DK
               ? l->problem->head_dim
               : l->problem->v_head_dim;
}

size_t dnn_element_size(int which) {
    return which == DNN_LSE ? sizeof(float) : 2;
}

/* cuDNN 9.19 writes that of the first query head of a group alone. */
static int has_no_lse(const rope_attention_call *c) {
    return c->rope.tokens == 1 && c->rope.tensor[0].heads > c->k.heads;
}

/* Strides as cuDNN compares them: of dimensions of one element they mean nothing. */
static rope_status set_stride(dnn_layout *l, int which, char *reason) {
    dnn_shape *s = &l->shape;
    const int64_t *given = l->stride[which];
    const int keys = dnn_is_of_keys(which), pages = keys && s->page_size, ragged = s->begins[which];
    const int64_t heads = keys ? s->k_heads : s->q_heads, dim = dim_of(l, which),
                  tokens = pages  ? s->page_size
                           : keys ? s->k_tokens
                                  : s->q_tokens,
                  size[4] = {pages ? s->pages : s->sequences, heads, tokens, dim},
                  order[4] = {given[0], given[2], given[1], given[3]},
                  packed[4] = {tokens * heads * dim, dim, heads * dim, 1};
    for (int d = 0; d < 4; d++) {
        const int64_t unit = which == DNN_LSE || d == 3 ? 1 : 8;
        s->stride[which][d] = size[d] == 1 ? packed[d] : order[d];
        if (size[d] > 1 && !(d == 0 && ragged) && (order[d] < 1 || order[d] % unit))
            return decline(reason,
                           "the stride of %s is [%lld, %lld, %lld, %lld]; cuDNN takes "
                           "multiples of 8 and 1",
                           names[which], (long long)given[0], (long long)given[1],
                           (long long)given[2], (long long)given[3]);
    }
    if (ragged)
        s->stride[which][0] = tokens * s->stride[which][2];
    if (which == DNN_LSE && ragged && (order[1] != 1 || order[2] != heads))
        return decline(reason,
                       "lse_stride is [%lld, %lld, %lld]; with lengths on the device heads "
                       "lie side by side",
                       (long long)given[0], (long long)given[1], (long long)given[2]);
    return ROPE_OK;
}

/* A tensor of the caller's, or with data NULL one of the workspace. */
static rope_status place(dnn_layout *l, int which, const void *data, const int64_t *stride,
                         char *reason) {
    const int keys = dnn_is_of_keys(which);
    const int64_t heads = keys ? l->shape.k_heads : l->shape.q_heads, dim = dim_of(l, which),
                  tokens = keys ? l->call->k_tokens : l->call->rope.tokens,
                  own[4] = {tokens * heads * dim, heads * dim, dim, 1};
    for (int d = 0; d < 4; d++)
        l->stride[which][d] = data ? stride[d] : own[d];
    l->data[which] = (void *)(uintptr_t)data;
    l->has[which] = !data;
    const uintptr_t first =
        (uintptr_t)data +
        (keys ? 0 : (uintptr_t)(l->hidden * l->stride[which][1]) * dnn_element_size(which));
    if (data && which != DNN_LSE && first % 16)
        return decline(reason, "%s begins at %p; cuDNN takes multiples of 16", names[which],
                       (void *)first);
    return set_stride(l, which, reason);
}

static rope_status place_keys(dnn_layout *l, int which, const rope_append_operand *o, int rotates,
                              char *reason) {
    const int64_t *c = o->cache_stride, cached[4] = {c[0], c[1], c[2], c[4]};
    if (o->cache)
        return place(l, which, o->cache, cached, reason);
    if (rotates && (!l->known || !o->out))
        return place(l, which, NULL, NULL, reason);
    return rotates ? place(l, which, o->out, o->out_stride, reason)
                   : place(l, which, o->in, o->in_stride, reason);
}

/* What is rotated in the backward is so already where it has an out. */
static rope_status place_inputs(dnn_layout *l, int backward, char *reason) {
    const rope_attention_problem *p = l->problem;
    const rope_attention_call *c = l->call;
    const rope_operand *q = &c->rope.tensor[0];
    const int q_rotates = p->rotates[0] && !(backward && q->out),
              k_rotates = p->rotates[1] && !(backward && c->k.out);
    rope_status status = q_rotates && (!l->known || !q->out) ? place(l, DNN_Q, NULL, NULL, reason)
                         : q_rotates ? place(l, DNN_Q, q->out, q->out_stride, reason)
                                     : place(l, DNN_Q, q->in, q->in_stride, reason);
    if (status == ROPE_OK)
        status = place_keys(l, DNN_K, &c->k, k_rotates, reason);
    if (status == ROPE_OK)
        status = place_keys(l, DNN_V, &c->v, 0, reason);
    if (status == ROPE_OK)
        status = place(l, DNN_OUT, c->out, c->out_stride, reason);
    if (status != ROPE_OK || !c->lse)
        return status;
    if (!backward && has_no_lse(c))
        return decline(reason, "lse of one query, by %lld heads for %lld of keys; allowed is NULL",
                       (long long)c->rope.tensor[0].heads, (long long)c->k.heads);
    const int64_t lse[4] = {c->lse_stride[0], c->lse_stride[1], c->lse_stride[2], 1};
    return place(l, DNN_LSE, backward ? NULL : c->lse, lse, reason);
}

/* What rotates back does so in place, unless cuDNN does not take the place or lengths on the device
 * decide what is written: then it goes by the workspace, as what is not wanted does. */
static rope_status place_gradient(dnn_layout *l, int which, int rotates, const void *data,
                                  const int64_t *stride, char *reason) {
    rope_status status = ROPE_ERROR_UNSUPPORTED;
    if (!rotates || l->known)
        status = place(l, which, data, stride, reason);
    return status == ROPE_OK || !rotates ? status : place(l, which, NULL, NULL, reason);
}

/* cuDNN computes all three. */
static rope_status place_gradients(dnn_layout *l, const rope_attention_backward_call *g,
                                   char *reason) {
    const int32_t *rotates = l->problem->rotates;
    rope_status status = place(l, DNN_DOUT, g->dout, g->dout_stride, reason);
    if (status == ROPE_OK)
        status = place_gradient(l, DNN_DQ, rotates[0], g->dq, g->dq_stride, reason);
    if (status == ROPE_OK)
        status = place_gradient(l, DNN_DK, rotates[1], g->dk, g->dk_stride, reason);
    return status == ROPE_OK ? place(l, DNN_DV, g->dv, g->dv_stride, reason) : status;
}

/* --- the shape --- */

static int has_bytes(int64_t rows, int64_t tokens, int64_t heads, int64_t dim) {
    int64_t bytes = sizeof(float);
    return !__builtin_mul_overflow(bytes, rows, &bytes) &&
           !__builtin_mul_overflow(bytes, tokens, &bytes) &&
           !__builtin_mul_overflow(bytes, heads, &bytes) &&
           !__builtin_mul_overflow(bytes, dim, &bytes);
}

/* Whether 31 bits hold a call's sizes, as cuDNN's do, and 63 the bytes of a tensor. */
static int has_sizes(const rope_attention_problem *p, const rope_attention_call *c) {
    const int64_t rows = c->rope.batch, q_heads = c->rope.tensor[0].heads, k_heads = c->k.heads,
                  dim = p->head_dim > p->v_head_dim ? p->head_dim : p->v_head_dim,
                  sizes[] = {c->rope.position.sequences,
                             rows,
                             c->rope.tokens,
                             c->k_tokens,
                             q_heads,
                             k_heads,
                             c->pages};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (sizes[i] > INT32_MAX)
            return 0;
    return has_bytes(rows, c->rope.tokens, q_heads, dim) &&
           has_bytes(rows, c->k_tokens, k_heads, dim) &&
           has_bytes(c->pages, p->page_size, k_heads, dim);
}

static rope_status decline_sizes(const rope_attention_call *c, char *reason) {
    return decline(reason,
                   "batch is %lld, tokens %lld, k_tokens %lld, q.heads %lld, pages %lld; allowed "
                   "is < 2^31, and bytes of 64 bits",
                   (long long)c->rope.batch, (long long)c->rope.tokens, (long long)c->k_tokens,
                   (long long)c->rope.tensor[0].heads, (long long)c->pages);
}

static rope_status set_sizes(dnn_layout *l, char *reason) {
    const rope_attention_problem *p = l->problem;
    const rope_attention_call *c = l->call;
    dnn_shape *s = &l->shape;
    s->dtype = p->rope.dtype;
    s->scale = p->scale;
    s->sequences = l->sequences;
    s->q_heads = c->rope.tensor[0].heads;
    s->k_heads = c->k.heads;
    /* Boundaries of packed sequences lie on the device, and no field of a call or of its bounds
     * says how long one is: it may have all tokens. */
    s->q_tokens = c->rope.tokens - l->hidden;
    s->k_tokens = c->k_tokens;
    s->head_dim = p->head_dim;
    s->v_head_dim = p->v_head_dim;
    s->lengths = !l->known;
    s->alike = l->known ? s->q_tokens == s->k_tokens
                        : l->packed && !c->q_lengths && !c->k_lengths &&
                              c->rope.position.cu_seqlens == c->k_position.cu_seqlens;
    s->has_lse = c->lse != NULL;
    s->has_sinks = c->sinks != NULL;
    if (p->cache && c->pages < 1)
        return decline(reason, "pages is 0");
    if (p->cache == ROPE_CACHE_SEQUENCE && c->pages < l->sequences)
        return decline(reason, "pages is %lld for %lld sequences", (long long)c->pages,
                       (long long)l->sequences);
    if (p->cache == ROPE_CACHE_SEQUENCE)
        s->k_tokens = gpu_at_most(s->k_tokens, p->page_size);
    if (p->cache == ROPE_CACHE_TABLE) {
        const int64_t needed = (c->k_tokens - 1) / p->page_size + 1;
        s->pages = c->pages;
        s->page_size = p->page_size;
        s->table_pages = gpu_at_most(needed, c->table_pages);
        s->k_tokens = gpu_at_most(s->k_tokens, s->table_pages * p->page_size);
    }
    return ROPE_OK;
}

/* A band that leaves nothing out is none. */
static void set_band(dnn_layout *l) {
    const rope_attention_problem *p = l->problem;
    dnn_shape *s = &l->shape;
    s->left = p->window < s->k_tokens ? p->window : INT64_MAX;
    s->right = p->mask == ROPE_MASK_CAUSAL ? 0 : p->window_right;
    if (s->right >= s->k_tokens + s->q_tokens)
        s->right = INT64_MAX;
}

/* Where the host does not know lengths, offsets say where sequences begin: of queries, so that
 * nothing is written for those that no sequence has, and of keys that are packed or written. */
static void set_begins(dnn_layout *l, int backward) {
    const rope_attention_call *c = l->call;
    dnn_shape *s = &l->shape;
    const int queries = !l->known && (l->packed || c->q_lengths || backward),
              keys = !l->known && (c->k_position.cu_seqlens || backward);
    for (int t = 0; t < DNN_TENSORS; t++) {
        const int there = t == DNN_LSE ? s->has_lse : t < DNN_DOUT || backward;
        s->begins[t] = there && (dnn_is_of_keys(t) ? keys : queries);
    }
    s->q_total = queries && l->packed ? c->rope.tokens : 0;
    s->k_total = keys && c->k_position.cu_seqlens ? c->k_tokens : 0;
}

/* --- the workspace --- */

static int add(dnn_layout *l, int which, int64_t n0, int64_t n1, int64_t n2, size_t element) {
    enum { ALIGNMENT = 256 };
    size_t part = element;
    l->at[which] = l->bytes;
    return l->has[which] == 0 ||
           (!__builtin_mul_overflow(part, (size_t)n0, &part) &&
            !__builtin_mul_overflow(part, (size_t)n1, &part) &&
            !__builtin_mul_overflow(part, (size_t)n2, &part) &&
            !__builtin_add_overflow(l->bytes, part, &l->bytes) &&
            !__builtin_add_overflow(l->bytes, (ALIGNMENT - l->bytes % ALIGNMENT) % ALIGNMENT,
                                    &l->bytes));
}

static void mark_lists(dnn_layout *l) {
    const rope_attention_problem *p = l->problem;
    const rope_position_map *map = &l->call->rope.position;
    for (int t = 0; t < DNN_TENSORS; t++)
        l->has[DNN_OFFSETS + t] = (unsigned char)l->shape.begins[t];
    l->has[DNN_Q_LENGTHS] = l->has[DNN_K_LENGTHS] = l->has[DNN_FAILS] = !l->known;
    l->has[DNN_TABLE] = l->shape.page_size > 0;
    l->has[DNN_SINKS] = l->shape.has_sinks && p->sink_dtype != ROPE_F32;
    l->has[DNN_SHIFTS] = !l->known && p->rotates[0] && !map->ids && !l->shape.alike;
}

static int add_parts(dnn_layout *l) {
    const rope_attention_call *c = l->call;
    const int64_t n = l->sequences;
    int fits = add(l, DNN_Q_LENGTHS, n, 1, 1, 4) && add(l, DNN_K_LENGTHS, n, 1, 1, 4) &&
               add(l, DNN_FAILS, n, 1, 1, 4) && add(l, DNN_SHIFTS, n, 1, 1, 8) &&
               add(l, DNN_TABLE, n, l->shape.table_pages, 1, 4) &&
               add(l, DNN_SINKS, l->shape.q_heads, 1, 1, 4);
    for (int t = 0; t < DNN_TENSORS && fits; t++)
        fits = add(l, DNN_OFFSETS + t, n + 1, 1, 1, 8);
    for (int t = 0; t < DNN_TENSORS && fits; t++)
        fits = dnn_is_of_keys(t)
                   ? add(l, t, c->rope.batch * c->k_tokens, c->k.heads, dim_of(l, t), 2)
                   : add(l, t, c->rope.batch * c->rope.tokens, l->shape.q_heads, dim_of(l, t),
                         dnn_element_size(t));
    return fits;
}

/* A backward's lse is [sequence, head, query] for cuDNN, unless sequences begin where offsets say.
 * One that is so already is read where it lies. */
static void set_lse(dnn_layout *l) {
    dnn_shape *s = &l->shape;
    const int64_t *given = l->call->lse_stride;
    int64_t *stride = s->stride[DNN_LSE];
    if (!l->has[DNN_LSE] || s->begins[DNN_LSE])
        return;
    stride[3] = stride[2] = 1;
    stride[1] = s->q_tokens;
    stride[0] = s->q_heads * s->q_tokens;
    if (given[1] == 1 && given[2] == stride[1] && (given[0] == stride[0] || s->sequences == 1)) {
        l->data[DNN_LSE] = l->call->lse;
        l->has[DNN_LSE] = 0;
    }
}

/* Whether a sequence that grows by few tokens would have an engine built for each of its lengths.
 */
static int has_engines(const dnn_layout *l) {
    const int64_t tokens = l->call->rope.tokens;
    return l->known && tokens < FEWEST_QUERIES && tokens != l->call->k_tokens;
}

rope_status dnn_layout_of(const rope_attention_problem *problem, const rope_attention_call *call,
                          const rope_attention_backward_call *gradients, dnn_layout *l,
                          char *reason) {
    const rope_position_map *map = &call->rope.position;
    memset(l, 0, sizeof *l);
    l->problem = problem;
    l->call = call;
    if (!has_sizes(problem, call))
        return decline_sizes(call, reason);
    l->sequences = rope_attention_sequences(call);
    l->packed = map->cu_seqlens != NULL;
    l->known = !l->packed && !call->q_lengths && !call->k_lengths;
    l->hidden = l->known ? dnn_hidden(problem, call->rope.tokens, call->k_tokens) : 0;
    l->is_nothing = l->sequences == 0 || call->k_tokens == 0 || l->hidden == call->rope.tokens;
    if (call->rope.tensor[0].heads == 0 || (call->rope.tokens == 0 && !l->known))
        return decline(reason, "%lld query heads of %lld tokens; allowed are some",
                       (long long)call->rope.tensor[0].heads, (long long)call->rope.tokens);
    if (!gradients && has_engines(l))
        return decline(reason,
                       "%lld queries of %lld keys, each number of which would have an engine; "
                       "allowed with k_lengths, or from %d queries on",
                       (long long)call->rope.tokens, (long long)call->k_tokens, FEWEST_QUERIES);
    l->shape.is_backward = gradients != NULL;
    l->shape.nondeterministic = gradients && problem->nondeterministic;
    if (problem->rope.frequency_sets > 1 && !map->lengths &&
        (call->q_lengths || (call->k_lengths && problem->rotates[1])))
        return decline(reason, "two lists of frequencies by lengths on the device");
    rope_status status = set_sizes(l, reason);
    if (status != ROPE_OK)
        return status;
    set_band(l);
    set_begins(l, gradients != NULL);
    status = place_inputs(l, gradients != NULL, reason);
    if (status == ROPE_OK && gradients)
        status = place_gradients(l, gradients, reason);
    mark_lists(l);
    set_lse(l);
    return status == ROPE_OK && !add_parts(l) ? decline_sizes(call, reason) : status;
}

/* --- where it lies --- */

void *dnn_part_at(const dnn_layout *l, int which, void *workspace) {
    return l->has[which] ? (char *)workspace + l->at[which] : NULL;
}

void *dnn_tensor_at(const dnn_layout *l, int which, void *workspace) {
    return l->data[which] ? l->data[which] : dnn_part_at(l, which, workspace);
}

void dnn_pointers(const dnn_layout *l, void *workspace, void *at[DNN_POINTERS]) {
    for (int i = 0; i < DNN_POINTERS; i++)
        at[i] = i < DNN_TENSORS ? dnn_tensor_at(l, i, workspace) : dnn_part_at(l, i, workspace);
    for (int t = 0; t < DNN_TENSORS; t++) /* past queries that see no key */
        if (at[t] && !dnn_is_of_keys(t) && !(t == DNN_LSE && l->has[t]))
            at[t] = (char *)at[t] + (size_t)(l->hidden * l->stride[t][1]) * dnn_element_size(t);
    if (l->shape.has_sinks && !at[DNN_SINKS])
        at[DNN_SINKS] = (void *)(uintptr_t)l->call->sinks;
}

/* --- bounds --- */

static void set_operand(rope_append_operand *o, const void *nowhere, int64_t heads, int64_t dim,
                        const rope_attention_problem *p, int64_t tokens) {
    const int64_t rows = p->cache ? p->page_size : tokens,
                  stride[4] = {rows * heads * dim, heads * dim, dim, 1};
    o->heads = heads;
    if (p->cache)
        o->cache = (void *)(uintptr_t)nowhere;
    else
        o->in = nowhere;
    for (int d = 0; d < 4; d++) {
        o->in_stride[d] = stride[d];
        o->cache_stride[d == 3 ? 4 : d] = stride[d];
    }
}

static void set_lists(rope_attention_call *c, int cached, int64_t sequences, int lengths,
                      const char *nowhere) {
    c->rope.position.sequences = sequences;
    c->rope.position.lengths = nowhere;
    c->rope.position.cu_seqlens = sequences ? nowhere : NULL;
    c->k_position.cu_seqlens = sequences && !cached ? nowhere + lengths : NULL;
    c->q_lengths = lengths && !sequences ? nowhere : NULL;
    c->k_lengths = cached || (lengths && !sequences) ? nowhere : NULL;
}

int dnn_call_of(const rope_attention_problem *p, const rope_attention_bounds *b, int lengths,
                rope_attention_backward_call *call) {
    static const _Alignas(16) char nowhere[16];
    void *const data = (void *)(uintptr_t)nowhere;
    rope_attention_call *c = &call->forward;
    memset(call, 0, sizeof *call);
    c->rope.batch = b->batch;
    c->rope.tokens = b->tokens;
    c->k_tokens = b->k_tokens ? b->k_tokens : b->tokens;
    c->rope.tensor[0].heads = b->q_heads;
    c->k.heads = b->k_heads;
    c->rope.position.sequences = b->sequences;
    c->table_pages = p->cache ? (c->k_tokens - 1) / p->page_size + 1 : 0;
    if (__builtin_mul_overflow(c->table_pages, b->sequences ? b->sequences : b->batch, &c->pages) ||
        !has_sizes(p, c))
        return 0;
    c->rope.tensor[0].in = c->out = c->lse = data;
    set_lists(c, p->cache, b->sequences, lengths, nowhere);
    c->sinks = p->sink_dtype ? data : NULL;
    set_operand(&c->k, data, b->k_heads, p->head_dim, p, c->k_tokens);
    set_operand(&c->v, data, b->k_heads, p->v_head_dim, p, c->k_tokens);
    if (has_no_lse(c))
        c->lse = NULL;
    call->dout = data;
    const int64_t q = b->tokens * b->q_heads;
    for (int d = 0; d < 4; d++) {
        const int64_t q_dims[4] = {q * p->head_dim, b->q_heads * p->head_dim, p->head_dim, 1},
                      v_dims[4] = {q * p->v_head_dim, b->q_heads * p->v_head_dim, p->v_head_dim, 1};
        c->rope.tensor[0].in_stride[d] = q_dims[d];
        c->out_stride[d] = call->dout_stride[d] = v_dims[d];
    }
    c->lse_stride[0] = q;
    c->lse_stride[1] = b->q_heads;
    c->lse_stride[2] = 1;
    return 1;
}
