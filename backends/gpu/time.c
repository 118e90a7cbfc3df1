/* Measurement by events, of single launches or of captured graphs. */
#define _POSIX_C_SOURCE 199309L
#include "backends/gpu/device.h"

#include <time.h>

/* Runs in one graph; more would cost more to make than they save. */
enum { RUNS_PER_GRAPH = 256 };

/* One measurement; whatever was made is released at the end. */
typedef struct stopwatch {
    gpuStream_t stream;
    gpuEvent_t start, stop;
    gpuGraphExec_t graph[2]; /* a full graph, and one of the runs that are left */
    int64_t replays;         /* of the full one */
    rope_iteration iteration;
    void *state;
    int32_t device;
} stopwatch;

static rope_status checked(const stopwatch *w, gpuError_t error) {
    return error == gpuSuccess ? ROPE_OK : gpu_fail(error, "timing", w->device);
}

static rope_status submit(const stopwatch *w, int64_t runs) {
    rope_status status = ROPE_OK;
    for (int64_t i = 0; i < runs && status == ROPE_OK; i++)
        status = w->iteration(w->state, i, w->stream);
    return status;
}

static rope_status capture(stopwatch *w, int64_t runs, gpuGraphExec_t *exec) {
    gpuGraph_t graph = NULL;
    rope_status status =
        checked(w, gpuStreamBeginCapture(w->stream, gpuStreamCaptureModeThreadLocal));
    if (status != ROPE_OK)
        return status;
    status = submit(w, runs);
    gpuError_t ended = gpuStreamEndCapture(w->stream, &graph);
    if (status == ROPE_OK)
        status = checked(w, ended);
    if (status == ROPE_OK)
        status = checked(w, gpuGraphInstantiate(exec, graph));
    if (graph)
        (void)gpuGraphDestroy(graph);
    return status == ROPE_OK ? checked(w, gpuGraphUpload(*exec, w->stream)) : status;
}

static rope_status capture_all(stopwatch *w, int64_t iterations) {
    int64_t rest = iterations % RUNS_PER_GRAPH;
    rope_status status = ROPE_OK;
    w->replays = iterations / RUNS_PER_GRAPH;
    if (w->replays)
        status = capture(w, RUNS_PER_GRAPH, &w->graph[0]);
    if (rest && status == ROPE_OK)
        status = capture(w, rest, &w->graph[1]);
    return status;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Adds what the device and the host took for a submission that nothing is waiting behind. */
static rope_status time_one(const stopwatch *w, gpuGraphExec_t graph, int64_t runs, double *seconds,
                            double *host_seconds) {
    float milliseconds = 0;
    rope_status status = checked(w, gpuEventRecord(w->start, w->stream));
    double begin = now();
    if (status == ROPE_OK)
        status = graph ? checked(w, gpuGraphLaunch(graph, w->stream)) : submit(w, runs);
    double end = now();
    if (status == ROPE_OK)
        status = checked(w, gpuEventRecord(w->stop, w->stream));
    if (status == ROPE_OK)
        status = checked(w, gpuStreamSynchronize(w->stream));
    if (status == ROPE_OK)
        status = checked(w, gpuEventElapsedTime(&milliseconds, w->start, w->stop));
    *seconds += 1e-3 * (double)milliseconds;
    *host_seconds += end - begin;
    return status;
}

/* A graph that is launched while it still runs starts late, so that each launch is timed alone. */
static rope_status run(const stopwatch *w, int32_t graph, int64_t iterations, double *seconds,
                       double *host_seconds) {
    double device = 0, host = 0;
    rope_status status = checked(w, gpuDeviceSynchronize());
    if (!graph && status == ROPE_OK)
        status = time_one(w, NULL, iterations, &device, &host);
    for (int64_t i = 0; graph && i < w->replays && status == ROPE_OK; i++)
        status = time_one(w, w->graph[0], 0, &device, &host);
    if (graph && w->graph[1] && status == ROPE_OK)
        status = time_one(w, w->graph[1], 0, &device, &host);
    *seconds = device / (double)iterations;
    *host_seconds = host / (double)iterations;
    return status;
}

static rope_status prepare(stopwatch *w) {
    rope_status status = checked(w, gpuStreamCreateWithFlags(&w->stream, gpuStreamNonBlocking));
    if (status == ROPE_OK)
        status = checked(w, gpuEventCreate(&w->start));
    return status == ROPE_OK ? checked(w, gpuEventCreate(&w->stop)) : status;
}

/* After a failed run something may still be under way. */
static void release(stopwatch *w) {
    if (w->stream)
        (void)gpuStreamSynchronize(w->stream);
    for (int i = 0; i < 2; i++)
        if (w->graph[i])
            (void)gpuGraphExecDestroy(w->graph[i]);
    if (w->start)
        (void)gpuEventDestroy(w->start);
    if (w->stop)
        (void)gpuEventDestroy(w->stop);
    if (w->stream)
        (void)gpuStreamDestroy(w->stream);
}

rope_status gpu_time(int32_t device, int32_t graph, int64_t iterations, rope_iteration iteration,
                     void *state, double *seconds, double *host_seconds) {
    stopwatch w = {.iteration = iteration, .state = state, .device = device};
    int previous;
    rope_status status = checked(&w, gpu_enter(device, &previous));
    if (status != ROPE_OK)
        return status;
    status = prepare(&w);
    if (status == ROPE_OK && graph)
        status = capture_all(&w, iterations);
    if (status == ROPE_OK)
        status = run(&w, graph, iterations, seconds, host_seconds);
    release(&w);
    gpu_leave(device, previous);
    return status;
}
