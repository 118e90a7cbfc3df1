#include "backends/cudnn/engines.h"
#include "backends/cudnn/capture.h"

#include <stdlib.h>
#include <string.h>

void dnn_engines_begin(dnn_engines *engines, int32_t device) {
    atomic_init(&engines->first, NULL);
    pthread_mutex_init(&engines->building, NULL);
    engines->device = device;
}

void dnn_engines_end(dnn_engines *engines) {
    for (dnn_entry *entry = engines->first, *next; entry; entry = next) {
        next = entry->next;
        if (entry->engine)
            dnn_engine_destroy(entry->engine);
        free(entry);
    }
    pthread_mutex_destroy(&engines->building);
}

static dnn_entry *find(dnn_engines *engines, const dnn_shape *shape) {
    dnn_entry *entry = atomic_load_explicit(&engines->first, memory_order_acquire);
    while (entry && memcmp(&entry->shape, shape, sizeof *shape) != 0)
        entry = entry->next;
    return entry;
}

/* A capture of this thread forbids what building does, unless it is told that nothing of it belongs
 * to the graph. */
static dnn_entry *build(dnn_engines *engines, const dnn_shape *shape) {
    dnn_entry *entry = calloc(1, sizeof *entry);
    if (!entry)
        return NULL;
    memcpy(&entry->shape, shape, sizeof *shape);
    const gpuStreamCaptureMode mode = dnn_capture_relax();
    const rope_status status =
        dnn_engine_create(shape, engines->device, &entry->engine, entry->reason);
    dnn_capture_restore(mode);
    if (status == ROPE_ERROR_OUT_OF_MEMORY) {
        free(entry);
        return NULL;
    }
    entry->next = atomic_load_explicit(&engines->first, memory_order_relaxed);
    atomic_store_explicit(&engines->first, entry, memory_order_release);
    return entry;
}

const dnn_entry *dnn_engines_get(dnn_engines *engines, const dnn_shape *shape) {
    dnn_entry *entry = find(engines, shape);
    if (entry)
        return entry;
    pthread_mutex_lock(&engines->building);
    entry = find(engines, shape);
    if (!entry)
        entry = build(engines, shape);
    pthread_mutex_unlock(&engines->building);
    return entry;
}
