/*
 * A block of bf16 keys and the rows that see them by products of tiles of 16 rows of 64 bytes,
 * compiled by the file that includes this with its vectors and MATRIX_: operands of bf16, sums of
 * fp32.
 *
 * A product takes the 32 elements of a row of its first tile in two chains, of the even and of the
 * odd ones, and adds both to a sum. So a score is a chain over products of 32 elements of head_dim,
 * a block's part of a result one over products of 32 keys.
 */
#ifndef ROPEKIT_CPU_ATTENTION_MATRIX_H
#define ROPEKIT_CPU_ATTENTION_MATRIX_H

/* Keys, or elements of values, and rows of a product of two tiles by two. */
enum { PANEL = 32, ROWS = 32, TILE = 1024, SIDE = 16 };

#include "backends/cpu/attention/prefetch.h"
#include "backends/cpu/attention/weights.h"

/* --- panels: tiles whose row n has words 16 m + n of 16 columns --- */

/* Keeps compilers from a load for each use. */
CPU_INLINE simd_u32 load_once(const char *p) {
    simd_u32 x = simd_load_u(p);
#if defined(SIMD_REGISTER)
    __asm__("" : SIMD_REGISTER(x));
#endif
    return x;
}

/* Not 0 where an element of bf16 is 2^65 or more. */
CPU_INLINE simd_u32 large_words(simd_u32 x) {
    return x & (x << 1) & 0x40004000u;
}

/* Words n.. of columns `first`.. to a tile; no more than `words` and `count` are there. */
CPU_INLINE void pack_square(const char *const *column, int count, int64_t at, int words, char *tile,
                            simd_u32 *large) {
    simd_u32 x[SIMD_LANES];
    for (int k = 0; k < SIMD_LANES; k++) {
        x[k] = (simd_u32){0};
        if (k < count && words >= SIMD_LANES)
            x[k] = load_once(column[k] + at);
        else if (k < count && words > 0)
            x[k] = simd_some_words(column[k] + at, words);
    }
    for (int k = 0; k < SIMD_LANES; k++)
        *large |= large_words(x[k]);
    simd_transpose(x);
    for (int i = 0; i < SIMD_LANES; i++)
        simd_store_u(tile + i * 64, x[i]);
}

/* The last element of an odd number of them. */
CPU_INLINE void pack_last(const char *const *column, int count, int64_t at, char *row) {
    for (int k = 0; k < SIDE && k < count; k++)
        memcpy(row + 4 * k, column[k] + at, 2);
}

/* PANEL keys, or `count`, from `at` bytes on: tiles [32 elements][half of the keys]. Returns
 * whether one may have large elements. */
static int pack_keys(const cpu_attention_block *b, const char *const *rows, int count, int64_t at,
                     prefetch_rows *prefetch, char *panel) {
    const int words = b->head_dim / 2, chunks = (b->head_dim + 31) / 32;
    prefetch_rows ahead = *prefetch;
    simd_u32 large = {0};
    for (int c = 0; c < chunks; c++)
        for (int half = 0; half < 2; half++) {
            char *tile = panel + (2 * c + half) * TILE;
            prefetch_lines(&ahead, PANEL / 2);
            for (int k = 0; k < SIDE; k += SIMD_LANES)
                for (int w = 0; w < SIDE; w += SIMD_LANES)
                    pack_square(rows + half * SIDE + k, count - half * SIDE - k,
                                at + (c * SIDE + w) * 4, words - c * SIDE - w,
                                tile + w * 64 + k * 4, &large);
            if (b->head_dim % 2 && c == words / SIDE)
                pack_last(rows + half * SIDE, count - half * SIDE, at + words * 4,
                          tile + words % SIDE * 64);
        }
    *prefetch = ahead;
    return simd_any(large) || b->head_dim % 2;
}

CPU_INLINE simd_u32 value_words(const char *row, int count) {
    simd_u32 x = {0};
    if (!row)
        return x;
    if (count >= 2 * SIMD_LANES)
        return simd_load_u(row);
    memcpy(&x, row, count > 0 ? 2 * (size_t)count : 0);
    return x;
}

