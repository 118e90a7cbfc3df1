/* What a workspace of "attention_backward" holds. */
#include "backends/cpu/workspace.h"
#include "backends/cpu/attention_backward/kernel.h"
#include "backends/cpu/partition.h"
#include "common/status.h"

typedef struct extent {
    int64_t q_rows, q_tokens, q_heads, k_rows, k_tokens, k_heads;
    int queries, keys;     /* 1: rotated ones are kept */
    int64_t threads, sums; /* for cells of how many, and for sums of how many heads */
} extent;

/* Bytes from the workspace's begin to each part and to its end; 0 where they overflow. */
static int measure(const rope_attention_problem *p, const extent *e, int64_t at[5]) {
    const int64_t head = (int64_t)p->head_dim * cpu_dtype_size(p->rope.dtype);
    int64_t rows, bytes = 0;
    if (__builtin_mul_overflow(e->q_rows, e->q_tokens, &rows))
        return 0;
    at[0] = 0;
    if (e->queries && cpu_workspace_add(&bytes, rows, e->q_heads, head, 1))
        return 0;
    at[1] = bytes;
    if (e->keys && cpu_workspace_add(&bytes, e->k_rows, e->k_tokens, e->k_heads, head))
        return 0;
    at[2] = bytes;
    if (cpu_workspace_add(&bytes, rows, e->q_heads, sizeof(backward_row), 1))
        return 0;
    at[3] = bytes;
    if (cpu_workspace_add(&bytes, e->threads, backward_tile_bytes(p), 1, 1) ||
        cpu_workspace_add(&bytes, e->sums, e->q_tokens, e->k_heads ? e->q_heads / e->k_heads : 0,
                          backward_row_sums(p) * (int64_t)sizeof(float)) ||
        cpu_workspace_add(&bytes, backward_balances(p) ? e->sums : 0, e->k_tokens, 1,
                          backward_row_sums(p) * (int64_t)sizeof(float)))
        return 0;
    at[4] = bytes;
    return 1;
}

rope_status cpu_backward_workspace(const void *problem, const void *kernel, const void *given,
                                   size_t *bytes) {
    (void)kernel;
    const rope_attention_problem *p = problem;
    const rope_attention_bounds *b = given;
    const int64_t threads = cpu_threads_most();
    const int few = b->k_heads < threads && b->batch < threads / (b->k_heads + 1);
    const extent e = {.q_rows = b->batch,
                      .q_tokens = b->tokens,
                      .q_heads = b->q_heads,
                      .k_rows = b->batch,
                      .k_tokens = b->k_tokens ? b->k_tokens : b->tokens,
                      .k_heads = b->k_heads,
                      .queries = p->rotates[0],
                      .keys = p->rotates[1],
                      .threads = threads,
                      .sums = few ? b->batch * b->k_heads : threads};
    int64_t at[5];
    if (!measure(p, &e, at))
        return rope_fail(ROPE_ERROR_OVERFLOW,
                         "bounds.tokens is %lld and bounds.k_tokens is %lld with batch %lld, "
                         "q_heads %lld and k_heads %lld; allowed is what stays within 64-bit "
                         "addresses",
                         (long long)b->tokens, (long long)b->k_tokens, (long long)b->batch,
                         (long long)b->q_heads, (long long)b->k_heads);
    *bytes = (size_t)at[4];
    return ROPE_OK;
}

backward_workspace backward_workspace_of(const rope_attention_problem *p,
                                         const rope_attention_call *call, void *workspace) {
    const extent e = {.q_rows = call->rope.batch,
                      .q_tokens = call->rope.tokens,
                      .q_heads = call->rope.tensor[0].heads,
                      .k_rows = call->rope.batch,
                      .k_tokens = call->k_tokens,
                      .k_heads = call->k.heads,
                      .queries = p->rotates[0] && !call->rope.tensor[0].out,
                      .keys = p->rotates[1] && !call->k.out,
                      .threads = 1};
    int64_t at[5];
    if (!measure(p, &e, at))
        return (backward_workspace){.bytes = SIZE_MAX};
    char *begin = workspace;
    return (backward_workspace){.queries = e.queries ? begin : NULL,
                                .keys = e.keys ? begin + at[1] : NULL,
                                .rows = (backward_row *)(void *)(begin + at[2]),
                                .tiles = begin + at[3],
                                .tile_bytes = backward_tile_bytes(p),
                                .left = (int64_t)call->workspace_bytes - at[3],
                                .bytes = (size_t)at[4]};
}
