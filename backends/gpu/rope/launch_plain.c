/* The launch of plain kernels. */
#include "backends/gpu/rope/launch_plan.h"

#include "backends/gpu/platform/tuning.h"

/* Most heads of a tensor, which fields of the parameters hold. */
enum { PLAIN_MOST = UINT16_MAX / 2 };

const char *gpu_plain_declines(const rope_problem *p) {
    const char *declined = gpu_window_declines(p);
    if (declined)
        return declined;
    if (p->angle_mode != ROPE_ANGLE_EXACT)
        return "declined: angle_mode is table";
    if (p->arithmetic != ROPE_ARITHMETIC_FP32)
        return "declined: arithmetic is model_dtype";
    return p->pairing_in == p->pairing_out ? NULL : "declined: pairing_in is not pairing_out";
}

static int is_plain(const gpu_rope_state *state, const rope_call *call, const gpu_rope_shape *s) {
    const rope_problem *p = &state->problem;
    if (!state->plain || !s->one_position || !s->near || !s->tokens_in_line ||
        call->batch > INT32_MAX / 2 / call->tokens ||
        (call->position.ids && !s->ids_in_line && call->position.id_stride[1] != 0))
        return 0;
    for (int t = 0; t < 2; t++) {
        const rope_operand *o = &call->tensor[t];
        if (o->heads > PLAIN_MOST ||
            (o->heads && o->in != o->out && p->head_dim[t] != 2 * p->pairs))
            return 0;
    }
    return 1;
}

static int is_single_head(const rope_call *call) {
    return call->tensor[0].heads + call->tensor[1].heads == 1;
}

static int32_t plain_geometry(const gpu_rope_state *state, const rope_call *call,
                              const gpu_rope_shape *s) {
    if (state->geometry != GPU_BY_SIZE)
        return state->geometry;
    if (is_single_head(call))
        return GPU_SINGLE_HEAD;
    return s->pairs_each <= GPU_NARROW_PAIRS(s->size) ? GPU_NARROW
           : s->pairs_each <= GPU_DEEP_PAIRS          ? GPU_DEEP
                                                      : GPU_WIDE;
}

/* The largest number from least to most that divides a and b, which 32 bits hold; else 1. */
static uint32_t divisor(int64_t whole_a, int64_t whole_b, uint32_t least, uint32_t most) {
    const uint32_t a = (uint32_t)whole_a, b = (uint32_t)whole_b;
    for (uint32_t d = most; d > 1 && d >= least; d--)
        if (a % d == 0 && b % d == 0)
            return d;
    return 1;
}

/* Blocks without a thread too many; 0 where there are none, or only small ones. */
static int lay_out_whole(const gpu_rope_state *state, const rope_call *call,
                         const gpu_rope_shape *s, int32_t geometry, gpu_rope_plan *l) {
    const int64_t each = gpu_heads_of(s->size, geometry);
    const int64_t q = call->tensor[0].heads / each, k = call->tensor[1].heads / each;
    const uint32_t lanes = (uint32_t)(state->problem.pairs / gpu_vector_of(s->size, geometry));
    if (!s->ids_in_line || q * each != call->tensor[0].heads || k * each != call->tensor[1].heads ||
        (geometry == GPU_SINGLE_HEAD && call->position.ids))
        return 0;
    const uint32_t units = divisor(q, k, 1, GPU_WHOLE_THREADS(geometry, s->size) / lanes);
    const uint32_t room = GPU_THREADS(geometry, s->size, state->on.early) / (lanes * units);
    const uint32_t wanted = gpu_rows_of_block(room, s->rows);
    l->block = (dim3){lanes, units, divisor(s->rows, 0, (wanted + 1) / 2, wanted)};
    const int64_t blocks = s->rows / l->block.z;
    l->grid = (dim3){(uint32_t)((q + k) / units), (uint32_t)blocks, 1};
    l->q_units = (int32_t)q;
    l->slab = 0;
    return blocks <= GPU_GRID_YZ_MOST && 2 * l->block.z >= wanted;
}

static void fill_plain(const gpu_rope_state *state, const rope_call *call, const gpu_rope_shape *s,
                       int32_t geometry, gpu_rope_plan *l) {
    const rope_problem *p = &state->problem;
    const int first = geometry == GPU_SINGLE_HEAD && !call->tensor[0].heads; /* k in q's place */
    const rope_frequency_set *set = &p->set[s->set];
    /* Every block has a multiprocessor of its own, and room is left for the next launch's. */
    const int small = (int64_t)l->grid.x * l->grid.y * l->grid.z <= state->on.multiprocessors;
    l->plain = (gpu_plain_call){
        .turns = set->turns,
        .ids = call->position.ids,
        .offset = call->position.offset,
        .rows = (int32_t)s->rows,
        .slab = l->slab,
        .restart = s->ids_in_line ? 0 : l->slab,
        .factor = (float)set->attention_factor,
        .q_units = (uint16_t)l->q_units,
        .flags = (uint16_t)(gpu_rope_flags_of(state, call) |
                            (state->on.early && small ? GPU_CALL_AT_ONCE : 0)),
    };
    for (int i = 0; i < 2; i++) {
        const int t = i ^ first;
        l->plain.heads[i] = (uint16_t)call->tensor[t].heads;
        if (call->tensor[t].heads)
            l->plain.operand[i] = gpu_rope_operand_of(p, call, t);
    }
}

static int plan_plain_as(const gpu_rope_state *state, const rope_call *call,
                         const gpu_rope_shape *s, int32_t geometry, gpu_rope_plan *l) {
    const rope_problem *p = &state->problem;
    const int32_t vector = gpu_vector_of(s->size, geometry);
    const void *const(*kernels)[2] = state->kernels->plain[geometry][s->pairing];
    const int early = state->on.early != 0;
    const void *known = p->pairs == 32 ? kernels[GPU_CHECKED_32][early] : NULL;
    const void *checked = known ? known : kernels[GPU_CHECKED][early];
    const int starts = !early || geometry != GPU_SINGLE_HEAD;
    if (!gpu_rope_is_aligned(p, call, vector) || p->pairs / vector > GPU_PLAIN_THREADS ||
        (geometry == GPU_SINGLE_HEAD && !is_single_head(call)))
        return 0;
    if (kernels[GPU_WHOLE][early] && starts && lay_out_whole(state, call, s, geometry, l))
        l->kernel = kernels[GPU_WHOLE][early];
    else if (checked && gpu_lay_out_rows(state, call, geometry, s->ids_in_line, l))
        l->kernel = checked;
    else
        return 0;
    fill_plain(state, call, s, geometry, l);
    l->arguments[0] = &l->plain;
    return 1;
}

int gpu_plan_plain(const gpu_rope_state *state, const rope_call *call, const gpu_rope_shape *s,
                   gpu_rope_plan *l) {
    if (!is_plain(state, call, s))
        return 0;
    for (int32_t geometry = plain_geometry(state, call, s); geometry >= 0; geometry--)
        if (plan_plain_as(state, call, s, geometry, l))
            return 1;
    return 0;
}
