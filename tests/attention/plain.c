/* Rotated tensors of a case of rope_attention by rope_append and rope_apply, and the call that
 * attends to them without a rotation, a cache and strides. */
#include "tests/attention/norms.h"
#include "tests/oracle/oracle.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- rotated tensors --- */

static int64_t tokens_of(const oracle_part *s, int32_t tensor) {
    return tensor == ORACLE_Q ? s->q_count : s->k_count - s->k_begin;
}

static int is_used(const oracle_attention *o, const oracle_part *s, int64_t key) {
    for (int64_t i = 0; i < s->q_count; i++)
        if (oracle_attention_in_range(o, s, i, key))
            return 1;
    return 0;
}

static void load(attention_dense *d, const oracle_attention *o, const oracle_part *s,
                 int32_t tensor) {
    const int32_t dtype = o->desc->rope.dtype;
    const int64_t dim = oracle_attention_head_dim(o, tensor),
                  heads = oracle_attention_heads(o, tensor), n = tokens_of(s, tensor),
                  first = tensor == ORACLE_Q ? 0 : s->k_begin;
    unsigned char *data = calloc((size_t)(n * heads * dim) + 1, (size_t)oracle_dtype_size(dtype));
    d->data[s->index][tensor] = data;
    for (int64_t i = 0; i < n; i++)
        for (int64_t h = 0; h < heads; h++) {
            const oracle_element x = oracle_attention_at(o, s, tensor, first + i, h, 0);
            const int fails = !x.has_place, odd = x.scale && !(*x.scale > 0 && *x.scale < INFINITY);
            if ((fails || odd) && is_used(o, s, first + i)) {
                d->places_fail |= fails;
                d->scales_fail |= odd;
            }
            for (int64_t e = 0; e < dim && !fails; e++) {
                const oracle_element y = oracle_attention_at(o, s, tensor, first + i, h, e);
                oracle_store(dtype, data, (i * heads + h) * dim + e, oracle_attention_load(o, &y));
            }
        }
}

rope_desc attention_rotation_desc(const rope_attention_desc *desc) {
    rope_desc rope = desc->rope;
    rope.position_dtype = ROPE_I64;
    rope.shard = 0;
    return rope;
}

rope_plan *attention_rotation_plan(const rope_attention_desc *desc, const char *kernel) {
    rope_desc rope = attention_rotation_desc(desc);
    rope_plan *plan = NULL;
    rope.backend = "cpu";
    rope.device = 0;
    rope.kernel = kernel;
    CHECK_STATUS(ROPE_OK, rope_plan_create(&rope, &plan));
    return plan;
}

attention_rotation attention_rotation_of(const oracle_attention *o, const oracle_part *s,
                                         int32_t tensor, int64_t first, int64_t count) {
    const rope_args *given = &o->args->rope;
    const rope_desc *d = &o->desc->rope;
    const int64_t axes = d->axes ? d->axes : 1, begin = tensor == ORACLE_Q ? 0 : s->k_begin,
                  table = oracle_dtype_size(d->table_dtype ? d->table_dtype : ROPE_F32);
    attention_rotation call = {.args = {.struct_size = sizeof call.args, .batch = 1}};
    call.memory = malloc((size_t)(axes * count + 1) * sizeof *call.memory);
    call.memory[0] = oracle_attention_length(o, s);
    int64_t *ids = call.memory + 1;
    for (int64_t i = 0; i < axes * count; i++)
        ids[i] = oracle_attention_position(o, s, tensor, begin + first + i % count,
                                           (int32_t)(i / count));
    call.args.tokens = count;
    call.args.position_ids = ids;
    if (d->rope_type == ROPE_TYPE_LONGROPE && d->longrope_select <= 1 &&
        d->angle_mode != ROPE_ANGLE_TABLE)
        call.args.sequence_lengths = call.memory;
    call.args.cos = case_advance(given->cos, s->q_row * given->table_stride[0], table);
    call.args.sin = case_advance(given->sin, s->q_row * given->table_stride[0], table);
    call.args.table_rows = given->table_rows;
    memcpy(call.args.table_stride, given->table_stride, sizeof given->table_stride);
    call.args.table_stride[0] = 0;
    return call;
}

