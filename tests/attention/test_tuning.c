/* Calls of attention choose a kernel by a table: by the nearest of its points that speak of the
 * problem. A call has the bits of the kernel that it takes. */
#include "tests/attention/cases.h"
#include "tests/oracle/oracle.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <ropekit/backend.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    DIM = 64,
    HEADS = 2,
    MOST = 96,
    ELEMENTS = (2 * HEADS + 2) * MOST * DIM,
    BYTES = 2 * ELEMENTS
};

static char path[64];

static void forget_file(void) {
    unlink(path);
}

/* A file with this text; it is gone with the next one, and with the program. */
static const char *file_of(const char *text) {
    if (path[0])
        forget_file();
    else
        atexit(forget_file);
    snprintf(path, sizeof path, "/tmp/ropekit_tuning_XXXXXX");
    const int file = mkstemp(path);
    CHECK(file >= 0, "no file %s", path);
    CHECK(write(file, text, strlen(text)) == (ssize_t)strlen(text), "%s is not written", path);
    close(file);
    return path;
}

/* The first kernel and another one; 0 where there is one alone. */
static int two_kernels(const char *name[2]) {
    int32_t count = 0;
    while (device_kernel_of("attention", count))
        count++;
    name[0] = device_kernel_of("attention", 0);
    name[1] = count > 1 ? device_kernel_of("attention", count - 1) : NULL;
    return count > 1;
}

static rope_attention_desc desc_of(int32_t dtype) {
    rope_attention_desc desc = ROPE_ATTENTION_DESC_INIT;
    desc.rope.dtype = dtype;
    desc.rope.head_dim = DIM;
    desc.rotation = ROPE_ATTENTION_ROTATE_NONE;
    device_choose(&desc.rope);
    return desc;
}

/* Points of a few tokens with one kernel, and of many with the other. */
static const char *table_of(const char *few, const char *many) {
    static char text[2048];
    const char *backend = device_backend();
    static const char point[] =
        "{\"operation\": \"%s\", \"dtype\": \"%s\", \"head_dim\": 64, \"v_head_dim\": 64, "
        "\"mask\": \"causal\", \"cache\": 0, \"batch\": 1, \"tokens\": %d, \"k_tokens\": %d, "
        "\"q_heads\": 2, \"k_heads\": 1, \"window\": %d, \"kernel\": \"%s:%s\"}%s";
    size_t used =
        (size_t)snprintf(text, sizeof text, "{\"backend\": \"%s\", \"points\": [", backend);
    used += (size_t)snprintf(text + used, sizeof text - used, point, "attention", "bf16", 4, 4, 4,
                             backend, few, ", ");
    used += (size_t)snprintf(text + used, sizeof text - used, point, "attention", "bf16", 64, 64,
                             64, backend, many, ", ");
    /* of other problems */
    used += (size_t)snprintf(text + used, sizeof text - used, point, "attention", "f16", 64, 64, 64,
                             backend, few, ", ");
    snprintf(text + used, sizeof text - used, point, "attention_backward", "bf16", 64, 64, 64,
             backend, few, "]}");
    return text;
}

static void arguments(rope_attention_args *args, unsigned char *memory, int64_t tokens) {
    const size_t all = MOST * DIM * 2;
    *args = (rope_attention_args)ROPE_ATTENTION_ARGS_INIT;
    args->rope.batch = 1;
    args->rope.tokens = args->k_tokens = tokens;
    args->rope.q = (rope_tensor){.in = memory, .heads = HEADS};
    args->rope.k = (rope_tensor){.in = memory + HEADS * all, .heads = 1};
    args->v = (rope_tensor){.in = memory + (HEADS + 1) * all, .heads = 1};
    args->out.data = memory + (HEADS + 2) * all;
}

