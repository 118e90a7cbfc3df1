/*
 * Some heads of one token, from step to step: from the caller's input to a stage in the L1, within
 * it, and from it to where they are stored; the last step writes there where it can.
 */
#include "backends/cpu/append/context.h"
#include "backends/cpu/rope/head.h"
#include "common/math/fp8.h"

char *append_out_of(const append_context *ctx, const append_part *part, int64_t head, int size) {
    const rope_append_operand *o = part->operand;
    return (char *)o->out + (ctx->batch * o->out_stride[0] + ctx->index * o->out_stride[1] +
                             head * o->out_stride[2]) *
                                size;
}

char *append_cache_of(const append_context *ctx, const append_part *part, int64_t head, int64_t i) {
    return (char *)part->operand->cache +
           rope_cache_at(part->operand, part->steps, &ctx->place, head, i) *
               cpu_store_size(part->steps->store_dtype);
}

static char *cache_of(const append_context *ctx, const append_part *part, int64_t head) {
    return append_cache_of(ctx, part, head, 0);
}

/* Elements of a cached head lie side by side. */
static int caches_whole(const append_part *part) {
    return part->steps->dim_block == part->steps->head_dim && part->operand->cache_stride[4] == 1;
}

int append_is_cached(const append_context *ctx, const append_part *part) {
    return part->operand->cache && ctx->place.status == ROPE_PLACE_GIVEN;
}

float *append_scale_of(const append_context *ctx, const append_part *part, int64_t head) {
    const rope_append_operand *o = part->operand;
    const int q = part->tensor == ROPE_APPEND_Q;
    return o->scale + (q ? ctx->batch : ctx->place.page) * o->scale_stride[0] +
           (q ? ctx->index : ctx->place.slot) * o->scale_stride[1] + head * o->scale_stride[2];
}

/* As much ahead of a head of the cache: within its token, else the same head of a later token,
 * which may lie anywhere; 0 where there is none. */
static int64_t cached_ahead_of(const append_context *ctx, const append_part *part, int64_t heads) {
    const rope_append_operand *o = part->operand;
    const int size = cpu_store_size(part->steps->store_dtype);
    const int64_t index = ctx->index + heads / o->heads;
    if (o->heads > heads)
        return o->cache_stride[2] * heads * size;
    if (index >= ctx->call->rope.tokens)
        return 0;
    const rope_site site = rope_site_of(&ctx->call->rope.position, ctx->batch, index);
    const rope_place later = rope_place_of(ctx->problem, ctx->call, &site);
    return later.status == ROPE_PLACE_GIVEN
               ? ((later.page - ctx->place.page) * o->cache_stride[0] +
                  (later.slot - ctx->place.slot) * o->cache_stride[1]) *
                     size
               : 0;
}

/* From a head to that which is prefetched: ctx->ahead bytes of those read, in whole heads. */
static int64_t ahead_of(const append_context *ctx, const append_part *part, int64_t head) {
    const rope_append_operand *o = part->operand;
    const int64_t heads = ctx->ahead < head ? ctx->ahead > 0 : ctx->ahead / head;
    if (!o->in)
        return heads ? cached_ahead_of(ctx, part, heads) : 0;
    return (o->heads > heads ? o->in_stride[2] * heads : o->in_stride[1] * (heads / o->heads)) *
           ctx->size;
}

/* Elements of a cached head that do not lie side by side. */
static void gather_cached(const append_context *ctx, const append_part *part, int64_t head,
                          float scale, char *to) {
    const rope_append_steps *s = part->steps;
    const int size = cpu_store_size(s->store_dtype);
    char row[APPEND_GATHER * sizeof(float)];
    for (int64_t first = 0, n; first < s->head_dim; first += n) {
        n = s->head_dim - first < APPEND_GATHER ? s->head_dim - first : APPEND_GATHER;
        for (int64_t i = 0; i < n; i++)
            memcpy(row + i * size, append_cache_of(ctx, part, head, first + i), (size_t)size);
        ctx->kernel->load(ctx->problem->rope.dtype, s->store_dtype, scale, row,
                          to + first * ctx->size, n);
    }
}

