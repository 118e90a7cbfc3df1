/* Generated cases of rope_attention on every kernel: results within the bound of docs/numerics.md
 * of the oracle's, rotated tensors bit for bit, no other byte written, and what a call that fails
 * leaves. */
#include "tests/attention/compare.h"
#include "tests/oracle/format.h"
#include "tests/oracle/oracle.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CASES = 400 };

static int64_t calls, declined; /* by a provider */
static char reason[256];

/* A case with what is expected of it. */
typedef struct expectation {
    const attention_case *c;
    oracle_attention o;
    attention_dense dense;
    double *number[ATTENTION_MAX_PARTS][3]; /* of dense.data */
} expectation;

/* Sums of the squares of errors, of weights and of what is flushed, and of the square of each row's
 * sum of the second; the largest logits. */
typedef struct statistic {
    double error, weight, flushed, row_weight, logits;
} statistic;

static void expect(expectation *e, const attention_case *c, const char *rotation) {
    memset(e, 0, sizeof *e);
    e->c = c;
    e->o = attention_oracle(c);
    attention_dense_make(&e->dense, c, rotation);
    for (int64_t n = 0; n < c->parts; n++)
        for (int32_t i = 0; i < 3 && e->dense.data[n][i]; i++) {
            const oracle_part s = oracle_attention_part(&e->o, n);
            const int64_t tokens = i == ORACLE_Q ? s.q_count : s.k_count - s.k_begin;
            const int64_t count =
                tokens * oracle_attention_heads(&e->o, i) * oracle_attention_head_dim(&e->o, i);
            e->number[n][i] = malloc((size_t)(count + 1) * sizeof(double));
            for (int64_t x = 0; x < count; x++)
                e->number[n][i][x] = oracle_load(c->desc.rope.dtype, e->dense.data[n][i], x);
        }
}

static void forget(expectation *e) {
    for (int n = 0; n < ATTENTION_MAX_PARTS; n++)
        for (int i = 0; i < 3; i++)
            free(e->number[n][i]);
    attention_dense_free(&e->dense);
}

static void check_element(const expectation *e, const oracle_row *row, int64_t at, double got,
                          statistic *sum) {
    const double exact = row->value[at], allowed = oracle_attention_bound(&e->o, row, at),
                 flushed = oracle_attention_flushed(&e->o, row, at) +
                           oracle_format_of(e->c->desc.rope.dtype)->tiny;
    if (isnan(exact))
        return;
    CHECK(fabs(got - exact) <= allowed,
          "element %lld is %.9g, not %.9g within %.3g; %lld keys, logits up to %.4g, sum of p|v| "
          "%.4g",
          (long long)at, got, exact, allowed, (long long)row->keys, row->logits, row->weight[at]);
    sum->error += (got - exact) * (got - exact);
    sum->weight += row->weight[at] * row->weight[at];
    sum->flushed += flushed * flushed;
}

static void check_row(const expectation *e, const rope_attention_args *got, const oracle_part *s,
                      int64_t i, int64_t head, statistic *sum) {
    static oracle_row row;
    const oracle_attention *o = &e->o;
    const int64_t heads = e->c->args.rope.q.heads, k_heads = e->c->args.rope.k.heads,
                  dim = e->c->desc.rope.head_dim, v_dim = oracle_attention_head_dim(o, ORACLE_V),
                  k_head = head / (heads / k_heads);
    const oracle_heads view = {e->number[s->index][ORACLE_Q] + (i * heads + head) * dim,
                               e->number[s->index][ORACLE_K] + k_head * dim,
                               e->number[s->index][ORACLE_V] + k_head * v_dim, k_heads * dim,
                               k_heads * v_dim};
    oracle_attention_row(o, s, i, head, &view, &row);
    const double before = sum->weight;
    if (!row.known)
        return;
    sum->logits = fmax(sum->logits, row.logits);
    for (int64_t x = 0; x < v_dim; x++)
        check_element(e, &row, x,
                      oracle_load(e->c->desc.rope.dtype, got->out.data,
                                  oracle_attention_out_at(o, s, i, head, x)),
                      sum);
    sum->row_weight += (sum->weight - before) * (sum->weight - before);
    if (!got->lse)
        return;
    const double lse = oracle_load(ROPE_F32, got->lse, oracle_attention_lse_at(o, s, i, head));
    CHECK(lse == row.lse || fabs(lse - row.lse) <= oracle_attention_lse_bound(o, &row),
          "lse of query %lld, head %lld is %.9g, not %.9g within %.3g", (long long)i,
          (long long)head, lse, row.lse, oracle_attention_lse_bound(o, &row));
}

