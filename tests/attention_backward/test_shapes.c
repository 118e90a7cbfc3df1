/* Gradients of shapes that kernels of a GPU take in ways of their own. Those of long sequences are
 * computed at once, of short ones blocks share tiles of keys, and heads are of 96, 192 and 256
 * elements, too. Where a CPU computes them the same shapes are small. */
#include "tests/attention_backward/shapes.h"
#include "tests/oracle/oracle.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Keys of a window, up to a query's own and behind it, or of a chunk; 0: causal alone. */
typedef struct mask {
    int64_t window, right, chunk;
} mask;

typedef struct row {
    backward_shape shape; /* of a batch row */
    mask mask;
} row;

/* What sm90 does with them, where a tile has 128 keys. */
static const row rows[] = {
    /* all gradients at once: of shorter heads with windows and chunks, of longer ones without */
    {{ROPE_F16, 64, 64, 11, 3, 1, 2005}, {600, 0, 0}},
    {{ROPE_BF16, 64, 64, 9, 5, 1, 1901}, {0, 0, 700}},
    {{ROPE_F16, 64, 64, 9, 7, 1, 1850}, {0, 0, 0}},
    {{ROPE_BF16, 64, 56, 9, 4, 1, 2050}, {512, 300, 0}},
    {{ROPE_F16, 128, 128, 7, 3, 1, 4110}, {0, 0, 0}},
    {{ROPE_BF16, 96, 96, 4, 5, 1, 4133}, {0, 0, 0}},
    {{ROPE_BF16, 128, 128, 4, 7, 1, 4099}, {0, 0, 0}},
    /* 2, 4 and 8 blocks share a tile of keys */
    {{ROPE_F16, 64, 64, 2, 4, 1, 1000}, {0, 0, 0}},
    {{ROPE_BF16, 128, 128, 2, 4, 1, 1750}, {0, 0, 0}},
    {{ROPE_F16, 64, 64, 2, 4, 1, 2000}, {0, 0, 0}},
    {{ROPE_BF16, 96, 96, 1, 12, 1, 700}, {0, 0, 0}},
    {{ROPE_F16, 128, 128, 1, 13, 1, 777}, {300, 0, 0}},
    /* one has it alone: longer heads with a window, and those beyond 128 */
    {{ROPE_F16, 96, 96, 5, 3, 1, 700}, {0, 0, 0}},
    {{ROPE_BF16, 128, 128, 9, 3, 1, 1900}, {512, 0, 0}},
    {{ROPE_F16, 192, 128, 2, 3, 1, 700}, {0, 0, 0}},
    {{ROPE_BF16, 192, 128, 1, 8, 1, 610}, {0, 0, 200}},
    {{ROPE_F16, 256, 256, 1, 5, 1, 600}, {200, 0, 0}},
    {{ROPE_BF16, 256, 256, 2, 2, 1, 555}, {0, 0, 0}},
};
enum { ROWS = sizeof rows / sizeof rows[0], LONG_ROWS = 7, SMALLER = 24 };

/* The shape of row i of the list, or a smaller one. */
static backward_shape shape_of(int i) {
    backward_shape shape = rows[i].shape;
    backward_required();
    device_not_provided("bits depend on the batch, and there are no chunks");
    shape.tokens /= device_runs_on_cpu() ? SMALLER : 1;
    shape.k_heads = device_runs_on_cpu() && shape.k_heads > 2 ? 2 : shape.k_heads;
    return shape;
}

/* Makes a call of a shape with the mask of row i. */
static void make(backward_case *c, int i, const backward_shape *shape) {
    const mask *m = &rows[i].mask;
    const int64_t by = device_runs_on_cpu() ? SMALLER : 1;
    backward_make_shape(c, shape);
    c->forward.desc.mask = m->right ? ROPE_MASK_FULL : ROPE_MASK_CAUSAL;
    c->forward.desc.window = m->window / by;
    c->forward.desc.window_right = m->right / by;
    c->forward.desc.chunk = m->chunk / by;
}