static void load_cached(append_context *ctx, const append_part *part) {
    const rope_append_steps *s = part->steps;
    const int64_t bytes = (int64_t)s->head_dim * cpu_store_size(s->store_dtype),
                  ahead = caches_whole(part) ? ahead_of(ctx, part, bytes) : 0;
    for (int64_t n = 0; n < part->count; n++) {
        const int64_t head = part->first + n;
        const float scale = s->scale ? *append_scale_of(ctx, part, head) : 1;
        const char *from = cache_of(ctx, part, head);
        char *to = ctx->stage + n * append_head_bytes(ctx, part);
        for (int64_t i = 0; ahead && i < bytes; i += 64)
            __builtin_prefetch((const void *)((uintptr_t)from + (uintptr_t)(ahead + i)), 0, 3);
        if (caches_whole(part))
            ctx->kernel->load(ctx->problem->rope.dtype, s->store_dtype, scale, from, to,
                              s->head_dim);
        else
            gather_cached(ctx, part, head, scale, to);
    }
}

/* Whether what the first step takes does not lie side by side in dtype. */
static int is_staged(const append_context *ctx, const append_part *part) {
    const rope_append_operand *o = part->operand;
    return o->in ? o->in_stride[3] != 1
                 : !caches_whole(part) || part->steps->store_dtype != ctx->problem->rope.dtype;
}

/* The heads that the first step takes. */
append_heads append_read_heads(append_context *ctx, const append_part *part) {
    const rope_append_operand *o = part->operand;
    const append_heads staged = {ctx->stage, append_head_bytes(ctx, part)};
    if (!o->in && !is_staged(ctx, part))
        return (append_heads){cache_of(ctx, part, part->first), o->cache_stride[2] * ctx->size};
    if (!o->in) {
        load_cached(ctx, part);
        return staged;
    }
    if (o->in_stride[3] == 1)
        return (append_heads){append_in_of(ctx, part, part->first), o->in_stride[2] * ctx->size};
    for (int64_t n = 0; n < part->count; n++) {
        const cpu_head head = {append_in_of(ctx, part, part->first + n),
                               ctx->stage + n * staged.stride, o->in_stride[3], 1};
        cpu_copy_elements(ctx->size, &head, 0, part->steps->head_dim);
    }
    return staged;
}

static void normalize_heads(const append_context *ctx, const append_part *part,
                            const rope_norm_values *of_token, append_heads from, append_target to) {
    const rope_append_steps *s = part->steps;
    const int64_t start = (int64_t)s->norm_offset * ctx->size,
                  end = start + (int64_t)s->norm_dim * ctx->size,
                  bytes = append_head_bytes(ctx, part);
    cpu_norm_heads h = {.x = from.data + start,
                        .y = to.data + start,
                        .x_stride = from.stride,
                        .y_stride = to.stride,
                        .count = part->count,
                        .values = of_token,
                        .ahead = from.data == ctx->stage ? 0 : ctx->ahead};
    if (part->operand->weight) {
        h.weight_stride = part->operand->weight_stride * cpu_dtype_size(s->weight_dtype);
        h.weight = (const char *)part->operand->weight + part->first * h.weight_stride;
    }
    for (int64_t n = 0; n < part->count && from.data != to.data && s->norm_dim < s->head_dim; n++) {
        memcpy(to.data + n * to.stride, from.data + n * from.stride, (size_t)start);
        memcpy(to.data + n * to.stride + end, from.data + n * from.stride + end,
               (size_t)(bytes - end));
    }
    ctx->kernel->normalize(s, ctx->problem->rope.dtype, &h);
}

