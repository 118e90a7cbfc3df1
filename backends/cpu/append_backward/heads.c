/* Gradients of some heads of one token, from step to step as in append/heads.c, the other way
 * round. */
#include "backends/cpu/append_backward/context.h"
#include "backends/cpu/rope/head.h"

/* Elements x of some heads that have a norm. */
static append_heads read_inputs(gradient_context *b, const append_part *part) {
    const append_context *w = &b->w;
    const append_part input = {part->steps, &b->call->forward.tensor[part->tensor], part->tensor,
                               part->first, part->count};
    const rope_append_operand *o = input.operand;
    const int64_t bytes = append_head_bytes(w, part);
    if (o->in_stride[3] == 1)
        return (append_heads){append_in_of(w, &input, part->first), o->in_stride[2] * w->size};
    for (int64_t n = 0; n < part->count; n++) {
        const cpu_head head = {append_in_of(w, &input, part->first + n), b->x + n * bytes,
                               o->in_stride[3], 1};
        cpu_copy_elements(w->size, &head, 0, part->steps->head_dim);
    }
    return (append_heads){b->x, bytes};
}

static const char *weight_of(const gradient_context *b, const append_part *part, int64_t *stride) {
    const rope_append_operand *o = &b->call->forward.tensor[part->tensor];
    *stride = o->weight_stride * cpu_dtype_size(part->steps->weight_dtype);
    return o->weight ? (const char *)o->weight + part->first * *stride : NULL;
}

/* Where products of the first of some heads are summed. */
static float *chain_of(const gradient_context *b, const append_part *part) {
    const gradient_sums *s = &b->sums[part->tensor];
    if (!s->width)
        return NULL;
    return s->chain + (s->shared ? 0 : part->first * part->steps->norm_dim);
}

/* to: where gradients go, or NULL. */
static void differentiate(gradient_context *b, const append_part *part,
                          const rope_norm_slopes *of_token, append_heads from, append_target to) {
    const rope_append_steps *s = part->steps;
    const int64_t start = (int64_t)s->norm_offset * b->w.size,
                  end = start + (int64_t)s->norm_dim * b->w.size,
                  bytes = append_head_bytes(&b->w, part);
    const append_heads x = read_inputs(b, part);
    cpu_gradient_heads h = {.x = x.data + start,
                            .g = from.data + start,
                            .dx = to.data ? to.data + start : NULL,
                            .sums = chain_of(b, part),
                            .x_stride = x.stride,
                            .g_stride = from.stride,
                            .dx_stride = to.stride,
                            .sums_stride = b->sums[part->tensor].shared ? 0 : s->norm_dim,
                            .count = part->count,
                            .ahead = x.data == b->x ? 0 : b->w.ahead,
                            .slopes = of_token};
    h.weight = weight_of(b, part, &h.weight_stride);
    for (int64_t n = 0; n < part->count && to.data && from.data != to.data && bytes > end - start;
         n++) {
        memcpy(to.data + n * to.stride, from.data + n * from.stride, (size_t)start);
        memcpy(to.data + n * to.stride + end, from.data + n * from.stride + end,
               (size_t)(bytes - end));
    }
    b->kernel->gradient(s, b->w.problem->rope.dtype, &h);
}

/* Where the last step may write: out, or the stage where stores go around the cache. */
static append_target target_of(gradient_context *b, const append_part *part) {
    const rope_append_operand *o = part->operand;
    const int around = part->steps->norm && b->w.exceeds && o->in != o->out;
    if (o->out && o->out_stride[3] == 1 && !around)
        return (append_target){append_out_of(&b->w, part, part->first, b->w.size),
                               o->out_stride[2] * b->w.size};
    return (append_target){b->w.stage, append_head_bytes(&b->w, part)};
}

/* Ahead of the norm: the factor, then the transpose of the rotation. */
static append_heads turn_back(gradient_context *b, const append_part *part, append_target last) {
    const rope_append_steps *s = part->steps;
    const append_target stage = {b->w.stage, append_head_bytes(&b->w, part)};
    append_heads at = append_read_heads(&b->w, part);
    if (s->factor != 1) {
        const append_target to = s->rotates || s->norm ? stage : last;
        append_multiply_heads(&b->w, part, at, to);
        at = (append_heads){to.data, to.stride};
    }
    if (s->rotates) {
        const append_target to = s->norm ? stage : last;
        append_rotate_heads(&b->w, part, at, to);
        at = (append_heads){to.data, to.stride};
    }
    return at;
}

static void run_heads(gradient_context *b, const append_part *part,
                      const rope_norm_slopes *of_token) {
    const append_target last = target_of(b, part), none = {NULL, 0};
    append_heads at = turn_back(b, part, last);
    if (part->steps->norm) {
        differentiate(b, part, of_token, at, part->operand->out ? last : none);
        at = (append_heads){last.data, last.stride};
    }
    if (part->operand->out)
        append_store_out(&b->w, part, at);
}

/* --- a norm over all heads of a token --- */

/* Elements of a list over heads, CPU_NORM_BLOCK of them side by side. */
typedef struct list_block {
    char x[CPU_NORM_BLOCK * sizeof(float)], g[CPU_NORM_BLOCK * sizeof(float)],
        weight[CPU_NORM_BLOCK * sizeof(float)];
    int64_t held;
    rope_norm_tree products, gradients;
} list_block;

static void add_block(const gradient_context *b, const rope_append_steps *s,
                      const cpu_norm_row *row, int64_t n, float mean, list_block *l) {
    const cpu_append_kernel *kernel = b->w.kernel;
    const int dtype = b->w.problem->rope.dtype;
    kernel->add(CPU_SUM_PRODUCTS, s, dtype, row, n, mean, &l->products);
    if (s->norm == ROPE_NORM_LAYER)
        kernel->add(CPU_SUM_GRADIENTS, s, dtype, row, n, mean, &l->gradients);
}

