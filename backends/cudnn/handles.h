/* cuDNN's handles: one thread at a time uses one. */
#ifndef ROPEKIT_CUDNN_HANDLES_H
#define ROPEKIT_CUDNN_HANDLES_H

#include <cudnn.h>

#include <cstdint>
#include <cstring>
#include <unordered_map>

/* cuDNN's functions by name, a twentieth of the front end; it needs the two headers above. */
#include <cudnn_frontend_shim.h>

/* A handle of the current device, of those that no one uses; made where there is none, which
 * allocates. It goes back, without a lock, to be kept until the process ends. */
class dnn_handle {
  public:
    explicit dnn_handle(int32_t device);
    ~dnn_handle();
    dnn_handle(const dnn_handle &) = delete;
    dnn_handle &operator=(const dnn_handle &) = delete;
    cudnnHandle_t get() const { return handle; }

  private:
    cudnnHandle_t handle = nullptr;
    int32_t device;
};

#endif
