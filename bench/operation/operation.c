#include "bench/operation/operation.h"

bool workload_create(workload *w, const options *o, rope_device *device, int64_t sets) {
    workload_begin(w, o, device, sets);
    const bool ready = o->append      ? append_create(w)
                       : o->attention ? attention_create(w)
                                      : rope_create(w);
    if (ready)
        workload_kernels(w);
    return ready;
}
