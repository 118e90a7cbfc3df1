/* Lines that are read soon: a kernel begins reads of them while it computes. */
#ifndef ROPEKIT_CPU_ATTENTION_SOON_H
#define ROPEKIT_CPU_ATTENTION_SOON_H

#include "backends/cpu/attention/kernel.h"

/* Of all heads of some keys, in the order of memory. */
typedef struct soon_lines {
    const char *const *row, *const *end;
    int64_t at, bytes; /* of a row */
} soon_lines;

/* Keys first..first + count - 1 of those that a block's are read ahead of. */
CPU_INLINE soon_lines find_lines(const cpu_attention_block *b, int first, int count) {
    const int most = b->ahead_count, from = first < most ? first : most,
              to = first + count < most ? first + count : most;
    return (soon_lines){b->ahead + from, b->ahead + to, 0,
                        (b->rows / b->of_head - 1) * b->ahead_step + b->ahead_bytes};
}

CPU_INLINE void read_lines(soon_lines *soon, int count) {
    for (int i = 0; i < count && soon->row < soon->end; i++) {
        __builtin_prefetch(*soon->row + soon->at, 0, 2);
        soon->at += 64;
        if (soon->at >= soon->bytes) {
            soon->at = 0;
            soon->row++;
        }
    }
}

#endif
