/* The launch of the vector kernel. */
#include "backends/gpu/append/launch_plan.h"

#include "backends/gpu/platform/tuning.h"

/* Dynamic shared memory of a block, which every device has. */
enum { SHARED_MOST = 46 << 10 };

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
    v->rest_lanes = (uint16_t)gpu_divide_up(rest, lane);
    v->lanes = (uint16_t)(v->window_lanes + v->rest_lanes);
    v->sums = (uint8_t)(s->norm ? gpu_divide_up(s->norm_dim, GPU_APPEND_V * GPU_APPEND_NODES) : 0);
    v->packed = p->rope.dtype != ROPE_F32 && s->norm == ROPE_NORM_RMS &&
                s->weight == ROPE_NORM_WEIGHT && s->weight_dtype == p->rope.dtype &&
                s->rounding == ROPE_NORM_ROUND_TWICE;
    v->shuffles = sums_by_shuffles(s, v);
    v->units = (uint16_t)(threads / v->lanes);
    v->thread_heads = (uint16_t)gpu_at_most(thread_heads, v->heads);
    const int64_t heads = gpu_divide_up(v->heads, v->thread_heads);
    v->head_blocks = (int32_t)gpu_divide_up(heads, v->units);
    v->block_heads = (uint16_t)gpu_divide_up(heads, v->head_blocks);
    v->block_tokens =
        (uint16_t)gpu_at_most(gpu_at_most(v->units / v->block_heads, GPU_APPEND_TOKENS), rows);
    v->per_lane = (uint32_t)((1 << 20) / v->lanes + 1);
    v->per_head = (uint32_t)((1 << 20) / v->block_heads + 1);
}

static void fill_store(const rope_append_problem *p, const rope_append_operand *o,
                       const rope_append_steps *s, int *near, gpu_append_tensor *v) {
    const int64_t size = gpu_dtype_size(s->store_dtype);
    v->store = o->cache;
    v->store_page = o->cache_stride[0] * size;
    v->store_slot = gpu_near_stride(o->cache_stride[1] * size, p->page_size, near);
    v->store_head = gpu_near_stride(o->cache_stride[2] * size, o->heads, near);
    v->scale_page = o->scale_stride[0];
    v->scale_slot = gpu_near_stride(o->scale_stride[1], p->page_size, near);
    if (s->dim_block == s->head_dim)
        return;
    v->block_shift = gpu_log2_of(s->dim_block);
    v->store_block = gpu_near_stride(o->cache_stride[3] * size, 2, near);
}

int gpu_append_fill_tensor(const rope_append_problem *p, const rope_append_call *call, int t,
                           gpu_append_tensor *v) {
    const rope_append_operand *o = &call->tensor[t];
    const rope_append_steps *s = &p->steps[t];
    const int64_t size = gpu_dtype_size(p->rope.dtype), rows = call->rope.batch * call->rope.tokens;
    const int64_t stored = gpu_dtype_size(s->store_dtype);
    int near = 1;
    v->heads = (int32_t)o->heads;
    v->steps = *s;
    v->in = o->in;
    v->weight = o->weight;
    v->scale = o->scale;
    v->in_token = gpu_near_stride(gpu_append_token_stride(call, o->in_stride, size, &v->in_batch),
                                  rows, &near);
    v->in_head = gpu_near_stride(o->in_stride[2] * size, o->heads, &near);
    v->weight_head =
        gpu_near_stride(o->weight_stride * gpu_dtype_size(s->weight_dtype), o->heads, &near);
    v->scale_head = gpu_near_stride(o->scale_stride[2], o->heads, &near);
    v->block_shift = 30; /* no head has as many elements */
    if (t != ROPE_APPEND_Q) {
        v->out = o->out;
        v->out_token = gpu_near_stride(
            gpu_append_token_stride(call, o->out_stride, size, &v->out_batch), rows, &near);
        v->out_head = gpu_near_stride(o->out_stride[2] * size, o->heads, &near);
        fill_store(p, o, s, &near, v);
        return near;
    }
    v->store = o->out;
    v->store_slot = gpu_near_stride(
        gpu_append_token_stride(call, o->out_stride, stored, &v->store_page), rows, &near);
    v->store_head = gpu_near_stride(o->out_stride[2] * stored, o->heads, &near);
    v->scale_slot = gpu_near_stride(
        gpu_append_token_stride(call, o->scale_stride, 1, &v->scale_page), rows, &near);
    return near;
}

