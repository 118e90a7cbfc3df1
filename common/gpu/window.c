#include <gpu_tuning.h>

#include "common/gpu/grid.h"

enum { UNITS_MOST = INT32_MAX / 4 };

static const char *declines_table(const rope_problem *p) {
    if (p->table_width != ROPE_TABLE_HALF)
        return "declined: table_width is full";
    if (p->direction == ROPE_INVERSE)
        return "declined: angle_mode is table and direction is inverse";
    return p->table_dtype == ROPE_F32 || p->table_dtype == p->dtype
               ? NULL
               : "declined: table_dtype is neither f32 nor dtype";
}

const char *gpu_window_declines(const rope_problem *p) {
    if (p->dtype == ROPE_F64)
        return "declined: dtype is f64";
    if (p->axes != 1)
        return "declined: there are several axes";
    if (p->shard != ROPE_SHARD_NONE)
        return "declined: there are shards";
    if (p->xpos_rate)
        return "declined: xpos_scale_base is given";
    if (p->angle_mode == ROPE_ANGLE_F32)
        return "declined: angle_mode is f32";
    return p->angle_mode == ROPE_ANGLE_TABLE ? declines_table(p) : NULL;
}

/* Bytes of an entry of the tables. */
static int64_t entry_of(const rope_problem *p) {
    return p->table_dtype == ROPE_F32 ? 4 : 2;
}

/* Whether rows of the tables begin at a multiple of the widest vector, and 32 bits hold one. */
static int has_table_vectors(const rope_problem *p, const rope_call *call) {
    const int64_t batch = call->table_stride[0] * entry_of(p), row = call->table_stride[1];
    return call->table_stride[2] == 1 && row <= INT32_MAX / 4 && row >= -INT32_MAX / 4 &&
           ((uint64_t)(batch | row * entry_of(p)) | (uintptr_t)call->cos | (uintptr_t)call->sin) %
                   16 ==
               0;
}

/* From the ids of a batch row to those of the next, or from positions. */
static int64_t id_batch_of(const rope_call *call) {
    return call->position.ids ? call->position.id_stride[1] : 0;
}

/* Whether 32 bits hold the index of each row and of each id. */
static int is_near(const rope_call *call) {
    const int64_t most = INT32_MAX / 2, step = id_batch_of(call);
    return call->batch <= most / call->tokens && step <= most / call->batch &&
           step >= -most / call->batch;
}

/* Whether this call may take a window kernel. */
static int is_window(const gpu_bound *bound, const rope_call *call) {
    const rope_problem *p = &bound->problem;
    const rope_position_map *map = &call->position;
    if (!bound->window || map->cu_seqlens || map->offsets || gpu_set_of(p, call) < 0 ||
        (map->ids && call->tokens > 1 && map->id_stride[2] != 1) || !is_near(call) ||
        (p->angle_mode == ROPE_ANGLE_TABLE && !has_table_vectors(p, call)))
        return 0;
    for (int t = 0; t < 2; t++) {
        const rope_operand *o = &call->tensor[t];
        if (o->heads && (o->heads > UNITS_MOST || !gpu_is_near(p, call, o->in_stride) ||
                         !gpu_is_near(p, call, o->out_stride)))
            return 0;
    }
    return 1;
}

/* Whether batch rows follow each other in every operand as tokens do. */
static int is_in_line(const rope_problem *p, const rope_call *call) {
    return call->batch == 1 || (gpu_has_ids_in_line(call) && gpu_has_tokens_in_line(call) &&
                                (p->angle_mode != ROPE_ANGLE_TABLE || call->table_stride[0] == 0));
}

