/* The device under test gives the bits of the CPU, whichever of its kernels runs. */
#include "tests/rope/compare.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CASES = 1000, WHOLE_CASES = 480, WHOLE_SHAPES = 48, PLAIN_CASES = 3456, THIN_CASES = 108 };
enum { WINDOW_CASES = 864, WINDOW_STEP = 373, WINDOW_KINDS = 36 };
enum { MOST_PAIRS = 136, WIDTH_CASES = 24 * MOST_PAIRS, WIDTH_STEP = 1427, MANY_CASES = 54 };
enum { SMALL = 256 * 1024 }; /* bytes read and written of a call that the CPU takes to be near */
enum { OFFSET = 100000 };    /* of positions */
enum { TABLE_OFFSET = 3 };   /* of positions, where there are tables */
enum { PLAIN_STEP = 1423 };  /* from a plain case to the next: a part of them has every kind */

/* What the CPU makes of a case. */
static void *cpu_outputs(const test_case *c, size_t *bytes) {
    rope_desc desc = c->desc;
    rope_args args = c->args;
    rope_device *cpu;
    rope_plan *plan;
    void *memory;
    desc.backend = "cpu";
    CHECK_STATUS(ROPE_OK, rope_device_open("cpu", 0, &cpu));
    CHECK_STATUS(ROPE_OK, rope_device_alloc(cpu, c->bytes, &memory));
    memcpy(memory, c->arena, c->bytes);
    case_relocate(&args, c->arena, memory);
    CHECK_STATUS(ROPE_OK, rope_plan_create(&desc, &plan));
    CHECK_STATUS(ROPE_OK, rope_apply(plan, &args));
    void *dense = compare_gather(c, &c->desc, &c->args, memory, bytes);
    rope_plan_destroy(plan);
    rope_device_free(cpu, memory);
    rope_device_close(cpu);
    return dense;
}

static void check_kernel(const test_case *c, const char *kernel, const void *expected,
                         size_t bytes) {
    case_describe(c, kernel);
    unsigned char *result = malloc(c->bytes);
    rope_status status = device_run(c, &c->desc, &c->args, 1, kernel, result);
    if (!kernel || status != ROPE_ERROR_UNSUPPORTED) {
        size_t got_bytes;
        CHECK_STATUS(ROPE_OK, status);
        void *got = compare_gather(c, &c->desc, &c->args, result, &got_bytes);
        CHECK(bytes == got_bytes && memcmp(expected, got, bytes) == 0, "other bits than the CPU's");
        free(got);
    }
    free(result);
}

TEST(backends, bits_of_the_cpu) {
    static const case_wish wish = {.in_range = 1};
    for (int64_t i = -1; test_next(&i, CASES);) {
        test_case c;
        size_t bytes;
        case_make(&c, test_seed(), i, &wish);
        void *expected = cpu_outputs(&c, &bytes);
        check_kernel(&c, NULL, expected, bytes);
        const char *kernel;
        for (int k = 0; (kernel = device_kernel(k)); k++)
            check_kernel(&c, kernel, expected, bytes);
        free(expected);
        case_free(&c);
    }
}

/* Aligned heads, whole and contiguous or with a window inside: what models use, what fast paths are
 * written for, and what a generator of all descriptors seldom draws. */
typedef struct whole_case {
    int32_t dtype, pairing_in, pairing_out, head_dim, window, direction, angle_mode, in_place;
    int32_t place;    /* of what lies beside the window, before it: 0: all; 1: none; 2: half */
    int32_t id_dtype; /* 0: no ids */
    int32_t gaps; /* 0: contiguous; else gaps beside heads and tokens, and 1: ids of one batch row
                     for all; 2: beside ids; 3: beside batch rows */
    int32_t launch;
    int32_t arithmetic, table_dtype, out_of_range; /* the last two of tables */
    int64_t long_from; /* longrope: its original length; 0: no longrope */
    int64_t batch, tokens, heads[2];
} whole_case;

