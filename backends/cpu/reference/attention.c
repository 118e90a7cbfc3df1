/*
 * The reference of "attention": two passes over a row's keys, scores, weights and sums in double.
 * Rotated queries and keys are rounded to the call's type, as rope_apply writes them.
 */
#include "backends/cpu/attention/context.h"

#include <math.h>

typedef struct row {
    const attention_context *ctx;
    attention_tile tile; /* of this row alone */
    rope_key_range seen;
    attention_source source[2];
    float q[ROPE_MAX_ATTENTION_HEAD_DIM];
    double o[ROPE_MAX_ATTENTION_HEAD_DIM];
} row;

static double element(const row *r, const char *data, int i) {
    return (double)cpu_load(r->ctx->problem->rope.dtype, data, i);
}

static int sees(const row *r, int64_t key) {
    return r->ctx->problem->mask != ROPE_MASK_TREE ||
           rope_tree_sees(r->ctx->problem, r->ctx->call, &r->tile.s,
                          attention_query_of(r->ctx, &r->tile, 0), key);
}

static double score_of(const row *r, int64_t key) {
    const rope_attention_problem *p = r->ctx->problem;
    char stage[ROPE_MAX_ATTENTION_HEAD_DIM * sizeof(float)] = {0};
    const char *k;
    double s = 0;
    cpu_attention_rows(r->ctx, &r->source[0], &r->tile.s,
                       (attention_part){r->tile.head, key, 1, 0, p->head_dim}, stage, &k);
    for (int i = 0; i < p->head_dim; i++)
        s += (double)r->q[i] * element(r, k, i);
    s *= (double)p->scale;
    return p->soft_cap == 0 ? s : (double)p->soft_cap * tanh(s / (double)p->soft_cap);
}

/* Adds the weight of a key times its values. */
static void add_values(row *r, int64_t key, double weight) {
    const int n = r->ctx->problem->v_head_dim;
    char stage[ROPE_MAX_ATTENTION_HEAD_DIM * sizeof(float)] = {0};
    const char *v;
    cpu_attention_rows(r->ctx, &r->source[1], &r->tile.s,
                       (attention_part){r->tile.head, key, 1, 0, n}, stage, &v);
    for (int i = 0; i < n; i++)
        r->o[i] += weight * element(r, v, i);
}

static void store(const row *r, double lse, double sum) {
    const rope_attention_call *call = r->ctx->call;
    const int64_t token = r->tile.s.q_first + attention_query_of(r->ctx, &r->tile, 0),
                  head = attention_head_of(r->ctx, &r->tile, 0), batch = r->tile.s.q_row;
    const int64_t *o = call->out_stride, *l = call->lse_stride;
    char *out = (char *)call->out + (batch * o[0] + token * o[1] + head * o[2]) * r->ctx->size;
    for (int i = 0; i < r->ctx->problem->v_head_dim; i++)
        cpu_store(r->ctx->problem->rope.dtype, out, i * o[3],
                  (float)(sum == 0 ? 0 : r->o[i] / sum));
    if (call->lse)
        call->lse[batch * l[0] + token * l[1] + head * l[2]] = (float)lse;
}

static void attend_row(row *r) {
    const int sink_dtype = r->ctx->problem->sink_dtype;
    double most = -INFINITY, sum = 0;
    if (sink_dtype) {
        most = (double)cpu_load(sink_dtype, r->ctx->call->sinks,
                                attention_head_of(r->ctx, &r->tile, 0));
        sum = most == -INFINITY ? 0 : exp(most - most);
    }
    const double sink = most;
    for (int64_t key = r->seen.begin; key < r->seen.end; key++) {
        const double s = sees(r, key) ? score_of(r, key) : -INFINITY;
        most = s > most ? s : most;
    }
    const double base = most == -INFINITY ? 0 : most;
    sum *= exp(sink == -INFINITY ? 0 : sink - base);
    memset(r->o, 0, sizeof r->o);
    for (int64_t key = r->seen.begin; key < r->seen.end; key++) {
        if (!sees(r, key))
            continue;
        const double weight = exp(score_of(r, key) - base);
        sum += weight;
        add_values(r, key, weight);
    }
    store(r, sum == 0 ? -INFINITY : base + log(sum), sum);
}

static void attend(const attention_context *ctx, const attention_tile *tile) {
    float stage[ROPE_MAX_ATTENTION_HEAD_DIM];
    row r = {.ctx = ctx};
    for (int which = 0; which < 2; which++)
        r.source[which] = attention_source_of(ctx, &tile->s, tile->head, which);
    for (int64_t n = 0; n < tile->count; n++) {
        r.tile = *tile;
        r.tile.first += n;
        r.tile.count = 1;
        const int64_t i = attention_query_of(ctx, &r.tile, 0);
        r.seen = rope_keys_seen(ctx->problem, &tile->s, rope_query_index(&tile->s, i));
        attention_queries(ctx, &r.tile, (char *)stage, (char *)r.q);
        attend_row(&r);
    }
}

const cpu_attention_kernel cpu_attention_reference = {.needs = CPU_ISA_SCALAR,
                                                      .append = &cpu_append_scalar,
                                                      .panel = 1,
                                                      .attend = attend,
                                                      .rope = &cpu_kernel_reference};
