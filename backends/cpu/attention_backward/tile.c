/* Tiles of rows and of keys: from cell to cell, in whose order sums grow. */
#include "backends/cpu/attention_backward/kernel.h"

#include <sched.h>

/* Floats between the sums of two rows, behind those that are added to. */
enum { CELL = CPU_BACKWARD_CELL, PAD = 16 };

/* Rows lie an odd number of lines apart, so that those of a panel spread over a cache's sets. */
static int stride_of(int dim) {
    return cpu_attention_padded(dim) + PAD;
}

int64_t backward_row_sums(const rope_attention_problem *p) {
    return stride_of(p->head_dim);
}

int64_t backward_tile_size(const rope_attention_problem *p) {
    enum { MOST_FLOATS = 28 * 1024 }; /* of rows of a tile */
    const int longer = p->head_dim > p->v_head_dim ? p->head_dim : p->v_head_dim;
    const int fits = MOST_FLOATS / stride_of(longer) / CPU_ATTENTION_PAD * CPU_ATTENTION_PAD;
    return fits < CELL ? fits : CELL;
}

int64_t backward_tile_bytes(const rope_attention_problem *p) {
    const int64_t rows = backward_tile_size(p), q = stride_of(p->head_dim),
                  v = stride_of(p->v_head_dim);
    return (rows * (4 * q + 4 * v) + 2 * CELL * (CELL + CPU_BACKWARD_SPARE)) *
           (int64_t)sizeof(float);
}

typedef struct tile_state {
    const backward_context *b;
    attention_tile rows; /* of the cell */
    attention_source source[2];
    int64_t key;     /* first of the cell */
    float *sums[2];  /* of dq or dk, and of dv */
    backward_cell c; /* the cell */
} tile_state;

static void begin_tile(tile_state *t, const backward_context *b, const backward_tile *tile) {
    const rope_attention_problem *p = b->ctx.problem;
    backward_cell *c = &t->c;
    const int64_t rows = b->tile;
    float *at = tile->memory;
    t->b = b;
    t->rows = (attention_tile){.s = tile->s, .head = tile->head, .heads = 1};
    for (int which = 0; which < 2; which++)
        t->source[which] = attention_source_of(&b->ctx, &tile->s, tile->head, which);
    c->dim = p->head_dim;
    c->v_dim = p->v_head_dim;
    c->q_stride = stride_of(c->dim);
    c->v_stride = stride_of(c->v_dim);
    c->cap = p->soft_cap;
    c->to_cap = p->soft_cap == 0 ? 0 : p->scale / p->soft_cap;
    c->factor = (float)((p->soft_cap == 0 ? (double)p->scale : 1) * 0x1.71547652b82fep+0);
    c->balances = b->balances;
    float **const q_parts[] = {&c->q, &c->k, &c->k_panels, &t->sums[0]},
                  **const v_parts[] = {&c->dout, &c->v, &c->v_panels, &t->sums[1]};
    for (int i = 0; i < 4; i++, at += rows * c->q_stride)
        *q_parts[i] = at;
    for (int i = 0; i < 4; i++, at += rows * c->v_stride)
        *v_parts[i] = at;
    c->p = at;
    c->ds = at + CELL * CELL;
    c->spare = c->ds + CELL * CELL;
    memset(t->sums[0], 0, (size_t)(rows * c->q_stride) * sizeof *at);
    memset(t->sums[1], 0, (size_t)(rows * c->v_stride) * sizeof *at);
}

/* --- what a cell reads --- */

static void load_rows(tile_state *t, int64_t first, int64_t count) {
    const float log2e = 0x1.715476p+0f;
    const backward_context *b = t->b;
    const void *q = b->ctx.rotated ? b->ctx.rotated : b->ctx.call->rope.tensor[0].in;
    backward_cell *c = &t->c;
    t->rows.first = first;
    t->rows.count = count;
    c->rows = (int)count;
    for (int r = 0; r < c->rows; r++) {
        backward_load_cell(b, &t->rows, r, q, b->ctx.q_stride, c->dim, c->q + r * c->q_stride);
        backward_load_cell(b, &t->rows, r, b->given->dout, b->given->dout_stride, c->v_dim,
                           c->dout + r * c->v_stride);
        c->lse[r] = backward_lse(b, &t->rows, r) * log2e;
        c->delta[r] = backward_row_of(b, &t->rows, r)->delta;
    }
}

