#include "bench/workload/shape.h"

#include "bench/support/dtype.h"

#include <string.h>

int64_t shape_product(int64_t a, int64_t b, int64_t c, int64_t d) {
    const int64_t sizes[] = {a, b, c, d};
    const __int128 most = (__int128)1 << 48;
    __int128 product = 1;
    for (int i = 0; i < 4; i++) {
        product *= sizes[i];
        product = product > most ? most : product;
    }
    return (int64_t)product;
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* --- tensors --- */

bool shape_moves(const options *o) {
    return o->appends.k_source == ROPE_SOURCE_CACHE;
}

int64_t shape_heads(const options *o, int tensor) {
    if (tensor == CHECK_Q)
        return shape_moves(o) ? 0 : o->q_heads;
    if (tensor == CHECK_K || o->attention)
        return o->k_heads;
    return !o->append || shape_moves(o) ? 0 : o->v_heads >= 0 ? o->v_heads : o->k_heads;
}

int64_t shape_dim(const options *o, int tensor) {
    const int32_t own = tensor == CHECK_K   ? o->desc.k_head_dim
                        : tensor == CHECK_V ? o->appends.v_head_dim
                                            : 0;
    return own ? own : o->desc.head_dim;
}

int64_t shape_elements(const options *o, int tensor) {
    return shape_product(o->batch, o->tokens, shape_heads(o, tensor), shape_dim(o, tensor));
}

void shape_strides(const options *o, int64_t h, int64_t d, int64_t stride[4]) {
    const int64_t t = o->tokens, b = o->batch;
    const int64_t orders[][4] = {
        {t * h * d, h * d, d, 1}, {h * t * d, d, t * d, 1}, {h * d, b * h * d, d, 1}};
    memcpy(stride, orders[larger(o->layout, LAYOUT_BSHD) - LAYOUT_BSHD], sizeof orders[0]);
}

bool shape_in_place(const options *o, int tensor) {
    return shape_moves(o) || (o->in_place && (tensor == CHECK_Q || !o->append));
}

const rope_append_part *shape_part(const options *o, int tensor) {
    return tensor == CHECK_Q ? &o->appends.q : tensor == CHECK_K ? &o->appends.k : &o->appends.v;
}

int32_t shape_store_dtype(const options *o, int tensor) {
    const int32_t own = shape_part(o, tensor)->store_dtype;
    return own ? own : o->desc.dtype;
}

/* --- the cache --- */

bool shape_is_cached(const options *o, int tensor) {
    return o->appends.cache && tensor != CHECK_Q && shape_heads(o, tensor) > 0;
}

int64_t shape_sequences(const options *o) {
    return o->cu_seqlens.count ? o->cu_seqlens.count - 1 : o->batch;
}

int64_t shape_keys(const options *o) {
    return o->keys ? o->keys : o->tokens;
}

/* Tokens that a sequence keeps. */
static int64_t kept(const options *o) {
    int64_t tokens;
    if (o->attention)
        return shape_keys(o);
    if (__builtin_mul_overflow(o->tokens, larger(o->desc.shard_size, 1), &tokens))
        tokens = INT64_MAX;
    return o->appends.ring && o->appends.ring < tokens ? o->appends.ring : tokens;
}

int64_t shape_page_size(const options *o) {
    enum { USUAL = 16 };
    return o->appends.page_size                      ? o->appends.page_size
           : o->appends.cache != ROPE_CACHE_SEQUENCE ? USUAL
                                                     : larger(kept(o), 1);
}

static int64_t pages_for(const options *o, int64_t tokens) {
    const int64_t size = shape_page_size(o);
    return larger(tokens / size + (tokens % size != 0), 1);
}

int64_t shape_table_pages(const options *o) {
    return o->appends.cache == ROPE_CACHE_SEQUENCE ? 1 : pages_for(o, kept(o));
}

/* Tokens of different sequences lie in pages of their own. */
int64_t shape_pages(const options *o) {
    const int64_t tokens = shape_product(o->batch, o->tokens, 1, 1);
    if (!o->appends.cache)
        return 0;
    if (o->appends.cache == ROPE_CACHE_SLOTS && o->append)
        return o->position_ids == IDS_RANDOM && tokens ? tokens : pages_for(o, tokens);
    return larger(shape_product(shape_sequences(o), shape_table_pages(o), 1, 1), 1);
}

/* --- attention --- */

shape_sequence shape_sequence_of(const options *o, int64_t index) {
    const int64_t *boundary = o->cu_seqlens.values;
    int64_t queries = o->cu_seqlens.count ? boundary[index + 1] - boundary[index] : o->tokens;
    if (queries < 0 || queries > o->tokens) /* which the call refuses */
        queries = 0;
    return (shape_sequence){queries, o->appends.cache ? shape_keys(o) : queries};
}

int32_t shape_rotation(const options *o) {
    return o->attends.rotation ? o->attends.rotation
           : o->appends.cache  ? ROPE_ATTENTION_ROTATE_Q
                               : ROPE_ATTENTION_ROTATE_QK;
}

bool shape_rotates(const options *o, int tensor) {
    return tensor == CHECK_Q   ? shape_rotation(o) != ROPE_ATTENTION_ROTATE_NONE
           : tensor == CHECK_K ? shape_rotation(o) == ROPE_ATTENTION_ROTATE_QK
                               : false;
}

/* Keys first..last - 1 that query i sees. */
typedef struct key_range {
    int64_t first, last;
} key_range;

static key_range keys_of(const options *o, const shape_sequence *s, int64_t i) {
    const rope_attention_desc *d = &o->attends;
    const int64_t own = s->keys - s->queries + i;
    key_range seen = {0, d->mask == ROPE_MASK_FULL ? s->keys : own + 1};
    if (d->window_right && d->window_right < s->keys - 1 - own)
        seen.last = own + d->window_right + 1;
    if (d->window)
        seen.first = larger(0, own - d->window + 1);
    if (d->chunk && own >= 0)
        seen.first = larger(seen.first, own / d->chunk * d->chunk);
    seen.last = larger(seen.first, seen.last < s->keys ? seen.last : s->keys);
    return seen;
}

/* Sequences that differ: rows of a batch are alike. */
static int64_t kinds(const options *o) {
    return o->cu_seqlens.count ? shape_sequences(o) : 1;
}

static size_t attention_bytes(const options *o) {
    const int64_t v_dim = shape_dim(o, CHECK_V), dims = o->desc.head_dim + v_dim;
    const int64_t tokens = shape_product(o->batch, o->decode ? o->tokens : 0, 1, 1);
    size_t bytes =
        dtype_bytes(o->desc.dtype) * (size_t)shape_product(o->batch, o->tokens, o->q_heads, dims);
    int64_t keys = 0;
    for (int64_t n = 0; n < kinds(o); n++) {
        const shape_sequence s = shape_sequence_of(o, n);
        keys += s.queries ? s.keys - keys_of(o, &s, 0).first : 0;
    }
    for (int t = CHECK_K; t <= (o->v_in_k ? CHECK_K : CHECK_V); t++) {
        const size_t stored = dtype_bytes(shape_store_dtype(o, t));
        const int64_t heads = shape_product(o->k_heads, shape_dim(o, t), 1, 1);
        bytes += stored * (size_t)shape_product(o->batch, keys, heads, 1) +
                 (stored + dtype_bytes(o->desc.dtype)) * (size_t)shape_product(tokens, heads, 1, 1);
    }
    /* a gradient for each tensor */
    return bytes / 2 * (o->backward ? 2 : 1);
}

double shape_flops(const options *o) {
    double pairs = 0;
    for (int64_t n = 0; o->attention && n < kinds(o); n++) {
        const shape_sequence s = shape_sequence_of(o, n);
        for (int64_t i = 0; i < s.queries; i++) {
            const key_range seen = keys_of(o, &s, i);
            pairs += (double)(seen.last - seen.first);
        }
    }
    /* scores, dq and dk, and scores again; out, dv and the weights' gradients */
    const double of_q = o->backward ? 4 : 1, of_v = o->backward ? 3 : 1;
    return 2 * pairs * (double)o->batch * (double)o->q_heads *
           (of_q * (double)o->desc.head_dim + of_v * (double)shape_dim(o, CHECK_V));
}

/* --- bytes of rotations and appends --- */

/* Elements of a head that a call in place has to touch. */
static int64_t touched(const options *o, int tensor) {
    const rope_desc *d = &o->desc;
    const rope_append_part *part = shape_part(o, tensor);
    const int64_t dim = shape_dim(o, tensor);
    int64_t first = tensor == CHECK_K && d->k_head_dim ? d->k_rotary_offset : d->rotary_offset;
    int64_t end = first + (d->rotary_dim ? d->rotary_dim : d->head_dim);
    if (o->appends.rotation == ROPE_ROTATION_OFF)
        first = dim, end = 0;
    if (part->norm.type) {
        const int64_t last = part->norm.dim ? part->norm.offset + part->norm.dim : dim;
        first = part->norm.offset < first ? part->norm.offset : first;
        end = larger(end, last);
    }
    if (part->factor != 0 || part->scale == ROPE_SCALE_TOKEN_HEAD_MAX || first < 0 || end > dim)
        return dim;
    return larger(end - first, 0);
}

/* Bytes read and written of a tensor and of the scales that go with its tokens. */
static size_t moved_bytes(const options *o, int tensor, int64_t dim) {
    const int64_t heads = shape_heads(o, tensor), tokens = shape_product(o->batch, o->tokens, 1, 1);
    const int32_t scale = shape_part(o, tensor)->scale;
    const bool stores = o->append && (tensor == CHECK_Q || shape_is_cached(o, tensor));
    const int64_t all = shape_product(shape_sequences(o), kept(o), 1, 1);
    const int64_t stored = o->appends.ring && stores && tensor && all < tokens ? all : tokens;
    const int32_t in = shape_moves(o) ? shape_store_dtype(o, tensor) : o->desc.dtype;
    const int32_t out = stores ? shape_store_dtype(o, tensor) : o->desc.dtype;
    const bool read = shape_moves(o) && scale == ROPE_SCALE_TOKEN_HEAD_MAX;
    const int64_t scales = scale < ROPE_SCALE_TOKEN_HEAD ? 0 : read ? 2 : 1;
    return (size_t)shape_product(tokens, heads, dim, 1) * dtype_bytes(in) +
           (size_t)shape_product(stored, heads, dim, 1) * dtype_bytes(out) +
           (size_t)shape_product(stored, heads, scales, 1) * sizeof(float);
}

size_t shape_bytes(const options *o) {
    size_t bytes = 0;
    if (o->attention)
        return attention_bytes(o);
    for (int t = CHECK_Q; t <= CHECK_V; t++)
        bytes += moved_bytes(o, t, shape_in_place(o, t) ? touched(o, t) : shape_dim(o, t));
    return bytes / 2;
}

size_t shape_tensor_bytes(const options *o) {
    if (o->append || o->attention)
        return shape_bytes(o);
    return (size_t)(shape_elements(o, CHECK_Q) + shape_elements(o, CHECK_K)) *
           dtype_bytes(o->desc.dtype);
}
