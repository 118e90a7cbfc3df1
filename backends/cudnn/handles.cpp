#include "backends/cudnn/handles.h"
#include "backends/cudnn/capture.h"

#include <atomic>
#include <stdexcept>

namespace {

/* Devices and threads beyond these make a handle for each call. */
enum { DEVICES = 64, HANDLES = 32 };
std::atomic<cudnnHandle_t> unused[DEVICES][HANDLES];

} // namespace

dnn_handle::dnn_handle(int32_t of) : device(of) {
    for (int i = 0; i < HANDLES && device < DEVICES && !handle; i++)
        if (unused[device][i].load(std::memory_order_relaxed))
            handle = unused[device][i].exchange(nullptr);
    if (handle)
        return;
    const gpuStreamCaptureMode mode = dnn_capture_relax();
    const cudnnStatus_t status = cudnn_frontend::detail::create_handle(&handle);
    dnn_capture_restore(mode);
    if (status != CUDNN_STATUS_SUCCESS)
        throw std::runtime_error(std::string("cudnnCreate: ") +
                                 cudnn_frontend::detail::get_error_string(status));
}

dnn_handle::~dnn_handle() {
    for (int i = 0; i < HANDLES && device < DEVICES; i++) {
        cudnnHandle_t none = nullptr;
        if (unused[device][i].compare_exchange_strong(none, handle))
            return;
    }
    (void)cudnn_frontend::detail::destroy_handle(handle);
}
