/* The tree of common/math/norm.h over rows of sums, some levels a launch. */
#include "backends/gpu/append_backward/kernels.h"
#include "backends/gpu/element.h"

/* A weight's node: its chains in order. */
GPU_FN float gpu_gradient_row(const gpu_gradient_tree *t, int64_t node, int64_t weight) {
    const auto *row = gpu_global(t->rows + node * t->stride * t->width + weight);
    float sum = row[0];
#pragma unroll 1
    for (int64_t c = 1; c < t->chains; c++)
        sum = sum + row[c * t->width];
    return sum;
}

/* Nodes from `first` on, in a binary counter as rope_norm_tree. */
GPU_FN float gpu_gradient_joined(const gpu_gradient_tree *t, int64_t first, int64_t weight) {
    const int held =
        t->count - first < GPU_GRADIENT_JOINED ? (int)(t->count - first) : (int)GPU_GRADIENT_JOINED;
    float partial[GPU_GRADIENT_LEVELS], sum = 0;
#pragma unroll 1
    for (int j = 0; j < held; j++) {
        float node = gpu_gradient_row(t, first + j, weight);
        bool carries = true;
#pragma unroll
        for (int level = 0; level < GPU_GRADIENT_LEVELS; level++) {
            if (carries && (j >> level & 1))
                node = partial[level] + node;
            else if (carries)
                partial[level] = node;
            carries = carries && (j >> level & 1);
        }
    }
    bool any = false;
#pragma unroll
    for (int level = 0; level < GPU_GRADIENT_LEVELS; level++)
        if (held >> level & 1) {
            sum = any ? partial[level] + sum : partial[level];
            any = true;
        }
    return sum;
}

__global__ void __launch_bounds__(GPU_APPEND_GENERIC_THREADS, 1)
    gpu_gradient_join_rows(GPU_PARAMETER gpu_gradient_trees given) {
    const gpu_gradient_tree *t = &gpu_parameter<gpu_gradient_trees>(given)->tensor[(int)blockIdx.z];
    const int64_t joined = (t->count + GPU_GRADIENT_JOINED - 1) / GPU_GRADIENT_JOINED;
    for (int64_t n = blockIdx.x; n < joined; n += gridDim.x)
        for (int64_t i = (int64_t)blockIdx.y * blockDim.x + threadIdx.x; i < t->width;
             i += (int64_t)gridDim.y * blockDim.x) {
            const int64_t first = n * GPU_GRADIENT_JOINED;
            const float sum = gpu_gradient_joined(t, first, i);
            if (joined == 1)
                gpu_global(t->to)[i] = sum;
            else
                gpu_global(t->rows)[first * t->stride * t->width + i] = sum;
        }
}

const void *const gpu_gradient_join = GPU_KERNEL(gpu_gradient_join_rows);
