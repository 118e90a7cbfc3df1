/* From a call of "attention_backward" to its launches. */
#include "backends/gpu/attention_backward/launch.h"

#include "backends/gpu/attention/prologue.h"
#include "backends/gpu/attention_backward/sm90.h"
#include "backends/gpu/geometry.h"
#include "common/math/attention.h"

typedef struct launches {
    gpu_attention_launches ahead;
    gpu_attention_launches behind; /* its q and k are dq and dk */
    int behind_rotates[2];         /* by "rope" */
    int rotates_later[2];          /* by a pass over sequences */
    int sm90;                      /* kernels of sm90/ take the call, and what is rotated of it */
    const gpu_backward_state *state;
    rope_attention_problem problem;    /* transposed; of the kernels that write gradients */
    rope_attention_backward_call call; /* its q.in and k.in are rotated */
    rope_call keys;                    /* with the positions of keys */
    float *delta;
    int32_t fits;
    int32_t again; /* few sequences, if any, are not left out */
} launches;

static void contiguous(int64_t stride[4], int64_t tokens, int64_t heads, int64_t head_dim) {
    stride[3] = 1;
    stride[2] = head_dim;
    stride[1] = heads * stride[2];
    stride[0] = tokens * stride[1];
}

/* Gives what the forward did not write rotated its layout, and rotates it there. */
static gpuError_t rotate(launches *l, const gpu_backward_layout *layout, char *workspace) {
    const rope_attention_problem *p = &l->state->forward.problem;
    rope_attention_call *call = &l->ahead.call;
    rope_operand *q = &call->rope.tensor[0];
    const int rotates_q = p->rotates[0] && !q->out && call->rope.tokens,
              rotates_k = p->rotates[1] && !call->k.out;
    q->out = rotates_q ? workspace + layout->queries : NULL;
    call->k.out = rotates_k ? workspace + layout->keys : NULL;
    contiguous(q->out_stride, call->rope.tokens, q->heads, p->head_dim);
    contiguous(call->k.out_stride, call->k_tokens, call->k.heads, p->head_dim);
    const gpuError_t error = gpu_attention_rotate_ahead(&l->ahead);
    if (rotates_q) {
        q->in = q->out;
        memcpy(q->in_stride, q->out_stride, sizeof q->in_stride);
    }
    if (rotates_k) {
        call->k.in = call->k.out;
        memcpy(call->k.in_stride, call->k.out_stride, sizeof call->k.in_stride);
    }
    return error;
}

/* Whether "rope" rotates a gradient where it lies: that of every token, which has a position. A key
 * that no query sees has zeros, which do not rotate. */
static int rotates_behind(const launches *l, int tensor) {
    const rope_attention_problem *p = &l->state->transposed;
    const rope_attention_call *call = &l->behind.call;
    const rope_attention_sequence s = {.q_count = call->rope.tokens,
                                       .k_count = call->k_tokens,
                                       .q_index = call->k_tokens - call->rope.tokens,
                                       .k_whole = call->k_tokens};
    const int may_fail =
        p->rope.angle_mode == ROPE_ANGLE_TABLE && p->rope.out_of_range == ROPE_OUT_OF_RANGE_ERROR;
    if (!p->rotates[tensor] || may_fail || s.q_count < 1 || s.k_count < 1 ||
        !gpu_attention_is_rope(&l->behind, tensor))
        return 0;
    return tensor == 0 ||
           (rope_keys_seen(p, &s, rope_query_index(&s, 0)).begin == 0 &&
            rope_keys_seen(p, &s, rope_query_index(&s, s.q_count - 1)).end == s.k_count);
}

/* Finds which gradients "rope" rotates behind the kernels: there angles of a token serve all of its
 * heads, while a block of theirs has one head, and but those of sm90/ computes them. */
static void find_behind(launches *l) {
    rope_attention_call *call = &l->behind.call;
    rope_operand *q = &call->rope.tensor[0];
    const int wanted[2] = {l->call.dq != NULL, l->call.dk != NULL};
    l->behind = l->ahead;
    l->behind.given = call;
    q->in = q->out = l->call.dq;
    call->k.in = call->k.out = l->call.dk;
    memcpy(q->in_stride, l->call.dq_stride, sizeof q->in_stride);
    memcpy(q->out_stride, l->call.dq_stride, sizeof q->out_stride);
    memcpy(call->k.in_stride, l->call.dk_stride, sizeof call->k.in_stride);
    memcpy(call->k.out_stride, l->call.dk_stride, sizeof call->k.out_stride);
    call->k.cache = call->k.out; /* as with a cache, keys that no query sees do not rotate */
    l->problem = l->state->transposed;
    l->sm90 = l->sm90 && gpu_backward_sm90_fits(&l->problem, &l->call);
    if (l->sm90 && gpu_backward_sm90_turns(&l->problem, &l->call))
        return;
    for (int tensor = 0; tensor < 2; tensor++) {
        l->behind_rotates[tensor] = wanted[tensor] && rotates_behind(l, tensor);
        l->rotates_later[tensor] =
            l->sm90 && wanted[tensor] && l->problem.rotates[tensor] && !l->behind_rotates[tensor];
        l->problem.rotates[tensor] &= !l->sm90 && !l->behind_rotates[tensor];
    }
}

