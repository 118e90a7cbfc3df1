/*
 * From a call of "attention" to its launches: what has no position, what rotates ahead of time,
 * what attends. Keys are rotated once each, and queries, but where the kernel of splits attends
 * alone: it rotates its own.
 */
#include "common/gpu/attention/launch.h"

#include "common/gpu/attention/workspace.h"
#include "common/math/attention.h"

#include <gpu_tuning.h>

#include <string.h>

/* Blocks of a grid that takes a call of any size with any number of them. */
#ifndef GPU_GENERIC_X_MOST
#define GPU_GENERIC_X_MOST GPU_GRID_X_MOST
#define GPU_GENERIC_Y_MOST GPU_GRID_YZ_MOST
#endif

typedef struct launches {
    const gpu_attention_bound *bound;
    void *stream;
    const rope_attention_call *given;
    rope_attention_call call; /* with out where what rotates ahead lies rotated */
    int32_t *failed;          /* or NULL */
    gpu_attention_parts parts;
    int32_t early; /* the next one may start before the one ahead of it has ended */
} launches;

int gpu_attention_may_fail(const rope_attention_problem *p) {
    return p->rotates[1] && p->rope.angle_mode == ROPE_ANGLE_TABLE &&
           p->rope.out_of_range == ROPE_OUT_OF_RANGE_ERROR;
}

static uint32_t at_most(int64_t n, int64_t most) {
    return (uint32_t)(n < most ? n : most);
}

static size_t at_least(size_t n, size_t least) {
    return n > least ? n : least;
}

/* Tiles of `rows` rows that all sequences together have at most; `packed` of `most` rows in all,
 * else each of as many. */
static int64_t tiles_of(int64_t sequences, int packed, int64_t most, int64_t rows) {
    const int64_t tiles = (most + rows - 1) / rows;
    return packed ? tiles + sequences : tiles * sequences;
}

/* Each but the first may start early where the device has it: all wait for the one ahead. */
static int32_t next_early(launches *l) {
    const int32_t early = l->early;
    l->early = l->bound->starts_early;
    return early;
}

static gpuError_t launch(launches *l, const void *kernel, int64_t x, int64_t y, size_t shared,
                         void **arguments) {
    const dim3 grid = {at_most(x, GPU_GENERIC_X_MOST), at_most(y, GPU_GENERIC_Y_MOST), 1},
               block = {GPU_ATTENTION_THREADS, 1, 1};
    if (x < 1) /* no sequence, or no key */
        return gpuSuccess;
    return gpu_launch_kernel(kernel, grid, block, arguments, shared, l->stream, next_early(l));
}

/* --- what moves in vectors --- */

/* Whether elements from a pointer on, over dimensions of these sizes, can be moved `unit` at a
 * time, and lie within 2^35 of the first. */
static int moves(const void *pointer, const int64_t *stride, const int64_t *size, int count,
                 int64_t unit) {
    int64_t reach = 0;
    for (int d = 0; d < count; d++) {
        if (size[d] <= 1)
            continue;
        if (stride[d] < 0 || stride[d] % unit || stride[d] > (INT64_C(1) << 35) / size[d])
            return 0;
        reach += (size[d] - 1) * stride[d];
    }
    return reach < INT64_C(1) << 35 && (uintptr_t)pointer % (size_t)(2 * unit) == 0;
}

static int moves_head(const void *pointer, const int64_t *stride, int64_t batch, int64_t tokens,
                      int64_t heads, int64_t unit) {
    const int64_t size[3] = {batch, tokens, heads};
    return stride[3] == 1 && moves(pointer, stride, size, 3, unit);
}

static int moves_operand(const rope_attention_problem *p, const rope_append_steps *steps,
                         const rope_attention_call *call, const rope_append_operand *o) {
    const int64_t size[3] = {call->pages, p->page_size, o->heads};
    if (o->out)
        return moves_head(o->out, o->out_stride,
                          p->cache ? rope_attention_sequences(call) : call->rope.batch,
                          call->k_tokens, o->heads, 8);
    if (o->in)
        return moves_head(o->in, o->in_stride, call->rope.batch, call->k_tokens, o->heads, 8);
    return steps->store_dtype == p->rope.dtype && steps->dim_block == steps->head_dim &&
           o->cache_stride[4] == 1 && moves(o->cache, o->cache_stride, size, 3, 8);
}

/* --- what runs ahead --- */

static void room_for_keys(const rope_attention_problem *p, const gpu_attention_room *room,
                          char *workspace, rope_attention_call *call) {
    call->k.out = workspace + room->keys;
    call->k.out_stride[3] = 1;
    call->k.out_stride[2] = p->head_dim;
    call->k.out_stride[1] = call->k.heads * call->k.out_stride[2];
    call->k.out_stride[0] = call->k_tokens * call->k.out_stride[1];
}

