/* Generated cases of rope_attention_backward on every kernel: sums within the bound of
 * docs/numerics.md of the oracle's, rotated back as rope_apply does it bit for bit, no other byte
 * written, and what a call that fails leaves. */
#include "tests/attention/norms.h"
#include "tests/attention_backward/cases.h"
#include "tests/oracle/attention_backward.h"
#include "tests/oracle/format.h"
#include "tests/oracle/oracle.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CASES = 400 };

static int64_t calls, calls_declined; /* by a provider */
static char reason[256];

/* Sums of a case's sequences, [token][head][dim], and of its sinks. */
typedef struct expectation {
    const backward_case *c;
    backward_case plain; /* of all sequences */
    oracle_sum *sum[ATTENTION_MAX_PARTS][GRADIENTS], *dsinks;
    double logits; /* largest, with lse */
} expectation;

/* --- what is expected --- */

static double *numbers(int32_t dtype, const void *data, int64_t count) {
    double *list = malloc((size_t)(count + 1) * sizeof *list);
    for (int64_t i = 0; i < count; i++)
        list[i] = oracle_load(dtype, data, i);
    return list;
}

/* Rows of a sequence of the plain case, where it is row n of the batch. */
static double *plain_rows(const expectation *e, const void *data, int64_t n, int64_t tokens,
                          int64_t count, int64_t row) {
    const int32_t dtype = e->c->forward.desc.rope.dtype;
    return numbers(dtype, (const char *)data + n * tokens * row * oracle_dtype_size(dtype),
                   count * row);
}

static void expect_row(expectation *e, const oracle_part *s, int64_t i, int64_t head,
                       double *const number[5]) {
    const attention_case *f = &e->plain.forward;
    const oracle_attention o = attention_oracle(f);
    const int64_t heads = f->args.rope.q.heads, k_heads = f->args.rope.k.heads,
                  dim = f->desc.rope.head_dim, v_dim = oracle_attention_head_dim(&o, ORACLE_V),
                  k_head = head / (heads / k_heads), n = s->index;
    const oracle_heads view = {number[0] + (i * heads + head) * dim, number[1] + k_head * dim,
                               number[2] + k_head * v_dim, k_heads * dim, k_heads * v_dim};
    const oracle_results results = {
        .dout = number[3] + (i * heads + head) * v_dim,
        .out = number[4] + (i * heads + head) * v_dim,
        .lse = oracle_load(ROPE_F32, f->args.lse, oracle_attention_lse_at(&o, s, i, head)),
        .balances = device_is_host()};
    const oracle_gradients to = {.dq = e->sum[n][GRADIENT_Q] + (i * heads + head) * dim,
                                 .dk = e->sum[n][GRADIENT_K] + k_head * dim,
                                 .dv = e->sum[n][GRADIENT_V] + k_head * v_dim,
                                 .dsink = f->desc.sink_dtype ? e->dsinks + head : NULL};
    e->logits =
        fmax(e->logits, oracle_attention_backward_row(&o, s, i, head, &view, &results, &to));
}

static void expect_part(expectation *e, int64_t n) {
    const attention_case *f = &e->plain.forward;
    const oracle_attention o = attention_oracle(f);
    const oracle_part s = oracle_attention_part(&o, n);
    const int64_t heads = f->args.rope.q.heads, k_heads = f->args.rope.k.heads,
                  dim = f->desc.rope.head_dim, v_dim = oracle_attention_head_dim(&o, ORACLE_V),
                  m = f->args.rope.tokens, keys = f->args.k_tokens;
    const int64_t counts[GRADIENTS] = {s.q_count * heads * dim, s.k_count * k_heads * dim,
                                       s.k_count * k_heads * v_dim};
    for (int g = 0; g < GRADIENTS; g++)
        e->sum[n][g] = calloc((size_t)counts[g] + 1, sizeof(oracle_sum));
    double *number[5] = {plain_rows(e, f->args.rope.q.in, n, m, s.q_count, heads * dim),
                         plain_rows(e, f->args.rope.k.in, n, keys, s.k_count, k_heads * dim),
                         plain_rows(e, f->args.v.in, n, keys, s.k_count, k_heads * v_dim),
                         plain_rows(e, e->plain.args.dout, n, m, s.q_count, heads * v_dim),
                         plain_rows(e, f->args.out.data, n, m, s.q_count, heads * v_dim)};
    for (int64_t i = 0; i < s.q_count; i++)
        for (int64_t h = 0; h < heads; h++)
            expect_row(e, &s, i, h, number);
    for (int i = 0; i < 5; i++)
        free(number[i]);
}

