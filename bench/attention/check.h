/* Outputs of attention: bit for bit beside its steps, and a sample of rows in double. */
#ifndef ROPEKIT_BENCH_ATTENTION_CHECK_H
#define ROPEKIT_BENCH_ATTENTION_CHECK_H

#include "bench/workload/check_result.h"
#include "bench/workload/workload_set.h"
#include "tests/oracle/attention.h"

/* Rows of a call in host memory whose queries and keys are rotated. */
typedef struct attention_rows {
    oracle_attention o;
    const char *out; /* element 0 */
    check_result *result;
    double error, weight; /* sums of squares: of errors, and of sum p |v| */
    bool no_memory;
} attention_rows;

/* Compares query i of sequence `part` in each head of q that reads k_head: `rows` from the last
 * query on, evenly spread, each element within the bound of docs/numerics.md. */
void attention_compare(attention_rows *r, int64_t part, int64_t k_head, int64_t rows);

/* The keys or values of a head of a part in double, from its first on; NULL: no memory. */
double *attention_gather(const oracle_attention *o, const oracle_part *s, int32_t tensor,
                         int64_t head);

/* Runs the call over set 0, then its steps over the same memory, and compares what they wrote; then
 * the rows of a sample, or all where `whole`. rms, unless NULL, receives the root mean square of
 * errors over that of sum p |v|. False after a message, also where there is nothing to compare. */
bool attention_check(workload *w, bool whole, check_result *result, double *rms);

#endif
