/*
 * 16-bit heads of D and DV elements by matrix instructions: a block has ROWS rows, a warp MT times
 * 16 of them, and walks over tiles of keys and values, of which the next is copied to shared memory
 * while one is worked on. Tiles begin at multiples of their size, and one that a row does not see
 * leaves it as it is, so a row's bits do not depend on its neighbours.
 */
#ifndef ROPEKIT_GPU_ATTENTION_TILE_H
#define ROPEKIT_GPU_ATTENTION_TILE_H

#include "common/gpu/attention/rows.h"

#include <gpu_tile.h>

/* What threads of a block share, beside queries and tiles of keys and values. */
struct gpu_tile_block {
    gpu_attention_tile tile;
    int32_t first[GPU_TILE_ROWS], last[GPU_TILE_ROWS]; /* keys that a row sees, from `base` on */
    uint32_t keys[2][GPU_TILE_KEYS], values[2][GPU_TILE_KEYS]; /* in 16 bytes from element 0 */
    uint32_t queries[GPU_TILE_ROWS]; /* the same, GPU_TILE_NONE where there is none */
    rope_key_range seen, common;     /* by some row, by all */
    int64_t base, next;              /* the first tile; what the block has next */
    int32_t end;                     /* from base to the last key that is seen */
};

enum : uint32_t { GPU_TILE_NONE = 0xffffffffu };

/* A block's call. */
struct gpu_tile_call {
    const rope_attention_problem *p;
    const rope_attention_call *call;
    gpu_tile_block *b;
    char *queries, *stage; /* in shared memory */
    int32_t key_head;
    int32_t fits; /* GPU_TILE_ */
};

/* A thread's rows: largest logit in units of log 2, sums of its own columns, and elements of out.
 */
template <int DV, int MT> struct gpu_tile_rows {
    float largest[MT][2], sum[MT][2];
    float out[MT][DV / 8][4];
};

GPU_FN int gpu_lane(void) {
    return gpu_anew((int)threadIdx.x) % 32;
}

/* Keys that a warp takes at a time. With MT 1 all warps have the same rows, and a quarter of a tile
 * each; else a tile in two parts, as registers do not hold weights of more. */
template <int MT> GPU_FN constexpr int gpu_warp_keys(void) {
    return MT == 1 ? GPU_TILE_KEYS / (GPU_ATTENTION_THREADS / 32) : GPU_TILE_KEYS / 2;
}

/* First row of a warp. */
template <int MT> GPU_FN int gpu_warp_row(void) {
    return MT == 1 ? 0 : gpu_anew((int)threadIdx.x) / 32 * 16 * MT;
}

/* Where 16 bytes of a row lie: eight rows of a column are in different banks. */
template <int D> GPU_FN int gpu_swizzled(int row, int chunk) {
    return row * (D * 2) + (chunk ^ (D % 64 == 0 ? row & 7 : row >> 1 & 3)) * 16;
}

/* From where a lane's row of a matrix of 16 by 16 lies to that of one some rows down and some
 * columns across, both in 16s. */
template <int D> GPU_FN int gpu_moved(int at, int down, int across) {
    static_assert(D == 64 || D == 128, "a row's chunks are bits of their own");
    return (at ^ 32 * across) + down * 32 * D;
}

template <int D> GPU_FN uint16_t *gpu_swizzled_element(char *tile, int row, int i) {
    return (uint16_t *)(tile + gpu_swizzled<D>(row, i / 8)) + i % 8;
}

#if GPU_HAS_TILES
/* --- queries --- */

/* Row `row` of the block as one of its sequence's. */
GPU_FN bool gpu_tile_query(const gpu_tile_call &t, int row, int64_t *query, int64_t *head) {
    const int64_t group = gpu_attention_group(t.call), n = t.b->tile.first + row;
    *query = n / group;
    *head = t.key_head * group + n % group;
    return *query < t.b->tile.s.q_count;
}

/* Where the heads of the block's rows begin. */
template <int ROWS> GPU_FN void gpu_tile_place_queries(const gpu_tile_call &t) {
    const rope_operand *o = &t.call->rope.tensor[0];
    const int64_t *stride = o->out ? o->out_stride : o->in_stride;
    const rope_attention_sequence *s = &t.b->tile.s;
    const int row = (int)threadIdx.x;
    int64_t query, head;
    if (row < ROWS)
        t.b->queries[row] = gpu_tile_query(t, row, &query, &head)
                                ? (uint32_t)((s->q_row * stride[0] +
                                              (s->q_first + query) * stride[1] + head * stride[2]) /
                                             8)
                                : (uint32_t)GPU_TILE_NONE;
}

