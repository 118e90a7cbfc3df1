#include "common/ops/attention_call.h"

#include "common/abi.h"
#include "common/math/attention.h"
#include "common/ops/attention_norms.h"
#include "common/ops/cache.h"
#include "common/ops/lists.h"
#include "common/ops/positions.h"
#include "common/status.h"

#include <string.h>

/* --- what nothing reads --- */

/* Without a rotation positions serve nothing but a tree's window. */
static rope_status check_rotation_unread(const rope_attention_problem *problem,
                                         const rope_attention_args *args) {
    const rope_args *rope = &args->rope;
    if (problem->rotates[0])
        return ROPE_OK;
    if (rope->q.out)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "q.out is %p; allowed is NULL where queries do not rotate", rope->q.out);
    const int ids = rope->position_ids && !rope_mask_counts(problem);
    if (ids || rope->sequence_offsets || rope->position_offset)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "position_ids is %p, sequence_offsets is %p and position_offset is %lld; "
                         "allowed is NULL and 0 where rotation is ROPE_ATTENTION_ROTATE_NONE",
                         rope->position_ids, rope->sequence_offsets,
                         (long long)rope->position_offset);
    return ROPE_OK;
}

/* --- what is written --- */

static rope_status place(const char *name, const void *data, int written, rope_region *region) {
    const int64_t *stride = region->span.stride;
    region->name = name;
    region->written = written;
    rope_status status = rope_pointer_check("", name, data, (int32_t)region->span.element);
    if (status != ROPE_OK)
        return status;
    if (!rope_span_place(&region->span, data))
        return rope_fail(
            ROPE_ERROR_OVERFLOW,
            "the stride of %s is [%lld, %lld, %lld, ...]; allowed is what stays within "
            "64-bit addresses",
            name, (long long)stride[0], (long long)stride[1], (long long)stride[2]);
    if (written && rope_span_aliases(&region->span))
        return rope_fail(
            ROPE_ERROR_OVERLAP,
            "the stride of %s is [%lld, %lld, %lld, ...] and may give two elements one "
            "address; allowed is strides that clear the dimensions below them",
            name, (long long)stride[0], (long long)stride[1], (long long)stride[2]);
    return ROPE_OK;
}

rope_status rope_attention_view_read(const rope_attention_view *view, const int64_t *count,
                                     int64_t *stride, rope_region *region) {
    const int zero = rope_all_zero(view->stride, view->dims);
    int64_t contiguous = 1;
    for (int d = view->dims - 1; d >= 0; d--) {
        stride[d] = zero ? contiguous : view->stride[d];
        contiguous *= count[d];
        region->count[d] = count[d];
    }
    region->span = (rope_span){view->dims, region->count, stride, view->element, 0, 0};
    return place(view->name, view->data, view->written, region);
}

static rope_status read_out(const rope_attention_problem *problem, const rope_attention_args *args,
                            rope_attention_call *call, rope_region *region) {
    const rope_attention_view view = {
        "out.data", args->out.data, args->out.stride, rope_dtype_size(problem->rope.dtype), 4, 1};
    const int64_t count[4] = {args->rope.batch, args->rope.tokens, args->rope.q.heads,
                              problem->v_head_dim};
    int64_t elements;
    rope_status status =
        rope_sizes_check(&args->rope, args->rope.q.heads, problem->v_head_dim, "out", &elements);
    call->out = args->out.data;
    return status == ROPE_OK ? rope_attention_view_read(&view, count, call->out_stride, region)
                             : status;
}

static rope_status read_lse(const rope_attention_args *args, rope_attention_call *call,
                            rope_region *region) {
    const rope_attention_view view = {"lse", args->lse, args->lse_stride, 4, 3, 1};
    const int64_t count[3] = {args->rope.batch, args->rope.tokens, args->rope.q.heads};
    region->name = NULL;
    if (!args->lse && !rope_all_zero(args->lse_stride, 3))
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "lse_stride is [%lld, %lld, %lld]; allowed is 0 while lse is NULL",
                         (long long)args->lse_stride[0], (long long)args->lse_stride[1],
                         (long long)args->lse_stride[2]);
    call->lse = args->lse;
    return args->lse ? rope_attention_view_read(&view, count, call->lse_stride, region) : ROPE_OK;
}

/* --- masks --- */

static rope_status read_sinks(const rope_attention_problem *problem,
                              const rope_attention_args *args, rope_attention_call *call) {
    call->sinks = args->sinks;
    if (problem->sink_dtype)
        return rope_pointer_check("", "sinks", args->sinks, rope_dtype_size(problem->sink_dtype));
    if (args->sinks)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "sinks is %p; allowed is NULL where sink_dtype is 0", args->sinks);
    return ROPE_OK;
}

