/* Generated cases of rope_append on every kernel: values against the oracle, bits of every other
 * kernel against the chosen one's, no other byte written, and what a call that fails leaves. */
#include "tests/append/compare.h"
#include "tests/oracle/append.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CASES = 500 };

/* The ranges of one token of a tensor. */
typedef struct token_ranges {
    oracle_range *value, *stored, *scale;
} token_ranges;

static char message[400];

static int refuse(const oracle_range *range, double got, const char *what, int32_t tensor,
                  int64_t token, int64_t i) {
    if (oracle_in_range(got, range))
        return 0;
    snprintf(message, sizeof message,
             "%s of %c, token %lld, element %lld is %.9g, not kind %d in %.9g..%.9g", what,
             "qkv"[tensor], (long long)token, (long long)i, got, range -> kind, range -> low,
             range -> high);
    return 1;
}

/* The token's out. `batch` and `token` name it. */
static int out_refused(const oracle_tensor *t, int32_t tensor, const token_ranges *r, int64_t batch,
                       int64_t token) {
    const oracle_range *range = tensor == 0 ? r->stored : r->value;
    int refused = 0;
    for (int64_t i = 0; i < t->heads * t->dim && !refused; i++) {
        int64_t at =
            batch * t->out[0] + token * t->out[1] + i / t->dim * t->out[2] + i % t->dim * t->out[3];
        refused =
            refuse(&range[i], oracle_load(t->out_dtype, t->t->out, at), "out", tensor, token, i);
    }
    for (int64_t h = 0; tensor == 0 && t->scale->data && h < t->heads && !refused; h++)
        refused = refuse(&r->scale[h],
                         oracle_load(ROPE_F32, t->scale->data, oracle_scale_at(t, batch, token, h)),
                         "scale", tensor, token, h);
    return refused;
}

static int cache_refused(const oracle_tensor *t, int32_t tensor, const token_ranges *r,
                         const oracle_place *place, int64_t token) {
    int refused = 0;
    for (int64_t i = 0; i < t->heads * t->dim && !refused; i++) {
        int64_t at = oracle_cache_at(t, place, i / t->dim, i % t->dim);
        refused = refuse(&r->stored[i], oracle_load(t->store_dtype, t->cache->data, at), "cache",
                         tensor, token, i);
    }
    for (int64_t h = 0; t->scale->data && h < t->heads && !refused; h++) {
        int64_t at = oracle_scale_at(t, place->page, place->slot, h);
        refused = refuse(&r->scale[h], oracle_load(ROPE_F32, t->scale->data, at), "scale", tensor,
                         token, h);
    }
    return refused;
}

/* The first element of a tensor that the oracle refuses, as text, or NULL. `got` is the call in the
 * result. */
static const char *tensor_refused(const append_case *c, oracle_append *o,
                                  const rope_append_args *got, int32_t tensor) {
    oracle_tensor t = oracle_append_tensor(&c->desc, got, tensor);
    size_t n = (size_t)(t.heads * t.dim), heads = (size_t)t.heads;
    oracle_range *range = calloc(2 * n + heads + 1, sizeof *range);
    token_ranges r = {range, range + n, range + 2 * n};
    int refused = 0;
    for (int64_t i = 0; n && i < got->rope.batch * got->rope.tokens && !refused; i++) {
        int64_t batch = i / got->rope.tokens, token = i % got->rope.tokens;
        oracle_place place = oracle_append_place(&c->desc, got, batch, token);
        if (oracle_append_fails(o, &c->args, batch, token))
            continue;
        oracle_append_token(o, &c->args, tensor, batch, token, r.value, r.stored, r.scale);
        if (t.t->out)
            refused = out_refused(&t, tensor, &r, batch, token);
        if (!refused && t.cache && place.status == ORACLE_PLACE_GIVEN)
            refused = cache_refused(&t, tensor, &r, &place, token);
    }
    free(range);
    return refused ? message : NULL;
}

static void check_oracle(const append_case *c, oracle_append *o, unsigned char *result) {
    rope_append_args got = c->args;
    append_relocate(&got, c->base.arena, result);
    for (int32_t tensor = 0; tensor < ORACLE_TENSORS; tensor++) {
        const char *wrong = tensor_refused(c, o, &got, tensor);
        CHECK(!wrong, "%s", wrong);
    }
}

/* A call that fails writes nothing; a backend that does not wait for its work leaves out what
 * fails and raises the flag. */
