/* Prompts have one set of bits, call after call: thousands of calls of several plans, which share a
 * workspace and follow each other on a stream without a wait. */
#include "tests/attention/compare.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <stdlib.h>
#include <string.h>

/* Of all shapes together on a GPU that has the kernel; elsewhere some of each; calls of each whose
 * results lie side by side. */
enum { CALLS = 10000, FEW_ROUNDS = 2, BATCH = 8 };

/* sequences: packed ones, whose lengths rise, or 0; page: of a table of pages, or 0. */
typedef struct prompt_shape {
    int32_t dtype, dim, v_dim, tokens, keys, q_heads, k_heads, sequences, page, cap, norms;
} prompt_shape;

/* What Hopper's kernels of prompts differ in. Values are few where rows must be many, as results
 * are copied. */
static const prompt_shape shapes[] = {
    {ROPE_BF16, 128, 128, 200, 200, 4, 1, 0, 0, 0, 0},
    {ROPE_F16, 64, 64, 200, 200, 2, 2, 0, 0, 0, 0},
    {ROPE_BF16, 192, 128, 150, 150, 4, 2, 0, 0, 0, 0},
    {ROPE_BF16, 256, 256, 150, 150, 2, 1, 0, 0, 0, 0},
    {ROPE_BF16, 128, 128, 150, 400, 4, 1, 0, 0, 50, 0},
    {ROPE_BF16, 64, 64, 400, 400, 4, 1, 5, 0, 0, 0},
    {ROPE_F16, 128, 128, 300, 600, 4, 1, 7, 0, 0, 0},
    {ROPE_BF16, 128, 8, 550, 550, 64, 8, 0, 0, 0, 0}, /* queries rotate beside products */
    {ROPE_BF16, 128, 8, 550, 550, 64, 8, 0, 0, 0, 1},
    {ROPE_BF16, 64, 8, 9000, 9000, 1, 1, 530, 0, 0, 0}, /* tiles are dealt */
    {ROPE_F16, 64, 8, 800, 800, 64, 1, 0, 0, 0, 0},     /* tall tiles */
    {ROPE_BF16, 64, 64, 64, 3200, 8, 2, 0, 0, 0, 0},    /* spans, as below */
    {ROPE_BF16, 128, 128, 64, 3200, 4, 1, 0, 16, 0, 0},
    {ROPE_F16, 64, 64, 64, 3200, 8, 2, 3, 64, 0, 0},
    {ROPE_BF16, 128, 128, 96, 3200, 4, 1, 6, 32, 0, 0},
};
enum { SHAPES = sizeof shapes / sizeof *shapes, SMALLER = 16, FEW_HEADS = 8, FEW_SEQUENCES = 6 };

static prompt_shape shape_of(int i) {
    prompt_shape s = shapes[i];
    if (!device_runs_on_cpu())
        return s;
    s.tokens = s.tokens / SMALLER + 1;
    s.keys = s.keys / SMALLER + 1;
    s.q_heads = s.q_heads < FEW_HEADS ? s.q_heads : FEW_HEADS;
    s.k_heads = s.k_heads < FEW_HEADS ? s.k_heads : 1;
    s.sequences = s.sequences < FEW_SEQUENCES ? s.sequences : FEW_SEQUENCES;
    return s;
}

/* A plan, its arguments, and its results: `out` and lse of a call, those of the next, and so on. */
typedef struct prompt {
    rope_plan *plan;
    rope_attention_args args;
    void *memory[6]; /* on the device; the last one has results */
    size_t out_bytes, bytes;
    unsigned char *first, *got;
} prompt;

static void *put(prompt *p, int i, const void *data, size_t bytes) {
    CHECK_STATUS(ROPE_OK, rope_device_alloc(device_open(), bytes, &p->memory[i]));
    CHECK_STATUS(ROPE_OK, rope_device_copy_in(device_open(), p->memory[i], data, bytes));
    return p->memory[i];
}

/* Numbers of either type: f16 of 1 to 2, bf16 up to 2. Where some rows alone see the one that is
 * infinite, its tile is computed again. */
static void *put_numbers(prompt *p, int i, int64_t count, int has_infinity) {
    uint16_t *x = malloc((size_t)count * sizeof *x);
    test_random r = random_stream(test_seed(), i);
    for (int64_t n = 0; n < count; n++)
        x[n] = (uint16_t)((random_bits(&r) & 0x83ff) | 0x3c00);
    if (has_infinity)
        x[count / 4 * 3] = 0x7f80; /* a NaN as f16 */
    void *memory = put(p, i, x, (size_t)count * sizeof *x);
    free(x);
    return memory;
}

