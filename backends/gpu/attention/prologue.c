/*
 * What runs ahead of what attends: a look at keys that may have no position, the rotation of
 * queries and of keys, once each.
 */
#include "backends/gpu/attention/prologue.h"

#include "backends/gpu/geometry.h"
#include "common/math/attention.h"

#include <string.h>

static size_t at_least(size_t n, size_t least) {
    return n > least ? n : least;
}

int64_t gpu_tiles_of(int64_t sequences, int packed, int64_t most, int64_t rows) {
    const int64_t tiles = (most + rows - 1) / rows;
    return packed ? tiles + sequences : tiles * sequences;
}

int32_t gpu_next_early(gpu_attention_launches *l) {
    const int32_t early = l->early;
    l->early = l->state->starts_early;
    return early;
}

int gpu_attention_starts_all(int64_t x, int64_t y) {
    return x <= GPU_GENERIC_X_MOST && y <= GPU_GENERIC_Y_MOST;
}

gpuError_t gpu_attention_start(gpu_attention_launches *l, const void *kernel, int64_t x, int64_t y,
                               size_t shared, void **arguments) {
    const dim3 grid = {(uint32_t)gpu_at_most(x, GPU_GENERIC_X_MOST),
                       (uint32_t)gpu_at_most(y, GPU_GENERIC_Y_MOST), 1},
               block = {GPU_ATTENTION_THREADS, 1, 1};
    if (x < 1) /* no sequence, or no key */
        return gpuSuccess;
    return gpu_launch_kernel(kernel, grid, block, arguments, shared, l->stream, gpu_next_early(l));
}

/* --- what moves in vectors --- */

/* Whether elements from a pointer on, over dimensions of these sizes, can be moved `unit` at a
 * time from addresses of an alignment, and lie within 2^35 of the first. */
static int moves(const void *pointer, const int64_t *stride, const int64_t *size, int count,
                 int64_t unit, int64_t alignment) {
    int64_t reach = 0;
    for (int d = 0; d < count; d++) {
        if (size[d] <= 1)
            continue;
        if (stride[d] < 0 || stride[d] % unit || stride[d] > (INT64_C(1) << 35) / size[d])
            return 0;
        reach += (size[d] - 1) * stride[d];
    }
    return reach < INT64_C(1) << 35 && (uintptr_t)pointer % (size_t)alignment == 0;
}

int gpu_moves_head(const void *pointer, const int64_t *stride, int64_t batch, int64_t tokens,
                   int64_t heads, int64_t bytes, int32_t dtype) {
    const int64_t size[3] = {batch, tokens, heads};
    return stride[3] == 1 &&
           moves(pointer, stride, size, 3, bytes / (dtype == ROPE_F32 ? 4 : 2), bytes);
}

int gpu_moves_cache(const rope_attention_problem *p, const rope_append_steps *steps,
                    const rope_attention_call *call, const rope_append_operand *o) {
    const int64_t size[3] = {call->pages, p->page_size, o->heads};
    const int64_t unit = p->rope.dtype == ROPE_F32 ? 4 : 8; /* in which kernels count places */
    return !o->out && !o->in && steps->dim_block == steps->head_dim && o->cache_stride[4] == 1 &&
           moves(o->cache, o->cache_stride, size, 3, unit,
                 steps->store_dtype >= ROPE_F8E4M3 ? 8 : 16);
}

int gpu_moves_operand(const rope_attention_problem *p, const rope_append_steps *steps,
                      const rope_attention_call *call, const rope_append_operand *o) {
    if (o->out)
        return gpu_moves_head(o->out, o->out_stride,
                              p->cache ? rope_attention_sequences(call) : call->rope.batch,
                              call->k_tokens, o->heads, 16, p->rope.dtype);
    if (o->in)
        return gpu_moves_head(o->in, o->in_stride, call->rope.batch, call->k_tokens, o->heads, 16,
                              p->rope.dtype);
    return steps->store_dtype == p->rope.dtype && gpu_moves_cache(p, steps, call, o);
}

/* --- what rotates --- */

/* Whether queries and keys have the same boundaries, and all keys are used, so that a query's index
 * is its own. */
static int are_packed_alike(const rope_attention_call *c) {
    const rope_position_map *q = &c->rope.position, *k = &c->k_position;
    return q->cu_seqlens == k->cu_seqlens && q->tokens == k->tokens && !c->k_lengths;
}

/* "rope" may write beyond lengths, between boundaries and for sequences that fail: there is room,
 * no one reads it, and it raises no flag. A key's position does not depend on lengths that lie on
 * the device, a query's index does. Where boundaries fall it may miss tokens of other sequences. */
int gpu_attention_is_rope(const gpu_attention_launches *l, int tensor) {
    const rope_attention_call *c = l->given;
    const rope_position_map *q = &c->rope.position, *map = tensor ? &c->k_position : q;
    const rope_problem *r = &l->state->problem.rope;
    const void *out = tensor ? c->k.out : c->rope.tensor[0].out;
    if ((tensor ? !c->k.in : c->q_lengths != NULL) ||
        (out && (l->failed || q->cu_seqlens || c->q_lengths || c->k_lengths)) ||
        (tensor && c->k_lengths &&
         (r->angle_mode == ROPE_ANGLE_TABLE || r->frequency_sets > 1))) /* chosen by length */
        return 0;
    if (map->cu_seqlens)
        return (tensor || map->ids || are_packed_alike(c)) && !map->offsets && !map->lengths &&
               r->angle_mode != ROPE_ANGLE_TABLE;
    return tensor || map->ids || !c->k_lengths;
}

