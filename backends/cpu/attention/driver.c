/* A call: what is rotated first, then its tiles, which threads take one after the other. */
#include "backends/cpu/attention/context.h"
#include "backends/cpu/partition.h"
#include "common/status.h"

#if defined(_OPENMP)
#include <omp.h>
#endif

/* --- tasks --- */

/* Task n: with splits those of one number are together, else tiles of a head, the last first.
 * Returns whether there is such a task. */
static int find_task(const attention_context *ctx, int64_t n, attention_task *task) {
    attention_tile *tile = &task->tile;
    const int64_t tiles = (ctx->most_rows - 1) / ctx->rows + 1,
                  parts = (ctx->call->k.heads - 1) / ctx->heads + 1,
                  all = tiles * ctx->sequences * parts;
    const int64_t index = ctx->split ? n % all : n;
    task->split = ctx->split ? n / all : -1;
    tile->s = rope_attention_sequence_of(ctx->problem, ctx->call, index / tiles / parts);
    tile->head = index / tiles % parts * ctx->heads;
    tile->heads =
        ctx->call->k.heads - tile->head < ctx->heads ? ctx->call->k.heads - tile->head : ctx->heads;
    const int64_t rows = tile->s.q_count * ctx->group,
                  of_sequence = (rows + ctx->rows - 1) / ctx->rows;
    if (index % tiles >= of_sequence)
        return 0;
    tile->first = (of_sequence - 1 - index % tiles) * ctx->rows;
    tile->count = rows - tile->first < ctx->rows ? rows - tile->first : ctx->rows;
    const int64_t first = rope_query_index(&tile->s, attention_query_of(ctx, tile, 0)),
                  last = rope_query_index(&tile->s, attention_query_of(ctx, tile, tile->count - 1));
    tile->seen.begin = rope_keys_seen(ctx->problem, &tile->s, first).begin;
    tile->seen.end = rope_keys_seen(ctx->problem, &tile->s, last).end;
    return task->split < attention_splits_of(tile->seen);
}

int attention_take_next(attention_worker *w) {
    for (int64_t n; !w->has_next;) {
        n = __atomic_fetch_add(&w->ctx->next, 1, __ATOMIC_RELAXED);
        if (n >= w->ctx->tasks)
            return 0;
        w->has_next = find_task(w->ctx, n, &w->next);
    }
    return 1;
}

static void begin_tasks(attention_context *ctx) {
    const int64_t tiles = ctx->most_rows ? (ctx->most_rows - 1) / ctx->rows + 1 : 0,
                  splits = ctx->split ? (ctx->most_keys - 1) / CPU_ATTENTION_SPLIT + 2 : 1,
                  parts = (ctx->call->k.heads - 1) / ctx->heads + 1;
    ctx->next = 0;
    ctx->tasks = tiles * ctx->sequences * parts * splits;
    if (ctx->split)
        memset(ctx->workspace.done, 0, (size_t)ctx->workspace.done_bytes);
}

static void run_tasks(attention_context *ctx, char *memory) {
    attention_worker w = {.ctx = ctx, .memory = memory};
    while (attention_take_next(&w)) {
        w.task = w.next;
        w.has_next = 0;
        if (ctx->kernel->attend)
            ctx->kernel->attend(ctx, &w.task.tile);
        else
            attention_tile_attend(&w);
    }
}

/* --- a call --- */

/* Multiplications; a thread is worth as many as bytes. */
static int64_t work_of(const attention_context *ctx) {
    const double work = (double)ctx->sequences * (double)ctx->call->k.heads *
                        (double)ctx->most_rows * (double)ctx->most_keys *
                        (double)(ctx->problem->head_dim + ctx->problem->v_head_dim);
    return work < 0x1p62 ? (int64_t)work : INT64_MAX;
}

/* Rotated queries go to q.out, else to out, where a row's query is read before its result is
 * written, else to the workspace. */
static void place_queries(attention_context *ctx) {
    const rope_operand *q = &ctx->call->rope.tensor[0];
    char *own = ctx->workspace.queries;
    const int64_t dim = ctx->problem->head_dim, row = q->heads * dim,
                  packed[4] = {ctx->call->rope.tokens * row, row, dim, 1},
                  *stride = q->out ? q->out_stride
                            : own  ? packed
                                   : ctx->call->out_stride;
    ctx->rotated = q->out ? q->out : own ? own : ctx->call->out;
    if (!ctx->problem->rotates[0]) {
        ctx->rotated = NULL;
        stride = q->in_stride;
    }
    memcpy(ctx->q_stride, stride, sizeof ctx->q_stride);
}

