/*
 * 16-bit heads of D elements by matrix instructions: a block has GPU_BACKWARD_OWN rows or keys of
 * its own, a warp some 16s of them, and goes over tiles of the others, of which the next one is
 * copied to shared memory behind its back. Its own are the rows of every product. Tiles begin at
 * multiples of their size, and what does not see is masked, so the bits of a gradient do not depend
 * on what has nothing to do with it.
 */
#ifndef ROPEKIT_GPU_ATTENTION_BACKWARD_TILE_H
#define ROPEKIT_GPU_ATTENTION_BACKWARD_TILE_H

#include "backends/gpu/attention/products.h"
#include "backends/gpu/attention_backward/block.h"

#ifdef GPU_QUERIES_LEFT
enum {
    GPU_BACKWARD_SHAPE = GPU_TILE_SHAPE(GPU_BACKWARD_OWN, GPU_BACKWARD_TILE),
    GPU_BACKWARD_STAGES = 1 + GPU_TILE_AHEAD
};

/* Others that may count are 0..count - 1 of the block's, common..common_end - 1 of which all of its
 * own see or are seen by. */
struct gpu_backward_span {
    int32_t count, common, common_end;
};

/* Rows, counted through: where they are in 16 bytes from element 0, as gpu_backward_place orders
 * them, GPU_BACKWARD_NONE where they are not there; keys that they see, from the block's `key` on;
 * lse in units of log 2. */
template <int N> struct gpu_backward_rows {
    alignas(16) uint32_t places[2][N];
    alignas(8) float lse[N], delta[N];
    int32_t first[N], last[N];
};
enum : uint32_t { GPU_BACKWARD_NONE = 0xffffffffu };

/* Rows of which a block knows: its own, or, KEYS, others, of as many at a time as it has threads.
 */
template <int KEYS>
constexpr int gpu_backward_known = KEYS ? 2 * (int)GPU_ATTENTION_THREADS : (int)GPU_BACKWARD_OWN;

/* Shared memory of a block, beside tiles. */
template <int KEYS> struct gpu_backward_block {
    gpu_attention_tile tile;
    gpu_backward_rows<gpu_backward_known<KEYS>> rows;
    union {
        rope_token tokens[KEYS ? (int)GPU_ATTENTION_THREADS : (int)GPU_BACKWARD_OWN];
        uint16_t weights[GPU_BACKWARD_OWN][GPU_BACKWARD_TILE]; /* of a tile that is not finite */
    };
    int64_t to[2][GPU_BACKWARD_OWN];
    int64_t key;     /* from which keys count: of the block's own the first, else of the others' */
    int64_t others0; /* the first of the first tile */
    int64_t limits[4];
    int64_t keys[2];   /* elements to the first key of the block's or of the others' */
    int32_t keys_left; /* from there */
    gpu_backward_span span;
    int32_t special;        /* the last tile, from 1 on, that has what is not finite */
    int64_t head, next;     /* of keys; what comes next */
    int32_t part, gradient; /* of [key head, gradient]; of keys alone: 0 dk, 1 dv */
};

/* Gradients that a block sums: of keys dk and dv, or, as registers hold one of wider heads, one of
 * them. */
template <int D, int KEYS>
constexpr int gpu_backward_gradients = KEYS > 0 && D <= GPU_TILE_NARROW ? 2 : 1;
template <int D, int KEYS>
using gpu_backward_tile_sums =
    gpu_tile_rows<D, GPU_BACKWARD_SHAPE>[gpu_backward_gradients<D, KEYS>];

/* Whether it sums one of the two. */
template <int D, int KEYS>
constexpr bool gpu_backward_parts = KEYS > 0 && gpu_backward_gradients<D, KEYS> == 1;

template <int KEYS> struct gpu_backward_tile_call {
    gpu_backward_call of;
    gpu_backward_block<KEYS> *b;
    char *memory; /* dynamic shared memory */
    int32_t fits;
};

/* --- what is there --- */

/* Rows of a tile that threads copy at a time. */
template <int D> constexpr int gpu_backward_step = GPU_ATTENTION_THREADS * 8 / D;

/* Places of a thread's rows of a tile lie side by side. */
template <int D> GPU_FN int gpu_backward_place(int n) {
    enum { STEP = gpu_backward_step<D>, EACH = GPU_BACKWARD_TILE / STEP };
    const int row = n % GPU_BACKWARD_TILE;
    return n - row + row % STEP * EACH + row / STEP;
}

/* Looks for row i of the block's own, or of the others. */
template <int D, int KEYS>
GPU_FN void gpu_backward_look(const gpu_backward_tile_call<KEYS> &t, int i) {
    gpu_backward_block<KEYS> *b = t.b;
    const int n = i % gpu_backward_known<KEYS>;
    const gpu_backward_item item =
        gpu_backward_row(t.of, &b->tile.s, b->head, (KEYS ? b->others0 : b->tile.first) + i,
                         &b->tokens[gpu_thread()]);
    const bool sees = item.seen.begin < item.seen.end;
#pragma unroll
    for (int which = 0; which < 2; which++)
        b->rows.places[which][gpu_backward_place<D>(n)] =
            item.at[which] == GPU_BACKWARD_NOWHERE ? (uint32_t)GPU_BACKWARD_NONE
            : gpu_reread(t.fits) & 1 << which      ? (uint32_t)(item.at[which] / 8)
                                                   : 0;
    b->rows.first[n] = sees ? gpu_backward_near(item.seen.begin, b->key) : INT32_MAX;
    b->rows.last[n] = sees ? gpu_backward_near(item.seen.end, b->key) : INT32_MIN;
    b->rows.lse[n] = GPU_LOG2_E * item.lse;
    b->rows.delta[n] = item.delta;
}

