#include "tests/oracle/append_layout.h"

#include "tests/oracle/oracle.h"
#include "tests/oracle/sequence.h"

#include <string.h>

static int is_given(const int64_t *stride, int count) {
    int given = 0;
    for (int i = 0; i < count; i++)
        given |= stride[i] != 0;
    return given;
}

static void set_strides(const rope_append_args *args, oracle_tensor *v) {
    int64_t token = v->heads * v->dim;
    const int64_t contiguous[4] = {args->rope.tokens * token, token, v->dim, 1};
    const int64_t *in = is_given(v->t->in_stride, 4) ? v->t->in_stride : contiguous;
    const int64_t *out = is_given(v->t->out_stride, 4) ? v->t->out_stride
                         : v->t->in == v->t->out       ? in
                                                       : contiguous;
    memcpy(v->in, in, sizeof v->in);
    memcpy(v->out, out, sizeof v->out);
}

static void set_weight(const rope_append_desc *desc, oracle_tensor *v) {
    const rope_norm *norm = &v->part->norm;
    v->norm_dim = norm->dim ? norm->dim : v->dim - norm->offset;
    v->weight_dtype = norm->weight_dtype ? norm->weight_dtype : desc->rope.dtype;
    v->weight_stride = v->weight->head_stride;
    if (v->weight_stride == 0 && norm->scope == ROPE_NORM_TOKEN)
        v->weight_stride = v->norm_dim;
}

static void set_cache(const rope_append_desc *desc, oracle_tensor *v, int32_t block) {
    v->dim_block = block ? block : v->dim;
    const int64_t contiguous[5] = {desc->page_size * v->heads * v->dim, v->heads * v->dim, v->dim,
                                   v->dim_block, 1};
    const int64_t *stride = is_given(v->cache->stride, 5) ? v->cache->stride : contiguous;
    memcpy(v->cache_stride, stride, sizeof v->cache_stride);
}

/* second: slots of a page, or tokens of q. */
static void set_scale(oracle_tensor *v, int64_t second) {
    const int64_t contiguous[3] = {second * v->heads, v->heads, 1};
    const int64_t *stride = is_given(v->scale->stride, 3) ? v->scale->stride : contiguous;
    for (int i = 0; i < 3; i++)
        v->scale_stride[i] =
            v->part->scale >= ROPE_SCALE_TOKEN_HEAD || (v->part->scale == ROPE_SCALE_HEAD && i == 2)
                ? stride[i]
                : 0;
}

oracle_tensor oracle_append_tensor(const rope_append_desc *desc, const rope_append_args *args,
                                   int32_t tensor) {
    const rope_append_part *const parts[] = {&desc->q, &desc->k, &desc->v};
    const rope_tensor *const tensors[] = {&args->rope.q, &args->rope.k, &args->v};
    const rope_norm_weight *const weights[] = {&args->q_weight, &args->k_weight, &args->v_weight};
    const rope_cache *const caches[] = {NULL, &args->k_cache, &args->v_cache};
    const int32_t dims[] = {0, desc->rope.k_head_dim, desc->v_head_dim};
    oracle_tensor v = {.part = parts[tensor],
                       .t = tensors[tensor],
                       .weight = weights[tensor],
                       .heads = tensors[tensor]->heads,
                       .dim = dims[tensor] ? dims[tensor] : desc->rope.head_dim};
    v.store_dtype = v.part->store_dtype ? v.part->store_dtype : desc->rope.dtype;
    v.out_dtype = tensor == 0 ? v.store_dtype : desc->rope.dtype;
    v.scale = tensor == 0 ? &args->q_scale : &caches[tensor]->scale;
    set_strides(args, &v);
    set_weight(desc, &v);
    set_scale(&v, tensor == 0 ? args->rope.tokens : desc->page_size);
    if (tensor == 0 || !caches[tensor]->data)
        return v;
    v.cache = caches[tensor];
    set_cache(desc, &v, tensor == 1 ? desc->k_dim_block : desc->v_dim_block);
    return v;
}