rope_status attention_rotate_tokens(const rope_plan *plan, const oracle_attention *o,
                                    const oracle_part *s, int32_t tensor, unsigned char *data,
                                    int64_t first, int64_t count) {
    attention_rotation call = attention_rotation_of(o, s, tensor, first, count);
    const rope_desc *d = &o->desc->rope;
    const int64_t heads = oracle_attention_heads(o, tensor);
    data += first * heads * d->head_dim * oracle_dtype_size(d->dtype);
    *(tensor == ORACLE_Q ? &call.args.q : &call.args.k) =
        (rope_tensor){.in = data, .out = data, .heads = heads};
    rope_status status = rope_apply(plan, &call.args);
    free(call.memory);
    return status;
}

/* All tokens, or where a position fails one by one: keys that no query looks at have none. */
static void rotate_part(attention_dense *d, const rope_plan *plan, const oracle_attention *o,
                        const oracle_part *s, int32_t tensor) {
    unsigned char *data = d->data[s->index][tensor];
    const int64_t n = tokens_of(s, tensor);
    rope_status status = n ? attention_rotate_tokens(plan, o, s, tensor, data, 0, n) : ROPE_OK;
    if (status == ROPE_OK)
        return;
    CHECK_STATUS(ROPE_ERROR_POSITION_RANGE, status);
    for (int64_t i = 0; i < n; i++)
        if (attention_rotate_tokens(plan, o, s, tensor, data, i, 1) != ROPE_OK)
            d->tokens_fail |=
                tensor == ORACLE_Q || o->args->rope.k.out || is_used(o, s, s->k_begin + i);
}

void attention_dense_make(attention_dense *d, const attention_case *c, const char *kernel) {
    const oracle_attention o = attention_oracle(c);
    const int32_t rotation = c->desc.rotation ? c->desc.rotation : ROPE_ATTENTION_ROTATE_QK;
    rope_plan *plan =
        rotation == ROPE_ATTENTION_ROTATE_NONE ? NULL : attention_rotation_plan(&c->desc, kernel);
    memset(d, 0, sizeof *d);
    for (int64_t n = 0; n < c->parts && c->args.rope.tokens; n++) {
        const oracle_part s = oracle_attention_part(&o, n);
        d->parts_fail |= s.fails;
        if (s.fails)
            continue;
        for (int32_t tensor = ORACLE_Q; tensor <= ORACLE_V; tensor++)
            load(d, &o, &s, tensor);
        for (int32_t tensor = ORACLE_Q; tensor <= ORACLE_K; tensor++)
            attention_normalise(c, tensor, tokens_of(&s, tensor), d->data[n][tensor]);
        if (plan)
            rotate_part(d, plan, &o, &s, ORACLE_Q);
        if (rotation == ROPE_ATTENTION_ROTATE_QK)
            rotate_part(d, plan, &o, &s, ORACLE_K);
    }
    rope_plan_destroy(plan);
}

void attention_dense_free(attention_dense *d) {
    for (int n = 0; n < ATTENTION_MAX_PARTS; n++)
        for (int i = 0; i < 3; i++)
            free(d->data[n][i]);
}

/* --- the plain call --- */

static void plain_desc(rope_attention_desc *to, const rope_attention_desc *from) {
    *to = *from;
    to->rope = (rope_desc){.struct_size = sizeof to->rope,
                           .dtype = from->rope.dtype,
                           .head_dim = from->rope.head_dim,
                           .position_dtype = ROPE_I64};
    to->rotation = ROPE_ATTENTION_ROTATE_NONE;
    to->k = to->v = (rope_attention_store){0};
    to->q_norm = to->k_norm = (rope_norm){0};
    to->table_dtype = 0;
    to->page_size = from->ring;
    to->cache = from->ring ? ROPE_CACHE_SEQUENCE : 0;
}

