#include <gpu_tuning.h>

#include "common/gpu/operands.h"

enum { UNITS_MOST = UINT16_MAX / 2 };

int gpu_is_plain(const rope_problem *p) {
    return p->axes == 1 && p->angle_mode == ROPE_ANGLE_EXACT && p->frequency_sets == 1 &&
           p->shard == ROPE_SHARD_NONE && !p->xpos_rate && p->dtype != ROPE_F64 &&
           p->arithmetic == ROPE_ARITHMETIC_FP32 && p->pairing_in == p->pairing_out;
}

/* Whether ids follow each other as rows do, so that batch rows are none of the kernel's concern. */
static int has_ids_in_line(const rope_call *call) {
    const rope_position_map *map = &call->position;
    return call->batch == 1 || (map->ids && map->id_stride[1] == call->tokens);
}

/* Whether the kernel can read the ids. */
static int has_plain_ids(const rope_call *call) {
    const rope_position_map *map = &call->position;
    return !map->ids || ((call->tokens == 1 || map->id_stride[2] == 1) &&
                         (has_ids_in_line(call) || map->id_stride[1] == 0));
}

/* Whether 32 bits hold an operand's strides in bytes, and from a thread's first head to its last.
 */
static int is_near(const rope_problem *p, const rope_call *call, const int64_t stride[4]) {
    const int64_t most = INT32_MAX / (GPU_HEADS_MOST - 1) / gpu_size_of(p),
                  token = gpu_token_stride(call, stride);
    return token <= most && token >= -most && stride[2] <= most && stride[2] >= -most;
}

