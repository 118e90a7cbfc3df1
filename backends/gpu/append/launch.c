/*
 * From a call of "append" to its launch: kernel, grid, block and parameters. The first kernel that
 * strides, addresses and size of the call fit is taken: moved, latent or plain, vector, generic.
 */
#include "backends/gpu/append/launch.h"

#include "backends/gpu/platform/tuning.h"

/* Dynamic shared memory of a block, which every device has. */
enum { SHARED_MOST = 46 << 10 };

typedef struct launch {
    const void *kernel;
    dim3 grid, block;
    size_t shared;      /* bytes of dynamic shared memory */
    void *arguments[3]; /* of the kernel, some in what follows */
    gpu_append_plain_call plain;
    gpu_append_latent_call latent;
    gpu_append_vectors vectors;
} launch;

/* Each plans a launch, or gives 0 where the kernel does not fit the call. */
static int plan_moved(const gpu_append_bound *bound, const rope_append_call *call, launch *l);
static int plan_latent(const gpu_append_bound *bound, const rope_append_call *call, launch *l);
static int plan_plain(const gpu_append_bound *bound, const rope_append_call *call, launch *l);
static int plan_vector(const gpu_append_bound *bound, const rope_append_call *call, launch *l);
static void plan_generic(const gpu_append_bound *bound, const rope_append_call *call, launch *l);

gpuError_t gpu_append_launch(const gpu_append_bound *bound, const rope_append_call *call,
                             void *stream) {
    launch l;
    l.shared = 0;
    if ((bound->most != GPU_APPEND_BY_MOVED || !plan_moved(bound, call, &l)) &&
        (bound->most != GPU_APPEND_BY_LATENT || !plan_latent(bound, call, &l)) &&
        (bound->most != GPU_APPEND_BY_PLAIN || !plan_plain(bound, call, &l)) &&
        (bound->most < GPU_APPEND_BY_VECTOR || !plan_vector(bound, call, &l)))
        plan_generic(bound, call, &l);
    return gpu_launch_kernel(l.kernel, l.grid, l.block, l.arguments, l.shared, stream,
                             bound->on.early);
}