static int32_t flags_of(const rope_append_problem *p, const rope_append_call *call) {
    const int rows = call->rope.batch > 1 && call->rope.tokens > 1,
              slots = p->cache == ROPE_CACHE_SLOTS &&
                      gpu_append_is_in_line(call, call->slot_stride) &&
                      !call->rope.position.cu_seqlens,
              alone = !call->tensor[ROPE_APPEND_K].heads && !call->tensor[ROPE_APPEND_V].heads;
    return (rows ? GPU_APPEND_ROWS : 0) | (gpu_append_is_exact(p, call) ? GPU_APPEND_EXACT : 0) |
           (slots ? GPU_APPEND_SLOTS : 0) | (alone && p->cache ? GPU_APPEND_PLACES : 0) |
           (p->rope.arithmetic == ROPE_ARITHMETIC_MODEL_DTYPE ? GPU_APPEND_MODEL_DTYPE : 0) |
           (p->rope.direction != ROPE_FORWARD ? GPU_APPEND_NEGATIVE : 0) |
           (call->rope.position.wide ? GPU_APPEND_WIDE_IDS : 0) |
           (gpu_append_has_one_id(&call->rope.position) ? GPU_APPEND_ONE_ID : 0) |
           (p->slot_wide ? GPU_APPEND_WIDE_SLOTS : 0);
}

void gpu_append_fill_vectors(const rope_append_problem *p, const rope_append_call *call,
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

void gpu_append_set_arguments(const rope_append_problem *p, const rope_append_call *call,
                              gpu_append_plan *l) {
    l->arguments[0] = &l->vectors;
    l->arguments[1] = (void *)(uintptr_t)p;
    l->arguments[2] = (void *)(uintptr_t)call;
}

/* Rows, nodes and magnitudes of a block, in floats. */
static void share_memory(int threads, gpu_append_plan *l) {
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

/* Threads that a call has for one head each, for every multiprocessor. */
static int64_t threads_each(const gpu_append_state *state, const rope_append_call *call) {
    int64_t lanes = 0;
    for (int t = 0; t < ROPE_APPEND_TENSORS; t++)
        lanes += call->tensor[t].heads * state->problem.steps[t].head_dim / (2 * GPU_APPEND_V);
    return call->rope.batch * call->rope.tokens * lanes / state->on.multiprocessors;
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
            p->steps[t].head_dim > 2 * GPU_APPEND_V * threads ||
            !gpu_append_has_vectors(p, call, t) || !gpu_append_fill_tensor(p, call, t, v))
            return -1;
        distribute_heads(p, &call->tensor[t], t, threads, thread_heads, rows, v);
        blocks += gpu_divide_up(rows, v->block_tokens) * v->head_blocks;
        if (blocks > GPU_GRID_X_MOST)
            return -1;
    }
    return blocks;
}

int gpu_append_plan_vector(const gpu_append_state *state, const rope_append_call *call,
                           gpu_append_plan *l) {
    const rope_append_problem *p = &state->problem;
    const int64_t each = threads_each(state, call);
    const int threads = GPU_APPEND_THREADS, heads = GPU_APPEND_HEADS_FOR(each);
    if (call->rope.tokens > INT32_MAX / 2 / call->rope.batch)
        return 0;
    l->vectors = (gpu_append_vectors){.rows = 0};
    const int64_t blocks = lay_out_tensors(p, call, threads, heads, &l->vectors);
    if (blocks < 0)
        return 0;
    gpu_append_fill_vectors(p, call, &l->vectors);
    if (blocks > 0)
        l->vectors.others =
            (uint32_t)gpu_divide_up((blocks - l->vectors.first_block[0]) << 31, blocks);
    share_memory(threads, l);
    if (l->shared > SHARED_MOST)
        return 0;
    l->kernel = state->kernels->vector[gpu_pairing_of(&p->rope)];
    l->grid = (dim3){(uint32_t)blocks, 1, 1};
    l->block = (dim3){(uint32_t)threads, 1, 1};
    gpu_append_set_arguments(p, call, l);
    return 1;
}
