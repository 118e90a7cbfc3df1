#include "tests/oracle/append.h"

#include "tests/oracle/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const mpfr_rnd_t RN = MPFR_RNDN;
static const double UNIT = 0x1p-24, LARGEST = 0x1.fffffep127;

struct oracle_append {
    rope_append_desc desc;
    oracle *rotation; /* NULL: none */
    mpfr_t sum, mean, t[2];
};

oracle_append *oracle_append_create(const rope_append_desc *desc) {
    oracle_append *o = calloc(1, sizeof *o);
    if (!o)
        return NULL;
    o->desc = *desc;
    mpfr_inits2(ORACLE_BITS, o->sum, o->mean, o->t[0], o->t[1], (mpfr_ptr)0);
    if (desc->rotation == ROPE_ROTATION_OFF)
        return o;
    rope_desc rope = desc->rope;
    if (desc->k_source == ROPE_SOURCE_CACHE) {
        rope.attention_factor = 1;
        rope.xpos_center = 0;
        if (rope.pairing_out)
            rope.pairing_in = rope.pairing_out;
    }
    o->rotation = oracle_create(&rope);
    if (o->rotation)
        return o;
    oracle_append_destroy(o);
    return NULL;
}

void oracle_append_destroy(oracle_append *o) {
    if (!o)
        return;
    oracle_destroy(o->rotation);
    mpfr_clears(o->sum, o->mean, o->t[0], o->t[1], (mpfr_ptr)0);
    free(o);
}

int oracle_append_fails(const oracle_append *o, const rope_append_args *args, int64_t batch,
                        int64_t token) {
    return o->rotation &&
           oracle_locate(o->rotation, &args->rope, batch, token).status == ORACLE_FAILS;
}

static oracle_range range_of(double low, double high) {
    oracle_range r = {ORACLE_WITHIN, low, high};
    if (isnan(low) && isnan(high))
        r.kind = ORACLE_NAN;
    else if (isnan(low) || isnan(high))
        r.kind = ORACLE_ANY;
    return r;
}

static const oracle_range anything = {.kind = ORACLE_ANY};

static int is_known(const oracle_range *r) {
    return r->kind == ORACLE_WITHIN && r->low == r->high;
}

/* What one rounding in fp32 makes of a range, ahead of one to dtype. */
static oracle_range round_range(int32_t dtype, oracle_range r) {
    if (r.kind != ORACLE_WITHIN)
        return r;
    double low = r.low - fabs(r.low) * UNIT - 0x1p-150,
           high = r.high + fabs(r.high) * UNIT + 0x1p-150;
    return range_of(oracle_round(dtype, low), oracle_round(dtype, high));
}

static int may_be_zero(const oracle_range *r) {
    return r->low <= 0 && r->high >= 0;
}

static int may_be_infinite(const oracle_range *r) {
    return isinf(r->low) || isinf(r->high);
}

/* The product of two ranges, rounded. */
static oracle_range product(int32_t dtype, oracle_range a, oracle_range b) {
    if (a.kind != ORACLE_WITHIN || b.kind != ORACLE_WITHIN)
        return a.kind > b.kind ? a : b;
    if ((may_be_zero(&a) && may_be_infinite(&b)) || (may_be_zero(&b) && may_be_infinite(&a)))
        return anything;
    double p[4] = {a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high};
    double low = fmin(fmin(p[0], p[1]), fmin(p[2], p[3]));
    double high = fmax(fmax(p[0], p[1]), fmax(p[2], p[3]));
    return round_range(dtype, range_of(low, high));
}

/* The normalised elements of one norm: those of `heads` heads, a head `dim` elements apart. */
typedef struct norm_group {
    oracle_range *at;
    int64_t heads, dim, offset, norm_dim;
} norm_group;

static oracle_range *element(const norm_group *g, int64_t i) {
    return &g->at[i / g->norm_dim * g->dim + g->offset + i % g->norm_dim];
}

static int64_t group_size(const norm_group *g) {
    return g->heads * g->norm_dim;
}

static int tree_depth(int64_t n) {
    int depth = 0;
    while ((INT64_C(1) << depth) < n)
        depth++;
    return depth;
}

/* o->mean of the elements, 0 for RMS; returns how far the library's may be off, or an infinity. */
static double find_mean(oracle_append *o, const norm_group *g, int32_t type) {
    int64_t n = group_size(g);
    double magnitudes = 0;
    mpfr_set_zero(o->mean, 1);
    if (type != ROPE_NORM_LAYER)
        return 0;
    for (int64_t i = 0; i < n; i++) {
        mpfr_add_d(o->mean, o->mean, element(g, i)->low, RN);
        magnitudes += fabs(element(g, i)->low);
    }
    mpfr_div_si(o->mean, o->mean, (long)n, RN);
    if (magnitudes >= LARGEST / 2)
        return INFINITY;
    return (tree_depth(n) + 1) * UNIT * 1.001 * magnitudes / (double)n + 0x1p-149;
}

