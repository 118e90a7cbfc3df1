/*
 * From a call of "attention" to its launches: what has no position, what rotates ahead of time,
 * what attends, as choose.c has it. Keys are rotated once each, and queries, but where what attends
 * rotates its own: the kernel of splits, where it attends alone or beside sm90, and that of sm90.
 */
#include "backends/gpu/attention/launch.h"

#include "backends/gpu/attention/choose.h"
#include "backends/gpu/attention/gather.h"
#include "backends/gpu/attention/prologue.h"
#include "backends/gpu/attention/sizes.h"
#include "backends/gpu/attention/sm90.h"
#include "backends/gpu/attention/workspace.h"
#include "backends/gpu/geometry.h"
#include "common/math/attention.h"

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

/* Whether the kernel of sm_90a, alone, rotates queries and writes them to q.out. */
static int writes_queries(const launches *l) {
    rope_attention_call call = l->call;
    gpu_attention_choice choice;
    call.rope.tensor[0].out = NULL;
    if (!l->state->sm90 || !l->state->problem.rotates[0] || !call.rope.tokens ||
        !gpu_sm90_writes(&l->state->problem, &call, &l->call.rope.tensor[0]))
        return 0;
    gpu_attention_choose(l->state, &call, &choice);
    return choice.rest.kernel == GPU_ATTEND_SM90 && !choice.few.kernel;
}

/* Room in the workspace for what rotates ahead; 0 where its bytes overflow. */
static int prepare(launches *l, char *workspace, gpu_attention_layout *layout) {
    const rope_attention_problem *p = &l->state->problem;
    const gpu_attention_sizes sizes = gpu_attention_sizes_of(p, &l->call);
    const rope_operand *q = &l->call.rope.tensor[0];
    if (!gpu_attention_layout_of(l->state, &sizes, l->call.k.out != NULL, q->out != NULL, layout))
        return 0;
    if (p->rotates[1] && !l->call.k.out)
        room_for_keys(p, layout, workspace, &l->call);
    if (q->out && writes_queries(l))
        l->call.rope.tensor[0].out = NULL;
    else if (!q->out && l->call.rope.tokens && !gpu_attention_rotates_queries(l->state, &l->call))
        room_for_queries(p, layout, workspace, &l->call);
    return 1;
}

static gpuError_t join(launches *l, const gpu_attention_parts *parts) {
    const int packed = l->call.rope.position.cu_seqlens != NULL;
    const int64_t dim = l->state->problem.v_head_dim, heads = l->call.rope.tensor[0].heads,
                  sequences = rope_attention_sequences(&l->call);
    void *arguments[] = {(void *)(uintptr_t)&l->state->problem, &l->call, (void *)(uintptr_t)parts};
    return gpu_attention_start(
        l, l->state->kernels->join, packed ? sequences : sequences * parts->queries,
        gpu_divide_up(heads * ((dim + 1) / 2), GPU_ATTENTION_THREADS), 0, arguments);
}

/* Sequences of one query: all, which are joined as well, or where others are packed too some. */
static gpuError_t attend_decode(launches *l, const gpu_attention_choice *c) {
    const gpu_attention_function decode = gpu_attention_function_of(l->state, GPU_ATTEND_DECODE),
                                 joins = gpu_attention_function_of(l->state, GPU_JOIN_DECODE);
    gpu_decode_call d = gpu_decode_call_of(&l->state->problem, &l->call, &c->parts);
    const uint32_t sequences = (uint32_t)rope_attention_sequences(&l->call);
    const dim3 block = {GPU_ATTENTION_THREADS, 1, 1},
               grid = {(uint32_t)d.k_heads, (uint32_t)d.parts.splits, sequences},
               joined = {(uint32_t)((d.heads - 1) / GPU_JOINED_HEADS(d.v_dim) + 1), sequences, 1};
    void *arguments[] = {&d};
    const gpuError_t error = gpu_launch_kernel(decode.symbol, grid, block, arguments,
                                               (size_t)decode.shared, l->stream, gpu_next_early(l));
    if (error != gpuSuccess || !c->join || c->ones)
        return error;
    return c->join == GPU_JOIN_DECODE ? gpu_launch_kernel(joins.symbol, joined, block, arguments, 0,
                                                          l->stream, gpu_next_early(l))
                                      : join(l, &d.parts);
}

