#include "tests/attention_backward/cases.h"

#include "tests/attention/norms.h"
#include "tests/rope/case_parts.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- views --- */

void backward_pointers(rope_attention_backward_args *args, const void **list[BACKWARD_POINTERS]) {
    const void **pointers[] = {&args->dout,
                               (const void **)&args->dq.data,
                               (const void **)&args->dk.data,
                               (const void **)&args->dv.data,
                               (const void **)&args->dsinks,
                               (const void **)&args->dq_weight,
                               (const void **)&args->dk_weight};
    memcpy(list, pointers, sizeof pointers);
}

static void relocate(rope_attention_backward_args *args, const void *from, const void *to) {
    const void **list[BACKWARD_POINTERS];
    backward_pointers(args, list);
    case_move_pointers(list, BACKWARD_POINTERS, from, to);
}

const rope_attention_out *backward_gradient(const rope_attention_backward_args *args,
                                            int32_t gradient) {
    return gradient == GRADIENT_Q ? &args->dq : gradient == GRADIENT_K ? &args->dk : &args->dv;
}

float *backward_weight(const rope_attention_backward_args *args, int32_t gradient) {
    return gradient == GRADIENT_Q   ? args->dq_weight
           : gradient == GRADIENT_K ? args->dk_weight
                                    : NULL;
}

/* A gradient, or dout, with its strides; data NULL: not wanted. */
typedef struct backward_view {
    unsigned char *data;
    int64_t stride[4], heads, dim;
} backward_view;

static backward_view view_of(const backward_case *c, const rope_attention_out *given,
                             int32_t gradient) {
    const oracle_attention o = attention_oracle(&c->forward);
    const int q = gradient == GRADIENT_Q;
    const int64_t tokens = q ? c->forward.args.rope.tokens : oracle_attention_key_tokens(&o);
    backward_view v = {.data = given->data,
                       .heads = oracle_attention_heads(&o, gradient),
                       .dim = oracle_attention_head_dim(&o, gradient)};
    v.stride[3] = 1;
    v.stride[2] = v.dim;
    v.stride[1] = v.heads * v.dim;
    v.stride[0] = tokens * v.stride[1];
    for (int d = 0; d < 4; d++)
        if (given->stride[d])
            memcpy(v.stride, given->stride, sizeof v.stride);
    return v;
}

/* dout has the heads of q and the elements of v. */
static backward_view view_of_dout(const backward_case *c) {
    rope_attention_out dout = {(void *)(uintptr_t)c->args.dout, {0}};
    memcpy(dout.stride, c->args.dout_stride, sizeof dout.stride);
    backward_view v = view_of(c, &dout, GRADIENT_V);
    const int64_t heads = c->forward.args.rope.q.heads, row = heads * v.dim,
                  plain[4] = {c->forward.args.rope.tokens * row, row, v.dim, 1};
    int given = 0;
    for (int d = 0; d < 4; d++)
        given |= dout.stride[d] != 0;
    v.heads = heads;
    memcpy(v.stride, given ? dout.stride : plain, sizeof v.stride);
    return v;
}

/* Whether a tensor that has the shape of a gradient, or of dout, lies in vectors of 16 bytes. */
static int in_vectors(const backward_case *c, const void *data, const int64_t *stride,
                      int32_t gradient) {
    const rope_attention_args *a = &c->forward.args;
    rope_attention_out given = {(void *)(uintptr_t)data, {0}};
    memcpy(given.stride, stride, sizeof given.stride);
    const backward_view v = view_of(c, &given, gradient);
    const oracle_attention o = attention_oracle(&c->forward);
    const int q = gradient == GRADIENT_Q;
    const int64_t count[3] = {q || !a->k_cu_seqlens ? a->rope.batch : 1,
                              q ? a->rope.tokens : oracle_attention_key_tokens(&o), v.heads};
    int all = (uintptr_t)data % 16 == 0 && v.stride[3] == 1;
    for (int d = 0; d < 3; d++)
        all &= count[d] <= 1 || (v.stride[d] >= 8 && v.stride[d] % 8 == 0);
    return all;
}

/* Whether what a call reads does: kernels that take no other calls give those the bits of others.
 */
