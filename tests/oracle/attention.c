/* Masks of rope_attention pair by pair, the softmax in double, and the bound of docs/numerics.md.
 */
#include "tests/oracle/attention.h"

#include "tests/oracle/format.h"
#include "tests/oracle/oracle.h"

#include <math.h>
#include <stdlib.h>

/* --- masks --- */

static int64_t floor_divide(int64_t a, int64_t b) {
    int64_t quotient = a / b;
    return a % b < 0 ? quotient - 1 : quotient;
}

/* Whether mask, window and chunk leave key j to a query, by what counts as their indices. */
static int is_left(const rope_attention_desc *d, int64_t own, int64_t j) {
    if (d->mask <= ROPE_MASK_CAUSAL && j > own)
        return 0;
    if (d->window && own - j >= d->window)
        return 0;
    if (d->window_right && j - own > d->window_right)
        return 0;
    return !d->chunk || floor_divide(own, d->chunk) == floor_divide(j, d->chunk);
}

int oracle_attention_in_range(const oracle_attention *o, const oracle_part *s, int64_t i,
                              int64_t j) {
    const int64_t own = s->k_count - s->q_count + i, first = oracle_attention_by_id(o, s);
    if (j < s->k_begin || j >= s->k_count)
        return 0;
    if (own < first)
        return is_left(o->desc, own, j < first ? j : first);
    return j >= first || is_left(o->desc, first, j);
}

static int bit_of(const oracle_attention *o, const oracle_part *s, int64_t i, int64_t j) {
    const int64_t bit = j - (s->k_count - o->args->tree_keys);
    if (o->desc->mask != ROPE_MASK_TREE || bit < 0)
        return 1;
    const uint32_t *words =
        (const uint32_t *)o->args->tree_bits + oracle_attention_bits_at(o, s, i);
    return (words[bit / 32] >> (bit % 32)) & 1;
}

int oracle_attention_sees(const oracle_attention *o, const oracle_part *s, int64_t i, int64_t j) {
    return j >= s->k_begin && j < s->k_count && bit_of(o, s, i, j) &&
           is_left(o->desc, oracle_attention_counted(o, s, ORACLE_Q, i),
                   oracle_attention_counted(o, s, ORACLE_K, j));
}

/* --- a row --- */

double oracle_attention_scale(const oracle_attention *o) {
    return o->desc->scale != 0 ? o->desc->scale : 1 / sqrt((double)o->desc->rope.head_dim);
}

static const double UNIT = 0x1p-24;

double oracle_attention_score_error(const oracle_attention *o, const oracle_row *row) {
    return UNIT * ((double)o->desc->rope.head_dim + 16) * row->logits + 0x1p-126;
}

double oracle_attention_score(const oracle_attention *o, const double *q, const double *k,
                              oracle_row *row) {
    const double scale = oracle_attention_scale(o), cap = o->desc->soft_cap;
    double sum = 0, magnitude = 0;
    for (int64_t e = 0; e < o->desc->rope.head_dim; e++) {
        sum += q[e] * k[e];
        magnitude += fabs(q[e] * k[e]);
    }
    /* fp32 has no room for it, with a scale of q ahead of the products or behind them */
    if (!(magnitude * fmax(1, scale * 1.5) < 0x1p127))
        row->known = 0;
    row->logits = fmax(row->logits, magnitude * scale);
    return cap != 0 ? cap * tanh(sum * scale / cap) : sum * scale;
}

double oracle_attention_sink(const oracle_attention *o, int64_t head, oracle_row *row) {
    if (!o->desc->sink_dtype)
        return -INFINITY;
    double sink = oracle_load(o->desc->sink_dtype, o->args->sinks, head);
    if (isnan(sink) || sink == INFINITY)
        row->known = 0;
    return sink;
}

static void add_values(const oracle_attention *o, const double *v, double p, oracle_row *row) {
    const int64_t dim = oracle_attention_head_dim(o, ORACLE_V);
    for (int64_t e = 0; e < dim; e++) {
        row->value[e] += isfinite(v[e]) ? p * v[e] : NAN;
        row->weight[e] += p * fabs(v[e]);
        row->magnitude[e] += fabs(v[e]);
    }
}

void oracle_attention_row(const oracle_attention *o, const oracle_part *s, int64_t i, int64_t head,
                          const oracle_heads *heads, oracle_row *row) {
    const int64_t count = s->k_count - s->k_begin, dim = oracle_attention_head_dim(o, ORACLE_V);
    double *score = malloc((size_t)(count > 0 ? count : 1) * sizeof *score);
    *row = (oracle_row){.known = 1};
    double most = oracle_attention_sink(o, head, row), sum = 0;
    const double sink = most;
    for (int64_t n = 0; n < count; n++) {
        score[n] = -INFINITY;
        if (!oracle_attention_sees(o, s, i, s->k_begin + n))
            continue;
        score[n] = oracle_attention_score(o, heads->q, heads->k + n * heads->k_stride, row);
        row->keys++;
        most = fmax(most, score[n]);
    }
    if (most != -INFINITY)
        sum = sink == -INFINITY ? 0 : exp(sink - most);
    for (int64_t n = 0; n < count && row->known; n++) {
        if (score[n] == -INFINITY)
            continue;
        const double p = exp(score[n] - most);
        sum += p;
        add_values(o, heads->v + n * heads->v_stride, p, row);
    }
    for (int64_t e = 0; e < dim && sum > 0; e++) {
        row->value[e] /= sum;
        row->weight[e] /= sum;
    }
    row->lse = sum > 0 ? most + log(sum) : -INFINITY;
    row->known &= oracle_attention_score_error(o, row) < 1;
    free(score);
}

/* --- bounds --- */

double oracle_attention_flushed(const oracle_attention *o, const oracle_row *row, int64_t e) {
    const double tiny = oracle_format_of(o->desc->rope.dtype)->tiny,
                 least = o->desc->rope.dtype != ROPE_F32 && tiny > 0x1p-125 ? tiny : 0x1p-125;
    return least * row->magnitude[e] + (double)row->keys * 0x1p-148;
}

double oracle_attention_bound(const oracle_attention *o, const oracle_row *row, int64_t e) {
    const oracle_format *format = oracle_format_of(o->desc->rope.dtype);
    const int half = o->desc->rope.dtype != ROPE_F32;
    const double n = (double)row->keys;
    /* of a weight, of sums over keys, of the quotient */
    double relative = 2 * oracle_attention_score_error(o, row) + UNIT * (2 * n + 32);
    relative = expm1(relative) + (half ? format->unit : 0);
    const double exact = relative * row->weight[e] + oracle_attention_flushed(o, row, e);
    return exact + format->unit * (fabs(row->value[e]) + exact) + format->tiny;
}

double oracle_attention_lse_bound(const oracle_attention *o, const oracle_row *row) {
    return expm1(oracle_attention_score_error(o, row) + UNIT * ((double)row->keys + 16)) +
           4 * UNIT * (fabs(row->lse) + row->logits);
}

double oracle_attention_rms_bound(const oracle_attention *o, double logits, double rows) {
    const int32_t dtype = o->desc->rope.dtype;
    const double unit = dtype == ROPE_F32 ? 0 : oracle_format_of(dtype)->unit;
    /* of a row's squared error the mean, and six standard deviations */
    const double mean = 2.0 / 3, deviations = 5;
    return (unit + UNIT * (4 + 2 * logits)) * sqrt(mean + deviations / sqrt(rows));
}
