/*
 * 16-bit heads of D elements by matrix instructions, in five products: a block has
 * GPU_FUSED_KEYS keys and goes over tiles of the rows that see them. It sums dk and dv in
 * registers, and adds its part of dq to fp32 sums in memory. Blocks add to the sums of a tile of
 * rows by turns, the one of the last keys first, so that the order of a sum is that of keys. A
 * block waits only for blocks of later keys, which have smaller tickets: whatever number of blocks
 * runs, none waits for one that does not. Tiles begin at multiples of their size, and what does not
 * see is masked, so the bits of a gradient do not depend on what has nothing to do with it.
 */
#ifndef ROPEKIT_GPU_ATTENTION_BACKWARD_FUSED_H
#define ROPEKIT_GPU_ATTENTION_BACKWARD_FUSED_H

#include "backends/gpu/attention/products.h"
#include "backends/gpu/attention_backward/tile.h"

#ifdef GPU_QUERIES_LEFT
enum {
    GPU_FUSED_WARPS = GPU_FUSED_THREADS / GPU_TILE_LANES,
    GPU_FUSED_LOOK = 128,                /* rows that are looked up at a time, */
    GPU_FUSED_KNOWN = 4 * GPU_FUSED_LOOK /* and of which a block knows */
};

/* Warps' shares of a tile: 32 rows and KEYS keys of scores, 64 keys and COLUMNS elements of dv or
 * of dk, 32 rows and 32 elements of dq. */
template <int D> struct gpu_fused_shape {
    enum {
        ROWS = GPU_FUSED_ROWS(D),
        KEY_WARPS = 32 * GPU_FUSED_WARPS / ROWS,
        KEYS = GPU_FUSED_KEYS / KEY_WARPS,
        COLUMNS = D / 2,
        ROW_BYTES = ROWS * D * 2, /* of one tensor of a tile */
        KEY_BYTES = GPU_FUSED_KEYS * D * 2,
        WEIGHT_BYTES = ROWS * GPU_FUSED_KEYS * 2,
        STEP = GPU_FUSED_THREADS * 8 / D, /* rows that threads copy at a time */
        EACH = ROWS / STEP
    };
    static_assert((int)EACH == 4 && (int)GPU_FUSED_WARPS == 8, "a vector of places");
};

/* Rows, counted through, as gpu_backward_rows has them; tiles' turns. */
struct gpu_fused_rows {
    alignas(16) uint32_t places[2][GPU_FUSED_KNOWN];
    float lse[GPU_FUSED_KNOWN], delta[GPU_FUSED_KNOWN];
    int32_t first[GPU_FUSED_KNOWN], last[GPU_FUSED_KNOWN];
    int32_t turn[GPU_FUSED_KNOWN / 64];
};

/* Rows that may see the block's keys are 0..count - 1 from rows0 on, of which
 * common..common_end - 1 see all of them. */
struct gpu_fused_span {
    int32_t count, common, common_end;
};

/* Shared memory of a block, beside tiles. */
struct gpu_fused_block {
    gpu_attention_tile tile;
    gpu_fused_rows rows;
    rope_token tokens[GPU_FUSED_KEYS];
    int64_t to[2][GPU_FUSED_KEYS];
    int64_t limits[4];
    int64_t rows0; /* the first row */
    float *sums;   /* of the tile that it begins, or NULL */
    int32_t *turns;
    int64_t keys[2]; /* elements to the block's first key of k and v */
    int64_t head;
    gpu_fused_span span;
    int32_t special, large; /* the last tile, from 1 on, that has what is not finite, what f16 is
                               too small for */
    int32_t ticket;
    int64_t next; /* what comes next */
    /* tiles that a thread has added, and bands of its next one: registers do not hold them */
    int32_t count[GPU_FUSED_THREADS], band[GPU_FUSED_THREADS];
};
static_assert((int)GPU_FUSED_KEYS >= (int)GPU_FUSED_LOOK, "a token of each row");
static_assert(sizeof(gpu_fused_block) <= (size_t)GPU_FUSED_BESIDE, "what a query asks for");

struct gpu_fused_call {
    gpu_backward_call of;
    gpu_fused_block *b;
    char *memory; /* dynamic shared memory */
    gpu_backward_dq_sums sums;
    int32_t fits;
};

/* The first tile of sums of a sequence, among those of a head. */
GPU_FN int64_t gpu_fused_sums_of(const rope_attention_call *call, const rope_attention_sequence *s,
                                 int64_t rows) {
    const int64_t group = gpu_attention_group(call);
    return call->rope.position.cu_seqlens
               ? gpu_divide(s->q_first * group, rows).whole + s->index
               : s->index * gpu_divide(call->rope.tokens * group + rows - 1, rows).whole;
}

/* A thread of the block, its warp, and which of that it is. */
GPU_FN int gpu_fused_thread(void) {
    return gpu_backward_thread<GPU_FUSED_THREADS>();
}

GPU_FN int gpu_fused_warp(void) {
    return gpu_fused_thread() / GPU_TILE_LANES;
}

GPU_FN int gpu_fused_lane(void) {
    return gpu_fused_thread() % GPU_TILE_LANES;
}

#if GPU_HAS_FUSED
/* --- what is there --- */

/* Places of a thread's rows of a tile lie side by side. */
template <int D> GPU_FN int gpu_fused_place(int n) {
    enum { STEP = gpu_fused_shape<D>::STEP, EACH = gpu_fused_shape<D>::EACH };
    const int row = n % gpu_fused_shape<D>::ROWS;
    return n - row + row % STEP * EACH + row / STEP;
}