static void check_failure(const append_case *c, const append_writes *w, rope_status status,
                          unsigned char *result) {
    if (device_is_host()) {
        CHECK(status == ROPE_ERROR_POSITION_RANGE || status == ROPE_ERROR_INVALID_VALUE,
              "%s for a token, a place or a scale that fails", rope_status_string(status));
        CHECK(status != ROPE_ERROR_INVALID_VALUE || w->scales_fail, "%s", rope_last_error());
        CHECK(status != ROPE_ERROR_POSITION_RANGE || w->tokens_fail || w->places_fail, "%s",
              rope_last_error());
        CHECK(memcmp(c->base.arena, result, c->base.bytes) == 0,
              "a call that failed wrote something");
        return;
    }
    CHECK_STATUS(ROPE_OK, status);
    device_check_flag(&c->base, &c->args.rope, result);
}

/* Runs a kernel; 0 where it declines. */
static int check_kernel(const append_case *c, const append_writes *w, const char *kernel,
                        unsigned char *result) {
    append_describe(c, kernel);
    rope_status status = append_run(c, &c->desc, &c->args, 1, kernel, result);
    if (status == ROPE_ERROR_UNSUPPORTED && kernel && strcmp(kernel, "scalar") != 0)
        return 0;
    if (w->tokens_fail || w->places_fail || w->scales_fail)
        check_failure(c, w, status, result);
    else
        CHECK_STATUS(ROPE_OK, status);
    if (status == ROPE_OK) {
        const char *wrong = append_untouched(c, w, result);
        CHECK(!wrong, "%s", wrong);
        append_canonical(w, result);
    }
    return status == ROPE_OK;
}

/* Bits of the device's other kernels, and of the contract in plain C where nothing rotates. */
static void check_bits(const append_case *c, const append_writes *w, const unsigned char *expected,
                       unsigned char *result) {
    const char *kernel;
    size_t bytes = c->base.bytes;
    for (int k = 0; (kernel = device_kernel_of("append", k)); k++)
        CHECK(!check_kernel(c, w, kernel, result) || memcmp(expected, result, bytes) == 0,
              "other bits than the chosen kernel's");
    if (c->desc.rotation != ROPE_ROTATION_OFF || w->places_fail || w->scales_fail)
        return;
    rope_append_args args = c->args;
    memcpy(result, c->base.arena, bytes);
    append_relocate(&args, c->base.arena, result);
    append_plain(&c->desc, &args);
    append_canonical(w, result);
    for (int64_t i = 0; i < w->count; i++) {
        const append_write *e = &w->list[i];
        CHECK(memcmp(expected + e->at, result + e->at, (size_t)oracle_dtype_size(e->dtype)) == 0,
              "element %lld of type %d is %.9g, not %.9g as in plain C", (long long)i, e->dtype,
              oracle_load(e->dtype, expected + e->at, 0), oracle_load(e->dtype, result + e->at, 0));
    }
}

static void check_every_kernel(const append_case *c, const append_writes *w, oracle_append *o) {
    unsigned char *expected = malloc(c->base.bytes), *result = malloc(c->base.bytes);
    int ran = check_kernel(c, w, NULL, expected);
    if (ran && !w->scales_fail)
        check_oracle(c, o, expected);
    if (ran)
        check_bits(c, w, expected, result);
    free(expected);
    free(result);
}

static unsigned char *failing_tokens(const append_case *c, const oracle_append *o) {
    const rope_args *a = &c->args.rope;
    unsigned char *fails = calloc((size_t)(a->batch * a->tokens) + 1, 1);
    for (int64_t i = 0; i < a->batch * a->tokens; i++)
        fails[i] = (unsigned char)oracle_append_fails(o, &c->args, i / a->tokens, i % a->tokens);
    return fails;
}

typedef void check(const append_case *c, const append_writes *w, oracle_append *o);

static void for_each_case(uint64_t seed, int64_t cases, check *checks) {
    for (int64_t i = -1; test_next(&i, cases);) {
        append_case c;
        append_make(&c, seed, i, NULL);
        append_describe(&c, NULL);
        oracle_append *o = oracle_append_create(&c.desc);
        CHECK(o != NULL, "no memory for an oracle");
        unsigned char *fails = failing_tokens(&c, o);
        append_writes w = append_writes_of(&c, &c.desc, &c.args, fails);
        checks(&c, &w, o);
        append_writes_free(&w);
        free(fails);
        oracle_append_destroy(o);
        append_free(&c);
    }
}

TEST(append, every_kernel) {
    for_each_case(test_seed(), CASES, check_every_kernel);
}
