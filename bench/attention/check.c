#include "bench/attention/check.h"

#include "bench/attention/calls.h"
#include "bench/attention/gradient_rows.h"
#include "bench/attention/rows.h"
#include "bench/output/message.h"
#include "bench/support/random.h"
#include "bench/workload/workload_set.h"
#include "tests/oracle/oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Heads of keys whose queries are compared: as many as have this many keys in all, but two; and
 * queries of each. */
#define SAMPLE_KEYS 65536
#define SAMPLE_ROWS 4

static char *fetch(workload *w, const void *device, size_t bytes) {
    char *host = staging_host(&w->memory, "results", 1, bytes + 1);
    return host && succeeded(rope_device_copy_out(w->device, host, device, bytes),
                             "copy from the device")
               ? host
               : NULL;
}

/* What calls first..last - 1 write over set 0; NULL after a message. */
static char *written(workload *w, int32_t first, int32_t last) {
    char *unwritten = staging_host(&w->memory, "results", 1, w->pitch);
    if (!unwritten)
        return NULL;
    memset(unwritten, WORKLOAD_UNWRITTEN, w->pitch);
    if (!succeeded(rope_device_copy_in(w->device, w->target, unwritten, w->pitch), "copy in"))
        return NULL;
    for (int32_t i = first; i < last; i++)
        if (!workload_run(w, i))
            return NULL;
    return fetch(w, w->target, w->pitch);
}

/* Heads and elements of one, by the number of a tensor. */
static void shape_of(const attention_state *s, int32_t tensor, int64_t *heads, int64_t *dims) {
    const int result = tensor - CHECK_OUT;
    const int like = result < 0 ? tensor : result < RESULT_DQ ? ATTENTION_Q : result - RESULT_DQ;
    *heads = attention_heads_of(s->o, like);
    *dims = result == RESULT_LSE   ? 1
            : result == RESULT_OUT ? attention_v_head_dim(s->o)
                                   : attention_dim_of(s->o, like);
}

/* A place is said as of [batch, token, head, dim], whatever the layout. */
static void compare_bits(const attention_state *s, int32_t tensor, const workload_array *a,
                         const char *got, const char *steps, check_result *r) {
    const int64_t size = oracle_dtype_size(a->dtype), count = (int64_t)a->bytes / size;
    const int64_t tokens = s->o->tokens;
    const bool by_heads = tensor == CHECK_OUT + RESULT_LSE && attention_lse_by_heads(s);
    int64_t heads, dims;
    shape_of(s, tensor, &heads, &dims);
    r->steps += count;
    for (int64_t i = 0; i < count; i++)
        if (memcmp(got + i * size, steps + i * size, (size_t)size) != 0 && r->refused++ == 0) {
            r->at.tensor = tensor;
            r->got = oracle_load(a->dtype, got, i);
            r->value = oracle_load(a->dtype, steps, i);
            r->at.batch = i / (dims * heads * tokens);
            r->at.token = by_heads ? i % tokens : i / (dims * heads) % tokens;
            r->at.head = by_heads ? i / tokens % heads : i / dims % heads;
            r->at.dim = i % dims;
            r->worst = INFINITY;
            r->max_error = fabs(r->got - r->value);
        }
    r->elements = r->steps;
}

/* Results that have an order of their sums, and what the backward reads rotated. */
static void compare_steps(const attention_state *s, bool in_order, const char *got,
                          const char *steps, const char *between, check_result *r) {
    for (int32_t i = 0; i < (in_order ? ATTENTION_RESULTS : RESULT_DQ); i++)
        if (s->result[i].bytes)
            compare_bits(s, CHECK_OUT + i, &s->result[i], got + s->result[i].start,
                         steps + s->result[i].start, r);
    for (int32_t t = 0; t < ATTENTION_TENSORS; t++)
        if (s->saved[t].bytes)
            compare_bits(s, t, &s->saved[t], got + s->saved[t].start, between + s->rotated[t].start,
                         r);
}

/* A sample of heads, of so many rows each; all where `whole`. */
static void compare_rows(const attention_state *s, const rope_attention_backward_args *b,
                         attention_rows *r, bool whole) {
    uint64_t state = (uint64_t)s->o->seed;
    const int64_t parts = oracle_attention_parts(&r->o), heads = r->o.args->rope.k.heads;
    const int64_t keys = oracle_attention_key_tokens(&r->o);
    const int64_t rows = whole ? INT64_MAX : SAMPLE_ROWS;
    int64_t count = whole ? parts * heads : SAMPLE_KEYS / (keys + 1) + 2;
    count = count < parts * heads ? count : parts * heads;
    for (int64_t n = 0; n < count; n++) {
        const bool all = count == parts * heads || n == 0;
        const int64_t last = parts * heads - 1;
        const int64_t chosen = all ? n : n == 1 ? last : random_below(&state, last);
        attention_compare(r, chosen / heads, chosen % heads, rows);
        if (s->o->backward)
            attention_gradient_compare(r, b, chosen / heads, chosen % heads, rows);
    }
}

static bool nothing(void) {
    message("nothing was checked; allowed is batch, tokens, q-heads and k-heads >= 1");
    return false;
}

bool attention_check(workload *w, bool whole, check_result *result) {
    attention_state *s = w->attention;
    const workload_call *last = &w->calls[w->parts - 1]; /* the backward, where there is one */
    const bool by_cudnn = strncmp(workload_kernel(last), "cudnn:", 6) == 0;
    char *got, *steps = NULL, *between = NULL;
    *result = (check_result){0};
    if (s->result[RESULT_OUT].bytes == 0 || s->o->k_heads == 0)
        return nothing();
    got = written(w, 0, w->parts);
    if (got && w->call_count > w->parts) {
        steps = written(w, w->parts, w->call_count);
        between = steps ? fetch(w, s->scratch, s->rotated_bytes) : NULL;
        if (!between)
            return false;
        compare_steps(s, !(by_cudnn && s->o->nondeterministic), got, steps, between, result);
    }
    if (!got || result->refused)
        return got != NULL;
    const rope_attention_args host = attention_args_on(s, &s->host, s->data, between, got);
    const rope_attention_backward_args backward =
        attention_backward_args_on(s, &host, s->data, between, got);
    attention_rows rows = {.o = {&s->alone, &host},
                           .out = host.out.data,
                           .result = result,
                           .by_heads = s->o->q_heads > s->o->k_heads && by_cudnn,
                           .balances = strncmp(workload_kernel(last), "cpu:", 4) == 0};
    compare_rows(s, &backward, &rows, whole);
    result->rms = rows.weight > 0 ? sqrt(rows.error / rows.weight) : 0;
    if (rows.no_memory)
        message("no memory for the oracle");
    else if (result->elements == result->steps)
        return nothing();
    return !rows.no_memory;
}
