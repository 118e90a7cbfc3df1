#include "backends/gpu/backend.h"

#include "backends/gpu/candidate_lists.h"
#include "backends/gpu/device.h"

const rope_host *gpu_host;

static const rope_candidate_list *const lists[] = {&gpu_rope_candidates,
                                                   &gpu_append_candidates,
                                                   &gpu_append_backward_candidates,
                                                   &gpu_attention_candidates,
#ifdef ROPEKIT_SM90
                                                   &gpu_decode_attention_candidates,
#endif
                                                   &gpu_attention_backward_candidates,
                                                   &gpu_attention_merge_candidates,
                                                   &gpu_decode_candidates,
                                                   &gpu_traffic_candidates};

static const rope_backend backend = GPU_BACKEND(gpu_device_count);

const rope_backend *gpu_backend_for(const rope_host *host) {
    if (host->abi != ROPE_BACKEND_ABI)
        return NULL;
    gpu_host = host;
    return &backend;
}