/* How many blocks add to the sums of the tile that row i ends ahead of this one. */
GPU_FN int32_t gpu_fused_turn(const gpu_fused_call &t, int i) {
    const rope_attention_sequence *s = &t.b->tile.s;
    const int64_t group = gpu_attention_group(&gpu_reread(t.of.call)->forward),
                  end = s->q_count * group - 1, row = t.b->rows0 + i < end ? t.b->rows0 + i : end;
    const rope_key_range seen =
        rope_keys_seen(gpu_reread(t.of.p), s, rope_query_index(s, gpu_divide(row, group).whole));
    return (int32_t)((seen.end - 1) / GPU_FUSED_KEYS - t.b->tile.first / GPU_FUSED_KEYS);
}

/* Looks for row i. */
template <int D> GPU_FN void gpu_fused_look(const gpu_fused_call &t, int i) {
    enum { ROWS = gpu_fused_shape<D>::ROWS };
    gpu_fused_block *b = t.b;
    const int n = i & (GPU_FUSED_KNOWN - 1);
    const gpu_backward_item item =
        gpu_backward_row(t.of, &b->tile.s, b->head, b->rows0 + i, &b->tokens[i % GPU_FUSED_LOOK]);
    const bool sees = item.seen.begin < item.seen.end;
#pragma unroll
    for (int which = 0; which < 2; which++)
        b->rows.places[which][gpu_fused_place<D>(n)] =
            item.at[which] == GPU_BACKWARD_NOWHERE ? (uint32_t)GPU_BACKWARD_NONE
            : gpu_reread(t.fits) & 1 << which      ? (uint32_t)(item.at[which] / 8)
                                                   : 0;
    b->rows.first[n] = sees ? gpu_backward_near(item.seen.begin, b->tile.first) : INT32_MAX;
    b->rows.last[n] = sees ? gpu_backward_near(item.seen.end, b->tile.first) : 0;
    b->rows.lse[n] = GPU_LOG2_E * item.lse;
    b->rows.delta[n] = item.delta;
    if (i % ROWS == ROWS - 1)
        b->rows.turn[n / ROWS] = gpu_fused_turn(t, i);
}

/* Limit i of rows that see the block's keys, as gpu_backward_rows_limit(). */
GPU_FN int64_t gpu_fused_limit(const gpu_fused_call &t, int i) {
    const int64_t first = t.b->tile.first, last = first + GPU_FUSED_KEYS - 1,
                  key = i == GPU_BACKWARD_BEGIN    ? first
                        : i == GPU_BACKWARD_END    ? last + 1
                        : i == GPU_BACKWARD_COMMON ? last
                                                   : first + 1;
    return gpu_attention_group(&gpu_reread(t.of.call)->forward) *
           gpu_first_query(gpu_reread(t.of.p), &t.b->tile.s, key,
                           i == GPU_BACKWARD_END || i == GPU_BACKWARD_COMMON_END);
}

/* Which rows may count, and where keys are. A barrier is behind it. A tile of rows has as many
 * turns as there are tiles of keys from its first row's first key to its last row's last one: those
 * whose blocks go over it, also where none of their keys is seen. */
template <int D> GPU_FN void gpu_fused_range(const gpu_fused_call &t) {
    enum { ROWS = gpu_fused_shape<D>::ROWS };
    gpu_fused_block *b = t.b;
    const int i = gpu_fused_thread();
    if (i < 4)
        b->limits[i] = gpu_fused_limit(t, i);
    __syncthreads();
    if (i == 0) {
        const rope_attention_call *call = &gpu_reread(t.of.call)->forward;
        const int64_t begin = b->limits[GPU_BACKWARD_BEGIN] / ROWS,
                      end = (b->limits[GPU_BACKWARD_END] + ROWS - 1) / ROWS, first = begin * ROWS;
        const bool some = begin < end && b->limits[GPU_BACKWARD_BEGIN] <
                                             b->tile.s.q_count * gpu_attention_group(call);
        b->rows0 = first;
        const int64_t sums =
            b->head * t.sums.tiles + gpu_fused_sums_of(call, &b->tile.s, ROWS) + begin;
        b->sums = t.sums.dq ? t.sums.dq + sums * GPU_FUSED_SUMS : nullptr;
        b->turns = t.sums.turns + sums;
        b->span.count = some ? (int32_t)(end * ROWS - first) : 0;
        b->span.common = gpu_backward_near(b->limits[GPU_BACKWARD_COMMON], first);
        b->span.common_end = gpu_queries_may_fail(gpu_reread(t.of.p))
                                 ? 0
                                 : gpu_backward_near(b->limits[GPU_BACKWARD_COMMON_END], first);
        b->special = b->large = 0;
#pragma unroll
        for (int which = 0; which < 2; which++)
            b->keys[which] =
                gpu_backward_element<1>(t.of, &b->tile.s, b->head, which, b->tile.first);
    }
    __syncthreads();
}

/* --- copies --- */

/* Keys of k or v, zeros behind the last one. */
template <int DTYPE, int D>
GPU_FN void gpu_fused_fetch_keys(const gpu_fused_call &t, int which, char *to) {
    enum { N = GPU_FUSED_KEYS, STEP = gpu_fused_shape<D>::STEP };
    const int64_t *stride = gpu_backward_stride(gpu_reread(t.of.call), 1, which);
    const auto *data = gpu_backward_data<DTYPE>(gpu_reread(t.of.call), 1, which);
    const int left = (int)gpu_backward_near(t.b->tile.s.k_count, t.b->tile.first);
    if (gpu_reread(t.fits) & (GPU_BACKWARD_K << which)) {
        const int row = gpu_fused_thread() / (D / 8), chunk = gpu_fused_thread() % (D / 8);
        const char *from = (const char *)(data + t.b->keys[which] + row * stride[1]) + 16 * chunk;
        to += gpu_swizzled<D>(row, chunk);
#pragma unroll
        for (int e = 0; e < N; e += STEP)
            gpu_copy_async(to + e * D * 2,
                           row + e < left ? from + 2 * e * stride[1] : (const char *)data,
                           row + e < left);
        return;
    }
#pragma unroll 1
    for (int e = gpu_fused_thread(); e < N * D; e += GPU_FUSED_THREADS)
        *gpu_swizzled_element<D>(to, e / D, e % D) =
            e / D < left
                ? gpu_global(data)[t.b->keys[which] + e / D * stride[1] + e % D * stride[3]]
                : (uint16_t)0;
}

