#include "common/ops/attention_problem.h"

#include "common/ops/attention_norms.h"
#include "common/ops/rope_problem.h"

#include <math.h>
#include <stddef.h>

_Static_assert(offsetof(rope_attention_problem, rope) == 0, "rope_problem_create makes both");

static rope_append_steps steps_of(const rope_attention_store *store, int32_t dtype,
                                  int32_t head_dim) {
    return (rope_append_steps){
        .head_dim = head_dim,
        .store_dtype = store->dtype ? store->dtype : dtype,
        .scale = store->scale,
        .dim_block = store->dim_block ? store->dim_block : head_dim,
    };
}

static int64_t or_none(int64_t length) {
    return length ? length : INT64_MAX;
}

rope_status rope_attention_problem_create(const rope_attention_desc *desc,
                                          rope_attention_problem **made) {
    rope_problem *rope;
    rope_status status = rope_problem_create(&desc->rope, sizeof(rope_attention_own), &rope);
    if (status != ROPE_OK)
        return status;
    const int32_t dtype = desc->rope.dtype, head_dim = desc->rope.head_dim;
    rope_attention_own *own = (rope_attention_own *)(void *)rope;
    own->norms = NULL;
    own->append = own->backward = NULL;
    own->problem = (rope_attention_problem){
        .rope = *rope,
        .head_dim = head_dim,
        .v_head_dim = desc->v_head_dim,
        .rotates = {desc->rotation != ROPE_ATTENTION_ROTATE_NONE,
                    desc->rotation == ROPE_ATTENTION_ROTATE_QK},
        .mask = desc->mask,
        .sink_dtype = desc->sink_dtype,
        .scale = (float)(desc->scale == 0 ? 1 / sqrt(head_dim) : desc->scale),
        .soft_cap = (float)desc->soft_cap,
        .window = or_none(desc->window),
        .window_right = or_none(desc->window_right),
        .chunk = or_none(desc->chunk),
        .cache = desc->cache,
        .table_wide = desc->table_dtype == ROPE_I64,
        .page_size = desc->page_size,
        .ring = desc->ring,
        .k = steps_of(&desc->k, dtype, head_dim),
        .v = steps_of(&desc->v, dtype, desc->v_head_dim),
        .nondeterministic = desc->nondeterministic,
    };
    *made = &own->problem;
    return ROPE_OK;
}
