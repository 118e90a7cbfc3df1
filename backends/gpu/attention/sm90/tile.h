/* Tiles of rows, in the order in which blocks take them, and what a block's threads share. */
#ifndef ROPEKIT_GPU_ATTENTION_SM90_TILE_H
#define ROPEKIT_GPU_ATTENTION_SM90_TILE_H

#include "backends/gpu/attention/rows.h"
#include "backends/gpu/attention/sm90/kernels.h"
#include "backends/gpu/attention/sm90/wgmma.h"

/* Types of elements, sizes of heads, and what follows from them. */
template <int DTYPE_, int DIM_, int V_DIM_, int ROWS_, int CAPS_, int NORMS_> struct sm90_type {
    enum {
        DTYPE = DTYPE_,
        DIM = DIM_,
        V_DIM = V_DIM_,
        CAPS = CAPS_,                   /* scores have a soft cap */
        NORMS = NORMS_,                 /* queries have a norm */
        ORDERED = DIM_ <= 64 && !CAPS_, /* consumers begin products in order */
        ROWS = ROWS_,
        TALL = ROWS > SM90_ROWS,
        CONSUMERS = ROWS / 64,                             /* groups that multiply 64 rows each */
        KEYS = TALL ? SM90_TALL_KEYS : GPU_SM90_KEYS(DIM), /* of a tile */
        QUERIES = GPU_SM90_QUERIES(DIM),                   /* tiles of them in shared memory */
        QUERY_BYTES = ROWS * DIM * 2,
        KEY_BYTES = KEYS * DIM * 2,
        VALUE_BYTES = KEYS * V_DIM * 2,
        RESULT_BYTES = QUERIES == 2 ? ROWS * V_DIM * 2 : 0, /* or they go straight to memory */
        SCORES = KEYS / 2,                                  /* that a thread has of two rows */
        WEIGHTS = KEYS / 4,                                 /* as many, in pairs */
        ELEMENTS = V_DIM / 2                                /* of their results */
    };
};

/* Rows [query, head] of some heads that read one key head. Their keys are taken from the last tile
 * of them to the first: `right` tiles that some row sees in part, `whole` ones, and the rest. */
struct __align__(16) sm90_tile {
    int32_t first, tiles, right, whole;     /* tiles of keys */
    int32_t head;                           /* the first one; -1: no tile is left */
    int32_t careful;                        /* SM90_CAREFUL and SM90_TOLD, or 0 */
    int32_t index, end;                     /* its first query's among keys; keys of the sequence */
    float *lse;                             /* of the first row, or NULL */
    int32_t q_row, q_token, k_row, k_token; /* where its queries and keys begin; a cache's row is
                                               the sequence */
    int32_t k_index;                        /* of its first key among all of the sequence's */
    int32_t rows;                           /* that are there */
    int32_t number;                         /* of all tiles */
};

/* SM90_CAREFUL: values of the tile are cleaned. SM90_TOLD: it is listed to be computed again. */
enum { SM90_CAREFUL = 1, SM90_TOLD = 2 };

/* Rows are described that many tiles ahead of those that end. */
enum { SM90_KNOWN = 8 };

/* Tiles of a block that may be computed again; when half as many are, the rest is careful at once.
 */
enum { SM90_AGAIN = 64 };

/* Where a sequence's queries and keys begin, how many there are, and indices of the first ones. */
struct sm90_sequence {
    int32_t q_row, q_first, q_count, k_row, k_first, k_count, k_index, index;
};

/* Sequences of a call that has so many at most, and where tiles of packed ones begin. One that
 * fails has no queries. */
enum { SM90_SEEN = 32 };
struct sm90_sight {
    int32_t begin[SM90_SEEN + 1];
    sm90_sequence sequence[SM90_SEEN];
};

