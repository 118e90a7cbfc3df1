#include "backends/cpu/rope/kernel.h"
#include "common/status.h"

static rope_status fail_sequence(const rope_position_map *map, int64_t s) {
    return rope_fail(ROPE_ERROR_INVALID_VALUE,
                     "cu_seqlens[%lld] is %lld and cu_seqlens[%lld] is %lld; allowed is multiples "
                     "of shard_size (%d)%s",
                     (long long)s, (long long)rope_index_at(map, map->cu_seqlens, s),
                     (long long)s + 1, (long long)rope_index_at(map, map->cu_seqlens, s + 1),
                     map->shard_size,
                     map->shard == ROPE_SHARD_ZIGZAG ? ", an even number of them apart" : "");
}

static rope_status check_boundaries(const rope_position_map *map) {
    for (int64_t s = 0; s < map->sequences; s++) {
        int64_t begin = rope_index_at(map, map->cu_seqlens, s);
        int64_t end = rope_index_at(map, map->cu_seqlens, s + 1);
        if (end < begin)
            return rope_fail(ROPE_ERROR_INVALID_VALUE,
                             "cu_seqlens[%lld] is %lld and cu_seqlens[%lld] is %lld; allowed is "
                             "boundaries that do not fall",
                             (long long)s, (long long)begin, (long long)s + 1, (long long)end);
    }
    return ROPE_OK;
}

static rope_status fail_position(const rope_problem *problem, const rope_call *call, int64_t batch,
                                 int64_t index) {
    rope_site site = rope_site_of(&call->position, batch, index);
    int64_t position = 0;
    if (!site.divides)
        return fail_sequence(&call->position, site.sequence);
    if (call->table_rows == 0)
        return rope_fail(ROPE_ERROR_POSITION_RANGE,
                         "table_rows is 0; allowed is > 0 where out_of_range is error and a token "
                         "takes a row");
    for (int axis = 0; axis < problem->axes; axis++) {
        position = rope_position_of(&call->position, &site, axis);
        if (position < 0 || position >= call->table_rows)
            break;
    }
    return rope_fail(ROPE_ERROR_POSITION_RANGE,
                     "the position of batch %lld, token %lld is %lld; allowed is 0..%lld "
                     "(table_rows - 1)",
                     (long long)batch, (long long)index, (long long)position,
                     (long long)call->table_rows - 1);
}

rope_status cpu_check_positions(const rope_problem *problem, const rope_call *call) {
    int in_table =
        problem->angle_mode == ROPE_ANGLE_TABLE && problem->out_of_range == ROPE_OUT_OF_RANGE_ERROR;
    rope_status status = call->position.cu_seqlens ? check_boundaries(&call->position) : ROPE_OK;
    if (status != ROPE_OK)
        return status;
    if (!in_table && (problem->shard == ROPE_SHARD_NONE || !call->position.cu_seqlens))
        return ROPE_OK;
    for (int64_t b = 0; b < call->batch; b++)
        for (int64_t t = 0; t < call->tokens; t++)
            if (rope_token_of(problem, call, b, t).status == ROPE_TOKEN_FAILS)
                return fail_position(problem, call, b, t);
    return ROPE_OK;
}
