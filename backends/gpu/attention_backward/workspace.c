#include "backends/gpu/attention/sizes.h"
#include "backends/gpu/attention/sm90.h"
#include "backends/gpu/attention_backward/launch.h"
#include "backends/gpu/attention_backward/sm90.h"

/* Which of q and k are rotated here. */
typedef struct rotated {
    int q, k;
} rotated;

/* Tiles of `each` tokens, of which `tokens` lie in a row, as gpu_tiles_of() has them for either
 * kind of sequences. */
static int64_t tiles_of(int64_t each, int64_t tokens, int64_t rows, int64_t sequences) {
    int64_t most;
    if (__builtin_mul_overflow(tokens / each + (tokens % each > 0), rows, &most) ||
        __builtin_add_overflow(most, sequences, &most))
        return INT64_MAX;
    return most;
}

/* Sums of dq where all gradients are computed at once. */
static int add_sums(const gpu_attention_sizes *s, int slab, gpu_backward_layout *layout) {
    int64_t tokens, most;
    if (s->k_heads < 1 || !gpu_backward_may_join(s->tokens, s->k_tokens, s->q_heads, slab))
        return 1; /* no sequence is that long */
    const int64_t shares = s->q_heads / s->k_heads;
    if (__builtin_mul_overflow(s->q_rows, s->tokens, &tokens) ||
        __builtin_mul_overflow(tokens, 2 * shares, &most))
        return 0;
    const int64_t slabs = GPU_BACKWARD_JOINT_SLABS(tokens, shares, slab) + shares + 2;
    layout->joins = 1;
    return gpu_workspace_add((const int64_t[]){s->k_heads, slabs, 128, 64}, sizeof(float),
                             &layout->bytes, &layout->sums) &&
           gpu_workspace_add((const int64_t[]){s->k_heads, slabs, 1, 1}, sizeof(uint32_t),
                             &layout->bytes, &layout->added);
}

/* What kernels of sm90/ have; 0 where bytes overflow. */
static int add_sm90(const rope_attention_problem *p, const gpu_attention_sizes *s,
                    gpu_backward_layout *layout) {
    const int64_t each = GPU_BACKWARD_SM90_TILE, listed = GPU_BACKWARD_SM90_LISTED,
                  rows = tiles_of(each, s->tokens, s->q_rows, s->sequences),
                  keys = tiles_of(each, s->k_tokens, s->k_rows, s->sequences);
    size_t behind; /* the rest of stats */
    return gpu_workspace_add(
               (const int64_t[]){s->q_rows, GPU_BACKWARD_SM90_STATS(s->tokens), s->q_heads, 1},
               sizeof(float), &layout->bytes, &layout->stats) &&
           gpu_workspace_add(
               (const int64_t[]){s->sequences, GPU_BACKWARD_SM90_STATS_PACKED, s->q_heads, 1},
               sizeof(float), &layout->bytes, &behind) &&
           gpu_workspace_add((const int64_t[]){1, 1, 1, 1},
                             GPU_BACKWARD_SM90_COUNTERS * sizeof(uint32_t), &layout->bytes,
                             &layout->counters) &&
           gpu_workspace_add((const int64_t[]){s->sequences, 1, 1, 1}, GPU_BACKWARD_SM90_KNOWN,
                             &layout->bytes, &layout->sequences) &&
           gpu_workspace_add((const int64_t[]){rows, listed, s->q_heads, 1}, sizeof(int32_t),
                             &layout->bytes, &layout->list[0]) &&
           gpu_workspace_add((const int64_t[]){keys, listed, s->k_heads, 1}, sizeof(int32_t),
                             &layout->bytes, &layout->list[1]) &&
           gpu_workspace_add((const int64_t[]){s->q_rows, s->tokens, 1, 1}, gpu_sm90_angles(p),
                             &layout->bytes, &layout->angles);
}

/* 0 where bytes overflow. */
static int layout_of(const gpu_backward_state *state, const gpu_attention_sizes *s, rotated here,
                     gpu_backward_layout *layout) {
    const rope_attention_problem *p = &state->forward.problem;
    const size_t element = p->rope.dtype == ROPE_F32 ? 4 : 2;
    const int is_longer = p->head_dim > 64 || p->v_head_dim > 64;
    layout->bytes = 0;
    layout->joins = 0;
    layout->sums = layout->added = 0;
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
           (!state->sm90 || add_sm90(p, s, layout)) &&
           (!state->sm90 || !gpu_backward_sm90_joins(p) ||
            add_sums(s, GPU_BACKWARD_JOINT_SLAB(is_longer), layout));
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
