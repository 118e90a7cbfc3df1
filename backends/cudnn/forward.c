#include "backends/cudnn/forward.h"

#include "backends/cudnn/candidate_lists.h"

#include <stdio.h>
#include <string.h>

/* Whose kernels rotate. */
#ifndef DNN_ROTATED_BY
#define DNN_ROTATED_BY "cuda"
#endif

/* What rope_plan_apply is given: a call that is checked already. */
typedef struct checked_call {
    const void *call;
    void *stream;
} checked_call;

#define READ(name, type)                                                                           \
    static rope_status name(const void *problem, const void *args, void *call, void **stream,      \
                            int *empty) {                                                          \
        const checked_call *given = args;                                                          \
        (void)problem;                                                                             \
        memcpy(call, given->call, sizeof(type));                                                   \
        *stream = given->stream;                                                                   \
        *empty = 0;                                                                                \
        return ROPE_OK;                                                                            \
    }
READ(read_rope, rope_call)
READ(read_append, rope_append_call)
READ(read_append_backward, rope_append_backward_call)
READ(read_merge, rope_attention_merge_call)
READ(read_traffic, rope_traffic)

/* The problem is not the plan's to release. */
static const rope_operation rope = {"rope", ROPE_ROPE_VERSION, sizeof(rope_call), read_rope, NULL},
                            append = {"append", ROPE_APPEND_VERSION, sizeof(rope_append_call),
                                      read_append, NULL},
                            append_backward = {"append_backward", ROPE_APPEND_BACKWARD_VERSION,
                                               sizeof(rope_append_backward_call),
                                               read_append_backward, NULL},
                            merge = {"attention_merge", ROPE_ATTENTION_MERGE_VERSION,
                                     sizeof(rope_attention_merge_call), read_merge, NULL},
                            copy = {"copy", ROPE_TRAFFIC_VERSION, sizeof(rope_traffic),
                                    read_traffic, NULL},
                            update = {"update", ROPE_TRAFFIC_VERSION, sizeof(rope_traffic),
                                      read_traffic, NULL};

/* The CUDA backend's text, cut to the room that there is. */
static rope_status decline(char *reason) {
    snprintf(reason, ROPE_REASON_SIZE, "declined: %.*s", ROPE_REASON_SIZE - 11, rope_last_error());
    return ROPE_DECLINED;
}

static rope_status make(const rope_operation *operation, const void *problem, int32_t device,
                        rope_plan **plan, char *reason) {
    const rope_choice choice = {DNN_ROTATED_BY, device, NULL};
    return rope_plan_make(operation, (void *)(uintptr_t)problem, &choice, plan) == ROPE_OK
               ? ROPE_OK
               : decline(reason);
}

static rope_status apply(const rope_plan *plan, const void *call, void *workspace, void *stream) {
    const checked_call given = {call, stream};
    return rope_plan_apply(plan, &given, workspace);
}

rope_status dnn_rotation_make(const rope_problem *problem, int32_t device, rope_plan **plan,
                              char *reason) {
    return make(&rope, problem, device, plan, reason);
}

rope_status dnn_rotation_run(const rope_plan *plan, const rope_call *call, void *stream) {
    return apply(plan, call, NULL, stream);
}

static rope_status query(const rope_candidate *self, const void *problem, int32_t device,
                         char *reason) {
    rope_device *opened;
    (void)self, (void)problem;
    if (rope_device_open(DNN_ROTATED_BY, device, &opened) != ROPE_OK)
        return decline(reason);
    rope_device_close(opened);
    return ROPE_OK;
}

static rope_status bind(const rope_candidate *self, const void *problem, int32_t device,
                        void **kernel, char *reason) {
    rope_plan *plan;
    rope_status status = make(self->data, problem, device, &plan, reason);
    if (status == ROPE_OK)
        *kernel = plan;
    return status;
}

static rope_status run(const void *problem, const void *kernel, const void *call, void *workspace,
                       void *stream) {
    (void)problem;
    return apply(kernel, call, workspace, stream);
}

static rope_status workspace_of(const void *problem, const void *kernel, const void *bounds,
                                size_t *bytes) {
    (void)problem;
    return rope_plan_workspace(kernel, bounds, bytes);
}

static void release(void *kernel) {
    rope_plan_destroy(kernel);
}

#define CANDIDATE(label, of, number, promises)                                                     \
    {                                                                                              \
        .operation = label, .version = (number), .numerics = (promises), .name = "cuda",           \
        .data = &(of), .query = query, .bind = bind, .workspace = workspace_of, .run = run,        \
        .release = release                                                                         \
    }

/* What cuDNN does not have, so that a program can name this backend for all that it does. */
static const rope_candidate candidates[] = {
    CANDIDATE("rope", rope, ROPE_ROPE_VERSION, ROPE_BITWISE),
    CANDIDATE("append", append, ROPE_APPEND_VERSION, ROPE_BITWISE),
    CANDIDATE("append_backward", append_backward, ROPE_APPEND_BACKWARD_VERSION, ROPE_BITWISE),
    CANDIDATE("attention_merge", merge, ROPE_ATTENTION_MERGE_VERSION, ROPE_BOUNDED),
    CANDIDATE("copy", copy, ROPE_TRAFFIC_VERSION, ROPE_BITWISE),
    CANDIDATE("update", update, ROPE_TRAFFIC_VERSION, ROPE_BITWISE),
};

const rope_candidate_list dnn_forward_candidates = {sizeof(rope_candidate), candidates,
                                                    sizeof candidates / sizeof candidates[0]};
