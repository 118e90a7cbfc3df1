/*
 * 16-bit heads of D elements by matrix instructions: a block has GPU_BACKWARD_OWN rows or keys of
 * its own, a warp some 16s of them, and goes over tiles of the others, of which the next one is
 * copied to shared memory behind its back. Its own are the rows of every product. Tiles begin at
 * multiples of their size, and what does not see is masked, so the bits of a gradient do not depend
 * on what has nothing to do with it.
 */
#ifndef ROPEKIT_GPU_ATTENTION_BACKWARD_TILE_H
#define ROPEKIT_GPU_ATTENTION_BACKWARD_TILE_H

#include "common/gpu/attention/products.h"
#include "common/gpu/attention_backward/item.h"

enum {
    GPU_BACKWARD_SHAPE = GPU_TILE_SHAPE(GPU_BACKWARD_OWN, GPU_BACKWARD_TILE),
    GPU_BACKWARD_STAGES = 1 + GPU_TILE_AHEAD
};

/* Items side by side: where they are, a row's keys from the block's `key` on, its lse in units of
 * log 2. */
template <int N> struct gpu_backward_items {
    int64_t at[2][N];
    int32_t first[N], last[N];
    float lse[N], delta[N];
};

/* What threads of a block share, beside tiles. */
struct gpu_backward_block {
    gpu_attention_tile tile;
    gpu_backward_items<GPU_BACKWARD_OWN> own;
    gpu_backward_items<GPU_BACKWARD_TILE> others[3];
    rope_token tokens[GPU_BACKWARD_OWN];
    uint16_t weights[GPU_BACKWARD_OWN][GPU_BACKWARD_TILE]; /* of a tile that is not finite */
    int64_t to[2][GPU_BACKWARD_OWN];
    int64_t key;     /* from which keys count: of the block's own the first, else of the others' */
    int64_t others0; /* the first of the first tile */
    int32_t count;   /* from there to the last one that may count */
    int32_t common, common_end; /* others that all of the block's rows see, counted so */
    int32_t special;            /* the last tile, from 1 on, that has what is not finite */
    int64_t head, next;         /* of keys; what comes next */
};

struct gpu_backward_tile_call {
    gpu_backward_call of;
    gpu_backward_block *b;
    char *memory; /* dynamic shared memory */
    int32_t fits;
};

#if GPU_HAS_TILES
/* --- what is there --- */

GPU_FN int32_t gpu_backward_near(int64_t key, int64_t from) {
    const int64_t n = key - from;
    return (int32_t)(n < INT32_MIN ? INT32_MIN : n > INT32_MAX ? INT32_MAX : n);
}

/* Item n of the sequence, a row or, KEYS, a key. */
template <int KEYS>
GPU_FN gpu_backward_item gpu_backward_item_of(const gpu_backward_tile_call &t, int64_t n,
                                              rope_token *token) {
    if constexpr (KEYS)
        return gpu_backward_key(t.of, &t.b->tile.s, t.b->head, n);
    else
        return gpu_backward_row(t.of, &t.b->tile.s, t.b->head, n, token);
}

template <int N>
GPU_FN void gpu_backward_keep(const gpu_backward_item &item, int64_t key,
                              gpu_backward_items<N> *items, int i) {
    const bool sees = item.seen.first < item.seen.last;
    items->at[0][i] = item.at[0];
    items->at[1][i] = item.at[1];
    items->first[i] = sees ? gpu_backward_near(item.seen.first, key) : INT32_MAX;
    items->last[i] = sees ? gpu_backward_near(item.seen.last, key) : INT32_MIN;
    items->lse[i] = 1.44269504f * item.lse;
    items->delta[i] = item.delta;
}

/* Which of the others may count, of all threads' one. */
template <int KEYS> GPU_FN void gpu_backward_range(const gpu_backward_tile_call &t) {
    gpu_backward_block *b = t.b;
    const rope_attention_problem *p = gpu_reread(t.of.p);
    const rope_attention_sequence *s = &b->tile.s;
    const int64_t group = gpu_attention_group(&gpu_reread(t.of.call)->forward);
    int64_t begin, end, common = 0, common_end = 0;
    if (KEYS) {
        begin = group * gpu_first_query<false>(p, s, b->tile.first);
        end = group * gpu_first_query<true>(p, s, b->tile.first + GPU_BACKWARD_OWN);
    } else {
        const int64_t last = s->q_count * group - 1, behind = b->tile.first + GPU_BACKWARD_OWN - 1;
        const rope_key_range ahead =
                                 rope_keys_seen(p, s, rope_query_index(s, b->tile.first / group)),
                             after = rope_keys_seen(
                                 p, s,
                                 rope_query_index(s, (behind < last ? behind : last) / group));
        begin = ahead.first;
        end = after.last;
        common = after.first;
        common_end = ahead.last;
    }
    b->others0 = begin / GPU_BACKWARD_TILE * GPU_BACKWARD_TILE;
    b->count = begin < end ? (int32_t)(end - b->others0) : 0;
    b->common = gpu_backward_near(common, b->others0);
    b->common_end = gpu_queries_may_fail(p) ? 0 : gpu_backward_near(common_end, b->others0);
    b->key = KEYS ? b->tile.first : b->others0;
    b->special = 0;
}

