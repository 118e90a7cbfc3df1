#include "backends/cudnn/launch.h"

#include "backends/cudnn/forward.h"
#include "backends/cudnn/sequences.h"
#include "backends/cudnn/slices.h"
#include "backends/gpu/candidate.h"
#include "backends/gpu/device.h"
#include "common/math/attention.h"

#include <stdio.h>
#include <stdlib.h>

/* --- plans --- */

rope_status dnn_query(const rope_candidate *self, const void *problem, int32_t device,
                      char *reason) {
    const char *declined = problem ? dnn_problem_decline(problem, self->data != NULL) : NULL;
    (void)device;
    if (!declined)
        return ROPE_OK;
    snprintf(reason, ROPE_REASON_SIZE, "%s", declined);
    return ROPE_DECLINED;
}

/* Whether cuDNN has an engine for small calls of a problem. */
static rope_status probe(const rope_attention_problem *problem, int32_t device, int backward,
                         char *reason) {
    const rope_attention_bounds small = {sizeof small, 2, 256, 256, 0, 2, 2};
    char text[ROPE_REASON_SIZE] = "";
    rope_attention_backward_call call;
    dnn_layout layout;
    (void)dnn_call_of(problem, &small, 0, &call);
    rope_status status =
        dnn_layout_of(problem, &call.forward, backward ? &call : NULL, &layout, text);
    if (status == ROPE_OK)
        status = dnn_engine_probe(&layout.shape, device, text);
    if (status == ROPE_OK)
        return ROPE_OK;
    const int lacks = status == ROPE_ERROR_OUT_OF_MEMORY;
    snprintf(reason, ROPE_REASON_SIZE, "%s%.*s", lacks ? "" : "declined: ", ROPE_REASON_SIZE - 11,
             text);
    return lacks ? status : ROPE_DECLINED;
}

static rope_status make_rotations(dnn_state *state, int backward, char *reason) {
    const rope_attention_problem *p = state->problem;
    if (!p->rotates[0])
        return ROPE_OK;
    rope_status status = dnn_rotation_make(&p->rope, state->device, &state->rotation, reason);
    if (status != ROPE_OK || !backward)
        return status;
    state->transposed = rope_transposed(&p->rope);
    return dnn_rotation_make(&state->transposed, state->device, &state->back, reason);
}

/* A capture cannot load them. */
static gpuError_t load_kernels(void) {
    const void *const kernels[] = {dnn_lists_kernel, dnn_rows_kernel, dnn_lse_kernel};
    int32_t early;
    return gpu_kernels_load(kernels, sizeof kernels / sizeof kernels[0], &early);
}

rope_status dnn_bind(const rope_candidate *self, const void *problem, int32_t device, void **kernel,
                     char *reason) {
    dnn_state *state = calloc(1, sizeof *state);
    int previous = device;
    if (!state)
        return gpu_refuse(gpuErrorMemoryAllocation, reason);
    state->problem = problem;
    state->device = device;
    dnn_engines_begin(&state->engines, device);
    gpuError_t error = gpuGetDeviceCount(&state->devices);
    if (error == gpuSuccess)
        error = gpu_enter(device, &previous);
    const int entered = error == gpuSuccess;
    if (entered)
        error = load_kernels();
    rope_status status = error == gpuSuccess ? ROPE_OK : gpu_refuse(error, reason);
    if (status == ROPE_OK)
        status = probe(problem, device, self->data != NULL, reason);
    if (entered)
        gpu_leave(device, previous);
    if (status == ROPE_OK)
        status = make_rotations(state, self->data != NULL, reason);
    if (status == ROPE_OK)
        *kernel = state;
    else
        dnn_release(state);
    return status;
}

