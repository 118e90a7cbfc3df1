/* Warps that multiply. Each has its own copies of chunks under way, so none waits for another but
 * for queries, and for room for its sums. Scores and sums are transposed: keys and elements are
 * rows of a product, and queries its columns. */
#ifndef ROPEKIT_GPU_DECODE_SM90_COMPUTE_H
#define ROPEKIT_GPU_DECODE_SM90_COMPUTE_H

#include "backends/gpu/decode/sm90/copies.h"

/* A larger maximum by so much changes the unit of a row's weights, in powers of 2. */
#define DECODE_GROWTH 8.0f

/* --- products --- */

template <class S> GPU_FN void decode_rows_begin(const char *queries, decode_rows<S> &rows) {
#pragma unroll
    for (int t = 0; t < S::TILES; t++) {
#pragma unroll
        for (int i = 0; i < S::STEPS; i++) {
            if (!S::REREADS)
                decode_read_query<S>(queries, 0, i, rows.query[i]);
            rows.out[t][i][0] = rows.out[t][i][1] = rows.out[t][i][2] = rows.out[t][i][3] = 0;
        }
        rows.top[t][0] = rows.top[t][1] = DECODE_LOWEST;
        rows.sum[t][0] = rows.sum[t][1] = 0;
    }
}

/* Products of 16 keys and the queries, in two halves. */
template <int DTYPE, class S>
GPU_FN void decode_keys_times(uint32_t keys, const char *queries, const decode_rows<S> &rows,
                              float (&s)[S::TILES][4], float (&odd)[S::TILES][4]) {
    const int lane = decode_lane(), row = lane % 8 + lane / 8 % 2 * 8, column = lane / 16;
#pragma unroll
    for (int i = 0; i < S::STEPS; i += 2) {
        uint32_t x[4], y[4];
        decode_matrices(x, decode_at(keys, row, i * 2 + column));
        decode_matrices(y, decode_at(keys, row, i * 2 + 2 + column));
#pragma unroll
        for (int t = 0; t < S::TILES; t++) {
            if constexpr (!S::REREADS) {
                gpu_mma<DTYPE>(s[t], x, rows.query[i]);
                gpu_mma<DTYPE>(odd[t], y, rows.query[i + 1]);
            } else {
                uint32_t query[2][2];
                decode_read_query<S>(queries, t, i, query[0]);
                decode_read_query<S>(queries, t, i + 1, query[1]);
                gpu_mma<DTYPE>(s[t], x, query[0]);
                gpu_mma<DTYPE>(odd[t], y, query[1]);
            }
        }
    }
}

