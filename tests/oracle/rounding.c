/* Floating formats: rounding by scaling to an integer, encodings from the rounded value. */
#include "tests/oracle/format.h"
#include "tests/oracle/oracle.h"

#include <math.h>
#include <string.h>

static const oracle_format formats[] = {
    [ROPE_F32] = {24, -149, 0x1p-24, 0x1p-150, 0x1.fffffep127},
    [ROPE_F16] = {11, -24, 0x1p-11, 0x1p-25, 65504.0},
    [ROPE_BF16] = {8, -133, 0x1p-8, 0x1p-134, 0x1.fep127},
    [ROPE_F64] = {53, -1074, 0x1p-53, 0x1p-1074, 0x1.fffffffffffffp1023},
};

const oracle_format *oracle_format_of(int32_t dtype) {
    return &formats[dtype];
}

int64_t oracle_dtype_size(int32_t dtype) {
    switch (dtype) {
    case ROPE_F32:
    case ROPE_I32:
        return 4;
    case ROPE_F16:
    case ROPE_BF16:
        return 2;
    default:
        return 8;
    }
}

double oracle_round(int32_t dtype, double x) {
    const oracle_format *format = &formats[dtype];
    if (dtype == ROPE_F64 || x == 0 || !isfinite(x))
        return x;
    int exponent;
    (void)frexp(x, &exponent);
    int unit = exponent - format->precision;
    if (unit < format->least)
        unit = format->least;
    double y = ldexp(rint(ldexp(x, -unit)), unit);
    return fabs(y) > format->largest ? copysign(INFINITY, x) : y;
}

/* Sign, exponent and significand of a number of a 16-bit format with that many significand bits. */
static uint16_t encode(double x, int bits, int least) {
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    uint16_t infinity = (uint16_t)(0x7fff >> bits << bits);
    if (isnan(x))
        return (uint16_t)(sign | infinity | 1u << (bits - 1));
    if (isinf(x))
        return sign | infinity;
    x = fabs(x);
    if (x < ldexp(1, least + bits))
        return (uint16_t)(sign | (uint16_t)ldexp(x, -least));
    int exponent;
    double fraction = frexp(x, &exponent) * 2 - 1;
    int biased = exponent - (least + bits);
    return (uint16_t)(sign | (biased << bits) | (int)ldexp(fraction, bits));
}

static double decode(uint16_t h, int bits, int least) {
    int biased = (h & 0x7fff) >> bits, significand = h & ((1 << bits) - 1);
    double x = biased == 0x7fff >> bits ? (significand ? NAN : INFINITY)
               : biased == 0            ? ldexp(significand, least)
                                        : ldexp(significand + (1 << bits), least + biased - 1);
    return h & 0x8000 ? -x : x;
}

double oracle_load(int32_t dtype, const void *array, int64_t index) {
    const char *at = (const char *)array + index * oracle_dtype_size(dtype);
    double d;
    float f;
    uint16_t h;
    switch (dtype) {
    case ROPE_F64:
        memcpy(&d, at, sizeof d);
        return d;
    case ROPE_F32:
        memcpy(&f, at, sizeof f);
        return f;
    default:
        memcpy(&h, at, sizeof h);
        return decode(h, dtype == ROPE_F16 ? 10 : 7, formats[dtype].least);
    }
}

void oracle_store(int32_t dtype, void *array, int64_t index, double x) {
    char *at = (char *)array + index * oracle_dtype_size(dtype);
    float f = (float)x;
    uint16_t h;
    switch (dtype) {
    case ROPE_F64:
        memcpy(at, &x, sizeof x);
        return;
    case ROPE_F32:
        memcpy(at, &f, sizeof f);
        return;
    default:
        h = encode(oracle_round(dtype, x), dtype == ROPE_F16 ? 10 : 7, formats[dtype].least);
        memcpy(at, &h, sizeof h);
    }
}

int oracle_accepts(int32_t dtype, double got, double value, double bound) {
    if (isinf(bound))
        return 1;
    if (bound == 0)
        return isnan(value) ? isnan(got) : got == value && !signbit(got) == !signbit(value);
    if (isnan(value))
        return !isfinite(got);
    if (isinf(got) && fabs(value) + bound > formats[dtype].largest)
        return bound > fabs(value) || signbit(got) == signbit(value);
    return fabs(got - value) <= bound;
}
