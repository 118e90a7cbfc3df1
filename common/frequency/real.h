/*
 * Real numbers of 256 bits, for frequencies that are rounded once. Each operation is off by less
 * than 2^-254 of its result, rope_real_exp and rope_real_log by 2^-240, whatever the machine: they
 * are made of integers alone.
 */
#ifndef ROPEKIT_COMMON_FREQUENCY_REAL_H
#define ROPEKIT_COMMON_FREQUENCY_REAL_H

#include <stdint.h>

enum { ROPE_REAL_WORDS = 4 };

/* sign * 0.m * 2^exponent, the top bit of m[3] set; or 0, with m all 0. */
typedef struct rope_real {
    uint64_t m[ROPE_REAL_WORDS];
    int32_t exponent, sign;
} rope_real;

/* Turns a radian, 1/2pi. */
extern const rope_real rope_real_turn;

rope_real rope_real_of(double x);                                  /* exactly; x is finite */
rope_real rope_real_ratio(int64_t numerator, int64_t denominator); /* denominator > 0 */
rope_real rope_real_negate(rope_real x);
rope_real rope_real_add(rope_real x, rope_real y);
rope_real rope_real_subtract(rope_real x, rope_real y);
rope_real rope_real_multiply(rope_real x, rope_real y);
rope_real rope_real_divide(rope_real x, rope_real y); /* y is not 0 */
rope_real rope_real_exp(rope_real x);                 /* |x| < 2^20 */
rope_real rope_real_log(rope_real x);                 /* x > 0 */
rope_real rope_real_floor(rope_real x);               /* |x| < 2^63 */

/* Below, equal to or above 0 as x is to y. */
int rope_real_compare(rope_real x, rope_real y);

/* The nearest double, ties to even; infinite beyond the largest. */
double rope_real_double(rope_real x);

/* x 2^fraction_bits rounded to nearest, modulo 2^128: its high and its low word. |x| < 2^126. */
void rope_real_fixed(rope_real x, int fraction_bits, uint64_t *high, uint64_t *low);

#endif
