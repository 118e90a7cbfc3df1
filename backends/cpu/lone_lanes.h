/* One head a token, by exact angles that nothing scales: they go to it without a row in memory. */
#ifndef ROPEKIT_CPU_LONE_LANES_H
#define ROPEKIT_CPU_LONE_LANES_H

#include "backends/cpu/rotate_lanes.h"
#include "backends/cpu/row_lanes.h"

/* Vectors of pairs that go together, of which 16-bit stores make one. */
enum { LANES_LONE = 2 };

/* LANES_LONE vectors of pairs from pair i on. */
CPU_INLINE void lanes_lone_vectors(lanes_kind kind, const rope_problem *p, const rope_token *token,
                                   const lanes_heads *head, const char *in, char *out, int i) {
    const int pairs = p->pairs;
    lanes_cos_sin a[LANES_LONE];
    lanes_pair x[LANES_LONE];
#pragma GCC unroll 2
    for (int v = 0; v < LANES_LONE; v += LANES_GROUP) {
        lanes_w turns[LANES_GROUP];
        LANES_EACH(w, LANES_GROUP)
        turns[w] = lanes_exact(1, p, token, p->set[0].turns, i + (v + w) * LANES);
        lanes_turns(LANES_GROUP, turns, a + v);
    }
    lanes_fetch(kind, head, LANES_LONE, in, out, i, pairs);
    lanes_read_vectors(kind, LANES_LONE, in, i, pairs, x);
    LANES_EACH(v, LANES_LONE)
    x[v] = lanes_rotate(x[v], (lanes_matrix){a[v].c, a[v].s, a[v].c, a[v].s});
    lanes_write(kind, LANES_LONE, out, i, pairs, x);
}

/* Tokens at consecutive positions. */
CPU_INLINE void lanes_lone_tokens(lanes_kind kind, const rope_problem *p, const lanes_heads *head,
                                  int64_t position, int64_t tokens) {
    const int pairs = p->pairs;
    const lanes_heads frame = *head; /* stores may alias what the pointers lead to */
    const char *in = frame.in;
    char *out = frame.out;
    rope_token token;
    for (int64_t t = 0; t < tokens; t++) {
        token.at[0] = rope_sum(position, t);
#pragma GCC unroll 2
        for (int i = 0; i < pairs; i += LANES_LONE * LANES)
            lanes_lone_vectors(kind, p, &token, &frame, in, out, i);
        in += frame.in_step;
        out += frame.out_step;
    }
}

CPU_INLINE void lanes_lone_kind(int dtype, const rope_problem *p, const lanes_heads *head,
                                int stream, int64_t position, int64_t tokens) {
    lanes_kind half = lanes_kind_of(dtype, ROPE_PAIRING_HALF_SPLIT),
               inter = lanes_kind_of(dtype, ROPE_PAIRING_INTERLEAVED);
    half.fetch = inter.fetch = 1;
    lanes_kind half_stream = half, inter_stream = inter;
    half_stream.stream = inter_stream.stream = 1;
    if (p->pairing_in == ROPE_PAIRING_INTERLEAVED && stream)
        lanes_lone_tokens(inter_stream, p, head, position, tokens);
    else if (p->pairing_in == ROPE_PAIRING_INTERLEAVED)
        lanes_lone_tokens(inter, p, head, position, tokens);
    else if (stream)
        lanes_lone_tokens(half_stream, p, head, position, tokens);
    else
        lanes_lone_tokens(half, p, head, position, tokens);
}

static CPU_APART void lanes_f32_lone(const rope_problem *p, const lanes_heads *head, int stream,
                                     int64_t position, int64_t tokens) {
    lanes_lone_kind(ROPE_F32, p, head, stream, position, tokens);
}

static CPU_APART void lanes_f16_lone(const rope_problem *p, const lanes_heads *head, int stream,
                                     int64_t position, int64_t tokens) {
    lanes_lone_kind(ROPE_F16, p, head, stream, position, tokens);
}

static CPU_APART void lanes_bf16_lone(const rope_problem *p, const lanes_heads *head, int stream,
                                      int64_t position, int64_t tokens) {
    lanes_lone_kind(ROPE_BF16, p, head, stream, position, tokens);
}

CPU_INLINE void lanes_rotate_lone(int dtype, const rope_problem *p, const lanes_heads *head,
                                  int stream, int64_t position, int64_t tokens) {
    if (dtype == ROPE_F32)
        lanes_f32_lone(p, head, stream, position, tokens);
    else if (dtype == ROPE_F16)
        lanes_f16_lone(p, head, stream, position, tokens);
    else
        lanes_bf16_lone(p, head, stream, position, tokens);
}

/* Descriptors for which a lone head is served so. */
static int lanes_serves_lone(const rope_problem *p) {
    return p->pairs % (LANES_LONE * LANES) == 0 && p->angle_mode == ROPE_ANGLE_EXACT &&
           p->axes == 1 && !lanes_scales(p) && !p->xpos_rate &&
           p->arithmetic != ROPE_ARITHMETIC_MODEL_DTYPE && p->pairing_in == p->pairing_out;
}

#endif