/* `what` where heads of a tensor move 16 bytes at a time. */
static int32_t fits(int32_t what, const void *data, const int64_t *stride, int64_t batch,
                    int64_t tokens, int64_t heads, int32_t dim, int32_t dtype) {
    return dim % (dtype == ROPE_F32 ? 4 : 8) == 0 &&
                   gpu_moves_head(data, stride, batch, tokens, heads, 16, dtype)
               ? what
               : 0;
}

static int32_t fits_of(const rope_attention_problem *p, const rope_attention_backward_call *c) {
    const rope_attention_call *f = &c->forward;
    const rope_operand *q = &f->rope.tensor[0];
    const int64_t batch = f->rope.batch, tokens = f->rope.tokens, keys = f->k_tokens;
    const int32_t dtype = p->rope.dtype, dim = p->head_dim, v_dim = p->v_head_dim;
    return fits(GPU_BACKWARD_Q, q->in, q->in_stride, batch, tokens, q->heads, dim, dtype) |
           fits(GPU_BACKWARD_DOUT, c->dout, c->dout_stride, batch, tokens, q->heads, v_dim, dtype) |
           fits(GPU_BACKWARD_K, f->k.in, f->k.in_stride, batch, keys, f->k.heads, dim, dtype) |
           fits(GPU_BACKWARD_V, f->v.in, f->v.in_stride, batch, keys, f->v.heads, v_dim, dtype) |
           fits(GPU_BACKWARD_DQ, c->dq, c->dq_stride, batch, tokens, q->heads, dim, dtype) |
           fits(GPU_BACKWARD_DK, c->dk, c->dk_stride, batch, keys, f->k.heads, dim, dtype) |
           fits(GPU_BACKWARD_DV, c->dv, c->dv_stride, batch, keys, f->v.heads, v_dim, dtype) |
           fits(GPU_BACKWARD_OUT, f->out, f->out_stride, batch, tokens, q->heads, v_dim, dtype);
}

/* Rows and keys are counted in 32 bits by tiles. */
static int by_tiles(const launches *l) {
    const rope_attention_call *f = &l->call.forward;
    const int64_t group = f->rope.tensor[0].heads / f->k.heads;
    return l->state->forward.tiles != GPU_GENERIC && f->rope.tokens <= INT32_MAX / 2 / group &&
           f->k_tokens <= INT32_MAX / 2;
}

/* A kernel over rows or keys of a block, `own` of each tile, and parts of a key head. */
static gpuError_t start(launches *l, const void *kernel, int which, int64_t own, int64_t parts,
                        int32_t shared) {
    const rope_attention_call *f = &l->call.forward;
    const int64_t group = f->rope.tensor[0].heads / f->k.heads;
    const int packed = (which ? f->k_position.cu_seqlens : f->rope.position.cu_seqlens) != NULL;
    void *arguments[] = {&l->problem, &l->call, &l->ahead.failed, &l->delta, &l->keys, &l->fits};
    int64_t x = gpu_tiles_of(rope_attention_sequences(f), packed,
                             which ? f->k_tokens : f->rope.tokens * group, own),
            y = f->k.heads * parts;
    if (l->again) {
        x = gpu_at_most(x, 2 * l->state->forward.on.multiprocessors);
        y = 1;
    }
    return gpu_attention_start(&l->ahead, kernel, x, y, (size_t)shared, arguments);
}

static gpuError_t gradient(launches *l, int which) {
    const gpu_backward_state *state = l->state;
    const int32_t tiles = state->forward.tiles, generic = state->forward.generic,
                  padded = gpu_generic_dim(generic);
    if (!by_tiles(l))
        return start(l, state->kernels->generic[which][generic], which, GPU_GENERIC_ROWS(padded), 1,
                     gpu_backward_generic_shared(padded));
    const int parts = which && gpu_tile_dim(tiles) > GPU_TILE_NARROW;
    return start(l, state->kernels->tiles[which][tiles], which, GPU_BACKWARD_OWN, 1 + parts,
                 gpu_backward_tiles_shared(gpu_tile_dim(tiles)));
}