static void expect(expectation *e, const backward_case *c) {
    memset(e, 0, sizeof *e);
    e->c = c;
    if (c->fails || c->forward.parts == 0 || c->forward.args.rope.tokens == 0)
        return;
    backward_plain(&e->plain, c, 0, c->forward.parts);
    e->dsinks = calloc((size_t)c->forward.args.rope.q.heads, sizeof(oracle_sum));
    for (int64_t n = 0; n < c->forward.parts; n++)
        expect_part(e, n);
}

static void forget(expectation *e) {
    for (int n = 0; n < ATTENTION_MAX_PARTS; n++)
        for (int g = 0; g < GRADIENTS; g++)
            free(e->sum[n][g]);
    free(e->dsinks);
    attention_free(&e->plain.forward);
}

/* --- values --- */

/* Sums of the squares of errors and of weights, of so many elements. */
typedef struct statistic {
    double error, weight, flushed, count;
} statistic;

static void check_sum(const char *what, int64_t at, int32_t dtype, const oracle_sum *sum,
                      int by_heads, double got, statistic *s) {
    const double bound = oracle_sum_bound(dtype, sum, by_heads);
    CHECK(oracle_accepts(dtype, got, sum->value, bound),
          "element %lld of %s is %.9g, not %.9g within %.3g; %lld terms of magnitude %.4g",
          (long long)at, what, got, sum->value, bound, (long long)sum->terms, sum->magnitude);
    if (isinf(bound) || !isfinite(got))
        return;
    s->error += (got - sum->value) * (got - sum->value);
    s->weight += sum->weight * sum->weight;
    s->flushed += sum->flushed * sum->flushed;
    s->count++;
}

/* The root mean square of a kind's errors, relative to that of the weights of its terms, but for
 * subnormal results. */
static void check_statistic(const expectation *e, const char *what, int by_heads,
                            const statistic *s) {
    const int32_t dtype = e->c->forward.desc.rope.dtype;
    const oracle_format *format = oracle_format_of(dtype);
    const double unit = dtype == ROPE_F32 ? 0 : format->unit,
                 relative = (1 + by_heads) * unit + 0x1p-24 * 8 * (1 + e->logits),
                 allowed =
                     relative * sqrt(s->weight) + sqrt(s->flushed) + format->tiny * sqrt(s->count);
    CHECK(sqrt(s->error) <= allowed,
          "the root mean square of errors of %s is %.3g of that of weights, beyond %.3g", what,
          sqrt(s->error / s->weight), relative);
}

static void check_values(const expectation *e, const unsigned char *result) {
    static const char *const names[GRADIENTS] = {"dq", "dk", "dv"};
    const backward_case *p = &e->plain;
    const int32_t dtype = e->c->forward.desc.rope.dtype;
    const rope_args *rope = &p->forward.args.rope;
    const int shared = device_is_provider() && rope->q.heads > rope->k.heads;
    for (int32_t g = 0; g < GRADIENTS; g++) {
        const int by_heads = shared && g != GRADIENT_Q;
        statistic sum = {0};
        for (int64_t n = 0; n < p->forward.parts; n++) {
            size_t bytes;
            unsigned char *rows = backward_rows(p, result, g, n, &bytes);
            for (int64_t i = 0; i < (int64_t)bytes / oracle_dtype_size(dtype); i++)
                check_sum(names[g], i, dtype, &e->sum[n][g][i], by_heads,
                          oracle_load(dtype, rows, i), &sum);
            free(rows);
        }
        check_statistic(e, names[g], by_heads, &sum);
    }
    statistic sum = {0};
    if (!p->args.dsinks)
        return;
    const unsigned char *sinks = result + ((unsigned char *)p->args.dsinks - p->forward.base.arena);
    for (int64_t h = 0; h < p->forward.args.rope.q.heads; h++)
        check_sum("dsinks", h, ROPE_F32, &e->dsinks[h], 0, oracle_load(ROPE_F32, sinks, h), &sum);
}

/* --- the rotation --- */

/* The descriptor of the transpose. */
static rope_plan *plan_back(const rope_attention_desc *desc, const char *kernel) {
    rope_attention_desc back = *desc;
    const int32_t in = desc->rope.pairing_in ? desc->rope.pairing_in : ROPE_PAIRING_HALF_SPLIT,
                  out = desc->rope.pairing_out ? desc->rope.pairing_out : in;
    back.rope.direction = desc->rope.direction == ROPE_TRANSPOSE ? ROPE_FORWARD : ROPE_TRANSPOSE;
    back.rope.pairing_in = out;
    back.rope.pairing_out = in;
    return attention_rotation_plan(&back, kernel);
}

