/* Names of kernels that calls of attention run: those that a GPU launches. */
#include "tests/attention/compare.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <ropekit/backend.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- of calls of every kind --- */

typedef struct kind {
    const char *candidate;
    int32_t dtype, head_dim, v_head_dim;
    int64_t tokens;
    int32_t packed;
    float soft_cap;
    const char *name[3]; /* on a GPU, with or without kernels of prompts; on Hopper */
} kind;

static const kind kinds[] = {
    {NULL, ROPE_BF16, 64, 0, 1, 0, 0, {"decode"}},
    {NULL, ROPE_BF16, 128, 0, 1, 0, 30, {"decode"}},
    {NULL, ROPE_BF16, 64, 0, 2, 0, 0, {"splits"}},
    {NULL, ROPE_BF16, 64, 0, 64, 0, 0, {"prompt", "tiles", "sm90"}},
    {NULL, ROPE_BF16, 96, 0, 64, 0, 0, {"tiles", "sm90"}},
    {NULL, ROPE_BF16, 192, 128, 64, 0, 0, {"tiles", "sm90"}},
    {NULL, ROPE_F16, 256, 0, 64, 0, 0, {"tiles", "sm90"}},
    {NULL, ROPE_F16, 64, 0, 64, 0, 30, {"tiles", "sm90"}},
    {NULL, ROPE_BF16, 256, 0, 64, 0, 50, {"tiles", "sm90"}},
    {NULL, ROPE_F16, 64, 40, 64, 0, 0, {"tiles", "sm90"}},
    {NULL, ROPE_F16, 64, 0, 64, 1, 0, {"splits+prompt", "splits+tiles", "splits+sm90"}},
    {NULL, ROPE_F16, 64, 0, 64, 1, 30, {"splits+tiles", "splits+sm90"}},
    {"splits", ROPE_F16, 64, 0, 1, 0, 0, {"decode"}},
    {"tiles", ROPE_BF16, 64, 0, 1, 0, 0, {"prompt", "tiles"}},
    {"tiles", ROPE_BF16, 64, 0, 1, 1, 30, {"tiles"}},
    {"latent", ROPE_BF16, 576, 512, 1, 0, 0, {"wide_heads"}},
    {"latent", ROPE_BF16, 576, 512, 64, 1, 0, {"wide_heads"}},
    {"generic", ROPE_BF16, 64, 0, 1, 0, 0, {"generic"}},
    {"generic", ROPE_BF16, 64, 0, 64, 1, 0, {"generic"}},
    {NULL, ROPE_F32, 64, 0, 64, 1, 0, {"generic"}},
};

/* The plan of a kind, or NULL where the device declines it or has one name for the candidate. */
static rope_plan *plan_of(const kind *of) {
    rope_attention_desc desc = ROPE_ATTENTION_DESC_INIT;
    rope_plan *plan = NULL;
    device_choose(&desc.rope);
    desc.rope.dtype = of->dtype;
    desc.rope.head_dim = of->head_dim;
    desc.rope.kernel = of->candidate;
    desc.v_head_dim = of->v_head_dim;
    desc.soft_cap = of->soft_cap;
    const rope_status status = rope_attention_plan_create(&desc, &plan);
    CHECK(status == ROPE_OK || (of->candidate && status == ROPE_ERROR_UNSUPPORTED), "%s",
          rope_last_error());
    return plan;
}

/* Memory of a call that does not run: nobody reads it. */
static void *memory_at(uintptr_t part) {
    return (void *)((part + 1) << 24);
}

static rope_attention_args args_of(const kind *of) {
    rope_attention_args args = ROPE_ATTENTION_ARGS_INIT;
    args.rope.batch = 2;
    args.rope.tokens = args.k_tokens = of->tokens;
    if (of->packed) {
        args.rope.batch = 1;
        args.rope.cu_seqlens = args.k_cu_seqlens = memory_at(0);
        args.rope.sequences = 1;
    }
    args.rope.q = (rope_tensor){.in = memory_at(1), .heads = 4};
    args.rope.k = (rope_tensor){.in = memory_at(2), .heads = 2};
    args.v = (rope_tensor){.in = memory_at(3), .heads = 2};
    args.out.data = memory_at(4);
    return args;
}

