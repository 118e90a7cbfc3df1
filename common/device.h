/* An opened device. */
#ifndef ROPEKIT_COMMON_DEVICE_H
#define ROPEKIT_COMMON_DEVICE_H

#include <ropekit/backend.h>

struct rope_device {
    const rope_backend *backend;
    int32_t index;
};

/* The index-th candidate of an operation that this device can run; NULL past the last. */
const rope_candidate *rope_device_candidate(const rope_device *device, const char *operation,
                                            int32_t index);

#endif