static int reads_vectors(const backward_case *c) {
    const rope_attention_args *a = &c->forward.args;
    const rope_tensor *q = &a->rope.q, *k = &a->rope.k;
    const rope_attention_desc *d = &c->forward.desc;
    const int whole = d->rope.head_dim % 8 == 0; /* what norms make lies side by side */
    return (d->q_norm.type ? whole : in_vectors(c, q->in, q->in_stride, GRADIENT_Q)) &&
           (d->k_norm.type ? whole : in_vectors(c, k->in, k->in_stride, GRADIENT_K)) &&
           in_vectors(c, a->v.in, a->v.in_stride, GRADIENT_V) &&
           in_vectors(c, c->args.dout, c->args.dout_stride, GRADIENT_Q) &&
           in_vectors(c, a->out.data, a->out.stride, GRADIENT_Q) &&
           (!q->out || in_vectors(c, q->out, q->out_stride, GRADIENT_Q)) &&
           (!k->out || in_vectors(c, k->out, k->out_stride, GRADIENT_K));
}

static int64_t element_at(const backward_view *v, int64_t row, int64_t token, int64_t head,
                          int64_t e) {
    return row * v->stride[0] + token * v->stride[1] + head * v->stride[2] + e * v->stride[3];
}

int64_t backward_dout_at(const backward_case *c, const oracle_part *s, int64_t i, int64_t head,
                         int64_t e) {
    const backward_view v = view_of_dout(c);
    return element_at(&v, s->q_row, s->q_first + i, head, e);
}

static int64_t first_of(const oracle_part *s, int32_t gradient, int64_t *row, int64_t *count) {
    const int q = gradient == GRADIENT_Q;
    *row = q ? s->q_row : s->k_row;
    *count = q ? s->q_count : s->k_count;
    return q ? s->q_first : s->k_first;
}

/* --- a case --- */

static void choose_gradient(attention_case *base, int32_t dims_of, int64_t tokens, int64_t heads,
                            rope_attention_out *to) {
    test_case *c = &base->base;
    test_random *r = &c->random;
    const int64_t dim =
        dims_of == GRADIENT_V && base->desc.v_head_dim ? base->desc.v_head_dim : c->desc.head_dim;
    const int64_t count[4] = {c->args.batch, tokens, heads, dim},
                  plain[4] = {tokens * heads * dim, heads * dim, dim, 1};
    const int given = !base->provided && random_chance(r, 50);
    if (random_chance(r, 15))
        return;
    if (given)
        case_choose_strides(r, count, to->stride);
    to->data = (void *)(uintptr_t)case_reserve_view(c, oracle_dtype_size(c->desc.dtype), count,
                                                    given ? to->stride : plain);
}

static void choose_gradients(attention_case *base) {
    backward_case *c = (backward_case *)(void *)base;
    rope_args *a = &base->base.args;
    test_random *r = &base->base.random;
    const int64_t keys = base->args.k_tokens ? base->args.k_tokens : a->tokens;
    rope_attention_out dout = {0};
    while (!dout.data)
        choose_gradient(base, GRADIENT_V, a->tokens, a->q.heads, &dout);
    c->args.struct_size = sizeof c->args;
    c->args.dout = dout.data;
    memcpy(c->args.dout_stride, dout.stride, sizeof dout.stride);
    choose_gradient(base, GRADIENT_Q, a->tokens, a->q.heads, &c->args.dq);
    choose_gradient(base, GRADIENT_K, keys, a->k.heads, &c->args.dk);
    choose_gradient(base, GRADIENT_V, keys, a->k.heads, &c->args.dv);
    if (base->desc.sink_dtype && !base->provided && random_chance(r, 80))
        c->args.dsinks = (float *)(uintptr_t)case_reserve(&base->base, 4 * a->q.heads, 4);
    for (int32_t t = ORACLE_Q; t <= ORACLE_K; t++)
        if (attention_weights(base, t) && random_chance(&base->of_norms, 80))
            *(t == ORACLE_Q ? &c->args.dq_weight : &c->args.dk_weight) =
                (float *)(uintptr_t)case_reserve(&base->base, 4 * attention_weights(base, t), 4);
}

