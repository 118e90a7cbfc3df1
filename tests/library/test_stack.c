/* Every operation, by every kernel and for every element type, on threads with as little stack as
 * rope.h asks for. */
#include "tests/append/compare.h"
#include "tests/append_backward/cases.h"
#include "tests/attention_backward/cases.h"
#include "tests/decode/compare.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"
#include "tests/support/stack.h"

#include <stdlib.h>
#include <string.h>

enum { CASES = 40 };

/* --- generated cases --- */

static void begin(void) {
    if (!device_is_host())
        SKIP("kernels run elsewhere");
    stack_required();
}

/* A case as the operation's own tests run it. */
typedef rope_status run_case(const void *c, const char *kernel, unsigned char *result);

/* The bits and the status are those of a thread with a large stack. The device names the reference
 * too. */
static void check_case(const char *operation, run_case *run, const void *c, size_t bytes) {
    unsigned char *expected = malloc(bytes), *result = malloc(bytes);
    const char *kernel;
    for (int k = 0; (kernel = rope_device_kernel(device_open(), operation, k)); k++) {
        const rope_status wanted = run(c, kernel, expected);
        if (wanted == ROPE_ERROR_UNSUPPORTED)
            continue;
        stack_limit(STACK_BYTES);
        const rope_status status = run(c, kernel, result);
        stack_limit(0);
        CHECK(status == wanted, "%s, not %s", rope_status_string(status),
              rope_status_string(wanted));
        CHECK(memcmp(expected, result, bytes) == 0, "other bits by %s", kernel);
    }
    free(expected);
    free(result);
}

static rope_status run_rope(const void *opaque, const char *kernel, unsigned char *result) {
    const test_case *c = opaque;
    case_describe(c, kernel);
    return device_run(c, &c->desc, &c->args, 1, kernel, result);
}

TEST(stack, rope) {
    begin();
    for (int64_t i = -1; test_next(&i, 2 * CASES);) {
        test_case c;
        case_make(&c, test_seed() + 20, i, NULL);
        check_case("rope", run_rope, &c, c.bytes);
        case_free(&c);
    }
}

static rope_status run_append(const void *opaque, const char *kernel, unsigned char *result) {
    const append_case *c = opaque;
    append_describe(c, kernel);
    return append_run(c, &c->desc, &c->args, 1, kernel, result);
}

TEST(stack, append) {
    begin();
    for (int64_t i = -1; test_next(&i, 2 * CASES);) {
        append_case c;
        append_make(&c, test_seed() + 21, i, NULL);
        check_case("append", run_append, &c, c.base.bytes);
        append_free(&c);
    }
}

static rope_status run_append_backward(const void *opaque, const char *kernel,
                                       unsigned char *result) {
    const gradient_case *c = opaque;
    append_describe(&c->forward, kernel);
    return gradient_run(c, kernel, result);
}

TEST(stack, append_backward) {
    begin();
    for (int64_t i = -1; test_next(&i, CASES);) {
        gradient_case c;
        gradient_make(&c, test_seed() + 22, i, NULL);
        check_case("append_backward", run_append_backward, &c, c.forward.base.bytes);
        gradient_free(&c);
    }
}

static rope_status run_attention(const void *opaque, const char *kernel, unsigned char *result) {
    attention_describe(opaque, kernel);
    return attention_run(opaque, kernel, result);
}

TEST(stack, attention) {
    static const attention_wish wish = {.large = 1};
    begin();
    for (int64_t i = -1; test_next(&i, CASES);) {
        attention_case c;
        attention_make(&c, test_seed() + 23, i, &wish);
        check_case("attention", run_attention, &c, c.base.bytes);
        attention_free(&c);
    }
}

static rope_status run_decode(const void *opaque, const char *kernel, unsigned char *result) {
    decode_describe(opaque, kernel);
    return decode_run(opaque, kernel, 0, result);
}

/* Composed: its kernels are attention's. */
TEST(stack, decode) {
    begin();
    for (int64_t i = -1; test_next(&i, CASES / 2);) {
        decode_case c;
        decode_make(&c, test_seed() + 25, i, 0);
        check_case("attention", run_decode, &c, c.append.base.bytes);
        decode_free(&c);
    }
}

static rope_status run_attention_backward(const void *opaque, const char *kernel,
                                          unsigned char *result) {
    const backward_case *c = opaque;
    attention_describe(&c->forward, kernel);
    return backward_run(c, kernel, result);
}

TEST(stack, attention_backward) {
    begin();
    for (int64_t i = -1; test_next(&i, CASES);) {
        backward_case c;
        backward_make(&c, test_seed() + 24, i, NULL, NULL);
        check_case("attention_backward", run_attention_backward, &c, c.forward.base.bytes);
        backward_free(&c);
    }
}

/* --- whole layers --- */

/* A layer from its plans to its gradients: heads of `dim` elements, each tensor in a part of memory
 * of its own. */