/* Limits of the others in the order of gpu_backward_span: from begin to end some count, from common
 * to common_end all. What is seen does not fall from a query to the next. */
enum { GPU_BACKWARD_BEGIN, GPU_BACKWARD_END, GPU_BACKWARD_COMMON, GPU_BACKWARD_COMMON_END };

/* Limit i of rows that see the block's keys. */
GPU_FN int64_t gpu_backward_rows_limit(const gpu_backward_call &of,
                                       const rope_attention_sequence *s, int64_t first, int i) {
    const int64_t last = first + GPU_BACKWARD_OWN - 1, key = i == GPU_BACKWARD_BEGIN    ? first
                                                             : i == GPU_BACKWARD_END    ? last + 1
                                                             : i == GPU_BACKWARD_COMMON ? last
                                                                                        : first + 1;
    return gpu_attention_group(&gpu_reread(of.call)->forward) *
           gpu_first_query(gpu_reread(of.p), s, key,
                           i == GPU_BACKWARD_END || i == GPU_BACKWARD_COMMON_END);
}

/* Limit i of keys that the block's rows see. */
GPU_FN int64_t gpu_backward_keys_limit(const gpu_backward_call &of,
                                       const rope_attention_sequence *s, int64_t first, int i) {
    const int64_t group = gpu_attention_group(&gpu_reread(of.call)->forward),
                  last = first + GPU_BACKWARD_OWN - 1,
                  row = i == GPU_BACKWARD_BEGIN || i == GPU_BACKWARD_COMMON_END ? first
                        : last < s->q_count * group                             ? last
                                                    : s->q_count * group - 1;
    const rope_key_range seen =
        rope_keys_seen(gpu_reread(of.p), s, rope_query_index(s, gpu_divide(row, group).whole));
    return i == GPU_BACKWARD_BEGIN || i == GPU_BACKWARD_COMMON ? seen.begin : seen.end;
}

/* Elements to row n of a sequence, or, KEYS, to a key, from element 0 on. */
template <int KEYS>
GPU_FN int64_t gpu_backward_element(const gpu_backward_call &of, const rope_attention_sequence *s,
                                    int64_t head, int which, int64_t n) {
    const rope_attention_backward_call *c = gpu_reread(of.call);
    const int64_t *stride = gpu_backward_stride(c, KEYS, which);
    if (KEYS)
        return gpu_backward_at(stride, s->k_row, s->k_first + n, head);
    const int64_t group = gpu_attention_group(&c->forward);
    const gpu_quotient row = gpu_divide(n, group);
    return gpu_backward_at(stride, s->q_row, s->q_first + row.whole, head * group + row.left);
}

/* Which of the others may count, and where keys are. A barrier is behind it. */
template <int KEYS> GPU_FN void gpu_backward_range(const gpu_backward_tile_call<KEYS> &t) {
    gpu_backward_block<KEYS> *b = t.b;
    const int i = gpu_thread();
    if (i < 4)
        b->limits[i] = KEYS ? gpu_backward_rows_limit(t.of, &b->tile.s, b->tile.first, i)
                            : gpu_backward_keys_limit(t.of, &b->tile.s, b->tile.first, i);
    __syncthreads();
    if (i == 0) {
        const int64_t begin = b->limits[GPU_BACKWARD_BEGIN], end = b->limits[GPU_BACKWARD_END],
                      first = begin / GPU_BACKWARD_TILE * GPU_BACKWARD_TILE;
        b->others0 = first;
        b->span.count = begin < end ? (int32_t)(end - first) : 0;
        b->span.common = gpu_backward_near(b->limits[GPU_BACKWARD_COMMON], first);
        b->span.common_end = gpu_queries_may_fail(gpu_reread(t.of.p))
                                 ? 0
                                 : gpu_backward_near(b->limits[GPU_BACKWARD_COMMON_END], first);
        b->key = KEYS ? b->tile.first : first;
        b->keys_left = gpu_backward_near(b->tile.s.k_count, b->key);
        b->special = 0;
#pragma unroll
        for (int which = 0; which < 2; which++)
            b->keys[which] = gpu_backward_element<1>(t.of, &b->tile.s, b->head, which, b->key);
    }
    __syncthreads();
}

/* --- copies --- */

/* Copies a thread's chunk, the first to `at`, of each gpu_backward_step-th of N keys, ALL of which
 * are there, or those before `left`, and zeros. */
template <int D, int N, bool ALL>
GPU_FN void gpu_backward_copy_some(const char *from, int64_t step, int left, const char *somewhere,
                                   char *to, int at) {
#pragma unroll
    for (int e = 0; e < N; e += gpu_backward_step<D>) {
        const bool there = ALL || e < left;
        gpu_copy_async(to + gpu_swizzled_further<D>(at, e), there ? from + e * step : somewhere,
                       there);
    }
}