/* Of tokens that no sequence has NaNs. */
static void fill_dout(backward_case *c) {
    const oracle_attention o = attention_oracle(&c->forward);
    test_case *base = &c->forward.base;
    const backward_view v = view_of_dout(c);
    const double scale = random_chance(&base->random, 80) ? 1 : 300;
    for (int32_t p = 0; p < base->pieces; p++)
        if (v.data >= base->arena + base->piece[p].offset &&
            v.data <= base->arena + base->piece[p].offset + base->piece[p].bytes)
            memset(base->arena + base->piece[p].offset, 0xff, base->piece[p].bytes);
    for (int64_t n = 0; n < c->forward.parts; n++) {
        const oracle_part s = oracle_attention_part(&o, n);
        const int odd = base->wild && random_chance(&base->random, 20);
        for (int64_t i = 0; i < s.q_count * v.heads * v.dim && !s.fails; i++) {
            const int64_t at = element_at(&v, s.q_row, s.q_first + i / (v.heads * v.dim),
                                          i / v.dim % v.heads, i % v.dim);
            double x = random_real(&base->random, -scale, scale);
            if (odd && random_chance(&base->random, 1))
                x = random_chance(&base->random, 50) ? NAN : INFINITY;
            oracle_store(base->desc.dtype, v.data, at, x);
        }
    }
}

/* The forward, in the arena. */
static void attend(backward_case *c, const char *kernel) {
    rope_attention_desc desc = c->forward.desc;
    rope_attention_args args = c->forward.args;
    const rope_attention_bounds bounds = attention_bounds(&c->forward);
    rope_plan *plan = NULL;
    desc.rope.backend = "cpu";
    desc.rope.kernel = kernel;
    CHECK_STATUS(ROPE_OK, rope_attention_plan_create(&desc, &plan));
    CHECK_STATUS(ROPE_OK, rope_attention_workspace(plan, &bounds, &args.workspace_bytes));
    args.workspace = aligned_alloc(256, args.workspace_bytes + 256);
    CHECK_STATUS(ROPE_OK, rope_attention(plan, &args));
    free(args.workspace);
    rope_plan_destroy(plan);
}

/* Also of a call without queries, whose keys have gradients of 0. */
static int lengths_fail(const attention_case *c) {
    const oracle_attention o = attention_oracle(c);
    int fails = 0;
    for (int64_t n = 0; n < c->parts; n++)
        fails |= oracle_attention_part(&o, n).fails;
    return fails;
}

void backward_make(backward_case *c, uint64_t seed, int64_t index, const attention_wish *wish,
                   const char *kernel) {
    attention_wish own = wish ? *wish : (attention_wish){0};
    own.gradients = choose_gradients;
    memset(c, 0, sizeof *c);
    attention_make(&c->forward, seed, index, &own);
    relocate(&c->args, NULL, c->forward.base.arena);
    attention_dense_make(&c->dense, &c->forward, kernel);
    c->fails = c->dense.tokens_fail || lengths_fail(&c->forward);
    fill_dout(c);
    if (!c->fails)
        attend(c, kernel);
    rope_args *a = &c->forward.args.rope;
    if (a->q.out && index % 2 && !c->forward.desc.q_norm.type)
        a->q.in = NULL;
    if (a->k.out && index % 3 && !c->forward.desc.k_norm.type)
        a->k.in = NULL;
}

void backward_free(backward_case *c) {
    attention_dense_free(&c->dense);
    attention_free(&c->forward);
}

/* --- runs --- */

void backward_required(void) {
    if (!device_kernel_of("attention_backward", 0))
        SKIP("%s has no kernel for attention_backward", device_backend());
}

typedef struct backward_job {
    const rope_plan *plan;
    const backward_case *c;
    void *workspace;
    size_t workspace_bytes;
    int32_t graph;
} backward_job;

static rope_status run_job(const void *state, const test_case *base, void *memory) {
    const backward_job *job = state;
    rope_attention_args forward = job->c->forward.args;
    rope_attention_backward_args args = job->c->args;
    attention_relocate(&forward, base->arena, memory);
    relocate(&args, base->arena, memory);
    forward.workspace = job->workspace;
    forward.workspace_bytes = job->workspace_bytes;
    args.forward = &forward;
    return job->graph ? device_replay(job->plan, &args, job->workspace)
                      : rope_attention_backward(job->plan, &args);
}

