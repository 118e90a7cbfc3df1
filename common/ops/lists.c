#include "common/ops/lists.h"

#include "common/ops/tensor.h"
#include "common/status.h"

rope_status rope_view_check(const rope_regions *written, const char *name, const void *data,
                            int dims, const int64_t *count, const int64_t *stride,
                            int64_t element) {
    rope_span span = {.dims = dims, .count = count, .stride = stride, .element = element};
    if (!data)
        return ROPE_OK;
    for (int d = 0; d < dims; d++)
        if (count[d] == 0)
            return ROPE_OK;
    if (!rope_span_place(&span, data))
        return rope_fail(ROPE_ERROR_OVERFLOW,
                         "%s is %p; allowed is what stays within 64-bit addresses with the call's "
                         "sizes",
                         name, data);
    for (int i = 0; i < written->count; i++)
        if (written->at[i].written && !rope_span_disjoint(written->at[i].span, &span))
            return rope_fail(ROPE_ERROR_OVERLAP,
                             "%s is %p and %s is %#llx: they overlap; allowed is disjoint memory",
                             name, data, written->at[i].name,
                             (unsigned long long)written->at[i].span->low);
    return ROPE_OK;
}

rope_status rope_list_check(const rope_regions *written, const char *name, const void *data,
                            int64_t count, int64_t element) {
    static const int64_t side_by_side = 1;
    return rope_view_check(written, name, data, 1, &count, &side_by_side, element);
}

static rope_status check_tables(const rope_regions *written, const rope_problem *problem,
                                const rope_call *call) {
    const int64_t width =
                      (int64_t)problem->pairs * (problem->table_width == ROPE_TABLE_FULL ? 2 : 1),
                  element = rope_dtype_size(problem->table_dtype),
                  count[3] = {call->batch, call->table_rows, width};
    const rope_status status =
        rope_view_check(written, "cos", call->cos, 3, count, call->table_stride, element);
    return status == ROPE_OK
               ? rope_view_check(written, "sin", call->sin, 3, count, call->table_stride, element)
               : status;
}

rope_status rope_call_lists_check(const rope_regions *written, const rope_problem *problem,
                                  const rope_call *call) {
    const rope_position_map *map = &call->position;
    const int64_t width = map->wide ? 8 : 4,
                  sequences = map->cu_seqlens ? map->sequences : call->batch,
                  count[3] = {problem->axes, call->batch, call->tokens};
    rope_status status =
        rope_view_check(written, "position_ids", map->ids, 3, count, map->id_stride, width);
    if (status == ROPE_OK)
        status = rope_list_check(written, "sequence_offsets", map->offsets, sequences, width);
    if (status == ROPE_OK)
        status = rope_list_check(written, "cu_seqlens", map->cu_seqlens, sequences + 1, width);
    if (status == ROPE_OK)
        status = rope_list_check(written, "sequence_lengths", map->lengths, sequences, width);
    if (status == ROPE_OK)
        status = rope_list_check(written, "position_flag", call->position_flag, 1, 4);
    return status == ROPE_OK && problem->angle_mode == ROPE_ANGLE_TABLE
               ? check_tables(written, problem, call)
               : status;
}