static int32_t flags_of(const gpu_bound *bound, const rope_call *call) {
    const rope_problem *p = &bound->problem;
    return (call->position.ids && call->position.wide ? GPU_CALL_WIDE_IDS : 0) |
           (p->direction != ROPE_FORWARD ? GPU_CALL_NEGATIVE : 0) |
           (bound->early ? GPU_CALL_EARLY : 0) |
           (p->arithmetic == ROPE_ARITHMETIC_MODEL_DTYPE ? GPU_CALL_MODEL_DTYPE : 0) |
           (!call->position.ids && gpu_pairs_each(bound, call) > GPU_TABLE_AHEAD_PAIRS
                ? GPU_CALL_TABLE_AHEAD
                : 0);
}

/* q or k; slab: rows of one z where all are in line, else 0. */
static void fill_operand(const rope_problem *p, const rope_call *call, int t, int32_t vector,
                         int64_t slab, gpu_window_call *w) {
    const rope_operand *o = &call->tensor[t];
    const int64_t size = gpu_size_of(p);
    const int32_t offset = p->rotary_offset[t], rest = p->head_dim[t] - offset - 2 * p->pairs;
    const int copies = o->in != o->out;
    w->operand[t] = gpu_plain_operand_of(p, call, t);
    w->heads[t] = (int32_t)o->heads;
    w->in_batch[t] = slab ? slab * w->operand[t].in_token : o->in_stride[0] * size;
    w->out_batch[t] = slab ? slab * w->operand[t].out_token : o->out_stride[0] * size;
    w->before[t] = copies ? offset / vector : 0;
    w->after[t] = copies ? rest / vector : 0;
}

static void fill(const gpu_bound *bound, const rope_call *call, int32_t vector, int in_line,
                 gpu_launch *launch) {
    const rope_problem *p = &bound->problem;
    const rope_frequency_set *set = &p->set[gpu_set_of(p, call)];
    gpu_window_call *w = &launch->window;
    *w = (gpu_window_call){
        .turns = set->turns,
        .ids = call->position.ids,
        .offset = call->position.offset,
        .cos = call->cos,
        .sin = call->sin,
        .table_batch = in_line ? 0 : call->table_stride[0] * entry_of(p),
        .table_rows = call->table_rows,
        .position_flag = call->position_flag,
        .table_row = (int32_t)(call->table_stride[1] * entry_of(p)),
        .rows = (int32_t)(call->batch * call->tokens),
        .slab = launch->slab,
        .id_batch = in_line ? launch->slab : (int32_t)id_batch_of(call),
        .pairs = p->pairs,
        .q_units = launch->q_units,
        .out_of_range = p->out_of_range,
        .flags = flags_of(bound, call),
        .factor = (float)set->attention_factor,
    };
    for (int t = 0; t < 2; t++)
        if (call->tensor[t].heads)
            fill_operand(p, call, t, vector, in_line ? launch->slab : 0, w);
    if (w->before[0] | w->before[1] | w->after[0] | w->after[1])
        w->flags |= GPU_CALL_COPIES;
}

static int32_t angles_of(const rope_problem *p) {
    if (p->angle_mode != ROPE_ANGLE_TABLE)
        return GPU_TURNS;
    return p->table_dtype == ROPE_F32 ? GPU_TABLE_F32 : GPU_TABLE_SAME;
}

int gpu_window_plan(const gpu_bound *bound, const rope_call *call, gpu_launch *launch) {
    const rope_problem *p = &bound->problem;
    if (!is_window(bound, call))
        return 0;
    const int32_t pairing = gpu_pairing_of(p), in_line = is_in_line(p, call);
    const int32_t geometry = gpu_vector_geometry(bound, call, pairing);
    if (geometry < 0)
        return 0;
    const int32_t vector = gpu_vector_of(p, geometry);
    launch->kernel = bound->kernels->window[geometry][pairing][angles_of(p)];
    launch->arguments = GPU_WINDOW_ARGUMENTS;
    launch->shared = 0;
    if (!launch->kernel || p->pairs / vector > GPU_PLAIN_THREADS ||
        !gpu_lay_out(bound, call, geometry, in_line, launch))
        return 0;
    fill(bound, call, vector, in_line, launch);
    return 1;
}
