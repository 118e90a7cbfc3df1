#include "tests/rope/compare.h"

#include "tests/support/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char message[512];

/* One tensor's output, in rows of a head each, in the order [batch, token, head]. */
typedef struct output_view {
    int64_t count[4], stride[4], rows;
    size_t at;          /* of element 0 in the arena */
    int64_t size, step; /* bytes of an element, and from one to the next of a row */
} output_view;

static output_view output_of(const test_case *c, const rope_desc *desc, const rope_args *args,
                             int32_t tensor) {
    const rope_tensor *t = tensor ? &args->k : &args->q;
    output_view v = {.count = {args->batch, args->tokens, t->heads, case_head_dim(desc, tensor)}};
    int64_t in[4];
    oracle_strides(desc, args, tensor, in, v.stride);
    v.rows = v.count[0] * v.count[1] * v.count[2];
    v.size = oracle_dtype_size(desc->dtype);
    v.step = v.stride[3] * v.size;
    v.at = t->out ? (size_t)((const unsigned char *)t->out - c->arena) : 0;
    return v;
}

static size_t row_at(const output_view *v, int64_t row) {
    int64_t h = row % v->count[2], t = row / v->count[2] % v->count[1];
    int64_t b = row / v->count[2] / v->count[1];
    return v->at + (size_t)((b * v->stride[0] + t * v->stride[1] + h * v->stride[2]) * v->size);
}

static void copy_elements(unsigned char *to, int64_t to_step, const unsigned char *from,
                          int64_t from_step, int64_t count, int64_t size) {
    if (to_step == size && from_step == size)
        memcpy(to, from, (size_t)(count * size));
    else
        for (int64_t i = 0; i < count; i++)
            memcpy(to + i * to_step, from + i * from_step, (size_t)size);
}

const char *compare_untouched(const test_case *c, const rope_desc *desc, const rope_args *args,
                              const unsigned char *result) {
    unsigned char *expected = malloc(c->bytes);
    memcpy(expected, c->arena, c->bytes);
    for (int32_t tensor = 0; tensor < 2; tensor++) {
        output_view v = output_of(c, desc, args, tensor);
        for (int64_t i = 0; i < v.rows; i++)
            copy_elements(expected + row_at(&v, i), v.step, result + row_at(&v, i), v.step,
                          v.count[3], v.size);
    }
    size_t i = c->bytes;
    if (memcmp(expected, result, c->bytes) != 0)
        for (i = 0; expected[i] == result[i];)
            i++;
    free(expected);
    if (i == c->bytes)
        return NULL;
    snprintf(message, sizeof message, "byte %zu of the arena changed and is not of an output", i);
    return message;
}

static void canonical_nans(int32_t dtype, unsigned char *dense, int64_t count, int64_t size) {
    for (int64_t i = 0; i < count; i++)
        if (oracle_is_nan(dtype, dense, i))
            memset(dense + i * size, 0xff, (size_t)size);
}

void *compare_gather(const test_case *c, const rope_desc *desc, const rope_args *args,
                     const unsigned char *result, size_t *bytes) {
    output_view v[2] = {output_of(c, desc, args, 0), output_of(c, desc, args, 1)};
    int64_t size = v[0].size, at = 0, count = v[0].rows * v[0].count[3] + v[1].rows * v[1].count[3];
    unsigned char *dense = malloc((size_t)(count * size) + 1);
    for (int32_t tensor = 0; tensor < 2; tensor++)
        for (int64_t i = 0; i < v[tensor].rows; i++, at += v[tensor].count[3] * size)
            copy_elements(dense + at, size, result + row_at(&v[tensor], i), v[tensor].step,
                          v[tensor].count[3], size);
    canonical_nans(desc->dtype, dense, count, size);
    *bytes = (size_t)at;
    return dense;
}