/* Tile n of q or dout, zeros for rows that are not there. */
template <int DTYPE, int D>
GPU_FN void gpu_fused_fetch_rows(const gpu_fused_call &t, int which, int n, char *to) {
    enum {
        ROWS = gpu_fused_shape<D>::ROWS,
        STEP = gpu_fused_shape<D>::STEP,
        EACH = gpu_fused_shape<D>::EACH
    };
    const auto *data = gpu_backward_data<DTYPE>(gpu_reread(t.of.call), 0, which);
    const uint32_t *places = t.b->rows.places[which] + (n * ROWS & (GPU_FUSED_KNOWN - 1));
    if (gpu_reread(t.fits) & (GPU_BACKWARD_Q << which)) {
        const int row = gpu_fused_thread() / (D / 8), chunk = gpu_fused_thread() % (D / 8);
        const uint4 raw = *(const uint4 *)(const void *)(places + gpu_fused_place<D>(row));
        uint32_t at[EACH];
        memcpy(at, &raw, sizeof at);
        to += gpu_swizzled<D>(row, chunk);
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const bool there = at[e] != GPU_BACKWARD_NONE;
            gpu_copy_async(to + e * STEP * D * 2,
                           (const char *)data + 16 * ((uint64_t)(there ? at[e] : 0) + chunk),
                           there);
        }
        return;
    }
    const int64_t step = gpu_backward_stride(gpu_reread(t.of.call), 0, which)[3];
#pragma unroll 1
    for (int e = gpu_fused_thread(); e < ROWS * D; e += GPU_FUSED_THREADS) {
        const bool there = places[gpu_fused_place<D>(e / D)] != GPU_BACKWARD_NONE;
        const int64_t at = gpu_backward_element<0>(t.of, &t.b->tile.s, t.b->head, which,
                                                   t.b->rows0 + n * ROWS + e / D);
        *gpu_swizzled_element<D>(to, e / D, e % D) =
            there ? gpu_global(data)[at + e % D * step] : (uint16_t)0;
    }
}

/* Where k and v lie in shared memory, q and dout of tile n, weights and gradients of scores. */
template <int D> GPU_FN char *gpu_fused_keys(const gpu_fused_call &t, int which) {
    return t.memory + which * gpu_fused_shape<D>::KEY_BYTES;
}

template <int D> GPU_FN char *gpu_fused_tile(const gpu_fused_call &t, int n, int which) {
    return t.memory + 2 * gpu_fused_shape<D>::KEY_BYTES +
           ((n & 1) * 2 + which) * gpu_fused_shape<D>::ROW_BYTES;
}

template <int D> GPU_FN char *gpu_fused_weights(const gpu_fused_call &t, int which) {
    return t.memory + 2 * gpu_fused_shape<D>::KEY_BYTES + 4 * gpu_fused_shape<D>::ROW_BYTES +
           which * gpu_fused_shape<D>::WEIGHT_BYTES;
}

template <int DTYPE, int D> GPU_FN void gpu_fused_fetch(const gpu_fused_call &t, int n) {
#pragma unroll
    for (int which = 0; which < 2; which++)
        gpu_fused_fetch_rows<DTYPE, D>(t, which, n, gpu_fused_tile<D>(t, n, which));
}

/* --- scores --- */

template <int D> using gpu_fused_scores = float[2][gpu_fused_shape<D>::KEYS / 8][4];

/* A warp's first row and key of scores. */
template <int D> GPU_FN int gpu_fused_score_row(void) {
    return gpu_fused_warp() / gpu_fused_shape<D>::KEY_WARPS * 32;
}

template <int D> GPU_FN int gpu_fused_score_key(void) {
    return gpu_fused_warp() % gpu_fused_shape<D>::KEY_WARPS * gpu_fused_shape<D>::KEYS;
}

/* Products of tile n with keys: scores, and dp. */
template <int DTYPE, int D>
GPU_FN void gpu_fused_products(const gpu_fused_call &t, int n, gpu_fused_scores<D> (&x)[2]) {
    typedef gpu_fused_shape<D> shape;
    const char *rows = gpu_fused_tile<D>(t, n, 0), *keys = gpu_fused_keys<D>(t, 0);
    const int lane = gpu_fused_lane(),
              left = gpu_swizzled<D>(gpu_fused_score_row<D>() + lane % 16, lane / 16),
              right = gpu_swizzled<D>(gpu_fused_score_key<D>() + lane % 8 + lane / 16 * 8,
                                      lane / 8 % 2);
#pragma unroll
    for (int which = 0; which < 2; which++)
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int i = 0; i < shape::KEYS / 8; i++)
                x[which][m][i][0] = x[which][m][i][1] = x[which][m][i][2] = x[which][m][i][3] = 0;
#pragma unroll
    for (int k = 0; k < D / 16; k++)
#pragma unroll
        for (int which = 0; which < 2; which++) {
            uint32_t a[2][4];
#pragma unroll
            for (int m = 0; m < 2; m++)
                gpu_load_matrices(a[m], rows, gpu_moved<D>(left, m, k) + which * shape::ROW_BYTES);
#pragma unroll
            for (int i = 0; i < shape::KEYS / 16; i++) {
                uint32_t b[4];
                gpu_load_matrices(b, keys, gpu_moved<D>(right, i, k) + which * shape::KEY_BYTES);
#pragma unroll
                for (int m = 0; m < 2; m++) {
                    gpu_mma<DTYPE>(x[which][m][2 * i], a[m], b);
                    gpu_mma<DTYPE>(x[which][m][2 * i + 1], a[m], b + 2);
                }
            }
        }
}

