#include "common/ops/attention_keys.h"

#include "common/math/attention.h"
#include "common/ops/cache.h"
#include "common/ops/positions.h"
#include "common/status.h"

/* --- what nothing reads --- */

static rope_status fail_cached(const char *what, const void *pointer, int needs_cache) {
    return rope_fail(ROPE_ERROR_INVALID_VALUE, "%s is %p; allowed is NULL %s a cache", what,
                     pointer, needs_cache ? "without" : "with");
}

static rope_status check_strides_unread(const char *name, const char *field, const int64_t *s,
                                        const char *where) {
    if (rope_all_zero(s, 4))
        return ROPE_OK;
    return rope_fail(ROPE_ERROR_INVALID_VALUE, "%s.%s is [%lld, %lld, %lld, %lld]; allowed is 0 %s",
                     name, field, (long long)s[0], (long long)s[1], (long long)s[2],
                     (long long)s[3], where);
}

/* Strides of views that are not given. */
static rope_status check_views_unread(const rope_attention_problem *problem,
                                      const rope_attention_args *args) {
    static const char *const names[3] = {"q", "k", "v"};
    const rope_tensor *views[3] = {&args->rope.q, &args->rope.k, &args->v};
    rope_status status = ROPE_OK;
    for (int i = 0; i < 3 && status == ROPE_OK; i++) {
        if (!views[i]->out)
            status = check_strides_unread(names[i], "out_stride", views[i]->out_stride,
                                          "while out is NULL");
        if (status == ROPE_OK && i && problem->cache)
            status =
                check_strides_unread(names[i], "in_stride", views[i]->in_stride, "with a cache");
    }
    return status;
}

/* Strides of a cache without one, and a scale that the descriptor does not have. */
static rope_status check_cache_unread(const char *name, const char *scale_name, int cached,
                                      int32_t scaled, const rope_cache *cache) {
    const int64_t *s = cache->stride;
    if (!cached && !rope_all_zero(s, 5))
        return rope_fail(
            ROPE_ERROR_INVALID_VALUE,
            "%s.stride is [%lld, %lld, %lld, %lld, %lld]; allowed is 0 without a cache", name,
            (long long)s[0], (long long)s[1], (long long)s[2], (long long)s[3], (long long)s[4]);
    if (!scaled && (cache->scale.data || !rope_all_zero(cache->scale.stride, 3)))
        return rope_scale_fail(scale_name, &cache->scale,
                               "NULL and 0 where the descriptor has no scale");
    return ROPE_OK;
}

static rope_status check_caches_unread(const rope_attention_problem *problem,
                                       const rope_attention_args *args) {
    const int pages = problem->cache != 0, table = problem->cache == ROPE_CACHE_TABLE;
    if (!pages && (args->k_cache.data || args->v_cache.data))
        return fail_cached(args->k_cache.data ? "k_cache.data" : "v_cache.data",
                           args->k_cache.data ? args->k_cache.data : args->v_cache.data, 1);
    if (pages && (args->rope.k.in || args->v.in))
        return fail_cached(args->rope.k.in ? "k.in" : "v.in",
                           args->rope.k.in ? args->rope.k.in : args->v.in, 0);
    if (!pages && args->pages)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "pages is %lld; allowed is 0 without a cache",
                         (long long)args->pages);
    if (!table && (args->block_table || args->table_pages || !rope_all_zero(args->table_stride, 2)))
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "block_table is %p, table_pages is %lld and table_stride is [%lld, %lld]; "
                         "allowed is NULL and 0 unless cache is ROPE_CACHE_TABLE",
                         args->block_table, (long long)args->table_pages,
                         (long long)args->table_stride[0], (long long)args->table_stride[1]);
    if (args->v.out)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "v.out is %p; allowed is NULL", args->v.out);
    if (args->rope.k.out && (pages || !problem->rotates[1]))
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "k.out is %p; allowed is NULL %s",
                         args->rope.k.out, pages ? "with a cache" : "where keys do not rotate");
    rope_status status =
        check_cache_unread("k_cache", "k_cache.scale", pages, problem->k.scale, &args->k_cache);
    if (status == ROPE_OK)
        status =
            check_cache_unread("v_cache", "v_cache.scale", pages, problem->v.scale, &args->v_cache);
    return status;
}

static rope_status check_lengths(const rope_attention_problem *problem,
                                 const rope_attention_args *args) {
    const int packed = args->rope.cu_seqlens != NULL;
    if (problem->cache && !args->k_lengths)
        return rope_fail(ROPE_ERROR_NULL_POINTER,
                         "k_lengths is NULL; allowed with a cache is a list of lengths");
    if (args->k_cu_seqlens && (problem->cache || !packed))
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "k_cu_seqlens is %p; allowed is NULL %s",
                         args->k_cu_seqlens,
                         problem->cache ? "with a cache" : "without rope.cu_seqlens");
    if (packed && !problem->cache && !args->k_cu_seqlens)
        return rope_fail(
            ROPE_ERROR_NULL_POINTER,
            "k_cu_seqlens is NULL; allowed with rope.cu_seqlens and without a cache is "
            "a list of boundaries");
    return ROPE_OK;
}