/* Bytes of the parts of a plain call, each at a multiple of 64. */
typedef struct plain_room {
    unsigned char *arena;
    size_t bytes;
} plain_room;

static void *take(plain_room *room, int64_t bytes) {
    void *at = room->arena ? room->arena + room->bytes : NULL;
    room->bytes += ((size_t)bytes + 63) / 64 * 64;
    return at;
}

/* Whether position ids count in the mask. */
static int is_counted(const attention_case *c) {
    return c->desc.mask == ROPE_MASK_TREE && (c->desc.window || c->desc.chunk) &&
           c->args.rope.position_ids;
}

/* Lays the call out: first to know how many bytes it has, then in them. */
static void lay_out(attention_case *p, const attention_case *c, plain_room *room) {
    const oracle_attention o = attention_oracle(c);
    rope_attention_args *a = &p->args;
    const int64_t size = oracle_dtype_size(p->desc.rope.dtype), batch = p->parts,
                  heads = c->args.rope.q.heads, k_heads = c->args.rope.k.heads,
                  dim = p->desc.rope.head_dim, v_dim = oracle_attention_head_dim(&o, ORACLE_V),
                  keys = p->desc.ring ? p->desc.ring : a->k_tokens,
                  rows = batch * a->rope.tokens * heads, words = (c->args.tree_keys + 31) / 32;
    a->rope.q = (rope_tensor){.in = take(room, rows * dim * size), .heads = heads};
    void *k = take(room, batch * keys * k_heads * dim * size),
         *v = take(room, batch * keys * k_heads * v_dim * size);
    a->rope.k.heads = a->v.heads = k_heads;
    *(p->desc.ring ? &a->k_cache.data : (void **)(uintptr_t)&a->rope.k.in) = k;
    *(p->desc.ring ? &a->v_cache.data : (void **)(uintptr_t)&a->v.in) = v;
    a->pages = p->desc.ring ? batch : 0;
    a->out.data = take(room, rows * v_dim * size);
    a->lse = take(room, rows * 4);
    if (!p->alike) { /* cuDNN's backward has no lengths of rows */
        a->q_lengths = take(room, batch * 8);
        a->k_lengths = take(room, batch * 8);
    }
    if (c->desc.sink_dtype)
        a->sinks = take(room, heads * oracle_dtype_size(c->desc.sink_dtype));
    if (c->args.tree_keys)
        a->tree_bits = take(room, batch * a->rope.tokens * words * 4);
    a->tree_keys = c->args.tree_keys;
    if (!is_counted(c))
        return;
    int64_t longest = 1;
    for (int64_t n = 0; n < c->parts; n++) {
        const oracle_part s = oracle_attention_part(&o, n);
        longest = s.k_count > longest ? s.k_count : longest;
    }
    a->rope.position_ids = take(room, batch * a->rope.tokens * 8);
    a->k_position_ids = take(room, batch * longest * 8);
    a->k_position_stride[0] = batch * longest;
    a->k_position_stride[1] = longest;
    a->k_position_stride[2] = 1;
}

/* n rows from one array of rows to another. */
static void copy_rows(const void *to, int64_t to_row, const void *from, int64_t from_row, int64_t n,
                      int64_t bytes) {
    if (to && n > 0) /* an array of no bytes has no place */
        memcpy((char *)(uintptr_t)to + to_row * bytes, (const char *)from + from_row * bytes,
               (size_t)(n * bytes));
}