/* The root mean square of a case's errors, relative to that of its weights. Rows count by their
 * weights: one of large values is all that there is. */
static void check_statistic(const expectation *e, const statistic *sum) {
    if (sum->row_weight == 0)
        return;
    const double rows = sum->weight * sum->weight / sum->row_weight,
                 relative = oracle_attention_rms_bound(&e->o, sum->logits, rows);
    CHECK(sqrt(sum->error) <= relative * sqrt(sum->weight) + sqrt(sum->flushed),
          "the root mean square of errors is %.3g of that of weights, beyond %.3g of %.3g rows",
          sqrt(sum->error / sum->weight), relative, rows);
}

static void check_values(const expectation *e, const unsigned char *result) {
    rope_attention_args got = e->c->args;
    statistic sum = {0};
    attention_relocate(&got, e->c->base.arena, result);
    for (int64_t n = 0; n < e->c->parts; n++) {
        const oracle_part s = oracle_attention_part(&e->o, n);
        for (int64_t i = 0; i < s.q_count && !s.fails; i++)
            for (int64_t h = 0; h < e->c->args.rope.q.heads; h++)
                check_row(e, &got, &s, i, h, &sum);
    }
    check_statistic(e, &sum);
}

/* q.out or k.out of a token. */
static void check_rotated(const expectation *e, const unsigned char *result, const oracle_part *s,
                          int32_t tensor, int64_t i) {
    rope_attention_args args = e->c->args;
    oracle_attention o = {&e->c->desc, &args};
    attention_relocate(&args, e->c->base.arena, result);
    rope_tensor *t = tensor == ORACLE_Q ? &args.rope.q : &args.rope.k;
    const int64_t dim = e->c->desc.rope.head_dim;
    if (t->in != t->out)
        memcpy(t->in_stride, t->out_stride, sizeof t->in_stride);
    t->in = t->out;
    for (int64_t x = 0; x < t->heads * dim; x++) {
        const oracle_element y = oracle_attention_at(&o, s, tensor, i, x / dim, x % dim);
        const double got = oracle_load(y.dtype, y.array, y.at),
                     exact = e->number[s->index][tensor][i * t->heads * dim + x];
        CHECK(got == exact ? signbit(got) == signbit(exact) : isnan(got) && isnan(exact),
              "%c.out of token %lld is %.9g, not %.9g as rope_apply has it", "qk"[tensor],
              (long long)i, got, exact);
    }
}

/* A call without queries is empty, and writes no k.out. */
static void check_outs(const expectation *e, const unsigned char *result) {
    for (int64_t n = 0; n < e->c->parts && e->c->args.rope.tokens; n++) {
        const oracle_part s = oracle_attention_part(&e->o, n);
        for (int64_t i = 0; i < s.q_count && e->c->args.rope.q.out && !s.fails; i++)
            check_rotated(e, result, &s, ORACLE_Q, i);
        for (int64_t i = 0; i < s.k_count && e->c->args.rope.k.out && !s.fails; i++)
            check_rotated(e, result, &s, ORACLE_K, i);
    }
}

/* A call that fails writes nothing; a backend that does not wait for its work leaves sequences out
 * and raises the flag. */
static void check_failure(const expectation *e, rope_status status, unsigned char *result) {
    const attention_dense *d = &e->dense;
    const attention_case *c = e->c;
    if (device_is_host()) {
        CHECK(status == ROPE_ERROR_POSITION_RANGE || status == ROPE_ERROR_INVALID_VALUE,
              "%s for a length, a position, a page or a scale that fails",
              rope_status_string(status));
        CHECK(status != ROPE_ERROR_INVALID_VALUE || d->scales_fail, "%s", rope_last_error());
        CHECK(status != ROPE_ERROR_POSITION_RANGE || d->parts_fail || d->tokens_fail ||
                  d->places_fail,
              "%s", rope_last_error());
        CHECK(strstr(rope_last_error(), "allowed"), "%s", rope_last_error());
        CHECK(memcmp(c->base.arena, result, c->base.bytes) == 0,
              "a call that failed wrote something");
        return;
    }
    CHECK_STATUS(ROPE_OK, status);
    device_check_flag(&c->base, &c->args.rope, result);
}

