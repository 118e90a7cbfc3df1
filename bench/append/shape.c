#include "bench/append/shape.h"

#include "bench/support/dtype.h"
#include "bench/workload/workload_set.h"

const rope_append_part *append_part_of(const rope_append_desc *d, int tensor) {
    return tensor == APPEND_Q ? &d->q : tensor == APPEND_K ? &d->k : &d->v;
}

bool append_moves(const options *o) {
    return o->appends.k_source == ROPE_SOURCE_CACHE;
}

int64_t append_heads(const options *o, int tensor) {
    if (append_moves(o) && tensor != APPEND_K)
        return 0;
    return tensor == APPEND_Q                      ? o->q_heads
           : tensor == APPEND_V && o->v_heads >= 0 ? o->v_heads
                                                   : o->k_heads;
}

int64_t append_head_dim(const options *o, int tensor) {
    const int32_t own = tensor == APPEND_K   ? o->desc.k_head_dim
                        : tensor == APPEND_V ? o->appends.v_head_dim
                                             : 0;
    return own ? own : o->desc.head_dim;
}

bool append_is_cached(const options *o, int tensor) {
    return o->appends.cache && tensor != APPEND_Q && append_heads(o, tensor) > 0;
}

/* --- sizes --- */

int64_t append_sequences(const options *o) {
    return o->cu_seqlens.count ? o->cu_seqlens.count - 1 : o->batch;
}

/* Tokens that a sequence keeps. */
int64_t append_kept_tokens(const options *o) {
    int64_t shards = o->desc.shard_size > 1 ? o->desc.shard_size : 1, tokens;
    if (__builtin_mul_overflow(o->tokens, shards, &tokens))
        tokens = INT64_MAX;
    return o->appends.ring && o->appends.ring < tokens ? o->appends.ring : tokens;
}

int64_t append_page_size_for(const options *o, int64_t tokens) {
    enum { USUAL = 16 };
    return o->appends.page_size                      ? o->appends.page_size
           : o->appends.cache != ROPE_CACHE_SEQUENCE ? USUAL
           : tokens                                  ? tokens
                                                     : 1;
}

int64_t append_page_size(const options *o) {
    return append_page_size_for(o, append_kept_tokens(o));
}

int64_t append_pages_for(const options *o, int64_t tokens) {
    const int64_t size = append_page_size(o), pages = tokens / size + (tokens % size != 0);
    return pages ? pages : 1;
}

int64_t append_count(int64_t a, int64_t b, int64_t c, int64_t d) {
    return (int64_t)workload_count((const int64_t[]){a, b, c, d}, 4);
}

/* Tokens of different sequences lie in pages of their own. */
int64_t append_count_pages(const options *o) {
    const int64_t tokens = append_count(o->batch, o->tokens, 1, 1);
    if (o->appends.cache == ROPE_CACHE_SLOTS)
        return o->position_ids == IDS_RANDOM && tokens ? tokens : append_pages_for(o, tokens);
    const int64_t each =
        o->appends.cache == ROPE_CACHE_TABLE ? append_pages_for(o, append_kept_tokens(o)) : 1;
    const int64_t pages = append_count(append_sequences(o), each, 1, 1);
    return pages ? pages : 1;
}

int32_t append_store_dtype(const options *o, int tensor) {
    const int32_t own = append_part_of(&o->appends, tensor)->store_dtype;
    return own ? own : o->desc.dtype;
}

/* Elements of a head that a call in place has to touch. */
static int64_t touched(const options *o, int tensor) {
    const rope_desc *d = &o->desc;
    const rope_append_part *part = append_part_of(&o->appends, tensor);
    const int64_t dim = append_head_dim(o, tensor);
    int64_t first = tensor == APPEND_K && d->k_head_dim ? d->k_rotary_offset : d->rotary_offset;
    int64_t end = first + (d->rotary_dim ? d->rotary_dim : d->head_dim);
    if (o->appends.rotation == ROPE_ROTATION_OFF)
        first = dim, end = 0;
    if (part->norm.type) {
        const int64_t last = part->norm.dim ? part->norm.offset + part->norm.dim : dim;
        first = part->norm.offset < first ? part->norm.offset : first;
        end = last > end ? last : end;
    }
    if (part->factor != 0 || part->scale == ROPE_SCALE_TOKEN_HEAD_MAX || first < 0 || end > dim)
        return dim;
    return end > first ? end - first : 0;
}

bool append_in_place(const options *o, int tensor) {
    return (tensor == APPEND_Q && o->in_place) || append_moves(o);
}

/* Bytes read and written of a tensor and of the scales that go with its tokens. */
static size_t moved_bytes(const options *o, int tensor) {
    const int64_t heads = append_heads(o, tensor), tokens = append_count(o->batch, o->tokens, 1, 1);
    const int64_t dim =
        append_in_place(o, tensor) ? touched(o, tensor) : append_head_dim(o, tensor);
    const int32_t scale = append_part_of(&o->appends, tensor)->scale;
    const bool stores = tensor == APPEND_Q || append_is_cached(o, tensor);
    const int64_t all = append_sequences(o) * append_kept_tokens(o);
    const int64_t stored = o->appends.ring && stores && tensor && all < tokens ? all : tokens;
    const size_t from =
        dtype_bytes(append_moves(o) ? append_store_dtype(o, tensor) : o->desc.dtype);
    const size_t to = dtype_bytes(stores ? append_store_dtype(o, tensor) : o->desc.dtype);
    const int64_t scales = scale < ROPE_SCALE_TOKEN_HEAD                           ? 0
                           : append_moves(o) && scale == ROPE_SCALE_TOKEN_HEAD_MAX ? 2
                                                                                   : 1;
    return (size_t)append_count(tokens, heads, dim, 1) * from +
           (size_t)append_count(stored, heads, dim, 1) * to +
           (size_t)append_count(stored, heads, scales, 1) * sizeof(float);
}

size_t append_tensor_bytes(const options *o) {
    return (moved_bytes(o, APPEND_Q) + moved_bytes(o, APPEND_K) + moved_bytes(o, APPEND_V)) / 2;
}