static void fill_row(append_context *ctx, int tensor) {
    const rope_problem *p = &ctx->problem->rope;
    const cpu_rope_rows *rows = ctx->kernel->rope->rows;
    const cpu_pairs all = {0, p->pairs};
    if (ctx->filled == tensor || (ctx->filled >= 0 && !p->xpos_rate))
        return;
    ctx->filled = tensor;
    ctx->row = cpu_row_at(p, ctx->buffer.lists, 0);
    if (p->angle_mode == ROPE_ANGLE_TABLE)
        rows->read(p, &ctx->call->rope, &ctx->token, all, &ctx->row);
    else
        rows->compute(p, &ctx->token, 1, tensor, all, &ctx->row);
}

/* Heads of a token that does not rotate: a window changes its pairing all the same. */
static void pass_heads(const append_context *ctx, const append_part *part, append_heads from,
                       append_target to) {
    const rope_problem *p = &ctx->problem->rope;
    const int64_t offset = p->rotary_offset[part->tensor];
    for (int64_t n = 0; n < part->count; n++) {
        const cpu_head head = {from.data + n * from.stride, to.data + n * to.stride, 1, 1},
                       window = cpu_window_of(&head, ctx->size, offset);
        cpu_copy_elements(ctx->size, &head, 0, part->steps->head_dim);
        if (p->pairing_in != p->pairing_out)
            cpu_move_window(p, ctx->size, &window);
    }
}

static int can_stream(const append_context *ctx, const cpu_heads *h) {
    const int lanes = ctx->kernel->rope->rows->lanes;
    const uintptr_t places =
        (uintptr_t)h->out | (uintptr_t)h->out_stride | (uintptr_t)(h->before | h->after);
    return ctx->exceeds && lanes > 1 && h->in != h->out && h->problem->pairs % lanes == 0 &&
           places % (4 * (uintptr_t)lanes) == 0;
}

void append_rotate_heads(append_context *ctx, const append_part *part, append_heads from,
                         append_target to) {
    const rope_problem *p = &ctx->problem->rope;
    const int64_t offset = (int64_t)p->rotary_offset[part->tensor] * ctx->size,
                  window = 2 * (int64_t)p->pairs * ctx->size,
                  after = append_head_bytes(ctx, part) - offset - window;
    if (ctx->token.status == ROPE_TOKEN_PASSES) {
        pass_heads(ctx, part, from, to);
        return;
    }
    const int apart = from.data != to.data;
    if (!cpu_rows_fit(p, 1)) {
        const cpu_long_heads heads = {.in = from.data,
                                      .out = to.data,
                                      .in_stride = 1,
                                      .out_stride = 1,
                                      .in_step = from.stride,
                                      .out_step = to.stride,
                                      .count = part->count,
                                      .head_dim = part->steps->head_dim};
        cpu_rotate_long(ctx->kernel->rope, p, &ctx->call->rope, &ctx->token, part->tensor, &heads);
        return;
    }
    cpu_heads h = {.problem = p,
                   .in = from.data + offset,
                   .out = to.data + offset,
                   .count = part->count,
                   .in_stride = from.stride,
                   .out_stride = to.stride,
                   .before = apart ? offset : 0,
                   .after = apart ? after : 0};
    h.stream = to.data != ctx->stage && ctx->in_pairs && can_stream(ctx, &h);
    h.in_ahead = from.data == ctx->stage ? 0 : ahead_of(ctx, part, h.before + window + h.after);
    h.into_l2 = ctx->into_l2;
    fill_row(ctx, part->tensor);
    cpu_choose_instance(ctx->kernel->rope, ctx->in_pairs, &h)(&h, 1, &ctx->row, 1);
}

void append_multiply_heads(const append_context *ctx, const append_part *part, append_heads from,
                           append_target to) {
    for (int64_t n = 0; n < part->count; n++)
        ctx->kernel->multiply(ctx->problem->rope.dtype, part->steps->factor,
                              from.data + n * from.stride, to.data + n * to.stride,
                              part->steps->head_dim);
}

/* Whole lines around the cache where that serves. */
static void copy_bytes(const append_context *ctx, char *to, const char *from, int64_t bytes) {
    const cpu_rope_rows *rows = ctx->kernel->rope->rows;
    if (ctx->exceeds && rows->stream && ((uintptr_t)to | (uintptr_t)bytes) % 64 == 0)
        rows->stream(to, from, bytes);
    else
        memcpy(to, from, (size_t)bytes);
}

