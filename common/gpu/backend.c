#include "common/gpu/backend.h"

#include "common/gpu/candidate_lists.h"
#include "common/gpu/device.h"

const rope_host *gpu_host;

static const rope_candidate_list *const lists[] = {&gpu_rope_candidates,
                                                   &gpu_append_candidates,
                                                   &gpu_append_backward_candidates,
                                                   &gpu_attention_candidates,
                                                   &gpu_attention_backward_candidates,
                                                   &gpu_attention_merge_candidates,
                                                   &gpu_traffic_candidates};

static const rope_backend backend = {
    .abi = ROPE_BACKEND_ABI,
    .struct_size = sizeof backend,
    .priority = GPU_BACKEND_PRIORITY,
    .name = GPU_BACKEND_NAME,
    .lists = lists,
    .list_count = sizeof lists / sizeof lists[0],
    .device_count = gpu_device_count,
    .device_info = gpu_device_info,
    .alloc = gpu_alloc,
    .free = gpu_free,
    .copy_in = gpu_copy_in,
    .copy_out = gpu_copy_out,
    .synchronize = gpu_synchronize,
    .time = gpu_time,
};

const rope_backend *gpu_backend_for(const rope_host *host) {
    if (host->abi != ROPE_BACKEND_ABI)
        return NULL;
    gpu_host = host;
    return &backend;
}
