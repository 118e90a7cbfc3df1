#include "common/device.h"

#include "common/abi.h"
#include "common/candidate.h"
#include "common/registry.h"
#include "common/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

rope_status rope_backend_get(int32_t index, rope_backend_info *info) {
    static _Thread_local char reason[256];
    const rope_entry *entry = rope_registry_entry(index);
    if (!info)
        return rope_fail_null("info");
    if (!entry)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "index is %d; allowed is 0..%d", index,
                         rope_registry_count() - 1);
    rope_backend_info full = {
        .name = entry->name, .origin = entry->origin, .status = ROPE_ERROR_NO_BACKEND};
    snprintf(reason, sizeof reason, "%s", entry->reason);
    if (entry->backend) {
        reason[0] = 0;
        full.status = entry->backend->device_count(&full.device_count, reason);
        if (full.status == ROPE_OK && full.device_count == 0)
            full.status = ROPE_ERROR_NO_DEVICE;
    }
    full.reason = reason;
    return rope_abi_write(info, &full, sizeof full, "rope_backend_info");
}

rope_status rope_device_open(const char *backend, int32_t index, rope_device **device) {
    if (!device)
        return rope_fail_null("device");
    if (index < 0)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "index is %d; allowed is >= 0", index);
    const rope_backend *chosen;
    rope_status status = rope_registry_choose(backend, index, &chosen);
    if (status != ROPE_OK)
        return status;
    rope_device *made = malloc(sizeof *made);
    if (!made)
        return rope_fail(ROPE_ERROR_OUT_OF_MEMORY, "no memory for a device");
    made->backend = chosen;
    made->index = index;
    *device = made;
    return ROPE_OK;
}

void rope_device_close(rope_device *device) {
    free(device);
}

static rope_status check_device(const rope_device *device) {
    return device ? ROPE_OK : rope_fail_null("device");
}

rope_status rope_device_get(const rope_device *device, rope_device_info *info) {
    if (!device || !info)
        return rope_fail_null(device ? "info" : "device");
    rope_device_info full;
    memset(&full, 0, sizeof full);
    full.backend = device->backend->name;
    rope_status status = device->backend->device_info(device->index, &full);
    return status == ROPE_OK ? rope_abi_write(info, &full, sizeof full, "rope_device_info")
                             : status;
}

rope_status rope_device_alloc(rope_device *device, size_t bytes, void **pointer) {
    if (!device || !pointer)
        return rope_fail_null(device ? "pointer" : "device");
    if (bytes == 0) {
        *pointer = NULL;
        return ROPE_OK;
    }
    return device->backend->alloc(device->index, bytes, pointer);
}

rope_status rope_device_free(rope_device *device, void *pointer) {
    rope_status status = check_device(device);
    return status != ROPE_OK || !pointer ? status : device->backend->free(device->index, pointer);
}

static rope_status check_copy(const rope_device *device, const void *target, const void *source,
                              size_t bytes) {
    if (!device || (bytes && (!target || !source)))
        return rope_fail_null(!device ? "device" : !target ? "target" : "source");
    return ROPE_OK;
}

rope_status rope_device_copy_in(rope_device *device, void *target, const void *source,
                                size_t bytes) {
    rope_status status = check_copy(device, target, source, bytes);
    return status != ROPE_OK || !bytes
               ? status
               : device->backend->copy_in(device->index, target, source, bytes);
}

rope_status rope_device_copy_out(rope_device *device, void *target, const void *source,
                                 size_t bytes) {
    rope_status status = check_copy(device, target, source, bytes);
    return status != ROPE_OK || !bytes
               ? status
               : device->backend->copy_out(device->index, target, source, bytes);
}

rope_status rope_device_synchronize(rope_device *device) {
    rope_status status = check_device(device);
    return status == ROPE_OK ? device->backend->synchronize(device->index) : status;
}

const rope_candidate *rope_device_candidate(const rope_device *device, const char *operation,
                                            int32_t index) {
    const rope_candidate *candidate;
    char reason[ROPE_REASON_SIZE];
    for (int32_t i = 0; (candidate = rope_candidate_of(device->backend, operation, i)); i++)
        if ((!candidate->query ||
             candidate->query(candidate, NULL, device->index, reason) == ROPE_OK) &&
            index-- == 0)
            return candidate;
    return NULL;
}

const char *rope_device_kernel(const rope_device *device, const char *operation, int32_t index) {
    if (!device || !operation)
        return NULL;
    const rope_candidate *candidate = rope_device_candidate(device, operation, index);
    return candidate ? candidate->name : NULL;
}