/* --- copies --- */

/* Heads of N items, zeros for what is not there. */
template <int DTYPE, int D, int KEYS, int N>
GPU_FN void gpu_backward_fetch(const gpu_backward_tile_call &t, const gpu_backward_items<N> *items,
                               int which, char *to) {
    const auto *data = gpu_backward_data<DTYPE>(gpu_reread(t.of.call), KEYS, which);
    if (gpu_reread(t.fits) & (1 << (2 * KEYS + which))) {
#pragma unroll
        for (int e = 0; e < N * D / 8; e += GPU_ATTENTION_THREADS) {
            const int n = (e + gpu_thread()) / (D / 8), chunk = (e + gpu_thread()) % (D / 8);
            const int64_t at = items->at[which][n];
            const bool there = at != GPU_BACKWARD_NOWHERE;
            gpu_copy_async(to + gpu_swizzled<D>(n, chunk),
                           (const char *)data + 2 * (there ? at + 8 * chunk : 0), there);
        }
        return;
    }
    const int64_t step = gpu_backward_stride(gpu_reread(t.of.call), KEYS, which)[3];
#pragma unroll 1
    for (int e = gpu_thread(); e < N * D; e += GPU_ATTENTION_THREADS) {
        const int64_t at = items->at[which][e / D];
        *gpu_swizzled_element<D>(to, e / D, e % D) =
            at != GPU_BACKWARD_NOWHERE ? gpu_global(data)[at + e % D * step] : (uint16_t)0;
    }
}

/* Where the block's own lie in shared memory, and tile n of the others. */
template <int D> GPU_FN char *gpu_backward_own(const gpu_backward_tile_call &t, int which) {
    return t.memory + which * GPU_BACKWARD_OWN * D * 2;
}

template <int D>
GPU_FN char *gpu_backward_other(const gpu_backward_tile_call &t, int n, int which) {
    return t.memory + 2 * GPU_BACKWARD_OWN * D * 2 +
           (n % GPU_BACKWARD_STAGES * 2 + which) * GPU_BACKWARD_TILE * D * 2;
}

template <int DTYPE, int D, int KEYS>
GPU_FN void gpu_backward_fetch_tile(const gpu_backward_tile_call &t, int n) {
#pragma unroll
    for (int which = 0; which < 2; which++)
        gpu_backward_fetch<DTYPE, D, !KEYS, GPU_BACKWARD_TILE>(t, &t.b->others[n % 3], which,
                                                               gpu_backward_other<D>(t, n, which));
}

/* --- a tile --- */

typedef float gpu_backward_scores[gpu_row_blocks<GPU_BACKWARD_SHAPE>]
                                 [gpu_key_parts<GPU_BACKWARD_SHAPE>][4];

/* Whether all rows see all keys of tile n. */
template <int KEYS> GPU_FN bool gpu_backward_whole(const gpu_backward_tile_call &t, int n) {
    const gpu_backward_block *b = t.b;
    enum { TILE = GPU_BACKWARD_TILE, OWN = GPU_BACKWARD_OWN };
    if (!KEYS)
        return n * TILE >= b->common && (n + 1) * TILE <= b->common_end;
    const gpu_backward_items<TILE> *rows = &b->others[n % 3];
    return rows->first[TILE - 1] <= 0 && rows->last[0] >= OWN &&
           !gpu_queries_may_fail(gpu_reread(t.of.p));
}

/* Whether row `row` of the block and the k-th one of tile n see each other. */
template <int KEYS>
GPU_FN bool gpu_backward_sees(const gpu_backward_tile_call &t, int n, int row, int k) {
    const int key = KEYS ? row : n * GPU_BACKWARD_TILE + k;
    const int32_t first = KEYS ? t.b->others[n % 3].first[k] : t.b->own.first[row],
                  last = KEYS ? t.b->others[n % 3].last[k] : t.b->own.last[row];
    return key >= first && key < last;
}

