/* Gradients of rope_append beside their definition in double, and beside finite differences of the
 * forward, through the rotation. */
#include "tests/append/compare.h"
#include "tests/append_backward/cases.h"
#include "tests/oracle/append_backward.h"
#include "tests/oracle/append_layout.h"
#include "tests/oracle/oracle.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CASES = 400 };

static void required(void) {
    if (!device_kernel_of("append_backward", 0))
        SKIP("%s has no kernel for append_backward", device_backend());
}

/* --- the definition --- */

/* A tensor that does not rotate: its sums for weights, [heads, norm.dim], and where it stands. */
typedef struct expectation {
    const gradient_case *c;
    oracle_tensor t;
    int32_t tensor;
    const rope_append_gradient *g, *got;
    double *sum, *bound, *magnitude;
} expectation;

static double weight_at(const oracle_tensor *t, int64_t head, int64_t i) {
    const rope_norm *norm = &t->part->norm;
    if (norm->weight == 0)
        return 1;
    const double w = oracle_load(t->weight_dtype, t->weight->data, head * t->weight_stride + i);
    return norm->weight == ROPE_NORM_ONE_PLUS_WEIGHT ? oracle_round(ROPE_F32, 1 + w) : w;
}

static double gradient_at(const expectation *e, int64_t site, int64_t head, int64_t i) {
    const int32_t dtype = e->c->forward.desc.rope.dtype;
    const double factor = (double)(float)e->t.part->factor,
                 g = oracle_load(dtype, e->g->in, gradient_in_at(e->c, e->tensor, site, head, i));
    return factor != 0 ? oracle_round(dtype, oracle_round(ROPE_F32, g * factor)) : g;
}

static void check_element(const expectation *e, int64_t site, int64_t head, int64_t i,
                          const oracle_slope *dx) {
    const int32_t dtype = e->c->forward.desc.rope.dtype;
    const double got = e->got->out ? oracle_load(dtype, e->got->out,
                                                 gradient_out_at(e->c, e->tensor, site, head, i))
                                   : 0;
    CHECK(!e->got->out || isinf(dx->bound) || isnan(dx->bound) ||
              oracle_accepts(dtype, got, dx->value, oracle_slope_bound(dtype, dx)),
          "element %lld of head %lld of token %lld of d%c is %.9g, not %.9g within %.3g",
          (long long)i, (long long)head, (long long)site, "qkv"[e->tensor], got, dx -> value,
          oracle_slope_bound(dtype, dx));
}

/* The norm over `heads` heads of a token. */
static void check_norm(const expectation *e, int64_t site, int64_t first, int64_t heads) {
    const rope_norm *norm = &e->t.part->norm;
    const int64_t m = e->t.norm_dim, n = heads * m, tokens = e->c->forward.args.rope.tokens;
    double *x = calloc(3 * (size_t)n, sizeof *x), *g = x + n, *w = g + n;
    oracle_slope *dx = calloc(2 * (size_t)n, sizeof *dx), *terms = dx + n;
    for (int64_t i = 0; i < n; i++) {
        const int64_t h = first + i / m, at = norm->offset + i % m;
        x[i] = oracle_load(e->c->forward.desc.rope.dtype, e->t.t->in,
                           site / tokens * e->t.in[0] + site % tokens * e->t.in[1] +
                               h * e->t.in[2] + at * e->t.in[3]);
        g[i] = gradient_at(e, site, h, at);
        w[i] = weight_at(&e->t, h, i % m);
    }
    oracle_norm_backward(e->c->forward.desc.rope.dtype, norm, n, x, g, w, dx, terms);
    for (int64_t i = 0; i < n; i++) {
        const int64_t h = first + i / m, at = (e->t.weight_stride ? h : 0) * m + i % m;
        check_element(e, site, h, norm->offset + i % m, &dx[i]);
        e->sum[at] += terms[i].value;
        e->bound[at] += terms[i].bound;
        e->magnitude[at] += fabs(terms[i].value);
    }
    free(x);
    free(dx);
}

static void check_weights(const expectation *e, int64_t sites) {
    const int64_t rows = e->t.weight_stride ? 1 : e->t.heads;
    const float *got = e->got->weight;
    for (int64_t i = 0; got && i < gradient_weights(e->c, e->tensor); i++) {
        const double bound =
            oracle_weight_bound(e->bound[i], e->magnitude[i], (rows + 7) / 8, sites);
        CHECK(isnan(bound) || isinf(bound) || fabs((double)got[i] - e->sum[i]) <= bound,
              "the gradient of weight %lld of %c is %.9g, not %.9g within %.3g", (long long)i,
              "qkv"[e->tensor], (double)got[i], e -> sum[i], bound);
    }
}

