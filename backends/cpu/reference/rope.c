/*
 * The reference: double throughout, with libm's own argument reduction and functions. It shares the
 * description of tokens and layouts with the fast kernels, and none of their arithmetic.
 */
#include "backends/cpu/rope/head.h"
#include "common/math/token.h"

/* cos and sin of t 2^-64 turns: the nearest quarter turn, and what is left of it in radians. */
static void exact_angle(uint64_t t, double *c, double *s) {
    uint64_t quarter = (t + ((uint64_t)1 << 61)) >> 62;
    double r = 0x1.921fb54442d18p+2 * ldexp((double)(int64_t)(t - (quarter << 62)), -64);
    double x = quarter % 2 ? -sin(r) : cos(r), y = quarter % 2 ? cos(r) : sin(r);
    *c = quarter < 2 ? x : -x;
    *s = quarter < 2 ? y : -y;
}

/* Turns of a position times 2^64, from the frequency in as many bits as the dtype promises. */
static uint64_t turns_of(const rope_problem *p, const rope_frequency_set *set, int pair,
                         int64_t position) {
    return p->dtype == ROPE_F64
               ? rope_turns_wide(position, set->turns_top[pair], set->turns_low[pair])
               : (uint64_t)position * set->turns[pair];
}

static double xpos_scale(const rope_problem *p, int pair, int64_t position, int tensor) {
    double rate = ldexp((double)p->xpos_rate[pair], -63);
    double exponent = rate * (double)rope_difference(position, p->xpos_center);
    int reciprocal = (tensor == 1) != (p->direction == ROPE_INVERSE);
    return exp2(fmin(fmax(reciprocal ? -exponent : exponent, -126), 126));
}

static rope_coefficients64 computed(const rope_problem *p, const rope_token *token, int pair,
                                    int tensor) {
    const rope_frequency_set *set = &p->set[token->set];
    int64_t position = token->at[p->pair_axis[pair]];
    double c, s, factor = set->attention_factor;
    if (p->angle_mode == ROPE_ANGLE_F32) {
        double angle = (double)((float)position * set->inv_freq[pair]);
        c = cos(angle);
        s = sin(angle);
    } else {
        exact_angle(turns_of(p, set, pair, position), &c, &s);
    }
    if (p->xpos_rate)
        factor *= xpos_scale(p, pair, position, tensor);
    double sign = p->direction == ROPE_FORWARD ? 1 : -1;
    rope_coefficients64 m = {c * factor, sign * s * factor, c * factor, sign * s * factor};
    return m;
}

static double load(int dtype, const char *base, int64_t i) {
    return dtype == ROPE_F64 ? ((const double *)base)[i] : (double)cpu_load(dtype, base, i);
}

/* The one rounding to fp32 on the way to 16 bits is part of the contract. */
static void store(int dtype, char *base, int64_t i, double x) {
    if (dtype == ROPE_F64)
        ((double *)base)[i] = x;
    else
        cpu_store(dtype, base, i, (float)x);
}

static void rotate_window(const rope_problem *p, cpu_pairs pairs, void *coefficients,
                          const cpu_head *head) {
    const rope_coefficients64 *row = coefficients;
    double x1[CPU_PART_PAIRS], x2[CPU_PART_PAIRS];
    for (int i = 0; i < pairs.count; i++) {
        int64_t first = rope_first_of(p->pairing_in, pairs.first + i);
        int64_t second = rope_second_of(p->pairing_in, pairs.first + i, p->pairs);
        x1[i] = load(p->dtype, head->in, first * head->in_stride);
        x2[i] = load(p->dtype, head->in, second * head->in_stride);
    }
    for (int i = 0; i < pairs.count; i++) {
        int64_t first = rope_first_of(p->pairing_out, pairs.first + i);
        int64_t second = rope_second_of(p->pairing_out, pairs.first + i, p->pairs);
        store(p->dtype, head->out, first * head->out_stride, x1[i] * row[i].c1 - x2[i] * row[i].s1);
        store(p->dtype, head->out, second * head->out_stride,
              x2[i] * row[i].c2 + x1[i] * row[i].s2);
    }
}

static void fill(const rope_problem *p, const rope_call *call, const rope_token *token, int tensor,
                 cpu_pairs pairs, void *row) {
    rope_coefficients64 *to = row;
    for (int i = pairs.first; i < pairs.first + pairs.count; i++)
        *to++ = p->angle_mode == ROPE_ANGLE_TABLE
                    ? rope_coefficients64_of(p, call, token, i, tensor)
                    : computed(p, token, i, tensor);
}

static void rotate(const rope_problem *p, const rope_call *call, const cpu_slice *slice) {
    static const cpu_pairwise kernel = {fill, rotate_window};
    rope_coefficients64 row[CPU_PART_PAIRS];
    cpu_rotate_pairwise(&kernel, row, p, call, slice);
}

const cpu_kernel cpu_kernel_reference = {
    .needs = CPU_ISA_SCALAR, .slice = rotate, .slice_f64 = rotate};
