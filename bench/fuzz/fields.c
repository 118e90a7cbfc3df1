#include "bench/fuzz/fields.h"

#include <stddef.h>
#include <string.h>

/* Elements that four strides can reach, both tensors in and out apart. */
#define ELEMENTS (3 * (FUZZ_SIZE_MOST * FUZZ_STRIDE_MOST * 3 + FUZZ_DIM_MOST * FUZZ_STRIDE_MOST))
static double tensors[4][ELEMENTS];
static double tables[2][FUZZ_ROWS * 4 * FUZZ_DIM_MOST];
int64_t fuzz_indices[4][FUZZ_ROWS * FUZZ_ROWS];
static double factors[FUZZ_DIM_MOST];
static uint8_t axes[FUZZ_DIM_MOST];

int32_t fuzz_take(fuzz_bytes *b, int32_t most) {
    return b->next < b->end ? *b->next++ % (most + 1) : 0;
}

int32_t fuzz_take_some(fuzz_bytes *b, int32_t most) {
    return fuzz_take(b, 1) ? fuzz_take(b, most) : 0;
}

double fuzz_take_number(fuzz_bytes *b) {
    double number = 0;
    int32_t choice = fuzz_take(b, 255);
    if (choice < 128)
        return choice < 96 ? 0 : 0.5 * (choice - 95);
    for (size_t i = 0; i < sizeof number; i++)
        ((uint8_t *)&number)[i] = (uint8_t)fuzz_take(b, 255);
    return number;
}

/* --- descriptors --- */

static int32_t choices_of(const option_field *f) {
    int32_t count = 1;
    for (const char *c = f->values; *c; c++)
        count += *c == '|';
    return count + (int32_t)f->least;
}

/* What a field's integers may be at most: sizes fit the buffers, the rest has room for mistakes. */
static int32_t most_of(const option_field *f) {
    return strcmp(f->name, "page-size") == 0   ? FUZZ_SIZE_MOST
           : f->group == OPTION_FREQUENCIES    ? 255
           : strncmp(f->name, "shard", 5) == 0 ? ROPE_MAX_AXES
           : strcmp(f->name, "axes") == 0      ? ROPE_MAX_AXES + 1
                                               : FUZZ_DIM_MOST;
}

static void take_field(fuzz_bytes *b, const option_field *f, void *member) {
    switch (f->kind) {
    case OPTION_CHOICE:
        *(int32_t *)member = fuzz_take_some(b, choices_of(f) + 1);
        break;
    case OPTION_DTYPE:
        *(int32_t *)member = fuzz_take_some(b, ROPE_I8 + 1);
        break;
    case OPTION_INT32:
        *(int32_t *)member = fuzz_take_some(b, most_of(f));
        break;
    case OPTION_INT64:
        *(int64_t *)member =
            fuzz_take_some(b, most_of(f)) * (f->group == OPTION_FREQUENCIES ? 64 : 1);
        break;
    case OPTION_DOUBLE:
        *(double *)member = fuzz_take_number(b);
        break;
    case OPTION_SECTIONS:
        for (int i = 0; i < ROPE_MAX_AXES; i++)
            ((int32_t *)member)[i] = fuzz_take_some(b, FUZZ_DIM_MOST / 2);
        break;
    case OPTION_FACTORS:
        *(const double **)member = fuzz_take(b, 1) ? factors : NULL;
        break;
    case OPTION_BYTES:
        *(const uint8_t **)member = fuzz_take(b, 1) ? axes : NULL;
        break;
    default:
        break;
    }
}

void fuzz_take_fields(fuzz_bytes *b, options *o, size_t offset, size_t size) {
    for (const option_field *f = option_fields; f < option_fields + option_field_count; f++)
        if (f->group != OPTION_RUN && f->offset >= offset && f->offset < offset + size)
            take_field(b, f, (char *)o + f->offset);
}

static void take_plain(fuzz_bytes *b, rope_desc *d) {
    d->dtype = 1 + fuzz_take(b, 2);
    d->head_dim = 2 + 2 * fuzz_take(b, FUZZ_DIM_MOST / 2 - 1);
    d->rotary_dim = fuzz_take_some(b, FUZZ_DIM_MOST);
    d->angle_mode = fuzz_take(b, 3);
    d->position_dtype = fuzz_take(b, 1) ? ROPE_I32 : ROPE_I64;
}

rope_desc fuzz_take_desc(fuzz_bytes *b, bool whole) {
    options o = {.desc = {.struct_size = sizeof o.desc, .backend = "cpu"}};
    if (!whole && fuzz_take(b, 7) < 7) {
        take_plain(b, &o.desc);
        return o.desc;
    }
    for (int i = 0; i < FUZZ_DIM_MOST; i++) {
        factors[i] = i < 4 ? fuzz_take_number(b) : 1 + i;
        axes[i] = (uint8_t)(i % ROPE_MAX_AXES);
    }
    fuzz_take_fields(b, &o, offsetof(options, desc), sizeof o.desc);
    o.desc.factor_count = fuzz_take(b, FUZZ_DIM_MOST);
    return o.desc;
}

