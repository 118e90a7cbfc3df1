#include "python/csrc/longest.h"

#include "python/csrc/failure.h"

#include <inttypes.h>

/* Tokens whose positions count: those of each sequence, by ids or by their index. */
typedef struct tokens {
    const rope_args *args; /* sequences and offsets */
    const rope_desc *desc;
    const void *ids; /* NULL: index in the sequence */
    const int64_t *id_stride;
    const void *bounds;  /* of packed sequences, or NULL */
    const void *lengths; /* tokens of each row, or NULL: all */
    int64_t count;       /* tokens of a row */
} tokens;

static int64_t at(const rope_desc *desc, const void *list, int64_t index) {
    return desc->position_dtype == ROPE_I32 ? ((const int32_t *)list)[index]
                                            : ((const int64_t *)list)[index];
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Positions count modulo 2^64. */
static int64_t sum(int64_t a, int64_t b) {
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

static int64_t last_id(const tokens *t, int64_t row, int64_t from, int64_t to) {
    int64_t last = INT64_MIN;
    for (int32_t axis = 0; axis < larger(t->desc->axes, 1); axis++)
        for (int64_t i = from; i < to; i++)
            last = larger(last,
                          at(t->desc, t->ids,
                             axis * t->id_stride[0] + row * t->id_stride[1] + i * t->id_stride[2]));
    return last;
}

/* The last position of a sequence without its offset, or INT64_MIN where it has no token. */
static int64_t last_of(const tokens *t, int64_t sequence) {
    int64_t from = 0, to = t->count;
    if (t->bounds) {
        from = at(t->desc, t->bounds, sequence);
        to = at(t->desc, t->bounds, sequence + 1);
    }
    if (t->lengths)
        to = smaller(to, sum(from, at(t->desc, t->lengths, sequence)));
    if (!t->ids) {
        const uint64_t ranks = t->bounds ? 1 : (uint64_t)larger(t->desc->shard_size, 1);
        return to > from ? (int64_t)(ranks * ((uint64_t)to - (uint64_t)from) - 1) : INT64_MIN;
    }
    return last_id(t, t->bounds ? 0 : sequence, larger(from, 0), smaller(to, t->count));
}

/* The longest position + 1, or 0 without a token. */
static int64_t longest(const tokens *t) {
    const rope_args *args = t->args;
    const int64_t sequences = args->cu_seqlens ? args->sequences : args->batch;
    int64_t most = 0;
    for (int64_t s = 0; s < sequences; s++) {
        const int64_t last = last_of(t, s);
        if (last == INT64_MIN)
            continue;
        int64_t position = sum(last, args->position_offset);
        if (args->sequence_offsets)
            position = sum(position, at(t->desc, args->sequence_offsets, s));
        most = larger(most, smaller(position, INT64_MAX - 1) + 1);
    }
    return most;
}

/* What only the device can read. */
static const char *check_readable(const plan_entry *entry, const rope_args *args,
                                  const void *lengths) {
    const char *name = args->position_ids       ? "positions"
                       : args->sequence_offsets ? "sequence_offsets"
                       : args->cu_seqlens       ? "cu_seqlens"
                                                : "k_lengths";
    if (!entry->key.accelerated ||
        (!args->position_ids && !args->sequence_offsets && !args->cu_seqlens && !lengths))
        return NULL;
    return fail("sequence_length is not given; allowed with rope_type 'dynamic' and %s on a device "
                "is the longest position + 1, or max_position_embeddings for no scaling",
                name);
}

const plan_entry *longest_of_tokens(const plan_entry *entry, const rope_args *args,
                                    const char **error) {
    const rope_desc *desc =
        entry->key.operation == OPERATION_ROPE ? &entry->config.desc : &entry->config.append.rope;
    if (!entry->limit)
        return entry;
    *error = entry->key.k_source == ROPE_SOURCE_CACHE
                 ? fail("sequence_length is not given; allowed with rope_type 'dynamic' where keys "
                        "move is that with which they were cached")
                 : check_readable(entry, args, NULL);
    if (*error)
        return NULL;
    const tokens t = {.args = args,
                      .desc = desc,
                      .ids = args->position_ids,
                      .id_stride = args->position_stride,
                      .bounds = args->cu_seqlens,
                      .count = args->tokens};
    return plan_scaled(entry, longest(&t), error);
}

const plan_entry *longest_of_attention(const plan_entry *entry, const rope_attention_args *args,
                                       const char **error) {
    const rope_args *rope = &args->rope;
    if (!entry->limit)
        return entry;
    *error = check_readable(entry, rope, args->k_lengths);
    if (*error)
        return NULL;
    const tokens keys = {.args = rope,
                         .desc = &entry->config.attention.rope,
                         .ids = args->k_position_ids,
                         .id_stride = args->k_position_stride,
                         .bounds = args->k_cu_seqlens,
                         .lengths = args->k_lengths,
                         .count = args->k_tokens};
    const tokens queries = {.args = rope,
                            .desc = keys.desc,
                            .ids = rope->position_ids,
                            .id_stride = rope->position_stride,
                            .bounds = rope->cu_seqlens,
                            .lengths = args->q_lengths,
                            .count = rope->tokens};
    /* A query's index is one among the keys. */
    const int of_keys = keys.ids || !queries.ids;
    const int64_t most = of_keys ? longest(&keys) : 0;
    return plan_scaled(entry, queries.ids ? larger(most, longest(&queries)) : most, error);
}

const char *longest_check_cached(const plan_entry *entry, const rope_args *args) {
    const rope_append_desc *append = &entry->config.append;
    const rope_desc *desc = &append->rope;
    const int by_length =
        desc->rope_type == ROPE_TYPE_LONGROPE &&
        (desc->longrope_select == 0 || desc->longrope_select == ROPE_LONGROPE_PER_SEQUENCE);
    if (!by_length || !append->cache || args->k.heads == 0 || args->position_ids ||
        args->sequence_lengths)
        return NULL;
    if (entry->key.accelerated && (args->sequence_offsets || args->cu_seqlens))
        return NULL;
    const tokens t = {
        .args = args, .desc = desc, .bounds = args->cu_seqlens, .count = args->tokens};
    const int64_t sequences = args->cu_seqlens ? args->sequences : args->batch;
    for (int64_t s = 0; s < sequences; s++) {
        const int64_t offset = args->sequence_offsets ? at(desc, args->sequence_offsets, s) : 0;
        const int64_t first = sum(args->position_offset, offset), last = last_of(&t, s);
        const int64_t original = desc->original_max_position_embeddings;
        if (first > 0 && first <= original && last != INT64_MIN && sum(first, last) >= original)
            return fail("sequence_lengths is not given; allowed where keys from %" PRId64
                        " to %" PRId64 " of a sequence are cached behind others across "
                        "original_max_position_embeddings, %" PRId64 ", is the length by which "
                        "longrope has all of them in every call, or a longrope_select",
                        first, sum(first, last), original);
    }
    return NULL;
}
