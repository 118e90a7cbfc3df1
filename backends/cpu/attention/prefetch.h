/* Lines that a kernel prefetches while it computes. */
#ifndef ROPEKIT_CPU_ATTENTION_PREFETCH_H
#define ROPEKIT_CPU_ATTENTION_PREFETCH_H

#include "backends/cpu/attention/kernel.h"

/* Of all heads of some keys, in the order of memory. */
typedef struct prefetch_lines {
    const char *const *row, *const *end;
    int64_t bytes;           /* of a row */
    const char *line, *past; /* of the row before `row` */
} prefetch_lines;

/* Of keys first..first + count - 1 of those that are read next. */
CPU_INLINE prefetch_lines lines_to_prefetch(const cpu_attention_block *b, int first, int count) {
    const int most = b->ahead_count, from = first < most ? first : most,
              to = first + count < most ? first + count : most;
    return (prefetch_lines){.row = b->ahead + from,
                            .end = b->ahead + to,
                            .bytes = (b->rows / b->of_head - 1) * b->ahead_step + b->ahead_bytes};
}

CPU_INLINE void prefetch_next(prefetch_lines *prefetch, int count) {
    for (int i = 0; i < count; i++) {
        if (prefetch->line >= prefetch->past) {
            if (prefetch->row >= prefetch->end)
                return;
            prefetch->line = *prefetch->row++;
            prefetch->past = prefetch->line + prefetch->bytes;
        }
        __builtin_prefetch(prefetch->line, 0, 2);
        prefetch->line += 64;
    }
}

#endif
