/* Matrix products of a warp group: 64 rows by 64 to 256 columns by 16 elements, added in fp32. */
#ifndef ROPEKIT_GPU_ATTENTION_SM90_WGMMA_H
#define ROPEKIT_GPU_ATTENTION_SM90_WGMMA_H

#include "backends/gpu/attention/sm90/ptx.h"

/* Ahead of products whose registers other instructions have written. */
GPU_FN void sm90_products_begin(void) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* Ends a group of products. */
GPU_FN void sm90_products_end(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Until at most so many groups are left. */
template <int GROUPS> GPU_FN void sm90_products_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(GROUPS) : "memory");
}

/* Keeps the compiler from reading sums ahead of a wait. */
template <int N> GPU_FN void sm90_settle(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

/* A matrix in shared memory, swizzled by 128 bytes, as products are told of it: the low word counts
 * in 16 bytes, so offsets are added to it. leading: from 64 columns to the next, where rows are
 * not side by side in memory. */
GPU_FN uint32_t sm90_matrix(uint32_t address, uint32_t leading) {
    return (address >> 4) + (leading >> 4 << 16);
}

GPU_FN uint64_t sm90_descriptor(uint32_t matrix) {
    uint64_t descriptor;
    asm("mov.b64 %0, {%1, %2};" : "=l"(descriptor) : "r"(matrix), "n"(0x40000040));
    return descriptor;
}

#define SM90_SUMS_32(d)                                                                            \
    "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),            \
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),    \
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), \
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), \
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define SM90_SUMS_64(d)                                                                            \
    SM90_SUMS_32(d), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), \
        "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), \
        "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), \
        "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), \
        "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])

#define SM90_SUMS_40(d)                                                                            \
    SM90_SUMS_32(d), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), \
        "+f"(d[38]), "+f"(d[39])
#define SM90_SUMS_48(d)                                                                            \
    SM90_SUMS_40(d), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), \
        "+f"(d[46]), "+f"(d[47])
#define SM90_SUMS_96(d)                                                                            \
    SM90_SUMS_64(d), "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), \
        "+f"(d[70]), "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), \
        "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), \
        "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), \
        "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define SM90_SUMS_128(d)                                                                           \
    SM90_SUMS_96(d), "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]),             \
        "+f"(d[101]), "+f"(d[102]), "+f"(d[103]), "+f"(d[104]), "+f"(d[105]), "+f"(d[106]),        \
        "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]), "+f"(d[112]),        \
        "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]),        \
        "+f"(d[119]), "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]),        \
        "+f"(d[125]), "+f"(d[126]), "+f"(d[127])

#define SM90_REGISTERS_32                                                                          \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "             \
    "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SM90_REGISTERS_64                                                                          \
    SM90_REGISTERS_32                                                                              \
    ", "                                                                                           \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

#define SM90_REGISTERS_40                                                                          \
    SM90_REGISTERS_32                                                                              \
    ", "                                                                                           \
    "%32, %33, %34, %35, %36, %37, %38, %39"
#define SM90_REGISTERS_48                                                                          \
    SM90_REGISTERS_40                                                                              \
    ", "                                                                                           \
    "%40, %41, %42, %43, %44, %45, %46, %47"
#define SM90_REGISTERS_96                                                                          \
    SM90_REGISTERS_64                                                                              \
    ", "                                                                                           \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, "        \
    "%81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define SM90_REGISTERS_128                                                                         \
    SM90_REGISTERS_96                                                                              \
    ", "                                                                                           \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "       \
    "%111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, "   \
    "%126, %127"

/* n: columns. a, b, last: operands behind the sums. rows: "1" where rows of b lie side by side. */
#define SM90_PRODUCT_OF_SHARED(type, n, sums, a0, b0, last)                                        \
    SM90_PRODUCT_BY_ROWS(type, n, sums, a0, b0, last, "0")
#define SM90_PRODUCT_BY_ROWS(type, n, sums, a0, b0, last, rows)                                    \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" last ", 0; "                                   \
                 "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type                    \
                 " {" SM90_REGISTERS_##sums "}, %" a0 ", %" b0 ", p, 1, 1, 0, " rows "; }"         \
                 : SM90_SUMS_##sums(d)                                                             \
                 : "l"(a), "l"(b), "r"(adds))
#define SM90_SCORES_64(type) SM90_PRODUCT_OF_SHARED(type, "64", 32, "32", "33", "34")
#define SM90_SCORES_80(type) SM90_PRODUCT_OF_SHARED(type, "80", 40, "40", "41", "42")
#define SM90_SCORES_96(type) SM90_PRODUCT_OF_SHARED(type, "96", 48, "48", "49", "50")
#define SM90_SCORES_128(type) SM90_PRODUCT_OF_SHARED(type, "128", 64, "64", "65", "66")