void attention_context_fill(attention_context *ctx, const rope_attention_problem *p,
                            const rope_attention_call *call) {
    ctx->problem = p;
    ctx->call = call;
    ctx->size = cpu_dtype_size(p->rope.dtype);
    place_queries(ctx);
    ctx->group = call->rope.tensor[0].heads / call->k.heads;
    ctx->rows = attention_tile_rows(p);
    ctx->sequences = rope_attention_sequences(call);
    ctx->most_rows = ctx->most_keys = 0;
    ctx->coded[0] = ctx->coded[1] = 0;
    for (int64_t n = 0; n < ctx->sequences; n++) {
        const rope_attention_sequence s = rope_attention_sequence_of(p, call, n);
        const int64_t rows = s.q_count * ctx->group, keys = rope_attention_kept(p, s.k_count);
        ctx->most_rows = rows > ctx->most_rows ? rows : ctx->most_rows;
        ctx->most_keys = keys > ctx->most_keys ? keys : ctx->most_keys;
    }
}

/* Whether the heads of a key lie side by side, to be read together. */
static int heads_together(const attention_context *ctx) {
    const rope_attention_sequence s = rope_attention_sequence_of(ctx->problem, ctx->call, 0);
    for (int which = 0; which < 2; which++) {
        const attention_source from = attention_source_of(ctx, &s, 0, which);
        const int64_t token = from.operand ? from.operand->cache_stride[1] * from.size : from.token;
        if (from.staged || from.head > token)
            return 0;
    }
    return 1;
}

/* What a task is: enough of them for all threads, and no smaller. */
static void choose_tasks(attention_context *ctx, int parts) {
    const int64_t heads = ctx->call->k.heads, enough = 4 * (int64_t)parts,
                  tiles = ctx->sequences * ((ctx->most_rows + ctx->rows - 1) / ctx->rows),
                  splits = (ctx->most_keys - 1) / CPU_ATTENTION_SPLIT + 1;
    ctx->heads = 1;
    for (int which = 0; which < 2; which++)
        ctx->coded[which] = attention_takes_codes(ctx, which);
    ctx->split = ctx->workspace.totals && !ctx->kernel->attend && parts > 1 && splits > 1 &&
                 tiles * heads < enough;
    if (ctx->kernel->attend || ctx->most_rows > ctx->kernel->few || !ctx->most_rows ||
        !heads_together(ctx))
        return;
    ctx->heads = (ctx->rows < CPU_ATTENTION_PAD ? ctx->rows : CPU_ATTENTION_PAD) / ctx->most_rows;
    ctx->heads = ctx->heads < heads ? ctx->heads : heads;
    if ((ctx->coded[0] || ctx->coded[1]) && ctx->heads > ATTENTION_TABLES)
        ctx->heads = ATTENTION_TABLES;
    ctx->split = ctx->workspace.totals && parts > 1 && splits > 1;
    const int64_t of_head = tiles * (ctx->split ? splits : 1);
    while (ctx->heads > 1 && parts > 1 && of_head * ((heads - 1) / ctx->heads + 1) < enough)
        ctx->heads = (ctx->heads + 1) / 2;
}

static rope_status check_workspace(const rope_attention_call *call,
                                   const attention_workspace *needed, const void *workspace) {
    if (needed->bytes > call->workspace_bytes)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "workspace_bytes is %zu; allowed is at least %zu", call->workspace_bytes,
                         needed->bytes);
    return workspace ? ROPE_OK : rope_fail_null("workspace");
}

/* What one of the threads does; one alone may be in a team of the caller's. */
static void run_part(attention_context *ctx, int index, int parts) {
    char *memory = ctx->workspace.tiles + index * ctx->workspace.tile_bytes;
    attention_rotate_first(ctx, index, parts, memory);
#if defined(_OPENMP)
    if (parts > 1) {
#pragma omp barrier
    }
#endif
    run_tasks(ctx, memory);
}

rope_status cpu_attention_check_call(const void *problem, const void *kernel, const void *given,
                                     void *workspace, void *stream) {
    (void)kernel, (void)stream;
    const rope_attention_call *call = given;
    const attention_workspace needed = attention_workspace_of(problem, call, workspace);
    const rope_status status = check_workspace(call, &needed, workspace);
    return status == ROPE_OK ? cpu_attention_check(problem, call, 1) : status;
}

rope_status cpu_attention_call(const void *problem, const void *kernel, const void *given,
                               void *workspace, void *stream) {
    (void)stream;
    const rope_attention_call *call = given;
    attention_context ctx;
    ctx.kernel = kernel;
    ctx.workspace = attention_workspace_of(problem, call, workspace);
    rope_status status = check_workspace(call, &ctx.workspace, workspace);
    if (status == ROPE_OK)
        status = cpu_attention_check(problem, call, 0);
    if (status != ROPE_OK)
        return status;
    attention_context_fill(&ctx, problem, call);
    const int64_t worth = cpu_threads_for(work_of(&ctx)),
                  room = ctx.workspace.left / ctx.workspace.tile_bytes;
    const int parts = (int)(worth < room ? worth : room);
    choose_tasks(&ctx, parts);
    begin_tasks(&ctx);
    if (parts == 1) {
        run_part(&ctx, 0, 1);
        return ROPE_OK;
    }
#if defined(_OPENMP)
#pragma omp parallel num_threads(parts)
    run_part(&ctx, omp_get_thread_num(), omp_get_num_threads());
#endif
    return ROPE_OK;
}
