/* The backend's candidates. */
#ifndef ROPEKIT_CPU_CANDIDATE_LISTS_H
#define ROPEKIT_CPU_CANDIDATE_LISTS_H

#include <ropekit/backend.h>

extern const rope_candidate_list cpu_append_candidates;
extern const rope_candidate_list cpu_append_backward_candidates;
extern const rope_candidate_list cpu_attention_candidates;
extern const rope_candidate_list cpu_attention_backward_candidates;
extern const rope_candidate_list cpu_attention_merge_candidates;
extern const rope_candidate_list cpu_rope_candidates;
extern const rope_candidate_list cpu_membench_candidates; /* "copy" and "update" */

#endif
