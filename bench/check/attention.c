#include "bench/check/check.h"
#include "bench/check/gradient_rows.h"
#include "bench/operation/operation.h"
#include "bench/output/message.h"
#include "bench/support/random.h"
#include "tests/oracle/oracle.h"

#include <math.h>
#include <string.h>

/* Heads of keys whose queries are compared: as many as have this many keys in all, but two; and
 * queries of each. */
#define SAMPLE_KEYS 65536
#define SAMPLE_ROWS 4

/* What calls first..last - 1 write over set 0; NULL after a message. */
static char *written(workload *w, int32_t first, int32_t last) {
    if (!succeeded(rope_device_copy_in(w->device, w->target, w->outputs, w->pitch), "copy in"))
        return NULL;
    for (int32_t i = first; i < last; i++)
        if (!workload_run(w, i))
            return NULL;
    return workload_fetch(w);
}

/* Elements of one tensor, whose places are said as of [batch, token, head, dim]. */
static void compare_bits(const workload *w, int32_t tensor, const char *got, const char *steps,
                         check_result *r) {
    const workload_array *a = &w->out[tensor];
    const int like = tensor < CHECK_OUT ? tensor : tensor < CHECK_DQ ? CHECK_Q : tensor - CHECK_DQ;
    const int64_t heads = shape_heads(w->o, like), tokens = w->o->tokens;
    const int64_t dims = tensor == CHECK_LSE   ? 1
                         : tensor == CHECK_OUT ? shape_dim(w->o, CHECK_V)
                                               : shape_dim(w->o, like);
    const bool by_heads = tensor == CHECK_LSE && w->on_host.attention.rope.sequences == 0;
    const int64_t size = oracle_dtype_size(a->dtype), count = (int64_t)a->bytes / size;
    for (int64_t i = 0; i < count; i++) {
        r->steps++;
        if (memcmp(got + i * size, steps + i * size, (size_t)size) == 0 || r->refused++ > 0)
            continue;
        r->at = (check_place){tensor, i / (dims * heads * tokens), i / (dims * heads) % tokens,
                              i / dims % heads, i % dims};
        if (by_heads) {
            r->at.token = i % tokens;
            r->at.head = i / tokens % heads;
        }
        r->got = oracle_load(a->dtype, got, i);
        r->value = oracle_load(a->dtype, steps, i);
        r->worst = INFINITY;
        r->max_error = fabs(r->got - r->value);
    }
}

/* Results that have an order of their sums, and what the backward reads rotated. */
static void compare_steps(const workload *w, bool in_order, const char *got, const char *steps,
                          const char *between, check_result *r) {
    for (int t = 0; t < (in_order ? CHECK_TENSORS : CHECK_DQ); t++)
        if (w->out[t].bytes)
            compare_bits(w, t, got + w->out[t].start,
                         t < CHECK_OUT ? between + w->between[t].start : steps + w->out[t].start,
                         r);
    r->elements = r->steps;
}

/* A sample of heads, of so many rows each; all where `whole`. */
static void compare_rows(const options *o, const rope_attention_backward_args *b, attention_rows *r,
                         bool whole) {
    uint64_t state = (uint64_t)o->seed;
    const int64_t parts = oracle_attention_parts(&r->o), heads = r->o.args->rope.k.heads;
    const int64_t keys = oracle_attention_key_tokens(&r->o), last = parts * heads - 1;
    const int64_t rows = whole ? INT64_MAX : SAMPLE_ROWS;
    int64_t count = whole ? parts * heads : SAMPLE_KEYS / (keys + 1) + 2;
    count = count < parts * heads ? count : parts * heads;
    for (int64_t n = 0; n < count; n++) {
        const bool all = count == parts * heads || n == 0;
        const int64_t chosen = all ? n : n == 1 ? last : random_below(&state, last);
        attention_compare(r, chosen / heads, chosen % heads, rows);
        if (o->backward)
            attention_gradient_compare(r, b, chosen / heads, chosen % heads, rows);
    }
}

/* What lies between steps, behind them. */
static char *fetch_between(workload *w) {
    char *host = staging_host(&w->memory, "results", 1, w->scratch_bytes + 1);
    return host && succeeded(rope_device_copy_out(w->device, host, w->scratch, w->scratch_bytes),
                             "copy from the device")
               ? host
               : NULL;
}

bool check_attention(workload *w, bool whole, check_result *result) {
    const options *o = w->o;
    const char *kernel = workload_kernel(&w->calls[w->parts - 1]); /* the backward's, if any */
    const bool by_cudnn = strncmp(kernel, "cudnn:", 6) == 0;
    char *got, *between = NULL;
    if (w->out[CHECK_OUT].bytes == 0 || o->k_heads == 0)
        return check_nothing();
    got = written(w, 0, w->parts);
    if (got && w->call_count > w->parts) {
        const char *steps = written(w, w->parts, w->call_count);
        between = steps ? fetch_between(w) : NULL;
        if (!between)
            return false;
        if (!o->decode)
            compare_steps(w, !(by_cudnn && o->nondeterministic), got, steps, between, result);
    }
    if (!got || result->refused)
        return got != NULL;
    const rope_attention_args host =
        attention_args_on(w, &w->on_host.attention, w->inputs, between, got);
    const rope_attention_backward_args backward =
        attention_backward_args_on(w, &host, w->inputs, between, got);
    attention_rows rows = {.o = {&w->alone, &host},
                           .out = host.out.data,
                           .result = result,
                           .by_heads = o->q_heads > o->k_heads && by_cudnn,
                           .balances = strncmp(kernel, "cpu:", 4) == 0};
    compare_rows(o, &backward, &rows, whole);
    result->rms = rows.weight > 0 ? sqrt(rows.error / rows.weight) : 0;
    if (rows.no_memory)
        message("no memory for the oracle");
    else if (result->elements == result->steps)
        return check_nothing();
    return !rows.no_memory;
}
