/* The operation "append_backward": its candidate, what it binds and how it runs. */
#include "backends/gpu/append_backward/launch.h"
#include "backends/gpu/candidate_lists.h"
#include "backends/gpu/rope/lists.h"

static const void *const *kernels_of(int32_t dtype) {
    return dtype == ROPE_F32   ? gpu_gradient_tokens_f32
           : dtype == ROPE_F16 ? gpu_gradient_tokens_f16
                               : gpu_gradient_tokens_bf16;
}

static rope_status query(const rope_candidate *self, const void *problem, int32_t device,
                         char *reason) {
    (void)self;
    return problem ? ROPE_OK : gpu_kernel_probe(gpu_gradient_tokens_f32[1], device, reason);
}

static gpuError_t fill(void *to, const rope_candidate *self, const void *canonical,
                       int32_t device) {
    gpu_gradient_state *state = to;
    const rope_append_problem *problem = canonical;
    (void)self;
    state->kernels[0] = kernels_of(problem->rope.dtype)[0];
    state->kernels[1] = kernels_of(problem->rope.dtype)[1];
    state->kernels[2] = gpu_gradient_join;
    state->problem = *problem;
    const gpuError_t error = gpu_bind(&state->on, device, problem->rope.launch, state->kernels,
                                      sizeof state->kernels / sizeof(void *));
    return error == gpuSuccess
               ? gpu_lists_copy(&problem->rope, &state->problem.rope, &state->on.lists)
               : error;
}

/* Names in the arguments of a tensor's pointers. */
typedef struct names {
    const char *x, *in, *out, *weight, *sums;
} names;

static rope_status check_tensor(int32_t device, const rope_append_backward_call *call, int t,
                                const names *names) {
    const rope_append_operand *o = &call->forward.tensor[t];
    const gpu_named_pointer given[] = {{names->x, o->in},
                                       {names->in, call->gradient[t].in},
                                       {names->out, call->gradient[t].out},
                                       {names->weight, o->weight},
                                       {names->sums, call->weight[t]}};
    return o->heads ? gpu_check_pointers(device, given, sizeof given / sizeof given[0]) : ROPE_OK;
}

static rope_status check_memory(const gpu_binding *binding, const void *given) {
    static const names of[ROPE_APPEND_TENSORS] = {
        {"forward's q.in", "q.in", "q.out", "q_weight", "q.weight"},
        {"forward's k.in", "k.in", "k.out", "k_weight", "k.weight"},
        {"forward's v.in", "v.in", "v.out", "v_weight", "v.weight"}};
    const rope_append_problem *p = &((const gpu_gradient_state *)binding)->problem;
    const gpu_gradient_work *work = given;
    const rope_call *call = &work->call->forward.rope;
    const int table = p->rope.angle_mode == ROPE_ANGLE_TABLE;
    const gpu_named_pointer lists[] = {
        {"position_ids", call->position.ids},
        {"sequence_offsets", call->position.offsets},
        {"cu_seqlens", call->position.cu_seqlens},
        {"sequence_lengths", call->position.lengths},
        {"cos", table ? call->cos : NULL},
        {"sin", table ? call->sin : NULL},
        {"position_flag", call->position_flag},
        {"workspace", work->call->workspace_bytes ? work->workspace : NULL},
    };
    rope_status status = gpu_check_pointers(binding->device, lists, sizeof lists / sizeof lists[0]);
    for (int t = 0; t < ROPE_APPEND_TENSORS && status == ROPE_OK; t++)
        status = check_tensor(binding->device, work->call, t, &of[t]);
    return status;
}

static const gpu_operation operation = {"differentiating", sizeof(gpu_gradient_state), fill,
                                        check_memory, gpu_gradient_launch};

static rope_status bind(const rope_candidate *self, const void *problem, int32_t device,
                        void **kernel, char *reason) {
    return gpu_bind_candidate(&operation, self, problem, device, kernel, reason);
}

static rope_status run(const void *problem, const void *kernel, const void *call, void *workspace,
                       void *stream) {
    const gpu_gradient_work work = {call, workspace};
    (void)problem;
    const rope_status status = gpu_gradient_check(kernel, &work);
    return status == ROPE_OK ? gpu_run(kernel, &work, stream) : status;
}

static const rope_candidate candidates[] = {{.operation = "append_backward",
                                             .version = ROPE_APPEND_BACKWARD_VERSION,
                                             .numerics = ROPE_BITWISE,
                                             .name = "generic",
                                             .query = query,
                                             .bind = bind,
                                             .workspace = gpu_gradient_workspace,
                                             .run = run,
                                             .release = gpu_release}};

const rope_candidate_list gpu_append_backward_candidates = {sizeof(rope_candidate), candidates, 1};