int gpu_attention_stands_alike(const rope_attention_call *c) {
    const rope_position_map *q = &c->rope.position, *k = &c->k_position;
    return q->tokens == k->tokens && q->ids == k->ids &&
           memcmp(q->id_stride, k->id_stride, sizeof q->id_stride) == 0;
}

/* Queries, keys or both, which stand alike. */
static gpuError_t launch_rope(gpu_attention_launches *l, const gpu_rope_state *rotation,
                              int queries, int keys) {
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
    if (call.position.ids)
        call.position.cu_seqlens = NULL;
    return gpu_rope_launch(rotation, &call, gpu_next_early(l), l->stream);
}

gpuError_t gpu_attention_rope(gpu_attention_launches *l, const gpu_rope_state *rotation,
                              int queries, int keys) {
    if (queries && keys && gpu_attention_stands_alike(&l->call))
        return launch_rope(l, rotation, 1, 1);
    const gpuError_t error = keys ? launch_rope(l, rotation, 0, 1) : gpuSuccess;
    return error == gpuSuccess && queries ? launch_rope(l, rotation, 1, 0) : error;
}

/* Whether pairs of a tensor lie in vectors of eight elements of 16 bits, there and where they go.
 */
static int rotates_vectors(const gpu_attention_launches *l, int tensor) {
    const rope_attention_problem *p = &l->state->problem;
    const rope_operand *q = &l->call.rope.tensor[0];
    const int64_t batch = l->call.rope.batch, tokens = l->call.rope.tokens;
    rope_append_operand k = l->call.k;
    if (!l->state->kernels->rotate_vectors[tensor] || p->rope.pairing_in != p->rope.pairing_out ||
        p->rope.pairs % 8 || p->rope.rotary_offset[tensor] % 8 || p->head_dim % 8)
        return 0;
    if (tensor == 0)
        return gpu_moves_head(q->in, q->in_stride, batch, tokens, q->heads, 16, p->rope.dtype) &&
               gpu_moves_head(q->out, q->out_stride, batch, tokens, q->heads, 16, p->rope.dtype);
    if (!gpu_moves_operand(p, &p->k, &l->call, &k))
        return 0;
    k.out = NULL;
    return gpu_moves_operand(p, &p->k, &l->call, &k);
}

gpuError_t gpu_attention_rotate(gpu_attention_launches *l, const rope_attention_problem *problem,
                                int tensor) {
    const rope_attention_call *call = &l->call;
    const gpu_attention_kernels *kernels = l->state->kernels;
    const int packed =
        tensor ? call->k_position.cu_seqlens != NULL : call->rope.position.cu_seqlens != NULL;
    const int vectors = rotates_vectors(l, tensor);
    const int64_t sequences = rope_attention_sequences(call),
                  tokens = tensor ? call->k_tokens : call->rope.tokens,
                  heads = tensor ? call->k.heads : call->rope.tensor[0].heads;
    rope_call positions = call->rope;
    if (tensor)
        positions.position = call->k_position;
    void *arguments[] = {(void *)(uintptr_t)problem, &l->call, &positions, &l->failed};
    if (vectors)
        return gpu_attention_start(l, kernels->rotate_vectors[tensor],
                                   gpu_tiles_of(sequences, packed, tokens, GPU_VECTOR_TOKENS),
                                   (heads + GPU_VECTOR_HEADS - 1) / GPU_VECTOR_HEADS,
                                   GPU_ATTENTION_THREADS * sizeof(int64_t), arguments);
    return gpu_attention_start(
        l, kernels->rotate[tensor], gpu_tiles_of(sequences, packed, tokens, GPU_ATTENTION_TOKENS),
        heads,
        at_least(GPU_ATTENTION_TOKENS * (size_t)l->state->problem.head_dim * sizeof(float),
                 GPU_ATTENTION_THREADS * sizeof(int64_t)),
        arguments);
}

gpuError_t gpu_attention_rotate_ahead(gpu_attention_launches *l) {
    const int queries = l->call.rope.tensor[0].out != NULL,
              keys = l->state->problem.rotates[1] && l->call.k.out;
    const int q_rope = queries && gpu_attention_is_rope(l, 0),
              k_rope = keys && gpu_attention_is_rope(l, 1);
    gpuError_t error = gpu_attention_rope(l, &l->state->rotation, q_rope, k_rope);
    if (error == gpuSuccess && keys && !k_rope)
        error = gpu_attention_rotate(l, &l->state->problem, 1);
    return error == gpuSuccess && queries && !q_rope
               ? gpu_attention_rotate(l, &l->state->problem, 0)
               : error;
}

gpuError_t gpu_attention_check_keys(gpu_attention_launches *l) {
    rope_call keys = l->call.rope;
    keys.position = l->call.k_position;
    void *arguments[] = {(void *)(uintptr_t)&l->state->problem, &l->call, &keys, &l->failed};
    return gpu_attention_start(l, l->state->kernels->check, rope_attention_sequences(&l->call), 1,
                               0, arguments);
}
