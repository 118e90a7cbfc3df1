/*
 * The four numbers that rotate a pair, y1 = x1 c1 - x2 s1 and y2 = x2 c2 + x1 s2, with direction,
 * attention factor, XPos and the arithmetic's rounding already in them.
 */
#ifndef ROPEKIT_COMMON_COEFFICIENTS_H
#define ROPEKIT_COMMON_COEFFICIENTS_H

#include "common/math/angle.h"
#include "common/math/half.h"
#include "common/math/xpos.h"

#include <ropekit/backend.h>

typedef struct rope_coefficients {
    float c1, s1, c2, s2;
} rope_coefficients;

typedef struct rope_coefficients64 {
    double c1, s1, c2, s2;
} rope_coefficients64;

ROPE_FN float rope_round_to(int32_t dtype, float x) {
    if (dtype == ROPE_BF16)
        return rope_from_bf16(rope_to_bf16(x));
    if (dtype == ROPE_F16)
        return rope_from_f16(rope_to_f16(x));
    return x;
}

/* XPos' exponent of a pair for q (tensor 0) or k (tensor 1), whose scales are reciprocal. */
ROPE_FN int64_t rope_xpos_of(const rope_problem *problem, int pair, int64_t position, int tensor) {
    int64_t e = rope_xpos_exponent(rope_difference(position, problem->xpos_center),
                                   problem->xpos_rate[pair]);
    return (tensor == 1) != (problem->direction == ROPE_INVERSE) ? -e : e;
}

/* cos and sin of a pair before attention factor and direction. */
ROPE_FN rope_cos_sin rope_pair_angle(const rope_problem *problem, int set, int pair,
                                     int64_t position) {
    if (problem->angle_mode == ROPE_ANGLE_EXACT)
        return rope_cos_sin_turns((uint64_t)position * problem->set[set].turns[pair]);
    return rope_cos_sin_radians((float)position * problem->set[set].inv_freq[pair]);
}

ROPE_FN rope_coefficients rope_computed(const rope_problem *problem, int set, int pair,
                                        int64_t position, int tensor) {
    rope_cos_sin a = rope_pair_angle(problem, set, pair, position);
    float factor = (float)problem->set[set].attention_factor;
    float c = a.c * factor, s = a.s * factor;
    if (problem->xpos_rate) {
        float scale = rope_xpos_scale(rope_xpos_of(problem, pair, position, tensor));
        c = c * scale;
        s = s * scale;
    }
    if (problem->direction != ROPE_FORWARD)
        s = -s;
    if (problem->arithmetic == ROPE_ARITHMETIC_MODEL_DTYPE) {
        c = rope_round_to(problem->dtype, c);
        s = rope_round_to(problem->dtype, s);
    }
    rope_coefficients result = {c, s, c, s};
    return result;
}

/* An fp32 angle has fp32 coefficients, here widened; only exact angles are computed in double. */
ROPE_FN rope_coefficients64 rope_computed64(const rope_problem *problem, int set, int pair,
                                            int64_t position, int tensor) {
    const rope_frequency_set *f = &problem->set[set];
    if (problem->angle_mode == ROPE_ANGLE_F32) {
        rope_coefficients m = rope_computed(problem, set, pair, position, tensor);
        rope_coefficients64 wide = {m.c1, m.s1, m.c2, m.s2};
        return wide;
    }
    uint64_t turns = rope_turns_wide(position, f->turns_top[pair], f->turns_low[pair]);
    rope_cos_sin64 a = rope_cos_sin_turns64(turns);
    double c = a.c * f->attention_factor, s = a.s * f->attention_factor;
    if (problem->xpos_rate) {
        double scale = rope_xpos_scale64(rope_xpos_of(problem, pair, position, tensor));
        c = c * scale;
        s = s * scale;
    }
    if (problem->direction != ROPE_FORWARD)
        s = -s;
    rope_coefficients64 result = {c, s, c, s};
    return result;
}

ROPE_FN float rope_table_entry(int32_t dtype, const void *table, int64_t i) {
    if (dtype == ROPE_F32)
        return ((const float *)table)[i];
    if (dtype == ROPE_BF16)
        return rope_from_bf16(((const uint16_t *)table)[i]);
    return rope_from_f16(((const uint16_t *)table)[i]);
}