static int64_t read_index(const rope_append_desc *desc, int32_t dtype, const void *array,
                          int64_t i) {
    return oracle_index(dtype ? dtype : desc->rope.position_dtype, array, i);
}

/* The page that holds index n of a sequence; negative where there is none. */
static int64_t page_of(const rope_append_desc *desc, const rope_append_args *args, int64_t sequence,
                       int64_t n) {
    int64_t which = n / desc->page_size;
    if (desc->cache == ROPE_CACHE_SEQUENCE)
        return which == 0 ? sequence : -1;
    if (which >= args->table_pages)
        return -1;
    const int64_t contiguous[2] = {args->table_pages, 1};
    const int64_t *stride = is_given(args->table_stride, 2) ? args->table_stride : contiguous;
    return read_index(desc, desc->table_dtype, args->block_table,
                      sequence * stride[0] + which * stride[1]);
}

static oracle_place by_slot(const rope_append_desc *desc, const rope_append_args *args,
                            int64_t batch, int64_t token) {
    const int64_t contiguous[2] = {args->rope.tokens, 1};
    const int64_t *stride = is_given(args->slot_stride, 2) ? args->slot_stride : contiguous;
    int64_t n =
        read_index(desc, desc->slot_dtype, args->slots, batch * stride[0] + token * stride[1]);
    oracle_place place = {ORACLE_PLACE_NONE, 0, 0};
    if (n < 0)
        return place;
    place = (oracle_place){ORACLE_PLACE_GIVEN, n / desc->page_size, n % desc->page_size};
    if (place.page >= args->pages)
        place.status = ORACLE_PLACE_FAILS;
    return place;
}

/* The whole sequence's end, or where the call does not have its rank's last token, that of what it
 * has. */
static int64_t end_of(const rope_append_desc *desc, const rope_append_args *args,
                      const oracle_site *site) {
    int64_t ranks = desc->rope.shard_size ? desc->rope.shard_size : 1, tokens = args->rope.tokens;
    if (site->first + site->local <= tokens)
        return site->local * ranks;
    return oracle_site_of(&desc->rope, &args->rope, 0, tokens - 1).index + 1;
}

oracle_place oracle_append_place(const rope_append_desc *desc, const rope_append_args *args,
                                 int64_t batch, int64_t token) {
    oracle_place place = {ORACLE_PLACE_NONE, 0, 0};
    if (desc->cache == 0)
        return place;
    oracle_site site = oracle_site_of(&desc->rope, &args->rope, batch, token);
    if (site.sequence < 0)
        return place;
    if (desc->cache == ROPE_CACHE_SLOTS)
        return by_slot(desc, args, batch, token);
    if (desc->ring && site.index < end_of(desc, args, &site) - desc->ring)
        return place;
    int64_t start = site.shift;
    if (args->cache_starts)
        start = oracle_index(desc->rope.position_dtype, args->cache_starts, site.sequence);
    int64_t n = (int64_t)((uint64_t)site.index + (uint64_t)start);
    place.status = ORACLE_PLACE_FAILS;
    if (n < 0 || !site.divides)
        return place;
    if (desc->ring)
        n %= desc->ring;
    place.page = page_of(desc, args, site.sequence, n);
    place.slot = n % desc->page_size;
    if (place.page >= 0 && place.page < args->pages)
        place.status = ORACLE_PLACE_GIVEN;
    return place;
}

int64_t oracle_cache_at(const oracle_tensor *t, const oracle_place *place, int64_t head,
                        int64_t i) {
    const int64_t *s = t->cache_stride;
    return place->page * s[0] + place->slot * s[1] + head * s[2] + i / t->dim_block * s[3] +
           i % t->dim_block * s[4];
}

int64_t oracle_scale_at(const oracle_tensor *t, int64_t first, int64_t second, int64_t head) {
    return first * t->scale_stride[0] + second * t->scale_stride[1] + head * t->scale_stride[2];
}
