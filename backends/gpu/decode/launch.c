/* Calls that take the portable kernel, its memory, its parameters and its launch. */
#include "backends/gpu/decode/launch.h"

#include "backends/gpu/attention/launch.h"
#include "backends/gpu/attention/prologue.h"
#include "backends/gpu/attention/sizes.h"
#include "backends/gpu/candidate.h"
#include "backends/gpu/device.h"
#include "backends/gpu/geometry.h"

#include <string.h>

static int32_t instance_of(const rope_decode_problem *p) {
    return gpu_decode_dim(p) > 64;
}

static const void *kernel_of(const rope_decode_problem *p) {
    return (p->append->rope.dtype == ROPE_F16 ? gpu_decode_portable_f16
                                              : gpu_decode_portable_bf16)[instance_of(p)];
}

/* --- problems --- */

static const char *decline(const rope_decode_problem *p) {
    const rope_append_steps *k = &p->append->steps[ROPE_APPEND_K],
                            *v = &p->append->steps[ROPE_APPEND_V];
    const int32_t dtype = p->append->rope.dtype;
    int32_t which;
    const char *declined = gpu_decode_decline(p);
    if (!declined)
        declined = gpu_tiles_decline(p->attention, &which);
    if (!declined && (k->store_dtype != dtype || v->store_dtype != dtype || k->scale || v->scale))
        declined = "declined: k and v are not cached in dtype";
    if (!declined && (p->append->ring || p->attention->mask == ROPE_MASK_TREE))
        declined = "declined: there is a ring or a tree";
    return declined;
}

static rope_status query(const rope_decode_problem *p, int32_t device, char *reason) {
    if (!p)
        return gpu_kernel_probe(gpu_decode_portable_f16[0], device, reason);
    return gpu_tiles_query(p->attention, decline(p), gpu_splits_shared(instance_of(p)), device,
                           reason);
}

static gpuError_t load(const rope_decode_problem *p, int32_t *early) {
    const void *kernel = kernel_of(p);
    const gpuError_t error = gpu_kernels_load(&kernel, 1, early);
    return error == gpuSuccess ? gpu_allow_shared(kernel, gpu_splits_shared(instance_of(p)))
                               : error;
}

/* --- calls --- */

rope_attention_call gpu_decode_attention_of(const rope_decode_call *call) {
    const rope_append_operand *q = &call->append.tensor[ROPE_APPEND_Q];
    rope_attention_call a = call->attention;
    a.rope.tensor[0].in = q->in;
    memcpy(a.rope.tensor[0].in_stride, q->in_stride, sizeof q->in_stride);
    return a;
}

static int moves(const rope_append_operand *o, const rope_call *call, int32_t dtype) {
    return o->in && !o->out && !o->weight_stride && (uintptr_t)o->weight % 4 == 0 &&
           gpu_moves_head(o->in, o->in_stride, call->batch, 1, o->heads, 16, dtype);
}

/* Blocks of short splits on a multiprocessor: beyond so many a kernel for each step is faster, as
 * measured on an H200. */
#ifndef GPU_DECODE_SHORT_BLOCKS
#define GPU_DECODE_SHORT_BLOCKS 12
#endif

static int is_faster(const rope_decode_problem *p, const rope_decode_call *call,
                     int multiprocessors) {
    const int64_t keys = call->attention.k_tokens,
                  blocks = call->append.rope.batch * call->append.tensor[ROPE_APPEND_K].heads *
                           gpu_splits_most(p->attention, keys, 0);
    return keys > GPU_SPLIT_SHORT || blocks <= (int64_t)GPU_DECODE_SHORT_BLOCKS * multiprocessors;
}

static int fits(const rope_decode_problem *p, const rope_decode_call *call, int multiprocessors) {
    const rope_append_call *a = &call->append;
    const rope_attention_call *t = &call->attention;
    const int32_t dtype = a->rope.tokens == 1 ? p->append->rope.dtype : 0;
    const int64_t heads = a->tensor[ROPE_APPEND_K].heads;
    for (int i = 0; i < ROPE_APPEND_TENSORS; i++)
        if (a->rope.tokens != 1 || !moves(&a->tensor[i], &a->rope, dtype))
            return 0;
    return !a->rope.position.cu_seqlens && gpu_decode_fits_table(p, call) &&
           a->tensor[ROPE_APPEND_V].heads == heads && heads <= GPU_GRID_X_MOST &&
           a->tensor[ROPE_APPEND_Q].heads / heads <= GPU_SPLIT_ROWS &&
           gpu_moves_operand(p->attention, &p->attention->k, t, &t->k) &&
           gpu_moves_operand(p->attention, &p->attention->v, t, &t->v) &&
           gpu_decode_fits(p->attention, t) && is_faster(p, call, multiprocessors);
}

