#include "common/turns.h"

#include <math.h>

__extension__ typedef unsigned __int128 uint128;

/* 1/2pi times 2^256, truncated. */
static const uint64_t inverse_two_pi[4] = {0x7f9458eaf7aef158u, 0x36d8a5664f10e410u,
                                           0x7f09d5f47d4d3770u, 0x28be60db9391054au};

/* Word `index` of floor(2^256/2pi) >> shift. */
static uint64_t window_word(int shift, int index) {
    int word = index + shift / 64, bits = shift % 64;
    uint64_t low = word < 4 ? inverse_two_pi[word] : 0;
    uint64_t high = word + 1 < 4 ? inverse_two_pi[word + 1] : 0;
    return bits == 0 ? low : (low >> bits) | (high << (64 - bits));
}

/*
 * omega = m 2^e with a 53-bit m. The window holds floor(2^(e+192)/2pi) modulo 2^192, so the product
 * with m carries 64 bits below the result and its truncation is below 2^-11 of the last place.
 */
void rope_turns(double omega, uint64_t *top, uint64_t *low) {
    int exponent;
    uint64_t m = (uint64_t)ldexp(frexp(fabs(omega), &exponent), 53);
    int shift = 256 - (exponent - 53 + 192);
    uint64_t w[3];
    for (int i = 0; i < 3; i++)
        w[i] = window_word(shift, i);
    uint128 p0 = (uint128)m * w[0];
    uint128 p1 = (uint128)m * w[1] + (uint64_t)(p0 >> 64);
    uint128 p2 = (uint128)m * w[2] + (uint64_t)(p1 >> 64);
    uint128 turns = (p2 << 64) | (uint64_t)p1;
    if (omega < 0)
        turns = -turns;
    *top = (uint64_t)(turns >> 64);
    *low = (uint64_t)turns;
}

uint64_t rope_turns_rounded(uint64_t top, uint64_t low) {
    return top + (low >> 63);
}
