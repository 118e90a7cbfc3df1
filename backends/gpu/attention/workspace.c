#include "backends/gpu/attention/workspace.h"

#include "backends/gpu/attention/gather.h"
#include "backends/gpu/attention/sm90.h"

/* Heads of all queries of a sequence that is read in splits, of calls up to these sizes: at most
 * GPU_SPLIT_ROWS a key head, or GPU_LATENT_QUERIES times all. */
static int64_t rows_of(const gpu_attention_state *state, const gpu_attention_sizes *s) {
    int64_t most, all;
    if (state->wide_heads ? __builtin_mul_overflow(s->q_heads, GPU_LATENT_QUERIES, &most)
                          : __builtin_mul_overflow(s->k_heads, GPU_SPLIT_ROWS, &most))
        most = INT64_MAX;
    return __builtin_mul_overflow(s->tokens, s->q_heads, &all) || all > most ? most : all;
}

int gpu_attention_few(const gpu_attention_state *state, const gpu_attention_sizes *s) {
    const int64_t most = gpu_split_queries(state, s->k_heads ? s->q_heads / s->k_heads : 0);
    return most > 0 && s->tokens <= most;
}

int gpu_attention_rotates_ahead(const gpu_attention_state *state, const gpu_attention_sizes *s) {
    return state->problem.rotates[0] &&
           (state->tiles == GPU_GENERIC || !gpu_attention_few(state, s));
}

/* Whether some keys and values of calls up to these sizes are gathered. */
static int gathers(const gpu_attention_state *state, const gpu_attention_sizes *s) {
    const int converts = gpu_attention_converts(&state->problem);
    return state->wide_heads
               ? converts
               : state->tiles != GPU_GENERIC && !gpu_attention_few(state, s) &&
                     (converts || (state->sm90 && gpu_sm90_may_gather(&state->problem, s)));
}

int gpu_attention_layout_of(const gpu_attention_state *state, const gpu_attention_sizes *sizes,
                            int has_k_out, int has_q_out, gpu_attention_layout *layout) {
    const rope_attention_problem *p = &state->problem;
    const int64_t failed = gpu_attention_may_fail(p) || (state->sm90 && gpu_sm90_looks_at_pages(p))
                               ? sizes->sequences
                               : 0,
                  rows = p->rotates[1] && !has_k_out ? sizes->k_rows : 0,
                  q_rows =
                      gpu_attention_rotates_ahead(state, sizes) && !has_q_out ? sizes->q_rows : 0,
                  splits = gpu_splits_most(p, sizes->k_tokens, 0),
                  parts = state->splits && splits > 1 ? sizes->sequences : 0;
    const double gathered =
        gathers(state, sizes) ? gpu_attention_gathered(p, sizes, state->wide_heads) : 0;
    const size_t element = p->rope.dtype == ROPE_F32 ? 4 : 2;
    layout->bytes = 0;
    return gpu_workspace_add((const int64_t[]){failed, 1, 1, 1}, sizeof(int32_t), &layout->bytes,
                             &layout->failed) &&
           gpu_workspace_add((const int64_t[]){rows, sizes->k_tokens, sizes->k_heads, p->head_dim},
                             element, &layout->bytes, &layout->keys) &&
           gpu_workspace_add((const int64_t[]){q_rows, sizes->tokens, sizes->q_heads, p->head_dim},
                             element, &layout->bytes, &layout->queries) &&
           gpu_workspace_add(
               (const int64_t[]){parts, rows_of(state, sizes), splits, p->v_head_dim + 2},
               sizeof(float), &layout->bytes, &layout->parts) &&
           gpu_workspace_add((const int64_t[]){state->sm90 != NULL, 1, 1, 1}, GPU_SM90_TICKETS,
                             &layout->bytes, &layout->tickets) &&
           gpu_workspace_add(
               (const int64_t[]){state->sm90 ? sizes->q_rows : 0, sizes->tokens, 1, 1},
               gpu_sm90_angles(p), &layout->bytes, &layout->angles) &&
           gpu_workspace_add((const int64_t[]){1, 1, 1, 1},
                             gathered < 0x1p63 ? (size_t)gathered : SIZE_MAX, &layout->bytes,
                             &layout->gathered) &&
           gpu_workspace_add((const int64_t[]){state->sm90 != NULL, 1, 1, 1},
                             gpu_sm90_span_bytes(p, sizes, state->on.multiprocessors),
                             &layout->bytes, &layout->spans);
}

rope_status gpu_attention_workspace(const void *canonical, const void *kernel, const void *given,
                                    size_t *bytes) {
    const gpu_attention_sizes sizes = gpu_attention_sizes_within(canonical, given);
    gpu_attention_layout layout;
    if (!gpu_attention_layout_of(kernel, &sizes, 0, 0, &layout))
        return gpu_workspace_overflows("bounds.", &sizes);
    *bytes = layout.bytes;
    return ROPE_OK;
}

rope_status gpu_attention_check_workspace(const gpu_attention_state *state,
                                          const rope_attention_call *call, const void *workspace) {
    const gpu_attention_sizes sizes = gpu_attention_sizes_of(&state->problem, call);
    gpu_attention_layout layout;
    if (!gpu_attention_layout_of(state, &sizes, call->k.out != NULL,
                                 call->rope.tensor[0].out != NULL, &layout))
        return gpu_workspace_overflows("", &sizes);
    return gpu_workspace_check(layout.bytes, call->workspace_bytes, workspace);
}