/* --- memory --- */

/* Counters, then parts; 0 where bytes overflow. */
static size_t layout(const rope_decode_problem *p, int64_t sequences, int64_t q_heads,
                     int64_t k_heads, int64_t k_tokens, size_t *parts) {
    const int64_t splits = gpu_splits_most(p->attention, k_tokens, 0),
                  joined = splits > 1 ? sequences : 0;
    size_t bytes = 0, counters;
    return gpu_workspace_add((const int64_t[]){joined, k_heads, 1, 1}, sizeof(uint64_t), &bytes,
                             &counters) &&
                   gpu_workspace_add(
                       (const int64_t[]){joined, q_heads, splits, gpu_decode_dim(p) + 2},
                       sizeof(float), &bytes, parts)
               ? bytes
               : 0;
}

static size_t workspace(const rope_decode_problem *p, const rope_attention_bounds *b,
                        int multiprocessors) {
    size_t parts;
    (void)multiprocessors;
    return layout(p, b->batch, b->q_heads, b->k_heads, b->k_tokens, &parts);
}

static size_t layout_of(const rope_decode_problem *p, const rope_decode_call *call, size_t *parts) {
    return layout(p, call->append.rope.batch, call->append.tensor[ROPE_APPEND_Q].heads,
                  call->append.tensor[ROPE_APPEND_K].heads, call->attention.k_tokens, parts);
}

static size_t workspace_of(const rope_decode_problem *p, const rope_decode_call *call,
                           int multiprocessors) {
    size_t parts;
    (void)multiprocessors;
    return layout_of(p, call, &parts);
}

/* --- the launch --- */

static gpu_decode_heads heads_of(const rope_append_operand *o) {
    return (gpu_decode_heads){o->in, (uint32_t)(o->in_stride[0] / 8),
                              (uint32_t)(o->in_stride[2] / 8)};
}

/* Tokens of a sequence's pages. */
static int64_t held_of(const rope_decode_problem *p, const rope_attention_call *call) {
    const int64_t size = p->attention->page_size;
    return call->table_pages > INT64_MAX / size ? INT64_MAX : call->table_pages * size;
}

static gpu_decode_portable_call call_of(const gpu_decode_launch *l) {
    const rope_append_problem *p = l->problem->append;
    const rope_append_call *a = &l->call->append;
    const rope_attention_call t = gpu_decode_attention_of(l->call);
    const rope_position_map *map = &a->rope.position;
    size_t at = 0;
    (void)layout_of(l->problem, l->call, &at);
    const gpu_attention_parts parts = {(float *)(void *)((char *)l->workspace + at), 1,
                                       gpu_splits_most(l->problem->attention, t.k_tokens, 0), 0, 0};
    return (gpu_decode_portable_call){.attend =
                                          gpu_decode_call_of(l->problem->attention, &t, &parts),
                                      .k = heads_of(&a->tensor[ROPE_APPEND_K]),
                                      .v = heads_of(&a->tensor[ROPE_APPEND_V]),
                                      .steps = {gpu_decode_steps_of(p, a, ROPE_APPEND_Q),
                                                gpu_decode_steps_of(p, a, ROPE_APPEND_K)},
                                      .turns = p->rope.set[0].turns,
                                      .factor = (float)p->rope.set[0].attention_factor,
                                      .angles = gpu_decode_table_of(&a->rope),
                                      .start = a->starts ? 0 : map->offset,
                                      .starts = a->starts ? a->starts : map->offsets,
                                      .slots = p->cache == ROPE_CACHE_SLOTS ? a->slots : NULL,
                                      .slot_row = a->slot_stride[0],
                                      .wide_slots = p->slot_wide,
                                      .held = held_of(l->problem, &t),
                                      .counters = l->workspace};
}

static gpuError_t launch(const gpu_decode_launch *l) {
    gpu_decode_portable_call call = call_of(l);
    const dim3 block = {GPU_ATTENTION_THREADS, 1, 1},
               grid = {(uint32_t)call.attend.k_heads, (uint32_t)call.attend.parts.splits,
                       (uint32_t)l->call->append.rope.batch};
    void *arguments[] = {&call};
    return gpu_launch_kernel(kernel_of(l->problem), grid, block, arguments,
                             (size_t)gpu_splits_shared(instance_of(l->problem)), l->stream,
                             l->early);
}

const gpu_decode_kernel gpu_decode_portable = {query, load, fits, workspace, workspace_of, launch};
