/*
 * What an instruction set offers the operation "append_backward": a norm's gradient over elements
 * that lie side by side. Rotations and sums are those of append/. Every instruction set gives the
 * same bits.
 */
#ifndef ROPEKIT_CPU_APPEND_BACKWARD_KERNEL_H
#define ROPEKIT_CPU_APPEND_BACKWARD_KERNEL_H

#include "backends/cpu/append/context.h"

/* The norm_dim elements of some heads, ROPE_GRADIENT_CHAIN at most. Strides are bytes. */
typedef struct cpu_gradient_heads {
    const char *x, *g, *weight;
    char *dx;    /* may be g; NULL: not wanted */
    float *sums; /* products are added, in an order of the kernel's own; NULL: not wanted */
    int64_t x_stride, g_stride, weight_stride, dx_stride, sums_stride, count;
    int64_t ahead;                  /* bytes from an x to what is prefetched with it, or 0 */
    const rope_norm_slopes *slopes; /* of the token, or NULL: each head has its own */
} cpu_gradient_heads;

typedef struct cpu_append_backward_kernel {
    const cpu_append_kernel *append;
    void (*gradient)(const rope_append_steps *s, int dtype, const cpu_gradient_heads *heads);
    /* n sums of products in the order of elements: added to `to`, or stored there. They become 0.
     */
    void (*collect)(float *sums, int64_t n, int adds, float *to);
} cpu_append_backward_kernel;

extern const cpu_append_backward_kernel cpu_append_backward_scalar;
extern const cpu_append_backward_kernel cpu_append_backward_avx2;
extern const cpu_append_backward_kernel cpu_append_backward_avx512;
extern const cpu_append_backward_kernel cpu_append_backward_avx512_bf16;
extern const cpu_append_backward_kernel cpu_append_backward_neon;

/* As rope_candidate.workspace and .run of every candidate. */
rope_status cpu_append_backward_workspace(const void *problem, const void *kernel,
                                          const void *bounds, size_t *bytes);
rope_status cpu_append_backward_call(const void *problem, const void *kernel, const void *call,
                                     void *workspace, void *stream);

#endif
