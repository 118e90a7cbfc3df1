/* Counters of parts of a sequence, in memory that nobody clears. */
#ifndef ROPEKIT_GPU_DECODE_COUNTER_H
#define ROPEKIT_GPU_DECODE_COUNTER_H

#include "backends/gpu/element.h"

/* A counter says how many parts are there behind a mark, and holds the mark alone before and after
 * a call. Other memory was never a counter's, and becomes one. */
#define DECODE_MARK 0x726f70656b000000ull
enum { DECODE_COUNT_BITS = 24 };

GPU_FN bool decode_is_counter(unsigned long long x) {
    return x >> DECODE_COUNT_BITS == DECODE_MARK >> DECODE_COUNT_BITS;
}

/* x: what was read. None counts ahead of this, so that no count is lost. */
GPU_FN void decode_mark(unsigned long long *counter, unsigned long long x) {
    while (!decode_is_counter(x)) {
        const unsigned long long found = atomicCAS(counter, x, DECODE_MARK);
        if (found == x)
            return;
        x = found;
    }
}

#endif
