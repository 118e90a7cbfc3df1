/* What a block has in shared memory, and the items that it takes. */
#ifndef ROPEKIT_GPU_DECODE_SM90_BLOCK_H
#define ROPEKIT_GPU_DECODE_SM90_BLOCK_H

#include "backends/gpu/decode/sm90/kernels.h"

#include "backends/gpu/attention/sm90/ptx.h"
#include "backends/gpu/element.h"
#include "common/math/portable.h"

/* Less than every logit, and finite: a row that has seen no key has it as its largest. */
#define DECODE_LOWEST (-3.40282347e38f)

/* Numbers of a kernel of so many rows, and elements of heads, of which a cache may have codes. */
template <int ROWS_, int DIM_, int CODES_, int BANDS_> struct decode_shape {
    enum {
        ROWS = ROWS_,
        DIM = DIM_,
        CODES = CODES_,
        WARPS = SM90_DECODE_WARPS_OF(ROWS, CODES),
        STAGES = SM90_DECODE_STAGES_OF(DIM, CODES),
        TOKENS = SM90_DECODE_TOKENS_OF(ROWS),
        TILES = ROWS > 8 ? ROWS / 8 : 1, /* of 8 rows, in products */
        HAS_BANDS = BANDS_,
        REREADS = TILES > 1 || CODES,      /* queries, for each chunk: registers are few */
        STEPS = DIM / 16,                  /* of products */
        LANES = DIM / 4,                   /* that share a head */
        EACH = ROWS / SM90_DECODE_HELPERS, /* rows of a helper */
        NEW = (TOKENS + SM90_DECODE_HELPERS - 1) / SM90_DECODE_HELPERS, /* tokens of a helper */
        JOINERS = SM90_DECODE_JOINERS_OF(ROWS, CODES),
        AHEAD = SM90_DECODE_AHEAD,
        BEHIND = SM90_DECODE_BEHIND,
        LEVELS = SM90_DECODE_LEVELS_OF(ROWS, DIM, CODES),
        CHUNK_BYTES = SM90_DECODE_CHUNK_BYTES(DIM, CODES),
        STORED = CODES ? DIM : 2 * DIM, /* bytes of a head in the cache */
        SLOT = 2 * CHUNK_BYTES,
        QUERY_BYTES = SM90_DECODE_QUERY_BYTES(DIM),
        SUM_FLOATS = SM90_DECODE_SUM_FLOATS(DIM)
    };
};

/* A split as the end of its rows knows it. */
struct decode_split {
    int sequence, head, part, parts; /* head: over [band, key head]; part: of its series */
    int begin, tokens;               /* of its row */
    int nth, is_last;                /* of its series */
};

/* An item as the warps that multiply are told of it: its chunks, and those without new tokens of
 * which every query sees all keys. */
struct decode_told {
    int2 chunks, whole; /* chunks.y < 0: there is no other item */
    int sequence, counts;
    int begin; /* the place of the sequence's first token in a row */
    int row;   /* the first of the band */
};

/* The part of shared memory that has names: two of what helpers prepare an item ahead. Queries and
 * new tokens are ready when all helpers have arrived, sums when all compute warps have, and free
 * when all helpers have read them. */
template <class S> struct decode_header {
    uint64_t queries_ready[SM90_DECODE_AHEAD], fresh_ready[SM90_DECODE_AHEAD],
        sums_ready[SM90_DECODE_BEHIND], sums_free[SM90_DECODE_BEHIND];
    uint64_t split_ready[S::JOINERS], split_taken[S::JOINERS];
    decode_split split[S::JOINERS];                             /* 0 parts: there is no other */
    decode_split ready[SM90_DECODE_HELPERS][SM90_DECODE_AHEAD]; /* of a helper's items */
    decode_split joined[SM90_DECODE_HELPERS + S::JOINERS];      /* of each warp */
    float2 top[SM90_DECODE_BEHIND][S::WARPS]
              [S::ROWS]; /* largest logit, sum of weights; < 0: left out */
    int32_t place[SM90_DECODE_AHEAD][SM90_DECODE_TOKENS]; /* index of a new token's key, or -1 */
    decode_told told[SM90_DECODE_AHEAD];                  /* with queries */
};

