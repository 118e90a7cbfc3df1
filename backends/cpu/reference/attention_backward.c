/*
 * The reference of "attention_backward": query by query and key by key, scores, weights and sums in
 * double. Rotated queries and keys are those of the call's type, as rope_apply writes them.
 */
#include "backends/cpu/attention_backward/kernel.h"

#include <math.h>

typedef struct row {
    const backward_context *b;
    attention_tile tile; /* of this row alone */
    rope_key_range seen;
    attention_source source[2];
    float q[ROPE_MAX_ATTENTION_HEAD_DIM], dout[ROPE_MAX_ATTENTION_HEAD_DIM];
    double lse;
    backward_row *kept;
} row;

typedef struct head_pair {
    float k[ROPE_MAX_ATTENTION_HEAD_DIM], v[ROPE_MAX_ATTENTION_HEAD_DIM];
} head_pair;

static void load(const row *r, int which, int64_t key, float *to) {
    const attention_context *ctx = &r->b->ctx;
    const int n = which ? ctx->problem->v_head_dim : ctx->problem->head_dim;
    char stage[ROPE_MAX_ATTENTION_HEAD_DIM * sizeof(float)];
    const char *from;
    cpu_attention_rows(ctx, &r->source[which], &r->tile.s,
                       (attention_part){r->tile.head, key, 1, 0, n}, stage, &from);
    for (int i = 0; i < n; i++)
        to[i] = cpu_load(ctx->problem->rope.dtype, from, i);
}

static void load_key(const row *r, int64_t key, head_pair *x) {
    load(r, 0, key, x->k);
    load(r, 1, key, x->v);
}

static void begin(row *r, const backward_context *b, const backward_tile *t) {
    r->b = b;
    r->tile = (attention_tile){.s = t->s, .head = t->head, .heads = 1, .count = 1};
    for (int which = 0; which < 2; which++)
        r->source[which] = attention_source_of(&b->ctx, &t->s, t->head, which);
}

static void begin_row(row *r, int64_t n) {
    float stage[ROPE_MAX_ATTENTION_HEAD_DIM];
    const backward_context *b = r->b;
    r->tile.first = n;
    r->seen =
        rope_keys_seen(b->ctx.problem, &r->tile.s,
                       rope_query_index(&r->tile.s, attention_query_of(&b->ctx, &r->tile, 0)));
    attention_queries(&b->ctx, &r->tile, (char *)stage, (char *)r->q);
    backward_load_row(b, &r->tile, 0, b->given->dout, b->given->dout_stride,
                      b->ctx.problem->v_head_dim, r->dout);
    r->lse = (double)backward_lse(b, &r->tile, 0);
    r->kept = backward_row_of(b, &r->tile, 0);
}