static void check_kernel(const rope_plan *plan, unsigned char *memory, int64_t tokens,
                         const char *kernel) {
    rope_attention_args args;
    char name[80];
    arguments(&args, memory, tokens);
    snprintf(name, sizeof name, "%s:%s", device_backend(), kernel);
    const char *found = rope_plan_kernel_of(plan, &args);
    CHECK(found && strcmp(found, name) == 0, "%lld tokens take %s, not %s", (long long)tokens,
          found ? found : rope_last_error(), name);
}

/* The out of a call of so many tokens. */
static unsigned char *run(const rope_plan *plan, const unsigned char *from, int64_t tokens) {
    void *memory, *workspace;
    rope_attention_args args;
    const rope_attention_bounds bounds = {sizeof bounds, 1, tokens, tokens, 0, HEADS, 1};
    unsigned char *result = malloc(BYTES);
    CHECK_STATUS(ROPE_OK, rope_device_alloc(device_open(), BYTES, &memory));
    CHECK_STATUS(ROPE_OK, rope_device_copy_in(device_open(), memory, from, BYTES));
    arguments(&args, memory, tokens);
    CHECK_STATUS(ROPE_OK, rope_attention_workspace(plan, &bounds, &args.workspace_bytes));
    CHECK_STATUS(ROPE_OK, rope_device_alloc(device_open(), args.workspace_bytes, &workspace));
    args.workspace = workspace;
    CHECK_STATUS(ROPE_OK, rope_attention(plan, &args));
    CHECK_STATUS(ROPE_OK, rope_device_synchronize(device_open()));
    CHECK_STATUS(ROPE_OK, rope_device_copy_out(device_open(), result, memory, BYTES));
    CHECK_STATUS(ROPE_OK, rope_device_free(device_open(), memory));
    CHECK_STATUS(ROPE_OK, rope_device_free(device_open(), workspace));
    return result;
}

static void check_bits(const rope_plan *plan, const unsigned char *from, int64_t tokens,
                       const char *kernel) {
    rope_attention_desc desc = desc_of(ROPE_BF16);
    rope_plan *alone;
    desc.rope.kernel = kernel;
    CHECK_STATUS(ROPE_OK, rope_attention_plan_create(&desc, &alone));
    unsigned char *got = run(plan, from, tokens), *expected = run(alone, from, tokens);
    CHECK(memcmp(got, expected, BYTES) == 0, "%lld tokens do not have the bits of %s",
          (long long)tokens, kernel);
    free(got);
    free(expected);
    rope_plan_destroy(alone);
}

TEST(tuning, calls_take_the_kernel_of_the_nearest_point) {
    const char *name[2];
    unsigned char *memory = malloc(BYTES);
    test_random random = random_stream(test_seed(), 5);
    rope_plan *plan;
    if (!two_kernels(name))
        SKIP("%s has one kernel", device_backend());
    for (int i = 0; i < ELEMENTS; i++)
        oracle_store(ROPE_BF16, memory, i, random_real(&random, -1, 1));
    for (int order = 0; order < 2; order++) {
        const char *few = name[1 - order], *many = name[order];
        rope_attention_desc desc = desc_of(ROPE_BF16);
        desc.tuning = file_of(table_of(few, many));
        CHECK_STATUS(ROPE_OK, rope_attention_plan_create(&desc, &plan));
        CHECK(strstr(rope_plan_report(plan), desc.tuning), "the report does not name the table: %s",
              rope_plan_report(plan));
        for (int64_t tokens = 1; tokens <= MOST; tokens++)
            check_kernel(plan, memory, tokens, tokens <= 17 ? few : many);
        check_bits(plan, memory, 3, few);
        check_bits(plan, memory, MOST, many);
        rope_plan_destroy(plan);
    }
    free(memory);
}

