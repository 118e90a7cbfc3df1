#include "tests/rope/case_parts.h"

#include <stdlib.h>
#include <string.h>

enum {
    ANGLE_BUDGET = 2500,    /* batch * tokens * pairs of a case */
    ELEMENT_BUDGET = 60000, /* elements of one tensor */
    CANARY = 0xa5
};

rope_tensor *case_tensor(rope_args *args, int32_t tensor) {
    return tensor ? &args->k : &args->q;
}

int64_t case_head_dim(const rope_desc *desc, int32_t tensor) {
    return tensor && desc->k_head_dim ? desc->k_head_dim : desc->head_dim;
}

const void *case_reserve(test_case *c, int64_t bytes, int64_t alignment) {
    int64_t offset = (int64_t)c->bytes + random_between(&c->random, 1, 200);
    if (alignment < c->alignment)
        alignment = c->alignment;
    offset = (offset + alignment - 1) / alignment * alignment;
    c->piece[c->pieces++] = (case_piece){(size_t)offset, (size_t)bytes, (size_t)alignment};
    c->bytes = (size_t)(offset + bytes);
    return (const void *)(uintptr_t)offset;
}

static int index_size(const rope_desc *d) {
    return d->position_dtype == ROPE_I32 ? 4 : 8;
}

/* Whole lengths that a shard divides; the tensor may hold more tokens before and after, or not all
 * of the first and the last sequence. */
static void choose_packed(test_random *r, test_case *c, int64_t budget) {
    rope_args *a = &c->args;
    int64_t size = c->desc.shard_size ? c->desc.shard_size : 1;
    int64_t unit = c->desc.shard == ROPE_SHARD_ZIGZAG ? 2 * size : size;
    int64_t most = budget * size / unit / CASE_MAX_SEQUENCES;
    a->sequences = random_between(r, 0, CASE_MAX_SEQUENCES);
    c->boundary[0] = random_chance(r, 70) ? 0 : random_chance(r, 60) ? unit : -unit;
    for (int64_t s = 0; s < a->sequences; s++)
        c->boundary[s + 1] = c->boundary[s] + unit * random_between(r, 0, most);
    a->batch = 1;
    a->tokens = c->boundary[a->sequences] / size + (random_chance(r, 70)   ? 0
                                                    : random_chance(r, 60) ? 2
                                                                           : -2);
    a->tokens = a->tokens > 0 ? a->tokens : 0;
    a->cu_seqlens =
        case_reserve(c, (a->sequences + 1) * index_size(&c->desc), index_size(&c->desc));
}

void case_choose_tokens(test_random *r, test_case *c) {
    rope_args *a = &c->args;
    int64_t pairs = case_rotary_dim(&c->desc) / 2;
    int64_t widest = case_head_dim(&c->desc, 0) > case_head_dim(&c->desc, 1)
                         ? case_head_dim(&c->desc, 0)
                         : case_head_dim(&c->desc, 1);
    int64_t budget = random_between(r, 1, ANGLE_BUDGET / pairs + 1);
    if (budget > ELEMENT_BUDGET / widest)
        budget = ELEMENT_BUDGET / widest;
    if (budget > 300)
        budget = 300;
    if (random_chance(r, 20)) {
        choose_packed(r, c, budget);
        return;
    }
    a->batch = random_chance(r, 3) ? 0 : random_chance(r, 40) ? 1 : random_between(r, 1, 5);
    a->tokens = random_chance(r, 3) ? 0 : budget / (a->batch ? a->batch : 1);
    if (c->desc.shard == ROPE_SHARD_ZIGZAG)
        a->tokens += a->tokens % 2;
}

/* Bits of the positions' magnitude. */
static int position_bits(test_random *r, const rope_desc *d) {
    if (d->angle_mode == ROPE_ANGLE_TABLE)
        return 5;
    return (int)random_between(r, 4, random_chance(r, 80) ? 35 : 63);
}

static void reserve_ids(test_random *r, test_case *c) {
    rope_args *a = &c->args;
    int64_t axes = c->desc.axes ? c->desc.axes : 1, count = axes * a->batch * a->tokens;
    int64_t step = 1;
    if (random_chance(r, 30)) {
        step = random_between(r, 1, 3);
        a->position_stride[2] = step * axes * a->batch;
        a->position_stride[1] = step * axes;
        a->position_stride[0] = step;
    } else if (random_chance(r, 20)) {
        a->position_stride[2] = 1;
        a->position_stride[0] = a->tokens;
        count = axes * a->tokens;
    }
    a->position_ids =
        case_reserve(c, (count * step + 1) * index_size(&c->desc), index_size(&c->desc));
}

