#include "common/gpu/geometry.h"

#include <gpu_tuning.h>

enum { UNITS_MOST = INT32_MAX / 2 - GPU_VECTOR_THREADS, SHARED_MOST = 48 << 10 };

static int32_t size_of(const rope_problem *problem) {
    return problem->dtype == ROPE_F64 ? 8 : problem->dtype == ROPE_F32 ? 4 : 2;
}

/* Elements of a thread's vector, as gpu_shape has them. */
static int32_t vector_of(const rope_problem *problem, int32_t geometry) {
    if (geometry == GPU_NARROW || problem->dtype == ROPE_F64)
        return 2;
    return geometry == GPU_WIDE ? 4 : 16 / size_of(problem);
}

/* Heads of a thread. */
static int32_t heads_of(const rope_problem *problem, int32_t geometry) {
    return geometry == GPU_NARROW || (geometry == GPU_WIDE && size_of(problem) == 2) ? 2 : 1;
}

static int32_t pairing_of(const rope_problem *p) {
    if (p->pairing_in == p->pairing_out)
        return p->pairing_in == ROPE_PAIRING_INTERLEAVED ? GPU_INTERLEAVED : GPU_HALF_SPLIT;
    return p->pairing_out == ROPE_PAIRING_INTERLEAVED ? GPU_TO_INTERLEAVED : GPU_TO_HALF_SPLIT;
}

int gpu_is_plain(const rope_problem *p) {
    return p->axes == 1 && p->angle_mode == ROPE_ANGLE_EXACT && p->frequency_sets == 1 &&
           p->shard == ROPE_SHARD_NONE && !p->xpos_rate && p->dtype != ROPE_F64 &&
           p->arithmetic == ROPE_ARITHMETIC_FP32 && p->pairing_in == p->pairing_out;
}

const char *gpu_vector_declines(const rope_problem *p) {
    return p->pairs % 2 ? "declined: rotary_dim is no multiple of 4" : NULL;
}

/* Strides of dimensions with one entry are never used. */
static uint64_t strides_used(const rope_call *call, const int64_t stride[4], int64_t heads) {
    return (uint64_t)((call->batch > 1 ? stride[0] : 0) | (call->tokens > 1 ? stride[1] : 0) |
                      (heads > 1 ? stride[2] : 0));
}

/* Every vector of `vector` elements that a head has lies at a multiple of its size. */
static int is_aligned(const rope_problem *p, const rope_call *call, int32_t vector) {
    uint64_t elements = (uint64_t)p->pairs, bytes = 0;
    for (int t = 0; t < 2; t++) {
        const rope_operand *o = &call->tensor[t];
        if (!o->heads)
            continue;
        if (o->in_stride[3] != 1 || o->out_stride[3] != 1)
            return 0;
        elements |= (uint64_t)p->rotary_offset[t];
        elements |= strides_used(call, o->in_stride, o->heads);
        elements |= strides_used(call, o->out_stride, o->heads);
        if (o->in != o->out)
            elements |= (uint64_t)p->head_dim[t];
        bytes |= (uintptr_t)o->in | (uintptr_t)o->out;
    }
    return p->pairs % vector == 0 && elements % (uint64_t)vector == 0 &&
           bytes % (uint64_t)(vector * size_of(p)) == 0;
}

/* From a token to the next; strides of dimensions with one entry count nothing. */
static int64_t token_stride(const rope_call *call, const int64_t stride[4]) {
    return call->tokens > 1 ? stride[1] : call->batch > 1 ? stride[0] : 0;
}

/* Whether batch rows of q and k follow each other as tokens do. */
static int has_tokens_in_line(const rope_call *call) {
    for (int t = 0; t < 2; t++) {
        const rope_operand *o = &call->tensor[t];
        if (o->heads && call->batch > 1 && call->tokens > 1 &&
            (o->in_stride[0] != call->tokens * o->in_stride[1] ||
             o->out_stride[0] != call->tokens * o->out_stride[1]))
            return 0;
    }
    return 1;
}

