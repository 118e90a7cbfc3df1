/* What kernels that decode in one launch ask of heads, and how they are told of norms, rotation and
 * positions. */
#include "backends/gpu/decode/launch.h"
#include "common/math/attention.h"

static int is_tabled(const rope_problem *r) {
    return r->angle_mode == ROPE_ANGLE_TABLE && r->table_dtype == r->dtype &&
           r->table_width == ROPE_TABLE_HALF && r->direction == ROPE_FORWARD;
}

static int is_rotation(const rope_problem *r, int32_t dim) {
    return r->pairs == dim / 2 && (r->angle_mode == ROPE_ANGLE_EXACT || is_tabled(r)) &&
           r->axes == 1 && r->frequency_sets < 2 && !r->xpos_rate &&
           r->pairing_in == r->pairing_out;
}

static int is_norm(const rope_append_steps *s, int32_t dim, int32_t dtype) {
    return s->norm == ROPE_NORM_RMS && s->norm_scope == ROPE_NORM_HEAD && s->norm_offset == 0 &&
           s->norm_dim == dim && s->weight && s->weight_dtype == dtype;
}

static int is_plain(const rope_append_steps *s, int32_t dim, int32_t dtype) {
    return s->head_dim == dim && s->factor == 1 && (!s->norm || is_norm(s, dim, dtype));
}

const char *gpu_decode_decline(const rope_decode_problem *problem) {
    const rope_append_problem *a = problem->append;
    const rope_attention_problem *t = problem->attention;
    const rope_append_steps *q = &a->steps[ROPE_APPEND_Q], *k = &a->steps[ROPE_APPEND_K],
                            *v = &a->steps[ROPE_APPEND_V];
    const int32_t dtype = a->rope.dtype, dim = gpu_decode_dim(problem);
    if (dtype != ROPE_F16 && dtype != ROPE_BF16)
        return "declined: dtype is not of 16 bits";
    if ((dim != 64 && dim != 128) || !is_plain(q, dim, dtype) || !is_plain(k, dim, dtype) ||
        !is_plain(v, dim, dtype) || v->norm || q->scale || q->store_dtype != dtype)
        return "declined: heads are not of 64 or 128 elements, or have a norm or a factor of "
               "another kind";
    if (k->dim_block != dim || v->dim_block != dim)
        return "declined: heads lie in blocks of elements";
    if ((q->rotates || k->rotates) && !is_rotation(&a->rope, dim))
        return "declined: it rotates a part of heads, or neither by exact angles of one axis nor "
               "by a table of half width and of dtype";
    if (t->window_right != INT64_MAX || rope_mask_counts(t) || !(t->scale > 0))
        return "declined: there is a window to the right, a tree with a window or chunks or a "
               "scale below 0";
    return NULL;
}

int gpu_decode_fits_table(const rope_decode_problem *p, const rope_decode_call *call) {
    const rope_call *rope = &call->append.rope;
    const rope_position_map *map = &rope->position;
    return p->append->rope.angle_mode != ROPE_ANGLE_TABLE ||
           (!map->ids && !map->offsets && map->offset >= 0 &&
            map->offset <= rope->table_rows - call->most_tokens);
}

gpu_decode_table gpu_decode_table_of(const rope_call *call) {
    const int64_t *stride = call->table_stride;
    return (gpu_decode_table){call->cos, call->sin, stride[0], stride[1], stride[2]};
}

gpu_decode_steps gpu_decode_steps_of(const rope_append_problem *p, const rope_append_call *call,
                                     int tensor) {
    const rope_append_steps *s = &p->steps[tensor];
    const rope_position_map *map = &call->rope.position;
    return (gpu_decode_steps){
        .ids = map->ids,
        .id_row = map->id_stride[1],
        .id_token = map->id_stride[2],
        .offset = map->offset,
        .offsets = map->offsets,
        .weight = s->norm ? call->tensor[tensor].weight : NULL,
        .eps = s->eps,
        .flags = (s->norm ? GPU_STEP_NORM : 0) | (s->rotates ? GPU_STEP_ROTATES : 0) |
                 (p->rope.pairing_in == ROPE_PAIRING_INTERLEAVED ? GPU_STEP_INTERLEAVED : 0) |
                 (s->rounding == ROPE_NORM_ROUND_TWICE ? GPU_STEP_NORM_TWICE : 0) |
                 (s->weight == ROPE_NORM_ONE_PLUS_WEIGHT ? GPU_STEP_NORM_ONE_PLUS : 0) |
                 (map->wide ? GPU_STEP_WIDE_IDS : 0) |
                 (p->rope.direction != ROPE_FORWARD ? GPU_STEP_NEGATIVE : 0) |
                 (p->rope.angle_mode == ROPE_ANGLE_TABLE ? GPU_STEP_TABLE : 0) |
                 (p->rope.arithmetic == ROPE_ARITHMETIC_MODEL_DTYPE ? GPU_STEP_MODEL : 0)};
}