void case_choose_positions(test_random *r, test_case *c) {
    rope_desc *d = &c->desc;
    rope_args *a = &c->args;
    int sets = d->rope_type == ROPE_TYPE_LONGROPE && d->longrope_select <= 1;
    int64_t sequences = a->cu_seqlens ? a->sequences : a->batch;
    if (d->shard <= ROPE_SHARD_NONE && random_chance(r, d->axes > 1 ? 90 : 50))
        reserve_ids(r, c);
    if (random_chance(r, 40))
        a->sequence_offsets = case_reserve(c, (sequences + 1) * index_size(d), index_size(d));
    if (sets && (a->position_ids || random_chance(r, 50)))
        a->sequence_lengths = case_reserve(c, (sequences + 1) * index_size(d), index_size(d));
    if (random_chance(r, 60) || d->angle_mode == ROPE_ANGLE_TABLE)
        a->position_offset = random_signed(r, position_bits(r, d));
    if (d->angle_mode == ROPE_ANGLE_TABLE)
        a->position_offset = random_between(r, 0, 3);
}

void case_store_index(int32_t dtype, const void *array, int64_t i, int64_t value) {
    int32_t narrow = (int32_t)value;
    if (dtype == ROPE_I32)
        memcpy((char *)(uintptr_t)array + 4 * i, &narrow, sizeof narrow);
    else
        memcpy((char *)(uintptr_t)array + 8 * i, &value, sizeof value);
}

size_t case_piece_bytes(const test_case *c, const void *at) {
    for (int32_t i = 0; i < c->pieces; i++)
        if (c->arena + c->piece[i].offset == at)
            return c->piece[i].bytes;
    return 0;
}

/* The array's piece, filled to its end, gaps between strided entries included. */
static void fill_indices(test_case *c, const void *array, int64_t low, int64_t high, int bits) {
    int64_t count = (int64_t)case_piece_bytes(c, array) / index_size(&c->desc);
    int most = index_size(&c->desc) == 4 && bits > 30 ? 30 : bits;
    for (int64_t i = 0; i < count; i++)
        case_store_index(c->desc.position_dtype, array, i,
                         bits ? random_signed(&c->random, most)
                              : random_between(&c->random, low, high));
}

void case_fill_positions(test_case *c, const case_wish *wish) {
    rope_desc *d = &c->desc;
    rope_args *a = &c->args;
    int tabled = d->angle_mode == ROPE_ANGLE_TABLE;
    int strict = wish->in_range || (d->out_of_range <= 1 && random_chance(&c->random, 80));
    int64_t last = a->table_rows - 1 - a->position_offset - (a->sequence_offsets ? 2 : 0);
    int64_t low = strict ? 0 : -9, high = strict ? (last > 0 ? last : 0) : last + 9;
    int bits = tabled ? 0 : position_bits(&c->random, d);
    if (a->position_ids)
        fill_indices(c, a->position_ids, low, high > low ? high : low, bits);
    if (a->sequence_offsets)
        fill_indices(c, a->sequence_offsets, 0, 2, bits);
    if (a->sequence_lengths)
        fill_indices(c, a->sequence_lengths, 0, 2 * d->original_max_position_embeddings, 0);
    for (int64_t s = 0; a->cu_seqlens && s <= a->sequences; s++)
        case_store_index(c->desc.position_dtype, a->cu_seqlens, s, c->boundary[s]);
}

