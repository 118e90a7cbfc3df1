/* The numbers of a generated case: ordinary ones, and the edges of each format. */
#include "tests/rope/case_parts.h"

#include <math.h>
#include <string.h>

static uint64_t special_bits(test_random *r, int32_t dtype) {
    static const uint64_t f32[] = {0x00000001, 0x80000001, 0x007fffff, 0x00800000, 0x7f7fffff,
                                   0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc12345,
                                   0x80000000, 0x00000000, 0x3f800000, 0x33000001};
    static const uint64_t f16[] = {0x0001, 0x8001, 0x03ff, 0x0400, 0x7bff, 0xfbff, 0x7c00,
                                   0xfc00, 0x7e00, 0xfe01, 0x8000, 0x0000, 0x3c00, 0x0401};
    static const uint64_t f64[] = {1,
                                   0x8000000000000001,
                                   0x000fffffffffffff,
                                   0x0010000000000000,
                                   0x7fefffffffffffff,
                                   0xffefffffffffffff,
                                   0x7ff0000000000000,
                                   0xfff0000000000000,
                                   0x7ff8000000000000,
                                   0xfff8000000000001,
                                   0x8000000000000000,
                                   0,
                                   0x3ff0000000000000,
                                   0x3ca0000000000001};
    int64_t i = random_between(r, 0, 13);
    return dtype == ROPE_F64   ? f64[i]
           : dtype == ROPE_F16 ? f16[i]
           : dtype == ROPE_F32 ? f32[i]
                               : f32[i] >> 16;
}

/* Bits of x rounded towards zero in a type; any number of the type serves. */
static uint64_t ordinary_bits(int32_t dtype, double x) {
    float f = (float)x;
    uint32_t bits;
    uint64_t wide;
    memcpy(&bits, &f, sizeof bits);
    memcpy(&wide, &x, sizeof wide);
    if (dtype == ROPE_F64)
        return wide;
    if (dtype == ROPE_F32)
        return bits;
    if (dtype == ROPE_BF16)
        return bits >> 16;
    if (fabsf(f) < 0x1p-14f)
        return bits >> 16 & 0x8000;
    return (bits >> 16 & 0x8000) | ((bits & 0x7fffffff) - 0x38000000) >> 13;
}

void case_fill_data(test_random *r, int wild, void *from, size_t bytes, int32_t dtype,
                    double scale) {
    size_t size = (size_t)oracle_dtype_size(dtype);
    for (size_t i = 0; i + size <= bytes; i += size) {
        uint64_t value = wild && random_chance(r, 4)
                             ? special_bits(r, dtype)
                             : ordinary_bits(dtype, random_real(r, -scale, scale));
        memcpy((char *)from + i, &value, size);
    }
}
