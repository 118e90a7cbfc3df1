/*
 * Gradients beside finite differences, in f64, of the oracle's forward: those of the oracle's
 * backward along random directions, which any element that is wrong shows in, and those of kernels
 * element by element, through the rotation.
 */
#include "tests/attention/norms.h"
#include "tests/attention_backward/cases.h"
#include "tests/oracle/attention_backward.h"
#include "tests/oracle/format.h"
#include "tests/oracle/oracle.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CASES = 200, ELEMENTS = 4, SINKS = GRADIENTS, TENSORS };
static const char *const names[TENSORS] = {"q", "k", "v", "sinks"};

/* A sequence in double: rotated q and k as kernels multiply them, [token][head][dim]. */
typedef struct sequence {
    rope_attention_desc desc;
    rope_attention_args args; /* sinks are double */
    oracle_attention o;
    oracle_part s;
    int64_t count[TENSORS], dim[TENSORS], heads[TENSORS]; /* of sinks one token and a dim of 1 */
    double *x[TENSORS], *dout;
    oracle_sum *sum[TENSORS]; /* the oracle's gradients */
    int32_t known;
} sequence;

/* --- the forward --- */

static int64_t size_of(const sequence *q, int32_t tensor) {
    return q->count[tensor] * q->heads[tensor] * q->dim[tensor];
}

static int64_t head_of(const sequence *q, int32_t tensor, int64_t head) {
    return head / (q->heads[GRADIENT_Q] / q->heads[tensor]);
}

/* Tokens of a tensor that a row reads, of one head: x, or with along x + t along. */
static double *gather(const sequence *q, int32_t tensor, int64_t i, int64_t head, const double *x,
                      const double *along, double t) {
    const int64_t dim = q->dim[tensor], one = tensor == GRADIENT_Q, n = one ? 1 : q->count[tensor],
                  h = head_of(q, tensor, head);
    double *list = malloc((size_t)(n * dim + 1) * sizeof *list);
    for (int64_t token = 0; token < n; token++) {
        const int64_t at = ((one ? i : token) * q->heads[tensor] + h) * dim;
        for (int64_t e = 0; e < dim; e++)
            list[token * dim + e] = along ? x[at + e] + t * along[at + e] : x[at + e];
    }
    return list;
}

/* A row of the forward with one tensor moved, or TENSORS: none. */
static void row_at(const sequence *q, int32_t tensor, int64_t i, int64_t head, const double *along,
                   double t, oracle_row *row) {
    double *x[TENSORS];
    for (int32_t n = 0; n < TENSORS; n++)
        x[n] = gather(q, n, i, head, q->x[n], n == tensor ? along : NULL, t);
    const oracle_heads view = {x[GRADIENT_Q], x[GRADIENT_K], x[GRADIENT_V], q->dim[GRADIENT_K],
                               q->dim[GRADIENT_V]};
    rope_attention_args args = q->args;
    args.sinks = x[SINKS];
    const oracle_attention o = {&q->desc, &args};
    oracle_attention_row(&o, &q->s, i, 0, &view, row);
    for (int32_t n = 0; n < TENSORS; n++)
        free(x[n]);
}

/* --- differences --- */

/* A number and how far it may be off. */
typedef struct inexact {
    double x, error;
} inexact;

