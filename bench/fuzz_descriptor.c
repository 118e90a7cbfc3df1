/*
 * libFuzzer target: bytes become the fields of a descriptor and of a call over a small buffer.
 * Pointers stay null or point at memory that is large enough for every size that the bytes can
 * name, so whatever the library accepts it may also read and write.
 */
#include <ropekit/rope.h>

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Largest batch, tokens, heads, stride and head_dim that the bytes name. */
#define SIZE_MOST 7
#define DIM_MOST 64
#define STRIDE_MOST 255
/* Elements that four strides can reach, both tensors in and out apart. */
#define ELEMENTS (3 * (SIZE_MOST * STRIDE_MOST * 3 + DIM_MOST * STRIDE_MOST))
#define ROWS 64

static double tensors[4][ELEMENTS];
static double tables[2][ROWS * 4 * DIM_MOST];
static int64_t indices[4][ROWS * ROWS];
static double factors[DIM_MOST];
static uint8_t axes[DIM_MOST];

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct bytes {
    const uint8_t *next, *end;
} bytes;

static int32_t take(bytes *b, int32_t most) {
    return b->next < b->end ? *b->next++ % (most + 1) : 0;
}

/* A number that is 0 half of the time. */
static int32_t take_some(bytes *b, int32_t most) {
    return take(b, 1) ? take(b, most) : 0;
}

/* A number that is often a plain one and sometimes any bit pattern. */
static double take_number(bytes *b) {
    double number = 0;
    int32_t choice = take(b, 255);
    if (choice < 128)
        return choice < 96 ? 0 : 0.5 * (choice - 95);
    for (size_t i = 0; i < sizeof number; i++)
        ((uint8_t *)&number)[i] = (uint8_t)take(b, 255);
    return number;
}

static void take_tensor_fields(bytes *b, rope_desc *d) {
    d->dtype = take(b, 5);
    d->head_dim = take(b, DIM_MOST);
    d->rotary_dim = take(b, DIM_MOST);
    d->rotary_offset = take(b, 8);
    d->k_head_dim = take_some(b, DIM_MOST);
    d->k_rotary_offset = d->k_head_dim ? take(b, 8) : 0;
    d->pairing_in = take(b, 3);
    d->pairing_out = take(b, 3);
    d->direction = take(b, 4);
    d->angle_mode = take(b, 4);
    d->arithmetic = take(b, 3);
}

static void take_frequency_fields(bytes *b, rope_desc *d) {
    double *numbers[] = {&d->rope_theta,
                         &d->factor,
                         &d->low_freq_factor,
                         &d->high_freq_factor,
                         &d->beta_fast,
                         &d->beta_slow,
                         &d->mscale,
                         &d->mscale_all_dim,
                         &d->attention_factor,
                         &d->alpha,
                         &d->partial_rotary_factor,
                         &d->short_mscale,
                         &d->long_mscale,
                         &d->xpos_scale_base};
    d->rope_type = take(b, 9);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        *numbers[i] = take_number(b);
    d->xpos_center = take(b, 100);
    d->original_max_position_embeddings = take(b, 255) * 64;
    d->max_position_embeddings = take(b, 255) * 64;
    d->sequence_length = take(b, 255) * 64;
    for (int i = 0; i < DIM_MOST; i++)
        factors[i] = i < 4 ? take_number(b) : 1 + i;
    d->short_factor = take(b, 1) ? factors : NULL;
    d->long_factor = take(b, 1) ? factors : NULL;
    d->inv_freq = take(b, 1) ? factors : NULL;
    d->factor_count = take(b, DIM_MOST);
    d->truncate = take(b, 2);
    d->longrope_select = take(b, 4);
}

