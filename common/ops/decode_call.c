#include "common/ops/decode_call.h"

#include "common/abi.h"
#include "common/math/attention.h"
#include "common/names.h"
#include "common/ops/append_call.h"
#include "common/ops/attention_call.h"
#include "common/status.h"

#include <string.h>

/* What the append alone reads: with slots the table is attention's. */
static rope_append_args append_args(const rope_decode_problem *problem,
                                    const rope_decode_args *args) {
    rope_append_args append = args->append;
    if (problem->append->cache == ROPE_CACHE_SLOTS) {
        append.block_table = NULL;
        append.table_stride[0] = append.table_stride[1] = append.table_pages = 0;
    }
    return append;
}

/* Its queries are those that the append writes, or stand for them at those that it reads. */
static void set_queries(const rope_append_operand *q, rope_tensor *to) {
    to->in = q->out ? q->out : q->in;
    to->heads = q->heads;
    memcpy(to->in_stride, q->out ? q->out_stride : q->in_stride, sizeof to->in_stride);
}

/* Positions count in the mask alone. */
static void set_positions(const rope_decode_problem *problem, const rope_args *from,
                          rope_args *to) {
    to->batch = from->batch;
    to->tokens = from->tokens;
    to->cu_seqlens = from->cu_seqlens;
    to->sequences = from->sequences;
    to->position_flag = from->position_flag;
    if (!rope_mask_counts(problem->attention))
        return;
    to->position_ids = from->position_ids;
    memcpy(to->position_stride, from->position_stride, sizeof to->position_stride);
}

static void set_cache(const rope_append_args *from, rope_attention_args *to) {
    to->rope.k.heads = from->rope.k.heads;
    to->v.heads = from->v.heads;
    to->k_cache = from->k_cache;
    to->v_cache = from->v_cache;
    to->pages = from->pages;
    to->block_table = from->block_table;
    memcpy(to->table_stride, from->table_stride, sizeof to->table_stride);
    to->table_pages = from->table_pages;
}

static rope_attention_args attention_args(const rope_decode_problem *problem,
                                          const rope_decode_args *args,
                                          const rope_append_call *append) {
    rope_attention_args a = ROPE_ATTENTION_ARGS_INIT;
    set_queries(&append->tensor[ROPE_APPEND_Q], &a.rope.q);
    set_positions(problem, &args->append.rope, &a.rope);
    set_cache(&args->append, &a);
    a.out = args->out;
    a.lse = args->lse;
    memcpy(a.lse_stride, args->lse_stride, sizeof a.lse_stride);
    a.k_tokens = args->k_tokens;
    a.k_lengths = args->k_lengths;
    a.k_position_ids = args->k_position_ids;
    memcpy(a.k_position_stride, args->k_position_stride, sizeof a.k_position_stride);
    a.sinks = args->sinks;
    a.tree_bits = args->tree_bits;
    memcpy(a.tree_stride, args->tree_stride, sizeof a.tree_stride);
    a.tree_keys = args->tree_keys;
    a.workspace_bytes = args->workspace_bytes;
    return a;
}

static rope_status check_queries(const rope_args *rope) {
    const int64_t *s = rope->q.out_stride;
    if (rope->q.heads == 0 && rope->batch > 0 && rope->tokens > 0)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "q.heads is 0; allowed is > 0 and a multiple of k.heads (%lld)",
                         (long long)rope->k.heads);
    if (!rope->q.out && !rope_all_zero(s, 4))
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "q.out_stride is [%lld, %lld, %lld, %lld]; allowed is 0 while q.out is "
                         "NULL",
                         (long long)s[0], (long long)s[1], (long long)s[2], (long long)s[3]);
    return ROPE_OK;
}

#define WITHIN_KEYS "where v.heads is 0 and v_cache is k_cache"

