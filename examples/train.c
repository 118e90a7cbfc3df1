/* Training steps of one attention layer: the forward saves rotated queries and keys, the backward
 * gives the gradients of what the layer read, and each step goes against them, on whatever backend
 * ROPE_BACKEND names. The first gradients agree with differences of the loss along random
 * directions. */
#include <ropekit/attention.h>

/* plan: of rope_attention_backward_plan_create. forward: of a call that wrote out and lse. */
rope_status backward(const rope_plan *plan, const rope_attention_args *forward, const float *dout,
                     float *dq, float *dk, float *dv) {
    rope_attention_backward_args args = ROPE_ATTENTION_BACKWARD_ARGS_INIT;
    args.forward = forward, args.dout = dout;
    args.dq.data = dq, args.dk.data = dk, args.dv.data = dv; /* NULL: not wanted */
    return rope_attention_backward(plan, &args);
}

/* --- the training --- */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 24, Q_HEADS = 4, K_HEADS = 2, HEAD_DIM = 64, STEPS = 5, DIRECTIONS = 8 };
enum { Q = TOKENS * Q_HEADS * HEAD_DIM, K = TOKENS * K_HEADS * HEAD_DIM, V = K };
enum { AT_Q = 0, AT_K = Q, AT_V = Q + K, ALL = Q + K + V };

/* The layer in device memory. */
typedef struct layer {
    float x[ALL], dx[ALL]; /* q, k and v, and their gradients */
    float out[Q], dout[Q];
    float q_rotated[Q], k_rotated[K], lse[TOKENS * Q_HEADS];
} layer;

typedef struct model {
    rope_device *device;
    rope_plan *forward, *backward;
    layer *on_device, *host;
    void *memory, *workspace;
    rope_attention_args args;
} model;

static int failed(rope_status status, const char *what) {
    if (status != ROPE_OK)
        fprintf(stderr, "%s: %s: %s\n", what, rope_status_string(status), rope_last_error());
    return status != ROPE_OK;
}

static int make_plans(model *m) {
    rope_attention_desc desc = ROPE_ATTENTION_DESC_INIT;
    desc.rope.dtype = ROPE_F32;
    desc.rope.head_dim = HEAD_DIM;
    return failed(rope_attention_plan_create(&desc, &m->forward), "forward") ||
           failed(rope_attention_backward_plan_create(&desc, &m->backward), "backward");
}

/* One workspace serves both calls. */
static int make_memory(model *m) {
    rope_attention_bounds bounds = {sizeof bounds, 1, TOKENS, TOKENS, 0, Q_HEADS, K_HEADS};
    size_t forward = 0, backward = 0;
    if (failed(rope_attention_workspace(m->forward, &bounds, &forward), "workspace") ||
        failed(rope_attention_backward_workspace(m->backward, &bounds, &backward), "workspace"))
        return 1;
    m->args.workspace_bytes = forward > backward ? forward : backward;
    if (failed(rope_device_alloc(m->device, sizeof(layer), &m->memory), "alloc") ||
        failed(rope_device_alloc(m->device, m->args.workspace_bytes + 256, &m->workspace), "alloc"))
        return 1;
    m->args.workspace = (char *)m->workspace + (256 - (uintptr_t)m->workspace % 256) % 256;
    m->on_device = (layer *)m->memory;
    return 0;
}

static void describe(model *m) {
    layer *l = m->on_device;
    rope_attention_args *a = &m->args;
    a->rope.batch = 1;
    a->rope.tokens = TOKENS;
    a->rope.q.in = l->x + AT_Q;
    a->rope.k.in = l->x + AT_K;
    a->v.in = l->x + AT_V;
    a->rope.q.heads = Q_HEADS;
    a->rope.k.heads = a->v.heads = K_HEADS;
    a->out.data = l->out;
    a->lse = l->lse;
    a->rope.q.out = l->q_rotated; /* else the backward rotates them again */
    a->rope.k.out = l->k_rotated;
}

/* Some number in -1..1. */
static float number(int i) {
    return (float)((uint32_t)i * 2654435761U >> 20) / 2048 - 1;
}

/* The loss is half the squared distance from a target, so that dout is the difference. Runs the
 * forward on what the host has; dout is then on the host. */
