/* Rows of attention in double. */
#ifndef ROPEKIT_BENCH_ROWS_H
#define ROPEKIT_BENCH_ROWS_H

#include "bench/workload/check_result.h"
#include "tests/oracle/attention.h"

#include <stdbool.h>

/* Rows of a call in host memory whose queries and keys are rotated. */
typedef struct attention_rows {
    oracle_attention o;
    const char *out; /* element 0 */
    check_result *result;
    bool by_heads;        /* gradients of keys are sums of those of query heads, rounded to dtype */
    bool balances;        /* as oracle_results has it */
    double error, weight; /* sums of squares: of errors, and of sum p |v| */
    bool no_memory;
} attention_rows;

/* Compares query i of sequence `part` in each head of q that reads k_head: `rows` from the last
 * query on, evenly spread, each element within the bound of docs/numerics.md. */
void attention_compare(attention_rows *r, int64_t part, int64_t k_head, int64_t rows);

/* The keys or values of a head of a part in double, from its first on; NULL: no memory. */
double *attention_gather(const oracle_attention *o, const oracle_part *s, int32_t tensor,
                         int64_t head);

#endif
