/* The gradients of a row of rope_attention in double, and the bound of docs/numerics.md. */
#include "tests/oracle/attention_backward.h"

#include "tests/oracle/format.h"
#include "tests/oracle/oracle.h"

#include <math.h>
#include <string.h>

static const double UNIT = 0x1p-24;

/* A number, how far it may be off, and the sum of the magnitudes that make it up. */
typedef struct number {
    double x, error, weight;
} number;

/* What the keys of a row have in common. */
typedef struct backward_row {
    const oracle_attention *o;
    const oracle_heads *heads;
    const oracle_results *results;
    oracle_row forward; /* known, logits */
    number delta;
    double score_error;
    double weight_error;         /* of a weight, relatively */
    double rounding;             /* of a weight and of ds in 16 bits, relatively */
    double least;                /* what may become 0 of a weight */
    double tiny;                 /* and of ds */
    double flush;                /* below which numbers may be taken for 0 */
    int64_t first, last;         /* keys */
    int64_t alone;               /* the key that has the largest weight; -1: none is above 1/2 */
    number alone_slope, balance; /* of that key: what the others leave to its gradient */
    int32_t is_alone;            /* 1: it has that gradient; 0: perhaps; -1: not */
} backward_row;

static void add(const backward_row *r, oracle_sum *sum, number factor, double scale, double y) {
    sum->value += isfinite(y) ? factor.x * y : NAN;
    sum->flushed += r->flush * (fabs(factor.x) + factor.error + 1);
    sum->error += factor.error * fabs(y);
    sum->magnitude += (fabs(factor.x) + factor.error) * fabs(y);
    sum->weight += factor.weight * fabs(y);
    sum->unscaled += (fabs(factor.x) + factor.error) / scale * fabs(y);
    sum->terms++;
}

/* What numbers that are taken for 0 make of a chain of products. */
static double flushed(const backward_row *r, const double *a, const double *b, int64_t n) {
    double sum = 1;
    for (int64_t e = 0; e < n; e++)
        sum += fabs(a[e]) + fabs(b[e]) + 1;
    return r->flush * sum;
}

static number product(const backward_row *r, const double *a, const double *b, int64_t n) {
    number sum = {0, 0, 0};
    for (int64_t e = 0; e < n; e++) {
        sum.x += a[e] * b[e];
        sum.weight += fabs(a[e] * b[e]);
    }
    sum.error = UNIT * ((double)n + 4) * sum.weight + flushed(r, a, b, n);
    if (!(sum.weight < 0x1p126)) /* fp32 has no room for it */
        sum.x = NAN;
    return sum;
}

static number weight_of(const backward_row *r, double score) {
    const double p = exp(score - r->results->lse);
    return (number){p, (r->weight_error + r->rounding) * p + r->least, p};
}

/* The slope of the cap at a score. */
static number slope_of(const backward_row *r, double score) {
    const double cap = r->o->desc->soft_cap, t = cap != 0 ? score / cap : 0;
    if (cap == 0)
        return (number){1, 0, 1};
    const double error = r->score_error / cap + 4 * UNIT;
    return (number){1 - t * t, 2 * error + 2 * UNIT, 1};
}

/* What a sink has of a row's weights. */
static number sink_weight(const backward_row *r, int64_t head) {
    oracle_row row = {.known = 1};
    const double sink = oracle_attention_sink(r->o, head, &row), lse = r->results->lse,
                 p = row.known ? exp(sink - lse) : NAN,
                 error = r->results->lse_error + UNIT * (4 * (fabs(sink) + fabs(lse)) + 8);
    if (sink == -INFINITY)
        return (number){0, 0, 0};
    return (number){p, p * expm1(error) + 0x1p-125, p};
}

/* ds, without the scale. */
static number score_gradient(const backward_row *r, number p, number slope, number dp) {
    number g = {dp.x - r->delta.x, dp.error + r->delta.error, 0}, ds;
    g.error += UNIT * 2 * (fabs(dp.x) + fabs(r->delta.x));
    ds.x = p.x * g.x * slope.x;
    ds.error = p.error * (fabs(g.x) + g.error) * (fabs(slope.x) + slope.error) +
               p.x * (g.error * (fabs(slope.x) + slope.error) + fabs(g.x) * slope.error);
    ds.error += (r->rounding + 4 * UNIT) * (fabs(ds.x) + ds.error) + r->tiny;
    ds.weight = p.x * (dp.weight + r->delta.weight);
    return ds;
}

