#include "bench/attention/calls.h"

#include "bench/append/shape.h"
#include "bench/output/message.h"
#include "bench/workload/placement.h"
#include "bench/workload/target.h"

#include <ropekit/backend.h>

#include <string.h>

/* Alignment of a workspace. */
#define ALIGNMENT ((size_t)256)

_Static_assert(sizeof(rope_attention_args) != sizeof(rope_append_args) &&
                   sizeof(rope_attention_args) != sizeof(rope_args) &&
                   sizeof(rope_attention_backward_args) != sizeof(rope_args) &&
                   sizeof(rope_attention_backward_args) != sizeof(rope_append_args) &&
                   sizeof(rope_attention_backward_args) != sizeof(rope_attention_args),
               "workload_run tells operations by the size of their arguments");

/* --- arguments --- */

static rope_tensor tensor_on(const attention_state *s, int tensor, const char *in, char *out) {
    const options *o = s->o;
    rope_tensor t = {.heads = attention_heads_of(o, tensor), .in = in, .out = out};
    if (in)
        workload_strides(o, t.heads, attention_dim_of(o, tensor), t.in_stride);
    if (out)
        workload_strides(o, t.heads, attention_dim_of(o, tensor), t.out_stride);
    return t;
}

rope_attention_args attention_args_on(const attention_state *s, const rope_attention_args *fixed,
                                      char *in, char *rotated, char *out) {
    rope_attention_args a = *fixed;
    rope_tensor *const tensors[] = {&a.rope.q, &a.rope.k, &a.v};
    const bool cached = s->desc.cache != 0;
    for (int t = 0; t < ATTENTION_TENSORS; t++) {
        const bool turns = attention_rotates(s, t);
        const char *at = rotated && turns ? rotated + s->rotated[t].start : in + s->in[t].start;
        char *saved = !rotated && turns && s->o->backward ? out + s->saved[t].start : NULL;
        *tensors[t] = tensor_on(s, t, cached && t != ATTENTION_Q ? NULL : at, saved);
    }
    if (cached) {
        a.k_cache.data = in + s->in[ATTENTION_K].start;
        a.v_cache.data = in + s->in[ATTENTION_V].start;
        if (s->o->v_in_k) {
            const int64_t row = s->o->desc.head_dim * s->o->k_heads;
            const int64_t stride[5] = {s->desc.page_size * row, row, s->o->desc.head_dim, 0, 1};
            memcpy(a.v_cache.stride, stride, sizeof stride);
        }
    }
    a.out.data = out + s->result[RESULT_OUT].start;
    workload_strides(s->o, s->o->q_heads, attention_v_head_dim(s->o), a.out.stride);
    if (s->o->backward)
        a.lse = (float *)(void *)(out + s->result[RESULT_LSE].start);
    if (attention_lse_by_heads(s)) {
        a.lse_stride[0] = s->o->q_heads * s->o->tokens;
        a.lse_stride[1] = 1;
        a.lse_stride[2] = s->o->tokens;
    }
    return a;
}

rope_attention_backward_args attention_backward_args_on(const attention_state *s,
                                                        const rope_attention_args *forward,
                                                        char *in, char *rotated, char *out) {
    rope_attention_backward_args a = ROPE_ATTENTION_BACKWARD_ARGS_INIT;
    rope_attention_out *const gradients[] = {&a.dq, &a.dk, &a.dv};
    a.forward = forward;
    a.dout = in + s->dout.start;
    workload_strides(s->o, s->o->q_heads, attention_v_head_dim(s->o), a.dout_stride);
    for (int t = 0; t < ATTENTION_TENSORS; t++) {
        gradients[t]->data = rotated && attention_rotates(s, t)
                                 ? rotated + s->gradient[t].start
                                 : out + s->result[RESULT_DQ + t].start;
        workload_strides(s->o, attention_heads_of(s->o, t), attention_dim_of(s->o, t),
                         gradients[t]->stride);
    }
    return a;
}

/* --- calls --- */

typedef rope_status workspace_of(const rope_plan *plan, const rope_attention_bounds *bounds,
                                 size_t *bytes);

static rope_attention_bounds bounds_of(const attention_state *s) {
    const options *o = s->o;
    return (rope_attention_bounds){
        .struct_size = sizeof(rope_attention_bounds),
        .batch = o->batch,
        .tokens = o->tokens,
        .k_tokens = s->desc.cache ? attention_keys(o) : o->tokens,
        .sequences = s->args.rope.sequences,
        .q_heads = o->q_heads,
        .k_heads = o->k_heads,
    };
}

