/* A call: what is rotated and the rows' sums first, then tiles of rows, tiles of keys and sinks,
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

static void fill_rows(const backward_context *b, int index, int parts) {
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
            *backward_row_of(b, &t, r % rows) =
                (backward_row){b->kernel->dot(out, dout, n), {.key = -1}};
        }
    }
}

/* --- tasks --- */

/* Keys ahead of those that some query may see, and behind them. */
static void store_unseen(const backward_context *b, const backward_tile *t, rope_key_range used) {
    static const float zeros[ROPE_MAX_ATTENTION_HEAD_DIM];
    for (int64_t k = t->first; k < t->first + t->count; k++)
        if (k < used.begin || k >= used.end)
            backward_store_key(b, t, k, b->given->dk ? zeros : NULL, b->given->dv ? zeros : NULL);
}

static void clip_keys(backward_tile *t, rope_key_range used) {
    const int64_t last = t->first + t->count;
    t->first = t->first > used.begin ? t->first : used.begin;
    t->count = (last < used.end ? last : used.end) - t->first;
}

static void run_keys(const backward_context *b, backward_tile *t) {
    const rope_key_range used = attention_keys_used(b->ctx.problem, &t->s);
    store_unseen(b, t, used);
    clip_keys(t, used);
    if (t->count > 0)
        (b->kernel->keys_tile ? b->kernel->keys_tile : backward_keys_tile)(b, t);
}