ROPE_FN double rope_table_entry64(int32_t dtype, const void *table, int64_t i) {
    return dtype == ROPE_F64 ? ((const double *)table)[i] : rope_table_entry(dtype, table, i);
}

/* Columns of a full-width table that hold a pair's first and second element. */
ROPE_FN void rope_table_columns(const rope_problem *problem, int pair, int64_t column[2]) {
    int full = problem->table_width == ROPE_TABLE_FULL;
    int interleaved = full && problem->pairing_out == ROPE_PAIRING_INTERLEAVED;
    column[0] = interleaved ? 2 * (int64_t)pair : pair;
    column[1] = interleaved ? 2 * (int64_t)pair + 1 : full ? pair + (int64_t)problem->pairs : pair;
}

/* The transpose swaps and negates the off-diagonal; the inverse divides by the determinant. */
ROPE_FN rope_coefficients rope_directed(int32_t direction, rope_coefficients m) {
    rope_coefficients r = m;
    if (direction == ROPE_TRANSPOSE) {
        r.s1 = -m.s2;
        r.s2 = -m.s1;
    } else if (direction == ROPE_INVERSE) {
        float det = fmaf(m.c1, m.c2, m.s1 * m.s2);
        r.c1 = m.c2 / det;
        r.s1 = -m.s1 / det;
        r.c2 = m.c1 / det;
        r.s2 = -m.s2 / det;
    }
    return r;
}

ROPE_FN rope_coefficients64 rope_directed64(int32_t direction, rope_coefficients64 m) {
    rope_coefficients64 r = m;
    if (direction == ROPE_TRANSPOSE) {
        r.s1 = -m.s2;
        r.s2 = -m.s1;
    } else if (direction == ROPE_INVERSE) {
        double det = fma(m.c1, m.c2, m.s1 * m.s2);
        r.c1 = m.c2 / det;
        r.s1 = -m.s1 / det;
        r.c2 = m.c1 / det;
        r.s2 = -m.s2 / det;
    }
    return r;
}

/* row: index of the table row's entry 0, batch stride included. */
ROPE_FN rope_coefficients rope_tabled(const rope_problem *problem, const rope_call *call, int pair,
                                      int64_t row) {
    int64_t column[2];
    rope_table_columns(problem, pair, column);
    int64_t i = row + column[0] * call->table_stride[2],
            j = row + column[1] * call->table_stride[2];
    rope_coefficients m;
    m.c1 = rope_table_entry(problem->table_dtype, call->cos, i);
    m.s1 = rope_table_entry(problem->table_dtype, call->sin, i);
    m.c2 = rope_table_entry(problem->table_dtype, call->cos, j);
    m.s2 = rope_table_entry(problem->table_dtype, call->sin, j);
    m = rope_directed(problem->direction, m);
    if (problem->arithmetic == ROPE_ARITHMETIC_MODEL_DTYPE) {
        m.c1 = rope_round_to(problem->dtype, m.c1);
        m.s1 = rope_round_to(problem->dtype, m.s1);
        m.c2 = rope_round_to(problem->dtype, m.c2);
        m.s2 = rope_round_to(problem->dtype, m.s2);
    }
    return m;
}

ROPE_FN rope_coefficients64 rope_tabled64(const rope_problem *problem, const rope_call *call,
                                          int pair, int64_t row) {
    int64_t column[2];
    rope_table_columns(problem, pair, column);
    int64_t i = row + column[0] * call->table_stride[2],
            j = row + column[1] * call->table_stride[2];
    rope_coefficients64 m;
    m.c1 = rope_table_entry64(problem->table_dtype, call->cos, i);
    m.s1 = rope_table_entry64(problem->table_dtype, call->sin, i);
    m.c2 = rope_table_entry64(problem->table_dtype, call->cos, j);
    m.s2 = rope_table_entry64(problem->table_dtype, call->sin, j);
    return rope_directed64(problem->direction, m);
}

/* The rotation of gradients: the transpose of the problem's, which is not ROPE_INVERSE. */
ROPE_FN rope_problem rope_transposed(const rope_problem *problem) {
    rope_problem p = *problem;
    p.direction = problem->direction == ROPE_FORWARD ? ROPE_TRANSPOSE : ROPE_FORWARD;
    p.pairing_in = problem->pairing_out;
    p.pairing_out = problem->pairing_in;
    return p;
}

#endif