template <int DTYPE, int D, int ROWS> GPU_FN void gpu_tile_copy_queries(const gpu_tile_call &t) {
    const rope_operand *o = &t.call->rope.tensor[0];
    const char *from = (const char *)(o->out ? o->out : o->in);
#pragma unroll 4
    for (int e = (int)threadIdx.x; e < ROWS * D / 8; e += GPU_ATTENTION_THREADS) {
        const int row = e / (D / 8), chunk = e % (D / 8);
        const uint32_t at = t.b->queries[row];
        const bool there = at != GPU_TILE_NONE;
        gpu_copy_async(t.queries + gpu_swizzled<D>(row, chunk),
                       from + 16 * (there ? (int64_t)at + chunk : 0), there);
    }
}

template <int DTYPE, int D, int ROWS> GPU_FN void gpu_tile_read_queries(const gpu_tile_call &t) {
    int64_t query, head;
    for (int e = (int)threadIdx.x; e < ROWS * D; e += GPU_ATTENTION_THREADS) {
        const bool there = gpu_tile_query(t, e / D, &query, &head);
        *gpu_swizzled_element<D>(t.queries, e / D, e % D) =
            gpu_narrow<DTYPE>(there ? gpu_query_element<DTYPE>(&gpu_reread(t.call)->rope.tensor[0],
                                                               &t.b->tile.s, query, head, e % D)
                                    : 0);
    }
}

template <int DTYPE, int D, int ROWS> GPU_FN void gpu_tile_fetch_queries(const gpu_tile_call &t) {
    if (t.fits & GPU_TILE_Q)
        gpu_tile_copy_queries<DTYPE, D, ROWS>(t);
    else
        gpu_tile_read_queries<DTYPE, D, ROWS>(t);
}

/* Rotates queries where they lie. Coefficients of a pair serve all heads of a query; tokens: room
 * for one of each query. */
template <int DTYPE, int D, int ROWS>
GPU_FN void gpu_tile_rotate_queries(const gpu_tile_call &t, rope_token *tokens) {
    const rope_problem *p = &t.p->rope;
    const int64_t group = gpu_attention_group(t.call), query0 = t.b->tile.first / group,
                  to = (t.b->tile.first + ROWS - 1) / group;
    const int count = (int)((to < t.b->tile.s.q_count ? to + 1 : t.b->tile.s.q_count) - query0);
    for (int n = (int)threadIdx.x; n < count; n += GPU_ATTENTION_THREADS)
        rope_query_token(t.p, t.call, &t.b->tile.s, query0 + n, &tokens[n]);
    __syncthreads();
    const int pairs = p->pairs;
    const bool moves = p->pairing_in != p->pairing_out;
    for (int e = (int)threadIdx.x; e < count * pairs; e += GPU_ATTENTION_THREADS) {
        const rope_token *token = &tokens[e / pairs];
        const int i = e % pairs, from = p->rotary_offset[0];
        if (token->status != ROPE_TOKEN_ROTATES && !moves)
            continue;
        rope_coefficients m = {1, 0, 1, 0};
        if (token->status == ROPE_TOKEN_ROTATES)
            m = rope_coefficients_of(p, &t.call->rope, token, i, 0);
        const int64_t row0 = (query0 + e / pairs) * group - t.b->tile.first;
        for (int64_t g = row0 < 0 ? -row0 : 0; g < group && row0 + g < ROWS; g++) {
            const int row = (int)(row0 + g), first = from + rope_first_of(p->pairing_in, i),
                      second = from + rope_second_of(p->pairing_in, i, pairs);
            rope_pair x;
            if (moves) {
                const rope_operand *o = &t.call->rope.tensor[0];
                const int64_t head = t.key_head * group + g, query = query0 + e / pairs;
                x.x1 = gpu_query_element<DTYPE>(o, &t.b->tile.s, query, head, first);
                x.x2 = gpu_query_element<DTYPE>(o, &t.b->tile.s, query, head, second);
            } else {
                x.x1 = gpu_widen<DTYPE>(*gpu_swizzled_element<D>(t.queries, row, first));
                x.x2 = gpu_widen<DTYPE>(*gpu_swizzled_element<D>(t.queries, row, second));
            }
            if (token->status == ROPE_TOKEN_ROTATES)
                x = p->arithmetic == ROPE_ARITHMETIC_MODEL_DTYPE ? gpu_rotate_model<DTYPE>(x, m)
                                                                 : rope_rotate(x, m);
            const uint32_t two = gpu_join<DTYPE>(x.x1, x.x2);
            *gpu_swizzled_element<D>(t.queries, row, from + rope_first_of(p->pairing_out, i)) =
                (uint16_t)two;
            *gpu_swizzled_element<D>(t.queries, row,
                                     from + rope_second_of(p->pairing_out, i, pairs)) =
                (uint16_t)(two >> 16);
        }
    }
}