/* A pair of keys' words to the rows of two tiles. */
CPU_INLINE void pack_pair(simd_u32 x, simd_u32 y, char *row) {
    simd_store_u(row, (x & 0xffffu) | y << 16);
    simd_store_u(row + TILE, x >> 16 | (y & 0xffff0000u));
}

/* PANEL elements of values, or `count`, of keys from..to - 1 that a row sees (row -1: of all), from
 * `at` bytes on: tiles [32 keys][even or odd elements]. */
static void pack_values(const cpu_attention_block *b, const char *const *rows, int from, int to,
                        int64_t at, int count, int row, char *panel) {
    for (int k = from / 32 * 32; k < (to + 31) / 32 * 32; k += 2) {
        char *tile = panel + (int64_t)(k / 32) * 2 * TILE + k % 32 / 2 * 64;
        const char *pair[2];
        for (int i = 0; i < 2; i++)
            pair[i] = k + i < from || k + i >= to || (row >= 0 && !sees(b, row, k + i))
                          ? NULL
                          : rows[k + i] + at;
        for (int w = 0; w < SIDE; w += SIMD_LANES)
            pack_pair(value_words(pair[0] ? pair[0] + 4 * w : NULL, count - 2 * w),
                      value_words(pair[1] ? pair[1] + 4 * w : NULL, count - 2 * w), tile + w * 4);
    }
}

enum { VALUE_TILES = KEYS / 32 * 2 * TILE };

/* Whole panels of whole tiles of keys, beside which `lines` of each pair of keys are read ahead. */
CPU_INLINE void pack_whole(int panels, const char *const *rows, int from, int to, int64_t at,
                           int lines, prefetch_rows *prefetch, char *tiles) {
    prefetch_rows ahead = *prefetch;
    for (int k = from; k < to; k += 2) {
        const unsigned pair = (unsigned)k / 2;
        const char *x = rows[k] + at, *y = rows[k + 1] + at;
        char *tile = tiles + (pair / 16 * 2 * TILE + pair % 16 * 64);
        prefetch_lines(&ahead, lines);
        for (int i = 0; i < panels; i++)
            for (int w = 0; w < SIDE; w += SIMD_LANES)
                pack_pair(load_once(x + 64 * i + 4 * w), load_once(y + 64 * i + 4 * w),
                          tile + i * VALUE_TILES + 4 * w);
    }
    *prefetch = ahead;
}

/* The values of a block's keys for some panels, which are VALUE_TILES apart. */
CPU_INLINE void pack_panels(int panels, const cpu_attention_block *b, const char *const *rows,
                            int64_t at, int count, int lines, prefetch_rows *prefetch,
                            char *tiles) {
    const int whole = b->from % 32 == 0 && count >= panels * PANEL ? b->to / 32 * 32 : b->from;
    pack_whole(panels, rows, b->from, whole, at, lines, prefetch, tiles);
    for (int i = 0; i < panels && whole < b->to; i++)
        pack_values(b, rows, whole, b->to, at + 2 * i * PANEL, count - i * PANEL, -1,
                    tiles + i * VALUE_TILES);
}

/* --- scores --- */

static int has_large(const char *row, int dim) {
    simd_u32 large = {0};
    int d = 0;
    for (; d + 2 * SIMD_LANES <= dim; d += 2 * SIMD_LANES)
        large |= large_words(simd_load_u(row + 2 * d));
    return simd_any(large | large_words(value_words(row + 2 * d, dim - d)));
}

static int some_large(const cpu_attention_block *b) {
    int some = 0;
    for (int r = 0; r < b->rows; r++)
        some |= has_large((const char *)b->q + r * b->q_bytes, b->head_dim);
    return some;
}

/* Products take subnormal numbers for 0, which counts beside large ones: a score of a row or a key
 * with elements of 2^65 or more is a chain over head_dim. */
