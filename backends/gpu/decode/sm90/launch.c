/* Which calls take the kernel that decodes in one launch, and its parameters. */
#include "backends/gpu/decode/sm90.h"

#include "backends/gpu/attention/sm90/map.h"
#include "backends/gpu/candidate.h"
#include "backends/gpu/decode/sm90/kernels.h"
#include "backends/gpu/geometry.h"
#include "common/math/attention.h"

#include <string.h>

enum { CHUNK = SM90_DECODE_CHUNK };

/* Chunks of a split, of heads of 128 elements: shorter ones make one sequence faster, and cost many
 * sequences more joins, of as many rows as a key head has heads of queries. */
enum { LEAST_CHUNKS = 23, LEAST_CHUNKS_OF_MANY = 32, FEW_HEADS = 4 };

/* Bytes that a warp has copied and that stay in the L2: so many of all blocks fit there. */
enum { BYTES_STAY = 5 * 8192 };

/* Most items, tokens, slots and key heads; keys, whose number leaves four bits for new tokens, and
 * chunks of a sequence. */
enum { MOST = INT32_MAX / 2, MOST_HEADS = 4096, MOST_KEYS = (1 << 27) - 1, MOST_CHUNKS = 1 << 20 };

/* --- numbers --- */

/* 2^32 / n, rounded up; 0 for 1. */
static uint32_t reciprocal(int64_t n) {
    return n > 1 ? (uint32_t)((((uint64_t)1 << 32) + (uint64_t)n - 1) / (uint64_t)n) : 0;
}

/* Whether numbers up to `most` are divided by n exactly through that. */
static int divides(int64_t n, int64_t most) {
    const uint64_t beyond = ((uint64_t)reciprocal(n) * (uint64_t)n) & UINT32_MAX;
    return most <= UINT32_MAX / (int64_t)(beyond ? beyond : 1);
}

/* --- problems --- */

static int32_t dim_of(const rope_decode_problem *p) {
    return p->append->steps[ROPE_APPEND_Q].head_dim;
}

static int is_rotation(const rope_problem *r, int32_t dim) {
    return r->pairs == dim / 2 && r->angle_mode == ROPE_ANGLE_EXACT && r->axes == 1 &&
           r->frequency_sets == 1 && !r->xpos_rate && r->pairing_in == r->pairing_out &&
           r->arithmetic == ROPE_ARITHMETIC_FP32;
}

static int is_norm(const rope_append_steps *s, int32_t dim, int32_t dtype) {
    return s->norm == ROPE_NORM_RMS && s->norm_scope == ROPE_NORM_HEAD && s->norm_offset == 0 &&
           s->norm_dim == dim && s->weight && s->weight_dtype == dtype;
}

static int is_plain(const rope_append_steps *s, int32_t dim, int32_t dtype) {
    return s->head_dim == dim && s->factor == 1 && (!s->norm || is_norm(s, dim, dtype));
}

/* The type of a cache's codes, or 0 where it has elements. */
static int32_t codes_of(const rope_decode_problem *p) {
    const int32_t store = p->append->steps[ROPE_APPEND_K].store_dtype;
    return store == p->append->rope.dtype ? 0 : store;
}

static int is_cached_plain(const rope_decode_problem *p, int32_t dim) {
    const rope_append_steps *k = &p->append->steps[ROPE_APPEND_K],
                            *v = &p->append->steps[ROPE_APPEND_V];
    const int32_t codes = codes_of(p);
    return k->store_dtype == v->store_dtype && k->scale == v->scale && k->dim_block == dim &&
           v->dim_block == dim &&
           (codes ? codes == ROPE_F8E4M3 || codes == ROPE_I8 : k->scale == 0);
}

static int is_ring(int64_t ring) {
    return ring % CHUNK == 0 && ring >= 2 * CHUNK && ring <= (int64_t)MOST_CHUNKS * CHUNK &&
           divides(ring / CHUNK, MOST / CHUNK);
}

/* Whether a query's chunk may begin behind key 0. */
static int spans(const rope_attention_problem *p) {
    return p->chunk < MOST;
}

