/* Launches that start early read what the kernel ahead of them on the stream wrote: a chain of
 * rotations in place, each by ids that the kernel before it wrote. */
#include "tests/gpu/fixture.h"

#include <string.h>

typedef struct shape {
    const char *kernel;
    int32_t dtype, axes;
    int64_t tokens, q, k, head_dim;
} shape;

/* The first has fewer blocks than a device has multiprocessors and lets the next launch start at
 * once; each of the others has more than 170. */
static const shape shapes[] = {
    {"plain", ROPE_BF16, 1, 64, 3, 1, 64},    {"narrow", ROPE_BF16, 1, 512, 3, 1, 64},
    {"narrow", ROPE_F32, 1, 256, 3, 1, 128},  {"wide", ROPE_BF16, 1, 1024, 3, 1, 128},
    {"wide", ROPE_F32, 1, 2048, 3, 1, 64},    {"single_head", ROPE_F16, 1, 4096, 1, 0, 128},
    {"narrow", ROPE_F16, 1, 512, 4, 2, 128},  {"wide", ROPE_BF16, 1, 1024, 4, 2, 128},
    {"deep", ROPE_BF16, 1, 1024, 8, 4, 128},  {"deep", ROPE_F32, 1, 512, 8, 4, 128},
    {"narrow", ROPE_BF16, 3, 384, 3, 1, 64},  {"wide", ROPE_BF16, 3, 2048, 3, 1, 64},
    {"generic", ROPE_BF16, 1, 256, 3, 1, 64},
};

/* Moves bits: one token at position 0, whose cosine is 1 and sine 0, of fp32 that are finite and
 * have no sign. */
static shape copy_of(size_t bytes) {
    return (shape){"plain", ROPE_F32, 1, 1, (int64_t)(bytes / 256), 0, 64};
}

static size_t size_of(const shape *s) {
    return s->dtype == ROPE_F32 ? 4 : 2;
}

static rope_plan *plan_of(const shape *s, const char *backend, const char *kernel) {
    static const uint8_t axes_of_pairs[32] = {0, 1, 2, 2, 1, 0, 1, 1};
    rope_desc desc = ROPE_DESC_INIT;
    desc.backend = backend;
    desc.kernel = kernel;
    desc.launch = ROPE_LAUNCH_PROGRAMMATIC;
    desc.dtype = s->dtype;
    desc.head_dim = (int32_t)s->head_dim;
    desc.rope_theta = 10000;
    desc.axes = s->axes;
    if (s->axes > 1) {
        desc.axis_layout = ROPE_AXES_CUSTOM;
        desc.pair_axis = axes_of_pairs;
    }
    rope_plan *plan = NULL;
    CHECK_STATUS(ROPE_OK, rope_plan_create(&desc, &plan));
    return plan;
}

static void apply(const rope_plan *plan, const shape *s, const char *in, char *out,
                  const int64_t *ids, gpuStream_t stream) {
    const size_t k = (size_t)(s->tokens * s->q * s->head_dim) * size_of(s);
    rope_args args = ROPE_ARGS_INIT;
    args.batch = 1;
    args.tokens = s->tokens;
    args.position_ids = ids;
    args.stream = stream;
    args.q = (rope_tensor){.in = in, .out = out, .heads = s->q};
    if (s->k)
        args.k = (rope_tensor){.in = in + k, .out = out + k, .heads = s->k};
    CHECK_STATUS(ROPE_OK, rope_apply(plan, &args));
}

enum { ROUNDS = 40, IDS_MOST = 3 * 2048, BYTES_MOST = 4 << 20 };

typedef struct chain {
    const shape *s;
    int64_t rounds;
    size_t ids, bytes; /* of a round; of q and k */
    char in[BYTES_MOST], out[BYTES_MOST], expected[BYTES_MOST];
    int64_t host_ids[ROUNDS * IDS_MOST]; /* of every round */
    char *memory;                        /* on the device */
    int64_t *source, *target;            /* ids of every round, and of the one that runs */
} chain;