static void load_source(tile_state *t, int which, int n, int stride, float *to) {
    const attention_context *ctx = &t->b->ctx;
    char stage[ROPE_MAX_ATTENTION_HEAD_DIM * sizeof(float)];
    for (int k = 0; k < t->c.keys; k++, to += stride) {
        const char *from;
        cpu_attention_rows(ctx, &t->source[which], &t->rows.s,
                           (attention_part){t->rows.head, t->key + k, 1, 0, n}, stage, &from);
        backward_load(t->b, from, n, to);
    }
}

static void load_keys(tile_state *t, int64_t first, int64_t count) {
    backward_cell *c = &t->c;
    t->key = first;
    c->keys = (int)count;
    load_source(t, 0, c->dim, c->q_stride, c->k);
    t->b->kernel->pack(c->k, c->keys, c->dim, c->q_stride, c->k_panels);
    load_source(t, 1, c->v_dim, c->v_stride, c->v);
    t->b->kernel->pack(c->v, c->keys, c->v_dim, c->v_stride, c->v_panels);
}

/* --- a cell --- */

static int16_t in_cell(int64_t i, int count) {
    return (int16_t)(i < 0 ? 0 : i < count ? i : count);
}

/* Which keys each row sees, and which rows see each key. */
static void find_seen(tile_state *t) {
    backward_cell *c = &t->c;
    const attention_context *ctx = &t->b->ctx;
    memset(c->key_last, 0, sizeof c->key_last);
    memset(c->key_first, 0, sizeof c->key_first);
    for (int r = 0; r < c->rows; r++) {
        const rope_key_range seen =
            rope_keys_seen(ctx->problem, &t->rows.s,
                           rope_query_index(&t->rows.s, attention_query_of(ctx, &t->rows, r)));
        c->first[r] = in_cell(seen.begin - t->key, c->keys);
        c->last[r] = in_cell(seen.end - t->key, c->keys);
    }
    for (int r = 0, next; r < c->rows; r = next) { /* rows that see the same keys, at once */
        next = r + 1;
        while (next < c->rows && c->first[next] == c->first[r] && c->last[next] == c->last[r])
            next++;
        for (int k = c->first[r]; k < c->last[r]; k++) {
            if (c->key_last[k] == 0)
                c->key_first[k] = (int16_t)r;
            c->key_last[k] = (int16_t)next;
        }
    }
}

/* Whether some of rows first..first + count - 1 may see some of the keys. */
static int meets(const tile_state *t, int64_t first, int64_t count, int64_t key, int64_t keys) {
    const rope_attention_sequence *s = &t->rows.s;
    const rope_attention_problem *p = t->b->ctx.problem;
    const int64_t low = rope_query_index(s, first / t->b->ctx.group),
                  high = rope_query_index(s, (first + count - 1) / t->b->ctx.group);
    return rope_keys_seen(p, s, low).begin < key + keys && rope_keys_seen(p, s, high).end > key;
}

static void add_to_keys(const tile_state *t) {
    const backward_cell *c = &t->c;
    const rope_attention_backward_call *g = t->b->given;
    const backward_product dk = {.count = c->keys,
                                 .n = cpu_attention_padded(c->dim),
                                 .transposed = 1,
                                 .stride = c->q_stride,
                                 .a = c->ds,
                                 .b = c->q,
                                 .to = t->sums[0],
                                 .first = c->key_first,
                                 .last = c->key_last};
    backward_product dv = dk;
    dv.n = cpu_attention_padded(c->v_dim);
    dv.stride = c->v_stride;
    dv.a = c->p;
    dv.b = c->dout;
    dv.to = t->sums[1];
    if (g->dk)
        t->b->kernel->add(&dk);
    if (g->dv)
        t->b->kernel->add(&dv);
}

static void add_to_rows(const tile_state *t, float *to) {
    const backward_cell *c = &t->c;
    const backward_product dq = {.count = c->rows,
                                 .n = cpu_attention_padded(c->dim),
                                 .stride = c->q_stride,
                                 .a = c->ds,
                                 .b = c->k,
                                 .to = to,
                                 .first = c->first,
                                 .last = c->last};
    t->b->kernel->add(&dq);
}

