/* Products of tiles by AMX, or in C where a build is to try kernels on processors without it:
 * MATRIX_BEGIN, MATRIX_END and MATRIX_MULTIPLY, and the vectors beside them. */
#ifndef ROPEKIT_CPU_ATTENTION_AMX_H
#define ROPEKIT_CPU_ATTENTION_AMX_H

#if defined(ROPEKIT_EMULATE_AMX)
#include "backends/cpu/simd/portable.h"
#else
#define SIMD_TO_BF16_NATIVE
#include "backends/cpu/simd/avx512.h"

/* Of weights, which are 0, NaN or normal numbers. */
CPU_INLINE simd_u16 simd_to_bf16(simd_f32 x) {
    return (simd_u16)_mm512_cvtneps_pbh((__m512)x);
}
#endif

#if defined(ROPEKIT_EMULATE_AMX)
CPU_INLINE float flushed(float x) {
    return x < 0x1p-126f && x > -0x1p-126f ? 0 : x;
}

CPU_INLINE float element(const char *p) {
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return flushed(rope_from_bf16(h));
}

/* Sums of a row of one tile by a column of another, as the instruction is documented. */
static float multiply_row(const char *a, const char *b, float c) {
    float chain[2] = {0, 0};
    for (int n = 0; n < 16; n++)
        for (int i = 0; i < 2; i++)
            chain[i] = flushed(
                __builtin_fmaf(element(a + 4 * n + 2 * i), element(b + 64 * n + 2 * i), chain[i]));
    return flushed(c + flushed(chain[0] + chain[1]));
}

static void multiply(int two, const char *a, int64_t a_bytes, const char *panel, int chunks,
                     float *c, int64_t c_step) {
    for (int r = 0; r < (two ? 32 : 16); r++)
        for (int n = 0; n < 32; n++) {
            float sum = 0;
            for (int k = 0; k < chunks; k++)
                sum = multiply_row(a + r * a_bytes + k * 64,
                                   panel + (2 * k + n / 16) * 1024 + n % 16 * 4, sum);
            c[r * c_step + n] = sum;
        }
}

#define MATRIX_BEGIN() (void)0
#define MATRIX_END() (void)0
#else
/* Eight tiles of 16 rows of 64 bytes. */
static const struct {
    uint8_t palette, start, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} configuration __attribute__((aligned(64))) = {
    .palette = 1,
    .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
    .rows = {16, 16, 16, 16, 16, 16, 16, 16},
};

/* 16 or 32 rows by 32 columns. gcc does not know what memory the instructions read and write. */
static void multiply(int two, const char *a, int64_t a_bytes, const char *panel, int chunks,
                     float *c, int64_t c_step) {
    const int64_t c_bytes = c_step * (int64_t)sizeof *c;
    __asm__ volatile("" ::: "memory");
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int k = 0; k < chunks; k++, a += 64, panel += 2048) {
        _tile_loadd(4, a, a_bytes);
        _tile_loadd(6, panel, 64);
        _tile_loadd(7, panel + 1024, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (!two)
            continue;
        _tile_loadd(5, a + 16 * a_bytes, a_bytes);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, c_bytes);
    _tile_stored(1, c + 16, c_bytes);
    if (two) {
        _tile_stored(2, c + 16 * c_step, c_bytes);
        _tile_stored(3, c + 16 * c_step + 16, c_bytes);
    }
    __asm__ volatile("" ::: "memory");
}

#define MATRIX_BEGIN() _tile_loadconfig(&configuration)
#define MATRIX_END() _tile_release()
#endif

#define MATRIX_MULTIPLY multiply

#endif