static rope_status read_tree(const rope_attention_problem *problem, const rope_attention_args *args,
                             rope_attention_call *call) {
    const int tree = problem->mask == ROPE_MASK_TREE;
    if (!tree && (args->tree_bits || args->tree_keys || !rope_all_zero(args->tree_stride, 2)))
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "tree_bits is %p, tree_keys is %lld and tree_stride is [%lld, %lld]; "
                         "allowed is NULL and 0 unless mask is ROPE_MASK_TREE",
                         args->tree_bits, (long long)args->tree_keys,
                         (long long)args->tree_stride[0], (long long)args->tree_stride[1]);
    if (!tree)
        return ROPE_OK;
    if (args->tree_keys < 1)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "tree_keys is %lld; allowed is > 0 where mask is ROPE_MASK_TREE",
                         (long long)args->tree_keys);
    const int64_t words = (args->tree_keys - 1) / 32 + 1, tokens = args->rope.tokens;
    const int zero = rope_all_zero(args->tree_stride, 2);
    const int64_t count[3] = {args->rope.batch, tokens, words};
    int64_t stride[3] = {args->tree_stride[0], args->tree_stride[1], 1}, row;
    if (zero && __builtin_mul_overflow(tokens, words, &row))
        return rope_fail(ROPE_ERROR_OVERFLOW,
                         "tree_keys is %lld; allowed is what stays within 64-bit addresses with "
                         "tokens %lld",
                         (long long)args->tree_keys, (long long)tokens);
    if (zero)
        stride[0] = row, stride[1] = words;
    rope_status status = rope_pointer_check("", "tree_bits", args->tree_bits, 4);
    rope_span span = {.dims = 3, .count = count, .stride = stride, .element = 4};
    if (status == ROPE_OK && !rope_span_place(&span, args->tree_bits))
        return rope_fail(ROPE_ERROR_OVERFLOW,
                         "tree_stride is [%lld, %lld] and tree_keys is %lld; allowed is what stays "
                         "within 64-bit addresses",
                         (long long)stride[0], (long long)stride[1], (long long)args->tree_keys);
    call->tree_bits = args->tree_bits;
    call->tree_keys = args->tree_keys;
    call->tree_stride[0] = stride[0];
    call->tree_stride[1] = stride[1];
    return status;
}

/* --- a call --- */

static rope_status read_queries(const rope_attention_problem *problem,
                                const rope_attention_args *args, int without,
                                rope_attention_call *call, rope_attention_regions *regions,
                                int *empty) {
    const int32_t element = rope_dtype_size(problem->rope.dtype);
    const rope_tensor_form form = {"q", problem->head_dim, element, element, 1};
    rope_status status = rope_extent_check(&args->rope);
    if (status == ROPE_OK)
        status = check_rotation_unread(problem, args);
    if (status == ROPE_OK)
        status =
            rope_tensor_read(&args->rope, &args->rope.q, &form, &call->rope.tensor[0], &regions->q);
    *empty = call->rope.tensor[0].heads == 0;
    return status == ROPE_OK
               ? rope_positions_read(&problem->rope, &args->rope, *empty && !without, &call->rope)
               : status;
}

/* A call of keys alone, with as many heads of queries as serve kernels. */
static void leave_queries_out(const rope_attention_args *args, rope_attention_call *call,
                              rope_attention_regions *regions) {
    call->rope.tensor[0].heads = args->rope.q.heads ? args->rope.q.heads : call->k.heads;
    call->rope.tokens = call->rope.position.tokens = 0;
    call->q_lengths = NULL;
    regions->q.in_place = 1;
    regions->out.name = regions->lse.name = NULL;
}

static rope_status read_results(const rope_attention_problem *problem,
                                const rope_attention_args *args, rope_attention_call *call,
                                rope_attention_regions *regions) {
    rope_status status = read_out(problem, args, call, &regions->out);
    if (status == ROPE_OK)
        status = read_lse(args, call, &regions->lse);
    return status == ROPE_OK ? read_tree(problem, args, call) : status;
}

void rope_attention_regions_add(const rope_attention_call *call,
                                const rope_attention_regions *regions, rope_regions *list) {
    rope_regions_add_region(list, &regions->out);
    rope_regions_add_region(list, &regions->lse);
    if (call->rope.tensor[0].out)
        rope_regions_add(list, "q.out", 1, &regions->q.out);
    if (!regions->q.in_place)
        rope_regions_add(list, "q.in", 0, &regions->q.in);
    rope_attention_keys_regions(call, &regions->keys, list);
}

rope_status rope_attention_parts_read(const rope_attention_problem *problem,
                                      const rope_attention_args *args, int without,
                                      rope_attention_call *call, rope_attention_regions *regions,
                                      int *empty) {
    memset(call, 0, sizeof *call);
    rope_status status = read_queries(problem, args, without, call, regions, empty);
    if (status != ROPE_OK || (*empty && !without))
        return status;
    status = rope_attention_keys_read(problem, args, call, &regions->keys);
    if (status == ROPE_OK && *empty)
        leave_queries_out(args, call, regions);
    else if (status == ROPE_OK)
        status = read_results(problem, args, call, regions);
    if (status == ROPE_OK && args->rope.q.heads)
        status = read_sinks(problem, args, call);
    call->workspace_bytes = args->workspace_bytes;
    return status;
}

