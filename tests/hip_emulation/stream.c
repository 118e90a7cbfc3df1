/* Streams, events and graphs. What was submitted waits until somebody waits for it. */
#include "tests/hip_emulation/device.h"
#include "tests/hip_emulation/kernel.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Threads of a grid along one dimension; HIP counts them in 32 bits. */
#define GRID_THREADS_MOST UINT32_MAX

/* A launch, a copy, a function of the host or the recording of an event. */
typedef struct work {
    emulated_launch launch; /* with a kernel */
    hipHostFn_t function;   /* with target as its data */
    void *target;           /* of a copy */
    const void *source;
    size_t bytes;
    hipEvent_t event;
    struct work *next;
} work;

typedef struct work_list {
    work *first, *last;
} work_list;

struct ihipStream_t {
    work_list *capture; /* or NULL */
    int device;
};
struct ihipEvent_t {
    struct timespec time;
    int is_recorded;
};
struct ihipGraph {
    work_list list;
};
struct hipGraphExec {
    work_list list;
};

static work_list queues[EMULATED_DEVICES];
static hipError_t failure;

static int append(work_list *list, const work *item) {
    work *copy = malloc(sizeof *copy);
    if (!copy)
        return 0;
    *copy = *item;
    copy->next = NULL;
    if (item->launch.kernel) {
        copy->launch.arguments = malloc(item->launch.kernel->bytes);
        if (!copy->launch.arguments) {
            free(copy);
            return 0;
        }
        memcpy(copy->launch.arguments, item->launch.arguments, item->launch.kernel->bytes);
    }
    if (list->last)
        list->last->next = copy;
    else
        list->first = copy;
    list->last = copy;
    return 1;
}

static int append_all(work_list *list, const work_list *items) {
    int ok = 1;
    for (const work *item = items->first; item && ok; item = item->next)
        ok = append(list, item);
    return ok;
}

static void clear(work_list *list) {
    for (work *next, *item = list->first; item; item = next) {
        next = item->next;
        free(item->launch.arguments);
        free(item);
    }
    list->first = list->last = NULL;
}

/* The default stream is one of the current device. */
static int device_of(hipStream_t stream) {
    int current = 0;
    (void)hipGetDevice(&current);
    return stream ? stream->device : current;
}

/* Takes a copy of the work, into the stream's capture or the queue of its device, under the lock of
 * device.h. */
static hipError_t submit_locked(hipStream_t stream, const work *item) {
    work_list *list = stream && stream->capture ? stream->capture : &queues[device_of(stream)];
    if (failure != hipSuccess)
        return failure;
    return append(list, item) ? hipSuccess : hipErrorOutOfMemory;
}

/* A line of the file that an environment variable names, if it does. */
static void add_line(const char *variable, const char *event, const emulated_kernel *kernel) {
    const char *path = getenv(variable);
    const char *name = strrchr(kernel->describe(), '=') + 2;
    char line[256];
    if (!path)
        return;
    int length = snprintf(line, sizeof line, "%s %.*s\n", event, (int)strcspn(name, "]"), name);
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (file >= 0 && write(file, line, (size_t)length) == length)
        close(file);
}

/* The first time that a kernel is loaded or launched. */
static void report(int32_t *is_reported, const char *event, const emulated_kernel *kernel) {
    if (!*is_reported)
        add_line("HIP_EMULATION_LOG", event, kernel);
    *is_reported = 1;
}

static hipError_t run(const work *item) {
    hipError_t error = hipSuccess;
    if (item->launch.kernel) {
        report(&item->launch.kernel->is_launch_reported, "launched", item->launch.kernel);
        add_line("HIP_EMULATION_TRACE", "launched", item->launch.kernel);
        error = emulated_run(&item->launch);
    } else if (item->function) {
        item->function(item->target);
    } else if (item->event) {
        clock_gettime(CLOCK_MONOTONIC, &item->event->time);
        item->event->is_recorded = 1;
    } else {
        memcpy(item->target, item->source, item->bytes);
    }
    return error;
}

