/*
 * Stands for cuDNN where the plugin runs on the emulated device: attention of a shape in double,
 * from what an engine is given and nothing else. What cuDNN promises nothing of, rows beyond
 * lengths and rows that see no key, is no number. It declines what cuDNN's front end does, and has
 * no memory for an engine while CUDNN_EMULATION_NO_MEMORY is set. With CUDNN_EMULATION_LINEAR a
 * deterministic backward needs no memory for pairs, and each says what runs.
 */
#include "backends/cudnn/engine.h"
#include "backends/cudnn/library.h"
#include "common/math/half.h"

#include "backends/gpu/platform/runtime.h"

#include <stdio.h>
#include <stdlib.h>

enum { WORKSPACE = 12345, MOST_SPLITS = 1 << 20, TILE = 128 };
static const double MOST_PAIRS = 0x1p50;

struct dnn_engine {
    dnn_shape shape;
};

rope_status dnn_library_open(char *reason) {
    (void)reason;
    return ROPE_OK;
}

/* Strides of dimensions that cuDNN steps along. */
static int has_strides(const dnn_shape *s) {
    for (int t = 0; t < DNN_TENSORS; t++)
        for (int d = 0; d < 4 && (t < DNN_LSE || (t == DNN_LSE && s->has_lse) || s->is_backward);
             d++)
            if (s->stride[t][d] < 1)
                return 0;
    return 1;
}

static double in_tiles(int64_t tokens) {
    return (double)((tokens + TILE - 1) / TILE * TILE);
}

/* Of queries and keys, for each head. */
static double pairs_of(const dnn_shape *s) {
    return (double)s->sequences * (double)s->q_heads * in_tiles(s->q_tokens) *
           in_tiles(s->k_tokens);
}

rope_status dnn_engine_probe(const dnn_shape *s, int32_t device, char *reason) {
    const char *why = NULL;
    (void)device;
    if (getenv("CUDNN_EMULATION_NO_MEMORY")) {
        snprintf(reason, ROPE_REASON_SIZE, "cuDNN: no memory");
        return ROPE_ERROR_OUT_OF_MEMORY;
    }
    if (s->head_dim % 8 || s->v_head_dim % 8)
        why = "hidden_dim should be multiple of 8";
    else if (s->is_backward && !s->begins[DNN_LSE] &&
             (s->stride[DNN_LSE][1] != s->q_tokens ||
              s->stride[DNN_LSE][0] != s->q_heads * s->q_tokens))
        why = "non-ragged Stats has gaps";
    else if (!has_strides(s))
        why = "a stride is 0";
    else if (s->has_sinks && s->q_tokens == 1)
        why = "s_q == 1, not supported with sink_token";
    else if (!s->lengths && s->right < INT64_MAX && s->q_tokens > s->k_tokens)
        why = "Bottom right causal mask does not support max_s_q > max_s_kv";
    else if (s->q_heads < 1 || s->q_heads % s->k_heads)
        why = "group query attention requires h_q to be a multiple of h_k and h_v";
    else if (pairs_of(s) > MOST_PAIRS)
        why = "too many pairs";
    snprintf(reason, ROPE_REASON_SIZE, "cuDNN: %s", why ? why : "");
    return why ? ROPE_ERROR_UNSUPPORTED : ROPE_OK;
}

rope_status dnn_engine_create(const dnn_shape *shape, int32_t device, dnn_engine **engine,
                              char *reason) {
    rope_status status = dnn_engine_probe(shape, device, reason);
    if (status != ROPE_OK)
        return status;
    *engine = calloc(1, sizeof **engine);
    (*engine)->shape = *shape;
    return ROPE_OK;
}

void dnn_engine_destroy(dnn_engine *engine) {
    free(engine);
}

/* The backward has sums of gradients of each query head, the deterministic one also 2 bytes for
 * each pair of a query and a key, and head; those of fewer heads may need more, as splits do. */
static size_t workspace_of(const dnn_shape *s) {
    const int64_t heads = s->sequences * s->q_heads,
                  sums = heads * s->q_tokens * (s->head_dim + s->v_head_dim);
    if (!s->is_backward)
        return WORKSPACE;
    return WORKSPACE + (size_t)(4 * sums + MOST_SPLITS / heads) +
           (s->nondeterministic || getenv("CUDNN_EMULATION_LINEAR") ? 0 : 2 * (size_t)pairs_of(s));
}

