/* An oracle's life, and the rotation of a token. */
#include "tests/oracle/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const mpfr_rnd_t RN = MPFR_RNDN;

static void set_default(int32_t *field, int32_t value) {
    if (*field == 0)
        *field = value;
}

static void fill_defaults(rope_desc *d) {
    if (d->k_head_dim == 0) {
        d->k_head_dim = d->head_dim;
        d->k_rotary_offset = d->rotary_offset;
    }
    set_default(&d->rotary_dim, d->head_dim);
    set_default(&d->pairing_in, ROPE_PAIRING_HALF_SPLIT);
    set_default(&d->pairing_out, d->pairing_in);
    set_default(&d->direction, ROPE_FORWARD);
    set_default(&d->angle_mode, ROPE_ANGLE_EXACT);
    set_default(&d->arithmetic, ROPE_ARITHMETIC_FP32);
    set_default(&d->position_dtype, ROPE_I64);
    set_default(&d->axes, 1);
    set_default(&d->shard, ROPE_SHARD_NONE);
    set_default(&d->shard_size, 1);
    set_default(&d->table_dtype, ROPE_F32);
    set_default(&d->out_of_range, ROPE_OUT_OF_RANGE_ERROR);
    set_default(&d->rope_type, ROPE_TYPE_DEFAULT);
    if (d->rope_theta == 0)
        d->rope_theta = 10000;
    if (d->beta_fast == 0)
        d->beta_fast = 32;
    if (d->beta_slow == 0)
        d->beta_slow = 1;
}

static int32_t axis_of(const rope_desc *d, int32_t pair) {
    const int32_t *n = d->sections;
    int32_t axis = 0;
    switch (d->axis_layout) {
    case ROPE_AXES_CHUNKED:
        for (int32_t end = n[0]; pair >= end; end += n[axis])
            axis++;
        return axis;
    case ROPE_AXES_INTERLEAVED:
        axis = pair % 3;
        return axis != 0 && pair < 3 * n[axis] ? axis : 0;
    case ROPE_AXES_ALTERNATING:
        return pair >= n[1] + n[2] ? 0 : pair % 2 ? 2 : 1;
    case ROPE_AXES_CUSTOM:
        return d->pair_axis[pair];
    default:
        return 0;
    }
}

static int32_t count_sets(const rope_desc *d) {
    if (d->angle_mode == ROPE_ANGLE_TABLE)
        return 0;
    return d->rope_type == ROPE_TYPE_LONGROPE && d->longrope_select <= ROPE_LONGROPE_PER_SEQUENCE
               ? 2
               : 1;
}

static int allocate(oracle *o) {
    size_t n = (size_t)o->pairs;
    o->axis = calloc(n, 1);
    o->angle = calloc(n, sizeof *o->angle);
    for (int s = 0; s < 2; s++)
        o->list[s].omega = calloc(n, sizeof *o->list[s].omega);
    if (!o->axis || !o->angle || !o->list[0].omega || !o->list[1].omega)
        return 0;
    for (size_t i = 0; i < n; i++) {
        mpfr_inits2(ORACLE_BITS, o->angle[i].c, o->angle[i].s, o->list[0].omega[i],
                    o->list[1].omega[i], (mpfr_ptr)0);
        o->axis[i] = (uint8_t)axis_of(&o->desc, (int32_t)i);
    }
    for (int s = 0; s < 2; s++)
        mpfr_init2(o->list[s].factor, ORACLE_BITS);
    for (int i = 0; i < 6; i++)
        mpfr_init2(o->t[i], ORACLE_BITS);
    return 1;
}

static void free_arrays(oracle *o) {
    free(o->axis);
    free(o->angle);
    free(o->list[0].omega);
    free(o->list[1].omega);
    free(o);
}

oracle *oracle_create(const rope_desc *desc) {
    oracle *o = calloc(1, sizeof *o);
    if (!o)
        return NULL;
    size_t size = desc->struct_size < sizeof o->desc ? desc->struct_size : sizeof o->desc;
    memcpy(&o->desc, desc, size);
    fill_defaults(&o->desc);
    o->pairs = o->desc.rotary_dim / 2;
    if (!allocate(o)) {
        free_arrays(o);
        return NULL;
    }
    o->sets = count_sets(&o->desc);
    for (int32_t s = 0; s < o->sets; s++)
        oracle_rule(o, s);
    o->desc.short_factor = o->desc.long_factor = o->desc.inv_freq = NULL;
    o->desc.pair_axis = NULL;
    return o;
}