/* Runs a kernel, unless it declines the descriptor, or a provider's the call. */
static void check_kernel(const expectation *e, const char *kernel, unsigned char *result) {
    const attention_dense *d = &e->dense;
    attention_describe(e->c, kernel);
    memcpy(result, e->c->base.arena, e->c->base.bytes);
    rope_status status = attention_run(e->c, kernel, result);
    calls++;
    if (status == ROPE_ERROR_UNSUPPORTED && (kernel || device_is_provider())) {
        CHECK(memcmp(result, e->c->base.arena, e->c->base.bytes) == 0, "a declined call wrote");
        declined++;
        snprintf(reason, sizeof reason, "%s", rope_last_error());
        return;
    }
    const int fails = d->parts_fail || d->tokens_fail || d->places_fail || d->scales_fail;
    if (fails)
        check_failure(e, status, result);
    else
        CHECK_STATUS(ROPE_OK, status);
    const char *wrong = attention_untouched(e->c, result);
    CHECK(!wrong, "%s", wrong);
    if (fails)
        return;
    check_outs(e, result);
    check_values(e, result);
}

typedef void check(const expectation *e, unsigned char *result);

/* For each case: what is expected of it, rotated by a kernel of the CPU, then a check. */
static void for_each_case(uint64_t seed, int64_t cases, const attention_wish *wish,
                          const char *rotation, check *checks) {
    for (int64_t i = -1; test_next(&i, cases);) {
        attention_case c;
        expectation e;
        attention_make(&c, seed, i, wish);
        attention_describe(&c, NULL);
        expect(&e, &c, rotation);
        unsigned char *result = malloc(c.base.bytes);
        checks(&e, result);
        free(result);
        forget(&e);
        attention_free(&c);
    }
}

static void check_every_kernel(const expectation *e, unsigned char *result) {
    const char *kernel;
    check_kernel(e, NULL, result);
    for (int k = 0; (kernel = device_kernel_of("attention", k)); k++)
        check_kernel(e, kernel, result);
}

TEST(attention, every_kernel) {
    attention_required();
    device_not_provided("keys that are not seen and padding must be finite");
    for_each_case(test_seed() + 3, CASES, NULL, "scalar", check_every_kernel);
}

/* The kernel of few queries takes them all. */
static void check_few(const expectation *e, unsigned char *result) {
    const char *kernel;
    check_kernel(e, NULL, result);
    for (int k = 0; (kernel = device_kernel_of("attention", k)); k++) {
        declined = 0;
        check_kernel(e, kernel, result);
        CHECK(!declined || strcmp(kernel, "few_sm90") != 0, "%s", reason);
    }
}

TEST(attention, few_queries) {
    static const attention_wish wish = {.few = 1};
    attention_required();
    device_not_provided("keys that are not seen and padding must be finite");
    for_each_case(test_seed() + 8, 4 * ATTENTION_FEW_ROWS, &wish, "scalar", check_few);
}

/* Skips the test where no kernel takes parts of a sequence's keys in blocks of their own. */
static void sm90_required(void) {
    const char *kernel = NULL;
    attention_required();
    for (int k = 0; (kernel = device_kernel_of("attention", k)) && strcmp(kernel, "sm90") != 0; k++)
        ;
    if (!kernel)
        SKIP("the backend has no kernel of Hopper");
}

static void check_sm90(const expectation *e, unsigned char *result) {
    check_kernel(e, "sm90", result);
}

TEST(attention, few_rows_of_many_keys) {
    static const attention_wish wish = {.long_keys = 1};
    sm90_required();
    for_each_case(test_seed() + 9, 2 * ATTENTION_LONG_ROWS, &wish, "scalar", check_sm90);
}

static void check_reference(const expectation *e, unsigned char *result) {
    check_kernel(e, "reference", result);
}

/* The reference rotates in double, as rope_apply's does. */
TEST(attention, reference) {
    if (!device_is_host())
        SKIP("the backend has no reference");
    attention_required();
    for_each_case(test_seed() + 4, CASES / 2, NULL, "reference", check_reference);
}

static void check_default(const expectation *e, unsigned char *result) {
    check_kernel(e, NULL, result);
}

/* What cuDNN has, of which it takes most. */
TEST(attention, provided) {
    static const attention_wish wish = {.tame = 1, .in_range = 1, .provided = 1};
    device_open();
    calls = declined = 0;
    for_each_case(test_seed() + 6, CASES, &wish, "scalar", check_default);
    CHECK(declined <= calls / 5, "%lld of %lld calls were declined; %s", (long long)declined,
          (long long)calls, reason);
}