/* Of a problem that the table does not speak of, of a kernel by name, and without a table. */
TEST(tuning, the_first_kernel_is_taken_where_no_point_counts) {
    const char *name[2];
    if (!two_kernels(name))
        SKIP("%s has one kernel", device_backend());
    const char *table = file_of(table_of(name[1], name[1]));
    for (int i = 0; i < 4; i++) {
        rope_attention_desc desc = desc_of(i == 0 ? ROPE_F32 : ROPE_BF16);
        rope_plan *plan, *untuned;
        desc.tuning = "";
        CHECK_STATUS(ROPE_OK, rope_attention_plan_create(&desc, &untuned));
        desc.tuning = i == 1 ? "" : table;
        desc.rope.kernel = i == 2 ? name[0] : NULL; /* the first */
        desc.mask = i == 3 ? ROPE_MASK_FULL : 0;
        CHECK_STATUS(ROPE_OK, rope_attention_plan_create(&desc, &plan));
        CHECK(strcmp(rope_plan_kernel(plan), rope_plan_kernel(untuned)) == 0, "%s, not %s",
              rope_plan_kernel(plan), rope_plan_kernel(untuned));
        rope_plan_destroy(plan);
        rope_plan_destroy(untuned);
    }
}

TEST(tuning, the_environment_names_a_table) {
    const char *name[2];
    static unsigned char memory[BYTES];
    rope_attention_desc desc = desc_of(ROPE_BF16);
    rope_plan *plan;
    if (!two_kernels(name))
        SKIP("%s has one kernel", device_backend());
    setenv("ROPE_TUNING", file_of(table_of(name[1], name[1])), 1);
    CHECK_STATUS(ROPE_OK, rope_attention_plan_create(&desc, &plan));
    check_kernel(plan, memory, 40, name[1]);
    rope_plan_destroy(plan);
    setenv("ROPE_TUNING", "/no/such/table", 1);
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_attention_plan_create(&desc, &plan));
    CHECK(strstr(rope_last_error(), "/no/such/table"), "the text is %s", rope_last_error());
    unsetenv("ROPE_TUNING");
}

/* A kernel that there is not is passed over, and the report says so. */
TEST(tuning, unknown_kernels_are_passed_over) {
    rope_attention_desc desc = desc_of(ROPE_BF16);
    rope_plan *plan;
    desc.tuning = file_of(table_of("of_another_version", "of_another_version"));
    CHECK_STATUS(ROPE_OK, rope_attention_plan_create(&desc, &plan));
    CHECK(strstr(rope_plan_report(plan), "of_another_version declined"), "the report is %s",
          rope_plan_report(plan));
    CHECK(!strstr(rope_plan_kernel(plan), "of_another_version"), "%s", rope_plan_kernel(plan));
    rope_plan_destroy(plan);
}

TEST(tuning, tables_that_are_none_are_refused) {
#define POINT "{\"operation\": \"attention\", \"dtype\": \"f32\", \"head_dim\": 64"
#define REST                                                                                       \
    ", \"v_head_dim\": 64, \"mask\": \"causal\", \"cache\": 0, \"batch\": 1, \"tokens\": 4, "      \
    "\"k_tokens\": 4, \"q_heads\": 2, \"k_heads\": 1, \"window\": 4"
    static const struct {
        const char *text, *said;
    } cases[] = {
        {"", "allowed is a file of 1 to"},
        {"{", "byte"},
        {"[]", "object"},
        {"{}", "points"},
        {"{\"points\": 3}", "points"},
        {"{\"points\": [3]}", "point 0"},
        {"{\"points\": [" POINT "}]}", "v_head_dim of point 0"},
        {"{\"points\": [" POINT REST "}]}", "kernel of point 0"},
        {"{\"points\": [" POINT REST ", \"kernel\": \"avx2\"}]}", "kernel of point 0"},
        {"{\"points\": [" POINT ", \"v_head_dim\": -1}]}", "v_head_dim of point 0"},
        {"{\"points\": [{\"operation\": \"attention\", \"dtype\": \"f31\"}]}", "dtype of point 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rope_attention_desc desc = desc_of(ROPE_F32);
        rope_plan *plan = NULL;
        test_describe(cases[i].text);
        desc.tuning = file_of(cases[i].text);
        CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_attention_plan_create(&desc, &plan));
        CHECK(!plan && strstr(rope_last_error(), cases[i].said), "the text is %s",
              rope_last_error());
    }
}