/* Each barrier's phases are counted by those who wait: phase n / 2 of barrier n % 2. */
struct sm90_header {
    uint64_t keys_full[2], keys_free[2], values_full[2], values_free[2];
    uint64_t queries_full[2], queries_free[2];
    uint64_t queries_sent[2]; /* of queries that are rotated */
    uint64_t values_sent[2];  /* of values that are cleaned */
    uint64_t tile_wanted[2], tile_known[SM90_KNOWN], all_ended[1];
    uint32_t again_count;
    int32_t again[SM90_AGAIN];
    int32_t found[4]; /* something was taken out of values n, at n % 4 */
    sm90_tile tile[SM90_KNOWN];
    float norms[SM90_ROWS]; /* of rows that are rotated ahead */
    sm90_sight sight;       /* where lengths lie on the device */
};
static_assert(sizeof(sm90_header) <= SM90_HEADER, "in its room");

/* How many of the keys of a tile's last tile of keys are there. */
template <class T> GPU_FN int sm90_last_keys(const volatile sm90_tile *t) {
    return min(t->end - (t->first + t->tiles - 1) * T::KEYS, (int)T::KEYS);
}

/* Whether some row does not see all of tile j of keys, counted from the last one. */
GPU_FN int sm90_is_part(const volatile sm90_tile *t, int j) {
    return j < t->right || j >= t->right + t->whole;
}

/* Whether values of tile j of keys are cleaned ahead of their product. */
template <class T> GPU_FN int sm90_is_cleaned(const volatile sm90_tile *t, int j) {
    return (j == 0 && sm90_last_keys<T>(t) < T::KEYS) ||
           (t->careful == SM90_CAREFUL && sm90_is_part(t, j));
}

/* A block's shared memory, and what its threads read of the call. */
struct sm90_block {
    const rope_attention_problem *p;
    const rope_attention_call *call;
    const int32_t *failed;
    const sm90_schedule *schedule;
    sm90_header *header;
    uint32_t memory;       /* address of the tiles */
    const sm90_cap *cap;   /* or NULL */
    const sm90_norm *norm; /* or NULL */
};

/* A barrier of the threads of a consumer. */
template <class T> GPU_FN void sm90_group_barrier(int consumer) {
    if (T::CONSUMERS > 2 && consumer == 2)
        asm volatile("bar.sync 6, 128;" ::: "memory");
    else
        sm90_group_barrier(consumer);
}

/* Consumers of an ORDERED type begin products in order: each waits until it is the next and then
 * names another. Late warps are waited for, as all of them count. */
#define SM90_ORDER(what, consumer, n, barrier)                                                     \
    asm volatile("{ .reg .pred p; setp.eq.s32 p, %0, " n "; @p bar." what " " barrier              \
                 ", 256; }" ::"r"(consumer)                                                        \
                 : "memory")
template <class T> GPU_FN void sm90_await_order(int consumer) {
    SM90_ORDER("sync", consumer, "0", "7");
    SM90_ORDER("sync", consumer, "1", "8");
    if (T::CONSUMERS > 2)
        SM90_ORDER("sync", consumer, "2", "9");
}

template <class T> GPU_FN void sm90_next_in_order(int consumer) {
    const int next = consumer + 1 < T::CONSUMERS ? consumer + 1 : 0;
    SM90_ORDER("arrive", next, "0", "7");
    SM90_ORDER("arrive", next, "1", "8");
    if (T::CONSUMERS > 2)
        SM90_ORDER("arrive", next, "2", "9");
}
#undef SM90_ORDER

struct sm90_maps {
    const CUtensorMap *q, *k, *v, *out;
};

/* Tiles of queries, of keys and of values in shared memory. */
template <class T> GPU_FN uint32_t sm90_queries(const sm90_block &b, int stage) {
    return b.memory + (uint32_t)(stage % T::QUERIES) * T::QUERY_BYTES;
}
template <class T> GPU_FN uint32_t sm90_keys(const sm90_block &b, int stage) {
    return b.memory + T::QUERIES * T::QUERY_BYTES + (uint32_t)stage * T::KEY_BYTES;
}
template <class T> GPU_FN uint32_t sm90_values(const sm90_block &b, int stage) {
    return sm90_keys<T>(b, 2) + (uint32_t)stage * T::VALUE_BYTES;
}
/* A consumer's share of the tile of results. */
template <class T> GPU_FN uint32_t sm90_results(const sm90_block &b, int consumer) {
    return sm90_values<T>(b, 2) + (uint32_t)consumer * (T::RESULT_BYTES / T::CONSUMERS);
}