static CPU_NOINLINE void add_large(const cpu_attention_block *b, int row, int key, int count,
                                   int64_t at, const char *const *rows) {
    for (int n = 0; n < count && n < PANEL; n++) {
        const int large = has_large(rows[n] + at, b->head_dim);
        for (int r = row; r < row + b->of_head; r++) {
            const char *q = (const char *)b->q + r * b->q_bytes;
            float x = 0;
            if (!large && !has_large(q, b->head_dim))
                continue;
            for (int d = 0; d < b->head_dim; d++)
                x = __builtin_fmaf(cpu_load(ROPE_BF16, q, d), cpu_load(ROPE_BF16, rows[n] + at, d),
                                   x);
            b->scores[r * KEYS + key + n] = x;
        }
    }
}

/* --- few rows: keys are rows of a product, and rows of q its columns --- */

/* The chains are the same, as factors commute. Keys are taken where they lie, or copied. */

enum { FEW_KEYS = 64 };

CPU_INLINE int has_few(const cpu_attention_block *b) {
    return b->of_head <= SIDE;
}

/* Rows of q of a head as [word][row]. */
CPU_INLINE char *few_queries(const cpu_attention_block *b, int row) {
    return (char *)(b->scores + b->rows * KEYS) + row * b->q_bytes;
}

static void matrix_queries(const cpu_attention_block *b) {
    for (int row = 0; row < b->rows && has_few(b); row += b->of_head) {
        const char *q = (const char *)b->q + row * b->q_bytes;
        char *to = few_queries(b, row);
        for (int64_t at = 0; at < b->q_bytes; at += 4)
            for (int r = 0; r < b->of_head; r++, to += 4)
                memcpy(to, q + r * b->q_bytes + at, 4);
    }
}

/* SIDE keys, or `count`, from `at` bytes on, side by side and padded as q is. Returns whether one
 * has large elements. */
static CPU_NOINLINE int copy_keys(const cpu_attention_block *b, const char *const *rows, int count,
                                  int64_t at, prefetch_rows *prefetch, char *to) {
    const int64_t bytes = b->q_bytes, whole = b->head_dim / 32 * 64;
    prefetch_rows lines = *prefetch;
    simd_u32 large = {0};
    for (int n = 0; n < count; n++, to += bytes) {
        const char *row = rows[n] + at;
        prefetch_lines(&lines, 1);
        for (int64_t i = 0; i < whole; i += sizeof large) {
            const simd_u32 x = load_once(row + i);
            large |= large_words(x);
            simd_store_u(to + i, x);
        }
        for (int64_t i = whole; i < bytes; i += sizeof large) {
            const simd_u32 x = value_words(row + i, b->head_dim - (int)(i / 2));
            large |= large_words(x);
            simd_store_u(to + i, x);
        }
    }
    memset(to, 0, (size_t)((SIDE - count) * bytes));
    *prefetch = lines;
    return simd_any(large);
}

/* The same of codes. */
static CPU_NOINLINE int decode_keys(const cpu_attention_block *b, const char *const *rows,
                                    int count, int head, prefetch_rows *prefetch, char *to) {
    prefetch_lines(prefetch, count);
    memset(to + count * b->q_bytes, 0, (size_t)((SIDE - count) * b->q_bytes));
    return cpu_attention_decode(b, (cpu_attention_coded){0, head, 0, b->head_dim}, rows, count, to,
                                b->q_bytes);
}

/* Whether some of SIDE keys, `step` bytes apart, have large elements. */
static CPU_NOINLINE int find_large(const char *keys, int64_t step, int64_t bytes,
                                   prefetch_rows *prefetch) {
    prefetch_rows lines = *prefetch;
    simd_u32 large = {0};
    for (int n = 0; n < SIDE; n++) {
        prefetch_lines(&lines, 1);
        for (int64_t i = 0; i < bytes; i += sizeof large)
            large |= large_words(load_once(keys + n * step + i));
    }
    *prefetch = lines;
    return simd_any(large);
}

/* Rows that a product takes: where they lie, if all are so far apart, or copies. */
typedef struct few_keys {
    const char *at;
    int64_t step; /* 0: to be copied */
} few_keys;

static few_keys keys_of(const cpu_attention_block *b, const char *const *rows, int count) {
    const int64_t step = count < SIDE ? 0 : rows[1] - rows[0];
    int64_t odd = b->head_dim % 32 | (b->codes[0].append != NULL);
    for (int n = 1; n < count; n++)
        odd |= rows[n] - rows[0] - n * step;
    return (few_keys){rows[0], odd ? 0 : step};
}

