/* Which keys of a tile the rows of a block see. */
#ifndef ROPEKIT_GPU_ATTENTION_MASK_H
#define ROPEKIT_GPU_ATTENTION_MASK_H

#include "backends/gpu/attention/query.h"

GPU_FN int32_t gpu_tile_near(int64_t key, int64_t base) {
    const int64_t n = key - base;
    return (int32_t)(n < -1 ? -1 : n > INT32_MAX ? INT32_MAX : n);
}

/* Keys that a query sees, of those within a range. */
GPU_FN rope_key_range gpu_tile_seen(const gpu_tile_call &t, int64_t query, rope_key_range within) {
    const rope_attention_sequence *s = &t.b->tile.s;
    const int64_t last = s->q_count - 1;
    return gpu_within(
        rope_keys_seen(gpu_reread(t.p), s, rope_query_index(s, query < last ? query : last)),
        within);
}

/* Row `row`, a thread's own: its query, and the keys that it sees. A query that has no position
 * sees nothing, and is left out. */
GPU_FN void gpu_tile_see_row(const gpu_tile_call &t, int row, int64_t query,
                             rope_key_range within) {
    gpu_tile_block *b = t.b;
    const rope_key_range seen = gpu_tile_seen(t, query, within);
    b->query[row] = (int32_t)(query - b->query0);
    b->begin[row] = gpu_tile_near(seen.begin, b->base.key);
    b->end[row] = gpu_tile_near(seen.end, b->base.key);
    if (!gpu_queries_may_fail(gpu_reread(t.p)) || query >= b->tile.s.q_count)
        return;
    rope_token *token = (rope_token *)(void *)t.stage + threadIdx.x;
    rope_query_token(gpu_reread(t.p), gpu_reread(t.call), &b->tile.s, query, token);
    if (token->status == ROPE_TOKEN_FAILS) {
        b->begin[row] = INT32_MAX;
        gpu_attention_flag(gpu_reread(t.call));
    }
}

/* Keys that are seen do not fall from a query to the next. */
template <int D, int ROWS>
GPU_FN void gpu_tile_see(const gpu_tile_call &t, int32_t head, rope_key_range within) {
    enum { COUNT = gpu_block_rows<ROWS> };
    gpu_tile_block *b = t.b;
    const int64_t group = gpu_attention_group(gpu_reread(t.call)), first = b->tile.first;
    if (gpu_thread() == 0) {
        const int64_t query0 = first / group;
        const rope_key_range before = gpu_tile_seen(t, query0, within),
                             after = gpu_tile_seen(t, (first + COUNT - 1) / group, within);
        const int64_t base = before.begin / GPU_TILE_KEYS * GPU_TILE_KEYS;
        b->head = head;
        b->group = group;
        b->query0 = query0;
        const int32_t from = gpu_tile_near(before.begin, base);
        b->seen = {gpu_reread(t.p)->head_dim == D && gpu_reread(t.p)->v_head_dim == D ? from
                                                                                      : INT32_MAX,
                   before.begin < after.end ? gpu_tile_near(after.end, base) : 0, from,
                   gpu_tile_near(after.begin, base), gpu_tile_near(before.end, base)};
        b->base = gpu_key_origin_of(gpu_reread(t.p), base);
        b->source[0] = gpu_key_source_of(&gpu_reread(t.call)->k, &b->tile.s, head);
        b->source[1] = gpu_key_source_of(&gpu_reread(t.call)->v, &b->tile.s, head);
    }
    __syncthreads();
    for (int row = gpu_thread(); row < COUNT; row += GPU_ATTENTION_THREADS)
        gpu_tile_see_row(t, row, (first + row) / group, within);
    if (gpu_fits(t, GPU_TILE_Q))
        gpu_tile_place_queries<ROWS>(t);
}

/* --- a tile --- */

/* Whether all rows see all keys of a tile, the same ones, or each its own; or a warp's none. */
enum { GPU_TILE_WHOLE, GPU_TILE_ALIKE, GPU_TILE_APART, GPU_TILE_UNSEEN };

