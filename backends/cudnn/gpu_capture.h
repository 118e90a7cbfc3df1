/* What a capture of this thread forbids, and what belongs to no graph may do. */
#ifndef ROPEKIT_CUDNN_GPU_CAPTURE_H
#define ROPEKIT_CUDNN_GPU_CAPTURE_H

#include <cuda_runtime_api.h>

typedef enum cudaStreamCaptureMode gpu_capture_mode;

/* Lets this thread do it; the mode that is to be restored. */
static inline gpu_capture_mode gpu_capture_relax(void) {
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    return cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess ? mode
                                                                     : cudaStreamCaptureModeRelaxed;
}

static inline void gpu_capture_restore(gpu_capture_mode mode) {
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
}

#endif
