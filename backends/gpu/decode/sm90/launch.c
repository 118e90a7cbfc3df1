/* The parameters of the kernel that decodes in one launch, and its launches. */
#include "backends/gpu/decode/sm90/choose.h"

#include "backends/gpu/candidate.h"
#include "backends/gpu/geometry.h"

#include <stdio.h>
#include <string.h>

enum { CHUNK = SM90_DECODE_CHUNK, MOST = GPU_DECODE_SM90_MOST };

/* Bytes that a warp has copied and that stay in the L2: so many of all blocks fit there. */
enum { BYTES_STAY = 5 * 8192 };

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

static void fill_cache(const rope_decode_problem *p, const rope_decode_call *call,
                       sm90_decode_call *d) {
    const rope_append_problem *a = p->append;
    const rope_append_call *write = &call->append;
    const rope_attention_call *read = &call->attention;
    const rope_position_map *map = &write->rope.position;
    const int64_t size = p->attention->page_size;
    const int32_t codes = gpu_decode_sm90_store(p), scale = a->steps[ROPE_APPEND_K].scale;
    d->table = p->attention->cache == ROPE_CACHE_TABLE ? read->block_table : NULL;
    d->table_row = read->table_stride[0];
    d->table_page = read->table_stride[1];
    d->pages = (int32_t)read->pages;
    d->page_chunks = (int32_t)gpu_divide_up(size, CHUNK);
    d->held = (int32_t)(read->table_pages * size);
    d->store = codes;
    d->ring = a->ring ? (int32_t)a->ring : MOST;
    d->ring_chunks = (int32_t)(a->ring / CHUNK);
    d->per_ring = a->ring ? gpu_decode_sm90_reciprocal(d->ring_chunks) : 1;
    if (a->ring && a->ring <= d->capacity)
        d->capacity = GPU_DECODE_SM90_MOST_KEYS;
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
    d->slot_row = d->tree_row = d->lse_stride[0] = d->angles.row = 0;
}

static void fill_parts(const gpu_decode_sizes *sizes, int multiprocessors, void *workspace,
                       sm90_decode_call *d) {
    size_t bytes[3];
    gpu_decode_sm90_layout(sizes, multiprocessors, bytes);
    d->parts = (sm90_decode_parts){workspace, (float *)(void *)((char *)workspace + bytes[0]),
                                   (float *)(void *)((char *)workspace + bytes[0] + bytes[1])};
    d->part_tokens = gpu_decode_sm90_is_dense(sizes) ? 0 : d->tokens;
    d->most_splits = (int32_t)gpu_decode_sm90_splits(sizes, multiprocessors);
    d->least_chunks = (int32_t)gpu_decode_sm90_least_chunks(sizes);
    d->stay = BYTES_STAY / (2 * CHUNK * sizes->dim * (d->store ? 1 : 2));
}