void oracle_destroy(oracle *o) {
    if (!o)
        return;
    for (int32_t i = 0; i < o->pairs; i++)
        mpfr_clears(o->angle[i].c, o->angle[i].s, o->list[0].omega[i], o->list[1].omega[i],
                    (mpfr_ptr)0);
    for (int s = 0; s < 2; s++)
        mpfr_clear(o->list[s].factor);
    for (int i = 0; i < 6; i++)
        mpfr_clear(o->t[i]);
    free_arrays(o);
    mpfr_free_cache();
}

int32_t oracle_sets(const oracle *o) {
    return o->sets;
}

double oracle_frequency(const oracle *o, int32_t set, int32_t pair) {
    return mpfr_get_d(o->list[set].omega[pair], RN);
}

double oracle_attention_factor(const oracle *o, int32_t set) {
    return mpfr_get_d(o->list[set].factor, RN);
}

void oracle_angle_cos_sin(int64_t position, double omega, double *cosine, double *sine) {
    mpfr_t a, s, c;
    mpfr_inits2(ORACLE_BITS, a, s, c, (mpfr_ptr)0);
    mpfr_set_d(a, omega, RN);
    mpfr_mul_si(a, a, (long)position, RN);
    mpfr_sin_cos(s, c, a, RN);
    *cosine = mpfr_get_d(c, RN);
    *sine = mpfr_get_d(s, RN);
    mpfr_clears(a, s, c, (mpfr_ptr)0);
}

/* Elements of the window that make a pair. */
static void pair_elements(int32_t pairing, int32_t pair, int32_t pairs, int32_t element[2]) {
    int interleaved = pairing == ROPE_PAIRING_INTERLEAVED;
    element[0] = interleaved ? 2 * pair : pair;
    element[1] = interleaved ? 2 * pair + 1 : pair + pairs;
}

/* A number that the library has within an error. */
typedef struct inexact {
    double at, error;
} inexact;

/*
 * y = a x + b z where the library's a, b, x and z are off by at most their errors. fp32 arithmetic
 * rounds the product b z, the fused sum and the store; model arithmetic, and double, both products
 * and the sum. A value of double is itself rounded here. Returns the error without that of a store
 * in a type that is not the arithmetic's.
 */
static double combine(oracle *o, mpfr_t a, double ea, inexact x, mpfr_t b, double eb, inexact z,
                      double *value, double *bound) {
    const rope_desc *d = &o->desc;
    const oracle_format *store = oracle_format_of(d->dtype);
    int model = d->arithmetic == ROPE_ARITHMETIC_MODEL_DTYPE;
    const oracle_format *work = model || d->dtype == ROPE_F64 ? store : oracle_format_of(ROPE_F32);
    mpfr_ptr first = o->t[0], second = o->t[1];
    mpfr_mul_d(first, a, x.at, RN);
    mpfr_mul_d(second, b, z.at, RN);
    double wa = fabs(mpfr_get_d(a, RN)) + ea, wb = fabs(mpfr_get_d(b, RN)) + eb;
    double lost_x = fabs(x.at) * ea + wa * x.error, lost_z = fabs(z.at) * eb + wb * z.error;
    double p = fabs(mpfr_get_d(first, RN)) + lost_x;
    double q = fabs(mpfr_get_d(second, RN)) + lost_z;
    mpfr_add(first, first, second, RN);
    *value = mpfr_get_d(first, RN);
    double error = lost_x + lost_z + work->unit * q + work->tiny;
    if (model || d->dtype == ROPE_F64)
        error += work->unit * p + work->tiny;
    if (d->dtype == ROPE_F64)
        error += work->unit * fabs(*value);
    error += work->unit * (fabs(*value) + error) + work->tiny;
    double before = error * (1 + 0x1p-20);
    if (work != store)
        error += store->unit * (fabs(*value) + error) + store->tiny;
    *bound = error * (1 + 0x1p-20);
    double limit = work->largest * (1 - work->unit);
    if (q + work->unit * q >= limit || fmax(wa, wb) >= limit || (model && p >= limit))
        *bound = INFINITY;
    if (!isfinite(x.at) || !isfinite(z.at)) {
        *value = NAN;
        *bound = 1;
    }
    return before;
}

