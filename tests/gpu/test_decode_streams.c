/* A graph of rope_decode, over packed sequences, by the portable kernel over rows of one token, and
 * of latents: a replay reads the lengths, boundaries and pages that are there then, and gives the
 * bits of a call whose workspace is new. */
#include "tests/gpu/fixture.h"
#include "tests/support/random.h"

#include <ropekit/decode.h>

#include <stdlib.h>
#include <string.h>

enum { SEQUENCES = 6, MOST = 4, TOKENS = 13, Q = 8, PAGE = 16, PAGES = 96, KEYS = PAGES * PAGE };
enum { ROUNDS = 6, SHORT = 100, LATENT = 576, VALUE = 512, CACHE = SEQUENCES * KEYS * LATENT };

/* What a plan decodes: heads of latents are one of keys, whose first elements are the values. */
typedef struct layer {
    const char *kernel; /* or NULL */
    int packed, k_heads, dim, v_dim;
} layer;

static const layer packed = {NULL, 1, 2, 64, 64}, portable = {"decode_portable", 0, 2, 64, 64},
                   latents = {"decode_latent", 0, 1, LATENT, VALUE};

static int is_latent(const layer *l) {
    return l->dim == LATENT;
}

/* What a step reads and writes. */
typedef struct step {
    int32_t lengths[SEQUENCES], starts[SEQUENCES], boundaries[SEQUENCES + 1],
        table[SEQUENCES * PAGES], flag;
    uint16_t q[TOKENS * Q * LATENT], k[TOKENS * LATENT], v[TOKENS * LATENT],
        out[TOKENS * Q * LATENT], caches[CACHE]; /* values behind keys */
} step;

