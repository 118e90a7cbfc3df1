#include "common/ops/positions.h"

#include "common/ops/tensor.h"
#include "common/status.h"

#include <string.h>

rope_status rope_index_check(const char *field, const void *pointer, int32_t alignment) {
    return pointer ? rope_pointer_check("", field, pointer, alignment) : ROPE_OK;
}

static rope_status check_packed(const rope_args *args) {
    if (!args->cu_seqlens && args->sequences != 0)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "sequences is %lld; allowed is 0 while cu_seqlens is NULL",
                         (long long)args->sequences);
    if (args->cu_seqlens && args->batch > 1)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "batch is %lld; allowed is 0 or 1 with cu_seqlens",
                         (long long)args->batch);
    if (args->sequences < 0 || args->sequences >> 59)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "sequences is %lld; allowed is 0..2^59 - 1",
                         (long long)args->sequences);
    return ROPE_OK;
}

static rope_status check_schemes(const rope_problem *problem, const rope_args *args) {
    if (args->position_ids && problem->shard != ROPE_SHARD_NONE)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "position_ids is given; allowed is NULL where the descriptor has a shard");
    if (problem->shard == ROPE_SHARD_ZIGZAG && !args->cu_seqlens && args->tokens % 2)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "tokens is %lld; allowed is an even number for two zigzag chunks",
                         (long long)args->tokens);
    if (problem->frequency_sets == 2 && args->position_ids && !args->sequence_lengths)
        return rope_fail(ROPE_ERROR_NULL_POINTER,
                         "sequence_lengths is NULL; allowed with position_ids and longrope per "
                         "sequence is a list of lengths");
    return ROPE_OK;
}

/* What the plan and the other fields leave unread. */
static rope_status check_unread(const rope_problem *problem, const rope_args *args) {
    const int64_t *ids = args->position_stride, *table = args->table_stride;
    if (!args->position_ids && !rope_all_zero(ids, 3))
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "position_stride is [%lld, %lld, %lld]; allowed is 0 while position_ids "
                         "is NULL",
                         (long long)ids[0], (long long)ids[1], (long long)ids[2]);
    if (args->sequence_lengths && problem->frequency_sets < 2)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "sequence_lengths is given; allowed is NULL unless rope_type is longrope "
                         "and longrope_select per sequence");
    if (problem->angle_mode == ROPE_ANGLE_TABLE)
        return ROPE_OK;
    if (args->cos || args->sin)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "cos is %p and sin is %p; allowed is NULL unless angle_mode is table",
                         args->cos, args->sin);
    if (args->table_rows != 0 || !rope_all_zero(table, 3))
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "table_rows is %lld and table_stride is [%lld, %lld, %lld]; allowed is 0 "
                         "unless angle_mode is table",
                         (long long)args->table_rows, (long long)table[0], (long long)table[1],
                         (long long)table[2]);
    return ROPE_OK;
}

/* Ids that the strides reach, and positions of the whole sequence that a shard is part of. */
static rope_status check_reach(const rope_problem *problem, const rope_args *args,
                               const rope_position_map *map) {
    const int64_t *stride = map->id_stride;
    int64_t whole;
    if (__builtin_mul_overflow(args->tokens, (int64_t)problem->shard_size, &whole))
        return rope_fail(ROPE_ERROR_OVERFLOW,
                         "tokens %lld * shard_size %d overflows; allowed is below 2^63",
                         (long long)args->tokens, problem->shard_size);
    if (!map->ids || args->batch == 0 || args->tokens == 0)
        return ROPE_OK;
    if (rope_all_zero(args->position_stride, 3) && (args->batch * args->tokens) >> 58 == 0)
        return ROPE_OK;
    int64_t count[4] = {problem->axes, args->batch, args->tokens, 1};
    int64_t reach[4] = {stride[0], stride[1], stride[2], 0};
    rope_span span = {.dims = 4, .count = count, .stride = reach, .element = map->wide ? 8 : 4};
    if (!rope_span_place(&span, map->ids))
        return rope_fail(ROPE_ERROR_OVERFLOW,
                         "position_stride is [%lld, %lld, %lld]; allowed is what stays within "
                         "64-bit addresses with axes %d, batch %lld, tokens %lld",
                         (long long)stride[0], (long long)stride[1], (long long)stride[2],
                         problem->axes, (long long)args->batch, (long long)args->tokens);
    return ROPE_OK;
}