/* Copies N keys from the block's i-th on, zeros behind the last one. */
template <int DTYPE, int D, int N, int KEYS>
GPU_FN void gpu_backward_copy_keys(const gpu_backward_tile_call<KEYS> &t, int which, int i,
                                   char *to) {
    const int row = gpu_thread() / (D / 8), chunk = gpu_thread() % (D / 8),
              left = t.b->keys_left - i, dim = gpu_backward_dim(t.of, which);
    const auto *data = gpu_backward_data<DTYPE>(gpu_reread(t.of.call), 1, which);
    const int64_t step = 2 * gpu_backward_stride(gpu_reread(t.of.call), 1, which)[1];
    const char *from =
        (const char *)(data + t.b->keys[which]) + 16 * chunk + (uint32_t)(i + row) * step;
    const int at = gpu_swizzled<D>(row, chunk);
    if (left >= N && dim == D)
        gpu_backward_copy_some<D, N, true>(from, step, left - row, from, to, at);
    else
        gpu_backward_copy_some<D, N, false>(from, step, 8 * chunk < dim ? left - row : 0,
                                            (const char *)data, to, at);
}

/* Copies rows from the block's i-th on, zeros where heads have fewer elements than D. */
template <int DTYPE, int D, int N, int KEYS>
GPU_FN void gpu_backward_copy_rows(const gpu_backward_tile_call<KEYS> &t, int which, int i,
                                   char *to) {
    enum {
        STEP = gpu_backward_step<D>,
        EACH = GPU_BACKWARD_TILE / STEP,
        SOME = EACH < 4 ? EACH : 4
    };
    typedef typename gpu_word_type<SOME>::type words;
    const int row = gpu_thread() / (D / 8), chunk = gpu_thread() % (D / 8);
    const bool used = 8 * chunk < gpu_backward_dim(t.of, which);
    const char *from = (const char *)gpu_backward_data<DTYPE>(gpu_reread(t.of.call), 0, which) +
                       (used ? 16 * chunk : 0);
    const uint32_t *places =
        t.b->rows.places[which] + gpu_backward_place<D>(i % gpu_backward_known<KEYS> + row);
    const int to_row = gpu_swizzled<D>(row, chunk);
#pragma unroll
    for (int i = 0; i < N / STEP; i += SOME) {
        const int tile = i / EACH * GPU_BACKWARD_TILE, first = i % EACH;
        const words raw = *(const words *)(const void *)(places + tile + first);
        uint32_t at[SOME];
        memcpy(at, &raw, sizeof at);
#pragma unroll
        for (int e = 0; e < SOME; e++)
            gpu_copy_async(to + gpu_swizzled_further<D>(to_row, tile + (first + e) * STEP),
                           from + 16 * (uint64_t)(at[e] != GPU_BACKWARD_NONE ? at[e] : 0),
                           at[e] != GPU_BACKWARD_NONE && used);
    }
}

/* N of what the block has, or of the others, from its i-th on, keys where WANTED; zeros for what is
 * not there. */
template <int DTYPE, int D, int WANTED, int N, int KEYS>
GPU_FN void gpu_backward_fetch(const gpu_backward_tile_call<KEYS> &t, int which, int i, char *to) {
    const gpu_backward_block<KEYS> *b = t.b;
    if (gpu_reread(t.fits) & (1 << (2 * WANTED + which))) {
        if constexpr (WANTED)
            gpu_backward_copy_keys<DTYPE, D, N>(t, which, i, to);
        else
            gpu_backward_copy_rows<DTYPE, D, N>(t, which, i, to);
        return;
    }
    const auto *data = gpu_backward_data<DTYPE>(gpu_reread(t.of.call), WANTED, which);
    const int64_t step = gpu_backward_stride(gpu_reread(t.of.call), WANTED, which)[3],
                  first = (WANTED == KEYS ? b->tile.first : b->others0) + i;
#pragma unroll 1
    for (int e = gpu_thread(); e < N * D; e += GPU_ATTENTION_THREADS) {
        const int n = e / D, place = gpu_backward_place<D>((i + n) % gpu_backward_known<KEYS>);
        const bool there =
            e % D < gpu_backward_dim(t.of, which) &&
            (WANTED ? i + n < b->keys_left : b->rows.places[which][place] != GPU_BACKWARD_NONE);
        const int64_t at =
            gpu_backward_element<WANTED>(t.of, &b->tile.s, b->head, which, first + n);
        *gpu_swizzled_element<D>(to, n, e % D) =
            there ? gpu_global(data)[at + e % D * step] : (uint16_t)0;
    }
}

/* Where the block's own lie in shared memory, and tile n of the others. */
template <int D, int KEYS>
GPU_FN char *gpu_backward_own(const gpu_backward_tile_call<KEYS> &t, int which) {
    return t.memory + which * GPU_BACKWARD_OWN * D * 2;
}

template <int D, int KEYS>
GPU_FN char *gpu_backward_other(const gpu_backward_tile_call<KEYS> &t, int n, int which) {
    return t.memory + 2 * GPU_BACKWARD_OWN * D * 2 +
           (n % GPU_BACKWARD_STAGES * 2 + which) * GPU_BACKWARD_TILE * D * 2;
}

template <int DTYPE, int D, int KEYS>
GPU_FN void gpu_backward_fetch_tile(const gpu_backward_tile_call<KEYS> &t, int n) {
#pragma unroll
    for (int which = 0; which < 2; which++)
        gpu_backward_fetch<DTYPE, D, !KEYS, GPU_BACKWARD_TILE>(t, which, n * GPU_BACKWARD_TILE,
                                                               gpu_backward_other<D>(t, n, which));
}

