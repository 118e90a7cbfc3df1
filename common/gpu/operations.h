/* The backend's operations, each a list of candidates. */
#ifndef ROPEKIT_GPU_OPERATIONS_H
#define ROPEKIT_GPU_OPERATIONS_H

#include <ropekit/backend.h>

extern const rope_operation gpu_rotate_operation;
extern const rope_operation gpu_copy_operation;
extern const rope_operation gpu_update_operation;

#endif