static gpuError_t start(launches *l, const gpu_attending *a, const gpu_attention_parts *parts) {
    const gpu_attention_function f = gpu_attention_function_of(l->state, a->kernel);
    void *arguments[] = {(void *)(uintptr_t)&l->state->problem, &l->call, &l->failed,
                         (void *)(uintptr_t)&a->fits, (void *)(uintptr_t)parts};
    return a->kernel ? gpu_attention_start(l, f.symbol, a->x, a->y, (size_t)f.shared, arguments)
                     : gpuSuccess;
}

static gpuError_t attend_sm90(launches *l, const gpu_attending *a) {
    const gpu_attention_state *state = l->state;
    const int32_t early = gpu_next_early(l);
    const gpu_sm90_call call = {.problem = &state->problem,
                                .call = &l->call,
                                .norms = l->norms,
                                .keys_too = l->keys_too,
                                .failed = l->failed,
                                .memory = l->sm90,
                                .leaves_few = (a->fits & GPU_TILE_LEAVES_FEW) != 0,
                                .multiprocessors = state->on.multiprocessors,
                                .early = early,
                                .follows_early = l->early,
                                .stream = l->stream};
    return gpu_sm90_launch(&call);
}

static gpuError_t attend_few(launches *l, const gpu_attention_choice *c) {
    if (c->few.kernel != GPU_ATTEND_LATENT)
        return start(l, &c->few, &c->parts);
    const int32_t early = gpu_next_early(l);
    const gpu_sm90_call call = {.problem = &l->state->problem,
                                .call = &l->call,
                                .failed = l->failed,
                                .early = early,
                                .follows_early = l->early,
                                .stream = l->stream};
    return gpu_sm90_latent_launch(l->state->latent, &call, &c->parts, c->few.x);
}

/* Blocks that gather on a multiprocessor. */
enum { GATHERERS = 16 };

static gpuError_t attend(launches *l, const gpu_attention_choice *c);

static gpuError_t attend_part(launches *l, const gpu_attention_choice *c,
                              const gpu_attention_part *part) {
    const rope_attention_problem *p = &l->state->problem;
    const int64_t sequences = rope_attention_sequences(&l->call);
    const rope_attention_call given = gpu_attention_part_of(p, &l->call, part);
    gpu_attending a = c->rest;
    l->call = given;
    l->failed = l->failed ? l->failed + part->sequence : NULL;
    gpu_gathering how = gpu_attention_gathering(p, &l->call, l->sm90.gathered, 0);
    how.few = a.fits & GPU_TILE_LEAVES_FEW ? GPU_SPLIT_ROWS : 0;
    a.x = given.rope.position.cu_seqlens ? a.x : a.x / sequences * part->sequences;
    a.y = part->heads;
    const gpuError_t error = gpu_attention_launch_gather(
        p, &given, &how, GATHERERS * l->state->on.multiprocessors, l->stream, gpu_next_early(l));
    if (error != gpuSuccess || !c->gathers)
        return error == gpuSuccess ? start(l, &a, &c->parts) : error;
    gpu_attention_choice own;
    gpu_attention_choose(l->state, &l->call, &own);
    own.parts.at = c->parts.at;
    return attend(l, &own);
}

static gpuError_t attend_parts(launches *l, const gpu_attention_choice *c) {
    gpuError_t error = gpuSuccess;
    gpu_attention_part part = {0};
    while (error == gpuSuccess && gpu_attention_next_part(&l->state->problem, &l->call, &part)) {
        launches one = *l;
        error = attend_part(&one, c, &part);
        l->early = one.early;
    }
    return error;
}