/* The first WHOLE_SHAPES have every dtype with every pairing: whole heads of 128 and of 64 with
 * exact angles, and windows with fp32 angles. */
static whole_case make_whole(int64_t index) {
    static const int32_t types[] = {ROPE_F32, ROPE_F16, ROPE_BF16, ROPE_F64};
    static const int64_t heads[][2] = {{32, 8}, {4, 4}, {5, 0}, {8, 1}, {0, 3}};
    static const int64_t tokens[] = {1, 7, 64, 301};
    static const int32_t ids[] = {0, 0, ROPE_I32, ROPE_I64};
    test_random r = random_stream(test_seed(), index);
    int64_t h = random_between(&r, 0, 4);
    int32_t shape = (int32_t)(index % WHOLE_SHAPES), size = shape / 16;
    whole_case w = {.dtype = types[shape % 4],
                    .pairing_in = 1 + shape / 4 % 2,
                    .pairing_out = 1 + shape / 8 % 2,
                    .head_dim = size == 1 ? 64 : 128,
                    .window = size == 0 ? 128 : 64,
                    .direction = (int32_t)random_between(&r, 1, 3),
                    .angle_mode = 1 + (size / 2 + (int32_t)(index / WHOLE_SHAPES)) % 2,
                    .in_place = random_chance(&r, 50),
                    .place = (int32_t)((index + index / WHOLE_SHAPES) % 3),
                    .id_dtype = ids[random_between(&r, 0, 3)],
                    .batch = random_between(&r, 1, 3),
                    .tokens = tokens[random_between(&r, 0, 3)],
                    .heads = {heads[h][0], heads[h][1]}};
    return w;
}

/* Small calls of every kind that has GPU kernels of its own: pairs and heads, which ids, one batch
 * row or two, with gaps and without, started early or not. */
static whole_case make_plain(int64_t number) {
    const int32_t index = (int32_t)number;
    static const int32_t types[] = {ROPE_F32, ROPE_F16, ROPE_BF16};
    static const int64_t heads[][2] = {{8, 4}, {3, 1}, {1, 0}, {0, 1}};
    static const int32_t ids[] = {0, ROPE_I32, ROPE_I64};
    int32_t pairing = 1 + index / 3 % 2, h = index / 18 % 4, head_dim = 64 + 32 * (index / 6 % 3);
    whole_case w = {.dtype = types[index % 3],
                    .pairing_in = pairing,
                    .pairing_out = pairing,
                    .head_dim = head_dim,
                    .window = head_dim,
                    .direction = 1 + index % 2,
                    .angle_mode = ROPE_ANGLE_EXACT,
                    .in_place = index % 5 == 0,
                    .id_dtype = ids[index / 72 % 3],
                    .batch = 1 + index / 216 % 2,
                    .gaps = index / 432 % 4,
                    .launch = index / 1728 ? ROPE_LAUNCH_PROGRAMMATIC : ROPE_LAUNCH_SERIAL,
                    .tokens = 12,
                    .heads = {heads[h][0], heads[h][1]}};
    if (!w.id_dtype && index % 2)
        w.long_from = OFFSET + (index % 3 ? 6 : 24);
    return w;
}

/* Heads so thin that a block has room for more tokens than it may have threads along z. */
static whole_case make_thin(int64_t number) {
    const int32_t index = (int32_t)number;
    static const int32_t types[] = {ROPE_F32, ROPE_F16, ROPE_BF16};
    static const int64_t heads[][2] = {{1, 0}, {0, 1}, {2, 1}};
    static const int32_t ids[] = {0, ROPE_I32, ROPE_I64};
    int32_t pairing = 1 + index / 18 % 2, h = index / 6 % 3, head_dim = 4 + 4 * (index / 3 % 2);
    whole_case w = {.dtype = types[index % 3],
                    .pairing_in = pairing,
                    .pairing_out = pairing,
                    .head_dim = head_dim,
                    .window = head_dim,
                    .direction = ROPE_FORWARD,
                    .angle_mode = ROPE_ANGLE_EXACT,
                    .in_place = index % 5 == 0,
                    .id_dtype = ids[index / 36 % 3],
                    .batch = 1,
                    .launch = index % 2 ? ROPE_LAUNCH_PROGRAMMATIC : ROPE_LAUNCH_SERIAL,
                    .tokens = index % 7 == 0 ? 300 : 256,
                    .heads = {heads[h][0], heads[h][1]}};
    return w;
}