static void room_for_queries(const rope_attention_problem *p, const gpu_attention_room *room,
                             char *workspace, rope_attention_call *call) {
    rope_operand *q = &call->rope.tensor[0];
    q->out = workspace + room->queries;
    q->out_stride[3] = 1;
    q->out_stride[2] = p->head_dim;
    q->out_stride[1] = q->heads * q->out_stride[2];
    q->out_stride[0] = call->rope.tokens * q->out_stride[1];
}

/* Whether "rope" rotates all tokens of a tensor as this call means them: what it writes beyond
 * lengths, between boundaries and of sequences that fail has room, is read by no one, and raises no
 * flag. Positions do not depend on lengths that lie on the device, nor on boundaries, of which some
 * may be out of range. */
static int is_rope(const launches *l, int tensor) {
    const rope_attention_call *c = l->given;
    const rope_position_map *map = &c->rope.position;
    const void *out = tensor ? c->k.out : c->rope.tensor[0].out;
    if ((tensor ? c->k_lengths : c->q_lengths) || /* hence no cache of keys */
        (out && (l->failed || map->cu_seqlens || c->q_lengths || c->k_lengths)))
        return 0;
    if (map->cu_seqlens)
        return map->ids && !map->offsets && !map->lengths &&
               l->bound->problem.rope.angle_mode != ROPE_ANGLE_TABLE;
    return tensor || map->ids || !c->k_lengths;
}

/* Whether token i of the queries stands where key i does. */
static int stand_alike(const rope_attention_call *c) {
    const rope_position_map *q = &c->rope.position, *k = &c->k_position;
    return q->tokens == k->tokens && q->ids == k->ids &&
           memcmp(q->id_stride, k->id_stride, sizeof q->id_stride) == 0;
}

/* Queries, keys or both, which stand alike, in one launch. */
static gpuError_t rotate_as_rope(launches *l, int queries, int keys) {
    const rope_append_operand *k = &l->call.k;
    rope_call call = l->call.rope;
    call.tensor[1] = (rope_operand){.in = k->in, .out = k->out, .heads = keys ? k->heads : 0};
    memcpy(call.tensor[1].in_stride, k->in_stride, sizeof k->in_stride);
    memcpy(call.tensor[1].out_stride, k->out_stride, sizeof k->out_stride);
    if (!queries) {
        call.tensor[0].heads = 0;
        call.tokens = l->call.k_tokens;
        call.position = l->call.k_position;
    } else if (!call.position.ids) /* their index is among the keys, which are their length */
        call.position.offset = rope_sum(call.position.offset, l->call.k_tokens - call.tokens);
    call.position.cu_seqlens = NULL; /* is there with ids alone */
    return gpu_rope_launch(&l->bound->rotation, &call, next_early(l), l->stream);
}

/* Whether pairs of a tensor lie in vectors of eight elements of 16 bits, there and where they go.
 */
static int rotates_vectors(const launches *l, int tensor) {
    const rope_attention_problem *p = &l->bound->problem;
    const rope_operand *q = &l->call.rope.tensor[0];
    const int64_t batch = l->call.rope.batch, tokens = l->call.rope.tokens;
    rope_append_operand k = l->call.k;
    if (!l->bound->kernels->rotate_vectors[tensor] || p->rope.pairing_in != p->rope.pairing_out ||
        p->rope.pairs % 8 || p->rope.rotary_offset[tensor] % 8 || p->head_dim % 8)
        return 0;
    if (tensor == 0)
        return moves_head(q->in, q->in_stride, batch, tokens, q->heads, 8) &&
               moves_head(q->out, q->out_stride, batch, tokens, q->heads, 8);
    if (!moves_operand(p, &p->k, &l->call, &k))
        return 0;
    k.out = NULL;
    return moves_operand(p, &p->k, &l->call, &k);
}

static gpuError_t rotate(launches *l, int tensor) {
    if (is_rope(l, tensor))
        return rotate_as_rope(l, tensor == 0, tensor == 1);
    const rope_attention_call *call = &l->call;
    const gpu_attention_kernels *kernels = l->bound->kernels;
    const int packed =
        tensor ? call->k_position.cu_seqlens != NULL : call->rope.position.cu_seqlens != NULL;
    const int vectors = rotates_vectors(l, tensor);
    const int64_t sequences = rope_attention_sequences(call),
                  tokens = tensor ? call->k_tokens : call->rope.tokens,
                  heads = tensor ? call->k.heads : call->rope.tensor[0].heads;
    rope_call positions = call->rope;
    if (tensor)
        positions.position = call->k_position;
    void *arguments[] = {(void *)(uintptr_t)&l->bound->problem, &l->call, &positions, &l->failed};
    if (vectors)
        return launch(l, kernels->rotate_vectors[tensor],
                      tiles_of(sequences, packed, tokens, GPU_VECTOR_TOKENS),
                      (heads + GPU_VECTOR_HEADS - 1) / GPU_VECTOR_HEADS,
                      GPU_ATTENTION_THREADS * sizeof(int64_t), arguments);
    return launch(
        l, kernels->rotate[tensor], tiles_of(sequences, packed, tokens, GPU_ATTENTION_TOKENS),
        heads,
        at_least(GPU_ATTENTION_TOKENS * (size_t)l->bound->problem.head_dim * sizeof(float),
                 GPU_ATTENTION_THREADS * sizeof(int64_t)),
        arguments);
}