/* From [key][row] to the scores of rows from `row` on and keys from `key` on. */
static void transpose_scores(const cpu_attention_block *b, int row, int key, int count,
                             const float *sums) {
    for (int n = 0; n < count && n < FEW_KEYS; n += SIMD_LANES)
        for (int c = 0; c < b->of_head; c += SIMD_LANES) {
            simd_u32 x[SIMD_LANES];
            for (int i = 0; i < SIMD_LANES; i++)
                x[i] = simd_load_u(sums + (n + i) * SIDE + c);
            simd_transpose(x);
            for (int i = 0; i < SIMD_LANES && c + i < b->of_head; i++)
                simd_store_u(b->scores + (row + c + i) * KEYS + key + n, x[i]);
        }
}

/* Scores of SIDE keys, or `count`, of a head. Returns whether one has large elements. */
static int score_keys(const cpu_attention_block *b, const char *const *rows, int count, int head,
                      few_keys *keys, char *copies, prefetch_rows *prefetch, float *sums) {
    const int64_t at = head * b->step[0];
    int large;
    keys->at += at;
    if (keys->step) {
        large = find_large(keys->at, keys->step, b->q_bytes, prefetch);
    } else {
        large = b->codes[0].append ? decode_keys(b, rows, count, head, prefetch, copies)
                                   : copy_keys(b, rows, count, at, prefetch, copies);
        *keys = (few_keys){copies, b->q_bytes};
    }
    MATRIX_KEYS(keys->at, keys->step, few_queries(b, head * b->of_head), b->of_head,
                (b->head_dim + 31) / 32, prefetch, b->spare, sums);
    return large;
}

static void few_scores(const cpu_attention_block *b, int first, int count, const char *const *k) {
    enum { GROUPS = FEW_KEYS / SIDE };
    float sums[FEW_KEYS * SIDE] __attribute__((aligned(64))) = {0};
    const int large = some_large(b);
    char *const panel = (char *)b->panel;
    MATRIX_BEGIN_KEYS(b->of_head);
    for (int key = first; key < first + count; key += FEW_KEYS) {
        const char *const *rows = k + (key - first);
        const int left = first + count - key, keys = left < FEW_KEYS ? left : FEW_KEYS;
        prefetch_rows prefetch = rows_ahead(b, key - first, FEW_KEYS);
        few_keys all[GROUPS];
        for (int n = 0; n < keys; n += SIDE)
            all[n / SIDE] = keys_of(b, rows + n, keys - n < SIDE ? keys - n : SIDE);
        for (int row = 0; row < b->rows; row += b->of_head) {
            few_keys of_head[GROUPS];
            int large_keys = 0;
            memcpy(of_head, all, sizeof all);
            MATRIX_BEGIN_HEAD(few_queries(b, row), b->of_head, (b->head_dim + 31) / 32, b->spare);
            for (int n = 0; n < keys; n += SIDE)
                large_keys |= score_keys(b, rows + n, keys - n < SIDE ? keys - n : SIDE,
                                         row / b->of_head, &of_head[n / SIDE],
                                         panel + n * b->q_bytes, &prefetch, sums + n * SIDE);
            transpose_scores(b, row, key, keys, sums);
            for (int i = 0; i < keys && (large || large_keys); i++) {
                const char *at = of_head[i / SIDE].at + i % SIDE * of_head[i / SIDE].step;
                add_large(b, row, key + i, 1, 0, &at);
            }
        }
    }
    MATRIX_END();
}

/* What each ROWS rows see of a block, head after head. */
typedef group_range block_ranges[CPU_ATTENTION_ROWS / SIDE];

static void find_ranges(const cpu_attention_block *b, group_range *seen) {
    for (int row = 0; row < b->rows; row += b->of_head)
        for (int r = row, n; r < row + b->of_head; r += n) {
            n = row + b->of_head - r < ROWS ? row + b->of_head - r : ROWS;
            *seen++ = range_of(b, r, n);
        }
}