typedef struct layer {
    int32_t dtype, dim;
    int64_t tokens, heads;
    int32_t kernel; /* index among those of each operation */
    unsigned char *memory;
    rope_status status;
    char error[256];
} layer;

enum { Q, K, V, OUT, DOUT, DQ, DK, DV, WORKSPACE, PARTS };

static size_t part_bytes(const layer *l) {
    return (size_t)(l->tokens * l->heads * l->dim * 8);
}

static void *part_of(const layer *l, int part) {
    return l->memory + (size_t)part * part_bytes(l);
}

static void keep(layer *l, rope_status status) {
    if (status == ROPE_OK || status == ROPE_ERROR_UNSUPPORTED || l->status != ROPE_OK)
        return;
    l->status = status;
    strncpy(l->error, rope_last_error(), sizeof l->error - 1);
}

static rope_desc desc_of(const layer *l, const char *operation) {
    rope_desc desc = ROPE_DESC_INIT;
    desc.dtype = l->dtype;
    desc.head_dim = l->dim;
    desc.kernel = rope_device_kernel(device_open(), operation, l->kernel);
    device_choose(&desc);
    return desc;
}

static void rotate(layer *l) {
    rope_desc desc = desc_of(l, "rope");
    rope_plan *plan = NULL;
    rope_args args = ROPE_ARGS_INIT;
    desc.pairing_in = ROPE_PAIRING_INTERLEAVED;
    args.batch = 1;
    args.tokens = l->tokens;
    args.q = (rope_tensor){.in = part_of(l, Q), .out = part_of(l, Q), .heads = l->heads};
    args.k = (rope_tensor){.in = part_of(l, K), .out = part_of(l, OUT), .heads = l->heads};
    keep(l, rope_plan_create(&desc, &plan));
    if (plan)
        keep(l, rope_apply(plan, &args));
    rope_plan_destroy(plan);
}

static void append(layer *l) {
    rope_append_desc desc = ROPE_APPEND_DESC_INIT;
    rope_append_args args = ROPE_APPEND_ARGS_INIT;
    rope_plan *plan = NULL;
    desc.rope = desc_of(l, "append");
    desc.q.norm = desc.k.norm = (rope_norm){.type = ROPE_NORM_RMS, .eps = 1e-6};
    desc.k.store_dtype = ROPE_F8E4M3;
    desc.cache = ROPE_CACHE_SEQUENCE;
    desc.page_size = l->tokens;
    args.rope.batch = args.pages = 1;
    args.rope.tokens = l->tokens;
    args.rope.q = (rope_tensor){.in = part_of(l, Q), .out = part_of(l, OUT), .heads = l->heads};
    args.rope.k = (rope_tensor){.in = part_of(l, K), .heads = l->heads};
    args.k_cache.data = part_of(l, DK);
    keep(l, rope_append_plan_create(&desc, &plan));
    if (plan)
        keep(l, rope_append(plan, &args));
    rope_plan_destroy(plan);
}

static void attend(layer *l) {
    rope_attention_desc desc = ROPE_ATTENTION_DESC_INIT;
    rope_attention_args args = ROPE_ATTENTION_ARGS_INIT;
    rope_attention_backward_args gradients = ROPE_ATTENTION_BACKWARD_ARGS_INIT;
    const rope_attention_bounds bounds = {sizeof bounds, 1,       l->tokens, l->tokens, 0,
                                          l->heads,      l->heads};
    rope_plan *plan = NULL, *back = NULL;
    size_t bytes = 0;
    args.rope.batch = 1;
    args.rope.tokens = l->tokens;
    args.rope.q = (rope_tensor){.in = part_of(l, Q), .heads = l->heads};
    args.rope.k = (rope_tensor){.in = part_of(l, K), .heads = l->heads};
    args.v = (rope_tensor){.in = part_of(l, V), .heads = l->heads};
    args.out.data = part_of(l, OUT);
    args.lse = (float *)(void *)((char *)part_of(l, OUT) + part_bytes(l) / 2);
    args.workspace = part_of(l, WORKSPACE);
    desc.rope = desc_of(l, "attention");
    keep(l, rope_attention_plan_create(&desc, &plan));
    if (plan)
        keep(l, rope_attention_workspace(plan, &bounds, &args.workspace_bytes));
    if (plan)
        keep(l, rope_attention(plan, &args));
    gradients.forward = &args;
    gradients.dout = part_of(l, DOUT);
    gradients.dq.data = part_of(l, DQ);
    gradients.dk.data = part_of(l, DK);
    gradients.dv.data = part_of(l, DV);
    desc.rope = desc_of(l, "attention_backward");
    keep(l, rope_attention_backward_plan_create(&desc, &back));
    if (back)
        keep(l, rope_attention_backward_workspace(back, &bounds, &bytes));
    args.workspace_bytes = bytes;
    if (back)
        keep(l, rope_attention_backward(back, &gradients));
    rope_plan_destroy(plan);
    rope_plan_destroy(back);
}

