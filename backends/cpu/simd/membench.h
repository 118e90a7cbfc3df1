/* Copies and updates of whole cache lines in the vectors of the file that includes this: the floors
 * with which that file's kernel is compared. */
#ifndef ROPEKIT_CPU_SIMD_MEMBENCH_H
#define ROPEKIT_CPU_SIMD_MEMBENCH_H

#include "backends/cpu/membench.h"
#include "backends/cpu/simd/element.h"

enum { MEMBENCH_LINE = 64, MEMBENCH_PAGE = 4096, MEMBENCH_PAGES = 4 };
enum { MEMBENCH_COPIES, MEMBENCH_STREAMS, MEMBENCH_UPDATES };
enum { MEMBENCH_WIDTH = 4 * SIMD_LANES, MEMBENCH_MOST = 8 * MEMBENCH_LINE / MEMBENCH_WIDTH };

/* Loads some lines, then stores them: a vector at a time, since of whole lines gcc makes a string
 * move for AVX2. The target of a streaming store is aligned to a line. An update changes the lowest
 * bit of every 16-bit element, so that no store can be left out and no number leaves its class. */
CPU_INLINE void membench_block(int kind, int lines, char *target, const char *source) {
    const int vectors = lines * MEMBENCH_LINE / MEMBENCH_WIDTH;
    simd_f32 x[MEMBENCH_MOST];
#pragma GCC unroll 32
    for (int i = 0; i < vectors; i++)
        x[i] = simd_load_f(source + i * MEMBENCH_WIDTH);
#pragma GCC unroll 32
    for (int i = 0; i < vectors; i++) {
        if (kind == MEMBENCH_UPDATES)
            x[i] = (simd_f32)((simd_u32)x[i] ^ 0x00010001u);
        simd_narrow(ROPE_F32, kind == MEMBENCH_STREAMS, target + i * MEMBENCH_WIDTH, x[i]);
    }
    __asm__ volatile("" ::: "memory"); /* keeps a loop from becoming a call of memcpy */
}

CPU_INLINE void membench_bytes(int kind, char *target, const char *source, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        target[i] = kind == MEMBENCH_UPDATES ? (char)(source[i] ^ 1) : source[i];
}

CPU_INLINE void membench_in_order(int kind, char *target, const char *source, size_t bytes) {
    const size_t block = 8 * (size_t)MEMBENCH_LINE;
    size_t i = 0;
    for (; i + block <= bytes; i += block)
        membench_block(kind, 8, target + i, source + i);
    for (; i + MEMBENCH_LINE <= bytes; i += MEMBENCH_LINE)
        membench_block(kind, 1, target + i, source + i);
    membench_bytes(kind, target + i, source + i, bytes - i);
}

/* Four pages side by side keep more of memory's banks and prefetchers busy than one. */
CPU_INLINE void membench_by_pages(int kind, char *target, const char *source, size_t bytes) {
    const size_t pages = (size_t)MEMBENCH_PAGES * MEMBENCH_PAGE, step = 2 * (size_t)MEMBENCH_LINE;
    size_t i = 0;
    for (; i + pages <= bytes; i += pages)
        for (size_t j = i; j < i + MEMBENCH_PAGE; j += step)
            for (size_t k = j; k < j + pages; k += MEMBENCH_PAGE)
                membench_block(kind, 2, target + k, source + k);
    membench_in_order(kind, target + i, source + i, bytes - i);
}

static void membench_copy(char *target, const char *source, size_t bytes) {
    membench_in_order(MEMBENCH_COPIES, target, source, bytes);
}

/* Whole lines around the cache, in order or by pages. */
CPU_INLINE void membench_stream(int by_pages, char *target, const char *source, size_t bytes) {
    size_t head = -(uintptr_t)target % MEMBENCH_LINE;
    head = head < bytes ? head : bytes;
    membench_bytes(MEMBENCH_COPIES, target, source, head);
    if (by_pages)
        membench_by_pages(MEMBENCH_STREAMS, target + head, source + head, bytes - head);
    else
        membench_in_order(MEMBENCH_STREAMS, target + head, source + head, bytes - head);
    simd_fence();
}

static void membench_stream_in_order(char *target, const char *source, size_t bytes) {
    membench_stream(0, target, source, bytes);
}

static void membench_stream_by_pages(char *target, const char *source, size_t bytes) {
    membench_stream(1, target, source, bytes);
}

static void membench_update(char *target, const char *source, size_t bytes) {
    (void)source;
    membench_in_order(MEMBENCH_UPDATES, target, target, bytes);
}

static void membench_update_by_pages(char *target, const char *source, size_t bytes) {
    (void)source;
    membench_by_pages(MEMBENCH_UPDATES, target, target, bytes);
}

#define MEMBENCH_FUNCTIONS                                                                         \
    {                                                                                              \
        membench_copy, membench_stream_in_order, membench_stream_by_pages, membench_update,        \
            membench_update_by_pages                                                               \
    }

#endif