/* Largest factor of t in the scores of a row, as a tensor moves, and largest abs(<dout, v>). */
static void find_reach(const sequence *q, int32_t tensor, int64_t i, int64_t head,
                       const double *along, double *factor, double *most) {
    const int64_t dim = q->dim[GRADIENT_Q], v_dim = q->dim[GRADIENT_V];
    double *a = gather(q, GRADIENT_Q, i, head, tensor == GRADIENT_Q ? along : q->x[GRADIENT_Q],
                       NULL, 0),
           *k = gather(q, GRADIENT_K, i, head, tensor == GRADIENT_K ? along : q->x[GRADIENT_K],
                       NULL, 0),
           *v = gather(q, GRADIENT_V, i, head, q->x[GRADIENT_V], NULL, 0);
    *factor = tensor == SINKS ? fabs(along[head]) : 0;
    *most = 0;
    for (int64_t n = 0; n < q->s.k_count; n++) {
        double score = 0, value = 0;
        if (!oracle_attention_sees(&q->o, &q->s, i, n))
            continue;
        for (int64_t e = 0; e < dim && tensor <= GRADIENT_K; e++)
            score += a[e] * k[n * dim + e];
        for (int64_t e = 0; e < v_dim; e++)
            value += q->dout[(i * q->heads[GRADIENT_Q] + head) * v_dim + e] * v[n * v_dim + e];
        *factor = fmax(*factor, oracle_attention_scale(&q->o) * fabs(score));
        *most = fmax(*most, fabs(value));
    }
    free(a);
    free(k);
    free(v);
}

/* <dout, out> of a row; its error is that of docs/numerics.md with the roundings of f64. */
static inexact product_at(const sequence *q, int32_t tensor, int64_t i, int64_t head,
                          const double *along, double t) {
    const int64_t v_dim = q->dim[GRADIENT_V];
    oracle_row row;
    inexact sum = {0, 0};
    row_at(q, tensor, i, head, along, t, &row);
    const double score = 0x1p-53 * ((double)q->desc.rope.head_dim + 18) * row.logits,
                 relative = expm1(2 * score + 0x1p-53 * (2 * (double)row.keys + 36)) +
                            0x1p-53 * (double)v_dim;
    for (int64_t e = 0; e < v_dim; e++) {
        const double dout = q->dout[(i * q->heads[GRADIENT_Q] + head) * v_dim + e];
        sum.x += dout * row.value[e];
        sum.error += fabs(dout) * relative * row.weight[e];
    }
    return sum;
}

/*
 * The slope of <dout, out> of a row by four points, h apart. Scores are s + t a; let A be the
 * largest abs(a), Y the largest abs(<dout, v>). Where t is complex and abs(t) <= r = pi / (3 A),
 * every exp(s + t a) is within pi / 3 of the real axis, so <dout, out> is at most 2 Y, and its
 * fifth derivative at most 5! 2 Y / r^5. The formula is off by h^4 / 30 of that: with h = r / 512
 * by 2^-33 Y / r. A cap's slope is at most 2 within pi / 4 of the real axis, so r is then min(pi /
 * 6, cap pi / 4) / A. What is linear has no such error.
 */
static inexact slope_of_row(const sequence *q, int32_t tensor, int64_t i, int64_t head,
                            const double *along) {
    static const double weight[4] = {1. / 12, -8. / 12, 8. / 12, -1. / 12},
                        step[4] = {-2, -1, 1, 2}, pi = 3.14159265358979323846;
    const double cap = q->desc.soft_cap;
    double factor, most;
    find_reach(q, tensor, i, head, along, &factor, &most);
    if (factor == 0 && tensor != GRADIENT_V)
        return (inexact){0, 0};
    const double reach = cap != 0 ? fmin(pi / 6, cap * pi / 4) : pi / 3,
                 r = factor != 0 ? reach / factor : 1, h = r / 512;
    inexact sum = {0, factor != 0 ? 0x1p-33 * most / r : 0};
    for (int n = 0; n < 4; n++) {
        const inexact x = product_at(q, tensor, i, head, along, step[n] * h);
        sum.x += weight[n] * x.x / h;
        sum.error += fabs(weight[n]) * x.error / h;
    }
    return sum;
}

/* Of all rows that a direction moves: of one head of the tensor, or of all where that is -1. */
static inexact slope(const sequence *q, int32_t tensor, int64_t token, int64_t head,
                     const double *along) {
    inexact sum = {0, 0};
    for (int64_t i = 0; i < q->s.q_count; i++)
        for (int64_t h = 0; h < q->heads[GRADIENT_Q]; h++) {
            if ((head >= 0 && head_of(q, tensor, h) != head) ||
                (token >= 0 && tensor == GRADIENT_Q && i != token))
                continue;
            const inexact row = slope_of_row(q, tensor, i, h, along);
            sum.x += row.x;
            sum.error += row.error;
        }
    return sum;
}

