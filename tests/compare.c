#include "tests/compare.h"

#include "tests/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char message[512];

/* One tensor's output, element by element. */
typedef struct output_view {
    int64_t count[4], stride[4], elements;
    size_t at; /* of element 0 in the arena */
    size_t size;
} output_view;

static output_view output_of(const test_case *c, const rope_desc *desc, const rope_args *args,
                             int32_t tensor) {
    const rope_tensor *t = tensor ? &args->k : &args->q;
    output_view v = {.count = {args->batch, args->tokens, t->heads, case_head_dim(desc, tensor)}};
    int64_t in[4];
    oracle_strides(desc, args, tensor, in, v.stride);
    v.elements = v.count[0] * v.count[1] * v.count[2] * v.count[3];
    v.size = (size_t)oracle_dtype_size(desc->dtype);
    v.at = t->out ? (size_t)((const unsigned char *)t->out - c->arena) : 0;
    return v;
}

static size_t element_at(const output_view *v, int64_t i) {
    int64_t d = i % v->count[3], h = i / v->count[3] % v->count[2];
    int64_t t = i / v->count[3] / v->count[2] % v->count[1];
    int64_t b = i / v->count[3] / v->count[2] / v->count[1];
    int64_t at = b * v->stride[0] + t * v->stride[1] + h * v->stride[2] + d * v->stride[3];
    return v->at + (size_t)(at * (int64_t)v->size);
}

const char *compare_untouched(const test_case *c, const rope_desc *desc, const rope_args *args,
                              const unsigned char *result) {
    unsigned char *expected = malloc(c->bytes);
    memcpy(expected, c->arena, c->bytes);
    for (int32_t tensor = 0; tensor < 2; tensor++) {
        output_view v = output_of(c, desc, args, tensor);
        for (int64_t i = 0; i < v.elements; i++)
            memcpy(expected + element_at(&v, i), result + element_at(&v, i), v.size);
    }
    size_t i = 0;
    while (i < c->bytes && expected[i] == result[i])
        i++;
    free(expected);
    if (i == c->bytes)
        return NULL;
    snprintf(message, sizeof message, "byte %zu of the arena changed and is not of an output", i);
    return message;
}

static void canonical_nan(int32_t dtype, unsigned char *element, size_t size) {
    if (isnan(oracle_load(dtype, element, 0)))
        memset(element, 0xff, size);
}

void *compare_gather(const test_case *c, const rope_desc *desc, const rope_args *args,
                     const unsigned char *result, size_t *bytes) {
    output_view v[2] = {output_of(c, desc, args, 0), output_of(c, desc, args, 1)};
    size_t size = v[0].size, count = (size_t)(v[0].elements + v[1].elements), at = 0;
    unsigned char *dense = malloc(count * size + 1);
    for (int32_t tensor = 0; tensor < 2; tensor++)
        for (int64_t i = 0; i < v[tensor].elements; i++, at += size) {
            memcpy(dense + at, result + element_at(&v[tensor], i), size);
            canonical_nan(desc->dtype, dense + at, size);
        }
    *bytes = at;
    return dense;
}