const char *gpu_decode_sm90_decline(const rope_decode_problem *problem) {
    const rope_append_problem *a = problem->append;
    const rope_attention_problem *t = problem->attention;
    const rope_append_steps *q = &a->steps[ROPE_APPEND_Q], *k = &a->steps[ROPE_APPEND_K],
                            *v = &a->steps[ROPE_APPEND_V];
    const int32_t dtype = a->rope.dtype, dim = dim_of(problem);
    if (dtype != ROPE_F16 && dtype != ROPE_BF16)
        return "declined: dtype is not of 16 bits";
    if ((dim != SM90_DECODE_DIM_OF(0) && dim != SM90_DECODE_DIM_OF(1)) ||
        !is_plain(q, dim, dtype) || !is_plain(k, dim, dtype) || !is_plain(v, dim, dtype) ||
        v->norm || q->scale || q->store_dtype != dtype)
        return "declined: heads are not of 64 or 128 elements, or have a norm or a factor of "
               "another kind";
    if (!is_cached_plain(problem, dim))
        return "declined: k and v are not cached alike, in dtype, f8e4m3 or i8";
    if ((q->rotates || k->rotates) && !is_rotation(&a->rope, dim))
        return "declined: it rotates a part of heads, or not by exact angles of one axis";
    if (t->window_right != INT64_MAX || rope_mask_counts(t) || !(t->scale > 0))
        return "declined: there is a window to the right, a tree with a window or chunks or a "
               "scale below 0";
    if (t->cache == ROPE_CACHE_TABLE && a->page_size % CHUNK)
        return "declined: pages are not of a multiple of 16 tokens";
    if (a->ring && !is_ring(a->ring))
        return "declined: the ring is of fewer than 32 tokens, or of chunks of 16 by whose number "
               "an index is not divided exactly";
    if (spans(t) && !divides(t->chunk, MOST))
        return "declined: an index is not divided exactly by the chunk";
    return NULL;
}

/* --- sizes --- */

static int32_t instance_of(int64_t rows, int64_t tokens) {
    return rows > 8 || tokens > SM90_DECODE_TOKENS_OF(8) ? 2 : rows > 4;
}

static int64_t most_splits(int64_t k_heads, int multiprocessors) {
    const int64_t most = gpu_at_most(multiprocessors / k_heads, SM90_DECODE_SPLITS);
    return most > 1 ? most : 1;
}

static int64_t least_chunks(const gpu_decode_sizes *s) {
    const int64_t least = s->q_heads > FEW_HEADS * s->k_heads ? LEAST_CHUNKS_OF_MANY : LEAST_CHUNKS;
    return least * SM90_DECODE_DIM_OF(1) / s->dim;
}

/* Splits of the longest sequence, as decode_splits counts them. */
static int64_t splits_of(const gpu_decode_sizes *s, int multiprocessors) {
    const int64_t whole = gpu_divide_up(s->k_tokens, CHUNK) / least_chunks(s);
    int64_t splits = 1;
    while (2 * splits <= whole)
        splits *= 2;
    return gpu_at_most(splits, most_splits(s->k_heads, multiprocessors));
}

static int fits_sizes(const gpu_decode_sizes *s) {
    const int64_t group = s->k_heads ? s->q_heads / s->k_heads : 0;
    return group >= 1 && s->tokens >= 1 && s->tokens <= SM90_DECODE_TOKENS &&
           s->tokens * group <= SM90_DECODE_ROWS && s->sequences >= 1 && s->sequences <= 65536 &&
           s->k_heads <= MOST_HEADS && s->k_heads <= MOST / SM90_DECODE_SPLITS / s->sequences;
}

/* Whether splits leave what they give by places of tokens, because fewer are packed than sequences
 * may have. */
static int is_dense(const gpu_decode_sizes *s) {
    return s->all < s->sequences * s->tokens;
}

static size_t rounded(size_t bytes) {
    return (bytes + 255) / 256 * 256;
}

/* Bytes of counters, of largest logits and of sums, each a multiple of 256. */
static void layout_of(const gpu_decode_sizes *s, int multiprocessors, size_t bytes[3]) {
    const int64_t tokens = is_dense(s) ? s->all : s->sequences * s->tokens;
    const size_t rows = (size_t)(tokens * (s->q_heads / s->k_heads) * s->k_heads),
                 splits = (size_t)splits_of(s, multiprocessors),
                 parts = splits > 1 ? splits * rows : 0,
                 counters = (size_t)(s->sequences * s->k_heads) * SM90_DECODE_HELPERS;
    bytes[0] = rounded(splits > 1 ? counters * 8 : 0);
    bytes[1] = rounded(parts * 8);
    bytes[2] = parts * (size_t)s->dim * 4;
}

