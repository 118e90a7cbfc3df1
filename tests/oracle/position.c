/* Where a token stands: ids, offsets, packed sequences, shards, and the rows of a table. */
#include "tests/oracle/internal.h"

#include <string.h>

static int64_t index_at(const oracle *o, const void *array, int64_t i) {
    int32_t narrow;
    int64_t wide;
    if (o->desc.position_dtype == ROPE_I32) {
        memcpy(&narrow, (const char *)array + 4 * i, sizeof narrow);
        return narrow;
    }
    memcpy(&wide, (const char *)array + 8 * i, sizeof wide);
    return wide;
}

/* Index in the whole sequence of the n-th token of a rank that holds `local` of it. */
static int64_t whole_index(const rope_desc *d, int64_t n, int64_t local) {
    if (d->shard == ROPE_SHARD_CONTIGUOUS)
        return d->shard_rank * local + n;
    if (d->shard != ROPE_SHARD_ZIGZAG)
        return n;
    int64_t chunk = local / 2, within = n % (chunk ? chunk : 1);
    int64_t which = n < chunk ? d->shard_rank : 2 * d->shard_size - 1 - d->shard_rank;
    return which * chunk + within;
}

/* The packed sequence of a token and its first local token and local length; -1 outside all. */
static int64_t packed_sequence(const oracle *o, const rope_args *args, int64_t token,
                               int64_t *first, int64_t *local) {
    for (int64_t s = 0; s < args->sequences; s++) {
        int64_t begin = index_at(o, args->cu_seqlens, s) / o->desc.shard_size;
        int64_t end = index_at(o, args->cu_seqlens, s + 1) / o->desc.shard_size;
        *first = begin;
        *local = end - begin;
        if (token >= begin && token < end)
            return s;
    }
    return -1;
}

/* Whether the ranks hold equal parts of a packed sequence, and zigzag ranks two equal chunks. */
static int shard_divides(const oracle *o, const rope_args *args, int64_t sequence) {
    int64_t begin = index_at(o, args->cu_seqlens, sequence);
    int64_t end = index_at(o, args->cu_seqlens, sequence + 1);
    int64_t parts =
        o->desc.shard == ROPE_SHARD_ZIGZAG ? 2 * (int64_t)o->desc.shard_size : o->desc.shard_size;
    return begin % o->desc.shard_size == 0 && (end - begin) % parts == 0;
}

static void table_row(const oracle *o, const rope_args *args, int32_t axis, oracle_token *site) {
    int64_t row = site->at[axis];
    if (row >= 0 && row < args->table_rows)
        return;
    if (o->desc.out_of_range == ROPE_OUT_OF_RANGE_ERROR)
        site->fate = ORACLE_FAILS;
    else if (o->desc.out_of_range == ROPE_OUT_OF_RANGE_IDENTITY || args->table_rows == 0)
        site->fate = ORACLE_PASSES;
    else
        site->at[axis] = row < 0 ? 0 : args->table_rows - 1;
}

oracle_token oracle_locate(const oracle *o, const rope_args *args, int64_t batch, int64_t token) {
    oracle_token site = {.fate = ORACLE_ROTATES};
    int64_t sequence = batch, first = 0, local = args->tokens;
    if (args->cu_seqlens)
        sequence = packed_sequence(o, args, token, &first, &local);
    if (sequence < 0) {
        site.fate = ORACLE_PASSES;
        return site;
    }
    if (args->cu_seqlens && !shard_divides(o, args, sequence)) {
        site.fate = ORACLE_FAILS;
        return site;
    }
    uint64_t shift = (uint64_t)args->position_offset;
    if (args->sequence_offsets)
        shift += (uint64_t)index_at(o, args->sequence_offsets, sequence);
    const int64_t *given = args->position_stride;
    int64_t contiguous[3] = {args->batch * args->tokens, args->tokens, 1};
    const int64_t *stride = given[0] || given[1] || given[2] ? given : contiguous;
    for (int32_t axis = 0; axis < o->desc.axes; axis++) {
        int64_t position = whole_index(&o->desc, token - first, local);
        if (args->position_ids)
            position = index_at(o, args->position_ids,
                                axis * stride[0] + batch * stride[1] + token * stride[2]);
        site.at[axis] = (int64_t)((uint64_t)position + shift);
        if (o->desc.angle_mode == ROPE_ANGLE_TABLE)
            table_row(o, args, axis, &site);
    }
    if (o->sets == 2) {
        int64_t length = (int64_t)((uint64_t)(local * o->desc.shard_size) + shift);
        if (args->sequence_lengths)
            length = index_at(o, args->sequence_lengths, sequence);
        site.set = length > o->desc.original_max_position_embeddings;
    }
    return site;
}
