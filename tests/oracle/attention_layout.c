/* Sequences of rope_attention, and where elements lie. */
#include "tests/oracle/attention.h"
#include "tests/oracle/oracle.h"
#include "tests/oracle/sequence.h"

#include <string.h>

static int is_given(const int64_t *stride, int count) {
    int given = 0;
    for (int i = 0; i < count; i++)
        given |= stride[i] != 0;
    return given;
}

static int64_t index_at(const oracle_attention *o, const void *array, int64_t i) {
    return oracle_index(o->desc->rope.position_dtype, array, i);
}

int64_t oracle_attention_head_dim(const oracle_attention *o, int32_t tensor) {
    return tensor == ORACLE_V && o->desc->v_head_dim ? o->desc->v_head_dim : o->desc->rope.head_dim;
}

int64_t oracle_attention_heads(const oracle_attention *o, int32_t tensor) {
    return tensor == ORACLE_Q ? o->args->rope.q.heads : o->args->rope.k.heads;
}

int64_t oracle_attention_key_tokens(const oracle_attention *o) {
    int64_t pages = o->desc->cache == ROPE_CACHE_TABLE ? o->args->table_pages : 1;
    if (o->args->k_tokens)
        return o->args->k_tokens;
    return o->desc->cache ? pages * o->desc->page_size : o->args->rope.tokens;
}

/* --- sequences --- */

int64_t oracle_attention_parts(const oracle_attention *o) {
    return o->args->rope.cu_seqlens ? o->args->rope.sequences : o->args->rope.batch;
}

/* Tokens between boundaries, or the first so many by lengths; returns 1 where there are no such
 * ones. Sequences are whole. */
static int between(const oracle_attention *o, const void *list, const void *lengths, int64_t index,
                   int64_t *first, int64_t *count) {
    int64_t begin = index_at(o, list, index), end = index_at(o, list, index + 1);
    *first = begin;
    *count = lengths ? index_at(o, lengths, index) : end - begin;
    return begin > end || *count < 0 || *count > end - begin;
}

oracle_part oracle_attention_part(const oracle_attention *o, int64_t index) {
    const rope_attention_args *a = o->args;
    int64_t most = oracle_attention_key_tokens(o), pages = most;
    oracle_part s = {.index = index, .q_row = index, .k_row = index};
    s.q_count = a->rope.tokens;
    s.k_count = most;
    if (a->rope.cu_seqlens) {
        s.q_row = 0;
        s.fails = between(o, a->rope.cu_seqlens, a->q_lengths, index, &s.q_first, &s.q_count);
    } else if (a->q_lengths) {
        s.q_count = index_at(o, a->q_lengths, index);
        s.fails = s.q_count < 0 || s.q_count > a->rope.tokens;
    }
    if (a->k_cu_seqlens) {
        s.k_row = 0;
        s.fails |= between(o, a->k_cu_seqlens, a->k_lengths, index, &s.k_first, &s.k_count);
    }
    if (!a->k_lengths || a->k_cu_seqlens)
        return s;
    if (o->desc->cache)
        pages = (o->desc->cache == ROPE_CACHE_TABLE ? a->table_pages : 1) * o->desc->page_size;
    s.k_count = index_at(o, a->k_lengths, index);
    if (o->desc->ring && s.k_count > o->desc->ring)
        s.k_begin = s.k_count - o->desc->ring;
    s.fails |= s.k_count < 0 || s.k_count - s.k_begin > most || s.k_count - s.k_begin > pages;
    return s;
}

/* --- positions --- */

static int64_t shift(const oracle_attention *o, const oracle_part *s) {
    uint64_t sum = (uint64_t)o->args->rope.position_offset;
    if (o->args->rope.sequence_offsets)
        sum += (uint64_t)index_at(o, o->args->rope.sequence_offsets, s->index);
    return (int64_t)sum;
}

int64_t oracle_attention_id_at(const oracle_attention *o, const oracle_part *s, int32_t tensor,
                               int64_t i, int32_t axis) {
    const rope_attention_args *a = o->args;
    const int is_key = tensor == ORACLE_K;
    const int64_t tokens = is_key ? oracle_attention_key_tokens(o) : a->rope.tokens;
    const int64_t rows = is_key && o->desc->cache ? oracle_attention_parts(o) : a->rope.batch;
    const int64_t contiguous[3] = {rows * tokens, tokens, 1};
    const int64_t *given = is_key ? a->k_position_stride : a->rope.position_stride;
    const int64_t *stride = is_given(given, 3) ? given : contiguous;
    int64_t row = is_key ? s->k_row : s->q_row, token = is_key ? s->k_first + i : s->q_first + i;
    return axis * stride[0] + row * stride[1] + token * stride[2];
}

