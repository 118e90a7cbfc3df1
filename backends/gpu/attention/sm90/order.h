/* The order in which blocks take tiles, and what each tile is. */
#ifndef ROPEKIT_GPU_ATTENTION_SM90_ORDER_H
#define ROPEKIT_GPU_ATTENTION_SM90_ORDER_H

#include "backends/gpu/attention/sm90/spans.h"

/* Tiles of a packed sequence begin here: sequences together have at most `each`. */
template <class T> GPU_FN int64_t sm90_packed_start(const sm90_block &b, int64_t sequence) {
    const rope_position_map *map = &b.call->rope.position;
    const int64_t begin = rope_index_at(map, map->cu_seqlens, sequence),
                  first = begin < 0             ? 0
                          : begin < map->tokens ? begin
                                                : map->tokens;
    const int64_t rows = first << b.schedule->pack;
    return (T::TALL ? (uint32_t)(rows >> 6) / 3 : rows >> 7) + sequence;
}

/* Sequence and place of tile n of those that are packed, the last place first. Below 0: n is behind
 * all, as where the last sequence ends ahead of its row. */
template <class T>
GPU_FN int64_t sm90_packed_place(const sm90_block &b, int64_t n, int64_t *place) {
    int64_t low = 0, high = rope_attention_sequences(b.call);
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (sm90_packed_start<T>(b, middle) <= n)
            low = middle;
        else
            high = middle;
    }
    *place = sm90_packed_start<T>(b, low + 1) - 1 - n;
    return low;
}

/* The same of a call that is looked at. */
template <class T> GPU_FN int sm90_looked_place(const sm90_block &b, int n, int64_t *place) {
    const int32_t *end = sm90_sight_of<T>(b)->end;
    int low = 0, high = (int)rope_attention_sequences(b.call);
    while (low < high) {
        const int middle = (low + high) / 2;
        if (end[middle] <= n)
            low = middle + 1;
        else
            high = middle;
    }
    *place = end[low] - 1 - n;
    return low;
}

/* Finds sequence `n`; 0 where it fails, as a launch ahead may find. */
template <class T> GPU_FN int sm90_sequence_of(const sm90_block &b, int64_t n, sm90_sequence *to) {
    const sm90_schedule &order = *b.schedule;
    if (order.tokens >= 0) {
        *to = {(int32_t)n,
               0,
               order.tokens,
               (int32_t)n,
               0,
               order.k_tokens,
               0,
               order.k_tokens - order.tokens};
        return 1;
    }
    const rope_attention_sequence s = rope_attention_sequence_of(b.p, b.call, n);
    *to = {(int32_t)s.q_row,   (int32_t)s.q_first,
           (int32_t)s.q_count, (int32_t)(b.p->cache ? n : s.k_row),
           (int32_t)s.k_first, (int32_t)s.k_count,
           (int32_t)s.k_index, (int32_t)rope_query_index(&s, 0)};
    if (b.failed)
        sm90_wait_for_last<T>(b);
    if (!s.fails && !(b.failed && b.failed[n]))
        return 1;
    gpu_attention_flag(b.call);
    return 0;
}

/* Whether sequence s has tiles of this kind. */
template <class T> GPU_FN int sm90_is_kind(const sm90_schedule &order, const sm90_sequence &s) {
    return (!order.splits || s.q_count * order.shares.by > GPU_SPLIT_ROWS) &&
           (!T::ORDERED || (s.q_count >= order.tall_from) == T::TALL);
}

/* Whether some sequence may have tiles of this kind, by its number of queries alone. A launch
 * behind that of the other kind seldom has one, and ends at once. By a block. */
template <class T> GPU_FN int sm90_may_have(const sm90_block &b) {
    const rope_attention_problem *p = sm90_opaque(b.p);
    const rope_attention_call *call = sm90_opaque(b.call);
    int found = 0;
    for (int64_t n = threadIdx.x; n < rope_attention_sequences(call); n += blockDim.x) {
        sm90_sequence s = {};
        s.q_count = (int32_t)rope_attention_sequence_of(p, call, n).q_count;
        found |= s.q_count > 0 && sm90_is_kind<T>(*b.schedule, s);
    }
    return __syncthreads_or(found);
}

/* Looks at sequences whose lengths lie on the device, ahead of the first tile, which waits for
 * loads one behind another otherwise, and counts tiles of this kind. By a block. */
