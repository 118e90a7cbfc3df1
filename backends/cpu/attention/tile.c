/* A tile: rows of queries that share a head of keys, from block to block of its keys. */
#include "backends/cpu/attention/context.h"

#include <math.h>
#include <sched.h>

/* Most bytes of a panel, rows of q and scores, and most of results, where heads are not so long
 * that a tile would have fewer rows than a panel is worth packing for; most of a stage, which has
 * room for a panel of the longest keys. */
enum {
    LEAST_ROWS = 64,
    PART = 112 * 1024,
    STAGE = CPU_ATTENTION_PAD * ROPE_MAX_ATTENTION_HEAD_DIM * 4
};

typedef struct tile_state {
    attention_worker *worker;
    const attention_context *ctx;
    const attention_tile *tile;
    int64_t first, last; /* splits */
    char *stage;         /* of keys or values that do not lie side by side */
    int64_t stage_bytes;
    cpu_attention_block block;
    rope_key_range seen[CPU_ATTENTION_ROWS]; /* of each row */
    float max[CPU_ATTENTION_ROWS], sum[CPU_ATTENTION_ROWS], rescale[CPU_ATTENTION_ROWS];
    float total_max[CPU_ATTENTION_ROWS], total_sum[CPU_ATTENTION_ROWS];
    float *total;
    uint32_t bits[CPU_ATTENTION_ROWS][CPU_ATTENTION_BLOCK / 32];
    attention_source source[2];
    const char *rows[2][CPU_ATTENTION_BLOCK];  /* of K and V of a block's keys */
    int count[2];                              /* of those that are found */
    int64_t found;                             /* key of the block of rows[0] */
    cpu_code_table (*table)[ATTENTION_TABLES]; /* of sources' heads */
} tile_state;

/* --- memory --- */

/* Bytes of a thread's memory: of its panel, of a row of q and scores, of a row of results and its
 * total, of what is spare, of tables of codes, of its stage. */
typedef struct tile_sizes {
    int64_t panel, q, o, spare, tables, stage;
} tile_sizes;

static tile_sizes sizes_of(const rope_attention_problem *p) {
    const int64_t q = cpu_attention_padded(p->head_dim), v = cpu_attention_padded(p->v_head_dim),
                  longer = q > v ? q : v, size = sizeof(float), panel = CPU_ATTENTION_PAD * size,
                  block = CPU_ATTENTION_BLOCK,
                  stage = block * longer * cpu_dtype_size(p->rope.dtype);
    const int coded = p->cache && (cpu_store_size(p->k.store_dtype) == 1 ||
                                   cpu_store_size(p->v.store_dtype) == 1);
    return (tile_sizes){.panel = (longer > block ? longer : block) * panel,
                        .q = (q + block) * size,
                        .o = 2 * v * size,
                        .spare = q * 32 > block * panel ? q * 32 : block * panel,
                        .tables =
                            coded ? 2 * ATTENTION_TABLES * (int64_t)sizeof(cpu_code_table) : 0,
                        .stage = stage < STAGE ? stage : STAGE};
}

int64_t attention_tile_rows(const rope_attention_problem *p) {
    const tile_sizes s = sizes_of(p);
    const int64_t of_q = (PART - s.panel) / s.q, of_o = PART / s.o,
                  rows = of_q < of_o ? of_q : of_o;
    return rows < LEAST_ROWS ? LEAST_ROWS : rows < CPU_ATTENTION_ROWS ? rows : CPU_ATTENTION_ROWS;
}

int64_t attention_tile_bytes(const rope_attention_problem *p) {
    const tile_sizes s = sizes_of(p);
    return s.panel + attention_tile_rows(p) * (s.q + s.o) + s.spare + s.tables + s.stage;
}

/* --- a block --- */

static int16_t in_block(int64_t key) {
    return (int16_t)(key < 0 ? 0 : key < CPU_ATTENTION_BLOCK ? key : CPU_ATTENTION_BLOCK);
}

/* The keys of the block at key `begin` that each row sees. */
static void begin_block(tile_state *t, int64_t begin) {
    cpu_attention_block *b = &t->block;
    b->from = in_block(t->tile->seen.begin - begin);
    b->to = in_block(t->tile->seen.end - begin);
    for (int r = 0; r < b->rows; r++) {
        b->first[r] = in_block(t->seen[r].begin - begin);
        b->last[r] = in_block(t->seen[r].end - begin);
    }
}

