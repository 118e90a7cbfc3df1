#include "common/ops/append_cache.h"

#include "common/ops/positions.h"
#include "common/ops/tensor.h"
#include "common/status.h"

#include <string.h>

static const char *const cache_names[] = {NULL, "k_cache", "v_cache"};
static const char *const scale_names[] = {"q_scale", "k_cache.scale", "v_cache.scale"};

/* --- where a token's place comes from --- */

static rope_status fail_mapping(const char *what, const void *pointer, const int64_t stride[2],
                                const char *kind) {
    return rope_fail(
        ROPE_ERROR_INVALID_VALUE,
        "%s is %p and its stride is [%lld, %lld]; allowed is NULL and 0 unless k_cache "
        "or v_cache is given and the plan's cache is %s",
        what, pointer, (long long)stride[0], (long long)stride[1], kind);
}

rope_status rope_append_mapping_check(const rope_append_problem *problem,
                                      const rope_append_args *args) {
    const int kind = args->k_cache.data || args->v_cache.data ? problem->cache : 0;
    if (kind != ROPE_CACHE_SLOTS && (args->slots || !rope_all_zero(args->slot_stride, 2)))
        return fail_mapping("slots", args->slots, args->slot_stride, "ROPE_CACHE_SLOTS");
    if (kind != ROPE_CACHE_TABLE && (args->block_table || !rope_all_zero(args->table_stride, 2)))
        return fail_mapping("block_table", args->block_table, args->table_stride,
                            "ROPE_CACHE_TABLE");
    if (args->table_pages < 0 || (kind != ROPE_CACHE_TABLE && args->table_pages))
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "table_pages is %lld; allowed is %s",
                         (long long)args->table_pages,
                         args->table_pages < 0 ? "> 0 with block_table" : "0 without block_table");
    if ((kind == 0 || kind == ROPE_CACHE_SLOTS) && args->cache_starts)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "cache_starts is %p; allowed is NULL unless k_cache or v_cache is given "
                         "and the plan's cache is ROPE_CACHE_TABLE or ROPE_CACHE_SEQUENCE",
                         args->cache_starts);
    if (args->pages < 0 || (kind == 0 && args->pages))
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "pages is %lld; allowed is %s",
                         (long long)args->pages,
                         args->pages < 0 ? "> 0 with a cache" : "0 without k_cache and v_cache");
    return ROPE_OK;
}

/* Strides of a list of two dimensions, contiguous where all are 0. */
static rope_status read_list(const char *name, const void *data, const int64_t given[2],
                             int64_t outer, int64_t inner, int32_t element, int64_t stride[2]) {
    const int zero = rope_all_zero(given, 2);
    stride[0] = zero ? inner : given[0];
    stride[1] = zero ? 1 : given[1];
    rope_status status = rope_pointer_check("", name, data, element);
    if (status != ROPE_OK || outer == 0)
        return status;
    const int64_t count[2] = {outer, inner};
    rope_span span = {.dims = 2, .count = count, .stride = stride, .element = element};
    if (!rope_span_place(&span, data))
        return rope_fail(ROPE_ERROR_OVERFLOW,
                         "the stride of %s is [%lld, %lld]; allowed is what stays within 64-bit "
                         "addresses with %lld and %lld entries",
                         name, (long long)stride[0], (long long)stride[1], (long long)outer,
                         (long long)inner);
    return ROPE_OK;
}

rope_status rope_append_mapping_read(const rope_append_problem *problem,
                                     const rope_append_args *args, rope_append_call *call) {
    const rope_args *rope = &args->rope;
    call->pages = args->pages;
    call->slots = args->slots;
    call->block_table = args->block_table;
    call->table_pages = args->table_pages;
    call->starts = args->cache_starts;
    if (problem->cache == ROPE_CACHE_SLOTS)
        return read_list("slots", args->slots, args->slot_stride, rope->batch, rope->tokens,
                         problem->slot_wide ? 8 : 4, call->slot_stride);
    rope_status status =
        rope_index_check("cache_starts", args->cache_starts, call->rope.position.wide ? 8 : 4);
    if (status != ROPE_OK || problem->cache == ROPE_CACHE_SEQUENCE)
        return status;
    if (args->table_pages < 1)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "table_pages is %lld; allowed is > 0 with block_table",
                         (long long)args->table_pages);
    return read_list("block_table", args->block_table, args->table_stride,
                     rope->cu_seqlens ? rope->sequences : rope->batch, args->table_pages,
                     problem->table_wide ? 8 : 4, call->table_stride);
}

