/* Problems and calls that take the kernel that decodes latents in one launch, and its launch. */
#include "backends/gpu/append/launch_plan.h"
#include "backends/gpu/attention/choose.h"
#include "backends/gpu/attention/gather.h"
#include "backends/gpu/attention/prologue.h"
#include "backends/gpu/attention/sizes.h"
#include "backends/gpu/attention/sm90/call.h"
#include "backends/gpu/candidate.h"
#include "backends/gpu/decode/launch.h"
#include "backends/gpu/decode/sm90/kernels.h"
#include "backends/gpu/geometry.h"

#include <stdio.h>

enum { DIM = SM90_LATENT_DIM, VALUE_DIM = SM90_LATENT_VALUE_DIM };

/* --- problems --- */

static const void *kernel_of(const rope_decode_problem *p) {
    return gpu_decode_latent_kernels[p->append->rope.dtype == ROPE_BF16];
}

static int is_window(const rope_problem *r) {
    return 2 * r->pairs == DIM - VALUE_DIM && r->rotary_offset[0] == VALUE_DIM &&
           r->rotary_offset[1] == VALUE_DIM;
}

/* Of the latent, if of anything. */
static int takes_norm(const rope_append_steps *s, int32_t dtype) {
    return !s->norm ||
           (s->norm == ROPE_NORM_RMS && s->norm_scope == ROPE_NORM_HEAD && s->norm_offset == 0 &&
            s->norm_dim == VALUE_DIM && s->weight && s->weight_dtype == dtype);
}

static const char *decline(const rope_decode_problem *p, int32_t device) {
    const rope_append_problem *a = p->append;
    const rope_append_steps *q = &a->steps[ROPE_APPEND_Q], *k = &a->steps[ROPE_APPEND_K];
    if (!gpu_sm90_latent_kernels(p->attention, device) || gpu_attention_converts(p->attention))
        return "declined: the kernel `latent` of attention is not for it, or for the device";
    if (!q->rotates || !k->rotates || gpu_append_declines_angles(&a->rope) || !is_window(&a->rope))
        return "declined: the last 64 elements of heads do not rotate by exact angles of one axis";
    if (q->norm || q->factor != 1 || k->factor != 1 || k->scale || !takes_norm(k, a->rope.dtype))
        return "declined: there is a factor, or a norm that is not RMS of k's first 512 elements "
               "with weights of dtype";
    return NULL;
}

static rope_status query(const rope_decode_problem *p, int32_t device, char *reason) {
    if (!p)
        return gpu_kernel_probe(gpu_decode_latent_kernels[0], device, reason);
    const char *declined = decline(p, device);
    if (!declined)
        return ROPE_OK;
    snprintf(reason, ROPE_REASON_SIZE, "%s", declined);
    return ROPE_DECLINED;
}

static const void *join_of(const rope_decode_problem *p) {
    return gpu_attention_sm90_latent_kernels[p->append->rope.dtype == ROPE_BF16][0][1];
}

static gpuError_t load(const rope_decode_problem *p, int32_t *early) {
    const void *const kernels[] = {kernel_of(p), join_of(p)};
    const gpuError_t error = gpu_kernels_load(kernels, 2, early);
    return error == gpuSuccess ? gpu_allow_shared(kernels[0], SM90_DECODE_LATENT_SHARED) : error;
}

/* --- calls --- */

static int64_t splits_of(const rope_decode_problem *p, int64_t keys) {
    return gpu_splits_most(p->attention, keys, GPU_SM90_LATENT_LONGER);
}

/* A block has a split of a query's rows. */
static int64_t blocks_of(const rope_decode_problem *p, const rope_decode_call *call) {
    const int64_t k_heads = call->append.tensor[ROPE_APPEND_K].heads,
                  group = call->append.tensor[ROPE_APPEND_Q].heads / k_heads;
    return rope_attention_sequences(&call->attention) * splits_of(p, call->attention.k_tokens) *
           k_heads * call->most_tokens * GPU_SM90_LATENT_BLOCKS(group);
}

/* As measured on an H200. Rows of few splits are joined in little time. */
enum { FEW_SPLITS = 4, FEW_ROWS = 16 };

/* Whether the launch joins splits: where its blocks all run at once, and many enough to have few
 * rows each. Else a launch of many small blocks does in less time. */
static int joins_of(const rope_decode_problem *p, const rope_decode_call *call,
                    int multiprocessors) {
    const int64_t blocks = blocks_of(p, call), splits = splits_of(p, call->attention.k_tokens),
                  group = call->append.tensor[ROPE_APPEND_Q].heads /
                          call->append.tensor[ROPE_APPEND_K].heads;
    return splits <= SM90_DECODE_LATENT_SPLITS &&
           (splits <= FEW_SPLITS || blocks <= multiprocessors) &&
           (group <= FEW_ROWS || 3 * blocks >= multiprocessors);
}

