/* The operation "attention" by the kernel that decodes in one launch, without new keys. It takes
 * calls of few queries; others are for the plan's other kernels. */
#include "backends/gpu/decode/sm90/choose.h"

#include "backends/gpu/attention/sizes.h"
#include "backends/gpu/candidate.h"
#include "backends/gpu/candidate_lists.h"
#include "backends/gpu/device.h"
#include "backends/gpu/rope/lists.h"

#include <stdio.h>
#include <string.h>

/* A problem as one of "decode". */
typedef struct decoding {
    rope_append_problem append;
    rope_attention_problem attention;
} decoding;

typedef struct reading_state {
    gpu_binding on;
    decoding decoding;
} reading_state;

/* A call with its problem and workspace. */
typedef struct reading {
    const rope_attention_call *given;
    rope_decode_problem problem;
    rope_decode_call call;
    void *workspace;
} reading;

static decoding decoding_of(const rope_attention_problem *p) {
    const rope_append_steps q = {.head_dim = p->head_dim,
                                 .dim_block = p->head_dim,
                                 .factor = 1,
                                 .store_dtype = p->rope.dtype,
                                 .rotates = p->rotates[0]};
    decoding d = {.append = {.rope = p->rope,
                             .steps = {q, p->k, p->v},
                             .cache = ROPE_CACHE_TABLE,
                             .page_size = p->page_size,
                             .ring = p->ring,
                             .table_wide = p->table_wide},
                  .attention = *p};
    if (!p->cache) {
        d.append.steps[ROPE_APPEND_K] = d.append.steps[ROPE_APPEND_V] = q;
        d.append.steps[ROPE_APPEND_V].head_dim = p->v_head_dim;
        d.append.steps[ROPE_APPEND_V].dim_block = p->v_head_dim;
        d.attention.cache = ROPE_CACHE_SEQUENCE;
    }
    for (int i = ROPE_APPEND_K; i < ROPE_APPEND_TENSORS; i++) {
        d.append.steps[i].factor = 1;
        d.append.steps[i].rotates = 0;
    }
    return d;
}

/* Rows of keys as a cache, of which each is a page. */
static rope_append_operand as_pages(const rope_append_operand *given) {
    const int64_t *stride = given->in_stride;
    rope_append_operand o = *given;
    if (o.in)
        o = (rope_append_operand){.heads = o.heads,
                                  .cache = (void *)(uintptr_t)o.in,
                                  .cache_stride = {stride[0], stride[1], stride[2], 0, stride[3]}};
    return o;
}

static void read_call(const reading_state *state, const rope_attention_call *given, decoding *own,
                      reading *r) {
    const rope_operand *q = &given->rope.tensor[0];
    rope_append_call *a = &r->call.append;
    rope_attention_call *t = &r->call.attention;
    r->given = given;
    r->problem = (rope_decode_problem){&state->decoding.append, &state->decoding.attention};
    r->call = (rope_decode_call){.attention = *given, .most_tokens = given->rope.tokens};
    a->rope = given->rope;
    a->tensor[ROPE_APPEND_Q] = (rope_append_operand){.in = q->in, .heads = q->heads};
    memcpy(a->tensor[ROPE_APPEND_Q].in_stride, q->in_stride, sizeof q->in_stride);
    t->k = a->tensor[ROPE_APPEND_K] = as_pages(&given->k);
    t->v = a->tensor[ROPE_APPEND_V] = as_pages(&given->v);
    if (!given->k.in)
        return;
    *own = state->decoding;
    own->append.page_size = own->attention.page_size = given->k_tokens;
    r->problem = (rope_decode_problem){&own->append, &own->attention};
    t->pages = given->rope.batch;
    t->table_pages = 1;
}

static rope_status query(const rope_candidate *self, const void *given, int32_t device,
                         char *reason) {
    const rope_attention_problem *p = given;
    (void)self;
    if (!p)
        return gpu_decode_sm90.query(NULL, device, reason);
    const decoding d = decoding_of(p);
    const rope_decode_problem problem = {&d.append, &d.attention};
    if (p->rotates[1] || (p->rotates[0] && p->rope.angle_mode == ROPE_ANGLE_TABLE)) {
        snprintf(reason, ROPE_REASON_SIZE, "declined: keys rotate, or queries by a table");
        return ROPE_DECLINED;
    }
    return gpu_decode_sm90.query(&problem, device, reason);
}

