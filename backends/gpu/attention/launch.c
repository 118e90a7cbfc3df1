/*
 * From a call of "attention" to its launches: what has no position, what rotates ahead of time,
 * what attends. Keys are rotated once each, and queries, but where the kernel of splits attends
 * alone: it rotates its own.
 */
#include "backends/gpu/attention/launch.h"

#include "backends/gpu/attention/prologue.h"
#include "backends/gpu/attention/workspace.h"
#include "common/math/attention.h"

#include <string.h>

typedef gpu_attention_launches launches;

static void room_for_keys(const rope_attention_problem *p, const gpu_attention_layout *layout,
                          char *workspace, rope_attention_call *call) {
    call->k.out = workspace + layout->keys;
    call->k.out_stride[3] = 1;
    call->k.out_stride[2] = p->head_dim;
    call->k.out_stride[1] = call->k.heads * call->k.out_stride[2];
    call->k.out_stride[0] = call->k_tokens * call->k.out_stride[1];
}

static void room_for_queries(const rope_attention_problem *p, const gpu_attention_layout *layout,
                             char *workspace, rope_attention_call *call) {
    rope_operand *q = &call->rope.tensor[0];
    q->out = workspace + layout->queries;
    q->out_stride[3] = 1;
    q->out_stride[2] = p->head_dim;
    q->out_stride[1] = q->heads * q->out_stride[2];
    q->out_stride[0] = call->rope.tokens * q->out_stride[1];
}

/* Whether values are the first elements of keys. */
static int are_same(const rope_attention_problem *p, const rope_attention_call *call) {
    const rope_append_operand *k = &call->k, *v = &call->v;
    if (k->out || !k->in != !v->in || p->v_head_dim > p->head_dim)
        return 0;
    return k->in ? k->in == v->in && !memcmp(k->in_stride, v->in_stride, sizeof k->in_stride)
                 : k->cache == v->cache &&
                       !memcmp(k->cache_stride, v->cache_stride, sizeof k->cache_stride);
}

static int32_t fits_of(const gpu_attention_state *state, const rope_attention_call *call) {
    const rope_attention_problem *p = &state->problem;
    const rope_operand *q = &call->rope.tensor[0];
    const int64_t batch = call->rope.batch, tokens = call->rope.tokens,
                  *stride = q->out ? q->out_stride : q->in_stride;
    const int fills = state->latent ||
                      (state->tiles != GPU_GENERIC && p->v_head_dim == gpu_tile_dim(state->tiles)),
              k = gpu_moves_operand(p, &p->k, call, &call->k),
              v = gpu_moves_operand(p, &p->v, call, &call->v);
    int32_t fits = (k ? GPU_TILE_K : 0) | (v ? GPU_TILE_V : 0);
    if (gpu_moves_head(q->out ? q->out : q->in, stride, batch, tokens, q->heads, 16, p->rope.dtype))
        fits |= GPU_TILE_Q;
    if (fills &&
        gpu_moves_head(call->out, call->out_stride, batch, tokens, q->heads, 4, p->rope.dtype))
        fits |= GPU_TILE_OUT;
    if (k && v && state->latent && are_same(p, call))
        fits |= GPU_TILE_SAME;
    if (!k && gpu_moves_cache(p, &p->k, call, &call->k))
        fits |= GPU_TILE_K_STORED;
    if (!v && gpu_moves_cache(p, &p->v, call, &call->v))
        fits |= GPU_TILE_V_STORED;
    return fits;
}

/* Whether heads have as many elements as a kernel of tiles has room for. */
static int fills(const gpu_attention_state *state) {
    const int32_t dim = state->tiles == GPU_GENERIC ? 0 : gpu_tile_dim(state->tiles);
    return state->problem.head_dim == dim && state->problem.v_head_dim == dim;
}

/* Whether it is one of those that prompt.h says. */
static int is_prompt(const gpu_attention_state *state, const rope_attention_call *call,
                     int32_t fits) {
    const rope_attention_problem *p = &state->problem;
    const rope_operand *q = &call->rope.tensor[0];
    const int64_t most = INT32_MAX - (1 << 16);
    return state->kernels->prompts[state->tiles] && fills(state) &&
           (fits & GPU_TILE_VECTORS) == GPU_TILE_VECTORS &&
           gpu_moves_head(call->out, call->out_stride, call->rope.batch, call->rope.tokens,
                          q->heads, 16, p->rope.dtype) &&
           !(p->soft_cap > 0) && p->mask != ROPE_MASK_TREE && !p->ring &&
           !(p->rotates[0] && p->rope.angle_mode == ROPE_ANGLE_TABLE &&
             p->rope.out_of_range == ROPE_OUT_OF_RANGE_ERROR) &&
           q->heads <= most && call->rope.tokens <= most / (q->heads / call->k.heads) &&
           rope_attention_capacity(p, call) <= most && (!p->cache || p->page_size <= most);
}

