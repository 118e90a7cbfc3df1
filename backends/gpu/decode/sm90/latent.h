/*
 * Decoding of latents in one launch, by the kernel of attention/sm90/latent.h. Blocks rotate their
 * queries in shared memory. A block that sees new keys puts them there, in place of what was
 * copied; of all that make a key one caches it. Blocks that have attended join the splits, each
 * some rows, or leave that to the join of `latent`. So bits are those of "append", and of attention
 * by `latent`.
 */
#ifndef ROPEKIT_GPU_DECODE_SM90_LATENT_H
#define ROPEKIT_GPU_DECODE_SM90_LATENT_H

#include "backends/gpu/append/mla.h"
#include "backends/gpu/attention/sm90/latent_work.h"
#include "backends/gpu/decode/sm90/kernels.h"
#include "backends/gpu/decode/steps.h"

/* Behind that of attention. */
struct decode_latent_header {
    uint64_t fresh[1];                 /* warps have made new keys */
    int32_t appends;                   /* the block caches the key of its query's token */
    int32_t takes[GPU_LATENT_QUERIES]; /* a new key is where attention reads it */
    int2 joiner;                       /* which one the block is, and of how many */
};
static_assert(sizeof(sm90_latent_header) % 8 == 0 &&
                  sizeof(sm90_latent_header) + sizeof(decode_latent_header) <= SM90_HEADER,
              "in its room");

struct decode_latent {
    const rope_append_problem *p;
    const rope_append_call *call;
    decode_latent_header *header;
    char *fresh; /* rows of new keys */
    unsigned long long *counters;
};

GPU_FN decode_latent decode_latent_of(const sm90_latent_block &b, const rope_append_problem *p,
                                      const rope_append_call *call, unsigned long long *counters) {
    return {p, call, (decode_latent_header *)(void *)(b.header + 1),
            (char *)b.header + GPU_SM90_LATENT_SHARED, counters};
}

/* --- the steps of "append" --- */

/* Tokens of a sequence, which are some of a row. */
struct decode_latent_tokens {
    int64_t row, first, count;
};

GPU_FN decode_latent_tokens decode_latent_tokens_of(const rope_append_call *call,
                                                    int64_t sequence) {
    const rope_position_map *map = &call->rope.position;
    if (!map->cu_seqlens)
        return {sequence, 0, map->tokens};
    const rope_attention_segment own = rope_attention_segment_of(map, NULL, sequence);
    return {0, own.first, own.count};
}

/* A thread has two pairs of the window, and as read and as written where two elements of them lie
 * that are neighbours, and two others: bytes from the window's first. */
struct decode_latent_pairs {
    rope_coefficients of[2];
    int low_in, high_in, low_out, high_out;
};

GPU_FN int decode_latent_low(int pairing, int pair) {
    return 2 * rope_first_of(pairing, pair);
}

GPU_FN int decode_latent_high(int pairing, int pair) {
    return pairing == ROPE_PAIRING_INTERLEAVED ? 4 * pair + 4 : 2 * pair + SM90_LATENT_WINDOW;
}

GPU_FN decode_latent_pairs decode_latent_pairs_of(const decode_latent &d, const rope_site &site) {
    const rope_problem *r = &d.p->rope;
    const int pair = 2 * ((int)threadIdx.x % 16);
    const int64_t position = rope_position_of(&d.call->rope.position, &site, 0);
    return {{rope_computed(r, 0, pair, position, 0), rope_computed(r, 0, pair + 1, position, 0)},
            decode_latent_low(r->pairing_in, pair),
            decode_latent_high(r->pairing_in, pair),
            decode_latent_low(r->pairing_out, pair),
            decode_latent_high(r->pairing_out, pair)};
}

template <int DTYPE>
GPU_FN decode_words decode_latent_rotate(const decode_latent &d, const decode_latent_pairs &pairs,
                                         decode_words x) {
    return decode_rotate<DTYPE>(d.p->rope.pairing_in == ROPE_PAIRING_INTERLEAVED,
                                d.p->rope.pairing_out == ROPE_PAIRING_INTERLEAVED, 0, pairs.of, x);
}

