/* Where a thread stands in a call of "append_backward", and its sums over tokens. */
#ifndef ROPEKIT_CPU_APPEND_BACKWARD_CONTEXT_H
#define ROPEKIT_CPU_APPEND_BACKWARD_CONTEXT_H

#include "backends/cpu/append_backward/kernel.h"

enum {
    GRADIENT_GROUPS = 256,               /* most groups of tokens of a call */
    GRADIENT_UNIT = ROPE_GRADIENT_CHAIN, /* tokens, of which groups consist; blocks divide it */
    GRADIENT_STAGE = 16384               /* bytes of staged heads, of which one fits at least */
};

_Static_assert(ROPE_MAX_APPEND_HEAD_DIM * sizeof(float) <= GRADIENT_STAGE, "a head fits");

/* A tree over rows of floats that arrive one by one, as rope_norm_tree: partial has a row for each
 * level. */
typedef struct gradient_tree {
    float *partial;
    int64_t width;
    uint64_t nodes;
} gradient_tree;

/* Adds a node, which is lost. */
void gradient_tree_add(gradient_tree *tree, float *node);
/* The sum of one node or more. */
void gradient_tree_sum(const gradient_tree *tree, float *to);

/* Sums for the weights of a tensor: of a chain, in the kernel's order, of the block, of groups. */
typedef struct gradient_sums {
    int64_t width; /* weights; 0: no gradient of theirs is wanted */
    int shared;    /* heads have the same weights, in chains of some heads each */
    int64_t block; /* tokens of a block */
    float *chain, *sum;
    gradient_tree tree;
    float *groups; /* a row of `width` for each group of tokens */
} gradient_sums;

/* How a call is dealt: groups of tokens, each a subtree. */
typedef struct gradient_plan {
    int64_t tokens, group_tokens, groups;
    int64_t rows[ROPE_APPEND_TENSORS];   /* bytes from the workspace's begin to rows of groups */
    int64_t thread[ROPE_APPEND_TENSORS]; /* bytes from a thread's part to its sums */
    int64_t begin, thread_bytes;         /* of the first thread's part, of each */
    int64_t stages;                      /* bytes from a thread's part to its two stages */
    int64_t levels;
    int64_t width[ROPE_APPEND_TENSORS];
} gradient_plan;

typedef struct gradient_context {
    append_context w; /* of gradients, whose operands are: */
    rope_append_operand gradient[ROPE_APPEND_TENSORS];
    const cpu_append_backward_kernel *kernel;
    const rope_append_backward_call *call;
    gradient_sums sums[ROPE_APPEND_TENSORS];
    int takes; /* the token has gradients */
    char *x;   /* a stage of elements that do not lie side by side */
} gradient_context;

/* Fills a plan of so many weights of each tensor; 0 where its bytes overflow. */
int gradient_plan_fill(int64_t tokens, const int64_t width[ROPE_APPEND_TENSORS],
                       gradient_plan *plan);

/* The gradients of one tensor of the token, and its terms of sums; of a token without, the sums of
 * its block where that ends. */
void gradient_run_tensor(gradient_context *b, int tensor);

#endif