/* Device memory for calls of a plan, one at a time; none beyond workspace_most. */
static bool place_workspace(workload *w, workspace_of *bytes_of, workload_call *c,
                            rope_attention_args *fixed) {
    attention_state *s = w->attention;
    const rope_attention_bounds bounds = bounds_of(s);
    void *memory;
    if (!succeeded(bytes_of(c->plan, &bounds, &fixed->workspace_bytes), "workspace"))
        return false;
    s->workspace_needed = fixed->workspace_bytes > s->workspace_most ? fixed->workspace_bytes : 0;
    if (s->workspace_needed)
        return false;
    if (fixed->workspace_bytes == 0)
        return true;
    if (!staging_device(&w->memory, fixed->workspace_bytes + ALIGNMENT, &memory))
        return false;
    const size_t beyond = (size_t)((uintptr_t)memory % ALIGNMENT);
    c->workspace = fixed->workspace = (char *)memory + (beyond ? ALIGNMENT - beyond : 0);
    return true;
}

typedef rope_status plan_create(const rope_attention_desc *desc, rope_plan **plan);

/* The next call with its plan and workspace, and what its sets have in common; NULL after a
 * message. */
static workload_call *begin(workload *w, const workload_call *made, char *rotated,
                            plan_create *create, workspace_of *bytes_of,
                            rope_attention_args *fixed) {
    const attention_state *s = w->attention;
    workload_call *c = &w->calls[w->call_count];
    *c = *made;
    c->beside = rotated != NULL;
    c->sets = staging_host(&w->memory, "calls", w->set_count, c->size);
    if (!c->sets)
        return NULL;
    const rope_status status = create(rotated ? &s->alone : &s->desc, &c->plan);
    w->declined = status == ROPE_ERROR_UNSUPPORTED;
    if ((w->declined && s->by_kernel) || !succeeded(status, "plan"))
        return NULL;
    w->call_count++;
    *fixed = s->args;
    if (rotated) {
        fixed->rope.cos = fixed->rope.sin = NULL;
        fixed->rope.table_rows = fixed->rope.position_offset = 0;
        fixed->rope.position_ids = fixed->rope.sequence_offsets = NULL;
        fixed->rope.sequence_lengths = NULL;
    }
    return place_workspace(w, bytes_of, c, fixed) ? c : NULL;
}

static void fill_sets(workload *w, const rope_attention_args *fixed, char *rotated,
                      rope_attention_args *sets) {
    for (int64_t i = 0; i < w->set_count; i++)
        sets[i] = attention_args_on(w->attention, fixed, workload_set(w, w->source, i), rotated,
                                    workload_set(w, w->target, i));
}

static bool add_forward(workload *w, char *rotated) {
    const workload_call made = {.name = "attention", .size = sizeof(rope_attention_args)};
    rope_attention_args fixed;
    const workload_call *c =
        begin(w, &made, rotated, rope_attention_plan_create, rope_attention_workspace, &fixed);
    if (c)
        fill_sets(w, &fixed, rotated, c->sets);
    return c != NULL;
}

static bool add_backward(workload *w, char *rotated) {
    const workload_call made = {.name = "backward", .size = sizeof(rope_attention_backward_args)};
    rope_attention_args fixed,
        *forward = staging_host(&w->memory, "calls", w->set_count, sizeof *forward);
    const workload_call *c = forward ? begin(w, &made, rotated, rope_attention_backward_plan_create,
                                             rope_attention_backward_workspace, &fixed)
                                     : NULL;
    if (!c)
        return false;
    fill_sets(w, &fixed, rotated, forward);
    for (int64_t i = 0; i < w->set_count; i++)
        ((rope_attention_backward_args *)c->sets)[i] =
            attention_backward_args_on(w->attention, &forward[i], workload_set(w, w->source, i),
                                       rotated, workload_set(w, w->target, i));
    return true;
}

static bool add_attention(workload *w, char *rotated) {
    return add_forward(w, rotated) && (!w->attention->o->backward || add_backward(w, rotated));
}

