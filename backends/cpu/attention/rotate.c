/* Rotations ahead of the tiles, by the kernel of rope_apply: of keys, of queries, or of both. */
#include "backends/cpu/attention/context.h"
#include "backends/cpu/partition.h"
#include "backends/cpu/rope/head.h"

/* Positions of a part as those of a call's only row. A sequence's length is that of its keys,
 * plus its shift. */
static rope_position_map map_of(const rope_position_map *all, const rope_attention_sequence *s,
                                const attention_tokens *part) {
    rope_position_map map = *all;
    const int64_t *stride = map.id_stride, width = map.wide ? 8 : 4,
                  before = map.ids ? 0 : rope_sum(part->index, s->k_index),
                  own = map.offsets ? rope_index_at(&map, map.offsets, s->index) : 0;
    if (map.ids)
        map.ids = (const char *)map.ids + (part->row * stride[1] + part->first * stride[2]) * width;
    if (map.lengths)
        map.lengths = (const char *)map.lengths + s->index * width;
    map.offset = rope_sum(rope_sum(map.offset, own), before);
    map.tokens = rope_difference(s->k_whole, before);
    map.offsets = map.cu_seqlens = NULL;
    return map;
}

rope_call attention_call_of(const attention_context *ctx, int tensor,
                            const rope_attention_sequence *s, const attention_tokens *part) {
    const rope_problem *p = &ctx->problem->rope;
    rope_call call = ctx->call->rope;
    call.position = map_of(tensor ? &ctx->call->k_position : &ctx->call->rope.position, s, part);
    call.batch = 1;
    call.tokens = part->count;
    call.tensor[0].heads = call.tensor[1].heads = 0;
    if (p->angle_mode == ROPE_ANGLE_TABLE) {
        const int64_t table = s->q_row * call.table_stride[0] * cpu_dtype_size(p->table_dtype);
        call.cos = (const char *)call.cos + table;
        call.sin = (const char *)call.sin + table;
    }
    return call;
}

static int64_t token_at(const int64_t *stride, const attention_tokens *part, int size) {
    return (part->row * stride[0] + part->first * stride[1]) * size;
}

static rope_operand queries_of(const attention_context *ctx, const attention_tokens *part) {
    rope_operand o = ctx->call->rope.tensor[0];
    o.in = (const char *)o.in + token_at(o.in_stride, part, ctx->size);
    memcpy(o.out_stride, ctx->q_stride, sizeof o.out_stride);
    o.out = ctx->rotated + token_at(o.out_stride, part, ctx->size);
    return o;
}

static rope_operand keys_of(const attention_context *ctx, const rope_attention_sequence *s,
                            const attention_tokens *part) {
    const rope_append_operand *k = &ctx->call->k;
    const int64_t dim = ctx->problem->head_dim, kept[4] = {0, dim, ctx->call->k_tokens * dim, 1};
    rope_operand o = {.heads = k->heads};
    memcpy(o.out_stride, k->out ? k->out_stride : kept, sizeof o.out_stride);
    o.out = k->out ? (char *)k->out + token_at(o.out_stride, part, ctx->size)
                   : attention_kept_key(ctx, s, 0, part->index);
    memcpy(o.in_stride, k->in_stride, sizeof o.in_stride);
    if (k->in)
        o.in = (const char *)k->in + token_at(o.in_stride, part, ctx->size);
    return o;
}

/* Queries and keys of the same positions have one row of cos and sin. */
static int is_alike(const rope_call *a, const rope_call *b) {
    const rope_position_map *q = &a->position, *k = &b->position;
    return a->tokens == b->tokens && q->offset == k->offset && q->tokens == k->tokens &&
           q->ids == k->ids && memcmp(q->id_stride, k->id_stride, sizeof q->id_stride) == 0;
}

void attention_rotate(const attention_context *ctx, const rope_call *call) {
    if (call->tokens > 0)
        cpu_rotate_on_this_thread(ctx->kernel->rope ? ctx->kernel->rope : ctx->kernel->append->rope,
                                  &ctx->problem->rope, call);
}

/* A stage is in the memory of the thread's tiles, of which it is less than a third. */
enum { STAGE = 32 * 1024, STAGED_HEADS = 8, STAGED_KEYS = 32 };

