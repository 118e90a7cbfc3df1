/* What a capture of this thread forbids, and what belongs to no graph may do. */
#ifndef ROPEKIT_CUDNN_CAPTURE_H
#define ROPEKIT_CUDNN_CAPTURE_H

#include "backends/gpu/platform/runtime.h"

/* Lets this thread do it; the mode that is to be restored. */
static inline gpuStreamCaptureMode dnn_capture_relax(void) {
    gpuStreamCaptureMode mode = gpuStreamCaptureModeRelaxed;
    return gpuThreadExchangeStreamCaptureMode(&mode) == gpuSuccess ? mode
                                                                   : gpuStreamCaptureModeRelaxed;
}

static inline void dnn_capture_restore(gpuStreamCaptureMode mode) {
    (void)gpuThreadExchangeStreamCaptureMode(&mode);
}

#endif