/* From products to weights and gradients of scores of a thread's rows, 0 where nothing is seen. */
template <int D, bool CAP>
GPU_FN void gpu_fused_weigh(const gpu_fused_call &t, int n, bool whole, gpu_fused_scores<D> &s,
                            gpu_fused_scores<D> &dp) {
    typedef gpu_fused_shape<D> shape;
    const float scale = gpu_reread(t.of.p)->scale, cap = gpu_reread(t.of.p)->soft_cap,
                unit = GPU_LOG2_E * (CAP ? cap : scale), to_cap = CAP ? scale / cap : 0;
    const int lane = gpu_fused_lane(), key0 = gpu_fused_score_key<D>() + lane % 4 * 2,
              row0 =
                  (n * shape::ROWS & (GPU_FUSED_KNOWN - 1)) + gpu_fused_score_row<D>() + lane / 4;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = row0 + 16 * m + 8 * h;
            const float lse = t.b->rows.lse[row], delta = t.b->rows.delta[row];
#pragma unroll
            for (int i = 0; i < shape::KEYS / 8; i++)
#pragma unroll
                for (int e = 2 * h; e < 2 * h + 2; e++) {
                    if (CAP)
                        gpu_backward_cap(to_cap, delta, &s[m][i][e], &dp[m][i][e]);
                    else
                        dp[m][i][e] -= delta;
                    s[m][i][e] = gpu_exp2(fmaf(s[m][i][e], unit, -lse));
                    dp[m][i][e] *= s[m][i][e];
                }
        }
    if (whole)
        return;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = row0 + 16 * m + 8 * h, first = t.b->rows.first[row] - key0,
                      last = t.b->rows.last[row] - key0;
#pragma unroll
            for (int i = 0; i < shape::KEYS / 8; i++)
#pragma unroll
                for (int e = 2 * h; e < 2 * h + 2; e++)
                    if (8 * i + e % 2 < first || 8 * i + e % 2 >= last)
                        s[m][i][e] = dp[m][i][e] = 0;
        }
}

/* Rounded, [row, key], to where all warps find them. */
template <int DTYPE, int D>
GPU_FN void gpu_fused_share(const gpu_fused_call &t, int which, const gpu_fused_scores<D> &x) {
    const int lane = gpu_fused_lane(), at = gpu_swizzled<128>(gpu_fused_score_row<D>() + lane / 4,
                                                              gpu_fused_score_key<D>() / 8) +
                                            lane % 4 * 4;
    char *to = gpu_fused_weights<D>(t, which);
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int i = 0; i < gpu_fused_shape<D>::KEYS / 8; i++)
                *(uint32_t *)(void *)(to + (at ^ 16 * i) + (16 * m + 8 * h) * 256) =
                    gpu_join<DTYPE>(x[m][i][2 * h], x[m][i][2 * h + 1]);
}

/* --- sums --- */

/* A thread's sums: of dv in the first half of warps, of dk in the other; of dq. */
template <int D> using gpu_fused_own = float[4][gpu_fused_shape<D>::COLUMNS / 8][4];
typedef float gpu_fused_dq[2][4][4];

template <int DTYPE> GPU_FN bool gpu_fused_special(uint32_t x) {
    return gpu_not_finite<DTYPE>(x) || gpu_not_finite<DTYPE>(x >> 16);
}

/* Adds products of 16 BLOCKS rows of a, of which BY_COLUMN says that they lie in columns, with
 * 8 PARTS columns of b, over N of both. CLEAN: what is not finite of b is 0. */
template <int DTYPE, int N, int A_WIDTH, int B_WIDTH, bool BY_COLUMN, bool CLEAN, int BLOCKS,
          int PARTS>
GPU_FN void gpu_fused_multiply(const char *left, int left_at, const char *right, int right_at,
                               float (&sums)[BLOCKS][PARTS][4]) {
#pragma unroll
    for (int k = 0; k < N / 16; k++) {
        uint32_t a[BLOCKS][4];
#pragma unroll
        for (int m = 0; m < BLOCKS; m++)
            if (BY_COLUMN)
                gpu_load_transposed(a[m], left, gpu_moved<A_WIDTH>(left_at, k, m));
            else
                gpu_load_matrices(a[m], left, gpu_moved<A_WIDTH>(left_at, m, k));
#pragma unroll
        for (int i = 0; i < PARTS / 2; i++) {
            uint32_t b[4];
            gpu_load_transposed(b, right, gpu_moved<B_WIDTH>(right_at, k, i));
#pragma unroll
            for (int e = 0; e < 4 && CLEAN; e++)
                b[e] &= (gpu_not_finite<DTYPE>(b[e]) ? 0 : 0xffffu) |
                        (gpu_not_finite<DTYPE>(b[e] >> 16) ? 0 : 0xffff0000u);
#pragma unroll
            for (int m = 0; m < BLOCKS; m++) {
                gpu_mma<DTYPE>(sums[m][2 * i], a[m], b);
                gpu_mma<DTYPE>(sums[m][2 * i + 1], a[m], b + 2);
            }
        }
    }
}

/* Where a warp's sums of its own gradient begin: key and column; which gradient it has. */
struct gpu_fused_part {
    int which, key, column;
};

template <int D> GPU_FN gpu_fused_part gpu_fused_own_part(void) {
    const int warp = gpu_fused_warp();
    return {warp / 4, warp % 4 / 2 * 64, warp % 2 * gpu_fused_shape<D>::COLUMNS};
}

/* Row and column of dq that a lane holds so. */
template <int D> GPU_FN int gpu_fused_dq_row(void) {
    return gpu_fused_warp() / (D / 32) * 32;
}

template <int D> GPU_FN int gpu_fused_dq_column(void) {
    return gpu_fused_warp() % (D / 32) * 32;
}