/* --- the oracle's backward --- */

/* Of exact out and lse; kernels are given those of a forward, which are as far off as it may be. */
static void add_gradients(sequence *q, int64_t i, int64_t head) {
    double error[ROPE_MAX_ATTENTION_HEAD_DIM];
    oracle_row row;
    row_at(q, TENSORS, i, head, NULL, 0, &row);
    for (int64_t e = 0; e < q->dim[GRADIENT_V]; e++)
        error[e] = oracle_attention_bound(&q->o, &row, e);
    int64_t at[TENSORS] = {i * q->heads[GRADIENT_Q] + head, head_of(q, GRADIENT_K, head),
                           head_of(q, GRADIENT_V, head), head};
    for (int32_t n = 0; n < TENSORS; n++)
        at[n] *= q->dim[n];
    const oracle_heads view = {q->x[GRADIENT_Q] + at[GRADIENT_Q], q->x[GRADIENT_K] + at[GRADIENT_K],
                               q->x[GRADIENT_V] + at[GRADIENT_V],
                               q->heads[GRADIENT_K] * q->dim[GRADIENT_K],
                               q->heads[GRADIENT_V] * q->dim[GRADIENT_V]};
    const oracle_results results = {
        q->dout + (i * q->heads[GRADIENT_Q] + head) * q->dim[GRADIENT_V], row.value, row.lse, error,
        isfinite(row.lse) ? oracle_attention_lse_bound(&q->o, &row) : 0,  0};
    const oracle_gradients to = {.dq = q->sum[GRADIENT_Q] + at[GRADIENT_Q],
                                 .dk = q->sum[GRADIENT_K] + at[GRADIENT_K],
                                 .dv = q->sum[GRADIENT_V] + at[GRADIENT_V],
                                 .dsink = q->desc.sink_dtype ? q->sum[SINKS] + at[SINKS] : NULL};
    const double logits =
        oracle_attention_backward_row(&q->o, &q->s, i, head, &view, &results, &to);
    q->known &= row.known && (logits != 0 || row.keys == 0 || row.logits == 0);
}

static void make(sequence *q, const backward_case *c, int64_t n) {
    const attention_case *f = &c->forward;
    const oracle_attention o = attention_oracle(f);
    const oracle_part s = oracle_attention_part(&o, n);
    *q = (sequence){.desc = f->desc, .args = f->args, .s = s, .known = 1};
    for (int32_t g = 0; g < GRADIENTS; g++) {
        q->count[g] = g == GRADIENT_Q ? s.q_count : s.k_count;
        q->heads[g] = oracle_attention_heads(&o, g);
        q->dim[g] = oracle_attention_head_dim(&o, g);
    }
    q->count[SINKS] = q->dim[SINKS] = 1;
    q->heads[SINKS] = q->heads[GRADIENT_Q];
    for (int32_t t = 0; t < TENSORS; t++) {
        q->x[t] = calloc((size_t)size_of(q, t) + 1, sizeof *q->x[t]);
        q->sum[t] = calloc((size_t)size_of(q, t) + 1, sizeof *q->sum[t]);
        for (int64_t e = 0; e < size_of(q, t) && (t != SINKS || f->desc.sink_dtype); e++)
            q->x[t][e] = t == SINKS ? oracle_load(f->desc.sink_dtype, f->args.sinks, e)
                                    : oracle_load(f->desc.rope.dtype, c->dense.data[n][t], e);
    }
    const int64_t v_dim = q->dim[GRADIENT_V], rows = s.q_count * q->heads[GRADIENT_Q];
    q->dout = malloc((size_t)(rows * v_dim + 1) * sizeof *q->dout);
    for (int64_t e = 0; e < rows * v_dim; e++)
        q->dout[e] = oracle_load(f->desc.rope.dtype, c->args.dout,
                                 backward_dout_at(c, &s, e / v_dim / q->heads[GRADIENT_Q],
                                                  e / v_dim % q->heads[GRADIENT_Q], e % v_dim));
    q->args.sinks = q->x[SINKS];
    q->desc.sink_dtype = f->desc.sink_dtype ? ROPE_F64 : 0;
    q->o = (oracle_attention){&q->desc, &q->args};
    for (int64_t i = 0; i < s.q_count; i++)
        for (int64_t h = 0; h < q->heads[GRADIENT_Q]; h++)
            add_gradients(q, i, h);
}

