/* Elements of 16 bits by codes of 8, by permutations of bytes of 128. */
#include "backends/cpu/append/kernel.h"

#include <immintrin.h>

typedef struct table {
    __m512i low[4], high[4];
} table;

typedef struct pair {
    __m512i low, high; /* bytes of 64 elements */
} pair;

/* Bytes of codes without the highest bit, or of all. */
static inline __m512i permute(int all, const __m512i *bytes, __m512i x) {
    const __m512i y = _mm512_permutex2var_epi8(bytes[0], x, bytes[1]);
    return all ? _mm512_mask_blend_epi8(_mm512_movepi8_mask(x), y,
                                        _mm512_permutex2var_epi8(bytes[2], x, bytes[3]))
               : y;
}

/* Half of the permutations where negative codes are known from positive ones. */
static inline pair look_up(int negative, const table *t, const cpu_code_table *from, __m512i x) {
    const __m512i sign = _mm512_set1_epi8((char)0x80),
                  code = negative == CPU_CODES_BY_COMPLEMENT ? _mm512_abs_epi8(x) : x;
    pair y = {permute(negative == CPU_CODES_ANY, t->low, code),
              permute(negative == CPU_CODES_ANY, t->high, code)};
    if (negative != CPU_CODES_ANY) /* high ^ (x & sign) */
        y.high = _mm512_ternarylogic_epi64(y.high, x, sign, 0x78);
    if (negative == CPU_CODES_BY_COMPLEMENT) {
        const __mmask64 least = _mm512_cmpeq_epi8_mask(x, sign);
        if (__builtin_expect(least != 0, 0)) {
            y.low = _mm512_mask_set1_epi8(y.low, least, (char)from->low[128]);
            y.high = _mm512_mask_set1_epi8(y.high, least, (char)from->high[128]);
        }
    }
    return y;
}

/* Codes are put where unpacking in quarters leaves them in order. */
static inline int look_up_rows(int negative, const cpu_code_table *from, const char *const *rows,
                               int count, int64_t at, int n, char *to, int64_t step) {
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7),
                  magnitude = _mm512_set1_epi8(0x7f);
    __m512i largest = _mm512_setzero_si512();
    table t;
    memcpy(t.low, from->low, sizeof t.low);
    memcpy(t.high, from->high, sizeof t.high);
    for (int k = 0; k < count; k++, to += step)
        for (int i = 0; i < n; i += 64) {
            const char *x = rows[k] + at + i;
            const __mmask64 there = n - i < 64 ? (1ull << (n - i)) - 1 : ~0ull;
            const __m512i codes =
                _mm512_permutexvar_epi64(order, _mm512_maskz_loadu_epi8(there, x));
            const pair y = look_up(negative, &t, from, codes);
            const __m512i first = _mm512_unpacklo_epi8(y.low, y.high),
                          second = _mm512_unpackhi_epi8(y.low, y.high);
            largest = _mm512_max_epu8(largest, _mm512_and_si512(y.high, magnitude));
            if (n - i >= 64) {
                _mm512_storeu_si512(to + 2 * i, first);
                _mm512_storeu_si512(to + 2 * i + 64, second);
            } else {
                _mm512_mask_storeu_epi16(to + 2 * i, (__mmask32)there, first);
                _mm512_mask_storeu_epi16(to + 2 * i + 64, (__mmask32)(there >> 32), second);
            }
        }
    return _mm512_cmpge_epu8_mask(largest, _mm512_set1_epi8(0x60)) != 0;
}

int cpu_look_up_vbmi(const cpu_code_table *table, const char *const *rows, int count, int64_t at,
                     int n, char *to, int64_t step) {
    switch (table->negative) {
    case CPU_CODES_BY_SIGN:
        return look_up_rows(CPU_CODES_BY_SIGN, table, rows, count, at, n, to, step);
    case CPU_CODES_BY_COMPLEMENT:
        return look_up_rows(CPU_CODES_BY_COMPLEMENT, table, rows, count, at, n, to, step);
    default:
        return look_up_rows(CPU_CODES_ANY, table, rows, count, at, n, to, step);
    }
}
