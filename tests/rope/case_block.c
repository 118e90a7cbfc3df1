/* A plain case: one contiguous q, rotated in place, with a frequency rule of the generator. */
#include "tests/rope/case_parts.h"

#include <stdlib.h>
#include <string.h>

/* Takes back what the generator chose beyond the rule. */
static void plain_desc(rope_desc *d, int32_t dtype) {
    d->dtype = dtype;
    d->head_dim = d->rotary_dim = (int32_t)case_rotary_dim(d);
    d->rotary_offset = d->k_head_dim = d->k_rotary_offset = 0;
    d->pairing_out = d->pairing_in;
    d->direction = d->arithmetic = d->shard = d->shard_rank = d->shard_size = 0;
    d->position_dtype = ROPE_I64;
    d->longrope_select = d->rope_type == ROPE_TYPE_LONGROPE ? ROPE_LONGROPE_LONG : 0;
    d->xpos_scale_base = 0;
    d->xpos_center = 0;
}

void case_make_block(test_case *c, uint64_t seed, int64_t index, const case_block *block) {
    case_wish wish = {.angle_mode = block->angle_mode, .single_axis = 1};
    wish.rope_type = (int32_t)(index % ROPE_TYPE_INV_FREQ) + 1;
    case_make(c, seed, index, &wish);
    case_free(c);
    plain_desc(&c->desc, block->dtype);
    c->wild = 0;
    c->pieces = 0;
    int64_t ids = block->tokens * ROPE_MAX_AXES;
    int64_t elements = block->tokens * block->heads * c->desc.head_dim;
    size_t at = (size_t)ids * sizeof(int64_t);
    c->bytes = at + (size_t)(elements * oracle_dtype_size(block->dtype));
    c->arena = malloc(c->bytes);
    for (int64_t i = 0; i < ids; i++)
        case_block_ids(c)[i] = random_signed(&c->random, block->position_bits);
    case_fill_data(&c->random, 0, c->arena + at, c->bytes - at, block->dtype, 4);
    c->args = (rope_args){
        .struct_size = sizeof c->args,
        .batch = 1,
        .tokens = block->tokens,
        .q = {.in = c->arena + at, .out = c->arena + at, .heads = block->heads},
        .position_ids = c->arena,
    };
}

int64_t *case_block_ids(const test_case *c) {
    return (int64_t *)(void *)c->arena;
}