/* What the cell gives to its rows. */
static void add_shares(const tile_state *t) {
    backward_row *rows = backward_row_of(t->b, &t->rows, 0);
    for (int r = 0; r < t->c.rows && t->c.balances; r++)
        backward_add_share(&rows[r], &t->c.share[r], t->key);
}

/* --- keys that a row sees nearly alone --- */

/* A key as fp32. */
typedef struct wide_key {
    int64_t key; /* -1: none yet */
    float k[ROPE_MAX_ATTENTION_HEAD_DIM];
} wide_key;

/* The key's part of dq of a row; x: that of the row before. */
static void add_alone_to_row(const backward_context *b, const attention_tile *rows, int64_t row,
                             wide_key *x, float *sums) {
    const int64_t key = backward_row_of(b, rows, row)->share.key;
    const int n = b->ctx.problem->head_dim;
    char stage[ROPE_MAX_ATTENTION_HEAD_DIM * sizeof(float)];
    const char *from;
    if (key < 0)
        return;
    if (key != x->key) {
        const attention_source source = attention_source_of(&b->ctx, &rows->s, rows->head, 0);
        cpu_attention_rows(&b->ctx, &source, &rows->s, (attention_part){rows->head, key, 1, 0, n},
                           stage, &from);
        b->kernel->attention->append->load(ROPE_F32, b->ctx.problem->rope.dtype, 1, from,
                                           (char *)x->k, n);
        x->key = key;
    }
    const float ds = backward_lacking(b, rows, row);
    for (int i = 0; i < n; i++)
        sums[i] += ds * x->k[i];
}

/* Rows' parts of dk of a tile of keys. */
static void add_alone_to_keys(const backward_context *b, const backward_tile *tile, float *sums) {
    attention_tile rows = {.s = tile->s, .head = tile->head, .heads = 1};
    const void *q = b->ctx.rotated ? b->ctx.rotated : b->ctx.call->rope.tensor[0].in;
    float x[ROPE_MAX_ATTENTION_HEAD_DIM];
    rows.count = tile->s.q_count * b->ctx.group;
    const backward_row *row = backward_row_of(b, &rows, 0);
    for (int64_t r = 0; r < rows.count && b->balances; r++) {
        const int64_t key = row[r].share.key - tile->first;
        if (key < 0 || key >= tile->count)
            continue;
        const float ds = backward_lacking(b, &rows, r);
        float *to = sums + key * stride_of(b->ctx.problem->head_dim);
        backward_load_row(b, &rows, r, q, b->ctx.q_stride, b->ctx.problem->head_dim, x);
        for (int i = 0; i < b->ctx.problem->head_dim; i++)
            to[i] += ds * x[i];
    }
}

/* --- in turn --- */

/* The tile of keys that adds next to a tile of rows: behind the sums of its first row. Tiles are
 * taken in order, so that the one that is waited for is being worked on. */
static int64_t *turn_of(const tile_state *t, float *sums) {
    return (int64_t *)(void *)(sums + t->c.q_stride - PAD);
}

static void await_turn(const int64_t *turn, int64_t tile) {
    enum { SPINS = 1000 };
    for (int spins = 0; __atomic_load_n(turn, __ATOMIC_ACQUIRE) != tile; spins++)
        if (spins >= SPINS)
            sched_yield();
}

/* The cell's part of dq, where it has one. */
static void add_to_sums(const tile_state *t, const backward_tile *tile, int64_t first, int meet) {
    float *sums = tile->sums + first * t->c.q_stride;
    int64_t *turn = turn_of(t, sums);
    const int64_t own = tile->first / t->b->tile,
                  begin = attention_keys_used(t->b->ctx.problem, &tile->s).begin / t->b->tile;
    if (tile->in_turn && own > begin)
        await_turn(turn, own);
    if (meet)
        add_shares(t);
    if (meet && t->b->given->dq)
        add_to_rows(t, sums);
    if (tile->in_turn)
        __atomic_store_n(turn, own + 1, __ATOMIC_RELEASE);
}

/* --- tiles --- */