size_t gpu_decode_sm90_workspace(const gpu_decode_sizes *given, int multiprocessors) {
    const int64_t group = given->k_heads ? given->q_heads / given->k_heads : 0;
    gpu_decode_sizes sizes = *given;
    size_t bytes[3];
    if (group >= 1 && group <= SM90_DECODE_ROWS)
        sizes.tokens =
            gpu_at_most(sizes.tokens, gpu_at_most(SM90_DECODE_TOKENS, SM90_DECODE_ROWS / group));
    if (!fits_sizes(&sizes))
        return 0;
    layout_of(&sizes, multiprocessors, bytes);
    return bytes[0] + bytes[1] + bytes[2];
}

/* --- calls --- */

static int64_t capacity_of(const rope_decode_problem *p, const rope_attention_call *call) {
    const int64_t size = p->attention->page_size;
    if (call->table_pages > call->k_tokens / size)
        return call->k_tokens;
    return gpu_at_most(call->table_pages * size, call->k_tokens);
}

static gpu_decode_sizes sizes_of(const rope_decode_problem *p, const rope_decode_call *call) {
    const rope_append_call *a = &call->append;
    const rope_position_map *map = &a->rope.position;
    return (gpu_decode_sizes){map->cu_seqlens ? map->sequences : a->rope.batch,
                              call->most_tokens,
                              capacity_of(p, &call->attention),
                              a->tensor[ROPE_APPEND_Q].heads,
                              a->tensor[ROPE_APPEND_K].heads,
                              a->rope.batch * a->rope.tokens,
                              dim_of(p)};
}

/* A cache as tensor copies see it, of 16-bit elements: of codes two are one. */
typedef struct cache_view {
    int64_t stride[3];
    sm90_view view; /* but for its strides */
} cache_view;

static cache_view cache_of(const rope_decode_problem *p, const rope_decode_call *call, int tensor) {
    const rope_append_operand *o = &call->append.tensor[tensor];
    const int64_t each = codes_of(p) ? 2 : 1;
    return (cache_view){
        {o->cache_stride[0] / each, o->cache_stride[1] / each, o->cache_stride[2] / each},
        {o->cache, NULL, o->cache_stride[4], call->attention.pages, p->attention->page_size,
         o->heads, (int32_t)(dim_of(p) / each)}};
}

/* Whether heads lie in words of so many elements. */
static int in_words(const void *data, const int64_t stride[4], int64_t elements) {
    return data && (uintptr_t)data % (2 * elements) == 0 && stride[3] == 1 &&
           stride[0] % elements == 0 && stride[1] % elements == 0 && stride[2] % elements == 0;
}

static int fits_heads(const rope_append_operand *o) {
    return in_words(o->in, o->in_stride, 2) && !o->out && !o->weight_stride &&
           (uintptr_t)o->weight % 4 == 0;
}

static int fits_cache(const rope_decode_problem *p, const rope_decode_call *call, int tensor) {
    const int64_t *given = call->append.tensor[tensor].cache_stride,
                  stride[4] = {given[0], given[1], given[2], given[4]};
    cache_view v = cache_of(p, call, tensor);
    v.view.stride = v.stride;
    return in_words(v.view.data, stride, codes_of(p) ? 16 : 8) && sm90_map_fits(&v.view);
}

static int encode_cache(const rope_decode_problem *p, const rope_decode_call *call, int tensor,
                        CUtensorMap *map) {
    cache_view v = cache_of(p, call, tensor);
    v.view.stride = v.stride;
    return sm90_map_encode(map, p->append->rope.dtype, &v.view, 1, CHUNK,
                           codes_of(p) ? 1 : v.view.dim / 64);
}

