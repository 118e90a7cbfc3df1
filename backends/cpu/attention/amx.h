/* Products of tiles by AMX, or in C where a build is to try kernels on processors without it: the
 * MATRIX_ macros of matrix.h, and the vectors beside them. */
#ifndef ROPEKIT_CPU_ATTENTION_AMX_H
#define ROPEKIT_CPU_ATTENTION_AMX_H

#if defined(ROPEKIT_EMULATE_AMX)
#include "backends/cpu/simd/portable.h"
#else
#include "backends/cpu/simd/avx512_bf16.h"
#endif

#include "backends/cpu/attention/prefetch.h"

/* Lines that are read ahead beside 32 elements of 16 keys, and beside a product of values. With one
 * for each key, or pair of keys, they are as many as are read in the meantime. More of them beside
 * rows, whose own lines come by the same buffers, took a third longer. */
enum { LINES = 12 };

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
static float multiply_row(const char *a, const char *b, int64_t b_bytes, float c) {
    float chain[2] = {0, 0};
    for (int n = 0; n < 16; n++)
        for (int i = 0; i < 2; i++)
            chain[i] = flushed(__builtin_fmaf(element(a + 4 * n + 2 * i),
                                              element(b + b_bytes * n + 2 * i), chain[i]));
    return flushed(c + flushed(chain[0] + chain[1]));
}

/* A tile of sums; of a chunk to the next b steps by b_step. */
static void multiply_tile(const char *a, int64_t a_bytes, int rows, const char *b, int columns,
                          int64_t b_step, int chunks, float *c, int64_t c_step) {
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < columns; n++) {
            float sum = 0;
            for (int k = 0; k < chunks; k++)
                sum = multiply_row(a + r * a_bytes + k * 64, b + k * b_step + n * 4,
                                   4 * (int64_t)columns, sum);
            c[r * c_step + n] = sum;
        }
}

static void multiply(int two, const char *a, int64_t a_bytes, const char *panel, int chunks,
                     float *c, int64_t c_step) {
    for (int n = 0; n < 2; n++)
        multiply_tile(a, a_bytes, two ? 32 : 16, panel + 1024 * n, 16, 2048, chunks, c + 16 * n,
                      c_step);
}

static inline void multiply_keys(const char *keys, int64_t bytes, const char *q, int rows,
                                 int chunks, prefetch_rows *prefetch, float *spare, float *c) {
    (void)prefetch, (void)spare;
    multiply_tile(keys, bytes, 16, q, rows, 64 * (int64_t)rows, chunks, c, 16);
}

static inline void multiply_values(int rows, const char *a, int64_t a_bytes, const char *panel,
                                   int64_t panel_bytes, int chunks, prefetch_rows *prefetch,
                                   float *c) {
    (void)prefetch;
    for (int n = 0; n < 4; n++)
        multiply_tile(a, a_bytes, rows, panel + n / 2 * panel_bytes + n % 2 * 1024, 16, 2048,
                      chunks, c + 16 * n, 64);
}

#define MATRIX_BEGIN() (void)0
#define MATRIX_BEGIN_KEYS(rows) (void)0
#define MATRIX_BEGIN_HEAD(q, rows, chunks, spare) (void)0
#define MATRIX_BEGIN_VALUES(rows) (void)0
#define MATRIX_END() (void)0
#else
/* gcc does not know what memory the instructions read and write. */
#define MEMORY_BARRIER() __asm__ volatile("" ::: "memory")

typedef struct shape {
    uint8_t rows, bytes; /* of a row */
} shape;

/* Shapes of tiles 0 and 1, 2 and 3, 4, and of the others. */
static void configure(shape first, shape second, shape a, shape b) {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } configuration __attribute__((aligned(64))) = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        const shape s = i < 2 ? first : i < 4 ? second : i == 4 ? a : b;
        configuration.row_bytes[i] = s.bytes;
        configuration.rows[i] = s.rows;
    }
    MEMORY_BARRIER();
    _tile_loadconfig(&configuration);
}

/* 16 or 32 rows by 32 columns. */
static void multiply(int two, const char *a, int64_t a_bytes, const char *panel, int chunks,
                     float *c, int64_t c_step) {
    const int64_t c_bytes = c_step * (int64_t)sizeof *c;
    MEMORY_BARRIER();
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
    MEMORY_BARRIER();
}

