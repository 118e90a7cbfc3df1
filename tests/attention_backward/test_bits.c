/* Gradients have the same bits run after run, from every number of threads, alone and in a batch,
 * and whichever are wanted; a call touches nothing beside its buffers and its workspace. */
#include "tests/attention/compare.h"
#include "tests/attention/norms.h"
#include "tests/attention_backward/shapes.h"
#include "tests/oracle/oracle.h"
#include "tests/support/device.h"
#include "tests/support/guard.h"
#include "tests/support/harness.h"

#include <stdlib.h>
#include <string.h>

enum { CASES = 200 };

/* The case after a run of a kernel, or NULL where it declines. */
static unsigned char *arena_after(const backward_case *c, const char *kernel) {
    unsigned char *result = malloc(c->forward.base.bytes);
    rope_status status = backward_run(c, kernel, result);
    if (status == ROPE_ERROR_UNSUPPORTED && kernel) {
        free(result);
        return NULL;
    }
    CHECK_STATUS(ROPE_OK, status);
    return result;
}

typedef void check_case(const backward_case *c, const char *kernel, const unsigned char *expected);

static void check_kernels(const backward_case *c, check_case *check) {
    const char *kernel;
    for (int k = 0; (kernel = device_kernel_of("attention_backward", k)); k++) {
        attention_describe(&c->forward, kernel);
        unsigned char *expected = arena_after(c, kernel);
        if (expected)
            check(c, kernel, expected);
        free(expected);
    }
}

/* For each case in range and each kernel: the arena after, then a check that compares with it. */
static void for_each_case(uint64_t seed, int64_t cases, check_case *check) {
    const int provided = device_is_provider();
    const attention_wish wish = {.tame = provided, .in_range = 1, .provided = provided};
    backward_required();
    for (int64_t i = -1; test_next(&i, cases);) {
        backward_case c;
        backward_make(&c, seed, i, &wish, "scalar");
        c.forward.desc.nondeterministic &= !provided;
        check_kernels(&c, check);
        backward_free(&c);
    }
}

static void check_same(const backward_case *c, const char *kernel, const unsigned char *expected,
                       const char *what) {
    unsigned char *result = arena_after(c, kernel);
    size_t at = 0;
    while (at < c->forward.base.bytes && result[at] == expected[at])
        at++;
    CHECK(at == c->forward.base.bytes, "%s: byte %zu of the arena differs", what, at);
    free(result);
}

static void check_again(const backward_case *c, const char *kernel, const unsigned char *expected) {
    unsigned char *replayed = malloc(c->forward.base.bytes);
    check_same(c, kernel, expected, "the same call again");
    CHECK_STATUS(ROPE_OK, backward_replay(c, kernel, replayed));
    CHECK(memcmp(replayed, expected, c->forward.base.bytes) == 0, "replayed from a graph");
    free(replayed);
}

TEST(attention_backward_bits, run_after_run) {
    for_each_case(test_seed() + 1, CASES / 4, check_again);
}

/* --- a batch --- */

/* Each sequence in a plain call of its own, beside one of all. */
static void check_alone(const backward_case *c, const char *kernel, const unsigned char *expected) {
    backward_case all, one;
    (void)expected;
    if (c->forward.args.rope.tokens == 0 || c->forward.parts == 0)
        return;
    backward_plain(&all, c, 0, c->forward.parts);
    unsigned char *together = arena_after(&all, kernel);
    CHECK(together, "the kernel declines without a rotation");
    for (int64_t n = 0; n < c->forward.parts; n++) {
        backward_plain(&one, c, n, 1);
        unsigned char *alone = arena_after(&one, kernel);
        backward_check_bits("alone", &all, together, n, &one, alone, 0);
        free(alone);
        attention_free(&one.forward);
    }
    free(together);
    attention_free(&all.forward);
}

TEST(attention_backward_bits, alone_and_in_a_batch) {
    device_not_provided("bits depend on the batch");
    for_each_case(test_seed() + 2, CASES, check_alone);
}

/* --- threads --- */

static void check_threads(const backward_case *c, const char *kernel,
                          const unsigned char *expected) {
    static const int counts[] = {1, 2, 3, 7};
    for (int i = 0; i < 4; i++) {
        device_threads(counts[i]);
        check_same(c, kernel, expected, "another number of threads");
    }
}

/* Rows of n queries and keys, of heads of which `group` share one of keys. */
static void make_rows(backward_case *c, int32_t dtype, int64_t batch, int64_t n, int64_t heads,
                      int64_t group) {
    backward_make_shape(c, &(backward_shape){dtype, 64, 64, heads / group, group, batch, n});
}