int gpu_decode_sm90_fits(const rope_decode_problem *p, const rope_decode_call *call) {
    const rope_append_call *a = &call->append;
    const rope_attention_call *t = &call->attention;
    const gpu_decode_sizes sizes = sizes_of(p, call);
    const int64_t size = p->attention->page_size, page_chunks = gpu_divide_up(size, CHUNK);
    if (!fits_sizes(&sizes) || t->tree_keys > MOST || t->q_lengths || !t->k_lengths ||
        a->tensor[ROPE_APPEND_V].heads != sizes.k_heads)
        return 0;
    if (a->rope.tokens > MOST)
        return 0;
    if (sizes.k_tokens > (int64_t)MOST_CHUNKS * CHUNK || t->table_pages > MOST / size ||
        t->pages > MOST / (page_chunks * CHUNK) ||
        !divides(page_chunks,
                 page_chunks * (t->pages > t->table_pages ? t->pages : t->table_pages)))
        return 0;
    for (int i = 0; i < ROPE_APPEND_TENSORS; i++)
        if (!fits_heads(&a->tensor[i]))
            return 0;
    return fits_cache(p, call, ROPE_APPEND_K) && fits_cache(p, call, ROPE_APPEND_V) &&
           in_words(t->out, t->out_stride, 4);
}

size_t gpu_decode_sm90_workspace_of(const rope_decode_problem *p, const rope_decode_call *call,
                                    int multiprocessors) {
    const gpu_decode_sizes sizes = sizes_of(p, call);
    return gpu_decode_sm90_workspace(&sizes, multiprocessors);
}

static sm90_decode_heads heads_of(const void *data, const int64_t stride[4]) {
    return (sm90_decode_heads){(char *)(uintptr_t)data, 2 * stride[0], 2 * stride[1],
                               2 * stride[2]};
}

/* bytes: of an element. */
static sm90_decode_cache store_of(const rope_append_operand *o, int64_t bytes) {
    return (sm90_decode_cache){o->cache,
                               bytes * o->cache_stride[0],
                               bytes * o->cache_stride[1],
                               bytes * o->cache_stride[2],
                               o->scale,
                               o->scale_stride[0],
                               o->scale_stride[1],
                               o->scale_stride[2]};
}

static sm90_decode_steps steps_of(const rope_append_problem *p, const rope_append_call *call,
                                  int tensor) {
    const rope_append_steps *s = &p->steps[tensor];
    const rope_position_map *map = &call->rope.position;
    return (sm90_decode_steps){
        .ids = map->ids,
        .id_row = map->id_stride[1],
        .id_token = map->id_stride[2],
        .offset = map->offset,
        .offsets = map->offsets,
        .weight = s->norm ? call->tensor[tensor].weight : NULL,
        .eps = s->eps,
        .flags = (s->norm ? SM90_DECODE_NORM : 0) | (s->rotates ? SM90_DECODE_ROTATES : 0) |
                 (p->rope.pairing_in == ROPE_PAIRING_INTERLEAVED ? SM90_DECODE_INTERLEAVED : 0) |
                 (s->rounding == ROPE_NORM_ROUND_TWICE ? SM90_DECODE_NORM_TWICE : 0) |
                 (s->weight == ROPE_NORM_ONE_PLUS_WEIGHT ? SM90_DECODE_NORM_ONE_PLUS : 0) |
                 (map->wide ? SM90_DECODE_WIDE_IDS : 0) |
                 (p->rope.direction != ROPE_FORWARD ? SM90_DECODE_NEGATIVE : 0)};
}

static void fill_cache(const rope_decode_problem *p, const rope_decode_call *call,
                       sm90_decode_call *d) {
    const rope_append_problem *a = p->append;
    const rope_append_call *write = &call->append;
    const rope_attention_call *read = &call->attention;
    const rope_position_map *map = &write->rope.position;
    const int64_t size = p->attention->page_size;
    const int32_t codes = codes_of(p), scale = a->steps[ROPE_APPEND_K].scale;
    d->table = p->attention->cache == ROPE_CACHE_TABLE ? read->block_table : NULL;
    d->table_row = read->table_stride[0];
    d->table_page = read->table_stride[1];
    d->pages = (int32_t)read->pages;
    d->page_chunks = (int32_t)gpu_divide_up(size, CHUNK);
    d->held = (int32_t)(read->table_pages * size);
    d->store = codes;
    d->ring = a->ring ? (int32_t)a->ring : MOST;
    d->ring_chunks = (int32_t)(a->ring / CHUNK);
    d->per_ring = a->ring ? reciprocal(d->ring_chunks) : 1;
    if (a->ring && a->ring <= d->capacity)
        d->capacity = MOST_KEYS;
    d->k_cache = store_of(&write->tensor[ROPE_APPEND_K], codes ? 1 : 2);
    d->v_cache = store_of(&write->tensor[ROPE_APPEND_V], codes ? 1 : 2);
    d->starts = write->starts ? write->starts : map->offsets;
    d->start = write->starts ? 0 : map->offset;
    d->slots = a->cache == ROPE_CACHE_SLOTS ? write->slots : NULL;
    d->slot_row = write->slot_stride[0];
    d->slot_token = write->slot_stride[1];
    d->flags |= (p->attention->table_wide ? SM90_DECODE_WIDE_TABLE : 0) |
                (map->wide ? SM90_DECODE_WIDE_STARTS : 0) |
                (a->slot_wide ? SM90_DECODE_WIDE_SLOTS : 0) | (scale ? SM90_DECODE_SCALED : 0) |
                (scale == ROPE_SCALE_TOKEN_HEAD_MAX ? SM90_DECODE_MAKES_SCALES : 0);
}

