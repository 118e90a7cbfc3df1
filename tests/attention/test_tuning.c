/* Calls of attention and of its backward choose a kernel by a table: by the nearest of its points
 * that speak of the problem. A call has the bits of the kernel that it takes. */
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

static const char forward[] = "attention", backward[] = "attention_backward";

static rope_attention_desc desc_of(int32_t dtype) {
    rope_attention_desc desc = ROPE_ATTENTION_DESC_INIT;
    desc.rope.dtype = dtype;
    desc.rope.head_dim = DIM;
    desc.rotation = ROPE_ATTENTION_ROTATE_NONE;
    device_choose(&desc.rope);
    return desc;
}

static rope_status plan_of(const char *operation, const rope_attention_desc *desc,
                           rope_plan **plan) {
    return operation == backward ? rope_attention_backward_plan_create(desc, plan)
                                 : rope_attention_plan_create(desc, plan);
}

/* The first and the last kernel that takes a dtype, but for that of Hopper, which takes few sizes
 * of heads; 0 where there is one alone. */
static int two_kernels(const char *operation, int32_t dtype, const char *name[2]) {
    rope_attention_desc desc = desc_of(dtype);
    int32_t count = 0;
    for (int32_t i = 0; (desc.rope.kernel = device_kernel_of(operation, i)); i++) {
        rope_plan *plan;
        if (strstr(desc.rope.kernel, "sm90") || plan_of(operation, &desc, &plan) != ROPE_OK)
            continue;
        rope_plan_destroy(plan);
        name[count++ > 0] = desc.rope.kernel;
    }
    return count > 1;
}

/* The text of a table, to which points are added. */
static char text[1 << 15];
static size_t used;

static void begin_table(void) {
    used = (size_t)snprintf(text, sizeof text, "{\"backend\": \"%s\", \"points\": [",
                            device_backend());
}

/* more: fields that may be left out, each with a comma behind it. */
static void add_point(const char *operation, int head_dim, int batch, int tokens, const char *more,
                      const char *backend, const char *kernel) {
    used += (size_t)snprintf(
        text + used, sizeof text - used,
        "%s{\"operation\": \"%s\", \"bits\": 16, \"head_dim\": %d, \"mask\": \"causal\", "
        "\"cache\": \"none\", \"batch\": %d, \"tokens\": %d, \"q_heads\": 2, \"k_heads\": 1, "
        "%s\"kernel\": \"%s:%s\"}",
        text[used - 1] == '[' ? "" : ", ", operation, head_dim, batch, tokens, more, backend,
        kernel);
}

static const char *end_table(void) {
    CHECK(used + 3 < sizeof text, "%zu bytes", used);
    strcpy(text + used, "]}");
    return text;
}