/* Where the 8 elements of chunk `chunk` of a row lie in a tile of `rows` rows, whose heads are
 * stored by 64 elements. */
GPU_FN uint32_t sm90_chunk(int rows, int row, int chunk) {
    return (uint32_t)((chunk >> 3) * rows * 128 + row * 128 + ((chunk ^ row) & 7) * 16);
}

/* The page of a cache that holds a sequence's key. */
GPU_FN int sm90_page(const rope_attention_problem *p, const rope_attention_call *call, int sequence,
                     int key) {
    return (int)rope_index_of(p->table_wide, call->block_table,
                              sequence * call->table_stride[0] +
                                  key / (int)p->page_size * call->table_stride[1]);
}

/* --- order --- */

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

/* Whether sequences are in sight. */
GPU_FN int sm90_sees(const sm90_block &b) {
    return b.schedule->tokens < 0 && rope_attention_sequences(b.call) <= SM90_SEEN;
}

template <class T> GPU_FN int64_t sm90_packed_begin(const sm90_block &b, int64_t sequence) {
    return sm90_sees(b) ? b.header->sight.begin[sequence] : sm90_packed_start<T>(b, sequence);
}

/* Sequence and place of tile n of those that are packed, the last place first. Below 0: n is behind
 * all, as where the last sequence ends ahead of its row. */
template <class T>
GPU_FN int64_t sm90_packed_place(const sm90_block &b, int64_t n, int64_t *place) {
    int64_t low = 0, high = rope_attention_sequences(b.call);
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (sm90_packed_begin<T>(b, middle) <= n)
            low = middle;
        else
            high = middle;
    }
    *place = sm90_packed_begin<T>(b, low + 1) - 1 - n;
    return low;
}

/* Keys that a row sees: from `first` to `end` - 1. */
struct sm90_seen {
    int first, end;
};

/* What two rows see, as rope_keys_seen() without a tree or a ring. count: keys that are there;
 * k_index: the first one's index, by which chunks count. */
GPU_FN void sm90_see(const sm90_mask &m, const int (&index)[2], int count, int k_index,
                     sm90_seen (&seen)[2]) {
#pragma unroll
    for (int h = 0; h < 2; h++)
        seen[h] = {max(index[h] - m.before, 0), min(index[h] + m.behind + 1, count)};
    if (m.chunk < SM90_FAR)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int whole = index[h] + k_index,
                      begin = (whole - (whole < 0 ? m.chunk - 1 : 0)) / m.chunk * m.chunk - k_index;
            seen[h] = {max(seen[h].first, begin), min(seen[h].end, begin + m.chunk)};
        }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        seen[h].first = min(seen[h].first, count);
        seen[h].end = max(seen[h].first, seen[h].end);
    }
}

/* What a thread's rows of a tile see: `row` and the eighth behind it. */
GPU_FN void sm90_see_rows(const sm90_block &b, const sm90_tile *t, int row, sm90_seen (&seen)[2]) {
    const int4 rows = *(const int4 *)(const void *)&t->head;
    const int pack = b.schedule->pack;
    sm90_see(b.schedule->mask, {rows.z + (row >> pack), rows.z + ((row + 8) >> pack)}, rows.w,
             t->k_index, seen);
}

/* Which tiles of keys rows see, of which the first row and the last one see these. */
template <class T> GPU_FN void sm90_count_keys(sm90_tile *t, sm90_seen first, sm90_seen last) {
    const int some = last.end > first.first, whole = (last.first + T::KEYS - 1) / T::KEYS,
              whole_end = first.end / T::KEYS;
    t->first = some ? first.first / T::KEYS : 0;
    t->tiles = some ? (last.end - 1) / T::KEYS + 1 - t->first : 1;
    t->right = t->tiles;
    t->whole = 0;
    if (some && whole < whole_end) {
        t->right = t->first + t->tiles - whole_end;
        t->whole = whole_end - whole;
    }
}