/* Each dtype and pairing with exact angles, tables of fp32 and tables of its own dtype; by and by
 * everything else that a window kernel tells apart. */
static whole_case make_window(int64_t number) {
    const int32_t index = (int32_t)number;
    static const int32_t types[] = {ROPE_F32, ROPE_F16, ROPE_BF16};
    static const int64_t heads[][2] = {{8, 4}, {3, 0}};
    const int32_t angles = index / 12 % 3, kind = index / WINDOW_KINDS;
    whole_case w = {.dtype = types[index % 3],
                    .pairing_in = 1 + index / 3 % 2,
                    .pairing_out = 1 + index / 6 % 2,
                    .head_dim = 64,
                    .window = index % 5 == 0 ? 64 : 32,
                    .direction = 1 + index % 7 / 4,
                    .angle_mode = angles ? ROPE_ANGLE_TABLE : ROPE_ANGLE_EXACT,
                    .in_place = index % 4 == 0,
                    .place = (index + kind) % 3,
                    .id_dtype = kind / 2 % 3 ? ROPE_I64 : 0,
                    .gaps = kind % 2 ? 3 : kind / 6 % 3,
                    .launch = kind % 5 ? ROPE_LAUNCH_SERIAL : ROPE_LAUNCH_PROGRAMMATIC,
                    .arithmetic =
                        index % 11 % 2 ? ROPE_ARITHMETIC_MODEL_DTYPE : ROPE_ARITHMETIC_FP32,
                    .batch = 1 + kind / 4 % 3,
                    .tokens = index % 8 ? 12 : 1,
                    .heads = {heads[kind / 12][0], heads[kind / 12][1]}};
    if (!angles && !w.id_dtype)
        w.long_from = OFFSET + (index % 2 ? 6 : 24);
    if (angles) {
        w.table_dtype = angles == 1 ? ROPE_F32 : w.dtype;
        w.out_of_range = kind % 3 ? ROPE_OUT_OF_RANGE_CLAMP : ROPE_OUT_OF_RANGE_IDENTITY;
    }
    return w;
}

/* Windows of every number of pairs to MOST_PAIRS: alone in their heads or not, in place or not.
 * Calls of every eighth number are beyond the small ones. */
static whole_case make_width(int64_t number) {
    const int32_t index = (int32_t)number;
    static const int32_t types[] = {ROPE_F32, ROPE_F16, ROPE_BF16};
    const int32_t window = 2 + 2 * (index % MOST_PAIRS), kind = index / MOST_PAIRS;
    const int32_t heads[] = {5, 3}, token_bytes = 2 * 2 * (heads[0] + heads[1]) * window;
    whole_case w = {.dtype = types[kind % 3],
                    .pairing_in = 1 + kind / 3 % 2,
                    .pairing_out = 1 + kind / 3 % 2,
                    .head_dim = window + (kind / 6 % 2 ? 32 : 0),
                    .window = window,
                    .direction = ROPE_FORWARD,
                    .angle_mode = ROPE_ANGLE_EXACT,
                    .in_place = kind / 12 % 2,
                    .place = (index + kind / 3) % 3,
                    .batch = 1,
                    .tokens = window % 16 ? 4 : 1 + SMALL / token_bytes,
                    .heads = {heads[0], heads[1]}};
    return w;
}

