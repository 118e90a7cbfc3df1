/* Elements of 16 bits by codes of 8, by permutations of bytes of 128. */
#include "backends/cpu/append/kernel.h"

#include <immintrin.h>

/* Of 256 bytes those of codes. */
static inline __m512i look_up(const uint8_t *table, __m512i x) {
    __m512i part[4];
    memcpy(part, table, sizeof part);
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(x),
                                  _mm512_permutex2var_epi8(part[0], x, part[1]),
                                  _mm512_permutex2var_epi8(part[2], x, part[3]));
}

/* Codes are put where unpacking in quarters leaves them in order. */
void cpu_look_up_vbmi(const uint8_t table[512], const char *x, char *y, int64_t n) {
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    for (int64_t left = n; left > 0; left -= 64, x += 64, y += 128) {
        const __mmask64 there = left < 64 ? (1ull << left) - 1 : ~0ull;
        const __m512i codes = _mm512_permutexvar_epi64(order, _mm512_maskz_loadu_epi8(there, x)),
                      low = look_up(table, codes), high = look_up(table + 256, codes);
        _mm512_mask_storeu_epi16(y, (__mmask32)there, _mm512_unpacklo_epi8(low, high));
        _mm512_mask_storeu_epi16(y + 64, (__mmask32)(there >> 32), _mm512_unpackhi_epi8(low, high));
    }
}