/* The tree's bits of a block, where it has any. */
static void read_tree(tile_state *t, int64_t begin) {
    const rope_attention_sequence *s = &t->tile->s;
    cpu_attention_block *b = &t->block;
    b->seen = NULL;
    if (t->ctx->problem->mask != ROPE_MASK_TREE ||
        rope_tree_bit(t->ctx->call, s, begin + b->to) <= 0)
        return;
    b->seen = (const uint32_t(*)[CPU_ATTENTION_BLOCK / 32]) t->bits;
    for (int r = 0; r < b->rows; r++) {
        const int64_t i = attention_query_of(t->ctx, t->tile, r);
        memset(t->bits[r], 0, sizeof t->bits[r]);
        for (int k = b->first[r]; k < b->last[r]; k++)
            t->bits[r][k / 32] |=
                (uint32_t)rope_tree_sees(t->ctx->problem, t->ctx->call, s, i, begin + k) << k % 32;
    }
}

/* Rows of K or V of the keys of a block that its tile sees, where nothing need be staged. */
static void find_rows(tile_state *t, int which, int64_t begin) {
    const int from = in_block(t->tile->seen.begin - begin),
              to = in_block(t->tile->seen.end - begin);
    t->count[which] = 0;
    if (t->source[which].staged || from >= to)
        return;
    cpu_attention_rows(t->ctx, &t->source[which], &t->tile->s,
                       (attention_part){t->tile->head, begin + from, to - from, 0,
                                        which ? t->block.v_head_dim : t->block.head_dim},
                       NULL, t->rows[which] + from);
    t->count[which] = to - from;
}

/* What is read next, while a kernel computes: `count` rows of K or V. */
static void set_ahead(tile_state *t, int which, const char *const *rows, int64_t count) {
    cpu_attention_block *b = &t->block;
    b->ahead = rows;
    b->ahead_count = (int)count;
    b->ahead_bytes = (which ? b->v_head_dim : b->head_dim) * b->size[which];
    b->ahead_step = b->step[which];
}

static void prefetch_ahead(tile_state *t, int which, int64_t begin) {
    find_rows(t, which, begin);
    set_ahead(t, which, t->rows[which] + in_block(t->tile->seen.begin - begin), t->count[which]);
}

/* Keys, or elements of values, that a stage has room for. */
static int staged_step(const tile_state *t, int which, int all, int64_t bytes, int multiple) {
    return t->source[which].staged && all * bytes > t->stage_bytes
               ? (int)(t->stage_bytes / bytes) / multiple * multiple
               : all;
}

static void run_scores(tile_state *t, int64_t begin) {
    const attention_context *ctx = t->ctx;
    const cpu_attention_block *b = &t->block;
    const int panel = ctx->kernel->panel, whole = b->from / panel * panel,
              step = staged_step(t, 0, b->to - whole, (int64_t)b->head_dim * ctx->size, panel);
    const char **rows = t->rows[0];
    for (int k = whole, count; k < b->to; k += count) {
        const int from = k < b->from ? b->from : k;
        count = b->to - k < step ? b->to - k : step;
        if (t->source[0].staged)
            cpu_attention_rows(
                ctx, &t->source[0], &t->tile->s,
                (attention_part){t->tile->head, begin + from, k + count - from, 0, b->head_dim},
                t->stage, rows + from);
        for (int i = k; i < from; i++)
            rows[i] = rows[from];
        ctx->kernel->scores(b, k, count, rows + k);
    }
}

static void run_values(tile_state *t, int64_t begin) {
    const attention_context *ctx = t->ctx;
    const cpu_attention_block *b = &t->block;
    const int keys = b->to - b->from,
              step = staged_step(t, 1, b->v_head_dim, (int64_t)keys * ctx->size, CPU_ATTENTION_PAD);
    for (int d = 0, count; d < b->v_head_dim; d += count) {
        count = b->v_head_dim - d < step ? b->v_head_dim - d : step;
        if (t->source[1].staged)
            cpu_attention_rows(ctx, &t->source[1], &t->tile->s,
                               (attention_part){t->tile->head, begin + b->from, keys, d, count},
                               t->stage, t->rows[1] + b->from);
        ctx->kernel->values(b, d, count, t->rows[1]);
    }
}

/* The keys of the next task's first block, where they need not be staged. */
static void prefetch_next_task(tile_state *t) {
    const attention_task *next = &t->worker->next;
    set_ahead(t, 0, t->rows[0], 0);
    if (!attention_take_next(t->worker) || t->source[0].staged)
        return;
    const rope_key_range seen = next->tile.seen;
    const int64_t split = seen.begin / CPU_ATTENTION_SPLIT + (next->split < 0 ? 0 : next->split),
                  first = split * CPU_ATTENTION_SPLIT,
                  begin = first > seen.begin ? first : seen.begin,
                  end = (begin / CPU_ATTENTION_BLOCK + 1) * CPU_ATTENTION_BLOCK,
                  count = (end < seen.end ? end : seen.end) - begin;
    if (count <= 0)
        return;
    const attention_source from = attention_source_of(t->ctx, &next->tile.s, next->tile.head, 0);
    cpu_attention_rows(t->ctx, &from, &next->tile.s,
                       (attention_part){next->tile.head, begin, (int)count, 0, t->block.head_dim},
                       NULL, t->rows[0]);
    set_ahead(t, 0, t->rows[0], count);
}

