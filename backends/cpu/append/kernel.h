/*
 * What an instruction set offers the operation "append": steps on elements that lie side by side.
 * Rotations are those of rope/. Every instruction set gives the same bits.
 */
#ifndef ROPEKIT_CPU_APPEND_KERNEL_H
#define ROPEKIT_CPU_APPEND_KERNEL_H

#include "backends/cpu/rope/kernel.h"
#include "common/math/norm_gradient.h"

/* What a norm sums over elements x, and its gradient over those and gradients g: d h and h of
 * norm_gradient.h. */
enum { CPU_SUM_SQUARES, CPU_SUM_ELEMENTS, CPU_SUM_DEVIATIONS, CPU_SUM_PRODUCTS, CPU_SUM_GRADIENTS };

/* The elements of a sum; g and weights of the last two alone. */
typedef struct cpu_norm_row {
    const char *x, *g, *weight;
} cpu_norm_row;

/* Elements whose node one call makes: a power of two. */
enum { CPU_NORM_BLOCK = 64 };

/* Elements of a norm whose weights are widened at once. */
enum { CPU_NORM_PART = 2048 };

/* Heads that are summed side by side: in one tree if they have a power of two of elements. */
enum { CPU_NORM_HEADS = 16, CPU_NORM_LONGEST = 512 };

/* The norm_dim elements x of some heads become y, which may be x. Strides are bytes. */
typedef struct cpu_norm_heads {
    const char *x, *weight;
    char *y;
    int64_t x_stride, weight_stride, y_stride, count;
    int64_t ahead;                  /* bytes from an x to what is prefetched with it, or 0 */
    const rope_norm_values *values; /* of the token, or NULL: each head has its own */
} cpu_norm_heads;

/* Elements of 16 bits of every code of 8. */
typedef struct cpu_code_table {
    uint8_t low[256], high[256]; /* their bytes */
    int negative;                /* CPU_CODES_ */
    /* The short form, of codes of a sign, an exponent and a mantissa below a magnitude: the element
     * is that of the mantissa, or of 8 more where the exponent is 0, and the exponent's bits, which
     * have a mask, shifted to the left. */
    uint16_t mantissa[16];
    int exponent, shift, below;
} cpu_code_table;

/* Whether a code with the highest bit is the negative of another, and of which: of what its other
 * bits are, or of what it is as a complement of two, but for -128. */
enum { CPU_CODES_ANY, CPU_CODES_BY_SIGN, CPU_CODES_BY_COMPLEMENT };

/* Elements of codes at..at + n - 1 of some rows, to rows that are `step` bytes apart. Returns
 * whether some element may have the two highest bits of its exponent. */
typedef int cpu_code_look_up(const cpu_code_table *table, const char *const *rows, int count,
                             int64_t at, int n, char *to, int64_t step);

typedef struct cpu_append_kernel {
    cpu_isa needs;
    const cpu_kernel *rope;
    /* Adds the nodes of n elements to a tree of blocks, of which only the last may be cut short. */
    void (*add)(int sum, const rope_append_steps *s, int dtype, const cpu_norm_row *row, int64_t n,
                float mean, rope_norm_tree *blocks);
    void (*normalize)(const rope_append_steps *s, int dtype, const cpu_norm_heads *heads);
    /* y = x * factor. May be in place. */
    void (*multiply)(int dtype, float factor, const char *x, char *y, int64_t n);
    /* To store_dtype: of 8 bits by x / scale. */
    void (*store)(int dtype, int store_dtype, float scale, const char *x, char *y, int64_t n);
    /* From store_dtype: of 8 bits by x * scale. */
    void (*load)(int dtype, int store_dtype, float scale, const char *x, char *y, int64_t n);
    /* For processors that cpu_has_vbmi, and of tables with exponents for others. NULL: none. */
    cpu_code_look_up *look_up, *look_up_short;
    /* The largest rope_finite_magnitude. */
    uint32_t (*largest)(int dtype, const char *x, int64_t n);
} cpu_append_kernel;

extern const cpu_append_kernel cpu_append_scalar;
extern const cpu_append_kernel cpu_append_avx2;
extern const cpu_append_kernel cpu_append_avx512;
extern const cpu_append_kernel cpu_append_avx512_bf16;
extern const cpu_append_kernel cpu_append_neon;

/* Those of AVX-512 and AVX2. */
cpu_code_look_up cpu_look_up_vbmi, cpu_look_up_avx2;

/* Bytes of an element of a tensor or a cache. */
CPU_INLINE int cpu_store_size(int dtype) {
    return dtype >= ROPE_F8E4M3 ? 1 : cpu_dtype_size(dtype);
}

/* The CPU looks at every position, place and scale first, so that a failing call writes nothing. */
rope_status cpu_append_check(const rope_append_problem *problem, const rope_append_call *call);

/* The scales of a place, of every head: over [page, slot], or of q over [batch, token]. kind:
 * ROPE_SCALE_, or 0. */
rope_status cpu_check_scales(const char *name, int kind, const rope_append_operand *operand,
                             int64_t page, int64_t slot);

/* Runs a kernel over a whole call: the run of every candidate of "append". */
rope_status cpu_append_call(const void *problem, const void *kernel, const void *call,
                            void *workspace, void *stream);

#endif
