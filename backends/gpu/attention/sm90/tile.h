/* Tiles of rows, and what a block's threads share. */
#ifndef ROPEKIT_GPU_ATTENTION_SM90_TILE_H
#define ROPEKIT_GPU_ATTENTION_SM90_TILE_H

#include "backends/gpu/attention/rows.h"
#include "backends/gpu/attention/sm90/kernels.h"
#include "backends/gpu/attention/sm90/wgmma.h"

/* Types of elements, sizes of heads, and what follows from them. */
template <int DTYPE_, int DIM_, int V_DIM_, int ROWS_, int CAPS_, int NORMS_, int SIMPLE_,
          int SPANS_>
struct sm90_type {
    enum {
        DTYPE = DTYPE_,
        DIM = DIM_,
        V_DIM = V_DIM_,
        CAPS = CAPS_,     /* scores have a soft cap */
        NORMS = NORMS_,   /* queries have a norm */
        SIMPLE = SIMPLE_, /* calls have what sm90_simple says */
        SPANS = SPANS_,   /* tiles may have keys in spans */
        /* Of keys and of values of small pages, where one takes longer than products, as it does
         * not with caps; heads of 64 would take 2 % longer where keys lie in order. */
        TWO_SENDERS = SPANS_ || (DIM_ > 64 && DIM_ == V_DIM_ && !CAPS_ && !NORMS_ && !SIMPLE_),
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
    int32_t careful;                        /* SM90_CAREFUL, or 0 */
    int32_t index, end;                     /* its first query's among keys; keys of the sequence */
    float *lse;                             /* of the first row, or NULL */
    int32_t q_row, q_token, k_row, k_token; /* where its queries and keys begin; a cache's row is
                                               the sequence */
    int32_t k_head;                         /* that its rows read */
    int32_t k_index;                        /* of its first key among all of the sequence's */
    int32_t rows;                           /* that are there */
    int32_t number;                         /* of all tiles */
    int32_t told;                           /* a row that is there is not finite */
    int32_t masks;                          /* some row does not see some key of the tile */
    int32_t span, spans;                    /* of the tile's keys: which, of how many */
    int32_t slot; /* where the sums of the first lie; -1: this block has all spans */
};

enum { SM90_CAREFUL = 1 }; /* values of the tile are cleaned */

/* Rows are described that many tiles ahead of those that end. */
enum { SM90_KNOWN = 8 };

/* Tiles of a block that are computed again are counted from here on: phases go on. */
enum { SM90_SECOND_PASS = 1 << 30 };

/* Tiles of a block that may be computed again; when half as many are, the rest is careful at once.
 */
enum { SM90_AGAIN = 64 };

/* Where a sequence's queries and keys begin, how many there are, and indices of the first ones. */
struct sm90_sequence {
    int32_t q_row, q_first, q_count, k_row, k_first, k_count, k_index, index;
};

/* Of a call that is looked at, tiles of this kind that sequences have up to each, and the first
 * sequences: one that fails has no queries. */
struct __align__(16) sm90_sight {
    int32_t end[SM90_LOOKED], warps[32];
    sm90_sequence sequence[SM90_SEEN];
};
static_assert(sizeof(sm90_sight) == SM90_SIGHT, "in its room");

/* Where a block is among its tiles: the number of one among all, or, `careful`, among those that
 * are computed again, and its span. */
struct sm90_walk {
    int32_t careful, has_begun, next, span;
};

/* Each barrier's phases are counted by those who wait: phase n / 2 of barrier n % 2. */
struct sm90_header {
    uint64_t keys_full[2], keys_free[2], values_full[2], values_free[2];
    uint64_t queries_full[2], queries_free[2];
    uint64_t queries_sent[2]; /* of queries that are rotated */
    uint64_t values_sent[2];  /* of values that are cleaned */
    uint64_t tile_wanted[2], tile_known[SM90_KNOWN], all_ended[1];
    int32_t told; /* some tile is */
    uint32_t again_count;
    int32_t again[SM90_AGAIN];
    int32_t found[4]; /* something was taken out of values n, at n % 4 */
    int32_t last[2];  /* a consumer's span was the last of its tile to end */
    sm90_walk walk;   /* of the lane that finds tiles: registers are few */
    sm90_tile tile[SM90_KNOWN];
    float norms[SM90_ROWS]; /* of rows that are rotated ahead */
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

/* n / by, of n from 0 to 2^31 - 1: where a block begins, a division's many instructions are fetched
 * anew. */
GPU_FN int sm90_over(const sm90_divisor &d, int n) {
    const int q = (int)__umulhi((uint32_t)n, d.per);
    return q + (n - q * d.by >= d.by); /* q may be one less */
}

/* n / by, of numbers from 0 and from 1 to 2^20 - 1, whose distance from the next quotient is far
 * above what the reciprocal and the product may err. */
GPU_FN int sm90_over_few(int n, int by) {
    return (int)(((float)n + 0.5f) * sm90_reciprocal((float)by));
}

/* A block's shared memory, and what its threads read of the call. */
struct sm90_block {
    const rope_attention_problem *p;
    const rope_attention_call *call;
    const int32_t *failed;
    const sm90_schedule *schedule;
    sm90_header *header;
    uint32_t memory;         /* address of the tiles */
    const sm90_cap *cap;     /* or NULL */
    const sm90_norm *norm;   /* or NULL */
    const sm90_spans *spans; /* or NULL */
    int32_t each, tiles;     /* as in the schedule, of a call that is looked at those of its kind */
    sm90_divisor chunk;      /* the same */
};

/* A barrier of the threads of a consumer. */
template <class T> GPU_FN void sm90_group_barrier(int consumer) {
    if (T::CONSUMERS > 2 && consumer == 2)
        asm volatile("bar.sync 6, 128;" ::: "memory");
    else
        sm90_group_barrier(consumer);
}

/* Three consumers begin products in the order in which two do. */
#define SM90_ORDER(what, consumer, n, barrier)                                                     \
    asm volatile("{ .reg .pred p; setp.eq.s32 p, %0, " n "; @p bar." what " " barrier              \
                 ", 256; }" ::"r"(consumer)                                                        \
                 : "memory")
template <class T> GPU_FN void sm90_await_order(int consumer) {
    if constexpr (!T::TALL) {
        sm90_await_order(consumer);
        return;
    }
    SM90_ORDER("sync", consumer, "0", "7");
    SM90_ORDER("sync", consumer, "1", "8");
    SM90_ORDER("sync", consumer, "2", "9");
}

template <class T> GPU_FN void sm90_next_in_order(int consumer) {
    if constexpr (!T::TALL) {
        sm90_next_in_order(consumer);
        return;
    }
    const int next = consumer < 2 ? consumer + 1 : 0;
    SM90_ORDER("arrive", next, "0", "7");
    SM90_ORDER("arrive", next, "1", "8");
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

/* A launch behind one of the same call does not wait: what both read is older than the first. */
template <class T> GPU_FN void sm90_wait_for_last(const sm90_block &b) {
    if (!T::ORDERED || !b.schedule->behind)
        gpu_wait_for_last();
}

/* Whether sequences are looked at ahead of tiles: kinds of ORDERED types have their own. */
template <class T> GPU_FN int sm90_is_looked_at(const sm90_block &b) {
    return T::ORDERED && b.schedule->tokens < 0 && rope_attention_sequences(b.call) <= SM90_LOOKED;
}

/* What is seen then, behind all tiles. */
template <class T> GPU_FN sm90_sight *sm90_sight_of(const sm90_block &b) {
    return (sm90_sight *)(void *)((char *)b.header + SM90_HEADER +
                                  (sm90_results<T>(b, T::CONSUMERS) - b.memory));
}

/* Where the 8 elements of chunk `chunk` of a row lie in a tile of `rows` rows, whose heads are
 * stored by 64 elements. */
GPU_FN uint32_t sm90_chunk(int rows, int row, int chunk) {
    return (uint32_t)((chunk >> 3) * rows * 128 + row * 128 + ((chunk ^ row) & 7) * 16);
}

/* The page of a cache that a sequence has as its n-th. */
GPU_FN int sm90_page(const rope_attention_problem *p, const rope_attention_call *call, int sequence,
                     int n) {
    return (int)rope_index_of(p->table_wide, call->block_table,
                              sequence * call->table_stride[0] + n * call->table_stride[1]);
}

/* --- what rows see --- */

/* Keys that a row sees: from `first` to `end` - 1. */
struct sm90_seen {
    int first, end;
};

/* Of two rows, apart from chunks, as rope_keys_seen() without a tree or a ring. count: keys that
 * are there. */
GPU_FN void sm90_see_window(const sm90_mask &m, const int (&index)[2], int count,
                            sm90_seen (&seen)[2]) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        seen[h].first = min(max(index[h] - m.before, 0), count);
        seen[h].end = max(min(index[h] + m.behind + 1, count), seen[h].first);
    }
}

/* Of these, those of the rows' chunks. k_index: the first key's index, by which chunks count. */
GPU_FN void sm90_see_chunk(const sm90_mask &m, const int (&index)[2], int count, int k_index,
                           sm90_seen (&seen)[2]) {
    if (m.chunk == SM90_FAR)
        return;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int whole = index[h] + k_index,
                  begin = (whole - (whole < 0 ? m.chunk - 1 : 0)) / m.chunk * m.chunk - k_index;
        seen[h].first = min(max(seen[h].first, begin), count);
        seen[h].end = max(seen[h].first, min(seen[h].end, begin + m.chunk));
    }
}

/* What a thread's rows of a tile see: `row` and the eighth behind it. chunks: 0, or 1. */
template <int WINDOW, int CHUNK>
GPU_FN void sm90_see_rows(const sm90_block &b, const sm90_tile *t, int row, sm90_seen (&seen)[2]) {
    const int4 rows = *(const int4 *)(const void *)&t->head;
    const int pack = b.schedule->pack,
              index[2] = {rows.z + (row >> pack), rows.z + ((row + 8) >> pack)};
    if (WINDOW)
        sm90_see_window(b.schedule->mask, index, rows.w, seen);
    if (CHUNK)
        sm90_see_chunk(b.schedule->mask, index, rows.w, t->k_index, seen);
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
    t->masks = t->whole != t->tiles;
}

#endif
