/* Turns a position of a frequency, in fixed point. */
#ifndef ROPEKIT_COMMON_TURNS_H
#define ROPEKIT_COMMON_TURNS_H

#include <stdint.h>

/* omega / 2pi times 2^128, modulo 2^128, truncated towards zero in magnitude; |omega| < 2^63. */
void rope_turns(double omega, uint64_t *top, uint64_t *low);

/* The same times 2^64, rounded to nearest. */
uint64_t rope_turns_rounded(uint64_t top, uint64_t low);

#endif
