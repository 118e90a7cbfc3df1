/* The backend of cuDNN: devices of CUDA, cuDNN's attention, and the CUDA backend for the rest. */
#include "backends/cudnn/candidate_lists.h"
#include "backends/cudnn/library.h"
#include "backends/gpu/backend.h"
#include "backends/gpu/device.h"

const rope_host *gpu_host;

static const rope_candidate_list *const lists[] = {
    &dnn_attention_candidates, &dnn_attention_backward_candidates, &dnn_forward_candidates};

static rope_status device_count(int32_t *count, char *reason) {
    *count = 0;
    rope_status status = dnn_library_open(reason);
    return status == ROPE_OK ? gpu_device_count(count, reason) : status;
}

static const rope_backend backend = GPU_BACKEND(device_count);

__attribute__((visibility("default"))) const rope_backend *
rope_backend_entry(const rope_host *host);

const rope_backend *rope_backend_entry(const rope_host *host) {
    if (host->abi != ROPE_BACKEND_ABI)
        return NULL;
    gpu_host = host;
    return &backend;
}