static hipError_t queue_run(int device) {
    for (const work *item = queues[device].first; item && failure == hipSuccess; item = item->next)
        failure = run(item);
    clear(&queues[device]);
    return failure;
}

/* Runs the queues under that lock; the first error, which stays until the process ends. */
static hipError_t queues_run(void) {
    for (int device = 0; device < EMULATED_DEVICES; device++)
        (void)queue_run(device);
    return failure;
}

/* Work that was submitted may use it. */
hipError_t hipFree(void *pointer) {
    if (!pointer)
        return hipSuccess;
    device_lock();
    hipError_t error = queues_run();
    if (!memory_release(pointer))
        error = hipErrorInvalidValue;
    device_unlock();
    return error;
}

hipError_t hipHostFree(void *pointer) {
    return hipFree(pointer);
}

static hipError_t wait_for_all(void) {
    device_lock();
    hipError_t error = queues_run();
    device_unlock();
    return error;
}

static hipError_t wait_for(int device) {
    device_lock();
    hipError_t error = queue_run(device);
    device_unlock();
    return error;
}

hipError_t hipDeviceSynchronize(void) {
    return wait_for(device_of(NULL));
}

hipError_t hipStreamSynchronize(hipStream_t stream) {
    if (stream && stream->capture)
        return hipErrorStreamCaptureUnsupported;
    return wait_for(device_of(stream));
}

static hipError_t submit(hipStream_t stream, const work *item) {
    device_lock();
    hipError_t error = submit_locked(stream, item);
    device_unlock();
    return error;
}

hipError_t hipMemcpyAsync(void *target, const void *source, size_t bytes, hipMemcpyKind kind,
                          hipStream_t stream) {
    work item = {.target = target, .source = source, .bytes = bytes};
    device_lock();
    int ok = (kind == hipMemcpyDeviceToHost || memory_holds(target, bytes)) &&
             (kind == hipMemcpyHostToDevice || memory_holds(source, bytes));
    hipError_t error = ok ? submit_locked(stream, &item) : hipErrorInvalidValue;
    device_unlock();
    return error;
}

hipError_t hipLaunchHostFunc(hipStream_t stream, hipHostFn_t function, void *data) {
    return submit(stream, &(work){.function = function, .target = data});
}

hipError_t hipFuncGetAttributes(hipFuncAttributes *attributes, const void *kernel) {
    emulated_kernel *known = (emulated_kernel *)(uintptr_t)kernel;
    attributes->maxThreadsPerBlock = EMULATED_BLOCK_THREADS;
    device_lock();
    known->is_loaded = 1;
    report(&known->is_load_reported, "loaded", known);
    device_unlock();
    return hipSuccess;
}

hipError_t hipFuncSetAttribute(const void *kernel, hipFuncAttribute attribute, int value) {
    emulated_kernel *known = (emulated_kernel *)(uintptr_t)kernel;
    if (attribute != hipFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        value > EMULATED_SHARED_MOST)
        return hipErrorInvalidValue;
    device_lock();
    known->shared_most = value;
    device_unlock();
    return hipSuccess;
}

/* As CUDA has it, where HIP is more generous: what is emulated here stands for both. */
static int is_possible(const emulated_kernel *kernel, dim3 grid, dim3 block, size_t shared_bytes) {
    const size_t most = kernel->shared_most > EMULATED_SHARED_BYTES ? (size_t)kernel->shared_most
                                                                    : EMULATED_SHARED_BYTES;
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    return threads > 0 && threads <= EMULATED_BLOCK_THREADS && block.z <= EMULATED_BLOCK_Z &&
           shared_bytes <= most && grid.x > 0 && grid.y > 0 && grid.z > 0 &&
           grid.y <= EMULATED_GRID_YZ_MOST && grid.z <= EMULATED_GRID_YZ_MOST &&
           (uint64_t)grid.x * block.x <= GRID_THREADS_MOST &&
           (uint64_t)grid.y * block.y <= GRID_THREADS_MOST;
}