/* Points of a few tokens with one kernel, and of many with the other. */
static const char *table_of(const char *operation, const char *few, const char *many) {
    begin_table();
    add_point(operation, DIM, 1, 4, "", device_backend(), few);
    add_point(operation, DIM, 1, 64, "\"window\": 64, \"k_tokens\": 64, \"v_head_dim\": 64, ",
              device_backend(), many);
    /* of other problems */
    add_point(operation, 2 * DIM, 1, 64, "", device_backend(), few);
    add_point(operation, DIM, 1, 64, "\"v_head_dim\": 32, ", device_backend(), few);
    add_point(operation == forward ? backward : forward, DIM, 1, 64, "", device_backend(), few);
    return end_table();
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

/* Whether a kernel, or the first of two, is one of a candidate's. */
static int is_of(const char *kernel, const char *candidate) {
    static const char *const family[] = {"decode", "tiles", "prompt"};
    const size_t length = strcspn(kernel, "+");
    const int first = strcmp(candidate, "splits") == 0  ? 0
                      : strcmp(candidate, "tiles") == 0 ? 1
                                                        : 3;
    int is = strlen(candidate) == length && strncmp(kernel, candidate, length) == 0;
    for (int i = first; i < 3; i++)
        is |= strcmp(kernel, family[i]) == 0;
    return is;
}

static void check_name(const char *found, int64_t tokens, const char *kernel) {
    const size_t length = strlen(device_backend());
    CHECK(found && strncmp(found, device_backend(), length) == 0 && found[length] == ':' &&
              is_of(found + length + 1, kernel),
          "%lld tokens take %s, not %s:%s", (long long)tokens, found ? found : rope_last_error(),
          device_backend(), kernel);
}

static void check_kernel(const rope_plan *plan, unsigned char *memory, int64_t tokens,
                         const char *kernel) {
    rope_attention_args args;
    arguments(&args, memory, tokens);
    check_name(rope_plan_kernel_of(plan, &args), tokens, kernel);
}

/* What a call of the last so many tokens of so many keys returns. */
static rope_status attend(const rope_plan *plan, int64_t tokens, int64_t keys,
                          const unsigned char *from, unsigned char *result) {
    void *memory, *workspace;
    rope_attention_args args;
    const rope_attention_bounds bounds = {sizeof bounds, 1, tokens, keys, 0, HEADS, 1};
    CHECK_STATUS(ROPE_OK, rope_device_alloc(device_open(), BYTES, &memory));
    CHECK_STATUS(ROPE_OK, rope_device_copy_in(device_open(), memory, from, BYTES));
    arguments(&args, memory, tokens);
    args.k_tokens = keys;
    CHECK_STATUS(ROPE_OK, rope_attention_workspace(plan, &bounds, &args.workspace_bytes));
    CHECK_STATUS(ROPE_OK, rope_device_alloc(device_open(), args.workspace_bytes, &workspace));
    args.workspace = workspace;
    const rope_status status = rope_attention(plan, &args);
    CHECK_STATUS(ROPE_OK, rope_device_synchronize(device_open()));
    CHECK_STATUS(ROPE_OK, rope_device_copy_out(device_open(), result, memory, BYTES));
    CHECK_STATUS(ROPE_OK, rope_device_free(device_open(), memory));
    CHECK_STATUS(ROPE_OK, rope_device_free(device_open(), workspace));
    return status;
}

/* The out of a call of so many tokens. */
static unsigned char *run(const rope_plan *plan, const unsigned char *from, int64_t tokens) {
    unsigned char *result = malloc(BYTES);
    CHECK_STATUS(ROPE_OK, attend(plan, tokens, tokens, from, result));
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
    if (!two_kernels(forward, ROPE_BF16, name))
        SKIP("%s has one kernel", device_backend());
    for (int i = 0; i < ELEMENTS; i++)
        oracle_store(ROPE_BF16, memory, i, random_real(&random, -1, 1));
    for (int order = 0; order < 2; order++) {
        const char *few = name[1 - order], *many = name[order];
        rope_attention_desc desc = desc_of(ROPE_BF16);
        desc.tuning = file_of(table_of(forward, few, many));
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
    if (!two_kernels(forward, ROPE_BF16, name))
        SKIP("%s has one kernel", device_backend());
    const char *table = file_of(table_of(forward, name[1], name[1]));
    for (int i = 0; i < 4; i++) {
        rope_attention_desc desc = desc_of(i == 0 ? ROPE_F32 : ROPE_BF16);
        rope_plan *plan, *untuned;
        desc.tuning = "";
        CHECK_STATUS(ROPE_OK, rope_attention_plan_create(&desc, &untuned));
        desc.tuning = i == 1 ? "" : table;
        desc.rope.kernel = i == 2 ? strchr(rope_plan_kernel(untuned), ':') + 1 : NULL;
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
    if (!two_kernels(forward, ROPE_BF16, name))
        SKIP("%s has one kernel", device_backend());
    setenv("ROPE_TUNING", file_of(table_of(forward, name[1], name[1])), 1);
    CHECK_STATUS(ROPE_OK, rope_attention_plan_create(&desc, &plan));
    check_kernel(plan, memory, 40, name[1]);
    rope_plan_destroy(plan);
    setenv("ROPE_TUNING", "/no/such/table", 1);
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_attention_plan_create(&desc, &plan));
    CHECK(strstr(rope_last_error(), "/no/such/table") &&
              strstr(rope_last_error(), "allowed is a file of 1 to"),
          "the text is %s", rope_last_error());
    setenv("ROPE_TUNING", "none", 1);
    CHECK_STATUS(ROPE_OK, rope_attention_plan_create(&desc, &plan));
    CHECK(strchr(rope_plan_kernel(plan), ',') == NULL, "%s", rope_plan_kernel(plan));
    rope_plan_destroy(plan);
}

/* A kernel that there is not is passed over, and the report says so; a name has 63 bytes at most.
 */
TEST(tuning, unknown_kernels_are_passed_over) {
    char longest[64];
    memset(longest, 'x', 63);
    longest[63 - strlen(device_backend()) - 1] = 0;
    const char *const names[] = {"of_another_version", longest};
    for (int i = 0; i < 2; i++) {
        rope_attention_desc desc = desc_of(ROPE_BF16);
        rope_plan *plan;
        char declined[100];
        desc.tuning = file_of(table_of(forward, names[i], names[i]));
        CHECK_STATUS(ROPE_OK, rope_attention_plan_create(&desc, &plan));
        snprintf(declined, sizeof declined, "%s declined", names[i]);
        CHECK(strstr(rope_plan_report(plan), declined), "the report is %s", rope_plan_report(plan));
        CHECK(!strstr(rope_plan_kernel(plan), names[i]), "%s", rope_plan_kernel(plan));
        rope_plan_destroy(plan);
    }
}

/* As those of another device's instructions: calls take the nearest point that is left. */
TEST(tuning, points_of_kernels_that_the_backend_lacks_are_left_out) {
    const char *name[2];
    static unsigned char memory[BYTES];
    rope_attention_desc desc = desc_of(ROPE_BF16);
    rope_plan *plan;
    if (!two_kernels(forward, ROPE_BF16, name))
        SKIP("%s has one kernel", device_backend());
    desc.tuning = file_of(table_of(forward, name[1], "of_another_device"));
    CHECK_STATUS(ROPE_OK, rope_attention_plan_create(&desc, &plan));
    check_kernel(plan, memory, 3, name[1]);
    check_kernel(plan, memory, MOST, name[1]);
    rope_plan_destroy(plan);
}

/* As one that is not deterministic would, where the descriptor does not allow it. */
TEST(tuning, kernels_that_decline_the_problem_are_passed_over) {
    const int on_gpu = strcmp(device_backend(), "cpu") != 0;
    if (device_is_provider())
        SKIP("%s has no kernel of f32", device_backend());
    for (int i = 0; i < 2; i++) {
        rope_attention_desc desc = desc_of(ROPE_F32);
        rope_plan *plan;
        const char *operation = i ? backward : forward;
        begin_table();
        add_point(operation, DIM, 1, 4, "", device_backend(), on_gpu ? "tiles" : "amx");
        char *bits = strstr(end_table(), "16");
        bits[0] = '3', bits[1] = '2';
        desc.tuning = file_of(text);
        CHECK_STATUS(ROPE_OK, plan_of(operation, &desc, &plan));
        CHECK(strstr(rope_plan_report(plan), "is the table by which calls choose"), "%s",
              rope_plan_report(plan));
        CHECK(!strchr(rope_plan_kernel(plan), ','), "%s: %s", rope_plan_kernel(plan),
              rope_plan_report(plan));
        rope_plan_destroy(plan);
    }
}

/* --- another backend that has the device, as cuDNN's beside CUDA's --- */

static const char other[] = "cudnn", kernel[] = "sdpa";

static void require_other(void) {
    rope_device_info has = {.struct_size = sizeof has}, own = {.struct_size = sizeof own};
    const rope_attention_desc desc = desc_of(ROPE_BF16);
    rope_device *device;
    if (device_is_provider() || rope_device_open(other, desc.rope.device, &device) != ROPE_OK)
        SKIP("no other backend has the device of %s", device_backend());
    CHECK_STATUS(ROPE_OK, rope_device_get(device, &has));
    CHECK_STATUS(ROPE_OK, rope_device_get(device_open(), &own));
    rope_device_close(device);
    if (strcmp(has.name, own.name) != 0)
        SKIP("no other backend has the device of %s", device_backend());
}

/* A plan's workspace for a backward of 32 heads of 8; most: what a table's kernel may need beside
 * it. */
static size_t large_workspace(const rope_attention_desc *desc, int64_t batch, int64_t tokens,
                              size_t *most) {
    const rope_attention_bounds bounds = {sizeof bounds, batch, tokens, tokens, 0, 32, 8};
    rope_plan *plan;
    size_t bytes;
    CHECK_STATUS(ROPE_OK, rope_attention_backward_plan_create(desc, &plan));
    CHECK_STATUS(ROPE_OK, rope_attention_backward_workspace(plan, &bounds, &bytes));
    *most = rope_plan_workspace_most(plan, &bounds, bytes);
    rope_plan_destroy(plan);
    return bytes;
}

/* cuDNN's deterministic backward has 2 bytes for each pair of a query and a key, and head. Slices
 * of a call have room for it where a key head of one sequence has; one in any order always has. */
TEST(tuning, kernels_that_need_much_more_memory_get_no_calls) {
    require_other();
    begin_table();
    add_point(backward, DIM, 1, 64, "", other, kernel);
    file_of(end_table());
    static const int64_t sizes[][2] = {{1, 2048}, {16, 1024}, {1, 131072}};
    for (int i = 0; i < 6; i++) {
        const int64_t *size = sizes[i / 2];
        const int allowed = i != 4;
        rope_attention_desc desc = desc_of(ROPE_BF16);
        size_t most, unused;
        desc.nondeterministic = i % 2;
        desc.tuning = "";
        const size_t first = large_workspace(&desc, size[0], size[1], &most);
        desc.tuning = path;
        const size_t tuned = large_workspace(&desc, size[0], size[1], &unused);
        desc.rope.backend = other;
        const size_t alone = large_workspace(&desc, size[0], size[1], &unused);
        CHECK((alone <= most) == allowed, "%zu bytes of %zu", alone, most);
        CHECK(tuned == (alone <= most && alone > first ? alone : first),
              "%zu bytes, not %zu or %zu", tuned, first, alone);
    }
}

TEST(tuning, kernels_of_another_backend_that_has_the_device) {
    rope_attention_desc desc = desc_of(ROPE_BF16);
    rope_plan *plan, *alone;
    rope_attention_args args;
    require_other();
    unsigned char *memory = calloc(1, BYTES);
    test_random random = random_stream(test_seed(), 7);
    for (int i = 0; i < ELEMENTS; i++)
        oracle_store(ROPE_BF16, memory, i, random_real(&random, -1, 1));
    begin_table();
    add_point(forward, DIM, 1, 4, "", device_backend(), device_kernel_of(forward, 0));
    add_point(forward, DIM, 1, 64, "", other, kernel);
    desc.tuning = file_of(end_table());
    CHECK_STATUS(ROPE_OK, rope_attention_plan_create(&desc, &plan));
    desc.rope.backend = other;
    desc.tuning = "";
    CHECK_STATUS(ROPE_OK, rope_attention_plan_create(&desc, &alone));
    check_kernel(plan, memory, 4, device_kernel_of(forward, 0));
    arguments(&args, memory, MOST);
    CHECK(strcmp(rope_plan_kernel_of(plan, &args), "cudnn:sdpa") == 0, "%s",
          rope_plan_report(plan));
    unsigned char *got = run(plan, memory, MOST), *expected = run(alone, memory, MOST);
    CHECK(memcmp(got, expected, BYTES) == 0, "not the bits of %s", rope_plan_kernel(alone));
    free(got);
    free(expected);
    free(memory);
    rope_plan_destroy(plan);
    rope_plan_destroy(alone);
}

/* A plan whose table has the other backend's kernel for so many queries, and one of that backend
 * alone, by the descriptor that comes back. */
static rope_attention_desc make_plans(int queries, rope_plan **plan, rope_plan **alone) {
    rope_attention_desc desc = desc_of(ROPE_BF16);
    begin_table();
    add_point(forward, DIM, 1, queries, "", other, kernel);
    desc.tuning = file_of(end_table());
    CHECK_STATUS(ROPE_OK, rope_attention_plan_create(&desc, plan));
    desc.rope.backend = other;
    CHECK_STATUS(ROPE_OK, rope_attention_plan_create(&desc, alone));
    return desc;
}

/* A sequence that grows by a token in tensors would have an engine for each length: the first
 * kernel takes its calls. */
TEST(tuning, queries_that_follow_keys_in_tensors_have_no_engines) {
    enum { QUERIES = 1 };
    rope_plan *plan, *alone;
    require_other();
    (void)make_plans(QUERIES, &plan, &alone);
    unsigned char *memory = calloc(1, BYTES);
    CHECK_STATUS(ROPE_ERROR_UNSUPPORTED, attend(alone, QUERIES, MOST, memory, memory));
    CHECK(strstr(rope_last_error(), "1 queries of 96 keys"), "%s", rope_last_error());
    CHECK_STATUS(ROPE_OK, attend(plan, QUERIES, MOST, memory, memory));
    CHECK_STATUS(ROPE_OK, attend(alone, MOST, MOST, memory, memory));
    free(memory);
    rope_plan_destroy(plan);
    rope_plan_destroy(alone);
}

/* Memory that lacks for a while is no word on what cuDNN has: the first kernel takes calls, and the
 * table's those that come later. */
TEST(tuning, engines_are_asked_again_once_there_is_memory) {
    const char *lacks = "CUDNN_EMULATION_NO_MEMORY";
    const rope_attention_bounds bounds = {sizeof bounds, 1, MOST, MOST, 0, HEADS, 1};
    rope_plan *plan, *alone, *none = NULL;
    size_t bytes = 7;
    require_other();
    if (!test_number("ROPE_TEST_EMULATED", 0))
        SKIP("memory lacks where cuDNN is emulated");
    const rope_attention_desc desc = make_plans(MOST, &plan, &alone);
    unsigned char *memory = calloc(1, BYTES);
    test_random random = random_stream(test_seed(), 8);
    for (int i = 0; i < ELEMENTS; i++)
        oracle_store(ROPE_BF16, memory, i, random_real(&random, -1, 1));
    setenv(lacks, "1", 1);
    CHECK_STATUS(ROPE_ERROR_OUT_OF_MEMORY, rope_attention_plan_create(&desc, &none));
    CHECK_STATUS(ROPE_ERROR_OUT_OF_MEMORY, rope_attention_workspace(alone, &bounds, &bytes));
    CHECK(!none && bytes == 7, "a plan or a workspace that is none was written");
    check_bits(plan, memory, MOST, device_kernel_of(forward, 0));
    unsetenv(lacks);
    unsigned char *got = run(plan, memory, MOST), *expected = run(alone, memory, MOST);
    CHECK(memcmp(got, expected, BYTES) == 0, "not the bits of %s", rope_plan_kernel(alone));
    free(got);
    free(expected);
    free(memory);
    rope_plan_destroy(plan);
    rope_plan_destroy(alone);
}

/* --- the backward --- */

static void gradient_arguments(rope_attention_backward_args *args, rope_attention_args *of,
                               unsigned char *memory, int64_t tokens) {
    const size_t all = MOST * DIM * 2;
    arguments(of, memory, tokens);
    unsigned char *at = memory + (2 * HEADS + 2) * all;
    *args = (rope_attention_backward_args)ROPE_ATTENTION_BACKWARD_ARGS_INIT;
    args->forward = of;
    args->dout = at;
    args->dq.data = at + HEADS * all;
    args->dk.data = at + 2 * HEADS * all;
    args->dv.data = at + (2 * HEADS + 1) * all;
    of->lse = (float *)(void *)(at + (2 * HEADS + 2) * all);
}

enum {
    ALIGNMENT = 256,
    GRADIENT_BYTES = BYTES + 2 * (2 * HEADS + 2) * MOST * DIM + 4 * HEADS * MOST
};

/* All that the backward of a call of so many tokens leaves, by a plan. */
static unsigned char *run_backward(const rope_plan *plan, const unsigned char *from,
                                   int64_t tokens) {
    void *memory, *workspace;
    rope_attention_args of;
    rope_attention_backward_args args;
    const rope_attention_bounds bounds = {sizeof bounds, 1, tokens, tokens, 0, HEADS, 1};
    rope_attention_desc desc = desc_of(ROPE_BF16);
    rope_plan *attends;
    size_t bytes[2];
    unsigned char *result = malloc(GRADIENT_BYTES);
    desc.tuning = "";
    CHECK_STATUS(ROPE_OK, rope_attention_plan_create(&desc, &attends));
    CHECK_STATUS(ROPE_OK, rope_attention_workspace(attends, &bounds, &bytes[0]));
    CHECK_STATUS(ROPE_OK, rope_attention_backward_workspace(plan, &bounds, &bytes[1]));
    const size_t most = bytes[0] > bytes[1] ? bytes[0] : bytes[1];
    CHECK_STATUS(ROPE_OK, rope_device_alloc(device_open(), GRADIENT_BYTES, &memory));
    CHECK_STATUS(ROPE_OK, rope_device_alloc(device_open(), most + ALIGNMENT, &workspace));
    CHECK_STATUS(ROPE_OK, rope_device_copy_in(device_open(), memory, from, GRADIENT_BYTES));
    gradient_arguments(&args, &of, memory, tokens);
    of.workspace = (char *)workspace + (ALIGNMENT - (uintptr_t)workspace % ALIGNMENT) % ALIGNMENT;
    of.workspace_bytes = most;
    CHECK_STATUS(ROPE_OK, rope_attention(attends, &of));
    CHECK_STATUS(ROPE_OK, rope_attention_backward(plan, &args));
    CHECK_STATUS(ROPE_OK, rope_device_synchronize(device_open()));
    CHECK_STATUS(ROPE_OK, rope_device_copy_out(device_open(), result, memory, GRADIENT_BYTES));
    CHECK_STATUS(ROPE_OK, rope_device_free(device_open(), memory));
    CHECK_STATUS(ROPE_OK, rope_device_free(device_open(), workspace));
    rope_plan_destroy(attends);
    return result;
}

static void check_gradients(const rope_plan *plan, const unsigned char *from, int64_t tokens,
                            const char *kernel) {
    rope_attention_desc desc = desc_of(ROPE_BF16);
    rope_plan *alone;
    desc.rope.kernel = kernel;
    CHECK_STATUS(ROPE_OK, rope_attention_backward_plan_create(&desc, &alone));
    unsigned char *got = run_backward(plan, from, tokens),
                  *expected = run_backward(alone, from, tokens);
    CHECK(memcmp(got, expected, GRADIENT_BYTES) == 0, "%lld tokens do not have the bits of %s",
          (long long)tokens, kernel);
    free(got);
    free(expected);
    rope_plan_destroy(alone);
}

TEST(tuning, calls_of_the_backward_take_the_kernel_of_the_nearest_point) {
    const char *name[2];
    unsigned char *memory = calloc(1, GRADIENT_BYTES);
    test_random random = random_stream(test_seed(), 6);
    rope_plan *plan;
    if (!two_kernels(backward, ROPE_BF16, name))
        SKIP("%s has one kernel", device_backend());
    for (int i = 0; i < (GRADIENT_BYTES - 4 * HEADS * MOST) / 2; i++)
        oracle_store(ROPE_BF16, memory, i, random_real(&random, -1, 1));
    for (int order = 0; order < 2; order++) {
        const char *few = name[1 - order], *many = name[order];
        rope_attention_desc desc = desc_of(ROPE_BF16);
        desc.tuning = file_of(table_of(backward, few, many));
        CHECK_STATUS(ROPE_OK, rope_attention_backward_plan_create(&desc, &plan));
        for (int64_t tokens = 1; tokens <= MOST; tokens++) {
            rope_attention_args of;
            rope_attention_backward_args args;
            gradient_arguments(&args, &of, memory, tokens);
            check_name(rope_plan_kernel_of(plan, &args), tokens, tokens <= 17 ? few : many);
        }
        check_gradients(plan, memory, 3, few);
        check_gradients(plan, memory, MOST, many);
        rope_plan_destroy(plan);
    }
    free(memory);
}

static void check_order(int32_t allowed, const char *kernel) {
    static unsigned char memory[GRADIENT_BYTES];
    rope_attention_desc desc = desc_of(ROPE_BF16);
    rope_attention_args of;
    rope_attention_backward_args args;
    rope_shape_entry entries[ROPE_SHAPE_MOST];
    rope_plan *plan;
    int found = 0;
    desc.nondeterministic = allowed;
    desc.tuning = path;
    CHECK_STATUS(ROPE_OK, rope_attention_backward_plan_create(&desc, &plan));
    gradient_arguments(&args, &of, memory, 64);
    check_name(rope_plan_kernel_of(plan, &args), 64, kernel);
    for (int32_t i = rope_plan_shape(plan, &args, entries); i-- > 0;)
        found |= strcmp(entries[i].name, "nondeterministic") == 0 && entries[i].value == 1;
    CHECK(found == allowed, "a point of nondeterministic %d %s it", allowed,
          found ? "has" : "lacks");
    rope_plan_destroy(plan);
}

/* A problem that allows kernels that sum in any order takes what was measured among them, or where
 * nothing was, what is known of the others; the forward has no such field. */
TEST(tuning, points_of_kernels_in_any_order_are_apart) {
    static const char allowed[] = "\"nondeterministic\": 1, ";
    const char *name[2];
    rope_attention_desc desc = desc_of(ROPE_BF16);
    rope_plan *plan = NULL;
    if (!two_kernels(backward, ROPE_BF16, name))
        SKIP("%s has one kernel", device_backend());
    for (int measured = 0; measured < 2; measured++) {
        begin_table();
        add_point(backward, DIM, 1, 64, "", device_backend(), name[1]);
        add_point(backward, measured ? DIM : 2 * DIM, 1, 64, allowed, device_backend(), name[0]);
        file_of(end_table());
        check_order(0, name[1]);
        check_order(1, name[!measured]);
    }
    begin_table();
    add_point(forward, DIM, 1, 64, allowed, device_backend(), device_kernel_of(forward, 0));
    add_point(backward, DIM, 1, 64, "\"nondeterministic\": -1, ", device_backend(), name[0]);
    desc.tuning = file_of(end_table());
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_attention_plan_create(&desc, &plan));
    CHECK(strstr(rope_last_error(), "point 0 has a field \"nondeterministic\""), "the text is %s",
          rope_last_error());
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_attention_backward_plan_create(&desc, &plan));
    CHECK(strstr(rope_last_error(), "nondeterministic of point 1 is -1"), "the text is %s",
          rope_last_error());
}