static void matrix_scores(const cpu_attention_block *b, int first, int count,
                          const char *const *k) {
    if (has_few(b)) {
        few_scores(b, first, count, k);
        return;
    }
    char *panel = (char *)b->panel;
    const int chunks = (b->head_dim + 31) / 32;
    const int large = some_large(b);
    block_ranges seen;
    find_ranges(b, seen);
    MATRIX_BEGIN();
    for (int key = first; key < first + count; key += PANEL) {
        const group_range *g = seen;
        for (int row = 0; row < b->rows; row += b->of_head) {
            const char *const *rows = k + (key - first);
            prefetch_rows prefetch = rows_ahead(b, key - first, PANEL);
            const int left_keys = first + count - key;
            const int64_t at = row / b->of_head * b->step[0];
            const int large_keys = pack_keys(b, rows, left_keys, at, &prefetch, panel);
            for (int r = row; r < row + b->of_head; r += ROWS, g++)
                if (g->from < key + PANEL && g->to > key)
                    MATRIX_MULTIPLY(row + b->of_head - r > SIDE,
                                    (const char *)b->q + (int64_t)r * b->q_bytes, b->q_bytes, panel,
                                    chunks, b->scores + r * KEYS + key, KEYS);
            if (large || large_keys)
                add_large(b, row, key, left_keys, at, rows);
        }
    }
    MATRIX_END();
}

/* --- weights: bf16, where scores were --- */

static void matrix_weights(const cpu_attention_block *b) {
    for (int row = 0; row < b->rows; row += b->of_head)
        for (int r = row, n; r < row + b->of_head; r += n) {
            n = row + b->of_head - r < ROWS ? row + b->of_head - r : ROWS;
            const group_range g = range_of(b, r, n);
            const int from = g.from / PANEL * PANEL, to = (g.to + PANEL - 1) / PANEL * PANEL;
            if (g.from < g.to)
                weigh_rows(b, 1, r, n, from, to,
                           g.partial || from != g.from || to != g.to || b->cap != 0);
        }
}

/* --- values --- */

typedef float matrix_sums[ROWS][PANEL]; /* of even elements, then of odd ones */

/* Products flush what is below 2^-126: an element that comes to less than 2^-100 is summed again,
 * key by key. */
static CPU_NOINLINE void add_small(const cpu_attention_block *b, int row, int64_t at, int count,
                                   const char *const *v, float *sum) {
    const uint16_t *weight = (const uint16_t *)(const void *)(b->scores + row * KEYS);
    for (int e = 0; e < count && e < PANEL; e++) {
        float *to = sum + e % 2 * SIDE + e / 2, x = 0;
        if (!(*to < 0x1p-100f && *to > -0x1p-100f))
            continue;
        for (int k = b->first[row]; k < b->last[row]; k++)
            if (sees(b, row, k))
                x = __builtin_fmaf(rope_from_bf16(weight[k]), cpu_load(ROPE_BF16, v[k] + at, e), x);
        *to = x;
    }
}

CPU_INLINE simd_u32 is_small(simd_f32 x) {
    return (simd_u32)((x < simd_set_f(0x1p-100f)) & (x > simd_set_f(-0x1p-100f)));
}

CPU_INLINE simd_u32 is_odd(simd_f32 x) {
    return (simd_u32)(x * simd_set_f(0) != (simd_f32){0});
}

/* Whether some value of the keys of a block is not 0, for each element of a panel. */
static CPU_NOINLINE void find_values(const char *panel, int from, int to, simd_u32 *some) {
    for (int i = 0; i < PANEL / SIMD_LANES; i++)
        some[i] = (simd_u32){0};
    for (int c = from / 32; c < (to + 31) / 32; c++)
        for (int i = 0; i < PANEL / SIMD_LANES; i++)
            for (int n = 0; n < SIDE; n++)
                some[i] |= simd_load_u(panel + (2 * c + i * SIMD_LANES / SIDE) * TILE + n * 64 +
                                       i * SIMD_LANES % SIDE * 4) &
                           0x7fff7fffu;
    for (int i = 0; i < PANEL / SIMD_LANES; i++)
        some[i] = (simd_u32)(some[i] != (simd_u32){0});
}