/* A sum's zeros have no sign: it would depend on keys that have no weight. */
static const float *scaled(const backward_context *b, float *sums, float factor, int n) {
    b->kernel->attention->scale(sums, factor, cpu_attention_padded(n));
    return sums;
}

/* dk of a tile from its sums. */
static void end_keys(const backward_context *b, const backward_tile *tile, float *sums) {
    const rope_attention_problem *p = b->ctx.problem;
    add_alone_to_keys(b, tile, sums);
    for (int64_t k = 0; k < tile->count; k++, sums += stride_of(p->head_dim))
        backward_store_key(b, tile, tile->first + k, scaled(b, sums, p->scale, p->head_dim), NULL);
    backward_rotate_keys(b, tile);
}

void backward_store_keys(const backward_context *b, const backward_tile *tile) {
    end_keys(b, tile, tile->kept + tile->first * stride_of(b->ctx.problem->head_dim));
}

void backward_keys_tile(const backward_context *b, const backward_tile *tile) {
    const int64_t all = tile->s.q_count * b->ctx.group, step = b->tile;
    tile_state t;
    backward_cell *c = &t.c;
    begin_tile(&t, b, tile);
    load_keys(&t, tile->first, tile->count);
    for (int64_t first = 0; first < all; first += step) {
        const int64_t count = all - first < step ? all - first : step;
        const int meet = meets(&t, first, count, tile->first, tile->count);
        if (meet) {
            load_rows(&t, first, count);
            find_seen(&t);
            b->kernel->weigh(c, b->given->dk || tile->sums);
            add_to_keys(&t);
        }
        if (tile->sums)
            add_to_sums(&t, tile, first, meet);
    }
    for (int k = 0; k < c->keys && b->given->dv; k++)
        backward_store_key(b, tile, tile->first + k, NULL,
                           scaled(b, t.sums[1] + k * c->v_stride, 1, c->v_dim));
    if (tile->kept)
        memcpy(tile->kept + tile->first * c->q_stride, t.sums[0],
               (size_t)(tile->count * c->q_stride) * sizeof *t.sums[0]);
    else if (b->given->dk)
        end_keys(b, tile, t.sums[0]);
}

static void end_row(const backward_context *b, const attention_tile *rows, int64_t row, wide_key *x,
                    float *sums) {
    const rope_attention_problem *p = b->ctx.problem;
    add_alone_to_row(b, rows, row, x, sums);
    backward_store_query(b, rows, row, scaled(b, sums, p->scale, p->head_dim));
}

void backward_rows_tile(const backward_context *b, const backward_tile *tile) {
    const rope_key_range used = attention_keys_used(b->ctx.problem, &tile->s);
    tile_state t;
    backward_cell *c = &t.c;
    wide_key x = {.key = -1};
    begin_tile(&t, b, tile);
    load_rows(&t, tile->first, tile->count);
    for (int64_t first = used.begin, count; first < used.end; first += count) {
        const int64_t left = used.end - first;
        count = b->tile - first % b->tile;
        count = left < count ? left : count;
        if (!meets(&t, tile->first, tile->count, first, count))
            continue;
        load_keys(&t, first, count);
        find_seen(&t);
        b->kernel->weigh(c, 1);
        add_shares(&t);
        if (b->given->dq)
            add_to_rows(&t, t.sums[0]);
    }
    for (int r = 0; r < c->rows && b->given->dq; r++)
        end_row(b, &t.rows, r, &x, t.sums[0] + r * c->q_stride);
    if (b->given->dq)
        backward_rotate_rows(b, tile);
}

void backward_store_rows(const backward_context *b, const backward_tile *tile) {
    const rope_attention_problem *p = b->ctx.problem;
    attention_tile rows = {.s = tile->s, .head = tile->head, .heads = 1};
    backward_tile part = *tile;
    wide_key x = {.key = -1};
    const int64_t last = tile->first + tile->count;
    rows.count = tile->s.q_count * b->ctx.group;
    for (; part.first < last; part.first += part.count) {
        part.count = last - part.first < b->tile ? last - part.first : b->tile;
        for (int64_t r = part.first; r < part.first + part.count; r++)
            end_row(b, &rows, r, &x, tile->sums + r * stride_of(p->head_dim));
        backward_rotate_rows(b, &part);
    }
}
