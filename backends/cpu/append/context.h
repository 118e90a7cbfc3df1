/* Where a thread stands in a call of "append", and what it hands from step to step. */
#ifndef ROPEKIT_CPU_APPEND_CONTEXT_H
#define ROPEKIT_CPU_APPEND_CONTEXT_H

#include "backends/cpu/append/kernel.h"
#include "common/math/cache.h"

/* Bytes of staged heads, and elements that are gathered at once. Callers' threads may have small
 * stacks: a longer head, of f32 alone, has no stage (long.c). */
enum { APPEND_STAGE = 8192, APPEND_GATHER = 512 };

_Static_assert(ROPE_MAX_APPEND_HEAD_DIM * sizeof(uint16_t) <= APPEND_STAGE, "16 bits fit");

/* Where a thread stands. */
typedef struct append_context {
    const cpu_append_kernel *kernel;
    const rope_append_problem *problem;
    const rope_append_call *call;
    int size;      /* bytes of an element of dtype */
    int in_pairs;  /* cpu_rotates_in_pairs */
    int exceeds;   /* the call exceeds the cache, which stores then go around */
    int64_t ahead; /* bytes from what is read to what is prefetched, or 0 */
    int into_l2;   /* and no nearer */
    int64_t batch, index;
    rope_token token;
    rope_place place;
    int filled; /* tensor whose row is in row, or -1 */
    cpu_cos_sin_row row;
    cpu_row_buffer buffer;
    char *stage; /* APPEND_STAGE bytes, of whole lines */
} append_context;

/* Some heads of one tensor, elements side by side: where one step leaves them for the next. */
typedef struct append_heads {
    const char *data;
    int64_t stride; /* bytes */
} append_heads;

/* Which heads of which tensor. */
typedef struct append_part {
    const rope_append_steps *steps;
    const rope_append_operand *operand;
    int tensor;
    int64_t first, count;
} append_part;

/* Heads in dtype that steps may write, or NULL. */
typedef struct append_target {
    char *data;
    int64_t stride; /* bytes */
} append_target;

CPU_INLINE int64_t append_head_bytes(const append_context *ctx, const append_part *part) {
    return (int64_t)part->steps->head_dim * ctx->size;
}

CPU_INLINE const char *append_in_of(const append_context *ctx, const append_part *part,
                                    int64_t head) {
    const rope_append_operand *o = part->operand;
    return (const char *)o->in +
           (ctx->batch * o->in_stride[0] + ctx->index * o->in_stride[1] + head * o->in_stride[2]) *
               ctx->size;
}

/* Whether a head has no stage. */
CPU_INLINE int append_is_long(const append_context *ctx, const append_part *part) {
    return append_head_bytes(ctx, part) > APPEND_STAGE;
}

/* Whether the token has a place in the cache, where an element of a head lies there, and its scale,
 * which is given or written. */
int append_is_cached(const append_context *ctx, const append_part *part);
char *append_cache_of(const append_context *ctx, const append_part *part, int64_t head, int64_t i);
float *append_scale_of(const append_context *ctx, const append_part *part, int64_t head);

/* Where a head of out begins, of elements of `size` bytes. */
char *append_out_of(const append_context *ctx, const append_part *part, int64_t head, int size);

/* The values of the norm of all heads of an operand. */
rope_norm_values append_token_values(const append_context *ctx, const append_part *all);

/* Steps of some heads, each from where the one before left them. */
append_heads append_read_heads(append_context *ctx, const append_part *part);
void append_rotate_heads(append_context *ctx, const append_part *part, append_heads from,
                         append_target to);
void append_multiply_heads(const append_context *ctx, const append_part *part, append_heads from,
                           append_target to);

/* To out, unless they are there. */
void append_store_out(const append_context *ctx, const append_part *part, append_heads from);

/* A context at no token. bytes: read and written by the call. */
void append_context_fill(append_context *ctx, const cpu_append_kernel *kernel,
                         const rope_append_problem *problem, const rope_append_call *call,
                         int64_t bytes, char *stage);

/* Takes a head that is long through its steps, pair by pair. */
void append_run_long(const append_context *ctx, const append_part *part,
                     const rope_norm_values *of_token);

/* Takes one tensor of the token through its steps. */
void append_run_tensor(append_context *ctx, int tensor);

#endif
