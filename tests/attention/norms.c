#include "tests/attention/norms.h"

#include "tests/oracle/oracle.h"
#include "tests/rope/case_parts.h"
#include "tests/support/harness.h"

#include <string.h>

const rope_norm *attention_norm(const attention_case *c, int32_t tensor) {
    return tensor == ORACLE_Q ? &c->desc.q_norm : &c->desc.k_norm;
}

static rope_norm_weight *weight_of(attention_case *c, int32_t tensor) {
    return tensor == ORACLE_Q ? &c->args.q_weight : &c->args.k_weight;
}

static int64_t dim_of(const attention_case *c, int32_t tensor) {
    const rope_norm *norm = attention_norm(c, tensor);
    return norm->dim ? norm->dim : c->base.desc.head_dim - norm->offset;
}

static int64_t heads_of(const attention_case *c, int32_t tensor) {
    return tensor == ORACLE_Q ? c->base.args.q.heads : c->base.args.k.heads;
}

static int32_t weight_dtype(const attention_case *c, int32_t tensor) {
    const rope_norm *norm = attention_norm(c, tensor);
    return norm->weight_dtype ? norm->weight_dtype : c->base.desc.dtype;
}

int64_t attention_weights(const attention_case *c, int32_t tensor) {
    const rope_norm *norm = attention_norm(c, tensor);
    const rope_norm_weight *w = tensor == ORACLE_Q ? &c->args.q_weight : &c->args.k_weight;
    const int each = w->head_stride || norm->scope == ROPE_NORM_TOKEN;
    return norm->weight ? dim_of(c, tensor) * (each ? heads_of(c, tensor) : 1) : 0;
}

/* A gradient has no element without eps where all are 0. */
static void choose_norm(test_random *r, const attention_case *c, rope_norm *norm) {
    const int32_t dim = c->base.desc.head_dim;
    norm->type = random_chance(r, 70) ? ROPE_NORM_RMS : ROPE_NORM_LAYER;
    norm->scope = random_chance(r, 20) ? ROPE_NORM_TOKEN : (int32_t)random_between(r, 0, 1);
    if (random_chance(r, 25)) {
        norm->offset = (int32_t)random_between(r, 0, dim - 1);
        norm->dim = random_chance(r, 40) ? 0 : (int32_t)random_between(r, 1, dim - norm->offset);
    }
    norm->eps = random_chance(r, 50) ? 1e-6 : random_real(r, 1e-5, 1e-3);
    norm->weight = (int32_t)random_between(r, 0, ROPE_NORM_ONE_PLUS_WEIGHT);
    if (norm->weight == 0)
        return;
    norm->weight_dtype =
        random_chance(r, 50) ? c->base.desc.dtype : (int32_t)random_between(r, 0, ROPE_F32);
    norm->rounding = (int32_t)random_between(r, 0, ROPE_NORM_ROUND_TWICE);
}

void attention_choose_norms(attention_case *c) {
    test_random *r = &c->of_norms;
    const int keys = !c->desc.cache && c->desc.rotation != ROPE_ATTENTION_ROTATE_Q;
    if (!random_chance(r, 30))
        return;
    if (!keys || random_chance(r, 80))
        choose_norm(r, c, &c->desc.q_norm);
    if (keys && random_chance(r, 80))
        choose_norm(r, c, &c->desc.k_norm);
}

void attention_choose_weights(attention_case *c) {
    test_random *r = &c->of_norms;
    for (int32_t t = ORACLE_Q; t <= ORACLE_K; t++) {
        const rope_norm *norm = attention_norm(c, t);
        const int64_t dim = dim_of(c, t), heads = heads_of(c, t),
                      size = oracle_dtype_size(weight_dtype(c, t));
        int64_t stride = norm->scope == ROPE_NORM_TOKEN ? dim : 0;
        rope_norm_weight *w = weight_of(c, t);
        if (norm->weight == 0)
            continue;
        if (random_chance(r, 30))
            stride = w->head_stride = dim + random_between(r, 0, 5);
        w->data = case_reserve(&c->base, (stride * (heads - 1) + dim) * size, size);
    }
}

void attention_fill_weights(attention_case *c) {
    for (int32_t t = ORACLE_Q; t <= ORACLE_K; t++) {
        void *data = (void *)(uintptr_t)weight_of(c, t)->data;
        const int32_t dtype = weight_dtype(c, t);
        const int64_t count =
            data ? (int64_t)case_piece_bytes(&c->base, data) / oracle_dtype_size(dtype) : 0;
        for (int64_t i = 0; i < count; i++)
            oracle_store(dtype, data, i, random_real(&c->of_norms, -1.5, 1.5));
    }
}

void attention_describe_norms(const attention_case *c, char *text, size_t room) {
    for (int32_t t = ORACLE_Q; t <= ORACLE_K; t++) {
        const rope_norm *n = attention_norm(c, t);
        if (n->type)
            test_append(text, room, " %c.norm=%d/%d %d+%d weight=%d/%d rounding=%d", "qk"[t],
                        n -> type, n -> scope, n -> offset, n -> dim, n -> weight,
                        n -> weight_dtype, n -> rounding);
    }
}

attention_append attention_append_of(const attention_case *c, int32_t tensor, int64_t batch,
                                     int64_t tokens, const void *in, void *out) {
    attention_append a = {ROPE_APPEND_DESC_INIT, ROPE_APPEND_ARGS_INIT};
    const rope_tensor given = {.in = in, .out = out, .heads = heads_of(c, tensor)};
    a.desc.rope.dtype = c->desc.rope.dtype;
    a.desc.rope.head_dim = c->desc.rope.head_dim;
    a.desc.rope.backend = "cpu";
    a.desc.rope.kernel = "scalar";
    a.desc.rotation = ROPE_ROTATION_OFF;
    (tensor == ORACLE_Q ? &a.desc.q : &a.desc.k)->norm = *attention_norm(c, tensor);
    a.args.rope.batch = batch;
    a.args.rope.tokens = tokens;
    *(tensor == ORACLE_Q ? &a.args.rope.q : &a.args.rope.k) = given;
    if (tensor == ORACLE_Q)
        a.args.q_weight = c->args.q_weight;
    else
        a.args.k_weight = c->args.k_weight;
    return a;
}

void attention_normalise(const attention_case *c, int32_t tensor, int64_t tokens, void *data) {
    const attention_append a = attention_append_of(c, tensor, 1, tokens, data, data);
    rope_plan *plan = NULL;
    if (!attention_norm(c, tensor)->type || tokens == 0)
        return;
    CHECK_STATUS(ROPE_OK, rope_append_plan_create(&a.desc, &plan));
    CHECK_STATUS(ROPE_OK, rope_append(plan, &a.args));
    rope_plan_destroy(plan);
}
