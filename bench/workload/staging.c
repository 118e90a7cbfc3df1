#include "bench/workload/staging.h"

#include "bench/output/message.h"

#include <unistd.h>

bool staging_fits(const char *what, int64_t count, size_t size) {
    double most = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    double bytes = (double)count * (double)size;
    if (bytes <= most)
        return true;
    message("%s would take %.3g bytes; allowed is what fits this machine's %.3g bytes", what, bytes,
            most);
    return false;
}

void *staging_host(staging *s, const char *what, int64_t count, size_t size) {
    if (!staging_fits(what, count, size))
        return NULL;
    void *memory = pool_alloc(&s->host, (size_t)count, size);
    if (!memory)
        message("no memory for %s", what);
    return memory;
}

bool staging_device(staging *s, size_t bytes, void **pointer) {
    if (!succeeded(rope_device_alloc(s->device, bytes, pointer), "device memory"))
        return false;
    s->allocations[s->count++] = *pointer;
    return true;
}

bool staging_copy(staging *s, const void *host, size_t bytes, const void **device) {
    void *pointer = NULL;
    if (!staging_device(s, bytes, &pointer) ||
        !succeeded(rope_device_copy_in(s->device, pointer, host, bytes), "copy to the device"))
        return false;
    *device = pointer;
    return true;
}

void staging_release(staging *s) {
    for (int32_t i = s->count; i > 0; i--)
        succeeded(rope_device_free(s->device, s->allocations[i - 1]), "device memory");
    s->count = 0;
    pool_release(&s->host);
}