/* Both elements of a pair; `before` as combine returns it. */
static void rotate_pair(oracle *o, oracle_matrix *matrix, const inexact x[2], double value[2],
                        double bound[2], double before[2]) {
    mpfr_neg(matrix->m[1], matrix->m[1], RN);
    before[0] = combine(o, matrix->m[0], matrix->error[0], x[0], matrix->m[1], matrix->error[1],
                        x[1], &value[0], &bound[0]);
    mpfr_neg(matrix->m[1], matrix->m[1], RN);
    before[1] = combine(o, matrix->m[2], matrix->error[2], x[1], matrix->m[3], matrix->error[3],
                        x[0], &value[1], &bound[1]);
}

static void load_heads(const oracle *o, const rope_tensor *t, int64_t at, const int64_t *stride,
                       int64_t dim, double *value) {
    for (int64_t i = 0; i < t->heads * dim; i++)
        value[i] =
            oracle_load(o->desc.dtype, t->in, at + i / dim * stride[2] + i % dim * stride[3]);
}

/* The pair of a head as it is read, at[0..1] within it, and where it goes, at[2..3]. */
static void pair_places(const oracle *o, int32_t tensor, int32_t pair, int32_t at[4]) {
    int32_t first = tensor ? o->desc.k_rotary_offset : o->desc.rotary_offset;
    pair_elements(o->desc.pairing_in, pair, o->pairs, at);
    pair_elements(o->desc.pairing_out, pair, o->pairs, at + 2);
    for (int i = 0; i < 4; i++)
        at[i] += first;
}

/* One pair of every head, from `in` to value and bound; a token that does not turn still goes from
 * one pairing to the other. */
static void rotate_heads(oracle *o, oracle_matrix *matrix, const int32_t at[4], int64_t heads,
                         int64_t dim, const double *in, double *value, double *bound) {
    for (int64_t h = 0; h < heads; h++, in += dim, value += dim, bound += dim) {
        double y[2] = {in[at[0]], in[at[1]]}, e[2] = {0, 0}, before[2];
        const inexact x[2] = {{y[0], 0}, {y[1], 0}};
        if (matrix)
            rotate_pair(o, matrix, x, y, e, before);
        for (int j = 0; j < 2; j++) {
            value[at[2 + j]] = y[j];
            bound[at[2 + j]] = e[j];
        }
    }
}

static void matrix_init(oracle_matrix *matrix) {
    for (int i = 0; i < 4; i++)
        mpfr_init2(matrix->m[i], ORACLE_BITS);
}

static void matrix_clear(oracle_matrix *matrix) {
    for (int i = 0; i < 4; i++)
        mpfr_clear(matrix->m[i]);
}

void oracle_rotate(oracle *o, const rope_args *args, int32_t tensor, int64_t batch, int64_t token,
                   double *value, double *bound) {
    const rope_tensor *t = tensor ? &args->k : &args->q;
    int64_t in[4], out[4], dim = tensor ? o->desc.k_head_dim : o->desc.head_dim;
    oracle_token site = oracle_locate(o, args, batch, token);
    oracle_strides(&o->desc, args, tensor, in, out);
    load_heads(o, t, batch * in[0] + token * in[1], in, dim, value);
    for (int64_t i = 0; i < t->heads * dim; i++)
        bound[i] = site.status == ORACLE_FAILS ? INFINITY : 0;
    size_t bytes = (size_t)(t->heads * dim) * sizeof *value;
    double *x = malloc(bytes + 1);
    memcpy(x, value, bytes);
    oracle_matrix matrix;
    matrix_init(&matrix);
    for (int32_t i = 0; i < o->pairs && site.status != ORACLE_FAILS; i++) {
        int turns = site.status == ORACLE_ROTATES;
        int32_t at[4];
        pair_places(o, tensor, i, at);
        if (turns)
            oracle_matrix_of(o, args, &site, batch, i, tensor, &matrix);
        rotate_heads(o, turns ? &matrix : NULL, at, t->heads, dim, x, value, bound);
    }
    matrix_clear(&matrix);
    free(x);
}

