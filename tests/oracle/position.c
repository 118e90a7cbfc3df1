/* Where a token stands: ids, offsets, and the rows of a table. */
#include "tests/oracle/internal.h"
#include "tests/oracle/sequence.h"

static void table_row(const oracle *o, const rope_args *args, int32_t axis, oracle_token *site) {
    int64_t row = site->at[axis];
    if (row >= 0 && row < args->table_rows)
        return;
    if (o->desc.out_of_range == ROPE_OUT_OF_RANGE_ERROR)
        site->status = ORACLE_FAILS;
    else if (o->desc.out_of_range == ROPE_OUT_OF_RANGE_IDENTITY || args->table_rows == 0)
        site->status = ORACLE_PASSES;
    else
        site->at[axis] = row < 0 ? 0 : args->table_rows - 1;
}

oracle_token oracle_locate(const oracle *o, const rope_args *args, int64_t batch, int64_t token) {
    oracle_token site = {.status = ORACLE_ROTATES};
    oracle_site where = oracle_site_of(&o->desc, args, batch, token);
    if (where.sequence < 0 || !where.divides) {
        site.status = where.sequence < 0 ? ORACLE_PASSES : ORACLE_FAILS;
        return site;
    }
    const int64_t *given = args->position_stride;
    int64_t contiguous[3] = {args->batch * args->tokens, args->tokens, 1};
    const int64_t *stride = given[0] || given[1] || given[2] ? given : contiguous;
    for (int32_t axis = 0; axis < o->desc.axes; axis++) {
        int64_t position = where.index;
        if (args->position_ids)
            position = oracle_index(o->desc.position_dtype, args->position_ids,
                                    axis * stride[0] + batch * stride[1] + token * stride[2]);
        site.at[axis] = (int64_t)((uint64_t)position + (uint64_t)where.shift);
        if (o->desc.angle_mode == ROPE_ANGLE_TABLE)
            table_row(o, args, axis, &site);
    }
    if (o->sets == 2) {
        int64_t length =
            (int64_t)((uint64_t)(where.local * o->desc.shard_size) + (uint64_t)where.shift);
        if (args->sequence_lengths)
            length = oracle_index(o->desc.position_dtype, args->sequence_lengths, where.sequence);
        site.set = length > o->desc.original_max_position_embeddings;
    }
    return site;
}