static rope_status check_key_ids(const rope_attention_problem *problem,
                                 const rope_attention_args *args) {
    if (args->k_position_ids && !problem->rotates[1] && !rope_mask_counts(problem))
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "k_position_ids is %p; allowed is NULL where keys do not rotate, unless "
                         "mask is ROPE_MASK_TREE with a window or chunks",
                         args->k_position_ids);
    if (args->k_position_ids && !problem->rotates[1] && !args->rope.position_ids)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "k_position_ids is %p; allowed is NULL without position_ids",
                         args->k_position_ids);
    if (problem->rotates[1] && !args->k_position_ids != !args->rope.position_ids)
        return rope_fail(
            ROPE_ERROR_INVALID_VALUE,
            "k_position_ids is %p and position_ids is %p; allowed where keys rotate is "
            "both or neither",
            args->k_position_ids, args->rope.position_ids);
    if (!args->k_position_ids && !rope_all_zero(args->k_position_stride, 3))
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "k_position_stride is [%lld, %lld, %lld]; allowed is 0 while "
                         "k_position_ids is NULL",
                         (long long)args->k_position_stride[0],
                         (long long)args->k_position_stride[1],
                         (long long)args->k_position_stride[2]);
    return ROPE_OK;
}

/* --- lengths and positions --- */

/* Batch rows of k.in, or sequences of a cache. */
static int64_t key_rows(const rope_attention_problem *problem, const rope_attention_args *args) {
    return problem->cache && args->rope.cu_seqlens ? args->rope.sequences : args->rope.batch;
}

static rope_status read_key_tokens(const rope_attention_problem *problem,
                                   const rope_attention_args *args, rope_attention_call *call) {
    if (args->k_tokens < 0)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "k_tokens is %lld; allowed is >= 0",
                         (long long)args->k_tokens);
    call->k_tokens = args->k_tokens ? args->k_tokens : args->rope.tokens;
    if (problem->cache == 0)
        return ROPE_OK;
    call->table_pages = problem->cache == ROPE_CACHE_TABLE ? args->table_pages : 1;
    if (call->table_pages < 1)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "table_pages is %lld; allowed is > 0 with block_table",
                         (long long)args->table_pages);
    if (args->k_tokens == 0 &&
        __builtin_mul_overflow(call->table_pages, problem->page_size, &call->k_tokens))
        return rope_fail(ROPE_ERROR_OVERFLOW,
                         "table_pages %lld * page_size %lld overflows; allowed is below 2^63",
                         (long long)call->table_pages, (long long)problem->page_size);
    return ROPE_OK;
}

static rope_status read_key_ids(const rope_attention_problem *problem,
                                const rope_attention_args *args, rope_position_map *map) {
    const int64_t *given = args->k_position_stride, rows = key_rows(problem, args);
    const int zero = rope_all_zero(given, 3);
    int64_t *stride = map->id_stride, all;
    if (__builtin_mul_overflow(rows, map->tokens, &all))
        return rope_fail(ROPE_ERROR_OVERFLOW,
                         "k_tokens %lld * %lld rows overflows; allowed is below 2^63",
                         (long long)map->tokens, (long long)rows);
    stride[0] = zero ? all : given[0];
    stride[1] = zero ? map->tokens : given[1];
    stride[2] = zero ? 1 : given[2];
    if (!map->ids || all == 0)
        return ROPE_OK;
    const int64_t count[3] = {problem->rope.axes, rows, map->tokens};
    rope_span span = {.dims = 3, .count = count, .stride = stride, .element = map->wide ? 8 : 4};
    if (!rope_span_place(&span, map->ids))
        return rope_fail(ROPE_ERROR_OVERFLOW,
                         "k_position_stride is [%lld, %lld, %lld]; allowed is what stays within "
                         "64-bit addresses",
                         (long long)stride[0], (long long)stride[1], (long long)stride[2]);
    return ROPE_OK;
}

static rope_status read_key_positions(const rope_attention_problem *problem,
                                      const rope_attention_args *args, rope_attention_call *call) {
    rope_position_map *map = &call->k_position;
    const int32_t width = call->rope.position.wide ? 8 : 4;
    rope_status status = rope_index_check("q_lengths", args->q_lengths, width);
    if (status == ROPE_OK)
        status = rope_index_check("k_lengths", args->k_lengths, width);
    if (status == ROPE_OK)
        status = rope_index_check("k_cu_seqlens", args->k_cu_seqlens, width);
    if (status == ROPE_OK)
        status = rope_index_check("k_position_ids", args->k_position_ids, width);
    if (status != ROPE_OK)
        return status;
    call->q_lengths = args->q_lengths;
    call->k_lengths = args->k_lengths;
    *map = call->rope.position;
    map->ids = args->k_position_ids;
    map->cu_seqlens = args->k_cu_seqlens;
    map->tokens = call->k_tokens;
    return read_key_ids(problem, args, map);
}