static rope_status read_positions(const rope_problem *problem, const rope_args *args,
                                  rope_position_map *map) {
    int32_t width = rope_dtype_size(problem->position_dtype);
    rope_status status = check_packed(args);
    if (status == ROPE_OK)
        status = check_schemes(problem, args);
    if (status == ROPE_OK)
        status = rope_index_check("position_ids", args->position_ids, width);
    if (status == ROPE_OK)
        status = rope_index_check("sequence_offsets", args->sequence_offsets, width);
    if (status == ROPE_OK)
        status = rope_index_check("cu_seqlens", args->cu_seqlens, width);
    if (status == ROPE_OK)
        status = rope_index_check("sequence_lengths", args->sequence_lengths, width);
    if (status == ROPE_OK)
        status = rope_index_check("position_flag", args->position_flag, 4);
    if (status != ROPE_OK)
        return status;
    const int is_listed = !args->cu_seqlens || args->sequences > 0; /* else lists have no entry */
    map->ids = args->position_ids;
    map->offset = args->position_offset;
    map->offsets = is_listed ? args->sequence_offsets : NULL;
    map->cu_seqlens = args->cu_seqlens;
    map->lengths = is_listed ? args->sequence_lengths : NULL;
    map->sequences = args->sequences;
    map->tokens = args->tokens;
    map->wide = problem->position_dtype == ROPE_I64;
    map->shard = problem->shard;
    map->shard_rank = problem->shard_rank;
    map->shard_size = problem->shard_size;
    const int64_t *given = args->position_stride;
    const int zero = rope_all_zero(given, 3);
    map->id_stride[0] = zero ? args->batch * args->tokens : given[0];
    map->id_stride[1] = zero ? args->tokens : given[1];
    map->id_stride[2] = zero ? 1 : given[2];
    return check_reach(problem, args, map);
}

static rope_status read_table(const rope_problem *problem, const rope_args *args, rope_call *call) {
    int32_t element = rope_dtype_size(problem->table_dtype);
    rope_status status = rope_pointer_check("", "cos", args->cos, element);
    if (status == ROPE_OK)
        status = rope_pointer_check("", "sin", args->sin, element);
    if (status != ROPE_OK)
        return status;
    if (args->table_rows < 0)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "table_rows is %lld; allowed is >= 0",
                         (long long)args->table_rows);
    int64_t width = problem->table_width == ROPE_TABLE_FULL ? 2 * (int64_t)problem->pairs
                                                            : (int64_t)problem->pairs;
    int64_t contiguous[3] = {0, width, 1};
    const int64_t *stride = rope_all_zero(args->table_stride, 3) ? contiguous : args->table_stride;
    int64_t count[4] = {args->batch, args->table_rows ? args->table_rows : 1, 1, width};
    int64_t reach[4] = {stride[0], stride[1], 0, stride[2]};
    rope_span span = {.dims = 4, .count = count, .stride = reach, .element = element};
    if (args->batch > 0 &&
        (!rope_span_place(&span, args->cos) || !rope_span_place(&span, args->sin)))
        return rope_fail(
            ROPE_ERROR_OVERFLOW,
            "table_stride is [%lld, %lld, %lld]; allowed is what stays within 64-bit addresses "
            "with table_rows %lld",
            (long long)stride[0], (long long)stride[1], (long long)stride[2],
            (long long)args->table_rows);
    call->cos = args->cos;
    call->sin = args->sin;
    call->table_rows = args->table_rows;
    memcpy(call->table_stride, stride, sizeof call->table_stride);
    return ROPE_OK;
}

rope_status rope_extent_check(const rope_args *args) {
    if (args->batch < 0 || args->tokens < 0)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "batch is %lld and tokens is %lld; allowed is >= 0",
                         (long long)args->batch, (long long)args->tokens);
    return ROPE_OK;
}

rope_status rope_positions_read(const rope_problem *problem, const rope_args *args, int empty,
                                rope_call *call) {
    rope_status status = check_unread(problem, args);
    if (status == ROPE_OK)
        status = read_positions(problem, args, &call->position);
    if (status == ROPE_OK && !empty && problem->angle_mode == ROPE_ANGLE_TABLE)
        status = read_table(problem, args, call);
    call->batch = args->batch;
    call->tokens = args->tokens;
    call->position_flag = args->position_flag;
    return status;
}