/* --- keys that rows see --- */

GPU_FN int32_t gpu_tile_near(int64_t key, int64_t base) {
    const int64_t n = key - base;
    return (int32_t)(n < -1 ? -1 : n > INT32_MAX ? INT32_MAX : n);
}

GPU_FN rope_key_range gpu_within(rope_key_range keys, rope_key_range within) {
    return {keys.first > within.first ? keys.first : within.first,
            keys.last < within.last ? keys.last : within.last};
}

/* What is seen does not fall from a query to the next. A query that has no position sees nothing,
 * and is left out. */
template <int ROWS> GPU_FN void gpu_tile_see(const gpu_tile_call &t, rope_key_range within) {
    gpu_tile_block *b = t.b;
    if (t.fits & GPU_TILE_Q)
        gpu_tile_place_queries<ROWS>(t);
    const rope_attention_sequence *s = &b->tile.s;
    const int64_t group = gpu_attention_group(t.call), from = b->tile.first / group;
    int64_t to = (b->tile.first + ROWS - 1) / group;
    to = to < s->q_count ? to : s->q_count - 1;
    const rope_key_range before =
                             gpu_within(rope_keys_seen(t.p, s, rope_query_index(s, from)), within),
                         after =
                             gpu_within(rope_keys_seen(t.p, s, rope_query_index(s, to)), within);
    const int64_t base = before.first / GPU_TILE_KEYS * GPU_TILE_KEYS;
    if (threadIdx.x == 0) {
        b->seen = {before.first, after.last};
        b->common = {after.first, before.last};
        b->base = base;
        b->end = before.first < after.last ? gpu_tile_near(after.last, base) : 0;
    }
    for (int row = (int)threadIdx.x; row < ROWS; row += GPU_ATTENTION_THREADS) {
        const int64_t query = (b->tile.first + row) / group;
        const int64_t index = rope_query_index(s, query < s->q_count ? query : s->q_count - 1);
        const rope_key_range seen = gpu_within(rope_keys_seen(t.p, s, index), within);
        b->first[row] = gpu_tile_near(seen.first, base);
        b->last[row] = gpu_tile_near(seen.last, base);
        if (!gpu_queries_may_fail(t.p) || query >= s->q_count)
            continue;
        rope_token *token = (rope_token *)(void *)t.stage + threadIdx.x;
        rope_query_token(t.p, t.call, s, query, token);
        if (token->status == ROPE_TOKEN_FAILS) {
            b->first[row] = INT32_MAX;
            gpu_attention_flag(t.call);
        }
    }
}

/* --- keys and values --- */

/* Where the heads of a tile's keys, from `first` of the block's on, begin; those of keys that no
 * row sees are 0.
 */
GPU_FN void gpu_tile_place(const gpu_tile_call &t, int first, int stage) {
    const int thread = gpu_anew((int)threadIdx.x), n = thread % GPU_TILE_KEYS;
    const int64_t key = t.b->base + first + n;
    if (thread >= 2 * GPU_TILE_KEYS)
        return;
    const bool value = thread >= GPU_TILE_KEYS;
    const rope_append_operand *o = value ? &t.call->v : &t.call->k;
    uint32_t at = 0;
    if (key >= t.b->seen.first && key < t.b->seen.last)
        at = (uint32_t)(gpu_attention_head_of(t.p, t.call, o, value ? &t.p->v : &t.p->k,
                                              &t.b->tile.s, key, t.key_head)
                            .at /
                        8);
    (value ? t.b->values : t.b->keys)[stage][n] = at;
}

/* Copies a tile's rows to shared memory, zeros for keys that no row sees. A thread's rows are a
 * multiple of 8 apart, so that they are swizzled alike. */
template <int D>
GPU_FN void gpu_tile_copy(const gpu_tile_call &t, const rope_append_operand *o,
                          const uint32_t *places, int first, char *to) {
    enum { STEP = GPU_ATTENTION_THREADS * 8 / D };
    static_assert(STEP % 8 == 0, "rows of a thread are swizzled alike");
    const int thread = gpu_anew((int)threadIdx.x), row = thread / (D / 8), chunk = thread % (D / 8);
    const char *from = (const char *)(o->out ? o->out : o->in ? o->in : o->cache) + 16 * chunk;
    const int before = gpu_tile_near(t.b->seen.first, t.b->base + first),
              end = gpu_tile_near(t.b->seen.last, t.b->base + first), at = row - before;
    const unsigned count = end > before ? (unsigned)(end - before) : 0;
    to += gpu_swizzled<D>(row, chunk);
#pragma unroll
    for (int e = 0; e < GPU_TILE_KEYS / STEP; e++)
        gpu_copy_async(to + e * STEP * D * 2, from + 16 * (uint64_t)places[row + e * STEP],
                       (unsigned)(at + e * STEP) < count);
}