/* --- scales --- */

static rope_status fail_scale(const char *name, const rope_scale *scale, const char *allowed) {
    return rope_fail(ROPE_ERROR_INVALID_VALUE,
                     "%s.data is %p and %s.stride is [%lld, %lld, %lld]; allowed is %s", name,
                     scale->data, name, (long long)scale->stride[0], (long long)scale->stride[1],
                     (long long)scale->stride[2], allowed);
}

/* Strides that the kind of scale does not read stay 0. count: over what stride is. */
static rope_status read_scale(int32_t kind, const char *name, const rope_scale *given,
                              const int64_t count[3], rope_append_operand *operand,
                              rope_region *region) {
    const int zero = rope_all_zero(given->stride, 3), first = kind == ROPE_SCALE_TENSOR ? 3
                                                              : kind == ROPE_SCALE_HEAD ? 2
                                                                                        : 0;
    int64_t *stride = operand->scale_stride, contiguous = 1;
    if (!rope_all_zero(given->stride, first))
        return fail_scale(name, given,
                          first == 3 ? "0 of a scale that is one for the tensor"
                                     : "0 of a scale a head but for the last stride");
    for (int d = 2; d >= 0; d--) {
        region->count[d] = d < first ? 1 : count[d];
        stride[d] = d < first ? 0 : zero ? contiguous : given->stride[d];
        if (d >= first && __builtin_mul_overflow(contiguous, count[d], &contiguous))
            return rope_fail(ROPE_ERROR_OVERFLOW,
                             "%s has %lld * %lld * %lld entries; allowed is below 2^63", name,
                             (long long)count[0], (long long)count[1], (long long)count[2]);
    }
    rope_status status = rope_pointer_check(name, "data", given->data, 4);
    if (status != ROPE_OK)
        return status;
    operand->scale = given->data;
    region->name = name;
    region->written = kind == ROPE_SCALE_TOKEN_HEAD_MAX;
    region->span = (rope_span){3, region->count, stride, 4, 0, 0};
    if (!rope_span_place(&region->span, given->data))
        return rope_fail(ROPE_ERROR_OVERFLOW,
                         "%s.stride is [%lld, %lld, %lld]; allowed is what stays within 64-bit "
                         "addresses",
                         name, (long long)stride[0], (long long)stride[1], (long long)stride[2]);
    if (region->written && rope_span_aliases(&region->span))
        return rope_fail(ROPE_ERROR_OVERLAP,
                         "%s.stride is [%lld, %lld, %lld] and may give two entries one address; "
                         "allowed is strides that clear the dimensions below them",
                         name, (long long)stride[0], (long long)stride[1], (long long)stride[2]);
    if (!region->written)
        region->name = NULL;
    return ROPE_OK;
}

rope_status rope_append_q_scale_read(const rope_append_problem *problem,
                                     const rope_append_args *args, rope_append_operand *operand,
                                     rope_region *region) {
    const int32_t kind = problem->steps[ROPE_APPEND_Q].scale;
    const int64_t count[3] = {args->rope.batch, args->rope.tokens, operand->heads};
    region->name = NULL;
    return kind ? read_scale(kind, scale_names[0], &args->q_scale, count, operand, region)
                : ROPE_OK;
}

/* --- caches --- */

static rope_status check_cache_span(const char *name, const rope_append_operand *o,
                                    rope_region *region) {
    const int64_t *s = o->cache_stride;
    if (!rope_span_place(&region->span, o->cache))
        return rope_fail(
            ROPE_ERROR_OVERFLOW,
            "%s.stride is [%lld, %lld, %lld, %lld, %lld]; allowed is what stays within "
            "64-bit addresses with pages %lld and page_size %lld",
            name, (long long)s[0], (long long)s[1], (long long)s[2], (long long)s[3],
            (long long)s[4], (long long)region->count[0], (long long)region->count[1]);
    if (rope_span_aliases(&region->span))
        return rope_fail(
            ROPE_ERROR_OVERLAP,
            "%s.stride is [%lld, %lld, %lld, %lld, %lld] and may give two elements one "
            "address; allowed is strides that clear the dimensions below them",
            name, (long long)s[0], (long long)s[1], (long long)s[2], (long long)s[3],
            (long long)s[4]);
    return ROPE_OK;
}