static void merge(layer *l) {
    rope_attention_merge_desc desc = {.struct_size = sizeof desc, .dtype = l->dtype};
    rope_attention_merge_args args = {.struct_size = sizeof args, .parts = 2, .batch = 1};
    rope_plan *plan = NULL;
    desc.head_dim = l->dim;
    desc.backend = device_backend();
    args.tokens = l->tokens / 2;
    args.heads = l->heads;
    args.in = part_of(l, Q);
    args.in_lse = part_of(l, K);
    args.out.data = part_of(l, OUT);
    keep(l, rope_attention_merge_plan_create(&desc, &plan));
    if (plan)
        keep(l, rope_attention_merge(plan, &args));
    rope_plan_destroy(plan);
}

static void run_layer(void *opaque) {
    layer *l = opaque;
    rotate(l);
    if (l->dtype == ROPE_F64)
        return;
    append(l);
    if (l->dim > ROPE_MAX_ATTENTION_HEAD_DIM)
        return;
    attend(l);
    merge(l);
}

/* By each kernel, until there is none of this index for any operation. */
static void check_layer(int32_t dtype, int32_t dim, int64_t tokens, int64_t heads, size_t stack) {
    enum { WORKSPACE_BYTES = 16 << 20, ALIGNMENT = 256 };
    layer l = {.dtype = dtype, .dim = dim, .tokens = tokens, .heads = heads};
    const size_t bytes = ((size_t)PARTS * part_bytes(&l) + WORKSPACE_BYTES) / ALIGNMENT * ALIGNMENT;
    l.memory = aligned_alloc(ALIGNMENT, bytes);
    for (; rope_device_kernel(device_open(), "rope", l.kernel) ||
           rope_device_kernel(device_open(), "attention", l.kernel);
         l.kernel++) {
        memset(l.memory, 0x3c, bytes); /* numbers near 0.01, and of f16 near 1 */
        test_describe(test_text("kernel %d, dtype %d, %lld tokens of %lld heads of %d", l.kernel,
                                dtype, (long long)tokens, (long long)heads, dim));
        stack_run(stack, run_layer, &l);
        CHECK(l.status == ROPE_OK, "%s: %s", rope_status_string(l.status), l.error);
    }
    test_describe(NULL);
    free(l.memory);
}

/* The first is what wrote beyond a stack of 256 KB; one thread, then a team. */
TEST(stack, layers) {
    static const int32_t types[] = {ROPE_BF16, ROPE_F32, ROPE_F16, ROPE_F64};
    begin();
    for (int t = 0; t < 4; t++) {
        device_threads(1);
        check_layer(types[t], 64, 40, 2, STACK_BYTES);
        check_layer(types[t], 128, 40, 2, STACK_BYTES);
        check_layer(types[t], 4096, 3, 2, STACK_BYTES);
        device_threads(3);
        check_layer(types[t], 128, 96, 4, STACK_BYTES);
        check_layer(types[t], 576, 48, 4, STACK_BYTES);
        check_layer(types[t], 4096, 64, 2, STACK_BYTES);
    }
    device_threads(2);
}

static const char config[] =
    "{\"model_type\": \"llama\", \"head_dim\": 64, \"num_attention_heads\": 8, "
    "\"hidden_size\": 512, \"rope_theta\": 10000.0, \"rope_scaling\": {\"rope_type\": \"yarn\", "
    "\"factor\": 4.0, \"original_max_position_embeddings\": 4096}}";

/* What a program does ahead of its calls; text that is nested as deeply as it may be, and more. */
static rope_status prepare_all(void) {
    enum { DEPTH = 4000 };
    static char nested[DEPTH];
    rope_device *device = NULL;
    rope_config *read = NULL;
    rope_desc desc = ROPE_DESC_INIT;
    rope_plan *plan = NULL;
    double inv_freq[32];
    memset(nested, '[', sizeof nested);
    rope_status status = rope_device_open("cpu", 0, &device);
    rope_device_close(device);
    if (status == ROPE_OK && rope_config_parse(&read, nested, sizeof nested, NULL) == ROPE_OK)
        return ROPE_ERROR_DEVICE;
    if (status == ROPE_OK)
        status = rope_config_parse(&read, config, strlen(config), NULL);
    if (status == ROPE_OK)
        status = rope_config_finish(read, &desc, NULL);
    if (status == ROPE_OK)
        status = rope_plan_create(&desc, &plan);
    if (status == ROPE_OK)
        status = rope_frequencies(&desc, 0, inv_freq, 32, NULL);
    rope_plan_destroy(plan);
    rope_config_destroy(read);
    return status;
}

static void prepare(void *status) {
    *(rope_status *)status = prepare_all();
}

TEST(stack, plans) {
    rope_status status = ROPE_ERROR_DEVICE;
    begin();
    stack_run(STACK_BYTES, prepare, &status);
    CHECK(status == ROPE_OK, "%s", rope_status_string(status));
}
