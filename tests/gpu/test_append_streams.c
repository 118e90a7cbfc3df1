/* A captured call of "append" reads positions, places and scales that are there when it is
 * replayed. */
#include "tests/gpu/fixture.h"

#include <ropekit/append.h>

#include <stddef.h>
#include <string.h>

/* 8 heads of q, as few as a block of a latent kernel takes in every geometry. */
enum { TOKENS = 13, SEQUENCES = 2, Q = 8, K = 2, DIM = 64, PAGES = 9, PAGE = 4, TABLE = 4 };
enum { LATENT = 512, ROW = LATENT + DIM }; /* elements of MLA's key, one a token */

/* What is captured: q, k and v to slots, or of two sequences to pages of a table; keys that move by
 * one distance in slots, or each by its own, of 8 bits, in pages of a table; MLA. */
typedef enum captured { BY_SLOTS, BY_TABLE, MOVED, MOVED_8BIT, MLA } captured;

/* All that a call reads and writes, in one piece. */
typedef struct append_memory {
    uint16_t q[TOKENS * Q * DIM], k[TOKENS * ROW], v[TOKENS * K * DIM], weight[LATENT];
    uint8_t k_cache[PAGES * PAGE * ROW * 2];
    uint8_t v_cache[PAGES * PAGE * K * DIM];
    uint16_t out[TOKENS * Q * DIM];
    int64_t ids[TOKENS], slots[TOKENS], table[SEQUENCES * TABLE], starts[SEQUENCES];
    int64_t boundaries[SEQUENCES + 1];
    float scale[2];
} append_memory;

static rope_append_desc describe(const char *kernel, captured what) {
    const rope_norm norm = {.type = ROPE_NORM_RMS, .weight = ROPE_NORM_WEIGHT, .eps = 1e-6};
    rope_append_desc desc = ROPE_APPEND_DESC_INIT;
    desc.rope.backend = GPU_BACKEND_NAME;
    desc.rope.kernel = kernel;
    desc.rope.dtype = ROPE_BF16;
    desc.rope.head_dim = DIM;
    desc.rope.rope_theta = 10000;
    desc.rope.position_dtype = ROPE_I64;
    desc.cache = what == BY_TABLE || what == MOVED_8BIT ? ROPE_CACHE_TABLE : ROPE_CACHE_SLOTS;
    desc.page_size = PAGE;
    if (what == MLA) {
        desc.rope.k_head_dim = ROW;
        desc.rope.k_rotary_offset = LATENT;
        desc.k.norm = norm;
        desc.k.norm.dim = LATENT;
    } else if (what == MOVED || what == MOVED_8BIT) {
        desc.k_source = ROPE_SOURCE_CACHE;
        desc.k.store_dtype = what == MOVED ? ROPE_BF16 : ROPE_F8E4M3;
        desc.k.scale = what == MOVED ? 0 : ROPE_SCALE_TENSOR;
    } else {
        desc.q.norm = desc.k.norm = norm;
        desc.v.store_dtype = ROPE_F8E4M3;
        desc.v.scale = what == BY_SLOTS ? ROPE_SCALE_TENSOR : ROPE_SCALE_HEAD;
    }
    return desc;
}

static void set_places(rope_append_args *a, append_memory *m, captured what) {
    a->pages = PAGES;
    if (what != BY_TABLE && what != MOVED_8BIT) {
        a->slots = m->slots;
        return;
    }
    a->block_table = m->table;
    a->table_pages = TABLE;
    a->cache_starts = m->starts;
    if (what == BY_TABLE) {
        a->rope.cu_seqlens = m->boundaries;
        a->rope.sequences = SEQUENCES;
    }
}

static rope_append_args args_on(append_memory *m, captured what) {
    rope_append_args a = ROPE_APPEND_ARGS_INIT;
    a.rope.batch = 1;
    a.rope.tokens = TOKENS;
    a.rope.position_ids = m->ids;
    a.k_cache = (rope_cache){.data = m->k_cache};
    set_places(&a, m, what);
    if (what == MOVED || what == MOVED_8BIT) {
        a.rope.k.heads = K;
        a.rope.position_stride[0] = what == MOVED;
        a.k_cache.scale.data = what == MOVED ? NULL : m->scale;
        return a;
    }
    a.k_weight.data = m->weight;
    a.rope.q = (rope_tensor){.in = m->q, .out = what == MLA ? m->q : m->out, .heads = Q};
    a.rope.k = (rope_tensor){.in = m->k, .heads = what == MLA ? 1 : K};
    if (what == MLA)
        return a;
    a.q_weight.data = m->weight;
    a.v = (rope_tensor){.in = m->v, .heads = K};
    a.v_cache = (rope_cache){.data = m->v_cache, .scale = {.data = m->scale}};
    return a;
}