/* Finds sequence `n`; 0 where it fails. */
GPU_FN int sm90_sequence_of(const sm90_block &b, int64_t n, sm90_sequence *to) {
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
    if (!s.fails && !(b.failed && b.failed[n]))
        return 1;
    gpu_attention_flag(b.call);
    return 0;
}

/* Looks at sequences ahead of the first tile, which waits for loads one behind another otherwise.
 * By a warp. */
template <class T> GPU_FN void sm90_look(const sm90_block &b) {
    const int sequences = (int)rope_attention_sequences(b.call), lane = (int)threadIdx.x % 32;
    sm90_sight *sight = &b.header->sight;
    if (lane < sequences && !sm90_sequence_of(b, lane, &sight->sequence[lane]))
        sight->sequence[lane].q_count = 0;
    if (b.call->rope.position.cu_seqlens)
        for (int i = lane; i <= sequences; i += 32)
            sight->begin[i] = (int32_t)sm90_packed_start<T>(b, i);
}

/* Whether a launch of one kind of tiles has some. By a block. */
template <class T> GPU_FN int sm90_has_tiles(const sm90_block &b) {
    const int64_t sequences = rope_attention_sequences(b.call);
    int some = !b.call->rope.position.cu_seqlens && !b.call->q_lengths;
    for (int64_t n = threadIdx.x; !some && n < sequences; n += blockDim.x)
        some = (rope_attention_sequence_of(b.p, b.call, n).q_count >= b.schedule->tall_from) ==
               T::TALL;
    return __syncthreads_or(some);
}

/* Fills tile n; 0 where there is nothing to do. */
template <class T> GPU_FN int sm90_tile_of(const sm90_block &b, int32_t n, sm90_tile *t) {
    const sm90_schedule &order = *b.schedule;
    const int32_t per = order.group * order.each, chunk = n / per, within = n - chunk * per,
                  units = min(order.group, order.units - chunk * order.group),
                  step = within / units, unit = chunk * order.group + within - step * units,
                  row = unit / order.heads;
    int64_t sequence = row, place = order.each - 1 - step;
    if (order.tokens < 0 && b.call->rope.position.cu_seqlens)
        sequence = sm90_packed_place<T>(b, step, &place);
    if (place < 0)
        return 0;
    sm90_sequence s;
    if (sm90_sees(b))
        s = b.header->sight.sequence[sequence];
    else if (!sm90_sequence_of(b, sequence, &s))
        return 0;
    const int32_t query = (int32_t)place * (T::ROWS >> order.pack),
                  queries = min(s.q_count - query, T::ROWS >> order.pack);
    if (queries <= 0 || (order.splits && s.q_count * order.shares <= GPU_SPLIT_ROWS) ||
        (T::ORDERED && (s.q_count >= order.tall_from) != T::TALL))
        return 0;
    t->rows = queries << order.pack;
    t->q_row = s.q_row;
    t->q_token = s.q_first + query;
    t->k_row = s.k_row;
    t->k_token = s.k_first;
    t->head = (unit - row * order.heads) << order.pack;
    t->index = s.index + query;
    t->end = s.k_count;
    t->k_index = s.k_index;
    t->lse = order.lse;
    if (order.lse)
        t->lse += t->q_row * order.lse_stride[0] + t->q_token * order.lse_stride[1] +
                  t->head * order.lse_stride[2];
    sm90_seen seen[2];
    sm90_see(order.mask, {t->index, t->index + queries - 1}, t->end, t->k_index, seen);
    sm90_count_keys<T>(t, seen[0], seen[1]);
    return 1;
}

/* The number of this block's next tile: the first is its own, the others are given out, or dealt
 * in rounds, each in the other direction. */
GPU_FN int32_t sm90_next_number(const sm90_schedule &order, int32_t last) {
    const int32_t blocks = (int32_t)gridDim.x;
    return order.tickets ? blocks + (int32_t)atomicAdd(order.tickets, 1u)
                         : (last / blocks + 2) * blocks - 1 - last % blocks;
}

#endif
