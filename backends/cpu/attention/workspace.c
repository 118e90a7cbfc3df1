/* What a workspace of "attention" holds. */
#include "backends/cpu/workspace.h"
#include "backends/cpu/attention/context.h"
#include "backends/cpu/partition.h"
#include "common/status.h"

/* More rows than this are as many tasks as threads need without splits. */
enum { SPLIT_ROWS = 4096 };

typedef struct extent {
    int64_t q_tokens, q_heads, k_rows, k_tokens, k_heads; /* q_tokens: of all rows */
    int keys, queries;                                    /* rotated ones; queries fit in `out` */
    int totals;                                           /* of splits */
    int threads;                                          /* for tiles of how many */
} extent;

/* Bytes from the workspace's begin to each part and to its end; 0 where they overflow. */
static int measure(const rope_attention_problem *p, const extent *e, int64_t at[6]) {
    const int64_t stride = cpu_attention_padded(p->v_head_dim),
                  head = (int64_t)p->head_dim * cpu_dtype_size(p->rope.dtype);
    int64_t rows, bytes = 0;
    if (__builtin_mul_overflow(e->q_tokens, e->q_heads, &rows) || rows > SPLIT_ROWS)
        rows = SPLIT_ROWS;
    if (!e->totals || e->k_tokens <= CPU_ATTENTION_SPLIT)
        rows = 0;
    at[0] = 0;
    if (e->keys && cpu_workspace_add(&bytes, e->k_rows, e->k_tokens, e->k_heads, head))
        return 0;
    at[1] = bytes;
    if (e->queries && p->head_dim > p->v_head_dim &&
        cpu_workspace_add(&bytes, e->q_tokens, e->q_heads, head, 1))
        return 0;
    at[2] = bytes;
    if (cpu_workspace_add(&bytes, rows, stride + 2, 4, 1))
        return 0;
    at[3] = bytes;
    if (cpu_workspace_add(&bytes, rows, 4, 1, 1))
        return 0;
    at[4] = bytes;
    if (cpu_workspace_add(&bytes, e->threads, attention_tile_bytes(p), 1, 1))
        return 0;
    at[5] = bytes;
    return 1;
}

/* Threads that calls within bounds are worth. */
static int threads_of(const rope_attention_problem *p, const rope_attention_bounds *b) {
    const double work = (double)b->batch * (double)b->tokens * (double)b->q_heads *
                        (double)(b->k_tokens ? b->k_tokens : b->tokens) *
                        (double)(p->head_dim + p->v_head_dim);
    return cpu_threads_for(work < 0x1p62 ? (int64_t)work : INT64_MAX);
}

rope_status cpu_attention_workspace(const void *problem, const void *kernel, const void *given,
                                    size_t *bytes) {
    (void)kernel;
    const rope_attention_problem *p = problem;
    const rope_attention_bounds *b = given;
    const int64_t rows = p->cache && b->sequences ? b->sequences : b->batch;
    extent e = {.q_heads = b->q_heads,
                .k_rows = rows,
                .k_tokens = b->k_tokens ? b->k_tokens : b->tokens,
                .k_heads = b->k_heads,
                .keys = p->rotates[1],
                .queries = p->rotates[0],
                .totals = 1,
                .threads = threads_of(p, b)};
    int64_t at[6];
    if (__builtin_mul_overflow(b->batch, b->tokens, &e.q_tokens))
        e.q_tokens = INT64_MAX;
    if (!measure(p, &e, at))
        return rope_fail(ROPE_ERROR_OVERFLOW,
                         "bounds.k_tokens is %lld with %lld rows and k_heads %lld; allowed is what "
                         "stays within 64-bit addresses",
                         (long long)e.k_tokens, (long long)rows, (long long)b->k_heads);
    *bytes = (size_t)at[5];
    return ROPE_OK;
}

attention_workspace attention_workspace_of(const rope_attention_problem *p,
                                           const rope_attention_call *call, void *workspace) {
    const int64_t rows = p->cache ? rope_attention_sequences(call) : call->rope.batch,
                  heads = call->rope.tensor[0].heads, tokens = call->rope.batch * call->rope.tokens;
    const extent e = {.q_heads = heads,
                      .q_tokens = tokens,
                      .k_rows = rows,
                      .k_tokens = call->k_tokens,
                      .k_heads = call->k.heads,
                      .keys = p->rotates[1] && !call->k.out,
                      .queries = p->rotates[0] && !call->rope.tensor[0].out,
                      .totals = tokens <= SPLIT_ROWS / heads,
                      .threads = 1};
    int64_t at[6];
    attention_workspace parts = {.bytes = SIZE_MAX};
    char *begin = workspace;
    if (!measure(p, &e, at))
        return parts;
    parts.bytes = (size_t)at[5];
    parts.keys = begin;
    if (at[2] != at[1])
        parts.queries = begin + at[1];
    if (at[3] != at[2]) {
        parts.totals = (float *)(void *)(begin + at[2]);
        parts.done = (int32_t *)(void *)(begin + at[3]);
        parts.done_bytes = at[4] - at[3];
    }
    parts.tiles = begin + at[4];
    parts.tile_bytes = attention_tile_bytes(p);
    parts.left = (int64_t)call->workspace_bytes - at[4];
    return parts;
}
