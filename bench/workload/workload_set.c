#include "bench/workload/workload_set.h"

#include "bench/output/message.h"
#include "bench/support/dtype.h"
#include "bench/support/random.h"
#include "tests/oracle/oracle.h"

#include <ropekit/backend.h>

#include <string.h>

/* Elements drawn before the data repeat. */
#define DATA_PERIOD ((size_t)1 << 18)

size_t workload_count(const int64_t *sizes, int32_t count) {
    unsigned __int128 product = 1;
    for (int32_t i = 0; i < count; i++) {
        product *= (unsigned __int128)sizes[i];
        if (product > (unsigned __int128)1 << 48)
            product = (unsigned __int128)1 << 48;
    }
    return (size_t)product;
}

workload_array workload_take(size_t *used, int32_t dtype, int64_t elements) {
    const workload_array made = {*used, (size_t)elements * dtype_bytes(dtype), dtype};
    *used += workload_round_up(made.bytes, WORKLOAD_LINE);
    return made;
}

void workload_strides(const options *o, int64_t h, int64_t d, int64_t stride[4]) {
    int64_t t = o->tokens, b = o->batch;
    int64_t bshd[] = {t * h * d, h * d, d, 1};
    int64_t bhsd[] = {h * t * d, d, t * d, 1};
    int64_t sbhd[] = {h * d, b * h * d, d, 1};
    const int64_t *chosen = o->layout == LAYOUT_BHSD   ? bhsd
                            : o->layout == LAYOUT_SBHD ? sbhd
                                                       : bshd;
    memcpy(stride, chosen, sizeof bshd);
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
    *w = (workload){.device = device, .parts = 1, .desc = o->desc, .set_count = sets};
    w->memory.device = device;
}

bool workload_run(const workload *w, int32_t call) {
    const workload_call *c = &w->calls[call];
    const bool append = c->size == sizeof(rope_append_args);
    const bool attention = c->size == sizeof(rope_attention_args);
    const bool backward = c->size == sizeof(rope_attention_backward_args);
    const char *name = append      ? "rope_append"
                       : attention ? "rope_attention"
                       : backward  ? "rope_attention_backward"
                                   : "rope_apply";
    return succeeded(append      ? rope_append(c->plan, c->sets)
                     : attention ? rope_attention(c->plan, c->sets)
                     : backward  ? rope_attention_backward(c->plan, c->sets)
                                 : rope_apply(c->plan, c->sets),
                     name) &&
           succeeded(rope_device_synchronize(w->device), name);
}

const char *workload_kernel(const workload_call *c) {
    const char *taken = rope_plan_kernel_of(c->plan, c->sets);
    return taken ? taken : rope_plan_kernel(c->plan);
}

void workload_kernels(const workload *w, int32_t first, int32_t last, bool beside,
                      char text[WORKLOAD_KERNELS]) {
    size_t used = 0;
    text[0] = '\0';
    for (const workload_call *c = w->calls + first; c < w->calls + last && used < WORKLOAD_KERNELS;
         c++)
        if (c->beside || !beside)
            used += (size_t)snprintf(text + used, WORKLOAD_KERNELS - used, "%s%s: %s",
                                     used ? ", " : "", c->name, workload_kernel(c));
}

void workload_destroy(workload *w) {
    for (int32_t i = 0; i < w->call_count; i++)
        rope_plan_destroy(w->calls[i].plan);
    w->call_count = 0;
    staging_release(&w->memory);
}
