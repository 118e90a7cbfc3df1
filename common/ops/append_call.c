#include "common/ops/append_call.h"

#include "common/abi.h"
#include "common/ops/append_cache.h"
#include "common/ops/lists.h"
#include "common/ops/positions.h"
#include "common/ops/tensor.h"
#include "common/status.h"

#include <string.h>

static const char *const names[] = {"q", "k", "v"};
static const char *const in_names[] = {"q.in", "k.in", "v.in"};
static const char *const out_names[] = {"q.out", "k.out", "v.out"};
static const char *const weight_names[] = {"q_weight", "k_weight", "v_weight"};

const rope_tensor *rope_append_tensor_of(const rope_append_args *args, int which) {
    return which == ROPE_APPEND_Q   ? &args->rope.q
           : which == ROPE_APPEND_K ? &args->rope.k
                                    : &args->v;
}

static const rope_norm_weight *weight_of(const rope_append_args *args, int which) {
    return which == ROPE_APPEND_Q   ? &args->q_weight
           : which == ROPE_APPEND_K ? &args->k_weight
                                    : &args->v_weight;
}

/* --- what nothing reads --- */

static rope_status check_tensor_unread(const rope_append_problem *problem,
                                       const rope_append_args *args, int which) {
    const rope_tensor *t = rope_append_tensor_of(args, which);
    const int64_t *s = t->out_stride;
    if (problem->k_source == ROPE_SOURCE_CACHE) {
        if (which != ROPE_APPEND_K && t->heads)
            return rope_fail(ROPE_ERROR_INVALID_VALUE,
                             "%s.heads is %lld; allowed is 0 where k_source is ROPE_SOURCE_CACHE",
                             names[which], (long long)t->heads);
        if (which == ROPE_APPEND_K &&
            (t->in || t->out || !rope_all_zero(t->in_stride, 4) || !rope_all_zero(s, 4)))
            return rope_fail(ROPE_ERROR_INVALID_VALUE,
                             "k.in is %p, k.out is %p and their strides begin with %lld and %lld; "
                             "allowed is NULL and 0 where k_source is ROPE_SOURCE_CACHE",
                             t->in, t->out, (long long)t->in_stride[0], (long long)s[0]);
        return ROPE_OK;
    }
    if (which != ROPE_APPEND_Q && t->heads && !t->out && !rope_all_zero(s, 4))
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "%s.out_stride is [%lld, %lld, %lld, %lld]; allowed is 0 while %s.out is "
                         "NULL",
                         names[which], (long long)s[0], (long long)s[1], (long long)s[2],
                         (long long)s[3], names[which]);
    return ROPE_OK;
}

rope_status rope_norm_weight_unread(const rope_append_steps *steps, const rope_norm_weight *w,
                                    int which) {
    if (steps->weight == 0 && (w->data || w->head_stride))
        return rope_fail(
            ROPE_ERROR_INVALID_VALUE,
            "%s.data is %p and %s.head_stride is %lld; allowed is NULL and 0 where the "
            "descriptor has no weight",
            weight_names[which], w->data, weight_names[which], (long long)w->head_stride);
    return ROPE_OK;
}

/* Without a rotation positions serve the cache alone. */
static rope_status check_positions_unread(const rope_append_problem *problem,
                                          const rope_append_args *args) {
    const rope_args *rope = &args->rope;
    const int cached = args->k_cache.data || args->v_cache.data,
              by_index = cached && problem->cache != ROPE_CACHE_SLOTS && !args->cache_starts;
    if (problem->rope.pairs)
        return ROPE_OK;
    if (rope->position_ids)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "position_ids is %p; allowed is NULL where rotation is ROPE_ROTATION_OFF",
                         rope->position_ids);
    if (!by_index && (rope->position_offset || rope->sequence_offsets))
        return rope_fail(
            ROPE_ERROR_INVALID_VALUE,
            "position_offset is %lld and sequence_offsets is %p; allowed is 0 and NULL "
            "where neither a rotation nor the cache takes its index from them",
            (long long)rope->position_offset, rope->sequence_offsets);
    return ROPE_OK;
}

rope_status rope_append_unread_check(const rope_append_problem *problem,
                                     const rope_append_args *args) {
    rope_status status = ROPE_OK;
    for (int t = 0; t < ROPE_APPEND_TENSORS && status == ROPE_OK; t++) {
        status = check_tensor_unread(problem, args, t);
        if (status == ROPE_OK)
            status = rope_norm_weight_unread(&problem->steps[t], weight_of(args, t), t);
    }
    if (status == ROPE_OK)
        status = rope_append_cache_unread(problem, args);
    if (status == ROPE_OK)
        status = rope_append_mapping_check(problem, args);
    return status == ROPE_OK ? check_positions_unread(problem, args) : status;
}

