/* The items that a block takes: splits of sequences, their keys and pages. */
#ifndef ROPEKIT_GPU_DECODE_SM90_ITEMS_H
#define ROPEKIT_GPU_DECODE_SM90_ITEMS_H

#include "backends/gpu/decode/sm90/block.h"

/* A walk over the items of a block, of series over [sequence, series, key head]; each lane has a
 * sequence of the 32 that are looked at. */
struct decode_walk {
    int series, nth;      /* the series, and its next split */
    int sequence, before; /* the first of those sequences, and series ahead of it */
    int most;             /* chunks of a series, or 0: lengths are alike */
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

/* Of longer series ends would be uneven. */
enum { SM90_SERIES_CHUNKS = 256 };

/* Chunks of the longest series: a fourth of a block's share, or 0 where sequences are of about one
 * length. The first 32 tell it. */
GPU_FN int decode_most_of_series(const sm90_decode_call *c, int chunks) {
    const float longest = (float)__reduce_max_sync(~0u, chunks),
                all = (float)__reduce_add_sync(~0u, chunks);
    return longest * (float)min(c->sequences, 32) <= all * 1.125f
               ? 0
               : max((int)fminf(all * c->share * 0.25f, (float)SM90_SERIES_CHUNKS), 1);
}

GPU_FN int decode_series(int splits, int levels) {
    return (splits + (1 << levels) - 1) >> levels;
}

/* Where all sequences have as many chunks as this one: splits of a series, as a power of two, so
 * that the busiest block has least to do. */
template <class S> GPU_FN int decode_levels_alike(const sm90_decode_call *c, const decode_walk &w) {
    enum { END = 3 }; /* chunks that take as long as the ends of a series */
    const float share = c->share * (float)min(c->sequences, 32);
    const int split = (w.chunks + w.splits - 1) / w.splits;
    float least = 0;
    int levels = 0;
#pragma unroll 1
    for (int n = 0; n <= S::LEVELS && 1 << n < 2 * w.splits; n++) {
        const int chunks = min(split << n, w.chunks);
        const float most =
            ceilf(share * (float)decode_series(w.splits, n) - 0.002f) * (float)(chunks + END);
        if (n == 0 || (most < least && chunks <= SM90_SERIES_CHUNKS)) {
            least = most;
            levels = n;
        }
    }
    return levels;
}

/* As many splits of a sequence are in a series as have at most w.most chunks. */
template <class S> GPU_FN int decode_levels(const sm90_decode_call *c, const decode_walk &w) {
    if (!w.most)
        return decode_levels_alike<S>(c, w);
    if (w.chunks <= w.most)
        return min((int)S::LEVELS, 31 - __clz(2 * w.splits - 1));
    const int most = w.most * w.splits, levels = max(__clz(w.chunks) - __clz(most), 0);
    return min((int)S::LEVELS, max(levels - (w.chunks << levels > most), 0));
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
        w.levels = decode_levels<S>(c, w);
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
