/* The backend that common/gpu makes of a runtime's aliases. */
#ifndef ROPEKIT_GPU_BACKEND_H
#define ROPEKIT_GPU_BACKEND_H

#include <ropekit/backend.h>

/* NULL for a host of another ABI. */
const rope_backend *gpu_backend_for(const rope_host *host);

#endif
