/* From a call of "append_backward" to its workspace and its launches: gradients of tokens, then the
 * sums of weights, some levels of their trees at a time. */
#include "backends/gpu/append_backward/launch.h"

#include "backends/gpu/device.h"
#include "backends/gpu/geometry.h"
#include "common/math/norm_gradient.h"

enum { ALIGNMENT = 256 };

/* Bytes of a * b * c floats, behind others; `at` receives where they begin. 0 where they overflow.
 */
static int append(int64_t a, int64_t b, int64_t c, int64_t *bytes, int64_t *at) {
    int64_t more;
    *at = *bytes;
    return !__builtin_mul_overflow(a, b, &more) && !__builtin_mul_overflow(more, c, &more) &&
           !__builtin_mul_overflow(more, (int64_t)sizeof(float), &more) &&
           !__builtin_add_overflow(more, ALIGNMENT - 1, &more) &&
           !__builtin_add_overflow(*bytes, more / ALIGNMENT * ALIGNMENT, bytes);
}

static int has_one_norm(const rope_append_steps *s) {
    return s->norm != 0 && s->norm_scope == ROPE_NORM_TOKEN;
}

/* Blocks and chains of a tensor whose weights have this stride. */
static gpu_gradient_tensor deal(const rope_append_steps *s, int64_t tokens, int64_t heads,
                                int64_t stride) {
    gpu_gradient_tensor t = {.tokens = (int32_t)rope_gradient_block(heads, stride),
                             .heads = stride ? 1 : ROPE_GRADIENT_CHAIN};
    if (has_one_norm(s)) {
        t.tokens = ROPE_GRADIENT_CHAIN;
        t.heads = 1;
    }
    t.blocks = gpu_divide_up(tokens, t.tokens);
    t.chains = gpu_divide_up(heads, t.heads);
    return t;
}

/* Where sums and gradients of a tensor begin. */
static int append_tensor(const rope_append_steps *s, const gpu_gradient_tensor *t, int64_t heads,
                         int sums, int64_t *bytes, int64_t at[2]) {
    return append(sums ? t->blocks : 0, t->chains, s->norm_dim, bytes, &at[0]) &&
           append(has_one_norm(s) ? t->blocks : 0, heads, s->head_dim, bytes, &at[1]);
}

rope_status gpu_gradient_workspace(const void *canonical, const void *kernel, const void *given,
                                   size_t *bytes) {
    (void)kernel;
    const rope_append_problem *p = canonical;
    const rope_append_bounds *b = given;
    const int64_t heads[ROPE_APPEND_TENSORS] = {b->q_heads, b->k_heads, b->v_heads};
    int64_t tokens, all = 0, at[2];
    int fits = !__builtin_mul_overflow(b->batch, b->tokens, &tokens);
    for (int t = 0; t < ROPE_APPEND_TENSORS && fits; t++) {
        const rope_append_steps *s = &p->steps[t];
        const gpu_gradient_tensor shared = deal(s, tokens, heads[t], 0),
                                  own = deal(s, tokens, heads[t], 1);
        int64_t most = all, other = all;
        fits = append_tensor(s, &shared, heads[t], s->weight, &most, at) &&
               append_tensor(s, &own, heads[t], s->weight, &other, at);
        all = most > other ? most : other;
    }
    if (!fits)
        return gpu_host->fail(ROPE_ERROR_OVERFLOW,
                              "bounds.tokens is %lld with batch %lld, q_heads %lld, k_heads %lld "
                              "and v_heads %lld; allowed is what stays within 64-bit addresses",
                              (long long)b->tokens, (long long)b->batch, (long long)b->q_heads,
                              (long long)b->k_heads, (long long)b->v_heads);
    *bytes = (size_t)all;
    return ROPE_OK;
}

/* Deals a call; bytes of its workspace, or a negative number where they overflow. */
static int64_t deal_call(const gpu_gradient_state *state, const gpu_gradient_work *work,
                         gpu_gradient_tensors *dealt) {
    const rope_append_backward_call *call = work->call;
    int64_t bytes = 0, at[2];
    for (int t = 0; t < ROPE_APPEND_TENSORS; t++) {
        const rope_append_steps *s = &state->problem.steps[t];
        const rope_append_operand *o = &call->forward.tensor[t];
        gpu_gradient_tensor *to = &dealt->tensor[t];
        *to = (gpu_gradient_tensor){.blocks = 0};
        if (!o->heads)
            continue;
        *to = deal(s, call->forward.rope.batch * call->forward.rope.tokens, o->heads,
                   o->weight_stride);
        if (!append_tensor(s, to, o->heads, call->weight[t] != NULL, &bytes, at))
            return -1;
        if (call->weight[t])
            to->sums = (float *)(void *)((char *)work->workspace + at[0]);
        if (has_one_norm(s))
            to->gradients = (float *)(void *)((char *)work->workspace + at[1]);
    }
    return bytes;
}

