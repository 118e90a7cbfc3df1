/* Matrix products of a warp group, 64 rows by 64 columns by 16 elements, added in fp32. */
#ifndef ROPEKIT_GPU_ATTENTION_BACKWARD_SM90_WGMMA_H
#define ROPEKIT_GPU_ATTENTION_BACKWARD_SM90_WGMMA_H

#include "backends/gpu/attention/sm90/wgmma.h"

#define SM90_SUMS(d)                                                                               \
    "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),            \
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),    \
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), \
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), \
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])

#define SM90_REGISTERS                                                                             \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "        \
    "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"

#define SM90_PRODUCT_OF_REGISTERS(type)                                                            \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0; "                                         \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" SM90_REGISTERS   \
                 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 0; }"                                     \
                 : SM90_SUMS(d)                                                                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds))

/* d = a * b, or d + a * b where `adds`, of an a in registers; columns of b lie in shared memory
 * with their 16 elements side by side. */
template <int DTYPE>
GPU_FN void sm90_multiply_columns(float (&d)[32], const uint32_t *a, uint64_t b, int adds) {
    if (DTYPE == ROPE_BF16)
        SM90_PRODUCT_OF_REGISTERS("bf16");
    else
        SM90_PRODUCT_OF_REGISTERS("f16");
}

#define SM90_PRODUCT_BY_ROWS(type)                                                                 \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0; "                                         \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" SM90_REGISTERS   \
                 "}, %32, %33, p, 1, 1, 0, 1; }"                                                   \
                 : SM90_SUMS(d)                                                                    \
                 : "l"(a), "l"(b), "r"(adds))

/* The same of an a in shared memory, and a b whose rows lie side by side. */
template <int DTYPE>
GPU_FN void sm90_multiply_by_rows(float (&d)[32], uint64_t a, uint64_t b, int adds) {
    if (DTYPE == ROPE_BF16)
        SM90_PRODUCT_BY_ROWS("bf16");
    else
        SM90_PRODUCT_BY_ROWS("f16");
}

#undef SM90_PRODUCT_BY_ROWS
#undef SM90_PRODUCT_OF_REGISTERS
#undef SM90_REGISTERS
#undef SM90_SUMS

#endif