/* --- values --- */

static const char *beside; /* a kernel that knows nothing of tiles, or of matrices */
static unsigned char *known;

/* A head's gradient of each token is that of the other kernel, but for roundings: weights in 16
 * bits make about 2^-9 of it. A key too many of a window of 512 makes 2^-5. */
static void check_beside(const backward_case *c, const char *kernel, unsigned char *result) {
    const int32_t dtype = c->forward.desc.rope.dtype;
    const oracle_attention o = attention_oracle(&c->forward);
    for (int32_t g = 0; g < GRADIENTS && strcmp(kernel, beside) != 0; g++) {
        const int64_t dim = oracle_attention_head_dim(&o, g);
        size_t bytes;
        unsigned char *got = backward_rows(c, result, g, 0, &bytes),
                      *expected = backward_rows(c, known, g, 0, &bytes);
        for (int64_t i = 0; i < (int64_t)bytes / oracle_dtype_size(dtype); i += dim) {
            double error = 0, size = 0;
            for (int64_t e = i; e < i + dim; e++) {
                const double x = oracle_load(dtype, expected, e);
                error += pow(oracle_load(dtype, got, e) - x, 2);
                size += x * x;
            }
            CHECK(error <= 0x1p-12 * size, "d%c of head and token %lld is %.3g of it off", "qkv"[g],
                  (long long)(i / dim), sqrt(error / size));
        }
        free(got);
        free(expected);
    }
}

static void check_values(int first, int last) {
    backward_required();
    beside = device_is_host() ? "reference" : NULL;
    for (int k = 0; !device_is_host() && device_kernel_of("attention_backward", k); k++)
        beside = device_kernel_of("attention_backward", k);
    for (int i = first; i < last; i++) {
        backward_case c;
        const backward_shape shape = shape_of(i);
        make(&c, i, &shape);
        known = malloc(c.forward.base.bytes);
        const rope_status status = backward_run(&c, beside, known);
        if (status != ROPE_ERROR_UNSUPPORTED) { /* as of long heads where no kernel takes all */
            CHECK_STATUS(ROPE_OK, status);
            backward_each_kernel(&c, check_beside);
        }
        free(known);
        attention_free(&c.forward);
    }
}

TEST(attention_backward_shapes, values_of_long_sequences) {
    check_values(0, LONG_ROWS);
}

TEST(attention_backward_shapes, values_of_short_sequences) {
    check_values(LONG_ROWS, ROWS);
}

/* --- sequences --- */

enum { PARTS = 4 };

/* Row i of the list as sequences of other lengths, packed or padded: of a call's sequences some are
 * long, and blocks share tiles of others. */
static void make_parts(backward_case *c, int i, int parts, int packed) {
    backward_shape shape = shape_of(i);
    const int64_t t = shape.tokens, lengths[PARTS] = {t, t / 7, t - t / 300, t / 2 + 1};
    int64_t numbers[2][PARTS] = {0}, boundaries[2 * PARTS] = {0};
    for (int n = 0; n < parts; n++) {
        numbers[0][n] = lengths[n] - (packed ? 0 : n * lengths[n] / 300); /* queries */
        numbers[1][n] = lengths[n];
        boundaries[n + 1] = boundaries[n] + lengths[n];
    }
    shape.batch = packed ? 1 : parts;
    shape.tokens = packed ? boundaries[parts] : t;
    make(c, i, &shape);
    attention_case *f = &c->forward;
    const char *at = memcpy(f->base.arena + f->base.bytes - sizeof numbers,
                            packed ? boundaries : numbers[0], sizeof numbers);
    rope_attention_args *a = &f->args;
    a->rope.cu_seqlens = a->k_cu_seqlens = packed ? at : NULL;
    a->rope.sequences = packed ? parts : 0;
    a->q_lengths = packed ? NULL : at;
    a->k_lengths = packed ? NULL : at + sizeof numbers[0];
    f->parts = parts;
    memcpy(f->q_count, numbers[0], sizeof numbers[0]);
    memcpy(f->k_count, numbers[1], sizeof numbers[1]);
}

