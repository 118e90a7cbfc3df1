/* The launch of plain kernels. */
#include "backends/gpu/append/launch_plan.h"

#include "backends/gpu/platform/tuning.h"

static const char *declines_plain_steps(const rope_problem *r, const rope_append_steps *s, int t) {
    const char *declined = gpu_append_declines_whole_heads(r, s, t != ROPE_APPEND_V);
    if (declined)
        return declined;
    if (s->norm && (t == ROPE_APPEND_V || s->norm != ROPE_NORM_RMS || s->norm_dim != s->head_dim ||
                    !s->weight || s->weight_dtype != r->dtype))
        return "declined: a norm is not RMS of whole heads of q or k with weights of dtype";
    return NULL;
}

const char *gpu_append_plain_declines(const rope_append_problem *p) {
    const rope_problem *r = &p->rope;
    const char *declined = gpu_append_declines_16_bits(p);
    if (!declined)
        declined = gpu_append_declines_angles(r);
    if (!declined)
        declined = gpu_append_declines_pairing(r);
    if (declined)
        return declined;
    if (p->cache != ROPE_CACHE_SLOTS || p->k_source == ROPE_SOURCE_CACHE)
        return "declined: the cache is not one of slots to be written";
    for (int t = 0; t < ROPE_APPEND_TENSORS && !declined; t++)
        declined = declines_plain_steps(r, &p->steps[t], t);
    return declined;
}

int gpu_append_is_plain(const rope_append_problem *p, const rope_append_call *call) {
    const rope_position_map *map = &call->rope.position;
    return gpu_append_is_exact(p, call) && gpu_append_is_in_line(call, call->slot_stride) &&
           (map->ids ? gpu_append_is_in_line(call, map->id_stride + 1) : call->rope.batch == 1) &&
           (call->tensor[ROPE_APPEND_K].heads || call->tensor[ROPE_APPEND_V].heads) &&
           call->rope.tokens <= INT32_MAX / 2 / call->rope.batch &&
           call->pages <= INT32_MAX / p->page_size;
}

static void fill_pages(const rope_append_problem *p, const rope_append_call *call,
                       gpu_append_plain_operand *v) {
    v->page_size = (int32_t)p->page_size;
    v->slots = (int32_t)(call->pages * p->page_size);
    v->page_shift = (uint8_t)(31 + gpu_log2_of(v->page_size));
    v->per_page = (uint32_t)gpu_divide_up(INT64_C(1) << v->page_shift, p->page_size);
}

/* Parameters of a tensor; 0 where it has more than one place, or its strides are too far. */
static int fill_operand(const rope_append_problem *p, const rope_append_call *call, int t,
                        gpu_append_plain_operand *v) {
    const rope_append_operand *o = &call->tensor[t];
    const rope_append_steps *s = &p->steps[t];
    const int64_t size = gpu_dtype_size(p->rope.dtype), stored = gpu_dtype_size(s->store_dtype),
                  rows = call->rope.batch * call->rope.tokens;
    const int q = t == ROPE_APPEND_Q;
    int64_t apart = 0, out_apart = 0;
    int near = 1;
    v->in = o->in;
    v->in_token =
        gpu_near_stride(gpu_append_token_stride(call, o->in_stride, size, &apart), rows, &near);
    v->in_head = gpu_near_stride(o->in_stride[2] * size, o->heads, &near);
    v->scale = s->scale ? o->scale : NULL;
    v->store_dtype = (uint8_t)s->store_dtype;
    v->steps = (uint16_t)((s->rounding == ROPE_NORM_ROUND_ONCE ? GPU_APPEND_PLAIN_ONCE : 0) |
                          (s->weight == ROPE_NORM_ONE_PLUS_WEIGHT ? GPU_APPEND_PLAIN_ONE_PLUS : 0));
    if (q) {
        v->store = o->out;
        v->store_slot = gpu_near_stride(
            gpu_append_token_stride(call, o->out_stride, stored, &out_apart), rows, &near);
        v->store_head = gpu_near_stride(o->out_stride[2] * stored, o->heads, &near);
    } else {
        v->store = o->cache;
        v->store_page = o->cache_stride[0] * stored;
        v->store_slot = gpu_near_stride(o->cache_stride[1] * stored, p->page_size, &near);
        v->store_head = gpu_near_stride(o->cache_stride[2] * stored, o->heads, &near);
        fill_pages(p, call, v);
    }
    return near && !apart && !out_apart && v->store && (q || !o->out) &&
           (!s->norm || o->heads == 1 || o->weight_stride == 0);
}

int gpu_append_fill_operands(const rope_append_problem *p, const rope_append_call *call,
                             gpu_append_plain_call *plain) {
    for (int t = 0; t < ROPE_APPEND_TENSORS; t++) {
        if (!call->tensor[t].heads)
            continue;
        if (!gpu_append_has_vectors(p, call, t) || !fill_operand(p, call, t, &plain->operand[t]))
            return 0;
        if (t != ROPE_APPEND_V) {
            plain->weight[t] = call->tensor[t].weight;
            plain->eps[t] = p->steps[t].eps;
        }
    }
    return 1;
}

int32_t gpu_append_plain_flags(const gpu_append_state *state, const rope_append_call *call,
                               const gpu_append_plan *l) {
    const int small = (int64_t)l->grid.x * l->grid.y <= state->on.multiprocessors;
    return (call->rope.position.wide ? GPU_CALL_WIDE_IDS : 0) |
           (state->problem.rope.direction != ROPE_FORWARD ? GPU_CALL_NEGATIVE : 0) |
           (state->on.early ? GPU_CALL_EARLY : 0) |
           (state->on.early && small ? GPU_CALL_AT_ONCE : 0) |
           (state->problem.slot_wide ? GPU_APPEND_PLAIN_WIDE_SLOTS : 0);
}

