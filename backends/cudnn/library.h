/* cuDNN's library, opened at run time. */
#ifndef ROPEKIT_CUDNN_LIBRARY_H
#define ROPEKIT_CUDNN_LIBRARY_H

#include <ropekit/backend.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Opens cuDNN and the CUDA runtime that its front end calls, once for the process.
 * ROPE_ERROR_NO_DEVICE with a reason where one is missing or too old. */
rope_status dnn_library_open(char *reason);

#ifdef __cplusplus
}
#endif
#endif
