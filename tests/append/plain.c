/* The contract of append.h in scalar fp32 arithmetic, written from its text: the tree of a norm,
 * each rounding, each conversion. */
#include "tests/append/compare.h"
#include "tests/oracle/append_layout.h"
#include "tests/oracle/oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static float rounded(int32_t dtype, float x) {
    return (float)oracle_round(dtype, (double)x);
}

/* Neighbours make a node, of which neighbours make one, up to the sum; one without goes up. */
float append_plain_sum(float *node, int64_t count) {
    for (; count > 1; count = (count + 1) / 2) {
        for (int64_t j = 0; j < count / 2; j++)
            node[j] = node[2 * j] + node[2 * j + 1];
        if (count % 2)
            node[count / 2] = node[count - 1];
    }
    return node[0];
}

static float sum_of_elements(const float *x, int64_t n, float *node) {
    for (int64_t j = 0; j < n / 2; j++)
        node[j] = x[2 * j] + x[2 * j + 1];
    if (n % 2)
        node[n / 2] = x[n - 1];
    return append_plain_sum(node, (n + 1) / 2);
}

static float sum_of_squares(const float *x, int64_t n, float *node) {
    for (int64_t j = 0; j < n / 2; j++)
        node[j] = fmaf(x[2 * j + 1], x[2 * j + 1], x[2 * j] * x[2 * j]);
    if (n % 2)
        node[n / 2] = x[n - 1] * x[n - 1];
    return append_plain_sum(node, (n + 1) / 2);
}

/* x becomes x - mean for a layer norm, then what 1 / sqrt(mean of squares + eps) makes of it. */
static void normalise(const rope_norm *norm, int32_t dtype, float *x, const float *w, int64_t n) {
    float *node = calloc((size_t)(n / 2 + 1), sizeof *node);
    if (norm->type == ROPE_NORM_LAYER) {
        float mean = (sum_of_elements(x, n, node) + 0.0F) / (float)n;
        for (int64_t i = 0; i < n; i++)
            x[i] = x[i] - mean;
    }
    float mean_square = (sum_of_squares(x, n, node) + 0.0F) / (float)n;
    float reciprocal = 1.0F / sqrtf(mean_square + (float)norm->eps);
    for (int64_t i = 0; i < n; i++) {
        float y = x[i] * reciprocal;
        if (norm->weight && norm->rounding == ROPE_NORM_ROUND_TWICE)
            y = rounded(dtype, y);
        x[i] = rounded(dtype, norm->weight ? y * w[i] : y);
    }
    free(node);
}

static float weight_at(const oracle_tensor *t, int64_t head, int64_t i) {
    if (t->part->norm.weight == 0)
        return 1;
    float w = (float)oracle_load(t->weight_dtype, t->weight->data, head * t->weight_stride + i);
    return t->part->norm.weight == ROPE_NORM_ONE_PLUS_WEIGHT ? 1.0F + w : w;
}

/* The norm over some heads from `first` on. */
static void normalise_heads(const oracle_tensor *t, int32_t dtype, float *x, int64_t first,
                            int64_t heads) {
    int64_t m = t->norm_dim, n = heads * m, offset = t->part->norm.offset;
    float *list = calloc((size_t)n + 1, sizeof *list), *w = calloc((size_t)n + 1, sizeof *w);
    for (int64_t i = 0; i < n; i++) {
        list[i] = x[(first + i / m) * t->dim + offset + i % m];
        w[i] = weight_at(t, first + i / m, i % m);
    }
    normalise(&t->part->norm, dtype, list, w, n);
    for (int64_t i = 0; i < n; i++)
        x[(first + i / m) * t->dim + offset + i % m] = list[i];
    free(list);
    free(w);
}

static void compute(const oracle_tensor *t, int32_t dtype, float *x) {
    if (t->part->norm.type && t->part->norm.scope == ROPE_NORM_TOKEN)
        normalise_heads(t, dtype, x, 0, t->heads);
    else if (t->part->norm.type)
        for (int64_t h = 0; h < t->heads; h++)
            normalise_heads(t, dtype, x, h, 1);
    float factor = (float)t->part->factor;
    for (int64_t i = 0; t->part->factor != 0 && factor != 1 && i < t->heads * t->dim; i++)
        x[i] = rounded(dtype, x[i] * factor);
}

/* By what a head is divided; one that is computed is written. */
static float scale_of(const oracle_tensor *t, int64_t at, const float *x) {
    if (t->part->scale != ROPE_SCALE_TOKEN_HEAD_MAX)
        return ((float *)t->scale->data)[at];
    float largest = 0, scale = 1;
    for (int64_t i = 0; i < t->dim; i++)
        if (isfinite(x[i]) && fabsf(x[i]) > largest)
            largest = fabsf(x[i]);
    if (largest > 0)
        scale = fmaxf(largest / (float)oracle_round(t->store_dtype, 1e30), 0x1p-126F);
    ((float *)t->scale->data)[at] = scale;
    return scale;
}

static float converted(const oracle_tensor *t, float x, float scale) {
    return t->part->scale ? x / scale : x;
}

static void write_out(const oracle_tensor *t, int32_t tensor, int64_t batch, int64_t token,
                      const float *x) {
    for (int64_t h = 0; h < t->heads; h++, x += t->dim) {
        float scale = 1;
        if (tensor == 0 && t->part->scale)
            scale = scale_of(t, oracle_scale_at(t, batch, token, h), x);
        for (int64_t i = 0; i < t->dim; i++)
            oracle_store(t->out_dtype, t->t->out,
                         batch * t->out[0] + token * t->out[1] + h * t->out[2] + i * t->out[3],
                         tensor == 0 ? converted(t, x[i], scale) : x[i]);
    }
}

static void write_cache(const oracle_tensor *t, const oracle_place *place, const float *x) {
    for (int64_t h = 0; h < t->heads; h++, x += t->dim) {
        float scale = 1;
        if (t->part->scale)
            scale = scale_of(t, oracle_scale_at(t, place->page, place->slot, h), x);
        for (int64_t i = 0; i < t->dim; i++)
            oracle_store(t->store_dtype, t->cache->data, oracle_cache_at(t, place, h, i),
                         converted(t, x[i], scale));
    }
}

static void append_token(const rope_append_desc *desc, const rope_append_args *args, int32_t tensor,
                         int64_t batch, int64_t token) {
    oracle_tensor t = oracle_append_tensor(desc, args, tensor);
    oracle_place place = oracle_append_place(desc, args, batch, token);
    float *x = calloc((size_t)(t.heads * t.dim) + 1, sizeof *x);
    for (int64_t i = 0; i < t.heads * t.dim; i++)
        x[i] = (float)oracle_load(desc->rope.dtype, t.t->in,
                                  batch * t.in[0] + token * t.in[1] + i / t.dim * t.in[2] +
                                      i % t.dim * t.in[3]);
    compute(&t, desc->rope.dtype, x);
    if (t.t->out)
        write_out(&t, tensor, batch, token, x);
    if (t.cache && place.status == ORACLE_PLACE_GIVEN)
        write_cache(&t, &place, x);
    free(x);
}

void append_plain(const rope_append_desc *desc, const rope_append_args *args) {
    const int64_t heads[] = {args->rope.q.heads, args->rope.k.heads, args->v.heads};
    for (int32_t tensor = 0; tensor < ORACLE_TENSORS; tensor++)
        for (int64_t i = 0; heads[tensor] && i < args->rope.batch * args->rope.tokens; i++)
            append_token(desc, args, tensor, i / args->rope.tokens, i % args->rope.tokens);
}