/* --- a tile --- */

typedef float gpu_backward_scores[gpu_row_blocks<GPU_BACKWARD_SHAPE>]
                                 [gpu_key_parts<GPU_BACKWARD_SHAPE>][4];

/* Whether row `row` of the block and the k-th one of tile n see each other. */
template <int KEYS>
GPU_FN bool gpu_backward_sees(const gpu_backward_tile_call<KEYS> &t, int n, int row, int k) {
    const int i = KEYS ? (n * GPU_BACKWARD_TILE + k) % gpu_backward_known<KEYS> : row,
              key = KEYS ? row : n * GPU_BACKWARD_TILE + k;
    return key >= t.b->rows.first[i] && key < t.b->rows.last[i];
}

/* Products of a warp's own with tile n: scores, and, but for dv alone, dp. */
template <int DTYPE, int D, int KEYS>
GPU_FN void gpu_backward_products(const gpu_backward_tile_call<KEYS> &t, int n,
                                  gpu_backward_scores (&x)[2]) {
    enum { SHAPE = GPU_BACKWARD_SHAPE, BLOCKS = gpu_row_blocks<SHAPE> };
    const char *own = gpu_backward_own<D>(t, 0), *other = gpu_backward_other<D>(t, n, 0);
    const int lane = gpu_lane(),
              left = gpu_swizzled<D>(gpu_warp_row<SHAPE>() + lane % 16, lane / 16),
              right = gpu_swizzled<D>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
    for (int which = 0; which < 2; which++)
#pragma unroll
        for (int m = 0; m < BLOCKS; m++)
#pragma unroll
            for (int i = 0; i < gpu_key_parts<SHAPE>; i++)
                x[which][m][i][0] = x[which][m][i][1] = x[which][m][i][2] = x[which][m][i][3] = 0;
#pragma unroll
    for (int k = 0; k < D / 16; k++)
#pragma unroll
        for (int which = 0; which < 2; which++) {
            if (gpu_backward_parts<D, KEYS> && which && t.b->gradient)
                continue;
            uint32_t a[BLOCKS][4];
#pragma unroll
            for (int m = 0; m < BLOCKS; m++)
                gpu_load_matrices(a[m], own,
                                  gpu_moved<D>(left, m, k) + which * GPU_BACKWARD_OWN * D * 2);
#pragma unroll
            for (int i = 0; i < gpu_warp_keys<SHAPE> / 16; i++) {
                uint32_t b[4];
                gpu_load_matrices(b, other,
                                  gpu_moved<D>(right, i, k) + which * GPU_BACKWARD_TILE * D * 2);
#pragma unroll
                for (int m = 0; m < BLOCKS; m++) {
                    gpu_mma<DTYPE>(x[which][m][2 * i], a[m], b);
                    gpu_mma<DTYPE>(x[which][m][2 * i + 1], a[m], b + 2);
                }
            }
        }
}

/* With a cap: from scores to tanh, and what dp is multiplied by. */
GPU_FN void gpu_backward_cap(float to_cap, float delta, float *s, float *dp) {
    const float tanh = gpu_tanh(*s * to_cap);
    *s = tanh;
    *dp = (*dp - delta) * fmaf(-tanh, tanh, 1);
}

/* Numbers of the rows of two scores side by side, h of a part. */
template <int KEYS>
GPU_FN void gpu_backward_two(const float *rows, int n, int m, int i, int h, float two[2]) {
    enum { SHAPE = GPU_BACKWARD_SHAPE };
    static_assert(GPU_LANE_ELEMENTS == 2, "a row's keys lie in twos");
    const int lane = gpu_lane();
    if (KEYS)
        gpu_read_numbers<2>(rows + n * GPU_BACKWARD_TILE % gpu_backward_known<KEYS> +
                                gpu_first_key_of(lane) + gpu_key_of(i, 0),
                            two);
    else
        two[0] = two[1] = rows[gpu_warp_row<SHAPE>() + 16 * m + gpu_row_of(lane, h)];
}

/* Takes delta from dp, which a cap multiplies; with one, from scores to tanh. */
template <int KEYS, bool CAP>
GPU_FN void gpu_backward_take_delta(const gpu_backward_tile_call<KEYS> &t, int n, float to_cap,
                                    gpu_backward_scores &s, gpu_backward_scores &dp) {
    enum { SHAPE = GPU_BACKWARD_SHAPE };
#pragma unroll
    for (int m = 0; m < gpu_row_blocks<SHAPE>; m++)
#pragma unroll
        for (int i = 0; i < gpu_key_parts<SHAPE>; i++)
#pragma unroll
            for (int e = 0; e < 4; e += 2) {
                float delta[2];
                gpu_backward_two<KEYS>(t.b->rows.delta, n, m, i, e / 2, delta);
#pragma unroll
                for (int c = 0; c < 2; c++)
                    if (CAP)
                        gpu_backward_cap(to_cap, delta[c], &s[m][i][e + c], &dp[m][i][e + c]);
                    else
                        dp[m][i][e + c] -= delta[c];
            }
}

