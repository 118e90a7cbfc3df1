/* Attention over a cache of 8 bits has the bits of one over the same elements in the type of the
 * call, by every kernel of the CPU and for every code. */
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <ropekit/attention.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { Q_HEADS = 8, K_HEADS = 2, DIM = 96, KEYS = 300, CODES = KEYS * K_HEADS * DIM, TOKENS = 19 };

typedef struct coded {
    uint8_t codes[2][CODES];
    uint16_t elements[2][CODES], q[TOKENS * Q_HEADS * DIM], out[2][TOKENS * Q_HEADS * DIM];
} coded;

/* What a finite code stands for; the others become 1. */
static float value_of(int dtype, uint8_t *code) {
    if (dtype == ROPE_I8)
        return (float)(int8_t)*code;
    const int bits = dtype == ROPE_F8E4M3 ? 3 : 2, bias = dtype == ROPE_F8E4M3 ? 7 : 15;
    if ((*code & 0x7f) > (dtype == ROPE_F8E4M3 ? 0x7e : 0x7b))
        *code = (uint8_t)(bias << bits);
    const int exponent = *code >> bits & (0x7f >> bits), mantissa = *code & ((1 << bits) - 1);
    const double x = exponent ? ldexp((1 << bits) + mantissa, exponent - bias - bits)
                              : ldexp(mantissa, 1 - bias - bits);
    return (float)(*code & 0x80 ? -x : x);
}

/* bf16 has all of them exactly, f16 those of e5m2 as their upper half. */
static uint16_t element_of(int dtype, float x, uint8_t code) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return dtype == ROPE_BF16 ? (uint16_t)(bits >> 16) : (uint16_t)(code << 8);
}

static void fill(coded *c, int dtype, int store) {
    uint32_t state = 1;
    for (int i = 0; i < TOKENS * Q_HEADS * DIM; i++)
        c->q[i] = (uint16_t)((dtype == ROPE_BF16 ? 0x3c00 : 0x2c00) + i * 31 % 256);
    for (int t = 0; t < 2; t++)
        for (int i = 0; i < CODES; i++) {
            state = state * 1664525 + 1013904223;
            c->codes[t][i] = (uint8_t)(state >> 24);
            const float x = value_of(store, &c->codes[t][i]);
            c->elements[t][i] = element_of(dtype, x, c->codes[t][i]);
        }
}

/* Returns 0 where the kernel declines. */
static int attend(coded *c, int dtype, int store, int64_t tokens, const char *kernel,
                  int coded_as) {
    const int64_t keys = KEYS;
    rope_plan *plan = NULL;
    rope_attention_desc desc = ROPE_ATTENTION_DESC_INIT;
    rope_attention_args args = ROPE_ATTENTION_ARGS_INIT;
    device_choose(&desc.rope);
    desc.rope.dtype = dtype, desc.rope.head_dim = DIM, desc.rope.kernel = kernel;
    desc.rotation = ROPE_ATTENTION_ROTATE_NONE;
    desc.cache = ROPE_CACHE_SEQUENCE, desc.page_size = KEYS;
    desc.k.dtype = desc.v.dtype = coded_as ? store : dtype;
    args.rope.batch = 1, args.rope.tokens = tokens;
    args.rope.q.in = c->q, args.rope.q.heads = Q_HEADS;
    args.rope.k.heads = args.v.heads = K_HEADS;
    args.k_cache.data = coded_as ? (void *)c->codes[0] : c->elements[0];
    args.v_cache.data = coded_as ? (void *)c->codes[1] : c->elements[1];
    args.pages = 1, args.k_lengths = &keys;
    args.out.data = c->out[coded_as];
    const rope_status status = rope_attention_plan_create(&desc, &plan);
    if (status == ROPE_ERROR_UNSUPPORTED)
        return 0;
    CHECK_STATUS(ROPE_OK, status);
    const rope_attention_bounds bounds = {sizeof bounds, 1, tokens, KEYS, 0, Q_HEADS, K_HEADS};
    CHECK_STATUS(ROPE_OK, rope_attention_workspace(plan, &bounds, &args.workspace_bytes));
    args.workspace = aligned_alloc(256, (args.workspace_bytes + 255) / 256 * 256);
    CHECK_STATUS(ROPE_OK, rope_attention(plan, &args));
    free(args.workspace);
    rope_plan_destroy(plan);
    return 1;
}

static void check(coded *c, int dtype, int store, int64_t tokens) {
    const char *kernel;
    int compared = 0;
    fill(c, dtype, store);
    for (int k = 0; (kernel = device_kernel_of("attention", k)); k++)
        if (attend(c, dtype, store, tokens, kernel, 0) &&
            attend(c, dtype, store, tokens, kernel, 1)) {
            CHECK(
                memcmp(c->out[0], c->out[1], (size_t)tokens * Q_HEADS * DIM * 2) == 0,
                "%s, %lld queries: a cache of type %d has other bits than its elements in type %d",
                kernel, (long long)tokens, store, dtype);
            compared++;
        }
    CHECK(compared, "no kernel takes a cache of type %d in type %d", store, dtype);
}

TEST(attention_codes, as_the_elements_that_they_are) {
    static const int64_t tokens[] = {1, 4, TOKENS};
    if (!device_is_host())
        SKIP("the cache lies in the memory of the host");
    coded *c = calloc(1, sizeof *c);
    for (int i = 0; i < 3; i++) {
        check(c, ROPE_BF16, ROPE_F8E4M3, tokens[i]);
        check(c, ROPE_BF16, ROPE_F8E5M2, tokens[i]);
        check(c, ROPE_BF16, ROPE_I8, tokens[i]);
        check(c, ROPE_F16, ROPE_F8E5M2, tokens[i]);
    }
    free(c);
}