/* With a cap: from scores to tanh, and what dp is multiplied by. */
GPU_FN void gpu_backward_cap(float twice, float delta, float *s, float *dp) {
    const float tanh = fmaf(-2, gpu_reciprocal(gpu_exp2(*s * twice) + 1), 1);
    *s = tanh;
    *dp = (*dp - delta) * fmaf(-tanh, tanh, 1);
}

/* From products to weights and gradients of scores, 0 where nothing is seen. */
template <int KEYS>
GPU_FN void gpu_backward_tile_weigh(const gpu_backward_tile_call &t, int n, bool whole,
                                    gpu_backward_scores &s, gpu_backward_scores &dp) {
    enum { SHAPE = GPU_BACKWARD_SHAPE };
    const float scale = gpu_reread(t.of.p)->scale, cap = gpu_reread(t.of.p)->soft_cap,
                twice = cap > 0 ? 2 * 1.44269504f * scale / cap : 0,
                unit = 1.44269504f * (cap > 0 ? cap : scale);
    const int lane = gpu_lane(), row0 = gpu_warp_row<SHAPE>();
    const gpu_backward_items<GPU_BACKWARD_TILE> *others = &t.b->others[n % 3];
#pragma unroll
    for (int m = 0; m < gpu_row_blocks<SHAPE>; m++)
#pragma unroll
        for (int i = 0; i < gpu_key_parts<SHAPE>; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int row = row0 + 16 * m + gpu_row_of(lane, e / GPU_LANE_ELEMENTS),
                          k = gpu_first_key_of(lane) + gpu_key_of(i, e);
                const float lse = KEYS ? others->lse[k] : t.b->own.lse[row],
                            delta = KEYS ? others->delta[k] : t.b->own.delta[row];
                if (cap > 0)
                    gpu_backward_cap(twice, delta, &s[m][i][e], &dp[m][i][e]);
                else
                    dp[m][i][e] -= delta;
                s[m][i][e] = gpu_exp2(fmaf(s[m][i][e], unit, -lse));
                dp[m][i][e] *= s[m][i][e];
                if (!whole && !gpu_backward_sees<KEYS>(t, n, row, k))
                    s[m][i][e] = dp[m][i][e] = 0;
            }
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
template <int DTYPE, int D, bool CLEAN>
GPU_FN bool gpu_backward_finite(const gpu_backward_tile_call &t, int n) {
    bool found = false;
#pragma unroll 1
    for (int e = gpu_thread(); e < 2 * GPU_BACKWARD_TILE * D / 8; e += GPU_ATTENTION_THREADS) {
        uint16_t *x = (uint16_t *)(void *)(gpu_backward_other<D>(t, n, 0) + 16 * e);
        for (int i = 0; i < 8; i++) {
            const bool none = gpu_not_finite<DTYPE>(x[i]);
            found |= none;
            if (CLEAN && none)
                x[i] = 0;
        }
    }
    if (found)
        t.b->special = n + 1;
    __syncthreads();
    return t.b->special != n + 1;
}

/* Weights of a warp's rows to where all its lanes find them. */
template <int DTYPE>
GPU_FN void gpu_backward_share(const gpu_backward_tile_call &t,
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
GPU_FN void gpu_backward_add_special(const gpu_backward_tile_call &t, int n, int which,
                                     const gpu_backward_scores &weights,
                                     gpu_tile_rows<D, GPU_BACKWARD_SHAPE> &sums) {
    enum { SHAPE = GPU_BACKWARD_SHAPE };
    const int lane = gpu_lane();
    char *tile = gpu_backward_other<D>(t, n, which);
    gpu_backward_share<DTYPE>(t, weights);
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
                                   ? fmaf(weight, gpu_widen<DTYPE>(x), *sum)
                                   : *sum;
                    }
            }
    gpu_warp_barrier();
}

/* Takes what is not finite out of a tile that not all see. */
template <int DTYPE, int D, int KEYS>
GPU_FN void gpu_backward_part(const gpu_backward_tile_call &t, int n, const gpu_backward_scores &p,
                              const gpu_backward_scores &ds,
                              gpu_tile_rows<D, GPU_BACKWARD_SHAPE> (&sums)[1 + KEYS]) {
    if (gpu_backward_finite<DTYPE, D, false>(t, n))
        return;
    gpu_backward_add_special<DTYPE, D, KEYS>(t, n, 0, ds, sums[0]);
    if (KEYS)
        gpu_backward_add_special<DTYPE, D, KEYS>(t, n, 1, p, sums[KEYS]);
    __syncthreads();
    (void)gpu_backward_finite<DTYPE, D, true>(t, n);
}

