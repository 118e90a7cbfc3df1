/* Lines that a kernel prefetches while it computes. */
#ifndef ROPEKIT_CPU_ATTENTION_PREFETCH_H
#define ROPEKIT_CPU_ATTENTION_PREFETCH_H

#include "backends/cpu/attention/kernel.h"

/* Rows to prefetch, of all heads of some keys in the order of memory. Loops keep a copy, which
 * compilers hold in registers: a line is then three instructions beside their products. */
typedef struct prefetch_rows {
    const char *const *row, *const *end;
    int64_t bytes;           /* of a row */
    const char *line, *past; /* of the row before `row` */
    int shift;               /* rows have so many times fewer bytes, of codes, than elements */
} prefetch_rows;

/* The next line, or where rows have codes a part of it. */
CPU_INLINE void prefetch_line(prefetch_rows *prefetch) {
    if (prefetch->line >= prefetch->past) {
        if (prefetch->row >= prefetch->end)
            return;
        prefetch->line = *prefetch->row++;
        prefetch->past = prefetch->line + prefetch->bytes;
    }
    __builtin_prefetch(prefetch->line, 0, 2);
    prefetch->line += 64 >> prefetch->shift;
}

CPU_INLINE void prefetch_lines(prefetch_rows *prefetch, int count) {
#pragma GCC unroll 1
    for (int i = 0; i < count; i++)
        prefetch_line(prefetch);
}

/* Of keys first..first + count - 1 of those that are read next. */
CPU_INLINE prefetch_rows rows_ahead(const cpu_attention_block *b, int first, int count) {
    const int most = b->ahead_count, from = first < most ? first : most,
              to = first + count < most ? first + count : most;
    return (prefetch_rows){
        .row = b->ahead + from,
        .end = b->ahead + to,
        .bytes = (b->rows / b->of_head - 1) * b->ahead_step + b->ahead_bytes,
        .shift = b->codes[0].append || b->codes[1].append,
    };
}

#endif
