/* The operation "attention_merge": its candidate. */
#include "backends/gpu/attention/merge.h"

#include "backends/gpu/candidate.h"
#include "backends/gpu/candidate_lists.h"
#include "backends/gpu/device.h"

typedef struct merge_state {
    gpu_binding on;
    const void *kernel;
    int32_t head_dim;
} merge_state;

static rope_status query(const rope_candidate *self, const void *problem, int32_t device,
                         char *reason) {
    (void)self;
    return problem ? ROPE_OK : gpu_kernel_probe(gpu_attention_merge_kernels[0], device, reason);
}

static gpuError_t fill(void *to, const rope_candidate *self, const void *canonical,
                       int32_t device) {
    merge_state *state = to;
    const rope_attention_merge_problem *problem = canonical;
    (void)self;
    state->kernel = gpu_attention_merge_kernels[problem->dtype - ROPE_F32];
    state->head_dim = problem->head_dim;
    return gpu_bind(&state->on, device, ROPE_LAUNCH_PROGRAMMATIC, &state->kernel, 1);
}

static gpuError_t launch(const gpu_binding *binding, const void *given, void *stream) {
    const merge_state *state = (const merge_state *)binding;
    rope_attention_merge_call call = *(const rope_attention_merge_call *)given;
    int32_t head_dim = state->head_dim;
    const int64_t heads = call.batch * call.tokens * call.heads;
    void *arguments[] = {&call, &head_dim};
    dim3 grid = {(uint32_t)(heads < GPU_GRID_X_MOST ? heads : GPU_GRID_X_MOST), 1, 1},
         block = {GPU_MERGE_THREADS, 1, 1};
    return gpu_launch_kernel(state->kernel, grid, block, arguments, 0, stream, 0);
}

static const gpu_operation operation = {"merging", sizeof(merge_state), fill, NULL, launch};

static rope_status bind(const rope_candidate *self, const void *problem, int32_t device,
                        void **kernel, char *reason) {
    return gpu_bind_candidate(&operation, self, problem, device, kernel, reason);
}

static const rope_candidate candidates[] = {{.operation = "attention_merge",
                                             .version = ROPE_ATTENTION_MERGE_VERSION,
                                             .numerics = ROPE_BOUNDED,
                                             .name = "generic",
                                             .query = query,
                                             .bind = bind,
                                             .run = gpu_run_call,
                                             .release = gpu_release}};

const rope_candidate_list gpu_attention_merge_candidates = {sizeof(rope_candidate), candidates, 1};
