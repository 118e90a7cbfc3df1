/* What lies beside the windows of heads that are written whole. */
#ifndef ROPEKIT_CPU_BESIDE_LANES_H
#define ROPEKIT_CPU_BESIDE_LANES_H

#include "backends/cpu/rotate_lanes.h"

/* Windows are parts of heads that are written whole: those of calls out of place. */
CPU_INLINE int lanes_is_part(const rope_problem *p, const rope_operand *operand, int tensor) {
    return operand->heads && operand->in != operand->out && p->head_dim[tensor] != 2 * p->pairs;
}

/* What of a head is copied beside its window. */
CPU_INLINE void lanes_set_beside(const rope_problem *p, const rope_operand *operand, int tensor,
                                 int size, lanes_heads *heads) {
    if (!lanes_is_part(p, operand, tensor))
        return;
    heads->before = p->rotary_offset[tensor] * size;
    heads->after = (p->head_dim[tensor] - 2 * p->pairs) * size - heads->before;
}

/* An even number of bytes, less than a vector, by two moves that may overlap each other. */
static CPU_APART void lanes_copy_less(char *out, const char *in, int64_t bytes) {
#pragma GCC unroll 8
    for (int most = 2 * LANES; most >= 2; most /= 2)
        if (bytes >= most) {
            memcpy(out, in, (size_t)most);
            memcpy(out + bytes - most, in + bytes - most, (size_t)most);
            return;
        }
}

/* An even number of bytes from heads to others; what goes around the cache is whole vectors. */
CPU_INLINE void lanes_copy(lanes_kind kind, const lanes_heads *heads, char *out, const char *in,
                           int64_t bytes) {
    const int width = 4 * LANES;
    int64_t i = 0;
#pragma GCC unroll 1
    for (; i + width <= bytes; i += width) {
        const int at = (int)(i % 64);
        lanes_fetch_lines(kind, heads, in + i - at, out + i - at, at, width);
        lanes_narrow(ROPE_F32, kind.stream, out + i, lanes_load_f(in + i));
    }
    if (i < bytes && i > 0)
        lanes_store_f(out + bytes - width, lanes_load_f(in + bytes - width));
    else if (i < bytes)
        lanes_copy_less(out, in, bytes);
}

/* The same apart, for kernels of parts that fetch, which are large. */
static CPU_APART void lanes_copy_fetched(int stream, const lanes_heads *heads, char *out,
                                         const char *in, int64_t bytes) {
    const lanes_kind kind = {.fetch = 1}, streaming = {.fetch = 1, .stream = 1};
    if (stream)
        lanes_copy(streaming, heads, out, in, bytes);
    else
        lanes_copy(kind, heads, out, in, bytes);
}

CPU_INLINE void lanes_copy_beside(lanes_kind kind, const lanes_heads *heads, char *out,
                                  const char *in, int64_t bytes) {
    if (bytes && kind.part && kind.fetch)
        lanes_copy_fetched(kind.stream, heads, out, in, bytes);
    else if (bytes)
        lanes_copy(kind, heads, out, in, bytes);
}

/* What lies before a window. */
CPU_INLINE void lanes_copy_before(lanes_kind kind, const lanes_heads *heads, const char *in,
                                  char *out) {
    lanes_copy_beside(kind, heads, out - heads->before, in - heads->before, heads->before);
}

/* What lies behind a window, from where it ends. */
CPU_INLINE void lanes_copy_after(lanes_kind kind, const lanes_heads *heads, const char *in,
                                 char *out) {
    lanes_copy_beside(kind, heads, out, in, heads->after);
}

#endif