/* From products to weights and gradients of scores, 0 where nothing is seen. */
template <int KEYS>
GPU_FN void gpu_backward_tile_weigh(const gpu_backward_tile_call<KEYS> &t, int n, bool whole,
                                    gpu_backward_scores &s, gpu_backward_scores &dp) {
    enum { SHAPE = GPU_BACKWARD_SHAPE };
    const float scale = gpu_reread(t.of.p)->scale, cap = gpu_reread(t.of.p)->soft_cap,
                unit = GPU_LOG2_E * (cap > 0 ? cap : scale);
    if (cap > 0)
        gpu_backward_take_delta<KEYS, true>(t, n, scale / cap, s, dp);
    else
        gpu_backward_take_delta<KEYS, false>(t, n, 0, s, dp);
#pragma unroll
    for (int m = 0; m < gpu_row_blocks<SHAPE>; m++)
#pragma unroll
        for (int i = 0; i < gpu_key_parts<SHAPE>; i++)
#pragma unroll
            for (int e = 0; e < 4; e += 2) {
                float lse[2];
                gpu_backward_two<KEYS>(t.b->rows.lse, n, m, i, e / 2, lse);
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    s[m][i][e + c] = gpu_exp2(fmaf(s[m][i][e + c], unit, -lse[c]));
                    dp[m][i][e + c] *= s[m][i][e + c];
                }
            }
    if (whole)
        return;
    const int lane = gpu_lane(), row0 = gpu_warp_row<SHAPE>();
#pragma unroll
    for (int m = 0; m < gpu_row_blocks<SHAPE>; m++)
#pragma unroll
        for (int i = 0; i < gpu_key_parts<SHAPE>; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (!gpu_backward_sees<KEYS>(
                        t, n, row0 + 16 * m + gpu_row_of(lane, e / GPU_LANE_ELEMENTS),
                        gpu_first_key_of(lane) + gpu_key_of(i, e)))
                    s[m][i][e] = dp[m][i][e] = 0;
}

/* --- f16, in which a gradient of a score may be too large --- */

/* Powers of 2 by which a thread's rows have their gradients of scores, and so the sums of them. */
typedef float gpu_backward_powers[gpu_row_blocks<GPU_BACKWARD_SHAPE>][GPU_LANE_ROWS];

GPU_FN void gpu_backward_no_powers(gpu_backward_powers &powers) {
#pragma unroll
    for (int m = 0; m < gpu_row_blocks<GPU_BACKWARD_SHAPE>; m++)
#pragma unroll
        for (int h = 0; h < GPU_LANE_ROWS; h++)
            powers[m][h] = 1;
}

/* A row's power, after one whose largest gradient is `most`. */
GPU_FN float gpu_backward_lower(float most) {
    const bool fits = most <= 0x1p15f || most > 0x1.fffffep+127f;
    return fits ? 1 : rope_bits_float((254 + 14 - (rope_float_bits(most) >> 23)) << 23);
}

template <int D>
GPU_FN void gpu_backward_fit(gpu_backward_scores &ds, gpu_backward_powers &powers,
                             gpu_tile_rows<D, GPU_BACKWARD_SHAPE> &sums) {
    enum { SHAPE = GPU_BACKWARD_SHAPE };
#pragma unroll
    for (int m = 0; m < gpu_row_blocks<SHAPE>; m++)
#pragma unroll
        for (int h = 0; h < GPU_LANE_ROWS; h++) {
            float most = 0;
#pragma unroll
            for (int i = 0; i < gpu_key_parts<SHAPE>; i++)
#pragma unroll
                for (int e = h * GPU_LANE_ELEMENTS; e < (h + 1) * GPU_LANE_ELEMENTS; e++) {
                    ds[m][i][e] *= powers[m][h];
                    most = fmaxf(most, fabsf(ds[m][i][e]));
                }
            if (!gpu_any(most > 0x1p15f))
                continue;
#pragma unroll
            for (int step = 1; step < GPU_ROW_LANES; step *= 2)
                most = fmaxf(most, gpu_shuffle_xor(most, step * GPU_ROW_STEP));
            const float power = gpu_backward_lower(most);
            powers[m][h] *= power;
#pragma unroll
            for (int i = 0; i < gpu_key_parts<SHAPE>; i++)
#pragma unroll
                for (int e = h * GPU_LANE_ELEMENTS; e < (h + 1) * GPU_LANE_ELEMENTS; e++)
                    ds[m][i][e] *= power;
#pragma unroll
            for (int n = 0; n < gpu_out_parts<D>; n++)
#pragma unroll
                for (int e = h * GPU_LANE_ELEMENTS; e < (h + 1) * GPU_LANE_ELEMENTS; e++)
                    sums.out[m][n][e] *= power;
        }
}

/* --- what is not finite, which what does not see it may not meet --- */

template <int DTYPE> GPU_FN bool gpu_not_finite(uint32_t x) {
    const uint32_t infinity = DTYPE == ROPE_BF16 ? 0x7f80u : 0x7c00u;
    return (x & infinity) == infinity;
}

/* Whether both tensors of tile n are finite; a barrier is behind it. CLEAN: makes them so. */
template <int DTYPE, int D, bool CLEAN, int KEYS>
GPU_FN bool gpu_backward_finite(const gpu_backward_tile_call<KEYS> &t, int n) {
    bool found = false;
#pragma unroll 1
    for (int e = gpu_thread(); e < 2 * GPU_BACKWARD_TILE * D / 8; e += GPU_ATTENTION_THREADS) {
        char *at = gpu_backward_other<D>(t, n, 0) + 16 * e;
        gpu_vector<DTYPE, 8> x = gpu_load<DTYPE, 8>(at);
        bool none = false;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint32_t half = 0xffffu << i % 2 * 16;
            if (!gpu_not_finite<DTYPE>(x.word[i / 2] >> i % 2 * 16))
                continue;
            none = true;
            x.word[i / 2] &= ~half;
        }
        if (CLEAN && none)
            gpu_store<DTYPE, 8>(at, x);
        found |= none;
    }
    if (found)
        t.b->special = n + 1;
    __syncthreads();
    return t.b->special != n + 1;
}

