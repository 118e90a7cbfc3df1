#include "tests/append_backward/cases.h"

#include "tests/oracle/append_layout.h"
#include "tests/rope/case_parts.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- a case --- */

rope_append_gradient *gradient_of(rope_append_backward_args *args, int32_t tensor) {
    return tensor == 0 ? &args->q : tensor == 1 ? &args->k : &args->v;
}

void gradient_pointers(rope_append_backward_args *args, const void **list[GRADIENT_POINTERS]) {
    for (int32_t t = 0; t < ORACLE_TENSORS; t++) {
        rope_append_gradient *g = gradient_of(args, t);
        *list++ = &g->in;
        *list++ = (const void **)&g->out;
        *list++ = (const void **)&g->weight;
    }
}

static void relocate(rope_append_backward_args *args, const void *from, const void *to) {
    const void **list[GRADIENT_POINTERS];
    gradient_pointers(args, list);
    for (int i = 0; i < GRADIENT_POINTERS; i++)
        if (*list[i])
            *list[i] = (const void *)((uintptr_t)to + ((uintptr_t)*list[i] - (uintptr_t)from));
}

static void choose_view(test_case *base, const int64_t count[4], int64_t stride[4],
                        const void **data) {
    const int64_t plain[4] = {count[1] * count[2] * count[3], count[2] * count[3], count[3], 1};
    const int given = random_chance(&base->random, 50);
    if (given)
        case_choose_strides(&base->random, count, stride);
    *data =
        case_reserve_view(base, oracle_dtype_size(base->desc.dtype), count, given ? stride : plain);
}

/* Before the arena is made positions and tensors are in base. */
static void choose_gradient(append_case *forward, int32_t tensor, rope_append_gradient *g) {
    test_case *base = &forward->base;
    test_random *r = &base->random;
    rope_append_args args = forward->args;
    rope_append_desc desc = forward->desc;
    args.rope = base->args, desc.rope = base->desc;
    const oracle_tensor t = oracle_append_tensor(&desc, &args, tensor);
    const int64_t count[4] = {args.rope.batch, args.rope.tokens, t.heads, t.dim};
    const int weighs = t.part->norm.weight && random_chance(r, 85);
    if (t.heads == 0 || random_chance(r, 10))
        return;
    choose_view(base, count, g->in_stride, &g->in);
    if (weighs)
        g->weight = (float *)(uintptr_t)case_reserve(
            base, (t.weight_stride ? t.heads : 1) * t.norm_dim * 4, 4);
    if (weighs && random_chance(r, 15))
        return;
    if (random_chance(r, 40)) {
        g->out = (void *)(uintptr_t)g->in;
        memcpy(g->out_stride, g->in_stride, random_chance(r, 50) ? sizeof g->out_stride : 0);
        return;
    }
    const void *out;
    choose_view(base, count, g->out_stride, &out);
    g->out = (void *)(uintptr_t)out;
}

static void choose_gradients(append_case *forward) {
    gradient_case *c = (gradient_case *)(void *)forward;
    for (int32_t t = 0; t < ORACLE_TENSORS; t++)
        choose_gradient(forward, t, gradient_of(&c->args, t));
}

void gradient_make(gradient_case *c, uint64_t seed, int64_t index, const append_wish *wish) {
    append_wish own = {
        .source = ROPE_SOURCE_TENSOR, .out_of_place = 1, .gradients = choose_gradients};
    if (wish)
        own.rotation = wish->rotation, own.tame = wish->tame, own.in_range = wish->in_range;
    memset(c, 0, sizeof *c);
    c->args.struct_size = sizeof c->args;
    append_make(&c->forward, seed, index, &own);
    relocate(&c->args, NULL, c->forward.base.arena);
}

void gradient_free(gradient_case *c) {
    append_free(&c->forward);
}

rope_append_bounds gradient_bounds(const gradient_case *c) {
    const rope_append_args *a = &c->forward.args;
    return (rope_append_bounds){sizeof(rope_append_bounds),
                                a->rope.batch,
                                a->rope.tokens,
                                a->rope.q.heads,
                                a->rope.k.heads,
                                a->v.heads};
}

/* --- elements --- */

static int64_t element_at(const gradient_case *c, int32_t tensor, const int64_t given[4],
                          int64_t token, int64_t head, int64_t i) {
    const oracle_tensor t = oracle_append_tensor(&c->forward.desc, &c->forward.args, tensor);
    const int64_t tokens = c->forward.args.rope.tokens,
                  plain[4] = {tokens * t.heads * t.dim, t.heads * t.dim, t.dim, 1};
    const int64_t *s = given[0] || given[1] || given[2] || given[3] ? given : plain;
    return token / tokens * s[0] + token % tokens * s[1] + head * s[2] + i * s[3];
}

