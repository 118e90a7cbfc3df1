/* The operation "attention_backward": its candidates, what they bind and how they run. */
#include "backends/gpu/attention_backward/launch.h"
#include "backends/gpu/attention_backward/sm90.h"
#include "backends/gpu/candidate_lists.h"
#include "backends/gpu/device.h"
#include "common/math/attention.h"

#include <stdio.h>

static const gpu_backward_kernels *kernels_of(int32_t dtype) {
    return dtype == ROPE_F32   ? &gpu_attention_backward_f32
           : dtype == ROPE_F16 ? &gpu_attention_backward_f16
                               : &gpu_attention_backward_bf16;
}

static const char sm90[] = "sm90", tiles[] = "tiles";

static rope_status query(const rope_candidate *self, const void *problem, int32_t device,
                         char *reason) {
    int32_t which;
    if (!problem)
        return gpu_kernel_probe(gpu_attention_backward_f32.delta, device, reason);
    if (!self->data)
        return ROPE_OK;
    if (self->data == sm90 && !gpu_backward_sm90_takes(problem, device)) {
        snprintf(reason, ROPE_REASON_SIZE, "%s", GPU_BACKWARD_SM90_DECLINED);
        return ROPE_DECLINED;
    }
    const char *declined = gpu_tiles_decline(problem, &which);
    const rope_status status = gpu_tiles_query(
        problem, declined, gpu_backward_tiles_shared(gpu_tile_dim(which)), device, reason);
    if (status != ROPE_OK || kernels_of(((const rope_problem *)problem)->dtype)->tiles[0][which])
        return status;
    snprintf(reason, ROPE_REASON_SIZE, "declined: no kernel of this backend holds its sums");
    return ROPE_DECLINED;
}

static gpuError_t allow_shared(const gpu_backward_state *state) {
    const int32_t generic = state->forward.generic, tiles = state->forward.tiles;
    gpuError_t error = gpuSuccess;
    for (int i = 0; i < 2 && error == gpuSuccess; i++) {
        error = gpu_allow_shared(state->kernels->generic[i][generic],
                                 gpu_backward_generic_shared(gpu_generic_dim(generic)));
        if (error == gpuSuccess && tiles != GPU_GENERIC)
            error = gpu_allow_shared(state->kernels->tiles[i][tiles],
                                     gpu_backward_tiles_shared(gpu_tile_dim(tiles)));
    }
    return error;
}

static gpuError_t fill(void *to, const rope_candidate *self, const void *canonical,
                       int32_t device) {
    gpu_backward_state *state = to;
    const rope_attention_problem *problem = canonical;
    const rope_problem transposed = rope_transposed(&problem->rope);
    int32_t early;
    gpuError_t error = gpu_attention_bind(&state->forward, problem, device);
    state->kernels = kernels_of(problem->rope.dtype);
    state->transposed = state->forward.problem;
    state->transposed.rope = rope_transposed(&state->forward.problem.rope);
    if (error == gpuSuccess && problem->rotates[0])
        error = gpu_rope_bind(&state->transpose, &transposed, device, ROPE_LAUNCH_PROGRAMMATIC);
    state->transpose.problem = state->transposed.rope;
    state->sm90 = self->data == sm90; /* tiles take what it does not */
    if (self->data)
        (void)gpu_tiles_decline(problem, &state->forward.tiles);
    if (error == gpuSuccess)
        error = gpu_kernels_load((const void *const *)state->kernels,
                                 sizeof *state->kernels / sizeof(void *), &early);
    if (error == gpuSuccess)
        error = allow_shared(state);
    if (error == gpuSuccess && state->sm90)
        error = gpu_backward_sm90_load(problem);
    if (error == gpuSuccess)
        state->forward.starts_early &= early;
    state->forward.on.early &= state->forward.starts_early;
    return error;
}

/* A call with its workspace and the parts of that. */
typedef struct backward_work {
    const rope_attention_backward_call *call;
    void *workspace;
    gpu_backward_layout layout;
} backward_work;

static rope_status check_memory(const gpu_binding *binding, const void *checked) {
    const backward_work *work = checked;
    const rope_attention_backward_call *call = work->call;
    const rope_attention_call *f = &call->forward;
    const gpu_named_pointer given[] = {
        {"q.in", f->rope.tensor[0].in},
        {"k.in", f->k.in},
        {"v.in", f->v.in},
        {"out.data", f->out},
        {"lse", f->lse},
        {"dout", call->dout},
        {"dq.data", call->dq},
        {"dk.data", call->dk},
        {"dv.data", call->dv},
        {"dsinks", call->dsinks},
        {"workspace", f->workspace_bytes ? work->workspace : NULL},
    };
    const rope_status status =
        gpu_check_pointers(binding->device, given, sizeof given / sizeof given[0]);
    return status == ROPE_OK
               ? gpu_attention_check_lists(&((const gpu_backward_state *)binding)->forward, f)
               : status;
}

static gpuError_t launch(const gpu_binding *binding, const void *given, void *stream) {
    const backward_work *work = given;
    return gpu_backward_launch((const gpu_backward_state *)binding, work->call, &work->layout,
                               work->workspace, stream);
}

static const gpu_operation operation = {"attending backward", sizeof(gpu_backward_state), fill,
                                        check_memory, launch};

static rope_status bind(const rope_candidate *self, const void *problem, int32_t device,
                        void **kernel, char *reason) {
    return gpu_bind_candidate(&operation, self, problem, device, kernel, reason);
}

static rope_status run(const void *problem, const void *kernel, const void *call, void *workspace,
                       void *stream) {
    backward_work work = {.call = call, .workspace = workspace};
    (void)problem;
    const rope_status status = gpu_backward_check_workspace(kernel, call, workspace, &work.layout);
    return status == ROPE_OK ? gpu_run(kernel, &work, stream) : status;
}

/* takes: sm90, tiles or NULL. */
#define CANDIDATE(label, takes)                                                                    \
    {                                                                                              \
        .operation = "attention_backward", .version = ROPE_ATTENTION_BACKWARD_VERSION,             \
        .numerics = ROPE_BOUNDED, .name = label, .data = (takes), .query = query, .bind = bind,    \
        .workspace = gpu_backward_workspace, .run = run, .release = gpu_release                    \
    }

static const rope_candidate candidates[] = {
#ifdef ROPEKIT_SM90
    CANDIDATE(sm90, sm90),
#endif
    CANDIDATE(tiles, tiles), CANDIDATE("generic", NULL)};

const rope_candidate_list gpu_attention_backward_candidates = {
    sizeof(rope_candidate), candidates, sizeof candidates / sizeof candidates[0]};
