/* A call of "attention" or of its backward as cuDNN takes it: its shape, where its tensors lie and
 * what the workspace holds. */
#ifndef ROPEKIT_CUDNN_LAYOUT_H
#define ROPEKIT_CUDNN_LAYOUT_H

#include "backends/cudnn/engine.h"

/* Lists and tensors in the workspace; those of DNN_POINTERS under their numbers. */
enum { DNN_FAILS = DNN_POINTERS, DNN_SHIFTS, DNN_PARTS };

typedef struct dnn_layout {
    const rope_attention_problem *problem;
    const rope_attention_call *call;
    int64_t sequences;
    int64_t hidden;     /* of each sequence, where the host knows lengths */
    int32_t known;      /* 1: it does */
    int32_t packed;     /* 1: queries are */
    int32_t is_nothing; /* 1: no query sees a key, so there is no engine */
    dnn_shape shape;    /* of all */
    int64_t slice[2];   /* sequences and heads of keys that run at once; the last may be fewer */
    void *data[DNN_TENSORS];        /* element 0; NULL: it lies in the workspace, or is absent */
    int64_t stride[DNN_TENSORS][4]; /* over [row, token, head, dim] */
    size_t at[DNN_PARTS], bytes;    /* where each part of the workspace begins; of all */
    unsigned char has[DNN_PARTS];   /* 1: the part is there */
} dnn_layout;

/* gradients: NULL for the forward. ROPE_ERROR_UNSUPPORTED with a reason for what cuDNN does not
 * take. */
rope_status dnn_layout_of(const rope_attention_problem *problem, const rope_attention_call *call,
                          const rope_attention_backward_call *gradients, dnn_layout *layout,
                          char *reason);

int dnn_is_of_keys(int which);
size_t dnn_element_size(int which);

/* Where a tensor's element 0 lies, and any part of the workspace; NULL where it is absent. */
void *dnn_tensor_at(const dnn_layout *layout, int which, void *workspace);
void *dnn_part_at(const dnn_layout *layout, int which, void *workspace);

/* What an engine of the whole call is given. */
void dnn_pointers(const dnn_layout *layout, void *workspace, void *at[DNN_POINTERS]);

/* The largest call within bounds, of contiguous tensors that are nowhere and with no gradient
 * wanted; lengths: 1 with every list that a call may have, else with those that it must. 0 where
 * its sizes are beyond cuDNN's. */
int dnn_call_of(const rope_attention_problem *problem, const rope_attention_bounds *bounds,
                int lengths, rope_attention_backward_call *call);

/* Why cuDNN's attention has no such mask, cache or type; NULL where it may. */
const char *dnn_problem_decline(const rope_attention_problem *problem, int backward);

#endif
