#include "tests/append/compare.h"

#include "tests/oracle/append_layout.h"
#include "tests/oracle/oracle.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct append_calls {
    const rope_plan *plan;
    const rope_append_args *args;
    int32_t count;
} append_calls;

static rope_status run_calls(const void *state, const test_case *c, void *memory) {
    const append_calls *calls = state;
    for (int32_t i = 0; i < calls->count; i++) {
        rope_append_args moved = calls->args[i];
        append_relocate(&moved, c->arena, memory);
        rope_status status = rope_append(calls->plan, &moved);
        if (status != ROPE_OK)
            return status;
    }
    return ROPE_OK;
}

rope_status append_run(const append_case *c, const rope_append_desc *desc,
                       const rope_append_args *args, int32_t count, const char *kernel,
                       unsigned char *result) {
    rope_append_desc bound = *desc;
    device_open(); /* skips where there is none */
    device_choose(&bound.rope);
    bound.rope.kernel = kernel;
    rope_plan *plan = NULL;
    rope_status status = rope_append_plan_create(&bound, &plan);
    if (status != ROPE_OK)
        return status;
    append_calls calls = {plan, args, count};
    status = device_with_copy(&c->base, run_calls, &calls, result);
    rope_plan_destroy(plan);
    return status;
}

static void add(append_writes *w, const append_case *c, const void *array, int32_t dtype,
                int64_t element) {
    if ((w->count & (w->count - 1)) == 0 && w->count != 1)
        w->list = realloc(w->list, (size_t)(w->count ? 2 * w->count : 2) * sizeof *w->list);
    size_t at = (size_t)((const unsigned char *)array - c->base.arena);
    w->list[w->count++] = (append_write){at + (size_t)(element * oracle_dtype_size(dtype)), dtype};
}

/* Whether the scale of a head, where one is read, is one. */
static int scale_holds(append_writes *w, const oracle_tensor *t, int64_t first, int64_t second,
                       int64_t head) {
    if (t->part->scale == 0 || (t->part->scale == ROPE_SCALE_TOKEN_HEAD_MAX && t->t->in))
        return 1;
    double s = oracle_load(ROPE_F32, t->scale->data, oracle_scale_at(t, first, second, head));
    int holds = s > 0 && isfinite(s);
    w->scales_fail |= !holds;
    return holds;
}

static void add_out(append_writes *w, const append_case *c, const oracle_tensor *t, int32_t tensor,
                    int64_t batch, int64_t token) {
    for (int64_t h = 0; h < t->heads; h++) {
        if (tensor == 0 && !scale_holds(w, t, batch, token, h))
            continue;
        for (int64_t i = 0; i < t->dim; i++)
            add(w, c, t->t->out, t->out_dtype,
                batch * t->out[0] + token * t->out[1] + h * t->out[2] + i * t->out[3]);
        if (tensor == 0 && t->part->scale == ROPE_SCALE_TOKEN_HEAD_MAX)
            add(w, c, t->scale->data, ROPE_F32, oracle_scale_at(t, batch, token, h));
    }
}

static void add_cached(append_writes *w, const append_case *c, const oracle_tensor *t,
                       const oracle_place *place) {
    for (int64_t h = 0; h < t->heads; h++) {
        if (!scale_holds(w, t, place->page, place->slot, h))
            continue;
        for (int64_t i = 0; i < t->dim; i++)
            add(w, c, t->cache->data, t->store_dtype, oracle_cache_at(t, place, h, i));
        if (t->part->scale == ROPE_SCALE_TOKEN_HEAD_MAX)
            add(w, c, t->scale->data, ROPE_F32, oracle_scale_at(t, place->page, place->slot, h));
    }
}

append_writes append_writes_of(const append_case *c, const rope_append_desc *desc,
                               const rope_append_args *args, const unsigned char *fails) {
    append_writes w = {0};
    for (int32_t tensor = 0; tensor < ORACLE_TENSORS; tensor++) {
        oracle_tensor t = oracle_append_tensor(desc, args, tensor);
        for (int64_t i = 0; t.heads && i < args->rope.batch * args->rope.tokens; i++) {
            int64_t batch = i / args->rope.tokens, token = i % args->rope.tokens;
            oracle_place place = oracle_append_place(desc, args, batch, token);
            if (fails && fails[i]) {
                w.tokens_fail = 1;
                continue;
            }
            if (t.t->out)
                add_out(&w, c, &t, tensor, batch, token);
            if (t.cache && place.status == ORACLE_PLACE_GIVEN)
                add_cached(&w, c, &t, &place);
            w.places_fail |= t.cache && place.status == ORACLE_PLACE_FAILS;
        }
    }
    return w;
}

void append_writes_free(append_writes *w) {
    free(w->list);
    w->list = NULL;
}

void append_canonical(const append_writes *w, unsigned char *arena) {
    for (int64_t i = 0; i < w->count; i++) {
        const append_write *e = &w->list[i];
        if (oracle_dtype_size(e->dtype) > 1 && oracle_is_nan(e->dtype, arena + e->at, 0))
            memset(arena + e->at, 0xff, (size_t)oracle_dtype_size(e->dtype));
    }
}

const char *append_untouched(const append_case *c, const append_writes *w,
                             const unsigned char *result) {
    static char message[160];
    size_t bytes = c->base.bytes, at = 0;
    unsigned char *expected = malloc(bytes);
    memcpy(expected, c->base.arena, bytes);
    for (int64_t i = 0; i < w->count; i++)
        memcpy(expected + w->list[i].at, result + w->list[i].at,
               (size_t)oracle_dtype_size(w->list[i].dtype));
    while (at < bytes && expected[at] == result[at])
        at++;
    free(expected);
    if (at == bytes)
        return NULL;
    int piece = 0;
    while (piece < c->base.pieces - 1 && at >= c->base.piece[piece + 1].offset)
        piece++;
    snprintf(message, sizeof message,
             "byte %zu of piece %d changed and is not of an output or a cached token",
             at - c->base.piece[piece].offset, piece);
    return message;
}
