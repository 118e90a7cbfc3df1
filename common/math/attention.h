/* Sequences of a call of "attention", where their keys lie, and which of them a query sees. */
#ifndef ROPEKIT_COMMON_ATTENTION_H
#define ROPEKIT_COMMON_ATTENTION_H

#include "common/math/cache.h"
#include "common/math/token.h"

/* Queries are tokens q_first.. of batch row q_row, keys the same of k_row; with a cache a
 * sequence's keys are a row of their own, whose tokens k_first is 0 of. Of a packed sequence that
 * begins ahead of its row or ends behind it, these are the tokens that are there. */
typedef struct rope_attention_sequence {
    int64_t index; /* which one */
    int64_t q_row, q_first, q_count;
    int64_t k_row, k_first, k_count;
    int64_t q_index; /* of query 0 among these keys */
    int64_t k_index; /* of key 0 among all of the sequence */
    int64_t k_whole; /* those */
    int64_t by_id;   /* the last of all, a tree's, that count by position ids; 0: all by index */
    int32_t fails;   /* 1: its lengths are out of range */
} rope_attention_sequence;

/* Keys from `begin` up to `end`. */
typedef struct rope_key_range {
    int64_t begin, end;
} rope_key_range;

ROPE_FN int64_t rope_attention_sequences(const rope_attention_call *call) {
    return call->rope.position.cu_seqlens ? call->rope.position.sequences : call->rope.batch;
}

/* Keys that the pages of a sequence hold, or its row. */
ROPE_FN int64_t rope_attention_capacity(const rope_attention_problem *problem,
                                        const rope_attention_call *call) {
    if (problem->cache == 0 || call->table_pages > INT64_MAX / problem->page_size)
        return call->k_tokens;
    const int64_t held = call->table_pages * problem->page_size;
    return held < call->k_tokens ? held : call->k_tokens;
}

/* Of n keys those that are there: a ring has the last ones. */
ROPE_FN int64_t rope_attention_kept(const rope_attention_problem *problem, int64_t n) {
    return problem->ring && n > problem->ring ? problem->ring : n;
}

/* What is there of a packed sequence of `whole` tokens: `count` from token `first` of its row on,
 * which has an index in the sequence. */
typedef struct rope_attention_segment {
    int64_t whole, first, count, index;
    int32_t valid; /* 0: boundaries fall, or a length is out of range */
} rope_attention_segment;

/* lengths: of what is used of each, or NULL. */
ROPE_FN rope_attention_segment rope_attention_segment_of(const rope_position_map *map,
                                                         const void *lengths, int64_t sequence) {
    const int64_t begin = rope_index_at(map, map->cu_seqlens, sequence), tokens = map->tokens,
                  most = rope_difference(rope_index_at(map, map->cu_seqlens, sequence + 1), begin);
    rope_attention_segment s = {most, begin < 0 ? 0 : begin < tokens ? begin : tokens, 0, 0, 0};
    if (lengths)
        s.whole = rope_index_at(map, lengths, sequence);
    const int64_t end = rope_sum(begin, s.whole), last = end < tokens ? end : tokens;
    s.count = last > s.first ? last - s.first : 0;
    s.index = rope_difference(s.first, begin);
    s.valid = s.whole >= 0 && s.whole <= most;
    return s;
}

/* Whether a mask counts by position ids where a call has them: a tree's with a window or chunks. */
ROPE_FN int rope_mask_counts(const rope_attention_problem *problem) {
    return problem->mask == ROPE_MASK_TREE &&
           (problem->window < INT64_MAX || problem->chunk < INT64_MAX);
}

ROPE_FN rope_attention_sequence rope_attention_sequence_of(const rope_attention_problem *problem,
                                                           const rope_attention_call *call,
                                                           int64_t index) {
    const rope_position_map *q = &call->rope.position, *k = &call->k_position;
    rope_attention_sequence s = {index,          index, 0, q->tokens, index, 0,
                                 call->k_tokens, 0,     0, 0,         0,     0};
    int64_t q_whole, q_index = 0;
    int valid;
    if (q->cu_seqlens) {
        const rope_attention_segment own = rope_attention_segment_of(q, call->q_lengths, index);
        s.q_row = 0;
        s.q_first = own.first;
        s.q_count = own.count;
        q_index = own.index;
        q_whole = own.whole;
        valid = own.valid;
    } else {
        if (call->q_lengths)
            s.q_count = rope_index_at(q, call->q_lengths, index);
        q_whole = s.q_count;
        valid = s.q_count >= 0 && s.q_count <= q->tokens;
    }
    if (k->cu_seqlens) {
        const rope_attention_segment own = rope_attention_segment_of(k, call->k_lengths, index);
        s.k_row = 0;
        s.k_first = own.first;
        s.k_count = own.count;
        s.k_index = own.index;
        s.k_whole = own.whole;
        valid &= own.valid;
    } else {
        if (call->k_lengths) {
            s.k_count = rope_index_at(k, call->k_lengths, index);
            valid &= s.k_count >= 0 && rope_attention_kept(problem, s.k_count) <=
                                           rope_attention_capacity(problem, call);
        }
        s.k_whole = s.k_count;
    }
    s.q_index = rope_sum(rope_difference(s.k_whole, q_whole), rope_difference(q_index, s.k_index));
    s.fails = !valid;
    if (q->ids && rope_mask_counts(problem))
        s.by_id = call->tree_keys < s.k_whole ? call->tree_keys : s.k_whole;
    return s;
}