/* Logits of base 2 of 16 keys: of keys lane / 4 and 8 more. */
template <int DTYPE, class S, int STORE>
GPU_FN void decode_scores(const sm90_decode_call *c, const decode_chunk &at, const char *queries,
                          const decode_rows<S> &rows, float (&s)[S::TILES][4]) {
    float odd[S::TILES][4] = {};
#pragma unroll
    for (int t = 0; t < S::TILES; t++)
        s[t][0] = s[t][1] = s[t][2] = s[t][3] = 0;
    if constexpr (S::CODES)
        decode_codes_times<DTYPE, S, STORE>(at, queries, s, odd);
    else
        decode_keys_times<DTYPE, S>(at.keys, queries, rows, s, odd);
#pragma unroll
    for (int t = 0; t < S::TILES; t++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[t][i] += odd[t][i];
    if (c->to_cap > 0)
#pragma unroll
        for (int t = 0; t < S::TILES; t++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[t][i] = gpu_tanh(s[t][i] * c->to_cap);
#pragma unroll
    for (int t = 0; t < S::TILES; t++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[t][i] *= c->unit;
}

/* Makes weights of logits: rounded, of row lane / 4 of each tile. Adds them to the rows' sums. */
template <int DTYPE, class S>
GPU_FN void decode_weigh(decode_rows<S> &rows, float (&s)[S::TILES][4],
                         uint32_t (&weights)[S::TILES][2]) {
#pragma unroll
    for (int t = 0; t < S::TILES; t++) {
        float top[2] = {fmaxf(s[t][0], s[t][2]), fmaxf(s[t][1], s[t][3])};
#pragma unroll
        for (int d = 4; d < 32; d *= 2) {
            top[0] = fmaxf(top[0], __shfl_xor_sync(~0u, top[0], d));
            top[1] = fmaxf(top[1], __shfl_xor_sync(~0u, top[1], d));
        }
        const bool grows[2] = {top[0] > rows.top[t][0] + DECODE_GROWTH,
                               top[1] > rows.top[t][1] + DECODE_GROWTH};
        if (__any_sync(~0u, grows[0] || grows[1])) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float larger = grows[h] ? top[h] : rows.top[t][h],
                            by = gpu_exp2(rows.top[t][h] - larger);
                rows.top[t][h] = larger;
                rows.sum[t][h] *= by;
#pragma unroll
                for (int i = 0; i < S::STEPS; i++) {
                    rows.out[t][i][h] *= by;
                    rows.out[t][i][h + 2] *= by;
                }
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[t][i] = gpu_exp2(s[t][i] - rows.top[t][i % 2]);
        rows.sum[t][0] += s[t][0] + s[t][2];
        rows.sum[t][1] += s[t][1] + s[t][3];
        weights[t][0] = decode_transpose(gpu_join<DTYPE>(s[t][0], s[t][1]));
        weights[t][1] = decode_transpose(gpu_join<DTYPE>(s[t][2], s[t][3]));
    }
}

template <int DTYPE, class S>
GPU_FN void decode_add_values(uint32_t values, const uint32_t (&weights)[S::TILES][2], uint2 kept,
                              decode_rows<S> &rows) {
    const int lane = decode_lane(), row = lane % 8 + lane / 16 * 8, column = lane / 8 % 2;
#pragma unroll
    for (int i = 0; i < S::STEPS; i++) {
        uint32_t x[4];
        decode_transposed(x, decode_at(values, row, i * 2 + column));
        decode_keep(x, kept);
#pragma unroll
        for (int t = 0; t < S::TILES; t++)
            gpu_mma<DTYPE>(rows.out[t][i], x, weights[t]);
    }
}

/* Adds weights times values. kept: of values of keys that no such row sees 0 is left. */
template <int DTYPE, class S, int STORE>
GPU_FN void decode_add(const decode_chunk &at, const uint32_t (&weights)[S::TILES][2], uint2 kept,
                       decode_rows<S> &rows) {
    if constexpr (S::CODES)
        decode_add_codes<DTYPE, S, STORE>(at, weights, kept, rows);
    else
        decode_add_values<DTYPE, S>(at.values, weights, kept, rows);
}

/* --- the last chunks --- */

GPU_FN void decode_write_word(uint32_t to, uint32_t x) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}

/* Puts new tokens of item n into their chunk. */
template <class S>
GPU_FN void decode_put_new(const decode_block<S> &b, int n, int tokens, int chunk,
                           const decode_chunk &to) {
    enum { WORDS = S::STORED / 4 };
    const int lane = decode_lane();
    for (int i = 0; i < tokens; i++) {
        const int place = b.header->place[n % SM90_DECODE_AHEAD][i],
                  row = place % SM90_DECODE_CHUNK;
        if (place < 0 || place / SM90_DECODE_CHUNK != chunk)
            continue;
        const uint32_t *from =
            (const uint32_t *)(const void *)(b.fresh +
                                             (n % SM90_DECODE_AHEAD * S::TOKENS + i) * 4 * S::DIM);
#pragma unroll
        for (int at = lane; at < WORDS; at += 32) {
            decode_write_word(decode_at(to.keys, row, at / 4) + at % 4 * 4, from[at]);
            decode_write_word(decode_at(to.values, row, at / 4) + at % 4 * 4, from[WORDS + at]);
        }
        if (S::CODES && lane < 2)
            to.scales[lane * SM90_DECODE_CHUNK + row] = rope_bits_float(from[2 * WORDS + lane]);
    }
    __syncwarp();
}

/* The token of a row of a band whose first is `first`. */
template <class S> GPU_FN int decode_token_of(const sm90_decode_call *c, int first, int row) {
    return decode_over(S::HAS_BANDS ? first + row : row, c->per_group);
}

/* Takes the keys out that rows do not see. A lane has what the token of its number sees. */
template <class S>
GPU_FN void decode_mask(const sm90_decode_call *c, int first, uint32_t sees,
                        float (&s)[S::TILES][4]) {
    const int key = decode_row_of<S>(decode_lane() / 4);
#pragma unroll
    for (int t = 0; t < S::TILES; t++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t bits =
                __shfl_sync(~0u, sees,
                            decode_token_of<S>(c, first, t * 8 + decode_lane() % 4 * 2 + h)) >>
                key;
            s[t][h] = bits & 1 ? s[t][h] : -INFINITY;
            s[t][h + 2] = bits >> 8 & 1 ? s[t][h + 2] : -INFINITY;
        }
}

/* Adds the rows of one token after the other, without values that it does not see: even a weight of
 * 0 times a NaN would be one. */
template <int DTYPE, class S, int STORE>
GPU_FN void decode_add_by_token(const sm90_decode_call *c, int tokens, int first, uint32_t sees,
                                const decode_chunk &at, const uint32_t (&weights)[S::TILES][2],
                                decode_rows<S> &rows) {
    const int key = decode_lane() % 4 * 2;
#pragma unroll 1
    for (int n = 0; n < tokens; n++) {
        const uint32_t bits = __shfl_sync(~0u, sees, n),
                       pair = bits >> decode_row_of<S>(key) & 0x0101u,
                       next = bits >> decode_row_of<S>(key + 1) & 0x0101u;
        const uint2 kept = {(pair & 1) * 0xffffu + (next & 1) * 0xffff0000u,
                            (pair >> 8) * 0xffffu + (next >> 8) * 0xffff0000u};
        uint32_t own[S::TILES][2];
#pragma unroll
        for (int t = 0; t < S::TILES; t++) {
            const bool is_own = decode_token_of<S>(c, first, t * 8 + decode_lane() / 4) == n;
            own[t][0] = is_own ? weights[t][0] : 0;
            own[t][1] = is_own ? weights[t][1] : 0;
        }
        decode_add<DTYPE, S, STORE>(at, own, kept, rows);
    }
}

/* A chunk. is_whole: it has no new tokens, and every row sees its keys. */
template <int DTYPE, class S, int STORE>
GPU_FN void decode_attend(const decode_block<S> &b, int n, const decode_told &item, int chunk,
                          bool is_whole, const decode_chunk &at, decode_rows<S> &rows) {
    const sm90_decode_call *c = b.call;
    const int tokens = decode_tokens(item.counts);
    float s[S::TILES][4];
    uint32_t weights[S::TILES][2], sees = 0;
    if (!is_whole) {
        sees = decode_sees(c, gpu_opaque(item.sequence), gpu_opaque(item.counts), item.begin, chunk,
                           min(gpu_opaque(decode_lane()), tokens - 1));
        decode_put_new<S>(b, n, tokens, chunk, at);
    }
    decode_scores<DTYPE, S, STORE>(c, at, decode_queries_of<S>(b, n), rows, s);
    if (!is_whole)
        decode_mask<S>(c, item.row, sees, s);
    decode_weigh<DTYPE, S>(rows, s, weights);
    if (!is_whole)
        decode_add_by_token<DTYPE, S, STORE>(c, tokens, item.row, sees, at, weights, rows);
    else
        decode_add<DTYPE, S, STORE>(at, weights, {~0u, ~0u}, rows);
}

/* --- items --- */

template <class S>
GPU_FN void decode_hand_over(const decode_block<S> &b, int at, int warp, bool failed,
                             decode_rows<S> &rows) {
    const int lane = decode_lane();
    enum { STEP = S::CODES ? 1 : 8 };
    float *to = b.sums + (at * S::WARPS + warp) * S::ROWS * S::SUM_FLOATS +
                (S::CODES ? lane / 4 * 2 : lane / 4);
#pragma unroll
    for (int t = 0; t < S::TILES; t++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = t * 8 + lane % 4 * 2 + h;
            if (row >= S::ROWS)
                continue;
            if (lane < 4)
                b.header->top[at][warp][row] = {rows.top[t][h], failed ? -1.0f : rows.sum[t][h]};
#pragma unroll
            for (int i = 0; i < S::STEPS; i++) {
                to[row * S::SUM_FLOATS + i * 16] = rows.out[t][i][h];
                to[row * S::SUM_FLOATS + i * 16 + STEP] = rows.out[t][i][h + 2];
            }
        }
}

template <int DTYPE, class S>
GPU_FN void decode_compute(const decode_block<S> &b, int warp, decode_lengths read) {
    const sm90_decode_call *c = b.call;
    const int lane = decode_lane();
    decode_copies copies = {decode_begin<S>(c, read, false)};
    if (S::CODES && !(c->flags & SM90_DECODE_SCALED))
        decode_scales_begin(b, warp);
#pragma unroll 1
    for (int i = 0; i < S::STAGES; i++) {
        if (!(copies.failed & DECODE_KNOWN) && copies.chunk >= copies.end)
            decode_look_ahead<S>(c, copies, warp);
        decode_send<S>(b, copies, warp);
    }
    uint32_t used = 0; /* slots so far */
#pragma unroll 1
    for (int n = 0;; n++) {
        decode_rows<S> rows;
        const int turn = n / S::AHEAD % 2;
        sm90_wait(decode_address(&b.header->queries_ready[n % S::AHEAD]), (uint32_t)turn);
        const decode_told &item = b.header->told[n % S::AHEAD]; /* read anew: registers are few */
        const int last = item.chunks.y;
        if (last < 0)
            break;
        bool failed = item.counts < 0;
        decode_rows_begin(decode_queries_of<S>(b, n), rows);
#pragma unroll 1
        for (int chunk = item.chunks.x + warp; chunk < last; chunk += S::WARPS) {
            const bool is_whole = chunk >= item.whole.x && chunk < item.whole.y;
            if (!is_whole)
                sm90_wait(decode_address(&b.header->fresh_ready[n % S::AHEAD]), (uint32_t)turn);
            const int slot = (int)(used % S::STAGES);
            decode_copies_wait<S>();
            failed |= copies.failed >> slot & 1;
            const decode_chunk at = decode_chunk_of(b, warp, slot);
            if constexpr (!S::CODES)
                decode_attend<DTYPE, S, 0>(b, n, item, chunk, is_whole, at, rows);
            else if constexpr (S::CODES == SM90_DECODE_E5M2)
                decode_attend<DTYPE, S, ROPE_F8E5M2>(b, n, item, chunk, is_whole, at, rows);
            else if (c->store == ROPE_F8E4M3)
                decode_attend<DTYPE, S, ROPE_F8E4M3>(b, n, item, chunk, is_whole, at, rows);
            else
                decode_attend<DTYPE, S, ROPE_I8>(b, n, item, chunk, is_whole, at, rows);
            __syncwarp();
            if (!(copies.failed & DECODE_KNOWN))
                decode_look_ahead<S>(c, copies, warp);
            decode_send<S>(b, copies, warp);
            used++;
        }
#pragma unroll
        for (int t = 0; t < S::TILES; t++)
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int d = 4; d < 32; d *= 2)
                    rows.sum[t][h] += __shfl_xor_sync(~0u, rows.sum[t][h], d);
        if (failed && lane == 0 && c->position_flag) /* a length, or a page that is not there */
            *c->position_flag = 1;
        const int at = n % S::BEHIND;
        /* its helpers have all arrived before one does for another item */
        sm90_wait(decode_address(&b.header->fresh_ready[n % S::AHEAD]), (uint32_t)turn);
        if (n >= S::BEHIND)
            sm90_wait(decode_address(&b.header->sums_free[at]),
                      (uint32_t)((n / S::BEHIND - 1) % 2));
        decode_hand_over<S>(b, at, warp, failed, rows);
        __syncwarp();
        if (lane == 0)
            sm90_arrive(decode_address(&b.header->sums_ready[at]));
    }
}

#endif