/* last: whether no block of the task follows. */
static void run_block(tile_state *t, int64_t begin, int last) {
    begin_block(t, begin);
    if (t->block.from >= t->block.to)
        return;
    read_tree(t, begin);
    if (t->found != begin)
        find_rows(t, 0, begin);
    prefetch_ahead(t, 1, begin);
    run_scores(t, begin);
    t->ctx->kernel->weights(&t->block);
    if (last) {
        prefetch_next_task(t);
        t->found = -1;
    } else {
        prefetch_ahead(t, 0, begin + CPU_ATTENTION_BLOCK);
        t->found = begin + CPU_ATTENTION_BLOCK;
    }
    run_values(t, begin);
}

/* --- a split --- */

static void begin_rows(tile_state *t) {
    for (int r = 0; r < t->block.rows; r++) {
        t->max[r] = -INFINITY;
        t->sum[r] = 0;
    }
    memset(t->block.o, 0, (size_t)(t->block.rows * t->block.o_stride) * sizeof(float));
}

/* last: whether it ends the task. */
static void run_split(tile_state *t, int64_t split, int last) {
    const rope_key_range seen = t->tile->seen;
    const int64_t all = (split + 1) * CPU_ATTENTION_SPLIT, end = all < seen.end ? all : seen.end;
    begin_rows(t);
    t->source[0].end = t->source[1].end = end;
    for (int64_t k = split * CPU_ATTENTION_SPLIT; k < end; k += CPU_ATTENTION_BLOCK)
        run_block(t, k, last && k + CPU_ATTENTION_BLOCK >= end);
}

/* One thread goes through all splits. */
static void run_all(tile_state *t, int64_t first, int64_t last) {
    const cpu_attention_block *b = &t->block;
    run_split(t, first, last - first == 1);
    if (last - first > 1) {
        memcpy(t->total, b->o, (size_t)(b->rows * b->o_stride) * sizeof(float));
        memcpy(t->total_max, t->max, sizeof t->max);
        memcpy(t->total_sum, t->sum, sizeof t->sum);
    }
    for (int64_t split = first + 1; split < last; split++) {
        run_split(t, split, split == last - 1);
        for (int r = 0; r < b->rows; r++)
            t->ctx->kernel->join(b->factor, t->total + r * b->o_stride, &t->total_max[r],
                                 &t->total_sum[r], b->o + r * b->o_stride, t->max[r], t->sum[r],
                                 b->o_stride);
    }
    const int joined = last - first > 1;
    for (int r = 0; r < b->rows; r++)
        attention_finish(t->ctx, t->tile, r, joined ? t->total_max[r] : t->max[r],
                         joined ? t->total_sum[r] : t->sum[r],
                         (joined ? t->total : b->o) + r * b->o_stride);
}

/* Splits of a tile join in order, each by the thread that has it once the one before is done. */
static void run_one(tile_state *t, int64_t split, int64_t first, int64_t last) {
    const attention_context *ctx = t->ctx;
    const cpu_attention_block *b = &t->block;
    const int64_t heads = ctx->call->rope.tensor[0].heads, length = b->o_stride + 2;
    int64_t at[CPU_ATTENTION_ROWS] = {0};
    for (int r = 0; r < b->rows; r++)
        at[r] = (t->tile->s.q_row * ctx->call->rope.tokens + t->tile->s.q_first +
                 attention_query_of(ctx, t->tile, r)) *
                    heads +
                attention_head_of(ctx, t->tile, r);
    int32_t *done = &ctx->workspace.done[at[0]];
    run_split(t, split, 1);
    for (int spins = 0; __atomic_load_n(done, __ATOMIC_ACQUIRE) != (int32_t)(split - first);)
        if (++spins % 64 == 0)
            sched_yield();
    for (int r = 0; r < b->rows; r++) {
        float *total = ctx->workspace.totals + at[r] * length, *max = total + b->o_stride,
              *sum = max + 1;
        const float *o = b->o + r * b->o_stride;
        if (split == first) {
            memcpy(total, o, (size_t)b->o_stride * sizeof *o);
            *max = t->max[r];
            *sum = t->sum[r];
        } else {
            ctx->kernel->join(b->factor, total, max, sum, o, t->max[r], t->sum[r], b->o_stride);
        }
        if (split == last - 1)
            attention_finish(ctx, t->tile, r, *max, *sum, total);
    }
    __atomic_store_n(done, (int32_t)(split - first + 1), __ATOMIC_RELEASE);
}

/* --- a tile --- */

