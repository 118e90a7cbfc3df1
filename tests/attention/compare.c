#include "tests/attention/compare.h"

#include "tests/oracle/oracle.h"
#include "tests/support/bad_field.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- runs --- */

void attention_required(void) {
    if (!device_kernel_of("attention", 0))
        SKIP("%s has no kernel for attention", device_backend());
}

rope_attention_bounds attention_bounds(const attention_case *c) {
    const rope_attention_args *a = &c->args;
    const oracle_attention o = attention_oracle(c);
    return (rope_attention_bounds){.struct_size = sizeof(rope_attention_bounds),
                                   .batch = a->rope.batch,
                                   .tokens = a->rope.tokens,
                                   .k_tokens = oracle_attention_key_tokens(&o),
                                   .sequences = a->rope.sequences,
                                   .q_heads = a->rope.q.heads,
                                   .k_heads = a->rope.k.heads};
}

typedef struct attention_job {
    const rope_plan *plan;
    const attention_case *c;
    void *workspace;
    size_t workspace_bytes;
    int32_t graph;
} attention_job;

static rope_status run_job(const void *state, const test_case *c, void *memory) {
    const attention_job *job = state;
    rope_attention_args args = job->c->args;
    attention_relocate(&args, c->arena, memory);
    args.workspace = job->workspace;
    args.workspace_bytes = job->workspace_bytes;
    return job->graph ? device_replay(job->plan, &args, job->workspace)
                      : rope_attention(job->plan, &args);
}

static rope_status run(const attention_case *c, const char *kernel, int32_t graph,
                       unsigned char *result) {
    rope_attention_desc desc = c->desc;
    const rope_attention_bounds bounds = attention_bounds(c);
    device_open(); /* skips where there is none */
    device_choose(&desc.rope);
    desc.rope.kernel = kernel;
    rope_plan *plan = NULL;
    rope_status status = rope_attention_plan_create(&desc, &plan);
    if (status != ROPE_OK)
        return status;
    attention_job job = {.plan = plan, .c = c, .graph = graph};
    CHECK_STATUS(ROPE_OK, rope_attention_workspace(plan, &bounds, &job.workspace_bytes));
    status =
        device_with_workspace(&c->base, run_job, &job, &job.workspace, job.workspace_bytes, result);
    rope_plan_destroy(plan);
    return status;
}

rope_status attention_run(const attention_case *c, const char *kernel, unsigned char *result) {
    return run(c, kernel, 0, result);
}

rope_status attention_replay(const attention_case *c, const char *kernel, unsigned char *result) {
    return run(c, kernel, 1, result);
}

/* --- bounds --- */

enum { BOUND_FIELDS = 6 };

static void check_bounds(const rope_plan *plan, attention_workspace *workspace, const int64_t *n) {
    const rope_attention_bounds b = {sizeof b, n[0], n[1], n[2], n[3], n[4], n[5]};
    size_t bytes = 7;
    const rope_status status = workspace(plan, &b, &bytes);
    if (status == ROPE_OK)
        return;
    CHECK_STATUS(ROPE_ERROR_OVERFLOW, status);
    bad_text_check("bounds.", NULL);
    CHECK(bytes == 7, "a workspace that is none was written");
}

/* Each field is 0, 1 or the largest. */
static void check_extremes(const rope_plan *plan, attention_workspace *workspace) {
    static const int64_t values[3] = {0, 1, INT64_MAX};
    for (int i = 0; i < 729; i++) {
        int64_t n[BOUND_FIELDS];
        for (int f = 0, rest = i; f < BOUND_FIELDS; f++, rest /= 3)
            n[f] = values[rest % 3];
        check_bounds(plan, workspace, n);
    }
}

void attention_check_bounds(const rope_plan *plan, attention_workspace *workspace) {
    enum { BOUNDS = 64 };
    check_extremes(plan, workspace);
    test_random r = random_stream(test_seed(), BOUNDS);
    for (int i = 0; i < BOUNDS; i++) {
        int64_t n[BOUND_FIELDS];
        for (int f = 0; f < BOUND_FIELDS; f++) { /* many of nearly 31 bits */
            const int near = random_chance(&r, 50);
            n[f] = (INT64_C(1) << random_between(&r, near ? 28 : 0,
                                                 near    ? 31
                                                 : i % 2 ? 62
                                                         : 30)) -
                   random_between(&r, 0, 1);
        }
        n[3] = i % 4 < 2 ? n[3] : 0;
        check_bounds(plan, workspace, n);
    }
}

/* --- what is written --- */