/* Windows of queries, in shared memory, by the group that makes weights. */
template <int DTYPE>
GPU_FN void decode_latent_rotate_queries(const sm90_latent_block &b, const decode_latent &d,
                                         const decode_latent_pairs &pairs) {
    enum { EACH = 8 }; /* rows of a thread, whose chunks lie alike */
    const int first = (int)threadIdx.x / 16;
    char *rows = (char *)b.header + SM90_HEADER + SM90_LATENT_WEIGHTS + first * 128;
    const int low = pairs.low_in ^ first * 16, high = pairs.high_in ^ first * 16,
              low_out = pairs.low_out ^ first * 16, high_out = pairs.high_out ^ first * 16;
    decode_words x[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++)
        x[i] = {*(const uint32_t *)(const void *)(rows + i * 1024 + low),
                *(const uint32_t *)(const void *)(rows + i * 1024 + high)};
    sm90_group_barrier(0);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const decode_words y = decode_latent_rotate<DTYPE>(d, pairs, x[i]);
        *(uint32_t *)(void *)(rows + i * 1024 + low_out) = y.low;
        *(uint32_t *)(void *)(rows + i * 1024 + high_out) = y.high;
    }
    sm90_writes_known();
    sm90_group_barrier(0);
}

/* --- new keys --- */

/* What a lane has of a new key: two vectors of the latent, and lanes below 16 two words of the
 * window. */
template <int DTYPE> struct decode_latent_key {
    gpu_vector<DTYPE, GPU_APPEND_V> latent[2];
    decode_words window;
};

template <int DTYPE>
GPU_FN void decode_latent_write(char *to, const decode_latent_pairs &pairs,
                                const decode_latent_key<DTYPE> &key) {
    const int lane = (int)threadIdx.x % 32;
    char *window = to + 2 * SM90_LATENT_VALUE_DIM;
    gpu_store<DTYPE, GPU_APPEND_V>(to + lane * 16, key.latent[0]);
    gpu_store<DTYPE, GPU_APPEND_V>(to + SM90_LATENT_VALUE_DIM + lane * 16, key.latent[1]);
    if (lane < 16) {
        *(uint32_t *)(void *)(window + pairs.low_out) = key.window.low;
        *(uint32_t *)(void *)(window + pairs.high_out) = key.window.high;
    }
}

/* By a warp. */
template <int DTYPE>
GPU_FN decode_latent_key<DTYPE> decode_latent_make(const decode_latent &d, const rope_site &site,
                                                   int key_head, const decode_latent_pairs &pairs) {
    const rope_append_operand *o = &d.call->tensor[ROPE_APPEND_K];
    const rope_append_steps *steps = &d.p->steps[ROPE_APPEND_K];
    const int lane = (int)threadIdx.x % 32;
    const char *in = (const char *)o->in +
                     2 * (site.batch * o->in_stride[0] + site.token * o->in_stride[1] +
                          key_head * o->in_stride[2]),
               *weight = (const char *)o->weight + 2 * key_head * o->weight_stride,
               *window = in + 2 * SM90_LATENT_VALUE_DIM;
    decode_latent_key<DTYPE> key;
    gpu_vector<DTYPE, GPU_APPEND_V> w[2] = {};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        key.latent[i] = gpu_load<DTYPE, GPU_APPEND_V>(in + i * SM90_LATENT_VALUE_DIM + lane * 16);
        if (steps->norm)
            w[i] = gpu_load<DTYPE, GPU_APPEND_V>(weight + i * SM90_LATENT_VALUE_DIM + lane * 16);
    }
    key.window =
        decode_latent_rotate<DTYPE>(d, pairs,
                                    {*(const uint32_t *)(const void *)(window + pairs.low_in),
                                     *(const uint32_t *)(const void *)(window + pairs.high_in)});
    if (!steps->norm)
        return key;
    const float by = rope_norm_reciprocal(gpu_mla_squares<DTYPE>(key.latent, 2),
                                          SM90_LATENT_VALUE_DIM, steps->eps);
    const int how = (steps->rounding == ROPE_NORM_ROUND_ONCE ? GPU_APPEND_PLAIN_ONCE : 0) |
                    (steps->weight == ROPE_NORM_ONE_PLUS_WEIGHT ? GPU_APPEND_PLAIN_ONE_PLUS : 0);
#pragma unroll
    for (int i = 0; i < 2; i++)
        gpu_plain_normalize<DTYPE, GPU_APPEND_V>(how, by, w[i], key.latent[i]);
    return key;
}

/* The index among the block's keys of that of a new token. */
GPU_FN int decode_latent_index(const sm90_latent_block &b, int token) {
    return (int)(b.header->s.q_index + token) - b.at.base;
}

