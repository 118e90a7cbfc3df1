/* The tree of common/math/norm.h over rows of numbers. */
#include "backends/cpu/append_backward/context.h"

static void add(const float *row, float *to, int64_t width) {
    for (int64_t i = 0; i < width; i++)
        to[i] = row[i] + to[i];
}

void gradient_tree_add(gradient_tree *tree, float *node) {
    float *row = tree->partial;
    for (uint64_t n = tree->nodes++; n & 1u; n >>= 1, row += tree->width)
        add(row, node, tree->width);
    memcpy(row, node, (size_t)tree->width * sizeof *row);
}

void gradient_tree_sum(const gradient_tree *tree, float *to) {
    const float *row = tree->partial;
    int any = 0;
    for (uint64_t n = tree->nodes; n; n >>= 1, row += tree->width) {
        if (!(n & 1u))
            continue;
        if (any)
            add(row, to, tree->width);
        else
            memcpy(to, row, (size_t)tree->width * sizeof *to);
        any = 1;
    }
}