TEST(attention_kernels, names_of_calls_of_every_kind) {
    attention_required();
    device_not_provided("it has kernels of its own");
    for (size_t i = 0; !device_is_host() && i < sizeof kinds / sizeof kinds[0]; i++) {
        const kind *of = &kinds[i];
        rope_plan *plan = plan_of(of);
        if (!plan || (!of->candidate && strstr(rope_plan_kernel(plan), ":generic") &&
                      of->dtype != ROPE_F32)) { /* it has no matrix instructions */
            rope_plan_destroy(plan);
            continue;
        }
        const rope_attention_args args = args_of(of);
        const char *name = rope_plan_kernel_of(plan, &args), *found = name ? strchr(name, ':') : 0;
        int is_named = 0;
        for (int k = 0; k < 3 && of->name[k]; k++)
            is_named |= found && strcmp(found + 1, of->name[k]) == 0;
        CHECK(is_named, "kind %zu runs %s, not %s%s%s", i, name ? name : rope_last_error(),
              of->name[0], of->name[1] ? " or " : "", of->name[1] ? of->name[1] : "");
        rope_plan_destroy(plan);
    }
}

/* A prompt over 8 bits takes the kernel of one over 16: they are converted before. */
TEST(attention_kernels, names_of_prompts_over_8_bits) {
    static const kind prompt = {NULL, ROPE_BF16, 128, 0, 64, 0, 0, {NULL}};
    static const char *const candidates[] = {"sm90", "splits", "tiles"};
    int found = 0;
    attention_required();
    device_not_provided("it has kernels of its own");
    for (int i = 0; i < 9; i++) {
        static char of_16_bits[32];
        rope_attention_desc desc = ROPE_ATTENTION_DESC_INIT;
        rope_attention_args args = args_of(&prompt);
        rope_plan *plan = NULL;
        device_choose(&desc.rope);
        desc.rope.dtype = prompt.dtype;
        desc.rope.head_dim = prompt.head_dim;
        desc.rope.kernel = candidates[i / 3];
        desc.rotation = ROPE_ATTENTION_ROTATE_Q;
        desc.cache = ROPE_CACHE_TABLE;
        desc.page_size = i % 3 == 2 ? 20 : 16;
        desc.k.dtype = desc.v.dtype = i % 3 ? ROPE_F8E4M3 : 0;
        const rope_status status = rope_attention_plan_create(&desc, &plan);
        if (status == ROPE_ERROR_INVALID_VALUE ||
            (i % 3 == 0 && status == ROPE_ERROR_UNSUPPORTED)) {
            i += 2;
            continue;
        }
        CHECK_STATUS(ROPE_OK, status);
        args.rope.k.in = args.v.in = NULL;
        args.k_tokens = 0;
        args.k_cache.data = memory_at(2);
        args.v_cache.data = memory_at(3);
        args.block_table = memory_at(5);
        args.k_lengths = memory_at(6);
        args.pages = args.table_pages = 10;
        const char *name = rope_plan_kernel_of(plan, &args);
        CHECK(name, "%s", rope_last_error());
        if (i % 3 == 0)
            snprintf(of_16_bits, sizeof of_16_bits, "%s", name);
        CHECK(strcmp(name, of_16_bits) == 0, "%s, not %s", name, of_16_bits);
        CHECK(i > 0 || strcmp(name, "cuda:sm90") == 0, "%s", name);
        rope_plan_destroy(plan);
        found = 1;
    }
    if (!found)
        SKIP("no such kernel");
}