static void check_tensor(const gradient_case *c, int32_t tensor, unsigned char *result) {
    rope_append_backward_args args = c->args;
    const int64_t sites = c->forward.args.rope.batch * c->forward.args.rope.tokens;
    rope_append_gradient *g = gradient_of(&args, tensor), got = *g;
    expectation e = {c,      oracle_append_tensor(&c->forward.desc, &c->forward.args, tensor),
                     tensor, g,
                     &got,   NULL,
                     NULL,   NULL};
    const size_t weights = (size_t)(e.t.heads * e.t.norm_dim);
    if (!g->in || !e.t.part->norm.type || weights == 0)
        return;
    if (got.out)
        got.out = result + ((unsigned char *)got.out - c->forward.base.arena);
    if (got.weight)
        got.weight =
            (float *)(void *)(result + ((unsigned char *)got.weight - c->forward.base.arena));
    e.sum = calloc(3 * weights, sizeof *e.sum);
    e.bound = e.sum + weights;
    e.magnitude = e.bound + weights;
    for (int64_t n = 0; n < sites; n++) {
        if (e.t.part->norm.scope == ROPE_NORM_TOKEN)
            check_norm(&e, n, 0, e.t.heads);
        else
            for (int64_t h = 0; h < e.t.heads; h++)
                check_norm(&e, n, h, 1);
    }
    check_weights(&e, sites);
    free(e.sum);
}

TEST(append_backward_values, definition) {
    required();
    for (int64_t i = -1; test_next(&i, CASES);) {
        gradient_case c;
        gradient_make(&c, test_seed() + 6, i,
                      &(append_wish){.rotation = ROPE_ROTATION_OFF, .tame = 1, .in_range = 1});
        append_describe(&c.forward, NULL);
        unsigned char *result = malloc(c.forward.base.bytes);
        CHECK_STATUS(ROPE_OK, gradient_run(&c, NULL, result));
        for (int32_t tensor = 0; tensor < ORACLE_TENSORS; tensor++)
            check_tensor(&c, tensor, result);
        free(result);
        gradient_free(&c);
    }
}

/* --- finite differences --- */

/* Of fp32 results by four of them, which are 2^-24 of them off. */
static const double STEP = 0x1p-6, TOLERANCE = 3e-4;

enum {
    BATCH = 2,
    TOKENS = 5,
    HEADS = 3,
    DIM = 24,
    ROW = HEADS * DIM,
    TENSOR = BATCH * TOKENS * ROW,
    PARTS = 3 * 5, /* x, out, dout, dx and weights of q, k and v; gradients of weights behind */
    FLOATS = PARTS * TENSOR + 3 * ROW
};

static float *part_of(const gradient_case *c, int32_t part, int32_t tensor) {
    return (float *)(void *)c->forward.base.arena + (part * 3 + tensor) * TENSOR;
}

enum { X, OUT, DOUT, DX, WEIGHT };

static void make_smooth(gradient_case *c, const rope_append_desc *desc) {
    append_case *f = &c->forward;
    memset(c, 0, sizeof *c);
    f->base.bytes = FLOATS * sizeof(float);
    f->base.arena = malloc(f->base.bytes);
    f->base.random = random_stream(test_seed(), desc->q.norm.type + desc->rope.pairing_in);
    f->desc = *desc;
    f->args = (rope_append_args)ROPE_APPEND_ARGS_INIT;
    for (int i = 0; i < FLOATS; i++)
        part_of(c, 0, 0)[i] = (float)random_real(&f->base.random, -1.5, 1.5);
    f->args.rope.batch = BATCH, f->args.rope.tokens = TOKENS, f->args.rope.position_offset = 3;
    c->args = (rope_append_backward_args)ROPE_APPEND_BACKWARD_ARGS_INIT;
    for (int32_t t = 0; t < 3; t++) {
        const rope_norm *norm = t == 0 ? &desc->q.norm : t == 1 ? &desc->k.norm : &desc->v.norm;
        *(t == 2 ? &f->args.v : case_tensor(&f->args.rope, t)) =
            (rope_tensor){.in = part_of(c, X, t), .out = part_of(c, OUT, t), .heads = HEADS};
        *gradient_of(&c->args, t) =
            (rope_append_gradient){.in = part_of(c, DOUT, t), .out = part_of(c, DX, t)};
        if (norm->weight == 0)
            continue;
        (t == 0   ? &f->args.q_weight
         : t == 1 ? &f->args.k_weight
                  : &f->args.v_weight)
            ->data = part_of(c, WEIGHT, t);
        gradient_of(&c->args, t)->weight = part_of(c, WEIGHT + 1, 0) + t * ROW;
    }
}

