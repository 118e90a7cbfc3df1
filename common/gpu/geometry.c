#include "common/gpu/geometry.h"

#include <gpu_tuning.h>

#include "common/gpu/grid.h"

enum { UNITS_MOST = INT32_MAX / 2 - GPU_VECTOR_THREADS, SHARED_MOST = 48 << 10 };

const char *gpu_vector_declines(const rope_problem *p) {
    return p->pairs % 2 ? "declined: rotary_dim is no multiple of 4" : NULL;
}

static int32_t geometry_for(const gpu_bound *bound, const rope_call *call) {
    int32_t size = gpu_size_of(&bound->problem);
    if (bound->geometry != GPU_BY_SIZE)
        return bound->geometry;
    int fits = size < 8 && bound->problem.pairs <= 2 * GPU_PLAIN_THREADS;
    return fits && gpu_pairs_each(bound, call) <= GPU_NARROW_PAIRS(size) ? GPU_NARROW : GPU_WIDE;
}

/* Units of a block that may have both: the fewest blocks, filled evenly. */
static uint32_t units_together(int64_t all, uint32_t most) {
    return (uint32_t)gpu_ceiling(all, gpu_ceiling(all, most));
}

static size_t row_bytes(const rope_problem *p) {
    int both = p->angle_mode == ROPE_ANGLE_TABLE && p->table_width == ROPE_TABLE_FULL;
    return (size_t)p->pairs * (both ? 4 : 2) * (p->dtype == ROPE_F64 ? 8 : 4);
}

/* Tokens of a thread of the vector kernel: several where enough blocks are left and rows fit. */
static uint32_t tokens_of_thread(const gpu_bound *bound, int64_t blocks, uint32_t slices) {
    uint32_t most = GPU_TOKENS_MOST;
    while (most > 1 && (blocks / most < GPU_BLOCKS_ENOUGH * bound->multiprocessors ||
                        most * slices * row_bytes(&bound->problem) > SHARED_MOST))
        most /= 2;
    return most;
}

/* Tokens of a block for which there would be room. */
static uint32_t slices_of(const rope_call *call, uint32_t room) {
    int64_t tokens = call->batch * call->tokens;
    uint32_t slices =
        room > GPU_ROWS_MOST / GPU_TOKENS_MOST ? GPU_ROWS_MOST / GPU_TOKENS_MOST : room;
    return slices > tokens ? (uint32_t)tokens : slices ? slices : 1;
}

/* Tokens along y and z of the grid; 0 where they are too many. */
static int lay_out_tokens(const gpu_bound *bound, const rope_call *call, int32_t geometry,
                          gpu_launch *launch) {
    int64_t tokens = call->batch * call->tokens;
    uint32_t slices = launch->block.z, each = 1;
    if (geometry != GPU_NARROW && gpu_has_tokens_in_line(call))
        each = tokens_of_thread(bound, launch->grid.x * gpu_ceiling(tokens, slices), slices);
    int64_t y = gpu_ceiling(tokens, slices * each), z = gpu_ceiling(y, GPU_GRID_YZ_MOST);
    launch->grid.y = (uint32_t)gpu_ceiling(y, z);
    launch->grid.z = (uint32_t)z;
    launch->tokens = (int32_t)each;
    launch->shared = slices * each * row_bytes(&bound->problem);
    return z <= GPU_GRID_YZ_MOST;
}

/* Grid and block; 0 where a head is too wide for a block, or the call too large for a grid. */
static int lay_out(const gpu_bound *bound, const rope_call *call, int32_t geometry,
                   gpu_launch *launch) {
    const rope_problem *p = &bound->problem;
    uint32_t lanes = (uint32_t)(p->pairs / gpu_vector_of(p, geometry));
    uint32_t threads = GPU_THREADS(geometry, gpu_size_of(p), bound->early);
    int64_t each = gpu_heads_of(p, geometry);
    int64_t q = gpu_ceiling(call->tensor[0].heads, each);
    int64_t k = gpu_ceiling(call->tensor[1].heads, each);
    if (lanes > GPU_PLAIN_THREADS || q > UNITS_MOST || k > UNITS_MOST)
        return 0;
    uint32_t most = GPU_VECTOR_THREADS / lanes;
    uint32_t units = p->xpos_rate ? gpu_units_apart(q, k, most) : units_together(q + k, most);
    if (p->xpos_rate)
        q = gpu_ceiling(q, units) * units;
    int64_t blocks = gpu_ceiling(q + k, units);
    if (blocks > GPU_GRID_X_MOST)
        return 0;
    launch->q_units = (int32_t)q;
    launch->block = (dim3){lanes, units, slices_of(call, threads / (lanes * units))};
    launch->grid = (dim3){(uint32_t)blocks, 1, 1};
    return lay_out_tokens(bound, call, geometry, launch);
}

static void fill(const rope_problem *p, const rope_call *call, int32_t vector, gpu_launch *launch) {
    gpu_vector_call *v = &launch->vector;
    int64_t size = gpu_size_of(p);
    *v = (gpu_vector_call){.operands = gpu_operands_of(p, call, launch->q_units),
                           .tokens = launch->tokens,
                           .in_line = gpu_has_tokens_in_line(call)};
    for (int t = 0; t < 2; t++) {
        const rope_operand *o = &call->tensor[t];
        if (!o->heads)
            continue;
        if (!v->in_line) {
            v->in_batch[t] = o->in_stride[0] * size - call->tokens * v->operands.in_token[t];
            v->out_batch[t] = o->out_stride[0] * size - call->tokens * v->operands.out_token[t];
        }
        v->before[t] = p->rotary_offset[t] / vector;
        v->after[t] = (p->head_dim[t] - p->rotary_offset[t] - 2 * p->pairs) / vector;
        v->copies[t] = o->in != o->out && v->before[t] + v->after[t] > 0;
    }
}

int32_t gpu_vector_geometry(const gpu_bound *bound, const rope_call *call, int32_t pairing) {
    const rope_problem *p = &bound->problem;
    int32_t geometry = geometry_for(bound, call);
    while (geometry >= 0 && !(bound->kernels->vector[geometry][pairing] &&
                              gpu_is_aligned(p, call, gpu_vector_of(p, geometry))))
        geometry--;
    return geometry;
}

int gpu_vector_plan(const gpu_bound *bound, const rope_call *call, gpu_launch *launch) {
    const rope_problem *p = &bound->problem;
    const int32_t pairing = gpu_pairing_of(p), geometry = gpu_vector_geometry(bound, call, pairing);
    if (geometry < 0 || !lay_out(bound, call, geometry, launch))
        return 0;
    launch->arguments = GPU_VECTOR_ARGUMENTS;
    launch->kernel = bound->kernels->vector[geometry][pairing];
    fill(p, call, gpu_vector_of(p, geometry), launch);
    return 1;
}