/* Tiles 4 to 7 hold q, of as many elements as there are of these. */
enum { HELD = 4 };

static inline void hold_queries(const char *q, int rows, int chunks) {
    MEMORY_BARRIER();
    if (chunks > HELD)
        return;
    _tile_loadd(4, q, 4 * rows);
    if (chunks > 1)
        _tile_loadd(5, q + 64 * rows, 4 * rows);
    if (chunks > 2)
        _tile_loadd(6, q + 128 * rows, 4 * rows);
    if (chunks > 3)
        _tile_loadd(7, q + 192 * rows, 4 * rows);
}

#define MULTIPLY_HELD(n, tile)                                                                     \
    if (chunks > (n)) {                                                                            \
        _tile_loadd(2, keys + (n)*64, bytes);                                                      \
        prefetch_lines(&lines, LINES);                                                             \
        _tile_dpbf16ps(0, 2, tile);                                                                \
    }

/* 16 keys by some rows of q. */
static inline void multiply_keys(const char *keys, int64_t bytes, const char *q, int rows,
                                 int chunks, prefetch_rows *prefetch, float *spare, float *c) {
    prefetch_rows lines = *prefetch;
    (void)spare;
    MEMORY_BARRIER();
    _tile_zero(0);
    if (chunks <= HELD) {
        MULTIPLY_HELD(0, 4)
        MULTIPLY_HELD(1, 5)
        MULTIPLY_HELD(2, 6)
        MULTIPLY_HELD(3, 7)
    }
    for (int k = 0; k < chunks && chunks > HELD; k++, keys += 64, q += 64 * rows) {
        _tile_loadd(4, q, 4 * rows);
        _tile_loadd(2, keys, bytes);
        prefetch_lines(&lines, LINES);
        _tile_dpbf16ps(0, 2, 4);
    }
    *prefetch = lines;
    _tile_stored(0, c, 64);
    MEMORY_BARRIER();
}

/* Some rows of weights by 64 elements of values, of two panels. */
static inline void multiply_values(int rows, const char *a, int64_t a_bytes, const char *panel,
                                   int64_t panel_bytes, int chunks, prefetch_rows *prefetch,
                                   float *c) {
    prefetch_rows lines = *prefetch;
    (void)rows;
    MEMORY_BARRIER();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int k = 0; k < chunks; k++, a += 64, panel += 2048) {
        _tile_loadd(4, a, a_bytes);
        _tile_loadd(5, panel, 64);
        _tile_loadd(6, panel + 1024, 64);
        prefetch_lines(&lines, LINES);
        _tile_dpbf16ps(0, 4, 5);
        _tile_dpbf16ps(1, 4, 6);
        prefetch_lines(&lines, LINES);
        _tile_loadd(5, panel + panel_bytes, 64);
        _tile_loadd(6, panel + panel_bytes + 1024, 64);
        prefetch_lines(&lines, LINES);
        _tile_dpbf16ps(2, 4, 5);
        _tile_dpbf16ps(3, 4, 6);
        prefetch_lines(&lines, LINES);
    }
    *prefetch = lines;
    _tile_stored(0, c, 256);
    _tile_stored(1, c + 16, 256);
    _tile_stored(2, c + 32, 256);
    _tile_stored(3, c + 48, 256);
    MEMORY_BARRIER();
}

static const shape whole = {16, 64};

#define MATRIX_BEGIN() configure(whole, whole, whole, whole)
#define MATRIX_BEGIN_KEYS(rows)                                                                    \
    configure((shape){16, (uint8_t)(4 * (rows))}, whole, (shape){16, (uint8_t)(4 * (rows))},       \
              (shape){16, (uint8_t)(4 * (rows))})
#define MATRIX_BEGIN_HEAD(q, rows, chunks, spare) hold_queries(q, rows, chunks)
#define MATRIX_BEGIN_VALUES(rows)                                                                  \
    configure((shape){(uint8_t)(rows), 64}, (shape){(uint8_t)(rows), 64},                          \
              (shape){(uint8_t)(rows), 64}, whole)
#define MATRIX_END() _tile_release()
#endif

#define MATRIX_MULTIPLY multiply
#define MATRIX_KEYS multiply_keys
#define MATRIX_VALUES multiply_values

#endif
