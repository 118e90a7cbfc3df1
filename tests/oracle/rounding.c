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
    [ROPE_F8E4M3] = {4, -9, 0x1p-4, 0x1p-10, 448},
    [ROPE_F8E5M2] = {3, -16, 0x1p-3, 0x1p-17, 57344},
    [ROPE_F8E4M3FNUZ] = {4, -10, 0x1p-4, 0x1p-11, 240},
    [ROPE_I8] = {0, 0, 0, 0.5, 127},
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
    case ROPE_F8E4M3:
    case ROPE_F8E5M2:
    case ROPE_F8E4M3FNUZ:
    case ROPE_I8:
        return 1;
    default:
        return 8;
    }
}

/* x 2^n in one rounding, as ldexp has it, for n from -1022 to 1023. */
static double scaled(double x, int n) {
    const uint64_t bits = (uint64_t)(n + 1023) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return x * power;
}

/* 8 bits saturate. */
static double round_to_8bit(int32_t dtype, double x) {
    const oracle_format *format = &formats[dtype];
    if (isnan(x))
        return dtype == ROPE_I8 ? 0 : x;
    if (dtype == ROPE_I8)
        return rint(fmin(fmax(x, -128), 127));
    int exponent;
    (void)frexp(x, &exponent);
    int unit =
        exponent - format->precision < format->least ? format->least : exponent - format->precision;
    if (fabs(x) > 2 * format->largest)
        return copysign(format->largest, x);
    return copysign(fmin(scaled(rint(scaled(fabs(x), -unit)), unit), format->largest), x);
}

double oracle_round(int32_t dtype, double x) {
    const oracle_format *format = &formats[dtype];
    if (oracle_dtype_size(dtype) == 1)
        return round_to_8bit(dtype, x);
    if (dtype == ROPE_F64 || x == 0 || !isfinite(x))
        return x;
    int exponent;
    (void)frexp(x, &exponent);
    int unit = exponent - format->precision;
    if (unit < format->least)
        unit = format->least;
    double y = scaled(rint(scaled(x, -unit)), unit);
    return fabs(y) > format->largest ? copysign(INFINITY, x) : y;
}

/* Exponent and significand of a finite number >= 0 of a format with that many significand bits. */
static int encode_magnitude(double x, int bits, int least) {
    if (x < scaled(1, least + bits))
        return (int)scaled(x, -least);
    int exponent;
    double fraction = frexp(x, &exponent) * 2 - 1;
    return (exponent - (least + bits)) << bits | (int)scaled(fraction, bits);
}

static uint16_t encode(double x, int bits, int least) {
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    uint16_t infinity = (uint16_t)(0x7fff >> bits << bits);
    if (isnan(x))
        return (uint16_t)(sign | infinity | 1u << (bits - 1));
    if (isinf(x))
        return sign | infinity;
    return (uint16_t)(sign | encode_magnitude(fabs(x), bits, least));
}

static double decode_magnitude(int code, int bits, int least) {
    int biased = code >> bits, significand = code & ((1 << bits) - 1);
    return biased == 0 ? scaled(significand, least)
                       : scaled(significand + (1 << bits), least + biased - 1);
}

static double decode(uint16_t h, int bits, int least) {
    int magnitude = h & 0x7fff, infinity = 0x7fff >> bits << bits;
    double x = magnitude > infinity    ? NAN
               : magnitude == infinity ? INFINITY
                                       : decode_magnitude(magnitude, bits, least);
    return h & 0x8000 ? -x : x;
}

/* x is a number of the type. NaNs have one code. */
static uint8_t encode_8bit(int32_t dtype, double x) {
    const oracle_format *format = &formats[dtype];
    if (dtype == ROPE_I8)
        return (uint8_t)(int8_t)x;
    if (isnan(x))
        return dtype == ROPE_F8E4M3FNUZ ? 0x80 : 0x7f;
    if (x == 0 && dtype == ROPE_F8E4M3FNUZ)
        return 0;
    int code = encode_magnitude(fabs(x), format->precision - 1, format->least);
    return (uint8_t)(code | (signbit(x) ? 0x80 : 0));
}

/* E5M2 is the upper half of a binary16. */
static double decode_8bit(int32_t dtype, uint8_t h) {
    const oracle_format *format = &formats[dtype];
    if (dtype == ROPE_I8)
        return h < 128 ? h : h - 256;
    if (dtype == ROPE_F8E5M2)
        return decode((uint16_t)(h << 8), 10, formats[ROPE_F16].least);
    if (dtype == ROPE_F8E4M3FNUZ ? h == 0x80 : (h & 0x7f) == 0x7f)
        return NAN;
    double x = decode_magnitude(h & 0x7f, format->precision - 1, format->least);
    return h & 0x80 ? -x : x;
}

double oracle_load(int32_t dtype, const void *array, int64_t index) {
    const char *at = (const char *)array + index * oracle_dtype_size(dtype);
    double d;
    float f;
    uint16_t h;
    if (oracle_dtype_size(dtype) == 1)
        return decode_8bit(dtype, *(const uint8_t *)at);
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

int oracle_is_nan(int32_t dtype, const void *array, int64_t index) {
    uint16_t h;
    if (dtype != ROPE_F16 && dtype != ROPE_BF16)
        return isnan(oracle_load(dtype, array, index)) != 0;
    memcpy(&h, (const char *)array + index * (int64_t)sizeof h, sizeof h);
    return (h & 0x7fff) > (dtype == ROPE_F16 ? 0x7c00 : 0x7f80);
}

void oracle_store(int32_t dtype, void *array, int64_t index, double x) {
    char *at = (char *)array + index * oracle_dtype_size(dtype);
    float f = (float)x;
    uint16_t h;
    if (oracle_dtype_size(dtype) == 1) {
        *(uint8_t *)at = encode_8bit(dtype, oracle_round(dtype, x));
        return;
    }
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