/* heads * head_dim fits: the tensor's own sizes were checked. */
static rope_status read_cache_strides(const char *name, const rope_cache *given,
                                      const rope_append_steps *steps, int64_t page_size,
                                      rope_append_operand *o) {
    const int64_t slot = o->heads * steps->head_dim;
    int64_t page;
    if (!rope_all_zero(given->stride, 5)) {
        memcpy(o->cache_stride, given->stride, sizeof o->cache_stride);
        return ROPE_OK;
    }
    if (__builtin_mul_overflow(page_size, slot, &page))
        return rope_fail(ROPE_ERROR_OVERFLOW,
                         "a page of %s has page_size %lld * %lld elements; allowed is below 2^63",
                         name, (long long)page_size, (long long)slot);
    const int64_t stride[5] = {page, slot, steps->head_dim, steps->dim_block, 1};
    memcpy(o->cache_stride, stride, sizeof o->cache_stride);
    return ROPE_OK;
}

rope_status rope_append_cache_read(const rope_append_problem *problem, const rope_append_args *args,
                                   int which, rope_append_operand *o, rope_region region[2]) {
    const char *name = cache_names[which];
    const rope_cache *given = which == ROPE_APPEND_K ? &args->k_cache : &args->v_cache;
    const rope_append_steps *steps = &problem->steps[which];
    const int32_t element = rope_dtype_size(steps->store_dtype);
    const int64_t count[ROPE_SPAN_DIMS] = {args->pages, problem->page_size, o->heads,
                                           steps->head_dim / steps->dim_block, steps->dim_block};
    region[0].name = region[1].name = NULL;
    if (!given->data && problem->k_source == ROPE_SOURCE_TENSOR)
        return ROPE_OK;
    rope_status status = rope_pointer_check(name, "data", given->data, element);
    if (status == ROPE_OK && args->pages < 1)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "pages is %lld; allowed is > 0 with a cache",
                         (long long)args->pages);
    if (status == ROPE_OK)
        status = read_cache_strides(name, given, steps, problem->page_size, o);
    if (status != ROPE_OK)
        return status;
    o->cache = given->data;
    region[0].name = name;
    region[0].written = 1;
    memcpy(region[0].count, count, sizeof count);
    region[0].span = (rope_span){ROPE_SPAN_DIMS, region[0].count, o->cache_stride, element, 0, 0};
    status = check_cache_span(name, o, &region[0]);
    return status == ROPE_OK && steps->scale
               ? read_scale(steps->scale, scale_names[which], &given->scale, count, o, &region[1])
               : status;
}

/* --- what nothing reads --- */

static rope_status check_cache_unread(const rope_append_problem *problem, int which,
                                      const rope_cache *given) {
    const int64_t *s = given->stride;
    if (given->data && problem->cache == 0)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "%s.data is %p; allowed is NULL where the descriptor has no cache",
                         cache_names[which], given->data);
    if (given->data && which == ROPE_APPEND_V && problem->k_source == ROPE_SOURCE_CACHE)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "%s.data is %p; allowed is NULL where k_source is ROPE_SOURCE_CACHE",
                         cache_names[which], given->data);
    if (!given->data && !rope_all_zero(s, 5))
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "%s.stride is [%lld, %lld, %lld, %lld, %lld]; allowed is 0 while %s.data "
                         "is NULL",
                         cache_names[which], (long long)s[0], (long long)s[1], (long long)s[2],
                         (long long)s[3], (long long)s[4], cache_names[which]);
    return ROPE_OK;
}

static rope_status check_scale_unread(const rope_append_problem *problem, int which,
                                      const rope_scale *scale, int cached) {
    const int none = problem->steps[which].scale == 0;
    if ((none || !cached) && (scale->data || !rope_all_zero(scale->stride, 3)))
        return fail_scale(scale_names[which], scale,
                          none ? "NULL and 0 where the descriptor has no scale"
                               : "NULL and 0 while the cache's data is NULL");
    return ROPE_OK;
}

rope_status rope_append_cache_unread(const rope_append_problem *problem,
                                     const rope_append_args *args) {
    const rope_cache *caches[] = {&args->k_cache, &args->v_cache};
    rope_status status = check_scale_unread(problem, ROPE_APPEND_Q, &args->q_scale, 1);
    for (int i = 0; i < 2 && status == ROPE_OK; i++) {
        const int which = ROPE_APPEND_K + i;
        status = check_cache_unread(problem, which, caches[i]);
        if (status == ROPE_OK)
            status = check_scale_unread(problem, which, &caches[i]->scale, caches[i]->data != NULL);
    }
    return status;
}