/* The state of `keys` keys from `first` of the block's on, for a block's rows. */
GPU_FN int32_t gpu_tile_state(const gpu_tile_call &t, const gpu_tile_keys_seen &seen, int first,
                              int keys) {
    if (gpu_reread(t.p)->mask == ROPE_MASK_TREE)
        return GPU_TILE_APART;
    if (first >= seen.common && first + keys <= seen.common_end)
        return GPU_TILE_WHOLE;
    return seen.begin == seen.common && seen.end == seen.common_end ? GPU_TILE_ALIKE
                                                                    : GPU_TILE_APART;
}

/* The state of a warp's keys, for its rows. */
template <int ROWS>
GPU_FN int32_t gpu_warp_state(const gpu_tile_call &t, const gpu_tile_keys_seen &seen, int first) {
    const int32_t state = gpu_tile_state(t, seen, first, gpu_warp_keys<ROWS>);
    return state != GPU_TILE_WHOLE && gpu_reread(t.p)->mask != ROPE_MASK_TREE &&
                   t.b->end[gpu_warp_row<ROWS>() + 16 * gpu_row_blocks<ROWS> - 1] <= first
               ? GPU_TILE_UNSEEN
               : state;
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

/* Bits from..to - 1, of 64. */
GPU_FN uint64_t gpu_bits_between(int from, int to) {
    const uint64_t before = from <= 0    ? 0
                            : from >= 64 ? ~UINT64_C(0)
                                         : (UINT64_C(1) << from) - 1,
                   upto = to <= 0    ? 0
                          : to >= 64 ? ~UINT64_C(0)
                                     : (UINT64_C(1) << to) - 1;
    return upto & ~before;
}

/* Which of 64 keys from `key` on are near a query, where keys count by position ids. */
GPU_FN uint64_t gpu_tree_near(const rope_attention_problem *p, const rope_attention_call *call,
                              const rope_attention_sequence *s, int64_t query, int64_t key) {
    const rope_key_range near = rope_keys_near(p, s, rope_query_counted(call, s, query));
    uint64_t sees = 0;
#pragma unroll 1
    for (int n = 0; n < 64 && key + n < s->k_count; n++) {
        const int64_t counted = rope_key_counted(call, s, key + n);
        sees |= (uint64_t)(counted >= near.begin && counted < near.end) << n;
    }
    return sees;
}

/* Which of 64 keys from `key` on a query sees by its tree, if there is one. */
GPU_FN uint64_t gpu_tree_sees(const rope_attention_problem *p, const rope_attention_call *call,
                              const rope_attention_sequence *s, int64_t query, int64_t key) {
    if (p->mask != ROPE_MASK_TREE)
        return ~UINT64_C(0);
    const uint64_t sees = gpu_tree_bits(call->tree_bits + s->q_row * call->tree_stride[0] +
                                            (s->q_first + query) * call->tree_stride[1],
                                        (call->tree_keys + 31) / 32, rope_tree_bit(call, s, key));
    return s->by_id ? sees & gpu_tree_near(p, call, s, query, key) : sees;
}

/* Which keys of a tile a row sees; first: the tile's, from the block's base on. */
GPU_FN uint64_t gpu_tile_sees(const gpu_tile_call &t, int row, int first) {
    const int64_t n = t.b->query0 + t.b->query[row];
    const rope_attention_sequence *q = &t.b->tile.s;
    uint64_t sees = gpu_bits_between(t.b->begin[row] - first, t.b->end[row] - first);
    if (n < q->q_count)
        sees &= gpu_tree_sees(gpu_reread(t.p), gpu_reread(t.call), q, n, t.b->base.key + first);
    return sees;
}

/* -infinity for keys that a row does not see. Each lane finds out for one row. */
template <int ROWS>
GPU_FN void gpu_tile_mask(const gpu_tile_call &t, int first, gpu_tile_scores<ROWS> &s) {
    const int lane = gpu_lane();
    uint64_t *rows = t.b->sees + (gpu_thread() - lane);
    rows[lane] = gpu_tile_sees(t, gpu_warp_row<ROWS>() + lane % (16 * gpu_row_blocks<ROWS>), first);
    gpu_warp_barrier();
    gpu_mask(s, [&](int m, int h) {
        const uint64_t sees = rows[16 * m + gpu_row_of(lane, h)] >> gpu_first_key_of(lane);
        return [sees](int key) { return sees >> key & 1; };
    });
    gpu_warp_barrier();
}

#endif
