/* Looks at every value in device memory that a call depends on. */
#include "backends/cpu/append/kernel.h"
#include "backends/cpu/attention/context.h"
#include "common/status.h"

/* Of a sequence's queries or keys, by boundaries; ROPE_OK where they are in range. */
static rope_status check_segment(const char *name, const char *lengths_name,
                                 const rope_position_map *map, const void *lengths, int64_t n) {
    const int64_t begin = rope_index_at(map, map->cu_seqlens, n),
                  end = rope_index_at(map, map->cu_seqlens, n + 1),
                  most = rope_difference(end, begin);
    if (rope_attention_segment_of(map, lengths, n).valid)
        return ROPE_OK;
    if (end < begin || most < 0)
        return rope_fail(ROPE_ERROR_POSITION_RANGE,
                         "%s[%lld] is %lld and %s[%lld] is %lld; allowed is not falling, and below "
                         "2^63 apart",
                         name, (long long)n, (long long)begin, name, (long long)n + 1,
                         (long long)end);
    return rope_fail(ROPE_ERROR_POSITION_RANGE,
                     "%s[%lld] is %lld; allowed is 0..%lld, by %s[%lld] and %s[%lld]", lengths_name,
                     (long long)n, (long long)rope_index_at(map, lengths, n), (long long)most, name,
                     (long long)n, name, (long long)n + 1);
}

static rope_status fail_lengths(const rope_attention_problem *p, const rope_attention_call *call,
                                int64_t n) {
    const rope_position_map *q = &call->rope.position, *k = &call->k_position;
    rope_status status = ROPE_OK;
    if (q->cu_seqlens)
        status = check_segment("cu_seqlens", "q_lengths", q, call->q_lengths, n);
    if (status == ROPE_OK && k->cu_seqlens)
        return check_segment("k_cu_seqlens", "k_lengths", k, call->k_lengths, n);
    if (status != ROPE_OK)
        return status;
    if (!q->cu_seqlens && call->q_lengths) {
        const int64_t count = rope_index_at(q, call->q_lengths, n);
        if (count < 0 || count > q->tokens)
            return rope_fail(ROPE_ERROR_POSITION_RANGE,
                             "q_lengths[%lld] is %lld; allowed is 0..%lld (tokens)", (long long)n,
                             (long long)count, (long long)q->tokens);
    }
    return rope_fail(ROPE_ERROR_POSITION_RANGE, "k_lengths[%lld] is %lld; allowed is 0..%lld%s",
                     (long long)n, (long long)rope_index_at(k, call->k_lengths, n),
                     (long long)rope_attention_capacity(p, call),
                     p->ring ? ", or any that is > 0 where that is ring or more" : "");
}

/* --- positions --- */

static rope_status fail_position(const rope_attention_problem *p, const rope_call *call,
                                 const char *what, const rope_attention_sequence *s, int64_t i,
                                 rope_site site) {
    int64_t position = 0;
    for (int axis = 0; axis < p->rope.axes; axis++) {
        position = rope_position_of(&call->position, &site, axis);
        if (position < 0 || position >= call->table_rows)
            break;
    }
    return rope_fail(
        ROPE_ERROR_POSITION_RANGE,
        "the position of %s %lld of sequence %lld is %lld; allowed is below table_rows "
        "(%lld)",
        what, (long long)i, (long long)s->index, (long long)position, (long long)call->table_rows);
}

static rope_status check_positions(const rope_attention_problem *p, const rope_attention_call *call,
                                   const rope_call *keys, const rope_attention_sequence *s,
                                   rope_key_range used) {
    rope_token token;
    const int table =
        p->rope.angle_mode == ROPE_ANGLE_TABLE && p->rope.out_of_range == ROPE_OUT_OF_RANGE_ERROR;
    for (int64_t i = 0; i < s->q_count && table && p->rotates[0]; i++) {
        rope_query_token(p, call, s, i, &token);
        if (token.status == ROPE_TOKEN_FAILS)
            return fail_position(p, &call->rope, "query", s, i, rope_query_site(call, s, i));
    }
    for (int64_t j = used.begin; j < used.end && table && p->rotates[1]; j++) {
        rope_key_token(p, keys, s, j, &token);
        if (token.status == ROPE_TOKEN_FAILS)
            return fail_position(p, keys, "key", s, j, rope_key_site(keys, s, j));
    }
    return ROPE_OK;
}

/* --- pages and scales --- */

static int varies(const rope_append_operand *o, const rope_append_steps *steps) {
    return steps->scale && (o->scale_stride[0] | o->scale_stride[1]) != 0;
}

/* A call whose last keys, as many as queries, are yet to be written: their scales too, if so. */
static int kind_of(const rope_append_steps *steps, int unwritten) {
    return unwritten && steps->scale == ROPE_SCALE_TOKEN_HEAD_MAX ? 0 : steps->scale;
}

static rope_status check_cached(const rope_attention_problem *p, const rope_attention_call *call,
                                const rope_attention_sequence *s, rope_key_range used,
                                int unwritten) {
    const int each = varies(&call->k, &p->k) | varies(&call->v, &p->v);
    for (int64_t j = used.begin, run; j < used.end; j += run) {
        rope_place place = rope_key_place(p, call, s, j);
        run = cpu_attention_run(p, j, place.slot, used.end - j);
        if (place.status != ROPE_PLACE_GIVEN)
            return rope_fail(ROPE_ERROR_POSITION_RANGE,
                             "the page of key %lld of sequence %lld is %lld; allowed is 0..%lld "
                             "(pages - 1)",
                             (long long)j, (long long)s->index, (long long)place.page,
                             (long long)call->pages - 1);
        for (int64_t i = 0; i < (each ? run : j == used.begin); i++, place.slot++) {
            const int without = unwritten && j + i >= s->k_count - s->q_count;
            rope_status status = cpu_check_scales("k_cache.scale", kind_of(&p->k, without),
                                                  &call->k, place.page, place.slot);
            if (status == ROPE_OK)
                status = cpu_check_scales("v_cache.scale", kind_of(&p->v, without), &call->v,
                                          place.page, place.slot);
            if (status != ROPE_OK)
                return status;
        }
    }
    return ROPE_OK;
}

rope_status cpu_attention_check(const rope_attention_problem *p, const rope_attention_call *call,
                                int unwritten) {
    rope_call keys = call->rope;
    keys.position = call->k_position;
    rope_status status = ROPE_OK;
    for (int64_t n = 0; n < rope_attention_sequences(call) && status == ROPE_OK; n++) {
        const rope_attention_sequence s = rope_attention_sequence_of(p, call, n);
        if (s.fails)
            return fail_lengths(p, call, n);
        rope_key_range used = attention_keys_used(p, &s);
        if (p->cache)
            status = check_cached(p, call, &s, used, unwritten);
        if (call->k.out)
            used = (rope_key_range){0, s.k_count};
        if (status == ROPE_OK)
            status = check_positions(p, call, &keys, &s, used);
    }
    return status;
}