static int is_seen(const oracle_attention *o, const oracle_part *s, int64_t key) {
    for (int64_t i = 0; i < s->q_count; i++)
        if (oracle_attention_in_range(o, s, i, key))
            return 1;
    return 0;
}

/* Tokens that some row sees are rotated, as runs of them. */
static void rotate_back(const expectation *e, const rope_plan *plan, const oracle_part *s,
                        int32_t gradient, unsigned char *rows) {
    const oracle_attention o = attention_oracle(&e->c->forward);
    const int64_t count = gradient == GRADIENT_Q ? s->q_count : s->k_count;
    for (int64_t i = 0, n; i < count; i += n) {
        for (n = 0; i + n < count && (gradient == GRADIENT_Q || is_seen(&o, s, i + n));)
            n++;
        if (n)
            CHECK_STATUS(ROPE_OK, attention_rotate_tokens(plan, &o, s, gradient, rows, i, n));
        n += n == 0;
    }
}

static void check_same(int32_t dtype, int32_t gradient, const unsigned char *got,
                       const unsigned char *expected, size_t bytes) {
    const int64_t size = oracle_dtype_size(dtype);
    for (int64_t i = 0; i < (int64_t)bytes / size; i++)
        CHECK(memcmp(got + i * size, expected + i * size, (size_t)size) == 0 ||
                  (oracle_is_nan(dtype, got, i) && oracle_is_nan(dtype, expected, i)),
              "element %lld of d%c is %.9g, not %.9g as without a rotation and by rope_apply",
              (long long)i, "qkv"[gradient], oracle_load(dtype, got, i),
              oracle_load(dtype, expected, i));
}

/* A provider may have other kernels for other layouts: where sums are more than noise, they differ
 * by little. */
static void check_near(const expectation *e, int32_t gradient, int64_t part,
                       const unsigned char *got, const unsigned char *expected, size_t bytes) {
    const int32_t dtype = e->c->forward.desc.rope.dtype;
    const double unit = oracle_format_of(dtype)->unit;
    double signal = 0, noise = 0, error = 0, size = 0;
    for (int64_t i = 0; i < (int64_t)bytes / oracle_dtype_size(dtype); i++) {
        const oracle_sum *sum = &e->sum[part][gradient][i];
        const double x = oracle_load(dtype, got, i), y = oracle_load(dtype, expected, i);
        signal += sum->value * sum->value;
        noise += unit * unit * sum->weight * sum->weight;
        if (!(fabs(y) < 0x1p15)) /* f16 may round it to infinity */
            continue;
        error += (x - y) * (x - y);
        size += y * y;
    }
    CHECK(signal < 4096 * noise || sqrt(error) <= sqrt(size) / 16,
          "errors of d%c are %.3g of it, beyond 1/16 of the same without a rotation and by "
          "rope_apply",
          "qkv"[gradient], sqrt(error / size));
}

/* A gradient is that of the plain call, whose rows these are as the rotation and norms make them.
 */
static void check_rows(const expectation *e, int32_t gradient, const unsigned char *result,
                       unsigned char *const rows[ATTENTION_MAX_PARTS], int normed) {
    for (int64_t n = 0; n < e->c->forward.parts; n++) {
        size_t bytes, all;
        if (!backward_gradient(&e->c->args, gradient)->data)
            return;
        unsigned char *got = backward_rows(e->c, result, gradient, n, &bytes);
        free(backward_rows(&e->plain, e->plain.forward.base.arena, gradient, n, &all));
        CHECK(bytes == all, "%zu bytes, not %zu", bytes, all);
        if (!device_is_provider())
            check_same(e->c->forward.desc.rope.dtype, gradient, got, rows[n], bytes);
        else if (!normed) /* whose gradients are small where its input is large */
            check_near(e, gradient, n, got, rows[n], bytes);
        free(got);
    }
}