rope_status gpu_gradient_check(const gpu_gradient_state *state, const gpu_gradient_work *work) {
    const rope_append_backward_call *call = work->call;
    gpu_gradient_tensors dealt;
    const int64_t bytes = deal_call(state, work, &dealt);
    if (bytes < 0)
        return gpu_host->fail(ROPE_ERROR_OVERFLOW,
                              "tokens is %lld with batch %lld; allowed is a workspace within "
                              "64-bit addresses",
                              (long long)call->forward.rope.tokens,
                              (long long)call->forward.rope.batch);
    if ((uint64_t)bytes > call->workspace_bytes)
        return gpu_host->fail(ROPE_ERROR_INVALID_VALUE,
                              "workspace_bytes is %zu; allowed is at least %lld",
                              call->workspace_bytes, (long long)bytes);
    return bytes && !work->workspace
               ? gpu_host->fail(ROPE_ERROR_NULL_POINTER,
                                "workspace is NULL; allowed is %lld bytes of device memory",
                                (long long)bytes)
               : ROPE_OK;
}

/* Tensors whose heads have one norm, or the others; nothing where there are none. */
static gpuError_t launch_tokens(const gpu_gradient_state *state,
                                const rope_append_backward_call *call,
                                const gpu_gradient_tensors *dealt, int one_norm, void *stream) {
    int64_t blocks = 0, chains = 1, dim = 0;
    for (int t = 0; t < ROPE_APPEND_TENSORS; t++) {
        const gpu_gradient_tensor *v = &dealt->tensor[t];
        const rope_append_steps *s = &state->problem.steps[t];
        if (!v->blocks || has_one_norm(s) != one_norm)
            continue;
        blocks = v->blocks > blocks ? v->blocks : blocks;
        chains = !one_norm && v->chains > chains ? v->chains : chains;
        dim = s->head_dim > dim ? s->head_dim : dim;
    }
    const dim3 grid = {(uint32_t)gpu_at_most(blocks, GPU_GENERIC_X_MOST),
                       (uint32_t)gpu_at_most(chains, GPU_GENERIC_Y_MOST), ROPE_APPEND_TENSORS},
               block = {GPU_APPEND_GENERIC_THREADS, 1, 1};
    void *arguments[] = {(void *)(uintptr_t)&state->problem, (void *)(uintptr_t)call,
                         (void *)(uintptr_t)dealt};
    return blocks ? gpu_launch_kernel(state->kernels[!one_norm], grid, block, arguments,
                                      (2 * (size_t)dim + GPU_APPEND_SEGMENT) * sizeof(float),
                                      stream, 0)
                  : gpuSuccess;
}

static gpuError_t join_once(const gpu_gradient_state *state, gpu_gradient_trees *trees,
                            void *stream) {
    int64_t joined = 1, width = 1;
    for (int t = 0; t < ROPE_APPEND_TENSORS; t++) {
        const gpu_gradient_tree *v = &trees->tensor[t];
        const int64_t own = gpu_divide_up(v->count, GPU_GRADIENT_JOINED);
        joined = own > joined ? own : joined;
        width = v->count && v->width > width ? v->width : width;
    }
    const dim3 grid = {(uint32_t)gpu_at_most(joined, GPU_GENERIC_X_MOST),
                       (uint32_t)gpu_at_most(gpu_divide_up(width, GPU_APPEND_GENERIC_THREADS),
                                             GPU_GENERIC_Y_MOST),
                       ROPE_APPEND_TENSORS},
               block = {GPU_APPEND_GENERIC_THREADS, 1, 1};
    void *arguments[] = {trees};
    return gpu_launch_kernel(state->kernels[2], grid, block, arguments, 0, stream, 0);
}

/* One launch for each 16-fold of blocks, of all tensors. */
static gpuError_t join(const gpu_gradient_state *state, const rope_append_backward_call *call,
                       const gpu_gradient_tensors *dealt, void *stream) {
    gpu_gradient_trees trees;
    int left = 0;
    for (int t = 0; t < ROPE_APPEND_TENSORS; t++) {
        const gpu_gradient_tensor *v = &dealt->tensor[t];
        const int64_t dim = state->problem.steps[t].norm_dim,
                      own = call->forward.tensor[t].weight_stride ? v->chains : 1;
        trees.tensor[t] = (gpu_gradient_tree){.rows = v->sums,
                                              .to = call->weight[t],
                                              .width = dim * own,
                                              .count = v->sums ? v->blocks : 0,
                                              .stride = v->chains / own,
                                              .chains = v->chains / own};
        left |= v->sums != NULL;
    }
    while (left) {
        const gpuError_t error = join_once(state, &trees, stream);
        if (error != gpuSuccess)
            return error;
        left = 0;
        for (int t = 0; t < ROPE_APPEND_TENSORS; t++) {
            gpu_gradient_tree *v = &trees.tensor[t];
            v->count =
                v->count <= GPU_GRADIENT_JOINED ? 0 : gpu_divide_up(v->count, GPU_GRADIENT_JOINED);
            v->stride *= GPU_GRADIENT_JOINED;
            v->chains = 1;
            left |= v->count != 0;
        }
    }
    return gpuSuccess;
}

gpuError_t gpu_gradient_launch(const gpu_binding *binding, const void *given, void *stream) {
    const gpu_gradient_state *state = (const gpu_gradient_state *)binding;
    const gpu_gradient_work *work = given;
    gpu_gradient_tensors dealt;
    deal_call(state, work, &dealt);
    gpuError_t error = launch_tokens(state, work->call, &dealt, 0, stream);
    if (error == gpuSuccess)
        error = launch_tokens(state, work->call, &dealt, 1, stream);
    return error == gpuSuccess ? join(state, work->call, &dealt, stream) : error;
}