/* Values that are the first elements of keys are stored as those, with nothing of their own. */
static rope_status check_values(const rope_decode_problem *problem, const rope_append_args *args) {
    const rope_append_steps *k = &problem->append->steps[ROPE_APPEND_K],
                            *v = &problem->append->steps[ROPE_APPEND_V];
    if (args->v.heads || args->v_cache.data != args->k_cache.data)
        return ROPE_OK;
    if (v->norm)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "v.norm.type is %s; allowed is 0 " WITHIN_KEYS,
                         rope_choice_name(rope_norm_names, v->norm).text);
    if (v->factor != 1)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "v.factor is %g; allowed is 1 " WITHIN_KEYS,
                         (double)v->factor);
    if (v->store_dtype != k->store_dtype)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "v.store_dtype is %s; allowed is k's, %s, " WITHIN_KEYS,
                         rope_choice_name(rope_dtype_names, v->store_dtype).text,
                         rope_choice_name(rope_dtype_names, k->store_dtype).text);
    if (v->scale != k->scale)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "v.scale is %s; allowed is k's, %s, " WITHIN_KEYS,
                         rope_choice_name(rope_scale_names, v->scale).text,
                         rope_choice_name(rope_scale_names, k->scale).text);
    return ROPE_OK;
}

/* What attention writes beside what the append reads and writes, and the other way round. */
static rope_status check_overlap(const rope_decode_problem *problem, const rope_decode_args *args,
                                 const rope_decode_call *call, const rope_append_regions *append,
                                 const rope_attention_regions *attention) {
    rope_regions list;
    rope_span workspace;
    list.count = 0;
    rope_append_regions_add(&call->append, append, &list);
    rope_regions_add_region(&list, &attention->out);
    rope_regions_add_region(&list, &attention->lse);
    rope_status status =
        rope_regions_add_workspace(&list, args->workspace, args->workspace_bytes, &workspace);
    if (status == ROPE_OK)
        status = rope_regions_check(&list);
    if (status == ROPE_OK)
        status = rope_append_lists_check(&list, problem->append, &call->append);
    return status == ROPE_OK
               ? rope_attention_lists_check(&list, problem->attention, &call->attention)
               : status;
}

static rope_status read_most_tokens(const rope_decode_args *args, rope_decode_call *call) {
    const rope_args *rope = &args->append.rope;
    const int64_t most = args->most_tokens;
    if (most && !rope->cu_seqlens)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "most_tokens is %lld; allowed is 0 while cu_seqlens is NULL",
                         (long long)most);
    if (most < 0)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "most_tokens is %lld; allowed is >= 0",
                         (long long)most);
    call->most_tokens = most && most < rope->tokens ? most : rope->tokens;
    return ROPE_OK;
}

static rope_status read_all(const rope_decode_problem *problem, const rope_decode_args *args,
                            rope_decode_call *call, int *empty) {
    rope_append_regions written;
    rope_attention_regions attended;
    const rope_append_args append = append_args(problem, args);
    rope_status status =
        rope_append_parts_read(problem->append, &append, 1, &call->append, &written, empty);
    if (status == ROPE_OK)
        status = check_queries(&append.rope);
    if (status == ROPE_OK)
        status = check_values(problem, &append);
    if (status == ROPE_OK)
        status = read_most_tokens(args, call);
    if (status != ROPE_OK || *empty)
        return status;
    const rope_attention_args attention = attention_args(problem, args, &call->append);
    status = rope_attention_parts_read(problem->attention, &attention, 0, &call->attention,
                                       &attended, empty);
    if (status == ROPE_OK)
        status = check_overlap(problem, args, call, &written, &attended);
    if (!call->append.tensor[ROPE_APPEND_Q].out)
        call->attention.rope.tensor[0].in = NULL;
    return status;
}

const rope_decode_args *rope_decode_args_read(const void *given, rope_decode_args *full,
                                              rope_status *status) {
    static const size_t sizes[] = {sizeof *full, sizeof full->append, sizeof full->append.rope};
    static const char *const names[] = {"rope_decode_args", "rope_append_args", "rope_args"};
    const rope_decode_args *args = given;
    *status = ROPE_OK;
    if (args && args->struct_size == sizes[0] && args->append.struct_size == sizes[1] &&
        args->append.rope.struct_size == sizes[2])
        return args;
    *status = rope_abi_read_nested(full, sizes, given, names);
    return *status == ROPE_OK ? full : NULL;
}

rope_status rope_decode_call_read(const void *problem, const void *given, void *call, void **stream,
                                  int *empty) {
    rope_decode_args full;
    rope_status status;
    const rope_decode_args *args = rope_decode_args_read(given, &full, &status);
    if (!args)
        return status;
    *stream = args->append.rope.stream;
    return read_all(problem, args, call, empty);
}