size_t dnn_engine_workspace(const dnn_engine *engine) {
    return workspace_of(&engine->shape);
}

/* --- attention --- */

typedef struct run {
    dnn_shape s;
    void *at[DNN_POINTERS];
    void *workspace;
} run;

/* Sequence b, head h of q. */
typedef struct head {
    const run *r;
    int64_t b, h, k_head, queries, keys;
} head;

static int is_of_keys(int t) {
    return t == DNN_K || t == DNN_V || t == DNN_DK || t == DNN_DV;
}

static int64_t index_of(const head *n, int t, int64_t token, int64_t e) {
    const dnn_shape *s = &n->r->s;
    const int64_t *stride = s->stride[t], *begins = n->r->at[DNN_OFFSETS + t];
    const int keys = is_of_keys(t);
    int64_t first = n->b * stride[0];
    if (keys && s->page_size) {
        const int32_t *table = n->r->at[DNN_TABLE];
        first = table[n->b * s->table_pages + token / s->page_size] * stride[0];
        token %= s->page_size;
    } else if (s->begins[t]) {
        first = begins[n->b];
    }
    return first + (keys ? n->k_head : n->h) * stride[1] + token * stride[2] + e * stride[3];
}

static double load(const head *n, int t, int64_t token, int64_t e) {
    const int64_t at = index_of(n, t, token, e);
    if (t == DNN_LSE)
        return ((const float *)n->r->at[t])[at];
    const uint16_t bits = ((const uint16_t *)n->r->at[t])[at];
    return n->r->s.dtype == ROPE_BF16 ? rope_from_bf16(bits) : rope_from_f16(bits);
}

static void store(const head *n, int t, int64_t token, int64_t e, double x) {
    const int64_t at = index_of(n, t, token, e);
    if (t == DNN_LSE)
        ((float *)n->r->at[t])[at] = (float)x;
    else
        ((uint16_t *)n->r->at[t])[at] =
            n->r->s.dtype == ROPE_BF16 ? rope_to_bf16((float)x) : rope_to_f16((float)x);
}

static int sees(const head *n, int64_t i, int64_t j) {
    const dnn_shape *s = &n->r->s;
    const int64_t own = i + (s->alike ? 0 : n->keys - n->queries);
    return (s->right == INT64_MAX || j <= own + s->right) &&
           (s->left == INT64_MAX || j > own - s->left);
}

static double product(const head *n, int a, int64_t i, int b, int64_t j, int64_t dim) {
    double sum = 0;
    for (int64_t e = 0; e < dim; e++)
        sum += load(n, a, i, e) * load(n, b, j, e);
    return sum;
}

static double score(const head *n, int64_t i, int64_t j) {
    return n->r->s.scale * product(n, DNN_Q, i, DNN_K, j, n->r->s.head_dim);
}

static void attend(const head *n, int64_t i, double *p) {
    const dnn_shape *s = &n->r->s;
    const double sink = s->has_sinks ? ((const float *)n->r->at[DNN_SINKS])[n->h] : -INFINITY;
    double most = sink, sum = 0;
    for (int64_t j = 0; j < n->keys; j++) {
        p[j] = sees(n, i, j) ? score(n, i, j) : -INFINITY;
        most = fmax(most, p[j]);
    }
    for (int64_t j = 0; j < n->keys; j++)
        sum += p[j] = exp(p[j] - most);
    sum += s->has_sinks ? exp(sink - most) : 0;
    for (int64_t e = 0; e < s->v_head_dim; e++) {
        double x = 0;
        for (int64_t j = 0; j < n->keys; j++)
            x += p[j] ? p[j] * load(n, DNN_V, j, e) : 0;
        store(n, DNN_OUT, i, e, x / sum);
    }
    if (s->has_lse)
        store(n, DNN_LSE, i, 0, most + log(sum));
}

static void forward(head *n) {
    const dnn_shape *s = &n->r->s;
    double *p = calloc((size_t)n->keys + 1, sizeof *p);
    for (n->h = 0; n->h < s->q_heads; n->h++) {
        n->k_head = n->h / (s->q_heads / s->k_heads);
        for (int64_t i = 0; i < n->queries; i++)
            attend(n, i, p);
        for (int64_t i = n->queries; i < s->q_tokens && !s->begins[DNN_OUT]; i++)
            for (int64_t e = 0; e < s->v_head_dim; e++)
                store(n, DNN_OUT, i, e, NAN);
    }
    free(p);
}

