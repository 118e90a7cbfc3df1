#include <gpu_tuning.h>

#include "common/gpu/grid.h"

enum { UNITS_MOST = UINT16_MAX / 2 };

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

/* Whether the kernel can read the ids. */
static int has_plain_ids(const rope_call *call) {
    const rope_position_map *map = &call->position;
    return !map->ids || ((call->tokens == 1 || map->id_stride[2] == 1) &&
                         (gpu_has_ids_in_line(call) || map->id_stride[1] == 0));
}

/* Whether this call may take a plain kernel. */
static int is_plain(const gpu_bound *bound, const rope_call *call) {
    const rope_problem *p = &bound->problem;
    if (!bound->plain || call->position.cu_seqlens || call->position.offsets ||
        call->batch > INT32_MAX / 2 / call->tokens || !has_plain_ids(call) ||
        !gpu_has_tokens_in_line(call) || gpu_set_of(p, call) < 0)
        return 0;
    for (int t = 0; t < 2; t++) {
        const rope_operand *o = &call->tensor[t];
        if (!o->heads)
            continue;
        if (o->in != o->out && p->head_dim[t] != 2 * p->pairs)
            return 0;
        if (o->heads > UNITS_MOST || !gpu_is_near(p, call, o->in_stride) ||
            !gpu_is_near(p, call, o->out_stride))
            return 0;
    }
    return 1;
}

