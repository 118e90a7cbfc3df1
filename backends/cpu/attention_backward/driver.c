/* A call: what is rotated and the rows' sums first, then tiles of keys, tiles of rows and sinks,
 * which threads take one after the other. */
#include "backends/cpu/attention_backward/kernel.h"
#include "backends/cpu/partition.h"
#include "common/status.h"

#include <math.h>

#if defined(_OPENMP)
#include <omp.h>
#endif

/* --- before the tiles --- */

/* One thread's part of the rotations that the forward did not leave. */
static void rotate_first(const backward_context *b, int index, int parts) {
    attention_context ctx = b->ctx;
    rope_attention_problem p = *ctx.problem;
    if (b->given->forward.k.out)
        p.rotates[1] = 0;
    if (b->given->forward.rope.tensor[0].out)
        ctx.rotated = NULL;
    ctx.problem = &p;
    attention_rotate_first(&ctx, index, parts, NULL); /* no key is cached */
}

static void fill_delta(const backward_context *b, int index, int parts) {
    const int n = b->ctx.problem->v_head_dim;
    float out[ROPE_MAX_ATTENTION_HEAD_DIM], dout[ROPE_MAX_ATTENTION_HEAD_DIM];
    for (int64_t i = 0; i < b->ctx.sequences; i++) {
        const int64_t heads = b->ctx.call->k.heads;
        attention_tile t = {.s = rope_attention_sequence_of(b->ctx.problem, b->ctx.call, i),
                            .heads = 1};
        const int64_t rows = t.s.q_count * b->ctx.group, all = rows * heads;
        t.count = rows;
        for (int64_t r = cpu_part(all, index, parts); r < cpu_part(all, index + 1, parts); r++) {
            t.head = r / rows;
            backward_load_row(b, &t, r % rows, b->ctx.call->out, b->ctx.call->out_stride, n, out);
            backward_load_row(b, &t, r % rows, b->given->dout, b->given->dout_stride, n, dout);
            *backward_delta(b, &t, r % rows) = b->kernel->dot(out, dout, n);
        }
    }
}

/* --- tasks --- */

/* Keys ahead of those that some query may see, and behind them. */
static void store_unseen(const backward_context *b, const backward_tile *t, rope_key_range used) {
    static const float zeros[ROPE_MAX_ATTENTION_HEAD_DIM];
    for (int64_t k = t->first; k < t->first + t->count; k++)
        if (k < used.first || k >= used.last)
            backward_store_key(b, t, k, b->given->dk ? zeros : NULL, b->given->dv ? zeros : NULL);
}

static void run_keys(const backward_context *b, backward_tile *t) {
    const rope_key_range used = attention_keys_used(b->ctx.problem, &t->s);
    const int64_t last = t->first + t->count;
    store_unseen(b, t, used);
    t->first = t->first > used.first ? t->first : used.first;
    t->count = (last < used.last ? last : used.last) - t->first;
    if (t->count > 0)
        (b->kernel->keys_tile ? b->kernel->keys_tile : backward_keys_tile)(b, t);
}

/* A row that sees no key has an out that no sink changes. */
static void run_sink(const backward_context *b, int64_t head) {
    const double sink = (double)cpu_load(b->ctx.problem->sink_dtype, b->ctx.call->sinks, head);
    double sum = 0;
    for (int64_t n = 0; n < b->ctx.sequences && sink != -INFINITY; n++) {
        attention_tile t = {.s = rope_attention_sequence_of(b->ctx.problem, b->ctx.call, n),
                            .head = head / b->ctx.group,
                            .heads = 1};
        t.count = t.s.q_count * b->ctx.group;
        for (int64_t r = head % b->ctx.group; r < t.count; r += b->ctx.group) {
            const rope_key_range seen = rope_keys_seen(
                b->ctx.problem, &t.s, rope_query_index(&t.s, attention_query_of(&b->ctx, &t, r)));
            if (seen.first < seen.last)
                sum -=
                    exp(sink - (double)backward_lse(b, &t, r)) * (double)*backward_delta(b, &t, r);
        }
    }
    b->given->dsinks[head] = (float)sum;
}

/* How many tasks of each kind there are, in their order. */
typedef struct task_counts {
    int64_t heads;      /* of k, of all sequences */
    int64_t keys, rows; /* tiles of each of them */
    int64_t sinks;      /* heads of q */
} task_counts;