/* Index among its keys of query i of a sequence; below 0 where there are more queries than keys. */
ROPE_FN int64_t rope_query_index(const rope_attention_sequence *s, int64_t i) {
    return s->q_index + i;
}

/* The first of the keys that count by ids, which may not be there. */
ROPE_FN int64_t rope_first_by_id(const rope_attention_sequence *s) {
    return rope_difference(s->k_whole - s->by_id, s->k_index);
}

/* What counts as the index of token `index` of the last keys, of a row's ids: its id, from the
 * first of these keys on up to its own index. Other tokens have no id. */
ROPE_FN int64_t rope_counted(const rope_position_map *map, const rope_attention_sequence *s,
                             int64_t row, int64_t token, int64_t index) {
    if (index < rope_first_by_id(s))
        return index;
    const int64_t first = s->k_whole - s->by_id, own = rope_sum(index, s->k_index),
                  id = rope_index_at(map, map->ids,
                                     row * map->id_stride[1] + token * map->id_stride[2]);
    return rope_difference(id < first ? first : id < own ? id : own, s->k_index);
}

ROPE_FN int64_t rope_query_counted(const rope_attention_call *call,
                                   const rope_attention_sequence *s, int64_t i) {
    return rope_counted(&call->rope.position, s, s->q_row, s->q_first + i, rope_query_index(s, i));
}

/* Of a key: ids are its own, else those of the query that it belongs to, where that is there. */
ROPE_FN int64_t rope_key_counted(const rope_attention_call *call, const rope_attention_sequence *s,
                                 int64_t key) {
    const int64_t query = key - rope_query_index(s, 0);
    if (call->k_position.ids)
        return rope_counted(&call->k_position, s, s->k_row, s->k_first + key, key);
    return query < 0 || query >= s->q_count
               ? key
               : rope_counted(&call->rope.position, s, s->q_row, s->q_first + query, key);
}

/* Keys that mask, window and chunk leave to a query, both by what counts as their index. */
ROPE_FN rope_key_range rope_keys_near(const rope_attention_problem *problem,
                                      const rope_attention_sequence *s, int64_t index) {
    rope_key_range seen = {0, s->k_count};
    if (index < 0 && problem->mask == ROPE_MASK_CAUSAL)
        seen.end = 0;
    else if (problem->mask == ROPE_MASK_CAUSAL)
        seen.end = index < s->k_count ? index + 1 : s->k_count;
    else if (index < s->k_count - 1 - problem->window_right)
        seen.end = rope_sum(index, problem->window_right) + 1;
    if (index >= problem->window)
        seen.begin = index - problem->window + 1;
    if (problem->chunk < INT64_MAX) {
        const int64_t whole = rope_sum(index, s->k_index),
                      turns = (whole < 0 ? ~whole : whole) / problem->chunk,
                      turn = whole < 0 ? ~turns : turns,
                      begin = rope_difference(rope_product(turn, problem->chunk), s->k_index);
        seen.begin = begin > seen.begin ? begin : seen.begin;
        seen.end = rope_sum(begin, problem->chunk) < seen.end ? begin + problem->chunk : seen.end;
    }
    return seen;
}

/* Keys that a query may see, but for what rope_tree_sees says of a tree's. */
ROPE_FN rope_key_range rope_keys_counted(const rope_attention_problem *problem,
                                         const rope_attention_sequence *s, int64_t counted) {
    const int64_t first = rope_first_by_id(s);
    rope_key_range seen = rope_keys_near(problem, s, counted);
    if (seen.begin > first)
        seen.begin = first < 0 ? 0 : first;
    if (seen.end > first)
        seen.end = s->k_count;
    if (problem->ring && s->k_count - problem->ring > seen.begin)
        seen.begin = s->k_count - problem->ring;
    if (seen.begin > s->k_count)
        seen.begin = s->k_count;
    if (seen.end < seen.begin)
        seen.end = seen.begin;
    return seen;
}

