/* What a block has in shared memory, and how it reads lists. */
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

#endif
