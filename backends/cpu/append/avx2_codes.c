/* Elements of 16 bits by codes of 8 with an exponent: those of mantissas are permuted, exponents
 * added. */
#include "backends/cpu/append/kernel.h"

#include <immintrin.h>

typedef struct table {
    __m256i low, high; /* bytes of elements of mantissas, then of those whose exponent is 0 */
    __m256i mantissa, exponent, sign;
    __m128i shift;
} table;

static inline __m256i twice(const uint8_t bytes[16]) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)bytes));
}

static inline table table_of(const cpu_code_table *from) {
    uint8_t low[16], high[16];
    for (int i = 0; i < 16; i++) {
        low[i] = (uint8_t)from->mantissa[i];
        high[i] = (uint8_t)(from->mantissa[i] >> 8);
    }
    return (table){.low = twice(low),
                   .high = twice(high),
                   .mantissa = _mm256_set1_epi8((char)(0x7f & ~from->exponent)),
                   .exponent = _mm256_set1_epi8((char)from->exponent),
                   .sign = _mm256_set1_epi8((char)0x80),
                   .shift = _mm_cvtsi32_si128(from->shift)};
}

/* 32 codes, put where unpacking in halves leaves elements in order. */
static inline void look_up(const table *t, __m256i codes, char *to) {
    const __m256i x = _mm256_permute4x64_epi64(codes, 0xd8), zero = _mm256_setzero_si256(),
                  exponent = _mm256_and_si256(x, t->exponent),
                  small = _mm256_and_si256(_mm256_cmpeq_epi8(exponent, zero), _mm256_set1_epi8(8)),
                  index = _mm256_or_si256(_mm256_and_si256(x, t->mantissa), small),
                  low = _mm256_shuffle_epi8(t->low, index),
                  high = _mm256_xor_si256(_mm256_shuffle_epi8(t->high, index),
                                          _mm256_and_si256(x, t->sign));
    const __m256i first = _mm256_sll_epi16(_mm256_unpacklo_epi8(exponent, zero), t->shift),
                  second = _mm256_sll_epi16(_mm256_unpackhi_epi8(exponent, zero), t->shift);
    _mm256_storeu_si256((__m256i *)(void *)to,
                        _mm256_add_epi16(_mm256_unpacklo_epi8(low, high), first));
    _mm256_storeu_si256((__m256i *)(void *)(to + 32),
                        _mm256_add_epi16(_mm256_unpackhi_epi8(low, high), second));
}

/* Code by code. */
static void look_up_some(const cpu_code_table *from, const char *x, int n, char *to) {
    for (int i = 0; i < n; i++) {
        const uint8_t code = (uint8_t)x[i];
        to[2 * i] = (char)from->low[code];
        to[2 * i + 1] = (char)from->high[code];
    }
}

int cpu_look_up_avx2(const cpu_code_table *from, const char *const *rows, int count, int64_t at,
                     int n, char *to, int64_t step) {
    const table t = table_of(from);
    const __m256i most = _mm256_set1_epi8((char)(from->below - 1)),
                  magnitude = _mm256_set1_epi8(0x7f);
    const int whole = n / 32 * 32;
    for (int k = 0; k < count; k++, to += step) {
        const char *x = rows[k] + at;
        __m256i beyond = _mm256_setzero_si256();
        for (int i = 0; i < whole; i += 32) {
            const __m256i codes = _mm256_loadu_si256((const __m256i *)(const void *)(x + i));
            beyond = _mm256_or_si256(beyond,
                                     _mm256_cmpgt_epi8(_mm256_and_si256(codes, magnitude), most));
            look_up(&t, codes, to + 2 * i);
        }
        const int odd = !_mm256_testz_si256(beyond, beyond);
        look_up_some(from, x + (odd ? 0 : whole), n - (odd ? 0 : whole),
                     to + (odd ? 0 : 2 * whole));
    }
    return 1;
}