static void fill_part(attention_case *p, const attention_case *c, const attention_dense *d,
                      int64_t row, const oracle_part *s, int64_t skip) {
    const oracle_attention o = attention_oracle(c);
    rope_attention_args *a = &p->args;
    const int64_t size = oracle_dtype_size(p->desc.rope.dtype),
                  m = s->q_count > skip ? s->q_count - skip : 0, n = s->k_count - s->k_begin,
                  q = c->args.rope.q.heads * p->desc.rope.head_dim * size,
                  k = c->args.rope.k.heads * p->desc.rope.head_dim * size,
                  v = c->args.rope.k.heads * oracle_attention_head_dim(&o, ORACLE_V) * size,
                  words = (c->args.tree_keys + 31) / 32;
    const int64_t ring = p->desc.ring;
    copy_rows(a->q_lengths, row, &m, 0, 1, 8);
    copy_rows(a->k_lengths, row, &s->k_count, 0, 1, 8);
    copy_rows(a->rope.q.in, row * a->rope.tokens, d->data[s->index][ORACLE_Q], skip, m, q);
    for (int64_t j = 0; j < n; j++) {
        const int64_t slot = ring ? row * ring + (s->k_begin + j) % ring : row * a->k_tokens + j;
        copy_rows(ring ? a->k_cache.data : a->rope.k.in, slot, d->data[s->index][ORACLE_K], j, 1,
                  k);
        copy_rows(ring ? a->v_cache.data : a->v.in, slot, d->data[s->index][ORACLE_V], j, 1, v);
    }
    for (int64_t i = 0; i < m && words; i++)
        copy_rows(a->tree_bits, row * a->rope.tokens + i,
                  (const uint32_t *)c->args.tree_bits + oracle_attention_bits_at(&o, s, skip + i),
                  0, 1, words * 4);
    for (int64_t i = 0; i < m && a->k_position_ids; i++) {
        const int64_t id = oracle_attention_counted(&o, s, ORACLE_Q, skip + i);
        copy_rows(a->rope.position_ids, row * a->rope.tokens + i, &id, 0, 1, 8);
    }
    for (int64_t j = oracle_attention_by_id(&o, s); j < s->k_count && a->k_position_ids; j++) {
        const int64_t id = oracle_attention_counted(&o, s, ORACLE_K, j);
        copy_rows(a->k_position_ids, row * a->k_position_stride[1] + j, &id, 0, 1, 8);
    }
}

void attention_plain(attention_case *p, const attention_case *c, const attention_dense *d,
                     int64_t first, int64_t count, int64_t skip) {
    const oracle_attention o = attention_oracle(c);
    plain_room room = {NULL, 64};
    memset(p, 0, sizeof *p);
    plain_desc(&p->desc, &c->desc);
    p->parts = count;
    p->provided = c->provided;
    p->args = (rope_attention_args)ROPE_ATTENTION_ARGS_INIT;
    p->args.rope.batch = count;
    p->args.rope.tokens = p->args.k_tokens = 1;
    p->alike = c->alike;
    const int64_t queries = oracle_attention_part(&o, first).q_count;
    for (int64_t n = 0; n < count; n++) {
        const oracle_part s = oracle_attention_part(&o, first + n);
        const int64_t kept = s.k_count - s.k_begin;
        p->alike &= s.q_count > 0 && s.q_count == queries;
        if (s.q_count - skip > p->args.rope.tokens)
            p->args.rope.tokens = s.q_count - skip;
        if (kept > p->args.k_tokens)
            p->args.k_tokens = kept;
    }
    lay_out(p, c, &room);
    p->base.bytes = room.bytes;
    room = (plain_room){aligned_alloc(64, room.bytes), 64};
    p->base.arena = room.arena;
    if (!room.arena)
        abort();
    memset(room.arena, c->provided ? 0x3c : 0xff, p->base.bytes);
    lay_out(p, c, &room);
    for (int64_t n = 0; n < count; n++) {
        const oracle_part s = oracle_attention_part(&o, first + n);
        fill_part(p, c, d, n, &s, skip);
    }
    if (c->args.sinks && p->args.sinks)
        memcpy((void *)(uintptr_t)p->args.sinks, c->args.sinks,
               (size_t)(c->args.rope.q.heads * oracle_dtype_size(c->desc.sink_dtype)));
}
