/* The operation "attention_backward": our rotation, cuDNN's backward, deterministic unless the
 * problem allows otherwise, and the rotation's transpose of its sums. */
#include "backends/cudnn/candidate_lists.h"
#include "backends/cudnn/launch.h"
#include "backends/gpu/device.h"

static rope_status workspace(const void *problem, const void *kernel, const void *bounds,
                             size_t *bytes) {
    (void)problem;
    return dnn_workspace_of(kernel, bounds, 1, bytes);
}

/* Ends a gradient that is wanted: rows that have no part in the engine, and those of sequences
 * alone from where they rotated back. */
static rope_status finish(const dnn_launch *launch, int which, int rotates, void *to,
                          const int64_t *stride) {
    const dnn_layout *l = launch->layout;
    const void *own = rotates && !l->known ? dnn_part_at(l, which, launch->workspace) : NULL;
    return !to || (l->known && !l->hidden && !l->is_nothing)
               ? ROPE_OK
               : dnn_launch_rows(launch, which, own, to, stride, 1, 0);
}

static rope_status work(const dnn_launch *launch, const void *given) {
    const rope_attention_backward_call *call = given;
    const int32_t *rotates = launch->layout->problem->rotates;
    rope_status status = dnn_launch_lists(launch);
    if (status == ROPE_OK)
        status = dnn_launch_rotations(launch);
    if (status == ROPE_OK)
        status = dnn_launch_lse(launch);
    if (status == ROPE_OK)
        status = dnn_launch_engines(launch);
    if (status == ROPE_OK)
        status = dnn_launch_back(launch, call);
    if (status == ROPE_OK)
        status = finish(launch, DNN_DQ, rotates[0], call->dq, call->dq_stride);
    if (status == ROPE_OK)
        status = finish(launch, DNN_DK, rotates[1], call->dk, call->dk_stride);
    return status == ROPE_OK ? finish(launch, DNN_DV, 0, call->dv, call->dv_stride) : status;
}

static rope_status run(const void *problem, const void *kernel, const void *given, void *workspace,
                       void *stream) {
    const rope_attention_backward_call *call = given;
    (void)problem;
    if (call->dsinks)
        return gpu_host->fail(ROPE_ERROR_UNSUPPORTED,
                              "cuDNN's attention does not take this call: it promises no order in "
                              "which it sums dsinks");
    return dnn_run((dnn_state *)(uintptr_t)kernel, &call->forward, call, work, workspace, stream);
}

static const rope_candidate candidates[] = {{.operation = "attention_backward",
                                             .version = ROPE_ATTENTION_BACKWARD_VERSION,
                                             .numerics = ROPE_BOUNDED,
                                             .name = "sdpa",
                                             .data = "backward",
                                             .query = dnn_query,
                                             .bind = dnn_bind,
                                             .workspace = workspace,
                                             .run = run,
                                             .release = dnn_release}};

const rope_candidate_list dnn_attention_backward_candidates = {sizeof(rope_candidate), candidates,
                                                               1};
