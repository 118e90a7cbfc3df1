#include "bench/workload/workload.h"

#include "bench/output/message.h"
#include "bench/support/dtype.h"
#include "bench/support/random.h"
#include "tests/oracle/oracle.h"

#include <ropekit/backend.h>

#include <string.h>

/* Elements drawn before the data repeat. */
#define DATA_PERIOD ((size_t)1 << 18)
/* Least slabs of a workload: images, what workload_fetch brings, and the device's two. */
#define SLABS 5
/* Tensors begin at cache lines, sets at pages. */
#define LINE ((size_t)64)
#define PAGE ((size_t)4096)
/* Byte of outputs that nobody has written: a NaN in most dtypes. */
#define UNWRITTEN 0xff

static size_t round_up(size_t bytes, size_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

workload_array workload_take(size_t *used, int32_t dtype, int64_t elements) {
    const workload_array made = {*used, (size_t)elements * dtype_bytes(dtype), dtype};
    *used += round_up(made.bytes, LINE);
    return made;
}

void workload_fill(int32_t dtype, void *slab, size_t bytes, int64_t seed) {
    uint64_t state = (uint64_t)seed;
    size_t size = dtype_bytes(dtype);
    size_t period = bytes / size < DATA_PERIOD ? bytes / size : DATA_PERIOD;
    for (size_t i = 0; i < period; i++)
        oracle_store(dtype, slab, (int64_t)i, random_unit(&state));
    size_t filled = period * size;
    while (filled && filled < bytes) {
        size_t more = filled < bytes - filled ? filled : bytes - filled;
        memcpy((char *)slab + filled, slab, more);
        filled += more;
    }
}

void workload_begin(workload *w, const options *o, rope_device *device, int64_t sets) {
    *w = (workload){.o = o, .device = device, .parts = 1, .desc = o->desc, .set_count = sets};
    w->workspace_most = SIZE_MAX;
    w->memory.device = device;
}

bool workload_allocate(workload *w) {
    w->pitch = round_up(larger(larger(w->in_bytes, w->out_bytes), w->floor_bytes), PAGE);
    const size_t bytes = w->pitch * (size_t)w->set_count;
    staging *s = &w->memory;
    if (!staging_fits("tensors on host and device", SLABS, w->pitch) ||
        !(w->inputs = staging_host(s, "tensors", 1, w->pitch)) ||
        !(w->outputs = staging_host(s, "tensors", 1, w->pitch)) ||
        !staging_device(s, bytes, &w->target) ||
        !staging_device(s, w->scratch_bytes + 1, &w->scratch) ||
        (w->in_bytes && !staging_device(s, bytes, &w->source)))
        return false;
    workload_fill(w->o->desc.dtype, w->inputs, w->pitch, w->o->seed);
    memset(w->outputs, UNWRITTEN, w->pitch);
    return true;
}

/* The host's set becomes the first, which the device then copies to the others. */
static bool upload(const workload *w, void *slab, const char *image) {
    rope_timing copy = {.struct_size = sizeof copy,
                        .kind = ROPE_TIME_COPY,
                        .iterations = w->set_count - 1,
                        .args_count = w->set_count - 1,
                        .target = (char *)slab + w->pitch,
                        .source = slab,
                        .bytes = w->pitch,
                        .pitch = w->pitch};
    return succeeded(rope_device_copy_in(w->device, slab, image, w->pitch), "copy in") &&
           (w->set_count == 1 || w->pitch == 0 || succeeded(rope_time(w->device, &copy), "copy"));
}

bool workload_upload(workload *w) {
    return upload(w, w->target, w->outputs) && (!w->source || upload(w, w->source, w->inputs));
}

char *workload_fetch(workload *w) {
    char *result = staging_host(&w->memory, "results", 1, w->pitch);
    return result && succeeded(rope_device_copy_out(w->device, result, w->target, w->pitch),
                               "copy from the device")
               ? result
               : NULL;
}

#define OPERATION(name, type)                                                                      \
    static rope_status run_##name(const rope_plan *plan, const void *args) {                       \
        return rope_##name(plan, args);                                                            \
    }                                                                                              \
    const workload_operation workload_##name = {sizeof(type), run_##name};
OPERATION(apply, rope_args)
OPERATION(append, rope_append_args)
OPERATION(attention, rope_attention_args)
OPERATION(attention_backward, rope_attention_backward_args)
OPERATION(decode, rope_decode_args)

workload_call *workload_next(workload *w, const char *name, const workload_operation *operation) {
    workload_call *c = &w->calls[w->call_count];
    *c = (workload_call){.name = name, .operation = operation};
    c->sets = staging_host(&w->memory, "calls", w->set_count, operation->size);
    return c->sets ? c : NULL;
}

rope_tensor workload_tensor(const options *o, int tensor, const void *in, void *out) {
    const int64_t dim = shape_dim(o, tensor);
    rope_tensor t = {.heads = shape_heads(o, tensor), .in = in, .out = out};
    if (in)
        shape_strides(o, t.heads, dim, t.in_stride);
    if (out)
        shape_strides(o, t.heads, dim, t.out_stride);
    return t;
}

bool workload_run(const workload *w, int32_t call) {
    const workload_call *c = &w->calls[call];
    const char *name = c->name ? c->name : "the call";
    return succeeded(c->operation->run(c->plan, c->sets), name) &&
           succeeded(rope_device_synchronize(w->device), name);
}

const char *workload_kernel(const workload_call *c) {
    const char *taken = rope_plan_kernel_of(c->plan, c->sets);
    return taken ? taken : rope_plan_kernel(c->plan);
}

void workload_kernels(workload *w) {
    const bool several = w->parts > 1;
    size_t used = 0;
    for (int32_t i = 0; i < w->parts && used < WORKLOAD_KERNELS; i++)
        used += (size_t)snprintf(w->kernel + used, WORKLOAD_KERNELS - used, "%s%s%s%s",
                                 i ? ", " : "", several ? w->calls[i].name : "",
                                 several ? ": " : "", workload_kernel(&w->calls[i]));
}

void workload_destroy(workload *w) {
    for (int32_t i = 0; i < w->call_count; i++)
        rope_plan_destroy(w->calls[i].plan);
    w->call_count = 0;
    staging_release(&w->memory);
}