/* --- tensors --- */

static rope_status read_heads_alone(const rope_append_problem *problem,
                                    const rope_append_args *args, rope_append_operand *o) {
    const rope_args *rope = &args->rope;
    int64_t elements;
    if (rope->k.heads < 0)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "k.heads is %lld; allowed is >= 0",
                         (long long)rope->k.heads);
    o->heads = rope->batch && rope->tokens ? rope->k.heads : 0;
    return rope_sizes_check(rope, rope->k.heads, problem->steps[ROPE_APPEND_K].head_dim, "k",
                            &elements);
}

static rope_status read_views(const rope_append_problem *problem, const rope_append_args *args,
                              int which, int optional, rope_append_operand *o,
                              rope_tensor_spans *spans) {
    const rope_append_steps *steps = &problem->steps[which];
    const rope_tensor *given = rope_append_tensor_of(args, which);
    const int32_t in = rope_dtype_size(problem->rope.dtype),
                  out = which == ROPE_APPEND_Q ? rope_dtype_size(steps->store_dtype) : in;
    const int stored = (which == ROPE_APPEND_K && args->k_cache.data) ||
                       (which == ROPE_APPEND_V && args->v_cache.data);
    const int has_cache = which != ROPE_APPEND_Q && problem->cache;
    const rope_tensor_form form = {names[which], steps->head_dim, in, out, has_cache || optional};
    if (given->heads > 0 && given->in && given->in == given->out && in != out)
        return rope_fail(ROPE_ERROR_OVERLAP,
                         "q.out is q.in, %p; allowed is that only where q.store_dtype has the size "
                         "of dtype",
                         given->in);
    rope_operand views = {0};
    rope_status status = rope_tensor_read(&args->rope, given, &form, &views, spans);
    if (status != ROPE_OK || views.heads == 0)
        return status;
    if (has_cache && !stored && !views.out)
        return rope_fail(ROPE_ERROR_NULL_POINTER,
                         "%s and %s_cache.data are NULL; allowed is one of them at least",
                         out_names[which], names[which]);
    o->in = views.in;
    o->out = views.out;
    o->heads = views.heads;
    memcpy(o->in_stride, views.in_stride, sizeof o->in_stride);
    memcpy(o->out_stride, views.out_stride, sizeof o->out_stride);
    spans->in.stride = o->in_stride;
    spans->out.stride = o->out_stride;
    return ROPE_OK;
}

rope_status rope_norm_weight_read(const rope_append_steps *steps, const rope_norm_weight *given,
                                  int which, rope_append_operand *o, rope_append_weights *weights) {
    rope_region *region = &weights->region;
    region->name = NULL;
    if (steps->weight == 0)
        return ROPE_OK;
    const int32_t element = rope_dtype_size(steps->weight_dtype);
    o->weight = given->data;
    o->weight_stride = given->head_stride == 0 && steps->norm_scope == ROPE_NORM_TOKEN
                           ? steps->norm_dim
                           : given->head_stride;
    rope_status status = rope_pointer_check(weight_names[which], "data", given->data, element);
    if (status != ROPE_OK)
        return status;
    region->name = weight_names[which];
    region->written = 0;
    region->count[0] = o->heads;
    region->count[1] = steps->norm_dim;
    weights->stride[0] = o->weight_stride;
    weights->stride[1] = 1;
    region->span = (rope_span){2, region->count, weights->stride, element, 0, 0};
    if (!rope_span_place(&region->span, given->data))
        return rope_fail(ROPE_ERROR_OVERFLOW,
                         "%s.head_stride is %lld; allowed is what stays within 64-bit addresses "
                         "with %lld heads",
                         weight_names[which], (long long)o->weight_stride, (long long)o->heads);
    return ROPE_OK;
}

rope_status rope_append_weight_read(const rope_append_problem *problem,
                                    const rope_append_args *args, int which, rope_append_operand *o,
                                    rope_append_weights *weights) {
    return rope_norm_weight_read(&problem->steps[which], weight_of(args, which), which, o, weights);
}

