#include "bench/check/gradient_rows.h"

#include "tests/oracle/attention_backward.h"
#include "tests/oracle/oracle.h"

#include <stdlib.h>
#include <string.h>

/* A head of keys and what reads it. */
typedef struct head_state {
    attention_rows *r;
    const rope_attention_backward_args *args;
    oracle_part s;
    int64_t k_head, group, dim, v_dim;
    int64_t key_step, key_count; /* keys that are compared: the last, and every key_step-th ahead */
    double *k, *v;
    oracle_sum *dk, *dv; /* of the keys that are compared */
} head_state;

static void compare_elements(head_state *h, int32_t tensor, const rope_attention_out *gradient,
                             int64_t i, int64_t head, const oracle_sum *sums) {
    const oracle_attention *o = &h->r->o;
    const int32_t like = tensor - CHECK_DQ, dtype = o->desc->rope.dtype;
    const bool of_q = tensor == CHECK_DQ;
    const int64_t count = tensor == CHECK_DV ? h->v_dim : h->dim;
    for (int64_t e = 0; e < count; e++) {
        const check_place place = {tensor, of_q ? h->s.q_row : h->s.k_row,
                                   (of_q ? h->s.q_first : h->s.k_first) + i, head, e};
        /* laid out as q, k and v */
        const int64_t at = oracle_attention_at(o, &h->s, like, i, head, e).at;
        check_element(h->r->result, dtype, &place, oracle_load(dtype, gradient->data, at),
                      sums[e].value, oracle_sum_bound(dtype, &sums[e], !of_q && h->r->by_heads));
    }
}

static int64_t key_of(const head_state *h, int64_t index) {
    return h->s.k_count - 1 - index * h->key_step;
}

/* What a row adds to the keys that are compared, each alone. */
static void add_to_keys(head_state *h, int64_t i, int64_t head, const oracle_heads *heads,
                        const oracle_results *results) {
    for (int64_t n = 0; n < h->key_count; n++) {
        const int64_t key = key_of(h, n);
        const oracle_gradients to = {
            .dk = h->dk + n * h->dim, .dv = h->dv + n * h->v_dim, .first = key, .last = key + 1};
        if (oracle_attention_sees(&h->r->o, &h->s, i, key))
            oracle_attention_backward_row(&h->r->o, &h->s, i, head, heads, results, &to);
    }
}

static void compare_row(head_state *h, int64_t i, int64_t head, const oracle_heads *heads,
                        const oracle_results *results) {
    oracle_sum dq[ROPE_MAX_ATTENTION_HEAD_DIM];
    const oracle_gradients to = {.dq = dq};
    memset(dq, 0, sizeof dq);
    oracle_attention_backward_row(&h->r->o, &h->s, i, head, heads, results, &to);
    compare_elements(h, CHECK_DQ, &h->args->dq, i, head, dq);
}

static void take_row(head_state *h, int64_t i, int64_t head, bool compared) {
    const oracle_attention *o = &h->r->o;
    const int32_t dtype = o->desc->rope.dtype;
    double q[ROPE_MAX_ATTENTION_HEAD_DIM], dout[ROPE_MAX_ATTENTION_HEAD_DIM],
        out[ROPE_MAX_ATTENTION_HEAD_DIM];
    for (int64_t e = 0; e < h->dim; e++) {
        const oracle_element at = oracle_attention_at(o, &h->s, ORACLE_Q, i, head, e);
        q[e] = oracle_load(dtype, at.array, at.at);
    }
    for (int64_t e = 0; e < h->v_dim; e++) {
        const int64_t at = oracle_attention_out_at(o, &h->s, i, head, e);
        dout[e] = oracle_load(dtype, h->args->dout, at);
        out[e] = oracle_load(dtype, o->args->out.data, at);
    }
    const oracle_heads heads = {q, h->k, h->v, h->dim, h->v_dim};
    const oracle_results results = {.dout = dout,
                                    .out = out,
                                    .lse = o->args->lse[oracle_attention_lse_at(o, &h->s, i, head)],
                                    .balances = h->r->balances};
    add_to_keys(h, i, head, &heads, &results);
    if (compared)
        compare_row(h, i, head, &heads, &results);
}

static void compare_head(head_state *h, int64_t rows) {
    const oracle_part *s = &h->s;
    const int64_t step = s->q_count > rows ? s->q_count / rows : 1;
    for (int64_t i = 0; i < s->q_count; i++)
        for (int64_t head = h->k_head * h->group; head < (h->k_head + 1) * h->group; head++)
            take_row(h, i, head, (s->q_count - 1 - i) % step == 0);
    for (int64_t n = 0; n < h->key_count; n++) {
        compare_elements(h, CHECK_DK, &h->args->dk, key_of(h, n), h->k_head, h->dk + n * h->dim);
        compare_elements(h, CHECK_DV, &h->args->dv, key_of(h, n), h->k_head, h->dv + n * h->v_dim);
    }
}

void attention_gradient_compare(attention_rows *r, const rope_attention_backward_args *args,
                                int64_t part, int64_t k_head, int64_t rows) {
    head_state h = {.r = r,
                    .args = args,
                    .s = oracle_attention_part(&r->o, part),
                    .k_head = k_head,
                    .group = r->o.args->rope.q.heads / r->o.args->rope.k.heads,
                    .dim = oracle_attention_head_dim(&r->o, ORACLE_Q),
                    .v_dim = oracle_attention_head_dim(&r->o, ORACLE_V)};
    h.key_step = h.s.k_count > rows ? h.s.k_count / rows : 1;
    h.key_count = h.s.k_count ? (h.s.k_count - 1) / h.key_step + 1 : 0;
    double *k = attention_gather(&r->o, &h.s, ORACLE_K, k_head),
           *v = attention_gather(&r->o, &h.s, ORACLE_V, k_head);
    oracle_sum *sums = calloc((size_t)(h.key_count * (h.dim + h.v_dim)) + 1, sizeof *sums);
    h.k = k;
    h.v = v;
    h.dk = sums;
    r->no_memory = r->no_memory || !k || !v || !sums;
    if (!r->no_memory) {
        h.dv = sums + h.key_count * h.dim;
        compare_head(&h, rows);
    }
    free(k);
    free(v);
    free(sums);
}