void case_choose_table(test_random *r, test_case *c, const case_wish *wish) {
    rope_desc *d = &c->desc;
    rope_args *a = &c->args;
    if (d->angle_mode != ROPE_ANGLE_TABLE)
        return;
    int32_t dtype = d->table_dtype ? d->table_dtype : ROPE_F32;
    int64_t width = case_rotary_dim(d) / (d->table_width == ROPE_TABLE_FULL ? 1 : 2);
    int64_t size = oracle_dtype_size(dtype),
            whole = a->tokens * (d->shard_size ? d->shard_size : 1);
    int64_t packed = c->boundary[a->sequences] - (c->boundary[0] < 0 ? c->boundary[0] : 0),
            needed = (a->cu_seqlens ? packed : whole) + 6;
    int loose = !wish->in_range && random_chance(r, d->out_of_range > 1 ? 60 : 15);
    a->table_rows =
        loose ? random_between(r, d->out_of_range == ROPE_OUT_OF_RANGE_CLAMP, needed) : needed;
    int64_t batches = random_chance(r, 30) && a->batch > 1 ? a->batch : 1;
    int64_t entry = 1, row = width, sine = 0;
    switch (random_between(r, 0, 3)) {
    case 0:
        row = width + random_between(r, 0, 5);
        break;
    case 1:
        row = 2 * width;
        sine = width;
        break;
    case 2:
        entry = 2;
        row = 2 * width;
        sine = 1;
        break;
    default:
        break;
    }
    int64_t total = row * (batches * a->table_rows + 1);
    a->cos = case_reserve(c, total * size, size);
    a->sin = sine ? (const char *)a->cos + sine * size : case_reserve(c, total * size, size);
    if (batches == 1 && entry == 1 && row == width)
        return;
    a->table_stride[0] = batches > 1 ? a->table_rows * row : 0;
    a->table_stride[1] = row;
    a->table_stride[2] = entry;
}

int64_t case_choose_strides(test_random *r, const int64_t count[4], int64_t stride[4]) {
    static const int32_t orders[3][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}};
    const int32_t *order = orders[random_between(r, 0, 2)];
    int padded = random_chance(r, 50);
    stride[3] = random_chance(r, 12) ? random_between(r, 2, 3) : 1;
    int64_t next = stride[3] * count[3] + (padded ? random_between(r, 0, 9) : 0);
    for (int i = 2; i >= 0; i--) {
        stride[order[i]] = next;
        next =
            next * (count[order[i]] ? count[order[i]] : 1) + (padded ? random_between(r, 0, 5) : 0);
    }
    return next;
}

/* Elements from the lowest to the highest of a view, and the lowest's distance from the first. */
static int64_t view_extent(const int64_t count[4], const int64_t stride[4], int64_t *below) {
    int64_t low = 0, high = 1;
    for (int d = 0; d < 4; d++) {
        if (count[d] == 0) {
            *below = 0;
            return 0;
        }
        int64_t reach = stride[d] * (count[d] - 1);
        *(reach < 0 ? &low : &high) += reach;
    }
    *below = -low;
    return high - low;
}

const void *case_reserve_view(test_case *c, int64_t size, const int64_t count[4],
                              const int64_t stride[4]) {
    int64_t below;
    int64_t extent = view_extent(count, stride, &below);
    const char *base = case_reserve(c, extent * size, size);
    return base + below * size;
}

static void maybe_broadcast(test_random *r, int64_t stride[4]) {
    if (random_chance(r, 12))
        stride[random_between(r, 0, 2)] = 0;
    if (random_chance(r, 6))
        stride[1] = -stride[1];
}

static void choose_view(test_random *r, test_case *c, int32_t tensor, const case_wish *wish) {
    rope_args *a = &c->args;
    rope_tensor *t = case_tensor(a, tensor);
    int64_t dim = case_head_dim(&c->desc, tensor), size = oracle_dtype_size(c->desc.dtype);
    int64_t count[4] = {a->batch, a->tokens, t->heads, dim};
    int64_t plain[4] = {a->tokens * t->heads * dim, t->heads * dim, dim, 1};
    int in_place = !wish->out_of_place && random_chance(r, 45);
    int explicit_in = random_chance(r, 70), explicit_out = random_chance(r, 60);
    if (explicit_in) {
        case_choose_strides(r, count, t->in_stride);
        if (!in_place && !wish->out_of_place)
            maybe_broadcast(r, t->in_stride);
    }
    t->in = case_reserve_view(c, size, count, explicit_in ? t->in_stride : plain);
    if (in_place) {
        t->out = (void *)(uintptr_t)t->in;
        memcpy(t->out_stride, t->in_stride, random_chance(r, 50) ? sizeof t->out_stride : 0);
        return;
    }
    if (explicit_out)
        case_choose_strides(r, count, t->out_stride);
    if (explicit_out && random_chance(r, 6))
        t->out_stride[0] = -t->out_stride[0];
    t->out =
        (void *)(uintptr_t)case_reserve_view(c, size, count, explicit_out ? t->out_stride : plain);
}

