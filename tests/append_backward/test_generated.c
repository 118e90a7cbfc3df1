/* Generated cases of rope_append_backward on every kernel: the bits of its contract in plain C, no
 * other byte written, from every thread count and between guard pages. */
#include "tests/append_backward/cases.h"
#include "tests/support/device.h"
#include "tests/support/guard.h"
#include "tests/support/harness.h"

#include <stdlib.h>
#include <string.h>

enum { CASES = 500 };

static void required(void) {
    if (!device_kernel_of("append_backward", 0))
        SKIP("%s has no kernel for append_backward", device_backend());
}

static void check_arena(const gradient_case *c, const char *kernel, const unsigned char *expected,
                        const char *what) {
    const size_t bytes = c->forward.base.bytes;
    unsigned char *result = malloc(bytes);
    size_t at = 0;
    append_describe(&c->forward, kernel);
    const rope_status status = gradient_run(c, kernel, result);
    if (status == ROPE_ERROR_UNSUPPORTED && kernel && strcmp(kernel, "scalar") != 0) {
        free(result);
        return;
    }
    CHECK_STATUS(ROPE_OK, status);
    const char *wrong = gradient_untouched(c, NULL, result);
    CHECK(!wrong, "%s", wrong);
    while (at < bytes && result[at] == expected[at])
        at++;
    CHECK(at == bytes, "%s: byte %zu of the arena differs", what, at);
    free(result);
}

typedef void check_case(const gradient_case *c, const unsigned char *expected);

/* For each case in range, with the arena of the contract in plain C. */
static void for_each_case(uint64_t seed, int64_t cases, check_case *check) {
    required();
    for (int64_t i = -1; test_next(&i, cases);) {
        gradient_case c;
        gradient_make(&c, seed, i, &(append_wish){.in_range = 1});
        append_describe(&c.forward, NULL);
        unsigned char *expected = malloc(c.forward.base.bytes);
        gradient_plain(&c, expected);
        const char *wrong = gradient_untouched(&c, NULL, expected);
        CHECK(!wrong, "%s", wrong);
        check(&c, expected);
        free(expected);
        gradient_free(&c);
    }
}

static void check_kernels(const gradient_case *c, const unsigned char *expected) {
    const char *kernel;
    check_arena(c, NULL, expected, "beside plain C");
    for (int k = 0; (kernel = device_kernel_of("append_backward", k)); k++)
        check_arena(c, kernel, expected, "beside plain C");
}

TEST(append_backward, every_kernel) {
    for_each_case(test_seed(), CASES, check_kernels);
}

/* --- threads --- */

static void check_threads(const gradient_case *c, const unsigned char *expected) {
    static const int counts[] = {1, 2, 3, 7};
    for (int i = 0; i < 4; i++) {
        device_threads(counts[i]);
        check_arena(c, NULL, expected, "another number of threads");
    }
}

TEST(append_backward, every_thread_count) {
    if (!device_is_host() || !device_threads(2))
        SKIP("the backend does not run on OpenMP");
    for_each_case(test_seed() + 1, CASES / 5, check_threads);
}

/* Enough for a team of threads and for groups of more than a unit of tokens. */
static void make_large(gradient_case *c, int64_t index) {
    enum { DIM = 64 };
    static const int64_t all_tokens[] = {2111, 700, 2049}, all_heads[] = {2, 11, 1};
    const int64_t tokens = all_tokens[index], heads = all_heads[index];
    const size_t size = (size_t)(tokens * heads * DIM) * 4, sums = (size_t)(heads * DIM) * 4;
    append_case *f = &c->forward;
    memset(c, 0, sizeof *c);
    f->base.bytes = 5 * size + 3 * sums;
    f->base.arena = malloc(f->base.bytes);
    f->base.random = random_stream(test_seed(), index);
    f->desc = (rope_append_desc)ROPE_APPEND_DESC_INIT;
    f->args = (rope_append_args)ROPE_APPEND_ARGS_INIT;
    f->desc.rope.dtype = ROPE_F32;
    f->desc.rope.head_dim = DIM;
    f->desc.q.norm = (rope_norm){.type = ROPE_NORM_RMS, .weight = ROPE_NORM_WEIGHT, .eps = 1e-6};
    f->desc.k.norm = f->desc.q.norm;
    f->desc.k.norm.scope = ROPE_NORM_TOKEN;
    unsigned char *at = f->base.arena;
    for (size_t i = 0; i + 4 <= f->base.bytes; i += 4) {
        const float x = (float)random_real(&f->base.random, -2, 2);
        memcpy(at + i, &x, sizeof x);
    }
    f->args.rope.batch = 1, f->args.rope.tokens = tokens;
    f->args.rope.q = (rope_tensor){.in = at, .heads = heads};
    f->args.rope.k = (rope_tensor){.in = at, .heads = heads};
    f->args.q_weight.data = f->args.k_weight.data = at + 5 * size;
    c->args = (rope_append_backward_args)ROPE_APPEND_BACKWARD_ARGS_INIT;
    c->args.q = (rope_append_gradient){
        .in = at + size, .out = at + 2 * size, .weight = (float *)(void *)(at + 5 * size + sums)};
    c->args.k = (rope_append_gradient){.in = at + 3 * size,
                                       .out = at + 4 * size,
                                       .weight = (float *)(void *)(at + 5 * size + 2 * sums)};
}

