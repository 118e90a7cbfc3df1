#include "common/ops/view.h"

/* A constant `dims` lets the compiler unroll the loop. */
static inline int place(rope_span *span, const void *base, int dims) {
    int64_t below = 0, above = span->element;
    for (int d = 0; d < dims; d++) {
        int64_t bytes, reach;
        if (__builtin_mul_overflow(span->stride[d], span->element, &bytes) ||
            __builtin_mul_overflow(bytes, span->count[d] - 1, &reach) ||
            __builtin_add_overflow(below, reach < 0 ? reach : 0, &below) ||
            __builtin_add_overflow(above, reach > 0 ? reach : 0, &above))
            return 0;
    }
    uint64_t address = (uint64_t)(uintptr_t)base;
    return !__builtin_sub_overflow(address, 0 - (uint64_t)below, &span->low) &&
           !__builtin_add_overflow(address, (uint64_t)above, &span->high);
}

int rope_span_place(rope_span *span, const void *base) {
    return span->dims == 4 ? place(span, base, 4) : place(span, base, span->dims);
}

static int64_t magnitude(int64_t x) {
    return x < 0 ? -x : x;
}

int rope_span_aliases(const rope_span *span) {
    int64_t stride[ROPE_SPAN_DIMS], reach[ROPE_SPAN_DIMS];
    int n = 0;
    for (int d = span->dims - 1; d >= 0; d--) {
        if (span->count[d] == 1)
            continue;
        int64_t s = magnitude(span->stride[d]);
        int i = n++;
        for (; i > 0 && stride[i - 1] > s; i--) {
            stride[i] = stride[i - 1];
            reach[i] = reach[i - 1];
        }
        stride[i] = s;
        reach[i] = s * (span->count[d] - 1);
    }
    int64_t below = 1;
    for (int i = 0; i < n; i++) {
        if (stride[i] < below)
            return 1;
        below += reach[i];
    }
    return 0;
}

int rope_span_same_order(const rope_span *a, const rope_span *b) {
    for (int d = 0; d < a->dims; d++)
        if (a->count[d] > 1 && a->stride[d] != b->stride[d])
            return 0;
    return 1;
}

/* Bytes that the dimensions which are no multiple of `modulus` reach over. */
static int64_t reach_modulo(const rope_span *span, int64_t modulus) {
    int64_t reach = span->element;
    for (int d = 0; d < span->dims; d++)
        if (span->stride[d] * span->element % modulus != 0)
            reach += magnitude(span->stride[d]) * span->element * (span->count[d] - 1);
    return reach;
}

static int disjoint_modulo(const rope_span *a, const rope_span *b, int64_t modulus) {
    uint64_t m = (uint64_t)modulus;
    int64_t reach_a = reach_modulo(a, modulus), reach_b = reach_modulo(b, modulus);
    int64_t distance = (int64_t)((b->low % m + m - a->low % m) % m);
    return reach_a <= distance && reach_b <= modulus - distance;
}

int rope_span_interleaved(const rope_span *a, const rope_span *b) {
    const rope_span *both[2] = {a, b};
    for (int i = 0; i < 2; i++)
        for (int d = 0; d < both[i]->dims; d++) {
            int64_t modulus = magnitude(both[i]->stride[d]) * both[i]->element;
            if (both[i]->count[d] > 1 && modulus > 0 && disjoint_modulo(a, b, modulus))
                return 1;
        }
    return 0;
}
