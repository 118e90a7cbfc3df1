/* Rotations by the kernels of rope/: of keys before tiles read them, of queries with their tile. */
#include "backends/cpu/attention/walk.h"
#include "backends/cpu/partition.h"
#include "backends/cpu/rope/head.h"

/* A token outside every table: a window changes its pairing all the same. */
static void pass_head(const rope_problem *p, int size, int tensor, const char *in, char *out) {
    const cpu_head head = {in, out, 1, 1},
                   window = cpu_window_of(&head, size, p->rotary_offset[tensor]);
    cpu_copy_elements(size, &head, 0, p->head_dim[tensor]);
    if (p->pairing_in != p->pairing_out)
        cpu_move_window(p, size, &window);
}

void attention_rotate(const attention_walk *w, const rope_call *call, const rope_token *token,
                      int tensor, const char *in, int64_t in_stride, char *out, int64_t out_stride,
                      int64_t heads) {
    const rope_problem *p = &w->problem->rope;
    const cpu_kernel *rope = w->kernel->append->rope;
    const int64_t offset = (int64_t)p->rotary_offset[tensor] * w->size,
                  window = 2 * (int64_t)p->pairs * w->size,
                  after = (int64_t)p->head_dim[tensor] * w->size - offset - window;
    cpu_row_buffer buffer;
    const cpu_cos_sin_row row = cpu_row_at(p, &buffer, 0);
    const cpu_heads h = {.problem = p,
                         .in = in + offset,
                         .out = out + offset,
                         .count = heads,
                         .in_stride = in_stride,
                         .out_stride = out_stride,
                         .before = in != out ? offset : 0,
                         .after = in != out ? after : 0};
    for (int64_t n = 0; n < heads && token->status == ROPE_TOKEN_PASSES; n++)
        pass_head(p, w->size, tensor, in + n * in_stride, out + n * out_stride);
    for (int64_t n = 0; n < heads && w->kernel->rotate && token->status != ROPE_TOKEN_PASSES; n++)
        w->kernel->rotate(p, call, token, tensor, in + n * in_stride, out + n * out_stride);
    if (token->status == ROPE_TOKEN_PASSES || w->kernel->rotate)
        return;
    if (p->angle_mode == ROPE_ANGLE_TABLE)
        rope->rows->read(p, call, token, &row);
    else
        rope->rows->compute(p, token, 1, tensor, &row);
    const cpu_rotate_heads rotate = rope->rows->lanes > 1
                                        ? cpu_choose_instance(rope, cpu_rotates_in_pairs(p), &h)
                                        : rope->instances[p->dtype - ROPE_F32]->general;
    rotate(&h, 1, &row, 1);
}

enum { STAGED_HEADS = 8 };

/* Heads of a token of a view, to one of other strides; in and out in bytes from head 0. */
static void rotate_view(const attention_walk *w, const rope_call *call, const rope_token *token,
                        int tensor, const char *in, const int64_t *in_stride, char *out,
                        const int64_t *out_stride, int64_t heads) {
    const int64_t bytes = (int64_t)w->problem->head_dim * w->size, from = in_stride[2] * w->size,
                  to = out_stride[2] * w->size;
    char stage[STAGED_HEADS * ROPE_MAX_ATTENTION_HEAD_DIM * sizeof(float)];
    if (in_stride[3] == 1 && out_stride[3] == 1) {
        attention_rotate(w, call, token, tensor, in, from, out, to, heads);
        return;
    }
    for (int64_t h = 0; h < heads; h++) {
        const cpu_head gather = {in + h * from, stage, in_stride[3], 1},
                       scatter = {stage, out + h * to, 1, out_stride[3]};
        cpu_copy_elements(w->size, &gather, 0, w->problem->head_dim);
        attention_rotate(w, call, token, tensor, stage, bytes, stage, bytes, 1);
        cpu_copy_elements(w->size, &scatter, 0, w->problem->head_dim);
    }
}