/* --- packed sequences, and heads of other sizes --- */

/* Of one sequence of so many tokens, in a batch row or packed. */
static void check_layout(const rope_plan *plan, int packed, int64_t tokens, const char *kernel) {
    static unsigned char memory[BYTES];
    const int64_t begin[] = {0, tokens};
    rope_attention_args args;
    arguments(&args, memory, tokens);
    if (packed) {
        args.rope.cu_seqlens = args.k_cu_seqlens = begin;
        args.rope.sequences = 1;
    }
    check_name(rope_plan_kernel_of(plan, &args), tokens, kernel);
}

/* Each layout takes its own points, however far, and the other's where there are none. */
TEST(tuning, points_of_packed_sequences_are_apart) {
    static const char packed[] = "\"packed\": 1, ";
    const char *name[2];
    if (!two_kernels(forward, ROPE_BF16, name))
        SKIP("%s has one kernel", device_backend());
    for (int measured = 0; measured < 4; measured++) {
        rope_attention_desc desc = desc_of(ROPE_BF16);
        rope_plan *plan;
        begin_table();
        if (measured != 1)
            add_point(forward, DIM, 1, 8, "", device_backend(), name[1]);
        if (measured != 0)
            add_point(forward, DIM, 1, 64, packed, device_backend(), name[0]);
        if (measured == 3) /* as far as values may lie */
            add_point(forward, DIM, 1, 1, "\"packed\": 0, \"window\": 2305843009213693952, ",
                      device_backend(), name[1]);
        desc.tuning = file_of(end_table());
        CHECK_STATUS(ROPE_OK, rope_attention_plan_create(&desc, &plan));
        for (int64_t tokens = 1; tokens <= MOST; tokens += 5) {
            check_layout(plan, 0, tokens, name[measured != 1]);
            check_layout(plan, 1, tokens, name[measured == 0]);
        }
        rope_plan_destroy(plan);
    }
}