/* Other places, positions, boundaries and scales in every round; other keys in the cache, which are
 * 4e-5 to 0.75 as bf16 and 1 to 1.875 as e4m3. */
static void fill_round(append_memory *m, int round) {
    for (int i = 0; i < TOKENS; i++) {
        m->ids[i] = (i * 7919ll + round * 104729ll) % 131072;
        m->slots[i] = (i + round) % 5 == 0 ? -1 : (i * 5 + 3 * round) % (PAGES * PAGE);
    }
    for (int i = 0; i < SEQUENCES * TABLE; i++)
        m->table[i] = (i + round) % PAGES;
    m->boundaries[1] = 3 + round;
    m->boundaries[2] = TOKENS;
    m->starts[0] = round % 3;
    m->starts[1] = 1;
    m->scale[0] = 0.25f + (float)round;
    m->scale[1] = 0.5f;
    for (uint32_t i = 0; i < sizeof m->k_cache; i++)
        m->k_cache[i] = (uint8_t)(0x38 + (((i + 7u * (uint32_t)round) * 2654435761u) >> 29));
    memset(m->v_cache, 0x11, sizeof m->v_cache + sizeof m->out);
}

static void fill_inputs(append_memory *m) {
    uint16_t *first = m->q;
    memset(m, 0, sizeof *m);
    for (size_t i = 0; i < offsetof(append_memory, k_cache) / 2; i++)
        first[i] = (uint16_t)(0x3f00 + i * 2654435761u % 0x200); /* 0.5 to 2 */
}

static void run_on_cpu(const append_memory *given, append_memory *expected, captured what) {
    rope_append_desc desc = describe(NULL, what);
    rope_plan *plan = NULL;
    desc.rope.backend = "cpu";
    *expected = *given;
    CHECK_STATUS(ROPE_OK, rope_append_plan_create(&desc, &plan));
    const rope_append_args args = args_on(expected, what);
    CHECK_STATUS(ROPE_OK, rope_append(plan, &args));
    rope_plan_destroy(plan);
}

static void replay_rounds(gpuGraphExec_t exec, gpuStream_t stream, append_memory *device,
                          captured what, const char *kernel) {
    static append_memory given, expected, got;
    fill_inputs(&given);
    for (int round = 1; round <= 5; round++) {
        fill_round(&given, round);
        run_on_cpu(&given, &expected, what);
        CHECK_GPU(gpuMemcpyAsync(device, &given, sizeof given, gpuMemcpyHostToDevice, stream));
        CHECK_GPU(gpuGraphLaunch(exec, stream));
        CHECK_GPU(gpuMemcpyAsync(&got, device, sizeof got, gpuMemcpyDeviceToHost, stream));
        CHECK_GPU(gpuStreamSynchronize(stream));
        CHECK(memcmp(&got, &expected, sizeof got) == 0,
              "%s, call %d: round %d differs from the CPU", kernel, (int)what, round);
    }
}

static void replay(const char *kernel, captured what) {
    const rope_append_desc desc = describe(kernel, what);
    rope_device *device = fixture_device(0);
    rope_plan *plan = NULL;
    void *memory;
    gpuStream_t stream;
    CHECK_STATUS(ROPE_OK, rope_append_plan_create(&desc, &plan));
    CHECK_STATUS(ROPE_OK, rope_device_alloc(device, sizeof(append_memory), &memory));
    CHECK_GPU(gpuStreamCreateWithFlags(&stream, gpuStreamNonBlocking));
    rope_append_args args = args_on(memory, what);
    args.rope.stream = stream;
    fixture_capture(stream);
    const rope_status status = rope_append(plan, &args);
    gpuGraphExec_t exec = fixture_captured(stream, status);
    replay_rounds(exec, stream, memory, what, kernel);
    CHECK_GPU(gpuGraphExecDestroy(exec));
    CHECK_GPU(gpuStreamDestroy(stream));
    CHECK_STATUS(ROPE_OK, rope_device_free(device, memory));
    rope_plan_destroy(plan);
    rope_device_close(device);
}

TEST(streams, append_graphs_replay_with_other_places) {
    static const char *const kernels[] = {"vector", "generic"};
    replay("plain", BY_SLOTS);
    for (int i = 0; i < 2; i++) {
        replay(kernels[i], BY_SLOTS);
        replay(kernels[i], BY_TABLE);
    }
}

TEST(streams, append_graphs_replay_with_other_distances) {
    static const char *const kernels[] = {"moved", "vector", "generic"};
    for (int i = 0; i < 3; i++) {
        replay(kernels[i], MOVED);
        replay(kernels[i], MOVED_8BIT);
    }
}

TEST(streams, append_graphs_replay_mla) {
    static const char *const kernels[] = {"latent", "vector", "generic"};
    for (int i = 0; i < 3; i++)
        replay(kernels[i], MLA);
}
