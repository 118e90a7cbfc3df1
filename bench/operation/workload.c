#include "bench/operation/workload.h"

#include "bench/append/shape.h"
#include "bench/append/workload.h"
#include "bench/attention/shape.h"
#include "bench/attention/workload.h"
#include "bench/rope/workload.h"

bool workload_in_place(const options *o) {
    return o->in_place || o->appends.k_source == ROPE_SOURCE_CACHE;
}

size_t workload_tensor_bytes(const options *o) {
    if (o->append || o->attention)
        return o->append ? append_tensor_bytes(o) : attention_tensor_bytes(o);
    return rope_workload_bytes(o);
}

double workload_flops(const options *o) {
    return o->attention ? attention_flops(o) : 0;
}

bool workload_create(workload *w, const options *o, rope_device *device, int64_t sets) {
    workload_begin(w, o, device, sets);
    const bool ready = o->append      ? append_create(w, o)
                       : o->attention ? attention_create(w, o)
                                      : rope_workload_create(w, o);
    if (ready && w->parts > 1)
        workload_kernels(w, 0, w->parts, false, w->kernel);
    else if (ready)
        snprintf(w->kernel, sizeof w->kernel, "%s", workload_kernel(&w->calls[0]));
    return ready;
}