/* Whether the plain kernel can read the ids. */
static int has_plain_ids(const rope_call *call) {
    const rope_position_map *map = &call->position;
    return !map->ids ||
           ((call->tokens == 1 || map->id_stride[2] == 1) &&
            (call->batch == 1 || map->id_stride[1] == 0 || map->id_stride[1] == call->tokens));
}

/* Whether 32 bits hold an operand's strides in bytes. */
static int is_near(const rope_problem *p, const rope_call *call, const int64_t stride[4]) {
    const int64_t most = INT32_MAX / 2 / size_of(p), token = token_stride(call, stride);
    return token <= most && token >= -most && stride[2] <= most && stride[2] >= -most;
}

static int is_plain(const gpu_bound *bound, const rope_call *call) {
    const rope_problem *p = &bound->problem;
    if (!bound->plain || call->position.cu_seqlens || call->position.offsets ||
        call->batch > INT32_MAX / 2 / call->tokens || !has_plain_ids(call) ||
        !has_tokens_in_line(call))
        return 0;
    for (int t = 0; t < 2; t++) {
        const rope_operand *o = &call->tensor[t];
        if (!o->heads)
            continue;
        if (o->in != o->out && p->head_dim[t] != 2 * p->pairs)
            return 0;
        if (o->heads > UINT16_MAX / 2 || !is_near(p, call, o->in_stride) ||
            !is_near(p, call, o->out_stride))
            return 0;
    }
    return 1;
}

/* The geometry of a call by its size alone. */
static int32_t geometry_for(const gpu_bound *bound, const rope_call *call) {
    const rope_problem *p = &bound->problem;
    int64_t heads[2] = {call->tensor[0].heads, call->tensor[1].heads};
    int64_t pairs = call->batch * call->tokens * (heads[0] + heads[1]) * p->pairs;
    if (bound->geometry != GPU_BY_SIZE)
        return bound->geometry;
    int single = heads[0] <= 1 && heads[1] <= 1;
    if (pairs <= (int64_t)GPU_NARROW_PAIRS(size_of(p), single) * bound->multiprocessors &&
        size_of(p) < 8 && p->pairs <= 2 * GPU_PLAIN_THREADS)
        return GPU_NARROW;
    return single ? GPU_ALONE : GPU_WIDE;
}

