/* What a call of the kernel that decodes in one launch has, for the choice and for the launch. */
#ifndef ROPEKIT_GPU_DECODE_SM90_CHOOSE_H
#define ROPEKIT_GPU_DECODE_SM90_CHOOSE_H

#include "backends/gpu/decode/launch.h"
#include "backends/gpu/decode/sm90/kernels.h"

/* Most items, tokens, slots and key heads; and keys, whose number leaves four bits for new tokens.
 */
enum { GPU_DECODE_SM90_MOST = INT32_MAX / 2, GPU_DECODE_SM90_MOST_KEYS = (1 << 27) - 1 };

typedef struct gpu_decode_sizes {
    int64_t sequences, tokens, k_tokens, q_heads, k_heads; /* the most of each */
    int64_t all;                                           /* tokens of all sequences */
    int32_t dim;                                           /* elements of a head */
} gpu_decode_sizes;

/* 2^32 / n, rounded up; 0 for 1. */
static inline uint32_t gpu_decode_sm90_reciprocal(int64_t n) {
    return n > 1 ? (uint32_t)((((uint64_t)1 << 32) + (uint64_t)n - 1) / (uint64_t)n) : 0;
}

/* The type of a cache's codes, or 0 where it has elements. */
static inline int32_t gpu_decode_sm90_store(const rope_decode_problem *p) {
    const int32_t store = p->append->steps[ROPE_APPEND_K].store_dtype;
    return store == p->append->rope.dtype ? 0 : store;
}

/* Whether there are new keys. Without them q has its positions by its index among the keys. */
static inline int gpu_decode_sm90_appends(const rope_decode_call *call) {
    return call->append.tensor[ROPE_APPEND_K].in != NULL;
}

/* Whether a query's chunk may begin behind key 0. */
static inline int gpu_decode_sm90_spans(const rope_attention_problem *p) {
    return p->chunk < GPU_DECODE_SM90_MOST;
}

static inline int32_t gpu_decode_sm90_instance(int64_t rows, int64_t tokens) {
    return rows > SM90_DECODE_ROWS                         ? 3
           : rows > 8 || tokens > SM90_DECODE_TOKENS_OF(8) ? 2
                                                           : rows > 4;
}

gpu_decode_sizes gpu_decode_sm90_sizes(const rope_decode_problem *p, const rope_decode_call *call);

/* As gpu_decode_kernel has them; why a problem does not take the kernel, or NULL. */
const char *gpu_decode_sm90_decline(const rope_decode_problem *problem);
int gpu_decode_sm90_fits(const rope_decode_problem *problem, const rope_decode_call *call,
                         int multiprocessors);
size_t gpu_decode_sm90_workspace(const rope_decode_problem *problem,
                                 const rope_attention_bounds *bounds, int multiprocessors);
size_t gpu_decode_sm90_workspace_of(const rope_decode_problem *problem,
                                    const rope_decode_call *call, int multiprocessors);

/* Splits of the longest sequence, as decode_splits counts them, and the least chunks of one. */
int64_t gpu_decode_sm90_splits(const gpu_decode_sizes *s, int multiprocessors);
int64_t gpu_decode_sm90_least_chunks(const gpu_decode_sizes *s);

/* Bands of a sequence of the most rows. */
int64_t gpu_decode_sm90_bands(const gpu_decode_sizes *s);

/* Whether series leave what they give by places of tokens, because fewer are packed than sequences
 * may have. */
int gpu_decode_sm90_is_dense(const gpu_decode_sizes *s);

/* Bytes of counters, of largest logits and of sums, each a multiple of 256. */
void gpu_decode_sm90_layout(const gpu_decode_sizes *s, int multiprocessors, size_t bytes[3]);

#endif