/* Where the queries of a sequence begin, which rope_apply is told. */
static bool place_starts(workload *w, const attention_state *s, rope_args *args) {
    const options *o = s->o;
    const int64_t count = append_sequences(o);
    int64_t *starts = staging_host(&w->memory, "starts", count, sizeof *starts);
    const void *host;
    if (args->position_ids)
        return true;
    for (int64_t i = 0; starts && i < count; i++) {
        const attention_sequence of = attention_sequence_of(o, i);
        starts[i] =
            of.keys - of.queries + (o->sequence_offsets.count ? o->sequence_offsets.values[i] : 0);
    }
    return starts && placement_indices(&w->memory, o->desc.position_dtype, "starts", starts, count,
                                       &host, &args->sequence_offsets);
}

/* rope_apply of what the call rotates: of inputs, or of their gradients back. */
static bool add_rotation(workload *w, const rope_desc *desc, bool back) {
    const attention_state *s = w->attention;
    workload_call *c = &w->calls[w->call_count];
    rope_args args = s->args.rope;
    *c = (workload_call){.name = back ? "transpose" : "rotation", .size = sizeof(rope_args)};
    c->sets = staging_host(&w->memory, "calls", w->set_count, c->size);
    rope_desc any = *desc;
    /* It names a kernel of attention; the reference alone rotates by one of the same name. */
    if (any.kernel && strcmp(any.kernel, "reference") != 0)
        any.kernel = NULL;
    if (!c->sets || !succeeded(rope_plan_create(&any, &c->plan), c->name))
        return false;
    w->call_count++;
    if (s->desc.cache && !place_starts(w, s, &args))
        return false;
    for (int64_t i = 0; i < w->set_count; i++) {
        rope_tensor *const tensors[] = {&args.q, &args.k};
        for (int t = ATTENTION_Q; t <= ATTENTION_K; t++) {
            char *between = (char *)s->scratch + (back ? s->gradient : s->rotated)[t].start;
            *tensors[t] =
                !attention_rotates(s, t) ? (rope_tensor){0}
                : back                   ? tensor_on(s, t, between,
                                                     workload_set(w, w->target, i) + s->result[RESULT_DQ + t].start)
                       : tensor_on(s, t, workload_set(w, w->source, i) + s->in[t].start, between);
        }
        ((rope_args *)c->sets)[i] = args;
    }
    return true;
}

/* The backward reads what the forward wrote, in every set. */
static bool fill_results(const workload *w) {
    const rope_attention_args *sets = w->calls[0].sets;
    bool filled = true;
    for (int64_t i = 0; filled && i < w->set_count; i++)
        filled = succeeded(rope_attention(w->calls[0].plan, &sets[i]), "rope_attention");
    return filled && succeeded(rope_device_synchronize(w->device), "rope_attention");
}

bool attention_add_forward(workload *w) {
    return add_forward(w, NULL) && fill_results(w);
}

void attention_limit_workspace(workload *w, const char *backend) {
    attention_state *s = w->attention;
    const bool backward = s->o->backward;
    plan_create *create =
        backward ? rope_attention_backward_plan_create : rope_attention_plan_create;
    workspace_of *bytes_of =
        backward ? rope_attention_backward_workspace : rope_attention_workspace;
    const rope_attention_bounds bounds = bounds_of(s);
    rope_plan *first;
    size_t bytes;
    s->desc.rope.backend = backend;
    s->desc.rope.kernel = NULL;
    if (create(&s->desc, &first) != ROPE_OK)
        return;
    if (bytes_of(first, &bounds, &bytes) == ROPE_OK)
        s->workspace_most = rope_plan_workspace_most(first, &bounds, bytes);
    rope_plan_destroy(first);
}

bool attention_add_kernel(workload *w, const char *backend, const char *kernel) {
    attention_state *s = w->attention;
    s->desc.rope.backend = backend;
    s->desc.rope.kernel = kernel;
    s->workspace_needed = 0;
    return s->o->backward ? add_backward(w, NULL) : add_forward(w, NULL);
}

bool attention_add_calls(workload *w) {
    const attention_state *s = w->attention;
    const bool backward = s->o->backward;
    if (!add_attention(w, NULL) || (backward && !fill_results(w)))
        return false;
    w->parts = w->call_count;
    if (s->desc.rotation == ROPE_ATTENTION_ROTATE_NONE)
        return true;
    const rope_desc back = target_transposed(&s->desc.rope);
    return add_rotation(w, &s->desc.rope, false) && add_attention(w, s->scratch) &&
           (!backward || add_rotation(w, &back, true));
}
