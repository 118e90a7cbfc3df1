#include "backends/gpu/attention/sizes.h"
#include "backends/gpu/attention_backward/launch.h"
#include "backends/gpu/attention_backward/sm90.h"

/* Which of q and k are rotated here. */
typedef struct rotated {
    int q, k;
} rotated;

/* Tiles of rows of a head of keys, as gpu_tiles_of() has them for either kind of sequences. */
static int64_t tiles_of(const gpu_backward_state *state, const gpu_attention_sizes *s) {
    if (!state->fused)
        return 0;
    const int64_t rows = GPU_FUSED_ROWS(gpu_tile_dim(state->forward.tiles)),
                  group = s->k_heads ? s->q_heads / s->k_heads : 0;
    int64_t most;
    if (__builtin_mul_overflow(s->tokens, group, &most) ||
        __builtin_mul_overflow(most / rows + (most % rows > 0), s->q_rows, &most) ||
        __builtin_add_overflow(most, s->sequences, &most))
        return INT64_MAX;
    return most;
}

/* 0 where bytes overflow. */
static int layout_of(const gpu_backward_state *state, const gpu_attention_sizes *s, rotated here,
                     gpu_backward_layout *layout) {
    const rope_attention_problem *p = &state->forward.problem;
    const int64_t tiles = tiles_of(state, s),
                  turns = tiles < INT64_MAX ? tiles + state->fused : tiles,
                  sums = state->fused ? GPU_FUSED_SUMS : 0, sm90 = state->sm90 ? s->q_rows : 0;
    const size_t element = p->rope.dtype == ROPE_F32 ? 4 : 2;
    layout->bytes = 0;
    return gpu_workspace_add(
               (const int64_t[]){gpu_attention_may_fail(p) ? s->sequences : 0, 1, 1, 1},
               sizeof(int32_t), &layout->bytes, &layout->failed) &&
           gpu_workspace_add(
               (const int64_t[]){here.k ? s->k_rows : 0, s->k_tokens, s->k_heads, p->head_dim},
               element, &layout->bytes, &layout->keys) &&
           gpu_workspace_add(
               (const int64_t[]){here.q ? s->q_rows : 0, s->tokens, s->q_heads, p->head_dim},
               element, &layout->bytes, &layout->queries) &&
           gpu_workspace_add((const int64_t[]){s->q_rows, s->tokens, s->q_heads, 1}, sizeof(float),
                             &layout->bytes, &layout->delta) &&
           gpu_workspace_add((const int64_t[]){s->k_heads, tiles, sums, 1}, sizeof(float),
                             &layout->bytes, &layout->dq) &&
           gpu_workspace_add((const int64_t[]){s->k_heads, turns, 1, 1}, sizeof(int32_t),
                             &layout->bytes, &layout->turns) &&
           gpu_workspace_add(
               (const int64_t[]){sm90, GPU_BACKWARD_SM90_STATS(s->tokens), s->q_heads, 1},
               sizeof(float), &layout->bytes, &layout->stats) &&
           gpu_workspace_add(
               (const int64_t[]){sm90 ? GPU_BACKWARD_SM90_COUNTERS / 8 + s->q_rows : 0, 1, 1, 1}, 8,
               &layout->bytes, &layout->counters) &&
           gpu_workspace_add(
               (const int64_t[]){sm90, GPU_BACKWARD_SM90_LIST(s->tokens), s->q_heads, 1},
               sizeof(int32_t), &layout->bytes, &layout->list[0]) &&
           gpu_workspace_add(
               (const int64_t[]){sm90, GPU_BACKWARD_SM90_LIST(s->k_tokens), s->k_heads, 1},
               sizeof(int32_t), &layout->bytes, &layout->list[1]);
}

rope_status gpu_backward_workspace(const void *canonical, const void *kernel, const void *given,
                                   size_t *bytes) {
    const rope_attention_problem *p = canonical;
    const gpu_attention_sizes sizes = gpu_attention_sizes_within(p, given);
    const rotated here = {p->rotates[0], p->rotates[1]};
    gpu_backward_layout layout;
    if (!layout_of(kernel, &sizes, here, &layout))
        return gpu_workspace_overflows("bounds.", &sizes);
    *bytes = layout.bytes;
    return ROPE_OK;
}

rope_status gpu_backward_check_workspace(const gpu_backward_state *state,
                                         const rope_attention_backward_call *call,
                                         const void *workspace, gpu_backward_layout *layout) {
    const rope_attention_problem *p = &state->forward.problem;
    const gpu_attention_sizes sizes = gpu_attention_sizes_of(p, &call->forward);
    const rotated here = {p->rotates[0] && !call->forward.rope.tensor[0].out,
                          p->rotates[1] && !call->forward.k.out};
    if (!layout_of(state, &sizes, here, layout))
        return gpu_workspace_overflows("", &sizes);
    return gpu_workspace_check(layout->bytes, call->forward.workspace_bytes, workspace);
}
