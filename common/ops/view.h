/* Address arithmetic of strided views: extent, aliasing, overlap. */
#ifndef ROPEKIT_COMMON_VIEW_H
#define ROPEKIT_COMMON_VIEW_H

#include <stdint.h>

/* Most dimensions of a view: those of a cache. */
enum { ROPE_SPAN_DIMS = 5 };

/* The bytes of a strided view, none of its dimensions empty. Its lists are the caller's. */
typedef struct rope_span {
    int dims;
    const int64_t *count, *stride; /* elements */
    int64_t element;               /* bytes */
    uint64_t low;                  /* address of the first byte */
    uint64_t high;                 /* address past the last byte */
} rope_span;

/* Finds low and high of a span with the rest. Returns 0 when an address, or a stride in bytes, does
 * not fit 64 bits. */
int rope_span_place(rope_span *span, const void *base);

/* Of elements side by side, `bytes` in all. */
static inline int rope_span_place_contiguous(rope_span *span, const void *base, int64_t bytes) {
    span->low = (uint64_t)(uintptr_t)base;
    return !__builtin_add_overflow(span->low, (uint64_t)bytes, &span->high);
}

/* 1 when two elements may share an address: some stride does not clear what lies below it. */
int rope_span_aliases(const rope_span *span);

/* 1 when the strides of views of one range are the same. */
int rope_span_same_order(const rope_span *a, const rope_span *b);

/* 1 when it is proven modulo a stride that no byte is common, as in views of one packed QKV. */
int rope_span_interleaved(const rope_span *a, const rope_span *b);

/* 1 when the views are the same elements in the same order. */
static inline int rope_span_equal(const rope_span *a, const rope_span *b) {
    return a->low == b->low && a->high == b->high && rope_span_same_order(a, b);
}

/* 1 when it is proven that no byte is common: by range, which is quick and mostly enough, or modulo
 * a stride. */
static inline int rope_span_disjoint(const rope_span *a, const rope_span *b) {
    return a->high <= b->low || b->high <= a->low || rope_span_interleaved(a, b);
}

#endif
