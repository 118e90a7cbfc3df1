/* Graphs of rope_decode, over packed sequences, by the portable kernel over rows of one token, and
 * of latents, and of rope_attention over prompts: a replay reads the lengths, boundaries and pages
 * that are there then, and gives the bits of a call whose workspace is new. */
#include "tests/gpu/fixture.h"
#include "tests/support/random.h"

#include <ropekit/decode.h>

#include <stdlib.h>
#include <string.h>

enum { SEQUENCES = 6, TOKENS = 13, Q = 8, PAGE = 16, PAGES = 96, MOST_PAGES = 216, SHORT = 100 };
enum { LATENT = 576, VALUE = 512, CACHE = SEQUENCES * PAGES * PAGE * LATENT };

/* Where a prompt's kernel is missing others are as right, but some run on the CPU. */
enum { ROUNDS = 6, FEW_ROUNDS = 2, FEW_KEYS = 200 };

/* What a plan attends to: heads of latents are one of keys, whose first elements are the values. */
typedef struct layer {
    const char *kernel;                            /* or NULL */
    int packed, tokens, most, k_heads, dim, v_dim; /* tokens: of a row; most: of a sequence */
    int is_prompt, cache;
} layer;

static const layer packed = {NULL, 1, TOKENS, 4, 2, 64, 64, 0, ROPE_CACHE_TABLE},
                   portable = {"decode_portable", 0, 1, 1, 2, 64, 64, 0, ROPE_CACHE_TABLE},
                   latents = {"decode_latent", 0, 1, 1, 1, LATENT, VALUE, 0, ROPE_CACHE_TABLE},
                   prompts[] = {{"sm90", 1, 100, 60, 2, 64, 64, 1, ROPE_CACHE_TABLE},
                                {"sm90", 1, 100, 60, 2, 64, 64, 1, ROPE_CACHE_SEQUENCE},
                                {"sm90", 1, 100, 60, 2, 64, 64, 1, 0},
                                {"sm90", 0, 7, 7, 1, 128, 128, 1, ROPE_CACHE_TABLE},
                                {"sm90", 0, 7, 7, 1, 128, 128, 1, ROPE_CACHE_SEQUENCE}};

static int is_latent(const layer *l) {
    return l->dim == LATENT;
}

/* Pages and keys that a sequence has room for. */
static int pages_of(const layer *l) {
    return l->is_prompt ? MOST_PAGES : PAGES;
}

static int keys_of(const layer *l) {
    return pages_of(l) * PAGE;
}

/* What a step reads and writes. */
typedef struct step {
    int32_t lengths[SEQUENCES], starts[SEQUENCES], counts[SEQUENCES], boundaries[SEQUENCES + 1],
        k_boundaries[SEQUENCES + 1], table[SEQUENCES * MOST_PAGES], flag;
    _Alignas(64) uint16_t q[TOKENS * Q * LATENT], k[TOKENS * LATENT], v[TOKENS * LATENT],
        out[TOKENS * Q * LATENT], caches[CACHE]; /* values behind keys */
} step;