/* Whether this call may take a plain kernel. */
static int is_plain(const gpu_bound *bound, const rope_call *call) {
    const rope_problem *p = &bound->problem;
    if (!bound->plain || call->position.cu_seqlens || call->position.offsets ||
        call->batch > INT32_MAX / 2 / call->tokens || !has_plain_ids(call) ||
        !gpu_has_tokens_in_line(call))
        return 0;
    for (int t = 0; t < 2; t++) {
        const rope_operand *o = &call->tensor[t];
        if (!o->heads)
            continue;
        if (o->in != o->out && p->head_dim[t] != 2 * p->pairs)
            return 0;
        if (o->heads > UNITS_MOST || !is_near(p, call, o->in_stride) ||
            !is_near(p, call, o->out_stride))
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

/* Rows of a block that has room for so many. */
static uint32_t rows_of_block(uint32_t room, int64_t rows) {
    const uint32_t most = room > GPU_BLOCK_Z_MOST ? GPU_BLOCK_Z_MOST : room ? room : 1;
    return most > rows ? (uint32_t)rows : most;
}

/* Blocks without a thread too many; 0 where there are none, or only small ones. */
static int lay_out_whole(const gpu_bound *bound, const rope_call *call, int32_t geometry,
                         gpu_launch *launch) {
    const rope_problem *p = &bound->problem;
    const int32_t size = gpu_size_of(p);
    const int64_t rows = call->batch * call->tokens, each = gpu_heads_of(p, geometry);
    const int64_t q = call->tensor[0].heads / each, k = call->tensor[1].heads / each;
    const uint32_t lanes = (uint32_t)(p->pairs / gpu_vector_of(p, geometry));
    if (!has_ids_in_line(call) || q * each != call->tensor[0].heads ||
        k * each != call->tensor[1].heads || (geometry == GPU_ALONE && call->position.ids))
        return 0;
    uint32_t units = divisor(q, k, 1, GPU_WHOLE_THREADS(geometry, size) / lanes);
    uint32_t room = GPU_THREADS(geometry, size, bound->early) / (lanes * units);
    uint32_t wanted = rows_of_block(room, rows);
    launch->q_units = (int32_t)q;
    launch->block = (dim3){lanes, units, divisor(rows, 0, (wanted + 1) / 2, wanted)};
    launch->grid = (dim3){(uint32_t)((q + k) / units), 1, 1};
    int64_t blocks = rows / launch->block.z;
    launch->grid.y = (uint32_t)(blocks > GPU_GRID_YZ_MOST ? 0 : blocks);
    return launch->grid.y && 2 * launch->block.z >= wanted;
}

/* Rows along y and z of the grid: batch rows along z where each begins anew, else what y cannot
 * take. 0 where they are too many. */
static int lay_out_rows(const rope_call *call, gpu_launch *launch) {
    const int in_line = has_ids_in_line(call);
    const int64_t rows = in_line ? call->batch * call->tokens : call->tokens;
    const int64_t blocks = gpu_ceiling(rows, launch->block.z);
    const int64_t z = in_line ? gpu_ceiling(blocks, GPU_GRID_YZ_MOST) : call->batch;
    const int64_t y = in_line ? gpu_ceiling(blocks, z) : blocks;
    if (y > GPU_GRID_YZ_MOST || z > GPU_GRID_YZ_MOST)
        return 0;
    launch->grid.y = (uint32_t)y;
    launch->grid.z = (uint32_t)z;
    launch->plain.slab = (int32_t)(in_line ? y * launch->block.z : rows);
    launch->plain.restart = in_line ? 0 : (int32_t)rows;
    return 1;
}

static int lay_out_checked(const gpu_bound *bound, const rope_call *call, int32_t geometry,
                           gpu_launch *launch) {
    const rope_problem *p = &bound->problem;
    const int64_t each = gpu_heads_of(p, geometry);
    int64_t q = gpu_ceiling(call->tensor[0].heads, each);
    int64_t k = gpu_ceiling(call->tensor[1].heads, each);
    uint32_t lanes = (uint32_t)(p->pairs / gpu_vector_of(p, geometry));
    uint32_t most = GPU_UNITS_THREADS / lanes;
    uint32_t units = gpu_units_apart(q, k, most ? most : 1);
    uint32_t room = GPU_THREADS(geometry, gpu_size_of(p), bound->early) / (lanes * units);
    int64_t rows = has_ids_in_line(call) ? call->batch * call->tokens : call->tokens;
    q = gpu_ceiling(q, units) * units;
    launch->q_units = (int32_t)q;
    launch->block = (dim3){lanes, units, rows_of_block(room, rows)};
    launch->grid = (dim3){(uint32_t)gpu_ceiling(q + k, units), 1, 1};
    return lay_out_rows(call, launch);
}

/* Whether every block has a multiprocessor of its own, and room is left for the next launch's. */
static int is_small(const gpu_bound *bound, const gpu_launch *launch) {
    return (int64_t)launch->grid.x * launch->grid.y * launch->grid.z <= bound->multiprocessors;
}

/* How ids are read, what is multiplied by, and when the next launch may start. */
static uint16_t flags_of(const gpu_bound *bound, const rope_call *call, const gpu_launch *launch) {
    const rope_position_map *map = &call->position;
    return (uint16_t)((map->ids && map->wide ? GPU_PLAIN_WIDE_IDS : 0) |
                      (bound->problem.direction != ROPE_FORWARD ? GPU_PLAIN_NEGATIVE : 0) |
                      (is_small(bound, launch) ? GPU_PLAIN_AT_ONCE : 0));
}

static void fill(const gpu_bound *bound, const rope_call *call, int32_t geometry,
                 gpu_launch *launch) {
    const rope_problem *p = &bound->problem;
    const gpu_operands o = gpu_operands_of(p, call, launch->q_units);
    const int first = geometry == GPU_ALONE && !o.heads[0]; /* k takes q's place */
    gpu_plain_call *plain = &launch->plain;
    plain->turns = p->set[0].turns;
    plain->ids = call->position.ids;
    plain->offset = call->position.offset;
    plain->rows = (int32_t)o.rows;
    plain->factor = (float)p->set[0].attention_factor;
    plain->q_units = (uint16_t)o.q_units;
    plain->flags = flags_of(bound, call, launch);
    for (int i = 0; i < 2; i++) {
        const int t = i ^ first;
        plain->heads[i] = (uint16_t)o.heads[t];
        plain->operand[i] = (gpu_plain_operand){.in = o.in[t],
                                                .out = o.out[t],
                                                .in_token = (int32_t)o.in_token[t],
                                                .in_head = (int32_t)o.in_head[t],
                                                .out_token = (int32_t)o.out_token[t],
                                                .out_head = (int32_t)o.out_head[t]};
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
    else if (checked && lay_out_checked(bound, call, geometry, launch))
        launch->kernel = checked;
    else
        return 0;
    fill(bound, call, geometry, launch);
    return 1;
}

int gpu_plain_plan(const gpu_bound *bound, const rope_call *call, gpu_launch *launch) {
    if (!is_plain(bound, call))
        return 0;
    launch->is_plain = 1;
    launch->shared = 0;
    launch->plain = (gpu_plain_call){0};
    for (int32_t geometry = geometry_for(bound, call); geometry >= 0; geometry--)
        if (plan(bound, call, geometry, launch))
            return 1;
    return 0;
}
