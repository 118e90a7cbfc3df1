/* The contract of rope_append_backward in scalar fp32 arithmetic, written from the text of
 * docs/numerics.md: roundings, the tree of a norm, the sum over tokens. */
#include "tests/append/compare.h"
#include "tests/append_backward/cases.h"
#include "tests/oracle/append_layout.h"
#include "tests/oracle/oracle.h"
#include "tests/support/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static float rounded(int32_t dtype, float x) {
    return (float)oracle_round(dtype, (double)x);
}

/* The sum of a[i] b[i], or of a[i] where there is no b. */
static float sum(const float *a, const float *b, int64_t n) {
    float *node = calloc((size_t)n + 1, sizeof *node);
    for (int64_t i = 0; i < n; i += 2) {
        const int alone = i + 1 == n;
        if (b)
            node[i / 2] = alone ? a[i] * b[i] : fmaf(a[i + 1], b[i + 1], a[i] * b[i]);
        else
            node[i / 2] = alone ? a[i] : a[i] + a[i + 1];
    }
    const float result = append_plain_sum(node, (n + 1) / 2);
    free(node);
    return result;
}

/* A tensor's gradients in the order [token, head, dim], and what they are made of. */
typedef struct dense {
    oracle_tensor t;
    int32_t dtype;
    int64_t sites;
    float *x, *g, *terms; /* terms: y of each normalised element, as it meets the weight */
} dense;

static float weight_at(const dense *d, int64_t head, int64_t i) {
    const rope_norm *norm = &d->t.part->norm;
    if (!norm->weight)
        return 1;
    const float w =
        (float)oracle_load(d->t.weight_dtype, d->t.weight->data, head * d->t.weight_stride + i);
    return norm->weight == ROPE_NORM_ONE_PLUS_WEIGHT ? 1.0F + w : w;
}

/* The norm over `heads` heads of a token: g becomes the gradient of x, what it was stays in
 * `before`. */
static void differentiate(const dense *d, int64_t site, int64_t first, int64_t heads) {
    const rope_norm *norm = &d->t.part->norm;
    const int64_t m = d->t.norm_dim, n = heads * m;
    const int layer = norm->type == ROPE_NORM_LAYER,
              twice = norm->weight && norm->rounding == ROPE_NORM_ROUND_TWICE;
    float *x = calloc((size_t)(2 * n) + 2, sizeof *x), *h = x + n + 1, mean = 0, shift = 0;
    int64_t *at = calloc((size_t)n + 1, sizeof *at);
    for (int64_t i = 0; i < n; i++) {
        at[i] = (site * d->t.heads + first + i / m) * d->t.dim + norm->offset + i % m;
        x[i] = d->x[at[i]];
        h[i] = norm->weight ? d->g[at[i]] * weight_at(d, first + i / m, i % m) : d->g[at[i]];
        if (twice)
            h[i] = rounded(d->dtype, h[i]);
    }
    if (layer)
        mean = (sum(x, NULL, n) + 0.0F) / (float)n;
    for (int64_t i = 0; i < n && layer; i++)
        x[i] = x[i] - mean;
    const float r = 1.0F / sqrtf((sum(x, x, n) + 0.0F) / (float)n + (float)norm->eps),
                slope = (sum(h, x, n) + 0.0F) / (float)n * r;
    if (layer)
        shift = (sum(h, NULL, n) + 0.0F) / (float)n;
    for (int64_t i = 0; i < n; i++) {
        const float y = x[i] * r;
        d->terms[at[i]] = d->g[at[i]];
        d->x[at[i]] = twice ? rounded(d->dtype, y) : y;
        d->g[at[i]] = rounded(d->dtype, fmaf(-y, slope, layer ? h[i] - shift : h[i]) * r);
    }
    free(x);
    free(at);
}

/* --- the sum over tokens --- */

/* The largest power of two of tokens whose heads are 8 at most, or 1; 8 for weights of heads. */
static int64_t block_of(int64_t rows) {
    return rows == 1 ? 8 : rows == 2 ? 4 : rows <= 4 ? 2 : 1;
}

/* One weight: terms g y of `rows` heads from `first` on. */
static float sum_over_tokens(const dense *d, int64_t first, int64_t rows, int64_t i) {
    const int64_t tokens = block_of(rows), blocks = (d->sites + tokens - 1) / tokens;
    float *node = calloc((size_t)blocks + 1, sizeof *node);
    for (int64_t b = 0; b < blocks; b++) {
        float chain = 0;
        int64_t length = 0, chains = 0;
        const int64_t end = (b + 1) * tokens < d->sites ? (b + 1) * tokens : d->sites;
        for (int64_t row = b * tokens * rows; row < end * rows; row++) {
            const int64_t at = (row / rows * d->t.heads + first + row % rows) * d->t.dim +
                               d->t.part->norm.offset + i;
            chain = fmaf(d->terms[at], d->x[at], chain);
            if (++length == 8 || row + 1 == end * rows) {
                node[b] = chains++ ? node[b] + chain : chain;
                chain = 0;
                length = 0;
            }
        }
    }
    const float result = append_plain_sum(node, blocks);
    free(node);
    return result;
}