/* Where blocks have many rounds, what each does for its queries takes as long as an append. */
static int is_faster(const rope_decode_problem *p, const rope_decode_call *call,
                     int multiprocessors) {
    return splits_of(p, call->attention.k_tokens) <= FEW_SPLITS ||
           blocks_of(p, call) <= 4 * (int64_t)multiprocessors;
}

static int fits(const rope_decode_problem *p, const rope_decode_call *call, int multiprocessors) {
    const rope_attention_call a = gpu_decode_attention_of(call);
    const rope_append_operand *q = &call->append.tensor[ROPE_APPEND_Q],
                              *k = &call->append.tensor[ROPE_APPEND_K];
    const int32_t fitting = GPU_TILE_K | GPU_TILE_SAME | GPU_TILE_OUT;
    return call->most_tokens <= GPU_LATENT_QUERIES && k->in && !k->out && !q->out &&
           !call->append.tensor[ROPE_APPEND_V].heads &&
           gpu_append_has_vectors(p->append, &call->append, ROPE_APPEND_K) &&
           gpu_moves_operand(p->attention, &p->attention->k, &a, &a.k) &&
           gpu_moves_operand(p->attention, &p->attention->v, &a, &a.v) &&
           gpu_attention_are_same(p->attention, &a) &&
           gpu_moves_head(a.out, a.out_stride, a.rope.batch, a.rope.tokens, q->heads, 4,
                          p->append->rope.dtype) &&
           blocks_of(p, call) > 0 &&
           gpu_sm90_latent_fits(p->attention, &a, fitting, blocks_of(p, call)) &&
           is_faster(p, call, multiprocessors);
}

/* --- memory --- */

/* Counters, then parts; 0 where bytes overflow. */
static size_t layout(const rope_decode_problem *p, const gpu_attention_sizes *s, size_t *parts) {
    const int64_t splits = splits_of(p, s->k_tokens), joined = splits > 1 ? s->sequences : 0,
                  queries = gpu_at_most(s->tokens, GPU_LATENT_QUERIES),
                  /* no fewer than blocks of a query, whichever share a key head */
        counters = s->k_heads + s->q_heads / GPU_SM90_LATENT_ROWS;
    size_t bytes = 0, at;
    return gpu_workspace_add((const int64_t[]){joined, queries, counters, 1}, sizeof(uint64_t),
                             &bytes, &at) &&
                   gpu_workspace_add(
                       (const int64_t[]){joined, queries * s->q_heads, splits, VALUE_DIM + 2},
                       sizeof(float), &bytes, parts)
               ? bytes
               : 0;
}

static size_t workspace(const rope_decode_problem *p, const rope_attention_bounds *b,
                        int multiprocessors) {
    const gpu_attention_sizes sizes = gpu_attention_sizes_within(p->attention, b);
    size_t parts;
    (void)multiprocessors;
    return layout(p, &sizes, &parts);
}

static size_t layout_of(const rope_decode_problem *p, const rope_decode_call *call, size_t *parts) {
    gpu_attention_sizes sizes = gpu_attention_sizes_of(p->attention, &call->attention);
    sizes.tokens = call->most_tokens;
    return layout(p, &sizes, parts);
}

static size_t workspace_of(const rope_decode_problem *p, const rope_decode_call *call,
                           int multiprocessors) {
    size_t parts;
    (void)multiprocessors;
    return layout_of(p, call, &parts);
}

/* --- the launch --- */

static gpuError_t launch(const gpu_decode_launch *l) {
    const rope_decode_problem *p = l->problem;
    const rope_attention_call a = gpu_decode_attention_of(l->call);
    size_t at = 0;
    int32_t box;
    CUtensorMap maps[2];
    (void)layout_of(p, l->call, &at);
    gpu_attention_parts parts = {.at = (float *)(void *)((char *)l->workspace + at),
                                 .queries = l->call->most_tokens,
                                 .splits = splits_of(p, a.k_tokens)};
    if (!sm90_latent_maps(p->attention, &a, maps, &box))
        return cudaErrorInvalidValue;
    void *counters = l->workspace;
    int joins = joins_of(p, l->call, l->multiprocessors);
    void *arguments[] = {&maps[0],
                         &maps[1],
                         &box,
                         (void *)(uintptr_t)p->attention,
                         (void *)(uintptr_t)&a,
                         &parts,
                         (void *)(uintptr_t)p->append,
                         (void *)(uintptr_t)&l->call->append,
                         &counters,
                         &joins};
    const dim3 grid = {(uint32_t)blocks_of(p, l->call), 1, 1}, block = {SM90_LATENT_THREADS, 1, 1};
    const gpuError_t error = gpu_launch_kernel(kernel_of(p), grid, block, arguments,
                                               SM90_DECODE_LATENT_SHARED, l->stream, l->early);
    return error == gpuSuccess && !joins && parts.splits > 1
               ? sm90_latent_join(join_of(p), p->attention, &a, &parts, l->stream, 1)
               : error;
}

const gpu_decode_kernel gpu_decode_latent = {query, load, fits, workspace, workspace_of, launch};