/* Latent attention of few queries over pages, which Hopper has a kernel for. */
static void check_name_of_latent(int64_t page_size, int32_t value_dim, int32_t store,
                                 int of_hopper) {
    static const kind few = {NULL, ROPE_BF16, 576, 512, 1, 0, 0, {NULL}};
    rope_attention_desc desc = ROPE_ATTENTION_DESC_INIT;
    rope_attention_args args = args_of(&few);
    rope_plan *plan = NULL;
    device_choose(&desc.rope);
    desc.rope.dtype = few.dtype;
    desc.rope.head_dim = few.head_dim;
    desc.rope.kernel = "latent";
    desc.v_head_dim = value_dim;
    desc.rotation = ROPE_ATTENTION_ROTATE_NONE;
    desc.cache = ROPE_CACHE_TABLE;
    desc.page_size = page_size;
    desc.k.dtype = desc.v.dtype = store;
    const rope_status status = rope_attention_plan_create(&desc, &plan);
    if (status == ROPE_ERROR_UNSUPPORTED || status == ROPE_ERROR_INVALID_VALUE)
        SKIP("no such kernel");
    CHECK_STATUS(ROPE_OK, status);
    args.rope.k.in = args.v.in = NULL;
    args.rope.k.heads = args.v.heads = 1;
    args.k_tokens = 0;
    args.k_cache.data = args.v_cache.data = memory_at(2);
    for (int i = 0; i < 5; i++)
        args.k_cache.stride[i] = args.v_cache.stride[i] = i < 1 ? page_size * 576 : i < 4 ? 576 : 1;
    args.block_table = memory_at(5);
    args.k_lengths = memory_at(6);
    args.pages = args.table_pages = 10;
    for (int i = 0; i < 2; i++) {
        const char *name = rope_plan_kernel_of(plan, &args);
        CHECK(name, "%s", rope_last_error());
        CHECK(strcmp(strchr(name, ':'), of_hopper ? ":latent" : ":wide_heads") == 0, "%s", name);
        memset(args.k_cache.stride, 0, sizeof args.k_cache.stride); /* contiguous: the same */
        args.v_cache.stride[3] = 0;                                 /* of one block */
    }
    rope_plan_destroy(plan);
}

static int is_hopper(void) {
    rope_attention_desc desc = ROPE_ATTENTION_DESC_INIT;
    rope_plan *plan = NULL;
    device_choose(&desc.rope);
    desc.rope.dtype = ROPE_BF16;
    desc.rope.head_dim = 128;
    desc.rope.kernel = "sm90";
    const int is = rope_attention_plan_create(&desc, &plan) == ROPE_OK;
    rope_plan_destroy(plan);
    return is;
}

TEST(attention_kernels, names_of_latent_calls_over_pages) {
    attention_required();
    device_not_provided("it has kernels of its own");
    const int of_hopper = is_hopper();
    check_name_of_latent(16, 512, 0, of_hopper);
    check_name_of_latent(64, 512, 0, of_hopper);
    check_name_of_latent(20, 512, 0, 0);
    check_name_of_latent(16, 256, 0, 0);
    check_name_of_latent(64, 512, ROPE_F8E4M3, of_hopper);
    check_name_of_latent(20, 512, ROPE_F8E5M2, of_hopper);
    check_name_of_latent(16, 256, ROPE_F8E4M3, 0);
}

/* --- of generated calls, beside what the emulated device launched --- */

enum { CASES = 600 };

static char trace[64];

static void forget_trace(void) {
    unsetenv("HIP_EMULATION_TRACE");
    unlink(trace);
}

static void begin_trace(void) {
    snprintf(trace, sizeof trace, "/tmp/ropekit_trace_XXXXXX");
    const int file = mkstemp(trace);
    CHECK(file >= 0, "no file %s", trace);
    close(file);
    setenv("HIP_EMULATION_TRACE", trace, 1);
    atexit(forget_trace);
}