/* kernel NULL: the plan has its first alone. */
static void check_head(int32_t head_dim, int32_t v_head_dim, const char *kernel) {
    static unsigned char memory[2 * ELEMENTS * 8];
    rope_attention_desc desc = desc_of(ROPE_BF16);
    rope_attention_args args = ROPE_ATTENTION_ARGS_INIT;
    rope_plan *plan;
    desc.rope.head_dim = head_dim;
    desc.v_head_dim = v_head_dim;
    desc.tuning = path;
    CHECK_STATUS(ROPE_OK, rope_attention_plan_create(&desc, &plan));
    args.rope.batch = args.rope.tokens = args.k_tokens = 1;
    args.rope.q = (rope_tensor){.in = memory, .heads = HEADS};
    args.rope.k = (rope_tensor){.in = memory + 4096, .heads = 1};
    args.v = (rope_tensor){.in = memory + 8192, .heads = 1};
    args.out.data = memory + 16384;
    test_describe(rope_plan_report(plan));
    if (kernel)
        check_name(rope_plan_kernel_of(plan, &args), head_dim, kernel);
    else
        CHECK(!strchr(rope_plan_kernel(plan), ','), "%s", rope_plan_kernel(plan));
    rope_plan_destroy(plan);
}

/* Heads whose size no point has take those of the next larger one, never of a smaller one. */
TEST(tuning, heads_without_points_take_those_of_larger_ones) {
    const char *name[2];
    if (!two_kernels(forward, ROPE_BF16, name))
        SKIP("%s has one kernel", device_backend());
    for (int order = 0; order < 2; order++) {
        const char *wide = name[order], *wider = name[1 - order];
        begin_table();
        add_point(forward, 128, 1, 1, "", device_backend(), wider);
        add_point(forward, 96, 1, 1, "\"v_head_dim\": 32, ", device_backend(), wider);
        add_point(forward, 96, 1, 1, "", device_backend(), wide);
        add_point(forward, 32, 1, 1, "", device_backend(), wider);
        file_of(end_table());
        check_head(64, 64, wide);
        check_head(80, 80, wide);
        check_head(96, 96, wide);
        check_head(80, 16, wider);
        check_head(112, 112, wider);
        check_head(128, 128, wider);
    }
    check_head(160, 160, NULL);
}