static uint16_t number(test_random *r) {
    const float x = (float)random_real(r, -2, 2);
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

/* From no token of a sequence to the most; of packed ones some at the end belong to none. Or one of
 * each. One sequence may be as long as `keys`, and nearly is in odd rounds. */
static void fill(step *s, const layer *l, int keys, int64_t round) {
    test_random r = random_stream(test_seed(), round);
    uint16_t *lists[] = {s->q, s->k, s->v, s->caches};
    const size_t counts[] = {sizeof s->q, sizeof s->k, sizeof s->v, sizeof s->caches};
    const int pages = SEQUENCES * pages_of(l);
    memset(s, 0, sizeof *s);
    for (int i = 0; i < 4; i++)
        for (size_t n = 0; n < counts[i] / 2; n++)
            lists[i][n] = number(&r);
    for (int i = 0; i < pages; i++)
        s->table[i] = (i * 7 + (int)round) % pages;
    for (int i = 0; i < SEQUENCES; i++) {
        const int left = l->packed ? l->tokens - s->boundaries[i] : l->most,
                  least = l->packed || l->is_prompt ? 0 : 1,
                  tokens = (int)random_between(&r, least, left < l->most ? left : l->most);
        s->counts[i] = tokens;
        s->boundaries[i + 1] = s->boundaries[i] + tokens;
        const int shortest = i == 0 && round % 2 ? keys - SHORT : tokens;
        s->lengths[i] = (int32_t)random_between(&r, shortest, i == 0 ? keys : SHORT);
        s->k_boundaries[i + 1] = s->k_boundaries[i] + s->lengths[i];
        s->starts[i] = s->lengths[i] - tokens;
    }
}

static rope_args rope_of(step *s, const layer *l, gpuStream_t stream) {
    rope_args a = ROPE_ARGS_INIT;
    a.batch = l->packed ? 1 : SEQUENCES;
    a.tokens = l->tokens;
    a.cu_seqlens = l->packed ? s->boundaries : NULL;
    a.sequences = l->packed ? SEQUENCES : 0;
    a.q = (rope_tensor){.in = s->q, .heads = Q};
    a.k = (rope_tensor){.in = l->is_prompt ? NULL : s->k, .heads = l->k_heads};
    a.position_flag = &s->flag;
    a.stream = stream;
    return a;
}

/* Values, where a layer has such. */
static uint16_t *values_of(step *s, const layer *l) {
    return s->caches + (is_latent(l) ? 0 : SEQUENCES * keys_of(l) * l->k_heads * l->dim);
}

static rope_cache cache_of(const layer *l, uint16_t *data) {
    const int64_t slot = l->k_heads * l->dim,
                  page = slot * (l->cache == ROPE_CACHE_TABLE ? PAGE : keys_of(l));
    return (rope_cache){.data = data, .stride = {page, slot, l->dim, l->dim, 1}};
}

static rope_status decode(const rope_plan *plan, step *s, const layer *l, void *workspace,
                          size_t bytes, gpuStream_t stream) {
    rope_decode_args args = ROPE_DECODE_ARGS_INIT;
    rope_append_args *a = &args.append;
    a->rope = rope_of(s, l, stream);
    a->rope.sequence_offsets = s->starts;
    if (l->packed)
        args.most_tokens = l->most;
    if (!is_latent(l))
        a->v = (rope_tensor){.in = s->v, .heads = l->k_heads};
    a->k_cache = cache_of(l, s->caches);
    a->v_cache = cache_of(l, values_of(s, l));
    a->pages = SEQUENCES * PAGES;
    a->block_table = s->table;
    a->table_pages = PAGES;
    args.out.data = s->out;
    args.k_lengths = s->lengths;
    args.workspace = workspace;
    args.workspace_bytes = bytes;
    return rope_decode(plan, &args);
}

static rope_status attend(const rope_plan *plan, step *s, const layer *l, void *workspace,
                          size_t bytes, gpuStream_t stream) {
    rope_attention_args a = ROPE_ATTENTION_ARGS_INIT;
    const int is_table = l->cache == ROPE_CACHE_TABLE;
    a.rope = rope_of(s, l, stream);
    a.v.heads = l->k_heads;
    a.q_lengths = l->packed ? NULL : s->counts;
    if (l->cache) {
        a.k_cache = cache_of(l, s->caches);
        a.v_cache = cache_of(l, values_of(s, l));
        a.k_lengths = s->lengths;
        a.pages = SEQUENCES * (is_table ? pages_of(l) : 1);
        a.block_table = is_table ? s->table : NULL;
        a.table_pages = is_table ? pages_of(l) : 0;
    } else {
        a.rope.k.in = s->caches;
        a.v.in = values_of(s, l);
        a.k_cu_seqlens = s->k_boundaries;
        a.k_tokens = SEQUENCES * (int64_t)keys_of(l);
    }
    a.out.data = s->out;
    a.workspace = workspace;
    a.workspace_bytes = bytes;
    return rope_attention(plan, &a);
}

static rope_plan *decode_plan(const layer *l, const rope_attention_bounds *bounds, size_t *bytes) {
    rope_decode_desc desc = ROPE_DECODE_DESC_INIT;
    rope_plan *plan = NULL;
    desc.append.rope.dtype = ROPE_BF16;
    desc.append.rope.head_dim = l->dim;
    if (is_latent(l))
        desc.append.rope.rotary_dim = LATENT - VALUE, desc.append.rope.rotary_offset = VALUE;
    desc.append.v_head_dim = l->v_dim;
    desc.append.rope.position_dtype = ROPE_I32;
    desc.append.cache = l->cache;
    desc.append.page_size = PAGE;
    desc.append.rope.backend = GPU_BACKEND_NAME;
    desc.append.rope.kernel = l->kernel;
    CHECK_STATUS(ROPE_OK, rope_decode_plan_create(&desc, &plan));
    CHECK_STATUS(ROPE_OK, rope_decode_workspace(plan, bounds, bytes));
    return plan;
}

static rope_plan *attention_plan(const layer *l, const rope_attention_bounds *bounds,
                                 size_t *bytes) {
    rope_attention_desc desc = ROPE_ATTENTION_DESC_INIT;
    rope_plan *plan = NULL;
    desc.rope.dtype = ROPE_BF16;
    desc.rope.head_dim = l->dim;
    desc.rope.position_dtype = ROPE_I32;
    desc.rope.backend = GPU_BACKEND_NAME;
    desc.rope.kernel = l->kernel;
    desc.rotation = l->cache ? ROPE_ATTENTION_ROTATE_Q : ROPE_ATTENTION_ROTATE_QK;
    desc.cache = l->cache;
    desc.page_size = l->cache == ROPE_CACHE_TABLE ? PAGE : l->cache ? keys_of(l) : 0;
    desc.tuning = "";
    CHECK_STATUS(ROPE_OK, rope_attention_plan_create(&desc, &plan));
    CHECK_STATUS(ROPE_OK, rope_attention_workspace(plan, bounds, bytes));
    return plan;
}

static void check_replays(const layer *l, int rounds, int keys) {
    static step given, called, replayed;
    const rope_attention_bounds bounds = {.struct_size = sizeof bounds,
                                          .batch = l->packed ? 1 : SEQUENCES,
                                          .tokens = l->tokens,
                                          .k_tokens = keys_of(l) * (l->cache ? 1 : SEQUENCES),
                                          .sequences = l->packed ? SEQUENCES : 0,
                                          .q_heads = Q,
                                          .k_heads = l->k_heads};
    rope_device *device = fixture_device(0);
    size_t bytes;
    void *at[2], *workspace[2];
    gpuStream_t stream;
    rope_plan *plan = (l->is_prompt ? attention_plan : decode_plan)(l, &bounds, &bytes);
    for (int i = 0; i < 2; i++) {
        CHECK_STATUS(ROPE_OK, rope_device_alloc(device, sizeof given, &at[i]));
        CHECK_STATUS(ROPE_OK, rope_device_alloc(device, bytes + 256, &workspace[i]));
    }
    void *zeros = calloc(1, bytes + 256);
    CHECK_GPU(gpuStreamCreateWithFlags(&stream, gpuStreamNonBlocking));
    fixture_capture(stream);
    const rope_status status =
        (l->is_prompt ? attend : decode)(plan, at[1], l, workspace[1], bytes, stream);
    gpuGraphExec_t exec = fixture_captured(stream, status);
    for (int round = 0; round < rounds; round++) {
        fill(&given, l, keys, round);
        for (int i = 0; i < 2; i++)
            CHECK_STATUS(ROPE_OK, rope_device_copy_in(device, at[i], &given, sizeof given));
        CHECK_STATUS(ROPE_OK, rope_device_copy_in(device, workspace[0], zeros, bytes + 256));
        CHECK_STATUS(ROPE_OK,
                     (l->is_prompt ? attend : decode)(plan, at[0], l, workspace[0], bytes, stream));
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
    CHECK_GPU(gpuStreamDestroy(stream));
    for (int i = 0; i < 2; i++) {
        CHECK_STATUS(ROPE_OK, rope_device_free(device, at[i]));
        CHECK_STATUS(ROPE_OK, rope_device_free(device, workspace[i]));
    }
    rope_plan_destroy(plan);
    rope_device_close(device);
}

static int has_kernel(const char *operation, const char *kernel) {
    rope_device *device = fixture_device(0);
    const char *name;
    int32_t i = 0;
    while ((name = rope_device_kernel(device, operation, i)) && strcmp(name, kernel) != 0)
        i++;
    rope_device_close(device);
    return name != NULL;
}

TEST(streams, decode_graphs_replay_with_other_lengths) {
    check_replays(&packed, ROUNDS, keys_of(&packed));
}

TEST(streams, portable_decode_graphs_replay_with_other_lengths) {
    check_replays(&portable, ROUNDS, keys_of(&portable));
}

TEST(streams, latent_decode_graphs_replay_with_other_lengths) {
    if (!has_kernel("decode", latents.kernel))
        SKIP("the device has no %s", latents.kernel);
    check_replays(&latents, ROUNDS, keys_of(&latents));
}

TEST(streams, prompt_graphs_replay_with_other_lengths) {
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++) {
        layer l = prompts[i];
        const int has = has_kernel("attention", l.kernel);
        l.kernel = has ? l.kernel : NULL;
        check_replays(&l, has ? ROUNDS : FEW_ROUNDS, has ? keys_of(&l) : FEW_KEYS);
    }
}
