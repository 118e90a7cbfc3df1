/* The operation "attention": our rotation, then cuDNN's attention. */
#include "backends/cudnn/candidate_lists.h"
#include "backends/cudnn/launch.h"

static rope_status workspace(const void *problem, const void *kernel, const void *bounds,
                             size_t *bytes) {
    (void)problem;
    return dnn_workspace_of(kernel, bounds, 0, bytes);
}

/* Rows that see no key are not cuDNN's: it has no such query where the host knows lengths, and may
 * write anything there where it does not. */
static rope_status work(const dnn_launch *launch, const void *given) {
    const rope_attention_call *call = given;
    const dnn_layout *l = launch->layout;
    rope_status status = dnn_launch_lists(launch);
    if (status == ROPE_OK)
        status = dnn_launch_rotations(launch);
    if (status == ROPE_OK)
        status = dnn_launch_engines(launch);
    if (status != ROPE_OK || (l->known && !l->hidden))
        return status;
    return dnn_launch_rows(launch, DNN_OUT, NULL, call->out, call->out_stride, 1, 1);
}

static rope_status run(const void *problem, const void *kernel, const void *call, void *workspace,
                       void *stream) {
    (void)problem;
    return dnn_run((dnn_state *)(uintptr_t)kernel, call, NULL, work, workspace, stream);
}

static const rope_candidate candidates[] = {{.operation = "attention",
                                             .version = ROPE_ATTENTION_VERSION,
                                             .numerics = ROPE_BOUNDED,
                                             .name = "sdpa",
                                             .query = dnn_query,
                                             .bind = dnn_bind,
                                             .workspace = workspace,
                                             .run = run,
                                             .release = dnn_release}};

const rope_candidate_list dnn_attention_candidates = {sizeof(rope_candidate), candidates, 1};