/* Values of a head for `count` elements from element d of its rows on. */
typedef struct value_panel {
    const char *const *rows;
    int64_t at;
    int d, count;
    char *tiles;
    int found; /* whether `some` says which elements are not all 0 */
    simd_u32 some[PANEL / SIMD_LANES];
} value_panel;

/* Elements that are small though some value of theirs is not 0. */
static simd_u32 small_sums(const cpu_attention_block *b, value_panel *v, const float *sum) {
    simd_u32 small = {0};
    if (!v->found)
        find_values(v->tiles, b->from, b->to, v->some);
    v->found = 1;
    for (int i = 0; i < PANEL / SIMD_LANES; i++)
        small |= is_small(simd_load_f(sum + i * SIMD_LANES)) & v->some[i];
    return small;
}

/* The sums of a row over the keys that it sees alone: 0 * infinity is not 0. */
static CPU_NOINLINE void add_seen(const cpu_attention_block *b, int row, group_range g,
                                  const value_panel *v, float *sum) {
    char tiles[VALUE_TILES] __attribute__((aligned(64)));
    matrix_sums sums;
    pack_values(b, v->rows, g.from, g.to, v->at, v->count, row, tiles);
    MATRIX_MULTIPLY(0, (const char *)(b->scores + row * KEYS) + g.from / 32 * 64,
                    (int64_t)(KEYS * sizeof(float)), tiles + g.from / 32 * 2 * TILE,
                    (g.to + 31) / 32 - g.from / 32, sums[0], PANEL);
    memcpy(sum, sums[0], sizeof sums[0]);
}

/* Joins the sums of a row to its o. */
CPU_INLINE void join_row(const cpu_attention_block *b, int row, group_range g, value_panel *v,
                         float *sum) {
    simd_u32 odd = {0}, small = {0};
    for (int i = 0; i < PANEL / SIMD_LANES; i++) {
        const simd_f32 x = simd_load_f(sum + i * SIMD_LANES);
        odd |= is_odd(x);
        small |= is_small(x);
    }
    if (simd_any(small))
        small = small_sums(b, v, sum);
    if ((g.partial || (g.from | g.to) % 32) && simd_any(odd)) { /* tiles have other keys too */
        add_seen(b, row, g, v, sum);
        small = ~(simd_u32){0};
    }
    if (simd_any(small))
        add_small(b, row, v->at, v->count, v->rows, sum);
    float *o = b->o + row * b->o_stride + v->d;
    const simd_f32 rescale = simd_set_f(b->rescale[row]);
    for (int i = 0; i < SIDE; i += SIMD_LANES) {
        const simd_f32 even = simd_load_f(sum + i), uneven = simd_load_f(sum + SIDE + i);
        float *at = o + 2 * i;
        simd_store_f(at, simd_fma(simd_load_f(at), rescale, simd_low(even, uneven)));
        at += SIMD_LANES;
        simd_store_f(at, simd_fma(simd_load_f(at), rescale, simd_high(even, uneven)));
    }
}

CPU_INLINE void add_rows(const cpu_attention_block *b, int r, int n, group_range g,
                         value_panel *v) {
    matrix_sums sums;
    if (g.from >= g.to)
        return;
    MATRIX_MULTIPLY(n > SIDE, (const char *)(b->scores + r * KEYS) + g.from / 32 * 64,
                    (int64_t)(KEYS * sizeof(float)), v->tiles + g.from / 32 * 2 * TILE,
                    (g.to + 31) / 32 - g.from / 32, sums[0], PANEL);
    for (int i = 0; i < n; i++)
        join_row(b, r + i, g, v, sums[i]);
}

CPU_INLINE value_panel panel_of(const cpu_attention_block *b, const char *const *v, int row,
                                int first, int d, int count, int panel) {
    return (value_panel){.rows = v,
                         .at = row / b->of_head * b->step[1] + (int64_t)d * 2,
                         .d = first + d,
                         .count = count - d,
                         .tiles = (char *)b->panel + panel * VALUE_TILES};
}

/* Sums of one panel or of two of the rows of a head. */
typedef struct few_step {
    int row, panels;
    group_range seen;
    value_panel p[2];
    float sums[SIDE][2][PANEL] __attribute__((aligned(64)));
} few_step;