/* The same of a query of an index, whatever its position id is: neither end falls as that grows. */
ROPE_FN rope_key_range rope_keys_seen(const rope_attention_problem *problem,
                                      const rope_attention_sequence *s, int64_t index) {
    const int64_t first = rope_first_by_id(s);
    return rope_keys_counted(problem, s, index < first ? index : first);
}

/* Most keys that a query of a sequence of n keys may see; queries 0..m - 1 together: m - 1 more. */
ROPE_FN int64_t rope_keys_most(const rope_attention_problem *problem, int64_t n) {
    const int64_t chunk = problem->chunk, window = problem->window,
                  right = chunk < problem->window_right ? chunk : problem->window_right;
    int64_t most = chunk < window ? chunk : window;
    if (problem->mask == ROPE_MASK_TREE)
        most = INT64_MAX; /* the host does not know what ids are */
    else if (problem->mask == ROPE_MASK_FULL)
        most = right < INT64_MAX - most ? most + right : INT64_MAX;
    if (problem->ring && problem->ring < most)
        most = problem->ring;
    return n < most ? n : most;
}

/* The bit of a key in a tree's; below 0 without one. */
ROPE_FN int64_t rope_tree_bit(const rope_attention_call *call, const rope_attention_sequence *s,
                              int64_t key) {
    return rope_sum(key, s->k_index) - s->k_whole + call->tree_keys;
}

/* Whether the tree lets query i of a sequence see a key of those that it may see. */
ROPE_FN int rope_tree_sees(const rope_attention_problem *problem, const rope_attention_call *call,
                           const rope_attention_sequence *s, int64_t i, int64_t key) {
    const int64_t bit = rope_tree_bit(call, s, key);
    const uint32_t *words =
        call->tree_bits + s->q_row * call->tree_stride[0] + (s->q_first + i) * call->tree_stride[1];
    if (bit >= 0 && !(words[bit / 32] >> bit % 32 & 1))
        return 0;
    if (!s->by_id)
        return 1;
    const rope_key_range near = rope_keys_near(problem, s, rope_query_counted(call, s, i));
    const int64_t counted = rope_key_counted(call, s, key);
    return counted >= near.begin && counted < near.end;
}

/* Where key j of a sequence is cached; status ROPE_PLACE_PAGE where the cache lacks its page. */
ROPE_FN rope_place rope_key_place(const rope_attention_problem *problem,
                                  const rope_attention_call *call, const rope_attention_sequence *s,
                                  int64_t key) {
    const int64_t slot = problem->ring ? key % problem->ring : key;
    rope_place place = {ROPE_PLACE_GIVEN, slot, s->index, slot % problem->page_size};
    if (problem->cache == ROPE_CACHE_TABLE)
        place.page = rope_index_of(problem->table_wide, call->block_table,
                                   s->index * call->table_stride[0] +
                                       slot / problem->page_size * call->table_stride[1]);
    if (place.page < 0 || place.page >= call->pages)
        place.status = ROPE_PLACE_PAGE;
    return place;
}

/* Where query i of a sequence stands among its positions, and key j; keys: the call with its keys'
 * positions. */
ROPE_FN rope_site rope_query_site(const rope_attention_call *call, const rope_attention_sequence *s,
                                  int64_t i) {
    rope_site site = rope_site_of(&call->rope.position, s->q_row, s->q_first + i);
    site.sequence = s->index;
    site.index = rope_sum(rope_query_index(s, i), s->k_index);
    site.length = s->k_whole;
    return site;
}

ROPE_FN rope_site rope_key_site(const rope_call *keys, const rope_attention_sequence *s,
                                int64_t j) {
    rope_site site = rope_site_of(&keys->position, s->k_row, s->k_first + j);
    site.sequence = s->index;
    site.index = rope_sum(j, s->k_index);
    site.length = s->k_whole;
    return site;
}

/* The token of query i of a sequence, as a rotation reads it. */
ROPE_FN void rope_query_token(const rope_attention_problem *problem,
                              const rope_attention_call *call, const rope_attention_sequence *s,
                              int64_t i, rope_token *token) {
    const rope_site site = rope_query_site(call, s, i);
    rope_token_at(&problem->rope, &call->rope, &site, token);
}

/* The token of key j: its ids are of its own row, its table of its queries' one. */
ROPE_FN void rope_key_token(const rope_attention_problem *problem, const rope_call *keys,
                            const rope_attention_sequence *s, int64_t j, rope_token *token) {
    const rope_problem *p = &problem->rope;
    const rope_site site = rope_key_site(keys, s, j);
    rope_token_begin(p, keys, &site, token);
    for (int axis = 0; axis < p->axes; axis++) {
        token->at[axis] = rope_position_of(&keys->position, &site, axis);
        if (p->angle_mode == ROPE_ANGLE_TABLE)
            token->at[axis] = rope_token_row(p, keys, s->q_row, token->at[axis], &token->status);
    }
}

#endif
