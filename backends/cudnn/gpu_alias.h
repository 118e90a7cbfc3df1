/* The names that backends/gpu is written in, for the plugin of cuDNN: CUDA's under a name of its
 * own.
 */
#ifndef ROPEKIT_CUDNN_GPU_ALIAS_H
#define ROPEKIT_CUDNN_GPU_ALIAS_H

#define GPU_BACKEND_NAME "cudnn"
#define GPU_BACKEND_PRIORITY (-10) /* below the CPU: "auto" never takes it */

#include "backends/cuda/gpu_alias.h"

#endif
