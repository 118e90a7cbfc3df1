/* The operation "decode": kernels that do it in one launch, or join splits in a second one. Other
 * calls are composed. */
#include "backends/gpu/attention/sizes.h"
#include "backends/gpu/candidate.h"
#include "backends/gpu/candidate_lists.h"
#include "backends/gpu/decode/launch.h"
#include "backends/gpu/device.h"
#include "backends/gpu/rope/lists.h"

/* The state of a plan, whose lists lie on the device. */
typedef struct decode_state {
    gpu_binding on;
    const gpu_decode_kernel *kernel;
    rope_append_problem append;
    rope_attention_problem attention;
    rope_decode_problem problem;
} decode_state;

/* A call with its workspace. */
typedef struct decode_work {
    const rope_decode_call *call;
    void *workspace;
} decode_work;

static const gpu_decode_kernel *kernel_of_candidate(const rope_candidate *self) {
    return self->data;
}

static rope_status query(const rope_candidate *self, const void *problem, int32_t device,
                         char *reason) {
    return kernel_of_candidate(self)->query(problem, device, reason);
}

static gpuError_t fill(void *to, const rope_candidate *self, const void *given, int32_t device) {
    const rope_decode_problem *problem = given;
    decode_state *state = to;
    state->kernel = self->data;
    state->append = *problem->append;
    state->attention = *problem->attention;
    state->problem = (rope_decode_problem){&state->append, &state->attention};
    gpuError_t error = gpu_bind(&state->on, device, state->append.rope.launch, NULL, 0);
    if (error == gpuSuccess)
        error = state->kernel->load(problem, &state->on.early);
    state->on.early &= state->append.rope.launch == ROPE_LAUNCH_PROGRAMMATIC;
    return error == gpuSuccess
               ? gpu_lists_copy(&problem->append->rope, &state->append.rope, &state->on.lists)
               : error;
}

static rope_status check_memory(const gpu_binding *binding, const void *checked) {
    const decode_work *work = checked;
    const rope_append_call *a = &work->call->append;
    const rope_attention_call *t = &work->call->attention;
    const rope_append_operand *q = &a->tensor[ROPE_APPEND_Q], *k = &a->tensor[ROPE_APPEND_K],
                              *v = &a->tensor[ROPE_APPEND_V];
    const gpu_named_pointer given[] = {
        {"q.in", q->in},
        {"k.in", k->in},
        {"v.in", v->in},
        {"q_weight", q->weight},
        {"k_weight", k->weight},
        {"k_cache", k->cache},
        {"v_cache", v->cache},
        {"k_cache.scale", k->scale},
        {"v_cache.scale", v->scale},
        {"cos", a->rope.cos},
        {"sin", a->rope.sin},
        {"position_ids", a->rope.position.ids},
        {"sequence_offsets", a->rope.position.offsets},
        {"cu_seqlens", a->rope.position.cu_seqlens},
        {"position_flag", a->rope.position_flag},
        {"slots", a->slots},
        {"block_table", t->block_table},
        {"cache_starts", a->starts},
        {"k_lengths", t->k_lengths},
        {"sinks", t->sinks},
        {"tree_bits", t->tree_bits},
        {"out.data", t->out},
        {"lse", t->lse},
        {"workspace", t->workspace_bytes ? work->workspace : NULL},
    };
    return gpu_check_pointers(binding->device, given, sizeof given / sizeof given[0]);
}

static gpuError_t launch(const gpu_binding *binding, const void *given, void *stream) {
    const decode_state *state = (const decode_state *)binding;
    const decode_work *work = given;
    const gpu_decode_launch l = {&state->problem,          work->call,     work->workspace,
                                 binding->multiprocessors, binding->early, stream};
    return state->kernel->launch(&l);
}

static const gpu_operation operation = {"decoding", sizeof(decode_state), fill, check_memory,
                                        launch};

static rope_status bind(const rope_candidate *self, const void *problem, int32_t device,
                        void **kernel, char *reason) {
    return gpu_bind_candidate(&operation, self, problem, device, kernel, reason);
}

static rope_status workspace_of(const void *problem, const void *kernel, const void *bounds,
                                size_t *bytes) {
    const decode_state *state = kernel;
    *bytes = state->kernel->workspace(problem, bounds, state->on.multiprocessors);
    return ROPE_OK;
}

/* Whether a call takes the kernel, and was given the bytes of workspace that it then needs. */
static int takes(const decode_state *state, const rope_decode_call *call, size_t *bytes) {
    const int32_t multiprocessors = state->on.multiprocessors;
    if (!state->kernel->fits(&state->problem, call, multiprocessors))
        return 0;
    *bytes = state->kernel->workspace_of(&state->problem, call, multiprocessors);
    return *bytes <= call->attention.workspace_bytes;
}

static rope_status run(const void *problem, const void *kernel, const void *given, void *workspace,
                       void *stream) {
    const decode_work work = {given, workspace};
    size_t bytes;
    (void)problem;
    if (!takes(kernel, given, &bytes))
        return gpu_host->fail(ROPE_ERROR_UNSUPPORTED,
                              "the call does not take the kernel of decoding in one launch");
    const rope_status status =
        gpu_workspace_check(bytes, work.call->attention.workspace_bytes, workspace);
    return status == ROPE_OK ? gpu_run(kernel, &work, stream) : status;
}

static const char *kernel_of(const void *kernel, const void *call) {
    size_t bytes;
    return takes(kernel, call, &bytes) ? NULL : "";
}

/* The first that accepts. */
#define CANDIDATE(kernel, text)                                                                    \
    {                                                                                              \
        .operation = "decode", .version = ROPE_DECODE_VERSION, .numerics = ROPE_BOUNDED,           \
        .name = text, .query = query, .bind = bind, .workspace = workspace_of, .run = run,         \
        .release = gpu_release, .kernel_of = kernel_of, .data = &(kernel)                          \
    }

static const rope_candidate candidates[] = {
#ifdef ROPEKIT_SM90
    CANDIDATE(gpu_decode_sm90, "decode_sm90"), CANDIDATE(gpu_decode_latent, "decode_latent"),
#endif
    CANDIDATE(gpu_decode_portable, "decode_portable")};

const rope_candidate_list gpu_decode_candidates = {sizeof(rope_candidate), candidates,
                                                   sizeof candidates / sizeof candidates[0]};
