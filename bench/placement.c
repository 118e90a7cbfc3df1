#include "bench/placement.h"

#include "bench/angle_table.h"
#include "bench/message.h"
#include "bench/random.h"
#include "tests/oracle/oracle.h"

#include <string.h>

/* Places index values as position_dtype; count 0 leaves both pointers NULL. */
static bool place_indices(workload *w, const int64_t *values, int64_t count, const void **host,
                          const void **device) {
    if (count == 0)
        return true;
    int narrow = w->desc.position_dtype == ROPE_I32;
    size_t size = narrow ? sizeof(int32_t) : sizeof(int64_t);
    void *array = pool_alloc(&w->memory, (size_t)count, size);
    if (!array)
        return false;
    for (int64_t i = 0; i < count; i++)
        if (narrow)
            ((int32_t *)array)[i] = (int32_t)values[i];
        else
            ((int64_t *)array)[i] = values[i];
    *host = array;
    return workload_place(w, array, size * (size_t)count, device);
}

static bool place_ids(workload *w, const options *o, rope_args *args) {
    int table = o->desc.angle_mode == ROPE_ANGLE_TABLE;
    if (o->positions.count && !table)
        return place_indices(w, o->positions.values, o->positions.count, &w->host.position_ids,
                             &args->position_ids);
    if (o->positions.count || o->position_ids <= IDS_NONE)
        return true;
    int64_t axes = o->desc.axes ? o->desc.axes : 1;
    int64_t count = axes * o->batch * o->tokens;
    int64_t *ids = pool_alloc(&w->memory, (size_t)count, sizeof *ids);
    if (!ids)
        return false;
    uint64_t state = ~(uint64_t)o->seed;
    for (int64_t i = 0; i < count; i++)
        ids[i] =
            o->position_ids == IDS_RANDOM ? random_below(&state, o->max_position) : i % o->tokens;
    return place_indices(w, ids, count, &w->host.position_ids, &args->position_ids);
}

/* Rows that every position of the call finds in a table. */
static int64_t rows_needed(const options *o) {
    if (o->table_rows > 0 || o->positions.count)
        return o->positions.count ? o->positions.count : o->table_rows;
    int64_t last = o->position_ids == IDS_RANDOM ? o->max_position : o->tokens - 1;
    int64_t shards = o->desc.shard_size > 1 ? o->desc.shard_size : 1;
    int64_t offset = o->position_offset;
    for (int64_t i = 0; i < o->sequence_offsets.count; i++)
        if (o->position_offset + o->sequence_offsets.values[i] > offset)
            offset = o->position_offset + o->sequence_offsets.values[i];
    return (last + 1) * shards + (offset > 0 ? offset : 0);
}

static bool place_tables(workload *w, const options *o, rope_args *args) {
    if (o->desc.angle_mode != ROPE_ANGLE_TABLE)
        return true;
    angle_rule *rule = pool_alloc(&w->memory, 1, sizeof *rule);
    if (!rule || !angle_rule_take(&w->desc, rule))
        return false;
    int64_t rows = rows_needed(o);
    size_t entry = (size_t)oracle_dtype_size(w->desc.table_dtype ? w->desc.table_dtype : ROPE_F32);
    size_t bytes = (size_t)(rows * angle_table_width(&w->desc)) * entry;
    void *cosine = pool_alloc(&w->memory, bytes, 1);
    void *sine = pool_alloc(&w->memory, bytes, 1);
    if (!cosine || !sine) {
        message("no memory for tables of %lld rows", (long long)rows);
        return false;
    }
    for (int64_t i = 0; i < rows; i++)
        angle_table_row(&w->desc, rule, o->positions.count ? o->positions.values[i] : i, i, cosine,
                        sine);
    w->host.cos = cosine;
    w->host.sin = sine;
    w->host.table_rows = args->table_rows = rows;
    return workload_place(w, cosine, bytes, &args->cos) &&
           workload_place(w, sine, bytes, &args->sin);
}

/* A list of a call holds one entry a sequence. */
static bool check_list(const char *name, int64_t count, int64_t sequences) {
    if (count == 0 || count == sequences)
        return true;
    message("--%s has %lld entries; allowed is one a sequence, %lld", name, (long long)count,
            (long long)sequences);
    return false;
}

static bool check_lists(const options *o) {
    int64_t sequences = o->cu_seqlens.count ? o->cu_seqlens.count - 1 : o->batch;
    return check_list("sequence-offsets", o->sequence_offsets.count, sequences) &&
           check_list("sequence-lengths", o->sequence_lengths.count, sequences);
}

bool placement_create(workload *w, const options *o, rope_args *args) {
    w->host.sequences = args->sequences = o->cu_seqlens.count > 0 ? o->cu_seqlens.count - 1 : 0;
    return check_lists(o) && place_ids(w, o, args) &&
           place_indices(w, o->cu_seqlens.values, o->cu_seqlens.count, &w->host.cu_seqlens,
                         &args->cu_seqlens) &&
           place_indices(w, o->sequence_offsets.values, o->sequence_offsets.count,
                         &w->host.sequence_offsets, &args->sequence_offsets) &&
           place_indices(w, o->sequence_lengths.values, o->sequence_lengths.count,
                         &w->host.sequence_lengths, &args->sequence_lengths) &&
           place_tables(w, o, args);
}