template <class T> GPU_FN void sm90_look(sm90_block &b) {
    const sm90_schedule &order = *b.schedule;
    sm90_sight *sight = sm90_sight_of<T>(b);
    const int sequences = (int)rope_attention_sequences(b.call), queries = T::ROWS >> order.pack,
              thread = (int)threadIdx.x, lane = thread % 32;
    int all = 0;
    for (int first = 0; first < sequences; first += (int)blockDim.x) {
        const int n = first + thread;
        sm90_sequence s = {};
        if (n < sequences && !sm90_sequence_of<T>(b, n, &s))
            s.q_count = 0;
        int tiles = sm90_is_kind<T>(order, s) ? (s.q_count + queries - 1) / queries : 0;
        for (int i = 1; i < 32; i *= 2) {
            const int before = __shfl_up_sync(~0u, tiles, i);
            tiles += lane >= i ? before : 0;
        }
        if (lane == 31)
            sight->warps[thread / 32] = tiles;
        __syncthreads();
        tiles += all;
        for (int i = 0; i < (int)blockDim.x / 32; i++) {
            tiles += i < thread / 32 ? sight->warps[i] : 0;
            all += sight->warps[i];
        }
        if (n < min(sequences, (int)SM90_LOOKED))
            sight->end[n] = tiles;
        if (n < min(sequences, (int)SM90_SEEN))
            sight->sequence[n] = s;
        __syncthreads();
    }
    if (b.call->rope.position.cu_seqlens && sm90_is_looked_at<T>(b)) {
        b.each = min(all, order.each);
        b.chunk = sm90_divisor_of(max(order.group.by * b.each, 1));
    }
    b.tiles = all ? b.each * order.units : 0;
}

/* Fills tile n with a span of its keys; 0 where there is nothing to do. */
template <class T> GPU_FN int sm90_tile_of(const sm90_block &b, int32_t n, int span, sm90_tile *t) {
    const sm90_schedule &order = *b.schedule;
    const int looked = sm90_is_looked_at<T>(b);
    const int32_t chunk = sm90_over(b.chunk, n), within = n - chunk * b.chunk.by,
                  first = chunk * order.group.by;
    const sm90_divisor units = first + order.group.by <= order.units ? order.group : order.last;
    const int32_t step = sm90_over(units, within), unit = first + within - step * units.by,
                  row = sm90_over(order.heads, unit);
    int64_t sequence = row, place = b.each - 1 - step;
    if (order.tokens < 0 && b.call->rope.position.cu_seqlens)
        sequence =
            looked ? sm90_looked_place<T>(b, step, &place) : sm90_packed_place<T>(b, step, &place);
    if (place < 0)
        return 0;
    sm90_sequence s;
    if (looked && sequence < SM90_SEEN)
        s = sm90_sight_of<T>(b)->sequence[sequence];
    else if (!sm90_sequence_of<T>(b, sequence, &s))
        return 0;
    const int32_t query = (int32_t)place * (T::ROWS >> order.pack),
                  queries = min(s.q_count - query, T::ROWS >> order.pack);
    if (queries <= 0 || !sm90_is_kind<T>(order, s))
        return 0;
    t->rows = queries << order.pack;
    t->q_row = s.q_row;
    t->q_token = s.q_first + query;
    t->k_row = s.k_row;
    t->k_token = s.k_first;
    t->head = (unit - row * order.heads.by) << order.pack;
    t->k_head = sm90_over(order.shares, t->head);
    t->index = s.index + query;
    t->end = s.k_count;
    t->k_index = s.k_index;
    t->lse = order.lse;
    if (order.lse)
        t->lse += t->q_row * order.lse_stride[0] + t->q_token * order.lse_stride[1] +
                  t->head * order.lse_stride[2];
    sm90_seen seen[2];
    const int index[2] = {t->index, t->index + queries - 1};
    sm90_see_window(order.mask, index, t->end, seen);
    sm90_see_chunk(order.mask, index, t->end, t->k_index, seen);
    sm90_count_keys<T>(t, seen[0], seen[1]);
    if (!T::SPANS)
        return 1;
    const int heads = b.spans->heads, rows = T::ROWS >> order.pack;
    return sm90_leave_span(b, sequence, (s.q_count + rows - 1) / rows * heads,
                           (int)place * heads + unit - row * order.heads.by, span, t);
}

/* The number of this block's next tile: the first is its own, the others are given out, or dealt
 * in rounds, each in the other direction. */
GPU_FN int32_t sm90_next_number(const sm90_schedule &order, int32_t last) {
    const int32_t blocks = (int32_t)gridDim.x;
    return order.tickets ? blocks + (int32_t)atomicAdd(order.tickets, 1u)
                         : (last / blocks + 2) * blocks - 1 - last % blocks;
}

#endif