/* Adds tile n to dv or dk: weights by dout, gradients of scores by q. */
template <int DTYPE, int D, bool CLEAN, int PARTS>
GPU_FN void gpu_fused_add_own(const gpu_fused_call &t, int n, int column,
                              float (&sums)[4][PARTS][4]) {
    const gpu_fused_part part = gpu_fused_own_part<D>();
    const int lane = gpu_fused_lane();
    gpu_fused_multiply<DTYPE, gpu_fused_shape<D>::ROWS, 128, D, true, CLEAN>(
        gpu_fused_weights<D>(t, part.which),
        gpu_swizzled<128>(lane % 8 + lane / 16 * 8, lane / 8 % 2 + part.key / 8),
        gpu_fused_tile<D>(t, n, 1 - part.which),
        gpu_swizzled<D>(lane % 16, lane / 16 + (part.column + column) / 8), sums);
}

/* Adds gradients of scores by keys to dq. */
template <int DTYPE, int D, bool CLEAN, int PARTS>
GPU_FN void gpu_fused_add_dq(const gpu_fused_call &t, int column, float (&sums)[2][PARTS][4]) {
    const int lane = gpu_fused_lane();
    gpu_fused_multiply<DTYPE, GPU_FUSED_KEYS, 128, D, false, CLEAN>(
        gpu_fused_weights<D>(t, 1), gpu_swizzled<128>(gpu_fused_dq_row<D>() + lane % 16, lane / 16),
        gpu_fused_keys<D>(t, 0),
        gpu_swizzled<D>(lane % 16, lane / 16 + (gpu_fused_dq_column<D>() + column) / 8), sums);
}

/* --- sums of dq in memory --- */

/* A thread's of tile n, four side by side. */
GPU_FN float *gpu_fused_sums_at(float *sums, int64_t n) {
    return gpu_global(sums) + n * GPU_FUSED_SUMS + 4 * gpu_fused_thread();
}

GPU_FN void gpu_fused_read_dq(const float *from, bool begins, gpu_fused_dq &dq) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float *x = dq[i / 4][i % 4];
        if (begins)
            x[0] = x[1] = x[2] = x[3] = 0;
        else
            gpu_read_coherent(from + i * 4 * GPU_FUSED_THREADS, x);
    }
}

GPU_FN void gpu_fused_write_dq(float *to, const gpu_fused_dq &dq) {
#pragma unroll
    for (int i = 0; i < 8; i++)
        gpu_write_numbers<4>(to + i * 4 * GPU_FUSED_THREADS, dq[i / 4][i % 4]);
}

template <int D> GPU_FN int gpu_fused_turn_of(const gpu_fused_call &t, int n) {
    enum { ROWS = gpu_fused_shape<D>::ROWS };
    return t.b->rows.turn[n & (GPU_FUSED_KNOWN / ROWS - 1)];
}

/* One thread, behind a barrier, lets the next block add to the tile ahead of n, of which all
 * parts were written, once memory has them. */
template <int D> GPU_FN void gpu_fused_pass_turn(const gpu_fused_call &t, int n) {
    gpu_device_fence();
    if (n > 0)
        gpu_turn_pass(t.b->turns + n - 1, gpu_fused_turn_of<D>(t, n - 1) + 1);
}

/* Passes its turn once the block may add to tile n; reached: the tile's turn some time ago. */
template <int D> GPU_FN void gpu_fused_take_turn(const gpu_fused_call &t, int n, int32_t reached) {
    while (reached < gpu_fused_turn_of<D>(t, n))
        reached = gpu_turn_read(t.b->turns + n);
    gpu_fused_pass_turn<D>(t, n);
}

/* --- what is not finite, which what does not see it may not meet; f16 --- */

/* Looks for it in tile n and in keys; a barrier is to follow. */
template <int DTYPE, int D> GPU_FN void gpu_fused_find_special(const gpu_fused_call &t, int n) {
    typedef gpu_fused_shape<D> shape;
    bool found = false;
#pragma unroll 1
    for (int e = 16 * gpu_fused_thread(); e < 2 * shape::ROW_BYTES + shape::KEY_BYTES;
         e += 16 * GPU_FUSED_THREADS) {
        const gpu_vector<DTYPE, 8> x = gpu_load<DTYPE, 8>(
            e < 2 * shape::ROW_BYTES ? gpu_fused_tile<D>(t, n, 0) + e
                                     : gpu_fused_keys<D>(t, 0) + e - 2 * shape::ROW_BYTES);
#pragma unroll
        for (int i = 0; i < 4; i++)
            found |= gpu_fused_special<DTYPE>(x.word[i]);
    }
    if (found)
        t.b->special = n + 1;
}

/* Adds what is not finite of `right` to sums from `row` and `column` on, those of keys or of dq, by
 * the weights of what sees it. */
template <int DTYPE, int D, bool KEYS, int BLOCKS, int PARTS>
GPU_FN void gpu_fused_add_special(const gpu_fused_call &t, int n, char *weights, char *right,
                                  int row, int column, float (&sums)[BLOCKS][PARTS][4]) {
    enum { ROWS = gpu_fused_shape<D>::ROWS, N = KEYS ? (int)ROWS : (int)GPU_FUSED_KEYS };
    const int lane = gpu_fused_lane(), known = n * ROWS & (GPU_FUSED_KNOWN - 1);
#pragma unroll 1
    for (int k = 0; k < N; k++)
#pragma unroll
        for (int m = 0; m < BLOCKS; m++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int own = row + 16 * m + 8 * h + lane / 4, query = KEYS ? k : own,
                          key = KEYS ? own : k;
                const bool sees =
                    key >= t.b->rows.first[known + query] && key < t.b->rows.last[known + query];
                const float weight =
                    gpu_widen<DTYPE>(*gpu_swizzled_element<128>(weights, query, key));
#pragma unroll
                for (int i = 0; i < 2 * PARTS; i++) {
                    const uint16_t x = *gpu_swizzled_element<D>(
                        right, k, column + i / 2 * 8 + lane % 4 * 2 + i % 2);
                    float *sum = &sums[m][i / 2][2 * h + i % 2];
                    *sum = sees && gpu_not_finite<DTYPE>(x)
                               ? fmaf(weight, gpu_split<DTYPE>(x).x, *sum)
                               : *sum;
                }
            }
}