static void mark(const attention_case *c, unsigned char *written, const void *array, int64_t at,
                 int64_t size) {
    const size_t offset = (size_t)((const unsigned char *)array - c->base.arena);
    memset(written + (ptrdiff_t)offset + at * size, 1, (size_t)size);
}

/* Elements of q.out or k.out of a token. */
static void mark_rotated(const attention_case *c, unsigned char *written, const oracle_attention *o,
                         const oracle_part *s, int32_t tensor, int64_t i) {
    const rope_tensor *t = tensor == ORACLE_Q ? &c->args.rope.q : &c->args.rope.k;
    oracle_attention out = *o;
    rope_attention_args args = c->args;
    rope_tensor *view = tensor == ORACLE_Q ? &args.rope.q : &args.rope.k;
    if (!t->out)
        return;
    memcpy(view->in_stride, t->in == t->out ? t->in_stride : t->out_stride, sizeof view->in_stride);
    view->in = t->out;
    out.args = &args;
    for (int64_t h = 0; h < t->heads; h++)
        for (int64_t e = 0; e < c->desc.rope.head_dim; e++) {
            const oracle_element x = oracle_attention_at(&out, s, tensor, i, h, e);
            mark(c, written, x.array, x.at, oracle_dtype_size(x.dtype));
        }
}

static void mark_part(const attention_case *c, unsigned char *written, const oracle_attention *o,
                      const oracle_part *s) {
    const int64_t size = oracle_dtype_size(c->desc.rope.dtype),
                  dim = oracle_attention_head_dim(o, ORACLE_V);
    for (int64_t i = 0; i < s->q_count; i++) {
        for (int64_t h = 0; h < c->args.rope.q.heads; h++) {
            for (int64_t e = 0; e < dim; e++)
                mark(c, written, c->args.out.data, oracle_attention_out_at(o, s, i, h, e), size);
            if (c->args.lse)
                mark(c, written, c->args.lse, oracle_attention_lse_at(o, s, i, h), 4);
        }
        mark_rotated(c, written, o, s, ORACLE_Q, i);
    }
    for (int64_t k = 0; k < s->k_count && c->args.rope.k.out; k++)
        mark_rotated(c, written, o, s, ORACLE_K, k);
}

const char *attention_untouched(const attention_case *c, const unsigned char *result) {
    static char message[160];
    const oracle_attention o = attention_oracle(c);
    unsigned char *written = calloc(c->base.bytes, 1);
    size_t at = 0;
    for (int64_t n = 0; n < c->parts; n++) {
        const oracle_part s = oracle_attention_part(&o, n);
        if (!s.fails)
            mark_part(c, written, &o, &s);
    }
    while (at < c->base.bytes && (written[at] || c->base.arena[at] == result[at]))
        at++;
    free(written);
    if (at == c->base.bytes)
        return NULL;
    int piece = 0;
    while (piece < c->base.pieces - 1 && at >= c->base.piece[piece + 1].offset)
        piece++;
    snprintf(message, sizeof message, "byte %zu of piece %d changed and is not of a result",
             at - c->base.piece[piece].offset, piece);
    return message;
}

/* --- results --- */

static void add_number(unsigned char *to, int32_t dtype, const void *array, int64_t at) {
    const int64_t size = oracle_dtype_size(dtype);
    if (oracle_is_nan(dtype, array, at))
        memset(to, 0xff, (size_t)size);
    else
        memcpy(to, (const char *)array + at * size, (size_t)size);
}

unsigned char *attention_rows(const attention_case *c, const unsigned char *result, int64_t part,
                              int64_t skip, int with_lse, size_t *bytes) {
    oracle_attention o = attention_oracle(c);
    const oracle_part s = oracle_attention_part(&o, part);
    rope_attention_args args = c->args;
    const int32_t dtype = c->desc.rope.dtype;
    const int64_t size = oracle_dtype_size(dtype), dim = oracle_attention_head_dim(&o, ORACLE_V),
                  heads = args.rope.q.heads, rows = s.q_count > skip ? s.q_count - skip : 0;
    attention_relocate(&args, c->base.arena, result);
    *bytes = (size_t)(rows * heads * (dim * size + (with_lse ? 4 : 0)));
    unsigned char *list = malloc(*bytes + 1), *at = list;
    for (int64_t i = skip; i < s.q_count; i++)
        for (int64_t h = 0; h < heads; h++) {
            for (int64_t e = 0; e < dim; e++, at += size)
                add_number(at, dtype, args.out.data, oracle_attention_out_at(&o, &s, i, h, e));
            if (with_lse)
                add_number(at, ROPE_F32, args.lse, oracle_attention_lse_at(&o, &s, i, h));
            at += with_lse ? 4 : 0;
        }
    return list;
}