static void add_few(const cpu_attention_block *b, few_step *s, prefetch_rows *prefetch) {
    const int from = s->seen.from;
    MATRIX_VALUES(b->of_head, (const char *)(b->scores + s->row * KEYS) + from / 32 * 64,
                  (int64_t)(KEYS * sizeof(float)), s->p[0].tiles + from / 32 * 2 * TILE,
                  (s->panels - 1) * VALUE_TILES, (s->seen.to + 31) / 32 - from / 32, prefetch,
                  s->sums[0][0]);
    for (int i = 0; i < b->of_head; i++)
        for (int n = 0; n < s->panels; n++)
            join_row(b, s->row + i, s->seen, &s->p[n], s->sums[i][n]);
}

/* Elements of two panels of codes, 2 * PANEL of each key. */
static void decode_values(const cpu_attention_block *b, int row, int d, int count,
                          const char *const *v, const char **elements, value_panel p[2]) {
    const int n = count - d < 2 * PANEL ? count - d : 2 * PANEL;
    cpu_attention_decode(b, (cpu_attention_coded){1, row / b->of_head, d, n}, v + b->from,
                         b->to - b->from, b->stage, 2 * n);
    for (int k = b->from; k < b->to; k++)
        elements[k] = b->stage + (k - b->from) * 2 * n;
    for (int i = 0; i < 2; i++) {
        p[i].rows = elements;
        p[i].at = i * 2 * PANEL;
    }
}

static void few_values(const cpu_attention_block *b, int first, int count, const char *const *v) {
    prefetch_rows prefetch = rows_ahead(b, 0, KEYS);
    const char *elements[KEYS];
    few_step s;
    MATRIX_BEGIN_VALUES(b->of_head);
    for (s.row = 0; s.row < b->rows; s.row += b->of_head) {
        s.seen = range_of(b, s.row, b->of_head);
        for (int d = 0; d < count && s.seen.from < s.seen.to; d += 2 * PANEL) {
            s.panels = count - d > PANEL ? 2 : 1;
            for (int i = 0; i < 2; i++)
                s.p[i] = panel_of(b, v, s.row, first, d + i * PANEL, count, i);
            if (b->codes[1].append)
                decode_values(b, s.row, d, count, v, elements, s.p);
            if (s.panels == 2)
                pack_panels(2, b, s.p[0].rows, s.p[0].at, count - d, 1, &prefetch, s.p[0].tiles);
            else
                pack_panels(1, b, s.p[0].rows, s.p[0].at, count - d, 1, &prefetch, s.p[0].tiles);
            add_few(b, &s, &prefetch);
        }
    }
    MATRIX_END();
}

static void matrix_values(const cpu_attention_block *b, int first, int count,
                          const char *const *v) {
    if (has_few(b)) {
        few_values(b, first, count, v);
        return;
    }
    const int groups = (b->of_head + ROWS - 1) / ROWS;
    prefetch_rows prefetch = rows_ahead(b, 0, KEYS);
    block_ranges seen;
    find_ranges(b, seen);
    MATRIX_BEGIN();
    for (int row = 0; row < b->rows; row += b->of_head)
        for (int d = 0; d < count; d += PANEL) {
            const group_range *g = seen + row / b->of_head * groups;
            value_panel p = panel_of(b, v, row, first, d, count, 0);
            pack_panels(1, b, v, p.at, p.count, 2, &prefetch, p.tiles);
            for (int r = row; r < row + b->of_head; r += ROWS) {
                const int left = row + b->of_head - r;
                add_rows(b, r, left < ROWS ? left : ROWS, *g++, &p);
            }
        }
    MATRIX_END();
}

#define MATRIX_KERNEL(isa, append_kernel)                                                          \
    {                                                                                              \
        .needs = (isa), .dtype = ROPE_BF16, .append = &(append_kernel), .panel = PANEL,            \
        .few = SIDE, .queries = matrix_queries, .scores = matrix_scores,                           \
        .weights = matrix_weights, .values = matrix_values, .join = block_join,                    \
        .scale = block_scale                                                                       \
    }

#endif