static void forget(sequence *q) {
    for (int32_t t = 0; t < TENSORS; t++) {
        free(q->x[t]);
        free(q->sum[t]);
    }
    free(q->dout);
}

/* Along a random direction of a whole tensor. Sums are off by roundings of f64, 2^-29 of those of
 * fp32, which their bounds have. */
static void check_oracle(const sequence *q, int32_t tensor, test_random *r) {
    double *along = calloc((size_t)size_of(q, tensor) + 1, sizeof *along);
    inexact got = {0, 0};
    for (int64_t e = 0; e < size_of(q, tensor); e++) {
        const oracle_sum *sum = &q->sum[tensor][e];
        along[e] = random_real(r, -1, 1);
        if (tensor == SINKS && !isfinite(q->x[tensor][e]))
            along[e] = 0;
        got.x += along[e] * sum->value;
        got.error += fabs(along[e]) * 0x1p-29 * oracle_sum_bound(q->desc.rope.dtype, sum, 0);
    }
    const inexact expected = slope(q, tensor, -1, -1, along);
    free(along);
    CHECK(!(fabs(got.x - expected.x) > got.error + expected.error),
          "the slope along a direction of %s is %.15g by the oracle's gradients, and %.15g within "
          "%.3g by differences",
          names[tensor], got.x, expected.x, got.error + expected.error);
}

/* --- kernels --- */

/* An element of a gradient, or of dsinks, and what it may be. */
typedef struct element {
    int32_t tensor;
    int64_t part, at;
    inexact slope;
} element;
static element list[TENSORS * ELEMENTS];
static int32_t elements;

/* The rotation of a unit vector, and how far that of a kernel may be off, its roundings with it. */
static void rotate_unit(const sequence *q, const rope_desc *desc, int32_t tensor, int64_t token,
                        int64_t e, double *value, double *bound) {
    const int64_t dim = q->dim[tensor];
    unsigned char *unit = calloc((size_t)dim, (size_t)oracle_dtype_size(desc->dtype));
    attention_rotation call = attention_rotation_of(&q->o, &q->s, tensor, token, 1);
    oracle *rotation = oracle_create(desc);
    oracle_store(desc->dtype, unit, e, 1);
    *(tensor == GRADIENT_Q ? &call.args.q : &call.args.k) =
        (rope_tensor){.in = unit, .out = unit, .heads = 1};
    oracle_rotate(rotation, &call.args, tensor, 0, 0, value, bound);
    oracle_destroy(rotation);
    free(call.memory);
    free(unit);
}

/* A gradient is the sum of what its element's rotation makes of those of rotated elements: they and
 * the rotation are off by their bounds, and it is rounded once more. */
static void expect_element(const sequence *q, const rope_desc *rotation, int32_t tensor,
                           int64_t at) {
    const int64_t dim = q->dim[tensor], token = at / dim / q->heads[tensor],
                  head = at / dim % q->heads[tensor];
    const int32_t dtype = tensor == SINKS ? ROPE_F32 : q->desc.rope.dtype;
    const oracle_format *format = oracle_format_of(dtype);
    double *along = calloc((size_t)size_of(q, tensor), sizeof *along),
           *turned = along + at / dim * dim, *bound = calloc((size_t)dim, sizeof *bound);
    if (rotation)
        rotate_unit(q, rotation, tensor, token, at % dim, turned, bound);
    else
        turned[at % dim] = 1;
    inexact x = slope(q, tensor, token, head, along);
    for (int64_t e = 0; e < dim; e++) {
        const oracle_sum *sum = &q->sum[tensor][at / dim * dim + e];
        const double error = oracle_sum_bound(dtype, sum, 0);
        if (turned[e] != 0 || bound[e] != 0)
            x.error += fabs(sum->value) + error < format->largest
                           ? fabs(turned[e]) * error + bound[e] * (fabs(sum->value) + error)
                           : INFINITY;
    }
    x.error += format->unit * (fabs(x.x) + x.error) + format->tiny;
    free(along);
    free(bound);
    if (isfinite(x.error))
        list[elements++] = (element){tensor, q->s.index, at, x};
}