/* Stores dk of a tile whose sums were kept. */
static void store_kept(const backward_context *b, const backward_tile *tile) {
    backward_tile t = *tile;
    clip_keys(&t, attention_keys_used(b->ctx.problem, &t.s));
    if (t.count > 0)
        backward_store_keys(b, &t);
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
            if (seen.begin < seen.end)
                sum -= exp(sink - (double)backward_lse(b, &t, r)) *
                       (double)backward_row_of(b, &t, r)->delta;
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

/* Whether tiles of rows have work: also where keys ask which of them a row sees alone. */
static int has_rows(const backward_context *b) {
    return b->given->dq || (b->balances && b->given->dk);
}

static task_counts count_tasks(const backward_context *b) {
    const rope_attention_backward_call *g = b->given;
    task_counts n = {.heads = b->ctx.call->k.heads * b->ctx.sequences};
    if (b->sum_bytes && !b->shared)
        n.keys = 1;
    else if (g->dk || g->dv)
        n.keys = (b->ctx.most_keys + b->tile - 1) / b->tile;
    if (has_rows(b) && !b->sum_bytes)
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
    for (int ends = 0; ends <= (t->kept != NULL); ends++)
        for (int64_t first = 0; first < t->s.k_count; first += b->tile) {
            const int64_t left = t->s.k_count - first;
            t->first = first;
            t->count = left < b->tile ? left : b->tile;
            if (ends)
                store_kept(b, t);
            else
                run_keys(b, t);
        }
    t->first = 0;
    t->count = t->s.q_count * b->ctx.group;
    if (b->given->dq)
        backward_store_rows(b, t);
}

/* --- sums of all threads --- */

/* Of head n of all sequences the sums of dq, and where it is kept of dk. */
static void take_sums(const backward_context *b, float *memory, int64_t n, backward_tile *t) {
    t->sums = memory + n * (b->sum_bytes + b->kept_bytes) / (int64_t)sizeof *memory;
    t->kept = b->kept_bytes ? t->sums + b->sum_bytes / (int64_t)sizeof *memory : NULL;
}

static void clear_sums(const backward_context *b, int index, int parts) {
    const int64_t all = b->ctx.call->k.heads * b->ctx.sequences * (b->sum_bytes + b->kept_bytes),
                  first = cpu_part(all, index, parts);
    if (b->shared)
        memset((char *)b->shared + first, 0, (size_t)(cpu_part(all, index + 1, parts) - first));
}

static void store_sums(const backward_context *b, int index, int parts) {
    const int64_t heads = b->ctx.call->k.heads * b->ctx.sequences,
                  rows = b->given->dq ? (b->ctx.most_rows + b->tile - 1) / b->tile * heads : 0,
                  keys = b->kept_bytes ? (b->ctx.most_keys + b->tile - 1) / b->tile * heads : 0;
    backward_tile t = {.in_turn = 1};
    for (int64_t n = cpu_part(rows + keys, index, parts);
         b->shared && n < cpu_part(rows + keys, index + 1, parts); n++) {
        const int is_row = n < rows;
        take_sums(b, b->shared, n % heads, &t);
        if (begin_tile(b, is_row ? n : n - rows, is_row, &t))
            (is_row ? backward_store_rows : store_kept)(b, &t);
    }
}

/* --- a thread --- */

/* Under a causal mask the first keys and the last rows have most to do. */
static void run_task(const backward_context *b, const task_counts *counts, int64_t n,
                     backward_tile *t) {
    const int64_t keys = counts->keys * counts->heads;
    if (n < keys && t->sums && !t->in_turn) {
        run_head(b, n, t);
    } else if (n < keys) {
        if (t->in_turn)
            take_sums(b, b->shared, n % counts->heads, t);
        if (begin_tile(b, n, 0, t))
            run_keys(b, t);
    } else {
        run_sink(b, n - keys);
    }
}

static backward_tile tile_of(const backward_context *b, int thread) {
    const int64_t own = b->workspace.tile_bytes + (b->shared ? 0 : b->sum_bytes + b->kept_bytes);
    char *memory = b->workspace.tiles + thread * own;
    backward_tile t = {.memory = (float *)(void *)memory, .in_turn = b->shared != NULL};
    if (b->sum_bytes && !b->shared)
        take_sums(b, (float *)(void *)(memory + b->workspace.tile_bytes), 0, &t);
    return t;
}

static void run_rows(backward_context *b, int thread) {
    const task_counts counts = count_tasks(b);
    const int64_t tasks = counts.rows * counts.heads;
    backward_tile t = tile_of(b, thread);
    for (int64_t n; (n = __atomic_fetch_add(&b->next[0], 1, __ATOMIC_RELAXED)) < tasks;)
        if (begin_tile(b, tasks - 1 - n, 1, &t))
            (b->kernel->rows_tile ? b->kernel->rows_tile : backward_rows_tile)(b, &t);
}

static void run_tasks(backward_context *b, int thread) {
    const task_counts counts = count_tasks(b);
    const int64_t tasks = counts.keys * counts.heads + counts.sinks;
    backward_tile t = tile_of(b, thread);
    for (int64_t n; (n = __atomic_fetch_add(&b->next[1], 1, __ATOMIC_RELAXED)) < tasks;)
        run_task(b, &counts, n, &t);
}

/* --- a call --- */

static void fill_context(backward_context *b, const rope_attention_problem *p,
                         const cpu_backward_kernel *kernel) {
    b->kernel = kernel;
    b->tile = backward_tile_size(p);
    b->balances = backward_balances(p);
    b->next[0] = b->next[1] = 0;
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
                  row = backward_row_sums(b->ctx.problem) * (int64_t)sizeof(float),
                  kept = b->balances && g->dk ? b->ctx.most_keys * row : 0,
                  bytes = b->ctx.most_rows * row + kept;
    int threads = 0;
    b->sum_bytes = b->kept_bytes = 0;
    b->shared = NULL;
    if (!heads || b->kernel->keys_tile || !has_rows(b) || !(g->dk || g->dv))
        return (int)parts;
    if (heads < parts && is_worth(heads * tiles, parts) &&
        parts * b->workspace.tile_bytes + heads * bytes <= b->workspace.left) {
        b->shared = (float *)(void *)(b->workspace.tiles + parts * b->workspace.tile_bytes);
        threads = (int)parts;
    } else if (is_worth(heads, parts) &&
               most * (b->workspace.tile_bytes + bytes) <= b->workspace.left) {
        threads = (int)most;
    }
    if (!threads)
        return (int)parts;
    b->sum_bytes = bytes - kept;
    b->kept_bytes = kept;
    return threads;
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
    fill_rows(b, index, parts);
    clear_sums(b, index, parts);
    await_team(parts);
    run_rows(b, index);
    if (b->balances && !b->sum_bytes)
        await_team(parts); /* keys read what rows found */
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
    rope_status status = cpu_attention_check(problem, call, 0);
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
