/* A set of the operation "append": descriptor, layout, and the steps that do the same apart. */
#ifndef ROPEKIT_BENCH_APPEND_WORKLOAD_H
#define ROPEKIT_BENCH_APPEND_WORKLOAD_H

#include "bench/workload.h"

enum { APPEND_Q, APPEND_K, APPEND_V, APPEND_TENSORS };

/* An array in a set: of inputs, of what is written, or of what steps hand on. */
typedef struct append_array {
    size_t start, bytes;
    int32_t dtype; /* of an element */
} append_array;

typedef struct append_state {
    const options *o;
    rope_append_desc desc;
    rope_append_args args; /* all but what lies in a set */
    append_array in[APPEND_TENSORS], between[APPEND_TENSORS];
    append_array out[APPEND_TENSORS], cache[APPEND_TENSORS], scale[APPEND_TENSORS];
    size_t in_bytes, between_bytes, out_bytes;
    int64_t pages;
    int64_t *places; /* slot of each token, with slots or where keys move */
    char *image;     /* what a set holds ahead of the call */
    void *scratch;   /* device memory of what steps hand on */
} append_state;

bool append_create(workload *w, const options *o);
/* Bytes that a call has to read and those that it has to write, their mean. */
size_t append_tensor_bytes(const options *o);
/* Writes the image over set 0, and runs the steps on it; false after a message. */
bool append_restore(const workload *w);
bool append_run_steps(const workload *w);

/* Element i of an array of any type. */
double append_decode(int32_t dtype, const char *array, int64_t i);

/* With every default of the tool filled in. */
int64_t append_heads(const options *o, int tensor);
int64_t append_head_dim(const options *o, int tensor);
int64_t append_page_size(const options *o);
/* Whether a tensor has a cache. */
bool append_is_cached(const options *o, int tensor);

#endif