/* Packed sequences all lie in the first row. */
static void fill_boundaries(const rope_decode_call *call, sm90_decode_call *d) {
    d->boundaries = call->append.rope.position.cu_seqlens;
    if (!d->boundaries)
        return;
    d->q.row = d->k.row = d->v.row = d->out.row = 0;
    d->steps[0].id_row = d->steps[1].id_row = 0;
    d->slot_row = d->tree_row = d->lse_stride[0] = 0;
}

static void fill_parts(const gpu_decode_sizes *sizes, int multiprocessors, void *workspace,
                       sm90_decode_call *d) {
    size_t bytes[3];
    layout_of(sizes, multiprocessors, bytes);
    d->parts = (sm90_decode_parts){workspace, (float *)(void *)((char *)workspace + bytes[0]),
                                   (float *)(void *)((char *)workspace + bytes[0] + bytes[1])};
    d->part_tokens = is_dense(sizes) ? 0 : d->tokens;
    d->most_splits = (int32_t)splits_of(sizes, multiprocessors);
    d->least_chunks = (int32_t)least_chunks(sizes);
    d->stay = BYTES_STAY / (2 * CHUNK * sizes->dim * (d->store ? 1 : 2));
}

static sm90_decode_call call_of(const gpu_decode_launch *l, const gpu_decode_sizes *sizes) {
    const rope_append_call *a = &l->call->append;
    const rope_attention_call *t = &l->call->attention;
    const float scale = l->problem->attention->scale, cap = l->problem->attention->soft_cap;
    sm90_decode_call d = {
        .lengths = t->k_lengths,
        .sequences = (int32_t)sizes->sequences,
        .k_heads = (int32_t)sizes->k_heads,
        .group = (int32_t)(sizes->q_heads / sizes->k_heads),
        .tokens = (int32_t)sizes->tokens,
        .row_tokens = (int32_t)a->rope.tokens,
        .capacity = (int32_t)sizes->k_tokens,
        .flags = (t->rope.position.wide ? SM90_DECODE_WIDE_LENGTHS : 0) |
                 (l->problem->attention->mask == ROPE_MASK_CAUSAL ? SM90_DECODE_CAUSAL : 0),
        .window = (int32_t)gpu_at_most(l->problem->attention->window, MOST),
        .tree_keys = (int32_t)t->tree_keys,
        .tree_bits = t->tree_bits,
        .tree_row = t->tree_stride[0],
        .tree_token = t->tree_stride[1],
        .sink_dtype = l->problem->attention->sink_dtype,
        .sinks = t->sinks,
        .to_cap = cap > 0 ? scale / cap : 0,
        .unit = 1.44269504f * (cap > 0 ? cap : scale),
        .q = heads_of(a->tensor[ROPE_APPEND_Q].in, a->tensor[ROPE_APPEND_Q].in_stride),
        .k = heads_of(a->tensor[ROPE_APPEND_K].in, a->tensor[ROPE_APPEND_K].in_stride),
        .v = heads_of(a->tensor[ROPE_APPEND_V].in, a->tensor[ROPE_APPEND_V].in_stride),
        .out = heads_of(t->out, t->out_stride),
        .steps = {steps_of(l->problem->append, a, ROPE_APPEND_Q),
                  steps_of(l->problem->append, a, ROPE_APPEND_K)},
        .lse = t->lse,
        .turns = l->problem->append->rope.set[0].turns,
        .factor = (float)l->problem->append->rope.set[0].attention_factor,
        .position_flag = a->rope.position_flag};
    memcpy(d.lse_stride, t->lse_stride, sizeof d.lse_stride);
    fill_cache(l->problem, l->call, &d);
    fill_boundaries(l->call, &d);
    fill_parts(sizes, l->multiprocessors, l->workspace, &d);
    d.per_page = reciprocal(d.page_chunks);
    d.per_head = reciprocal(d.k_heads);
    d.per_split = reciprocal(d.least_chunks);
    d.per_group = reciprocal(d.group);
    d.span = spans(l->problem->attention) ? (int32_t)l->problem->attention->chunk : 0;
    d.per_span = d.span ? reciprocal(d.span) : 1;
    return d;
}