/* o->sum of the squares; returns how far the library's may be off. */
static double find_squares(oracle_append *o, const norm_group *g, double mean_error) {
    int64_t n = group_size(g);
    double carried = 0;
    mpfr_set_zero(o->sum, 1);
    for (int64_t i = 0; i < n; i++) {
        mpfr_d_sub(o->t[0], element(g, i)->low, o->mean, RN);
        double d = fabs(mpfr_get_d(o->t[0], RN));
        double error = mean_error > 0 ? mean_error + UNIT * d : 0;
        carried += 2 * d * error + error * error;
        mpfr_sqr(o->t[0], o->t[0], RN);
        mpfr_add(o->sum, o->sum, o->t[0], RN);
    }
    double sum = mpfr_get_d(o->sum, RN) + carried;
    return (carried + (tree_depth(n) + 1) * UNIT * sum) * 1.001 + (double)n * 0x1p-149;
}

/* 1 / sqrt(sum / n + eps) where the sum is off by `error`, to one side. */
static double reciprocal(oracle_append *o, double error, int64_t n, float eps, int side) {
    mpfr_ptr x = o->t[0];
    mpfr_add_d(x, o->sum, side * error, RN);
    mpfr_div_si(x, x, (long)n, RN);
    mpfr_mul_d(x, x, 1 + side * UNIT, RN);
    mpfr_add_d(x, x, side * 0x1p-149, RN);
    if (mpfr_sgn(x) < 0)
        mpfr_set_zero(x, 1);
    mpfr_add_d(x, x, eps, RN);
    mpfr_mul_d(x, x, 1 + side * UNIT, RN);
    mpfr_rec_sqrt(x, x, RN);
    return mpfr_get_d(x, RN) * (1 - side * 2.001 * UNIT);
}

/* The range of the reciprocal; `any` where the sum leaves fp32 or may be 0. */
static oracle_range find_reciprocal(oracle_append *o, const norm_group *g, const rope_norm *norm,
                                    double *mean_error) {
    int64_t n = group_size(g);
    for (int64_t i = 0; i < n; i++)
        if (!is_known(element(g, i)) || !isfinite(element(g, i)->low))
            return anything;
    *mean_error = find_mean(o, g, norm->type);
    double error = find_squares(o, g, *mean_error), sum = mpfr_get_d(o->sum, RN);
    if (!(sum + error < LARGEST * 0.999))
        return sum - error > LARGEST * 1.001 && isfinite(*mean_error) ? range_of(0, 0) : anything;
    double low = reciprocal(o, error, n, (float)norm->eps, 1);
    double high = reciprocal(o, error, n, (float)norm->eps, -1);
    return isfinite(high) && high < LARGEST ? range_of(low, high) : anything;
}

static oracle_range weight_range(const oracle_tensor *t, int64_t head, int64_t i) {
    double w = oracle_load(t->weight_dtype, t->weight->data, head * t->weight_stride + i);
    if (t->part->norm.weight == ROPE_NORM_ONE_PLUS_WEIGHT)
        w = oracle_round(ROPE_F32, 1 + w);
    return range_of(w, w);
}

/* The norm of one group, whose first head is `head`. */
static void normalise(oracle_append *o, const oracle_tensor *t, norm_group g, int64_t head) {
    const rope_norm *norm = &t->part->norm;
    int32_t dtype = o->desc.rope.dtype;
    double mean_error = 0;
    oracle_range r = find_reciprocal(o, &g, norm, &mean_error);
    double mean = mpfr_get_d(o->mean, RN);
    for (int64_t i = 0; i < group_size(&g); i++) {
        oracle_range *x = element(&g, i), y = anything;
        if (r.kind == ORACLE_WITHIN) {
            double d = x->low - mean, error = mean_error + fabs(mean) * 0x1p-50;
            if (norm->type == ROPE_NORM_LAYER)
                error += fabs(d) * UNIT;
            oracle_range deviation = range_of(d - error, d + error);
            int twice = norm->weight && norm->rounding == ROPE_NORM_ROUND_TWICE;
            y = product(norm->weight && !twice ? ROPE_F32 : dtype, deviation, r);
        }
        if (norm->weight)
            y = product(dtype, y, weight_range(t, head + i / g.norm_dim, i % g.norm_dim));
        *x = y;
    }
}

static void normalise_heads(oracle_append *o, const oracle_tensor *t, oracle_range *x) {
    const rope_norm *norm = &t->part->norm;
    if (norm->type == 0)
        return;
    norm_group g = {x, t->heads, t->dim, norm->offset, t->norm_dim};
    if (norm->scope == ROPE_NORM_TOKEN) {
        normalise(o, t, g, 0);
        return;
    }
    g.heads = 1;
    for (int64_t h = 0; h < t->heads; h++, g.at += t->dim)
        normalise(o, t, g, h);
}

/* What k has in the cache, as the number of dtype that it is moved as. */
static oracle_range cached(const oracle_append *o, const oracle_tensor *t,
                           const oracle_place *place, int64_t head, int64_t i) {
    double x = oracle_load(t->store_dtype, t->cache->data, oracle_cache_at(t, place, head, i));
    if (t->part->scale)
        x *= oracle_load(ROPE_F32, t->scale->data,
                         oracle_scale_at(t, place->page, place->slot, head));
    x = oracle_round(o->desc.rope.dtype, oracle_round(ROPE_F32, x));
    return range_of(x, x);
}