/* Whether attention reads a new key where it is cached. */
GPU_FN bool decode_latent_takes(const sm90_latent_block &b, const rope_place &place, int token) {
    const rope_attention_sequence *s = &b.header->s;
    const int64_t index = s->q_index + token;
    if (s->fails || place.status != ROPE_PLACE_GIVEN || index < 0 || index >= s->k_count)
        return false;
    const rope_place read = rope_key_place(b.p, b.call, s, index);
    return read.page == place.page && read.slot == place.slot;
}

/* What is made while the block finds what it has: angles of its query by the group that makes
 * weights; by each warp of the first group that adds values, one new key. */
template <int DTYPE> struct decode_latent_made {
    decode_latent_pairs pairs;
    decode_latent_key<DTYPE> key;
    rope_place place;
};

template <int DTYPE>
GPU_FN decode_latent_made<DTYPE> decode_latent_prepare(const sm90_latent_block &b,
                                                       const decode_latent &d, int group) {
    decode_latent_made<DTYPE> made = {};
    const sm90_latent_item at = sm90_latent_item_of(b);
    const decode_latent_tokens of = decode_latent_tokens_of(d.call, at.sequence);
    const int token = group == 0 ? at.query : (int)threadIdx.x / 32 % GPU_LATENT_QUERIES;
    if (token >= of.count)
        return made;
    const rope_site site = rope_site_of(&d.call->rope.position, of.row, of.first + token);
    made.pairs = decode_latent_pairs_of(d, site);
    if (group == 1) {
        made.key = decode_latent_make<DTYPE>(d, site, at.key_head, made.pairs);
        made.place = rope_place_of(d.p, d.call, &site);
    }
    return made;
}

/* A warp puts its new key where the block sees it, and caches it. */
template <int DTYPE>
GPU_FN void decode_latent_append(const sm90_latent_block &b, const decode_latent &d,
                                 const decode_latent_made<DTYPE> &made) {
    const int token = (int)threadIdx.x / 32 % GPU_LATENT_QUERIES,
              index = decode_latent_index(b, token);
    const bool sees = b.at.found && index >= b.at.begin && index < b.at.end,
               caches = d.header->appends && token == b.at.query;
    const rope_append_operand *o = &d.call->tensor[ROPE_APPEND_K];
    if (token >= b.header->s.q_count)
        return;
    if (sees) {
        decode_latent_write<DTYPE>(d.fresh + token * SM90_LATENT_ROW, made.pairs, made.key);
        if (threadIdx.x % 32 == 0)
            d.header->takes[token] = decode_latent_takes(b, made.place, token);
    }
    if (caches && made.place.status == ROPE_PLACE_GIVEN)
        decode_latent_write<DTYPE>(
            (char *)o->cache +
                2 * rope_cache_at(o, &d.p->steps[ROPE_APPEND_K], &made.place, b.at.key_head, 0),
            made.pairs, made.key);
    if (caches && made.place.status > ROPE_PLACE_GIVEN)
        gpu_append_flag(d.call);
}

/* New keys of tile n that the block sees, in place of what was copied. */
GPU_FN void decode_latent_put(const sm90_latent_block &b, const decode_latent &d, int n,
                              uint32_t tile) {
    const int chunk = (int)threadIdx.x, count = (int)b.header->s.q_count,
              first = decode_latent_index(b, 0) - n * SM90_LATENT_KEYS;
    if (first >= SM90_LATENT_KEYS || first + count <= 0)
        return;
    sm90_wait(SM90_BARRIER(d, fresh, 0), 0);
    for (int token = max(0, -first); token < min(count, SM90_LATENT_KEYS - first); token++) {
        const int row = first + token, at = row + n * SM90_LATENT_KEYS;
        if (at >= b.at.begin && at < b.at.end && d.header->takes[token] &&
            chunk < SM90_LATENT_ROW / 16)
            sm90_write(
                tile +
                    (uint32_t)(chunk / 8 * SM90_LATENT_PART + row * 128 + ((chunk ^ row) & 7) * 16),
                *(const uint4 *)(const void *)(d.fresh + token * SM90_LATENT_ROW + chunk * 16));
    }
    sm90_writes_known();
    sm90_group_barrier(0);
}

/* What the group that makes weights does with what was copied. */
template <int DTYPE> struct decode_latent_copied {
    const decode_latent &d;
    const decode_latent_pairs pairs;

    __device__ void queries(const sm90_latent_block &b) const {
        decode_latent_rotate_queries<DTYPE>(b, d, pairs);
    }
    __device__ void keys(const sm90_latent_block &b, int n, uint32_t tile) const {
        decode_latent_put(b, d, n, tile);
    }
};

#endif