/* --- launches --- */

/* A kernel, and what its launches take. */
typedef struct kernel {
    const void *function;
    uint32_t threads;
    size_t shared;
} kernel;

/* Of an instance by rows. */
#define KERNEL(table, at, rows, dim, codes)                                                        \
    (kernel) {                                                                                     \
        (table)[at], SM90_DECODE_THREADS_OF(rows, codes), SM90_DECODE_SHARED_OF(rows, dim, codes)  \
    }

static kernel kernel_of(const rope_decode_problem *p, int32_t instance) {
    const int32_t dim = dim_of(p), bf16 = p->append->rope.dtype == ROPE_BF16,
                  wide = dim == SM90_DECODE_DIM_OF(1);
    const void *const *elements = gpu_decode_sm90_kernels[bf16][wide],
                      *const *codes = gpu_decode_sm90_codes[bf16][wide];
    if (codes_of(p))
        return instance < 2 ? KERNEL(codes, 0, 8, dim, 1) : KERNEL(codes, 1, 16, dim, 1);
    return instance == 0   ? KERNEL(elements, 0, 4, dim, 0)
           : instance == 1 ? KERNEL(elements, 1, 8, dim, 0)
                           : KERNEL(elements, 2, 16, dim, 0);
}

int gpu_decode_sm90_runs(int32_t device) {
    int major = 0, minor = 0;
    return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ==
               cudaSuccess &&
           cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) ==
               cudaSuccess &&
           major == 9 && minor == 0;
}

gpuError_t gpu_decode_sm90_load(const rope_decode_problem *problem, int32_t *early) {
    const void *functions[SM90_DECODE_INSTANCES];
    for (int32_t i = 0; i < SM90_DECODE_INSTANCES; i++)
        functions[i] = kernel_of(problem, i).function;
    gpuError_t error = gpu_kernels_load(functions, SM90_DECODE_INSTANCES, early);
    for (int32_t i = 0; i < SM90_DECODE_INSTANCES && error == gpuSuccess; i++)
        error = gpu_allow_shared(functions[i], (int32_t)kernel_of(problem, i).shared);
    return error;
}

gpuError_t gpu_decode_sm90_launch(const gpu_decode_launch *l) {
    const gpu_decode_sizes sizes = sizes_of(l->problem, l->call);
    const int64_t rows = sizes.tokens * (sizes.q_heads / sizes.k_heads);
    const kernel k = kernel_of(l->problem, instance_of(rows, sizes.tokens));
    sm90_decode_call call = call_of(l, &sizes);
    CUtensorMap maps[2];
    if (!encode_cache(l->problem, l->call, ROPE_APPEND_K, &maps[0]) ||
        !encode_cache(l->problem, l->call, ROPE_APPEND_V, &maps[1]))
        return cudaErrorInvalidValue;
    gpu_decode_sizes seen = sizes; /* of a window, with the rest of its first and last chunk */
    seen.k_tokens = gpu_at_most(sizes.k_tokens, call.window + sizes.tokens + 2 * CHUNK);
    const int64_t items = sizes.sequences * sizes.k_heads * splits_of(&seen, l->multiprocessors);
    const dim3 grid = {(uint32_t)gpu_at_most(items, l->multiprocessors), 1, 1},
               block = {k.threads, 1, 1};
    void *arguments[] = {&maps[0], &maps[1], &call};
    return gpu_launch_kernel(k.function, grid, block, arguments, k.shared, l->stream, l->early);
}
