/* The frequency rules in 256 bits, from their published formulas (docs/numerics.md). */
#include "tests/oracle/internal.h"

static const mpfr_rnd_t RN = MPFR_RNDN;

/* y = base^(-a/b) */
static void inverse_power(mpfr_t y, double base, double a, double b) {
    mpfr_t e;
    mpfr_init2(e, ORACLE_BITS);
    mpfr_set_d(e, -a, RN);
    mpfr_div_d(e, e, b, RN);
    mpfr_set_d(y, base, RN);
    mpfr_pow(y, y, e, RN);
    mpfr_clear(e);
}

/* Every pair turns by theta^(-2i/r), or in its section of n pairs by theta^(-j/n). */
static void plain(oracle *o, mpfr_t *omega) {
    const rope_desc *d = &o->desc;
    int32_t first = 0, axis = 0;
    for (int32_t i = 0; i < o->pairs; i++) {
        if (d->axis_frequency != ROPE_AXIS_FREQUENCY_RESTART) {
            inverse_power(omega[i], d->rope_theta, 2.0 * i, d->rotary_dim);
            continue;
        }
        while (i >= first + d->sections[axis])
            first += d->sections[axis++];
        inverse_power(omega[i], d->rope_theta, i - first, d->sections[axis]);
    }
}

/* theta * alpha^(r/(r-2)), or theta * (1 + f (s - L) / L)^(r/(r-2)), as the base of plain(). */
static void dynamic(oracle *o, mpfr_t *omega) {
    const rope_desc *d = &o->desc;
    mpfr_ptr scale = o->t[0], e = o->t[1], base = o->t[2];
    mpfr_set_d(scale, d->alpha, RN);
    if (d->alpha == 0) {
        int64_t longest = d->max_position_embeddings;
        int64_t s = d->sequence_length > longest ? d->sequence_length : longest;
        mpfr_set_si(scale, (long)(s - longest), RN);
        mpfr_div_si(scale, scale, (long)longest, RN);
        mpfr_mul_d(scale, scale, d->factor, RN);
        mpfr_add_ui(scale, scale, 1, RN);
    }
    mpfr_set_si(e, d->rotary_dim, RN);
    mpfr_div_si(e, e, d->rotary_dim - 2, RN);
    mpfr_pow(scale, scale, e, RN);
    mpfr_mul_d(base, scale, d->rope_theta, RN);
    for (int32_t i = 0; i < o->pairs; i++) {
        mpfr_set_si(e, -2 * i, RN);
        mpfr_div_si(e, e, d->rotary_dim, RN);
        mpfr_pow(omega[i], base, e, RN);
    }
}

/* r ln(L / 2 pi beta) / (2 ln theta): the pair that turns beta times over the original length. */
static void yarn_corner(const oracle *o, double beta, mpfr_t y) {
    const rope_desc *d = &o->desc;
    mpfr_t t;
    mpfr_init2(t, ORACLE_BITS);
    mpfr_const_pi(t, RN);
    mpfr_mul_d(t, t, beta, RN);
    mpfr_mul_ui(t, t, 2, RN);
    mpfr_si_div(y, (long)d->original_max_position_embeddings, t, RN);
    mpfr_log(y, y, RN);
    mpfr_mul_si(y, y, d->rotary_dim, RN);
    mpfr_set_d(t, d->rope_theta, RN);
    mpfr_log(t, t, RN);
    mpfr_mul_ui(t, t, 2, RN);
    mpfr_div(y, y, t, RN);
    mpfr_clear(t);
}

/* omega becomes its mean with omega / factor, weighted by kept and part, of which at most one is
 * outside 0 and their sum: it counts as 0 then. */
static void blend(oracle *o, mpfr_t omega, mpfr_t kept, mpfr_t part) {
    mpfr_ptr sum = o->t[4], scaled = o->t[5];
    mpfr_add(sum, kept, part, RN);
    int sign = mpfr_sgn(sum);
    mpfr_div_d(scaled, omega, o->desc.factor, RN);
    if (mpfr_sgn(part) * sign <= 0)
        return;
    if (mpfr_sgn(kept) * sign <= 0) {
        mpfr_set(omega, scaled, RN);
        return;
    }
    mpfr_mul(omega, omega, kept, RN);
    mpfr_mul(scaled, scaled, part, RN);
    mpfr_add(omega, omega, scaled, RN);
    mpfr_div(omega, omega, sum, RN);
}

static void yarn(oracle *o, mpfr_t *omega) {
    const rope_desc *d = &o->desc;
    mpfr_ptr low = o->t[0], high = o->t[1], ramp = o->t[2], kept = o->t[3];
    yarn_corner(o, d->beta_fast, low);
    yarn_corner(o, d->beta_slow, high);
    if (d->truncate != ROPE_TRUNCATE_OFF) {
        mpfr_floor(low, low);
        mpfr_ceil(high, high);
    }
    if (mpfr_sgn(low) < 0)
        mpfr_set_ui(low, 0, RN);
    if (mpfr_cmp_si(high, d->rotary_dim - 1) > 0)
        mpfr_set_si(high, d->rotary_dim - 1, RN);
    if (mpfr_equal_p(low, high)) {
        mpfr_set_ui(ramp, 1, RN);
        mpfr_div_ui(ramp, ramp, 1000, RN);
        mpfr_add(high, high, ramp, RN);
    }
    for (int32_t i = 0; i < o->pairs; i++) {
        mpfr_si_sub(ramp, i, low, RN);
        mpfr_sub_si(kept, high, i, RN);
        blend(o, omega[i], kept, ramp);
    }
}