static void begin(backward_row *r, const oracle_part *s, int64_t i) {
    const oracle_attention *o = r->o;
    const int32_t dtype = o->desc->rope.dtype;
    const oracle_format *format = oracle_format_of(dtype);
    const double lse = isfinite(r->results->lse) ? fabs(r->results->lse) : INFINITY,
                 small = dtype == ROPE_F16 ? format->tiny : 0x1p-125;
    double most = 0;
    memset(&r->forward, 0, sizeof r->forward);
    r->forward.known = 1;
    r->flush = dtype == ROPE_BF16 ? 0x1p-126 : 0;
    for (int64_t n = r->first; n < r->last; n++)
        if (oracle_attention_sees(o, s, i, n)) {
            const double *k = r->heads->k + n * r->heads->k_stride;
            oracle_attention_score(o, r->heads->q, k, &r->forward);
            most = fmax(most, flushed(r, r->heads->q, k, o->desc->rope.head_dim));
            r->forward.keys++;
        }
    r->score_error =
        oracle_attention_score_error(o, &r->forward) + oracle_attention_scale(o) * most;
    r->weight_error = r->score_error + UNIT * (4 * (r->forward.logits + lse) + 8);
    r->weight_error += r->results->lse_error;
    r->forward.known &= r->weight_error < 1;
    r->weight_error = expm1(r->weight_error);
    r->rounding = dtype == ROPE_F32 ? 0 : format->unit;
    r->least = small;
    r->tiny = dtype == ROPE_F32 ? 0x1p-148 : small;
    const int64_t v_dim = oracle_attention_head_dim(o, ORACLE_V);
    r->delta = product(r, r->results->dout, r->results->out, v_dim);
    for (int64_t e = 0; e < v_dim && r->results->out_error; e++)
        r->delta.error += fabs(r->results->dout[e]) * r->results->out_error[e];
}

/* 1: x is above a limit, 0: within its error of it, -1: below. */
static int is_above(double x, double limit, double error) {
    return x - limit > error ? 1 : limit - x > error ? -1 : 0;
}

/* Gradients of the scores of all keys and of the sink add up to 0: what this makes of the gradient
 * of the largest weight, where it counts. */
static void find_alone(backward_row *r, const oracle_part *s, int64_t i, int64_t head) {
    const oracle_attention *o = r->o;
    const int64_t v_dim = oracle_attention_head_dim(o, ORACLE_V);
    number largest = {0.5, 0, 0}, others = {0, 0, 0}, all = {0, 0, 0}, own = {0, 0, 0};
    r->alone = -1;
    r->is_alone = -1;
    for (int64_t n = 0; n < s->k_count && r->results->balances && r->rounding > 0; n++) {
        if (!oracle_attention_sees(o, s, i, n))
            continue;
        const double score = oracle_attention_score(
            o, r->heads->q, r->heads->k + n * r->heads->k_stride, &r->forward);
        const number p = weight_of(r, score),
                     g = score_gradient(
                         r, p, (number){1, 0, 1},
                         product(r, r->results->dout, r->heads->v + n * r->heads->v_stride, v_dim));
        all.x += p.x;
        others.x += g.x;
        others.error += g.error;
        others.weight += fabs(g.x) + g.error;
        all.weight++;
        if (!(p.x > largest.x))
            continue;
        r->alone = n;
        r->alone_slope = slope_of(r, score);
        largest = p;
        own = g;
    }
    if (r->alone < 0)
        return;
    const number sink = sink_weight(r, head);
    const double off = r->weight_error * all.x + UNIT * (all.weight + 4) + sink.error;
    r->balance.x = r->delta.x * sink.x - (others.x - own.x);
    r->balance.error = others.error - own.error + UNIT * (all.weight + 8) * others.weight +
                       sink.x * r->delta.error + fabs(r->delta.x) * sink.error;
    const int large = is_above(largest.x, 0.625, largest.error),
              whole = is_above(0x1p-12, fabs(all.x + sink.x - 1), off);
    r->is_alone = large < whole ? large : whole;
}