/* The scale by which elements side by side are stored. */
static float scale_for(const append_context *ctx, const append_part *part, int64_t head,
                       const char *x) {
    const rope_append_steps *s = part->steps;
    if (s->scale == ROPE_SCALE_TOKEN_HEAD_MAX)
        *append_scale_of(ctx, part, head) = rope_scale_of_largest(
            s->store_dtype, ctx->kernel->largest(ctx->problem->rope.dtype, x, s->head_dim));
    return s->scale ? *append_scale_of(ctx, part, head) : 1;
}

/* To elements of store_dtype side by side. */
static void store_row(const append_context *ctx, const append_part *part, int64_t head,
                      const char *x, char *y) {
    const rope_append_steps *s = part->steps;
    ctx->kernel->store(ctx->problem->rope.dtype, s->store_dtype, scale_for(ctx, part, head, x), x,
                       y, s->head_dim);
}

/* To elements of a type that do not lie side by side: in the cache, or from `to` on. */
static void scatter_row(const append_context *ctx, const append_part *part, int64_t head,
                        int store_dtype, const char *x, char *to) {
    const rope_append_steps *s = part->steps;
    const int dtype = ctx->problem->rope.dtype, size = cpu_store_size(store_dtype),
              copies = store_dtype == dtype;
    const float scale = copies ? 1 : scale_for(ctx, part, head, x);
    char row[APPEND_GATHER * sizeof(float)];
    for (int64_t first = 0, n; first < s->head_dim; first += n, x += n * ctx->size) {
        n = s->head_dim - first < APPEND_GATHER ? s->head_dim - first : APPEND_GATHER;
        if (!copies)
            ctx->kernel->store(dtype, store_dtype, scale, x, row, n);
        for (int64_t i = 0; i < n; i++)
            memcpy(to ? to + (first + i) * part->operand->out_stride[3] * size
                      : append_cache_of(ctx, part, head, first + i),
                   (copies ? x : row) + i * size, (size_t)size);
    }
}

static void store_cached(const append_context *ctx, const append_part *part, append_heads from) {
    const rope_append_steps *s = part->steps;
    const int size = cpu_store_size(s->store_dtype), whole = caches_whole(part),
              copies = s->store_dtype == ctx->problem->rope.dtype;
    const int64_t bytes = (int64_t)s->head_dim * size;
    if (copies && whole && from.stride == bytes && part->operand->cache_stride[2] == s->head_dim) {
        copy_bytes(ctx, cache_of(ctx, part, part->first), from.data, part->count * bytes);
        return;
    }
    for (int64_t n = 0; n < part->count; n++) {
        const int64_t head = part->first + n;
        const char *x = from.data + n * from.stride;
        if (!whole)
            scatter_row(ctx, part, head, s->store_dtype, x, NULL);
        else if (copies)
            copy_bytes(ctx, cache_of(ctx, part, head), x, bytes);
        else
            store_row(ctx, part, head, x, cache_of(ctx, part, head));
    }
}

void append_store_out(const append_context *ctx, const append_part *part, append_heads from) {
    const rope_append_steps *s = part->steps;
    const int dtype = ctx->problem->rope.dtype,
              store_dtype = part->tensor == ROPE_APPEND_Q ? s->store_dtype : dtype,
              size = cpu_store_size(store_dtype);
    const int64_t stride = part->operand->out_stride[3];
    if (store_dtype == dtype && stride == 1 &&
        from.data == append_out_of(ctx, part, part->first, size) &&
        from.stride == part->operand->out_stride[2] * size)
        return;
    for (int64_t n = 0; n < part->count; n++) {
        const int64_t head = part->first + n;
        const char *x = from.data + n * from.stride;
        char *to = append_out_of(ctx, part, head, size);
        if (stride != 1)
            scatter_row(ctx, part, head, store_dtype, x, to);
        else if (store_dtype == dtype)
            copy_bytes(ctx, to, x, (int64_t)s->head_dim * size);
        else
            store_row(ctx, part, head, x, to);
    }
}