/* The same of elements that do not lie side by side, or are of another type. */
template <int DTYPE, int D>
GPU_FN void gpu_tile_read(const gpu_tile_call &t, int value, int from, char *to) {
    const int64_t first = t.b->base + from;
    for (int row = gpu_anew((int)threadIdx.x) / 32; row < GPU_TILE_KEYS;
         row += GPU_ATTENTION_THREADS / 32) {
        const rope_append_operand *o = value ? &gpu_reread(t.call)->v : &gpu_reread(t.call)->k;
        const rope_append_steps *s = value ? &gpu_reread(t.p)->v : &gpu_reread(t.p)->k;
        const bool there = first + row >= t.b->seen.first && first + row < t.b->seen.last;
        gpu_attention_head h = {0, 1};
        if (there)
            h = gpu_attention_head_of(t.p, t.call, o, s, &t.b->tile.s, first + row, t.key_head);
        for (int i = gpu_lane(); i < D; i += 32)
            *gpu_swizzled_element<D>(to, row, i) =
                there ? (uint16_t)gpu_narrow<DTYPE>(gpu_attention_element<DTYPE>(o, s, h, i))
                      : (uint16_t)0;
    }
}

/* Bytes of a tile of keys and one of values. */
template <int D, int DV> GPU_FN constexpr int gpu_stage_bytes(void) {
    return GPU_TILE_KEYS * (D + DV) * 2;
}

/* --- a tile --- */

/* Whether all rows see all keys of a tile, the same ones, or each its own; or a warp's none. */
enum { GPU_TILE_WHOLE, GPU_TILE_ALIKE, GPU_TILE_APART, GPU_TILE_UNSEEN };

template <int MT> GPU_FN int32_t gpu_tile_state(const gpu_tile_call &t, int first) {
    const gpu_tile_block *b = t.b;
    if (t.p->mask == ROPE_MASK_TREE)
        return GPU_TILE_APART;
    if (b->base + first >= b->common.first &&
        b->base + first + gpu_warp_keys<MT>() <= b->common.last)
        return GPU_TILE_WHOLE;
    if (b->last[gpu_warp_row<MT>() + 16 * MT - 1] <= first)
        return GPU_TILE_UNSEEN;
    return b->seen.first == b->common.first && b->seen.last == b->common.last ? GPU_TILE_ALIKE
                                                                              : GPU_TILE_APART;
}

template <int DTYPE, int D, int MT>
GPU_FN void gpu_tile_products(const char *queries, const char *keys,
                              float s[MT][gpu_warp_keys<MT>() / 8][4]) {
    const int lane = gpu_lane(), left = gpu_swizzled<D>(gpu_warp_row<MT>() + lane % 16, lane / 16),
              right = gpu_swizzled<D>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < gpu_warp_keys<MT>() / 8; n++)
            s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0;
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t a[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++)
            gpu_load_matrices(a[m], queries, gpu_moved<D>(left, m, k));
#pragma unroll
        for (int n = 0; n < gpu_warp_keys<MT>() / 16; n++) {
            uint32_t b[4];
            gpu_load_matrices(b, keys, gpu_moved<D>(right, n, k));
#pragma unroll
            for (int m = 0; m < MT; m++) {
                gpu_mma<DTYPE>(s[m][2 * n], a[m], b);
                gpu_mma<DTYPE>(s[m][2 * n + 1], a[m], b + 2);
            }
        }
    }
}

/* cap * tanh(x / cap) of x = scale * s. */
template <int MT>
GPU_FN void gpu_tile_cap(float scale, float cap, float s[MT][gpu_warp_keys<MT>() / 8][4]) {
    const float twice = 2 * 1.44269504f * scale / cap;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < gpu_warp_keys<MT>() / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float power = gpu_exp2(s[m][n][e] * twice);
                s[m][n][e] = fmaf(-2 * cap, gpu_reciprocal(power + 1), cap);
            }
}

/* Bits first.. of a row's words, 1 before bit 0. */
GPU_FN uint64_t gpu_tree_bits(const uint32_t *words, int64_t count, int64_t first) {
    uint32_t w[3];
#pragma unroll
    for (int i = 0; i < 3; i++) {
        const int64_t n = (first >> 5) + i;
        w[i] = n < 0 ? 0xffffffffu : n < count ? words[n] : 0;
    }
    const int shift = (int)(first & 31);
    const uint64_t low = w[0] | (uint64_t)w[1] << 32;
    return shift ? low >> shift | (uint64_t)w[2] << (64 - shift) : low;
}