static task_counts count_tasks(const backward_context *b) {
    const rope_attention_backward_call *g = b->given;
    task_counts n = {.heads = b->ctx.call->k.heads * b->ctx.sequences};
    if (b->sum_bytes && !b->shared)
        n.keys = 1;
    else if (g->dk || g->dv)
        n.keys = (b->ctx.most_keys + b->tile - 1) / b->tile;
    if (g->dq && !b->sum_bytes)
        n.rows = (b->ctx.most_rows + b->tile - 1) / b->tile;
    if (g->dsinks)
        n.sinks = b->ctx.call->rope.tensor[0].heads;
    return n;
}

/* Tile n of all heads of all sequences: those of one number together. */
static int begin_tile(const backward_context *b, int64_t n, int is_row, backward_tile *t) {
    const int64_t heads = b->ctx.call->k.heads, all = heads * b->ctx.sequences, step = b->tile;
    t->s = rope_attention_sequence_of(b->ctx.problem, b->ctx.call, n % all / heads);
    t->head = n % heads;
    t->first = n / all * step;
    const int64_t count = is_row ? t->s.q_count * b->ctx.group : t->s.k_count;
    t->count = count - t->first < step ? count - t->first : step;
    return t->count > 0;
}

/* A head of k of a sequence: dq too, from the products that dk and dv need. */
static void run_head(const backward_context *b, int64_t n, backward_tile *t) {
    const int64_t heads = b->ctx.call->k.heads;
    t->s = rope_attention_sequence_of(b->ctx.problem, b->ctx.call, n / heads);
    t->head = n % heads;
    memset(t->sums, 0,
           (size_t)(t->s.q_count * b->ctx.group * backward_row_sums(b->ctx.problem)) *
               sizeof *t->sums);
    for (int64_t first = 0; first < t->s.k_count; first += b->tile) {
        const int64_t left = t->s.k_count - first;
        t->first = first;
        t->count = left < b->tile ? left : b->tile;
        run_keys(b, t);
    }
    t->first = 0;
    t->count = t->s.q_count * b->ctx.group;
    backward_store_rows(b, t);
}

/* --- sums of all threads --- */

static float *shared_sums(const backward_context *b, int64_t n) {
    return b->shared + n * b->sum_bytes / (int64_t)sizeof *b->shared;
}

static void clear_sums(const backward_context *b, int index, int parts) {
    const int64_t all = b->ctx.call->k.heads * b->ctx.sequences * b->sum_bytes,
                  first = cpu_part(all, index, parts);
    if (b->shared)
        memset((char *)b->shared + first, 0, (size_t)(cpu_part(all, index + 1, parts) - first));
}

static void store_sums(const backward_context *b, int index, int parts) {
    const int64_t heads = b->ctx.call->k.heads * b->ctx.sequences,
                  all = (b->ctx.most_rows + b->tile - 1) / b->tile * heads;
    backward_tile t = {.in_turn = 1};
    for (int64_t n = cpu_part(all, index, parts); b->shared && n < cpu_part(all, index + 1, parts);
         n++) {
        t.sums = shared_sums(b, n % heads);
        if (begin_tile(b, n, 1, &t))
            backward_store_rows(b, &t);
    }
}

/* --- a thread --- */

/* Under a causal mask the first keys and the last rows have most to do. */
static void run_task(const backward_context *b, const task_counts *counts, int64_t n,
                     backward_tile *t) {
    const int64_t keys = counts->keys * counts->heads, rows = counts->rows * counts->heads;
    if (n < keys && t->sums && !t->in_turn) {
        run_head(b, n, t);
    } else if (n < keys) {
        if (t->in_turn)
            t->sums = shared_sums(b, n % counts->heads);
        if (begin_tile(b, n, 0, t))
            run_keys(b, t);
    } else if (n < keys + rows) {
        if (begin_tile(b, rows - 1 - (n - keys), 1, t))
            (b->kernel->rows_tile ? b->kernel->rows_tile : backward_rows_tile)(b, t);
    } else {
        run_sink(b, n - keys - rows);
    }
}

static void run_tasks(backward_context *b, int thread) {
    const int64_t own = b->workspace.tile_bytes + (b->shared ? 0 : b->sum_bytes);
    char *memory = b->workspace.tiles + thread * own;
    const task_counts counts = count_tasks(b);
    const int64_t tasks = (counts.keys + counts.rows) * counts.heads + counts.sinks;
    backward_tile t = {.memory = (float *)(void *)memory, .in_turn = b->shared != NULL};
    if (b->sum_bytes && !b->shared)
        t.sums = (float *)(void *)(memory + b->workspace.tile_bytes);
    for (int64_t n; (n = __atomic_fetch_add(&b->next, 1, __ATOMIC_RELAXED)) < tasks;)
        run_task(b, &counts, n, &t);
}

/* --- a call --- */

