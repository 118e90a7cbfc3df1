/* Two devices, whose memory is told apart where it is copied. */
#define _GNU_SOURCE
#include "tests/hip_emulation/device.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* Few units, so that small calls take the kernels of large ones. */
enum { MULTIPROCESSORS = 1, CACHE_BYTES = 1 << 20 };
#define MEMORY_BYTES ((size_t)4 << 30)

typedef struct allocation {
    struct allocation *next;
    size_t bytes, map_bytes;
    char *memory, *map;
    int device;
} allocation;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static allocation *allocations;
static size_t used[EMULATED_DEVICES];
static _Thread_local int current;

void device_lock(void) {
    pthread_mutex_lock(&lock);
}

void device_unlock(void) {
    pthread_mutex_unlock(&lock);
}

const char *hipGetErrorString(hipError_t error) {
    switch (error) {
    case hipSuccess:
        return "no error";
    case hipErrorInvalidValue:
        return "invalid argument";
    case hipErrorOutOfMemory:
        return "out of memory";
    case hipErrorInvalidConfiguration:
        return "invalid configuration argument";
    case hipErrorInvalidDevice:
        return "invalid device ordinal";
    case hipErrorInvalidDeviceFunction:
        return "invalid device function";
    case hipErrorInvalidHandle:
        return "invalid resource handle";
    case hipErrorNotReady:
        return "device not ready";
    case hipErrorStreamCaptureUnsupported:
        return "operation not permitted when stream is capturing";
    default:
        return "unspecified launch failure";
    }
}

hipError_t hipGetDeviceCount(int *devices) {
    *devices = EMULATED_DEVICES;
    return hipSuccess;
}

hipError_t hipDriverGetVersion(int *version) {
    *version = 50200000;
    return hipSuccess;
}

hipError_t hipGetDevice(int *device) {
    *device = current;
    return hipSuccess;
}

static int is_device(int device) {
    return device >= 0 && device < EMULATED_DEVICES;
}

hipError_t hipSetDevice(int device) {
    if (!is_device(device))
        return hipErrorInvalidDevice;
    current = device;
    return hipSuccess;
}

hipError_t hipGetDeviceProperties(hipDeviceProp_t *p, int device) {
    if (!is_device(device))
        return hipErrorInvalidDevice;
    snprintf(p->name, sizeof p->name, "HIP emulated on the CPU");
    snprintf(p->gcnArchName, sizeof p->gcnArchName, "emulated");
    p->totalGlobalMem = MEMORY_BYTES;
    p->l2CacheSize = CACHE_BYTES;
    p->multiProcessorCount = MULTIPROCESSORS;
    p->warpSize = emulated_wave();
    return hipSuccess;
}

hipError_t hipDeviceGetAttribute(int *value, hipDeviceAttribute_t attribute, int device) {
    if (!is_device(device))
        return hipErrorInvalidDevice;
    if (attribute != hipDeviceAttributeMultiprocessorCount)
        return hipErrorInvalidValue;
    *value = MULTIPROCESSORS;
    return hipSuccess;
}

/* A page that faults lies behind; in front are bytes for the alignment that ropekit promises. */
static int map_memory(allocation *a, size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (bytes + 63) / 64 * 64;
    size_t front = (whole + page - 1) / page * page;
    a->bytes = bytes;
    a->map_bytes = front + page;
    a->map = mmap(NULL, a->map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (a->map == MAP_FAILED)
        return 0;
    a->memory = a->map + front - whole;
    if (mprotect(a->map, front, PROT_READ | PROT_WRITE) == 0)
        return 1;
    munmap(a->map, a->map_bytes);
    return 0;
}

hipError_t hipMalloc(void **pointer, size_t bytes) {
    allocation *a = NULL;
    device_lock();
    if (bytes <= MEMORY_BYTES - used[current])
        a = malloc(sizeof *a);
    if (a && !map_memory(a, bytes)) {
        free(a);
        a = NULL;
    }
    if (a) {
        *pointer = a->memory;
        a->device = current;
        a->next = allocations;
        allocations = a;
        used[current] += bytes;
    }
    device_unlock();
    return a ? hipSuccess : hipErrorOutOfMemory;
}

int memory_holds(const void *pointer, size_t bytes) {
    uintptr_t at = (uintptr_t)pointer;
    for (const allocation *a = allocations; a; a = a->next) {
        uintptr_t start = (uintptr_t)a->memory;
        if (at >= start && at - start <= a->bytes && bytes <= a->bytes - (at - start))
            return a->device == current;
    }
    return 0;
}

int memory_release(void *pointer) {
    allocation **link = &allocations;
    while (*link && (*link)->memory != pointer)
        link = &(*link)->next;
    allocation *a = *link;
    if (!a)
        return 0;
    *link = a->next;
    used[a->device] -= a->bytes;
    munmap(a->map, a->map_bytes);
    free(a);
    return 1;
}

/* The device's memory is the host's, pinned or not. */
hipError_t hipHostMalloc(void **pointer, size_t bytes, unsigned flags) {
    (void)flags;
    return hipMalloc(pointer, bytes);
}
