/*
 * The gradient of one norm in double, by its definition, and how far the library's may be off: each
 * line of docs/numerics.md, "Gradients of norms", as it is there.
 */
#ifndef ROPEKIT_ORACLE_APPEND_BACKWARD_H
#define ROPEKIT_ORACLE_APPEND_BACKWARD_H

#include <ropekit/append.h>

typedef struct oracle_slope {
    double value, bound;
} oracle_slope;

/* Of n elements x, gradients g of what the norm made of them and w, what multiplies it: dx ahead of
 * its rounding to dtype, and terms g y of the gradient of each weight. dx and terms have n. */
void oracle_norm_backward(int32_t dtype, const rope_norm *norm, int64_t n, const double *x,
                          const double *g, const double *w, oracle_slope *dx, oracle_slope *terms);

/* How far a number may be off that is within `bound` of value and then rounded to dtype. */
double oracle_slope_bound(int32_t dtype, const oracle_slope *slope);

/* The same of a sum over `blocks` blocks of `chains` chains each, of terms with these bounds and
 * magnitudes in all. */
double oracle_weight_bound(double bounds, double magnitudes, int64_t chains, int64_t blocks);

#endif