/* Without the shift. */
static int64_t position_of(const oracle_attention *o, const oracle_part *s, int32_t tensor,
                           int64_t i, int32_t axis) {
    const void *ids = tensor == ORACLE_K ? o->args->k_position_ids : o->args->rope.position_ids;
    if (ids)
        return index_at(o, ids, oracle_attention_id_at(o, s, tensor, i, axis));
    return tensor == ORACLE_K ? i : s->k_count - s->q_count + i;
}

int64_t oracle_attention_position(const oracle_attention *o, const oracle_part *s, int32_t tensor,
                                  int64_t i, int32_t axis) {
    return (int64_t)((uint64_t)position_of(o, s, tensor, i, axis) + (uint64_t)shift(o, s));
}

int64_t oracle_attention_by_id(const oracle_attention *o, const oracle_part *s) {
    const rope_attention_desc *d = o->desc;
    if (d->mask != ROPE_MASK_TREE || !(d->window || d->chunk) || !o->args->rope.position_ids)
        return INT64_MAX;
    return s->k_count > o->args->tree_keys ? s->k_count - o->args->tree_keys : 0;
}

int64_t oracle_attention_counted(const oracle_attention *o, const oracle_part *s, int32_t tensor,
                                 int64_t i) {
    const int64_t before = s->k_count - s->q_count, index = tensor == ORACLE_K ? i : before + i,
                  first = oracle_attention_by_id(o, s);
    if (index < first)
        return index;
    if (tensor == ORACLE_K && !o->args->k_position_ids) {
        if (index < before)
            return index;
        tensor = ORACLE_Q;
        i = index - before;
    }
    const int64_t id = position_of(o, s, tensor, i, 0);
    return id < first ? first : id > index ? index : id;
}

int64_t oracle_attention_length(const oracle_attention *o, const oracle_part *s) {
    if (o->args->rope.sequence_lengths)
        return index_at(o, o->args->rope.sequence_lengths, s->index);
    return (int64_t)((uint64_t)s->k_count + (uint64_t)shift(o, s));
}

/* --- elements --- */

static oracle_element in_view(const oracle_attention *o, const rope_tensor *t, int64_t row,
                              int64_t token, int64_t head, int64_t e, int32_t tensor) {
    int64_t tokens = tensor == ORACLE_Q ? o->args->rope.tokens : oracle_attention_key_tokens(o);
    int64_t dim = oracle_attention_head_dim(o, tensor), heads = oracle_attention_heads(o, tensor);
    const int64_t contiguous[4] = {tokens * heads * dim, heads * dim, dim, 1};
    const int64_t *s = is_given(t->in_stride, 4) ? t->in_stride : contiguous;
    oracle_element x = {.array = (void *)(uintptr_t)t->in,
                        .at = row * s[0] + token * s[1] + head * s[2] + e * s[3],
                        .dtype = o->desc->rope.dtype,
                        .has_place = 1};
    return x;
}

int64_t oracle_attention_table_at(const oracle_attention *o, const oracle_part *s, int64_t key) {
    int64_t n = o->desc->ring ? key % o->desc->ring : key;
    const int64_t contiguous[2] = {o->args->table_pages, 1};
    const int64_t *stride = is_given(o->args->table_stride, 2) ? o->args->table_stride : contiguous;
    return s->index * stride[0] + n / o->desc->page_size * stride[1];
}

static int64_t page_of(const oracle_attention *o, const oracle_part *s, int64_t key) {
    int32_t dtype = o->desc->table_dtype ? o->desc->table_dtype : o->desc->rope.position_dtype;
    if (o->desc->cache == ROPE_CACHE_SEQUENCE)
        return s->index;
    return oracle_index(dtype, o->args->block_table, oracle_attention_table_at(o, s, key));
}