int64_t gradient_in_at(const gradient_case *c, int32_t tensor, int64_t token, int64_t head,
                       int64_t i) {
    rope_append_backward_args args = c->args;
    return element_at(c, tensor, gradient_of(&args, tensor)->in_stride, token, head, i);
}

int64_t gradient_out_at(const gradient_case *c, int32_t tensor, int64_t token, int64_t head,
                        int64_t i) {
    rope_append_backward_args args = c->args;
    const rope_append_gradient *g = gradient_of(&args, tensor);
    const int given = g->out_stride[0] || g->out_stride[1] || g->out_stride[2] || g->out_stride[3];
    return element_at(c, tensor, g->out == g->in && !given ? g->in_stride : g->out_stride, token,
                      head, i);
}

int64_t gradient_weights(const gradient_case *c, int32_t tensor) {
    rope_append_backward_args args = c->args;
    const oracle_tensor t = oracle_append_tensor(&c->forward.desc, &c->forward.args, tensor);
    const int64_t sites =
        args.struct_size ? c->forward.args.rope.batch * c->forward.args.rope.tokens : 0;
    return gradient_of(&args, tensor)->weight && sites
               ? (t.weight_stride ? t.heads : 1) * t.norm_dim
               : 0;
}

/* --- runs --- */

typedef struct gradient_job {
    const rope_plan *plan;
    const gradient_case *c;
    void *workspace;
    size_t workspace_bytes;
} gradient_job;

static rope_status run_job(const void *state, const test_case *base, void *memory) {
    const gradient_job *job = state;
    rope_append_args forward = job->c->forward.args;
    rope_append_backward_args args = job->c->args;
    append_relocate(&forward, base->arena, memory);
    relocate(&args, base->arena, memory);
    args.workspace = job->workspace;
    args.workspace_bytes = job->workspace_bytes;
    args.forward = &forward;
    return rope_append_backward(job->plan, &args);
}

rope_status gradient_run(const gradient_case *c, const char *kernel, unsigned char *result) {
    rope_append_desc desc = c->forward.desc;
    const rope_append_bounds bounds = gradient_bounds(c);
    rope_plan *plan = NULL;
    device_open(); /* skips where there is none */
    device_choose(&desc.rope);
    desc.rope.kernel = kernel;
    rope_status status = rope_append_backward_plan_create(&desc, &plan);
    if (status != ROPE_OK)
        return status;
    gradient_job job = {.plan = plan, .c = c};
    CHECK_STATUS(ROPE_OK, rope_append_backward_workspace(plan, &bounds, &job.workspace_bytes));
    status = device_with_workspace(&c->forward.base, run_job, &job, &job.workspace,
                                   job.workspace_bytes, result);
    rope_plan_destroy(plan);
    return status;
}

/* --- results --- */

/* Marks an element of `count` from `data` on, and gives a NaN the bits of all NaNs. */
static void mark(const gradient_case *c, const void *data, int32_t dtype, int64_t at,
                 unsigned char *written, unsigned char *result) {
    const size_t size = (size_t)oracle_dtype_size(dtype),
                 offset = (size_t)((const unsigned char *)data - c->forward.base.arena) +
                          (size_t)at * size;
    memset(written + offset, 1, size);
    if (oracle_is_nan(dtype, result + offset, 0))
        memset(result + offset, 0xff, size);
}

static void mark_tensor(const gradient_case *c, int32_t tensor, const unsigned char *fails,
                        unsigned char *written, unsigned char *result) {
    rope_append_backward_args args = c->args;
    const rope_append_gradient *g = gradient_of(&args, tensor);
    const oracle_tensor t = oracle_append_tensor(&c->forward.desc, &c->forward.args, tensor);
    const int64_t sites = c->forward.args.rope.batch * c->forward.args.rope.tokens;
    for (int64_t n = 0; g->out && n < sites; n++)
        for (int64_t i = 0; i < t.heads * t.dim && !(fails && fails[n]); i++)
            mark(c, g->out, c->forward.desc.rope.dtype,
                 gradient_out_at(c, tensor, n, i / t.dim, i % t.dim), written, result);
    for (int64_t i = 0; i < gradient_weights(c, tensor); i++)
        mark(c, g->weight, ROPE_F32, i, written, result);
}

const char *gradient_untouched(const gradient_case *c, const unsigned char *fails,
                               unsigned char *result) {
    static char message[160];
    const test_case *base = &c->forward.base;
    unsigned char *written = calloc(base->bytes, 1);
    size_t at = 0;
    for (int32_t t = 0; t < ORACLE_TENSORS; t++)
        mark_tensor(c, t, fails, written, result);
    while (at < base->bytes && (written[at] || base->arena[at] == result[at]))
        at++;
    free(written);
    if (at == base->bytes)
        return NULL;
    snprintf(message, sizeof message, "byte %zu of the arena changed and is not of a gradient", at);
    return message;
}
