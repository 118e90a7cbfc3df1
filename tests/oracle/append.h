/*
 * What rope_append gives, as ranges: each step takes a range to a range, the norm in exact
 * arithmetic (MPFR) with the bound of its tree, the rotation by the oracle's own matrix, every
 * rounding at its place. A range is one number wherever no rounding to a type is in doubt, else
 * the two on either side of the boundary.
 *
 * The tree over n elements adds at most L + 1 rounded operations on the way of a square to the sum
 * (L = ceil(log2 n); a square and a fused sum make the first level), so its relative error is below
 * (L + 1) 2^-24, and that of the mean below (L + 2) 2^-24. Adding eps, the root, its reciprocal and
 * the product round once each. A sum of elements has an error of L 2^-24 of the sum of their
 * magnitudes, which a layer norm's mean carries into each square.
 */
#ifndef ROPEKIT_ORACLE_APPEND_H
#define ROPEKIT_ORACLE_APPEND_H

#include "tests/oracle/append_layout.h"
#include "tests/oracle/oracle.h"

typedef struct oracle_append oracle_append;
/* Copies a descriptor that rope_append_plan_create accepts. NULL: no memory. */
oracle_append *oracle_append_create(const rope_append_desc *desc);
void oracle_append_destroy(oracle_append *o);

/* Whether a token may not be written: ORACLE_FAILS of its rotation. */
int oracle_append_fails(const oracle_append *o, const rope_append_args *args, int64_t batch,
                        int64_t token);

/*
 * The heads of a token of q, k or v: `value` in dtype (k's and v's out), `stored` in store_dtype
 * (q's out, the cache), of which `scale` has one a head; each heads * head_dim, or heads, entries.
 */
void oracle_append_token(oracle_append *o, const rope_append_args *args, int32_t tensor,
                         int64_t batch, int64_t token, oracle_range *value, oracle_range *stored,
                         oracle_range *scale);

#endif
