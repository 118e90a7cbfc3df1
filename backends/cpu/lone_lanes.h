/* One head a token, by exact angles that nothing scales: they go to it without a row in memory. */
#ifndef ROPEKIT_CPU_LONE_LANES_H
#define ROPEKIT_CPU_LONE_LANES_H

#include "backends/cpu/plain_lanes.h"

/* Vectors of pairs that go together, of which 16-bit stores make one. */
enum { LANES_LONE = 2 };

/* Tokens at consecutive positions, a multiple of the parts that go side by side. */
typedef struct lanes_count {
    int64_t position, count;
    int parts;
} lanes_count;

/* The turns of LANES pairs from pair i on: those of a token, or of the next one in a count of
 * tokens, whose turns are a sum. */
CPU_INLINE lanes_w lanes_lone_turns(const uint64_t *list, const rope_token *token, lanes_d *count,
                                    int i) {
    if (!count)
        return lanes_exact(1, NULL, token, list, i);
    count += 2 * i / LANES;
    const lanes_w turns = {{count[0], count[1]}};
    for (int part = 0; part < 2; part++) {
        lanes_d step;
        memcpy(&step, list + i + part * LANES / 2, sizeof step);
        count[part] += step;
    }
    return turns;
}

/* LANES_LONE vectors of pairs from pair i on. */
CPU_INLINE void lanes_lone_vectors(lanes_kind kind, const uint64_t *list, const rope_token *token,
                                   lanes_d *count, const lanes_heads *head, int pairs,
                                   const char *in, char *out, int i) {
    lanes_cos_sin a[LANES_LONE];
    lanes_pair x[LANES_LONE];
#pragma GCC unroll 2
    for (int v = 0; v < LANES_LONE; v += LANES_GROUP) {
        lanes_w turns[LANES_GROUP];
        LANES_EACH(w, LANES_GROUP)
        turns[w] = lanes_lone_turns(list, token, count, i + (v + w) * LANES);
        lanes_turns(LANES_GROUP, turns, a + v);
    }
    lanes_fetch(kind, head, LANES_LONE, in, out, i, pairs);
    lanes_read_vectors(kind, LANES_LONE, in, i, pairs, x);
    LANES_EACH(v, LANES_LONE)
    x[v] = lanes_rotate(x[v], (lanes_matrix){a[v].c, a[v].s, a[v].c, a[v].s});
    lanes_write(kind, LANES_LONE, out, i, pairs, x);
}

CPU_INLINE void lanes_lone_token(lanes_kind kind, const uint64_t *list, const rope_token *token,
                                 lanes_d *count, const lanes_heads *head, int pairs, const char *in,
                                 char *out) {
#pragma GCC unroll 2
    for (int i = 0; i < pairs; i += LANES_LONE * LANES)
        lanes_lone_vectors(kind, list, token, count, head, pairs, in, out, i);
}

/* The turns of the first token of each part. */
CPU_INLINE void lanes_lone_begin(const lanes_count *tokens, const uint64_t *list, int pairs,
                                 int64_t spread, lanes_d *counts) {
    rope_token token;
    for (int part = 0; part < tokens->parts; part++) {
        token.at[0] = rope_sum(tokens->position, part * spread);
        for (int i = 0; i < pairs; i += LANES) {
            lanes_w turns = lanes_exact(1, NULL, &token, list, i);
            *counts++ = turns.part[0];
            *counts++ = turns.part[1];
        }
    }
}

CPU_INLINE void lanes_lone_tokens(lanes_kind kind, const rope_problem *p, const lanes_heads *head,
                                  const lanes_count *tokens) {
    const lanes_heads frame = *head; /* stores may alias what the pointers lead to */
    const uint64_t *list = p->set[0].turns;
    const int64_t spread = tokens->count / tokens->parts;
    const int pairs = p->pairs, parts = tokens->parts;
    const char *in = frame.in;
    char *out = frame.out;
    lanes_d counts[2 * CPU_MAX_PAIRS / LANES];
    rope_token token;
    token.at[0] = tokens->position;
    if (tokens->count == 1) {
        lanes_lone_token(kind, list, &token, NULL, &frame, pairs, in, out);
        return;
    }
    lanes_lone_begin(tokens, list, pairs, spread, counts);
    for (int64_t t = 0; t < spread; t++) {
        for (int part = 0; part < parts; part++)
            lanes_lone_token(kind, list, NULL, counts + 2 * part * pairs / LANES, &frame, pairs,
                             in + part * spread * frame.in_step,
                             out + part * spread * frame.out_step);
        in += frame.in_step;
        out += frame.out_step;
    }
}

CPU_INLINE void lanes_lone_kind(int dtype, const rope_problem *p, const lanes_heads *head,
                                int stream, const lanes_count *tokens) {
    lanes_kind half = lanes_kind_of(dtype, ROPE_PAIRING_HALF_SPLIT),
               inter = lanes_kind_of(dtype, ROPE_PAIRING_INTERLEAVED);
    half.fetch = inter.fetch = 1;
    lanes_kind half_stream = half, inter_stream = inter;
    half_stream.stream = inter_stream.stream = 1;
    if (p->pairing_in == ROPE_PAIRING_INTERLEAVED && stream)
        lanes_lone_tokens(inter_stream, p, head, tokens);
    else if (p->pairing_in == ROPE_PAIRING_INTERLEAVED)
        lanes_lone_tokens(inter, p, head, tokens);
    else if (stream)
        lanes_lone_tokens(half_stream, p, head, tokens);
    else
        lanes_lone_tokens(half, p, head, tokens);
}

static CPU_APART void lanes_f32_lone(const rope_problem *p, const lanes_heads *head, int stream,
                                     const lanes_count *tokens) {
    lanes_lone_kind(ROPE_F32, p, head, stream, tokens);
}

static CPU_APART void lanes_f16_lone(const rope_problem *p, const lanes_heads *head, int stream,
                                     const lanes_count *tokens) {
    lanes_lone_kind(ROPE_F16, p, head, stream, tokens);
}

static CPU_APART void lanes_bf16_lone(const rope_problem *p, const lanes_heads *head, int stream,
                                      const lanes_count *tokens) {
    lanes_lone_kind(ROPE_BF16, p, head, stream, tokens);
}

CPU_INLINE void lanes_rotate_lone(int dtype, const rope_problem *p, const lanes_heads *head,
                                  int stream, const lanes_count *tokens) {
    if (dtype == ROPE_F32)
        lanes_f32_lone(p, head, stream, tokens);
    else if (dtype == ROPE_F16)
        lanes_f16_lone(p, head, stream, tokens);
    else
        lanes_bf16_lone(p, head, stream, tokens);
}

/* Descriptors for which a lone head is served so. */
static int lanes_serves_lone(const rope_problem *p) {
    return lanes_serves_plain(p) && p->pairs % (LANES_LONE * LANES) == 0 && !lanes_scales(p);
}

#endif