/* Each sequence has the bits of a plain call. */
static void check_alone(int i, int parts, int packed) {
    backward_case c, one;
    make_parts(&c, i, parts, packed);
    attention_describe(&c.forward, NULL);
    unsigned char *result = malloc(c.forward.base.bytes), *alone = malloc(c.forward.base.bytes);
    CHECK_STATUS(ROPE_OK, backward_run(&c, NULL, result));
    for (int n = 0; n < parts; n++) {
        backward_alone(&one, &c, n);
        CHECK_STATUS(ROPE_OK, backward_run(&one, NULL, alone));
        backward_check_bits("alone", &c, result, n, &one, alone, 0);
    }
    free(result);
    free(alone);
    attention_free(&c.forward);
}

TEST(attention_backward_shapes, long_sequences_beside_short_ones) {
    for (int i = 0; i < LONG_ROWS; i++)
        check_alone(i, rows[i].shape.dim > 64 ? 2 : PARTS, i % 2);
}

TEST(attention_backward_shapes, sequences_of_any_length) {
    for (int i = LONG_ROWS; i < ROWS; i++)
        for (int packed = 0; packed < 2; packed++)
            check_alone(i, PARTS, packed);
}

/* --- the rotation --- */

/* Turns tensors of q's and of k's heads where they are. */
static void turn(const backward_case *c, int32_t direction, void *q, void *k) {
    rope_desc desc = c->forward.desc.rope;
    rope_args args = c->forward.args.rope;
    rope_plan *plan = NULL;
    desc.backend = "cpu";
    desc.direction = direction;
    args.q.in = args.q.out = q;
    args.k.in = args.k.out = k;
    CHECK_STATUS(ROPE_OK, rope_plan_create(&desc, &plan));
    CHECK_STATUS(ROPE_OK, rope_apply(plan, &args));
    rope_plan_destroy(plan);
}

/* Gradients are those of rotated tensors, rotated back. */
static void check_rotation(const backward_case *c) {
    backward_case rotated = *c;
    unsigned char *result = malloc(c->forward.base.bytes), *plain = malloc(c->forward.base.bytes);
    const ptrdiff_t dq = (unsigned char *)c->args.dq.data - c->forward.base.arena,
                    dk = (unsigned char *)c->args.dk.data - c->forward.base.arena;
    attention_describe(&c->forward, NULL);
    CHECK_STATUS(ROPE_OK, backward_run(c, NULL, result));
    turn(c, ROPE_FORWARD, (void *)(uintptr_t)c->forward.args.rope.q.in,
         (void *)(uintptr_t)c->forward.args.rope.k.in);
    rotated.forward.desc.rotation = ROPE_ATTENTION_ROTATE_NONE;
    rotated.forward.desc.rope.rotary_dim = rotated.forward.desc.rope.pairing_in = 0;
    rotated.forward.args.rope.position_offset = 0;
    CHECK_STATUS(ROPE_OK, backward_run(&rotated, NULL, plain));
    turn(c, ROPE_TRANSPOSE, plain + dq, plain + dk);
    for (int64_t n = 0; n < c->forward.parts; n++)
        backward_check_bits("rotated back by rope_apply", c, result, n, c, plain, n);
    free(result);
    free(plain);
}

/* Rows of a batch, whose dq and dk may be rotated where they are stored; packed sequences; a part
 * of each head, in other pairs. */
