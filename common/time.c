#include "common/abi.h"
#include "common/device.h"
#include "common/names.h"
#include "common/plan.h"
#include "common/status.h"

#include <stdlib.h>
#include <string.h>

/* What the iterations of one measurement share. */
typedef struct timing_state {
    const rope_timing *timing;
    const rope_candidate *candidate; /* copy, update */
    void *kernel;
    char *calls; /* kernel: one a set of arguments, call_bytes() apart */
} timing_state;

/* From one call to the next. */
static size_t call_bytes(const rope_plan *plan) {
    return (plan->operation->call_size + 63) / 64 * 64;
}

/* Arguments lie one after the other, each as large as the first says. */
static const void *args_at(const rope_timing *timing, int64_t index) {
    size_t size;
    memcpy(&size, timing->args, sizeof size);
    return (const char *)timing->args + size * (size_t)(index % timing->args_count);
}

static rope_status run_apply(void *opaque, int64_t index, void *stream) {
    const rope_timing *timing = ((const timing_state *)opaque)->timing;
    return rope_plan_apply_on(timing->plan, args_at(timing, index), timing->workspace, stream);
}

static rope_status run_kernel(void *opaque, int64_t index, void *stream) {
    const timing_state *state = opaque;
    const rope_plan *plan = state->timing->plan;
    const char *call =
        state->calls + call_bytes(plan) * (size_t)(index % state->timing->args_count);
    return rope_plan_run(plan, call, state->timing->workspace, stream);
}

static rope_status run_traffic(void *opaque, int64_t index, void *stream) {
    const timing_state *state = opaque;
    const rope_timing *timing = state->timing;
    size_t start = (size_t)(index % timing->args_count) * timing->pitch;
    rope_traffic traffic = {.target = (char *)timing->target + start, .bytes = timing->bytes};
    if (timing->kind == ROPE_TIME_COPY)
        traffic.source = (const char *)timing->source + start;
    return state->candidate->run(NULL, state->kernel, &traffic, NULL, stream);
}

static rope_status prepare_calls(const rope_device *device, timing_state *state) {
    const rope_timing *timing = state->timing;
    if (!timing->plan || !timing->args)
        return rope_fail_null(timing->plan ? "timing.args" : "timing.plan");
    if (timing->plan->backend != device->backend || timing->plan->device != device->index)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "timing.plan is on %s device %d; allowed is %s "
                         "device %d",
                         timing->plan->backend->name, timing->plan->device, device->backend->name,
                         device->index);
    state->calls = calloc((size_t)timing->args_count, call_bytes(timing->plan));
    if (!state->calls)
        return rope_fail(ROPE_ERROR_OUT_OF_MEMORY, "no memory for %lld calls",
                         (long long)timing->args_count);
    int empty = 0;
    rope_status status = ROPE_OK;
    void *stream;
    for (int64_t i = 0; i < timing->args_count && status == ROPE_OK && !empty; i++)
        status = timing->plan->operation->read(timing->plan->problem, args_at(timing, i),
                                               state->calls + call_bytes(timing->plan) * (size_t)i,
                                               &stream, &empty);
    if (status == ROPE_OK && empty)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "a call of timing.args has nothing to do; allowed is batch, tokens and "
                         "heads >= 1");
    return status;
}

static rope_status prepare_traffic(const rope_device *device, timing_state *state) {
    const rope_timing *timing = state->timing;
    int copy = timing->kind == ROPE_TIME_COPY;
    if (!timing->target || (copy && !timing->source))
        return rope_fail_null(timing->target ? "timing.source" : "timing.target");
    const char *operation = copy ? "copy" : "update";
    state->candidate = rope_device_candidate(device, operation, timing->candidate);
    if (!state->candidate)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "timing.candidate is %d; allowed is what rope_device_kernel names",
                         timing->candidate);
    state->kernel = (void *)(uintptr_t)state->candidate->data;
    char reason[ROPE_REASON_SIZE] = "";
    rope_status status =
        state->candidate->bind
            ? state->candidate->bind(state->candidate, NULL, device->index, &state->kernel, reason)
            : ROPE_OK;
    if (status == ROPE_OK)
        return ROPE_OK;
    status = rope_fail(status, "%s: %s", state->candidate->name, reason);
    state->candidate = NULL;
    return status;
}

static rope_status check_timing(const rope_device *device, const rope_timing *timing) {
    if (!device)
        return rope_fail_null("device");
    if (timing->kind < ROPE_TIME_APPLY || timing->kind > ROPE_TIME_UPDATE)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "timing.kind is %d; allowed is %s (1..4)",
                         timing->kind, rope_time_names);
    if (timing->graph != 0 && timing->graph != 1)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "timing.graph is %d; allowed is 0 or 1",
                         timing->graph);
    if (timing->iterations < 1 || timing->args_count < 1)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "timing.iterations is %lld and args_count is %lld; allowed is > 0",
                         (long long)timing->iterations, (long long)timing->args_count);
    return ROPE_OK;
}

rope_status rope_time(rope_device *device, rope_timing *timing) {
    rope_timing full;
    rope_status status = rope_abi_read(&full, sizeof full, timing, "rope_timing");
    if (status == ROPE_OK)
        status = check_timing(device, &full);
    if (status != ROPE_OK)
        return status;
    timing_state state = {.timing = &full};
    int traffic = full.kind >= ROPE_TIME_COPY;
    status = traffic ? prepare_traffic(device, &state) : prepare_calls(device, &state);
    rope_iteration iteration = traffic                         ? run_traffic
                               : full.kind == ROPE_TIME_KERNEL ? run_kernel
                                                               : run_apply;
    if (status == ROPE_OK)
        status = device->backend->time(device->index, full.graph, full.iterations, iteration,
                                       &state, &full.seconds, &full.host_seconds);
    if (state.candidate && state.candidate->release)
        state.candidate->release(state.kernel);
    free(state.calls);
    return status == ROPE_OK ? rope_abi_write(timing, &full, sizeof full, "rope_timing") : status;
}