static sm90_decode_call call_of(const gpu_decode_launch *l, const gpu_decode_sizes *sizes) {
    const rope_append_call *a = &l->call->append;
    const rope_attention_call *t = &l->call->attention;
    const float scale = l->problem->attention->scale, cap = l->problem->attention->soft_cap;
    sm90_decode_call d = {
        .lengths = t->k_lengths,
        .q_lengths = t->q_lengths,
        .sequences = (int32_t)sizes->sequences,
        .k_heads = (int32_t)sizes->k_heads,
        .group = (int32_t)(sizes->q_heads / sizes->k_heads),
        .tokens = (int32_t)sizes->tokens,
        .row_tokens = (int32_t)a->rope.tokens,
        .band_heads = (int32_t)(sizes->k_heads * gpu_decode_sm90_bands(sizes)),
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
        .steps = {gpu_decode_steps_of(l->problem->append, a, ROPE_APPEND_Q),
                  gpu_decode_steps_of(l->problem->append, a, ROPE_APPEND_K)},
        .lse = t->lse,
        .turns = l->problem->append->rope.set[0].turns,
        .factor = (float)l->problem->append->rope.set[0].attention_factor,
        .angles = gpu_decode_table_of(&a->rope),
        .position_flag = a->rope.position_flag};
    memcpy(d.lse_stride, t->lse_stride, sizeof d.lse_stride);
    fill_cache(l->problem, l->call, &d);
    fill_boundaries(l->call, &d);
    fill_parts(sizes, l->multiprocessors, l->workspace, &d);
    d.per_page = gpu_decode_sm90_reciprocal(d.page_chunks);
    d.per_head = gpu_decode_sm90_reciprocal(d.k_heads);
    d.per_split = gpu_decode_sm90_reciprocal(d.least_chunks);
    d.per_group = gpu_decode_sm90_reciprocal(d.group);
    d.span =
        gpu_decode_sm90_spans(l->problem->attention) ? (int32_t)l->problem->attention->chunk : 0;
    d.per_span = d.span ? gpu_decode_sm90_reciprocal(d.span) : 1;
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
    const int32_t dim = gpu_decode_dim(p), bf16 = p->append->rope.dtype == ROPE_BF16,
                  wide = dim == SM90_DECODE_DIM_OF(1);
    const void *const *elements = gpu_decode_sm90_kernels[bf16][wide],
                      *const *codes = gpu_decode_sm90_store(p) == ROPE_F8E5M2
                                          ? gpu_decode_sm90_e5m2[bf16][wide]
                                          : gpu_decode_sm90_codes[bf16][wide];
    if (gpu_decode_sm90_store(p))
        return instance < 2 ? KERNEL(codes, 0, 8, dim, 1) : KERNEL(codes, instance - 1, 16, dim, 1);
    return instance == 0   ? KERNEL(elements, 0, 4, dim, 0)
           : instance == 1 ? KERNEL(elements, 1, 8, dim, 0)
                           : KERNEL(elements, instance, 16, dim, 0);
}

static int runs(int32_t device) {
    int major = 0, minor = 0;
    return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ==
               cudaSuccess &&
           cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) ==
               cudaSuccess &&
           major == 9 && minor == 0;
}

static rope_status query(const rope_decode_problem *problem, int32_t device, char *reason) {
    const char *declined = problem ? gpu_decode_sm90_decline(problem) : NULL;
    if (!runs(device))
        declined = "declined: it is no GPU of sm_90";
    if (!declined)
        return ROPE_OK;
    snprintf(reason, ROPE_REASON_SIZE, "%s", declined);
    return ROPE_DECLINED;
}

static gpuError_t load(const rope_decode_problem *problem, int32_t *early) {
    const void *functions[SM90_DECODE_INSTANCES];
    for (int32_t i = 0; i < SM90_DECODE_INSTANCES; i++)
        functions[i] = kernel_of(problem, i).function;
    gpuError_t error = gpu_kernels_load(functions, SM90_DECODE_INSTANCES, early);
    for (int32_t i = 0; i < SM90_DECODE_INSTANCES && error == gpuSuccess; i++)
        error = gpu_allow_shared(functions[i], (int32_t)kernel_of(problem, i).shared);
    return error;
}

static gpuError_t launch(const gpu_decode_launch *l) {
    const gpu_decode_sizes sizes = gpu_decode_sm90_sizes(l->problem, l->call);
    const int64_t rows = sizes.tokens * (sizes.q_heads / sizes.k_heads);
    const kernel k = kernel_of(l->problem, gpu_decode_sm90_instance(rows, sizes.tokens));
    sm90_decode_call call = call_of(l, &sizes);
    gpu_decode_sizes seen = sizes; /* of a window, with the rest of its first and last chunk */
    seen.k_tokens = gpu_at_most(sizes.k_tokens, call.window + sizes.tokens + 2 * CHUNK);
    const int64_t items =
        sizes.sequences * call.band_heads * gpu_decode_sm90_splits(&seen, l->multiprocessors);
    const dim3 grid = {(uint32_t)gpu_at_most(items, l->multiprocessors), 1, 1},
               block = {k.threads, 1, 1};
    if (items > l->multiprocessors)
        call.share = (float)(sizes.sequences * call.band_heads) /
                     (float)(gpu_at_most(sizes.sequences, 32) * l->multiprocessors);
    void *arguments[] = {&call};
    return gpu_launch_kernel(k.function, grid, block, arguments, k.shared, l->stream, l->early);
}

const gpu_decode_kernel gpu_decode_sm90 = {
    query, load, gpu_decode_sm90_fits, gpu_decode_sm90_workspace, gpu_decode_sm90_workspace_of,
    launch};
