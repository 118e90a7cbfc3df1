#include "bench/attention/shape.h"

#include "bench/append/shape.h"
#include "bench/support/dtype.h"

int64_t attention_keys(const options *o) {
    return o->keys ? o->keys : o->tokens;
}

attention_sequence attention_sequence_of(const options *o, int64_t index) {
    const int64_t *boundary = o->cu_seqlens.values;
    int64_t queries = o->cu_seqlens.count ? boundary[index + 1] - boundary[index] : o->tokens;
    if (queries < 0 || queries > o->tokens) /* which the call refuses */
        queries = 0;
    return (attention_sequence){queries, o->appends.cache ? attention_keys(o) : queries};
}

int32_t attention_rotation(const options *o) {
    return o->attends.rotation ? o->attends.rotation
           : o->appends.cache  ? ROPE_ATTENTION_ROTATE_Q
                               : ROPE_ATTENTION_ROTATE_QK;
}

int64_t attention_v_head_dim(const options *o) {
    return o->appends.v_head_dim ? o->appends.v_head_dim : o->desc.head_dim;
}

int64_t attention_page_size(const options *o) {
    return append_page_size_for(o, attention_keys(o));
}

/* Keys first..last - 1 that query i sees. */
typedef struct key_range {
    int64_t first, last;
} key_range;

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static key_range keys_of(const options *o, const attention_sequence *s, int64_t i) {
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

/* Sequences of a batch row; rows are alike. */
static int64_t kinds(const options *o) {
    return o->cu_seqlens.count ? append_sequences(o) : 1;
}

size_t attention_tensor_bytes(const options *o) {
    const int64_t v_dim = attention_v_head_dim(o), dims = o->desc.head_dim + v_dim;
    int64_t keys = 0;
    for (int64_t n = 0; n < kinds(o); n++) {
        const attention_sequence s = attention_sequence_of(o, n);
        keys += s.queries ? s.keys - keys_of(o, &s, 0).first : 0;
    }
    const size_t forward =
        ((size_t)append_count(o->batch, o->tokens, o->q_heads, dims) +
         (size_t)append_count(o->batch, keys, o->k_heads, o->v_in_k ? dims - v_dim : dims)) *
        dtype_bytes(o->desc.dtype) / 2;
    return o->backward ? 2 * forward : forward; /* a gradient for each tensor */
}

double attention_flops(const options *o) {
    double pairs = 0;
    for (int64_t n = 0; n < kinds(o); n++) {
        const attention_sequence s = attention_sequence_of(o, n);
        for (int64_t i = 0; i < s.queries; i++) {
            const key_range seen = keys_of(o, &s, i);
            pairs += (double)(seen.last - seen.first);
        }
    }
    /* scores, dq and dk, and scores again; out, dv and the weights' gradients */
    const double of_q = o->backward ? 4 : 1, of_v = o->backward ? 3 : 1;
    return 2 * pairs * (double)o->batch * (double)o->q_heads *
           (of_q * (double)o->desc.head_dim + of_v * (double)attention_v_head_dim(o));
}