/* Tokens of more heads than the CPU takes around the cache at once by way of the L1. Windows are
 * whole heads or part of them; 63 heads are whole lines, or go through the cache. */
static whole_case make_many(int64_t number) {
    const int32_t index = (int32_t)number;
    static const int32_t types[] = {ROPE_F32, ROPE_F16, ROPE_BF16};
    static const int32_t head_dims[] = {80, 136, 96}, windows[] = {80, 96, 24};
    const int32_t pairing = 1 + index / 3 % 2, shape = index / 6 % 3;
    return (whole_case){.dtype = types[index % 3],
                        .pairing_in = pairing,
                        .pairing_out = pairing,
                        .head_dim = head_dims[shape],
                        .window = windows[shape],
                        .place = index / 18,
                        .direction = ROPE_FORWARD,
                        .angle_mode = ROPE_ANGLE_EXACT,
                        .batch = 1,
                        .tokens = 9,
                        .heads = {128, 63 + (index + index / 6) % 2}};
}

/* Rows of a table: a token of each batch row is beyond the last. */
static int64_t rows_of(const whole_case *w) {
    return w->angle_mode == ROPE_ANGLE_TABLE ? w->tokens + TABLE_OFFSET - 1 : 0;
}

/* Bytes of cos, which each batch row has its own of. */
static size_t table_bytes(const whole_case *w) {
    return (size_t)(w->batch * rows_of(w) * w->window / 2) *
           (size_t)oracle_dtype_size(w->table_dtype);
}

/* Ids of every token and of the gaps, behind the data. */
static void make_ids(const whole_case *w, char *ids) {
    const int64_t rows = rows_of(w);
    for (int64_t i = 0; i < 2 * w->batch * w->tokens; i++) {
        int64_t wide = rows ? (i * 5 % (rows + 2)) - TABLE_OFFSET - 1 : (i % 3 - 1) * 70001 - i;
        int32_t narrow = (int32_t)wide;
        if (w->id_dtype == ROPE_I32)
            memcpy(ids + 4 * i, &narrow, 4);
        else
            memcpy(ids + 8 * i, &wide, 8);
    }
}

/* Strides whose gaps are `step` elements beside a head, twice that beside a token. */
static void put_strides(const whole_case *w, int64_t heads, int64_t step, int64_t stride[4]) {
    stride[3] = 1;
    stride[2] = w->head_dim + step;
    stride[1] = heads * stride[2] + 2 * step;
    stride[0] = w->tokens * stride[1] + (w->gaps == 3 ? 2 * step : 0);
}

static rope_tensor tensor_of(const whole_case *w, int64_t heads, char *in, char *out) {
    rope_tensor t = {.in = in, .out = out, .heads = heads};
    if (w->gaps) {
        put_strides(w, heads, 8, t.in_stride);
        put_strides(w, heads, in == out ? 8 : 16, t.out_stride);
    }
    return t;
}

/* Bytes of q or k with the widest gaps. */
static size_t bytes_of(const whole_case *w, int64_t heads) {
    int64_t stride[4];
    put_strides(w, heads, w->gaps ? 16 : 0, stride);
    return heads ? (size_t)(w->batch * stride[0]) * (size_t)oracle_dtype_size(w->dtype) : 0;
}

/* Any bits but the top one of each exponent: no NaN, no infinity. */
static unsigned char *make_data(int64_t index, int32_t dtype, size_t bytes) {
    unsigned char *data = malloc(bytes + sizeof(uint64_t)); /* as whole words are written */
    test_random r = random_stream(test_seed(), ~index);
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t bits = random_bits(&r);
        uint64_t drop = dtype == ROPE_F64   ? 0x4000000000000000u
                        : dtype == ROPE_F32 ? 0x4000000040000000u
                                            : 0x4000400040004000u;
        bits &= ~drop;
        memcpy(data + i, &bits, 8);
    }
    return data;
}

