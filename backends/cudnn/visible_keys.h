/* Keys that cuDNN is told of, and queries that see none. */
#ifndef ROPEKIT_CUDNN_VISIBLE_KEYS_H
#define ROPEKIT_CUDNN_VISIBLE_KEYS_H

#include "common/math/attention.h"

/* Of a sequence's keys the first ones, whose last has the last query's index where a mask counts
 * from it, as cuDNN's do; -1: there are no such ones. */
ROPE_FN int64_t dnn_keys(const rope_attention_problem *problem, const rope_attention_sequence *s) {
    const int64_t end = rope_query_index(s, s->q_count);
    if (s->q_count == 0) /* wherever a part of the sequence would begin */
        return 0;
    if (end == s->k_count || (problem->mask == ROPE_MASK_FULL && problem->window == INT64_MAX &&
                              problem->window_right == INT64_MAX))
        return s->k_count;
    if (problem->mask == ROPE_MASK_CAUSAL && end < s->k_count)
        return end > 0 ? end : 0;
    return -1;
}

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