/* Gradients of scores too large for f16 are multiplied apart, in bands of their exponents: from
 * 2^15 on, from 2^44 on, and so on, each by a power of 2 that f16 holds it with. Band 0 has the
 * others. */
enum { GPU_FUSED_BANDS = 4, GPU_FUSED_BAND_BITS = 29 };

GPU_FN int gpu_fused_band(float x) {
    const int exponent = (int)(rope_float_bits(x) >> 23 & 255) - 127;
    return exponent < 15 || exponent > 127 ? 0 : (exponent - 15) / GPU_FUSED_BAND_BITS + 1;
}

GPU_FN float gpu_fused_band_power(int bands) {
    return rope_bits_float((uint32_t)(127 + GPU_FUSED_BAND_BITS * bands) << 23);
}

/* Whether any is too large. */
template <int D> GPU_FN bool gpu_fused_is_large(const gpu_fused_scores<D> &ds) {
    bool large = false;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int i = 0; i < gpu_fused_shape<D>::KEYS / 8; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                large |= fabsf(ds[m][i][e]) >= 0x1p15f && fabsf(ds[m][i][e]) <= 0x1.fffffep+127f;
    return large;
}

/* Leaves those of a band, as f16 holds them, and 0. */
template <int D> GPU_FN void gpu_fused_take_band(int band, gpu_fused_scores<D> &ds) {
    const float power = gpu_fused_band_power(-band);
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int i = 0; i < gpu_fused_shape<D>::KEYS / 8; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                ds[m][i][e] = gpu_fused_band(ds[m][i][e]) == band ? ds[m][i][e] * power : 0;
}

/* A part of sums from their 16 i-th column on, times a power. */
template <int BLOCKS, int PARTS>
GPU_FN void gpu_fused_add_part(const float (&part)[BLOCKS][2][4], int i, float power,
                               float (&sums)[BLOCKS][PARTS][4]) {
#pragma unroll
    for (int m = 0; m < BLOCKS; m++)
#pragma unroll
        for (int e = 0; e < 8; e++)
            sums[m][2 * i + e / 4][e % 4] =
                fmaf(part[m][e / 4][e % 4], power, sums[m][2 * i + e / 4][e % 4]);
}

/* Adds a band of tile n to sums. */
template <int D>
GPU_FN void gpu_fused_add_band(const gpu_fused_call &t, int n, int band, gpu_fused_own<D> &own) {
    const float power = gpu_fused_band_power(band);
    float *sums = gpu_fused_sums_at(t.b->sums, n);
#pragma unroll
    for (int i = 0; i < gpu_fused_shape<D>::COLUMNS / 16; i++)
        if (gpu_fused_own_part<D>().which) {
            float part[4][2][4] = {};
            gpu_fused_add_own<ROPE_F16, D, true>(t, n, 16 * i, part);
            gpu_fused_add_part(part, i, power, own);
        }
    if (!t.b->sums)
        return;
    gpu_fused_dq dq;
    gpu_fused_read_dq(sums, false, dq);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float part[2][2][4] = {};
        gpu_fused_add_dq<ROPE_F16, D, true>(t, 16 * i, part);
        gpu_fused_add_part(part, i, power, dq);
    }
    gpu_fused_write_dq(sums, dq);
}

/* --- a tile --- */

/* Adds tile n, whose weights are shared, to all sums. */
template <int DTYPE, int D, bool SPECIAL>
GPU_FN void gpu_fused_add(const gpu_fused_call &t, int n, gpu_fused_own<D> &own) {
    const gpu_fused_part part = gpu_fused_own_part<D>();
    float *sums = gpu_fused_sums_at(t.b->sums, n);
    gpu_fused_dq dq;
    if (t.b->sums)
        gpu_fused_read_dq(sums, gpu_fused_turn_of<D>(t, n) == 0,
                          dq); /* while others are multiplied */
    gpu_fused_add_own<DTYPE, D, SPECIAL>(t, n, 0, own);
    if (SPECIAL)
        gpu_fused_add_special<DTYPE, D, true>(t, n, gpu_fused_weights<D>(t, part.which),
                                              gpu_fused_tile<D>(t, n, 1 - part.which), part.key,
                                              part.column, own);
    if (!t.b->sums)
        return;
    gpu_fused_add_dq<DTYPE, D, SPECIAL>(t, 0, dq);
    if (SPECIAL)
        gpu_fused_add_special<DTYPE, D, false>(t, n, gpu_fused_weights<D>(t, 1),
                                               gpu_fused_keys<D>(t, 0), gpu_fused_dq_row<D>(),
                                               gpu_fused_dq_column<D>(), dq);
    gpu_fused_write_dq(sums, dq);
}

/* Whether all rows of tile n see all keys. */
template <int D> GPU_FN bool gpu_fused_is_whole(const gpu_fused_call &t, int n) {
    enum { ROWS = gpu_fused_shape<D>::ROWS };
    return n * ROWS >= t.b->span.common && (n + 1) * ROWS <= t.b->span.common_end;
}

/* From tile n to shared weights and gradients of scores, of f16 those of a band; a barrier is
 * behind it. */
template <int DTYPE, int D>
GPU_FN void gpu_fused_score_tile(const gpu_fused_call &t, int n, int band) {
    const bool whole = gpu_fused_is_whole<D>(t, n);
    gpu_fused_scores<D> x[2]; /* scores, then weights; dp, then gradients of scores */
    const bool turns = t.b->sums && gpu_fused_thread() == 0 && band == 0;
    int32_t reached = 0;
    if (turns)
        reached = gpu_turn_read(t.b->turns + n);
    gpu_fused_products<DTYPE, D>(t, n, x);
    if (gpu_reread(t.of.p)->soft_cap > 0)
        gpu_fused_weigh<D, true>(t, n, whole, x[0], x[1]);
    else
        gpu_fused_weigh<D, false>(t, n, whole, x[0], x[1]);
    gpu_fused_share<DTYPE, D>(t, 0, x[0]);
    if (turns)
        gpu_fused_take_turn<D>(t, n, reached);
    if (DTYPE == ROPE_F16 && (band > 0 || gpu_fused_is_large<D>(x[1]))) {
        t.b->large = n + 1;
        gpu_fused_take_band<D>(band, x[1]);
    }
    gpu_fused_share<DTYPE, D>(t, 1, x[1]);
    if (!whole)
        gpu_fused_find_special<DTYPE, D>(t, n);
    __syncthreads();
}

