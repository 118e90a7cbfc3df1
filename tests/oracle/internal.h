/* What the files of the oracle share. */
#ifndef ROPEKIT_ORACLE_INTERNAL_H
#define ROPEKIT_ORACLE_INTERNAL_H

#include "tests/oracle/format.h"
#include "tests/oracle/oracle.h"

#include <mpfr.h>

enum { ORACLE_BITS = 256 };

typedef struct oracle_list {
    mpfr_t *omega; /* radians a position, per pair */
    mpfr_t factor; /* attention factor of forward */
} oracle_list;

/* cos and sin of a pair, and the position, list and axis they were computed for. */
typedef struct oracle_angle {
    int known;
    int32_t set;
    int64_t position;
    mpfr_t c, s;
} oracle_angle;

struct oracle {
    rope_desc desc; /* defaults filled in */
    int32_t pairs;
    int32_t sets;
    oracle_list list[2];
    uint8_t *axis; /* per pair */
    oracle_angle *angle;
    mpfr_t t[6]; /* scratch */
};

/* Fills list `set` by the descriptor's rule. */
void oracle_rule(oracle *o, int32_t set);

/* The matrix y1 = m[0] x1 - m[1] x2, y2 = m[2] x2 + m[3] x1 of one pair, and how far the
 * library's entries may be off. */
typedef struct oracle_matrix {
    mpfr_t m[4];
    double error[4];
} oracle_matrix;
void oracle_matrix_of(oracle *o, const rope_args *args, const oracle_token *token, int64_t batch,
                      int32_t pair, int32_t tensor, oracle_matrix *matrix);

#endif
