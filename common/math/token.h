/* What a kernel must know of a token before it rotates: its status, its frequency list, its
 * positions. */
#ifndef ROPEKIT_COMMON_TOKEN_H
#define ROPEKIT_COMMON_TOKEN_H

#include "common/math/coefficients.h"
#include "common/math/position.h"

enum {
    ROPE_TOKEN_ROTATES = 0,
    ROPE_TOKEN_PASSES = 1, /* is copied unrotated */
    ROPE_TOKEN_FAILS = 2   /* out of range under ROPE_OUT_OF_RANGE_ERROR, or of a sequence that its
                              shard does not divide: is not written */
};

typedef struct rope_token {
    int32_t status;
    int32_t set;
    int64_t at[ROPE_MAX_AXES]; /* position on each axis, or index of its table row's entry 0 */
} rope_token;

/* Index of the table row of a position by the descriptor's policy, which may change the status. */
ROPE_FN int64_t rope_token_row(const rope_problem *problem, const rope_call *call, int64_t batch,
                               int64_t position, int32_t *status) {
    int64_t row = position, last = call->table_rows - 1;
    if (row < 0 || row > last) {
        if (problem->out_of_range == ROPE_OUT_OF_RANGE_ERROR)
            *status = ROPE_TOKEN_FAILS;
        else if (problem->out_of_range == ROPE_OUT_OF_RANGE_IDENTITY || last < 0)
            *status = ROPE_TOKEN_PASSES;
        row = row < 0 || last < 0 ? 0 : last;
    }
    return batch * call->table_stride[0] + row * call->table_stride[1];
}

/* A token's status before tables have a say, and the frequency list that it takes. */
ROPE_FN void rope_token_begin(const rope_problem *problem, const rope_call *call,
                              const rope_site *site, rope_token *token) {
    token->status = site->sequence < 0 ? ROPE_TOKEN_PASSES
                    : site->divides    ? ROPE_TOKEN_ROTATES
                                       : ROPE_TOKEN_FAILS;
    token->set =
        token->status == ROPE_TOKEN_ROTATES ? rope_set_of(problem, &call->position, site) : 0;
}

/* Fills a token where it lies, so that a GPU may keep it where a pair can index its positions. */
ROPE_FN void rope_token_at(const rope_problem *problem, const rope_call *call,
                           const rope_site *site, rope_token *token) {
    rope_token_begin(problem, call, site, token);
    for (int axis = 0; axis < problem->axes; axis++)
        token->at[axis] = rope_position_of(&call->position, site, axis);
    if (problem->angle_mode != ROPE_ANGLE_TABLE || token->status != ROPE_TOKEN_ROTATES)
        return;
    for (int axis = 0; axis < problem->axes; axis++)
        token->at[axis] =
            rope_token_row(problem, call, site->batch, token->at[axis], &token->status);
}

ROPE_FN void rope_token_read(const rope_problem *problem, const rope_call *call, int64_t batch,
                             int64_t index, rope_token *token) {
    const rope_site site = rope_site_of(&call->position, batch, index);
    rope_token_at(problem, call, &site, token);
}

ROPE_FN rope_token rope_token_of(const rope_problem *problem, const rope_call *call, int64_t batch,
                                 int64_t index) {
    rope_token token;
    rope_token_read(problem, call, batch, index, &token);
    return token;
}

/* Coefficients of a pair for q (tensor 0) or k (tensor 1). */
ROPE_FN rope_coefficients rope_coefficients_of(const rope_problem *problem, const rope_call *call,
                                               const rope_token *token, int pair, int tensor) {
    int64_t at = token->at[problem->axes > 1 ? problem->pair_axis[pair] : 0];
    if (problem->angle_mode == ROPE_ANGLE_TABLE)
        return rope_tabled(problem, call, pair, at);
    return rope_computed(problem, token->set, pair, at, tensor);
}

ROPE_FN rope_coefficients64 rope_coefficients64_of(const rope_problem *problem,
                                                   const rope_call *call, const rope_token *token,
                                                   int pair, int tensor) {
    int64_t at = token->at[problem->axes > 1 ? problem->pair_axis[pair] : 0];
    if (problem->angle_mode == ROPE_ANGLE_TABLE)
        return rope_tabled64(problem, call, pair, at);
    return rope_computed64(problem, token->set, pair, at, tensor);
}

#endif