void dnn_release(void *kernel) {
    dnn_state *state = kernel;
    if (!state)
        return;
    int previous;
    const int entered = gpu_enter(state->device, &previous) == gpuSuccess; /* code is unloaded */
    rope_plan_destroy(state->rotation);
    rope_plan_destroy(state->back);
    dnn_engines_end(&state->engines);
    if (entered)
        gpu_leave(state->device, previous);
    free(state);
}

/* --- the workspace --- */

static const dnn_entry *engine_of(const dnn_state *state, const dnn_layout *layout, int64_t slice) {
    dnn_shape shape;
    dnn_slice_shape(layout, slice, &shape);
    return dnn_engines_get((dnn_engines *)(uintptr_t)&state->engines, &shape);
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

/* Engines of both kinds of slices, the first and the last, which are one where all are alike. */
static const dnn_entry *last_of(const dnn_state *state, const dnn_layout *layout,
                                const dnn_entry *first) {
    return dnn_slices_differ(layout) ? engine_of(state, layout, dnn_slice_count(layout) - 1)
                                     : first;
}

/* An engine of the whole call is asked first: some need no memory for pairs. */
static void set_slice(const dnn_state *state, dnn_layout *layout) {
    if (!dnn_set_whole(layout))
        return;
    const dnn_entry *whole = engine_of(state, layout, 0);
    dnn_set_slice(layout, whole && whole->engine ? dnn_engine_workspace(whole->engine) : SIZE_MAX);
}

static size_t bytes_of(const dnn_entry *entry) {
    return entry && entry->engine ? dnn_engine_workspace(entry->engine) : 0;
}

static const char no_memory[] = "no memory for an engine";

static rope_status engine_bytes(const dnn_state *state, dnn_layout *layout, size_t *bytes) {
    int previous;
    *bytes = dnn_slice_bytes(layout);
    if (layout->is_nothing || gpu_enter(state->device, &previous) != gpuSuccess)
        return ROPE_OK;
    set_slice(state, layout);
    const dnn_entry *first = engine_of(state, layout, 0), *last = last_of(state, layout, first);
    gpu_leave(state->device, previous);
    if (!first || !last)
        return gpu_host->fail(ROPE_ERROR_OUT_OF_MEMORY, "%s", no_memory);
    *bytes = larger(*bytes, larger(bytes_of(first), bytes_of(last)));
    return ROPE_OK;
}

static rope_status exceeds(const rope_attention_bounds *b) {
    return gpu_host->fail(
        ROPE_ERROR_OVERFLOW,
        "bounds.batch is %lld, bounds.tokens %lld, bounds.k_tokens %lld, bounds.sequences %lld, "
        "bounds.q_heads %lld and bounds.k_heads %lld; allowed with cuDNN is < 2^31 of each and of "
        "pages, and bytes of 64 bits",
        (long long)b->batch, (long long)b->tokens, (long long)b->k_tokens, (long long)b->sequences,
        (long long)b->q_heads, (long long)b->k_heads);
}

rope_status dnn_workspace_of(const dnn_state *state, const rope_attention_bounds *bounds,
                             int backward, size_t *bytes) {
    char reason[ROPE_REASON_SIZE] = "";
    rope_attention_backward_call call;
    dnn_layout listed, likely;
    *bytes = 0;
    if (!bounds->batch || !bounds->tokens || !bounds->q_heads || !bounds->k_heads)
        return ROPE_OK;
    if (!dnn_call_of(state->problem, bounds, 1, &call) ||
        dnn_layout_of(state->problem, &call.forward, backward ? &call : NULL, &listed, reason) !=
            ROPE_OK)
        return exceeds(bounds);
    (void)dnn_call_of(state->problem, bounds, 0, &call);
    if (!backward)
        call.forward.lse = NULL;
    if (dnn_layout_of(state->problem, &call.forward, backward ? &call : NULL, &likely, reason) !=
        ROPE_OK) /* its lengths must be on the device */
        likely.is_nothing = 1;
    size_t engine;
    const rope_status status = engine_bytes(state, &likely, &engine);
    return status == ROPE_OK && __builtin_add_overflow(listed.bytes, engine, bytes)
               ? exceeds(bounds)
               : status;
}

static rope_status check_workspace(const dnn_launch *launch) {
    const dnn_layout *layout = launch->layout;
    const size_t engine = larger(bytes_of(launch->entry), bytes_of(launch->last)),
                 all = layout->bytes + engine, given = layout->call->workspace_bytes;
    if (given < layout->bytes)
        return gpu_host->fail(ROPE_ERROR_INVALID_VALUE, "workspace_bytes is %zu; allowed is >= %zu",
                              given, layout->bytes);
    if (given - layout->bytes < engine)
        return gpu_host->fail(
            ROPE_ERROR_UNSUPPORTED,
            "cuDNN's attention does not take this call: workspace_bytes is %zu; allowed with the "
            "engine of this shape is >= %zu",
            given, all);
    if (all && !launch->workspace)
        return gpu_host->fail(ROPE_ERROR_NULL_POINTER,
                              "workspace is NULL; allowed is %zu bytes of device memory", all);
    return ROPE_OK;
}

/* --- launches --- */

static rope_status checked(gpuError_t error, const dnn_launch *launch) {
    return error == gpuSuccess ? ROPE_OK : gpu_fail(error, "attending", launch->state->device);
}

static rope_status start(const dnn_launch *launch, const void *kernel, int64_t blocks,
                         const void *parameter) {
    void *arguments[] = {(void *)(uintptr_t)parameter};
    const dim3 grid = {(uint32_t)(blocks < GPU_GRID_X_MOST ? blocks : GPU_GRID_X_MOST), 1, 1},
               block = {DNN_THREADS, 1, 1};
    return blocks < 1
               ? ROPE_OK
               : checked(gpu_launch_kernel(kernel, grid, block, arguments, 0, launch->stream, 0),
                         launch);
}

rope_status dnn_launch_lists(const dnn_launch *launch) {
    const dnn_layout *l = launch->layout;
    if (!l->has[DNN_Q_LENGTHS] && !l->has[DNN_SINKS])
        return ROPE_OK;
    dnn_lists lists = {.problem = *l->problem,
                       .call = *l->call,
                       .q_lengths = dnn_part_at(l, DNN_Q_LENGTHS, launch->workspace),
                       .k_lengths = dnn_part_at(l, DNN_K_LENGTHS, launch->workspace),
                       .fails = dnn_part_at(l, DNN_FAILS, launch->workspace),
                       .table = dnn_part_at(l, DNN_TABLE, launch->workspace),
                       .table_pages = l->shape.table_pages,
                       .shifts = dnn_part_at(l, DNN_SHIFTS, launch->workspace),
                       .sinks = dnn_part_at(l, DNN_SINKS, launch->workspace),
                       .skips = l->shape.begins[DNN_Q]};
    for (int t = 0; t < DNN_TENSORS; t++) {
        lists.begin[t] = dnn_part_at(l, DNN_OFFSETS + t, launch->workspace);
        lists.stride[t][0] = l->stride[t][0];
        lists.stride[t][1] = l->stride[t][1];
    }
    return start(launch, dnn_lists_kernel, l->known ? 1 : l->sequences, &lists);
}

rope_status dnn_launch_rows(const dnn_launch *launch, int which, const void *from, void *to,
                            const int64_t stride[4], int zeroes, int with_lse) {
    const dnn_layout *l = launch->layout;
    const int keys = which == DNN_K || which == DNN_V || which == DNN_DK || which == DNN_DV;
    const float *sinks = dnn_part_at(l, DNN_SINKS, launch->workspace);
    dnn_rows rows = {.problem = *l->problem,
                     .call = *l->call,
                     .fails = dnn_part_at(l, DNN_FAILS, launch->workspace),
                     .from = from,
                     .to = to,
                     .lse = with_lse ? l->call->lse : NULL,
                     .sinks = sinks ? sinks : l->call->sinks,
                     .heads = keys ? l->shape.k_heads : l->shape.q_heads,
                     .dim = which == DNN_V || which == DNN_DV || which == DNN_OUT
                                ? l->problem->v_head_dim
                                : l->problem->head_dim,
                     .keys = keys,
                     .zeroes = zeroes};
    for (int d = 0; d < 4; d++)
        rows.to_stride[d] = stride[d];
    const int64_t tokens = keys ? l->call->k_tokens : l->call->rope.tokens;
    return start(launch, dnn_rows_kernel, l->call->rope.batch * tokens, &rows);
}

rope_status dnn_launch_lse(const dnn_launch *launch) {
    const dnn_layout *l = launch->layout;
    const rope_attention_call *c = l->call;
    const int64_t *s = l->shape.stride[DNN_LSE], heads = l->shape.q_heads,
                  tokens = c->rope.tokens - l->hidden;
    const int ragged = l->shape.begins[DNN_LSE];
    if (!l->has[DNN_LSE])
        return ROPE_OK;
    const dnn_lse lse = {
        .from = c->lse + l->hidden * c->lse_stride[1],
        .to = dnn_part_at(l, DNN_LSE, launch->workspace),
        .from_stride = {c->lse_stride[0], c->lse_stride[1], c->lse_stride[2]},
        .to_stride = {ragged ? tokens * heads : s[0], ragged ? heads : s[2], ragged ? 1 : s[1]},
        .size = {c->rope.batch, tokens, heads}};
    return start(launch, dnn_lse_kernel,
                 (c->rope.batch * tokens * heads + DNN_THREADS - 1) / DNN_THREADS, &lse);
}

rope_status dnn_launch_engines(const dnn_launch *launch) {
    const dnn_layout *l = launch->layout;
    const int64_t count = launch->entry ? dnn_slice_count(l) : 0;
    void *at[DNN_POINTERS];
    char reason[ROPE_REASON_SIZE] = "";
    rope_status status = ROPE_OK;
    for (int64_t n = 0; n < count && status == ROPE_OK; n++) {
        const dnn_entry *entry = dnn_slice_ends(l, n) ? launch->last : launch->entry;
        dnn_slice_pointers(l, launch->workspace, n, at);
        status = dnn_engine_run(entry->engine, at, (char *)launch->workspace + l->bytes,
                                launch->stream, reason);
    }
    return status == ROPE_OK ? ROPE_OK
                             : gpu_host->fail(status, "attending on %s device %d: %s",
                                              GPU_BACKEND_NAME, launch->state->device, reason);
}

/* --- rotations --- */

/* A rotation's call without its tensors. */
static rope_call positions_of(const dnn_launch *launch, int keys) {
    const dnn_layout *l = launch->layout;
    const rope_attention_call *c = l->call;
    rope_call call = c->rope;
    call.tensor[0].heads = call.tensor[1].heads = 0;
    if (keys) {
        call.tokens = c->k_tokens;
        call.position = c->k_position;
        return call;
    }
    if (l->has[DNN_SHIFTS])
        call.position.offsets = dnn_part_at(l, DNN_SHIFTS, launch->workspace);
    else if (l->known && !call.position.ids)
        call.position.offset = rope_sum(call.position.offset, c->k_tokens - c->rope.tokens);
    return call;
}

static void set_operand(rope_operand *o, const void *in, const int64_t *in_stride, void *out,
                        const int64_t *out_stride, int64_t heads) {
    *o = (rope_operand){.in = in, .out = out, .heads = heads};
    memcpy(o->in_stride, in_stride, sizeof o->in_stride);
    memcpy(o->out_stride, out_stride, sizeof o->out_stride);
}

/* Whether token i of the queries stands where key i does. */
static int stand_alike(const dnn_layout *l) {
    const rope_position_map *q = &l->call->rope.position, *k = &l->call->k_position;
    return l->shape.alike && l->hidden == 0 && q->tokens == k->tokens && q->ids == k->ids &&
           memcmp(q->id_stride, k->id_stride, sizeof q->id_stride) == 0;
}

static rope_status rotate(const dnn_launch *launch, int queries, int keys) {
    const dnn_layout *l = launch->layout;
    const rope_operand *q = &l->call->rope.tensor[0];
    const rope_append_operand *k = &l->call->k;
    rope_call call = positions_of(launch, !queries);
    if (queries)
        set_operand(&call.tensor[0], q->in, q->in_stride,
                    dnn_tensor_at(l, DNN_Q, launch->workspace), l->stride[DNN_Q], q->heads);
    if (keys)
        set_operand(&call.tensor[1], k->in, k->in_stride,
                    dnn_tensor_at(l, DNN_K, launch->workspace), l->stride[DNN_K], k->heads);
    return dnn_rotation_run(launch->state->rotation, &call, launch->stream);
}

/* Where lengths lie on the device a call's q.out and k.out have the tokens of sequences alone. */
static rope_status copy_out(const dnn_launch *launch, int which, void *out, const int64_t *stride) {
    void *const own = dnn_part_at(launch->layout, which, launch->workspace);
    return out && own ? dnn_launch_rows(launch, which, own, out, stride, 0, 0) : ROPE_OK;
}

rope_status dnn_launch_rotations(const dnn_launch *launch) {
    const dnn_layout *l = launch->layout;
    const rope_operand *q = &l->call->rope.tensor[0];
    const rope_append_operand *k = &l->call->k;
    const int backward = l->shape.is_backward,
              queries = l->problem->rotates[0] && !(backward && q->out),
              keys = l->problem->rotates[1] && !(backward && k->out),
              both = queries && keys && stand_alike(l);
    rope_status status = ROPE_OK;
    if (both)
        status = rotate(launch, 1, 1);
    if (status == ROPE_OK && keys && !both && l->call->k_tokens)
        status = rotate(launch, 0, 1);
    if (status == ROPE_OK && queries && !both)
        status = rotate(launch, 1, 0);
    if (status == ROPE_OK && queries)
        status = copy_out(launch, DNN_Q, q->out, q->out_stride);
    if (status == ROPE_OK && keys)
        status = copy_out(launch, DNN_K, k->out, k->out_stride);
    return status;
}

/* Gradients of queries, keys or both, whose tokens then stand alike, from where the engine left
 * them to where they are wanted; where lengths lie on the device, back to the workspace. */
static rope_status rotate_back(const dnn_launch *launch, const rope_attention_backward_call *to,
                               int queries, int keys) {
    const dnn_layout *l = launch->layout;
    rope_call call = positions_of(launch, !queries);
    void *const own[2] = {dnn_tensor_at(l, DNN_DQ, launch->workspace),
                          dnn_tensor_at(l, DNN_DK, launch->workspace)};
    if (queries)
        set_operand(&call.tensor[0], own[0], l->stride[DNN_DQ], l->known ? to->dq : own[0],
                    l->known ? to->dq_stride : l->stride[DNN_DQ], l->shape.q_heads);
    if (keys)
        set_operand(&call.tensor[1], own[1], l->stride[DNN_DK], l->known ? to->dk : own[1],
                    l->known ? to->dk_stride : l->stride[DNN_DK], l->shape.k_heads);
    return dnn_rotation_run(launch->state->back, &call, launch->stream);
}

rope_status dnn_launch_back(const dnn_launch *launch, const rope_attention_backward_call *to) {
    const dnn_layout *l = launch->layout;
    const int queries = l->problem->rotates[0] && to->dq, keys = l->problem->rotates[1] && to->dk,
              both = queries && keys && stand_alike(l);
    rope_status status = ROPE_OK;
    if (queries && !l->is_nothing)
        status = rotate_back(launch, to, 1, both);
    return status == ROPE_OK && keys && !both && !l->is_nothing ? rotate_back(launch, to, 0, 1)
                                                                : status;
}

/* --- calls --- */

/* A plan's first call alone is asked about: an answer takes as long as a launch. */
static rope_status check_memory(dnn_state *state, const rope_attention_call *call,
                                const rope_attention_backward_call *g, const void *workspace) {
    const gpu_named_pointer given[] = {
        {"q.in", call->rope.tensor[0].in},
        {"q.out", call->rope.tensor[0].out},
        {"k.in", call->k.in},
        {"k.out", call->k.out},
        {"v.in", call->v.in},
        {"k_cache", call->k.cache},
        {"v_cache", call->v.cache},
        {"out.data", call->out},
        {"lse", call->lse},
        {"workspace", call->workspace_bytes ? workspace : NULL},
        {"cu_seqlens", call->rope.position.cu_seqlens},
        {"q_lengths", call->q_lengths},
        {"k_lengths", call->k_lengths},
        {"k_cu_seqlens", call->k_position.cu_seqlens},
        {"sinks", call->sinks},
        {"block_table", call->block_table},
        {"dout", g ? g->dout : NULL},
        {"dq.data", g ? g->dq : NULL},
        {"dk.data", g ? g->dk : NULL},
        {"dv.data", g ? g->dv : NULL},
    };
    rope_status status = gpu_check_pointers(state->device, given, sizeof given / sizeof given[0]);
    if (status == ROPE_OK)
        atomic_store_explicit(&state->asked, 1, memory_order_relaxed);
    return status;
}

static rope_status unsupported(rope_status status, const char *reason) {
    return gpu_host->fail(status, "cuDNN's attention does not take this call: %s", reason);
}

static rope_status run_on_device(dnn_state *state, dnn_layout *layout, const void *call,
                                 dnn_work *work, void *workspace, void *stream) {
    dnn_launch launch = {state, layout, NULL, NULL, workspace, stream};
    set_slice(state, layout);
    if (!layout->is_nothing) {
        launch.entry = engine_of(state, layout, 0);
        launch.last = last_of(state, layout, launch.entry);
        if (!launch.entry || !launch.last)
            return unsupported(ROPE_ERROR_UNSUPPORTED, no_memory);
        if (!launch.entry->engine || !launch.last->engine)
            return unsupported(ROPE_ERROR_UNSUPPORTED,
                               (launch.entry->engine ? launch.last : launch.entry)->reason);
    }
    rope_status status = check_workspace(&launch);
    return status == ROPE_OK ? work(&launch, call) : status;
}

rope_status dnn_run(dnn_state *state, const rope_attention_call *call,
                    const rope_attention_backward_call *gradients, dnn_work *work, void *workspace,
                    void *stream) {
    char reason[ROPE_REASON_SIZE] = "";
    dnn_layout layout;
    int previous;
    rope_status status = dnn_layout_of(state->problem, call, gradients, &layout, reason);
    if (status != ROPE_OK)
        return unsupported(status, reason);
    if (gradients && !layout.shape.alike) /* NaN by cuDNN 9.19, of keys that a query does not see */
        return unsupported(ROPE_ERROR_UNSUPPORTED,
                           "a backward by other queries than the keys' own");
    const gpuError_t error = gpu_enter(state->device, &previous);
    if (error != gpuSuccess)
        return gpu_fail(error, "attending", state->device);
    status = gpu_check_stream(state->device, state->devices, stream);
    if (status == ROPE_OK && !atomic_load_explicit(&state->asked, memory_order_relaxed))
        status = check_memory(state, call, gradients, workspace);
    if (status == ROPE_OK)
        status = run_on_device(state, &layout, gradients ? (const void *)gradients : call, work,
                               workspace, stream);
    gpu_leave(state->device, previous);
    return status;
}