/* Some heads of cached keys, brought together as [head][key][head_dim]. */
static void rotate_staged(const attention_context *ctx, const rope_attention_sequence *s,
                          const attention_tokens *part, int64_t head, int64_t heads, char *stage) {
    const attention_source from = {
        .operand = &ctx->call->k, .steps = &ctx->problem->k, .staged = 1};
    const int64_t dim = ctx->problem->head_dim, count = part->count;
    const char *rows[STAGED_KEYS];
    rope_call call = attention_call_of(ctx, 1, s, part);
    rope_operand *k = &call.tensor[1];
    *k = keys_of(ctx, s, part);
    for (int64_t h = 0; h < heads; h++)
        cpu_attention_rows(ctx, &from, s,
                           (attention_part){head + h, part->index, (int)count, 0, (int)dim},
                           stage + h * count * dim * ctx->size, rows);
    k->in = stage;
    k->in_stride[1] = dim;
    k->in_stride[2] = count * dim;
    k->in_stride[3] = 1;
    k->out = (char *)k->out + head * k->out_stride[2] * ctx->size;
    k->heads = heads;
    attention_rotate(ctx, &call);
}

static void rotate_cached(const attention_context *ctx, const rope_attention_sequence *s,
                          attention_tokens part, char *stage) {
    const int64_t heads = ctx->call->k.heads, bytes = (int64_t)ctx->problem->head_dim * ctx->size,
                  room = STAGE / (STAGED_HEADS * bytes),
                  most = room < STAGED_KEYS ? room : STAGED_KEYS;
    for (int64_t left = part.count; left > 0;
         left -= most, part.first += most, part.index += most) {
        part.count = left < most ? left : most;
        for (int64_t h = 0; h < heads; h += STAGED_HEADS)
            rotate_staged(ctx, s, &part, h, heads - h < STAGED_HEADS ? heads - h : STAGED_HEADS,
                          stage);
    }
}

static void rotate_views(const attention_context *ctx, const rope_attention_sequence *s,
                         const attention_tokens *q, const attention_tokens *k) {
    rope_call of_q = attention_call_of(ctx, 0, s, q), of_k = attention_call_of(ctx, 1, s, k);
    if (q->count)
        of_q.tensor[0] = queries_of(ctx, q);
    if (k->count)
        of_k.tensor[1] = keys_of(ctx, s, k);
    if (is_alike(&of_q, &of_k)) {
        of_q.tensor[1] = of_k.tensor[1];
        of_k.tokens = 0;
    }
    attention_rotate(ctx, &of_q);
    attention_rotate(ctx, &of_k);
}

/* One part of `parts` of a sequence. */
static void rotate_sequence(const attention_context *ctx, const rope_attention_sequence *s,
                            int index, int parts, char *stage) {
    const rope_key_range used =
        ctx->call->k.out ? (rope_key_range){0, s->k_count} : attention_keys_used(ctx->problem, s);
    const int64_t keys = ctx->problem->rotates[1] ? used.end - used.begin : 0,
                  queries = ctx->rotated ? s->q_count : 0, i = cpu_part(queries, index, parts),
                  j = used.begin + cpu_part(keys, index, parts);
    attention_tokens q = {s->q_row, s->q_first + i, cpu_part(queries, index + 1, parts) - i,
                          rope_query_index(s, i)},
                     k = {s->k_row, s->k_first + j,
                          used.begin + cpu_part(keys, index + 1, parts) - j, j};
    if (!ctx->call->k.in) {
        rotate_cached(ctx, s, k, stage);
        k.count = 0;
    }
    rotate_views(ctx, s, &q, &k);
}

void attention_rotate_first(const attention_context *ctx, int index, int parts, char *memory) {
    for (int64_t n = 0; n < ctx->sequences && (ctx->rotated || ctx->problem->rotates[1]); n++) {
        const rope_attention_sequence s = rope_attention_sequence_of(ctx->problem, ctx->call, n);
        rotate_sequence(ctx, &s, (int)((index + n) % parts), parts, memory);
    }
}

/* --- queries of a tile --- */

void attention_queries(const attention_context *ctx, const attention_tile *t, char *stage,
                       char *q) {
    const int dim = ctx->problem->head_dim;
    const int64_t *stride = ctx->q_stride, bytes = (int64_t)dim * ctx->size,
                  padded = attention_q_bytes(ctx);
    const char *begin = ctx->rotated ? ctx->rotated : ctx->call->rope.tensor[0].in;
    for (int64_t row = 0; row < t->count * t->heads; row++, q += padded) {
        const int64_t token = t->s.q_first + attention_query_of(ctx, t, row),
                      at = t->s.q_row * stride[0] + token * stride[1] +
                           attention_head_of(ctx, t, row) * stride[2];
        const cpu_head gather = {begin + at * ctx->size, stage, stride[3], 1};
        const char *from = stride[3] == 1 ? gather.in : stage;
        if (from == stage)
            cpu_copy_elements(ctx->size, &gather, 0, dim);
        if (ctx->kernel->dtype) {
            memcpy(q, from, (size_t)bytes);
            memset(q + bytes, 0, (size_t)(padded - bytes));
        } else {
            ctx->kernel->append->load(ROPE_F32, ctx->problem->rope.dtype, 1, from, q, dim);
        }
    }
}