/* optional: 1: an out may be absent without a cache. */
static rope_status read_tensor(const rope_append_problem *problem, const rope_append_args *args,
                               int which, int optional, rope_append_operand *o,
                               rope_append_tensor_regions *regions) {
    const int from_cache = problem->k_source == ROPE_SOURCE_CACHE;
    rope_status status = ROPE_OK;
    if (!from_cache)
        status = read_views(problem, args, which, optional, o, &regions->spans);
    else if (which == ROPE_APPEND_K)
        status = read_heads_alone(problem, args, o);
    if (status != ROPE_OK || o->heads == 0)
        return status;
    regions->stored[0].name = regions->stored[1].name = NULL;
    status = which == ROPE_APPEND_Q
                 ? rope_append_q_scale_read(problem, args, o, &regions->stored[1])
                 : rope_append_cache_read(problem, args, which, o, regions->stored);
    return status == ROPE_OK ? rope_append_weight_read(problem, args, which, o, &regions->weight)
                             : status;
}

/* --- overlap --- */

static void add_tensor(rope_regions *list, const rope_append_operand *o, int which,
                       const rope_append_tensor_regions *regions) {
    if (o->out)
        rope_regions_add(list, out_names[which], 1, &regions->spans.out);
    if (o->in && !regions->spans.in_place)
        rope_regions_add(list, in_names[which], 0, &regions->spans.in);
    for (int i = 0; i < 2; i++)
        rope_regions_add_region(list, &regions->stored[i]);
    rope_regions_add_region(list, &regions->weight.region);
}

/* A tensor's own in and out were compared with its strides. */
void rope_append_regions_add(const rope_append_call *call, const rope_append_regions *regions,
                             rope_regions *list) {
    rope_regions_add_region(list, &regions->mapping);
    for (int t = 0; t < ROPE_APPEND_TENSORS; t++)
        if (call->tensor[t].heads)
            add_tensor(list, &call->tensor[t], t, &regions->tensor[t]);
}

rope_status rope_append_lists_check(const rope_regions *written, const rope_append_problem *problem,
                                    const rope_append_call *call) {
    const rope_position_map *map = &call->rope.position;
    const rope_status status =
        rope_list_check(written, "cache_starts", call->starts,
                        map->cu_seqlens ? map->sequences : call->rope.batch, map->wide ? 8 : 4);
    return status == ROPE_OK ? rope_call_lists_check(written, &problem->rope, &call->rope) : status;
}

/* --- a call --- */

rope_status rope_append_parts_read(const rope_append_problem *problem, const rope_append_args *args,
                                   int attended, rope_append_call *call,
                                   rope_append_regions *regions, int *empty) {
    int cached = 0;
    memset(call, 0, sizeof *call);
    regions->mapping.name = NULL;
    rope_status status = rope_extent_check(&args->rope);
    if (status == ROPE_OK)
        status = rope_append_unread_check(problem, args);
    *empty = 1;
    for (int t = 0; t < ROPE_APPEND_TENSORS && status == ROPE_OK; t++) {
        status = read_tensor(problem, args, t, attended && t == ROPE_APPEND_Q, &call->tensor[t],
                             &regions->tensor[t]);
        *empty &= call->tensor[t].heads == 0;
        cached |= call->tensor[t].cache != NULL;
    }
    if (status == ROPE_OK)
        status = rope_positions_read(&problem->rope, &args->rope, *empty, &call->rope);
    if (status == ROPE_OK && cached)
        status = rope_append_mapping_read(problem, args, call, &regions->mapping);
    return status;
}

static rope_status read_all(const rope_append_problem *problem, const rope_append_args *args,
                            rope_append_call *call, int *empty) {
    rope_append_regions regions;
    rope_regions list;
    list.count = 0;
    rope_status status = rope_append_parts_read(problem, args, 0, call, &regions, empty);
    if (status == ROPE_OK)
        rope_append_regions_add(call, &regions, &list);
    if (status == ROPE_OK)
        status = rope_regions_check(&list);
    return status == ROPE_OK && list.count ? rope_append_lists_check(&list, problem, call) : status;
}

const rope_append_args *rope_append_args_read(const void *given, rope_append_args *full,
                                              rope_status *status) {
    const rope_append_args *args = given;
    *status = ROPE_OK;
    if (args && args->struct_size == sizeof *args && args->rope.struct_size == sizeof args->rope)
        return args;
    *status = rope_abi_read_embedding(full, sizeof *full, sizeof full->rope, given,
                                      "rope_append_args", "rope_args");
    return *status == ROPE_OK ? full : NULL;
}

rope_status rope_append_call_read(const void *problem, const void *given, void *call, void **stream,
                                  int *empty) {
    rope_append_args full;
    rope_status status;
    const rope_append_args *args = rope_append_args_read(given, &full, &status);
    if (!args)
        return status;
    *stream = args->rope.stream;
    return read_all(problem, args, call, empty);
}