static int64_t rows_of(const prompt_shape *s) {
    return s->sequences ? s->sequences : 1;
}

static int64_t pages_of(const prompt_shape *s) {
    return s->page ? (s->keys + s->page - 1) / s->page : 0;
}

/* Boundaries of queries and of keys, then lengths and tables of pages. */
static void put_lists(prompt *p, const prompt_shape *s) {
    const int64_t rows = rows_of(s), pages = rows * pages_of(s);
    int32_t *list = malloc((size_t)(3 * rows + 2 + pages) * sizeof *list),
            *k_ends = list + rows + 1, *lengths = k_ends + rows + 1, *table = lengths + rows;
    for (int64_t n = 0; n <= rows; n++) {
        list[n] = (int32_t)(s->tokens * n * n / (rows * rows));
        k_ends[n] = (int32_t)(list[n] * (int64_t)s->keys / s->tokens);
        if (n < rows)
            lengths[n] = (int32_t)(s->keys * (n + 1) / rows);
    }
    for (int64_t n = 0; n < pages; n++)
        table[n] = (int32_t)((7 * n + 3) % pages);
    const int32_t *at = put(p, 0, list, (size_t)(3 * rows + 2 + pages) * sizeof *list);
    rope_attention_args *a = &p->args;
    a->rope.sequences = s->sequences;
    a->rope.cu_seqlens = s->sequences ? at : NULL;
    a->k_cu_seqlens = s->sequences && !s->page ? at + rows + 1 : NULL;
    a->k_lengths = s->page ? at + 2 * rows + 2 : NULL;
    a->block_table = s->page ? at + 3 * rows + 2 : NULL;
    a->pages = pages;
    a->table_pages = pages_of(s);
    free(list);
}

static void put_tensors(prompt *p, const prompt_shape *s) {
    const int64_t keys = s->page ? rows_of(s) * pages_of(s) * s->page : s->keys;
    rope_attention_args *a = &p->args;
    void *k = put_numbers(p, 2, keys * s->k_heads * s->dim, 0),
         *v = put_numbers(p, 3, keys * s->k_heads * s->v_dim, 1);
    a->rope.batch = 1;
    a->rope.tokens = s->tokens;
    a->k_tokens = s->page ? 0 : s->keys;
    a->rope.q = (rope_tensor){.in = put_numbers(p, 1, (int64_t)s->tokens * s->q_heads * s->dim, 0),
                              .heads = s->q_heads};
    a->rope.k = (rope_tensor){.in = s->page ? NULL : k, .heads = s->k_heads};
    a->v = (rope_tensor){.in = s->page ? NULL : v, .heads = s->k_heads};
    a->k_cache.data = s->page ? k : NULL;
    a->v_cache.data = s->page ? v : NULL;
    if (s->norms)
        a->q_weight.data = a->k_weight.data = put_numbers(p, 4, s->dim, 0);
}

static rope_plan *plan_of(const prompt_shape *s, const char *kernel) {
    const rope_norm norm = {.type = ROPE_NORM_RMS,
                            .weight = ROPE_NORM_WEIGHT,
                            .rounding = ROPE_NORM_ROUND_TWICE,
                            .eps = 1e-6};
    rope_attention_desc desc = ROPE_ATTENTION_DESC_INIT;
    rope_plan *plan = NULL;
    desc.rope.dtype = s->dtype;
    desc.rope.head_dim = s->dim;
    desc.rope.position_dtype = ROPE_I32;
    desc.rope.kernel = kernel;
    desc.v_head_dim = s->v_dim;
    desc.soft_cap = s->cap;
    desc.cache = s->page ? ROPE_CACHE_TABLE : 0;
    desc.page_size = s->page;
    desc.rotation = s->page ? ROPE_ATTENTION_ROTATE_Q : ROPE_ATTENTION_ROTATE_QK;
    if (s->norms)
        desc.q_norm = desc.k_norm = norm;
    device_choose(&desc.rope);
    CHECK_STATUS(ROPE_OK, rope_attention_plan_create(&desc, &plan));
    return plan;
}