/* --- many points, and bad ones --- */

/* Each is its own nearest one; a call of f16 takes those of bf16. */
TEST(tuning, every_point_counts) {
    enum { BATCHES = 12, TOKENS = 8 };
    const char *name[2];
    unsigned char *memory = calloc(1, BYTES);
    if (!two_kernels(forward, ROPE_F16, name))
        SKIP("%s has one kernel", device_backend());
    begin_table();
    for (int i = 0; i < BATCHES * TOKENS; i++)
        add_point(forward, DIM, 1 + i / TOKENS, 1 + i % TOKENS, "", device_backend(),
                  name[i * 5 % 7 % 2]);
    const char *file = file_of(end_table());
    for (int d = 0; d < 2; d++) {
        rope_attention_desc desc = desc_of(d ? ROPE_BF16 : ROPE_F16);
        rope_attention_args args;
        rope_plan *plan;
        desc.tuning = file;
        CHECK_STATUS(ROPE_OK, rope_attention_plan_create(&desc, &plan));
        for (int i = 0; i < BATCHES * TOKENS; i++) {
            arguments(&args, memory, 1 + i % TOKENS);
            args.rope.batch = 1 + i / TOKENS;
            check_name(rope_plan_kernel_of(plan, &args), 1 + i % TOKENS, name[i * 5 % 7 % 2]);
        }
        rope_plan_destroy(plan);
    }
    free(memory);
}