static float *scale_at(const rope_scale *scale, int32_t kind, int64_t page_size, int64_t heads,
                       int64_t page, int64_t slot, int64_t head) {
    const int64_t contiguous[3] = {page_size * heads, heads, 1};
    const int64_t *s = is_given(scale->stride, 3) ? scale->stride : contiguous;
    int64_t at = kind >= ROPE_SCALE_TOKEN_HEAD ? page * s[0] + slot * s[1] + head * s[2]
                 : kind == ROPE_SCALE_HEAD     ? head * s[2]
                                               : 0;
    return (float *)scale->data + at;
}

static oracle_element in_cache(const oracle_attention *o, const oracle_part *s, int32_t tensor,
                               int64_t key, int64_t head, int64_t e) {
    const rope_attention_desc *d = o->desc;
    const rope_attention_store *store = tensor == ORACLE_K ? &d->k : &d->v;
    const rope_cache *cache = tensor == ORACLE_K ? &o->args->k_cache : &o->args->v_cache;
    int64_t dim = oracle_attention_head_dim(o, tensor), heads = oracle_attention_heads(o, tensor);
    int64_t block = store->dim_block ? store->dim_block : dim, page = page_of(o, s, key);
    int64_t slot = (d->ring ? key % d->ring : key) % d->page_size;
    const int64_t contiguous[5] = {d->page_size * heads * dim, heads * dim, dim, block, 1};
    const int64_t *c = is_given(cache->stride, 5) ? cache->stride : contiguous;
    oracle_element x = {.array = cache->data, .dtype = store->dtype ? store->dtype : d->rope.dtype};
    x.has_place = page >= 0 && page < o->args->pages;
    if (!x.has_place)
        return x;
    x.at = page * c[0] + slot * c[1] + head * c[2] + e / block * c[3] + e % block * c[4];
    if (store->scale)
        x.scale = scale_at(&cache->scale, store->scale, d->page_size, heads, page, slot, head);
    return x;
}

oracle_element oracle_attention_at(const oracle_attention *o, const oracle_part *s, int32_t tensor,
                                   int64_t i, int64_t head, int64_t e) {
    const rope_attention_args *a = o->args;
    if (tensor == ORACLE_Q)
        return in_view(o, &a->rope.q, s->q_row, s->q_first + i, head, e, tensor);
    if (o->desc->cache)
        return in_cache(o, s, tensor, i, head, e);
    return in_view(o, tensor == ORACLE_K ? &a->rope.k : &a->v, s->k_row, s->k_first + i, head, e,
                   tensor);
}

double oracle_attention_load(const oracle_attention *o, const oracle_element *e) {
    double x = oracle_load(e->dtype, e->array, e->at);
    if (e->scale)
        x = oracle_round(ROPE_F32, x * (double)*e->scale);
    return oracle_round(o->desc->rope.dtype, x);
}

/* --- results --- */

int64_t oracle_attention_out_at(const oracle_attention *o, const oracle_part *s, int64_t i,
                                int64_t head, int64_t e) {
    int64_t dim = oracle_attention_head_dim(o, ORACLE_V), row = o->args->rope.q.heads * dim;
    const int64_t contiguous[4] = {o->args->rope.tokens * row, row, dim, 1};
    const int64_t *stride = is_given(o->args->out.stride, 4) ? o->args->out.stride : contiguous;
    return s->q_row * stride[0] + (s->q_first + i) * stride[1] + head * stride[2] + e * stride[3];
}

int64_t oracle_attention_lse_at(const oracle_attention *o, const oracle_part *s, int64_t i,
                                int64_t head) {
    int64_t heads = o->args->rope.q.heads;
    const int64_t contiguous[3] = {o->args->rope.tokens * heads, heads, 1};
    const int64_t *stride = is_given(o->args->lse_stride, 3) ? o->args->lse_stride : contiguous;
    return s->q_row * stride[0] + (s->q_first + i) * stride[1] + head * stride[2];
}

int64_t oracle_attention_bits_at(const oracle_attention *o, const oracle_part *s, int64_t i) {
    int64_t words = (o->args->tree_keys + 31) / 32;
    const int64_t contiguous[2] = {o->args->rope.tokens * words, words};
    const int64_t *stride = is_given(o->args->tree_stride, 2) ? o->args->tree_stride : contiguous;
    return s->q_row * stride[0] + (s->q_first + i) * stride[1];
}