/* Weights of a warp's rows to where all its lanes find them. */
template <int DTYPE, int KEYS>
GPU_FN void gpu_backward_share(const gpu_backward_tile_call<KEYS> &t,
                               const gpu_backward_scores &weights) {
    enum { SHAPE = GPU_BACKWARD_SHAPE };
    const int lane = gpu_lane(), row0 = gpu_warp_row<SHAPE>();
#pragma unroll
    for (int m = 0; m < gpu_row_blocks<SHAPE>; m++)
#pragma unroll
        for (int p = 0; p < gpu_key_parts<SHAPE>; p++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                t.b->weights[row0 + 16 * m + gpu_row_of(lane, e / GPU_LANE_ELEMENTS)]
                            [gpu_first_key_of(lane) + gpu_key_of(p, e)] =
                    (uint16_t)gpu_narrow<DTYPE>(weights[m][p][e]);
    gpu_warp_barrier();
}

/* Adds what is not finite, by the weights of rows that see it, to their sums. */
template <int DTYPE, int D, int KEYS>
GPU_FN void gpu_backward_add_special(const gpu_backward_tile_call<KEYS> &t, int n, int which,
                                     const gpu_backward_scores &weights,
                                     gpu_tile_rows<D, GPU_BACKWARD_SHAPE> &sums) {
    enum { SHAPE = GPU_BACKWARD_SHAPE };
    const int lane = gpu_lane();
    char *tile = gpu_backward_other<D>(t, n, which);
    gpu_backward_share<DTYPE, KEYS>(t, weights);
#pragma unroll 1
    for (int k = 0; k < GPU_BACKWARD_TILE; k++)
#pragma unroll
        for (int m = 0; m < gpu_row_blocks<SHAPE>; m++)
#pragma unroll
            for (int h = 0; h < GPU_LANE_ROWS; h++) {
                const int row = gpu_warp_row<SHAPE>() + 16 * m + gpu_row_of(lane, h);
                const bool sees = gpu_backward_sees<KEYS>(t, n, row, k);
                const float weight = gpu_widen<DTYPE>(t.b->weights[row][k]);
#pragma unroll
                for (int r = 0; r < gpu_runs<D>; r++)
#pragma unroll
                    for (int i = 0; i < gpu_run<D>; i++) {
                        const uint16_t x =
                            *gpu_swizzled_element<D>(tile, k, gpu_run_first<D>(lane, r) + i);
                        float *sum = sums.out[m][gpu_run_part(r, i)] + gpu_run_place(r, h, i);
                        *sum = sees && gpu_not_finite<DTYPE>(x)
                                   ? fmaf(weight, gpu_split<DTYPE>(x).x, *sum)
                                   : *sum;
                    }
            }
    gpu_warp_barrier();
}

/* Takes what is not finite out of a tile that not all see. */
template <int DTYPE, int D, int KEYS>
GPU_FN void gpu_backward_part(const gpu_backward_tile_call<KEYS> &t, int n,
                              const gpu_backward_scores &p, const gpu_backward_scores &ds,
                              gpu_backward_tile_sums<D, KEYS> &sums) {
    if (gpu_backward_finite<DTYPE, D, false>(t, n))
        return;
    gpu_backward_add_special<DTYPE, D, KEYS>(t, n, gpu_backward_parts<D, KEYS> ? t.b->gradient : 0,
                                             ds, sums[0]);
    if constexpr (gpu_backward_gradients<D, KEYS> == 2)
        gpu_backward_add_special<DTYPE, D, KEYS>(t, n, 1, p, sums[1]);
    __syncthreads();
    (void)gpu_backward_finite<DTYPE, D, true>(t, n);
}

/* Adds tile n of the others by their weights. */
template <int DTYPE, int D, int KEYS>
GPU_FN void gpu_backward_add_tile(const gpu_backward_tile_call<KEYS> &t, int n,
                                  const gpu_tile_weights<GPU_BACKWARD_SHAPE> *w,
                                  gpu_backward_tile_sums<D, KEYS> &sums) {
    enum { SHAPE = GPU_BACKWARD_SHAPE };
    const char *other =
        gpu_backward_other<D>(t, n, gpu_backward_parts<D, KEYS> ? t.b->gradient : 0);
    const int at = gpu_operand_rows<D>(gpu_lane());
#pragma unroll
    for (int i = 0; i < D / 16; i++)
#pragma unroll
        for (int k = 0; k < gpu_warp_keys<SHAPE> / 16; k++)
#pragma unroll
            for (int which = 0; which < gpu_backward_gradients<D, KEYS>; which++) {
                uint32_t b[4];
                gpu_load_transposed(b, other,
                                    gpu_moved<D>(at, k, i) + which * GPU_BACKWARD_TILE * D * 2);
#pragma unroll
                for (int m = 0; m < gpu_row_blocks<SHAPE>; m++) {
                    gpu_mma<DTYPE>(sums[which].out[m][2 * i], w[which].a[k][m], b);
                    gpu_mma<DTYPE>(sums[which].out[m][2 * i + 1], w[which].a[k][m], b + 2);
                }
            }
}

template <int DTYPE, int D, int KEYS>
GPU_FN void gpu_backward_tile_add(const gpu_backward_tile_call<KEYS> &t, int n, bool whole,
                                  gpu_backward_powers &powers,
                                  gpu_backward_tile_sums<D, KEYS> &sums) {
    enum { SHAPE = GPU_BACKWARD_SHAPE, COUNT = gpu_backward_gradients<D, KEYS> };
    const bool dv = gpu_backward_parts<D, KEYS> && t.b->gradient; /* alone */
    gpu_backward_scores x[2]; /* scores, then weights; dp, then gradients of scores */
    gpu_backward_products<DTYPE, D, KEYS>(t, n, x);
    gpu_backward_tile_weigh<KEYS>(t, n, whole, x[0], x[1]);
    if constexpr (DTYPE == ROPE_F16)
        if (!dv)
            gpu_backward_fit<D>(x[1], powers, sums[0]);
    if (dv)
        memcpy(x[1], x[0], sizeof x[1]);
    if (!whole)
        gpu_backward_part<DTYPE, D, KEYS>(t, n, x[0], x[1], sums);
    gpu_tile_weights<SHAPE> w[COUNT];
    if constexpr (COUNT == 2)
        gpu_tile_round<DTYPE, SHAPE>(x[0], w[1]);
    gpu_tile_round<DTYPE, SHAPE>(x[1], w[0]);
    gpu_backward_add_tile<DTYPE, D, KEYS>(t, n, w, sums);
}

/* --- a block --- */

/* OWN: both tensors of what the block has; else the first tile of the others. */
template <int DTYPE, int D, int KEYS, bool OWN>
GPU_FN void gpu_backward_fetch_first(const gpu_backward_tile_call<KEYS> &t) {
#pragma unroll
    for (int which = 0; which < 2 && OWN; which++)
        gpu_backward_fetch<DTYPE, D, KEYS, GPU_BACKWARD_OWN>(t, which, 0,
                                                             gpu_backward_own<D>(t, which));
    if (!OWN && GPU_TILE_AHEAD)
        gpu_backward_fetch_tile<DTYPE, D, KEYS>(t, 0);
}

/* Begins the copies of the block's own elements, and of the first tiles of the others. */
template <int DTYPE, int D, int KEYS>
GPU_FN void gpu_backward_start(const gpu_backward_tile_call<KEYS> &t, int32_t part) {
    enum { PARTS = 1 + gpu_backward_parts<D, KEYS> };
    gpu_backward_block<KEYS> *b = t.b;
    const int thread = gpu_thread();
    if (thread == 0) {
        b->part = part;
        b->head = part / PARTS;
        b->gradient = part % PARTS;
    }
    gpu_backward_range<KEYS>(t);
    gpu_backward_fetch_first<DTYPE, D, KEYS, KEYS>(t); /* keys, while rows are looked for */
    if (thread < gpu_backward_known<KEYS>)
        gpu_backward_look<D, KEYS>(t, thread);
    __syncthreads();
    gpu_backward_fetch_first<DTYPE, D, KEYS, !KEYS>(t);
    gpu_copies_mark();
}

/* All of the others. */
template <int DTYPE, int D, int KEYS>
GPU_FN void gpu_backward_walk(const gpu_backward_tile_call<KEYS> &t, gpu_backward_powers &powers,
                              gpu_backward_tile_sums<D, KEYS> &sums) {
    enum { TILE = GPU_BACKWARD_TILE, LOOK = GPU_ATTENTION_THREADS };
#pragma unroll 1
    for (int n = 0; n * TILE < t.b->span.count; n++) {
        const gpu_backward_span span = t.b->span; /* registers do not hold it */
        if (!GPU_TILE_AHEAD) {
            __syncthreads();
            gpu_backward_fetch_tile<DTYPE, D, KEYS>(t, n);
        }
        gpu_copies_wait<0>();
        __syncthreads();
        if (GPU_TILE_AHEAD && (n + 1) * TILE < span.count)
            gpu_backward_fetch_tile<DTYPE, D, KEYS>(t, n + 1);
        gpu_copies_mark();
        if (KEYS && n * TILE % LOOK == 0 && n * TILE + LOOK < span.count)
            gpu_backward_look<D, KEYS>(t, n * TILE + LOOK + gpu_thread());
        gpu_backward_tile_add<DTYPE, D, KEYS>(
            t, n, n * TILE >= span.common && (n + 1) * TILE <= span.common_end, powers, sums);
    }
    gpu_copies_wait<0>();
    __syncthreads();
}

/* Sums of the block's own, by scale and without their powers, rounded, where they wait to be
 * written. */
template <int DTYPE, int D>
GPU_FN void gpu_backward_tile_stage(const gpu_tile_rows<D, GPU_BACKWARD_SHAPE> &sums, float scale,
                                    const gpu_backward_powers &powers, float *x) {
    enum { SHAPE = GPU_BACKWARD_SHAPE };
    const int lane = gpu_lane();
#pragma unroll
    for (int m = 0; m < gpu_row_blocks<SHAPE>; m++)
#pragma unroll
        for (int h = 0; h < GPU_LANE_ROWS; h++) {
            const float factor = scale / powers[m][h];
#pragma unroll
            for (int r = 0; r < gpu_runs<D>; r++)
#pragma unroll
                for (int i = 0; i < gpu_run<D>; i += 2) {
                    const float2 two = gpu_split<DTYPE>(gpu_join<DTYPE>(
                        fmaf(gpu_run_element<D, SHAPE>(sums, m, r, h, i), factor, 0.0f),
                        fmaf(gpu_run_element<D, SHAPE>(sums, m, r, h, i + 1), factor, 0.0f)));
                    const float y[2] = {two.x, two.y};
                    gpu_write_numbers<2>(
                        x +
                            (gpu_warp_row<SHAPE>() + 16 * m + gpu_row_of(lane, h)) *
                                GPU_BACKWARD_STRIDE(D) +
                            gpu_run_first<D>(lane, r) + i,
                        y);
                }
        }
    __syncthreads();
}

template <int DTYPE, int D, int KEYS>
GPU_FN void gpu_backward_finish(const gpu_backward_tile_call<KEYS> &t, gpu_backward_powers &powers,
                                const gpu_backward_tile_sums<D, KEYS> &sums) {
    gpu_backward_block<KEYS> *b = t.b;
    enum { STRIDE = GPU_BACKWARD_STRIDE(D), OWN = GPU_BACKWARD_OWN };
    const int first = gpu_backward_parts<D, KEYS> ? b->gradient : 0;
    const rope_attention_problem *p = gpu_reread(t.of.p);
    const int n = gpu_thread();
    float *x = (float *)(void *)t.memory;
    if (n < OWN) {
        int64_t to[2] = {0, 0};
        if (KEYS)
            gpu_backward_key_end(t.of, &b->tile.s, b->head, b->tile.first + n, &b->tokens[n], to);
        else
            to[0] =
                gpu_backward_row_end(t.of, &b->tile.s, b->head, b->tile.first + n, &b->tokens[n]);
        b->to[0][n] = to[0];
        b->to[1][n] = to[1];
    }
    gpu_backward_tile_stage<DTYPE, D>(sums[0], first ? 1 : p->scale, powers, x);
    gpu_backward_write<DTYPE, KEYS>(t.of, &b->tile, first, b->tokens, b->to[first], t.fits, OWN,
                                    STRIDE, D, x);
    if constexpr (gpu_backward_gradients<D, KEYS> == 2) {
        gpu_backward_no_powers(powers);
        gpu_backward_tile_stage<DTYPE, D>(sums[1], 1, powers, x);
        gpu_backward_write<DTYPE, KEYS>(t.of, &b->tile, 1, b->tokens, b->to[1], t.fits, OWN, STRIDE,
                                        D, x);
    }
}

/* Blocks of a multiprocessor for which a kernel is given registers. */
template <int D, int KEYS>
constexpr int gpu_backward_blocks = (1 + KEYS) * D > 128 ? GPU_TILE_BLOCKS : GPU_TILE_BLOCKS + 1;

template <int DTYPE, int D, int KEYS>
__global__ void __launch_bounds__(GPU_ATTENTION_THREADS, gpu_backward_blocks<D, KEYS>)
    gpu_backward_tiles(GPU_PARAMETER rope_attention_problem problem,
                       GPU_PARAMETER rope_attention_backward_call given, const int32_t *failed,
                       float *delta, GPU_PARAMETER rope_call tokens, int32_t fits) {
    if constexpr (gpu_has_tiles<DTYPE, D>) {
        const rope_attention_problem &p = *gpu_parameter<rope_attention_problem>(problem);
        const rope_attention_backward_call &c =
            *gpu_parameter<rope_attention_backward_call, rope_attention_problem>(given);
        const rope_call &keys =
            *gpu_parameter<rope_call, rope_attention_problem, rope_attention_backward_call,
                           const int32_t *, float *>(tokens);
        extern __shared__ uint4 memory[];
        __shared__ gpu_backward_block<KEYS> b;
        gpu_wait_for_last();
        gpu_let_next_start();
        const int64_t each = KEYS ? 1 : gpu_attention_group(&c.forward);
        for (int64_t n = blockIdx.x;
             gpu_attention_find<KEYS>(gpu_reread(&p), &gpu_reread(&c)->forward, failed, n, each,
                                      GPU_BACKWARD_OWN, &b.tile);
             n = b.next) {
            if (threadIdx.x == 0)
                b.next = n + gridDim.x;
            __syncthreads();
            if (!b.tile.valid ||
                b.tile.first >= (KEYS ? b.tile.s.k_count : b.tile.s.q_count * each))
                continue;
            const gpu_backward_tile_call<KEYS> t = {
                {gpu_reread(&p), gpu_reread(&c), gpu_reread(&keys), failed, delta},
                &b,
                (char *)memory,
                fits};
            enum { PARTS = 1 + gpu_backward_parts<D, KEYS> };
            for (int32_t part = (int32_t)blockIdx.y; part < gpu_reread(&c)->forward.k.heads * PARTS;
                 part = b.part + (int32_t)gridDim.y) {
                __syncthreads();
                gpu_backward_tile_sums<D, KEYS> sums = {};
                gpu_backward_start<DTYPE, D, KEYS>(t, part);
                gpu_backward_powers powers;
                gpu_backward_no_powers(powers);
                gpu_backward_walk<DTYPE, D, KEYS>(t, powers, sums);
                gpu_backward_finish<DTYPE, D, KEYS>(t, powers, sums);
            }
        }
    }
}

#endif
#endif
