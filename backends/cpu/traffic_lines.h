/*
 * Copies and updates of whole cache lines in the vectors of the file that includes this: the floors
 * beside which that file's kernel is timed.
 */
#ifndef ROPEKIT_CPU_TRAFFIC_LINES_H
#define ROPEKIT_CPU_TRAFFIC_LINES_H

#include "backends/cpu/head.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

enum { TRAFFIC_LINE = 64, TRAFFIC_PAGE = 4096, TRAFFIC_PAGES = 4 };
enum { TRAFFIC_COPIES, TRAFFIC_STREAMS, TRAFFIC_UPDATES };

#if defined(__AVX512F__)
typedef __m512i traffic_vector;
#define TRAFFIC_STREAM(target, vector) _mm512_stream_si512((void *)(target), vector)
#elif defined(__AVX2__)
typedef __m256i traffic_vector;
#define TRAFFIC_STREAM(target, vector) _mm256_stream_si256(target, vector)
#elif defined(__SSE2__)
typedef __m128i traffic_vector;
#define TRAFFIC_STREAM(target, vector) _mm_stream_si128(target, vector)
#else
typedef uint64_t traffic_vector __attribute__((vector_size(16)));
#define TRAFFIC_STREAM(target, vector) memcpy(target, &(vector), sizeof(vector))
#endif

enum { TRAFFIC_PARTS = TRAFFIC_LINE / sizeof(traffic_vector) };

typedef struct traffic_line {
    traffic_vector part[TRAFFIC_PARTS];
} traffic_line;

CPU_INLINE traffic_line traffic_load(const char *source) {
    traffic_line line;
#pragma GCC unroll 4
    for (int i = 0; i < TRAFFIC_PARTS; i++) /* of whole lines gcc makes a string move for AVX2 */
        memcpy(&line.part[i], source + i * sizeof line.part[i], sizeof line.part[i]);
    return line;
}

/* The target of a streaming store is aligned to a line. An update changes the lowest bit of every
 * 16-bit element, so that no store can be left out and no number leaves its class. */
CPU_INLINE void traffic_store(int kind, char *target, traffic_line line) {
#pragma GCC unroll 4
    for (int i = 0; i < TRAFFIC_PARTS; i++) {
        traffic_vector *to = (traffic_vector *)target + i;
        if (kind == TRAFFIC_UPDATES)
            line.part[i] ^= (traffic_vector){0} + 0x0001000100010001;
        if (kind == TRAFFIC_STREAMS)
            TRAFFIC_STREAM(to, line.part[i]);
        else
            memcpy(to, &line.part[i], sizeof *to);
    }
}

/* Loads some lines, then stores them. */
CPU_INLINE void traffic_block(int kind, int lines, char *target, const char *source) {
    traffic_line line[8];
#pragma GCC unroll 8
    for (int i = 0; i < lines; i++)
        line[i] = traffic_load(source + i * TRAFFIC_LINE);
#pragma GCC unroll 8
    for (int i = 0; i < lines; i++)
        traffic_store(kind, target + i * TRAFFIC_LINE, line[i]);
    __asm__ volatile("" ::: "memory"); /* keeps a loop from becoming a call of memcpy */
}

CPU_INLINE void traffic_bytes(int kind, char *target, const char *source, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        target[i] = kind == TRAFFIC_UPDATES ? (char)(source[i] ^ 1) : source[i];
}

CPU_INLINE void traffic_in_order(int kind, char *target, const char *source, size_t bytes) {
    const size_t block = 8 * (size_t)TRAFFIC_LINE;
    size_t i = 0;
    for (; i + block <= bytes; i += block)
        traffic_block(kind, 8, target + i, source + i);
    for (; i + TRAFFIC_LINE <= bytes; i += TRAFFIC_LINE)
        traffic_block(kind, 1, target + i, source + i);
    traffic_bytes(kind, target + i, source + i, bytes - i);
}

/* Four pages side by side keep more of memory's banks and prefetchers busy than one. */
CPU_INLINE void traffic_by_pages(int kind, char *target, const char *source, size_t bytes) {
    const size_t pages = (size_t)TRAFFIC_PAGES * TRAFFIC_PAGE, step = 2 * (size_t)TRAFFIC_LINE;
    size_t i = 0;
    for (; i + pages <= bytes; i += pages)
        for (size_t j = i; j < i + TRAFFIC_PAGE; j += step)
            for (size_t k = j; k < j + pages; k += TRAFFIC_PAGE)
                traffic_block(kind, 2, target + k, source + k);
    traffic_in_order(kind, target + i, source + i, bytes - i);
}

static void traffic_copy(char *target, const char *source, size_t bytes) {
    traffic_in_order(TRAFFIC_COPIES, target, source, bytes);
}

/* Whole lines around the cache, in order or by pages. */
CPU_INLINE void traffic_stream(int by_pages, char *target, const char *source, size_t bytes) {
    size_t head = -(uintptr_t)target % TRAFFIC_LINE;
    head = head < bytes ? head : bytes;
    traffic_bytes(TRAFFIC_COPIES, target, source, head);
    if (by_pages)
        traffic_by_pages(TRAFFIC_STREAMS, target + head, source + head, bytes - head);
    else
        traffic_in_order(TRAFFIC_STREAMS, target + head, source + head, bytes - head);
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

static void traffic_stream_in_order(char *target, const char *source, size_t bytes) {
    traffic_stream(0, target, source, bytes);
}

static void traffic_stream_by_pages(char *target, const char *source, size_t bytes) {
    traffic_stream(1, target, source, bytes);
}

static void traffic_update(char *target, const char *source, size_t bytes) {
    (void)source;
    traffic_in_order(TRAFFIC_UPDATES, target, target, bytes);
}

static void traffic_update_by_pages(char *target, const char *source, size_t bytes) {
    (void)source;
    traffic_by_pages(TRAFFIC_UPDATES, target, target, bytes);
}

static const cpu_traffic traffic_lines = {traffic_copy, traffic_stream_in_order,
                                          traffic_stream_by_pages, traffic_update,
                                          traffic_update_by_pages};

#endif
