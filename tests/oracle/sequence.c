#include "tests/oracle/sequence.h"

#include <string.h>

int64_t oracle_index(int32_t dtype, const void *array, int64_t i) {
    int32_t narrow;
    int64_t wide;
    if (dtype == ROPE_I32) {
        memcpy(&narrow, (const char *)array + 4 * i, sizeof narrow);
        return narrow;
    }
    memcpy(&wide, (const char *)array + 8 * i, sizeof wide);
    return wide;
}

static int64_t shard_size(const rope_desc *d) {
    return d->shard_size ? d->shard_size : 1;
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
static int64_t packed_sequence(const rope_desc *d, const rope_args *args, int64_t token,
                               int64_t *first, int64_t *local) {
    for (int64_t s = 0; s < args->sequences; s++) {
        int64_t begin = oracle_index(d->position_dtype, args->cu_seqlens, s) / shard_size(d);
        int64_t end = oracle_index(d->position_dtype, args->cu_seqlens, s + 1) / shard_size(d);
        *first = begin;
        *local = end - begin;
        if (token >= begin && token < end)
            return s;
    }
    return -1;
}

static int shard_divides(const rope_desc *d, const rope_args *args, int64_t sequence) {
    int64_t begin = oracle_index(d->position_dtype, args->cu_seqlens, sequence);
    int64_t end = oracle_index(d->position_dtype, args->cu_seqlens, sequence + 1);
    int64_t parts = (d->shard == ROPE_SHARD_ZIGZAG ? 2 : 1) * shard_size(d);
    return begin % shard_size(d) == 0 && (end - begin) % parts == 0;
}

oracle_site oracle_site_of(const rope_desc *desc, const rope_args *args, int64_t batch,
                           int64_t token) {
    oracle_site site = {.sequence = batch, .local = args->tokens, .divides = 1};
    if (args->cu_seqlens)
        site.sequence = packed_sequence(desc, args, token, &site.first, &site.local);
    if (site.sequence < 0)
        return site;
    if (args->cu_seqlens)
        site.divides = shard_divides(desc, args, site.sequence);
    uint64_t shift = (uint64_t)args->position_offset;
    if (args->sequence_offsets)
        shift +=
            (uint64_t)oracle_index(desc->position_dtype, args->sequence_offsets, site.sequence);
    site.shift = (int64_t)shift;
    site.index = whole_index(desc, token - site.first, site.local);
    return site;
}