static gpuError_t rotate_ahead(launches *l) {
    const int queries = l->call.rope.tensor[0].out != NULL, keys = l->bound->problem.rotates[1];
    if (queries && keys && is_rope(l, 0) && is_rope(l, 1) && stand_alike(&l->call))
        return rotate_as_rope(l, 1, 1);
    const gpuError_t error = keys ? rotate(l, 1) : gpuSuccess;
    return error == gpuSuccess && queries ? rotate(l, 0) : error;
}

static gpuError_t check(launches *l) {
    rope_call keys = l->call.rope;
    keys.position = l->call.k_position;
    void *arguments[] = {(void *)(uintptr_t)&l->bound->problem, &l->call, &keys, &l->failed};
    return launch(l, l->bound->kernels->check, rope_attention_sequences(&l->call), 1, 0, arguments);
}

/* --- tiles --- */

static const int32_t tile_dims[GPU_TILE_DIMS] = {64, 128};

const char *gpu_tiles_decline(const rope_attention_problem *p, const gpu_attention_kernels *kernels,
                              int32_t *tiles) {
    *tiles = 0;
    if (p->rope.dtype == ROPE_F32)
        return "declined: dtype is f32";
    while (*tiles < GPU_TILE_DIMS && tile_dims[*tiles] != p->head_dim)
        ++*tiles;
    if (*tiles == GPU_TILE_DIMS || p->v_head_dim != p->head_dim)
        return "declined: head_dim and v_head_dim are not both 64 or 128";
    return kernels->tiles[*tiles] ? NULL : "declined: no matrix instructions are compiled here";
}

static int32_t fits_of(const rope_attention_problem *p, const rope_attention_call *call) {
    const rope_operand *q = &call->rope.tensor[0];
    const int64_t batch = call->rope.batch, tokens = call->rope.tokens;
    return (moves_head(q->out ? q->out : q->in, q->out ? q->out_stride : q->in_stride, batch,
                       tokens, q->heads, 8)
                ? GPU_TILE_Q
                : 0) |
           (moves_operand(p, &p->k, call, &call->k) ? GPU_TILE_K : 0) |
           (moves_operand(p, &p->v, call, &call->v) ? GPU_TILE_V : 0) |
           (moves_head(call->out, call->out_stride, batch, tokens, q->heads, 2) ? GPU_TILE_OUT : 0);
}

/* --- what attends --- */

int64_t gpu_splits_most(const rope_attention_problem *p, int64_t keys) {
    /* keys of a ring may begin within a split */
    const int64_t splits = keys / GPU_SPLIT_LEAST + (keys % GPU_SPLIT_LEAST > 0) + (p->ring > 0);
    return splits < 1 ? 1 : splits < GPU_SPLITS_MOST ? splits : GPU_SPLITS_MOST;
}

static gpuError_t attend_generic(launches *l, int64_t group) {
    const rope_attention_problem *p = &l->bound->problem;
    const rope_attention_call *call = &l->call;
    const int packed = call->rope.position.cu_seqlens != NULL;
    void *arguments[] = {(void *)(uintptr_t)p, &l->call, &l->failed};
    return launch(l, l->bound->kernels->generic,
                  tiles_of(rope_attention_sequences(call), packed, call->rope.tokens * group,
                           GPU_GENERIC_ROWS),
                  call->k.heads, (size_t)gpu_generic_shared(p->head_dim) * sizeof(float),
                  arguments);
}