/* Sums of a head of keys and of what reads it, then rounded. */
static void add_row(const head *n, int64_t i, double *dq, double *dk, double *dv) {
    const dnn_shape *s = &n->r->s;
    const double lse = load(n, DNN_LSE, i, 0),
                 delta = product(n, DNN_DOUT, i, DNN_OUT, i, s->v_head_dim);
    for (int64_t j = 0; j < n->keys; j++) {
        if (!sees(n, i, j))
            continue;
        const double p = exp(score(n, i, j) - lse),
                     ds = s->scale * p * (product(n, DNN_DOUT, i, DNN_V, j, s->v_head_dim) - delta);
        for (int64_t e = 0; e < s->v_head_dim; e++)
            dv[j * s->v_head_dim + e] += p * load(n, DNN_DOUT, i, e);
        for (int64_t e = 0; e < s->head_dim; e++) {
            dq[e] += ds * load(n, DNN_K, j, e);
            dk[j * s->head_dim + e] += ds * load(n, DNN_Q, i, e);
        }
    }
}

static void backward(head *n) {
    const dnn_shape *s = &n->r->s;
    const int64_t group = s->q_heads / s->k_heads;
    double *dk = calloc((size_t)(n->keys * s->head_dim) + 1, sizeof *dk),
           *dv = calloc((size_t)(n->keys * s->v_head_dim) + 1, sizeof *dv),
           *dq = calloc((size_t)s->head_dim, sizeof *dq);
    for (n->k_head = 0; n->k_head < s->k_heads; n->k_head++) {
        for (int64_t i = 0; i < n->keys * s->head_dim; i++)
            dk[i] = 0;
        for (int64_t i = 0; i < n->keys * s->v_head_dim; i++)
            dv[i] = 0;
        for (n->h = n->k_head * group; n->h < (n->k_head + 1) * group; n->h++)
            for (int64_t i = 0; i < n->queries; i++) {
                for (int64_t e = 0; e < s->head_dim; e++)
                    dq[e] = 0;
                add_row(n, i, dq, dk, dv);
                for (int64_t e = 0; e < s->head_dim; e++)
                    store(n, DNN_DQ, i, e, dq[e]);
            }
        for (int64_t i = 0; i < n->keys * s->head_dim && n->queries; i++)
            store(n, DNN_DK, i / s->head_dim, i % s->head_dim, dk[i]);
        for (int64_t i = 0; i < n->keys * s->v_head_dim && n->queries; i++)
            store(n, DNN_DV, i / s->v_head_dim, i % s->v_head_dim, dv[i]);
    }
    free(dk);
    free(dv);
    free(dq);
}

static void work(void *data) {
    const run *r = data;
    const int32_t *queries = r->at[DNN_Q_LENGTHS], *keys = r->at[DNN_K_LENGTHS];
    memset(r->workspace, 0xff, workspace_of(&r->s));
    for (int64_t b = 0; b < r->s.sequences; b++) {
        head n = {.r = r,
                  .b = b,
                  .queries = r->s.lengths ? queries[b] : r->s.q_tokens,
                  .keys = r->s.lengths ? keys[b] : r->s.k_tokens};
        r->s.is_backward ? backward(&n) : forward(&n);
    }
}

/* What a graph may run again stays. */
rope_status dnn_engine_run(const dnn_engine *engine, void *const at[DNN_POINTERS], void *workspace,
                           void *stream, char *reason) {
    run *r = malloc(sizeof *r);
    (void)reason;
    if (engine->shape.is_backward && getenv("CUDNN_EMULATION_LINEAR"))
        fprintf(stderr, "backward of %lld heads\n",
                (long long)(engine->shape.sequences * engine->shape.q_heads));
    r->s = engine->shape;
    r->workspace = workspace;
    memcpy(r->at, at, sizeof r->at);
    return hipLaunchHostFunc(stream, work, r) == hipSuccess ? ROPE_OK : ROPE_ERROR_DEVICE;
}
