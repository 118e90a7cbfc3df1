/* Queries that see no key. */
#ifndef ROPEKIT_CUDNN_HIDDEN_H
#define ROPEKIT_CUDNN_HIDDEN_H

#include "common/math/attention.h"

/* Of m queries of n keys the first ones that see none, by the masks that cuDNN has. */
ROPE_FN int64_t dnn_hidden(const rope_attention_problem *problem, int64_t m, int64_t n) {
    const int64_t right = problem->mask == ROPE_MASK_CAUSAL ? 0 : problem->window_right;
    if (n == 0)
        return m;
    if (m <= n || m - n <= right)
        return 0;
    return m - n - right;
}

#endif