/* A kernel that nobody asked for would be loaded now, which a capture does not allow. */
hipError_t hipLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments,
                           size_t shared_bytes, hipStream_t stream) {
    emulated_kernel *known = (emulated_kernel *)(uintptr_t)kernel;
    if (!is_possible(known, grid, block, shared_bytes))
        return hipErrorInvalidConfiguration;
    if (device_of(stream) != device_of(NULL))
        return hipErrorInvalidHandle;
    if (stream && stream->capture && !known->is_loaded)
        return hipErrorStreamCaptureUnsupported;
    void *packed = malloc(known->bytes);
    if (!packed)
        return hipErrorOutOfMemory;
    known->pack(arguments, packed);
    work item = {.launch = {known, grid, block, shared_bytes, packed}};
    hipError_t error = submit(stream, &item);
    free(packed);
    return error;
}

int hipGetStreamDeviceId(hipStream_t stream) {
    return device_of(stream);
}

hipError_t hipStreamCreateWithFlags(hipStream_t *stream, unsigned flags) {
    (void)flags;
    *stream = calloc(1, sizeof **stream);
    return *stream ? hipGetDevice(&(*stream)->device) : hipErrorOutOfMemory;
}

hipError_t hipStreamDestroy(hipStream_t stream) {
    hipError_t error = wait_for_all();
    free(stream);
    return error;
}

hipError_t hipStreamBeginCapture(hipStream_t stream, hipStreamCaptureMode mode) {
    (void)mode;
    if (!stream || stream->capture)
        return hipErrorInvalidValue;
    stream->capture = calloc(1, sizeof *stream->capture);
    return stream->capture ? hipSuccess : hipErrorOutOfMemory;
}

hipError_t hipStreamEndCapture(hipStream_t stream, hipGraph_t *graph) {
    *graph = stream->capture ? calloc(1, sizeof **graph) : NULL;
    if (!*graph)
        return stream->capture ? hipErrorOutOfMemory : hipErrorInvalidValue;
    (*graph)->list = *stream->capture;
    free(stream->capture);
    stream->capture = NULL;
    return hipSuccess;
}

/* A capture forbids nothing here. */
hipError_t hipThreadExchangeStreamCaptureMode(hipStreamCaptureMode *mode) {
    *mode = hipStreamCaptureModeThreadLocal;
    return hipSuccess;
}

hipError_t hipGraphInstantiate(hipGraphExec_t *exec, hipGraph_t graph, hipGraphNode_t *error_node,
                               char *log, size_t log_bytes) {
    (void)error_node;
    (void)log;
    (void)log_bytes;
    *exec = calloc(1, sizeof **exec);
    return *exec && append_all(&(*exec)->list, &graph->list) ? hipSuccess : hipErrorOutOfMemory;
}

hipError_t hipGraphLaunch(hipGraphExec_t exec, hipStream_t stream) {
    if (stream && stream->capture)
        return hipErrorStreamCaptureUnsupported;
    device_lock();
    hipError_t error = failure;
    if (error == hipSuccess && !append_all(&queues[device_of(stream)], &exec->list))
        error = hipErrorOutOfMemory;
    device_unlock();
    return error;
}

hipError_t hipGraphDestroy(hipGraph_t graph) {
    clear(&graph->list);
    free(graph);
    return hipSuccess;
}

hipError_t hipGraphExecDestroy(hipGraphExec_t exec) {
    clear(&exec->list);
    free(exec);
    return hipSuccess;
}

hipError_t hipEventCreate(hipEvent_t *event) {
    *event = calloc(1, sizeof **event);
    return *event ? hipSuccess : hipErrorOutOfMemory;
}

hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream) {
    return submit(stream, &(work){.event = event});
}

hipError_t hipEventElapsedTime(float *milliseconds, hipEvent_t start, hipEvent_t stop) {
    if (!start->is_recorded || !stop->is_recorded)
        return hipErrorNotReady;
    *milliseconds = 1e3f * (float)(stop->time.tv_sec - start->time.tv_sec) +
                    1e-6f * (float)(stop->time.tv_nsec - start->time.tv_nsec);
    return hipSuccess;
}

hipError_t hipEventDestroy(hipEvent_t event) {
    hipError_t error = wait_for_all();
    free(event);
    return error;
}