TEST(attention_backward_shapes, gradients_are_rotated_back) {
    for (int i = 0; i < ROWS; i += i < LONG_ROWS ? 3 : 1) {
        backward_case c;
        const backward_shape shape = shape_of(i);
        make(&c, i, &shape);
        c.forward.args.rope.position_offset = 1000003;
        check_rotation(&c);
        attention_free(&c.forward);
        make_parts(&c, i, 2, 1);
        c.forward.desc.rope.rotary_dim = 32;
        c.forward.desc.rope.pairing_in = i % 2 ? ROPE_PAIRING_INTERLEAVED : 0;
        check_rotation(&c);
        attention_free(&c.forward);
    }
}

/* --- run after run --- */

enum { RUNS = 50, FEW_RUNS = 4, SEQUENCES = 3 };

typedef struct repeat {
    const backward_case *c;
    rope_plan *plan;
    void *workspace;
    size_t workspace_bytes;
    unsigned char *first, *again; /* gradients behind the first run, behind another one */
    int *differs;                 /* a run, or 0 */
} repeat;

static rope_status run_once(const repeat *r, int64_t sequences, void *memory) {
    const unsigned char *arena = r->c->forward.base.arena;
    rope_attention_args forward = r->c->forward.args;
    rope_attention_backward_args args = r->c->args;
    const void **list[BACKWARD_POINTERS];
    attention_relocate(&forward, arena, memory);
    backward_pointers(&args, list);
    case_move_pointers(list, BACKWARD_POINTERS, arena, memory);
    forward.rope.batch = sequences;
    forward.workspace = r->workspace;
    forward.workspace_bytes = r->workspace_bytes;
    args.forward = &forward;
    return rope_attention_backward(r->plan, &args);
}

/* Gradients of sequences that a run leaves out stay as they were. */
static rope_status run_again(const void *state, const test_case *base, void *memory) {
    const repeat *r = state;
    const size_t at = (size_t)((unsigned char *)r->c->args.dq.data - base->arena),
                 bytes = base->bytes - at;
    const int runs = device_runs_on_cpu() ? FEW_RUNS : RUNS;
    rope_status status = ROPE_OK;
    for (int run = 0; run < runs && status == ROPE_OK && !*r->differs; run++) {
        unsigned char *to = run ? r->again : r->first;
        status = run_once(r, SEQUENCES - run % SEQUENCES, memory);
        if (status == ROPE_OK)
            status = rope_device_copy_out(device_open(), to, (char *)memory + at, bytes);
        *r->differs = run && memcmp(r->first, to, bytes) != 0 ? run : 0;
    }
    return status;
}

static void check_runs(const backward_case *c) {
    int differs = 0;
    rope_attention_desc desc = c->forward.desc;
    const rope_attention_bounds bounds = attention_bounds(&c->forward);
    const size_t bytes = c->forward.base.bytes;
    unsigned char *result = malloc(bytes);
    repeat r = {.c = c, .first = malloc(bytes), .again = malloc(bytes), .differs = &differs};
    device_choose(&desc.rope);
    attention_describe(&c->forward, NULL);
    CHECK_STATUS(ROPE_OK, rope_attention_backward_plan_create(&desc, &r.plan));
    CHECK_STATUS(ROPE_OK, rope_attention_backward_workspace(r.plan, &bounds, &r.workspace_bytes));
    CHECK_STATUS(ROPE_OK, device_with_workspace(&c->forward.base, run_again, &r, &r.workspace,
                                                r.workspace_bytes, result));
    CHECK(!differs, "run %d, of %d sequences, has other bits", differs,
          SEQUENCES - differs % SEQUENCES);
    rope_plan_destroy(r.plan);
    free(r.first);
    free(r.again);
    free(result);
}

/* Whatever else is in the batch, and whichever tile of keys is done first. */
TEST(attention_backward_shapes, many_runs) {
    for (int i = 0; i < ROWS; i += i < LONG_ROWS ? 4 : 5) {
        backward_case c;
        backward_shape shape = shape_of(i);
        shape.batch = SEQUENCES;
        make(&c, i, &shape);
        check_runs(&c);
        attention_free(&c.forward);
    }
}