/* Enough work for a team. */
static void make_large(backward_case *c, int32_t dtype, int64_t n) {
    make_rows(c, dtype, 1, n, 4, 2);
    c->forward.desc.sink_dtype = ROPE_F32;
    c->forward.args.sinks = c->forward.args.lse;
    c->args.dsinks = c->forward.args.lse + n * 4;
}

TEST(attention_backward_bits, every_thread_count) {
    if (!device_is_host() || !device_threads(2))
        SKIP("the backend does not run on OpenMP");
    backward_required();
    for (int32_t dtype = ROPE_F32; dtype <= ROPE_BF16; dtype++) {
        backward_case c;
        make_large(&c, dtype, 301);
        check_kernels(&c, check_threads);
        attention_free(&c.forward);
    }
    device_threads(2);
    for_each_case(test_seed() + 4, CASES / 10, check_threads);
}

/* --- pieces --- */

/* A provider may have the sequences of a call, and their heads, one piece after another: of those
 * that are left over it has fewer, whose engine may need more. */
TEST(attention_backward_bits, numbers_that_do_not_divide) {
    backward_required();
    for (int64_t n = 2; n <= 7; n++)
        for (int by_heads = n > ATTENTION_MAX_PARTS; by_heads < 2; by_heads++) {
            backward_case c;
            const int64_t heads = by_heads ? n : 1;
            make_rows(&c, ROPE_BF16, by_heads ? 1 : n, 64, heads, 1);
            attention_describe(&c.forward, NULL);
            free(arena_after(&c, NULL));
            attention_free(&c.forward);
        }
}

/* --- what is wanted --- */

/* NaNs are alike: a norm's may have any bits. */
static int are_same(int32_t dtype, const unsigned char *a, const unsigned char *b, size_t bytes) {
    const size_t size = (size_t)oracle_dtype_size(dtype);
    for (size_t i = 0; i < bytes / size; i++)
        if (memcmp(a + i * size, b + i * size, size) != 0 &&
            !(oracle_is_nan(dtype, a, (int64_t)i) && oracle_is_nan(dtype, b, (int64_t)i)))
            return 0;
    return 1;
}

/* A call that wants one gradient alone. */
static void check_each(const backward_case *c, const char *kernel, const unsigned char *expected) {
    for (int32_t g = 0; g < GRADIENTS; g++) {
        backward_case one = *c;
        size_t bytes, same;
        if (!backward_gradient(&c->args, g)->data)
            continue;
        one.args.dq = one.args.dk = one.args.dv = (rope_attention_out){0};
        one.args.dsinks = one.args.dq_weight = one.args.dk_weight = NULL;
        *(g == GRADIENT_Q   ? &one.args.dq
          : g == GRADIENT_K ? &one.args.dk
                            : &one.args.dv) = *backward_gradient(&c->args, g);
        unsigned char *result = arena_after(&one, kernel);
        const char *wrong = backward_untouched(&one, result);
        CHECK(!wrong, "%s", wrong);
        for (int64_t n = 0; n < c->forward.parts; n++) {
            unsigned char *a = backward_rows(c, expected, g, n, &bytes),
                          *b = backward_rows(&one, result, g, n, &same);
            CHECK(bytes == same && are_same(c->forward.desc.rope.dtype, a, b, bytes),
                  "d%c differs where it alone is wanted", "qkv"[g]);
            free(a);
            free(b);
        }
        free(result);
    }
}

/* A call that wants the gradient of weights alone. */
static void check_weights(const backward_case *c, const char *kernel,
                          const unsigned char *expected) {
    for (int32_t g = GRADIENT_Q; g <= GRADIENT_K; g++) {
        backward_case one = *c;
        float *weight = backward_weight(&c->args, g);
        if (!weight)
            continue;
        one.args.dq = one.args.dk = one.args.dv = (rope_attention_out){0};
        one.args.dsinks = one.args.dq_weight = one.args.dk_weight = NULL;
        *(g == GRADIENT_Q ? &one.args.dq_weight : &one.args.dk_weight) = weight;
        unsigned char *result = arena_after(&one, kernel);
        const char *wrong = backward_untouched(&one, result);
        const size_t at = (size_t)((unsigned char *)weight - c->forward.base.arena);
        CHECK(!wrong, "%s", wrong);
        CHECK(are_same(ROPE_F32, result + at, expected + at,
                       (size_t)attention_weights(&c->forward, g) * 4),
              "d%c_weight differs where it alone is wanted", "qk"[g]);
        free(result);
    }
}

