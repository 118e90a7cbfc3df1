/* A call: what is rotated first, then its tiles, which threads take one after the other. */
#include "backends/cpu/attention/walk.h"
#include "backends/cpu/partition.h"
#include "common/status.h"

#if defined(_OPENMP)
#include <omp.h>
#endif

/* --- tasks --- */

/* Task n: with splits those of one number are together, else tiles of a head, the last first. */
static void run_task(attention_walk *w, int64_t n) {
    attention_tile tile;
    const int64_t tiles = (w->most_rows - 1) / w->rows + 1,
                  parts = (w->call->k.heads - 1) / w->heads + 1, all = tiles * w->sequences * parts;
    const int64_t split = w->split ? n / all : -1, index = w->split ? n % all : n;
    tile.s = rope_attention_sequence_of(w->problem, w->call, index / tiles / parts);
    tile.head = index / tiles % parts * w->heads;
    tile.heads = w->call->k.heads - tile.head < w->heads ? w->call->k.heads - tile.head : w->heads;
    const int64_t rows = tile.s.q_count * w->group, of_sequence = (rows + w->rows - 1) / w->rows;
    if (index % tiles >= of_sequence)
        return;
    tile.first = (of_sequence - 1 - index % tiles) * w->rows;
    tile.count = rows - tile.first < w->rows ? rows - tile.first : w->rows;
    const int64_t first = rope_query_index(&tile.s, attention_query_of(w, &tile, 0)),
                  last = rope_query_index(&tile.s, attention_query_of(w, &tile, tile.count - 1));
    tile.seen.first = rope_keys_seen(w->problem, &tile.s, first).first;
    tile.seen.last = rope_keys_seen(w->problem, &tile.s, last).last;
    if (w->kernel->attend)
        w->kernel->attend(w, &tile);
    else
        attention_tile_attend(w, &tile, split);
}

static void begin_tasks(attention_walk *w) {
    w->next = 0;
    if (w->split)
        memset(w->space.done, 0, w->space.bytes - (size_t)((char *)w->space.done - w->space.begin));
}

static void run_tasks(attention_walk *w) {
    const int64_t tiles = w->most_rows ? (w->most_rows - 1) / w->rows + 1 : 0,
                  splits = w->split ? (w->most_keys - 1) / CPU_ATTENTION_SPLIT + 2 : 1,
                  parts = (w->call->k.heads - 1) / w->heads + 1,
                  tasks = tiles * w->sequences * parts * splits;
    for (int64_t n; (n = __atomic_fetch_add(&w->next, 1, __ATOMIC_RELAXED)) < tasks;)
        run_task(w, n);
}

/* --- a call --- */

/* Multiplications; a thread is worth as many as bytes. */
static int64_t work_of(const attention_walk *w) {
    const double work = (double)w->sequences * (double)w->call->k.heads * (double)w->most_rows *
                        (double)w->most_keys *
                        (double)(w->problem->head_dim + w->problem->v_head_dim);
    return work < 0x1p62 ? (int64_t)work : INT64_MAX;
}

/* Rotated queries go to q.out, else to out, where a row's query is read before its result is
 * written, else to the workspace. */
static void place_queries(attention_walk *w) {
    const rope_operand *q = &w->call->rope.tensor[0];
    char *own = w->space.queries;
    const int64_t dim = w->problem->head_dim, row = q->heads * dim,
                  packed[4] = {w->call->rope.tokens * row, row, dim, 1},
                  *stride = q->out ? q->out_stride
                            : own  ? packed
                                   : w->call->out_stride;
    w->rotated = q->out ? q->out : own ? own : w->call->out;
    if (!w->problem->rotates[0]) {
        w->rotated = NULL;
        stride = q->in_stride;
    }
    memcpy(w->q_stride, stride, sizeof w->q_stride);
}

