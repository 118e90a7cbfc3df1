#include "bench/check/check.h"

#include "bench/operation/operation.h"
#include "bench/output/message.h"
#include "bench/support/random.h"
#include "tests/oracle/append.h"
#include "tests/oracle/oracle.h"

#include <math.h>
#include <stdlib.h>

enum { SAMPLE = 16 };

/* A call in host memory, and what it wrote. */
typedef struct checker {
    workload *w;
    char *got; /* the outputs of set 0 */
    oracle *rotation;
    oracle_append *append;
    double *value, *bound; /* one token of one tensor */
    oracle_range *range;   /* the same of append: out, stored, scales */
    int64_t most;          /* elements of a token of a tensor */
    rope_args rope;
    rope_append_args args;
    check_result *result;
} checker;

bool check_nothing(void) {
    message("nothing was checked; allowed is batch, tokens and q-heads or k-heads >= 1");
    return false;
}

/* --- rotations --- */

static void check_rotation(checker *c, int tensor, int64_t batch, int64_t token) {
    const rope_tensor *t = tensor ? &c->rope.k : &c->rope.q;
    const int64_t dims = shape_dim(c->w->o, tensor), *stride = t->out_stride;
    const int32_t dtype = c->w->o->desc.dtype;
    const char *out = c->got + c->w->out[tensor].start;
    if (t->heads == 0)
        return;
    oracle_rotate(c->rotation, &c->rope, tensor, batch, token, c->value, c->bound);
    for (int64_t i = 0; i < t->heads * dims; i++) {
        const check_place place = {tensor, batch, token, i / dims, i % dims};
        const int64_t at =
            batch * stride[0] + token * stride[1] + place.head * stride[2] + place.dim * stride[3];
        check_element(c->result, dtype, &place, oracle_load(dtype, out, at), c->value[i],
                      c->bound[i]);
    }
}

/* --- appends --- */

/* An element that lies where the call's own does, but in what was written. */
static void check_range(checker *c, const check_place *place, int32_t dtype, const void *array,
                        int64_t at, const oracle_range *range) {
    const char *written = c->got + ((const char *)array - c->w->outputs);
    const double got = oracle_load(dtype, written, at);
    const double other = range->kind == ORACLE_WITHIN ? (range->low + range->high) / 2 : NAN;
    check_element(c->result, ROPE_F32, place, got, oracle_in_range(got, range) ? got : other, 0);
}

static void check_out(checker *c, const oracle_tensor *t, check_place place,
                      const oracle_range *range) {
    for (int64_t i = 0; i < t->heads * t->dim; i++) {
        place.head = i / t->dim;
        place.dim = i % t->dim;
        check_range(c, &place, t->out_dtype, t->t->out,
                    place.batch * t->out[0] + place.token * t->out[1] + place.head * t->out[2] +
                        place.dim * t->out[3],
                    &range[i]);
    }
}

static void check_cache(checker *c, const oracle_tensor *t, check_place place,
                        const oracle_place *slot, const oracle_range *range) {
    for (int64_t i = 0; i < t->heads * t->dim; i++) {
        place.head = i / t->dim;
        place.dim = i % t->dim;
        check_range(c, &place, t->store_dtype, t->cache->data,
                    oracle_cache_at(t, slot, place.head, place.dim), &range[i]);
    }
}

static void check_scales(checker *c, const oracle_tensor *t, check_place place, int64_t first,
                         int64_t second, const oracle_range *range) {
    for (place.head = 0; t->scale->data && place.head < t->heads; place.head++)
        check_range(c, &place, ROPE_F32, t->scale->data,
                    oracle_scale_at(t, first, second, place.head), &range[place.head]);
}

static void check_append(checker *c, int tensor, int64_t batch, int64_t token) {
    const rope_append_desc *desc = &c->w->append;
    const check_place place = {tensor, batch, token, 0, 0};
    const oracle_tensor t = oracle_append_tensor(desc, &c->args, tensor);
    oracle_range *value = c->range, *stored = value + c->most, *scale = stored + c->most;
    if (t.heads == 0 || oracle_append_fails(c->append, &c->args, batch, token))
        return;
    const oracle_place slot = oracle_append_place(desc, &c->args, batch, token);
    oracle_append_token(c->append, &c->args, tensor, batch, token, value, stored, scale);
    if (t.t->out)
        check_out(c, &t, place, tensor == CHECK_Q ? stored : value);
    if (t.t->out && tensor == CHECK_Q)
        check_scales(c, &t, place, batch, token, scale);
    if (t.cache && slot.status == ORACLE_PLACE_GIVEN) {
        check_cache(c, &t, place, &slot, stored);
        check_scales(c, &t, place, slot.page, slot.slot, scale);
    }
}

/* --- tokens --- */

static bool create(checker *c) {
    workload *w = c->w;
    for (int t = CHECK_Q; t <= CHECK_V; t++) {
        const int64_t elements = shape_heads(w->o, t) * shape_dim(w->o, t);
        c->most = elements > c->most ? elements : c->most;
    }
    const size_t count = (size_t)c->most + 1;
    if (w->o->append) {
        c->args = append_args_on(w, &w->on_host.append, w->inputs, w->outputs);
        c->append = oracle_append_create(&w->append);
    } else {
        c->rope = rope_args_on(w, &w->on_host.rope, w->source ? w->inputs : NULL, w->outputs);
        c->rotation = oracle_create(&w->desc);
    }
    c->value = calloc(count, sizeof *c->value);
    c->bound = calloc(count, sizeof *c->bound);
    c->range = calloc(3 * count, sizeof *c->range);
    if ((c->append || c->rotation) && c->value && c->bound && c->range)
        return true;
    message("no memory for the oracle");
    return false;
}

/* The i-th of a sample. */
static int64_t draw(const options *o, int64_t i, uint64_t *state) {
    return o->tokens <= SAMPLE ? i
           : i == 0            ? 0
           : i + 1 < SAMPLE    ? random_below(state, o->tokens - 1)
                               : o->tokens - 1;
}

static void check_tokens(checker *c, bool whole) {
    const options *o = c->w->o;
    const int64_t count = whole || o->tokens < SAMPLE ? o->tokens : SAMPLE;
    for (int64_t b = 0; c->most && b < o->batch; b++) {
        uint64_t state = (uint64_t)o->seed;
        for (int64_t i = 0; i < count; i++) {
            const int64_t token = whole ? i : draw(o, i, &state);
            for (int t = CHECK_Q; t <= CHECK_V; t++)
                if (o->append)
                    check_append(c, t, b, token);
                else if (t != CHECK_V)
                    check_rotation(c, t, b, token);
        }
    }
}

bool check_call(workload *w, bool whole, check_result *result) {
    *result = (check_result){0};
    if (w->o->attention)
        return check_attention(w, whole, result);
    checker c = {.w = w, .result = result};
    const bool ready =
        workload_upload(w) && workload_run(w, 0) && (c.got = workload_fetch(w)) && create(&c);
    if (ready)
        check_tokens(&c, whole);
    oracle_destroy(c.rotation);
    oracle_append_destroy(c.append);
    free(c.value);
    free(c.bound);
    free(c.range);
    return ready && (result->elements > 0 || check_nothing());
}