/* The gradient of a key by what the others leave: that, or where it may be either both. */
static number balanced(const backward_row *r, number ds) {
    const number slope = r->alone_slope;
    const double x = r->balance.x * slope.x,
                 error = r->balance.error * (fabs(slope.x) + slope.error) +
                         fabs(r->balance.x) * slope.error + r->tiny + 4 * UNIT * fabs(x);
    ds.error = r->is_alone > 0 ? error : ds.error + error + fabs(ds.x - x);
    ds.x = r->is_alone > 0 ? x : ds.x;
    return ds;
}

static void add_sink(const backward_row *r, int64_t head, oracle_sum *dsink) {
    const number p = sink_weight(r, head);
    if (p.error == 0)
        return;
    if (r->forward.known && !isnan(p.x))
        add(r, dsink, (number){-p.x, p.error, p.x}, 1, r->delta.x);
    else
        dsink->value = NAN;
    dsink->error += (p.x + p.error) * r->delta.error;
}

double oracle_attention_backward_row(const oracle_attention *o, const oracle_part *s, int64_t i,
                                     int64_t head, const oracle_heads *heads,
                                     const oracle_results *results, const oracle_gradients *to) {
    const int64_t dim = oracle_attention_head_dim(o, ORACLE_Q),
                  v_dim = oracle_attention_head_dim(o, ORACLE_V);
    const double scale = oracle_attention_scale(o);
    backward_row r = {.o = o,
                      .heads = heads,
                      .results = results,
                      .first = to->first,
                      .last = to->last ? to->last : s->k_count};
    begin(&r, s, i);
    find_alone(&r, s, i, head);
    for (int64_t n = r.first; n < r.last; n++) {
        const double *k = heads->k + n * heads->k_stride, *v = heads->v + n * heads->v_stride;
        if (!oracle_attention_sees(o, s, i, n))
            continue;
        const double score = oracle_attention_score(o, heads->q, k, &r.forward);
        number p = weight_of(&r, r.forward.known ? score : NAN),
               ds =
                   score_gradient(&r, p, slope_of(&r, score), product(&r, results->dout, v, v_dim));
        if (n == r.alone && r.is_alone >= 0)
            ds = balanced(&r, ds);
        ds.x *= scale;
        ds.error *= scale;
        ds.weight *= scale;
        for (int64_t e = 0; e < dim && to->dq; e++)
            add(&r, &to->dq[e], ds, scale, k[e]);
        for (int64_t e = 0; e < dim && to->dk; e++)
            add(&r, &to->dk[(n - r.first) * heads->k_stride + e], ds, scale, heads->q[e]);
        for (int64_t e = 0; e < v_dim && to->dv; e++)
            add(&r, &to->dv[(n - r.first) * heads->v_stride + e], p, 1, results->dout[e]);
    }
    if (to->dsink && r.forward.keys)
        add_sink(&r, head, to->dsink);
    const double own = oracle_attention_score_error(o, &r.forward);
    return r.forward.known ? r.forward.logits + fabs(results->lse) + (r.score_error - own) / UNIT
                           : 0;
}

double oracle_sum_bound(int32_t dtype, const oracle_sum *sum, int by_heads) {
    const oracle_format *format = oracle_format_of(dtype);
    const double apart = by_heads ? format->unit * (sum->magnitude + sum->error) +
                                        (double)sum->terms * format->tiny
                                  : 0,
                 exact = sum->error + sum->flushed + apart +
                         UNIT * ((double)sum->terms + 8) * sum->magnitude +
                         (double)sum->terms * 0x1p-148;
    /* fp32 has no room for it, with the scale in each term or behind the sum */
    if (!isfinite(sum->value) || !(fmax(sum->magnitude, sum->unscaled) < 0x1p126))
        return INFINITY;
    return exact + format->unit * (fabs(sum->value) + exact) + format->tiny;
}