template <class S> struct decode_block {
    const sm90_decode_call *call;
    decode_header<S> *header;
    char *fresh;    /* [item, token], keys and values of new tokens */
    char *queries;  /* [item, row] */
    float *sums;    /* [item, warp, row] */
    float *waiting; /* [level, row], sums of 2^level splits of a series, with their tops */
    uint32_t ring;  /* [warp, stage], keys and values of a chunk */
    float *scales;  /* [warp, stage], of its keys, then of its values */
};

template <class S>
GPU_FN decode_block<S> decode_block_of(char *memory, const sm90_decode_call *call) {
    static_assert(sizeof(decode_header<S>) <= 2048, "room for the header");
    char *sums = memory + SM90_DECODE_RING_OF(S::ROWS, S::DIM, S::CODES),
         *waiting = sums + SM90_DECODE_SUMS_OF(S::ROWS, S::DIM, S::CODES),
         *queries = waiting + SM90_DECODE_WAITING_OF(S::ROWS, S::DIM, S::CODES),
         *fresh = queries + SM90_DECODE_QUERIES_OF(S::ROWS, S::DIM),
         *scales = fresh + SM90_DECODE_FRESH_OF(S::ROWS, S::DIM),
         *header = scales + SM90_DECODE_SCALES_OF(S::ROWS, S::DIM, S::CODES);
    return {call,
            (decode_header<S> *)(void *)header,
            fresh,
            queries,
            (float *)(void *)sums,
            (float *)(void *)waiting,
            (uint32_t)__cvta_generic_to_shared(memory),
            (float *)(void *)scales};
}

GPU_FN int decode_lane(void) {
    return (int)(threadIdx.x % 32u);
}

/* The lane's place among those that share a head: of 64 elements two have each place. */
template <class S> GPU_FN int decode_part_lane(void) {
    return decode_lane() % S::LANES;
}

template <class S> GPU_FN bool decode_writes(void) {
    return S::LANES == 32 || decode_lane() < S::LANES;
}

GPU_FN uint32_t decode_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Where 16 bytes of a row of a chunk are, of 8 columns each. */
GPU_FN uint32_t decode_at(uint32_t chunk, int row, int column) {
    return chunk + (uint32_t)((column >> 3) * 2048 + row * 128 + ((column & 7) ^ (row & 7)) * 16);
}

/* x / n, by 2^32 / n rounded up. */
GPU_FN int decode_over(int x, uint32_t per) {
    return per ? (int)__umulhi((uint32_t)x, per) : x;
}

/* The words of an index as memory has them: what looks at them waits for the load, which under way
 * takes as long as all copies that are ahead of it. */
struct decode_raw {
    int32_t low, high;
};

/* Reads what an earlier launch may have written. A load of memory that is said to be constant moves
 * ahead of the wait for that launch. */
