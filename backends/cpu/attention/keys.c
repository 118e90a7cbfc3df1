/* Where keys and values are read: views, pages, or keys that this call rotated. */
#include "backends/cpu/attention/context.h"
#include "backends/cpu/features.h"

rope_key_range attention_keys_used(const rope_attention_problem *problem,
                                   const rope_attention_sequence *s) {
    if (s->q_count == 0)
        return (rope_key_range){0, 0};
    const rope_key_range from = rope_keys_seen(problem, s, rope_query_index(s, 0)),
                         to = rope_keys_seen(problem, s, rope_query_index(s, s->q_count - 1));
    return (rope_key_range){from.begin, to.end > from.begin ? to.end : from.begin};
}

/* A view's elements of a head. */
static attention_source view_of(const attention_context *ctx, const void *data,
                                const int64_t *stride, int64_t row, int64_t first, int64_t head) {
    attention_source from = {
        .token = stride[1] * ctx->size, .element = stride[3] * ctx->size, .size = ctx->size};
    from.base =
        (const char *)data + (row * stride[0] + first * stride[1] + head * stride[2]) * ctx->size;
    from.head = stride[2] * ctx->size;
    from.staged = stride[3] != 1;
    return from;
}

static attention_source cached_of(const attention_context *ctx, const rope_append_operand *o,
                                  const rope_append_steps *steps, int coded) {
    const int whole = steps->dim_block == steps->head_dim && o->cache_stride[4] == 1,
              size = coded ? 1 : ctx->size, same = steps->store_dtype == ctx->problem->rope.dtype;
    return (attention_source){.operand = o,
                              .steps = steps,
                              .head = o->cache_stride[2] * size,
                              .staged = !coded && !(whole && same),
                              .coded = coded,
                              .size = size};
}

attention_source attention_source_of(const attention_context *ctx, const rope_attention_sequence *s,
                                     int64_t head, int which) {
    const rope_attention_call *call = ctx->call;
    const rope_append_operand *o = which ? &call->v : &call->k;
    if (!which && ctx->problem->rotates[1] && !o->out)
        return (attention_source){
            .base = attention_kept_key(ctx, s, head, 0),
            .token = (int64_t)ctx->problem->head_dim * ctx->size,
            .head = call->k_tokens * ctx->problem->head_dim * ctx->size,
            .size = ctx->size,
        };
    if (ctx->problem->cache)
        return cached_of(ctx, o, which ? &ctx->problem->v : &ctx->problem->k, ctx->coded[which]);
    if (!which && ctx->problem->rotates[1])
        return view_of(ctx, o->out, o->out_stride, s->k_row, s->k_first, head);
    return view_of(ctx, o->in, o->in_stride, s->k_row, s->k_first, head);
}

static float scale_of(const attention_source *from, const rope_place *place, int64_t head) {
    const rope_append_operand *o = from->operand;
    return from->steps->scale
               ? o->scale[place->page * o->scale_stride[0] + place->slot * o->scale_stride[1] +
                          head * o->scale_stride[2]]
               : 1;
}

/* The short form of a table, where all codes below some magnitude have it. */
static int find_exponents(int store_dtype, int dtype, const uint16_t elements[256],
                          cpu_code_table *t) {
    const int bits = store_dtype == ROPE_F8E4M3 ? 3 : 2, step = 1 << bits;
    t->exponent = 0x7f & ~(step - 1);
    t->shift = (dtype == ROPE_BF16 ? 7 : 10) - bits;
    for (int i = 0; i < 8; i++) {
        t->mantissa[i] = (uint16_t)(elements[step + i % step] - (step << t->shift));
        t->mantissa[i + 8] = elements[i % step];
    }
    for (t->below = 0; t->below < 128; t->below++) {
        const int code = t->below, e = code & t->exponent,
                  x = t->mantissa[code % step + (e ? 0 : 8)] + (e << t->shift);
        if (elements[code] != (uint16_t)x || elements[code + 128] != (uint16_t)(x ^ 0x8000))
            break;
    }
    return (store_dtype == ROPE_F8E4M3 || store_dtype == ROPE_F8E5M2) && t->below >= 0x7c;
}