/* Its sequences are longer than long_from or not, by which they take a list of factors. */
static void put_longrope(const whole_case *w, rope_desc *desc, double factor[2][64]) {
    for (int i = 0; i < w->window / 2; i++) {
        factor[0][i] = 1 + i / 64.0;
        factor[1][i] = 2 + i / 16.0;
    }
    desc->rope_type = ROPE_TYPE_LONGROPE;
    desc->factor = 4;
    desc->original_max_position_embeddings = w->long_from;
    desc->factor_count = w->window / 2;
    desc->short_factor = factor[0];
    desc->long_factor = factor[1];
}

static rope_desc desc_of(const whole_case *w, const char *backend, const char *kernel,
                         double factor[2][64]) {
    const int32_t beside = w->head_dim - w->window, before[] = {beside, 0, beside / 2};
    rope_desc desc = {.struct_size = sizeof desc,
                      .dtype = w->dtype,
                      .head_dim = w->head_dim,
                      .rotary_dim = w->window,
                      .rotary_offset = before[w->place],
                      .pairing_in = w->pairing_in,
                      .pairing_out = w->pairing_out,
                      .direction = w->direction,
                      .angle_mode = w->angle_mode,
                      .arithmetic = w->arithmetic,
                      .table_dtype = w->table_dtype,
                      .out_of_range = w->out_of_range,
                      .position_dtype = w->id_dtype,
                      .launch = w->launch,
                      .backend = backend,
                      .kernel = kernel};
    if (w->long_from)
        put_longrope(w, &desc, factor);
    return desc;
}

/* Memory of a case: q and k twice, to be read and to be written, then ids, then tables. */
typedef struct whole_memory {
    size_t q_bytes, bytes, ids, table, all; /* of q; of q and k; where ids and tables begin; all */
} whole_memory;

static whole_memory memory_of(const whole_case *w) {
    whole_memory m = {.q_bytes = bytes_of(w, w->heads[0])};
    m.bytes = m.q_bytes + bytes_of(w, w->heads[1]);
    m.ids = 2 * m.bytes;
    m.table = m.ids + 16 * (size_t)(w->batch * w->tokens);
    m.all = m.table + 2 * table_bytes(w);
    return m;
}

/* What it holds ahead of a call with `data`. */
static unsigned char *make_memory(const whole_case *w, const whole_memory *m,
                                  const unsigned char *data) {
    unsigned char *memory = calloc(1, m->all),
                  *tables = make_data(0, w->table_dtype, m->all - m->table);
    memcpy(memory, data, m->bytes);
    memcpy(memory + m->bytes, data, m->bytes);
    make_ids(w, (char *)memory + m->ids);
    memcpy(memory + m->table, tables, m->all - m->table);
    free(tables);
    return memory;
}

static rope_args args_of(const whole_case *w, const whole_memory *m, char *memory) {
    const int64_t rows = rows_of(w), pairs = w->window / 2;
    char *out = w->in_place ? memory : memory + m->bytes;
    rope_args args = {.struct_size = sizeof args, .batch = w->batch, .tokens = w->tokens};
    args.position_offset = rows ? TABLE_OFFSET : OFFSET;
    if (rows) {
        args.cos = memory + m->table;
        args.sin = memory + m->table + table_bytes(w);
        args.table_rows = rows;
        memcpy(args.table_stride, (int64_t[]){rows * pairs, pairs, 1}, sizeof args.table_stride);
    }
    args.position_ids = w->id_dtype ? memory + m->ids : NULL;
    if (w->id_dtype && w->gaps == 1)
        memcpy(args.position_stride, (int64_t[]){1, 0, 1}, sizeof args.position_stride);
    if (w->id_dtype && w->gaps == 2)
        memcpy(args.position_stride, (int64_t[]){1, 2 * w->tokens, 2}, sizeof args.position_stride);
    if (w->heads[0])
        args.q = tensor_of(w, w->heads[0], memory, out);
    if (w->heads[1])
        args.k = tensor_of(w, w->heads[1], memory + m->q_bytes, out + m->q_bytes);
    return args;
}

