/* The launch of window kernels. */
#include "backends/gpu/rope/launch_plan.h"

#include "backends/gpu/platform/tuning.h"

/* Most heads of a tensor, which fields of the parameters hold. */
enum { WINDOW_MOST = INT32_MAX / 4 };

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

static int is_window(const gpu_rope_state *state, const rope_call *call, const gpu_rope_shape *s) {
    const int64_t most = INT32_MAX / 2, step = id_batch_of(call);
    return state->window && s->one_position && s->near && call->tensor[0].heads <= WINDOW_MOST &&
           call->tensor[1].heads <= WINDOW_MOST && call->batch <= most / call->tokens &&
           step <= most / call->batch && step >= -most / call->batch &&
           (state->problem.angle_mode != ROPE_ANGLE_TABLE ||
            has_table_vectors(&state->problem, call));
}

/* q or k; slab: rows of one z where all are in line, else 0. */
static void fill_window_operand(const rope_problem *p, const rope_call *call, int t, int32_t vector,
                                int64_t slab, gpu_window_call *w) {
    const rope_operand *o = &call->tensor[t];
    const int64_t size = gpu_dtype_size(p->dtype);
    const int32_t offset = p->rotary_offset[t], rest = p->head_dim[t] - offset - 2 * p->pairs;
    const int copies = o->in != o->out;
    w->operand[t] = gpu_rope_operand_of(p, call, t);
    w->heads[t] = (int32_t)o->heads;
    w->in_batch[t] = slab ? slab * w->operand[t].in_token : o->in_stride[0] * size;
    w->out_batch[t] = slab ? slab * w->operand[t].out_token : o->out_stride[0] * size;
    w->before[t] = copies ? offset / vector : 0;
    w->after[t] = copies ? rest / vector : 0;
    if (w->before[t] | w->after[t])
        w->flags |= GPU_CALL_COPIES;
}

static void fill_window(const gpu_rope_state *state, const rope_call *call, const gpu_rope_shape *s,
                        int32_t vector, int in_line, gpu_rope_plan *l) {
    const rope_problem *p = &state->problem;
    const rope_frequency_set *set = &p->set[s->set];
    const int ahead = !call->position.ids && s->pairs_each > GPU_TABLE_AHEAD_PAIRS;
    const int model = p->arithmetic == ROPE_ARITHMETIC_MODEL_DTYPE;
    const int64_t entry = p->angle_mode == ROPE_ANGLE_TABLE ? entry_of(p) : 0;
    const int64_t table_batch = entry && !in_line ? call->table_stride[0] * entry : 0;
    l->window = (gpu_window_call){
        .turns = set->turns,
        .ids = call->position.ids,
        .offset = call->position.offset,
        .cos = call->cos,
        .sin = call->sin,
        .table_batch = table_batch,
        .table_rows = call->table_rows,
        .position_flag = call->position_flag,
        .table_row = entry ? (int32_t)(call->table_stride[1] * entry) : 0,
        .rows = (int32_t)s->rows,
        .slab = l->slab,
        .id_batch = in_line ? l->slab : (int32_t)id_batch_of(call),
        .pairs = p->pairs,
        .q_units = l->q_units,
        .out_of_range = p->out_of_range,
        .flags = gpu_rope_flags_of(state, call) | (model ? GPU_CALL_MODEL_DTYPE : 0) |
                 (ahead ? GPU_CALL_TABLE_AHEAD : 0) |
                 (p->table_dtype == ROPE_F32 ? GPU_CALL_TABLE_F32 : 0),
        .factor = (float)set->attention_factor,
    };
    for (int t = 0; t < 2; t++)
        if (call->tensor[t].heads)
            fill_window_operand(p, call, t, vector, in_line ? l->slab : 0, &l->window);
}

int gpu_plan_window(const gpu_rope_state *state, const rope_call *call, const gpu_rope_shape *s,
                    gpu_rope_plan *l) {
    const rope_problem *p = &state->problem;
    const int in_line =
        call->batch == 1 || (s->ids_in_line && s->tokens_in_line &&
                             (p->angle_mode != ROPE_ANGLE_TABLE || call->table_stride[0] == 0));
    if (!is_window(state, call, s))
        return 0;
    const int32_t geometry = gpu_vector_geometry(state, call, s);
    if (geometry < 0)
        return 0;
    const int32_t vector = gpu_vector_of(s->size, geometry);
    l->kernel = state->kernels->window[geometry][s->pairing]
                                      [p->angle_mode == ROPE_ANGLE_TABLE ? GPU_TABLE : GPU_TURNS];
    if (!l->kernel || p->pairs / vector > GPU_PLAIN_THREADS ||
        !gpu_lay_out_rows(state, call, geometry, in_line, l))
        return 0;
    fill_window(state, call, s, vector, in_line, l);
    l->arguments[0] = &l->window;
    return 1;
}