/* Gradients of the plain call of a tensor, behind the rotation, then the norm. */
static void check_gradient(const expectation *e, const rope_plan *plan, int32_t gradient,
                           const unsigned char *result, const unsigned char *plain) {
    const attention_case *f = &e->c->forward;
    const oracle_attention o = attention_oracle(f);
    const int normed = gradient != GRADIENT_V && attention_norm(f, gradient)->type;
    unsigned char *rows[ATTENTION_MAX_PARTS];
    float *weights = NULL, *got = backward_weight(&e->c->args, gradient);
    for (int64_t n = 0; n < f->parts; n++) {
        const oracle_part s = oracle_attention_part(&o, n);
        size_t bytes;
        rows[n] = backward_rows(&e->plain, plain, gradient, n, &bytes);
        if (plan)
            rotate_back(e, plan, &s, gradient, rows[n]);
    }
    if (normed)
        weights = backward_normed(e->c, gradient, rows);
    check_rows(e, gradient, result, rows, normed);
    if (got && weights && !device_is_provider())
        check_same(ROPE_F32, gradient, result + ((unsigned char *)got - f->base.arena),
                   (unsigned char *)weights, (size_t)attention_weights(f, gradient) * 4);
    free(weights);
    for (int64_t n = 0; n < f->parts; n++)
        free(rows[n]);
}

static void check_rotation(const expectation *e, const char *rotation, const unsigned char *result,
                           const unsigned char *plain) {
    const attention_case *f = &e->c->forward;
    const int32_t turns = f->desc.rotation ? f->desc.rotation : ROPE_ATTENTION_ROTATE_QK;
    rope_plan *plan = turns == ROPE_ATTENTION_ROTATE_NONE ? NULL : plan_back(&f->desc, rotation);
    for (int32_t g = 0; g < GRADIENTS; g++)
        if (backward_gradient(&e->c->args, g)->data || backward_weight(&e->c->args, g))
            check_gradient(e,
                           g == GRADIENT_Q || (g == GRADIENT_K && turns == ROPE_ATTENTION_ROTATE_QK)
                               ? plan
                               : NULL,
                           g, result, plain);
    rope_plan_destroy(plan);
    if (e->c->args.dsinks)
        check_same(ROPE_F32, GRADIENT_V,
                   result + ((unsigned char *)e->c->args.dsinks - f->base.arena),
                   plain + ((unsigned char *)e->plain.args.dsinks - e->plain.forward.base.arena),
                   (size_t)f->args.rope.q.heads * 4);
}

/* --- kernels --- */

/* A call that fails writes nothing; a backend that does not wait for its work leaves sequences out
 * and raises the flag. */
static void check_failure(const backward_case *c, rope_status status, unsigned char *result) {
    const attention_case *f = &c->forward;
    if (device_is_host()) {
        CHECK_STATUS(ROPE_ERROR_POSITION_RANGE, status);
        CHECK(memcmp(f->base.arena, result, f->base.bytes) == 0, "a call that failed wrote");
        return;
    }
    CHECK_STATUS(ROPE_OK, status);
    device_check_flag(&f->base, &f->args.rope, result);
}

/* Values of the plain call, and the result, rotated back, beside them. */
static void check_plain(const expectation *e, const char *kernel, const char *rotation,
                        const unsigned char *result) {
    unsigned char *plain = malloc(e->plain.forward.base.bytes);
    const rope_status status = backward_run(&e->plain, kernel, plain);
    calls++;
    calls_declined += status == ROPE_ERROR_UNSUPPORTED;
    if (status != ROPE_ERROR_UNSUPPORTED || !device_is_provider()) {
        CHECK_STATUS(ROPE_OK, status);
        check_values(e, plain);
        check_rotation(e, rotation, result, plain);
    }
    free(plain);
}

static void check_kernel(const expectation *e, const char *kernel, const char *rotation) {
    const backward_case *c = e->c;
    unsigned char *result = malloc(c->forward.base.bytes);
    attention_describe(&c->forward, kernel);
    memcpy(result, c->forward.base.arena, c->forward.base.bytes);
    rope_status status = backward_run(c, kernel, result);
    const int declined = status == ROPE_ERROR_UNSUPPORTED && (kernel || device_is_provider());
    calls++;
    calls_declined += declined;
    if (declined)
        snprintf(reason, sizeof reason, "%s", rope_last_error());
    const int wants = c->args.dq.data || c->args.dk.data || c->args.dv.data || c->args.dsinks ||
                      c->args.dq_weight || c->args.dk_weight;
    if (!declined && c->fails && wants)
        check_failure(c, status, result);
    else if (!declined)
        CHECK_STATUS(ROPE_OK, status);
    const char *wrong = declined ? NULL : backward_untouched(c, result);
    CHECK(!wrong, "%s", wrong);
    CHECK(!declined || memcmp(result, c->forward.base.arena, c->forward.base.bytes) == 0,
          "a declined call wrote");
    if (!declined && e->dsinks)
        check_plain(e, kernel, rotation, result);
    free(result);
}