/* --- tensors and caches --- */

static void operand_of(const rope_operand *views, rope_append_operand *o) {
    o->in = views->in;
    o->out = views->out;
    o->heads = views->heads;
    for (int d = 0; d < 4; d++) {
        o->in_stride[d] = views->in_stride[d];
        o->out_stride[d] = views->out_stride[d];
    }
}

static rope_status read_views(const rope_attention_problem *problem,
                              const rope_attention_args *args, rope_attention_call *call,
                              rope_key_regions *regions) {
    const int32_t element = rope_dtype_size(problem->rope.dtype);
    const rope_tensor_form forms[2] = {{"k", problem->head_dim, element, element, 1},
                                       {"v", problem->v_head_dim, element, element, 1}};
    const rope_tensor *given[2] = {&args->rope.k, &args->v};
    rope_append_operand *operands[2] = {&call->k, &call->v};
    rope_args keys = {.batch = args->rope.batch, .tokens = call->k_tokens};
    for (int i = 0; i < 2; i++) {
        rope_operand views = {0};
        rope_tensor_spans *spans = &regions->spans[i];
        rope_status status = rope_tensor_read(&keys, given[i], &forms[i], &views, spans);
        if (status != ROPE_OK)
            return status;
        operand_of(&views, operands[i]);
        spans->in.stride = operands[i]->in_stride;
        spans->out.stride = operands[i]->out_stride;
    }
    return ROPE_OK;
}

static rope_status read_caches(const rope_attention_problem *problem,
                               const rope_attention_args *args, rope_attention_call *call,
                               rope_key_regions *regions) {
    static const char *const names[2] = {"k_cache", "v_cache"}, *const scales[2] = {
                                                                    "k_cache.scale",
                                                                    "v_cache.scale"};
    const rope_append_steps *steps[2] = {&problem->k, &problem->v};
    const rope_cache *given[2] = {&args->k_cache, &args->v_cache};
    rope_append_operand *operands[2] = {&call->k, &call->v};
    call->pages = args->pages;
    for (int i = 0; i < 2; i++) {
        const rope_cache_form form = {names[i],    scales[i],          steps[i],
                                      args->pages, problem->page_size, 0};
        operands[i]->heads = args->rope.k.heads;
        rope_status status = rope_cache_read(&form, given[i], operands[i], regions->cached[i]);
        if (status != ROPE_OK)
            return status;
    }
    if (problem->cache != ROPE_CACHE_TABLE)
        return ROPE_OK;
    call->block_table = args->block_table;
    rope_region table;
    return rope_list_read("block_table", args->block_table, args->table_stride,
                          key_rows(problem, args), call->table_pages, problem->table_wide ? 8 : 4,
                          call->table_stride, &table);
}

static rope_status check_heads(const rope_attention_args *args, int cached) {
    const int64_t q = args->rope.q.heads, k = args->rope.k.heads, v = args->v.heads;
    if (k < 1 || q % k != 0)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "k.heads is %lld; allowed is > 0 and a divisor of q.heads (%lld)",
                         (long long)k, (long long)q);
    if (v != k && !(cached && v == 0))
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "v.heads is %lld; allowed is k.heads (%lld)%s",
                         (long long)v, (long long)k, cached ? " or 0" : "");
    return ROPE_OK;
}

rope_status rope_attention_keys_read(const rope_attention_problem *problem,
                                     const rope_attention_args *args, rope_attention_call *call,
                                     rope_key_regions *regions) {
    rope_status status = check_caches_unread(problem, args);
    if (status == ROPE_OK)
        status = check_views_unread(problem, args);
    if (status == ROPE_OK)
        status = check_lengths(problem, args);
    if (status == ROPE_OK)
        status = check_key_ids(problem, args);
    if (status == ROPE_OK)
        status = check_heads(args, problem->cache != 0);
    if (status == ROPE_OK)
        status = read_key_tokens(problem, args, call);
    if (status == ROPE_OK)
        status = read_key_positions(problem, args, call);
    if (status != ROPE_OK)
        return status;
    return problem->cache ? read_caches(problem, args, call, regions)
                          : read_views(problem, args, call, regions);
}

void rope_attention_keys_regions(const rope_attention_call *call, const rope_key_regions *regions,
                                 rope_regions *list) {
    static const char *const in_names[2] = {"k.in", "v.in"};
    for (int i = 0; i < 2; i++) {
        const rope_append_operand *o = i ? &call->v : &call->k;
        const rope_tensor_spans *spans = &regions->spans[i];
        if (o->cache) {
            rope_regions_add_region(list, &regions->cached[i][0]);
            continue;
        }
        if (o->out)
            rope_regions_add(list, "k.out", 1, &spans->out);
        if (!spans->in_place)
            rope_regions_add(list, in_names[i], 0, &spans->in);
    }
}
