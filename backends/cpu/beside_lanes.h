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

/* Fewer bytes than a vector has, by two moves that may overlap each other. */
static CPU_APART void lanes_copy_less(char *out, const char *in, int64_t bytes) {
#pragma GCC unroll 8
    for (int most = 2 * LANES; most >= 2; most /= 2)
        if (bytes >= most) {
            memcpy(out, in, (size_t)most);
            memcpy(out + bytes - most, in + bytes - most, (size_t)most);
            return;
        }
}

/* An even number of bytes to where none of them lies; what goes around the cache is whole vectors.
 */
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

/* What lies before a window, and behind it. */
CPU_INLINE void lanes_copy_before(lanes_kind kind, const lanes_heads *heads, const char *in,
                                  char *out) {
    lanes_copy(kind, heads, out - heads->before, in - heads->before, heads->before);
}

CPU_INLINE void lanes_copy_after(lanes_kind kind, const lanes_heads *heads, const char *in,
                                 char *out) {
    lanes_copy(kind, heads, out, in, heads->after);
}

/* The same apart, for kernels that fetch, which are large. */
static CPU_APART void lanes_before_fetched(int stream, const lanes_heads *heads, const char *in,
                                           char *out) {
    const lanes_kind kind = {.fetch = 1}, streaming = {.fetch = 1, .stream = 1};
    if (stream)
        lanes_copy_before(streaming, heads, in, out);
    else
        lanes_copy_before(kind, heads, in, out);
}

static CPU_APART void lanes_after_fetched(int stream, const lanes_heads *heads, const char *in,
                                          char *out) {
    const lanes_kind kind = {.fetch = 1}, streaming = {.fetch = 1, .stream = 1};
    if (stream)
        lanes_copy_after(streaming, heads, in, out);
    else
        lanes_copy_after(kind, heads, in, out);
}

/* What lies beside the windows of some heads of some tokens. */
static CPU_APART void lanes_beside_fetched(int stream, const lanes_heads *heads, int64_t window,
                                           int tokens) {
    for (int t = 0; t < tokens; t++)
        for (int64_t h = 0; h < heads->count; h++) {
            const char *in = heads->in + t * heads->in_step + h * heads->in_stride;
            char *out = heads->out + t * heads->out_step + h * heads->out_stride;
            lanes_before_fetched(stream, heads, in, out);
            lanes_after_fetched(stream, heads, in + window, out + window);
        }
}

#endif