static void load(const oracle_append *o, const oracle_tensor *t, int64_t batch, int64_t token,
                 const oracle_place *place, oracle_range *x) {
    int from_cache = o->desc.k_source == ROPE_SOURCE_CACHE;
    for (int64_t i = 0; i < t->heads * t->dim; i++) {
        int64_t h = i / t->dim,
                at = batch * t->in[0] + token * t->in[1] + h * t->in[2] + i % t->dim * t->in[3];
        if (from_cache) {
            x[i] = cached(o, t, place, h, i % t->dim);
        } else {
            double value = oracle_load(o->desc.rope.dtype, t->t->in, at);
            x[i] = range_of(value, value);
        }
    }
}

/* The scale that a head's largest finite magnitude gives. */
static oracle_range scale_of_largest(const oracle_tensor *t, const oracle_range *x) {
    double largest = t->store_dtype == ROPE_F8E4M3   ? 448
                     : t->store_dtype == ROPE_F8E5M2 ? 57344
                     : t->store_dtype == ROPE_I8     ? 127
                                                     : 240;
    double low = 0, high = 0;
    for (int64_t i = 0; i < t->dim; i++) {
        if (x[i].kind == ORACLE_NAN || (is_known(&x[i]) && isinf(x[i].low)) ||
            x[i].kind == ORACLE_NOT_FINITE)
            continue;
        if (x[i].kind == ORACLE_ANY || isinf(x[i].low) || isinf(x[i].high))
            return anything;
        double near = x[i].low <= 0 && x[i].high >= 0 ? 0 : fmin(fabs(x[i].low), fabs(x[i].high));
        low = fmax(low, near);
        high = fmax(high, fmax(fabs(x[i].low), fabs(x[i].high)));
    }
    if (high == 0)
        return range_of(1, 1);
    if (low == 0)
        return anything;
    oracle_range r = round_range(ROPE_F32, range_of(low / largest, high / largest));
    return range_of(fmax(r.low, 0x1p-126), fmax(r.high, 0x1p-126));
}

static oracle_range given_scale(const oracle_tensor *t, int64_t at) {
    double s = oracle_load(ROPE_F32, t->scale->data, at);
    return range_of(s, s);
}

/* x / scale in store_dtype; in 8 bits what is not finite is a NaN, 0 or saturates. */
static oracle_range convert(const oracle_tensor *t, oracle_range x, oracle_range scale) {
    int eight = oracle_dtype_size(t->store_dtype) == 1;
    if (scale.kind != ORACLE_WITHIN || x.kind == ORACLE_ANY)
        return anything;
    if (x.kind == ORACLE_NOT_FINITE)
        return eight ? anything : x;
    if (x.kind == ORACLE_NAN)
        return t->store_dtype == ROPE_I8 ? range_of(0, 0) : x;
    if (!t->part->scale)
        return range_of(oracle_round(t->store_dtype, x.low), oracle_round(t->store_dtype, x.high));
    double q[4] = {x.low / scale.low, x.low / scale.high, x.high / scale.low, x.high / scale.high};
    return round_range(t->store_dtype, range_of(fmin(q[0], q[1]), fmax(q[2], q[3])));
}

static void store(const oracle_tensor *t, int64_t first, int64_t second, const oracle_range *value,
                  oracle_range *stored, oracle_range *scale) {
    for (int64_t h = 0; h < t->heads; h++) {
        scale[h] = range_of(1, 1);
        if (t->part->scale == ROPE_SCALE_TOKEN_HEAD_MAX)
            scale[h] = scale_of_largest(t, value + h * t->dim);
        else if (t->part->scale)
            scale[h] = given_scale(t, oracle_scale_at(t, first, second, h));
        for (int64_t i = h * t->dim; i < (h + 1) * t->dim; i++)
            stored[i] = convert(t, value[i], scale[h]);
    }
}

void oracle_append_token(oracle_append *o, const rope_append_args *args, int32_t tensor,
                         int64_t batch, int64_t token, oracle_range *value, oracle_range *stored,
                         oracle_range *scale) {
    oracle_tensor t = oracle_append_tensor(&o->desc, args, tensor);
    oracle_place place = oracle_append_place(&o->desc, args, batch, token);
    if (o->desc.k_source == ROPE_SOURCE_CACHE && place.status != ORACLE_PLACE_GIVEN)
        return;
    load(o, &t, batch, token, &place, value);
    normalise_heads(o, &t, value);
    if (o->rotation && tensor < 2)
        oracle_rotate_ranges(o->rotation, &args->rope, tensor, batch, token, t.heads, value);
    float factor = (float)t.part->factor;
    for (int64_t i = 0; i < t.heads * t.dim && factor != 0 && factor != 1; i++)
        value[i] = product(o->desc.rope.dtype, value[i], range_of(factor, factor));
    if (tensor == 0)
        store(&t, batch, token, value, stored, scale);
    else if (t.cache && place.status == ORACLE_PLACE_GIVEN)
        store(&t, place.page, place.slot, value, stored, scale);
}