uint32_t gpu_divisor(const int64_t *numbers, int count, int64_t most) {
    for (int64_t d = most; d > 1; d--) {
        int64_t rest = 0;
        for (int i = 0; i < count; i++)
            rest |= numbers[i] % d;
        if (rest == 0)
            return (uint32_t)d;
    }
    return 1;
}

/* Grid and block of a geometry; 0 where it does not fit. */
static int lay_out_plain(const gpu_append_state *state, const rope_append_call *call,
                         int32_t geometry, int norm, gpu_append_plan *l) {
    const int64_t vector = geometry == GPU_NARROW ? 2 : 4, each = geometry == GPU_DEEP ? 4 : 2,
                  lanes = state->problem.rope.pairs / vector,
                  rows = call->rope.batch * call->rope.tokens;
    const int64_t whole = GPU_WHOLE_THREADS(geometry, 2);
    int64_t units[ROPE_APPEND_TENSORS], all = 0;
    if (lanes > GPU_UNITS_THREADS ||
        (norm && (lanes > 32 || lanes < 2 * each || (lanes & (lanes - 1)))))
        return 0;
    for (int t = 0; t < ROPE_APPEND_TENSORS; t++) {
        units[t] = call->tensor[t].heads / each;
        if (call->tensor[t].heads % each || units[t] > UINT16_MAX / 4)
            return 0;
        if (t)
            l->plain.first_unit[t - 1] = (uint16_t)all;
        all += units[t];
    }
    const uint32_t y = gpu_divisor(units, ROPE_APPEND_TENSORS, whole / lanes);
    const int64_t room = GPU_THREADS(geometry, 2, state->on.early) / (lanes * y),
                  most = gpu_at_most(gpu_at_most(room ? room : 1, GPU_BLOCK_Z_MOST), rows);
    const uint32_t z = geometry == GPU_NARROW ? gpu_divisor(&rows, 1, most) : (uint32_t)most;
    if (gpu_divide_up(rows, z) > GPU_GRID_YZ_MOST)
        return 0;
    l->block = (dim3){(uint32_t)lanes, y, z};
    l->grid = (dim3){(uint32_t)(all / y), (uint32_t)gpu_divide_up(rows, z), 1};
    return 1;
}

int32_t gpu_append_geometry_of(const gpu_append_state *state, const rope_append_call *call,
                               int norm) {
    const rope_append_steps *steps = state->problem.steps;
    const int deep = norm && (steps[ROPE_APPEND_K].store_dtype >= ROPE_F8E4M3 ||
                              steps[ROPE_APPEND_V].store_dtype >= ROPE_F8E4M3);
    int64_t pairs = 0;
    if (state->geometry != GPU_BY_SIZE)
        return state->geometry;
    for (int t = 0; t < ROPE_APPEND_TENSORS; t++)
        pairs += call->tensor[t].heads * state->problem.rope.pairs;
    pairs = call->rope.batch * call->rope.tokens * pairs / state->on.multiprocessors;
    return pairs <= GPU_NARROW_PAIRS(2)      ? GPU_NARROW
           : deep || pairs <= GPU_DEEP_PAIRS ? GPU_DEEP
                                             : GPU_WIDE;
}

/* Whether q and k, or the one that is there, have a norm; negative where one has and one has not.
 */
static int has_norm(const rope_append_problem *p, const rope_append_call *call) {
    int has = 0, lacks = 0;
    for (int t = 0; t < ROPE_APPEND_V; t++)
        if (call->tensor[t].heads) {
            has |= p->steps[t].norm != 0;
            lacks |= p->steps[t].norm == 0;
        }
    return has && lacks ? -1 : has;
}

gpu_append_plain_call gpu_append_plain_call_of(const rope_append_problem *p,
                                               const rope_append_call *call) {
    const rope_problem *r = &p->rope;
    return (gpu_append_plain_call){
        .turns = r->set[0].turns,
        .ids = call->rope.position.ids,
        .slots = call->slots,
        .offset = call->rope.position.offset,
        .rows = (int32_t)(call->rope.batch * call->rope.tokens),
        .factor = (float)r->set[0].attention_factor,
        .share = 0.5f / (float)r->pairs,
        .position_flag = call->rope.position_flag,
    };
}

int gpu_append_plan_plain(const gpu_append_state *state, const rope_append_call *call,
                          gpu_append_plan *l) {
    const rope_append_problem *p = &state->problem;
    l->plain = gpu_append_plain_call_of(p, call);
    const int norm = has_norm(p, call);
    if (norm < 0 || !gpu_append_is_plain(p, call) || !gpu_append_fill_operands(p, call, &l->plain))
        return 0;
    if (!l->plain.weight[0])
        l->plain.weight[0] = l->plain.weight[1]; /* what is read for v */
    const int32_t order[] = {gpu_append_geometry_of(state, call, norm), GPU_WIDE, GPU_NARROW};
    for (int i = 0; i < (state->geometry == GPU_BY_SIZE ? 3 : 1); i++) {
        if (!lay_out_plain(state, call, order[i], norm, l))
            continue;
        l->kernel =
            state->kernels->plain[order[i]][gpu_pairing_of(&p->rope)][norm][state->on.early != 0];
        l->plain.flags = (uint16_t)gpu_append_plain_flags(state, call, l);
        l->arguments[0] = &l->plain;
        return 1;
    }
    return 0;
}