/* n: columns. at, b, adds: operands behind the sums. */
#define SM90_PRODUCT_OF_REGISTERS(type, n, sums, a0, a1, a2, a3, at, last)                         \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" last ", 0; "                                   \
                 "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type                    \
                 " {" SM90_REGISTERS_##sums "}, {%" a0 ", %" a1 ", %" a2 ", %" a3 "}, %" at        \
                                            ", p, 1, 1, 1; }"                                      \
                 : SM90_SUMS_##sums(d)                                                             \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds))
#define SM90_PRODUCT_64(type)                                                                      \
    SM90_PRODUCT_OF_REGISTERS(type, "64", 32, "32", "33", "34", "35", "36", "37")
#define SM90_PRODUCT_128(type)                                                                     \
    SM90_PRODUCT_OF_REGISTERS(type, "128", 64, "64", "65", "66", "67", "68", "69")
#define SM90_PRODUCT_192(type)                                                                     \
    SM90_PRODUCT_OF_REGISTERS(type, "192", 96, "96", "97", "98", "99", "100", "101")
#define SM90_PRODUCT_256(type)                                                                     \
    SM90_PRODUCT_OF_REGISTERS(type, "256", 128, "128", "129", "130", "131", "132", "133")

/* d = a * b, or d + a * b where `adds`; rows of a and columns of b lie in shared memory with their
 * 16 elements side by side. */
template <int DTYPE> GPU_FN void sm90_multiply(float (&d)[40], uint64_t a, uint64_t b, int adds) {
    if (DTYPE == ROPE_BF16)
        SM90_SCORES_80("bf16");
    else
        SM90_SCORES_80("f16");
}

template <int DTYPE> GPU_FN void sm90_multiply(float (&d)[32], uint64_t a, uint64_t b, int adds) {
    if (DTYPE == ROPE_BF16)
        SM90_SCORES_64("bf16");
    else
        SM90_SCORES_64("f16");
}

template <int DTYPE> GPU_FN void sm90_multiply(float (&d)[48], uint64_t a, uint64_t b, int adds) {
    if (DTYPE == ROPE_BF16)
        SM90_SCORES_96("bf16");
    else
        SM90_SCORES_96("f16");
}

template <int DTYPE> GPU_FN void sm90_multiply(float (&d)[64], uint64_t a, uint64_t b, int adds) {
    if (DTYPE == ROPE_BF16)
        SM90_SCORES_128("bf16");
    else
        SM90_SCORES_128("f16");
}

/* The same of a b whose rows lie side by side. */
template <int DTYPE>
GPU_FN void sm90_multiply_by_rows(float (&d)[64], uint64_t a, uint64_t b, int adds) {
    if (DTYPE == ROPE_BF16)
        SM90_PRODUCT_BY_ROWS("bf16", "128", 64, "64", "65", "66", "1");
    else
        SM90_PRODUCT_BY_ROWS("f16", "128", 64, "64", "65", "66", "1");
}

/* The product of an a in registers; rows of b lie side by side in shared memory. */
template <int DTYPE>
GPU_FN void sm90_multiply(float (&d)[32], const uint32_t *a, uint64_t b, int adds) {
    if (DTYPE == ROPE_BF16)
        SM90_PRODUCT_64("bf16");
    else
        SM90_PRODUCT_64("f16");
}

template <int DTYPE>
GPU_FN void sm90_multiply(float (&d)[64], const uint32_t *a, uint64_t b, int adds) {
    if (DTYPE == ROPE_BF16)
        SM90_PRODUCT_128("bf16");
    else
        SM90_PRODUCT_128("f16");
}

template <int DTYPE>
GPU_FN void sm90_multiply(float (&d)[96], const uint32_t *a, uint64_t b, int adds) {
    if (DTYPE == ROPE_BF16)
        SM90_PRODUCT_192("bf16");
    else
        SM90_PRODUCT_192("f16");
}

template <int DTYPE>
GPU_FN void sm90_multiply(float (&d)[128], const uint32_t *a, uint64_t b, int adds) {
    if (DTYPE == ROPE_BF16)
        SM90_PRODUCT_256("bf16");
    else
        SM90_PRODUCT_256("f16");
}

#undef SM90_PRODUCT_256
#undef SM90_PRODUCT_192
#undef SM90_PRODUCT_128
#undef SM90_PRODUCT_64
#undef SM90_PRODUCT_OF_REGISTERS
#undef SM90_SCORES_128
#undef SM90_SCORES_96
#undef SM90_SCORES_80
#undef SM90_SCORES_64
#undef SM90_PRODUCT_OF_SHARED
#undef SM90_PRODUCT_BY_ROWS
#undef SM90_REGISTERS_128
#undef SM90_REGISTERS_96
#undef SM90_REGISTERS_64
#undef SM90_REGISTERS_48
#undef SM90_REGISTERS_40
#undef SM90_REGISTERS_32
#undef SM90_SUMS_128
#undef SM90_SUMS_96
#undef SM90_SUMS_64
#undef SM90_SUMS_48
#undef SM90_SUMS_40
#undef SM90_SUMS_32

#endif