static gpuError_t attend_splits(launches *l, int64_t group, int32_t fits) {
    const gpu_attention_bound *bound = l->bound;
    const rope_attention_problem *p = &bound->problem;
    const rope_attention_call *call = &l->call;
    const int64_t sequences = rope_attention_sequences(call), queries = GPU_SPLIT_ROWS / group;
    l->parts.queries = call->rope.tokens < queries ? call->rope.tokens : queries;
    void *arguments[] = {(void *)(uintptr_t)p, &l->call, &l->failed, &fits, &l->parts},
         *joined[] = {(void *)(uintptr_t)p, &l->call, &l->parts};
    gpuError_t error =
        launch(l, bound->kernels->splits[bound->tiles], sequences * l->parts.splits * call->k.heads,
               1, (size_t)gpu_splits_shared(p->head_dim, p->v_head_dim), arguments);
    if (error == gpuSuccess && l->parts.splits > 1)
        error = launch(l, bound->kernels->join[bound->tiles], sequences * l->parts.queries,
                       call->rope.tensor[0].heads, 0, joined);
    return error;
}

/* One query a sequence. */
static gpuError_t attend_decode(launches *l, gpu_decode_call *d) {
    const gpu_attention_bound *bound = l->bound;
    const rope_attention_problem *p = &bound->problem;
    const dim3 block = {GPU_ATTENTION_THREADS, 1, 1}, one = {1, 1, 1};
    dim3 grid = one, joined = one;
    d->parts = l->parts;
    grid.x = (uint32_t)d->k_heads;
    grid.y = (uint32_t)l->parts.splits;
    joined.x = (uint32_t)d->heads;
    grid.z = joined.y = (uint32_t)l->call.rope.batch;
    void *arguments[] = {d};
    gpuError_t error = gpu_launch_kernel(
        bound->kernels->decode[bound->tiles], grid, block, arguments,
        (size_t)gpu_splits_shared(p->head_dim, p->v_head_dim), l->stream, next_early(l));
    if (error == gpuSuccess && l->parts.splits > 1)
        error = gpu_launch_kernel(bound->kernels->decode_join[bound->tiles], joined, block,
                                  arguments, 0, l->stream, next_early(l));
    return error;
}

/* Sequences of few queries are read in splits, the others in tiles; the host may not know which. */
static gpuError_t attend(launches *l, const gpu_attention_sizes *sizes) {
    const gpu_attention_bound *bound = l->bound;
    const rope_attention_call *call = &l->call;
    const rope_attention_problem *p = &bound->problem;
    const int packed = call->rope.position.cu_seqlens != NULL;
    const int64_t group = call->rope.tensor[0].heads / call->k.heads,
                  rows = call->rope.tokens * group;
    if (bound->tiles == GPU_GENERIC)
        return attend_generic(l, group);
    const int varies = packed || call->q_lengths, few = gpu_attention_few(bound, sizes),
              splits = few || (bound->splits && group <= GPU_SPLIT_ROWS && varies);
    int32_t fits = fits_of(p, call) | (splits ? GPU_TILE_SPLITS : 0);
    void *arguments[] = {(void *)(uintptr_t)p, &l->call, &l->failed, &fits};
    gpu_decode_call decode;
    if (few && !l->failed && (fits & GPU_TILE_VECTORS) == GPU_TILE_VECTORS &&
        gpu_decode_fits(p, call, &decode))
        return attend_decode(l, &decode);
    gpuError_t error = splits ? attend_splits(l, group, fits) : gpuSuccess;
    if (error != gpuSuccess || few)
        return error;
    return launch(l, bound->kernels->tiles[bound->tiles],
                  tiles_of(rope_attention_sequences(call), packed, rows, GPU_TILE_ROWS),
                  call->k.heads, (size_t)gpu_tiles_shared(p->head_dim, p->v_head_dim), arguments);
}

gpuError_t gpu_attention_launch(const gpu_attention_bound *bound, const rope_attention_call *call,
                                void *workspace, void *stream) {
    const rope_attention_problem *p = &bound->problem;
    const gpu_attention_sizes sizes = gpu_attention_sizes_of(p, call);
    launches l = {bound,       stream, call,
                  *call,       NULL,   {NULL, 0, gpu_splits_most(p, call->k_tokens)},
                  bound->early};
    gpu_attention_room room;
    gpuError_t error = gpuSuccess;
    if (!gpu_attention_room_of(bound, &sizes, call->k.out != NULL, call->rope.tensor[0].out != NULL,
                               &room))
        return gpuErrorMemoryAllocation;
    if (gpu_attention_may_fail(p)) {
        l.failed = (int32_t *)(void *)((char *)workspace + room.failed);
        error = check(&l);
    }
    if (bound->splits && l.parts.splits > 1)
        l.parts.at = (float *)(void *)((char *)workspace + room.parts);
    if (p->rotates[1] && !call->k.out)
        room_for_keys(p, &room, workspace, &l.call);
    if (!call->rope.tensor[0].out && gpu_attention_rotates_ahead(bound, &sizes))
        room_for_queries(p, &room, workspace, &l.call);
    if (error == gpuSuccess)
        error = rotate_ahead(&l);
    return error == gpuSuccess ? attend(&l, &sizes) : error;
}