static int find_loss(model *m, double *loss) {
    layer *h = m->host;
    if (failed(rope_device_copy_in(m->device, m->on_device->x, h->x, sizeof h->x), "copy in") ||
        failed(rope_attention(m->forward, &m->args), "attention") ||
        failed(rope_device_copy_out(m->device, h->out, m->on_device->out, sizeof h->out),
               "copy out"))
        return 1;
    *loss = 0;
    for (int i = 0; i < Q; i++) {
        h->dout[i] = h->out[i] - number(i + ALL);
        *loss += 0.5 * (double)h->dout[i] * (double)h->dout[i];
    }
    return 0;
}

static int find_gradients(model *m) {
    layer *h = m->host;
    layer *d = m->on_device;
    return failed(rope_device_copy_in(m->device, d->dout, h->dout, sizeof h->dout), "copy in") ||
           failed(
               backward(m->backward, &m->args, d->dout, d->dx + AT_Q, d->dx + AT_K, d->dx + AT_V),
               "attention backward") ||
           failed(rope_device_copy_out(m->device, h->dx, m->on_device->dx, sizeof h->dx),
                  "copy out");
}

/* The slope of the loss along random directions of q, k or v, by gradients and by differences. */
static int check(model *m, const char *name, int first, int last) {
    static const float step[4] = {-1.0F / 16, -1.0F / 32, 1.0F / 32, 1.0F / 16};
    static const double weight[4] = {8.0 / 3, -64.0 / 3, 64.0 / 3, -8.0 / 3};
    static float at[ALL], sign[ALL];
    static uint32_t random = 1;
    memcpy(at, m->host->x, sizeof at);
    for (int n = 0; n < DIRECTIONS; n++) {
        double loss = 0, gradients = 0, differences = 0, square = 0;
        for (int i = first; i < last; i++) {
            random = random * 1664525U + 1013904223U;
            sign[i] = random >> 31 ? 1 : -1;
            gradients += (double)m->host->dx[i] * (double)sign[i];
            square += (double)m->host->dx[i] * (double)m->host->dx[i];
        }
        for (int s = 0; s < 4; s++) {
            for (int i = first; i < last; i++)
                m->host->x[i] = at[i] + step[s] * sign[i];
            if (find_loss(m, &loss))
                return 1;
            differences += weight[s] * loss;
        }
        memcpy(m->host->x, at, sizeof at);
        const double off = gradients - differences;
        const int bad = !(off * off < 1e-7 * square);
        if (n == 0 || bad)
            printf("d%s: slope %.4f by gradients, %.4f by differences\n", name, gradients,
                   differences);
        if (bad)
            return 1;
    }
    return 0;
}

static int train(model *m) {
    double loss = 0, before = 0;
    if (find_loss(m, &before) || find_gradients(m) || check(m, "q", AT_Q, AT_K) ||
        check(m, "k", AT_K, AT_V) || check(m, "v", AT_V, ALL))
        return 1;
    for (int s = 0; s < STEPS; s++) {
        if (find_loss(m, &loss) || find_gradients(m))
            return 1;
        for (int i = 0; i < ALL; i++)
            m->host->x[i] -= m->host->dx[i] / 32;
    }
    if (find_loss(m, &loss))
        return 1;
    printf("%d steps by %s: loss %.3f to %.3f\n", STEPS, rope_plan_kernel(m->backward), before,
           loss);
    return !(loss < 0.9 * before);
}

int main(void) {
    const rope_attention_args args = ROPE_ATTENTION_ARGS_INIT;
    static model m;
    m.args = args;
    m.host = (layer *)calloc(1, sizeof *m.host);
    int bad = !m.host || failed(rope_device_open(NULL, 0, &m.device), "open") || make_plans(&m) ||
              make_memory(&m);
    for (int i = 0; i < ALL && !bad; i++)
        m.host->x[i] = 2 * number(i);
    if (!bad) {
        describe(&m);
        bad = train(&m);
    }
    rope_plan_destroy(m.forward);
    rope_plan_destroy(m.backward);
    if (m.device) {
        rope_device_free(m.device, m.memory);
        rope_device_free(m.device, m.workspace);
    }
    rope_device_close(m.device);
    free(m.host);
    return bad;
}