TEST(attention_backward_bits, weights_alone) {
    for_each_case(test_seed() + 6, CASES / 2, check_weights);
}

TEST(attention_backward_bits, each_gradient_alone) {
    for_each_case(test_seed() + 3, CASES / 2, check_each);
}

TEST(attention_backward_bits, each_gradient_of_a_long_sequence_alone) {
    backward_required();
    if (device_runs_on_cpu())
        SKIP("for the blocks of a GPU");
    for (int32_t dtype = ROPE_F16; dtype <= ROPE_BF16; dtype++) {
        backward_case c;
        make_rows(&c, dtype, 1, 1541, 48, 2);
        check_kernels(&c, check_each);
        attention_free(&c.forward);
    }
}

/* Keys ahead of all windows leave those that rows see between the lanes of a vector. */
TEST(attention_backward_bits, each_gradient_behind_keys_that_no_query_sees) {
    enum { KEYS = 200, QUERIES = 32, WINDOW = 31 };
    backward_required();
    device_not_provided("there are other queries than keys");
    for (int32_t dtype = ROPE_F16; dtype <= ROPE_BF16; dtype++) {
        backward_case c;
        make_rows(&c, dtype, 1, KEYS, 4, 2);
        attention_case *f = &c.forward;
        f->args.rope.tokens = f->q_count[0] = QUERIES;
        f->args.k_tokens = KEYS;
        f->desc.window = WINDOW;
        f->desc.scale = 1; /* rows see a key nearly alone */
        unsigned char *attended = malloc(f->base.bytes);
        CHECK_STATUS(ROPE_OK, attention_run(f, NULL, attended));
        memcpy(f->base.arena, attended, f->base.bytes);
        free(attended);
        check_kernels(&c, check_each);
        attention_free(f);
    }
}

/* --- memory --- */

typedef struct guarded {
    guard_case g;
    guard_workspace w;
} guarded;

static void run_guarded(const backward_case *c, const rope_plan *plan, guarded *all, size_t bytes) {
    rope_attention_args forward = c->forward.args;
    rope_attention_backward_args args = c->args;
    const void **list[ATTENTION_POINTERS + BACKWARD_POINTERS];
    attention_pointers(&forward, list);
    backward_pointers(&args, list + ATTENTION_POINTERS);
    guard_move(&all->g, &c->forward.base, list, ATTENTION_POINTERS + BACKWARD_POINTERS);
    forward.workspace = bytes ? all->w.g.block[0].at : NULL;
    forward.workspace_bytes = bytes;
    args.forward = &forward;
    CHECK_STATUS(ROPE_OK, rope_attention_backward(plan, &args));
    CHECK_STATUS(ROPE_OK, rope_device_synchronize(device_open()));
}

static void check_guarded(const backward_case *c, const char *kernel,
                          const unsigned char *expected) {
    rope_attention_desc desc = c->forward.desc;
    rope_attention_bounds bounds = attention_bounds(&c->forward), larger = bounds;
    rope_plan *plan = NULL;
    size_t bytes = 0, more = 0;
    guard_name_fault();
    device_choose(&desc.rope);
    desc.rope.kernel = kernel;
    CHECK_STATUS(ROPE_OK, rope_attention_backward_plan_create(&desc, &plan));
    CHECK_STATUS(ROPE_OK, rope_attention_backward_workspace(plan, &bounds, &bytes));
    larger.batch += 3, larger.tokens += 5, larger.k_tokens += 7, larger.q_heads += 2;
    CHECK_STATUS(ROPE_OK, rope_attention_backward_workspace(plan, &larger, &more));
    CHECK(more >= bytes || device_is_provider(), "%zu bytes for larger calls, %zu for this one",
          more, bytes);
    for (guard_side side = GUARD_AFTER; side <= guard_last(); side++) {
        static guarded all;
        CHECK(guard_make(&all.g, &c->forward.base, side) &&
                  guard_workspace_make(&all.w, bytes, side),
              "no memory between guard pages");
        run_guarded(c, plan, &all, bytes);
        guard_check(&all.g, &c->forward.base, expected);
        guard_free(&all.g, &c->forward.base);
        guard_workspace_free(&all.w);
    }
    rope_plan_destroy(plan);
}

TEST(attention_backward_bits, every_buffer_between_pages_that_fault) {
    device_not_provided("its kernels are not ours");
    for_each_case(test_seed() + 5, CASES, check_guarded);
}
