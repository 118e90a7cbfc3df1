#include "bench/workload/placement.h"

#include "bench/output/message.h"
#include "bench/support/random.h"
#include "bench/workload/angle_table.h"
#include "tests/oracle/oracle.h"

/* One call, over host memory and over the device's. */
typedef struct placement {
    staging *memory;
    const options *o;
    rope_desc *desc;
    rope_args *host, *device;
} placement;

bool placement_indices(staging *memory, int32_t dtype, const char *name, const int64_t *values,
                       int64_t count, const void **host, const void **device) {
    if (count == 0)
        return true;
    bool narrow = dtype == ROPE_I32;
    size_t size = narrow ? sizeof(int32_t) : sizeof(int64_t);
    void *array = staging_host(memory, name, count, size);
    for (int64_t i = 0; array && i < count; i++) {
        if (narrow && values[i] != (int32_t)values[i]) {
            message("%s hold %lld; allowed with i32 is -2^31..2^31 - 1", name,
                    (long long)values[i]);
            return false;
        }
        if (narrow)
            ((int32_t *)array)[i] = (int32_t)values[i];
        else
            ((int64_t *)array)[i] = values[i];
    }
    *host = array;
    return array && staging_copy(memory, array, size * (size_t)count, device);
}

int64_t *placement_pages(staging *memory, int64_t count, int64_t seed) {
    uint64_t state = (uint64_t)seed;
    int64_t *pages = staging_host(memory, "pages", count, sizeof *pages);
    for (int64_t i = 0; pages && i < count; i++)
        pages[i] = i;
    for (int64_t i = count - 1; pages && i > 0; i--) {
        const int64_t other = random_below(&state, i), page = pages[i];
        pages[i] = pages[other];
        pages[other] = page;
    }
    return pages;
}

static bool place_indices(const placement *p, const char *name, const int64_t *values,
                          int64_t count, const void **host, const void **device) {
    return placement_indices(p->memory, p->desc->position_dtype, name, values, count, host, device);
}

static bool place_ids(const placement *p) {
    const options *o = p->o;
    if (o->position_ids <= IDS_NONE)
        return true;
    size_t axes = o->desc.axes ? (size_t)o->desc.axes : 1;
    int64_t count = o->batch * o->tokens;
    int64_t *ids = staging_host(p->memory, "position ids", count, axes * sizeof *ids);
    if (!ids)
        return false;
    count *= (int64_t)axes;
    uint64_t state = ~(uint64_t)o->seed;
    for (int64_t i = 0; i < count; i++)
        ids[i] =
            o->position_ids == IDS_RANDOM ? random_below(&state, o->max_position) : i % o->tokens;
    return place_indices(p, "position ids", ids, count, &p->host->position_ids,
                         &p->device->position_ids);
}

/* Rows that every position of the call finds in a table; false where 64 bits do not count them. */
static bool count_rows(const options *o, int64_t *rows) {
    *rows = o->table_rows;
    if (*rows > 0)
        return true;
    int64_t last = o->position_ids == IDS_RANDOM ? o->max_position : o->tokens - 1;
    int64_t shards = o->desc.shard_size > 1 ? o->desc.shard_size : 1;
    int64_t offset = o->position_offset > 0 ? o->position_offset : 0;
    for (int64_t i = 0; i < o->sequence_offsets.count; i++) {
        int64_t sum;
        if (__builtin_add_overflow(o->position_offset, o->sequence_offsets.values[i], &sum))
            return false;
        offset = sum > offset ? sum : offset;
    }
    return !__builtin_add_overflow(last, 1, rows) && !__builtin_mul_overflow(*rows, shards, rows) &&
           !__builtin_add_overflow(*rows, offset, rows);
}

static bool place_tables(const placement *p) {
    const options *o = p->o;
    int64_t rows;
    if (o->desc.angle_mode != ROPE_ANGLE_TABLE)
        return true;
    if (!count_rows(o, &rows)) {
        message("--position-offset is %lld and its sum with tokens, --sequence-offsets or "
                "--max-position passes 2^63 - 1; allowed is what tables have rows for",
                (long long)o->position_offset);
        return false;
    }
    angle_rule *rule = staging_host(p->memory, "frequencies", 1, sizeof *rule);
    if (!rule || !angle_rule_take(p->desc, rule))
        return false;
    int32_t dtype = p->desc->table_dtype ? p->desc->table_dtype : ROPE_F32;
    size_t row = (size_t)(angle_table_width(p->desc) * oracle_dtype_size(dtype));
    void *cosine = staging_host(p->memory, "tables", rows, row);
    void *sine = cosine ? staging_host(p->memory, "tables", rows, row) : NULL;
    if (!sine)
        return false;
    for (int64_t i = 0; i < rows; i++)
        angle_table_row(p->desc, rule, i, cosine, sine);
    p->host->cos = cosine;
    p->host->sin = sine;
    p->host->table_rows = p->device->table_rows = rows;
    return staging_copy(p->memory, cosine, row * (size_t)rows, &p->device->cos) &&
           staging_copy(p->memory, sine, row * (size_t)rows, &p->device->sin);
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

bool placement_create(staging *s, const options *o, rope_desc *desc, rope_args *host,
                      rope_args *device) {
    placement p = {s, o, desc, host, device};
    host->sequences = device->sequences = o->cu_seqlens.count > 0 ? o->cu_seqlens.count - 1 : 0;
    return check_lists(o) && place_ids(&p) &&
           place_indices(&p, "cu_seqlens", o->cu_seqlens.values, o->cu_seqlens.count,
                         &host->cu_seqlens, &device->cu_seqlens) &&
           place_indices(&p, "sequence_offsets", o->sequence_offsets.values,
                         o->sequence_offsets.count, &host->sequence_offsets,
                         &device->sequence_offsets) &&
           place_indices(&p, "sequence_lengths", o->sequence_lengths.values,
                         o->sequence_lengths.count, &host->sequence_lengths,
                         &device->sequence_lengths) &&
           place_tables(&p);
}