/* Adds that. The next tile, or band, is to follow. */
template <int DTYPE, int D>
GPU_FN void gpu_fused_add_tile(const gpu_fused_call &t, gpu_fused_own<D> &own) {
    int32_t *count = &t.b->count[gpu_fused_thread()], *band = &t.b->band[gpu_fused_thread()];
    const int n = *count;
    if (DTYPE == ROPE_F16 && *band > 0)
        gpu_fused_add_band<D>(t, n, *band, own);
    else if (t.b->special == n + 1)
        gpu_fused_add<DTYPE, D, true>(t, n, own);
    else
        gpu_fused_add<DTYPE, D, false>(t, n, own);
    if (DTYPE == ROPE_F16)
        *band = t.b->large == n + 1 && *band < GPU_FUSED_BANDS ? *band + 1 : 0;
    if (DTYPE != ROPE_F16 || *band == 0)
        ++*count;
}

/* --- a block --- */

/* Keys, and the first tile, on their way. */
template <int DTYPE, int D> GPU_FN void gpu_fused_start(const gpu_fused_call &t) {
    gpu_fused_range<D>(t);
#pragma unroll
    for (int which = 0; which < 2; which++)
        gpu_fused_fetch_keys<DTYPE, D>(t, which, gpu_fused_keys<D>(t, which));
#pragma unroll 1
    for (int i = gpu_fused_thread(); i < 2 * GPU_FUSED_LOOK && gpu_fused_thread() < GPU_FUSED_LOOK;
         i += GPU_FUSED_LOOK)
        gpu_fused_look<D>(t, i);
    __syncthreads();
    if (t.b->span.count > 0)
        gpu_fused_fetch<DTYPE, D>(t, 0);
    gpu_copies_mark();
}

/* The next tile, on its way, and rows of those behind it. */
template <int DTYPE, int D> GPU_FN void gpu_fused_prepare(const gpu_fused_call &t, int n) {
    enum { ROWS = gpu_fused_shape<D>::ROWS, LOOK = GPU_FUSED_LOOK };
    const int count = t.b->span.count;
    if ((n + 1) * ROWS < count)
        gpu_fused_fetch<DTYPE, D>(t, n + 1);
    gpu_copies_mark();
    if (n * ROWS % LOOK == 0 && n * ROWS + 2 * LOOK < count && gpu_fused_thread() < LOOK)
        gpu_fused_look<D>(t, n * ROWS + 2 * LOOK + gpu_fused_thread());
}

/* All tiles of rows. */
template <int DTYPE, int D>
GPU_FN void gpu_fused_walk(const gpu_fused_call &t, gpu_fused_own<D> &own) {
    enum { ROWS = gpu_fused_shape<D>::ROWS };
    t.b->count[gpu_fused_thread()] = t.b->band[gpu_fused_thread()] = 0;
#pragma unroll 1
    while (t.b->count[gpu_fused_thread()] * ROWS < t.b->span.count) {
        const int n = t.b->count[gpu_fused_thread()],
                  band = DTYPE == ROPE_F16 ? t.b->band[gpu_fused_thread()] : 0;
        gpu_copies_wait<0>();
        __syncthreads();
        if (band == 0)
            gpu_fused_prepare<DTYPE, D>(t, n);
        gpu_fused_score_tile<DTYPE, D>(t, n, band);
        gpu_fused_add_tile<DTYPE, D>(t, own);
    }
    gpu_copies_wait<0>();
    __syncthreads();
    if (t.b->sums && gpu_fused_thread() == 0)
        gpu_fused_pass_turn<D>(t, t.b->count[0]);
}

/* Rounds and writes dk and dv. */
template <int DTYPE, int D>
GPU_FN void gpu_fused_finish(const gpu_fused_call &t, const gpu_fused_own<D> &own) {
    enum { STRIDE = GPU_BACKWARD_STRIDE(D), KEYS = GPU_FUSED_KEYS };
    gpu_fused_block *b = t.b;
    const int i = gpu_fused_thread(), lane = gpu_fused_lane();
    const gpu_fused_part part = gpu_fused_own_part<D>();
    const float scale = part.which ? gpu_reread(t.of.p)->scale : 1;
    if (i < KEYS) {
        int64_t to[2];
        gpu_backward_key_end(t.of, &b->tile.s, b->head, b->tile.first + i, &b->tokens[i], to);
        b->to[0][i] = to[0];
        b->to[1][i] = to[1];
    }
    float *mine = (float *)(void *)t.memory + (part.which * KEYS + part.key + lane / 4) * STRIDE +
                  part.column + lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < 4; m++)
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int p = 0; p < gpu_fused_shape<D>::COLUMNS / 8; p++) {
                const float2 two = gpu_round<DTYPE>(fmaf(own[m][p][2 * h], scale, 0.0f),
                                                    fmaf(own[m][p][2 * h + 1], scale, 0.0f));
                const float y[2] = {two.x, two.y};
                gpu_write_numbers<2>(mine + (16 * m + 8 * h) * STRIDE + 8 * p, y);
            }
    __syncthreads();
#pragma unroll 1
    for (int which = 0; which < 2; which++)
        gpu_backward_write<DTYPE, 1, GPU_FUSED_THREADS>(
            t.of, &b->tile, which, b->tokens, b->to[which], t.fits, KEYS, STRIDE, D,
            (float *)(void *)t.memory + (1 - which) * KEYS * STRIDE);
}
#endif