/* The geometry of a plain call by its size. */
static int32_t geometry_for(const gpu_bound *bound, const rope_call *call) {
    int32_t size = gpu_size_of(&bound->problem);
    int64_t pairs = gpu_pairs_each(bound, call);
    if (bound->geometry != GPU_BY_SIZE)
        return bound->geometry;
    if (call->tensor[0].heads + call->tensor[1].heads == 1)
        return GPU_ALONE;
    return pairs <= GPU_NARROW_PAIRS(size) ? GPU_NARROW
           : pairs <= GPU_DEEP_PAIRS       ? GPU_DEEP
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
static int lay_out_whole(const gpu_bound *bound, const rope_call *call, int32_t geometry,
                         gpu_launch *launch) {
    const rope_problem *p = &bound->problem;
    const int32_t size = gpu_size_of(p);
    const int64_t rows = call->batch * call->tokens, each = gpu_heads_of(p, geometry);
    const int64_t q = call->tensor[0].heads / each, k = call->tensor[1].heads / each;
    const uint32_t lanes = (uint32_t)(p->pairs / gpu_vector_of(p, geometry));
    if (!gpu_has_ids_in_line(call) || q * each != call->tensor[0].heads ||
        k * each != call->tensor[1].heads || (geometry == GPU_ALONE && call->position.ids))
        return 0;
    uint32_t units = divisor(q, k, 1, GPU_WHOLE_THREADS(geometry, size) / lanes);
    uint32_t room = GPU_THREADS(geometry, size, bound->early) / (lanes * units);
    uint32_t wanted = gpu_rows_of_block(room, rows);
    launch->q_units = (int32_t)q;
    launch->slab = 0;
    launch->block = (dim3){lanes, units, divisor(rows, 0, (wanted + 1) / 2, wanted)};
    launch->grid = (dim3){(uint32_t)((q + k) / units), 1, 1};
    int64_t blocks = rows / launch->block.z;
    launch->grid.y = (uint32_t)(blocks > GPU_GRID_YZ_MOST ? 0 : blocks);
    return launch->grid.y && 2 * launch->block.z >= wanted;
}

/* Whether every block has a multiprocessor of its own, and room is left for the next launch's. */
static int is_small(const gpu_bound *bound, const gpu_launch *launch) {
    return (int64_t)launch->grid.x * launch->grid.y * launch->grid.z <= bound->multiprocessors;
}

/* How ids are read, what is multiplied by, and when the next launch may start. */
static uint16_t flags_of(const gpu_bound *bound, const rope_call *call, const gpu_launch *launch) {
    const rope_position_map *map = &call->position;
    return (uint16_t)((map->ids && map->wide ? GPU_CALL_WIDE_IDS : 0) |
                      (bound->problem.direction != ROPE_FORWARD ? GPU_CALL_NEGATIVE : 0) |
                      (is_small(bound, launch) ? GPU_CALL_AT_ONCE : 0));
}

static void fill(const gpu_bound *bound, const rope_call *call, int32_t geometry,
                 gpu_launch *launch) {
    const rope_problem *p = &bound->problem;
    const int first = geometry == GPU_ALONE && !call->tensor[0].heads; /* k takes q's place */
    const rope_frequency_set *set = &p->set[gpu_set_of(p, call)];
    gpu_plain_call *plain = &launch->plain;
    plain->turns = set->turns;
    plain->ids = call->position.ids;
    plain->offset = call->position.offset;
    plain->rows = (int32_t)(call->batch * call->tokens);
    plain->slab = launch->slab;
    plain->restart = gpu_has_ids_in_line(call) ? 0 : launch->slab;
    plain->factor = (float)set->attention_factor;
    plain->q_units = (uint16_t)launch->q_units;
    plain->flags = flags_of(bound, call, launch);
    for (int i = 0; i < 2; i++) {
        const int t = i ^ first;
        plain->heads[i] = (uint16_t)call->tensor[t].heads;
        if (call->tensor[t].heads)
            plain->operand[i] = gpu_plain_operand_of(p, call, t);
    }
}

/* Whether kernels that check are ahead, by what the compiler makes of the checks. */
static int is_large(const gpu_bound *bound, const rope_call *call, int32_t geometry) {
    const rope_problem *p = &bound->problem;
    return geometry == GPU_WIDE &&
           gpu_pairs_each(bound, call) > GPU_LARGE_PAIRS(gpu_size_of(p), p->pairs);
}

/* The kernel for blocks of a kind, or NULL. */
static const void *kernel_of(const gpu_bound *bound, int32_t geometry, int32_t blocks) {
    const rope_problem *p = &bound->problem;
    const void *const(*kernels)[2] =
        bound->kernels->plain[geometry][gpu_pairing_of(p)][blocks]; /* of pairs */
    const int32_t kind = p->pairs % GPU_PAIRS_STEP ? 0 : p->pairs / GPU_PAIRS_STEP;
    const void *kernel = kind < GPU_PAIRS_KINDS ? kernels[kind][bound->early] : NULL;
    return kernel ? kernel : kernels[GPU_ANY_PAIRS][bound->early];
}

static int plan(const gpu_bound *bound, const rope_call *call, int32_t geometry,
                gpu_launch *launch) {
    const int32_t vector = gpu_vector_of(&bound->problem, geometry);
    const void *whole = kernel_of(bound, geometry, GPU_WHOLE);
    const void *checked = kernel_of(bound, geometry, GPU_CHECKED);
    if (!gpu_is_aligned(&bound->problem, call, vector) ||
        bound->problem.pairs / vector > GPU_PLAIN_THREADS ||
        (geometry == GPU_ALONE && call->tensor[0].heads + call->tensor[1].heads > 1))
        return 0;
    if (whole && !is_large(bound, call, geometry) && lay_out_whole(bound, call, geometry, launch))
        launch->kernel = whole;
    else if (checked && gpu_lay_out(bound, call, geometry, gpu_has_ids_in_line(call), launch))
        launch->kernel = checked;
    else
        return 0;
    fill(bound, call, geometry, launch);
    return 1;
}

int gpu_plain_plan(const gpu_bound *bound, const rope_call *call, gpu_launch *launch) {
    if (!is_plain(bound, call))
        return 0;
    launch->arguments = GPU_PLAIN_ARGUMENTS;
    launch->shared = 0;
    launch->plain = (gpu_plain_call){0};
    for (int32_t geometry = geometry_for(bound, call); geometry >= 0; geometry--)
        if (plan(bound, call, geometry, launch))
            return 1;
    return 0;
}
