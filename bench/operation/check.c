#include "bench/operation/check.h"

#include "bench/append/check.h"
#include "bench/attention/check.h"
#include "bench/attention/shape.h"
#include "bench/output/message.h"
#include "bench/rope/workload.h"
#include "bench/support/random.h"
#include "bench/workload/target.h"
#include "tests/oracle/oracle.h"

#include <stdlib.h>

/* What the comparison of one workload shares. */
typedef struct checker {
    const workload *w;
    oracle *truth;
    double *value, *bound; /* one token of one tensor */
    check_result *result;
} checker;

static void check_token(checker *c, int32_t tensor, int64_t batch, int64_t token) {
    const rope_args *args = &c->w->host;
    const rope_desc *desc = &c->w->desc;
    const rope_tensor *t = tensor ? &args->k : &args->q;
    int64_t dims = tensor && desc->k_head_dim ? desc->k_head_dim : desc->head_dim;
    const int64_t *stride = t->out_stride;
    if (t->heads == 0)
        return;
    oracle_rotate(c->truth, args, tensor, batch, token, c->value, c->bound);
    for (int64_t h = 0; h < t->heads; h++)
        for (int64_t d = 0; d < dims; d++) {
            int64_t at = batch * stride[0] + token * stride[1] + h * stride[2] + d * stride[3];
            check_element(c->result, desc->dtype, &(check_place){tensor, batch, token, h, d},
                          oracle_load(desc->dtype, t->out, at), c->value[h * dims + d],
                          c->bound[h * dims + d]);
        }
}

static bool create(checker *c) {
    const rope_args *args = &c->w->host;
    const rope_desc *desc = &c->w->desc;
    int64_t heads = args->q.heads > args->k.heads ? args->q.heads : args->k.heads;
    int64_t dims = desc->head_dim > desc->k_head_dim ? desc->head_dim : desc->k_head_dim;
    c->truth = oracle_create(desc);
    c->value = calloc((size_t)(heads * dims) + 1, sizeof *c->value);
    c->bound = calloc((size_t)(heads * dims) + 1, sizeof *c->bound);
    if (c->truth && c->value && c->bound)
        return true;
    message("no memory for the oracle");
    return false;
}

/* Compares what rope_workload_fetch brought, for the listed tokens of every batch row, or all where
 * tokens is NULL. False after a message, also where there is nothing to compare. */
static bool check_workload(const workload *w, const int64_t *tokens, int64_t count,
                           check_result *result) {
    checker c = {.w = w, .result = result};
    *result = (check_result){0};
    bool ready = create(&c);
    int64_t steps = w->tensor_bytes == 0 ? 0 : tokens ? count : w->host.tokens;
    for (int64_t b = 0; ready && b < w->host.batch; b++)
        for (int64_t i = 0; i < steps; i++) {
            int64_t token = tokens ? tokens[i] : i;
            check_token(&c, 0, b, token);
            check_token(&c, 1, b, token);
        }
    oracle_destroy(c.truth);
    free(c.value);
    free(c.bound);
    if (ready && result->elements == 0)
        message("nothing was checked; allowed is batch, tokens and q-heads or k-heads >= 1");
    return ready && result->elements > 0;
}

static int64_t draw_sample(const options *o, int64_t *tokens) {
    uint64_t state = (uint64_t)o->seed;
    int64_t count = o->tokens < CHECK_SAMPLE ? o->tokens : CHECK_SAMPLE;
    for (int64_t i = 0; i < count; i++)
        tokens[i] = count < CHECK_SAMPLE ? i
                    : i == 0             ? 0
                    : i + 1 < count      ? random_below(&state, o->tokens - 1)
                                         : o->tokens - 1;
    return count;
}

static bool check_rope(workload *w, const options *o, bool whole, check_result *result) {
    int64_t tokens[CHECK_SAMPLE];
    int64_t count = draw_sample(o, tokens);
    return workload_run(w, 0) && rope_workload_fetch(w) &&
           check_workload(w, whole ? NULL : tokens, count, result);
}

/* The rotation of the shape by rope_apply, or that of gradients back; of a sample's tokens where
 * not `whole`. */
static bool check_rotation(const workload *w, const options *o, bool back, bool whole,
                           check_result *result) {
    workload rope;
    options alone = *o;
    alone.append = alone.attention = alone.backward = false;
    alone.appends.k_source = 0;
    alone.desc.kernel = NULL; /* a name among those of the whole */
    if (o->appends.k_source == ROPE_SOURCE_CACHE)
        alone.q_heads = 0;
    if (o->attention && attention_rotation(o) == ROPE_ATTENTION_ROTATE_Q)
        alone.k_heads = 0;
    if (!whole && alone.tokens > CHECK_SAMPLE && !alone.cu_seqlens.count)
        alone.tokens = CHECK_SAMPLE;
    if (back)
        alone.desc = target_transposed(&alone.desc);
    bool checked =
        workload_create(&rope, &alone, w->device, 1) && check_rope(&rope, &alone, whole, result);
    workload_destroy(&rope);
    return checked;
}

static bool check_attention(workload *w, const options *o, bool whole, check_result *result) {
    if (!attention_check(w, whole, result))
        return false;
    if (attention_rotation(o) == ROPE_ATTENTION_ROTATE_NONE)
        return true;
    for (int back = 0; back <= o->backward && !result->refused; back++) {
        check_result rotation = {0};
        if (!check_rotation(w, o, back, whole, &rotation))
            return false;
        if (rotation.refused)
            *result = rotation;
    }
    return true;
}

bool check_call(workload *w, const options *o, bool whole, check_result *result) {
    if (!o->append)
        return (o->attention ? check_attention : check_rope)(w, o, whole, result);
    check_result rotation = {0};
    if (!append_check(w, result))
        return false;
    result->steps = result->elements;
    if (result->refused || o->appends.rotation == ROPE_ROTATION_OFF || o->q_heads + o->k_heads == 0)
        return true;
    if (!check_rotation(w, o, false, whole, &rotation))
        return false;
    rotation.elements += result->steps;
    rotation.steps = result->steps;
    *result = rotation;
    return true;
}
