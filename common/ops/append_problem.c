#include "common/ops/append_problem.h"

#include "common/ops/rope_problem.h"

#include <stddef.h>

_Static_assert(offsetof(rope_append_problem, rope) == 0, "rope_problem_create makes both");

static rope_append_steps steps_of(const rope_append_part *part, int32_t head_dim, int32_t dim_block,
                                  int32_t rotates) {
    return (rope_append_steps){
        .head_dim = head_dim,
        .rotates = rotates,
        .norm = part->norm.type,
        .norm_scope = part->norm.scope,
        .norm_offset = part->norm.offset,
        .norm_dim = part->norm.dim,
        .weight = part->norm.weight,
        .weight_dtype = part->norm.weight_dtype,
        .rounding = part->norm.rounding,
        .eps = (float)part->norm.eps,
        .factor = (float)part->factor,
        .store_dtype = part->store_dtype,
        .scale = part->scale,
        .dim_block = dim_block ? dim_block : head_dim,
    };
}

/* Keys of the cache are moved by a distance: their attention factor, the position where XPos scales
 * by 1 and the order of their pairs are in them already. */
static void leave_differences(rope_problem *rope) {
    for (int32_t s = 0; s < rope->frequency_sets; s++)
        rope->set[s].attention_factor = 1;
    rope->xpos_center = 0;
    rope->pairing_in = rope->pairing_out;
}

rope_status rope_append_problem_create(const rope_append_desc *desc, rope_append_problem **made) {
    rope_problem *rope;
    rope_status status = rope_problem_create(&desc->rope, sizeof(rope_append_problem), &rope);
    if (status != ROPE_OK)
        return status;
    const int32_t rotates = desc->rotation == ROPE_ROTATION_ON;
    rope_append_problem *problem = (rope_append_problem *)(void *)rope;
    *problem = (rope_append_problem){
        .rope = *rope,
        .steps = {steps_of(&desc->q, desc->rope.head_dim, 0, rotates),
                  steps_of(&desc->k, desc->rope.k_head_dim, desc->k_dim_block, rotates),
                  steps_of(&desc->v, desc->v_head_dim, desc->v_dim_block, 0)},
        .cache = desc->cache,
        .k_source = desc->k_source,
        .page_size = desc->page_size,
        .ring = desc->ring,
        .slot_wide = desc->slot_dtype == ROPE_I64,
        .table_wide = desc->table_dtype == ROPE_I64,
    };
    if (desc->k_source == ROPE_SOURCE_CACHE)
        leave_differences(&problem->rope);
    *made = problem;
    return ROPE_OK;
}