/* A kernel of all sequences, and bytes of its shared memory. */
typedef struct attending {
    const void *kernel;
    int64_t rows; /* of a tile */
    int64_t x;    /* tiles times this are its blocks along x */
    int32_t shared;
} attending;

static attending attends(const gpu_attention_state *state, int splits, int64_t k_heads) {
    if (state->latent)
        return (attending){state->kernels->latent, GPU_LATENT_ROWS, k_heads, gpu_latent_shared()};
    if (state->tiles == GPU_GENERIC) {
        const int32_t dim = gpu_generic_dim(state->generic),
                      rows = gpu_generic_rows_of(state->problem.rope.dtype, state->generic, splits);
        return (attending){state->kernels->generic[splits][state->generic], rows, k_heads,
                           gpu_generic_shared(rows, dim)};
    }
    if (splits)
        return (attending){state->kernels->splits[state->tiles], GPU_SPLIT_ROWS, 1,
                           gpu_splits_shared(state->tiles)};
    return (attending){state->kernels->tiles[state->tiles], gpu_tile_rows_of(state->tiles), 1,
                       gpu_tiles_shared(state->tiles)};
}

static gpuError_t join(launches *l, gpu_attention_parts *parts) {
    void *arguments[] = {(void *)(uintptr_t)&l->state->problem, &l->call, parts};
    return gpu_attention_start(l, l->state->kernels->join,
                               rope_attention_sequences(&l->call) * parts->queries,
                               l->call.rope.tensor[0].heads, 0, arguments);
}

static gpuError_t attend_splits(launches *l, gpu_attention_parts *parts, int64_t group,
                                int32_t fits) {
    const gpu_attention_state *state = l->state;
    const rope_attention_problem *p = &state->problem;
    const rope_attention_call *call = &l->call;
    const attending a = attends(state, 1, call->k.heads);
    const int64_t sequences = rope_attention_sequences(call),
                  queries = gpu_split_queries(state, group);
    parts->queries = call->rope.tokens < queries ? call->rope.tokens : queries;
    const int64_t each = state->latent ? parts->queries * GPU_LATENT_TILES(group) : 1;
    void *arguments[] = {(void *)(uintptr_t)p, &l->call, &l->failed, &fits, parts};
    gpuError_t error =
        gpu_attention_start(l, a.kernel, sequences * parts->splits * call->k.heads * each, 1,
                            (size_t)a.shared, arguments);
    return error == gpuSuccess && parts->splits > 1 ? join(l, parts) : error;
}

/* One query a sequence. */
static gpuError_t attend_decode(launches *l, gpu_decode_call *d) {
    const gpu_attention_state *state = l->state;
    const void *join_heads = state->kernels->decode_join[state->tiles];
    const int32_t heads = GPU_JOINED_HEADS(d->v_dim);
    const uint32_t sequences = (uint32_t)l->call.rope.batch;
    const dim3 block = {GPU_ATTENTION_THREADS, 1, 1},
               grid = {(uint32_t)d->k_heads, (uint32_t)d->parts.splits, sequences},
               joined = {(uint32_t)((d->heads - 1) / heads + 1), sequences, 1};
    void *arguments[] = {d};
    const gpuError_t error =
        gpu_launch_kernel(state->kernels->decode[state->tiles], grid, block, arguments,
                          (size_t)gpu_splits_shared(state->tiles), l->stream, gpu_next_early(l));
    if (error != gpuSuccess || d->parts.splits <= 1)
        return error;
    return fills(state) && join_heads ? gpu_launch_kernel(join_heads, joined, block, arguments, 0,
                                                          l->stream, gpu_next_early(l))
                                      : join(l, &d->parts);
}

