/* Lines that a kernel prefetches while it computes. */
#ifndef ROPEKIT_CPU_ATTENTION_PREFETCH_H
#define ROPEKIT_CPU_ATTENTION_PREFETCH_H

#include "backends/cpu/attention/kernel.h"

/* Of all heads of some keys, in the order of memory. */
typedef struct prefetch_lines {
    const char *const *row, *const *end;
    int64_t at, bytes; /* of a row */
} prefetch_lines;

/* Of keys first..first + count - 1 of those that are read next. */
CPU_INLINE prefetch_lines lines_to_prefetch(const cpu_attention_block *b, int first, int count) {
    const int most = b->ahead_count, from = first < most ? first : most,
              to = first + count < most ? first + count : most;
    return (prefetch_lines){b->ahead + from, b->ahead + to, 0,
                            (b->rows / b->of_head - 1) * b->ahead_step + b->ahead_bytes};
}

CPU_INLINE void prefetch_next(prefetch_lines *prefetch, int count) {
    for (int i = 0; i < count && prefetch->row < prefetch->end; i++) {
        __builtin_prefetch(*prefetch->row + prefetch->at, 0, 2);
        prefetch->at += 64;
        if (prefetch->at >= prefetch->bytes) {
            prefetch->at = 0;
            prefetch->row++;
        }
    }
}

#endif
