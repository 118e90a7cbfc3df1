/*
 * From a call of "attention" to its launches: what has no position, what rotates ahead of time,
 * what attends. Keys are rotated once each; queries where q.out asks for them, else by the kernel
 * that attends.
 */
#include "common/gpu/attention/launch.h"

#include "common/gpu/attention/workspace.h"
#include "common/math/attention.h"

#include <gpu_tuning.h>

/* Blocks of a grid that takes a call of any size with any number of them. */
#ifndef GPU_GENERIC_X_MOST
#define GPU_GENERIC_X_MOST GPU_GRID_X_MOST
#define GPU_GENERIC_Y_MOST GPU_GRID_YZ_MOST
#endif

typedef struct launches {
    const gpu_attention_bound *bound;
    void *stream;
    rope_attention_call call; /* with out where keys lie rotated */
    int32_t *failed;          /* or NULL */
} launches;

int gpu_attention_may_fail(const rope_attention_problem *p) {
    return p->rotates[1] && p->rope.angle_mode == ROPE_ANGLE_TABLE &&
           p->rope.out_of_range == ROPE_OUT_OF_RANGE_ERROR;
}

static uint32_t at_most(int64_t n, int64_t most) {
    return (uint32_t)(n < most ? n : most);
}

/* Tiles of `rows` rows that all sequences together have at most; `packed` of `most` rows in all,
 * else each of as many. */
static int64_t tiles_of(int64_t sequences, int packed, int64_t most, int64_t rows) {
    const int64_t tiles = (most + rows - 1) / rows;
    return packed ? tiles + sequences : tiles * sequences;
}

static gpuError_t launch(const launches *l, const void *kernel, int64_t x, int64_t y, size_t shared,
                         void **arguments) {
    const dim3 grid = {at_most(x, GPU_GENERIC_X_MOST), at_most(y, GPU_GENERIC_Y_MOST), 1},
               block = {GPU_ATTENTION_THREADS, 1, 1};
    return gpu_launch_kernel(kernel, grid, block, arguments, shared, l->stream, l->bound->early);
}

/* --- what runs ahead --- */

static void room_for_keys(const rope_attention_problem *p, const gpu_attention_room *room,
                          char *workspace, rope_attention_call *call) {
    call->k.out = workspace + room->keys;
    call->k.out_stride[3] = 1;
    call->k.out_stride[2] = p->head_dim;
    call->k.out_stride[1] = call->k.heads * call->k.out_stride[2];
    call->k.out_stride[0] = call->k_tokens * call->k.out_stride[1];
}

static gpuError_t rotate(launches *l, int tensor) {
    const rope_attention_call *call = &l->call;
    const int packed =
        tensor ? call->k_position.cu_seqlens != NULL : call->rope.position.cu_seqlens != NULL;
    const int64_t tiles =
        tiles_of(rope_attention_sequences(call), packed,
                 tensor ? call->k_tokens : call->rope.tokens, GPU_ATTENTION_TOKENS);
    rope_call tokens = call->rope;
    if (tensor)
        tokens.position = call->k_position;
    void *arguments[] = {(void *)(uintptr_t)&l->bound->problem, &l->call, &tokens, &l->failed};
    return launch(l, l->bound->kernels->rotate[tensor], tiles,
                  tensor ? call->k.heads : call->rope.tensor[0].heads,
                  GPU_ATTENTION_TOKENS * (size_t)l->bound->problem.head_dim * sizeof(float),
                  arguments);
}

static gpuError_t check(launches *l) {
    rope_call keys = l->call.rope;
    keys.position = l->call.k_position;
    void *arguments[] = {(void *)(uintptr_t)&l->bound->problem, &l->call, &keys, &l->failed};
    return launch(l, l->bound->kernels->check, rope_attention_sequences(&l->call), 1, 0, arguments);
}

/* --- what attends --- */

static gpuError_t attend(launches *l) {
    const rope_attention_call *call = &l->call;
    const int64_t group = call->rope.tensor[0].heads / call->k.heads;
    const int64_t tiles =
        tiles_of(rope_attention_sequences(call), call->rope.position.cu_seqlens != NULL,
                 call->rope.tokens * group, GPU_GENERIC_ROWS);
    void *arguments[] = {(void *)(uintptr_t)&l->bound->problem, &l->call, &l->failed};
    return launch(l, l->bound->kernels->generic, tiles, call->k.heads,
                  (size_t)gpu_generic_shared(l->bound->problem.head_dim) * sizeof(float),
                  arguments);
}

gpuError_t gpu_attention_launch(const gpu_attention_bound *bound, const rope_attention_call *call,
                                void *workspace, void *stream) {
    const rope_attention_problem *p = &bound->problem;
    const gpu_attention_sizes sizes = gpu_attention_sizes_of(p, call);
    launches l = {bound, stream, *call, NULL};
    gpu_attention_room room;
    gpuError_t error = gpuSuccess;
    if (!gpu_attention_room_of(p, &sizes, call->k.out != NULL, &room))
        return gpuErrorMemoryAllocation;
    if (gpu_attention_may_fail(p)) {
        l.failed = (int32_t *)(void *)((char *)workspace + room.failed);
        error = check(&l);
    }
    if (p->rotates[1] && !call->k.out)
        room_for_keys(p, &room, workspace, &l.call);
    if (error == gpuSuccess && p->rotates[1])
        error = rotate(&l, 1);
    if (error == gpuSuccess && call->rope.tensor[0].out)
        error = rotate(&l, 0);
    return error == gpuSuccess ? attend(&l) : error;
}