static double product(const float *a, const float *b, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

/* The weight of a key for a row, the gradient of its score and the slope of the cap there. */
typedef struct weighed {
    double weight, gradient, slope;
} weighed;

static weighed weigh(const row *r, const head_pair *x) {
    const rope_attention_problem *p = r->b->ctx.problem;
    const double cap = (double)p->soft_cap;
    double s = (double)p->scale * product(r->q, x->k, p->head_dim), slope = 1;
    if (cap != 0) {
        const double t = tanh(s / cap);
        s = cap * t;
        slope = 1 - t * t;
    }
    const double weight = exp(s - r->lse);
    return (weighed){
        weight, weight * (product(r->dout, x->v, p->v_head_dim) - (double)r->kept->delta), slope};
}

static int is_alone(const row *r, const weighed *w) {
    return r->b->balances && w->weight > (double)CPU_BACKWARD_ALONE;
}

/* What the keys of a row give to it. */
static CPU_NOINLINE void share(const row *r) {
    double others = 0, weight = 0;
    head_pair key;
    for (int64_t j = r->seen.begin; j < r->seen.end; j++) {
        load_key(r, j, &key);
        const weighed w = weigh(r, &key);
        weight += w.weight;
        if (is_alone(r, &w)) {
            r->kept->share.own = (float)(w.gradient * w.slope);
            r->kept->share.slope = (float)w.slope;
            r->kept->share.key = j;
        } else {
            others += w.gradient;
        }
    }
    r->kept->share.others = (float)others;
    r->kept->share.weight = (float)weight;
}

/* The gradient of the product of q and of a key. */
static double product_gradient(const row *r, int64_t key, const weighed *w) {
    const double scale = (double)r->b->ctx.problem->scale;
    const double more = r->kept->share.key == key ? (double)backward_lacking(r->b, &r->tile, 0) : 0;
    return scale * (w->gradient * w->slope + more);
}

static void add(double *sum, double factor, const float *x, int n) {
    for (int i = 0; i < n; i++)
        sum[i] += factor * (double)x[i];
}

static const float *rounded(const double *sum, int n, float *to) {
    for (int i = 0; i < n; i++)
        to[i] = (float)sum[i];
    return to;
}

/* dq of a row. */
static CPU_NOINLINE void add_row(const row *r, double *dq) {
    const int n = r->b->ctx.problem->head_dim;
    head_pair key;
    for (int64_t j = r->seen.begin; j < r->seen.end; j++) {
        load_key(r, j, &key);
        const weighed w = weigh(r, &key);
        add(dq, product_gradient(r, j, &w), key.k, n);
    }
}

static void rows_tile(const backward_context *b, const backward_tile *t) {
    const int n = b->ctx.problem->head_dim;
    float x[ROPE_MAX_ATTENTION_HEAD_DIM];
    row r;
    begin(&r, b, t);
    for (int64_t i = t->first; i < t->first + t->count; i++) {
        double dq[ROPE_MAX_ATTENTION_HEAD_DIM] = {0};
        begin_row(&r, i);
        share(&r);
        if (!b->given->dq)
            continue;
        add_row(&r, dq);
        backward_store_query(b, &r.tile, 0, rounded(dq, n, x));
    }
    if (b->given->dq)
        backward_rotate_rows(b, t);
}

/* dk and dv of a key from all rows. */
static CPU_NOINLINE void add_key(const backward_context *b, const backward_tile *t, int64_t j,
                                 double *dk, double *dv) {
    row r = {0}; /* else clang's analyzer finds elements beyond a head unwritten */
    head_pair key;
    begin(&r, b, t);
    load_key(&r, j, &key);
    for (int64_t i = 0; i < t->s.q_count * b->ctx.group; i++) {
        begin_row(&r, i);
        if (j < r.seen.begin || j >= r.seen.end)
            continue;
        const weighed w = weigh(&r, &key);
        add(dv, w.weight, r.dout, b->ctx.problem->v_head_dim);
        add(dk, product_gradient(&r, j, &w), r.q, b->ctx.problem->head_dim);
    }
}

static void keys_tile(const backward_context *b, const backward_tile *t) {
    const int n = b->ctx.problem->head_dim, m = b->ctx.problem->v_head_dim;
    float x[ROPE_MAX_ATTENTION_HEAD_DIM], y[ROPE_MAX_ATTENTION_HEAD_DIM];
    for (int64_t j = t->first; j < t->first + t->count; j++) {
        double dk[ROPE_MAX_ATTENTION_HEAD_DIM] = {0}, dv[ROPE_MAX_ATTENTION_HEAD_DIM] = {0};
        add_key(b, t, j, dk, dv);
        backward_store_key(b, t, j, b->given->dk ? rounded(dk, n, x) : NULL,
                           b->given->dv ? rounded(dv, m, y) : NULL);
    }
    backward_rotate_keys(b, t);
}

static float dot(const float *a, const float *b, int n) {
    return (float)product(a, b, n);
}

const cpu_backward_kernel cpu_backward_reference = {.attention = &cpu_attention_reference,
                                                    .dot = dot,
                                                    .rows_tile = rows_tile,
                                                    .keys_tile = keys_tile};