static gpuError_t gradients(launches *l) {
    const gpuError_t error = l->call.dk || l->call.dv ? gradient(l, GPU_BACKWARD_KEYS) : gpuSuccess;
    return error == gpuSuccess && l->call.dq ? gradient(l, GPU_BACKWARD_ROWS) : error;
}

/* Launches kernels of sm90/, then those of tiles for gradients that are not finite. */
static gpuError_t gradients_by_sm90(launches *l, const gpu_backward_layout *layout,
                                    char *workspace) {
    const int early = gpu_next_early(&l->ahead);
    const gpu_backward_sm90_call call = {.problem = &l->problem,
                                         .call = &l->call,
                                         .counters = workspace + layout->counters,
                                         .sequences = workspace + layout->sequences,
                                         .list = {(int32_t *)(void *)(workspace + layout->list[0]),
                                                  (int32_t *)(void *)(workspace + layout->list[1])},
                                         .stats = (float *)(void *)(workspace + layout->stats),
                                         .delta = l->delta,
                                         .angles = workspace + layout->angles,
                                         .sums = layout->joins ? workspace + layout->sums : NULL,
                                         .added = workspace + layout->added,
                                         .multiprocessors = l->state->forward.on.multiprocessors,
                                         .early = early,
                                         .follows_early = l->ahead.early,
                                         .stream = l->ahead.stream};
    gpuError_t error = gpu_backward_sm90_launch(&call);
    l->again = 1;
    l->fits |= GPU_BACKWARD_AGAIN;
    for (int which = 0; which < 2 && error == gpuSuccess; which++) {
        l->ahead.failed = gpu_backward_sm90_again(&call, which);
        if (which ? l->call.dk || l->call.dv : l->call.dq != NULL)
            error = gradient(l, which);
    }
    l->ahead.failed = NULL;
    return error;
}

static gpuError_t rotate_behind(launches *l) {
    l->behind.early = l->ahead.early;
    gpuError_t error = gpu_attention_rope(&l->behind, &l->state->transpose, l->behind_rotates[0],
                                          l->behind_rotates[1]);
    for (int tensor = 0; tensor < 2 && error == gpuSuccess; tensor++)
        if (l->rotates_later[tensor])
            error = gpu_attention_rotate(&l->behind, &l->state->transposed, tensor);
    return error;
}

static gpuError_t sums(launches *l, const void *kernel, int64_t x) {
    void *arguments[] = {&l->problem, &l->call, &l->ahead.failed, &l->delta, &l->fits};
    return gpu_attention_start(&l->ahead, kernel, x, 1, 0, arguments);
}

gpuError_t gpu_backward_launch(const gpu_backward_state *state,
                               const rope_attention_backward_call *call,
                               const gpu_backward_layout *layout, void *workspace, void *stream) {
    launches l = {.ahead = {.state = &state->forward,
                            .stream = stream,
                            .given = &call->forward,
                            .call = call->forward,
                            .early = state->forward.on.early},
                  .sm90 = state->sm90 && gpu_backward_sm90_fits(&state->transposed, call),
                  .state = state,
                  .call = *call,
                  .keys = call->forward.rope,
                  .delta = (float *)(void *)((char *)workspace + layout->delta)};
    const rope_operand *q = &call->forward.rope.tensor[0];
    const int64_t rows = call->forward.rope.batch * call->forward.rope.tokens * q->heads,
                  each = GPU_ATTENTION_THREADS / GPU_DELTA_LANES;
    gpuError_t error = gpuSuccess;
    l.keys.position = call->forward.k_position;
    if (gpu_attention_may_fail(&state->forward.problem)) {
        l.ahead.failed = (int32_t *)(void *)((char *)workspace + layout->failed);
        error = gpu_attention_check_keys(&l.ahead);
    }
    if (error == gpuSuccess)
        error = rotate(&l, layout, workspace);
    l.call.forward = l.ahead.call;
    l.fits = fits_of(&state->transposed, &l.call);
    find_behind(&l);
    if (error == gpuSuccess && !l.sm90)
        error = sums(&l, state->kernels->delta, (rows + each - 1) / each);
    if (error == gpuSuccess)
        error = l.sm90 ? gradients_by_sm90(&l, layout, workspace) : gradients(&l);
    if (error == gpuSuccess)
        error = rotate_behind(&l);
    if (error == gpuSuccess && call->dsinks)
        error = sums(&l, state->kernels->sinks, q->heads);
    return error;
}