static rope_status run(const backward_case *c, const char *kernel, int32_t graph,
                       unsigned char *result) {
    rope_attention_desc desc = c->forward.desc;
    const rope_attention_bounds bounds = attention_bounds(&c->forward);
    rope_plan *plan = NULL;
    device_open(); /* skips where there is none */
    device_choose(&desc.rope);
    desc.rope.kernel = kernel;
    rope_status status = rope_attention_backward_plan_create(&desc, &plan);
    if (status != ROPE_OK)
        return status;
    backward_job job = {.plan = plan, .c = c, .graph = graph};
    CHECK_STATUS(ROPE_OK, rope_attention_backward_workspace(plan, &bounds, &job.workspace_bytes));
    status = device_with_workspace(&c->forward.base, run_job, &job, &job.workspace,
                                   job.workspace_bytes, result);
    rope_plan_destroy(plan);
    return status;
}

rope_status backward_run(const backward_case *c, const char *kernel, unsigned char *result) {
    return run(c, kernel, 0, result);
}

rope_status backward_replay(const backward_case *c, const char *kernel, unsigned char *result) {
    return run(c, kernel, 1, result);
}

int64_t backward_each_kernel(const backward_case *c, backward_check *check) {
    const char *kernel = "";
    int64_t runs = 0;
    if (!device_is_host())
        backward_required();
    for (int k = 0; kernel; k++) {
        kernel = device_kernel_of("attention_backward", k);
        const char *name = kernel ? kernel : device_is_host() ? "reference" : NULL;
        unsigned char *result = malloc(c->forward.base.bytes);
        if (name)
            attention_describe(&c->forward, name);
        const rope_status status = name ? backward_run(c, name, result) : ROPE_ERROR_UNSUPPORTED;
        CHECK_STATUS(status == ROPE_OK ? ROPE_OK : ROPE_ERROR_UNSUPPORTED, status);
        if (status == ROPE_OK)
            check(c, name, result);
        runs += status == ROPE_OK;
        free(result);
    }
    return runs;
}

/* --- results --- */

static void mark(const backward_case *c, const oracle_part *s, int32_t gradient,
                 unsigned char *written) {
    const backward_view v = view_of(c, backward_gradient(&c->args, gradient), gradient);
    const int64_t size = oracle_dtype_size(c->forward.desc.rope.dtype);
    int64_t row, count;
    const int64_t first = first_of(s, gradient, &row, &count);
    if (!v.data)
        return;
    unsigned char *data = written + (v.data - c->forward.base.arena);
    for (int64_t i = 0; i < count * v.heads * v.dim; i++) {
        const int64_t at =
            element_at(&v, row, first + i / (v.heads * v.dim), i / v.dim % v.heads, i % v.dim);
        memset(data + at * size, 1, (size_t)size);
    }
}

const char *backward_untouched(const backward_case *c, const unsigned char *result) {
    static char message[160];
    const attention_case *f = &c->forward;
    const oracle_attention o = attention_oracle(f);
    unsigned char *written = calloc(f->base.bytes, 1);
    size_t at = 0;
    for (int64_t n = 0; n < f->parts; n++) {
        const oracle_part s = oracle_attention_part(&o, n);
        for (int32_t g = 0; g < GRADIENTS && !s.fails; g++)
            mark(c, &s, g, written);
    }
    if (c->args.dsinks)
        memset(written + ((unsigned char *)c->args.dsinks - f->base.arena), 1,
               (size_t)f->args.rope.q.heads * 4);
    for (int32_t g = GRADIENT_Q; g <= GRADIENT_K; g++)
        if (backward_weight(&c->args, g))
            memset(written + ((unsigned char *)backward_weight(&c->args, g) - f->base.arena), 1,
                   (size_t)attention_weights(f, g) * 4);
    while (at < f->base.bytes && (written[at] || f->base.arena[at] == result[at]))
        at++;
    free(written);
    if (at == f->base.bytes)
        return NULL;
    snprintf(message, sizeof message, "byte %zu of the arena changed and is not of a gradient", at);
    return message;
}

