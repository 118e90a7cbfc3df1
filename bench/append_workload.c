#include "bench/append_workload.h"

#include "bench/message.h"
#include "bench/placement.h"
#include "bench/random.h"
#include "bench/target.h"
#include "tests/oracle/oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Host and device memory of one workload, as of workload.c. */
#define SLABS 5
#define DEFAULT_PAGE 16

static const rope_append_part *part_of(const rope_append_desc *d, int tensor) {
    return tensor == APPEND_Q ? &d->q : tensor == APPEND_K ? &d->k : &d->v;
}

static bool moves(const options *o) {
    return o->appends.k_source == ROPE_SOURCE_CACHE;
}

int64_t append_heads(const options *o, int tensor) {
    if (moves(o) && tensor != APPEND_K)
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

static int64_t sequences(const options *o) {
    return o->cu_seqlens.count ? o->cu_seqlens.count - 1 : o->batch;
}

/* Tokens that a sequence keeps. */
static int64_t kept_tokens(const options *o) {
    int64_t shards = o->desc.shard_size > 1 ? o->desc.shard_size : 1, tokens;
    if (__builtin_mul_overflow(o->tokens, shards, &tokens))
        tokens = INT64_MAX;
    return o->appends.ring && o->appends.ring < tokens ? o->appends.ring : tokens;
}

int64_t append_page_size(const options *o) {
    const int64_t tokens = kept_tokens(o);
    return o->appends.page_size                      ? o->appends.page_size
           : o->appends.cache != ROPE_CACHE_SEQUENCE ? DEFAULT_PAGE
           : tokens                                  ? tokens
                                                     : 1;
}

static int64_t pages_for(const options *o, int64_t tokens) {
    const int64_t size = append_page_size(o), pages = tokens / size + (tokens % size != 0);
    return pages ? pages : 1;
}

static int64_t count_of(int64_t a, int64_t b, int64_t c, int64_t d) {
    return (int64_t)workload_count((const int64_t[]){a, b, c, d}, 4);
}

/* Tokens of different sequences lie in pages of their own. */
static int64_t count_pages(const options *o) {
    const int64_t tokens = count_of(o->batch, o->tokens, 1, 1);
    if (o->appends.cache == ROPE_CACHE_SLOTS)
        return o->position_ids == IDS_RANDOM && tokens ? tokens : pages_for(o, tokens);
    const int64_t each = o->appends.cache == ROPE_CACHE_TABLE ? pages_for(o, kept_tokens(o)) : 1;
    const int64_t pages = count_of(sequences(o), each, 1, 1);
    return pages ? pages : 1;
}

static int32_t store_dtype(const options *o, int tensor) {
    const int32_t own = part_of(&o->appends, tensor)->store_dtype;
    return own ? own : o->desc.dtype;
}

static size_t dtype_bytes(int32_t dtype) {
    return dtype >= ROPE_F8E4M3 ? 1 : (size_t)oracle_dtype_size(dtype);
}

/* Elements of a head that a call in place has to touch. */
static int64_t touched(const options *o, int tensor) {
    const rope_desc *d = &o->desc;
    const rope_append_part *part = part_of(&o->appends, tensor);
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

static bool in_place(const options *o, int tensor) {
    return (tensor == APPEND_Q && o->in_place) || moves(o);
}

/* Bytes read and written of a tensor and of the scales that go with its tokens. */
static size_t moved_bytes(const options *o, int tensor) {
    const int64_t heads = append_heads(o, tensor), tokens = count_of(o->batch, o->tokens, 1, 1);
    const int64_t dim = in_place(o, tensor) ? touched(o, tensor) : append_head_dim(o, tensor);
    const int32_t scale = part_of(&o->appends, tensor)->scale;
    const bool stores = tensor == APPEND_Q || append_is_cached(o, tensor);
    const int64_t all = sequences(o) * kept_tokens(o);
    const int64_t stored = o->appends.ring && stores && tensor && all < tokens ? all : tokens;
    const size_t from = dtype_bytes(moves(o) ? store_dtype(o, tensor) : o->desc.dtype);
    const size_t to = dtype_bytes(stores ? store_dtype(o, tensor) : o->desc.dtype);
    const int64_t scales = scale < ROPE_SCALE_TOKEN_HEAD                    ? 0
                           : moves(o) && scale == ROPE_SCALE_TOKEN_HEAD_MAX ? 2
                                                                            : 1;
    return (size_t)count_of(tokens, heads, dim, 1) * from +
           (size_t)count_of(stored, heads, dim, 1) * to +
           (size_t)count_of(stored, heads, scales, 1) * sizeof(float);
}

size_t append_tensor_bytes(const options *o) {
    return (moved_bytes(o, APPEND_Q) + moved_bytes(o, APPEND_K) + moved_bytes(o, APPEND_V)) / 2;
}

/* --- layout of a set --- */

static append_array take(size_t *used, int32_t dtype, int64_t elements) {
    const append_array made = {*used, (size_t)elements * dtype_bytes(dtype), dtype};
    *used += workload_round_up(made.bytes, WORKLOAD_LINE);
    return made;
}

static int64_t scale_count(const append_state *s, int tensor) {
    const options *o = s->o;
    const int32_t kind = part_of(&s->desc, tensor)->scale;
    const int64_t heads = append_heads(o, tensor);
    if (kind < ROPE_SCALE_TOKEN_HEAD)
        return kind == ROPE_SCALE_HEAD ? heads : kind != 0;
    return tensor == APPEND_Q ? count_of(o->batch, o->tokens, heads, 1)
                              : count_of(s->pages, s->desc.page_size, heads, 1);
}

/* Scales lie behind what a copy writes. */
static void lay_out(append_state *s, size_t copied) {
    const options *o = s->o;
    for (int t = 0; t < APPEND_TENSORS; t++) {
        const int64_t heads = append_heads(o, t), dim = append_head_dim(o, t);
        const int64_t elements = count_of(o->batch, o->tokens, heads, dim);
        const int32_t dtype = o->desc.dtype, stored = store_dtype(o, t);
        if (!moves(o) && !in_place(o, t))
            s->in[t] = take(&s->in_bytes, dtype, elements);
        s->between[t] = take(&s->between_bytes, dtype, elements);
        if (append_is_cached(o, t))
            s->cache[t] =
                take(&s->out_bytes, stored, count_of(s->pages, s->desc.page_size, heads, dim));
        else
            s->out[t] = take(&s->out_bytes, t == APPEND_Q ? stored : dtype, elements);
    }
    s->out_bytes = workload_round_up(s->out_bytes > copied ? s->out_bytes : copied, WORKLOAD_LINE);
    for (int t = 0; t < APPEND_TENSORS; t++)
        s->scale[t] = take(&s->out_bytes, ROPE_F32, scale_count(s, t));
}

/* --- what a set holds --- */

/* Finite numbers of any type. */
static void fill_cache(const append_array *a, char *image, int64_t seed) {
    uint64_t state = (uint64_t)seed;
    if (a->dtype < ROPE_F8E4M3) {
        workload_fill(a->dtype, image + a->start, a->bytes, seed);
        return;
    }
    for (size_t i = 0; i < a->bytes; i++)
        image[a->start + i] = (char)((random_bits(&state) & 0xbf) | 1);
}

static void fill_image(const append_state *s, size_t pitch) {
    const options *o = s->o;
    memset(s->image, WORKLOAD_UNWRITTEN, pitch);
    if (in_place(o, APPEND_Q))
        workload_fill(o->desc.dtype, s->image + s->out[APPEND_Q].start, s->out[APPEND_Q].bytes,
                      o->seed);
    if (moves(o))
        fill_cache(&s->cache[APPEND_K], s->image, o->seed);
    for (int t = 0; t < APPEND_TENSORS; t++) {
        float *scales = (float *)(void *)(s->image + s->scale[t].start);
        for (size_t i = 0; i < s->scale[t].bytes / sizeof *scales; i++)
            scales[i] = (float)(8 + i % 7) / 256;
    }
}

static bool place_weight(workload *w, append_state *s, int tensor, rope_norm_weight *weight) {
    const rope_norm *norm = &part_of(&s->desc, tensor)->norm;
    const int32_t dtype = norm->weight_dtype ? norm->weight_dtype : s->o->desc.dtype;
    if (!norm->type || !norm->weight)
        return true;
    const int64_t heads = norm->scope == ROPE_NORM_TOKEN ? append_heads(s->o, tensor) : 1;
    const size_t bytes =
        (size_t)count_of(heads, append_head_dim(s->o, tensor), 1, 1) * dtype_bytes(dtype);
    void *host = staging_host(&w->memory, "weights", 1, bytes + 1);
    if (!host)
        return false;
    workload_fill(dtype, host, bytes, s->o->seed + 1 + tensor);
    return staging_copy(&w->memory, host, bytes + 1, &weight->data);
}

/* --- where tokens lie in the cache --- */

static int32_t index_dtype(const options *o, int32_t own) {
    return own ? own : o->desc.position_dtype;
}

/* Pages in an order that engines leave them in. */
static void shuffle(int64_t *pages, int64_t count, int64_t seed) {
    uint64_t state = (uint64_t)seed;
    for (int64_t i = 0; i < count; i++)
        pages[i] = i;
    for (int64_t i = count - 1; i > 0; i--) {
        const int64_t other = random_below(&state, i), page = pages[i];
        pages[i] = pages[other];
        pages[other] = page;
    }
}

static int64_t slot_of(const append_state *s, const int64_t *order, int64_t token,
                       uint64_t *state) {
    const options *o = s->o;
    const int64_t size = s->desc.page_size;
    if (o->appends.cache == ROPE_CACHE_SLOTS && o->position_ids == IDS_RANDOM)
        return order[token] * size + random_below(state, size - 1);
    if (o->appends.cache == ROPE_CACHE_SLOTS)
        return order[token / size] * size + token % size;
    const int64_t ring = s->desc.ring ? s->desc.ring : INT64_MAX;
    const int64_t row = token / o->tokens, index = token % o->tokens % ring;
    return o->appends.cache == ROPE_CACHE_SEQUENCE
               ? row * size + index
               : order[row * s->args.table_pages + index / size] * size + index % size;
}

static bool place_slots(workload *w, append_state *s, const int64_t *order) {
    const options *o = s->o;
    const int64_t tokens = o->batch * o->tokens;
    uint64_t state = (uint64_t)o->seed;
    const void *host;
    if (o->appends.cache != ROPE_CACHE_SLOTS && !moves(o))
        return true;
    s->places = staging_host(&w->memory, "slots", tokens, sizeof *s->places);
    for (int64_t i = 0; s->places && i < tokens; i++)
        s->places[i] = slot_of(s, order, i, &state);
    return s->places && (o->appends.cache != ROPE_CACHE_SLOTS ||
                         placement_indices(&w->memory, index_dtype(o, o->appends.slot_dtype),
                                           "slots", s->places, tokens, &host, &s->args.slots));
}

static bool place_cache(workload *w, append_state *s) {
    const options *o = s->o;
    const void *host;
    if (!append_is_cached(o, APPEND_K) && !append_is_cached(o, APPEND_V))
        return true;
    s->args.pages = s->pages;
    int64_t *order = staging_host(&w->memory, "pages", s->pages, sizeof *order);
    int64_t *starts = staging_host(&w->memory, "cache starts", sequences(o) + 1, sizeof *starts);
    if (!order || !starts)
        return false;
    shuffle(order, s->pages, o->seed);
    if (o->appends.cache == ROPE_CACHE_TABLE) {
        s->args.table_pages = pages_for(o, kept_tokens(o));
        if (!placement_indices(&w->memory, index_dtype(o, o->appends.table_dtype), "block table",
                               order, s->pages, &host, &s->args.block_table))
            return false;
    }
    return (o->appends.cache == ROPE_CACHE_SLOTS ||
            placement_indices(&w->memory, index_dtype(o, 0), "cache starts", starts, sequences(o),
                              &host, &s->args.cache_starts)) &&
           place_slots(w, s, order);
}

/* --- calls --- */

static rope_tensor *tensor_of(rope_append_args *a, int tensor) {
    return tensor == APPEND_Q ? &a->rope.q : tensor == APPEND_K ? &a->rope.k : &a->v;
}

static void set_tensor(const options *o, rope_append_args *a, int tensor, const char *in,
                       char *out) {
    rope_tensor *t = tensor_of(a, tensor);
    const int64_t dim = append_head_dim(o, tensor);
    *t = (rope_tensor){.heads = append_heads(o, tensor), .in = in, .out = out};
    if (in)
        workload_strides(o, t->heads, dim, t->in_stride);
    if (out)
        workload_strides(o, t->heads, dim, t->out_stride);
}

static void set_cache(const append_state *s, rope_append_args *a, int tensor, char *out) {
    const options *o = s->o;
    rope_cache *c = tensor == APPEND_K ? &a->k_cache : &a->v_cache;
    const int64_t heads = append_heads(o, tensor), dim = append_head_dim(o, tensor);
    const int64_t size = s->desc.page_size;
    const int32_t block = tensor == APPEND_K ? s->desc.k_dim_block : s->desc.v_dim_block;
    const int64_t x = block ? block : dim;
    const int64_t hnd[5] = {size * heads * dim, x, size * dim, size * x, 1};
    c->data = out + s->cache[tensor].start;
    if (o->page_layout == PAGES_HND)
        memcpy(c->stride, hnd, sizeof hnd);
    if (part_of(&s->desc, tensor)->scale)
        c->scale.data = out + s->scale[tensor].start;
}

/* The whole call over one set. */
static rope_append_args call_on(const append_state *s, const char *in, char *out) {
    const options *o = s->o;
    rope_append_args a = s->args;
    for (int t = 0; t < APPEND_TENSORS; t++) {
        if (append_heads(o, t) == 0)
            continue;
        const bool cached = append_is_cached(o, t);
        char *to = cached ? NULL : out + s->out[t].start;
        set_tensor(o, &a, t, moves(o) ? NULL : in_place(o, t) ? to : in + s->in[t].start, to);
        if (cached)
            set_cache(s, &a, t, out);
    }
    if (s->desc.q.scale && append_heads(o, APPEND_Q))
        a.q_scale.data = out + s->scale[APPEND_Q].start;
    return a;
}

/* --- the same, a step a call --- */

enum { STEP_NORM, STEP_ROTATION, STEP_STORE, STEPS };
static const char *const step_names[] = {"norm", "rotation", "store"};

static bool takes_step(const append_state *s, int tensor, int step) {
    const options *o = s->o;
    const rope_append_part *part = part_of(&s->desc, tensor);
    const bool normal = part->norm.type != 0;
    const bool rotates = tensor != APPEND_V && s->desc.rotation != ROPE_ROTATION_OFF;
    const bool stores = append_is_cached(o, tensor) || part->factor != 0 || part->scale ||
                        store_dtype(o, tensor) != o->desc.dtype;
    return append_heads(o, tensor) > 0 &&
           (step == STEP_NORM       ? normal
            : step == STEP_ROTATION ? rotates
                                    : stores || !(normal || rotates));
}

/* Without what only a rotation reads. */
static rope_desc without_rotation(const rope_desc *d) {
    return (rope_desc){.struct_size = sizeof *d,
                       .dtype = d->dtype,
                       .head_dim = d->head_dim,
                       .k_head_dim = d->k_head_dim,
                       .position_dtype = d->position_dtype,
                       .shard = d->shard,
                       .shard_rank = d->shard_rank,
                       .shard_size = d->shard_size,
                       .launch = d->launch,
                       .backend = d->backend,
                       .device = d->device,
                       .kernel = d->kernel};
}

static rope_append_desc step_desc(const append_state *s, int step) {
    rope_append_desc d = ROPE_APPEND_DESC_INIT;
    const rope_norm none = {0};
    if (step == STEP_NORM) {
        d.q.norm = s->desc.q.norm;
        d.k.norm = s->desc.k.norm;
        d.v.norm = s->desc.v.norm;
        d.v_head_dim = s->desc.v_head_dim;
    } else {
        d = s->desc;
        d.q.norm = d.k.norm = d.v.norm = none;
        d.k_source = 0;
    }
    d.rope = without_rotation(&s->desc.rope);
    d.rotation = ROPE_ROTATION_OFF;
    return d;
}

/* Keys of the cache have their attention factor already, and XPos takes a difference. */
static rope_desc rotation_desc(const append_state *s) {
    rope_desc d = s->desc.rope;
    if (moves(s->o)) {
        d.xpos_center = 0;
        if (d.angle_mode != ROPE_ANGLE_TABLE)
            d.attention_factor = 1;
    }
    return d;
}

/* Tensors go from where their step before left them to where the one behind finds them. */
static rope_append_args step_on(const workload *w, int step, int64_t set) {
    const append_state *s = w->append;
    char *between = s->scratch;
    rope_append_args whole = ((const rope_append_args *)w->calls[0].sets)[set], a = whole;
    for (int t = 0; t < APPEND_TENSORS; t++) {
        const rope_tensor *given = tensor_of(&whole, t);
        bool first = !moves(s->o), last = true;
        for (int other = 0; other < STEPS; other++) {
            first = first && !(other < step && takes_step(s, t, other));
            last = last && !(other > step && takes_step(s, t, other));
        }
        *tensor_of(&a, t) = (rope_tensor){0};
        if (takes_step(s, t, step))
            set_tensor(s->o, &a, t, first ? given->in : between + s->between[t].start,
                       last ? given->out : between + s->between[t].start);
    }
    if (step == STEP_ROTATION)
        return a;
    a.rope.position_offset = 0;
    a.rope.position_ids = a.rope.sequence_offsets = a.rope.sequence_lengths = NULL;
    memset(a.rope.position_stride, 0, sizeof a.rope.position_stride);
    a.rope.cos = a.rope.sin = NULL;
    a.rope.table_rows = 0;
    if (step == STEP_STORE) {
        a.q_weight = a.k_weight = a.v_weight = (rope_norm_weight){0};
        if (a.rope.q.heads == 0)
            a.q_scale = (rope_scale){0};
        return a;
    }
    a.q_scale = (rope_scale){0};
    a.k_cache = a.v_cache = (rope_cache){0};
    a.slots = a.block_table = a.cache_starts = NULL;
    a.pages = a.table_pages = 0;
    return a;
}

static bool add_step(workload *w, int step) {
    const append_state *s = w->append;
    workload_call *c = &w->calls[w->call_count];
    const rope_append_desc desc = step_desc(s, step);
    const rope_desc rotation = rotation_desc(s);
    const bool rotates = step == STEP_ROTATION;
    if (!takes_step(s, 0, step) && !takes_step(s, 1, step) && !takes_step(s, 2, step))
        return true;
    c->name = step_names[step];
    c->size = rotates ? sizeof(rope_args) : sizeof(rope_append_args);
    c->sets = staging_host(&w->memory, "calls", w->set_count, c->size);
    if (!c->sets || !succeeded(rotates ? rope_plan_create(&rotation, &c->plan)
                                       : rope_append_plan_create(&desc, &c->plan),
                               c->name))
        return false;
    w->call_count++;
    for (int64_t i = 0; i < w->set_count; i++) {
        const rope_append_args a = step_on(w, step, i);
        if (rotates)
            ((rope_args *)c->sets)[i] = a.rope;
        else
            ((rope_append_args *)c->sets)[i] = a;
    }
    return true;
}

/* --- a workload --- */

static bool create_plan(workload *w, append_state *s) {
    const options *o = s->o;
    s->desc = o->appends;
    s->desc.struct_size = sizeof s->desc;
    if (moves(o) && (o->cu_seqlens.count || o->desc.shard_size > 1)) {
        message("--k-source is cache; allowed is tensor with --cu-seqlens or --shard");
        return false;
    }
    if (s->desc.cache)
        s->desc.page_size = append_page_size(o);
    w->call_count = 1;
    w->calls[0].size = sizeof(rope_append_args);
    return target_desc(o, &s->desc.rope) &&
           succeeded(rope_append_plan_create(&s->desc, &w->calls[0].plan), "plan");
}

static bool create_memory(workload *w, append_state *s) {
    const options *o = s->o;
    const size_t bytes = w->pitch * (size_t)w->set_count;
    if (!staging_fits("tensors on host and device", SLABS, w->pitch))
        return false;
    char *data = staging_host(&w->memory, "tensors", 1, w->pitch);
    s->image = data ? staging_host(&w->memory, "tensors", 1, w->pitch) : NULL;
    w->calls[0].sets = staging_host(&w->memory, "calls", w->set_count, w->calls[0].size);
    if (!s->image || !w->calls[0].sets || !staging_device(&w->memory, bytes, &w->target) ||
        !staging_device(&w->memory, s->between_bytes + 1, &s->scratch) ||
        (!moves(o) && !staging_device(&w->memory, bytes, &w->source)))
        return false;
    workload_fill(o->desc.dtype, data, w->pitch, o->seed);
    fill_image(s, w->pitch);
    for (int64_t i = 0; i < w->set_count; i++) {
        const size_t start = (size_t)i * w->pitch;
        if (!succeeded(
                rope_device_copy_in(w->device, (char *)w->target + start, s->image, w->pitch),
                "copy in") ||
            (w->source &&
             !succeeded(rope_device_copy_in(w->device, (char *)w->source + start, data, w->pitch),
                        "copy in")))
            return false;
    }
    return true;
}

/* All keys move by the position offset. */
static bool place_distance(workload *w, append_state *s) {
    static const int64_t none[ROPE_MAX_AXES] = {0};
    if (!moves(s->o) || s->args.rope.position_ids)
        return true;
    s->args.rope.position_stride[0] = 1;
    return staging_copy(&w->memory, none, sizeof none, &s->args.rope.position_ids);
}

static bool create_call(workload *w, append_state *s) {
    const options *o = s->o;
    rope_append_args made = ROPE_APPEND_ARGS_INIT;
    s->args = made;
    s->args.rope.batch = o->batch;
    s->args.rope.tokens = o->tokens;
    s->args.rope.position_offset = o->position_offset;
    w->host = s->args.rope;
    if (!placement_create(&w->memory, o, &w->desc, &w->host, &s->args.rope) ||
        !place_distance(w, s) || !place_weight(w, s, APPEND_Q, &s->args.q_weight) ||
        !place_weight(w, s, APPEND_K, &s->args.k_weight) ||
        !place_weight(w, s, APPEND_V, &s->args.v_weight) || !place_cache(w, s))
        return false;
    for (int64_t i = 0; i < w->set_count; i++) {
        const size_t start = (size_t)i * w->pitch;
        ((rope_append_args *)w->calls[0].sets)[i] =
            call_on(s, w->source ? (char *)w->source + start : NULL, (char *)w->target + start);
    }
    return true;
}

bool append_create(workload *w, const options *o) {
    append_state *s = w->append = staging_host(&w->memory, "a set", 1, sizeof *s);
    if (!s)
        return false;
    s->o = o;
    if (!create_plan(w, s))
        return false;
    w->tensor_bytes = w->floor_bytes = append_tensor_bytes(o);
    s->pages = s->desc.cache ? count_pages(o) : 0;
    lay_out(s, w->floor_bytes);
    w->pitch =
        workload_round_up(s->in_bytes > s->out_bytes ? s->in_bytes : s->out_bytes, WORKLOAD_PAGE);
    bool ready = create_memory(w, s) && create_call(w, s);
    for (int step = moves(o) ? STEP_ROTATION : STEP_NORM; ready && step < STEPS; step++)
        ready = add_step(w, step);
    w->timed_count = moves(o) ? 1 : w->call_count;
    return ready;
}

bool append_restore(const workload *w) {
    return succeeded(rope_device_copy_in(w->device, w->target, w->append->image, w->pitch),
                     "copy in");
}

/* --- keys of the cache as a tensor --- */

/* By the formats' definitions: OCP 8-bit floating point 1.0, and AMD's e4m3fnuz. */
double append_decode(int32_t dtype, const char *at, int64_t i) {
    const uint8_t byte = ((const uint8_t *)at)[i];
    const int mantissa = dtype == ROPE_F8E5M2 ? 2 : 3;
    const int bias = dtype == ROPE_F8E5M2 ? 15 : dtype == ROPE_F8E4M3 ? 7 : 8;
    if (dtype < ROPE_F8E4M3)
        return oracle_load(dtype, at, i);
    if (dtype == ROPE_I8)
        return (int8_t)byte;
    const int exponent = (byte & 0x7f) >> mantissa, fraction = byte & ((1 << mantissa) - 1);
    const double size = exponent ? ldexp((1 << mantissa) + fraction, exponent - bias - mantissa)
                                 : ldexp(fraction, 1 - bias - mantissa);
    return byte & 0x80 ? -size : size;
}

/* The element of a place, times its scale, in dtype. */
static double key_at(const append_state *s, const rope_cache *c, int64_t slot, int64_t head,
                     int64_t dim) {
    const options *o = s->o;
    const int64_t heads = append_heads(o, APPEND_K), all = append_head_dim(o, APPEND_K);
    const int64_t size = s->desc.page_size, page = slot / size;
    const int32_t scale = s->desc.k.scale;
    const int64_t x = s->desc.k_dim_block ? s->desc.k_dim_block : all;
    const bool strided = o->page_layout == PAGES_HND;
    const int64_t at = strided ? page * c->stride[0] + slot % size * c->stride[1] +
                                     head * c->stride[2] + dim / x * c->stride[3] + dim % x
                               : (slot * heads + head) * all + dim;
    const float *scales = (const float *)(const void *)(s->image + s->scale[APPEND_K].start);
    const float value =
        (float)append_decode(s->cache[APPEND_K].dtype, s->image + s->cache[APPEND_K].start, at);
    return scale == 0                   ? value
           : scale == ROPE_SCALE_TENSOR ? value * scales[0]
           : scale == ROPE_SCALE_HEAD   ? value * scales[head]
                                        : value * scales[slot * heads + head];
}

/* What the image caches becomes the tensor that the steps rotate and store. */
static bool load_keys(const workload *w) {
    const append_state *s = w->append;
    const options *o = s->o;
    const int64_t heads = append_heads(o, APPEND_K), dims = append_head_dim(o, APPEND_K);
    const rope_append_args *a = w->calls[0].sets;
    int64_t stride[4];
    char *keys = malloc(s->between_bytes + 1);
    workload_strides(o, heads, dims, stride);
    for (int64_t i = 0; keys && i < o->batch * o->tokens; i++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t d = 0; d < dims; d++)
                oracle_store(o->desc.dtype, keys + s->between[APPEND_K].start,
                             i / o->tokens * stride[0] + i % o->tokens * stride[1] + h * stride[2] +
                                 d * stride[3],
                             key_at(s, &a->k_cache, s->places[i], h, d));
    bool loaded =
        keys &&
        succeeded(rope_device_copy_in(w->device, s->scratch, keys, s->between_bytes), "copy in");
    free(keys);
    return loaded;
}

bool append_run_steps(const workload *w) {
    bool done = !moves(w->append->o) || load_keys(w);
    for (int32_t i = 1; done && i < w->call_count; i++)
        done = workload_run(w, i);
    return done;
}