static int64_t ceiling(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

static int64_t at_most(int64_t n, int64_t most) {
    return n < most ? n : most;
}

static int32_t size_of(int32_t dtype) {
    return dtype >= ROPE_F8E4M3 ? 1 : dtype == ROPE_F32 ? 4 : 2;
}

/* -- vector: what of a problem it takes -- */

static const char *declines_norm(const rope_append_steps *s) {
    if (s->norm == 0)
        return NULL;
    if (s->norm_scope != ROPE_NORM_HEAD)
        return "declined: a norm is over all heads of a token";
    if ((s->norm_offset | s->norm_dim) % GPU_APPEND_V)
        return "declined: offset or dim of a norm is no multiple of 8";
    return s->norm_dim > GPU_APPEND_V * GPU_APPEND_NODES * GPU_APPEND_SUMS
               ? "declined: dim of a norm exceeds 512"
               : NULL;
}

static const char *declines_steps(const rope_append_steps *s) {
    if (s->head_dim % GPU_APPEND_V)
        return "declined: a head_dim is no multiple of 8";
    if (s->dim_block != s->head_dim &&
        (s->dim_block % GPU_APPEND_V || (s->dim_block & (s->dim_block - 1))))
        return "declined: a dim_block is neither head_dim nor a power of two from 8 on";
    return declines_norm(s);
}

const char *gpu_append_vector_declines(const rope_append_problem *p) {
    const rope_problem *r = &p->rope;
    const char *declined = NULL;
    if (r->pairs % GPU_APPEND_V)
        return "declined: rotary_dim is no multiple of 16";
    if (r->pairs && (r->rotary_offset[0] | r->rotary_offset[1]) % GPU_APPEND_V)
        return "declined: a rotary_offset is no multiple of 8";
    if (r->pairs && r->angle_mode == ROPE_ANGLE_TABLE && r->table_width != ROPE_TABLE_HALF)
        return "declined: table_width is full";
    for (int t = 0; t < ROPE_APPEND_TENSORS && !declined; t++)
        declined = declines_steps(&p->steps[t]);
    return declined;
}

/* -- vector: what of a call it takes -- */

/* Strides that count, over `count` dimensions of these sizes. */
static uint64_t strides_used(const int64_t *stride, const int64_t *size, int count) {
    uint64_t used = 0;
    for (int i = 0; i < count; i++)
        used |= size[i] > 1 ? (uint64_t)stride[i] : 0;
    return used;
}

/* Whether vectors lie at multiples of their size, 16 bytes at most. */
static int is_aligned(const void *pointer, uint64_t strides, int32_t dtype) {
    const uint64_t bytes = GPU_APPEND_V * (uint64_t)size_of(dtype);
    return strides % GPU_APPEND_V == 0 && (uintptr_t)pointer % (bytes > 16 ? 16 : bytes) == 0;
}

static int has_vectors(const rope_append_problem *p, const rope_append_call *call, int t) {
    const rope_append_operand *o = &call->tensor[t];
    const rope_append_steps *s = &p->steps[t];
    const int32_t dtype = p->rope.dtype, out = t == ROPE_APPEND_Q ? s->store_dtype : dtype;
    const int64_t heads[] = {call->rope.batch, call->rope.tokens, o->heads},
                  places[] = {call->pages, p->page_size, o->heads, s->head_dim / s->dim_block};
    if (o->in &&
        (o->in_stride[3] != 1 || !is_aligned(o->in, strides_used(o->in_stride, heads, 3), dtype)))
        return 0;
    if (o->out &&
        (o->out_stride[3] != 1 || !is_aligned(o->out, strides_used(o->out_stride, heads, 3), out)))
        return 0;
    if (o->cache &&
        (o->cache_stride[4] != 1 ||
         !is_aligned(o->cache, strides_used(o->cache_stride, places, 4), s->store_dtype)))
        return 0;
    return !s->norm || !s->weight ||
           is_aligned(o->weight, o->heads > 1 ? (uint64_t)o->weight_stride : 0, s->weight_dtype);
}

/* -- vector: parameters -- */

static uint8_t log2_of(int32_t n) {
    uint8_t log = 0;
    while (n > INT64_C(1) << log)
        log++;
    return log;
}

/* In place, where nothing but the rotation changes a head, what lies around its window stays. */
static int leaves_rest(const rope_append_problem *p, const rope_append_operand *o, int t) {
    const rope_append_steps *s = &p->steps[t];
    return o->in == o->out && !o->cache && s->rotates && !s->norm && s->factor == 1 &&
           (t != ROPE_APPEND_Q || s->store_dtype == p->rope.dtype);
}

/* Whether an RMS norm takes whole heads of whole windows, or of none, whose threads are 4 to 32, a
 * power of two, so that a warp has all of a head's. */
static int sums_by_shuffles(const rope_append_steps *s, const gpu_append_tensor *v) {
    const int32_t lanes = v->lanes;
    return s->norm == ROPE_NORM_RMS && s->norm_dim == s->head_dim &&
           lanes * 2 * GPU_APPEND_V == s->head_dim && lanes >= 4 && lanes <= 32 &&
           !(lanes & (lanes - 1)) && (lanes == v->window_lanes || lanes == v->rest_lanes);
}

/* How the threads of a block share a head, and how many heads and tokens it has. */
static void distribute_heads(const rope_append_problem *p, const rope_append_operand *o, int t,
                             int threads, int thread_heads, int64_t rows, gpu_append_tensor *v) {
    const rope_append_steps *s = &p->steps[t];
    const int32_t lane = 2 * GPU_APPEND_V, width = s->rotates ? 2 * p->rope.pairs : 0,
                  rest = leaves_rest(p, o, t) ? 0 : s->head_dim - width;
    v->width = (uint16_t)width;
    v->window = (uint16_t)(s->rotates ? p->rope.rotary_offset[t] : 0);
    v->window_lanes = (uint16_t)(width / lane);
    v->rest = (uint16_t)rest;
    v->rest_lanes = (uint16_t)ceiling(rest, lane);
    v->lanes = (uint16_t)(v->window_lanes + v->rest_lanes);
    v->sums = (uint8_t)(s->norm ? ceiling(s->norm_dim, GPU_APPEND_V * GPU_APPEND_NODES) : 0);
    v->packed = p->rope.dtype != ROPE_F32 && s->norm == ROPE_NORM_RMS &&
                s->weight == ROPE_NORM_WEIGHT && s->weight_dtype == p->rope.dtype &&
                s->rounding == ROPE_NORM_ROUND_TWICE;
    v->shuffles = sums_by_shuffles(s, v);
    v->units = (uint16_t)(threads / v->lanes);
    v->thread_heads = (uint16_t)at_most(thread_heads, v->heads);
    const int64_t heads = ceiling(v->heads, v->thread_heads);
    v->head_blocks = (int32_t)ceiling(heads, v->units);
    v->block_heads = (uint16_t)ceiling(heads, v->head_blocks);
    v->block_tokens =
        (uint16_t)at_most(at_most(v->units / v->block_heads, GPU_APPEND_TOKENS), rows);
    v->per_lane = (uint32_t)((1 << 20) / v->lanes + 1);
    v->per_head = (uint32_t)((1 << 20) / v->block_heads + 1);
}

/* From a token to the next in units of `size`, and what a batch row adds to its tokens' strides. */
static int64_t token_stride(const rope_append_call *call, const int64_t *stride, int64_t size,
                            int64_t *batch) {
    const int64_t tokens = call->rope.tokens;
    *batch = 0;
    if (tokens == 1)
        return call->rope.batch > 1 ? stride[0] * size : 0;
    if (call->rope.batch > 1)
        *batch = (stride[0] - tokens * stride[1]) * size;
    return stride[1] * size;
}

/* A stride of a dimension of `count` entries; *near becomes 0 where 32 bits do not hold it. */
static int32_t near_stride(int64_t stride, int64_t count, int *near) {
    if (count <= 1)
        return 0;
    *near &= stride <= INT32_MAX && stride >= -INT32_MAX;
    return (int32_t)stride;
}

static void fill_store(const rope_append_problem *p, const rope_append_operand *o,
                       const rope_append_steps *s, int *near, gpu_append_tensor *v) {
    const int64_t size = size_of(s->store_dtype);
    v->store = o->cache;
    v->store_page = o->cache_stride[0] * size;
    v->store_slot = near_stride(o->cache_stride[1] * size, p->page_size, near);
    v->store_head = near_stride(o->cache_stride[2] * size, o->heads, near);
    v->scale_page = o->scale_stride[0];
    v->scale_slot = near_stride(o->scale_stride[1], p->page_size, near);
    if (s->dim_block == s->head_dim)
        return;
    v->block_shift = log2_of(s->dim_block);
    v->store_block = near_stride(o->cache_stride[3] * size, 2, near);
}

/* Parameters of a tensor; 0 where its strides are too far. */
static int fill_tensor(const rope_append_problem *p, const rope_append_call *call, int t,
                       gpu_append_tensor *v) {
    const rope_append_operand *o = &call->tensor[t];
    const rope_append_steps *s = &p->steps[t];
    const int64_t size = size_of(p->rope.dtype), rows = call->rope.batch * call->rope.tokens;
    const int64_t stored = size_of(s->store_dtype);
    int near = 1;
    v->heads = (int32_t)o->heads;
    v->steps = *s;
    v->in = o->in;
    v->weight = o->weight;
    v->scale = o->scale;
    v->in_token = near_stride(token_stride(call, o->in_stride, size, &v->in_batch), rows, &near);
    v->in_head = near_stride(o->in_stride[2] * size, o->heads, &near);
    v->weight_head = near_stride(o->weight_stride * size_of(s->weight_dtype), o->heads, &near);
    v->scale_head = near_stride(o->scale_stride[2], o->heads, &near);
    v->block_shift = 30; /* no head has as many elements */
    if (t != ROPE_APPEND_Q) {
        v->out = o->out;
        v->out_token =
            near_stride(token_stride(call, o->out_stride, size, &v->out_batch), rows, &near);
        v->out_head = near_stride(o->out_stride[2] * size, o->heads, &near);
        fill_store(p, o, s, &near, v);
        return near;
    }
    v->store = o->out;
    v->store_slot =
        near_stride(token_stride(call, o->out_stride, stored, &v->store_page), rows, &near);
    v->store_head = near_stride(o->out_stride[2] * stored, o->heads, &near);
    v->scale_slot =
        near_stride(token_stride(call, o->scale_stride, 1, &v->scale_page), rows, &near);
    return near;
}

/* Whether entries of a list over [batch, token] follow each other. */
static int is_in_line(const rope_append_call *call, const int64_t *stride) {
    return (call->rope.tokens == 1 || stride[1] == 1) &&
           (call->rope.batch == 1 || stride[0] == call->rope.tokens);
}

/* An entry of its ids serves every token. */
static int has_one_id(const rope_position_map *map) {
    return map->ids && map->id_stride[1] == 0 && map->id_stride[2] == 0;
}

/* Exact angles of one rule, where a batch row is a sequence and a token has one position. */
static int is_exact(const rope_append_problem *p, const rope_append_call *call) {
    const rope_problem *r = &p->rope;
    const rope_position_map *map = &call->rope.position;
    return r->angle_mode == ROPE_ANGLE_EXACT && r->axes == 1 && r->shard == ROPE_SHARD_NONE &&
           !r->xpos_rate && r->frequency_sets < 2 && !map->cu_seqlens && !map->offsets &&
           (!map->ids || has_one_id(map) || is_in_line(call, map->id_stride + 1));
}

static int32_t flags_of(const rope_append_problem *p, const rope_append_call *call) {
    const int rows = call->rope.batch > 1 && call->rope.tokens > 1,
              slots = p->cache == ROPE_CACHE_SLOTS && is_in_line(call, call->slot_stride) &&
                      !call->rope.position.cu_seqlens,
              alone = !call->tensor[ROPE_APPEND_K].heads && !call->tensor[ROPE_APPEND_V].heads;
    return (rows ? GPU_APPEND_ROWS : 0) | (is_exact(p, call) ? GPU_APPEND_EXACT : 0) |
           (slots ? GPU_APPEND_SLOTS : 0) | (alone && p->cache ? GPU_APPEND_PLACES : 0) |
           (p->rope.arithmetic == ROPE_ARITHMETIC_MODEL_DTYPE ? GPU_APPEND_MODEL_DTYPE : 0) |
           (p->rope.direction != ROPE_FORWARD ? GPU_APPEND_NEGATIVE : 0) |
           (call->rope.position.wide ? GPU_APPEND_WIDE_IDS : 0) |
           (has_one_id(&call->rope.position) ? GPU_APPEND_ONE_ID : 0) |
           (p->slot_wide ? GPU_APPEND_WIDE_SLOTS : 0);
}

static void fill_call(const rope_append_problem *p, const rope_append_call *call,
                      gpu_append_vectors *v) {
    const rope_problem *r = &p->rope;
    v->flags = flags_of(p, call);
    v->rows = (int32_t)(call->rope.batch * call->rope.tokens);
    v->tokens = (int32_t)call->rope.tokens;
    v->pairs = r->pairs;
    v->turns = r->set[0].turns;
    v->ids = call->rope.position.ids;
    v->offset = call->rope.position.offset;
    v->slots = call->slots;
    v->page_size = p->page_size;
    v->pages = call->pages;
    v->factor = (float)r->set[0].attention_factor;
    v->per_pair = r->pairs ? (uint32_t)((1 << 22) / r->pairs + 1) : 0;
}

/* Rows, nodes and magnitudes of a block, in floats. */
static void share_memory(int threads, launch *l) {
    int32_t rows = 0, nodes = 0;
    for (int t = 0; t < ROPE_APPEND_TENSORS; t++) {
        const gpu_append_tensor *v = &l->vectors.tensor[t];
        if (!v->heads)
            continue;
        const int32_t row = v->block_tokens * v->width,
                      node = v->sums ? v->thread_heads * v->units * GPU_APPEND_NODE_STRIDE(v->sums)
                                     : 0;
        rows = row > rows ? row : rows;
        nodes = node > nodes ? node : nodes;
    }
    l->vectors.nodes = rows;
    l->vectors.largest = rows + nodes;
    l->shared = (size_t)(rows + nodes + GPU_APPEND_HEADS * threads) * sizeof(float);
}

static int32_t pairing_of(const rope_problem *p) {
    if (p->pairing_in == p->pairing_out)
        return p->pairing_in == ROPE_PAIRING_INTERLEAVED ? GPU_INTERLEAVED : GPU_HALF_SPLIT;
    return p->pairing_out == ROPE_PAIRING_INTERLEAVED ? GPU_TO_INTERLEAVED : GPU_TO_HALF_SPLIT;
}

/* Threads that a call has for one head each, for every multiprocessor. */
static int64_t threads_each(const gpu_append_bound *bound, const rope_append_call *call) {
    int64_t lanes = 0;
    for (int t = 0; t < ROPE_APPEND_TENSORS; t++)
        lanes += call->tensor[t].heads * bound->problem.steps[t].head_dim / (2 * GPU_APPEND_V);
    return call->rope.batch * call->rope.tokens * lanes / bound->on.multiprocessors;
}

/* Blocks of q, then k's, then v's; negative where a tensor does not fit. */
static int64_t lay_out_tensors(const rope_append_problem *p, const rope_append_call *call,
                               int threads, int thread_heads, gpu_append_vectors *vectors) {
    const int64_t rows = call->rope.batch * call->rope.tokens;
    int64_t blocks = 0;
    for (int t = 0; t < ROPE_APPEND_TENSORS; t++) {
        gpu_append_tensor *v = &vectors->tensor[t];
        if (t != ROPE_APPEND_Q)
            vectors->first_block[t - 1] = (int32_t)blocks;
        if (call->tensor[t].heads == 0)
            continue;
        if (call->tensor[t].heads > INT32_MAX / 2 ||
            p->steps[t].head_dim > 2 * GPU_APPEND_V * threads || !has_vectors(p, call, t) ||
            !fill_tensor(p, call, t, v))
            return -1;
        distribute_heads(p, &call->tensor[t], t, threads, thread_heads, rows, v);
        blocks += ceiling(rows, v->block_tokens) * v->head_blocks;
        if (blocks > GPU_GRID_X_MOST)
            return -1;
    }
    return blocks;
}

static void set_vector_arguments(const rope_append_problem *p, const rope_append_call *call,
                                 launch *l) {
    l->arguments[0] = &l->vectors;
    l->arguments[1] = (void *)(uintptr_t)p;
    l->arguments[2] = (void *)(uintptr_t)call;
}

static int plan_vector(const gpu_append_bound *bound, const rope_append_call *call, launch *l) {
    const rope_append_problem *p = &bound->problem;
    const int64_t each = threads_each(bound, call);
    const int threads = GPU_APPEND_THREADS, heads = GPU_APPEND_HEADS_FOR(each);
    if (call->rope.tokens > INT32_MAX / 2 / call->rope.batch)
        return 0;
    l->vectors = (gpu_append_vectors){.rows = 0};
    const int64_t blocks = lay_out_tensors(p, call, threads, heads, &l->vectors);
    if (blocks < 0)
        return 0;
    fill_call(p, call, &l->vectors);
    if (blocks > 0)
        l->vectors.others = (uint32_t)ceiling((blocks - l->vectors.first_block[0]) << 31, blocks);
    share_memory(threads, l);
    if (l->shared > SHARED_MOST)
        return 0;
    l->kernel = bound->kernels->vector[pairing_of(&p->rope)];
    l->grid = (dim3){(uint32_t)blocks, 1, 1};
    l->block = (dim3){(uint32_t)threads, 1, 1};
    set_vector_arguments(p, call, l);
    return 1;
}

/* -- moved, latent and plain: what of a problem they take -- */

static const char *declines_16_bits(const rope_append_problem *p) {
    return p->rope.dtype == ROPE_F32 ? "declined: dtype is f32" : gpu_append_vector_declines(p);
}

static const char *declines_angles(const rope_problem *r) {
    if (!r->pairs || r->angle_mode != ROPE_ANGLE_EXACT)
        return "declined: angles are not exact";
    if (r->axes != 1 || r->shard != ROPE_SHARD_NONE || r->xpos_rate || r->frequency_sets > 1)
        return "declined: there are several axes or frequency sets, shards or XPos";
    if (r->arithmetic != ROPE_ARITHMETIC_FP32)
        return "declined: arithmetic is model_dtype";
    return NULL;
}

static const char *declines_pairing(const rope_problem *r) {
    return r->pairing_in == r->pairing_out ? NULL : "declined: pairing_in is not pairing_out";
}

static const char *declines_whole_heads(const rope_problem *r, const rope_append_steps *s,
                                        int rotates) {
    if (s->head_dim != 2 * r->pairs || (rotates && !s->rotates))
        return "declined: a part of a head does not rotate";
    if (s->factor != 1)
        return "declined: there is a factor";
    if (s->dim_block != s->head_dim)
        return "declined: a cached head lies in blocks";
    if (s->store_dtype != r->dtype && s->store_dtype < ROPE_F8E4M3)
        return "declined: a store_dtype is neither dtype nor of 8 bits";
    return s->scale && s->scale != ROPE_SCALE_TENSOR ? "declined: scales differ within a tensor"
                                                     : NULL;
}

/* -- moved -- */

const char *gpu_append_moved_declines(const rope_append_problem *p) {
    if (p->k_source != ROPE_SOURCE_CACHE)
        return "declined: keys do not move in a cache";
    const char *declined = declines_16_bits(p);
    if (!declined)
        declined = declines_angles(&p->rope);
    if (!declined)
        declined = declines_pairing(&p->rope);
    return declined ? declined : declines_whole_heads(&p->rope, &p->steps[ROPE_APPEND_K], 1);
}

/* Blocks along y of heads of a thread: of all heads, or fewer where that leaves the device idle. */
static int64_t divide_heads(const gpu_append_bound *bound, int64_t blocks, int64_t heads,
                            gpu_append_tensor *v) {
    const int64_t enough = (int64_t)GPU_APPEND_BLOCKS_ENOUGH * bound->on.multiprocessors;
    int64_t each = at_most(heads, UINT16_MAX);
    while (each > 1 && blocks * ceiling(heads, each) < enough)
        each = ceiling(each, 2);
    v->thread_heads = (uint16_t)each;
    return ceiling(heads, each);
}

static int plan_moved(const gpu_append_bound *bound, const rope_append_call *call, launch *l) {
    const rope_append_problem *p = &bound->problem;
    const int64_t heads = call->tensor[ROPE_APPEND_K].heads, lanes = p->rope.pairs / GPU_APPEND_V;
    gpu_append_tensor *v = &l->vectors.tensor[ROPE_APPEND_K];
    l->vectors = (gpu_append_vectors){.rows = 0};
    if (lanes < 1 || lanes > GPU_APPEND_THREADS || heads > INT32_MAX / 2 ||
        call->rope.tokens > INT32_MAX / 2 / call->rope.batch || !is_exact(p, call) ||
        !has_vectors(p, call, ROPE_APPEND_K) || !fill_tensor(p, call, ROPE_APPEND_K, v))
        return 0;
    fill_call(p, call, &l->vectors);
    v->width = (uint16_t)(2 * p->rope.pairs);
    const int64_t rows = l->vectors.rows,
                  tokens =
                      at_most(at_most(GPU_APPEND_THREADS / lanes, GPU_APPEND_MOVED_TOKENS), rows),
                  blocks = ceiling(rows, tokens), y = divide_heads(bound, blocks, heads, v);
    if (y > GPU_GRID_YZ_MOST)
        return 0;
    l->kernel = bound->kernels->moved[pairing_of(&p->rope)][v->steps.store_dtype >= ROPE_F8E4M3];
    l->grid = (dim3){(uint32_t)blocks, (uint32_t)y, 1};
    l->block = (dim3){(uint32_t)lanes, (uint32_t)tokens, 1};
    l->shared =
        (size_t)((l->vectors.flags & GPU_APPEND_ONE_ID ? 1 : tokens) * v->width) * sizeof(float);
    set_vector_arguments(p, call, l);
    return 1;
}

/* -- plain -- */

static const char *declines_plain_steps(const rope_problem *r, const rope_append_steps *s, int t) {
    const char *declined = declines_whole_heads(r, s, t != ROPE_APPEND_V);
    if (declined)
        return declined;
    if (s->norm && (t == ROPE_APPEND_V || s->norm != ROPE_NORM_RMS || s->norm_dim != s->head_dim ||
                    !s->weight || s->weight_dtype != r->dtype))
        return "declined: a norm is not RMS of whole heads of q or k with weights of dtype";
    return NULL;
}

const char *gpu_append_plain_declines(const rope_append_problem *p) {
    const rope_problem *r = &p->rope;
    const char *declined = declines_16_bits(p);
    if (!declined)
        declined = declines_angles(r);
    if (!declined)
        declined = declines_pairing(r);
    if (declined)
        return declined;
    if (p->cache != ROPE_CACHE_SLOTS || p->k_source == ROPE_SOURCE_CACHE)
        return "declined: the cache is not one of slots to be written";
    for (int t = 0; t < ROPE_APPEND_TENSORS && !declined; t++)
        declined = declines_plain_steps(r, &p->steps[t], t);
    return declined;
}

/* Lists that follow each other, and few enough slots. */
static int is_plain(const rope_append_problem *p, const rope_append_call *call) {
    const rope_position_map *map = &call->rope.position;
    return is_exact(p, call) && is_in_line(call, call->slot_stride) &&
           (map->ids ? is_in_line(call, map->id_stride + 1) : call->rope.batch == 1) &&
           (call->tensor[ROPE_APPEND_K].heads || call->tensor[ROPE_APPEND_V].heads) &&
           call->rope.tokens <= INT32_MAX / 2 / call->rope.batch &&
           call->pages <= INT32_MAX / p->page_size;
}

static void fill_pages(const rope_append_problem *p, const rope_append_call *call,
                       gpu_append_plain_operand *v) {
    v->page_size = (int32_t)p->page_size;
    v->slots = (int32_t)(call->pages * p->page_size);
    v->page_shift = (uint8_t)(31 + log2_of(v->page_size));
    v->per_page = (uint32_t)ceiling(INT64_C(1) << v->page_shift, p->page_size);
}

/* Parameters of a tensor; 0 where it has more than one place, or its strides are too far. */
static int fill_operand(const rope_append_problem *p, const rope_append_call *call, int t,
                        gpu_append_plain_operand *v) {
    const rope_append_operand *o = &call->tensor[t];
    const rope_append_steps *s = &p->steps[t];
    const int64_t size = size_of(p->rope.dtype), stored = size_of(s->store_dtype),
                  rows = call->rope.batch * call->rope.tokens;
    const int q = t == ROPE_APPEND_Q;
    int64_t apart = 0, out_apart = 0;
    int near = 1;
    v->in = o->in;
    v->in_token = near_stride(token_stride(call, o->in_stride, size, &apart), rows, &near);
    v->in_head = near_stride(o->in_stride[2] * size, o->heads, &near);
    v->scale = s->scale ? o->scale : NULL;
    v->store_dtype = (uint8_t)s->store_dtype;
    v->steps = (uint16_t)((s->rounding == ROPE_NORM_ROUND_ONCE ? GPU_APPEND_PLAIN_ONCE : 0) |
                          (s->weight == ROPE_NORM_ONE_PLUS_WEIGHT ? GPU_APPEND_PLAIN_ONE_PLUS : 0));
    if (q) {
        v->store = o->out;
        v->store_slot =
            near_stride(token_stride(call, o->out_stride, stored, &out_apart), rows, &near);
        v->store_head = near_stride(o->out_stride[2] * stored, o->heads, &near);
    } else {
        v->store = o->cache;
        v->store_page = o->cache_stride[0] * stored;
        v->store_slot = near_stride(o->cache_stride[1] * stored, p->page_size, &near);
        v->store_head = near_stride(o->cache_stride[2] * stored, o->heads, &near);
        fill_pages(p, call, v);
    }
    return near && !apart && !out_apart && v->store && (q || !o->out) &&
           (!s->norm || o->heads == 1 || o->weight_stride == 0);
}

static int fill_operands(const rope_append_problem *p, const rope_append_call *call,
                         gpu_append_plain_call *plain) {
    for (int t = 0; t < ROPE_APPEND_TENSORS; t++) {
        if (!call->tensor[t].heads)
            continue;
        if (!has_vectors(p, call, t) || !fill_operand(p, call, t, &plain->operand[t]))
            return 0;
        if (t != ROPE_APPEND_V) {
            plain->weight[t] = call->tensor[t].weight;
            plain->eps[t] = p->steps[t].eps;
        }
    }
    return 1;
}

static int32_t flags_of_plain(const gpu_append_bound *bound, const rope_append_call *call,
                              const launch *l) {
    const int small = (int64_t)l->grid.x * l->grid.y <= bound->on.multiprocessors;
    return (call->rope.position.wide ? GPU_CALL_WIDE_IDS : 0) |
           (bound->problem.rope.direction != ROPE_FORWARD ? GPU_CALL_NEGATIVE : 0) |
           (bound->on.early ? GPU_CALL_EARLY : 0) |
           (bound->on.early && small ? GPU_CALL_AT_ONCE : 0) |
           (bound->problem.slot_wide ? GPU_APPEND_PLAIN_WIDE_SLOTS : 0);
}

/* The largest number up to `most` that divides all of them. */
static uint32_t divisor(const int64_t *numbers, int count, int64_t most) {
    for (int64_t d = most; d > 1; d--) {
        int64_t rest = 0;
        for (int i = 0; i < count; i++)
            rest |= numbers[i] % d;
        if (rest == 0)
            return (uint32_t)d;
    }
    return 1;
}

/* Grid and block of a geometry; 0 where it does not fit. */
static int lay_out_plain(const gpu_append_bound *bound, const rope_append_call *call,
                         int32_t geometry, int norm, launch *l) {
    const int64_t vector = geometry == GPU_NARROW ? 2 : 4, each = geometry == GPU_DEEP ? 4 : 2,
                  lanes = bound->problem.rope.pairs / vector,
                  rows = call->rope.batch * call->rope.tokens;
    const int64_t whole = GPU_WHOLE_THREADS(geometry, 2);
    int64_t units[ROPE_APPEND_TENSORS], all = 0;
    if (lanes > GPU_UNITS_THREADS ||
        (norm && (lanes > 32 || lanes < 2 * each || (lanes & (lanes - 1)))))
        return 0;
    for (int t = 0; t < ROPE_APPEND_TENSORS; t++) {
        units[t] = call->tensor[t].heads / each;
        if (call->tensor[t].heads % each || units[t] > UINT16_MAX / 4)
            return 0;
        if (t)
            l->plain.first_unit[t - 1] = (uint16_t)all;
        all += units[t];
    }
    const uint32_t y = divisor(units, ROPE_APPEND_TENSORS, whole / lanes);
    const int64_t room = GPU_THREADS(geometry, 2, bound->on.early) / (lanes * y),
                  most = at_most(at_most(room ? room : 1, GPU_BLOCK_Z_MOST), rows);
    const uint32_t z = geometry == GPU_NARROW ? divisor(&rows, 1, most) : (uint32_t)most;
    if (ceiling(rows, z) > GPU_GRID_YZ_MOST)
        return 0;
    l->block = (dim3){(uint32_t)lanes, y, z};
    l->grid = (dim3){(uint32_t)(all / y), (uint32_t)ceiling(rows, z), 1};
    return 1;
}

/* Norms and 8 bits together are bound by instructions, of which deep kernels have the fewest. */
static int32_t geometry_of(const gpu_append_bound *bound, const rope_append_call *call, int norm) {
    const rope_append_steps *steps = bound->problem.steps;
    const int deep = norm && (steps[ROPE_APPEND_K].store_dtype >= ROPE_F8E4M3 ||
                              steps[ROPE_APPEND_V].store_dtype >= ROPE_F8E4M3);
    int64_t pairs = 0;
    if (bound->geometry != GPU_BY_SIZE)
        return bound->geometry;
    for (int t = 0; t < ROPE_APPEND_TENSORS; t++)
        pairs += call->tensor[t].heads * bound->problem.rope.pairs;
    pairs = call->rope.batch * call->rope.tokens * pairs / bound->on.multiprocessors;
    return pairs <= GPU_NARROW_PAIRS(2)      ? GPU_NARROW
           : deep || pairs <= GPU_DEEP_PAIRS ? GPU_DEEP
                                             : GPU_WIDE;
}

/* Whether q and k, or the one that is there, have a norm; negative where one has and one has not.
 */
static int has_norm(const rope_append_problem *p, const rope_append_call *call) {
    int has = 0, lacks = 0;
    for (int t = 0; t < ROPE_APPEND_V; t++)
        if (call->tensor[t].heads) {
            has |= p->steps[t].norm != 0;
            lacks |= p->steps[t].norm == 0;
        }
    return has && lacks ? -1 : has;
}

/* What all tensors share. */
static gpu_append_plain_call plain_call_of(const rope_append_problem *p,
                                           const rope_append_call *call) {
    const rope_problem *r = &p->rope;
    return (gpu_append_plain_call){
        .turns = r->set[0].turns,
        .ids = call->rope.position.ids,
        .slots = call->slots,
        .offset = call->rope.position.offset,
        .rows = (int32_t)(call->rope.batch * call->rope.tokens),
        .factor = (float)r->set[0].attention_factor,
        .share = 0.5f / (float)r->pairs,
        .position_flag = call->rope.position_flag,
    };
}

static int plan_plain(const gpu_append_bound *bound, const rope_append_call *call, launch *l) {
    const rope_append_problem *p = &bound->problem;
    l->plain = plain_call_of(p, call);
    const int norm = has_norm(p, call);
    if (norm < 0 || !is_plain(p, call) || !fill_operands(p, call, &l->plain))
        return 0;
    if (!l->plain.weight[0])
        l->plain.weight[0] = l->plain.weight[1]; /* what is read for v */
    const int32_t order[] = {geometry_of(bound, call, norm), GPU_WIDE, GPU_NARROW};
    for (int i = 0; i < (bound->geometry == GPU_BY_SIZE ? 3 : 1); i++) {
        if (!lay_out_plain(bound, call, order[i], norm, l))
            continue;
        l->kernel =
            bound->kernels->plain[order[i]][pairing_of(&p->rope)][norm][bound->on.early != 0];
        l->plain.flags = (uint16_t)flags_of_plain(bound, call, l);
        l->arguments[0] = &l->plain;
        return 1;
    }
    return 0;
}

/* -- latent -- */

/* A latent part that is normalised, beside a window. */
static const char *declines_latent(const rope_problem *r, const rope_append_steps *s) {
    const int32_t width = 2 * r->pairs, at = r->rotary_offset[ROPE_APPEND_K];
    if (!s->rotates || s->norm_dim + width != s->head_dim ||
        at != (s->norm_offset ? 0 : s->norm_dim) || (s->norm_offset && s->norm_offset != width))
        return "declined: k is not a norm's elements beside a window";
    if (s->norm != ROPE_NORM_RMS || !s->weight || s->weight_dtype != r->dtype ||
        (s->norm_dim != 32 * GPU_APPEND_V && s->norm_dim != 64 * GPU_APPEND_V))
        return "declined: a norm is not RMS of 256 or 512 elements of k with weights of dtype";
    return s->factor != 1 || s->dim_block != s->head_dim || s->store_dtype != r->dtype
               ? "declined: k has a factor, blocks or a store_dtype of its own"
               : NULL;
}

const char *gpu_append_latent_declines(const rope_append_problem *p) {
    const rope_append_steps *q = &p->steps[ROPE_APPEND_Q];
    const char *declined = declines_16_bits(p);
    if (!declined)
        declined = declines_angles(&p->rope);
    if (declined)
        return declined;
    if (p->cache != ROPE_CACHE_SLOTS || p->k_source == ROPE_SOURCE_CACHE)
        return "declined: the cache is not one of slots to be written";
    if (q->norm || q->factor != 1 || q->store_dtype != p->rope.dtype)
        return "declined: q has a norm, a factor or a store_dtype of its own";
    return declines_latent(&p->rope, &p->steps[ROPE_APPEND_K]);
}

/* Grid and block of a geometry; 0 where it does not fit. */
static int lay_out_latent(const gpu_append_bound *bound, const rope_append_call *call,
                          int32_t geometry, launch *l) {
    const int64_t lanes = bound->problem.rope.pairs / (geometry == GPU_NARROW ? 2 : 4),
                  rows = call->rope.batch * call->rope.tokens,
                  units = call->tensor[ROPE_APPEND_Q].heads / 2;
    const int64_t z = at_most(rows, GPU_LATENT_THREADS / 32);
    if (lanes > 32 || 32 % lanes || call->tensor[ROPE_APPEND_Q].heads % 2 ||
        units > INT32_MAX / 4 || ceiling(rows, z) > GPU_GRID_YZ_MOST)
        return 0;
    const uint32_t y = divisor(&units, 1, GPU_LATENT_THREADS / (lanes * z));
    if (lanes * y < 32)
        return 0;
    l->block = (dim3){(uint32_t)lanes, y, (uint32_t)z};
    l->grid = (dim3){(uint32_t)(1 + units / y), (uint32_t)ceiling(rows, z), 1};
    return 1;
}

static int fill_latent(const rope_append_problem *p, const rope_append_call *call,
                       gpu_append_latent_call *latent) {
    const rope_append_operand *q = &call->tensor[ROPE_APPEND_Q], *k = &call->tensor[ROPE_APPEND_K];
    const rope_append_steps *s = &p->steps[ROPE_APPEND_K];
    gpu_append_plain_operand *o = &latent->plain.operand[ROPE_APPEND_Q];
    const int64_t from = 2 * (int64_t)p->rope.rotary_offset[ROPE_APPEND_Q];
    if (k->heads != 1 || call->tensor[ROPE_APPEND_V].heads || !is_plain(p, call) ||
        (q->heads && q->in != q->out) || !fill_operands(p, call, &latent->plain))
        return 0;
    latent->plain.share = 1.0f / (float)s->norm_dim;
    latent->latent = (uint16_t)(2 * s->norm_offset);
    latent->window = (uint16_t)(2 * p->rope.rotary_offset[ROPE_APPEND_K]);
    latent->vectors = s->norm_dim / (32 * GPU_APPEND_V);
    o->store = q->heads ? o->store + from : NULL;
    return 1;
}

static int plan_latent(const gpu_append_bound *bound, const rope_append_call *call, launch *l) {
    const rope_append_problem *p = &bound->problem;
    const int32_t wide = geometry_of(bound, call, 0) != GPU_NARROW;
    l->latent = (gpu_append_latent_call){.plain = plain_call_of(p, call)};
    if (!fill_latent(p, call, &l->latent) ||
        !lay_out_latent(bound, call, wide ? GPU_WIDE : GPU_NARROW, l))
        return 0;
    l->kernel = bound->kernels->latent[wide][pairing_of(&p->rope)];
    l->latent.plain.flags = (uint16_t)flags_of_plain(bound, call, l);
    l->arguments[0] = &l->latent;
    return 1;
}

/* -- generic -- */

static void plan_generic(const gpu_append_bound *bound, const rope_append_call *call, launch *l) {
    const rope_append_problem *p = &bound->problem;
    int64_t heads = 1, dim = 0;
    int of_token = 0;
    for (int t = 0; t < ROPE_APPEND_TENSORS; t++) {
        if (!call->tensor[t].heads)
            continue;
        heads = call->tensor[t].heads > heads ? call->tensor[t].heads : heads;
        dim = p->steps[t].head_dim > dim ? p->steps[t].head_dim : dim;
        of_token |= p->steps[t].norm && p->steps[t].norm_scope == ROPE_NORM_TOKEN;
    }
    l->kernel = bound->kernels->generic;
    l->block = (dim3){GPU_APPEND_GENERIC_THREADS, 1, 1};
    l->grid = (dim3){(uint32_t)at_most(call->rope.batch * call->rope.tokens, GPU_GENERIC_X_MOST),
                     of_token ? 1 : (uint32_t)at_most(heads, GPU_GENERIC_Y_MOST), 1};
    l->shared = (2 * (size_t)dim + GPU_APPEND_SEGMENT) * sizeof(float);
    l->arguments[0] = (void *)(uintptr_t)p;
    l->arguments[1] = (void *)(uintptr_t)call;
}