/* Which keys of a tile a row sees; first: the tile's, from the block's base on. */
GPU_FN uint64_t gpu_tile_sees(const gpu_tile_call &t, int row, int first) {
    const int from = t.b->first[row] - first, to = t.b->last[row] - first;
    const uint64_t before = from <= 0    ? 0
                            : from >= 64 ? ~UINT64_C(0)
                                         : (UINT64_C(1) << from) - 1,
                   upto = to <= 0    ? 0
                          : to >= 64 ? ~UINT64_C(0)
                                     : (UINT64_C(1) << to) - 1;
    const int64_t n = (t.b->tile.first + row) / gpu_attention_group(t.call);
    const rope_attention_sequence *q = &t.b->tile.s;
    uint64_t sees = upto & ~before;
    if (t.p->mask == ROPE_MASK_TREE && n < q->q_count)
        sees &= gpu_tree_bits(t.call->tree_bits + q->q_row * t.call->tree_stride[0] +
                                  (q->q_first + n) * t.call->tree_stride[1],
                              (t.call->tree_keys + 31) / 32,
                              t.b->base + first - q->k_count + t.call->tree_keys);
    return sees;
}

/* -infinity for keys that a row does not see. */
template <int MT>
GPU_FN void gpu_tile_mask(const gpu_tile_call &t, int first,
                          float s[MT][gpu_warp_keys<MT>() / 8][4]) {
    const int lane = gpu_lane();
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = gpu_warp_row<MT>() + 16 * m + 8 * h + lane / 4;
            const uint64_t sees = gpu_tile_sees(t, row, first) >> (lane % 4 * 2);
#pragma unroll
            for (int c = 0; c < gpu_warp_keys<MT>() / 8; c++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (!(sees >> (8 * c + e) & 1))
                        s[m][c][2 * h + e] = -INFINITY;
        }
}

/* From products to weights; unit: log2 of e times what a product is multiplied by. */
template <int DV, int MT>
GPU_FN void gpu_tile_weigh(float unit, float s[MT][gpu_warp_keys<MT>() / 8][4],
                           gpu_tile_rows<DV, MT> &rows) {
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float most = -INFINITY;
#pragma unroll
            for (int n = 0; n < gpu_warp_keys<MT>() / 8; n++)
                most = fmaxf(most, fmaxf(s[m][n][2 * h], s[m][n][2 * h + 1]));
            most = fmaxf(most, gpu_shuffle_xor(most, 1));
            most = fmaxf(most, gpu_shuffle_xor(most, 2)) * unit;
            const float before = rows.largest[m][h], now = fmaxf(before, most),
                        base = now == -INFINITY ? 0 : now, kept = gpu_exp2(before - base);
            rows.largest[m][h] = now;
            float sum = rows.sum[m][h] * kept;
#pragma unroll
            for (int n = 0; n < gpu_warp_keys<MT>() / 8; n++)
#pragma unroll
                for (int e = 2 * h; e < 2 * h + 2; e++) {
                    s[m][n][e] = gpu_exp2(fmaf(s[m][n][e], unit, -base));
                    sum += s[m][n][e];
                }
            rows.sum[m][h] = sum;
            if (gpu_any(kept != 1)) {
#pragma unroll
                for (int n = 0; n < DV / 8; n++) {
                    rows.out[m][n][2 * h] *= kept;
                    rows.out[m][n][2 * h + 1] *= kept;
                }
            }
        }
}

/* Weights of a warp's keys as left operands, 16 keys each. */
template <int MT> struct gpu_tile_weights { uint32_t a[gpu_warp_keys<MT>() / 16][MT][4]; };

template <int DTYPE, int MT>
GPU_FN void gpu_tile_round(const float s[MT][gpu_warp_keys<MT>() / 8][4], gpu_tile_weights<MT> &w) {
#pragma unroll
    for (int k = 0; k < gpu_warp_keys<MT>() / 16; k++)
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                w.a[k][m][i] = (uint32_t)gpu_anew((int)gpu_join<DTYPE>(
                    s[m][2 * k + i / 2][i % 2 * 2], s[m][2 * k + i / 2][i % 2 * 2 + 1]));
}

/* Where a lane's row of values 0..15 by elements 0..15 lies, as the right operand. */
template <int DV> GPU_FN int gpu_tile_values(void) {
    const int lane = gpu_lane();
    return gpu_swizzled<DV>(lane % 16, lane / 16);
}