unsigned char *backward_rows(const backward_case *c, const unsigned char *result, int32_t gradient,
                             int64_t part, size_t *bytes) {
    const oracle_attention o = attention_oracle(&c->forward);
    const oracle_part s = oracle_attention_part(&o, part);
    const backward_view v = view_of(c, backward_gradient(&c->args, gradient), gradient);
    const int64_t size = oracle_dtype_size(c->forward.desc.rope.dtype);
    int64_t row, count;
    const int64_t first = first_of(&s, gradient, &row, &count);
    *bytes = (size_t)(count * v.heads * v.dim * size);
    unsigned char *list = malloc(*bytes + 1);
    const unsigned char *data = result + (v.data - c->forward.base.arena);
    for (int64_t i = 0; i < count * v.heads * v.dim; i++) {
        const int64_t at =
            element_at(&v, row, first + i / (v.heads * v.dim), i / v.dim % v.heads, i % v.dim);
        memcpy(list + i * size, data + at * size, (size_t)size);
    }
    return list;
}

/* --- norms --- */

/* Tokens of q.in or k.in and their gradients, side by side; elsewhere what a sum does not see. */
typedef struct normed_tokens {
    int64_t batch, tokens, row; /* elements of a token */
    unsigned char *x, *g;
} normed_tokens;

static normed_tokens tokens_of(const backward_case *c, int32_t gradient) {
    const oracle_attention o = attention_oracle(&c->forward);
    const rope_attention_args *a = &c->forward.args;
    const int32_t dtype = c->forward.desc.rope.dtype;
    const size_t size = (size_t)oracle_dtype_size(dtype);
    normed_tokens t = {.batch = a->rope.batch,
                       .tokens = gradient == GRADIENT_Q ? a->rope.tokens
                                                        : oracle_attention_key_tokens(&o),
                       .row = oracle_attention_heads(&o, gradient) * c->forward.desc.rope.head_dim};
    const size_t count = (size_t)(t.batch * t.tokens * t.row);
    t.x = calloc(count + 1, size);
    t.g = calloc(count + 1, size);
    return t;
}

/* The rows of a sequence, to or from where they lie among all tokens. */
static void move_rows(const backward_case *c, const normed_tokens *t, int32_t gradient, int64_t n,
                      unsigned char *rows, int back) {
    const oracle_attention o = attention_oracle(&c->forward);
    const oracle_part s = oracle_attention_part(&o, n);
    const int64_t size = oracle_dtype_size(c->forward.desc.rope.dtype);
    int64_t row, count;
    const int64_t first = first_of(&s, gradient, &row, &count);
    unsigned char *at = t->g + (row * t->tokens + first) * t->row * size;
    memcpy(back ? rows : at, back ? at : rows, (size_t)(count * t->row * size));
    for (int64_t i = 0; i < count * t->row && !back; i++) {
        const int64_t dim = c->forward.desc.rope.head_dim;
        const oracle_element e =
            oracle_attention_at(&o, &s, gradient, i / t->row, i / dim % (t->row / dim), i % dim);
        memcpy(t->x + (row * t->tokens + first) * t->row * size + i * size,
               (const char *)e.array + e.at * size, (size_t)size);
    }
}

static void differentiate(const backward_case *c, const normed_tokens *t, int32_t gradient,
                          float *weight) {
    const attention_append a =
        attention_append_of(&c->forward, gradient, t->batch, t->tokens, t->x, t->g);
    rope_append_backward_args args = ROPE_APPEND_BACKWARD_ARGS_INIT;
    const rope_append_bounds bounds = {
        sizeof bounds, t->batch, t->tokens, a.args.rope.q.heads, a.args.rope.k.heads, 0};
    rope_plan *plan = NULL;
    args.forward = &a.args;
    *(gradient == GRADIENT_Q ? &args.q : &args.k) =
        (rope_append_gradient){.in = t->g, .out = t->g, .weight = weight};
    CHECK_STATUS(ROPE_OK, rope_append_backward_plan_create(&a.desc, &plan));
    CHECK_STATUS(ROPE_OK, rope_append_backward_workspace(plan, &bounds, &args.workspace_bytes));
    args.workspace = aligned_alloc(256, (args.workspace_bytes + 255) / 256 * 256);
    CHECK_STATUS(ROPE_OK, rope_append_backward(plan, &args));
    free(args.workspace);
    rope_plan_destroy(plan);
}

float *backward_normed(const backward_case *c, int32_t gradient,
                       unsigned char *rows[ATTENTION_MAX_PARTS]) {
    const int64_t weights = attention_weights(&c->forward, gradient);
    float *weight = weights ? malloc((size_t)weights * sizeof *weight) : NULL;
    const normed_tokens t = tokens_of(c, gradient);
    for (int64_t n = 0; n < c->forward.parts; n++)
        move_rows(c, &t, gradient, n, rows[n], 0);
    differentiate(c, &t, gradient, weight);
    for (int64_t n = 0; n < c->forward.parts; n++)
        move_rows(c, &t, gradient, n, rows[n], 1);
    free(t.x);
    free(t.g);
    return weight;
}

