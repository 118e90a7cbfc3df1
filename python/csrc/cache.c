#include "python/csrc/cache.h"

#include "python/csrc/failure.h"
#include "python/csrc/inputs.h"

#include <inttypes.h>
#include <stdio.h>

static int is_stored(int32_t dtype) {
    return (dtype >= ROPE_F32 && dtype <= ROPE_BF16) || (dtype >= ROPE_F8E4M3 && dtype <= ROPE_I8);
}

const char *check_stored(const tensor *lead, const tensor *t, const char *name) {
    if (!is_stored(t->dtype))
        return fail("%s is %s; allowed is float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, "
                    "float8_e4m3fnuz or int8%s",
                    name, tensor_dtype_name(t),
                    t->torch_dtype == aoti_torch_dtype_uint8() ? " (a view of that type)" : "");
    return check_device(lead, t, name);
}

const char *check_scale(const tensor *lead, const stored *s) {
    if (s->scale->dtype != ROPE_F32)
        return fail("%s is %s; allowed is float32", s->scale_name, tensor_dtype_name(s->scale));
    const char *error = check_repeats(s->scale, s->scale_name, "");
    return error ? error : check_device(lead, s->scale, s->scale_name);
}

const char *check_table(const tensor *lead, const tensor *t) {
    if (!t->handle)
        return NULL;
    const char *error = check_index(lead, t, "block_table");
    if (!error && t->dims != 2)
        return fail("block_table has %" PRId64 " dimensions; allowed is [sequences, pages]",
                    t->dims);
    return error ? error : check_repeats(t, "block_table", "");
}

/* ---- sizes ---- */

int32_t cache_head_dim(const tensor *t) {
    if (!t->handle || t->dims < 3)
        return 0;
    const int64_t dim = t->sizes[t->dims - 1] * (t->dims == 5 ? t->sizes[3] : 1);
    return dim > ROPE_MAX_APPEND_HEAD_DIM ? ROPE_MAX_APPEND_HEAD_DIM + 1 : (int32_t)dim;
}

int64_t cache_heads(const tensor *t) {
    return t->dims <= 3 ? 1 : t->sizes[2];
}

int64_t cache_page_size(const tensor *t) {
    return t->handle && t->dims > 2 ? t->sizes[1] : 0;
}

int32_t cache_dim_block(const tensor *t) {
    return t->handle && t->dims == 5 ? (int32_t)t->sizes[4] : 0;
}

/* ---- scales ---- */

int32_t scale_kind(const stored *s) {
    const tensor *t = s->scale;
    if (!t)
        return 0;
    if (s->scale_written)
        return ROPE_SCALE_TOKEN_HEAD_MAX;
    return t->dims == 0 || (t->dims == 1 && t->sizes[0] == 1) ? ROPE_SCALE_TENSOR
           : t->dims == 1                                     ? ROPE_SCALE_HEAD
                                                              : ROPE_SCALE_TOKEN_HEAD;
}

static const char *fail_scale_shape(const stored *s, const int64_t over[3], const int32_t dims[3]) {
    const char *one = s->scale_written ? "" : "one number, one a head or ";
    char shape[128], allowed[128] = "";
    size_t used = 0;
    for (int d = 0; d < 3; d++)
        for (int i = 0; i < 3; i++)
            if (dims[i] == d)
                used += (size_t)snprintf(allowed + used, sizeof allowed - used, "%s%" PRId64,
                                         d ? ", " : "", over[i]);
    return fail("%s has the shape [%s]; allowed is %s[%s], one a token and head", s->scale_name,
                shape_of(s->scale, shape), one, allowed);
}