/* Returns the bytes of workspace. */
static size_t make(prompt *p, const prompt_shape *s, const char *kernel) {
    const rope_attention_bounds bounds = {sizeof bounds, 1,          s->tokens, s->keys,
                                          s->sequences,  s->q_heads, s->k_heads};
    const int64_t rows = (int64_t)s->tokens * s->q_heads;
    size_t workspace;
    *p = (prompt){.args = ROPE_ATTENTION_ARGS_INIT,
                  .plan = plan_of(s, kernel),
                  .out_bytes = (size_t)(rows * s->v_dim) * sizeof(uint16_t),
                  .bytes = (size_t)rows * ((size_t)s->v_dim * sizeof(uint16_t) + sizeof(float))};
    put_lists(p, s);
    put_tensors(p, s);
    p->first = malloc(p->bytes);
    p->got = calloc(BATCH, p->bytes);
    put(p, 5, p->got, BATCH * p->bytes);
    CHECK_STATUS(ROPE_OK, rope_attention_workspace(p->plan, &bounds, &workspace));
    return workspace;
}

static void release(prompt *p) {
    for (int i = 0; i < 6; i++)
        if (p->memory[i])
            CHECK_STATUS(ROPE_OK, rope_device_free(device_open(), p->memory[i]));
    rope_plan_destroy(p->plan);
    free(p->first);
    free(p->got);
}

static void call(const prompt *p, int slot, void *workspace, size_t bytes) {
    rope_attention_args args = p->args;
    args.out.data = (char *)p->memory[5] + (size_t)slot * p->bytes;
    args.lse = (float *)(void *)((char *)args.out.data + p->out_bytes);
    args.workspace = workspace;
    args.workspace_bytes = bytes;
    CHECK_STATUS(ROPE_OK, rope_attention(p->plan, &args));
}

/* Results of calls from number `round` on, which were 0 ahead of them. */
static void check(prompt *p, int shape, int64_t round, int64_t count) {
    CHECK_STATUS(ROPE_OK, rope_device_copy_out(device_open(), p->got, p->memory[5],
                                               (size_t)count * p->bytes));
    if (round == 0)
        memcpy(p->first, p->got, p->bytes);
    for (int64_t n = 0; n < count; n++) {
        const unsigned char *got = p->got + (size_t)n * p->bytes;
        size_t at = memcmp(got, p->first, p->bytes) ? 0 : p->bytes;
        while (at < p->bytes && got[at] == p->first[at])
            at++;
        CHECK(at == p->bytes, "byte %zu of call %lld of shape %d differs from the first call's", at,
              (long long)(round + n), shape);
    }
    memset(p->got, 0, BATCH * p->bytes);
    CHECK(memcmp(p->first, p->got, p->out_bytes) != 0, "shape %d has no result", shape);
    CHECK_STATUS(ROPE_OK, rope_device_copy_in(device_open(), p->memory[5], p->got,
                                              (size_t)count * p->bytes));
}

static const char *hopper_kernel(void) {
    const char *kernel = NULL;
    for (int i = 0; (kernel = device_kernel_of("attention", i)) && strcmp(kernel, "sm90") != 0; i++)
        ;
    return kernel;
}

TEST(attention_repeats, prompts) {
    static prompt prompts[SHAPES];
    attention_required();
    device_not_provided("calls may be declined");
    const char *kernel = hopper_kernel();
    const int64_t rounds = kernel ? test_scaled((CALLS + SHAPES - 1) / SHAPES) : FEW_ROUNDS;
    size_t bytes = 256;
    void *workspace;
    for (int i = 0; i < SHAPES; i++) {
        const prompt_shape s = shape_of(i);
        const size_t own = make(&prompts[i], &s, kernel);
        bytes = own > bytes ? own : bytes;
    }
    CHECK_STATUS(ROPE_OK, rope_device_alloc(device_open(), bytes, &workspace));
    for (int64_t round = 0; round < rounds; round += BATCH) {
        const int64_t count = rounds - round < BATCH ? rounds - round : BATCH;
        for (int64_t i = 0; i < count * SHAPES; i++)
            call(&prompts[i % SHAPES], (int)(i / SHAPES), workspace, bytes);
        for (int i = 0; i < SHAPES; i++)
            check(&prompts[i], i, round, count);
    }
    for (int i = 0; i < SHAPES; i++)
        release(&prompts[i]);
    CHECK_STATUS(ROPE_OK, rope_device_free(device_open(), workspace));
}