/* Where the last step may write: out, or a cache that alone is written. */
static append_target target_of(append_context *ctx, const append_part *part) {
    const rope_append_steps *s = part->steps;
    const rope_append_operand *o = part->operand;
    const int dtype = ctx->problem->rope.dtype, q = part->tensor == ROPE_APPEND_Q;
    if (o->out && o->out_stride[3] == 1 && (!q || s->store_dtype == dtype) &&
        !(ctx->exceeds && !append_is_long(ctx, part) && append_is_cached(ctx, part)))
        return (append_target){append_out_of(ctx, part, part->first, ctx->size),
                               o->out_stride[2] * ctx->size};
    if (!o->out && append_is_cached(ctx, part) && caches_whole(part) && s->store_dtype == dtype)
        return (append_target){cache_of(ctx, part, part->first), o->cache_stride[2] * ctx->size};
    return (append_target){ctx->stage, append_head_bytes(ctx, part)};
}

/* What lies ahead of heads that are only stored: norms and rotations prefetch by themselves. */
static void prefetch_heads(const append_context *ctx, const append_part *part, append_heads at) {
    const int64_t bytes = append_head_bytes(ctx, part), ahead = ahead_of(ctx, part, bytes);
    for (int64_t n = 0; ahead && n < part->count; n++)
        for (int64_t i = 0; i < bytes; i += 64)
            __builtin_prefetch(
                (const void *)((uintptr_t)at.data + (uintptr_t)(n * at.stride + i + ahead)), 0, 2);
}

static void run_heads(append_context *ctx, const append_part *part,
                      const rope_norm_values *of_token) {
    enum { NORM, ROTATION, FACTOR, STEPS };
    const rope_append_steps *s = part->steps;
    const int takes[STEPS] = {s->norm != 0, s->rotates, s->factor != 1};
    const append_target last = target_of(ctx, part),
                        own = {ctx->stage, append_head_bytes(ctx, part)},
                        stage = append_is_long(ctx, part) ? last : own;
    if (append_is_long(ctx, part) && (last.data == ctx->stage || is_staged(ctx, part))) {
        append_run_long(ctx, part, of_token);
        return;
    }
    append_heads at = append_read_heads(ctx, part);
    if (!takes[NORM] && !takes[ROTATION] && at.data != ctx->stage)
        prefetch_heads(ctx, part, at);
    for (int step = 0, left = takes[NORM] + takes[ROTATION] + takes[FACTOR]; step < STEPS; step++) {
        if (!takes[step])
            continue;
        const append_target to = --left ? stage : last;
        if (step == NORM)
            normalize_heads(ctx, part, of_token, at, to);
        else if (step == ROTATION)
            append_rotate_heads(ctx, part, at, to);
        else
            append_multiply_heads(ctx, part, at, to);
        at = (append_heads){to.data, to.stride};
    }
    if (part->operand->out)
        append_store_out(ctx, part, at);
    if (append_is_cached(ctx, part) && at.data != cache_of(ctx, part, part->first))
        store_cached(ctx, part, at);
}

void append_run_tensor(append_context *ctx, int tensor) {
    const rope_append_steps *s = &ctx->problem->steps[tensor];
    append_part part = {s, &ctx->call->tensor[tensor], tensor, 0, 0};
    const int64_t heads = part.operand->heads,
                  most =
                      append_is_long(ctx, &part) ? 1 : APPEND_STAGE / append_head_bytes(ctx, &part);
    if (heads == 0 || (!part.operand->out && !append_is_cached(ctx, &part)))
        return;
    const int of_token = s->norm && s->norm_scope == ROPE_NORM_TOKEN;
    const rope_norm_values values =
        of_token ? append_token_values(ctx, &part) : (rope_norm_values){0, 0};
    for (; part.first < heads; part.first += part.count) {
        part.count = heads - part.first < most ? heads - part.first : most;
        run_heads(ctx, &part, of_token ? &values : NULL);
    }
}
