/* A set of the operation "append": descriptor, layout, where its tokens are cached. */
#ifndef ROPEKIT_BENCH_APPEND_SET_H
#define ROPEKIT_BENCH_APPEND_SET_H

#include "bench/append/shape.h"
#include "bench/workload/workload_set.h"

typedef struct append_state {
    const options *o;
    rope_append_desc desc;
    rope_append_args args; /* all but what lies in a set */
    workload_array in[APPEND_TENSORS], between[APPEND_TENSORS];
    workload_array out[APPEND_TENSORS], cache[APPEND_TENSORS], scale[APPEND_TENSORS];
    size_t in_bytes, between_bytes, out_bytes;
    int64_t pages;
    int64_t *places; /* slot of each token, with slots or where keys move */
    char *image;     /* what a set holds ahead of the call */
    void *scratch;   /* device memory of what steps hand on */
} append_state;

/* q, k or v of a call, and a call's tensor as the options lay it out, over memory of its own. */
rope_tensor *append_tensor_of(rope_append_args *args, int tensor);
void append_set_tensor(const options *o, rope_append_args *args, int tensor, const char *in,
                       char *out);

#endif