/* --- lists that are read --- */

static rope_status check_mask_lists(const rope_regions *written,
                                    const rope_attention_problem *problem,
                                    const rope_attention_call *call) {
    const int64_t words = call->tree_keys ? (call->tree_keys - 1) / 32 + 1 : 0,
                  count[3] = {call->rope.batch, call->rope.tokens, words},
                  stride[3] = {call->tree_stride[0], call->tree_stride[1], 1};
    const rope_status status =
        rope_list_check(written, "sinks", call->sinks, call->rope.tensor[0].heads,
                        rope_dtype_size(problem->sink_dtype));
    return status == ROPE_OK
               ? rope_view_check(written, "tree_bits", call->tree_bits, 3, count, stride, 4)
               : status;
}

static rope_status check_key_lists(const rope_regions *written,
                                   const rope_attention_problem *problem,
                                   const rope_attention_call *call) {
    const rope_position_map *map = &call->k_position;
    const int64_t sequences = rope_attention_sequences(call), width = map->wide ? 8 : 4,
                  ids[3] = {problem->rope.axes, problem->cache ? sequences : call->rope.batch,
                            call->k_tokens},
                  table[2] = {sequences, call->table_pages};
    rope_status status = rope_list_check(written, "q_lengths", call->q_lengths, sequences, width);
    if (status == ROPE_OK)
        status = rope_list_check(written, "k_lengths", call->k_lengths, sequences, width);
    if (status == ROPE_OK)
        status = rope_list_check(written, "k_cu_seqlens", map->cu_seqlens, sequences + 1, width);
    if (status == ROPE_OK)
        status =
            rope_view_check(written, "k_position_ids", map->ids, 3, ids, map->id_stride, width);
    return status == ROPE_OK ? rope_view_check(written, "block_table", call->block_table, 2, table,
                                               call->table_stride, problem->table_wide ? 8 : 4)
                             : status;
}

rope_status rope_attention_lists_check(const rope_regions *written,
                                       const rope_attention_problem *problem,
                                       const rope_attention_call *call) {
    rope_status status = rope_call_lists_check(written, &problem->rope, &call->rope);
    if (status == ROPE_OK)
        status = check_mask_lists(written, problem, call);
    return status == ROPE_OK ? check_key_lists(written, problem, call) : status;
}

static rope_status read_all(const rope_attention_own *own, const rope_attention_args *args,
                            rope_attention_own_call *made, int *empty) {
    const rope_attention_problem *problem = &own->problem;
    rope_attention_call *call = &made->call;
    rope_attention_regions regions;
    rope_append_weights weights[ROPE_NORMED];
    rope_regions list;
    rope_span workspace;
    const int keys = args->rope.k.out && args->rope.batch > 0 && args->k_tokens > 0;
    list.count = 0;
    rope_status status = rope_attention_weights_unread(own, args);
    if (status == ROPE_OK)
        status = rope_attention_parts_read(problem, args, keys, call, &regions, empty);
    *empty = *empty && !keys;
    if (status == ROPE_OK && !*empty)
        status = rope_attention_norms_read(
            own, args, call, made->norm, (rope_append_weights *const[]){&weights[0], &weights[1]});
    if (status != ROPE_OK || *empty)
        return status;
    rope_attention_regions_add(call, &regions, &list);
    for (int t = 0; t < ROPE_NORMED; t++)
        rope_regions_add_region(&list, &weights[t].region);
    status = rope_regions_add_workspace(&list, args->workspace, args->workspace_bytes, &workspace);
    if (status == ROPE_OK)
        status = rope_regions_check(&list);
    return status == ROPE_OK ? rope_attention_lists_check(&list, problem, call) : status;
}

const rope_attention_args *rope_attention_args_read(const void *given, rope_attention_args *full,
                                                    rope_status *status) {
    const rope_attention_args *args = given;
    *status = ROPE_OK;
    if (args && args->struct_size == sizeof *args && args->rope.struct_size == sizeof args->rope)
        return args;
    *status = rope_abi_read_embedding(full, sizeof *full, sizeof full->rope, given,
                                      "rope_attention_args", "rope_args");
    return *status == ROPE_OK ? full : NULL;
}

rope_status rope_attention_call_read(const void *problem, const void *given, void *call,
                                     void **stream, int *empty) {
    rope_attention_args full;
    rope_status status;
    const rope_attention_args *args = rope_attention_args_read(given, &full, &status);
    if (!args)
        return status;
    *stream = args->rope.stream;
    return read_all(problem, args, call, empty);
}
