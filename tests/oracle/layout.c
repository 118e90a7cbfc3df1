/* Where the elements of a tensor lie. */
#include "tests/oracle/oracle.h"

#include <string.h>

void oracle_strides(const rope_desc *desc, const rope_args *args, int32_t tensor, int64_t in[4],
                    int64_t out[4]) {
    const rope_tensor *t = tensor ? &args->k : &args->q;
    int64_t dim = tensor && desc->k_head_dim ? desc->k_head_dim : desc->head_dim;
    int64_t zero[4] = {0}, token = t->heads * dim;
    int64_t contiguous[4] = {args->tokens * token, token, dim, 1};
    int given_in = memcmp(t->in_stride, zero, sizeof zero) != 0;
    int given_out = memcmp(t->out_stride, zero, sizeof zero) != 0;
    memcpy(in, given_in ? t->in_stride : contiguous, sizeof zero);
    memcpy(out, given_out ? t->out_stride : t->in == t->out ? in : contiguous, sizeof zero);
}
