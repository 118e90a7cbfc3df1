/* Copy and read-modify-write of plain memory: the floors of this machine. */
#ifndef ROPEKIT_CPU_TRAFFIC_H
#define ROPEKIT_CPU_TRAFFIC_H

#include <ropekit/backend.h>

extern const rope_operation cpu_copy_operation;
extern const rope_operation cpu_update_operation;

#endif
