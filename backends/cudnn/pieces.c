#include "backends/cudnn/pieces.h"

#include <stdint.h>

/* Divides what a piece may need: tests have small calls in pieces. */
#ifndef DNN_PIECE_SHIFT
#define DNN_PIECE_SHIFT 0
#endif

/* Engines for other shapes than those that a workspace was asked for may need more than theirs, as
 * those that split the keys of few queries do. */
enum { LEAST_ENGINE_BYTES = 8 << 20, PIECE_BYTES = 255 << 20, TILE = 128 };

static double rounded_up(int64_t tokens) {
    return (double)((tokens + TILE - 1) / TILE * TILE);
}

/* Of the whole call, as measured with cuDNN 9.19 (7 bytes an element beside the pairs). */
static double needed(const dnn_shape *s) {
    const double q = rounded_up(s->q_tokens), k = rounded_up(s->k_tokens),
                 heads = (double)s->sequences * (double)s->q_heads;
    return heads * (2 * q * k + 2 * (q + k) * (double)(s->head_dim + s->v_head_dim));
}

/* With a call's parts no more than a table's kernel may ask for (rope_plan_workspace_most): fp32
 * gradients of every query head, less what parts have beside the first kernel's. */
static double allowed(const dnn_layout *l) {
    const rope_attention_call *c = l->call;
    const double tokens = (double)c->rope.batch * (double)(c->rope.tokens + c->k_tokens),
                 elements = tokens * (double)l->shape.q_heads *
                            (double)(l->shape.head_dim + l->shape.v_head_dim);
    return (elements * sizeof(float) * 5 / 8 + PIECE_BYTES) / ((int64_t)1 << DNN_PIECE_SHIFT);
}

/* The least divisor of `count` by which a need becomes allowed, else count. */
static int64_t divisor(int64_t count, double need, double most) {
    for (int64_t n = 1; n < count; n++)
        if (count % n == 0 && need <= most * (double)n)
            return n;
    return count;
}

static int is_in_pieces(const dnn_layout *l) {
    return l->shape.is_backward && !l->shape.nondeterministic && !l->is_nothing;
}

/* cuDNN takes an lse whose sequences begin where offsets say by the heads of all. */
void dnn_set_pieces(dnn_layout *l) {
    const dnn_shape *s = &l->shape;
    l->pieces[0] = l->pieces[1] = 1;
    if (!is_in_pieces(l))
        return;
    const double most = allowed(l), need = needed(s);
    l->pieces[0] = divisor(s->sequences, need, most);
    if (!s->begins[DNN_LSE])
        l->pieces[1] = divisor(s->k_heads, need / (double)l->pieces[0], most);
}

void dnn_piece_shape(const dnn_layout *l, dnn_shape *shape) {
    *shape = l->shape;
    shape->sequences /= l->pieces[0];
    shape->q_heads /= l->pieces[1];
    shape->k_heads /= l->pieces[1];
    if (l->pieces[1] > 1) /* of one sequence: cuDNN wants an lse without gaps */
        shape->stride[DNN_LSE][0] = shape->q_heads * shape->stride[DNN_LSE][1];
}

size_t dnn_piece_bytes(const dnn_layout *l) {
    if (!is_in_pieces(l))
        return LEAST_ENGINE_BYTES;
    const double most = allowed(l), need = needed(&l->shape) + LEAST_ENGINE_BYTES;
    return need < most ? (size_t)need : most < 0x1p63 ? (size_t)most : SIZE_MAX / 2;
}

static void *shifted(void *data, int64_t elements, size_t element) {
    return data ? (char *)data + elements * (int64_t)element : NULL;
}

void dnn_piece_pointers(const dnn_layout *l, void *workspace, int64_t n, void *at[DNN_POINTERS]) {
    const dnn_shape *s = &l->shape;
    const int64_t sequence = n / l->pieces[1] * (s->sequences / l->pieces[0]),
                  piece = n % l->pieces[1];
    dnn_pointers(l, workspace, at);
    for (int t = 0; t < DNN_TENSORS; t++) {
        const int64_t heads = dnn_is_of_keys(t) ? s->k_heads : s->q_heads,
                      first = piece * (heads / l->pieces[1]) * s->stride[t][1];
        at[t] = shifted(at[t], first + (s->begins[t] ? 0 : sequence * s->stride[t][0]),
                        dnn_element_size(t));
        at[DNN_OFFSETS + t] = shifted(at[DNN_OFFSETS + t], sequence, sizeof(int64_t));
    }
    at[DNN_Q_LENGTHS] = shifted(at[DNN_Q_LENGTHS], sequence, sizeof(int32_t));
    at[DNN_K_LENGTHS] = shifted(at[DNN_K_LENGTHS], sequence, sizeof(int32_t));
    at[DNN_SINKS] = shifted(at[DNN_SINKS], piece * (s->q_heads / l->pieces[1]), sizeof(float));
}
