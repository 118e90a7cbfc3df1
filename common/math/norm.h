/*
 * Norms whose bits depend on nothing but the elements. A sum is a balanced tree over neighbours in
 * their order: elements 2j and 2j + 1 make node j, nodes 2j and 2j + 1 make the next level's node
 * j, up to one; a node without a neighbour goes up as it is. docs/numerics.md has the error bound.
 */
#ifndef ROPEKIT_COMMON_NORM_H
#define ROPEKIT_COMMON_NORM_H

#include "common/math/coefficients.h"

/* Node of two elements in a sum of squares. */
ROPE_FN float rope_norm_squares(float x0, float x1) {
    return fmaf(x1, x1, x0 * x0);
}

/* The mean of n elements from their sum, which is +0 rather than -0. */
ROPE_FN float rope_norm_mean(float sum, int64_t n) {
    return (sum + 0.0f) / (float)n;
}

/* The reciprocal of the root, both correctly rounded. */
ROPE_FN float rope_norm_reciprocal(float squares, int64_t n, float eps) {
    return 1.0f / sqrtf(rope_norm_mean(squares, n) + eps);
}

/* A norm as applied to elements: (x - mean) * reciprocal, mean 0 for RMS. */
typedef struct rope_norm_values {
    float mean, reciprocal;
} rope_norm_values;

/* Weight as it multiplies. */
ROPE_FN float rope_norm_weight_of(const rope_append_steps *s, float w) {
    return s->weight == ROPE_NORM_ONE_PLUS_WEIGHT ? 1.0f + w : w;
}

/* One element; w: rope_norm_weight_of, read where there is a weight. The caller rounds to dtype. */
ROPE_FN float rope_normalized(const rope_append_steps *s, int32_t dtype, rope_norm_values v,
                              float x, float w) {
    float y = s->norm == ROPE_NORM_LAYER ? (x - v.mean) * v.reciprocal : x * v.reciprocal;
    if (s->weight == 0)
        return y;
    if (s->rounding == ROPE_NORM_ROUND_TWICE)
        y = rope_round_to(dtype, y);
    return y * w;
}

/* A sum over a list that arrives node by node, in a binary counter: partial[l] is a node of level l
 * that waits for its neighbour. */
typedef struct rope_norm_tree {
    float partial[40];
    uint64_t nodes;
} rope_norm_tree;

ROPE_FN void rope_norm_add(rope_norm_tree *tree, float node) {
    int level = 0;
    for (uint64_t n = tree->nodes++; n & 1u; n >>= 1)
        node = tree->partial[level++] + node;
    tree->partial[level] = node;
}

/* The sum of all nodes; 0 where there are none. */
ROPE_FN float rope_norm_sum(const rope_norm_tree *tree) {
    float sum = 0;
    int level = 0, any = 0;
    for (uint64_t n = tree->nodes; n; n >>= 1, level++)
        if (n & 1u) {
            sum = any ? tree->partial[level] + sum : tree->partial[level];
            any = 1;
        }
    return sum;
}

#endif