static void sum_weights(const dense *d, float *to) {
    const int64_t heads = d->t.weight_stride ? d->t.heads : 1;
    for (int64_t h = 0; h < heads; h++)
        for (int64_t i = 0; i < d->t.norm_dim; i++)
            to[h * d->t.norm_dim + i] =
                sum_over_tokens(d, h, d->t.weight_stride ? 1 : d->t.heads, i);
}

/* --- the transpose --- */

static void rotate_back(const gradient_case *c, int32_t tensor, dense *d) {
    rope_desc desc = c->forward.desc.rope;
    rope_args args = c->forward.args.rope;
    const int32_t in = desc.pairing_in ? desc.pairing_in : ROPE_PAIRING_HALF_SPLIT;
    const int64_t count = d->sites * d->t.heads * d->t.dim;
    void *data = calloc((size_t)count + 1, (size_t)oracle_dtype_size(d->dtype));
    rope_plan *plan = NULL;
    desc.direction = desc.direction == ROPE_TRANSPOSE ? ROPE_FORWARD : ROPE_TRANSPOSE;
    desc.pairing_in = desc.pairing_out ? desc.pairing_out : in;
    desc.pairing_out = in;
    desc.backend = "cpu", desc.kernel = "scalar", desc.device = 0;
    for (int64_t i = 0; i < count; i++)
        oracle_store(d->dtype, data, i, d->g[i]);
    args.q = args.k = (rope_tensor){.heads = 0};
    *case_tensor(&args, tensor) = (rope_tensor){.in = data, .out = data, .heads = d->t.heads};
    args.stream = NULL;
    CHECK_STATUS(ROPE_OK, rope_plan_create(&desc, &plan));
    CHECK_STATUS(ROPE_OK, rope_apply(plan, &args));
    rope_plan_destroy(plan);
    for (int64_t i = 0; i < count; i++)
        d->g[i] = (float)oracle_load(d->dtype, data, i);
    free(data);
}

/* --- a tensor --- */

static void load(const gradient_case *c, int32_t tensor, const rope_append_gradient *g, dense *d) {
    const int64_t row = d->t.heads * d->t.dim, tokens = c->forward.args.rope.tokens;
    const float factor = (float)d->t.part->factor;
    for (int64_t i = 0; i < d->sites * row; i++) {
        const int64_t n = i / row, h = i % row / d->t.dim, e = i % d->t.dim;
        if (d->t.part->norm.type)
            d->x[i] = (float)oracle_load(d->dtype, d->t.t->in,
                                         n / tokens * d->t.in[0] + n % tokens * d->t.in[1] +
                                             h * d->t.in[2] + e * d->t.in[3]);
        d->g[i] = (float)oracle_load(d->dtype, g->in, gradient_in_at(c, tensor, n, h, e));
        if (factor != 0 && factor != 1)
            d->g[i] = rounded(d->dtype, d->g[i] * factor);
    }
}

static void compute(const gradient_case *c, int32_t tensor, const rope_append_gradient *g, dense *d,
                    unsigned char *result) {
    const ptrdiff_t moved = result - c->forward.base.arena;
    const rope_norm *norm = &d->t.part->norm;
    load(c, tensor, g, d);
    if (tensor < 2 && c->forward.desc.rotation != ROPE_ROTATION_OFF)
        rotate_back(c, tensor, d);
    for (int64_t n = 0; norm->type && n < d->sites; n++) {
        if (norm->scope == ROPE_NORM_TOKEN)
            differentiate(d, n, 0, d->t.heads);
        else
            for (int64_t h = 0; h < d->t.heads; h++)
                differentiate(d, n, h, 1);
    }
    const int64_t row = d->t.heads * d->t.dim;
    for (int64_t i = 0; g->out && i < d->sites * row; i++)
        oracle_store(d->dtype, (char *)g->out + moved,
                     gradient_out_at(c, tensor, i / row, i % row / d->t.dim, i % d->t.dim),
                     d->g[i]);
    if (gradient_weights(c, tensor))
        sum_weights(d, (float *)(void *)((char *)g->weight + moved));
}

void gradient_plain(const gradient_case *c, unsigned char *result) {
    rope_append_backward_args args = c->args;
    memcpy(result, c->forward.base.arena, c->forward.base.bytes);
    for (int32_t tensor = 0; tensor < ORACLE_TENSORS; tensor++) {
        const rope_append_gradient *g = gradient_of(&args, tensor);
        dense d = {.t = oracle_append_tensor(&c->forward.desc, &c->forward.args, tensor),
                   .dtype = c->forward.desc.rope.dtype,
                   .sites = c->forward.args.rope.batch * c->forward.args.rope.tokens};
        const size_t count = (size_t)(d.sites * d.t.heads * d.t.dim);
        if (!g->in || !count)
            continue;
        d.x = calloc(3 * count, sizeof *d.x);
        d.g = d.x + count;
        d.terms = d.g + count;
        compute(c, tensor, g, &d, result);
        free(d.x);
    }
}
