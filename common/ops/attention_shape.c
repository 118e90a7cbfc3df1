#include "common/ops/attention_shape.h"

#include <ropekit/attention.h>
#include <ropekit/backend.h>

#include <string.h>

enum {
    BITS,
    HEAD_DIM,
    V_HEAD_DIM,
    MASK,
    CACHE,
    BATCH,
    TOKENS,
    K_TOKENS,
    Q_HEADS,
    K_HEADS,
    WINDOW,
    PACKED,           /* sequences whose lengths differ: tokens are their mean */
    NONDETERMINISTIC, /* of the backward alone */
    COUNT
};

static const char *const masks[] = {"causal", "full", "tree", NULL};
static const char *const caches[] = {"none", "slots", "table", "sequence", NULL};

static int is_width(int64_t number) {
    return number == 16 || number == 32;
}
static int is_size(int64_t number) {
    return number > 0;
}
static int is_switch(int64_t number) {
    return number == 0 || number == 1;
}
#define WIDTH is_width, "16 or 32"
#define SIZE is_size, "an integer > 0"
#define SWITCH is_switch, "0 or 1"

/* f16 and bf16 take the same instructions and the same time. */
static const rope_shape_field fields[] = {
    [BITS] = {"bits", NULL, 1, 0, 0, WIDTH},
    [HEAD_DIM] = {"head_dim", NULL, ROPE_EXACT_OR_LARGER, 0, 0, SIZE},
    [V_HEAD_DIM] = {"v_head_dim", NULL, ROPE_EXACT_OR_LARGER, 1 + HEAD_DIM, 0, SIZE},
    [MASK] = {"mask", masks, 1, 0, 0, NULL, NULL},
    [CACHE] = {"cache", caches, 1, 0, 0, NULL, NULL},
    [BATCH] = {"batch", NULL, 0, 0, 0, SIZE},
    [TOKENS] = {"tokens", NULL, 0, 0, 0, SIZE},
    [K_TOKENS] = {"k_tokens", NULL, 0, 1 + TOKENS, 0, SIZE},
    [Q_HEADS] = {"q_heads", NULL, 0, 0, 0, SIZE},
    [K_HEADS] = {"k_heads", NULL, 0, 0, 0, SIZE},
    [WINDOW] = {"window", NULL, 0, 1 + K_TOKENS, 0, SIZE},
    [PACKED] = {"packed", NULL, 0, ROPE_LIKE_ZERO, 1, SWITCH},
    [NONDETERMINISTIC] = {"nondeterministic", NULL, 1, ROPE_LIKE_ZERO, 0, SWITCH},
};

_Static_assert((int)COUNT <= (int)ROPE_SHAPE_MOST, "room for each");

/* Lengths that lie on a device are not known here: a row's room counts. */
static void fill(const void *problem, const void *given, int64_t *values) {
    const rope_attention_problem *p = problem;
    const rope_attention_call *call = given;
    memset(values, 0, COUNT * sizeof *values);
    values[BITS] = p->rope.dtype == ROPE_F32 ? 32 : 16;
    values[HEAD_DIM] = p->head_dim;
    values[V_HEAD_DIM] = p->v_head_dim;
    values[MASK] = p->mask;
    values[CACHE] = 1 + p->cache;
    values[NONDETERMINISTIC] = p->nondeterministic;
    if (!call)
        return;
    const rope_position_map *map = &call->rope.position;
    values[BATCH] = map->cu_seqlens ? map->sequences : call->rope.batch;
    values[TOKENS] = call->rope.tokens;
    values[K_TOKENS] = call->k_tokens;
    if (map->cu_seqlens && values[BATCH] > 0) { /* of a sequence, were all alike */
        values[TOKENS] = (values[TOKENS] - 1) / values[BATCH] + 1;
        values[K_TOKENS] = p->cache ? values[K_TOKENS] : (values[K_TOKENS] - 1) / values[BATCH] + 1;
    }
    values[PACKED] = map->cu_seqlens != NULL;
    values[Q_HEADS] = call->rope.tensor[0].heads;
    values[K_HEADS] = call->k.heads;
    values[WINDOW] = p->window < values[K_TOKENS] ? p->window : values[K_TOKENS];
}

static void fill_backward(const void *problem, const void *call, int64_t *values) {
    fill(problem, call ? &((const rope_attention_backward_call *)call)->forward : NULL, values);
}

/* Gradients of queries, keys and values in fp32, of each query head: what a kernel may sum them in,
 * which grows with tokens alone. 2^64 - 1 where it is more. */
static size_t gradient_bytes(const void *problem, const void *given) {
    const rope_attention_problem *p = problem;
    const rope_attention_bounds *b = given;
    const int64_t factors[] = {b->batch, b->q_heads, p->head_dim + p->v_head_dim, sizeof(float)};
    size_t bytes;
    if (__builtin_add_overflow(b->tokens, b->k_tokens ? b->k_tokens : b->tokens, &bytes))
        return SIZE_MAX;
    for (size_t i = 0; i < sizeof factors / sizeof factors[0]; i++)
        if (__builtin_mul_overflow(bytes, factors[i], &bytes))
            return SIZE_MAX;
    return bytes;
}

const rope_shape rope_attention_shape = {fields, NONDETERMINISTIC, fill, NULL};
const rope_shape rope_attention_backward_shape = {fields, COUNT, fill_backward, gradient_bytes};