/* Wavelengths below L/high keep, above L/low are scaled, between they are blended. */
static void llama3(oracle *o, mpfr_t *omega) {
    const rope_desc *d = &o->desc;
    mpfr_ptr turns = o->t[0], above = o->t[1], below = o->t[2];
    for (int32_t i = 0; i < o->pairs; i++) {
        mpfr_const_pi(turns, RN);
        mpfr_mul_ui(turns, turns, 2, RN);
        mpfr_div(turns, omega[i], turns, RN);
        mpfr_mul_si(turns, turns, (long)d->original_max_position_embeddings, RN);
        mpfr_sub_d(above, turns, d->low_freq_factor, RN);
        mpfr_d_sub(below, d->high_freq_factor, turns, RN);
        if (d->high_freq_factor != d->low_freq_factor)
            blend(o, omega[i], above, below);
        else if (mpfr_sgn(above) < 0)
            mpfr_div_d(omega[i], omega[i], d->factor, RN);
    }
}

static void divide_by_list(oracle *o, mpfr_t *omega, const double *list) {
    for (int32_t i = 0; i < o->pairs; i++)
        mpfr_div_d(omega[i], omega[i], list[i], RN);
}

/* Only the first int(p r / 2) pairs turn. */
static void proportional(oracle *o, mpfr_t *omega) {
    const rope_desc *d = &o->desc;
    double share = d->partial_rotary_factor == 0 ? 1 : d->partial_rotary_factor;
    int32_t turning = (int32_t)(share * d->rotary_dim / 2);
    for (int32_t i = 0; i < o->pairs; i++) {
        if (i >= turning)
            mpfr_set_ui(omega[i], 0, RN);
        if (d->factor != 0)
            mpfr_div_d(omega[i], omega[i], d->factor, RN);
    }
}

/* g(f, m) = 0.1 m ln f + 1, and 1 where f <= 1. */
static void yarn_scale(mpfr_t y, double f, double m) {
    mpfr_set_ui(y, 1, RN);
    if (f <= 1)
        return;
    mpfr_set_d(y, f, RN);
    mpfr_log(y, y, RN);
    mpfr_mul_d(y, y, m, RN);
    mpfr_div_ui(y, y, 10, RN);
    mpfr_add_ui(y, y, 1, RN);
}

static void yarn_factor(oracle *o, mpfr_t factor) {
    const rope_desc *d = &o->desc;
    if (d->mscale == 0 || d->mscale_all_dim == 0) {
        yarn_scale(factor, d->factor, 1);
        return;
    }
    yarn_scale(factor, d->factor, d->mscale);
    yarn_scale(o->t[0], d->factor, d->mscale_all_dim);
    mpfr_div(factor, factor, o->t[0], RN);
}

/* sqrt(1 + ln f / ln L0), and 1 where f <= 1. */
static void longrope_factor(oracle *o, int is_long, mpfr_t factor) {
    const rope_desc *d = &o->desc;
    mpfr_ptr f = o->t[0];
    double given = is_long ? d->long_mscale : d->short_mscale;
    mpfr_set_d(factor, given, RN);
    if (given != 0)
        return;
    mpfr_set_d(f, d->factor, RN);
    if (d->factor == 0) {
        mpfr_set_si(f, (long)d->max_position_embeddings, RN);
        mpfr_div_si(f, f, (long)d->original_max_position_embeddings, RN);
    }
    mpfr_set_ui(factor, 1, RN);
    if (mpfr_cmp_ui(f, 1) <= 0)
        return;
    mpfr_log(f, f, RN);
    mpfr_set_si(factor, (long)d->original_max_position_embeddings, RN);
    mpfr_log(factor, factor, RN);
    mpfr_div(factor, f, factor, RN);
    mpfr_add_ui(factor, factor, 1, RN);
    mpfr_sqrt(factor, factor, RN);
}

static int is_long_list(const rope_desc *d, int32_t set) {
    switch (d->longrope_select) {
    case ROPE_LONGROPE_STATIC:
        return d->max_position_embeddings > d->original_max_position_embeddings;
    case ROPE_LONGROPE_SHORT:
        return 0;
    case ROPE_LONGROPE_LONG:
        return 1;
    default:
        return set;
    }
}

void oracle_rule(oracle *o, int32_t set) {
    const rope_desc *d = &o->desc;
    mpfr_t *omega = o->list[set].omega;
    mpfr_ptr factor = o->list[set].factor;
    mpfr_set_ui(factor, 1, RN);
    plain(o, omega);
    switch (d->rope_type) {
    case ROPE_TYPE_LINEAR:
        for (int32_t i = 0; i < o->pairs; i++)
            mpfr_div_d(omega[i], omega[i], d->factor, RN);
        break;
    case ROPE_TYPE_DYNAMIC:
        dynamic(o, omega);
        break;
    case ROPE_TYPE_YARN:
        yarn(o, omega);
        yarn_factor(o, factor);
        break;
    case ROPE_TYPE_LONGROPE:
        divide_by_list(o, omega, is_long_list(d, set) ? d->long_factor : d->short_factor);
        longrope_factor(o, is_long_list(d, set), factor);
        break;
    case ROPE_TYPE_LLAMA3:
        llama3(o, omega);
        break;
    case ROPE_TYPE_PROPORTIONAL:
        proportional(o, omega);
        break;
    case ROPE_TYPE_INV_FREQ:
        for (int32_t i = 0; i < o->pairs; i++)
            mpfr_set_d(omega[i], d->inv_freq[i], RN);
        break;
    default:
        break;
    }
    if (d->attention_factor != 0)
        mpfr_set_d(factor, d->attention_factor, RN);
}