static gpuError_t fill(void *to, const rope_candidate *self, const void *given, int32_t device) {
    reading_state *state = to;
    decoding *d = &state->decoding;
    (void)self;
    *d = decoding_of(given);
    gpuError_t error = gpu_bind(&state->on, device, d->append.rope.launch, NULL, 0);
    if (error == gpuSuccess)
        error = gpu_decode_sm90.load(&(rope_decode_problem){&d->append, &d->attention},
                                     &state->on.early);
    state->on.early &= d->append.rope.launch == ROPE_LAUNCH_PROGRAMMATIC;
    return error == gpuSuccess ? gpu_lists_copy(&((const rope_attention_problem *)given)->rope,
                                                &d->append.rope, &state->on.lists)
                               : error;
}

static rope_status check_memory(const gpu_binding *binding, const void *checked) {
    const reading *r = checked;
    const rope_attention_call *t = r->given;
    const gpu_named_pointer given[] = {
        {"q.in", t->rope.tensor[0].in},
        {"k.in", t->k.in},
        {"v.in", t->v.in},
        {"k_cache", t->k.cache},
        {"v_cache", t->v.cache},
        {"k_cache.scale", t->k.scale},
        {"v_cache.scale", t->v.scale},
        {"position_ids", t->rope.position.ids},
        {"sequence_offsets", t->rope.position.offsets},
        {"position_flag", t->rope.position_flag},
        {"block_table", t->block_table},
        {"q_lengths", t->q_lengths},
        {"k_lengths", t->k_lengths},
        {"sinks", t->sinks},
        {"tree_bits", t->tree_bits},
        {"out.data", t->out},
        {"lse", t->lse},
        {"workspace", t->workspace_bytes ? r->workspace : NULL},
    };
    return gpu_check_pointers(binding->device, given, sizeof given / sizeof given[0]);
}

static gpuError_t launch(const gpu_binding *binding, const void *given, void *stream) {
    const reading *r = given;
    const gpu_decode_launch l = {&r->problem,    &r->call, r->workspace, binding->multiprocessors,
                                 binding->early, stream};
    return gpu_decode_sm90.launch(&l);
}

static const gpu_operation operation = {"attending", sizeof(reading_state), fill, check_memory,
                                        launch};

static rope_status bind(const rope_candidate *self, const void *problem, int32_t device,
                        void **kernel, char *reason) {
    return gpu_bind_candidate(&operation, self, problem, device, kernel, reason);
}

static rope_status workspace_of(const void *problem, const void *kernel, const void *bounds,
                                size_t *bytes) {
    const reading_state *state = kernel;
    (void)problem;
    *bytes = gpu_decode_sm90.workspace(
        &(rope_decode_problem){&state->decoding.append, &state->decoding.attention}, bounds,
        state->on.multiprocessors);
    return ROPE_OK;
}

/* Whether a call takes the kernel, with the workspace that it has. */
static int takes(const reading_state *state, const rope_attention_call *given, decoding *own,
                 reading *r) {
    if (given->rope.position.cu_seqlens || given->k_position.cu_seqlens ||
        given->rope.tensor[0].out || given->k.out || given->rope.tokens < 1)
        return 0;
    read_call(state, given, own, r);
    return gpu_decode_sm90.fits(&r->problem, &r->call, state->on.multiprocessors) &&
           gpu_decode_sm90.workspace_of(&r->problem, &r->call, state->on.multiprocessors) <=
               given->workspace_bytes;
}

static rope_status run(const void *problem, const void *kernel, const void *given, void *workspace,
                       void *stream) {
    decoding own;
    reading r;
    (void)problem;
    if (!takes(kernel, given, &own, &r))
        return gpu_host->fail(ROPE_ERROR_UNSUPPORTED,
                              "the call does not take the kernel of few queries");
    r.workspace = workspace;
    const rope_status status = gpu_workspace_check(
        gpu_decode_sm90.workspace_of(&r.problem, &r.call,
                                     ((const reading_state *)kernel)->on.multiprocessors),
        r.call.attention.workspace_bytes, workspace);
    return status == ROPE_OK ? gpu_run(kernel, &r, stream) : status;
}

static const char *kernel_of(const void *kernel, const void *call) {
    decoding own;
    reading r;
    return takes(kernel, call, &own, &r) ? GPU_BACKEND_NAME ":decode_sm90" : "";
}

static const rope_candidate candidates[] = {{.operation = "attention",
                                             .version = ROPE_ATTENTION_VERSION,
                                             .numerics = ROPE_BOUNDED,
                                             .name = "few_sm90",
                                             .query = query,
                                             .bind = bind,
                                             .workspace = workspace_of,
                                             .run = run,
                                             .release = gpu_release,
                                             .kernel_of = kernel_of}};

const rope_candidate_list gpu_decode_attention_candidates = {sizeof(rope_candidate), candidates, 1};
