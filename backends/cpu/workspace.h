/* Parts of a workspace, each at a multiple of 256 bytes. */
#ifndef ROPEKIT_CPU_WORKSPACE_H
#define ROPEKIT_CPU_WORKSPACE_H

#include <stdint.h>

/* Adds the bytes of a part, a * b * c * d of them; not 0 where they overflow. */
static inline int cpu_workspace_add(int64_t *bytes, int64_t a, int64_t b, int64_t c, int64_t d) {
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) || __builtin_mul_overflow(product, c, &product) ||
           __builtin_mul_overflow(product, d, &product) ||
           __builtin_add_overflow(product, 255, &product) ||
           __builtin_add_overflow(*bytes, product / 256 * 256, bytes);
}

#endif