rope_desc fuzz_without_rotation(const rope_desc *d) {
    return (rope_desc){.struct_size = sizeof *d,
                       .dtype = d->dtype,
                       .head_dim = d->head_dim,
                       .k_head_dim = d->k_head_dim,
                       .position_dtype = d->position_dtype,
                       .shard = d->shard,
                       .shard_rank = d->shard_rank,
                       .shard_size = d->shard_size,
                       .launch = d->launch,
                       .backend = d->backend};
}

/* --- calls --- */

void fuzz_take_tensor(fuzz_bytes *b, rope_tensor *t, void *in, void *out) {
    t->heads = fuzz_take(b, FUZZ_SIZE_MOST);
    t->in = fuzz_take(b, 15) ? in : NULL;
    t->out = fuzz_take(b, 3) ? out : in;
    int strided = fuzz_take(b, 1);
    for (int i = 0; i < 4 && strided; i++) {
        t->in_stride[i] = fuzz_take(b, FUZZ_STRIDE_MOST);
        t->out_stride[i] = fuzz_take(b, 1) ? t->in_stride[i] : fuzz_take(b, FUZZ_STRIDE_MOST);
    }
}

/* An index, mostly small, at times at the edges of 64 bits. */
static int64_t fuzz_take_index(fuzz_bytes *b) {
    static const int64_t edges[] = {INT64_MIN, INT64_MIN + 1, INT64_MIN / 2, INT64_MIN / 3,
                                    INT64_MAX, INT64_MAX - 1, INT64_MAX / 2, INT64_MAX / 3};
    int32_t index = fuzz_take(b, 255);
    return index < 248 ? index - 8 : edges[index - 248];
}

static void take_index_values(fuzz_bytes *b) {
    for (int list = 0; list < 4; list++)
        for (int i = 0; i < FUZZ_ROWS * FUZZ_ROWS; i++)
            fuzz_indices[list][i] = i < 4 ? fuzz_take_index(b) : 0;
}

void fuzz_take_scale(fuzz_bytes *b, int32_t kind, float *data, rope_scale *scale) {
    for (int i = 0; i < FUZZ_SCALES; i++)
        data[i] = i < 2 ? (float)fuzz_take_number(b) : 1;
    if (kind == 0)
        return;
    scale->data = fuzz_take(b, 15) ? data : NULL;
    if (kind >= ROPE_SCALE_TOKEN_HEAD)
        fuzz_take_strides(b, scale->stride, 3, FUZZ_SMALL_STRIDE_MOST);
    else if (kind == ROPE_SCALE_HEAD)
        scale->stride[2] = fuzz_take_some(b, FUZZ_SMALL_STRIDE_MOST);
}

void fuzz_take_args(fuzz_bytes *b, rope_args *a) {
    a->batch = fuzz_take(b, FUZZ_SIZE_MOST);
    a->tokens = fuzz_take(b, FUZZ_SIZE_MOST);
    fuzz_take_tensor(b, &a->q, tensors[0], tensors[1]);
    fuzz_take_tensor(b, &a->k, tensors[2], tensors[3]);
    a->position_offset = fuzz_take_index(b);
    take_index_values(b);
    for (int i = 0; i < 3; i++) {
        a->position_stride[i] = fuzz_take_some(b, FUZZ_STRIDE_MOST);
        a->table_stride[i] = fuzz_take_some(b, i < 2 ? FUZZ_STRIDE_MOST : 3);
    }
    a->position_ids = fuzz_take(b, 1) ? fuzz_indices[0] : NULL;
    a->sequence_offsets = fuzz_take(b, 1) ? fuzz_indices[1] : NULL;
    a->cu_seqlens = fuzz_take(b, 1) ? fuzz_indices[2] : NULL;
    a->sequence_lengths = fuzz_take(b, 1) ? fuzz_indices[3] : NULL;
    a->sequences = fuzz_take(b, FUZZ_SIZE_MOST);
    a->cos = fuzz_take(b, 7) ? tables[0] : NULL;
    a->sin = fuzz_take(b, 7) ? tables[1] : NULL;
    a->table_rows = fuzz_take(b, FUZZ_ROWS / 8);
}

void fuzz_drop_unread(const rope_desc *d, rope_args *a) {
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

void fuzz_take_strides(fuzz_bytes *b, int64_t *stride, int n, int32_t most) {
    const int strided = fuzz_take(b, 1);
    for (int i = 0; i < n && strided; i++)
        stride[i] = fuzz_take(b, most);
}
