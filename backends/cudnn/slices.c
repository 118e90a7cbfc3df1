#include "backends/cudnn/slices.h"

#include "backends/gpu/geometry.h"
#include <stdint.h>

/* Divides what a slice may need: tests have small calls in slices. */
#ifndef DNN_SLICE_SHIFT
#define DNN_SLICE_SHIFT 0
#endif

/* Engines for other shapes than those that a workspace was asked for may need more than theirs, as
 * those that split the keys of few queries do. */
enum { LEAST_ENGINE_BYTES = 8 << 20, LISTS_BYTES = 1 << 20, TILE = 128 };

static double rounded_up(int64_t tokens) {
    return (double)((tokens + TILE - 1) & -(int64_t)TILE);
}

/* Of the whole call, as measured with cuDNN 9.19 (7 bytes an element beside the pairs). */
static double needed(const dnn_shape *s) {
    const double q = rounded_up(s->q_tokens), k = rounded_up(s->k_tokens),
                 heads = (double)s->sequences * (double)s->q_heads;
    return heads * (2 * q * k + 2 * (q + k) * (double)(s->head_dim + s->v_head_dim));
}

/* With a call's parts no more than a table's kernel may ask for (rope_plan_workspace_most): fp32
 * gradients of every query head, less what parts have beside the first kernel's, and
 * ROPE_WORKSPACE_MORE, less their lists and gaps. */
static double allowed(const dnn_layout *l) {
    const rope_attention_call *c = l->call;
    const double tokens = (double)c->rope.batch * (double)(c->rope.tokens + c->k_tokens),
                 elements = tokens * (double)l->shape.q_heads *
                            (double)(l->shape.head_dim + l->shape.v_head_dim);
    return (elements * sizeof(float) * 5 / 8 + ROPE_WORKSPACE_MORE - LISTS_BYTES) /
           ((int64_t)1 << DNN_SLICE_SHIFT);
}

static int64_t slices_of(int64_t count, int64_t size) {
    return (count + size - 1) / size;
}

/* Of so many that need as much, those of as few slices as are allowed, of one size but the last. */
static int64_t slice_of(int64_t count, double need, double most) {
    const double fit = most * (double)count / need;
    return fit >= (double)count ? count
           : fit < 2            ? 1
                                : slices_of(count, slices_of(count, (int64_t)fit));
}

static int is_sliced(const dnn_layout *l) {
    return l->shape.is_backward && !l->shape.nondeterministic && !l->is_nothing;
}

int dnn_set_whole(dnn_layout *l) {
    l->slice[0] = l->shape.sequences;
    l->slice[1] = l->shape.k_heads;
    return is_sliced(l);
}

/* cuDNN takes an lse whose sequences begin where offsets say by the heads of all. */
void dnn_set_slice(dnn_layout *l, size_t whole) {
    const dnn_shape *s = &l->shape;
    const double most = allowed(l), need = needed(s);
    if ((double)whole <= most)
        return;
    l->slice[0] = slice_of(s->sequences, need, most);
    if (l->slice[0] == 1 && !s->begins[DNN_LSE])
        l->slice[1] = slice_of(s->k_heads, need / (double)s->sequences, most);
}

int64_t dnn_slice_count(const dnn_layout *l) {
    return slices_of(l->shape.sequences, l->slice[0]) * slices_of(l->shape.k_heads, l->slice[1]);
}

int dnn_slices_differ(const dnn_layout *l) {
    return l->shape.sequences % l->slice[0] || l->shape.k_heads % l->slice[1];
}

/* The first sequence and head of keys of slice n. */
static void first_of(const dnn_layout *l, int64_t n, int64_t first[2]) {
    const int64_t of_heads = slices_of(l->shape.k_heads, l->slice[1]);
    first[0] = n / of_heads * l->slice[0];
    first[1] = n % of_heads * l->slice[1];
}

int dnn_slice_ends(const dnn_layout *l, int64_t n) {
    const int64_t of_heads = slices_of(l->shape.k_heads, l->slice[1]);
    return of_heads > 1 ? n % of_heads == of_heads - 1 : n == dnn_slice_count(l) - 1;
}

void dnn_slice_shape(const dnn_layout *l, int64_t n, dnn_shape *shape) {
    int64_t first[2];
    first_of(l, n, first);
    *shape = l->shape;
    shape->sequences = gpu_at_most(l->slice[0], l->shape.sequences - first[0]);
    shape->k_heads = gpu_at_most(l->slice[1], l->shape.k_heads - first[1]);
    shape->q_heads = l->shape.q_heads / l->shape.k_heads * shape->k_heads;
    if (shape->k_heads < l->shape.k_heads) /* of one sequence: cuDNN wants an lse without gaps */
        shape->stride[DNN_LSE][0] = shape->q_heads * shape->stride[DNN_LSE][1];
}

size_t dnn_slice_bytes(const dnn_layout *l) {
    if (!is_sliced(l))
        return LEAST_ENGINE_BYTES;
    const double most = allowed(l), need = needed(&l->shape) + LEAST_ENGINE_BYTES;
    const double bytes = need < most ? need : most;
    return bytes < 0x1p63 ? (size_t)bytes : SIZE_MAX / 2;
}

static void *shifted(void *data, int64_t elements, size_t element) {
    return data ? (char *)data + elements * (int64_t)element : NULL;
}

void dnn_slice_pointers(const dnn_layout *l, void *workspace, int64_t n, void *at[DNN_POINTERS]) {
    const dnn_shape *s = &l->shape;
    int64_t first[2];
    first_of(l, n, first);
    const int64_t sequence = first[0], q_head = first[1] * (s->q_heads / s->k_heads);
    dnn_pointers(l, workspace, at);
    for (int t = 0; t < DNN_TENSORS; t++) {
        const int64_t head = dnn_is_of_keys(t) ? first[1] : q_head,
                      row = s->begins[t] ? 0 : sequence * s->stride[t][0];
        at[t] = shifted(at[t], row + head * s->stride[t][1], dnn_element_size(t));
        at[DNN_OFFSETS + t] = shifted(at[DNN_OFFSETS + t], sequence, sizeof(int64_t));
    }
    at[DNN_Q_LENGTHS] = shifted(at[DNN_Q_LENGTHS], sequence, sizeof(int32_t));
    at[DNN_K_LENGTHS] = shifted(at[DNN_K_LENGTHS], sequence, sizeof(int32_t));
    at[DNN_SINKS] = shifted(at[DNN_SINKS], q_head, sizeof(float));
}
