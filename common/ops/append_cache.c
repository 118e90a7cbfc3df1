#include "common/ops/append_cache.h"

#include "common/ops/cache.h"
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

rope_status rope_append_mapping_read(const rope_append_problem *problem,
                                     const rope_append_args *args, rope_append_call *call,
                                     rope_region *list) {
    const rope_args *rope = &args->rope;
    call->pages = args->pages;
    call->slots = args->slots;
    call->block_table = args->block_table;
    call->table_pages = args->table_pages;
    call->starts = args->cache_starts;
    if (problem->cache == ROPE_CACHE_SLOTS)
        return rope_list_read("slots", args->slots, args->slot_stride, rope->batch, rope->tokens,
                              problem->slot_wide ? 8 : 4, call->slot_stride, list);
    rope_status status =
        rope_index_check("cache_starts", args->cache_starts, call->rope.position.wide ? 8 : 4);
    if (status != ROPE_OK || problem->cache == ROPE_CACHE_SEQUENCE)
        return status;
    if (args->table_pages < 1)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "table_pages is %lld; allowed is > 0 with block_table",
                         (long long)args->table_pages);
    return rope_list_read("block_table", args->block_table, args->table_stride,
                          rope->cu_seqlens ? rope->sequences : rope->batch, args->table_pages,
                          problem->table_wide ? 8 : 4, call->table_stride, list);
}

rope_status rope_append_q_scale_read(const rope_append_problem *problem,
                                     const rope_append_args *args, rope_append_operand *operand,
                                     rope_region *region) {
    const int32_t kind = problem->steps[ROPE_APPEND_Q].scale;
    const int64_t count[3] = {args->rope.batch, args->rope.tokens, operand->heads};
    region->name = NULL;
    return kind ? rope_scale_read(kind, scale_names[0], &args->q_scale, count,
                                  kind == ROPE_SCALE_TOKEN_HEAD_MAX, operand, region)
                : ROPE_OK;
}

rope_status rope_append_cache_read(const rope_append_problem *problem, const rope_append_args *args,
                                   int which, rope_append_operand *o, rope_region region[2]) {
    const rope_cache *given = which == ROPE_APPEND_K ? &args->k_cache : &args->v_cache;
    const rope_cache_form form = {.name = cache_names[which],
                                  .scale_name = scale_names[which],
                                  .steps = &problem->steps[which],
                                  .pages = args->pages,
                                  .page_size = problem->page_size,
                                  .written = 1};
    region[0].name = region[1].name = NULL;
    if (!given->data && problem->k_source == ROPE_SOURCE_TENSOR)
        return ROPE_OK;
    return rope_cache_read(&form, given, o, region);
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
        return rope_scale_fail(scale_names[which], scale,
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
