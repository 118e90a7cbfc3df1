#include "bench/rope/workload.h"

#include "bench/output/message.h"
#include "bench/support/dtype.h"
#include "bench/workload/placement.h"
#include "bench/workload/target.h"

#include <string.h>

/* Least slabs of one workload: data, results and what rope_workload_fetch brings, and the device's
 * two. */
#define SLABS 5

static int64_t head_dim(const options *o, int tensor) {
    return tensor == 1 && o->desc.k_head_dim ? o->desc.k_head_dim : o->desc.head_dim;
}

static int64_t heads(const options *o, int tensor) {
    return tensor ? o->k_heads : o->q_heads;
}

static size_t elements(const options *o, int tensor) {
    int64_t sizes[] = {o->batch, o->tokens, heads(o, tensor), head_dim(o, tensor)};
    return workload_count(sizes, 4);
}

static size_t k_start(const options *o) {
    return workload_round_up(elements(o, 0) * dtype_bytes(o->desc.dtype), WORKLOAD_LINE);
}

size_t rope_workload_bytes(const options *o) {
    return (elements(o, 0) + elements(o, 1)) * dtype_bytes(o->desc.dtype);
}

static size_t slab_bytes(const options *o) {
    return workload_round_up(k_start(o) + elements(o, 1) * dtype_bytes(o->desc.dtype),
                             WORKLOAD_PAGE);
}

/* Points a call's tensors at slabs of memory. */
static void set_tensors(rope_args *args, const options *o, const char *source, char *target) {
    rope_tensor *tensors[] = {&args->q, &args->k};
    for (int i = 0; i < 2; i++) {
        size_t start = i ? k_start(o) : 0;
        tensors[i]->heads = heads(o, i);
        tensors[i]->in = heads(o, i) ? source + start : NULL;
        tensors[i]->out = heads(o, i) ? target + start : NULL;
        workload_strides(o, heads(o, i), head_dim(o, i), tensors[i]->in_stride);
        workload_strides(o, heads(o, i), head_dim(o, i), tensors[i]->out_stride);
    }
}

/* Elements that turn, of all that a tensor has: what an update in place has to touch. */
static size_t window_bytes(const options *o, int tensor) {
    size_t rotary = (size_t)(o->desc.rotary_dim ? o->desc.rotary_dim : o->desc.head_dim);
    return elements(o, tensor) / (size_t)head_dim(o, tensor) * rotary * dtype_bytes(o->desc.dtype);
}

static bool create_host(workload *w, const options *o, char **data, char **unwritten) {
    if (!staging_fits("tensors on host and device", SLABS, w->pitch))
        return false;
    *data = staging_host(&w->memory, "tensors", 1, w->pitch);
    char *result = *unwritten = staging_host(&w->memory, "tensors", 1, w->pitch);
    w->calls[0].sets = staging_host(&w->memory, "calls", w->set_count, sizeof(rope_args));
    if (!*data || !result || !w->calls[0].sets)
        return false;
    workload_fill(o->desc.dtype, *data, w->pitch, o->seed);
    memset(result, WORKLOAD_UNWRITTEN, w->pitch);
    w->host = (rope_args){.struct_size = sizeof w->host, .batch = o->batch, .tokens = o->tokens};
    w->host.position_offset = o->position_offset;
    set_tensors(&w->host, o, *data, o->in_place ? *data : result);
    return true;
}

static bool create_device(workload *w, const options *o, const char *data, const char *unwritten) {
    size_t bytes = w->pitch * (size_t)w->set_count;
    if (!staging_device(&w->memory, bytes, &w->target) ||
        (!o->in_place && !staging_device(&w->memory, bytes, &w->source)))
        return false;
    char *first = o->in_place ? w->target : w->source;
    for (int64_t i = 0; i < w->set_count; i++) {
        size_t start = (size_t)i * w->pitch;
        if (!succeeded(rope_device_copy_in(w->device, first + start, data, w->pitch), "copy in") ||
            (!o->in_place && !succeeded(rope_device_copy_in(w->device, (char *)w->target + start,
                                                            unwritten, w->pitch),
                                        "copy in")))
            return false;
    }
    return true;
}

bool rope_workload_create(workload *w, const options *o) {
    char *data, *unwritten;
    w->calls[0].size = sizeof(rope_args);
    w->call_count = w->timed_count = 1;
    w->tensor_bytes = rope_workload_bytes(o);
    w->floor_bytes = o->in_place ? window_bytes(o, 0) + window_bytes(o, 1) : w->tensor_bytes;
    w->pitch = slab_bytes(o);
    if (!target_plan(o, &w->calls[0].plan) || !create_host(w, o, &data, &unwritten) ||
        !create_device(w, o, data, unwritten))
        return false;
    rope_args args = w->host, *sets = w->calls[0].sets;
    if (!placement_create(&w->memory, o, &w->desc, &w->host, &args))
        return false;
    for (int64_t i = 0; i < w->set_count; i++) {
        size_t start = (size_t)i * w->pitch;
        char *target = (char *)w->target + start;
        sets[i] = args;
        set_tensors(&sets[i], o, o->in_place ? target : (char *)w->source + start, target);
    }
    return true;
}

/* In place, the host's input must survive for the oracle, so outputs get memory of their own. */
bool rope_workload_fetch(workload *w) {
    char *result = staging_host(&w->memory, "results", 1, w->pitch);
    if (!result || !succeeded(rope_device_copy_out(w->device, result, w->target, w->pitch),
                              "copy from the device"))
        return false;
    rope_tensor *host[] = {&w->host.q, &w->host.k};
    const rope_args *first = w->calls[0].sets;
    const rope_tensor *set[] = {&first->q, &first->k};
    for (int i = 0; i < 2; i++)
        if (host[i]->heads)
            host[i]->out = result + ((char *)set[i]->out - (char *)w->target);
    return true;
}