const char *put_scale(const stored *s, const int64_t over[3], const int32_t dims[3],
                      rope_scale *target) {
    const tensor *t = s->scale;
    const int32_t kind = scale_kind(s);
    int64_t expected = 0;
    if (!t)
        return NULL;
    target->data = s->scale_written ? tensor_write(t) : (void *)tensor_read(t);
    if (kind == ROPE_SCALE_TENSOR)
        return NULL;
    int fits = kind != ROPE_SCALE_HEAD || t->sizes[0] == over[2];
    if (kind == ROPE_SCALE_HEAD)
        target->stride[2] = t->strides[0];
    for (int i = 0; i < 3 && kind != ROPE_SCALE_HEAD; i++) {
        expected += dims[i] >= 0;
        fits &= dims[i] < t->dims && (dims[i] < 0 || t->sizes[dims[i]] == over[i]);
        target->stride[i] = !fits || dims[i] < 0 ? 0 : t->strides[dims[i]];
    }
    if (fits && (kind == ROPE_SCALE_HEAD || t->dims == expected))
        return NULL;
    return fail_scale_shape(s, over, dims);
}

/* ---- pages ---- */

static const char *check_pages(const stored *s, int64_t heads, int64_t head_dim) {
    const tensor *t = s->data;
    if (t->dims < 3 || t->dims > 5)
        return fail("%s has %" PRId64 " dimensions; allowed is 4 (page, slot, head, element), 3 "
                    "without heads or 5 with blocks",
                    s->name, t->dims);
    const int64_t own = cache_heads(t);
    const int64_t dim = t->sizes[t->dims - 1] * (t->dims == 5 ? t->sizes[3] : 1);
    if (own != heads)
        return fail("%s has %" PRId64 " heads; allowed is %" PRId64, s->name, own, heads);
    if (head_dim && dim != head_dim)
        return fail("%s has head_dim %" PRId64 "; allowed is %" PRId64, s->name, dim, head_dim);
    if (dim < 1 || dim > ROPE_MAX_APPEND_HEAD_DIM)
        return fail("%s has head_dim %" PRId64 "; allowed is 1..%d", s->name, dim,
                    ROPE_MAX_APPEND_HEAD_DIM);
    return check_repeats(t, s->name, s->written ? " and is written" : "");
}

const char *put_cache(const stored *s, int64_t heads, int64_t head_dim, rope_cache *target) {
    static const int32_t one_head[] = {0, 1, -1}, several[] = {0, 1, 2};
    const tensor *t = s->data;
    if (!t->handle)
        return NULL;
    const char *error = check_pages(s, heads, head_dim);
    if (error)
        return error;
    const int64_t over[3] = {t->sizes[0], t->sizes[1], heads};
    target->data = s->written ? tensor_write(t) : (void *)tensor_read(t);
    if (!target->data) /* no heads, or no pages */
        return NULL;
    target->stride[0] = t->strides[0];
    target->stride[1] = t->strides[1];
    target->stride[2] = t->dims == 3 ? 0 : t->strides[2];
    target->stride[3] = t->dims == 5 ? t->strides[3] : 0;
    target->stride[4] = t->strides[t->dims - 1];
    return put_scale(s, over, t->dims == 3 ? one_head : several, &target->scale);
}

const char *put_pages(const tensor *k, const tensor *v, int64_t *pages) {
    if (k->handle && v->handle && (k->sizes[0] != v->sizes[0] || k->sizes[1] != v->sizes[1]))
        return fail("v_cache has %" PRId64 " pages of %" PRId64 " slots; allowed is those of "
                    "k_cache, %" PRId64 " of %" PRId64,
                    v->sizes[0], v->sizes[1], k->sizes[0], k->sizes[1]);
    *pages = (k->handle ? k : v)->sizes[0];
    return NULL;
}

const char *put_table(const tensor *t, int64_t sequences, const void **table, int64_t stride[2],
                      int64_t *pages) {
    if (t->sizes[0] != sequences)
        return fail("block_table has %" PRId64 " rows; allowed is %" PRId64 ", one a sequence",
                    t->sizes[0], sequences);
    *table = tensor_read(t);
    stride[0] = t->strides[0];
    stride[1] = t->strides[1];
    *pages = t->sizes[1];
    return NULL;
}