template <int DTYPE, int DV, int MT>
GPU_FN void gpu_tile_add(const char *values, const gpu_tile_weights<MT> &w,
                         gpu_tile_rows<DV, MT> &rows) {
    const int at = gpu_tile_values<DV>();
#pragma unroll
    for (int k = 0; k < gpu_warp_keys<MT>() / 16; k++) {
#pragma unroll
        for (int n = 0; n < DV / 16; n++) {
            uint32_t b[4];
            gpu_load_transposed(b, values, gpu_moved<DV>(at, k, n));
#pragma unroll
            for (int m = 0; m < MT; m++) {
                gpu_mma<DTYPE>(rows.out[m][2 * n], w.a[k][m], b);
                gpu_mma<DTYPE>(rows.out[m][2 * n + 1], w.a[k][m], b + 2);
            }
        }
    }
}

/* --- values that are not finite, which rows that do not see them may not meet --- */

/* Of two elements those that are, as all bits of each. */
template <int DTYPE> GPU_FN uint32_t gpu_specials(uint32_t two) {
    const uint32_t exponent = DTYPE == ROPE_BF16 ? 0x7f80u : 0x7c00u;
    return ((two & exponent) == exponent ? 0xffffu : 0u) |
           ((two >> 16 & exponent) == exponent ? 0xffff0000u : 0u);
}

/* Of two elements, 1 for NaN and for an infinity of a sign. */
template <int DTYPE> GPU_FN uint32_t gpu_infinities(uint32_t two, uint32_t sign) {
    const uint32_t exponent = DTYPE == ROPE_BF16 ? 0x7f80u : 0x7c00u,
                   one = DTYPE == ROPE_BF16 ? 0x3f80u : 0x3c00u;
    uint32_t ones = 0;
#pragma unroll
    for (int shift = 0; shift < 32; shift += 16) {
        const uint32_t x = two >> shift & 0xffffu;
        if ((x & exponent) == exponent && x != (exponent | (sign ^ 0x8000u)))
            ones |= one << shift;
    }
    return ones;
}

template <int DTYPE, int DV, int MT> GPU_FN bool gpu_tile_has_special(const char *values) {
    const int at = gpu_tile_values<DV>();
    uint32_t found = 0, b[4];
#pragma unroll 1
    for (int k = 0; k < gpu_warp_keys<MT>() / 16; k++)
#pragma unroll 1
        for (int n = 0; n < DV / 16; n++) {
            gpu_load_transposed(b, values, gpu_moved<DV>(at, k, n));
            found |= gpu_specials<DTYPE>(b[0]) | gpu_specials<DTYPE>(b[1]) |
                     gpu_specials<DTYPE>(b[2]) | gpu_specials<DTYPE>(b[3]);
        }
    return gpu_any(found != 0);
}

/* As gpu_tile_add, but for rows whose weight of such a value is 0: how many of each sign a row has
 * is a product of its own. */
template <int DTYPE, int DV, int MT>
GPU_FN void gpu_tile_add_special(const char *values, const gpu_tile_weights<MT> &w,
                                 gpu_tile_rows<DV, MT> &rows) {
    const uint32_t one = DTYPE == ROPE_BF16 ? 0x3f80u : 0x3c00u;
    const int at = gpu_tile_values<DV>();
#pragma unroll
    for (int n = 0; n < MT * DV / 8; n++) {
        const int m = n % MT, half = n / MT;
        float count[2][4] = {};
#pragma unroll
        for (int k = 0; k < gpu_warp_keys<MT>() / 16; k++) {
            /* Loads of the next ones stay behind it: ahead they would take registers. */
            gpu_warp_barrier();
            uint32_t ones[4], b[4], finite[2], infinite[2][2];
            gpu_load_transposed(b, values, gpu_moved<DV>(at, k, half / 2));
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t two = b[half % 2 * 2 + i];
                finite[i] = two & ~gpu_specials<DTYPE>(two);
                infinite[0][i] = gpu_infinities<DTYPE>(two, 0);
                infinite[1][i] = gpu_infinities<DTYPE>(two, 0x8000u);
            }
            gpu_mma<DTYPE>(rows.out[m][half], w.a[k][m], finite);
#pragma unroll
            for (int i = 0; i < 4; i++)
                ones[i] = (w.a[k][m][i] & 0x7fffu ? one : 0) |
                          (w.a[k][m][i] & 0x7fff0000u ? one << 16 : 0);
            gpu_mma<DTYPE>(count[0], ones, infinite[0]);
            gpu_mma<DTYPE>(count[1], ones, infinite[1]);
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            if (count[0][e] > 0)
                rows.out[m][half][e] += INFINITY;
            if (count[1][e] > 0)
                rows.out[m][half][e] -= INFINITY;
        }
    }
}

/* --- a block --- */

