/* Results of a case against the oracle. */
#include "tests/rope/compare.h"
#include "tests/support/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

oracle *compare_oracle(const rope_desc *desc) {
    oracle *o = oracle_create(desc);
    CHECK(o != NULL, "no memory for an oracle");
    return o;
}

int compare_out_of_range(const oracle *o, const rope_args *args) {
    if (args->q.heads == 0 && args->k.heads == 0)
        return 0;
    for (int64_t i = 0; i < args->batch * args->tokens; i++)
        if (oracle_locate(o, args, i / args->tokens, i % args->tokens).status == ORACLE_FAILS)
            return 1;
    return 0;
}

/* The first element of a tensor that its bound refuses, as text, or NULL. */
static const char *refused(oracle *o, const rope_desc *desc, const rope_args *args, int32_t tensor,
                           const unsigned char *dense) {
    static char message[512];
    int64_t heads = tensor ? args->k.heads : args->q.heads, dim = case_head_dim(desc, tensor);
    int64_t elements = args->batch * args->tokens * heads * dim, i = 0;
    if (elements == 0)
        return NULL;
    double *value = malloc((size_t)elements * 2 * sizeof *value), *bound = value + elements,
           got = 0;
    oracle_apply(o, args, tensor, value, bound);
    for (; i < elements; i++) {
        got = oracle_load(desc->dtype, dense, i);
        if (!oracle_accepts(desc->dtype, got, value[i], bound[i]))
            break;
    }
    if (i < elements)
        snprintf(message, sizeof message,
                 "%c element %lld (token %lld, dim %lld) is %.17g, not %.17g within %.3g (off by "
                 "%.3g)",
                 tensor ? 'k' : 'q', (long long)i, (long long)(i / dim / heads),
                 (long long)(i % dim), got, value[i], bound[i], fabs(got - value[i]));
    free(value);
    return i < elements ? message : NULL;
}

const char *compare_values(oracle *o, const test_case *c, const rope_desc *desc,
                           const rope_args *args, const unsigned char *result) {
    size_t bytes;
    unsigned char *dense = compare_gather(c, desc, args, result, &bytes);
    int64_t k = args->batch * args->tokens * args->q.heads * case_head_dim(desc, 0);
    const char *wrong = refused(o, desc, args, 0, dense);
    if (!wrong)
        wrong = refused(o, desc, args, 1, dense + k * oracle_dtype_size(desc->dtype));
    free(dense);
    return wrong;
}
