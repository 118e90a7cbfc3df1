/* A set of the operation "attention": descriptor, layout, where its keys lie. */
#ifndef ROPEKIT_BENCH_ATTENTION_WORKLOAD_H
#define ROPEKIT_BENCH_ATTENTION_WORKLOAD_H

#include "bench/attention/shape.h"
#include "bench/workload/workload_set.h"

enum { ATTENTION_Q, ATTENTION_K, ATTENTION_V, ATTENTION_TENSORS };

typedef struct attention_state {
    const options *o;
    rope_attention_desc desc, alone; /* of the call, and of attention without a rotation */
    rope_attention_args args;        /* all but what lies in a set */
    rope_attention_args host;        /* the same in host memory */
    workload_array in[ATTENTION_TENSORS], rotated[ATTENTION_TENSORS], out;
    size_t in_bytes, rotated_bytes, out_bytes;
    char *data;    /* inputs of a set */
    void *scratch; /* device memory of what the rotation hands on */
} attention_state;

/* Calls: that of the options; then, where it rotates, the rotation and attention on its result. */
bool attention_create(workload *w, const options *o);
/* Whether the kernel of the options, or any, takes them. */
bool attention_accepts(const options *o);
/* A set of arguments over memory of the device or the host. */
rope_attention_args attention_args_on(const attention_state *s, const rope_attention_args *fixed,
                                      char *in, char *rotated, char *out);

#endif