template <int DTYPE, int D, int KEYS>
GPU_FN void gpu_backward_tile_add(const gpu_backward_tile_call &t, int n,
                                  gpu_backward_powers &powers,
                                  gpu_tile_rows<D, GPU_BACKWARD_SHAPE> (&sums)[1 + KEYS]) {
    enum { SHAPE = GPU_BACKWARD_SHAPE };
    const bool whole = gpu_backward_whole<KEYS>(t, n);
    gpu_backward_scores p, ds;
    gpu_tile_products<DTYPE, D, SHAPE>(gpu_backward_own<D>(t, 0), gpu_backward_other<D>(t, n, 0),
                                       p);
    gpu_tile_products<DTYPE, D, SHAPE>(gpu_backward_own<D>(t, 1), gpu_backward_other<D>(t, n, 1),
                                       ds);
    gpu_backward_tile_weigh<KEYS>(t, n, whole, p, ds);
    if constexpr (DTYPE == ROPE_F16)
        gpu_backward_fit<D>(ds, powers, sums[0]);
    if (!whole)
        gpu_backward_part<DTYPE, D, KEYS>(t, n, p, ds, sums);
    gpu_tile_weights<SHAPE> w;
    if constexpr (KEYS) {
        gpu_tile_round<DTYPE, SHAPE>(p, w);
        gpu_tile_add<DTYPE, D, SHAPE>(gpu_backward_other<D>(t, n, 1), w, sums[KEYS]);
    }
    gpu_tile_round<DTYPE, SHAPE>(ds, w);
    gpu_tile_add<DTYPE, D, SHAPE>(gpu_backward_other<D>(t, n, 0), w, sums[0]);
}

/* --- a block --- */

/* What the block has, and the first tiles of the others on their way. */
template <int DTYPE, int D, int KEYS>
GPU_FN void gpu_backward_start(const gpu_backward_tile_call &t, int64_t head) {
    gpu_backward_block *b = t.b;
    const int thread = gpu_thread();
    if (thread == 0) {
        b->head = head;
        gpu_backward_range<KEYS>(t);
    }
    __syncthreads();
    if (thread < GPU_BACKWARD_OWN)
        gpu_backward_keep(gpu_backward_item_of<KEYS>(t, b->tile.first + thread, &b->tokens[thread]),
                          b->key, &b->own, thread);
    __syncthreads();
    if (thread < 2 * GPU_BACKWARD_TILE) {
        const int n = thread / GPU_BACKWARD_TILE;
        gpu_backward_keep(gpu_backward_item_of<!KEYS>(t, b->others0 + thread, &b->tokens[thread]),
                          b->key, &b->others[n], thread % GPU_BACKWARD_TILE);
    }
    __syncthreads();
    gpu_backward_fetch<DTYPE, D, KEYS, GPU_BACKWARD_OWN>(t, &b->own, 0, gpu_backward_own<D>(t, 0));
    gpu_backward_fetch<DTYPE, D, KEYS, GPU_BACKWARD_OWN>(t, &b->own, 1, gpu_backward_own<D>(t, 1));
    if (GPU_TILE_AHEAD)
        gpu_backward_fetch_tile<DTYPE, D, KEYS>(t, 0);
    gpu_copies_mark();
}

/* All of the others. */
template <int DTYPE, int D, int KEYS>
GPU_FN void gpu_backward_walk(const gpu_backward_tile_call &t, gpu_backward_powers &powers,
                              gpu_tile_rows<D, GPU_BACKWARD_SHAPE> (&sums)[1 + KEYS]) {
    gpu_backward_block *b = t.b;
    enum { TILE = GPU_BACKWARD_TILE };
#pragma unroll 1
    for (int n = 0; n * TILE < b->count; n++) {
        if (!GPU_TILE_AHEAD) {
            __syncthreads();
            gpu_backward_fetch_tile<DTYPE, D, KEYS>(t, n);
        }
        gpu_copies_wait<0>();
        __syncthreads();
        if (GPU_TILE_AHEAD && (n + 1) * TILE < b->count)
            gpu_backward_fetch_tile<DTYPE, D, KEYS>(t, n + 1);
        gpu_copies_mark();
        const bool looks = gpu_thread() < TILE && (n + 2) * TILE < b->count;
        gpu_backward_item next;
        if (looks)
            next = gpu_backward_item_of<!KEYS>(t, b->others0 + (n + 2) * TILE + gpu_thread(),
                                               &b->tokens[gpu_thread()]);
        gpu_backward_tile_add<DTYPE, D, KEYS>(t, n, powers, sums);
        if (looks)
            gpu_backward_keep(next, b->key, &b->others[(n + 2) % 3], gpu_thread());
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
                    float *to = x +
                                (gpu_warp_row<SHAPE>() + 16 * m + gpu_row_of(lane, h)) *
                                    GPU_BACKWARD_STRIDE(D) +
                                gpu_run_first<D>(lane, r) + i;
                    to[0] = two.x;
                    to[1] = two.y;
                }
        }
    __syncthreads();
}