static void check_every_kernel(uint64_t seed, int64_t cases, const attention_wish *wish) {
    backward_required();
    device_not_provided("keys that are not seen and padding must be finite");
    for (int64_t i = -1; test_next(&i, cases);) {
        backward_case c;
        expectation e;
        const char *kernel;
        backward_make(&c, seed, i, wish, "scalar");
        attention_describe(&c.forward, NULL);
        expect(&e, &c);
        check_kernel(&e, NULL, "scalar");
        for (int k = 0; (kernel = device_kernel_of("attention_backward", k)); k++)
            check_kernel(&e, kernel, "scalar");
        forget(&e);
        backward_free(&c);
    }
}

TEST(attention_backward, every_kernel) {
    check_every_kernel(test_seed() + 3, CASES, NULL);
}

TEST(attention_backward, many_queries) {
    check_every_kernel(test_seed() + 5, CASES / 8, &(attention_wish){.large = 1});
}

static rope_status plan_status(const char *kernel, float soft_cap) {
    rope_attention_desc desc = ROPE_ATTENTION_DESC_INIT;
    rope_plan *plan = NULL;
    desc.rope.dtype = ROPE_BF16;
    desc.rope.head_dim = 128;
    desc.rope.kernel = kernel;
    desc.soft_cap = soft_cap;
    device_choose(&desc.rope);
    const rope_status status = rope_attention_backward_plan_create(&desc, &plan);
    rope_plan_destroy(plan);
    return status;
}

TEST(attention_backward, caps_by_every_kernel) {
    const char *kernel;
    backward_required();
    device_not_provided("it has no caps");
    for (int k = 0; (kernel = device_kernel_of("attention_backward", k)); k++) {
        const rope_status status = plan_status(kernel, 0);
        test_describe(kernel);
        CHECK_STATUS(status, plan_status(kernel, 30));
    }
}

/* What cuDNN has, of which it takes most. */
TEST(attention_backward, provided) {
    static const attention_wish wish = {.tame = 1, .in_range = 1, .provided = 1};
    device_open();
    if (!device_kernel_of("attention_backward", 0))
        SKIP("%s has no kernel for attention_backward", device_backend());
    calls = calls_declined = 0;
    for (int64_t i = -1; test_next(&i, CASES / 2);) {
        backward_case c;
        expectation e;
        backward_make(&c, test_seed() + 6, i, &wish, "scalar");
        attention_describe(&c.forward, NULL);
        expect(&e, &c);
        check_kernel(&e, NULL, "scalar");
        forget(&e);
        backward_free(&c);
    }
    CHECK(calls_declined <= calls / 5, "%lld of %lld calls were declined; %s",
          (long long)calls_declined, (long long)calls, reason);
}

/* The allowance reaches cuDNN: its deterministic backward has 2 bytes for each pair of a query and
 * a key, and head, another one has sums of dq alone. */
TEST(attention_backward, provided_in_any_order) {
    const rope_attention_bounds bounds = {sizeof bounds, 1, 2048, 2048, 0, 8, 2};
    size_t bytes[2];
    if (!device_is_provider())
        SKIP("%s has no kernel that sums in any order", device_backend());
    for (int allowed = 0; allowed < 2; allowed++) {
        rope_attention_desc desc = ROPE_ATTENTION_DESC_INIT;
        rope_plan *plan;
        desc.rope.dtype = ROPE_BF16;
        desc.rope.head_dim = 128;
        desc.nondeterministic = allowed;
        device_choose(&desc.rope);
        CHECK_STATUS(ROPE_OK, rope_attention_backward_plan_create(&desc, &plan));
        CHECK_STATUS(ROPE_OK, rope_attention_backward_workspace(plan, &bounds, &bytes[allowed]));
        rope_plan_destroy(plan);
    }
    CHECK(bytes[1] < bytes[0], "%zu bytes of workspace in any order, %zu in one", bytes[1],
          bytes[0]);
}

/* The reference rotates in double, as rope_apply's does. */
TEST(attention_backward, reference) {
    if (!device_is_host())
        SKIP("the backend has no reference");
    for (int64_t i = -1; test_next(&i, CASES / 2);) {
        backward_case c;
        expectation e;
        backward_make(&c, test_seed() + 4, i, NULL, "reference");
        attention_describe(&c.forward, "reference");
        expect(&e, &c);
        check_kernel(&e, "reference", "reference");
        forget(&e);
        backward_free(&c);
    }
}
