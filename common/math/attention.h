/* Sequences of a call of "attention", where their keys lie, and which of them a query sees. */
#ifndef ROPEKIT_COMMON_ATTENTION_H
#define ROPEKIT_COMMON_ATTENTION_H

#include "common/math/cache.h"
#include "common/math/token.h"

/* Queries are tokens q_first.. of batch row q_row, keys the same of k_row; with a cache a
 * sequence's keys are a row of their own, whose tokens k_first is 0 of. */
typedef struct rope_attention_sequence {
    int64_t index; /* which one */
    int64_t q_row, q_first, q_count;
    int64_t k_row, k_first, k_count;
    int64_t by_id; /* the last keys, a tree's, that count by position ids; 0: all by their index */
    int32_t fails; /* 1: its lengths are out of range */
} rope_attention_sequence;

/* Keys first..last - 1. */
typedef struct rope_key_range {
    int64_t first, last;
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

/* Tokens begin..end - 1 of `tokens`, by boundaries; 0 where they are none. */
ROPE_FN int rope_attention_segment(const rope_position_map *map, int64_t sequence, int64_t *first,
                                   int64_t *count) {
    const int64_t begin = rope_index_at(map, map->cu_seqlens, sequence),
                  end = rope_index_at(map, map->cu_seqlens, sequence + 1);
    *first = begin;
    *count = rope_difference(end, begin);
    return begin >= 0 && end >= begin && end <= map->tokens;
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
    rope_attention_sequence s = {index, index, 0, q->tokens, index, 0, call->k_tokens, 0, 0};
    int valid = 1;
    if (k->cu_seqlens)
        s.k_row = 0;
    if (q->cu_seqlens) {
        s.q_row = 0;
        valid = rope_attention_segment(q, index, &s.q_first, &s.q_count);
    } else if (call->q_lengths) {
        s.q_count = rope_index_at(q, call->q_lengths, index);
        valid = s.q_count >= 0 && s.q_count <= q->tokens;
    }
    if (k->cu_seqlens) {
        valid &= rope_attention_segment(k, index, &s.k_first, &s.k_count);
    } else if (call->k_lengths) {
        s.k_count = rope_index_at(k, call->k_lengths, index);
        valid &= s.k_count >= 0 &&
                 rope_attention_kept(problem, s.k_count) <= rope_attention_capacity(problem, call);
    }
    s.fails = !valid;
    if (q->ids && rope_mask_counts(problem))
        s.by_id = call->tree_keys < s.k_count ? call->tree_keys : s.k_count;
    return s;
}

/* Index among the keys of query i of a sequence; below 0 where there are more queries than keys. */
ROPE_FN int64_t rope_query_index(const rope_attention_sequence *s, int64_t i) {
    return s->k_count - s->q_count + i;
}

/* What counts as the index of token `index` of the last keys, of a row's ids: its id, from the
 * first of these keys on up to its own index. Other tokens have no id. */
ROPE_FN int64_t rope_counted(const rope_position_map *map, const rope_attention_sequence *s,
                             int64_t row, int64_t token, int64_t index) {
    const int64_t first = s->k_count - s->by_id;
    if (index < first)
        return index;
    const int64_t id =
        rope_index_at(map, map->ids, row * map->id_stride[1] + token * map->id_stride[2]);
    return id < first ? first : id < index ? id : index;
}

ROPE_FN int64_t rope_query_counted(const rope_attention_call *call,
                                   const rope_attention_sequence *s, int64_t i) {
    return rope_counted(&call->rope.position, s, s->q_row, s->q_first + i, rope_query_index(s, i));
}

/* Of a key: ids are its own, else those of the query that it belongs to. */
ROPE_FN int64_t rope_key_counted(const rope_attention_call *call, const rope_attention_sequence *s,
                                 int64_t key) {
    const int64_t query = key - rope_query_index(s, 0);
    if (call->k_position.ids)
        return rope_counted(&call->k_position, s, s->k_row, s->k_first + key, key);
    return query < 0 ? key
                     : rope_counted(&call->rope.position, s, s->q_row, s->q_first + query, key);
}

/* Keys that mask, window and chunk leave to a query, both by what counts as their index. */
ROPE_FN rope_key_range rope_keys_near(const rope_attention_problem *problem,
                                      const rope_attention_sequence *s, int64_t index) {
    rope_key_range seen = {0, s->k_count};
    if (index < 0 && problem->mask == ROPE_MASK_CAUSAL)
        seen.last = 0;
    else if (problem->mask == ROPE_MASK_CAUSAL)
        seen.last = index + 1;
    else if (index < s->k_count - 1 - problem->window_right)
        seen.last = rope_sum(index, problem->window_right) + 1;
    if (index >= problem->window)
        seen.first = index - problem->window + 1;
    if (problem->chunk < INT64_MAX) {
        const int64_t turn = index < 0 ? (index + 1) / problem->chunk - 1 : index / problem->chunk;
        const int64_t begin = turn * problem->chunk;
        seen.first = begin > seen.first ? begin : seen.first;
        seen.last =
            rope_sum(begin, problem->chunk) < seen.last ? begin + problem->chunk : seen.last;
    }
    return seen;
}

/* Keys that a query may see, but for what rope_tree_sees says of a tree's. */
ROPE_FN rope_key_range rope_keys_counted(const rope_attention_problem *problem,
                                         const rope_attention_sequence *s, int64_t counted) {
    const int64_t first = s->k_count - s->by_id;
    rope_key_range seen = rope_keys_near(problem, s, counted);
    if (seen.first > first)
        seen.first = first;
    if (seen.last > first)
        seen.last = s->k_count;
    if (problem->ring && s->k_count - problem->ring > seen.first)
        seen.first = s->k_count - problem->ring;
    if (seen.last < seen.first)
        seen.last = seen.first;
    return seen;
}

/* The same of a query of an index, whatever its position id is: neither end falls as that grows. */
ROPE_FN rope_key_range rope_keys_seen(const rope_attention_problem *problem,
                                      const rope_attention_sequence *s, int64_t index) {
    const int64_t first = s->k_count - s->by_id;
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

/* Whether the tree lets query i of a sequence see a key of those that it may see. */
ROPE_FN int rope_tree_sees(const rope_attention_problem *problem, const rope_attention_call *call,
                           const rope_attention_sequence *s, int64_t i, int64_t key) {
    const int64_t bit = key - s->k_count + call->tree_keys;
    const uint32_t *words =
        call->tree_bits + s->q_row * call->tree_stride[0] + (s->q_first + i) * call->tree_stride[1];
    if (bit >= 0 && !(words[bit / 32] >> bit % 32 & 1))
        return 0;
    if (!s->by_id)
        return 1;
    const rope_key_range near = rope_keys_near(problem, s, rope_query_counted(call, s, i));
    const int64_t counted = rope_key_counted(call, s, key);
    return counted >= near.first && counted < near.last;
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
    site.index = rope_query_index(s, i);
    site.length = s->k_count;
    return site;
}

ROPE_FN rope_site rope_key_site(const rope_call *keys, const rope_attention_sequence *s,
                                int64_t j) {
    rope_site site = rope_site_of(&keys->position, s->k_row, s->k_first + j);
    site.sequence = s->index;
    site.index = j;
    site.length = s->k_count;
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
