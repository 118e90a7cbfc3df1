#include "common/frequency/real.h"

#include <math.h>
#include <string.h>

__extension__ typedef unsigned __int128 uint128;

enum { WORDS = ROPE_REAL_WORDS, BITS = 64 * WORDS };

const rope_real rope_real_turn = {
    {0xfe5163abdebbc562u, 0xdb6295993c439041u, 0xfc2757d1f534ddc0u, 0xa2f9836e4e441529u}, -2, 1};

static const rope_real log_two = {
    {0x8a0d175b8baafa2cu, 0x40f343267298b62du, 0xc9e3b39803f2f6afu, 0xb17217f7d1cf79abu}, 0, 1};

static const rope_real zero = {{0}, 0, 1};

static int is_zero(const rope_real *x) {
    return x->m[WORDS - 1] == 0;
}

/* The words of m shifted down by 0 or more bits. */
static void shift_down(uint64_t m[WORDS], int64_t bits) {
    for (int i = 0; i < WORDS; i++) {
        int64_t word = i + bits / 64;
        uint64_t low = word < WORDS ? m[word] : 0, high = word + 1 < WORDS ? m[word + 1] : 0;
        m[i] = bits % 64 ? (low >> bits % 64) | (high << (64 - bits % 64)) : low;
    }
}

/* Shifts m up until its top bit is set. */
static rope_real normalize(rope_real x) {
    int words = 0;
    while (words < WORDS && x.m[WORDS - 1 - words] == 0)
        words++;
    if (words == WORDS)
        return zero;
    int bits = __builtin_clzll(x.m[WORDS - 1 - words]);
    for (int i = WORDS - 1; i >= 0; i--) {
        uint64_t high = i >= words ? x.m[i - words] : 0;
        uint64_t low = i > words ? x.m[i - words - 1] : 0;
        x.m[i] = bits ? (high << bits) | (low >> (64 - bits)) : high;
    }
    x.exponent -= 64 * words + bits;
    return x;
}

static int compare_words(const uint64_t *a, const uint64_t *b) {
    for (int i = WORDS - 1; i >= 0; i--)
        if (a[i] != b[i])
            return a[i] < b[i] ? -1 : 1;
    return 0;
}

static rope_real of_integer(uint64_t magnitude, int32_t sign) {
    rope_real x = {{0, 0, 0, magnitude}, 64, sign};
    return normalize(x);
}

rope_real rope_real_of(double x) {
    int exponent;
    double fraction = frexp(fabs(x), &exponent);
    rope_real y = of_integer((uint64_t)ldexp(fraction, 53), x < 0 ? -1 : 1);
    if (!is_zero(&y))
        y.exponent += exponent - 53;
    return y;
}

rope_real rope_real_ratio(int64_t numerator, int64_t denominator) {
    uint64_t n = numerator < 0 ? 0 - (uint64_t)numerator : (uint64_t)numerator;
    rope_real x = of_integer(n, numerator < 0 ? -1 : 1);
    return denominator == 1 ? x : rope_real_divide(x, of_integer((uint64_t)denominator, 1));
}

rope_real rope_real_negate(rope_real x) {
    x.sign = -x.sign;
    return x;
}

/* x + y of one sign, x the larger. */
static rope_real add_magnitudes(rope_real x, rope_real y) {
    uint64_t carry = 0;
    for (int i = 0; i < WORDS; i++) {
        uint128 sum = (uint128)x.m[i] + y.m[i] + carry;
        x.m[i] = (uint64_t)sum;
        carry = (uint64_t)(sum >> 64);
    }
    if (carry) {
        shift_down(x.m, 1);
        x.m[WORDS - 1] |= UINT64_C(1) << 63;
        x.exponent++;
    }
    return x;
}

/* x - y of one sign, x the larger. */
static rope_real subtract_magnitudes(rope_real x, rope_real y) {
    uint64_t borrow = 0;
    for (int i = 0; i < WORDS; i++) {
        uint128 difference = (uint128)x.m[i] - y.m[i] - borrow;
        x.m[i] = (uint64_t)difference;
        borrow = (uint64_t)(difference >> 64) & 1;
    }
    return normalize(x);
}

rope_real rope_real_add(rope_real x, rope_real y) {
    if (is_zero(&y))
        return x;
    if (is_zero(&x))
        return y;
    if (x.exponent < y.exponent || (x.exponent == y.exponent && compare_words(x.m, y.m) < 0)) {
        rope_real larger = y;
        y = x;
        x = larger;
    }
    shift_down(y.m, (int64_t)x.exponent - y.exponent);
    return x.sign == y.sign ? add_magnitudes(x, y) : subtract_magnitudes(x, y);
}

rope_real rope_real_subtract(rope_real x, rope_real y) {
    return rope_real_add(x, rope_real_negate(y));
}

rope_real rope_real_multiply(rope_real x, rope_real y) {
    uint64_t product[2 * WORDS] = {0};
    if (is_zero(&x) || is_zero(&y))
        return zero;
    for (int i = 0; i < WORDS; i++) {
        uint64_t carry = 0;
        for (int j = 0; j < WORDS; j++) {
            uint128 sum = (uint128)x.m[i] * y.m[j] + product[i + j] + carry;
            product[i + j] = (uint64_t)sum;
            carry = (uint64_t)(sum >> 64);
        }
        product[i + WORDS] = carry;
    }
    int below = product[2 * WORDS - 1] >> 63 == 0; /* 0.m 0.m may be less than a half */
    for (int i = 0; i < WORDS; i++)
        x.m[i] =
            below ? (product[i + WORDS] << 1) | (product[i + WORDS - 1] >> 63) : product[i + WORDS];
    x.exponent += y.exponent - below;
    x.sign *= y.sign;
    return x;
}

