/* A call's launches, and those that run ahead of what attends. */
#ifndef ROPEKIT_GPU_ATTENTION_PROLOGUE_H
#define ROPEKIT_GPU_ATTENTION_PROLOGUE_H

#include "backends/gpu/attention/bind.h"
#include "backends/gpu/attention/sm90.h"

typedef struct gpu_attention_launches {
    const gpu_attention_state *state;
    void *stream;
    const rope_attention_call *given;
    rope_attention_call call; /* with out where what rotates ahead lies rotated */
    int32_t *failed;          /* or NULL */
    gpu_sm90_memory sm90;
    const gpu_sm90_norms *norms; /* or NULL */
    int keys_too;                /* the launch of sm90 rotates keys */
    int32_t early;               /* the next one may start before the one ahead of it has ended */
} gpu_attention_launches;

/* Tiles of `rows` rows that all sequences together have at most; `packed` of `most` rows in all,
 * else each of as many. */
int64_t gpu_tiles_of(int64_t sequences, int packed, int64_t most, int64_t rows);

/* Whether the next launch may start early: all but the first do where the device has it, and wait
 * for the one ahead. */
int32_t gpu_next_early(gpu_attention_launches *launches);

/* Launches blocks of GPU_ATTENTION_THREADS threads, of a kernel that takes a grid of any size. */
gpuError_t gpu_attention_start(gpu_attention_launches *launches, const void *kernel, int64_t x,
                               int64_t y, size_t shared, void **arguments);

/* Whether a launch of so many blocks by so many has one for each. */
int gpu_attention_starts_all(int64_t x, int64_t y);

/* Whether heads can be moved `bytes` at a time, and lie within 2^35 elements of the first. */
int gpu_moves_head(const void *pointer, const int64_t *stride, int64_t batch, int64_t tokens,
                   int64_t heads, int64_t bytes, int32_t dtype);

/* Whether keys or values of a cache can be read eight elements at a time, whatever their type. */
int gpu_moves_cache(const rope_attention_problem *problem, const rope_append_steps *steps,
                    const rope_attention_call *call, const rope_append_operand *operand);

/* Whether keys or values can be moved 16 bytes at a time. */
int gpu_moves_operand(const rope_attention_problem *problem, const rope_append_steps *steps,
                      const rope_attention_call *call, const rope_append_operand *operand);

/* Launches the kernel that fills `failed`. */
gpuError_t gpu_attention_check_keys(gpu_attention_launches *launches);

/* Whether "rope" rotates all tokens of queries, or keys, as this call means them. */
int gpu_attention_is_rope(const gpu_attention_launches *launches, int tensor);

/* Whether token i of the queries stands where key i does. */
int gpu_attention_stands_alike(const rope_attention_call *call);

/* Rotates queries, keys or both by "rope". */
gpuError_t gpu_attention_rope(gpu_attention_launches *launches, const gpu_rope_state *rotation,
                              int queries, int keys);

/* Rotates queries to q.out, or keys to k.out, sequence by sequence. */
gpuError_t gpu_attention_rotate(gpu_attention_launches *launches,
                                const rope_attention_problem *problem, int tensor);

/* Rotates queries to q.out where there is one, and keys, if they rotate, to k.out. */
gpuError_t gpu_attention_rotate_ahead(gpu_attention_launches *launches);

#endif
