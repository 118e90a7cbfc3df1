/* What a comparison of elements found. */
#ifndef ROPEKIT_BENCH_CHECK_RESULT_H
#define ROPEKIT_BENCH_CHECK_RESULT_H

#include <stdint.h>

/* Where an element lies: tensors are those of check_tensors. */
typedef struct check_place {
    int32_t tensor;
    int64_t batch, token, head, dim;
} check_place;
enum {
    CHECK_Q,
    CHECK_K,
    CHECK_V,
    CHECK_OUT,
    CHECK_LSE,
    CHECK_DQ,
    CHECK_DK,
    CHECK_DV,
    CHECK_TENSORS
};
extern const char *const check_tensors[];

typedef struct check_result {
    int64_t elements;
    int64_t refused;  /* elements outside their bound */
    int64_t steps;    /* elements compared with those of steps, among these */
    double rms;       /* attention: root mean square of errors of out, over that of sum p |v| */
    double max_error; /* largest absolute error of a finite element */
    double worst;     /* largest error over its bound, of the element below */
    double bound, got, value;
    check_place at;
} check_result;

/* Compares an element of dtype with its true value. */
void check_element(check_result *r, int32_t dtype, const check_place *at, double got, double value,
                   double bound);

#endif
