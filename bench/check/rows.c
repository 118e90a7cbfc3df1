#include "bench/check/rows.h"

#include "tests/oracle/oracle.h"

#include <stdlib.h>

double *attention_gather(const oracle_attention *o, const oracle_part *s, int32_t tensor,
                         int64_t head) {
    const int64_t dim = oracle_attention_head_dim(o, tensor);
    double *all = calloc((size_t)(s->k_count * dim) + 1, sizeof *all);
    for (int64_t i = s->k_begin; all && i < s->k_count; i++) {
        oracle_element at = oracle_attention_at(o, s, tensor, i, head, 0);
        for (int64_t e = 0; e < dim; e++, at.at++)
            all[(i - s->k_begin) * dim + e] = oracle_attention_load(o, &at);
    }
    return all;
}

static void compare_row(attention_rows *r, const oracle_part *s, int64_t i, int64_t head,
                        oracle_heads heads) {
    static oracle_row row;
    double q[ROPE_MAX_ATTENTION_HEAD_DIM];
    const int32_t dtype = r->o.desc->rope.dtype;
    for (int64_t e = 0; e < r->o.desc->rope.head_dim; e++) {
        const oracle_element at = oracle_attention_at(&r->o, s, ORACLE_Q, i, head, e);
        q[e] = oracle_load(dtype, at.array, at.at);
    }
    heads.q = q;
    oracle_attention_row(&r->o, s, i, head, &heads, &row);
    for (int64_t e = 0; e < heads.v_stride && row.known; e++) {
        const check_place place = {CHECK_OUT, s->q_row, s->q_first + i, head, e};
        const double got =
            oracle_load(dtype, r->out, oracle_attention_out_at(&r->o, s, i, head, e));
        check_element(r->result, dtype, &place, got, row.value[e],
                      oracle_attention_bound(&r->o, &row, e));
        r->error += (got - row.value[e]) * (got - row.value[e]);
        r->weight += row.weight[e] * row.weight[e];
    }
}

void attention_compare(attention_rows *r, int64_t part, int64_t k_head, int64_t rows) {
    const oracle_part s = oracle_attention_part(&r->o, part);
    const int64_t group = r->o.args->rope.q.heads / r->o.args->rope.k.heads;
    const int64_t step = s.q_count > rows ? s.q_count / rows : 1;
    double *k = attention_gather(&r->o, &s, ORACLE_K, k_head),
           *v = attention_gather(&r->o, &s, ORACLE_V, k_head);
    oracle_heads heads = {.k = k,
                          .v = v,
                          .k_stride = oracle_attention_head_dim(&r->o, ORACLE_K),
                          .v_stride = oracle_attention_head_dim(&r->o, ORACLE_V)};
    r->no_memory = r->no_memory || !k || !v;
    for (int64_t i = s.q_count - 1; i >= 0 && !r->no_memory; i -= step)
        for (int64_t h = 0; h < group; h++)
            compare_row(r, &s, i, k_head * group + h, heads);
    free(k);
    free(v);
}
