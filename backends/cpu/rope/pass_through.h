/* What lies before and after the windows of heads that are written whole: those of calls out of
 * place. */
#ifndef ROPEKIT_CPU_ROPE_PASS_THROUGH_H
#define ROPEKIT_CPU_ROPE_PASS_THROUGH_H

#include "backends/cpu/rope/rotate.h"

/* An even number of bytes, less than a vector, by two moves that may overlap each other. */
static CPU_NOINLINE void rope_copy_less(char *out, const char *in, int64_t bytes) {
#pragma GCC unroll 8
    for (int most = 2 * SIMD_LANES; most >= 2; most /= 2)
        if (bytes >= most) {
            memcpy(out, in, (size_t)most);
            memcpy(out + bytes - most, in + bytes - most, (size_t)most);
            return;
        }
}

/* What goes around the cache is whole vectors. */
CPU_INLINE void rope_copy_bytes(const cpu_heads *heads, int stream, char *out, const char *in,
                                int64_t bytes) {
    const int width = 4 * SIMD_LANES;
    int64_t i = 0;
    rope_prefetch(heads, stream, in, out, bytes);
#pragma GCC unroll 1
    for (; i + width <= bytes; i += width)
        simd_narrow(ROPE_F32, stream, out + i, simd_load_f(in + i));
    if (i < bytes && i > 0)
        simd_store_f(out + bytes - width, simd_load_f(in + bytes - width));
    else if (i < bytes)
        rope_copy_less(out, in, bytes);
}

CPU_INLINE void rope_copy_around(const cpu_heads *heads, int stream, int64_t window, int tokens) {
    for (int t = 0; t < tokens; t++) {
        const char *in = heads->in + t * heads->in_step;
        char *out = heads->out + t * heads->out_step;
        for (int64_t h = 0; h < heads->count; h++) {
            if (heads->before)
                rope_copy_bytes(heads, stream, out - heads->before, in - heads->before,
                                heads->before);
            if (heads->after)
                rope_copy_bytes(heads, stream, out + window, in + window, heads->after);
            in += heads->in_stride;
            out += heads->out_stride;
        }
    }
}

static void rope_pass_through(const cpu_heads *heads, int64_t window, int tokens) {
    const cpu_heads frame = *heads;
    if (heads->stream)
        rope_copy_around(&frame, 1, window, tokens);
    else
        rope_copy_around(&frame, 0, window, tokens);
}

static void rope_stream(char *target, const char *source, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 4 * SIMD_LANES)
        simd_stream_f(target + i, simd_load_f(source + i));
}

#endif
