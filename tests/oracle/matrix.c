/*
 * The matrix of a pair in exact arithmetic, and the bound on each entry that the library's own may
 * be off: 8e-8 (exact), 1.2e-7 (f32) or 4e-16 (f64) of the attention factor, at every position,
 * plus one rounding for each product in which factor and scale enter.
 */
#include "tests/oracle/internal.h"

#include <math.h>

static const mpfr_rnd_t RN = MPFR_RNDN;

static int is_double(const rope_desc *d) {
    return d->dtype == ROPE_F64 && d->angle_mode != ROPE_ANGLE_F32;
}

/* The fp32 angle of ROPE_ANGLE_F32: both factors and the product rounded to nearest. */
static double angle_f32(const oracle *o, int32_t set, int64_t position, int32_t pair) {
    float omega = (float)mpfr_get_d(o->list[set].omega[pair], RN);
    volatile float angle = (float)position * omega;
    return angle;
}

/* The frequency of exact angles in radians: of fp32's beyond 2^36, where its 64 bits show, the
 * nearest multiple of 2^-64 turns. */
static void exact_omega(oracle *o, int32_t set, int64_t position, int32_t pair, mpfr_t omega) {
    mpfr_set(omega, o->list[set].omega[pair], RN);
    if (is_double(&o->desc) || (position >= -(INT64_C(1) << 36) && position <= INT64_C(1) << 36))
        return;
    mpfr_ptr unit = o->t[1];
    mpfr_const_pi(unit, RN);
    mpfr_div_2ui(unit, unit, 63, RN);
    mpfr_div(omega, omega, unit, RN);
    mpfr_rint(omega, omega, RN);
    mpfr_mul(omega, omega, unit, RN);
}

static oracle_angle *angle_of(oracle *o, int32_t set, int64_t position, int32_t pair) {
    oracle_angle *a = &o->angle[pair];
    if (a->known && a->set == set && a->position == position)
        return a;
    a->known = 1;
    a->set = set;
    a->position = position;
    if (o->desc.angle_mode == ROPE_ANGLE_F32) {
        mpfr_set_d(o->t[0], angle_f32(o, set, position, pair), RN);
    } else {
        exact_omega(o, set, position, pair, o->t[0]);
        mpfr_mul_si(o->t[0], o->t[0], (long)position, RN);
    }
    mpfr_sin_cos(a->s, a->c, o->t[0], RN);
    return a;
}

void oracle_cos_sin(oracle *o, int32_t set, int64_t position, int32_t pair, double *cosine,
                    double *sine) {
    const oracle_angle *a = angle_of(o, set, position, pair);
    *cosine = mpfr_get_d(a->c, RN);
    *sine = mpfr_get_d(a->s, RN);
}

/* cos and sin before factor and scale. */
static double angle_error(const rope_desc *d) {
    return is_double(d) ? 4e-16 : d->angle_mode == ROPE_ANGLE_F32 ? 1.2e-7 : 8e-8;
}

/* XPos' ((2i + 0.4 r) / 1.4 r)^((position - centre) / base), kept within 2^-126..2^126, for q,
 * reciprocal for k and for the inverse; distances wrap as positions do. Returns the relative error
 * allowed: the exponent has 48 fraction bits, its rate 63. */
static double xpos_scale(oracle *o, int64_t position, int32_t pair, int32_t tensor, mpfr_t scale) {
    const rope_desc *d = &o->desc;
    mpfr_ptr e = o->t[1];
    int64_t distance = (int64_t)((uint64_t)position - (uint64_t)d->xpos_center);
    mpfr_set_si(scale, 10 * pair + 2 * d->rotary_dim, RN);
    mpfr_div_si(scale, scale, 7 * d->rotary_dim, RN);
    mpfr_set_si(e, (long)distance, RN);
    mpfr_div_d(e, e, d->xpos_scale_base, RN);
    mpfr_log2(scale, scale, RN);
    mpfr_mul(e, e, scale, RN);
    if (mpfr_cmpabs_ui(e, 126) > 0)
        mpfr_set_si(e, mpfr_sgn(e) * 126, RN);
    if ((tensor == 1) != (d->direction == ROPE_INVERSE))
        mpfr_neg(e, e, RN);
    mpfr_exp2(scale, e, RN);
    return fabs((double)distance) * 0x1p-63 + 0x1p-47 + (is_double(d) ? 4e-16 : 2e-7 + 0x1p-24);
}