/* All sequences, but those that are read in splits. */
static gpuError_t attend_tiles(launches *l, gpu_attention_parts *parts, int64_t group,
                               int32_t fits) {
    const rope_attention_call *call = &l->call;
    attending a = attends(l->state, 0, call->k.heads);
    const int packed = call->rope.position.cu_seqlens != NULL;
    const int64_t sequences = rope_attention_sequences(call),
                  each = l->state->latent ? GPU_LATENT_TILES(group) * GPU_LATENT_ROWS : group,
                  rows = call->rope.tokens * each;
    int64_t tiles = gpu_tiles_of(sequences, packed, rows, a.rows);
    if (l->state->tiles == GPU_GENERIC && tiles * a.x < 2 * l->state->on.multiprocessors) {
        a = attends(l->state, 1, call->k.heads); /* smaller blocks, of which all have several */
        tiles = gpu_tiles_of(sequences, packed, rows, a.rows);
    }
    if (l->state->tiles == GPU_GENERIC)
        fits &= ~GPU_TILE_SPLITS; /* it has a parts->queries then */
    else if (tiles <= INT32_MAX / 2 && is_prompt(l->state, call, fits)) {
        a.kernel = l->state->kernels->prompts[l->state->tiles];
        a.shared = gpu_prompts_shared(l->state->tiles);
        if (gpu_attention_starts_all(tiles, call->k.heads))
            fits |= GPU_TILE_ONCE;
    }
    void *arguments[] = {(void *)(uintptr_t)&l->state->problem, &l->call, &l->failed, &fits, parts};
    return gpu_attention_start(l, a.kernel, tiles * a.x, a.x > 1 ? 1 : call->k.heads,
                               (size_t)a.shared, arguments);
}

/* Sequences of few queries are read in splits, the others in tiles; the host may not know which. */
static gpuError_t attend(launches *l, const gpu_attention_sizes *sizes,
                         gpu_attention_parts *parts) {
    const gpu_attention_state *state = l->state;
    const rope_attention_call *call = &l->call;
    const rope_attention_problem *p = &state->problem;
    const int64_t group = call->rope.tensor[0].heads / call->k.heads;
    const int varies = call->rope.position.cu_seqlens || call->q_lengths,
              few = gpu_attention_few(state, sizes),
              splits = few || (gpu_split_queries(state, group) > 0 && varies);
    const int32_t fits = fits_of(state, call) | (splits ? GPU_TILE_SPLITS : 0);
    gpu_decode_call decode;
    if (few && !l->failed && state->tiles != GPU_GENERIC && state->kernels->decode[state->tiles] &&
        (fits & GPU_TILE_VECTORS) == GPU_TILE_VECTORS && gpu_decode_fits(p, call, &decode)) {
        decode.parts = *parts;
        decode.parts.queries = 1;
        return attend_decode(l, &decode);
    }
    const gpuError_t error = splits ? attend_splits(l, parts, group, fits) : gpuSuccess;
    return error != gpuSuccess || few ? error : attend_tiles(l, parts, group, fits);
}

gpuError_t gpu_attention_launch(const gpu_attention_state *state, const rope_attention_call *call,
                                void *workspace, void *stream) {
    const rope_attention_problem *p = &state->problem;
    const gpu_attention_sizes sizes = gpu_attention_sizes_of(p, call);
    launches l = {state, stream, call, *call, NULL, state->on.early};
    gpu_attention_parts parts = {NULL, 0, gpu_splits_most(p, call->k_tokens)};
    gpu_attention_layout layout;
    gpuError_t error = gpuSuccess;
    if (!gpu_attention_layout_of(state, &sizes, call->k.out != NULL,
                                 call->rope.tensor[0].out != NULL, &layout))
        return gpuErrorMemoryAllocation;
    if (gpu_attention_may_fail(p)) {
        l.failed = (int32_t *)(void *)((char *)workspace + layout.failed);
        error = gpu_attention_check_keys(&l);
    }
    if (state->splits && parts.splits > 1)
        parts.at = (float *)(void *)((char *)workspace + layout.parts);
    if (p->rotates[1] && !call->k.out)
        room_for_keys(p, &layout, workspace, &l.call);
    if (!call->rope.tensor[0].out && call->rope.tokens &&
        gpu_attention_rotates_ahead(state, &sizes))
        room_for_queries(p, &layout, workspace, &l.call);
    if (error == gpuSuccess)
        error = gpu_attention_rotate_ahead(&l);
    return error == gpuSuccess && call->rope.tokens ? attend(&l, &sizes, &parts) : error;
}