static int64_t ceiling(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

/* Units of a block that has one tensor: as many as leave at most an eighth of the threads idle. */
static uint32_t units_apart(int64_t q, int64_t k, uint32_t most) {
    for (uint32_t units = most; units > 1; units--)
        if (8 * (ceiling(q, units) + ceiling(k, units)) * units <= 9 * (q + k))
            return units;
    return 1;
}

/* Units of a block that may have both: the fewest blocks, filled evenly. */
static uint32_t units_together(int64_t all, uint32_t most) {
    return (uint32_t)ceiling(all, ceiling(all, most));
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
    if (!launch->is_plain && geometry != GPU_NARROW && has_tokens_in_line(call))
        each = tokens_of_thread(bound, launch->grid.x * ceiling(tokens, slices), slices);
    int64_t y = ceiling(tokens, slices * each), z = ceiling(y, GPU_GRID_YZ_MOST);
    launch->grid.y = (uint32_t)ceiling(y, z);
    launch->grid.z = (uint32_t)z;
    launch->tokens = (int32_t)each;
    launch->shared = launch->is_plain ? 0 : slices * each * row_bytes(&bound->problem);
    return z <= GPU_GRID_YZ_MOST;
}

/* Grid and block; 0 where a head is too wide for a block, or the call too large for a grid. */
static int lay_out(const gpu_bound *bound, const rope_call *call, int32_t geometry,
                   gpu_launch *launch) {
    const rope_problem *p = &bound->problem;
    uint32_t lanes = (uint32_t)(p->pairs / vector_of(p, geometry));
    uint32_t threads = GPU_THREADS(geometry, size_of(p), bound->early);
    int64_t each = heads_of(p, geometry);
    int64_t q = ceiling(call->tensor[0].heads, each), k = ceiling(call->tensor[1].heads, each);
    if (lanes > GPU_PLAIN_THREADS || q > UNITS_MOST || k > UNITS_MOST)
        return 0;
    uint32_t most = (launch->is_plain ? GPU_UNITS_THREADS : GPU_VECTOR_THREADS) / lanes;
    most = most ? most : 1;
    int apart = launch->is_plain || p->xpos_rate;
    uint32_t units = apart ? units_apart(q, k, most) : units_together(q + k, most);
    if (apart)
        q = ceiling(q, units) * units;
    int64_t blocks = ceiling(q + k, units);
    if (blocks > GPU_GRID_X_MOST)
        return 0;
    launch->q_units = (int32_t)q;
    launch->block = (dim3){lanes, units, slices_of(call, threads / (lanes * units))};
    launch->grid = (dim3){(uint32_t)blocks, 1, 1};
    return lay_out_tokens(bound, call, geometry, launch);
}

static gpu_operands operands_of(const rope_problem *p, const rope_call *call, int32_t q_units) {
    gpu_operands operands = {.tokens = call->tokens,
                             .rows = call->batch * call->tokens,
                             .q_units = q_units,
                             .pairs = p->pairs};
    int64_t size = size_of(p);
    for (int t = 0; t < 2; t++) {
        const rope_operand *o = &call->tensor[t];
        if (!o->heads)
            continue;
        operands.heads[t] = (int32_t)o->heads;
        operands.in[t] = (const char *)o->in + p->rotary_offset[t] * size;
        operands.out[t] = (char *)o->out + p->rotary_offset[t] * size;
        operands.in_token[t] = token_stride(call, o->in_stride) * size;
        operands.out_token[t] = token_stride(call, o->out_stride) * size;
        operands.in_head[t] = o->in_stride[2] * size;
        operands.out_head[t] = o->out_stride[2] * size;
    }
    return operands;
}

/* Whether every block has a multiprocessor of its own, and room is left for the next launch's. */
static int is_small(const gpu_bound *bound, const gpu_launch *launch) {
    return (int64_t)launch->grid.x * launch->grid.y * launch->grid.z <= bound->multiprocessors;
}

/* How the plain kernel reads ids, in line or one batch row for all, what it multiplies by, and when
 * the next launch may start. */
static uint8_t plain_flags(const gpu_bound *bound, const rope_call *call,
                           const gpu_launch *launch) {
    const rope_problem *p = &bound->problem;
    const rope_position_map *map = &call->position;
    int shared = call->batch > 1 && map->id_stride[1] == 0;
    int negative = p->direction != ROPE_FORWARD;
    int scaled = negative || (float)p->set[0].attention_factor != 1.0f;
    return (uint8_t)((map->ids && map->wide ? GPU_PLAIN_WIDE_IDS : 0) |
                     (shared ? GPU_PLAIN_SHARED_IDS : 0) | (negative ? GPU_PLAIN_NEGATIVE : 0) |
                     (scaled ? GPU_PLAIN_SCALED : 0) |
                     (is_small(bound, launch) ? GPU_PLAIN_AT_ONCE : 0));
}

/* n / d, n < 2^30, is 2n reciprocal 2^-(32 + shift): 2^(31 + s) / 2d rounded up, 2^s >= 2d, is
 * exact for 31 bits (Granlund and Montgomery, 1994), and 2d spares the case of 1. */
static void set_reciprocal(gpu_plain_call *plain, uint32_t d) {
    uint64_t twice = 2 * (uint64_t)d;
    uint32_t s = 1;
    while ((1ull << s) < twice)
        s++;
    plain->reciprocal = (uint32_t)(((1ull << (31 + s)) + twice - 1) / twice);
    plain->shift = (uint8_t)(s - 1);
}

static void fill_plain(const gpu_bound *bound, const rope_call *call, gpu_launch *launch) {
    const rope_problem *p = &bound->problem;
    gpu_operands o = operands_of(p, call, launch->q_units);
    gpu_plain_call *plain = &launch->plain;
    *plain = (gpu_plain_call){
        .turns = p->set[0].turns,
        .ids = call->position.ids,
        .offset = call->position.offset,
        .tokens = (int32_t)o.tokens,
        .rows = (int32_t)o.rows,
        .factor = (float)p->set[0].attention_factor,
        .heads = {(uint16_t)o.heads[0], (uint16_t)o.heads[1]},
        .q_units = (uint16_t)o.q_units,
        .flags = plain_flags(bound, call, launch),
    };
    set_reciprocal(plain, (uint32_t)o.tokens);
    for (int t = 0; t < 2; t++)
        plain->operand[t] = (gpu_plain_operand){.in = o.in[t],
                                                .out = o.out[t],
                                                .in_token = (int32_t)o.in_token[t],
                                                .in_head = (int32_t)o.in_head[t],
                                                .out_token = (int32_t)o.out_token[t],
                                                .out_head = (int32_t)o.out_head[t]};
}

static void fill_vector(const rope_problem *p, const rope_call *call, int32_t vector,
                        gpu_launch *launch) {
    gpu_vector_call *v = &launch->vector;
    int64_t size = size_of(p);
    *v = (gpu_vector_call){.operands = operands_of(p, call, launch->q_units),
                           .tokens = launch->tokens,
                           .in_line = has_tokens_in_line(call)};
    for (int t = 0; t < 2; t++) {
        const rope_operand *o = &call->tensor[t];
        if (!v->in_line && o->heads) {
            v->in_batch[t] = o->in_stride[0] * size - call->tokens * v->operands.in_token[t];
            v->out_batch[t] = o->out_stride[0] * size - call->tokens * v->operands.out_token[t];
        }
        v->before[t] = p->rotary_offset[t] / vector;
        v->after[t] = (p->head_dim[t] - p->rotary_offset[t] - 2 * p->pairs) / vector;
        v->copies[t] = o->in != o->out && v->before[t] + v->after[t] > 0;
    }
}

static const void *kernel_of(const gpu_bound *bound, int is_plain, int32_t geometry) {
    int32_t pairing = pairing_of(&bound->problem);
    return is_plain
               ? bound->kernels->plain[geometry][pairing][bound->problem.pairs == 64][bound->early]
               : bound->kernels->vector[geometry][pairing];
}

/* The widest geometry from the wanted one down that exists and that the call's alignment allows;
 * negative where none does. */
static int32_t fitting(const gpu_bound *bound, const rope_call *call, int is_plain) {
    const rope_problem *p = &bound->problem;
    int32_t geometry = geometry_for(bound, call);
    while (geometry >= 0 &&
           !(kernel_of(bound, is_plain, geometry) && is_aligned(p, call, vector_of(p, geometry))))
        geometry--;
    return geometry;
}

int gpu_vector_plan(const gpu_bound *bound, const rope_call *call, gpu_launch *launch) {
    const rope_problem *p = &bound->problem;
    if (bound->geometry == GPU_GENERIC)
        return 0;
    launch->is_plain = is_plain(bound, call);
    int32_t geometry = fitting(bound, call, launch->is_plain);
    if (geometry < 0 || !lay_out(bound, call, geometry, launch))
        return 0;
    launch->kernel = kernel_of(bound, launch->is_plain, geometry);
    if (launch->is_plain)
        fill_plain(bound, call, launch);
    else
        fill_vector(p, call, vector_of(p, geometry), launch);
    return 1;
}
