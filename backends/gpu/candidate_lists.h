/* The backend's candidates. */
#ifndef ROPEKIT_GPU_CANDIDATE_LISTS_H
#define ROPEKIT_GPU_CANDIDATE_LISTS_H

#include <ropekit/backend.h>

extern const rope_candidate_list gpu_rope_candidates;
extern const rope_candidate_list gpu_append_candidates;
extern const rope_candidate_list gpu_append_backward_candidates;
extern const rope_candidate_list gpu_attention_candidates;
extern const rope_candidate_list gpu_attention_backward_candidates;
extern const rope_candidate_list gpu_attention_merge_candidates;
extern const rope_candidate_list gpu_decode_candidates;
extern const rope_candidate_list gpu_decode_attention_candidates; /* of ROPEKIT_SM90 */
extern const rope_candidate_list gpu_traffic_candidates;          /* "copy" and "update" */

#endif
