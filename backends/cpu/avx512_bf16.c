/* The avx512 kernel with the processor's own rounding to bfloat16. */
#define LANES_TO_BF16_NATIVE
#include "backends/cpu/lanes_avx512.h"

/* The instruction takes subnormals for zero; vectors that hold one go the integer way. */
CPU_INLINE lanes_h lanes_to_bf16(lanes_f x) {
    const int subnormal = 0x20;
    if (__builtin_expect(_mm512_fpclass_ps_mask((__m512)x, subnormal) != 0, 0))
        return lanes_low_halves(lanes_bf16_words(x));
    return (lanes_h)_mm512_cvtneps_pbh((__m512)x);
}

#include "backends/cpu/kernel_lanes.h"

const cpu_kernel cpu_kernel_avx512_bf16 = {lanes_rotate_slice};