TEST(append_backward, large_calls) {
    required();
    for (int64_t i = -1; test_next(&i, 3);) {
        gradient_case c;
        make_large(&c, i);
        append_describe(&c.forward, NULL);
        unsigned char *expected = malloc(c.forward.base.bytes);
        gradient_plain(&c, expected);
        if (device_is_host() && device_threads(2))
            check_threads(&c, expected);
        check_kernels(&c, expected);
        free(expected);
        gradient_free(&c);
    }
}

/* --- memory --- */

typedef struct guarded {
    guard_case g, w;
    test_case workspace; /* one piece */
} guarded;

static int guard_all(guarded *all, const test_case *base, size_t bytes, guard_side side) {
    memset(all, 0, sizeof *all);
    all->workspace.pieces = 1;
    all->workspace.piece[0] = (case_piece){0, bytes, 256};
    all->workspace.arena = malloc(bytes + 1);
    memset(all->workspace.arena, 0xff, bytes);
    return guard_make(&all->g, base, side) && guard_make(&all->w, &all->workspace, side);
}

static void run_guarded(const gradient_case *c, const rope_plan *plan, guarded *all, size_t bytes) {
    rope_append_args forward = c->forward.args;
    rope_append_backward_args args = c->args;
    const void **list[APPEND_POINTERS + GRADIENT_POINTERS];
    append_pointers(&forward, list);
    gradient_pointers(&args, list + APPEND_POINTERS);
    guard_move(&all->g, &c->forward.base, list, APPEND_POINTERS + GRADIENT_POINTERS);
    args.workspace = bytes ? all->w.block[0].at : NULL;
    args.workspace_bytes = bytes;
    args.forward = &forward;
    CHECK_STATUS(ROPE_OK, rope_append_backward(plan, &args));
    CHECK_STATUS(ROPE_OK, rope_device_synchronize(device_open()));
}

/* The pieces as one arena, NaNs made one. */
static void check_pieces(const gradient_case *c, const guard_case *g,
                         const unsigned char *expected) {
    const test_case *base = &c->forward.base;
    unsigned char *got = malloc(base->bytes);
    memcpy(got, base->arena, base->bytes);
    for (int32_t p = 0; p < base->pieces; p++)
        guard_read(g, base, p, got + base->piece[p].offset);
    const char *wrong = gradient_untouched(c, NULL, got);
    CHECK(!wrong, "%s", wrong);
    CHECK(memcmp(got, expected, base->bytes) == 0, "other bits between guard pages");
    free(got);
}

static void check_guarded_kernel(const gradient_case *c, const char *kernel,
                                 const unsigned char *expected) {
    rope_append_desc desc = c->forward.desc;
    const rope_append_bounds bounds = gradient_bounds(c);
    rope_append_bounds larger = bounds;
    rope_plan *plan = NULL;
    size_t bytes = 0, more = 0;
    guard_name_fault();
    append_describe(&c->forward, kernel);
    device_choose(&desc.rope);
    desc.rope.kernel = kernel;
    if (rope_append_backward_plan_create(&desc, &plan) == ROPE_ERROR_UNSUPPORTED)
        return;
    CHECK_STATUS(ROPE_OK, rope_append_backward_workspace(plan, &bounds, &bytes));
    larger.batch += 3, larger.tokens += 5, larger.q_heads += 2, larger.k_heads++, larger.v_heads++;
    CHECK_STATUS(ROPE_OK, rope_append_backward_workspace(plan, &larger, &more));
    CHECK(more >= bytes, "%zu bytes for larger calls, %zu for this one", more, bytes);
    for (guard_side side = GUARD_AFTER; side <= guard_last(); side++) {
        static guarded all;
        CHECK(guard_all(&all, &c->forward.base, bytes, side), "no memory between guard pages");
        run_guarded(c, plan, &all, bytes);
        check_pieces(c, &all.g, expected);
        guard_free(&all.g, &c->forward.base);
        guard_free(&all.w, &all.workspace);
        free(all.workspace.arena);
    }
    rope_plan_destroy(plan);
}

static void check_guarded(const gradient_case *c, const unsigned char *expected) {
    const char *kernel;
    for (int k = 0; (kernel = device_kernel_of("append_backward", k)); k++)
        check_guarded_kernel(c, kernel, expected);
}

TEST(append_backward, every_buffer_between_pages_that_fault) {
    device_not_provided("its kernels are not ours");
    for_each_case(test_seed() + 3, CASES / 2, check_guarded);
}