static void take_position_fields(bytes *b, rope_desc *d) {
    d->position_dtype = take(b, 1) ? ROPE_I32 : ROPE_I64;
    d->axes = take(b, 5);
    d->axis_layout = take(b, 5);
    d->axis_frequency = take(b, 2);
    for (int i = 0; i < ROPE_MAX_AXES; i++)
        d->sections[i] = take(b, DIM_MOST / 2);
    for (int i = 0; i < DIM_MOST; i++)
        axes[i] = (uint8_t)(i % 4);
    d->pair_axis = take(b, 1) ? axes : NULL;
    d->shard = take(b, 4);
    d->shard_rank = take(b, 4);
    d->shard_size = take(b, 4);
    d->table_dtype = take(b, 4);
    d->table_width = take(b, 3);
    d->out_of_range = take(b, 4);
    d->launch = take(b, 4);
}

static void take_tensor(bytes *b, rope_tensor *t, void *in, void *out) {
    t->heads = take(b, SIZE_MOST);
    t->in = take(b, 15) ? in : NULL;
    t->out = take(b, 3) ? out : in;
    int strided = take(b, 1);
    for (int i = 0; i < 4 && strided; i++) {
        t->in_stride[i] = take(b, STRIDE_MOST);
        t->out_stride[i] = take(b, 1) ? t->in_stride[i] : take(b, STRIDE_MOST);
    }
}

/* An index, mostly small, at times at the edges of 64 bits. */
static int64_t take_index(bytes *b) {
    static const int64_t edges[] = {INT64_MIN, INT64_MIN + 1, INT64_MIN / 2, INT64_MIN / 3,
                                    INT64_MAX, INT64_MAX - 1, INT64_MAX / 2, INT64_MAX / 3};
    int32_t index = take(b, 255);
    return index < 248 ? index - 8 : edges[index - 248];
}

static void take_index_values(bytes *b) {
    for (int list = 0; list < 4; list++)
        for (int i = 0; i < ROWS * ROWS; i++)
            indices[list][i] = i < 4 ? take_index(b) : 0;
}

static void take_call(bytes *b, rope_args *a) {
    a->batch = take(b, SIZE_MOST);
    a->tokens = take(b, SIZE_MOST);
    take_tensor(b, &a->q, tensors[0], tensors[1]);
    take_tensor(b, &a->k, tensors[2], tensors[3]);
    a->position_offset = take_index(b);
    take_index_values(b);
    for (int i = 0; i < 3; i++) {
        a->position_stride[i] = take_some(b, STRIDE_MOST);
        a->table_stride[i] = take_some(b, i < 2 ? STRIDE_MOST : 3);
    }
    a->position_ids = take(b, 1) ? indices[0] : NULL;
    a->sequence_offsets = take(b, 1) ? indices[1] : NULL;
    a->cu_seqlens = take(b, 1) ? indices[2] : NULL;
    a->sequence_lengths = take(b, 1) ? indices[3] : NULL;
    a->sequences = take(b, SIZE_MOST);
    a->cos = take(b, 7) ? tables[0] : NULL;
    a->sin = take(b, 7) ? tables[1] : NULL;
    a->table_rows = take(b, ROWS / 8);
}

/* What nothing would read is refused, so that most calls leave it out. */
static void drop_unread(const rope_desc *d, rope_args *a) {
    if (!a->position_ids)
        memset(a->position_stride, 0, sizeof a->position_stride);
    if (!a->cu_seqlens)
        a->sequences = 0;
    if (d->rope_type != ROPE_TYPE_LONGROPE || d->longrope_select > ROPE_LONGROPE_PER_SEQUENCE)
        a->sequence_lengths = NULL;
    if (d->angle_mode == ROPE_ANGLE_TABLE)
        return;
    a->cos = a->sin = NULL;
    a->table_rows = 0;
    memset(a->table_stride, 0, sizeof a->table_stride);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    bytes b = {data, data + size};
    rope_desc desc = {.struct_size = sizeof desc, .backend = "cpu"};
    rope_args args = {.struct_size = sizeof args};
    rope_plan *plan = NULL;
    take_tensor_fields(&b, &desc);
    take_frequency_fields(&b, &desc);
    take_position_fields(&b, &desc);
    take_call(&b, &args);
    if (take(&b, 15) < 15)
        drop_unread(&desc, &args);
    if (rope_plan_create(&desc, &plan) == ROPE_OK)
        rope_apply(plan, &args);
    rope_plan_destroy(plan);
    return 0;
}
