/*
 * An operation that the library has never heard of: rows gathered from pages, which no strides
 * describe. The plugins have its kernels, registry_probe.c its arguments.
 */
#ifndef ROPEKIT_TESTS_PLUGIN_GATHER_H
#define ROPEKIT_TESTS_PLUGIN_GATHER_H

#include <ropekit/backend.h>

#define GATHER_NAME "gather"
enum { GATHER_VERSION = 3, GATHER_MAX_ROW = 256 };

typedef struct gather_problem {
    int32_t row_bytes, page_rows;
    int32_t *bound; /* kernels that are bound and not released */
} gather_problem;

typedef struct gather_call {
    const void *const *pages; /* of page_rows rows each */
    const int64_t *slots;     /* row to take: page * page_rows + row in the page */
    int64_t rows;             /* of slots, and of out */
    void *out;
} gather_call;

#endif