/* Whether a function of attention is none that attends: it looks at keys, rotates or joins. */
static int is_beside(const char *name) {
    static const char *const beside[] = {"check<", "rotate<",      "rotate_vectors<",
                                         "join<",  "decode_join<", "gather<"};
    for (size_t i = 0; i < sizeof beside / sizeof beside[0]; i++)
        if (strncmp(name, beside[i], strlen(beside[i])) == 0)
            return 1;
    return 0;
}

/* What attended since the file was last empty: functions gpu_attention_NAME, each once, with "+"
 * between two. */
static void read_trace(char found[256]) {
    static const char prefix[] = "launched gpu_attention_";
    FILE *file = fopen(trace, "r");
    char line[256];
    CHECK(file, "no file %s", trace);
    found[0] = 0;
    while (fgets(line, sizeof line, file)) {
        char *name = line + strlen(prefix);
        if (strncmp(line, prefix, strlen(prefix)) != 0 || is_beside(name))
            continue;
        const size_t used = strlen(found);
        name[strcspn(name, "<")] = 0;
        if (!strstr(found, name))
            snprintf(found + used, 256 - used, "%s%s", used ? "+" : "", name);
    }
    fclose(file);
}

typedef struct job {
    const rope_plan *plan;
    const attention_case *c;
    void *workspace;
    size_t workspace_bytes;
} job;

/* The name that the plan has for the call, and what the call launches. */
static rope_status run_named(const void *state, const test_case *c, void *memory) {
    const job *j = state;
    rope_attention_args args = j->c->args;
    char found[256];
    attention_relocate(&args, c->arena, memory);
    args.workspace = j->workspace;
    args.workspace_bytes = j->workspace_bytes;
    const char *name = rope_plan_kernel_of(j->plan, &args);
    CHECK_STATUS(ROPE_OK, rope_device_synchronize(device_open()));
    CHECK(truncate(trace, 0) == 0, "%s stays", trace);
    const rope_status status = rope_attention(j->plan, &args);
    CHECK_STATUS(ROPE_OK, rope_device_synchronize(device_open()));
    if (status != ROPE_OK)
        return status;
    read_trace(found);
    const char *expected = found[0] ? found : strchr(rope_plan_kernel(j->plan), ':') + 1;
    CHECK(name && strcmp(strchr(name, ':') + 1, expected) == 0, "a call of %s launches %s", name,
          expected);
    return ROPE_OK;
}

static void check_named(const attention_case *c, const char *kernel, unsigned char *result) {
    rope_attention_desc desc = c->desc;
    const rope_attention_bounds bounds = attention_bounds(c);
    rope_plan *plan = NULL;
    attention_describe(c, kernel);
    device_choose(&desc.rope);
    desc.rope.kernel = kernel;
    if (rope_attention_plan_create(&desc, &plan) == ROPE_ERROR_UNSUPPORTED)
        return;
    CHECK(plan, "%s", rope_last_error());
    job j = {.plan = plan, .c = c};
    CHECK_STATUS(ROPE_OK, rope_attention_workspace(plan, &bounds, &j.workspace_bytes));
    (void)device_with_workspace(&c->base, run_named, &j, &j.workspace, j.workspace_bytes, result);
    rope_plan_destroy(plan);
}

TEST(attention_kernels, a_call_launches_what_its_name_says) {
    static const attention_wish wish = {.large = 1};
    const char *kernel;
    attention_required();
    if (device_is_host() || device_is_provider() || !test_number("ROPE_TEST_EMULATED", 0))
        SKIP("no device that says what it launches");
    begin_trace();
    for (int64_t i = -1; test_next(&i, CASES);) {
        attention_case c;
        attention_make(&c, test_seed() + 21, i, &wish);
        unsigned char *result = malloc(c.base.bytes);
        for (int k = 0; (kernel = device_kernel_of("attention", k)); k++)
            check_named(&c, kernel, result);
        free(result);
        attention_free(&c);
    }
    forget_trace();
}
