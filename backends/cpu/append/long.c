/*
 * A head of f32 that no stage has room for and whose steps need one, as it is not written side by
 * side or not read so: pair by pair, in the scalar arithmetic that every kernel has the bits of.
 */
#include "backends/cpu/append/context.h"
#include "backends/cpu/rope/head.h"
#include "common/math/fp8.h"
#include "common/math/rotate.h"

typedef struct long_head {
    const append_context *ctx;
    const append_part *part;
    rope_norm_values values;
    int out_dtype;           /* of out */
    float read_scale, scale; /* by which elements are read, and stored */
    int writes;              /* 0: looks for the largest */
    uint32_t largest;        /* rope_finite_magnitude */
    int moves_last;          /* out is in, and keeps the pairing until all of it moves */
} long_head;

static float read_element(const long_head *l, int64_t i) {
    const append_part *part = l->part;
    const rope_append_operand *o = part->operand;
    float x;
    if (o->in)
        return cpu_load(ROPE_F32, append_in_of(l->ctx, part, part->first), i * o->in_stride[3]);
    l->ctx->kernel->load(ROPE_F32, part->steps->store_dtype, l->read_scale,
                         append_cache_of(l->ctx, part, part->first, i), (char *)&x, 1);
    return x;
}

static float normalized(const long_head *l, int64_t i) {
    const rope_append_steps *s = l->part->steps;
    const rope_append_operand *o = l->part->operand;
    const int64_t at = i - s->norm_offset;
    const float x = read_element(l, i);
    if (!s->norm || at < 0 || at >= s->norm_dim)
        return x;
    const float w = s->weight
                        ? rope_norm_weight_of(s, cpu_load(s->weight_dtype, o->weight,
                                                          l->part->first * o->weight_stride + at))
                        : 1;
    return rope_normalized(s, ROPE_F32, l->values, x, w);
}

/* Element i of out, and j of what is cached. */
static void write_element(long_head *l, float x, int64_t i, int64_t j) {
    const append_part *part = l->part;
    const rope_append_operand *o = part->operand;
    const float y = part->steps->factor == 1 ? x : x * part->steps->factor;
    const uint32_t magnitude = rope_finite_magnitude(y);
    l->largest = magnitude > l->largest ? magnitude : l->largest;
    if (!l->writes)
        return;
    if (o->out)
        l->ctx->kernel->store(
            ROPE_F32, l->out_dtype, l->scale, (const char *)&y,
            append_out_of(l->ctx, part, part->first, cpu_store_size(l->out_dtype)) +
                i * o->out_stride[3] * cpu_store_size(l->out_dtype),
            1);
    if (append_is_cached(l->ctx, part))
        l->ctx->kernel->store(ROPE_F32, part->steps->store_dtype, l->scale, (const char *)&y,
                              append_cache_of(l->ctx, part, part->first, j), 1);
}

static void run_pair(long_head *l, int pair) {
    const rope_problem *p = &l->ctx->problem->rope;
    const int64_t offset = p->rotary_offset[l->part->tensor],
                  first = offset + rope_first_of(p->pairing_in, pair),
                  second = offset + rope_second_of(p->pairing_in, pair, p->pairs),
                  to_first = offset + rope_first_of(p->pairing_out, pair),
                  to_second = offset + rope_second_of(p->pairing_out, pair, p->pairs);
    rope_pair x = {normalized(l, first), normalized(l, second)};
    if (l->ctx->token.status != ROPE_TOKEN_PASSES) {
        const rope_coefficients m =
            rope_coefficients_of(p, &l->ctx->call->rope, &l->ctx->token, pair, l->part->tensor);
        x = p->arithmetic == ROPE_ARITHMETIC_MODEL_DTYPE ? rope_rotate_model(ROPE_F32, x, m)
                                                         : rope_rotate(x, m);
    }
    write_element(l, x.x1, l->moves_last ? first : to_first, to_first);
    write_element(l, x.x2, l->moves_last ? second : to_second, to_second);
}

static void run_elements(long_head *l) {
    const rope_problem *p = &l->ctx->problem->rope;
    const int64_t begin = p->rotary_offset[l->part->tensor],
                  pairs = l->part->steps->rotates ? p->pairs : 0, end = begin + 2 * pairs;
    for (int64_t i = 0; i < l->part->steps->head_dim; i++)
        if (i < begin || i >= end)
            write_element(l, normalized(l, i), i, i);
    for (int pair = 0; pair < pairs; pair++)
        run_pair(l, pair);
}

void append_run_long(const append_context *ctx, const append_part *part,
                     const rope_norm_values *of_token) {
    const rope_problem *p = &ctx->problem->rope;
    const rope_append_steps *s = part->steps;
    rope_append_operand alone = *part->operand;
    const append_part own = {s, &alone, part->tensor, 0, 1};
    long_head l = {.ctx = ctx,
                   .part = part,
                   .out_dtype = part->tensor == ROPE_APPEND_Q ? s->store_dtype : ROPE_F32,
                   .moves_last =
                       s->rotates && alone.in == alone.out && p->pairing_in != p->pairing_out};
    if (s->norm && of_token) {
        l.values = *of_token;
    } else if (s->norm) {
        alone.in = append_in_of(ctx, part, part->first) - append_in_of(ctx, part, 0) +
                   (const char *)alone.in;
        alone.heads = 1;
        l.values = append_token_values(ctx, &own);
    }
    float *const scale = s->scale && (part->tensor == ROPE_APPEND_Q || append_is_cached(ctx, part))
                             ? append_scale_of(ctx, part, part->first)
                             : NULL;
    l.read_scale = scale && !alone.in ? *scale : 1;
    if (scale && s->scale == ROPE_SCALE_TOKEN_HEAD_MAX) {
        run_elements(&l);
        *scale = rope_scale_of_largest(s->store_dtype, l.largest);
    }
    l.scale = scale ? *scale : 1;
    l.writes = 1;
    run_elements(&l);
    if (l.moves_last) {
        char *out = append_out_of(ctx, part, part->first, ctx->size);
        const cpu_head head = {out, out, alone.out_stride[3], alone.out_stride[3]},
                       window = cpu_window_of(&head, ctx->size, p->rotary_offset[part->tensor]);
        cpu_move_window(p, ctx->size, &window);
    }
}