/* --- the plain call --- */

/* Room behind the forward's arena, each part at a multiple of 64; returns its offset. */
static size_t take(size_t *end, int64_t bytes) {
    const size_t at = *end;
    *end += ((size_t)bytes + 63) / 64 * 64;
    return at;
}

/* dout begins between vectors where the call does not read vectors. */
static void lay_out(backward_case *p, int64_t keys, int vectors) {
    attention_case *f = &p->forward;
    const oracle_attention o = attention_oracle(f);
    const int64_t size = oracle_dtype_size(f->desc.rope.dtype),
                  rows = f->parts * f->args.rope.tokens, heads = f->args.rope.q.heads,
                  all_keys = f->parts * keys * f->args.rope.k.heads, dim = f->desc.rope.head_dim,
                  v_dim = oracle_attention_head_dim(&o, ORACLE_V);
    size_t end = f->base.bytes;
    const size_t dout =
                     take(&end, (rows * heads * v_dim + 1) * size) + (vectors ? 0 : (size_t)size),
                 dq = take(&end, rows * heads * dim * size), dk = take(&end, all_keys * dim * size),
                 dv = take(&end, all_keys * v_dim * size), dsinks = take(&end, heads * 4);
    unsigned char *arena = aligned_alloc(64, end);
    memcpy(arena, f->base.arena, f->base.bytes);
    memset(arena + f->base.bytes, f->provided ? 0x3c : 0xff, end - f->base.bytes);
    attention_relocate(&f->args, f->base.arena, arena);
    free(f->base.arena);
    f->base.arena = arena;
    f->base.bytes = end;
    p->args = (rope_attention_backward_args)ROPE_ATTENTION_BACKWARD_ARGS_INIT;
    p->args.dout = arena + dout;
    p->args.dq.data = arena + dq;
    p->args.dk.data = arena + dk;
    p->args.dv.data = arena + dv;
    p->args.dsinks = f->desc.sink_dtype && !f->provided ? (float *)(void *)(arena + dsinks) : NULL;
}

/* dout, out and lse of a sequence. */
static void copy_results(backward_case *p, const backward_case *c, int64_t row,
                         const oracle_part *s) {
    const oracle_attention from = attention_oracle(&c->forward), to = attention_oracle(&p->forward);
    const oracle_part own = oracle_attention_part(&to, row);
    const backward_view in = view_of_dout(c), out = view_of_dout(p);
    const int32_t dtype = c->forward.desc.rope.dtype;
    for (int64_t i = 0; i < s->q_count; i++)
        for (int64_t h = 0; h < in.heads; h++) {
            for (int64_t e = 0; e < in.dim; e++) {
                oracle_store(
                    dtype, out.data, element_at(&out, own.q_row, i, h, e),
                    oracle_load(dtype, in.data, element_at(&in, s->q_row, s->q_first + i, h, e)));
                oracle_store(dtype, p->forward.args.out.data,
                             oracle_attention_out_at(&to, &own, i, h, e),
                             oracle_load(dtype, c->forward.args.out.data,
                                         oracle_attention_out_at(&from, s, i, h, e)));
            }
            p->forward.args.lse[oracle_attention_lse_at(&to, &own, i, h)] =
                c->forward.args.lse[oracle_attention_lse_at(&from, s, i, h)];
        }
}

void backward_plain(backward_case *p, const backward_case *c, int64_t first, int64_t count) {
    const oracle_attention o = attention_oracle(&c->forward);
    memset(p, 0, sizeof *p);
    attention_plain(&p->forward, &c->forward, &c->dense, first, count, 0);
    for (int64_t n = 0; n < count; n++) {
        p->forward.q_count[n] = c->forward.q_count[first + n];
        p->forward.k_count[n] = c->forward.k_count[first + n];
    }
    lay_out(p, p->forward.args.k_tokens, reads_vectors(c));
    for (int64_t n = 0; n < count; n++) {
        const oracle_part s = oracle_attention_part(&o, first + n);
        copy_results(p, c, n, &s);
    }
}