/* Ends a row, one of a thread's; `sum` is of the whole row. */
template <int DTYPE, int DV, int MT>
GPU_FN void gpu_tile_store(const gpu_tile_call &t, int m, int h, float sum,
                           const gpu_tile_rows<DV, MT> &rows) {
    const int lane = gpu_lane(), row = gpu_warp_row<MT>() + 16 * m + 8 * h + lane / 4;
    const rope_attention_sequence *s = &t.b->tile.s;
    int64_t query, head;
    if (!gpu_tile_query(t, row, &query, &head) || t.b->first[row] == INT32_MAX)
        return;
    float largest = rows.largest[m][h], kept = 1;
    if (t.p->sink_dtype) {
        float one;
        const float sink = 1.44269504f * gpu_attention_sink(t.p, t.call, head, &one),
                    now = fmaxf(largest, sink), base = now == -INFINITY ? 0 : now;
        kept = gpu_exp2(largest - base);
        sum = fmaf(sum, kept, one * gpu_exp2(sink - base));
        largest = now;
    }
    const float factor = sum == 0 ? 0 : kept / sum;
    const int64_t *stride = t.call->out_stride;
    uint16_t *out = (uint16_t *)t.call->out + s->q_row * stride[0] +
                    (s->q_first + query) * stride[1] + head * stride[2];
#pragma unroll
    for (int n = 0; n < DV / 8; n++) {
        const int i = 8 * n + lane % 4 * 2;
        uint32_t two = gpu_join<DTYPE>(fmaf(rows.out[m][n][2 * h], factor, 0.0f),
                                       fmaf(rows.out[m][n][2 * h + 1], factor, 0.0f));
        two = sum == 0 ? 0 : two;
        if (t.fits & GPU_TILE_OUT) {
            *(uint32_t *)(out + i) = two;
        } else {
            out[i * stride[3]] = (uint16_t)two;
            out[(i + 1) * stride[3]] = (uint16_t)(two >> 16);
        }
    }
    stride = t.call->lse_stride;
    if (t.call->lse && lane % 4 == 0)
        t.call->lse[s->q_row * stride[0] + (s->q_first + query) * stride[1] + head * stride[2]] =
            sum == 0 ? -INFINITY : fmaf(largest, 0.693147182f, logf(sum));
}

template <int DTYPE, int DV, int MT>
GPU_FN void gpu_tile_finish(const gpu_tile_call &t, const gpu_tile_rows<DV, MT> &rows) {
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float sum = rows.sum[m][h];
            sum += gpu_shuffle_xor(sum, 1);
            sum += gpu_shuffle_xor(sum, 2);
            gpu_tile_store<DTYPE, DV, MT>(t, m, h, sum, rows);
        }
}

/* Keys and values of a tile, one stage of two. */
template <int DTYPE, int D, int DV>
GPU_FN void gpu_tile_fetch(const gpu_tile_call &t, int first, int stage) {
    char *keys = t.stage + stage * gpu_stage_bytes<D, DV>(), *values = keys + GPU_TILE_KEYS * D * 2;
    if (t.fits & GPU_TILE_K)
        gpu_tile_copy<D>(t, &t.call->k, t.b->keys[stage], first, keys);
    else
        gpu_tile_read<DTYPE, D>(t, 0, first, keys);
    if (t.fits & GPU_TILE_V)
        gpu_tile_copy<DV>(t, &t.call->v, t.b->values[stage], first, values);
    else
        gpu_tile_read<DTYPE, DV>(t, 1, first, values);
}

/* Queries and the first tile on their way, and what the next one takes. */
template <int DTYPE, int D, int DV, int ROWS>
GPU_FN void gpu_tile_begin(const gpu_tile_call &t, rope_key_range within) {
    gpu_tile_see<ROWS>(t, within);
    __syncthreads();
    gpu_tile_fetch_queries<DTYPE, D, ROWS>(t);
    gpu_tile_place(t, 0, 0);
    __syncthreads();
    gpu_tile_fetch<DTYPE, D, DV>(t, 0, 0);
    gpu_tile_place(t, GPU_TILE_KEYS, 1);
    if (!gpu_rotates_queries(t.p, t.call))
        return;
    gpu_copies_wait();
    __syncthreads();
    gpu_tile_rotate_queries<DTYPE, D, ROWS>(
        t, (rope_token *)(void *)(t.stage + gpu_stage_bytes<D, DV>()));
}

