/* One case: plans, tensors, positions and tables on a device and in host memory. */
#ifndef ROPEKIT_BENCH_WORKLOAD_H
#define ROPEKIT_BENCH_WORKLOAD_H

#include "bench/workload/shape.h"
#include "bench/workload/staging.h"

/* What a plan runs, and its arguments. */
typedef struct workload_operation {
    size_t size; /* of the arguments of one set */
    rope_status (*run)(const rope_plan *plan, const void *args);
} workload_operation;
extern const workload_operation workload_apply, workload_append, workload_attention;
extern const workload_operation workload_attention_backward, workload_decode;

/* A plan and its arguments over set_count sets of device tensors. */
typedef struct workload_call {
    const char *name; /* of what it does, where it is one of several */
    const workload_operation *operation;
    rope_plan *plan;
    void *sets;
    void *workspace;
} workload_call;
#define WORKLOAD_CALLS 10
/* Longest list of kernels. */
#define WORKLOAD_KERNELS 256

/* An array in a slab. */
typedef struct workload_array {
    size_t start, bytes;
    int32_t dtype; /* of an element */
} workload_array;

/* A call's arguments but for what lies in a set, on the device or in host memory: of the operation
 * that it is. */
typedef struct workload_args {
    rope_args rope;
    rope_append_args append;
    rope_attention_args attention;
} workload_args;

typedef struct workload {
    const options *o;
    rope_device *device;
    /* What the options ask for, in `parts` calls; then of attention steps that do the same. */
    workload_call calls[WORKLOAD_CALLS];
    int32_t parts, call_count;
    char kernel[WORKLOAD_KERNELS]; /* of the parts */
    rope_desc desc;                /* without a frequency rule where angle_mode is table */
    rope_append_desc append;
    rope_attention_desc attention, alone; /* alone: without a rotation */
    workload_args on_device, on_host;
    double flops;            /* of attention's products */
    bool declined;           /* by every kernel that may be chosen */
    bool by_kernel;          /* calls are added one by one, and one that declines is no error */
    size_t workspace_most;   /* bytes that a kernel of attention may ask for */
    size_t workspace_needed; /* beyond that, by the last one; else 0 */

    /* Arrays of a set, by tensor: in `source`, in `target`, and in `scratch` what steps hand on. */
    workload_array in[CHECK_TENSORS];
    workload_array out[CHECK_TENSORS], cache[CHECK_OUT], scale[CHECK_OUT];
    workload_array between[CHECK_OUT], gradient[CHECK_OUT];
    workload_array fresh[CHECK_OUT]; /* in `source`, of tokens that decode appends */
    size_t in_bytes, out_bytes, scratch_bytes;
    int64_t set_count;
    size_t floor_bytes; /* that a copy or an update of the same elements has to reach */
    size_t pitch;       /* between the tensors of two sets */
    void *source, *target, *scratch; /* of set 0 on the device; source is NULL in place */
    char *inputs, *outputs;          /* what a set holds ahead of the calls, in host memory */
    staging memory;
} workload;

/* Runs a call once over set 0; false after a message. */
bool workload_run(const workload *w, int32_t call);
void workload_destroy(workload *w);
/* A copy of set 0's outputs in host memory; NULL after a message. */
char *workload_fetch(workload *w);

/* The kernel that a call takes, of those that its plan has. */
const char *workload_kernel(const workload_call *call);

/* --- for operations --- */

/* Names the kernels of the parts, of several each behind its call's name. */
void workload_kernels(workload *w);
/* A workload that has nothing yet. */
void workload_begin(workload *w, const options *o, rope_device *device, int64_t sets);
/* The next array of a slab of which `used` bytes are taken. */
workload_array workload_take(size_t *used, int32_t dtype, int64_t elements);
/* Memory of all sets, of which the host's has numbers in `inputs` and nobody's in `outputs`. */
bool workload_allocate(workload *w);
/* Copies the host's set into all of the device's. */
bool workload_upload(workload *w);
/* The next call, with room for the arguments of every set; NULL after a message. Its plan is to be
 * made; call_count then counts it. */
workload_call *workload_next(workload *w, const char *name, const workload_operation *operation);
/* q, k or v over memory of its own. */
rope_tensor workload_tensor(const options *o, int tensor, const void *in, void *out);
/* Where a set lies in a slab; NULL where there is no slab. */
static inline char *workload_set(const workload *w, void *slab, int64_t set) {
    return slab ? (char *)slab + (size_t)set * w->pitch : NULL;
}
/* Numbers in [-1, 1), the same of a seed. */
void workload_fill(int32_t dtype, void *slab, size_t bytes, int64_t seed);

#endif