/* A head whose elements lie side by side: blocks may span heads, so they are filled one after the
 * other. */
static void add_head(const gradient_context *b, const rope_append_steps *s,
                     const cpu_norm_row *head, float mean, list_block *l) {
    const cpu_norm_row block = {l->x, l->g, s->weight ? l->weight : NULL};
    const size_t size = (size_t)b->w.size, wide = (size_t)cpu_dtype_size(s->weight_dtype);
    if (l->held == 0 && s->norm_dim % CPU_NORM_BLOCK == 0) {
        add_block(b, s, head, s->norm_dim, mean, l);
        return;
    }
    for (int64_t i = 0; i < s->norm_dim; i++) {
        memcpy(l->x + (size_t)l->held * size, head->x + (size_t)i * size, size);
        memcpy(l->g + (size_t)l->held * size, head->g + (size_t)i * size, size);
        if (head->weight)
            memcpy(l->weight + (size_t)l->held * wide, head->weight + (size_t)i * wide, wide);
        if (++l->held == CPU_NORM_BLOCK) {
            add_block(b, s, &block, l->held, mean, l);
            l->held = 0;
        }
    }
}

/* Gradients ahead of the norm are computed for these sums, and once more behind them. */
static rope_norm_slopes token_slopes(gradient_context *b, append_part part, int64_t most) {
    const rope_append_steps *s = part.steps;
    const append_part all = {s, &b->call->forward.tensor[part.tensor], part.tensor, 0, 0};
    const rope_norm_values values = append_token_values(&b->w, &all);
    const int64_t heads = part.operand->heads, start = (int64_t)s->norm_offset * b->w.size;
    const append_target stage = {b->w.stage, append_head_bytes(&b->w, &part)};
    list_block l;
    l.held = 0;
    l.products.nodes = l.gradients.nodes = 0;
    for (part.first = 0; part.first < heads; part.first += part.count) {
        part.count = heads - part.first < most ? heads - part.first : most;
        const append_heads g = turn_back(b, &part, stage), x = read_inputs(b, &part);
        int64_t stride;
        const char *weight = weight_of(b, &part, &stride);
        for (int64_t n = 0; n < part.count; n++) {
            const cpu_norm_row head = {x.data + n * x.stride + start, g.data + n * g.stride + start,
                                       weight ? weight + n * stride : NULL};
            add_head(b, s, &head, values.mean, &l);
        }
    }
    if (l.held) {
        const cpu_norm_row block = {l.x, l.g, s->weight ? l.weight : NULL};
        add_block(b, s, &block, l.held, values.mean, &l);
    }
    return rope_norm_slopes_of(values, rope_norm_sum(&l.products), rope_norm_sum(&l.gradients),
                               heads * s->norm_dim);
}

/* --- a tensor --- */

/* Chains of heads end with some heads, others with a block of tokens. */
static void end_chain(const gradient_context *b, const append_part *part) {
    const gradient_sums *s = &b->sums[part->tensor];
    const int64_t end = part->first + part->count, heads = part->operand->heads;
    if (s->width && s->shared && heads > ROPE_GRADIENT_CHAIN &&
        (end % ROPE_GRADIENT_CHAIN == 0 || end == heads))
        b->kernel->collect(s->chain, s->width, end > ROPE_GRADIENT_CHAIN, s->sum);
}

static void end_token(gradient_context *b, const append_part *part) {
    gradient_sums *s = &b->sums[part->tensor];
    const rope_call *call = &b->call->forward.rope;
    const int64_t next = b->w.batch * call->tokens + b->w.index + 1, dim = part->steps->norm_dim;
    if (!s->width || (next % s->block && next < call->batch * call->tokens))
        return;
    if (!s->shared || part->operand->heads <= ROPE_GRADIENT_CHAIN)
        for (int64_t at = 0; at < s->width; at += dim)
            b->kernel->collect(s->chain + at, dim, 0, s->sum + at);
    gradient_tree_add(&s->tree, s->sum);
}

/* Heads that go together: chains consist of whole ones. */
static int64_t most_heads(const gradient_context *b, const append_part *part) {
    const int64_t fit = GRADIENT_STAGE / append_head_bytes(&b->w, part);
    int64_t most = ROPE_GRADIENT_CHAIN;
    if (!part->steps->norm)
        return fit;
    while (most > fit)
        most /= 2;
    return most;
}

void gradient_run_tensor(gradient_context *b, int tensor) {
    const rope_append_steps *s = &b->w.problem->steps[tensor];
    append_part part = {s, &b->gradient[tensor], tensor, 0, 0};
    const int64_t heads = part.operand->heads, most = most_heads(b, &part);
    const int of_token = s->norm && s->norm_scope == ROPE_NORM_TOKEN;
    gradient_sums *sums = &b->sums[tensor];
    rope_norm_slopes slopes;
    if (heads == 0)
        return;
    if (!b->takes && sums->width) /* what chains of some heads store, others their block's end */
        memset(sums->sum, 0, (size_t)sums->width * sizeof *sums->sum);
    if (b->takes && of_token)
        slopes = token_slopes(b, part, most);
    for (part.first = 0; b->takes && part.first < heads; part.first += part.count) {
        part.count = heads - part.first < most ? heads - part.first : most;
        run_heads(b, &part, of_token ? &slopes : NULL);
        end_chain(b, &part);
    }
    end_token(b, &part);
}
