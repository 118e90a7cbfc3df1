/* Heads of any number of pairs whose pairing may change, by any arithmetic. */
#ifndef ROPEKIT_CPU_ANY_LANES_H
#define ROPEKIT_CPU_ANY_LANES_H

#include "backends/cpu/beside_lanes.h"

/* A head of any number of pairs. A window whose pairing changes in place is first set aside. */
CPU_INLINE void lanes_rotate_any_head(lanes_kind kind, const lanes_heads *frame, const char *in,
                                      char *out, const cpu_row *row, char *aside) {
    const int64_t window = 2 * (int64_t)frame->pairs * cpu_dtype_size(kind.dtype);
    const char *from = in;
    if (kind.in_pairing != kind.out_pairing && in == out) {
        memcpy(aside, in, (size_t)window);
        from = aside;
    }
    lanes_copy_before(kind, frame, in, out);
    lanes_rotate_window(kind, frame, in, from, out, row);
    lanes_copy_after(kind, frame, in + window, out + window);
}

CPU_INLINE void lanes_rotate_any(lanes_kind kind, const lanes_heads *heads, const cpu_row *rows,
                                 int tokens) {
    const lanes_heads frame = *heads; /* stores may alias what the pointers lead to */
    char aside[2 * CPU_MAX_PAIRS * 4];
    int64_t outer = frame.by_head ? frame.count : tokens,
            inner = frame.by_head ? tokens : frame.count;
    for (int64_t i = 0; i < outer; i++)
        for (int64_t j = 0; j < inner; j++) {
            int64_t t = frame.by_head ? j : i, h = frame.by_head ? i : j;
            const cpu_row row = rows[t];
            lanes_rotate_any_head(kind, &frame, frame.in + t * frame.in_step + h * frame.in_stride,
                                  frame.out + t * frame.out_step + h * frame.out_stride, &row,
                                  aside);
        }
}

#endif