static void fill(chain *c, const shape *s) {
    c->s = s;
    c->rounds = test_scaled(ROUNDS) < ROUNDS ? 1 + test_scaled(ROUNDS - 1) : ROUNDS;
    c->ids = (size_t)(s->tokens * s->axes);
    c->bytes = (size_t)(s->tokens * (s->q + s->k) * s->head_dim) * size_of(s);
    CHECK(c->bytes <= BYTES_MOST && c->ids <= IDS_MOST, "a shape without room");
    for (size_t i = 0; i < c->bytes; i += 2) {
        uint16_t x = (uint16_t)(0x3c00 + i * 2654435761u % 0x400);
        memcpy(c->in + i, &x, 2);
    }
    for (size_t i = 0; i < (size_t)c->rounds * c->ids; i++) /* as fp32, 1 to 2 and 0 */
        c->host_ids[i] = 0x3f800000 + (int64_t)(i * 2654435761u % 0x800000);
    memcpy(c->expected, c->in, c->bytes);
    rope_plan *plan = plan_of(s, "cpu", NULL);
    for (int64_t i = 0; i < c->rounds; i++)
        apply(plan, s, c->expected, c->expected, c->host_ids + (size_t)i * c->ids, NULL);
    rope_plan_destroy(plan);
}

static void submit(const chain *c, const rope_plan *copy, const rope_plan *rotate,
                   gpuStream_t stream) {
    const shape ids = copy_of(c->ids * sizeof *c->source);
    for (int64_t i = 0; i < c->rounds; i++) {
        apply(copy, &ids, (const char *)(c->source + (size_t)i * c->ids), (char *)c->target, NULL,
              stream);
        apply(rotate, c->s, c->memory, c->memory, c->target, stream);
    }
}

static void submit_as_graph(const chain *c, const rope_plan *copy, const rope_plan *rotate,
                            gpuStream_t stream) {
    fixture_capture(stream);
    submit(c, copy, rotate, stream);
    gpuGraphExec_t exec = fixture_captured(stream, ROPE_OK);
    CHECK_GPU(gpuGraphLaunch(exec, stream));
    CHECK_GPU(gpuStreamSynchronize(stream));
    CHECK_GPU(gpuGraphExecDestroy(exec));
}

static void run(chain *c, rope_device *device, const shape *s, int as_graph) {
    const shape ids = copy_of(256);
    rope_plan *copy = plan_of(&ids, GPU_BACKEND_NAME, ids.kernel);
    rope_plan *rotate = plan_of(s, GPU_BACKEND_NAME, s->kernel);
    gpuStream_t stream;
    CHECK_GPU(gpuStreamCreateWithFlags(&stream, gpuStreamNonBlocking));
    CHECK_STATUS(ROPE_OK, rope_device_copy_in(device, c->memory, c->in, c->bytes));
    (as_graph ? submit_as_graph : submit)(c, copy, rotate, stream);
    CHECK_GPU(gpuStreamSynchronize(stream));
    CHECK_STATUS(ROPE_OK, rope_device_copy_out(device, c->out, c->memory, c->bytes));
    CHECK(memcmp(c->out, c->expected, c->bytes) == 0, "%s, %lld tokens%s: not the CPU's bits",
          s->kernel, (long long)s->tokens, as_graph ? ", in a graph" : "");
    CHECK_GPU(gpuStreamDestroy(stream));
    rope_plan_destroy(copy);
    rope_plan_destroy(rotate);
}

TEST(early, launches_read_what_was_written) {
    static fixture f;
    static chain c;
    void *memory = NULL;
    fixture_open(&f, 0, FIXTURE_PLAIN);
    CHECK_STATUS(ROPE_OK, rope_device_alloc(f.device, BYTES_MOST, &memory));
    c.memory = memory;
    CHECK_STATUS(ROPE_OK, rope_device_alloc(f.device, sizeof c.host_ids, &memory));
    c.source = memory;
    CHECK_STATUS(ROPE_OK, rope_device_alloc(f.device, IDS_MOST * sizeof(int64_t), &memory));
    c.target = memory;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        fill(&c, &shapes[i]);
        CHECK_STATUS(ROPE_OK, rope_device_copy_in(f.device, c.source, c.host_ids,
                                                  (size_t)c.rounds * c.ids * sizeof(int64_t)));
        run(&c, f.device, &shapes[i], 0);
        run(&c, f.device, &shapes[i], 1);
    }
    CHECK_STATUS(ROPE_OK, rope_device_free(f.device, c.memory));
    CHECK_STATUS(ROPE_OK, rope_device_free(f.device, c.source));
    CHECK_STATUS(ROPE_OK, rope_device_free(f.device, c.target));
    fixture_close(&f);
}
