/* Rotates q and k of a small batch on whatever backend ROPE_BACKEND names, and prints what became
 * of a unit vector: cos and sin of its first angle. */
#include <ropekit/rope.h>

#include <stdio.h>

enum { TOKENS = 6, Q_HEADS = 4, K_HEADS = 2, HEAD_DIM = 64 };
enum { Q_COUNT = TOKENS * Q_HEADS * HEAD_DIM, K_COUNT = TOKENS * K_HEADS * HEAD_DIM };

static float host[Q_COUNT + K_COUNT];

static int failed(rope_status status, const char *what) {
    if (status != ROPE_OK)
        fprintf(stderr, "%s: %s: %s\n", what, rope_status_string(status), rope_last_error());
    return status != ROPE_OK;
}

/* Sets element 0 of every head to 1. */
static void fill(void) {
    for (int i = 0; i < Q_COUNT + K_COUNT; i += HEAD_DIM)
        host[i] = 1;
}

static void print_first_pair(void) {
    for (int t = 0; t < TOKENS; t++) {
        const float *head = host + t * Q_HEADS * HEAD_DIM;
        printf("position %d: cos %+.7f sin %+.7f\n", t, head[0], head[HEAD_DIM / 2]);
    }
}

static int rotate(rope_device *device, const rope_plan *plan, float *data) {
    rope_args args = ROPE_ARGS_INIT;
    args.batch = 1;
    args.tokens = TOKENS;
    args.q.in = args.q.out = data;
    args.q.heads = Q_HEADS;
    args.k.in = args.k.out = data + Q_COUNT;
    args.k.heads = K_HEADS;
    return failed(rope_device_copy_in(device, data, host, sizeof host), "copy in") ||
           failed(rope_apply(plan, &args), "apply") ||
           failed(rope_device_synchronize(device), "synchronize") ||
           failed(rope_device_copy_out(device, host, data, sizeof host), "copy out");
}

int main(void) {
    rope_desc desc = ROPE_DESC_INIT;
    desc.dtype = ROPE_F32;
    desc.head_dim = HEAD_DIM;
    rope_device *device = NULL;
    rope_plan *plan = NULL;
    void *data = NULL;
    fill();
    int bad = failed(rope_device_open(NULL, 0, &device), "open") ||
              failed(rope_device_alloc(device, sizeof host, &data), "alloc") ||
              failed(rope_plan_create(&desc, &plan), "plan") || rotate(device, plan, (float *)data);
    if (!bad) {
        printf("rotated by %s\n", rope_plan_kernel(plan));
        print_first_pair();
    }
    rope_plan_destroy(plan);
    if (device)
        rope_device_free(device, data);
    rope_device_close(device);
    return bad;
}
