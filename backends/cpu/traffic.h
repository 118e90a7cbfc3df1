/* Copy and read-modify-write of plain memory: the floors of this machine. */
#ifndef ROPEKIT_CPU_TRAFFIC_H
#define ROPEKIT_CPU_TRAFFIC_H

#include <ropekit/backend.h>

/* Of the operations "copy" and "update". */
extern const rope_candidate_list cpu_traffic_candidates;

#endif
