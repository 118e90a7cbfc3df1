/* A set of the operation "attention" and its backward: descriptor, layout, where its keys lie. */
#ifndef ROPEKIT_BENCH_ATTENTION_SET_H
#define ROPEKIT_BENCH_ATTENTION_SET_H

#include "bench/attention/shape.h"
#include "bench/workload/workload_set.h"

enum { ATTENTION_Q, ATTENTION_K, ATTENTION_V, ATTENTION_TENSORS };
/* What is written, in the order of check_tensors. */
enum { RESULT_OUT, RESULT_LSE, RESULT_DQ, RESULT_DK, RESULT_DV, ATTENTION_RESULTS };

typedef struct attention_state {
    const options *o;
    rope_attention_desc desc, alone; /* of the call, and of attention without a rotation */
    rope_attention_args args;        /* all but what lies in a set */
    rope_attention_args host;        /* the same in host memory */
    workload_array in[ATTENTION_TENSORS], dout;
    workload_array rotated[ATTENTION_TENSORS], gradient[ATTENTION_TENSORS]; /* between steps */
    workload_array saved[ATTENTION_TENSORS]; /* rotated, for the backward */
    workload_array result[ATTENTION_RESULTS];
    size_t in_bytes, rotated_bytes, out_bytes;
    char *data;              /* inputs of a set */
    void *scratch;           /* device memory of what steps hand on */
    bool by_kernel;          /* calls are added one by one, and have no steps */
    size_t workspace_most;   /* bytes, of each of those */
    size_t workspace_needed; /* beyond workspace_most, by the last one; else 0 */
} attention_state;

bool attention_rotates(const attention_state *s, int tensor);
int64_t attention_heads_of(const options *o, int tensor);
int64_t attention_dim_of(const options *o, int tensor);
/* Whether the lse is [batch, head, token], which cuDNN's backward reads where it lies. */
bool attention_lse_by_heads(const attention_state *s);

#endif