static gpuError_t attend(launches *l, const gpu_attention_choice *c) {
    if (c->gathers)
        return attend_parts(l, c);
    if (c->few.kernel == GPU_ATTEND_DECODE)
        return attend_decode(l, c);
    gpuError_t error = c->ones ? attend_decode(l, c) : gpuSuccess;
    if (error == gpuSuccess)
        error = attend_few(l, c);
    if (error == gpuSuccess && c->join)
        error = join(l, &c->parts);
    if (error == gpuSuccess && c->rest.kernel == GPU_ATTEND_SM90)
        return attend_sm90(l, &c->rest);
    if (error == gpuSuccess && c->rest.parts)
        return attend_parts(l, c);
    return error == gpuSuccess ? start(l, &c->rest, &c->parts) : error;
}

gpuError_t gpu_attention_launch(const gpu_attention_state *state, const rope_attention_call *call,
                                const gpu_sm90_norms *norms, void *workspace, void *stream) {
    launches l = {.state = state,
                  .stream = stream,
                  .given = call,
                  .call = *call,
                  .norms = norms,
                  .early = state->on.early};
    gpu_attention_layout layout;
    gpu_attention_choice choice = {0};
    gpuError_t error = gpuSuccess;
    if (!prepare(&l, workspace, &layout))
        return gpuErrorMemoryAllocation;
    l.sm90 = (gpu_sm90_memory){(char *)workspace + layout.tickets,
                               (char *)workspace + layout.angles,
                               (int32_t *)(void *)((char *)workspace + layout.failed),
                               (char *)workspace + layout.gathered,
                               (char *)workspace + layout.spans,
                               {0}};
    if (call->rope.tensor[0].out && !l.call.rope.tensor[0].out)
        l.sm90.rotated = call->rope.tensor[0];
    if (gpu_attention_may_fail(&state->problem)) {
        l.failed = (int32_t *)(void *)((char *)workspace + layout.failed);
        error = gpu_attention_check_keys(&l);
    }
    if (call->rope.tokens)
        gpu_attention_choose(state, &l.call, &choice);
    l.keys_too = norms || (choice.rest.kernel == GPU_ATTEND_SM90 && !choice.few.kernel &&
                           !l.failed && gpu_sm90_rotates_keys(&state->problem, &l.call));
    if (error == gpuSuccess && !l.keys_too)
        error = gpu_attention_rotate_ahead(&l);
    if (error != gpuSuccess || !call->rope.tokens)
        return error;
    if (state->splits && choice.parts.splits > 1)
        choice.parts.at = (float *)(void *)((char *)workspace + layout.parts);
    return attend(&l, &choice);
}

/* A choice depends on the workspace by its alignment alone. 0: there is none. */
static int choose(launches *l, gpu_attention_choice *choice) {
    gpu_attention_layout layout;
    if (!l->call.rope.tokens || !prepare(l, (char *)(uintptr_t)GPU_WORKSPACE_ALIGNMENT, &layout))
        return 0;
    gpu_attention_choose(l->state, &l->call, choice);
    return 1;
}

const char *gpu_attention_kernel_of(const void *kernel, const void *call) {
    launches l = {.state = kernel, .call = *(const rope_attention_call *)call};
    gpu_attention_choice choice;
    return choose(&l, &choice) ? gpu_attention_name(&choice) : NULL;
}

int gpu_attention_normalises(const gpu_attention_state *state, const rope_attention_call *call,
                             const gpu_sm90_norms *norms) {
    launches l = {.state = state, .call = *call};
    gpu_attention_choice choice;
    return state->sm90 && !call->rope.tensor[0].out && choose(&l, &choice) &&
           choice.rest.kernel == GPU_ATTEND_SM90 && !choice.few.kernel &&
           gpu_sm90_normalises(&state->problem, &l.call, norms, state->on.multiprocessors);
}
