/* Candidates of each operation. */
#ifndef ROPEKIT_CUDNN_CANDIDATE_LISTS_H
#define ROPEKIT_CUDNN_CANDIDATE_LISTS_H

#include <ropekit/backend.h>

extern const rope_candidate_list dnn_attention_candidates, dnn_attention_backward_candidates,
    dnn_forward_candidates;

#endif
