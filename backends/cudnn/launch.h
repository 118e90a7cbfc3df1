/* A plan of "attention" or of its backward, and what a call launches beside its engine. */
#ifndef ROPEKIT_CUDNN_LAUNCH_H
#define ROPEKIT_CUDNN_LAUNCH_H

#include "backends/cudnn/engines.h"
#include "backends/cudnn/layout.h"

/* What bind makes and run is given. */
typedef struct dnn_state {
    const rope_attention_problem *problem;
    rope_plan *rotation;     /* of "rope" on the CUDA backend; NULL where nothing rotates */
    rope_plan *back;         /* the same of gradients; NULL in the forward */
    rope_problem transposed; /* of `back` */
    dnn_engines engines;
    int32_t device;
    int32_t devices;  /* of the machine */
    atomic_int asked; /* the runtime was asked about a call's memory */
} dnn_state;

/* As rope_candidate's, of the forward and, with data not NULL, of the backward. */
rope_status dnn_query(const rope_candidate *self, const void *problem, int32_t device,
                      char *reason);
rope_status dnn_bind(const rope_candidate *self, const void *problem, int32_t device, void **kernel,
                     char *reason);
void dnn_release(void *kernel);

/* Bytes for calls within bounds: their parts, and what an engine for the bounds needs, or as much
 * as engines for smaller calls may. ROPE_ERROR_OVERFLOW, or ROPE_ERROR_OUT_OF_MEMORY where the
 * engine could not be built to be asked. */
rope_status dnn_workspace_of(const dnn_state *state, const rope_attention_bounds *bounds,
                             int backward, size_t *bytes);

/* A call under way. */
typedef struct dnn_launch {
    const dnn_state *state;
    const dnn_layout *layout;
    const dnn_entry *entry, *last; /* of slices; NULL where no query sees a key */
    void *workspace;
    void *stream;
} dnn_launch;

/* The engine's lists, as far as the layout has any. */
rope_status dnn_launch_lists(const dnn_launch *launch);
/* Queries and keys that the layout has in the workspace or in an out, rotated. */
rope_status dnn_launch_rotations(const dnn_launch *launch);
/* Rows of a call's tensor: those of `from`, or none, and zeros where nothing is seen if asked. */
rope_status dnn_launch_rows(const dnn_launch *launch, int which, const void *from, void *to,
                            const int64_t stride[4], int zeroes, int with_lse);
/* The forward's lse into the workspace, where the layout has it there. */
rope_status dnn_launch_lse(const dnn_launch *launch);
/* Gradients of rotated queries and keys, rotated back to where they are wanted. */
rope_status dnn_launch_back(const dnn_launch *launch, const rope_attention_backward_call *to);

/* Finds or builds the engines, checks the workspace, and has `work` launch the rest. */
typedef rope_status dnn_work(const dnn_launch *launch, const void *call);
rope_status dnn_run(dnn_state *state, const rope_attention_call *call,
                    const rope_attention_backward_call *gradients, dnn_work *work, void *workspace,
                    void *stream);

/* The engines themselves; nothing where the layout has none. */
rope_status dnn_launch_engines(const dnn_launch *launch);

#endif