/* Keys `at`.. of the tile from key `first` of the block's on, as many as a warp takes. */
template <int DTYPE, int D, int DV, int MT>
GPU_FN void gpu_tile_attend(const gpu_tile_call &t, int first, int at,
                            gpu_tile_rows<DV, MT> &rows) {
    const char *keys = t.stage + first / GPU_TILE_KEYS % 2 * gpu_stage_bytes<D, DV>(),
               *values = keys + GPU_TILE_KEYS * D * 2 + at * DV * 2;
    const int32_t state = gpu_tile_state<MT>(t, first + at);
    const float scale = t.p->scale, cap = t.p->soft_cap;
    if (state == GPU_TILE_UNSEEN)
        return;
    gpu_tile_weights<MT> w;
    float s[MT][gpu_warp_keys<MT>() / 8][4];
    gpu_tile_products<DTYPE, D, MT>(t.queries, keys + at * D * 2, s);
    if (cap > 0)
        gpu_tile_cap<MT>(scale, cap, s);
    if (state != GPU_TILE_WHOLE)
        gpu_tile_mask<MT>(t, first + at, s);
    gpu_tile_weigh<DV, MT>(1.44269504f * (cap > 0 ? 1 : scale), s, rows);
    gpu_tile_round<DTYPE, MT>(s, w);
    if (state == GPU_TILE_APART && gpu_tile_has_special<DTYPE, DV, MT>(values))
        gpu_tile_add_special<DTYPE, DV, MT>(values, w, rows);
    else
        gpu_tile_add<DTYPE, DV, MT>(values, w, rows);
}

/* Waits for the tile from key `first` of the block's on, and sends for the next. */
template <int DTYPE, int D, int DV> GPU_FN void gpu_tile_turn(const gpu_tile_call &t, int first) {
    const int stage = first / GPU_TILE_KEYS % 2;
    gpu_copies_wait();
    __syncthreads();
    if (first + GPU_TILE_KEYS < t.b->end)
        gpu_tile_fetch<DTYPE, D, DV>(t, first + GPU_TILE_KEYS, stage ^ 1);
    gpu_tile_place(t, first + 2 * GPU_TILE_KEYS, stage);
}

/* All rows of a block. */
template <int DTYPE, int D, int DV, int MT>
GPU_FN void gpu_tile_block_attend(const gpu_tile_call &t) {
    enum { ROWS = MT * 16 * GPU_ATTENTION_THREADS / 32 };
    gpu_tile_begin<DTYPE, D, DV, ROWS>(t, {0, INT64_MAX});
    gpu_tile_rows<DV, MT> rows = {};
#pragma unroll
    for (int m = 0; m < MT; m++)
        rows.largest[m][0] = rows.largest[m][1] = -INFINITY;
#pragma unroll 1
    for (int first = 0; first < t.b->end; first += gpu_warp_keys<MT>()) {
        if (first % GPU_TILE_KEYS == 0)
            gpu_tile_turn<DTYPE, D, DV>(t, first);
        gpu_tile_attend<DTYPE, D, DV, MT>(t, first / GPU_TILE_KEYS * GPU_TILE_KEYS,
                                          first % GPU_TILE_KEYS, rows);
    }
    gpu_copies_wait();
    gpu_tile_finish<DTYPE, DV, MT>(t, rows);
    __syncthreads();
}

#endif

template <int DTYPE, int D, int DV, int MT>
__global__ void __launch_bounds__(GPU_ATTENTION_THREADS, 2)
    gpu_attention_tiles(GPU_PARAMETER rope_attention_problem problem,
                        GPU_PARAMETER rope_attention_call given, const int32_t *failed,
                        int32_t fits) {
#if GPU_HAS_TILES
    const rope_attention_problem &p = *gpu_parameter<rope_attention_problem>(problem);
    const rope_attention_call &call =
        *gpu_parameter<rope_attention_call, rope_attention_problem>(given);
    enum { ROWS = MT * 16 * GPU_ATTENTION_THREADS / 32 };
    extern __shared__ uint4 memory[];
    __shared__ gpu_tile_block b;
    gpu_wait_for_last();
    gpu_let_next_start();
    for (int64_t n = blockIdx.x;
         gpu_attention_find<0>(&p, &call, failed, n, gpu_attention_group(&call), ROWS, &b.tile);
         n = b.next) {
        if (threadIdx.x == 0)
            b.next = n + gridDim.x;
        __syncthreads();
        if (!b.tile.valid || (fits & GPU_TILE_SPLITS && gpu_is_decoded(&call, &b.tile.s)) ||
            b.tile.first >= b.tile.s.q_count * gpu_attention_group(&call))
            continue;
        for (int32_t head = (int32_t)blockIdx.y; head < call.k.heads; head += (int32_t)gridDim.y) {
            const gpu_tile_call t = {&p,   &call, &b, (char *)memory, (char *)memory + ROWS * D * 2,
                                     head, fits};
            gpu_tile_block_attend<DTYPE, D, DV, MT>(t);
        }
    }
#endif
}

#endif