/* Parts of the tile's memory, which begins with a panel. */
static void place_block(tile_state *t, char *memory) {
    const tile_sizes s = sizes_of(t->ctx->problem);
    cpu_attention_block *b = &t->block;
    char *q = memory + s.panel, *o = q + t->ctx->rows * s.q, *spare = o + t->ctx->rows * s.o;
    b->panel = (float *)(void *)memory;
    b->q = (float *)(void *)q;
    b->scores = (float *)(void *)(q + b->rows * b->q_bytes);
    b->o = (float *)(void *)o;
    b->spare = (float *)(void *)spare;
    t->total = b->o + b->rows * b->o_stride;
    t->table = (cpu_code_table(*)[ATTENTION_TABLES])(void *)(spare + s.spare);
    t->stage = b->stage = spare + s.spare + s.tables;
    t->stage_bytes = s.stage;
}

static void fill_block(tile_state *t) {
    const rope_attention_problem *p = t->ctx->problem;
    cpu_attention_block *b = &t->block;
    const float log2e = 0x1.715476p+0f;
    b->dtype = p->rope.dtype;
    b->head_dim = p->head_dim;
    b->v_head_dim = p->v_head_dim;
    b->o_stride = cpu_attention_padded(p->v_head_dim);
    b->of_head = (int)t->tile->count;
    b->rows = (int)(t->tile->count * t->tile->heads);
    b->cap = p->soft_cap;
    b->to_cap = p->soft_cap == 0 ? 0 : p->scale / p->soft_cap;
    b->factor = p->soft_cap == 0 ? (float)((double)p->scale * 0x1.71547652b82fep+0) : log2e;
    b->q_bytes = attention_q_bytes(t->ctx);
    b->max = t->max;
    b->sum = t->sum;
    b->rescale = t->rescale;
}

/* Whether cached elements are staged though they lie side by side. */
static int is_converted(const attention_source *from) {
    return from->operand && from->staged && from->steps->dim_block == from->steps->head_dim &&
           from->operand->cache_stride[4] == 1;
}

/* What a kernel needs to read codes of the tile's heads. */
static void find_codes(tile_state *t, int which) {
    const attention_context *ctx = t->ctx;
    const attention_source *from = &t->source[which];
    const int kind = from->coded ? from->steps->scale : 0, tables = kind == ROPE_SCALE_HEAD;
    cpu_attention_codes *codes = &t->block.codes[which];
    *codes = (cpu_attention_codes){.append = NULL};
    if (!from->coded)
        return;
    codes->append = ctx->kernel->append;
    codes->dtype = from->steps->store_dtype;
    if (kind) {
        codes->scale_step = from->operand->scale_stride[2];
        codes->scale = from->operand->scale + t->tile->head * codes->scale_step;
    }
    codes->table = t->table[which];
    for (int64_t i = 0; i < (tables ? t->tile->heads : 1) && codes->table; i++) {
        codes->look_up = attention_code_table(ctx, from, t->tile->head + i, &t->table[which][i]);
        if (!codes->look_up)
            codes->table = NULL;
    }
    codes->table_step = tables;
}

void attention_tile_attend(attention_worker *worker) {
    const attention_context *ctx = worker->ctx;
    const attention_tile *tile = &worker->task.tile;
    const int64_t split = worker->task.split;
    tile_state t;
    t.worker = worker;
    t.ctx = ctx;
    t.tile = tile;
    t.first = tile->seen.begin < tile->seen.end ? tile->seen.begin / CPU_ATTENTION_SPLIT : 0;
    t.last = t.first + attention_splits_of(tile->seen);
    t.found = -1;
    fill_block(&t);
    place_block(&t, worker->memory);
    for (int r = 0; r < t.block.rows; r++)
        t.seen[r] = rope_keys_counted(
            ctx->problem, &tile->s,
            rope_query_counted(ctx->call, &tile->s, attention_query_of(ctx, tile, r)));
    for (int which = 0; which < 2; which++) {
        t.source[which] = attention_source_of(ctx, &tile->s, tile->head, which);
        t.block.step[which] = t.source[which].head;
        t.block.size[which] = t.source[which].size;
        find_codes(&t, which);
    }
    if (is_converted(&t.source[0]) && is_converted(&t.source[1])) {
        t.source[0].next = &t.source[1];
        t.source[1].next = &t.source[0];
        t.source[1].later = CPU_ATTENTION_BLOCK;
        for (int which = 0; which < 2; which++) {
            t.source[which].look_up =
                attention_code_table(ctx, &t.source[which], tile->head, t.table[which]);
            t.source[which].table = t.source[which].look_up ? t.table[which] : NULL;
        }
    }
    attention_queries(ctx, tile, t.stage, (char *)(uintptr_t)t.block.q);
    if (ctx->kernel->queries)
        ctx->kernel->queries(&t.block);
    if (split < 0)
        run_all(&t, t.first, t.last);
    else
        run_one(&t, t.first + split, t.first, t.last);
}
