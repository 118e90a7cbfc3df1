/* What a comparison of elements found. */
#ifndef ROPEKIT_BENCH_CHECK_RESULT_H
#define ROPEKIT_BENCH_CHECK_RESULT_H

#include <stdint.h>

typedef struct check_result {
    int64_t elements;
    int64_t refused;  /* elements outside their bound */
    int64_t steps;    /* append, attention: elements compared with those of steps, among these */
    double max_error; /* largest absolute error of a finite element */
    double worst;     /* largest error over its bound; the element below is the one */
    double bound, got, value;
    int32_t tensor; /* 0: q, 1: k, 2: v, CHECK_OUT and on: results of attention */
    int64_t batch, token, head, dim;
} check_result;

enum { CHECK_OUT = 3 };
extern const char *const check_tensors[]; /* their names */

/* Where an element lies. */
typedef struct check_place {
    int32_t tensor;
    int64_t batch, token, head, dim;
} check_place;
/* Compares an element of dtype with its true value. */
void check_element(check_result *r, int32_t dtype, const check_place *at, double got, double value,
                   double bound);

#endif