static uint16_t number(test_random *r) {
    const float x = (float)random_real(r, -2, 2);
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

/* From no token of a sequence to MOST; some at the end belong to none. Or one of each. One sequence
 * may be long. */
static void fill(step *s, int is_packed, int64_t round) {
    test_random r = random_stream(test_seed(), round);
    uint16_t *lists[] = {s->q, s->k, s->v, s->caches};
    const size_t counts[] = {sizeof s->q, sizeof s->k, sizeof s->v, sizeof s->caches};
    memset(s, 0, sizeof *s);
    for (int i = 0; i < 4; i++)
        for (size_t n = 0; n < counts[i] / 2; n++)
            lists[i][n] = number(&r);
    for (int i = 0; i < SEQUENCES * PAGES; i++)
        s->table[i] = (i * 7 + (int)round) % (SEQUENCES * PAGES);
    for (int i = 0; i < SEQUENCES; i++) {
        const int left = TOKENS - s->boundaries[i],
                  tokens = is_packed ? (int)random_between(&r, 0, left < MOST ? left : MOST) : 1;
        s->boundaries[i + 1] = s->boundaries[i] + tokens;
        s->lengths[i] = (int32_t)random_between(&r, tokens, i == 0 ? KEYS : SHORT);
        s->starts[i] = s->lengths[i] - tokens;
    }
}

static rope_decode_args args_of(step *s, const layer *l, void *workspace, size_t bytes,
                                gpuStream_t stream) {
    rope_decode_args args = ROPE_DECODE_ARGS_INIT;
    rope_append_args *a = &args.append;
    const int64_t slot = l->k_heads * l->dim, stride[5] = {PAGE * slot, slot, l->dim, l->dim, 1};
    a->rope.batch = l->packed ? 1 : SEQUENCES;
    a->rope.tokens = l->packed ? TOKENS : 1;
    if (l->packed) {
        a->rope.cu_seqlens = s->boundaries;
        a->rope.sequences = SEQUENCES;
        args.most_tokens = MOST;
    }
    a->rope.q = (rope_tensor){.in = s->q, .heads = Q};
    a->rope.k = (rope_tensor){.in = s->k, .heads = l->k_heads};
    if (!is_latent(l))
        a->v = (rope_tensor){.in = s->v, .heads = l->k_heads};
    a->k_cache.data = s->caches;
    a->v_cache.data = s->caches + (is_latent(l) ? 0 : SEQUENCES * KEYS * slot);
    memcpy(a->k_cache.stride, stride, sizeof stride);
    memcpy(a->v_cache.stride, stride, sizeof stride);
    a->rope.sequence_offsets = s->starts;
    a->rope.position_flag = &s->flag;
    a->rope.stream = stream;
    a->pages = SEQUENCES * PAGES;
    a->block_table = s->table;
    a->table_pages = PAGES;
    args.out.data = s->out;
    args.k_lengths = s->lengths;
    args.workspace = workspace;
    args.workspace_bytes = bytes;
    return args;
}

static rope_plan *plan_of(const layer *l, size_t *bytes) {
    const rope_attention_bounds bounds = {.struct_size = sizeof bounds,
                                          .batch = l->packed ? 1 : SEQUENCES,
                                          .tokens = l->packed ? TOKENS : 1,
                                          .k_tokens = KEYS,
                                          .sequences = l->packed ? SEQUENCES : 0,
                                          .q_heads = Q,
                                          .k_heads = l->k_heads};
    rope_decode_desc desc = ROPE_DECODE_DESC_INIT;
    rope_plan *plan = NULL;
    desc.append.rope.dtype = ROPE_BF16;
    desc.append.rope.head_dim = l->dim;
    if (is_latent(l))
        desc.append.rope.rotary_dim = LATENT - VALUE, desc.append.rope.rotary_offset = VALUE;
    desc.append.v_head_dim = l->v_dim;
    desc.append.rope.position_dtype = ROPE_I32;
    desc.append.cache = ROPE_CACHE_TABLE;
    desc.append.page_size = PAGE;
    desc.append.rope.backend = GPU_BACKEND_NAME;
    desc.append.rope.kernel = l->kernel;
    CHECK_STATUS(ROPE_OK, rope_decode_plan_create(&desc, &plan));
    CHECK_STATUS(ROPE_OK, rope_decode_workspace(plan, &bounds, bytes));
    return plan;
}

static void check_replays(const layer *l) {
    static step given, called, replayed;
    rope_device *device = fixture_device(0);
    size_t bytes;
    void *at[2], *workspace[2];
    gpuStream_t stream;
    gpuGraph_t graph;
    gpuGraphExec_t exec;
    rope_plan *plan = plan_of(l, &bytes);
    for (int i = 0; i < 2; i++) {
        CHECK_STATUS(ROPE_OK, rope_device_alloc(device, sizeof given, &at[i]));
        CHECK_STATUS(ROPE_OK, rope_device_alloc(device, bytes + 256, &workspace[i]));
    }
    void *zeros = calloc(1, bytes + 256);
    CHECK_GPU(gpuStreamCreateWithFlags(&stream, gpuStreamNonBlocking));
    const rope_decode_args call = args_of(at[0], l, workspace[0], bytes, stream),
                           captured = args_of(at[1], l, workspace[1], bytes, stream);
    CHECK_GPU(gpuStreamBeginCapture(stream, gpuStreamCaptureModeThreadLocal));
    const rope_status status = rope_decode(plan, &captured);
    CHECK_GPU(gpuStreamEndCapture(stream, &graph));
    CHECK_STATUS(ROPE_OK, status);
    CHECK_GPU(gpuGraphInstantiate(&exec, graph));
    for (int round = 0; round < ROUNDS; round++) {
        fill(&given, l->packed, round);
        for (int i = 0; i < 2; i++)
            CHECK_STATUS(ROPE_OK, rope_device_copy_in(device, at[i], &given, sizeof given));
        CHECK_STATUS(ROPE_OK, rope_device_copy_in(device, workspace[0], zeros, bytes + 256));
        CHECK_STATUS(ROPE_OK, rope_decode(plan, &call));
        CHECK_GPU(gpuGraphLaunch(exec, stream));
        CHECK_GPU(gpuStreamSynchronize(stream));
        CHECK_STATUS(ROPE_OK, rope_device_copy_out(device, &called, at[0], sizeof given));
        CHECK_STATUS(ROPE_OK, rope_device_copy_out(device, &replayed, at[1], sizeof given));
        CHECK(memcmp(&called, &replayed, sizeof given) == 0, "round %d: a replay differs", round);
        CHECK(memcmp(&called, &given, sizeof given) != 0, "round %d: nothing was written", round);
        CHECK(!called.flag, "round %d: a sequence was left out", round);
    }
    free(zeros);
    CHECK_GPU(gpuGraphExecDestroy(exec));
    CHECK_GPU(gpuGraphDestroy(graph));
    CHECK_GPU(gpuStreamDestroy(stream));
    for (int i = 0; i < 2; i++) {
        CHECK_STATUS(ROPE_OK, rope_device_free(device, at[i]));
        CHECK_STATUS(ROPE_OK, rope_device_free(device, workspace[i]));
    }
    rope_plan_destroy(plan);
    rope_device_close(device);
}

TEST(streams, decode_graphs_replay_with_other_lengths) {
    check_replays(&packed);
}

TEST(streams, portable_decode_graphs_replay_with_other_lengths) {
    check_replays(&portable);
}

TEST(streams, latent_decode_graphs_replay_with_other_lengths) {
    rope_device *device = fixture_device(0);
    const char *name;
    int32_t i = 0;
    while ((name = rope_device_kernel(device, "decode", i)) && strcmp(name, latents.kernel) != 0)
        i++;
    rope_device_close(device);
    if (!name)
        SKIP("the device has no %s", latents.kernel);
    check_replays(&latents);
}