template <int DTYPE, int D>
__global__ void __launch_bounds__(GPU_FUSED_THREADS, 1)
    gpu_backward_fused(GPU_PARAMETER rope_attention_problem problem,
                       GPU_PARAMETER rope_attention_backward_call given, const int32_t *failed,
                       float *delta, GPU_PARAMETER rope_call tokens, int32_t fits,
                       gpu_backward_dq_sums sums) {
#if GPU_HAS_FUSED
    const rope_attention_problem &p = *gpu_parameter<rope_attention_problem>(problem);
    const rope_attention_backward_call &c =
        *gpu_parameter<rope_attention_backward_call, rope_attention_problem>(given);
    const rope_call &keys =
        *gpu_parameter<rope_call, rope_attention_problem, rope_attention_backward_call,
                       const int32_t *, float *>(tokens);
    extern __shared__ uint4 memory[];
    __shared__ gpu_fused_block b;
    gpu_wait_for_last();
    gpu_let_next_start();
    const gpu_fused_call t = {{gpu_reread(&p), gpu_reread(&c), gpu_reread(&keys), failed, delta},
                              &b,
                              (char *)memory,
                              sums,
                              fits};
#pragma unroll 1
    for (int64_t i = blockIdx.x; i < sums.key_tiles * c.forward.k.heads; i = b.next) {
        __syncthreads();
        if (threadIdx.x == 0) {
            b.ticket = gpu_take_ticket(sums.ticket);
            b.next = i + gridDim.x;
        }
        __syncthreads();
        const gpu_quotient head = gpu_divide(b.ticket, sums.key_tiles);
        if (!gpu_attention_find<1, GPU_FUSED_THREADS>(&p, &c.forward, failed,
                                                      sums.key_tiles - 1 - head.left, 1,
                                                      GPU_FUSED_KEYS, &b.tile) ||
            !b.tile.valid || b.tile.first >= b.tile.s.k_count)
            continue;
        if (threadIdx.x == 0)
            b.head = head.whole;
        gpu_fused_own<D> own = {};
        gpu_fused_start<DTYPE, D>(t);
        gpu_fused_walk<DTYPE, D>(t, own);
        gpu_fused_finish<DTYPE, D>(t, own);
    }
#endif
}

/* Rounds, rotates back and writes sums of dq. */
template <int DTYPE, int D>
__global__ void __launch_bounds__(GPU_FUSED_THREADS, 1)
    gpu_backward_dq(GPU_PARAMETER rope_attention_problem problem,
                    GPU_PARAMETER rope_attention_backward_call given, const int32_t *failed,
                    float *delta, GPU_PARAMETER rope_call tokens, int32_t fits,
                    gpu_backward_dq_sums sums) {
#if GPU_HAS_FUSED
    const rope_attention_problem &p = *gpu_parameter<rope_attention_problem>(problem);
    const rope_attention_backward_call &c =
        *gpu_parameter<rope_attention_backward_call, rope_attention_problem>(given);
    enum { ROWS = gpu_fused_shape<D>::ROWS, STRIDE = GPU_BACKWARD_STRIDE(D) };
    extern __shared__ uint4 memory[];
    __shared__ gpu_attention_tile tile;
    __shared__ rope_token row_tokens[ROWS];
    __shared__ int64_t to[ROWS];
    __shared__ int32_t sees[ROWS];
    gpu_wait_for_last();
    gpu_let_next_start();
    (void)tokens;
    const gpu_backward_call t = {gpu_reread(&p), gpu_reread(&c), nullptr, failed, delta};
    const int64_t group = gpu_attention_group(&c.forward);
    const int i = gpu_fused_thread(), lane = gpu_fused_lane(),
              row = gpu_fused_dq_row<D>() + lane / 4;
    float *x = (float *)(void *)memory,
          *mine = x + row * STRIDE + gpu_fused_dq_column<D>() + lane % 4 * 2;
    for (int64_t n = blockIdx.x;
         gpu_attention_find<0, GPU_FUSED_THREADS>(&p, &c.forward, failed, n, group, ROWS, &tile);
         n += gridDim.x) {
        if (!tile.valid || tile.first >= tile.s.q_count * group)
            continue;
        for (int64_t head = blockIdx.y; head < c.forward.k.heads; head += gridDim.y) {
            gpu_fused_dq dq;
            gpu_fused_read_dq(
                gpu_fused_sums_at(sums.dq, head * sums.tiles +
                                               gpu_fused_sums_of(&c.forward, &tile.s, ROWS) +
                                               tile.first / ROWS),
                false, dq);
            if (i < ROWS) {
                const int64_t query = gpu_divide(tile.first + i, group).whole;
                const rope_key_range seen =
                    rope_keys_seen(&p, &tile.s, rope_query_index(&tile.s, query));
                sees[i] = seen.begin < seen.end;
                to[i] = gpu_backward_row_end(t, &tile.s, head, tile.first + i, &row_tokens[i]);
            }
            __syncthreads();
#pragma unroll
            for (int e = 0; e < 32; e += 2) {
                const int m = e / 16, h = e / 2 % 2, down = 16 * m + 8 * h;
                const float2 two =
                    gpu_round<DTYPE>(fmaf(dq[m][e / 4 % 4][2 * h], p.scale, 0.0f),
                                     fmaf(dq[m][e / 4 % 4][2 * h + 1], p.scale, 0.0f));
                const float y[2] = {sees[row + down] ? two.x : 0, sees[row + down] ? two.y : 0};
                gpu_write_numbers<2>(mine + down * STRIDE + e / 4 % 4 * 8, y);
            }
            __syncthreads();
            gpu_backward_write<DTYPE, 0, GPU_FUSED_THREADS>(t, &tile, 0, row_tokens, to, fits, ROWS,
                                                            STRIDE, D, x);
        }
    }
#endif
}

#endif
#endif
