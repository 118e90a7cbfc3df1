#include "common/ops/rope_call.h"

#include "common/abi.h"
#include "common/ops/lists.h"
#include "common/ops/positions.h"
#include "common/ops/tensor.h"
#include "common/status.h"

static const char *const tensor_names[2] = {"q", "k"};

static rope_status read_tensor(const rope_problem *problem, const rope_args *args, int which,
                               rope_operand *operand, rope_tensor_spans *spans) {
    const int32_t element = rope_dtype_size(problem->dtype);
    const rope_tensor_form form = {tensor_names[which], problem->head_dim[which], element, element,
                                   0};
    return rope_tensor_read(args, which ? &args->k : &args->q, &form, operand, spans);
}

static rope_status check_cross(const rope_tensor_spans spans[2]) {
    if (!rope_span_disjoint(&spans[0].out, &spans[1].out))
        return rope_fail(
            ROPE_ERROR_OVERLAP,
            "q.out is %#llx and k.out is %#llx: they overlap; allowed is disjoint views",
            (unsigned long long)spans[0].out.low, (unsigned long long)spans[1].out.low);
    for (int i = 0; i < 2; i++)
        if (!spans[1 - i].in_place && !rope_span_disjoint(&spans[i].out, &spans[1 - i].in))
            return rope_fail(
                ROPE_ERROR_OVERLAP,
                "%s.out is %#llx and %s.in is %#llx: they overlap; allowed is disjoint "
                "views",
                tensor_names[i], (unsigned long long)spans[i].out.low, tensor_names[1 - i],
                (unsigned long long)spans[1 - i].in.low);
    return ROPE_OK;
}

static int has_lists(const rope_problem *problem, const rope_call *call) {
    const rope_position_map *map = &call->position;
    return map->ids || map->offsets || map->cu_seqlens || map->lengths || call->position_flag ||
           problem->angle_mode == ROPE_ANGLE_TABLE;
}

/* Apart, so that a call without lists has no room for them on its stack. */
__attribute__((noinline)) static rope_status
check_lists(const rope_problem *problem, const rope_call *call, const rope_tensor_spans spans[2]) {
    static const char *const out_names[2] = {"q.out", "k.out"};
    rope_regions written;
    written.count = 0;
    for (int i = 0; i < 2; i++)
        if (call->tensor[i].heads)
            rope_regions_add(&written, out_names[i], 1, &spans[i].out);
    return rope_call_lists_check(&written, problem, call);
}

static rope_status read_all(const rope_problem *problem, const rope_args *args, rope_call *call,
                            int *empty) {
    rope_tensor_spans spans[2];
    rope_status status = rope_extent_check(args);
    if (status == ROPE_OK)
        status = read_tensor(problem, args, 0, &call->tensor[0], &spans[0]);
    if (status == ROPE_OK)
        status = read_tensor(problem, args, 1, &call->tensor[1], &spans[1]);
    if (status != ROPE_OK)
        return status;
    *empty = call->tensor[0].heads == 0 && call->tensor[1].heads == 0;
    if (call->tensor[0].heads && call->tensor[1].heads)
        status = check_cross(spans);
    if (status == ROPE_OK)
        status = rope_positions_read(problem, args, *empty, call);
    return status == ROPE_OK && !*empty && has_lists(problem, call)
               ? check_lists(problem, call, spans)
               : status;
}

rope_status rope_call_read(const void *problem, const void *given, void *call, void **stream,
                           int *empty) {
    const rope_args *args = given;
    rope_args full;
    if (!args || args->struct_size != sizeof *args) {
        rope_status status = rope_abi_read(&full, sizeof full, given, "rope_args");
        if (status != ROPE_OK)
            return status;
        args = &full;
    }
    *stream = args->stream;
    return read_all(problem, args, call, empty);
}