/* q and k (and the v between or after them) as parts of each token's row in one buffer. */
static void choose_fused(test_random *r, test_case *c, int in_place) {
    rope_args *a = &c->args;
    int64_t size = oracle_dtype_size(c->desc.dtype);
    int64_t dim[2] = {case_head_dim(&c->desc, 0), case_head_dim(&c->desc, 1)};
    int64_t start = a->q.heads * dim[0] + random_between(r, 0, 8);
    int64_t row = start + a->k.heads * dim[1] + random_between(r, 0, 64);
    int64_t total = row * a->tokens * a->batch;
    const char *in = case_reserve(c, total * size, size);
    const char *out = in_place ? in : case_reserve(c, total * size, size);
    for (int32_t i = 0; i < 2; i++) {
        rope_tensor *t = case_tensor(a, i);
        int64_t stride[4] = {a->tokens * row, row, dim[i], 1};
        t->in = in + (i ? start * size : 0);
        t->out = (void *)(uintptr_t)(out + (i ? start * size : 0));
        memcpy(t->in_stride, stride, sizeof stride);
        memcpy(t->out_stride, stride, sizeof stride);
    }
}

static void choose_tensors(test_random *r, test_case *c, const case_wish *wish) {
    rope_args *a = &c->args;
    int64_t sites = a->batch > 0 && a->tokens > 0 ? a->batch * a->tokens : 1;
    for (int32_t i = 0; i < 2; i++) {
        int64_t most = ELEMENT_BUDGET / (sites * case_head_dim(&c->desc, i));
        most = most < 1 ? 1 : most > 8 ? 8 : most;
        case_tensor(a, i)->heads = random_chance(r, 15) ? 0 : random_between(r, 1, most);
    }
    int64_t elements =
        sites * (a->q.heads * case_head_dim(&c->desc, 0) + a->k.heads * case_head_dim(&c->desc, 1));
    if (a->q.heads && a->k.heads && elements && random_chance(r, 20)) {
        choose_fused(r, c, !wish->out_of_place && random_chance(r, 60));
        return;
    }
    for (int32_t i = 0; i < 2; i++)
        if (case_tensor(a, i)->heads)
            choose_view(r, c, i, wish);
}

void case_fill_tensors(test_case *c) {
    double scale = random_chance(&c->random, 80) ? 4 : 1000;
    for (int32_t i = 0; i < c->pieces; i++)
        case_fill_data(&c->random, c->wild, c->arena + c->piece[i].offset, c->piece[i].bytes,
                       c->desc.dtype, scale);
}

/* sin lies within the piece of cos, or has its own. */
void case_fill_table(test_case *c) {
    const void *part[2] = {c->args.cos, c->args.sin};
    int32_t dtype = c->desc.table_dtype ? c->desc.table_dtype : ROPE_F32;
    for (int i = 0; i < 2 && part[i]; i++)
        case_fill_data(&c->random, 0, (void *)(uintptr_t)part[i], case_piece_bytes(c, part[i]),
                       dtype, 1);
}

void case_make_arena(test_case *c) {
    c->bytes = (c->bytes + 200 + 63) / 64 * 64;
    c->arena = aligned_alloc(64, c->bytes);
    memset(c->arena, CANARY, c->bytes);
    case_relocate(&c->args, NULL, c->arena);
}

void case_make(test_case *c, uint64_t seed, int64_t index, const case_wish *wish) {
    static const case_wish any;
    wish = wish ? wish : &any;
    memset(c, 0, sizeof *c);
    c->index = index;
    c->random = random_stream(seed, index);
    c->desc.struct_size = sizeof c->desc;
    c->args.struct_size = sizeof c->args;
    test_random *r = &c->random;
    c->wild = !wish->tame && random_chance(r, 30);
    case_choose_desc(c, wish);
    case_choose_tokens(r, c);
    case_choose_positions(r, c);
    choose_tensors(r, c, wish);
    case_choose_table(r, c, wish);
    if (random_chance(r, 20))
        c->args.position_flag = (int32_t *)(uintptr_t)case_reserve(c, 4, 4);
    case_make_arena(c);
    case_fill_tensors(c);
    case_fill_table(c);
    case_fill_positions(c, wish);
    if (c->args.position_flag)
        *c->args.position_flag = 0;
}

void case_free(test_case *c) {
    free(c->arena);
    c->arena = NULL;
}