/* The kind of a number computed from two. */
static int32_t kind_of_pair(const oracle_range x[2]) {
    int32_t worst = x[0].kind > x[1].kind ? x[0].kind : x[1].kind;
    for (int j = 0; j < 2; j++)
        if (x[j].kind == ORACLE_WITHIN && !(isfinite(x[j].low) && isfinite(x[j].high))) {
            int32_t kind = x[j].low == x[j].high ? ORACLE_NOT_FINITE : ORACLE_ANY;
            worst = worst > kind ? worst : kind;
        }
    return worst == ORACLE_NAN ? ORACLE_NOT_FINITE : worst;
}

static void turn_ranges(oracle *o, oracle_matrix *matrix, const oracle_range in[2],
                        oracle_range out[2]) {
    int32_t kind = kind_of_pair(in);
    double value[2] = {0}, bound[2] = {0}, before[2] = {0};
    inexact x[2];
    for (int j = 0; j < 2; j++) {
        x[j].at = in[j].low + (in[j].high - in[j].low) / 2;
        x[j].error = (in[j].high - in[j].low) / 2 * (1 + 0x1p-40);
    }
    if (kind == ORACLE_WITHIN)
        rotate_pair(o, matrix, x, value, bound, before);
    for (int j = 0; j < 2; j++) {
        out[j].kind = kind == ORACLE_WITHIN && !isfinite(bound[j]) ? ORACLE_ANY : kind;
        out[j].low = oracle_round(o->desc.dtype, value[j] - before[j]);
        out[j].high = oracle_round(o->desc.dtype, value[j] + before[j]);
    }
}

void oracle_rotate_ranges(oracle *o, const rope_args *args, int32_t tensor, int64_t batch,
                          int64_t token, int64_t heads, oracle_range *x) {
    int64_t dim = tensor ? o->desc.k_head_dim : o->desc.head_dim;
    oracle_token site = oracle_locate(o, args, batch, token);
    size_t bytes = (size_t)(heads * dim) * sizeof *x;
    oracle_range *from = malloc(bytes + 1);
    memcpy(from, x, bytes);
    oracle_matrix matrix;
    matrix_init(&matrix);
    for (int32_t i = 0; i < o->pairs && site.status != ORACLE_FAILS; i++) {
        int32_t at[4];
        pair_places(o, tensor, i, at);
        if (site.status == ORACLE_ROTATES)
            oracle_matrix_of(o, args, &site, batch, i, tensor, &matrix);
        for (int64_t h = 0; h < heads; h++) {
            const oracle_range in[2] = {from[h * dim + at[0]], from[h * dim + at[1]]};
            oracle_range y[2] = {in[0], in[1]};
            if (site.status == ORACLE_ROTATES)
                turn_ranges(o, &matrix, in, y);
            x[h * dim + at[2]] = y[0];
            x[h * dim + at[3]] = y[1];
        }
    }
    matrix_clear(&matrix);
    free(from);
}

int oracle_in_range(double got, const oracle_range *range) {
    switch (range->kind) {
    case ORACLE_ANY:
        return 1;
    case ORACLE_NAN:
        return isnan(got);
    case ORACLE_NOT_FINITE:
        return !isfinite(got);
    default:
        return got >= range->low && got <= range->high;
    }
}

void oracle_apply(oracle *o, const rope_args *args, int32_t tensor, double *value, double *bound) {
    int64_t dim = tensor ? o->desc.k_head_dim : o->desc.head_dim;
    int64_t size = (tensor ? args->k.heads : args->q.heads) * dim;
    for (int64_t i = 0; i < args->batch * args->tokens; i++)
        oracle_rotate(o, args, tensor, i / args->tokens, i % args->tokens, value + i * size,
                      bound + i * size);
}