cpu_code_look_up *attention_code_table(const attention_context *ctx, const attention_source *from,
                                       int64_t head, cpu_code_table *table) {
    const cpu_append_kernel *kernel = ctx->kernel->append;
    const int scale = from->steps->scale;
    const rope_place any = {.page = 0};
    char codes[256];
    uint16_t elements[256];
    int by_sign = 1, by_complement = 1;
    if (ctx->size != 2 || cpu_store_size(from->steps->store_dtype) != 1 ||
        (scale && scale != ROPE_SCALE_TENSOR && scale != ROPE_SCALE_HEAD))
        return NULL;
    for (int i = 0; i < 256; i++)
        codes[i] = (char)i;
    kernel->load(ctx->problem->rope.dtype, from->steps->store_dtype, scale_of(from, &any, head),
                 codes, (char *)elements, 256);
    for (int i = 0; i < 256; i++) {
        table->low[i] = (uint8_t)elements[i];
        table->high[i] = (uint8_t)(elements[i] >> 8);
    }
    for (int i = 0; i < 128; i++) {
        by_sign &= elements[i + 128] == (elements[i] ^ 0x8000);
        by_complement &= i == 0 ? elements[0] == 0 : elements[256 - i] == (elements[i] ^ 0x8000);
    }
    table->negative = by_sign         ? CPU_CODES_BY_SIGN
                      : by_complement ? CPU_CODES_BY_COMPLEMENT
                                      : CPU_CODES_ANY;
    if (kernel->look_up && cpu_has_vbmi())
        return kernel->look_up;
    return kernel->look_up_short && find_exponents(from->steps->store_dtype,
                                                   ctx->problem->rope.dtype, elements, table)
               ? kernel->look_up_short
               : NULL;
}

int attention_takes_codes(const attention_context *ctx, int which) {
    const rope_attention_problem *p = ctx->problem;
    const rope_append_steps *steps = which ? &p->v : &p->k;
    const rope_append_operand *o = which ? &ctx->call->v : &ctx->call->k;
    const int scale = steps->scale;
    return p->cache && cpu_store_size(steps->store_dtype) == 1 &&
           ctx->most_rows <= ctx->kernel->few && steps->dim_block == steps->head_dim &&
           o->cache_stride[4] == 1 && steps->head_dim % CPU_ATTENTION_PAD == 0 &&
           (!scale || scale == ROPE_SCALE_TENSOR || scale == ROPE_SCALE_HEAD);
}

int cpu_attention_decode(const cpu_attention_block *b, cpu_attention_coded part,
                         const char *const *rows, int count, char *to, int64_t step) {
    const cpu_attention_codes *c = &b->codes[part.which];
    const int64_t at = part.head * b->step[part.which] + part.first;
    const float scale = c->scale ? c->scale[part.head * c->scale_step] : 1;
    if (c->table)
        return c->look_up(c->table + part.head * c->table_step, rows, count, at, part.n, to, step);
    for (int i = 0; i < count; i++)
        c->append->load(b->dtype, c->dtype, scale, rows[i] + at, to + i * step, part.n);
    return 1;
}

/* n elements of a cached head of a key, in dtype. */
static void load_cached(const attention_context *ctx, const attention_source *from,
                        const rope_place *place, int64_t head, int first, int n, char *to) {
    const rope_append_operand *o = from->operand;
    const rope_append_steps *steps = from->steps;
    const int size = cpu_store_size(steps->store_dtype), dtype = ctx->problem->rope.dtype,
              same = steps->store_dtype == dtype;
    const char *at = (const char *)o->cache;
    char row[ROPE_MAX_ATTENTION_HEAD_DIM * sizeof(float)];
    const char *elements = same ? to : row;
    if (steps->dim_block == steps->head_dim && o->cache_stride[4] == 1)
        elements = at + rope_cache_at(o, steps, place, head, first) * size;
    for (int i = 0; i < n && (elements == to || elements == row); i++)
        memcpy((same ? to : row) + i * size,
               at + rope_cache_at(o, steps, place, head, first + i) * size, (size_t)size);
    if (same && elements != to)
        memcpy(to, elements, (size_t)(n * size));
    if (same)
        return;
    if (from->table) {
        from->look_up(from->table, &elements, 1, 0, n, to, 0);
        return;
    }
    const float scale = scale_of(from, place, head);
    ctx->kernel->append->load(dtype, steps->store_dtype, scale, elements, to, n);
}