/* By Newton's steps from the reciprocal of a double, each of which doubles its bits. */
rope_real rope_real_divide(rope_real x, rope_real y) {
    rope_real two = of_integer(2, 1), fraction = y;
    fraction.exponent = 0;
    fraction.sign = 1;
    rope_real r = rope_real_of(1 / ldexp((double)(y.m[WORDS - 1] >> 11), -53));
    for (int i = 0; i < 3; i++)
        r = rope_real_multiply(r, rope_real_subtract(two, rope_real_multiply(fraction, r)));
    r.exponent -= y.exponent;
    r.sign = y.sign;
    return rope_real_multiply(x, r);
}

static rope_real divide_by_word(rope_real x, uint32_t divisor) {
    uint64_t rest = 0;
    for (int i = WORDS - 1; i >= 0; i--) {
        uint128 part = ((uint128)rest << 64) | x.m[i];
        x.m[i] = (uint64_t)(part / divisor);
        rest = (uint64_t)(part % divisor);
    }
    return normalize(x);
}

/* exp(x) = 2^k exp(r / 2^12)^(2^12), |r| <= ln(2) / 2, by 20 terms of Taylor's series. */
rope_real rope_real_exp(rope_real x) {
    enum { HALVINGS = 12, TERMS = 20 };
    const rope_real one = of_integer(1, 1);
    double multiple = nearbyint(rope_real_double(x) / 0x1.62e42fefa39efp-1);
    rope_real r = rope_real_subtract(x, rope_real_multiply(rope_real_of(multiple), log_two));
    if (is_zero(&r))
        r = zero;
    else
        r.exponent -= HALVINGS;
    rope_real sum = one;
    for (uint32_t n = TERMS; n > 0; n--)
        sum = rope_real_add(one, divide_by_word(rope_real_multiply(sum, r), n));
    for (int i = 0; i < HALVINGS; i++)
        sum = rope_real_multiply(sum, sum);
    sum.exponent += (int32_t)multiple;
    return sum;
}

/* ln(2^k m) = k ln 2 + 2 atanh((m - 1) / (m + 1)), m within a factor sqrt(2) of 1: of the series
 * 2 (z + z^3/3 + ...), |z| < 0.172, what follows 50 terms is below 2^-256. */
rope_real rope_real_log(rope_real x) {
    enum { TERMS = 50 };
    const rope_real one = of_integer(1, 1);
    int32_t k = x.exponent;
    x.exponent = 0;
    if (x.m[WORDS - 1] < 0xb504f333f9de6484u) { /* below sqrt(1/2) */
        x.exponent = 1;
        k--;
    }
    rope_real z = rope_real_divide(rope_real_subtract(x, one), rope_real_add(x, one));
    rope_real square = rope_real_multiply(z, z), sum = zero;
    for (uint32_t n = TERMS; n-- > 0;)
        sum = rope_real_add(divide_by_word(one, 2 * n + 1), rope_real_multiply(sum, square));
    sum = rope_real_multiply(sum, z);
    if (!is_zero(&sum))
        sum.exponent++;
    return rope_real_add(sum, rope_real_multiply(rope_real_of(k), log_two));
}

rope_real rope_real_floor(rope_real x) {
    if (is_zero(&x))
        return x;
    int64_t below = (int64_t)BITS - x.exponent; /* bits of the fraction */
    rope_real whole = x;
    shift_down(whole.m, below < BITS ? below : BITS);
    whole.exponent = BITS;
    whole = normalize(whole);
    if (x.sign > 0 || rope_real_compare(whole, x) == 0)
        return whole;
    return rope_real_subtract(whole, of_integer(1, 1));
}

int rope_real_compare(rope_real x, rope_real y) {
    rope_real difference = rope_real_subtract(x, y);
    return is_zero(&difference) ? 0 : difference.sign;
}

/* m shifted down, rounded to nearest, ties to even; 1 <= bits <= BITS. */
static void round_down(uint64_t m[WORDS], int64_t bits) {
    uint64_t part[WORDS];
    memcpy(part, m, sizeof part);
    shift_down(part, bits - 1);
    int half = part[0] & 1, odd = part[0] >> 1 & 1, sticky = 0;
    for (int i = 0; i < WORDS; i++) {
        uint64_t below = bits - 1 >= 64 * (i + 1) ? UINT64_MAX
                         : bits - 1 > 64 * i      ? (UINT64_C(1) << (bits - 1 - 64 * i)) - 1
                                                  : 0;
        sticky |= (m[i] & below) != 0;
    }
    shift_down(m, bits);
    uint64_t carry = half && (sticky || odd);
    for (int i = 0; i < WORDS && carry; i++)
        carry = ++m[i] == 0;
}

double rope_real_double(rope_real x) {
    if (is_zero(&x) || x.exponent < -1080)
        return 0;
    if (x.exponent > 1024)
        return x.sign * INFINITY;
    int kept = x.exponent < -1021 ? 53 + 1021 + x.exponent : 53; /* a subnormal has fewer bits */
    if (kept < 0)
        return 0;
    int exponent = x.exponent - kept;
    round_down(x.m, BITS - kept);
    return x.sign * ldexp((double)x.m[0], exponent);
}

void rope_real_fixed(rope_real x, int fraction_bits, uint64_t *high, uint64_t *low) {
    int64_t below = (int64_t)BITS - x.exponent - fraction_bits; /* bits that are dropped */
    *high = *low = 0;
    if (is_zero(&x) || below > BITS || below < 1)
        return;
    round_down(x.m, below);
    uint128 value = ((uint128)x.m[1] << 64) | x.m[0];
    if (x.sign < 0)
        value = -value;
    *high = (uint64_t)(value >> 64);
    *low = (uint64_t)value;
}
