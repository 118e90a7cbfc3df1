#include "common/gpu/geometry.h"

#include <gpu_tuning.h>

enum { GRID_Y_MOST = 65535, GRID_X_MOST = INT32_MAX, BLOCK_Z_MOST = 64 };

static int32_t size_of(const rope_problem *problem) {
    return problem->dtype == ROPE_F32 ? 4 : 2;
}

/* Elements of a thread's vector. */
static int32_t vector_of(const rope_problem *problem, int32_t geometry) {
    return geometry == GPU_NARROW ? 2 : 16 / size_of(problem);
}

int32_t gpu_width_of(const rope_problem *p) {
    int plain = p->axes == 1 && p->angle_mode != ROPE_ANGLE_TABLE && p->frequency_sets == 1 &&
                p->shard == ROPE_SHARD_NONE;
    for (int t = 0; t < 2; t++)
        plain = plain && p->head_dim[t] == 2 * p->pairs && p->rotary_offset[t] == 0;
    if (!plain)
        return GPU_ANY_WIDTH;
    return p->pairs == 64 ? GPU_WIDTH_128 : p->pairs == 32 ? GPU_WIDTH_64 : GPU_ANY_WIDTH;
}

const char *gpu_vector_declines(const rope_problem *p) {
    if (p->dtype == ROPE_F64)
        return "declined: dtype is f64";
    if (p->arithmetic != ROPE_ARITHMETIC_FP32)
        return "declined: arithmetic is model dtype";
    if (p->pairing_in != p->pairing_out)
        return "declined: pairing_in and pairing_out differ";
    if (p->xpos_rate)
        return "declined: XPos is on";
    if (p->angle_mode == ROPE_ANGLE_TABLE && (p->table_width != ROPE_TABLE_HALF || p->axes > 1))
        return "declined: the table is full-width or has several axes";
    if (p->pairs % 2)
        return "declined: rotary_dim is no multiple of 4";
    return NULL;
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

static int has_contiguous_strides(const rope_call *call, const int64_t stride[4], int64_t heads,
                                  int64_t width) {
    return (call->batch == 1 || stride[0] == call->tokens * heads * width) &&
           (call->tokens == 1 || stride[1] == heads * width) && (heads == 1 || stride[2] == width);
}

static int32_t width_for(const gpu_bound *bound, const rope_call *call) {
    const rope_problem *p = &bound->problem;
    if (bound->width == GPU_ANY_WIDTH || call->position.cu_seqlens || call->position.offsets)
        return GPU_ANY_WIDTH;
    for (int t = 0; t < 2; t++) {
        const rope_operand *o = &call->tensor[t];
        if (o->heads && !(has_contiguous_strides(call, o->in_stride, o->heads, p->head_dim[t]) &&
                          has_contiguous_strides(call, o->out_stride, o->heads, p->head_dim[t])))
            return GPU_ANY_WIDTH;
    }
    return bound->width;
}

static int32_t geometry_for(const gpu_bound *bound, const rope_call *call) {
    const rope_problem *p = &bound->problem;
    int64_t pairs =
        call->batch * call->tokens * (call->tensor[0].heads + call->tensor[1].heads) * p->pairs;
    if (bound->geometry != GPU_BY_SIZE)
        return bound->geometry;
    if (pairs <= (int64_t)GPU_NARROW_PAIRS * bound->multiprocessors)
        return GPU_NARROW;
    int wide = p->dtype == ROPE_F32 && 4 * size_of(p) * pairs < GPU_TWO_HEADS_BYTES;
    return wide ? GPU_WIDE : GPU_TWO_HEADS;
}

static int64_t ceiling(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

static uint32_t common_divisor(uint32_t a, uint32_t b) {
    while (b) {
        uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Heads of a block: as many as divide those of q and of k, so that no thread is idle. */
static uint32_t heads_of_block(int64_t q, int64_t k, uint32_t most) {
    uint32_t n = common_divisor((uint32_t)(q & INT32_MAX), (uint32_t)(k & INT32_MAX));
    uint32_t heads = n < most ? n : most;
    while (n % heads)
        heads--;
    return heads;
}

static int lay_out(const rope_problem *p, const rope_call *call, int32_t geometry,
                   gpu_launch *launch) {
    int32_t vector = vector_of(p, geometry), lanes = p->pairs / vector;
    int32_t threads = geometry == GPU_NARROW ? GPU_NARROW_THREADS : GPU_WIDE_THREADS;
    int64_t each = geometry == GPU_TWO_HEADS ? 2 : 1, tokens = call->batch * call->tokens;
    int64_t q = ceiling(call->tensor[0].heads, each), k = ceiling(call->tensor[1].heads, each);
    if (lanes > GPU_MAX_THREADS || q + k > GRID_X_MOST)
        return 0;
    uint32_t rows = lanes < threads ? (uint32_t)(threads / lanes) : 1;
    uint32_t heads = heads_of_block(q, k, rows);
    rows /= heads;
    if (rows > BLOCK_Z_MOST)
        rows = BLOCK_Z_MOST;
    if (rows > tokens)
        rows = (uint32_t)tokens;
    int64_t y = ceiling(tokens, rows);
    launch->block.x = (uint32_t)lanes;
    launch->block.y = heads;
    launch->block.z = rows;
    launch->grid.x = (uint32_t)((q + k) / heads);
    launch->grid.y = (uint32_t)(y < GRID_Y_MOST ? y : GRID_Y_MOST);
    launch->grid.z = 1;
    launch->layout.q_blocks = (int32_t)(q / heads);
    for (int t = 0; t < 2; t++) {
        launch->layout.before[t] = p->rotary_offset[t] / vector;
        launch->layout.after[t] = (p->head_dim[t] - p->rotary_offset[t] - 2 * p->pairs) / vector;
    }
    return 1;
}

static void fill_plain(const rope_problem *p, const rope_call *call, gpu_launch *launch) {
    int f32_angles = p->angle_mode == ROPE_ANGLE_F32;
    gpu_plain_call plain = {
        .list = f32_angles ? (const void *)p->set[0].inv_freq : (const void *)p->set[0].turns,
        .ids = call->position.ids,
        .id_batch = call->position.id_stride[1],
        .id_token = call->position.id_stride[2],
        .offset = call->position.offset,
        .tokens = call->tokens,
        .rows = call->batch * call->tokens,
        .q_blocks = launch->layout.q_blocks,
        .factor = (float)p->set[0].attention_factor,
        .wide = (uint8_t)call->position.wide,
        .f32_angles = (uint8_t)f32_angles,
        .negate = p->direction != ROPE_FORWARD,
    };
    for (int t = 0; t < 2; t++) {
        plain.in[t] = call->tensor[t].in;
        plain.out[t] = call->tensor[t].out;
        plain.heads[t] = (int32_t)call->tensor[t].heads;
    }
    launch->plain = plain;
}

int gpu_vector_plan(const gpu_bound *bound, const rope_call *call, gpu_launch *launch) {
    const rope_problem *p = &bound->problem;
    int32_t geometry = geometry_for(bound, call);
    if (geometry == GPU_GENERIC)
        return 0;
    if (!is_aligned(p, call, vector_of(p, geometry)))
        geometry = GPU_NARROW;
    if (geometry == GPU_NARROW && !is_aligned(p, call, vector_of(p, GPU_NARROW)))
        return 0;
    int interleaved = p->pairing_in == ROPE_PAIRING_INTERLEAVED;
    int32_t width = width_for(bound, call);
    if (geometry == GPU_TWO_HEADS && width == GPU_WIDTH_64)
        geometry = GPU_WIDE;
    launch->kernel = bound->kernels->vector[geometry][width][interleaved];
    launch->is_plain = launch->kernel && width != GPU_ANY_WIDTH;
    if (!launch->kernel)
        launch->kernel = bound->kernels->vector[geometry][GPU_ANY_WIDTH][interleaved];
    if (!lay_out(p, call, geometry, launch))
        return 0;
    if (launch->is_plain)
        fill_plain(p, call, launch);
    return 1;
}