/* Rotates a copy of `data` on a backend; `data` then holds the outputs. */
static rope_status rotate_whole(const whole_case *w, const char *backend, const char *kernel,
                                unsigned char *data) {
    const whole_memory m = memory_of(w);
    double factor[2][64];
    rope_desc desc = desc_of(w, backend, kernel, factor);
    desc.device = strcmp(backend, "cpu") == 0 ? 0 : test_device();
    rope_plan *plan;
    rope_device *device;
    char *memory;
    rope_status status = rope_plan_create(&desc, &plan);
    if (status != ROPE_OK)
        return status;
    CHECK_STATUS(ROPE_OK, rope_device_open(backend, desc.device, &device));
    CHECK_STATUS(ROPE_OK, rope_device_alloc(device, m.all, (void **)&memory));
    unsigned char *image = make_memory(w, &m, data);
    CHECK_STATUS(ROPE_OK, rope_device_copy_in(device, memory, image, m.all));
    free(image);
    rope_args args = args_of(w, &m, memory);
    CHECK_STATUS(ROPE_OK, rope_apply(plan, &args));
    char *out = w->in_place ? memory : memory + m.bytes;
    CHECK_STATUS(ROPE_OK, rope_device_copy_out(device, data, out, m.bytes));
    CHECK_STATUS(ROPE_OK, rope_device_free(device, memory));
    rope_device_close(device);
    rope_plan_destroy(plan);
    return ROPE_OK;
}

/* Unless the kernel does not serve the call. NULL: the one that is chosen. */
static void compare_whole(const whole_case *w, const char *kernel, const unsigned char *expected,
                          int64_t index) {
    const size_t bytes = memory_of(w).bytes;
    unsigned char *got = make_data(index, w->dtype, bytes);
    rope_status status = rotate_whole(w, device_backend(), kernel, got);
    if (!kernel || status != ROPE_ERROR_UNSUPPORTED) {
        CHECK_STATUS(ROPE_OK, status);
        CHECK(memcmp(expected, got, bytes) == 0, "other bits than the CPU's from %s",
              kernel ? kernel : "the chosen kernel");
    }
    free(got);
}

static void check_whole(const whole_case *w, int64_t index) {
    const size_t bytes = memory_of(w).bytes;
    unsigned char *expected = make_data(index, w->dtype, bytes);
    CHECK_STATUS(ROPE_OK, rotate_whole(w, "cpu", NULL, expected));
    const char *kernel = NULL;
    for (int k = 0; k == 0 || kernel; kernel = device_kernel(k++))
        compare_whole(w, kernel, expected, index);
    free(expected);
}

/* Cases of a kind, `step` apart; 0: each as it is numbered. */
static void check_kind(whole_case (*make)(int64_t index), int64_t cases, int64_t step) {
    device_open(); /* skips where there is none */
    for (int64_t i = -1; test_next(&i, cases);) {
        whole_case w = make(step ? i * step % cases : i);
        check_whole(&w, i);
    }
}

TEST(backends, whole_heads) {
    check_kind(make_whole, WHOLE_CASES, 0);
}

TEST(backends, plain_calls) {
    check_kind(make_plain, PLAIN_CASES, PLAIN_STEP);
}

TEST(backends, windows) {
    check_kind(make_window, WINDOW_CASES, WINDOW_STEP);
}

TEST(backends, every_width) {
    check_kind(make_width, WIDTH_CASES, WIDTH_STEP);
}

TEST(backends, tokens_of_many_heads) {
    check_kind(make_many, MANY_CASES, 1);
}

TEST(backends, thin_heads) {
    check_kind(make_thin, THIN_CASES, 1);
}