GPU_FN uint32_t decode_read(const void *from) {
    uint32_t x;
    asm volatile("ld.global.b32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    return x;
}

GPU_FN decode_raw decode_read_index(const void *list, int wide, int64_t at) {
    const int32_t *word = (const int32_t *)list + (wide ? 2 * at : at);
    decode_raw x;
    x.low = (int32_t)decode_read(word);
    x.high = wide ? (int32_t)decode_read(word + 1) : 0;
    return x;
}

GPU_FN int64_t decode_value(decode_raw x, int wide) {
    const int32_t high = wide ? x.high : x.low >> 31;
    return (int64_t)((uint64_t)(uint32_t)high << 32 | (uint32_t)x.low);
}

/* --- items --- */

/* A walk over the items of a block, of series over [sequence, series, key head]; each lane has a
 * sequence of the 32 that are looked at. */
struct decode_walk {
    int series, nth;      /* the series, and its next split */
    int sequence, before; /* the first of those sequences, and series ahead of it */
    int most;             /* chunks of a series of more than one split */
    int counts, all;      /* of the lane's sequence; series of all up to it */
    int splits, levels;   /* its splits, 2^levels of a series */
    int first, chunks;    /* the first chunk that is seen, and as many from it on */
    int start, begin;     /* its first new token's index and place, where they are asked for */
};

/* What is read of a lane's sequence. */
struct decode_lengths {
    decode_raw keys, start, begin, end;
};

/* Keys of a sequence, and those of a split, in chunks. */
struct decode_item {
    int sequence, head, split, splits;
    int counts, first, last;
    int start, begin; /* of its first new token: the index of its key, and its place in a row */
    int band;
    int nth, levels, is_last; /* of its series */
};

/* Counts of a sequence: its new tokens, and in the bits above its keys, -1 where it is out of
 * range. */
enum { DECODE_TOKEN_BITS = 4 };

GPU_FN int decode_tokens(int counts) {
    return counts & ((1 << DECODE_TOKEN_BITS) - 1);
}

GPU_FN int decode_keys(int counts) {
    return counts >> DECODE_TOKEN_BITS;
}

template <class S> GPU_FN int decode_bands(const sm90_decode_call *c, int counts) {
    return S::HAS_BANDS ? max((decode_tokens(counts) * c->group + S::ROWS - 1) / S::ROWS, 1) : 1;
}

GPU_FN int decode_chunks(int keys) {
    return keys > 0 ? (keys + SM90_DECODE_CHUNK - 1) / SM90_DECODE_CHUNK : 0;
}

/* The first key that a sequence's query sees of which `behind` are. */
GPU_FN int decode_seen_from(const sm90_decode_call *c, int keys, int behind) {
    const int end = max(keys - behind, 1), /* behind its own index */
        near = max(end - c->window, decode_over(end - 1, c->per_span) * c->span);
    return max(0, max(keys - c->ring, near));
}

/* The first chunk of which a query sees a key. */
GPU_FN int decode_first_chunk(const sm90_decode_call *c, int counts) {
    return decode_seen_from(c, decode_keys(counts), decode_tokens(counts) - 1) / SM90_DECODE_CHUNK;
}

/* A function of the sequence's chunks that are seen: a power of 2, or the most. */
GPU_FN int decode_splits(const sm90_decode_call *c, int chunks) {
    const int whole = decode_over(chunks, c->per_split);
    return min(c->most_splits, 1 << (31 - __clz(max(whole, 1))));
}

/* Index of a sequence's first new token's key, within INT32_MIN..INT32_MAX / 2. */
GPU_FN int decode_start_of(const sm90_decode_call *c, int counts, decode_raw read) {
    if (!c->k.data)
        return INT32_MAX / 2;
    if (c->slots)
        return decode_keys(counts) - decode_tokens(counts);
    int64_t start = c->start;
    if (c->starts)
        start = rope_sum(start, decode_value(read, c->flags & SM90_DECODE_WIDE_STARTS));
    return (int)max((int64_t)INT32_MIN, min(start, (int64_t)INT32_MAX / 2));
}

/* Of 32 sequences from `first` on; those that are not there have none. */
GPU_FN decode_lengths decode_read_lengths(const sm90_decode_call *c, int first, bool places) {
    const int sequence = first + decode_lane();
    const int wide = c->flags & SM90_DECODE_WIDE_LENGTHS;
    decode_lengths read = {};
    if (sequence < c->sequences) {
        read.keys =
            c->lengths ? decode_read_index(c->lengths, wide, sequence) : decode_raw{c->capacity, 0};
        if (c->boundaries) {
            read.begin = decode_read_index(c->boundaries, wide, sequence);
            read.end = decode_read_index(c->boundaries, wide, sequence + 1);
        } else if (c->q_lengths) {
            read.end = decode_read_index(c->q_lengths, wide, sequence);
        }
        if (places && c->starts)
            read.start = decode_read_index(c->starts, c->flags & SM90_DECODE_WIDE_STARTS, sequence);
    }
    return read;
}

/* Of a sequence that has more tokens than the call allows none is left, and one that is not within
 * its row is out of range. */
GPU_FN int decode_counts_of(const sm90_decode_call *c, decode_lengths read) {
    const int wide = c->flags & SM90_DECODE_WIDE_LENGTHS;
    const int64_t keys = decode_value(read.keys, wide), begin = decode_value(read.begin, wide),
                  end = decode_value(read.end, wide),
                  tokens = c->boundaries || c->q_lengths ? rope_difference(end, begin) : c->tokens;
    const bool fits = tokens >= 0 && tokens <= c->tokens,
               is_within = begin >= 0 && end <= c->row_tokens,
               valid = fits && is_within && keys >= 0 && keys <= c->capacity;
    return (int)((uint32_t)(valid ? keys : -1) << DECODE_TOKEN_BITS) | (fits ? (int)tokens : 0);
}

/* Chunks of the longest series: a block's share of all, a little more where sequences are of about
 * one length and blocks take equally many such series, else an eighth; of other sequences a fourth.
 * The first 32 sequences tell it. Of more, ends would be uneven. */
GPU_FN int decode_most_of_series(const sm90_decode_call *c, int chunks) {
    const float longest = (float)__reduce_max_sync(~0u, chunks),
                all = (float)__reduce_add_sync(~0u, chunks), share = all * c->share;
    float series = longest;
    while (series > share * 1.0625f)
        series *= 0.5f;
    const bool alike = longest * (float)min(c->sequences, 32) <= all * 1.125f,
               fills = ceilf(share / series - 0.002f) * series <= share * 1.09375f;
    return (int)fminf(share * (!alike ? 0.25f : fills ? 1.0625f : 0.125f), 256);
}

/* As many splits of a sequence are in a series as have at most w.most chunks. */
template <class S> GPU_FN int decode_levels(const decode_walk &w) {
    if (w.chunks <= w.most)
        return min((int)S::LEVELS, 31 - __clz(2 * w.splits - 1));
    const int most = w.most * w.splits, levels = max(__clz(w.chunks) - __clz(most), 0);
    return min((int)S::LEVELS, max(levels - (w.chunks << levels > most), 0));
}

GPU_FN int decode_series(int splits, int levels) {
    return (splits + (1 << levels) - 1) >> levels;
}

/* places: whether those of new tokens are asked for. */
template <class S>
GPU_FN void decode_look(const sm90_decode_call *c, decode_walk &w, decode_lengths read,
                        bool places) {
    const int lane = decode_lane();
    w.counts = decode_counts_of(c, read);
    if (places) {
        const int64_t begin = decode_value(read.begin, c->flags & SM90_DECODE_WIDE_LENGTHS);
        w.start = decode_start_of(c, w.counts, read.start);
        w.begin = (int)max((int64_t)-SM90_DECODE_TOKENS, min(begin, (int64_t)c->row_tokens));
    }
    const bool counts = decode_tokens(w.counts) > 0 || w.counts < 0; /* the latter to say so */
    w.first = decode_first_chunk(c, w.counts);
    w.chunks = decode_chunks(decode_keys(w.counts)) - w.first;
    w.splits = decode_splits(c, w.chunks);
    if (c->share > 0) {
        w.most = w.sequence ? w.most : decode_most_of_series(c, w.chunks);
        w.levels = decode_levels<S>(w);
    }
    w.all = w.sequence + lane < c->sequences && counts
                ? decode_series(w.splits, w.levels) * decode_bands<S>(c, w.counts) * c->k_heads
                : 0;
    for (int d = 1; d < 32 && d < c->sequences; d *= 2) {
        const int other = __shfl_up_sync(~0u, w.all, d);
        w.all += lane < d ? 0 : other;
    }
}

/* read: of the first sequences. */
template <class S>
GPU_FN decode_walk decode_begin(const sm90_decode_call *c, decode_lengths read, bool places) {
    decode_walk w = {(int)blockIdx.x};
    decode_look<S>(c, w, read, places);
    return w;
}

/* Series of all the sequences that are looked at. */
GPU_FN int decode_all(const sm90_decode_call *c, const decode_walk &w) {
    return __shfl_sync(~0u, w.all, min(c->sequences - w.sequence, 32) - 1);
}

/* Splits begin at floor(chunks * split / splits), in floats, behind those that no query sees. */
template <class S, bool PLACES>
GPU_FN bool decode_find(const sm90_decode_call *c, decode_walk &w, decode_item *found) {
    int all = decode_all(c, w);
    while (w.series - w.before >= all) {
        w.before += all;
        w.sequence += 32;
        if (w.sequence >= c->sequences) {
            w.all = 0;
            return false;
        }
        decode_look<S>(c, w, decode_read_lengths(c, w.sequence, PLACES), PLACES);
        all = decode_all(c, w);
    }
    const int n = w.series - w.before, lane = __ffs((int)__ballot_sync(~0u, w.all > n)) - 1,
              ahead = __shfl_sync(~0u, w.all, max(lane - 1, 0)), at = n - (lane ? ahead : 0);
    found->sequence = w.sequence + lane;
    found->counts = __shfl_sync(~0u, w.counts, lane);
    if (PLACES) {
        found->start = __shfl_sync(~0u, w.start, lane);
        found->begin = __shfl_sync(~0u, w.begin, lane);
    }
    const int of_head = decode_over(at, c->per_head), bands = decode_bands<S>(c, found->counts),
              series = of_head / bands;
    found->head = at - of_head * c->k_heads;
    found->band = of_head - series * bands;
    found->levels = __shfl_sync(~0u, w.levels, lane);
    found->nth = w.nth;
    found->split = (series << found->levels) + w.nth;
    found->splits = __shfl_sync(~0u, w.splits, lane);
    found->is_last = w.nth + 1 == 1 << found->levels || found->split + 1 == found->splits;
    w.nth = found->is_last ? 0 : w.nth + 1;
    w.series += found->is_last ? (int)gridDim.x : 0;
    const int before = __shfl_sync(~0u, w.first, lane), chunks = __shfl_sync(~0u, w.chunks, lane);
    const float each = __fdividef((float)chunks, (float)found->splits);
    found->first = before + (int)(each * (float)found->split);
    found->last =
        before +
        (found->split + 1 == found->splits ? chunks : (int)(each * (float)(found->split + 1)));
    return true;
}

/* Keys up to the last that a sequence's query sees of which `behind` are. */
GPU_FN int decode_seen(const sm90_decode_call *c, int keys, int behind) {
    return c->flags & SM90_DECODE_CAUSAL ? keys - behind : keys;
}

/* Word n of the bits of a row's token; those ahead of the tree are set. */
GPU_FN uint32_t decode_tree_word(const sm90_decode_call *c, int sequence, int token, int n) {
    return n < 0 ? ~0u
           : n >= (c->tree_keys + 31) / 32
               ? 0
               : decode_read(c->tree_bits + sequence * c->tree_row + token * c->tree_token + n);
}

/* The keys of a chunk that a sequence's query `n` sees, a bit each. */
GPU_FN uint32_t decode_sees(const sm90_decode_call *c, int sequence, int counts, int begin_of,
                            int chunk, int n) {
    const int first = chunk * SM90_DECODE_CHUNK, behind = decode_tokens(counts) - 1 - n,
              keys = decode_keys(counts), token = begin_of + n,
              begin = min(max(decode_seen_from(c, keys, behind) - first, 0), 16),
              end = min(max(decode_seen(c, keys, behind) - first, 0), 16),
              at = first - (keys - c->tree_keys);
    const uint32_t sees = (0xffffu << begin & 0xffffu) & ~(0xffffu << end);
    return c->tree_keys == 0 || at <= -SM90_DECODE_CHUNK
               ? sees
               : sees & __funnelshift_r(decode_tree_word(c, sequence, token, at >> 5),
                                        decode_tree_word(c, sequence, token, (at >> 5) + 1),
                                        at & 31);
}

/* Where a ring has a chunk: that of an index modulo its chunks. */
GPU_FN int decode_around(const sm90_decode_call *c, int chunk) {
    return chunk - decode_over(chunk, c->per_ring) * c->ring_chunks;
}

/* The page of a chunk of a sequence, which is there if the chunk is. */
GPU_FN decode_raw decode_read_page(const sm90_decode_call *c, int sequence, int chunk) {
    if (!c->table)
        return {sequence, 0};
    return decode_read_index(c->table, c->flags & SM90_DECODE_WIDE_TABLE,
                             sequence * c->table_row +
                                 decode_over(decode_around(c, chunk), c->per_page) * c->table_page);
}

GPU_FN char *decode_head_of(const sm90_decode_cache *cache, int page, int token, int head) {
    return cache->data + page * cache->page + token * cache->slot + head * cache->head;
}

/* -1: the cache does not have it. */
GPU_FN int decode_page(const sm90_decode_call *c, decode_raw x) {
    const int64_t page = decode_value(x, c->flags & SM90_DECODE_WIDE_TABLE);
    return page >= 0 && page < c->pages ? (int)page : -1;
}

#endif