static double result_of(const backward_case *c, const element *x, const unsigned char *result) {
    size_t bytes;
    if (x->tensor == SINKS)
        return oracle_load(
            ROPE_F32, result + ((unsigned char *)c->args.dsinks - c->forward.base.arena), x->at);
    unsigned char *rows = backward_rows(c, result, x->tensor, x->part, &bytes);
    const double got = oracle_load(c->forward.desc.rope.dtype, rows, x->at);
    free(rows);
    return got;
}

static void check_elements(const backward_case *c, const char *kernel, unsigned char *result) {
    if (strcmp(kernel, "reference") == 0) /* which rotates in double */
        return;
    for (int32_t n = 0; n < elements; n++) {
        const element *x = &list[n];
        const int32_t dtype = x->tensor == SINKS ? ROPE_F32 : c->forward.desc.rope.dtype;
        const double got = result_of(c, x, result);
        CHECK(oracle_accepts(dtype, got, x->slope.x, x->slope.error),
              "element %lld of d%s is %.9g, and %.9g within %.3g by differences", (long long)x->at,
              names[x->tensor], got, x->slope.x, x->slope.error);
    }
}

/* Behind a norm a gradient is of something else. */
static int is_wanted(const backward_case *c, int32_t tensor) {
    if (tensor <= GRADIENT_K && attention_norm(&c->forward, tensor)->type)
        return 0;
    return tensor == SINKS ? c->args.dsinks != NULL && c->forward.parts == 1
                           : backward_gradient(&c->args, tensor)->data != NULL;
}

static int is_rotated(const rope_attention_desc *desc, int32_t tensor) {
    return desc->rotation <= ROPE_ATTENTION_ROTATE_QK
               ? tensor <= GRADIENT_K
               : desc->rotation == ROPE_ATTENTION_ROTATE_Q && tensor == GRADIENT_Q;
}

static void check_part(const backward_case *c, int64_t part, test_random *r) {
    const rope_desc rotation = attention_rotation_desc(&c->forward.desc);
    sequence q;
    make(&q, c, part);
    for (int32_t t = 0; t < TENSORS && q.known; t++) {
        if (size_of(&q, t) == 0 || (t == SINKS && !q.desc.sink_dtype))
            continue;
        check_oracle(&q, t, r);
        for (int n = 0; n < ELEMENTS && is_wanted(c, t) && part == c->forward.parts - 1; n++)
            expect_element(&q, is_rotated(&q.desc, t) ? &rotation : NULL, t,
                           random_between(r, 0, size_of(&q, t) - 1));
    }
    forget(&q);
}

TEST(attention_backward_differences, values) {
    device_not_provided("its sums are beside the oracle's in attention_backward/provided");
    static const attention_wish wish = {.tame = 1, .in_range = 1};
    if (!device_is_host())
        backward_required();
    for (int64_t i = -1; test_next(&i, CASES);) {
        backward_case c;
        backward_make(&c, test_seed() + 6, i, &wish, "scalar");
        test_random r = c.forward.base.random;
        attention_describe(&c.forward, NULL);
        elements = 0;
        for (int64_t n = 0; n < c.forward.parts && c.forward.args.rope.tokens; n++)
            check_part(&c, n, &r);
        if (elements)
            backward_each_kernel(&c, check_elements);
        backward_free(&c);
    }
}
