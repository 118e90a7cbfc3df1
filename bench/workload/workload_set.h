/* One call of the options' shape: plans, tensors, positions and tables on a device and on the host;
 * and what workloads of every operation share. */
#ifndef ROPEKIT_BENCH_WORKLOAD_SET_H
#define ROPEKIT_BENCH_WORKLOAD_SET_H

#include "bench/options/options.h"
#include "bench/workload/staging.h"

/* A plan and its arguments over set_count sets of device tensors. */
typedef struct workload_call {
    const char *name; /* of what it does, where it is one of several */
    rope_plan *plan;
    void *sets;
    size_t size; /* of the arguments of one set */
    void *workspace;
    bool beside; /* of the steps, what the whole is compared with */
} workload_call;
#define WORKLOAD_CALLS 10
/* Longest list of kernels. */
#define WORKLOAD_KERNELS 256

/* An array in a set: of inputs, of what is written, or of what steps hand on. */
typedef struct workload_array {
    size_t start, bytes;
    int32_t dtype; /* of an element */
} workload_array;

typedef struct workload {
    rope_device *device;
    /* What the options ask for, in `parts` calls; then steps that do the same one after the other,
     * where there are any. */
    workload_call calls[WORKLOAD_CALLS];
    int32_t parts, call_count, timed_count;
    char kernel[WORKLOAD_KERNELS]; /* of the parts */
    rope_desc desc; /* of the plan: without a frequency rule where angle_mode is table */
    rope_args
        host; /* rope: the call over host memory; outputs hold what rope_workload_fetch brought */
    struct append_state *append; /* append: its set in host memory */
    struct attention_state *attention;
    double flops;  /* attention: of its products */
    bool declined; /* by every kernel that may be chosen */
    int64_t set_count;
    size_t tensor_bytes;   /* read, and as many written */
    size_t floor_bytes;    /* that a copy or an update of the same elements has to reach */
    size_t pitch;          /* between the tensors of two sets */
    void *source, *target; /* device tensors of set 0; source is NULL in place */
    staging memory;
} workload;

/* A workload that has nothing yet. */
void workload_begin(workload *w, const options *o, rope_device *device, int64_t sets);
/* Runs a call once over set 0; false after a message. */
bool workload_run(const workload *w, int32_t call);
void workload_destroy(workload *w);
/* The kernel that a call takes, of those that its plan has. */
const char *workload_kernel(const workload_call *call);
/* Kernels of calls first..last - 1, or of those beside the whole, each behind its call's name. */
void workload_kernels(const workload *w, int32_t first, int32_t last, bool beside,
                      char text[WORKLOAD_KERNELS]);

#define WORKLOAD_LINE ((size_t)64) /* tensors begin at cache lines, sets at pages */
#define WORKLOAD_PAGE ((size_t)4096)
/* Byte of outputs that nobody has written: a NaN in most dtypes. */
#define WORKLOAD_UNWRITTEN 0xff
static inline size_t workload_round_up(size_t bytes, size_t unit) {
    return (bytes + unit - 1) / unit * unit;
}
/* Product of sizes, saturated where it would not fit memory. */
size_t workload_count(const int64_t *sizes, int32_t count);
/* The next array of a set of which `used` bytes are taken. */
workload_array workload_take(size_t *used, int32_t dtype, int64_t elements);
/* Element strides of a tensor in the options' layout. */
void workload_strides(const options *o, int64_t heads, int64_t head_dim, int64_t stride[4]);
/* Where a set lies in a slab. */
static inline char *workload_set(const workload *w, void *slab, int64_t set) {
    return (char *)slab + (size_t)set * w->pitch;
}
/* Numbers in [-1, 1), the same of a seed. */
void workload_fill(int32_t dtype, void *slab, size_t bytes, int64_t seed);

#endif