template <int DTYPE, int D, int KEYS>
GPU_FN void gpu_backward_finish(const gpu_backward_tile_call &t, gpu_backward_powers &powers,
                                const gpu_tile_rows<D, GPU_BACKWARD_SHAPE> (&sums)[1 + KEYS]) {
    gpu_backward_block *b = t.b;
    enum { STRIDE = GPU_BACKWARD_STRIDE(D), OWN = GPU_BACKWARD_OWN };
    const rope_attention_backward_call *c = gpu_reread(t.of.call);
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
    gpu_backward_tile_stage<DTYPE, D>(sums[0], p->scale, powers, x);
    if (!KEYS)
        gpu_backward_store<DTYPE, 0>(p, &c->forward.rope, x, STRIDE, D, OWN,
                                     p->rotates[0] ? b->tokens : NULL, b->to[0], c->dq,
                                     c->dq_stride[3]);
    else if (c->dk)
        gpu_backward_store<DTYPE, 1>(p, t.of.keys, x, STRIDE, D, OWN,
                                     p->rotates[1] ? b->tokens : NULL, b->to[0], c->dk,
                                     c->dk_stride[3]);
    __syncthreads();
    if (!KEYS || !c->dv)
        return;
    gpu_backward_no_powers(powers);
    gpu_backward_tile_stage<DTYPE, D>(sums[KEYS], 1, powers, x);
    gpu_backward_store<DTYPE, 1>(p, t.of.keys, x, STRIDE, D, OWN, NULL, b->to[1], c->dv,
                                 c->dv_stride[3]);
    __syncthreads();
}
#endif

template <int DTYPE, int D, int KEYS>
__global__ void __launch_bounds__(GPU_ATTENTION_THREADS, GPU_TILE_BLOCKS)
    gpu_backward_tiles(GPU_PARAMETER rope_attention_problem problem,
                       GPU_PARAMETER rope_attention_backward_call given, const int32_t *failed,
                       float *delta, GPU_PARAMETER rope_call tokens, int32_t fits) {
#if GPU_HAS_TILES
    const rope_attention_problem &p = *gpu_parameter<rope_attention_problem>(problem);
    const rope_attention_backward_call &c =
        *gpu_parameter<rope_attention_backward_call, rope_attention_problem>(given);
    const rope_call &keys =
        *gpu_parameter<rope_call, rope_attention_problem, rope_attention_backward_call,
                       const int32_t *, float *>(tokens);
    extern __shared__ uint4 memory[];
    __shared__ gpu_backward_block b;
    gpu_wait_for_last();
    gpu_let_next_start();
    const int64_t each = KEYS ? 1 : gpu_attention_group(&c.forward);
    for (int64_t n = blockIdx.x;
         gpu_attention_find<KEYS>(&p, &c.forward, failed, n, each, GPU_BACKWARD_OWN, &b.tile);
         n = b.next) {
        if (threadIdx.x == 0)
            b.next = n + gridDim.x;
        __syncthreads();
        if (!b.tile.valid || b.tile.first >= (KEYS ? b.tile.s.k_count : b.tile.s.q_count * each))
            continue;
        const gpu_backward_tile_call t = {
            {gpu_reread(&p), gpu_reread(&c), gpu_reread(&keys), failed, delta},
            &b,
            (char *)memory,
            fits};
        for (int64_t head = blockIdx.y; head < c.forward.k.heads; head = b.head + gridDim.y) {
            __syncthreads();
            gpu_tile_rows<D, GPU_BACKWARD_SHAPE> sums[1 + KEYS] = {};
            gpu_backward_start<DTYPE, D, KEYS>(t, head);
            gpu_backward_powers powers;
            gpu_backward_no_powers(powers);
            gpu_backward_walk<DTYPE, D, KEYS>(t, powers, sums);
            gpu_backward_finish<DTYPE, D, KEYS>(t, powers, sums);
        }
    }
#endif
}

#endif
