/* One call of the options' shape: tensors, positions and tables on a device and on the host. */
#ifndef ROPEKIT_BENCH_WORKLOAD_H
#define ROPEKIT_BENCH_WORKLOAD_H

#include "bench/options.h"
#include "bench/staging.h"

typedef struct workload {
    rope_device *device;
    rope_desc desc;  /* of the plan: without a frequency rule where angle_mode is table */
    rope_args host;  /* the call over host memory; outputs hold what workload_fetch brought */
    rope_args *sets; /* the same call over set_count sets of device tensors */
    int64_t set_count;
    size_t tensor_bytes;   /* of q and k */
    size_t floor_bytes;    /* that a copy or an update of the same elements has to reach */
    size_t pitch;          /* between the tensors of two sets */
    void *source, *target; /* device tensors of set 0; source is NULL in place */
    staging memory;
} workload;

/* Allocates sets of tensors, fills them from the seed and places positions and tables; false after
 * a message. Destroy it either way. */
bool workload_create(workload *w, const options *o, rope_device *device, int64_t sets);
/* Copies the outputs of set 0 to the host. */
bool workload_fetch(workload *w);
void workload_destroy(workload *w);
/* Bytes of a set's q and k. */
size_t workload_tensor_bytes(const options *o);

#endif