void attention_walk_fill(attention_walk *w, const rope_attention_problem *p,
                         const rope_attention_call *call) {
    w->problem = p;
    w->call = call;
    w->size = cpu_dtype_size(p->rope.dtype);
    place_queries(w);
    w->group = call->rope.tensor[0].heads / call->k.heads;
    w->rows = attention_tile_rows(w);
    w->sequences = rope_attention_sequences(call);
    w->most_rows = w->most_keys = 0;
    for (int64_t n = 0; n < w->sequences; n++) {
        const rope_attention_sequence s = rope_attention_sequence_of(p, call, n);
        const int64_t rows = s.q_count * w->group, keys = rope_attention_kept(p, s.k_count);
        w->most_rows = rows > w->most_rows ? rows : w->most_rows;
        w->most_keys = keys > w->most_keys ? keys : w->most_keys;
    }
}

/* Whether the heads of a key lie side by side, to be read together. */
static int heads_together(const attention_walk *w) {
    const rope_attention_sequence s = rope_attention_sequence_of(w->problem, w->call, 0);
    for (int which = 0; which < 2; which++) {
        const attention_source from = attention_source_of(w, &s, 0, which);
        const int64_t token = from.operand ? from.operand->cache_stride[1] * w->size : from.token;
        if (from.staged || from.head > token)
            return 0;
    }
    return 1;
}

/* What a task is: enough of them for all threads, and no smaller. */
static void choose_tasks(attention_walk *w, int parts) {
    const int64_t heads = w->call->k.heads, enough = 4 * (int64_t)parts,
                  tiles = w->sequences * ((w->most_rows + w->rows - 1) / w->rows),
                  splits = (w->most_keys - 1) / CPU_ATTENTION_SPLIT + 1;
    w->heads = 1;
    w->split =
        w->space.totals && !w->kernel->attend && parts > 1 && splits > 1 && tiles * heads < enough;
    if (w->kernel->attend || w->most_rows > CPU_ATTENTION_FEW || !w->most_rows ||
        !heads_together(w))
        return;
    w->heads = (w->rows < CPU_ATTENTION_PAD ? w->rows : CPU_ATTENTION_PAD) / w->most_rows;
    w->heads = w->heads < heads ? w->heads : heads;
    w->split = w->space.totals && parts > 1 && splits > 1;
    const int64_t of_head = tiles * (w->split ? splits : 1);
    while (w->heads > 1 && parts > 1 && of_head * ((heads - 1) / w->heads + 1) < enough)
        w->heads = (w->heads + 1) / 2;
}

static rope_status check_workspace(const rope_attention_call *call, const attention_space *space,
                                   const void *workspace) {
    if (space->bytes > call->workspace_bytes)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "workspace_bytes is %zu; allowed is at least %zu", call->workspace_bytes,
                         space->bytes);
    return space->bytes && !workspace ? rope_fail_null("workspace") : ROPE_OK;
}

rope_status cpu_attention_call(const void *problem, const void *kernel, const void *given,
                               void *workspace, void *stream) {
    (void)stream;
    const rope_attention_call *call = given;
    attention_walk w;
    w.kernel = kernel;
    w.space = attention_space_of(problem, call, workspace);
    rope_status status = check_workspace(call, &w.space, workspace);
    if (status == ROPE_OK)
        status = cpu_attention_check(problem, call);
    if (status != ROPE_OK)
        return status;
    attention_walk_fill(&w, problem, call);
    const int parts = cpu_threads_for(work_of(&w));
    choose_tasks(&w, parts);
    begin_tasks(&w);
    if (parts == 1) {
        attention_rotate_first(&w, 0, 1);
        run_tasks(&w);
        return ROPE_OK;
    }
#if defined(_OPENMP)
#pragma omp parallel num_threads(parts)
    {
        attention_rotate_first(&w, omp_get_thread_num(), omp_get_num_threads());
#pragma omp barrier
        run_tasks(&w);
    }
#endif
    return ROPE_OK;
}