int64_t cpu_attention_run(const rope_attention_problem *p, int64_t key, int64_t slot,
                          int64_t count) {
    const int64_t page = p->page_size - slot, ring = p->ring ? p->ring - key % p->ring : INT64_MAX,
                  run = page < ring ? page : ring;
    return run < count ? run : count;
}

/* Rows of a cache, key by key. */
typedef struct row_cursor {
    const char *at;
    int64_t left; /* in a run, whose first this is */
} row_cursor;

/* Prefetches a head of a key. */
static void prefetch_cached(const attention_context *ctx, const attention_source *from,
                            const rope_attention_sequence *s, int64_t head, int64_t key,
                            int64_t end, row_cursor *cursor) {
    const rope_append_operand *o = from->operand;
    const int size = cpu_store_size(from->steps->store_dtype);
    if (key >= end)
        return;
    if (cursor->left == 0) {
        const rope_place place = rope_key_place(ctx->problem, ctx->call, s, key);
        cursor->at = (const char *)o->cache + rope_cache_at(o, from->steps, &place, head, 0) * size;
        cursor->left = cpu_attention_run(ctx->problem, key, place.slot, end - key);
    }
    for (int line = 0; line < from->steps->head_dim * size; line += 64)
        __builtin_prefetch(cursor->at + line, 0, 2);
    cursor->at += o->cache_stride[1] * size;
    cursor->left--;
}

static void cached_rows(const attention_context *ctx, const attention_source *from,
                        const rope_attention_sequence *s, attention_part part, char *stage,
                        const char **rows) {
    const rope_append_operand *o = from->operand;
    const int64_t bytes = (int64_t)part.n * ctx->size, step = o->cache_stride[1] * from->size;
    row_cursor next = {.left = 0};
    for (int done = 0; done < part.count;) {
        const int64_t key = part.key + done;
        rope_place place = rope_key_place(ctx->problem, ctx->call, s, key);
        const int64_t run = cpu_attention_run(ctx->problem, key, place.slot, part.count - done);
        const char *at = (const char *)o->cache +
                         rope_cache_at(o, from->steps, &place, part.head, part.first) * from->size;
        for (int64_t i = 0; i < run; i++, place.slot++, done++) {
            rows[done] = from->staged ? stage + done * bytes : at + i * step;
            if (from->next)
                prefetch_cached(ctx, from->next, s, part.head, key + i + from->later, from->end,
                                &next);
            if (from->staged)
                load_cached(ctx, from, &place, part.head, part.first, part.n, stage + done * bytes);
        }
    }
}

void cpu_attention_rows(const attention_context *ctx, const attention_source *from,
                        const rope_attention_sequence *s, attention_part part, char *stage,
                        const char **rows) {
    if (from->operand) {
        cached_rows(ctx, from, s, part, stage, rows);
        return;
    }
    const int count = part.count, first = part.first, n = part.n;
    const int64_t key = part.key;
    const char *at =
        from->base + key * from->token + first * (from->staged ? from->element : ctx->size);
    for (int i = 0; i < count; i++, at += from->token) {
        rows[i] = at;
        if (!from->staged)
            continue;
        char *to = stage + (int64_t)i * n * ctx->size;
        for (int e = 0; e < n; e++)
            memcpy(to + e * ctx->size, at + e * from->element, (size_t)ctx->size);
        rows[i] = to;
    }
}