static void rotate_key(const attention_walk *w, const rope_attention_sequence *s, int64_t key) {
    const rope_append_operand *o = &w->call->k;
    const int64_t bytes = (int64_t)w->problem->head_dim * w->size,
                  kept[4] = {0, 0, w->call->k_tokens * w->problem->head_dim, 1};
    const int64_t *stride = o->out ? o->out_stride : kept;
    char *out =
        o->out ? (char *)o->out + (s->k_row * stride[0] + (s->k_first + key) * stride[1]) * w->size
               : attention_kept_key(w, s, 0, key);
    rope_token token;
    rope_key_token(w->problem, &w->keys, s, key, &token);
    if (o->in) {
        const char *in =
            (const char *)o->in +
            (s->k_row * o->in_stride[0] + (s->k_first + key) * o->in_stride[1]) * w->size;
        rotate_view(w, &w->keys, &token, 1, in, o->in_stride, out, stride, o->heads);
        return;
    }
    char stage[STAGED_HEADS * ROPE_MAX_ATTENTION_HEAD_DIM * sizeof(float)];
    for (int64_t h = 0, count; h < o->heads; h += count) {
        count = o->heads - h < STAGED_HEADS ? o->heads - h : STAGED_HEADS;
        for (int64_t i = 0; i < count; i++) {
            attention_source from = {.operand = o, .steps = &w->problem->k, .staged = 1};
            const char *row;
            cpu_attention_rows(w, &from, s,
                               (attention_part){h + i, key, 1, 0, w->problem->head_dim},
                               stage + i * bytes, &row);
            if (row != stage + i * bytes)
                memcpy(stage + i * bytes, row, (size_t)bytes);
        }
        attention_rotate(w, &w->keys, &token, 1, stage, bytes, out + h * stride[2] * w->size,
                         stride[2] * w->size, count);
    }
}

static void rotate_query(const attention_walk *w, const rope_attention_sequence *s, int64_t i) {
    const rope_operand *o = &w->call->rope.tensor[0];
    const int64_t *in = o->in_stride, *out = o->out_stride, n = s->q_first + i;
    rope_token token;
    rope_query_token(w->problem, w->call, s, i, &token);
    rotate_view(w, &w->call->rope, &token, 0,
                (const char *)o->in + (s->q_row * in[0] + n * in[1]) * w->size, in,
                (char *)o->out + (s->q_row * out[0] + n * out[1]) * w->size, out, o->heads);
}

void attention_rotate_first(const attention_walk *w, int index, int parts) {
    const int keys = w->problem->rotates[1], queries = w->call->rope.tensor[0].out != NULL;
    for (int64_t n = 0; n < w->sequences && (keys || queries); n++) {
        const rope_attention_sequence s = rope_attention_sequence_of(w->problem, w->call, n);
        const rope_key_range used =
            w->call->k.out ? (rope_key_range){0, s.k_count} : attention_keys_used(w->problem, &s);
        const int64_t count = keys ? used.last - used.first : 0;
        for (int64_t i = cpu_part(count, index, parts); i < cpu_part(count, index + 1, parts); i++)
            rotate_key(w, &s, used.first + i);
        const int64_t m = queries ? s.q_count : 0;
        for (int64_t i = cpu_part(m, index, parts); i < cpu_part(m, index + 1, parts); i++)
            rotate_query(w, &s, i);
    }
}

/* Some heads of a query, as the kernel has them. */
static void read_query(const attention_walk *w, const attention_tile *t, const rope_token *token,
                       int64_t i, int64_t head, int64_t count, char *stage, char *q) {
    const rope_operand *o = &w->call->rope.tensor[0];
    const int dim = w->problem->head_dim, rotated = o->out != NULL;
    const int64_t *stride = rotated ? o->out_stride : o->in_stride, bytes = (int64_t)dim * w->size,
                  step = stride[2] * w->size, staged[4] = {0, 0, dim, 1};
    const char *in = rotated ? (const char *)o->out : (const char *)o->in;
    in += (t->s.q_row * stride[0] + (t->s.q_first + i) * stride[1]) * w->size + head * step;
    const int turns = w->problem->rotates[0] && !rotated, plain = stride[3] == 1 && !turns;
    if (turns)
        rotate_view(w, &w->call->rope, token, 0, in, stride, stage, staged, count);
    for (int64_t h = 0; h < count; h++) {
        const char *from = plain ? in + h * step : stage + h * bytes;
        const cpu_head gather = {in + h * step, stage + h * bytes, stride[3], 1};
        if (!turns && !plain)
            cpu_copy_elements(w->size, &gather, 0, dim);
        char *to = q + h * attention_q_bytes(w);
        if (w->kernel->dtype) {
            memcpy(to, from, (size_t)bytes);
            memset(to + bytes, 0, (size_t)(attention_q_bytes(w) - bytes));
        } else {
            w->kernel->append->load(ROPE_F32, w->problem->rope.dtype, 1, from, to, dim);
        }
    }
}

void attention_queries(const attention_walk *w, const attention_tile *t, char *stage, char *q) {
    const int64_t most = CPU_ATTENTION_PAD;
    for (int64_t row = 0, count; row < t->count * t->heads; row += count) {
        const int64_t i = attention_query_of(w, t, row), head = attention_head_of(w, t, row),
                      of_query = w->group - (t->first + row % t->count) % w->group,
                      of_head = t->count - row % t->count;
        rope_token token;
        count = of_head < of_query ? of_head : of_query;
        count = count < most ? count : most;
        if (w->problem->rotates[0])
            rope_query_token(w->problem, w->call, &t->s, i, &token);
        read_query(w, t, &token, i, head, count, stage, q + row * attention_q_bytes(w));
    }
}