/* A point of an operation that is not the plan's is left to plans of that one. */
TEST(tuning, points_of_another_operation_are_not_checked) {
    rope_attention_desc desc = desc_of(ROPE_F32);
    rope_plan *plan = NULL;
    if (device_is_provider())
        SKIP("%s has no kernel of f32", device_backend());
    desc.tuning = file_of("{\"points\": [{\"operation\": \"attention_backward\"}]}");
    CHECK_STATUS(ROPE_OK, rope_attention_plan_create(&desc, &plan));
    rope_plan_destroy(plan);
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_attention_backward_plan_create(&desc, &plan));
    CHECK(strstr(rope_last_error(), "bits of point 0"), "the text is %s", rope_last_error());
}

#define POINT "{\"operation\": \"attention\", \"bits\": 32, \"head_dim\": 64"
#define REST                                                                                       \
    ", \"mask\": \"causal\", \"cache\": \"none\", \"batch\": 1, \"tokens\": 4, \"q_heads\": 2, "   \
    "\"k_heads\": 1"
#define X60 "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
static const struct {
    const char *text, *said;
} no_tables[] = {
    {"", "allowed is a file of 1 to"},
    {"{", "byte"},
    {"[]", "object"},
    {"{}", "points is absent; allowed is a list"},
    {"{\"points\": 3}", "points is 3; allowed is a list"},
    {"{\"points\": [3]}", "point 0"},
    {"{\"points\": [" POINT "}]}", "mask of point 0"},
    {"{\"points\": [{}]}", "operation of point 0"},
    {"{\"points\": [{\"operation\": 3}]}", "operation of point 0"},
    {"{\"points\": [" POINT REST "}]}", "kernel of point 0"},
    {"{\"points\": [" POINT REST ", \"kernel\": \"avx2\"}]}", "kernel of point 0"},
    {"{\"points\": [" POINT ", \"v_head_dim\": -1}]}", "v_head_dim of point 0"},
    {"{\"points\": [{\"operation\": \"attention\", \"bits\": \"16\"}]}", "bits of point 0"},
    {"{\"points\": [" POINT ", \"v_head_dim\": 64.5}]}",
     "v_head_dim of point 0 is 64.5; allowed is an integer > 0"},
    {"{\"points\": [" POINT ", \"v_head_dim\": 0}]}",
     "v_head_dim of point 0 is 0; allowed is an integer > 0"},
    {"{\"points\": [{\"operation\": \"attention\", \"bits\": 32, \"head_dim\": 0}]}",
     "head_dim of point 0 is 0; allowed is an integer > 0"},
    {"{\"points\": [{\"operation\": \"attention\", \"bits\": 17}]}",
     "bits of point 0 is 17; allowed is 16 or 32"},
    {"{\"points\": [" POINT ", \"mask\": \"causal\", \"cache\": \"none\", \"batch\": 1, "
     "\"tokens\": 0}]}",
     "tokens of point 0 is 0; allowed is an integer > 0"},
    {"{\"points\": [" POINT REST ", \"window\": 0}]}",
     "window of point 0 is 0; allowed is an integer > 0"},
    {"{\"points\": [" POINT REST ", \"packed\": 2}]}", "packed of point 0 is 2; allowed is 0 or 1"},
    {"{\"points\": [" POINT ", \"head_dim\": 32" REST "}]}",
     "head_dim of point 0 is given twice; allowed is once"},
    {"{\"points\": [" POINT ", \"operation\": \"attention\"}]}",
     "operation of point 0 is given twice; allowed is once"},
    {"{\"points\": [" POINT REST ", \"kernel\": \"cpu:scalar\", \"kernel\": \"cpu:avx2\"}]}",
     "kernel of point 0 is given twice; allowed is once"},
    {"{\"points\": [], \"points\": []}", "points is given twice; allowed is once"},
    {"{\"backend\": 3, \"points\": []}", "backend is 3; allowed is a string"},
    {"{\"features\": [\"a\"], \"points\": []}", "features is a list; allowed is a string"},
    {"{\"device\": \"a\", \"device\": \"a\", \"points\": []}",
     "device is given twice; allowed is once"},
    {"{\"points\": [" POINT ", \"mask\": \"band\"}]}",
     "mask of point 0 is \"band\"; allowed is causal, full, tree"},
    {"{\"points\": [" POINT ", \"mask\": 7}]}", "mask of point 0 is 7; allowed"},
    {"{\"points\": [" POINT REST ", \"windw\": 5, \"kernel\": \"cpu:scalar\"}]}",
     "point 0 has a field \"windw\"; allowed is any of operation, kernel, bits, head_dim"},
    {"{\"points\": [" POINT REST ", \"" X60 X60 "\": 5, \"kernel\": \"cpu:scalar\"}]}",
     "point 0 has a field \"of more than 63 bytes\"; allowed is any of"},
    {"{\"points\": [" POINT REST ", \"kernel\": 3}]}", "kernel of point 0 is 3; allowed"},
    {"{\"points\": [" POINT REST ", \"kernel\": true}]}", "kernel of point 0 is true; allowed"},
    {"{\"points\": [" POINT REST ", \"kernel\": \"cpu:" X60 "\"}]}",
     "kernel of point 0 is \"cpu:" X60 "\"; allowed is a name as in \"cpu:avx512\", of up to 63 "
     "bytes"},
    {"{\"points\": [" POINT REST ", \"kernel\": \"cpu:" X60 X60 "\"}]}",
     "kernel of point 0 is \"cpu:xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...\" of 124 bytes; "
     "allowed "
     "is a name as in"},
    /* behind a good one, of a problem that is not the plan's */
    {"{\"points\": [" POINT REST ", \"kernel\": \"cpu:scalar\"}, {\"operation\": "
     "\"attention\", \"bits\": 16, \"head_dim\": 64" REST "}]}",
     "kernel of point 1"},
};

TEST(tuning, tables_that_are_none_are_refused) {
    for (size_t i = 0; i < sizeof no_tables / sizeof no_tables[0]; i++) {
        rope_attention_desc desc = desc_of(device_is_provider() ? ROPE_BF16 : ROPE_F32);
        rope_plan *plan = NULL;
        test_describe(no_tables[i].text);
        desc.tuning = file_of(no_tables[i].text);
        CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_attention_plan_create(&desc, &plan));
        CHECK(!plan && strstr(rope_last_error(), no_tables[i].said), "the text is %s",
              rope_last_error());
    }
}