static void fill_context(backward_context *b, const rope_attention_problem *p,
                         const cpu_backward_kernel *kernel) {
    b->kernel = kernel;
    b->tile = backward_tile_size(p);
    b->next = 0;
    memset(&b->ctx, 0, sizeof b->ctx);
    b->ctx.kernel = kernel->attention;
    b->ctx.workspace.keys = b->workspace.keys;
    b->ctx.workspace.queries = b->workspace.queries;
    b->ctx.heads = 1;
    attention_context_fill(&b->ctx, p, &b->given->forward);
    b->transposed = *p;
    b->transposed.rope = rope_transposed(&p->rope);
    b->back = b->ctx;
    b->back.problem = &b->transposed;
}

/* Multiplications; a thread is worth as many as bytes. */
static int64_t work_of(const backward_context *b) {
    const double work = (double)b->ctx.sequences * (double)b->ctx.call->k.heads *
                        (double)b->ctx.most_rows * (double)b->ctx.most_keys *
                        (double)(b->ctx.problem->head_dim + b->ctx.problem->v_head_dim) * 3;
    return work < 0x1p62 ? (int64_t)work : INT64_MAX;
}

/* Whether threads that take so many tasks of 5 products come before ones that share 7 evenly. */
static int is_worth(int64_t tasks, int64_t parts) {
    const int64_t rounds = (tasks + parts - 1) / parts;
    return 5 * rounds * parts <= 7 * tasks;
}

/* Threads, and what a task is. Tiles of keys and of rows have 7 products, of which 2 are made
 * twice: 5 where dq has sums of a head, for which a workspace has room for each thread. Then a task
 * is a head, or where these are few a tile of keys. */
static int choose_tasks(backward_context *b) {
    const rope_attention_backward_call *g = b->given;
    const int64_t worth = cpu_threads_for(work_of(b)),
                  room = b->workspace.left / b->workspace.tile_bytes,
                  parts = worth < room ? worth : room,
                  heads = b->ctx.call->k.heads * b->ctx.sequences,
                  most = parts < heads ? parts : heads,
                  tiles = (b->ctx.most_keys + b->tile - 1) / b->tile,
                  bytes =
                      b->ctx.most_rows * backward_row_sums(b->ctx.problem) * (int64_t)sizeof(float);
    b->sum_bytes = 0;
    b->shared = NULL;
    if (!heads || b->kernel->keys_tile || !g->dq || !(g->dk || g->dv))
        return (int)parts;
    if (heads < parts && is_worth(heads * tiles, parts) &&
        parts * b->workspace.tile_bytes + heads * bytes <= b->workspace.left) {
        b->shared = (float *)(void *)(b->workspace.tiles + parts * b->workspace.tile_bytes);
        b->sum_bytes = bytes;
        return (int)parts;
    }
    if (!is_worth(heads, parts) || most * (b->workspace.tile_bytes + bytes) > b->workspace.left)
        return (int)parts;
    b->sum_bytes = bytes;
    return (int)most;
}

/* One thread alone may be in a team of the caller's. */
static void await_team(int parts) {
#if defined(_OPENMP)
    if (parts > 1) {
#pragma omp barrier
    }
#else
    (void)parts;
#endif
}

/* What one of the threads does. */
static void run_part(backward_context *b, int index, int parts) {
    rotate_first(b, index, parts);
    fill_delta(b, index, parts);
    clear_sums(b, index, parts);
    await_team(parts);
    run_tasks(b, index);
    await_team(parts);
    store_sums(b, index, parts);
}

static void run_team(backward_context *b, int parts) {
#if defined(_OPENMP)
#pragma omp parallel num_threads(parts)
    run_part(b, omp_get_thread_num(), omp_get_num_threads());
#else
    (void)b, (void)parts;
#endif
}

rope_status cpu_backward_call(const void *problem, const void *kernel, const void *given,
                              void *workspace, void *stream) {
    (void)stream;
    backward_context b;
    b.given = given;
    const rope_attention_call *call = &b.given->forward;
    b.workspace = backward_workspace_of(problem, call, workspace);
    if (b.workspace.bytes > call->workspace_bytes)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "workspace_bytes is %zu; allowed is at least %zu", call->workspace_bytes,
                         b.workspace.bytes);
    if (!workspace)
        return rope_fail_null("workspace");
    rope_status status = cpu_attention_check(problem, call);
    if (status != ROPE_OK)
        return status;
    fill_context(&b, problem, kernel);
    const int parts = choose_tasks(&b);
    if (parts > 1) {
        run_team(&b, parts);
        return ROPE_OK;
    }
    run_part(&b, 0, 1);
    return ROPE_OK;
}
