#include "common/gpu/attention/workspace.h"

#include "common/gpu/device.h"
#include "common/math/attention.h"

enum { ALIGNMENT = 256 };

/* Appends a part of n0 * n1 * n2 * n3 elements; 0 where bytes overflow. */
static int append(const int64_t n[4], size_t element, size_t *bytes, size_t *begin) {
    size_t part = element;
    *begin = *bytes;
    for (int i = 0; i < 4; i++)
        if (__builtin_mul_overflow(part, (size_t)n[i], &part))
            return 0;
    return !__builtin_add_overflow(*bytes, part, bytes) &&
           !__builtin_add_overflow(*bytes, (ALIGNMENT - *bytes % ALIGNMENT) % ALIGNMENT, bytes);
}

gpu_attention_sizes gpu_attention_sizes_of(const rope_attention_problem *problem,
                                           const rope_attention_call *call) {
    const int64_t sequences = rope_attention_sequences(call);
    return (gpu_attention_sizes){sequences,
                                 problem->cache ? sequences : call->rope.batch,
                                 call->k_tokens,
                                 call->k.heads,
                                 call->rope.batch,
                                 call->rope.tokens,
                                 call->rope.tensor[0].heads};
}

/* Heads of all queries of a sequence that is read in splits: at most GPU_SPLIT_ROWS a key head. */
static int64_t rows_of(const gpu_attention_sizes *s) {
    const int64_t most =
        s->k_heads < INT64_MAX / GPU_SPLIT_ROWS ? s->k_heads * GPU_SPLIT_ROWS : INT64_MAX;
    int64_t all;
    return __builtin_mul_overflow(s->tokens, s->q_heads, &all) || all > most ? most : all;
}

int gpu_attention_few(const gpu_attention_bound *bound, const gpu_attention_sizes *s) {
    const int64_t group = s->k_heads ? s->q_heads / s->k_heads : 0;
    return bound->splits && group > 0 && group <= GPU_SPLIT_ROWS &&
           s->tokens <= GPU_SPLIT_ROWS / group;
}

int gpu_attention_rotates_ahead(const gpu_attention_bound *bound, const gpu_attention_sizes *s) {
    return bound->tiles != GPU_GENERIC && bound->problem.rotates[0] && !gpu_attention_few(bound, s);
}

int gpu_attention_room_of(const gpu_attention_bound *bound, const gpu_attention_sizes *sizes,
                          int has_k_out, int has_q_out, gpu_attention_room *room) {
    const rope_attention_problem *p = &bound->problem;
    const int64_t failed = gpu_attention_may_fail(p) ? sizes->sequences : 0,
                  rows = p->rotates[1] && !has_k_out ? sizes->k_rows : 0,
                  q_rows =
                      gpu_attention_rotates_ahead(bound, sizes) && !has_q_out ? sizes->q_rows : 0,
                  splits = gpu_splits_most(p, sizes->k_tokens),
                  parts = bound->splits && splits > 1 ? sizes->sequences : 0;
    room->bytes = 0;
    return append((const int64_t[]){failed, 1, 1, 1}, sizeof(int32_t), &room->bytes,
                  &room->failed) &&
           append((const int64_t[]){rows, sizes->k_tokens, sizes->k_heads, p->head_dim},
                  p->rope.dtype == ROPE_F32 ? 4 : 2, &room->bytes, &room->keys) &&
           append((const int64_t[]){q_rows, sizes->tokens, sizes->q_heads, p->head_dim}, 2,
                  &room->bytes, &room->queries) &&
           append((const int64_t[]){parts, rows_of(sizes), splits, p->v_head_dim + 2},
                  sizeof(float), &room->bytes, &room->parts);
}

rope_status gpu_attention_workspace(const void *canonical, const void *kernel, const void *given,
                                    size_t *bytes) {
    const rope_attention_problem *problem = canonical;
    const rope_attention_bounds *b = given;
    const int64_t sequences = b->sequences ? b->sequences : b->batch;
    const gpu_attention_sizes sizes = {sequences,
                                       problem->cache ? sequences : b->batch,
                                       b->k_tokens ? b->k_tokens : b->tokens,
                                       b->k_heads,
                                       b->batch,
                                       b->tokens,
                                       b->q_heads};
    gpu_attention_room room;
    if (!gpu_attention_room_of(kernel, &sizes, 0, 0, &room))
        return gpu_host->fail(ROPE_ERROR_OVERFLOW,
                              "bounds.k_tokens is %lld with %lld rows and %lld heads; allowed is a "
                              "workspace below 2^64 bytes",
                              (long long)sizes.k_tokens, (long long)sizes.k_rows,
                              (long long)sizes.k_heads);
    *bytes = room.bytes;
    return ROPE_OK;
}

rope_status gpu_attention_check_workspace(const gpu_attention_bound *bound,
                                          const rope_attention_call *call, const void *workspace) {
    const gpu_attention_sizes sizes = gpu_attention_sizes_of(&bound->problem, call);
    gpu_attention_room room;
    if (!gpu_attention_room_of(bound, &sizes, call->k.out != NULL, call->rope.tensor[0].out != NULL,
                               &room))
        return gpu_host->fail(ROPE_ERROR_OVERFLOW,
                              "k_tokens is %lld; allowed is a workspace below 2^64 bytes",
                              (long long)call->k_tokens);
    if (room.bytes == 0)
        return ROPE_OK;
    if (call->workspace_bytes < room.bytes)
        return gpu_host->fail(ROPE_ERROR_INVALID_VALUE, "workspace_bytes is %zu; allowed is >= %zu",
                              call->workspace_bytes, room.bytes);
    if (!workspace)
        return gpu_host->fail(ROPE_ERROR_NULL_POINTER,
                              "workspace is NULL; allowed is %zu bytes of device memory",
                              room.bytes);
    return (uintptr_t)workspace % ALIGNMENT
               ? gpu_host->fail(ROPE_ERROR_MISALIGNED,
                                "workspace is %p; allowed is a multiple of %d", workspace,
                                ALIGNMENT)
               : ROPE_OK;
}
