/*
 * The coefficients of a token's pairs, computed once a block and kept in shared memory: threads of
 * a block that rotate heads of the same token take one pair each, whatever the rule, and all of
 * them read the row. So angles cost nothing beside a head's bytes, and every descriptor has one row
 * code.
 */
#ifndef ROPEKIT_GPU_ROPE_COS_SIN_ROW_H
#define ROPEKIT_GPU_ROPE_COS_SIN_ROW_H

#include "backends/gpu/element.h"
#include "backends/gpu/rope/kernels.h"
#include "common/math/token.h"

/* A row: one list where both elements of a pair share cos and sin, else one for each. */
template <int DTYPE> struct gpu_row {
    typedef typename gpu_element<DTYPE>::real real;
    real *c1, *s1, *c2, *s2;
};

/* The i-th row of the block. */
template <int DTYPE> GPU_FN gpu_row<DTYPE> gpu_row_of(void *memory, int i, int pairs, bool both) {
    typedef typename gpu_element<DTYPE>::real real;
    real *first = (real *)memory + i * (both ? 4 : 2) * pairs;
    real *second = both ? first + 2 * pairs : first;
    return {first, first + pairs, second, second + pairs};
}

/* Batch row and token of the n-th of `rows`; a 64-bit division only where nothing less will do. */
GPU_FN void gpu_split_token(int64_t rows, int64_t tokens, int64_t n, int64_t *batch,
                            int64_t *index) {
    *batch = 0;
    if (rows != tokens)
        *batch = tokens == 1                    ? n
                 : (uint64_t)(n | tokens) >> 32 ? n / tokens
                                                : (uint32_t)n / (uint32_t)tokens;
    *index = n - *batch * tokens;
}

/* A token as one pair sees it: at[0] is the position on the pair's axis, or its table row. */
GPU_FN rope_token gpu_token_of(const rope_problem *p, const rope_call *call, int64_t batch,
                               int64_t index, int axis) {
    rope_site site = rope_site_of(&call->position, batch, index);
    rope_token token;
    rope_token_begin(p, call, &site, &token);
    token.at[0] = rope_position_of(&call->position, &site, axis);
    if (p->angle_mode != ROPE_ANGLE_TABLE || token.status != ROPE_TOKEN_ROTATES)
        return token;
    for (int other = 0; other < p->axes; other++) /* any axis out of range decides for all */
        if (other != axis)
            rope_token_row(p, call, batch, rope_position_of(&call->position, &site, other),
                           &token.status);
    token.at[0] = rope_token_row(p, call, batch, token.at[0], &token.status);
    return token;
}

template <int DTYPE>
GPU_FN void gpu_row_put(const rope_problem *p, const rope_call *call, const rope_token *token,
                        int pair, int tensor, gpu_row<DTYPE> row) {
    typename gpu_element<DTYPE>::coefficients m;
    bool table = p->angle_mode == ROPE_ANGLE_TABLE;
    if constexpr (DTYPE == ROPE_F64)
        m = table ? rope_tabled64(p, call, pair, token->at[0])
                  : rope_computed64(p, token->set, pair, token->at[0], tensor);
    else
        m = table ? rope_tabled(p, call, pair, token->at[0])
                  : rope_computed(p, token->set, pair, token->at[0], tensor);
    row.c1[pair] = m.c1;
    row.s1[pair] = m.s1;
    if (row.c2 != row.c1) {
        row.c2[pair] = m.c2;
        row.s2[pair] = m.s2;
    }
}

/* One pair of the row of token n; status receives the token's. */
template <int DTYPE>
GPU_FN void gpu_row_fill(const rope_problem *p, const rope_call *call, int tensor, int64_t n,
                         int pair, gpu_row<DTYPE> row, int32_t *status) {
    int axis = p->axes > 1 ? p->pair_axis[pair] : 0;
    int64_t batch, index;
    gpu_split_token(call->batch * call->tokens, call->tokens, n, &batch, &index);
    rope_token token = gpu_token_of(p, call, batch, index, axis);
    if (token.status == ROPE_TOKEN_ROTATES)
        gpu_row_put<DTYPE>(p, call, &token, pair, tensor, row);
    if (pair == 0)
        *status = token.status;
}

#endif
