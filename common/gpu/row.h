/* cos and sin of a thread's V pairs: what a vector kernel knows of a token. */
#ifndef ROPEKIT_GPU_ROW_H
#define ROPEKIT_GPU_ROW_H

#include "common/gpu/element.h"
#include "common/token.h"

/* The i-th pair of a thread: half-split has one run of V pairs, interleaved two of V/2. */
template <typename S> GPU_FN int gpu_pair_of(int i, int pairs) {
    int lane = (int)threadIdx.x;
    if (!S::INTERLEAVED)
        return lane * S::V + i;
    constexpr int RUN = S::V / 2;
    return i < RUN ? lane * RUN + i : pairs / 2 + lane * RUN + i - RUN;
}

/* N entries of a list from an address aligned to them, 16 bytes at a time. */
template <int N, typename T> GPU_FN void gpu_load_run(const T *list, T *run) {
    if constexpr (N * sizeof(T) >= 16) {
#pragma unroll
        for (int i = 0; i < N; i += 16 / (int)sizeof(T)) {
            uint4 raw = *(const uint4 *)(list + i);
            memcpy(run + i, &raw, sizeof raw);
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            run[i] = list[i];
    }
}

template <typename S, typename T> GPU_FN void gpu_load_list(const T *list, int pairs, T run[S::V]) {
    if constexpr (S::INTERLEAVED) {
        gpu_load_run<S::V / 2>(list + gpu_pair_of<S>(0, pairs), run);
        gpu_load_run<S::V / 2>(list + gpu_pair_of<S>(S::V / 2, pairs), run + S::V / 2);
    } else {
        gpu_load_run<S::V>(list + gpu_pair_of<S>(0, pairs), run);
    }
}

template <typename S>
GPU_FN int64_t gpu_position_of(const rope_problem *p, const rope_call *call, const rope_site *site,
                               const rope_token *token, int pair) {
    if (p->axes == 1)
        return token->at[0];
    return rope_position_of(&call->position, site, p->pair_axis[pair]);
}

/* Before attention factor and direction. */
template <typename S>
GPU_FN void gpu_angles(const rope_problem *p, const rope_call *call, const rope_site *site,
                       const rope_token *token, int pairs, float c[S::V], float s[S::V]) {
    bool second = token->set;
    if (p->angle_mode == ROPE_ANGLE_EXACT) {
        uint64_t turns[S::V];
        gpu_load_list<S>(second ? p->set[1].turns : p->set[0].turns, pairs, turns);
#pragma unroll
        for (int i = 0; i < S::V; i++) {
            int64_t at = gpu_position_of<S>(p, call, site, token, gpu_pair_of<S>(i, pairs));
            rope_cos_sin a = rope_cos_sin_turns((uint64_t)at * turns[i]);
            c[i] = a.c;
            s[i] = a.s;
        }
        return;
    }
    float inv_freq[S::V];
    gpu_load_list<S>(second ? p->set[1].inv_freq : p->set[0].inv_freq, pairs, inv_freq);
#pragma unroll
    for (int i = 0; i < S::V; i++) {
        int64_t at = gpu_position_of<S>(p, call, site, token, gpu_pair_of<S>(i, pairs));
        rope_cos_sin a = rope_cos_sin_radians((float)at * inv_freq[i]);
        c[i] = a.c;
        s[i] = a.s;
    }
}

template <typename S>
GPU_FN void gpu_computed_row(const rope_problem *p, const rope_call *call, const rope_site *site,
                             const rope_token *token, int pairs, float c[S::V], float s[S::V]) {
    bool second = token->set;
    float factor = (float)(second ? p->set[1].attention_factor : p->set[0].attention_factor);
    gpu_angles<S>(p, call, site, token, pairs, c, s);
#pragma unroll
    for (int i = 0; i < S::V; i++) {
        c[i] = c[i] * factor;
        s[i] = s[i] * factor;
        if (p->direction != ROPE_FORWARD)
            s[i] = -s[i];
    }
}

/* A half-width table, which gives both elements of a pair the same cos and sin. */
template <typename S>
GPU_FN void gpu_table_row(const rope_problem *p, const rope_call *call, const rope_token *token,
                          int pairs, float c[S::V], float s[S::V]) {
#pragma unroll
    for (int i = 0; i < S::V; i++) {
        int64_t at = token->at[0] + gpu_pair_of<S>(i, pairs) * call->table_stride[2];
        rope_coefficients m;
        m.c1 = m.c2 = rope_table_entry(p->table_dtype, call->cos, at);
        m.s1 = m.s2 = rope_table_entry(p->table_dtype, call->sin, at);
        m = rope_directed(p->direction, m);
        c[i] = m.c1;
        s[i] = m.s1;
    }
}

/* The position on axis 0 alone: gpu_position_of reads the others, pair by pair. */
GPU_FN rope_token gpu_token_of(const rope_problem *p, const rope_call *call, int64_t batch,
                               int64_t index) {
    rope_problem problem = *p;
    problem.axes = 1;
    return rope_token_of(&problem, call, batch, index);
}

/* Returns the token's fate; without a rotation c and s are left alone. */
template <typename S>
GPU_FN int gpu_row(const rope_problem *p, const rope_call *call, int64_t batch, int64_t index,
                   int pairs, float c[S::V], float s[S::V]) {
    rope_token token = gpu_token_of(p, call, batch, index);
    if (token.fate != ROPE_TOKEN_ROTATES)
        return token.fate;
    if (p->angle_mode == ROPE_ANGLE_TABLE) {
        gpu_table_row<S>(p, call, &token, pairs, c, s);
    } else {
        rope_site site = rope_site_of(&call->position, batch, index);
        gpu_computed_row<S>(p, call, &site, &token, pairs, c, s);
    }
    return token.fate;
}

#endif
