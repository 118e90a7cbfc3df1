/* Gradients of attention in double: rows of dq, and keys of dk and dv. */
#ifndef ROPEKIT_BENCH_GRADIENT_ROWS_H
#define ROPEKIT_BENCH_GRADIENT_ROWS_H

#include "bench/check/rows.h"

/* Compares gradients of a call in host memory whose queries and keys are rotated, ahead of the
 * transpose: dq of `rows` queries from the last on, evenly spread, in each head of q that reads
 * k_head, and dk and dv of as many keys. */
void attention_gradient_compare(attention_rows *r, const rope_attention_backward_args *args,
                                int64_t part, int64_t k_head, int64_t rows);

#endif
