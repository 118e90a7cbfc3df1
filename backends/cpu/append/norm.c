/* The values of a norm over all heads of a token. */
#include "backends/cpu/append/context.h"

static void add(const append_context *ctx, int sum, const char *x, int64_t n, float mean,
                rope_norm_tree *tree) {
    const cpu_norm_row row = {x, NULL, NULL};
    ctx->kernel->add(sum, NULL, ctx->problem->rope.dtype, &row, n, mean, tree);
}

/* A sum over all heads of a token: blocks may span heads, so they are filled one after the other.
 */
static float token_sum(const append_context *ctx, const append_part *all, int sum, float mean) {
    const rope_append_operand *o = all->operand;
    const rope_append_steps *s = all->steps;
    char block[CPU_NORM_BLOCK * sizeof(float)];
    int64_t held = 0;
    rope_norm_tree tree;
    tree.nodes = 0;
    for (int64_t h = 0; h < o->heads; h++) {
        const char *x = append_in_of(ctx, all, h) + s->norm_offset * o->in_stride[3] * ctx->size;
        if (held == 0 && o->in_stride[3] == 1 && s->norm_dim % CPU_NORM_BLOCK == 0) {
            add(ctx, sum, x, s->norm_dim, mean, &tree);
            continue;
        }
        for (int64_t i = 0; i < s->norm_dim; i++) {
            memcpy(block + held++ * ctx->size, x + i * o->in_stride[3] * ctx->size,
                   (size_t)ctx->size);
            if (held == CPU_NORM_BLOCK)
                add(ctx, sum, block, held, mean, &tree), held = 0;
        }
    }
    if (held)
        add(ctx, sum, block, held, mean, &tree);
    return rope_norm_sum(&tree);
}

rope_norm_values append_token_values(const append_context *ctx, const append_part *all) {
    const rope_append_steps *s = all->steps;
    const int64_t n = all->operand->heads * s->norm_dim;
    rope_norm_values v = {0, 0};
    if (s->norm == ROPE_NORM_LAYER)
        v.mean = rope_norm_mean(token_sum(ctx, all, CPU_SUM_ELEMENTS, 0), n);
    v.reciprocal = rope_norm_reciprocal(
        token_sum(ctx, all, s->norm == ROPE_NORM_LAYER ? CPU_SUM_DEVIATIONS : CPU_SUM_SQUARES,
                  v.mean),
        n, s->eps);
    return v;
}