/* The sum of dout * out, where `count` numbers from `at` on are moved by step times direction. */
static double loss(const gradient_case *c, float *at, const float *direction, int64_t count,
                   double step) {
    float *kept = malloc((size_t)count * sizeof *kept);
    unsigned char *result = malloc(c->forward.base.bytes);
    double sum = 0;
    memcpy(kept, at, (size_t)count * sizeof *kept);
    for (int64_t i = 0; i < count; i++)
        at[i] = (float)((double)kept[i] + step * (double)direction[i]);
    CHECK_STATUS(ROPE_OK,
                 append_run(&c->forward, &c->forward.desc, &c->forward.args, 1, NULL, result));
    memcpy(at, kept, (size_t)count * sizeof *kept);
    for (int32_t i = 0; i < 3 * TENSOR; i++)
        sum += (double)part_of(c, DOUT, 0)[i] *
               (double)((float *)(void *)result)[OUT * 3 * TENSOR + i];
    free(kept);
    free(result);
    return sum;
}

/* gradient: of `count` numbers from `at` on, 0 of those that stay where they are. */
static void check_slope(const gradient_case *c, const char *what, float *at, const float *gradient,
                        int64_t count) {
    static float direction[3 * TENSOR];
    double slope = 0, scale = 0;
    test_random r = random_stream(test_seed() + 1, count);
    for (int64_t i = 0; i < count; i++) {
        direction[i] = (float)random_real(&r, -1, 1);
        slope += (double)direction[i] * (double)gradient[i];
        scale += (double)gradient[i] * (double)gradient[i];
    }
    const double near = loss(c, at, direction, count, STEP) - loss(c, at, direction, count, -STEP),
                 far = loss(c, at, direction, count, 2 * STEP) -
                       loss(c, at, direction, count, -2 * STEP),
                 expected = (8 * near - far) / (12 * STEP);
    CHECK(fabs(slope - expected) <= TOLERANCE * (sqrt(scale) + 1),
          "along a direction of %s the gradient is %.7g, differences say %.7g", what, slope,
          expected);
}

static void check_differences(const rope_append_desc *desc) {
    static float weights[3 * TENSOR];
    gradient_case c;
    make_smooth(&c, desc);
    append_describe(&c.forward, NULL);
    unsigned char *result = malloc(c.forward.base.bytes);
    CHECK_STATUS(ROPE_OK, gradient_run(&c, NULL, result));
    const float *after = (const float *)(void *)result;
    memset(weights, 0, sizeof weights);
    for (int32_t t = 0; t < 3; t++)
        memcpy(weights + t * TENSOR, after + (WEIGHT + 1) * 3 * TENSOR + t * ROW,
               (size_t)gradient_weights(&c, t) * sizeof *weights);
    check_slope(&c, "tensors", part_of(&c, X, 0), after + DX * 3 * TENSOR, 3 * TENSOR);
    if (desc->q.norm.weight)
        check_slope(&c, "weights", part_of(&c, WEIGHT, 0), weights, 3 * TENSOR);
    free(result);
    gradient_free(&c);
}

TEST(append_backward_values, finite_differences) {
    required();
    for (int32_t i = 0; i < 2 * 2 * 3 * 4; i++) {
        rope_append_desc d = ROPE_APPEND_DESC_INIT;
        d.rope = device_desc();
        d.rope.head_dim = DIM;
        d.rope.rotary_dim = 16;
        d.rope.pairing_in = 1 + i / 12 % 2;
        d.rope.pairing_out = 1 + i / 24;
        d.rope.attention_factor = i % 5 ? 1 : 1.25;
        d.rope.direction = i % 7 ? ROPE_FORWARD : ROPE_TRANSPOSE;
        d.k.factor = i % 3 ? 0 : 0.75;
        d.q.norm = (rope_norm){.type = 1 + i % 2,
                               .scope = 1 + i / 2 % 2,
                               .weight = i / 4 % 3,
                               .rounding = i / 4 % 3 ? 1 + i / 12 % 2 : 0,
                               .eps = 1e-3};
        d.k.norm = d.v.norm = d.q.norm;
        d.k.norm.type = 3 - d.q.norm.type;
        d.v.norm.offset = 5;
        d.v.norm.dim = 11;
        check_differences(&d);
    }
}
