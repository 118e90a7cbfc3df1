/* Rows that the gradients of "attention_backward" are read from, and how they are stored. */
#include "backends/cpu/attention_backward/kernel.h"
#include "backends/cpu/rope/head.h"

#include <math.h>

/* Where n elements lie side by side: there, or in stage. */
static const char *row_of(const backward_context *b, const attention_tile *t, int64_t row,
                          const void *data, const int64_t *stride, int n, char *stage) {
    const int size = b->ctx.size;
    const char *from = (const char *)data + backward_row_at(b, t, row, stride) * size;
    const cpu_head gather = {from, stage, stride[3], 1};
    if (stride[3] == 1)
        return from;
    cpu_copy_elements(size, &gather, 0, n);
    return stage;
}

static void widen(const backward_context *b, const char *from, int n, float *to) {
    if (b->ctx.size == sizeof *to)
        memcpy(to, from, (size_t)n * sizeof *to);
    else
        b->kernel->attention->append->load(ROPE_F32, b->ctx.problem->rope.dtype, 1, from,
                                           (char *)to, n);
}

void backward_load_row(const backward_context *b, const attention_tile *t, int64_t row,
                       const void *data, const int64_t *stride, int n, float *to) {
    char stage[ROPE_MAX_ATTENTION_HEAD_DIM * sizeof(float)];
    widen(b, row_of(b, t, row, data, stride, n, stage), n, to);
}

void backward_load(const backward_context *b, const char *from, int n, float *to) {
    const int same = b->kernel->attention->dtype != 0;
    const size_t size = same ? (size_t)b->ctx.size : sizeof *to, bytes = (size_t)n * size;
    if (same)
        memcpy(to, from, bytes);
    else
        widen(b, from, n, to);
    memset((char *)to + bytes, 0, (size_t)cpu_attention_padded(n) * size - bytes);
}

void backward_load_cell(const backward_context *b, const attention_tile *t, int64_t row,
                        const void *data, const int64_t *stride, int n, float *to) {
    char stage[ROPE_MAX_ATTENTION_HEAD_DIM * sizeof(float)];
    backward_load(b, row_of(b, t, row, data, stride, n, stage), n, to);
}

float backward_lse(const backward_context *b, const attention_tile *t, int64_t row) {
    return b->ctx.call->lse[backward_row_at(b, t, row, b->ctx.call->lse_stride)];
}

void backward_add_share(backward_row *row, const backward_share *share, int64_t first) {
    row->share.others += share->others;
    row->share.weight += share->weight;
    if (share->key < 0)
        return;
    row->share.own = share->own;
    row->share.slope = share->slope;
    row->share.key = first + share->key;
}

/* With that of the sink the gradients of a row's scores add up to 0. Where weights do not add up to
 * 1 the call has a part of the keys, and nothing is known of the others'. */
float backward_lacking(const backward_context *b, const attention_tile *t, int64_t row) {
    const rope_attention_problem *p = b->ctx.problem;
    const backward_row *r = backward_row_of(b, t, row);
    const float sink =
        p->sink_dtype
            ? expf(cpu_load(p->sink_dtype, b->ctx.call->sinks, attention_head_of(&b->ctx, t, row)) -
                   backward_lse(b, t, row))
            : 0;
    const int whole = fabsf(r->share.weight + sink - 1) < 0x1p-12F;
    return whole ? (r->delta * sink - r->share.others) * r->share.slope - r->share.own : 0;
}

/* n sums become elements of a row. */
static void store(const backward_context *b, const float *x, int n, char *to, int64_t step) {
    char stage[ROPE_MAX_ATTENTION_HEAD_DIM * sizeof(float)];
    const cpu_head scatter = {stage, to, 1, step};
    b->kernel->attention->append->store(ROPE_F32, b->ctx.problem->rope.dtype, 1, (const char *)x,
                                        step == 1 ? to : stage, n);
    if (step != 1)
        cpu_copy_elements(b->ctx.size, &scatter, 0, n);
}

void backward_store_query(const backward_context *b, const attention_tile *t, int64_t row,
                          const float *dq) {
    const rope_attention_backward_call *g = b->given;
    store(b, dq, b->ctx.problem->head_dim,
          (char *)g->dq + backward_row_at(b, t, row, g->dq_stride) * b->ctx.size, g->dq_stride[3]);
}

static char *key_at(const backward_context *b, const backward_tile *t, int64_t key, void *data,
                    const int64_t *stride) {
    return (char *)data +
           (t->s.k_row * stride[0] + (t->s.k_first + key) * stride[1] + t->head * stride[2]) *
               b->ctx.size;
}

void backward_store_key(const backward_context *b, const backward_tile *t, int64_t key,
                        const float *dk, const float *dv) {
    const rope_attention_backward_call *g = b->given;
    const rope_attention_problem *p = b->ctx.problem;
    if (dk)
        store(b, dk, p->head_dim, key_at(b, t, key, g->dk, g->dk_stride), g->dk_stride[3]);
    if (dv)
        store(b, dv, p->v_head_dim, key_at(b, t, key, g->dv, g->dv_stride), g->dv_stride[3]);
}

/* --- the transpose --- */

/* Heads of some tokens where they lie, from element 0 of the first on. */
static void rotate(const backward_context *b, int tensor, const rope_attention_sequence *s,
                   const attention_tokens *tokens, char *data, const int64_t *stride,
                   int64_t heads) {
    rope_call call = attention_call_of(&b->back, tensor, s, tokens);
    rope_operand *o = &call.tensor[tensor];
    o->in = o->out = data;
    o->heads = heads;
    memcpy(o->in_stride, stride, sizeof o->in_stride);
    memcpy(o->out_stride, stride, sizeof o->out_stride);
    attention_rotate(&b->back, &call);
}

/* Queries whose heads are all of the tile at once, others one by one. */
void backward_rotate_rows(const backward_context *b, const backward_tile *t) {
    const rope_attention_backward_call *g = b->given;
    const int64_t group = b->ctx.group, end = t->first + t->count;
    attention_tile rows = {.s = t->s, .head = t->head, .heads = 1, .count = t->count};
    for (int64_t row = t->first, heads, left; row < end && b->ctx.problem->rotates[0];) {
        const int64_t i = row / group;
        attention_tokens tokens = {t->s.q_row, t->s.q_first + i, 1, rope_query_index(&t->s, i)};
        left = group - row % group;
        heads = left < end - row ? left : end - row;
        if (heads == group)
            tokens.count = (end - row) / group;
        rows.first = row;
        rotate(b, 0, &t->s, &tokens,
               (char *)g->dq + backward_row_at(b, &rows, 0, g->dq_stride) * b->ctx.size,
               g->dq_stride, heads);
        row += heads * tokens.count;
    }
}

void backward_rotate_keys(const backward_context *b, const backward_tile *t) {
    const rope_attention_backward_call *g = b->given;
    const attention_tokens tokens = {t->s.k_row, t->s.k_first + t->first, t->count, t->first};
    if (g->dk && b->ctx.problem->rotates[1])
        rotate(b, 1, &t->s, &tokens, key_at(b, t, t->first, g->dk, g->dk_stride), g->dk_stride, 1);
}