static void computed(oracle *o, const oracle_token *token, int32_t pair, int32_t tensor,
                     oracle_matrix *matrix) {
    const rope_desc *d = &o->desc;
    int64_t position = token->at[o->axis[pair]];
    const oracle_angle *a = angle_of(o, token->set, position, pair);
    mpfr_ptr factor = o->t[2], scale = o->t[3];
    double unit = is_double(d) ? 0x1p-53 : 0x1p-24;
    mpfr_set(factor, o->list[token->set].factor, RN);
    double relative = mpfr_cmp_ui(factor, 1) == 0 ? 0 : 3 * unit;
    if (d->direction == ROPE_INVERSE)
        mpfr_ui_div(factor, 1, factor, RN);
    if (d->xpos_scale_base > 0) {
        relative += xpos_scale(o, position, pair, tensor, scale);
        mpfr_mul(factor, factor, scale, RN);
    }
    double size = mpfr_get_d(factor, RN);
    for (int i = 0; i < 4; i++) {
        mpfr_mul(matrix->m[i], i % 2 ? a->s : a->c, factor, RN);
        if (i % 2 && d->direction != ROPE_FORWARD)
            mpfr_neg(matrix->m[i], matrix->m[i], RN);
        matrix->error[i] = size * (angle_error(d) + relative) + 0x1p-149;
    }
}

/* Column of a table row that turns a pair's first (0) or second (1) element. */
static int64_t table_column(const oracle *o, int32_t pair, int element) {
    if (o->desc.table_width != ROPE_TABLE_FULL)
        return pair;
    if (o->desc.pairing_out == ROPE_PAIRING_INTERLEAVED)
        return 2 * (int64_t)pair + element;
    return pair + (int64_t)element * o->pairs;
}

static void swap_negated(mpfr_t a, mpfr_t b) {
    mpfr_swap(a, b);
    mpfr_neg(a, a, RN);
    mpfr_neg(b, b, RN);
}

/* Transpose of [c1 -s1; s2 c2], or its inverse, whose entries are divided by c1 c2 + s1 s2. */
static void direct(oracle *o, oracle_matrix *matrix) {
    mpfr_t *m = matrix->m;
    double unit = is_double(&o->desc) ? 0x1p-53 : 0x1p-24;
    if (o->desc.direction == ROPE_TRANSPOSE)
        swap_negated(m[1], m[3]);
    if (o->desc.direction != ROPE_INVERSE)
        return;
    mpfr_ptr product = o->t[0], determinant = o->t[1];
    mpfr_mul(product, m[1], m[3], RN);
    mpfr_fma(determinant, m[0], m[2], product, RN);
    mpfr_swap(m[0], m[2]);
    double lost = fabs(mpfr_get_d(product, RN) / mpfr_get_d(determinant, RN));
    for (int i = 0; i < 4; i++) {
        mpfr_div(m[i], m[i], determinant, RN);
        if (i % 2)
            mpfr_neg(m[i], m[i], RN);
        matrix->error[i] = fabs(mpfr_get_d(m[i], RN)) * unit * (3 + 2 * lost) + 0x1p-149;
    }
}

static void tabled(oracle *o, const rope_args *args, const oracle_token *token, int64_t batch,
                   int32_t pair, oracle_matrix *matrix) {
    const rope_desc *d = &o->desc;
    int64_t width = d->table_width == ROPE_TABLE_FULL ? d->rotary_dim : o->pairs;
    const int64_t *given = args->table_stride;
    int64_t contiguous[3] = {0, width, 1};
    const int64_t *stride = given[0] || given[1] || given[2] ? given : contiguous;
    int64_t row = batch * stride[0] + token->at[o->axis[pair]] * stride[1];
    for (int i = 0; i < 4; i++) {
        int64_t entry = row + table_column(o, pair, i / 2) * stride[2];
        mpfr_set_d(matrix->m[i], oracle_load(d->table_dtype, i % 2 ? args->sin : args->cos, entry),
                   RN);
        matrix->error[i] = 0;
    }
    direct(o, matrix);
}

void oracle_matrix_of(oracle *o, const rope_args *args, const oracle_token *token, int64_t batch,
                      int32_t pair, int32_t tensor, oracle_matrix *matrix) {
    const rope_desc *d = &o->desc;
    if (d->angle_mode == ROPE_ANGLE_TABLE)
        tabled(o, args, token, batch, pair, matrix);
    else
        computed(o, token, pair, tensor, matrix);
    if (d->arithmetic != ROPE_ARITHMETIC_MODEL_DTYPE)
        return;
    const oracle_format *format = oracle_format_of(d->dtype);
    for (int i = 0; i < 4; i++)
        matrix->error[i] +=
            format->unit * (fabs(mpfr_get_d(matrix->m[i], RN)) + matrix->error[i]) + format->tiny;
}
