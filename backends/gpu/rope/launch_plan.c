#include "backends/gpu/rope/launch_plan.h"

#include "backends/gpu/platform/tuning.h"

int32_t gpu_vector_of(int32_t size, int32_t geometry) {
    return (size == 2 && geometry != GPU_NARROW) || (size == 4 && geometry == GPU_WIDE) ? 4 : 2;
}

int32_t gpu_heads_of(int32_t size, int32_t geometry) {
    if (geometry == GPU_DEEP)
        return 4;
    return geometry == GPU_NARROW || (geometry == GPU_WIDE && size == 2) ? 2 : 1;
}

int64_t gpu_token_stride(const rope_call *call, const int64_t stride[4]) {
    return call->tokens > 1 ? stride[1] : call->batch > 1 ? stride[0] : 0;
}

int32_t gpu_pairing_of(const rope_problem *p) {
    if (p->pairing_in == p->pairing_out)
        return p->pairing_in == ROPE_PAIRING_INTERLEAVED ? GPU_INTERLEAVED : GPU_HALF_SPLIT;
    return p->pairing_out == ROPE_PAIRING_INTERLEAVED ? GPU_TO_INTERLEAVED : GPU_TO_HALF_SPLIT;
}

/* Strides of dimensions with one entry are never used. */
static uint64_t strides_used(const rope_call *call, const int64_t stride[4], int64_t heads) {
    return (uint64_t)((call->batch > 1 ? stride[0] : 0) | (call->tokens > 1 ? stride[1] : 0) |
                      (heads > 1 ? stride[2] : 0));
}

int gpu_rope_is_aligned(const rope_problem *p, const rope_call *call, int32_t vector) {
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
    return elements % (uint64_t)vector == 0 &&
           bytes % (uint64_t)(vector * gpu_dtype_size(p->dtype)) == 0;
}

gpu_operand gpu_rope_operand_of(const rope_problem *p, const rope_call *call, int t) {
    const rope_operand *o = &call->tensor[t];
    const int64_t size = gpu_dtype_size(p->dtype), offset = p->rotary_offset[t] * size;
    return (gpu_operand){
        .in = (const char *)o->in + offset,
        .out = (char *)o->out + offset,
        .in_token = (int32_t)(gpu_token_stride(call, o->in_stride) * size),
        .in_head = (int32_t)(o->in_stride[2] * size),
        .out_token = (int32_t)(gpu_token_stride(call, o->out_stride) * size),
        .out_head = (int32_t)(o->out_stride[2] * size),
    };
}

int32_t gpu_rope_flags_of(const gpu_rope_state *state, const rope_call *call) {
    return (call->position.ids && call->position.wide ? GPU_CALL_WIDE_IDS : 0) |
           (state->problem.direction != ROPE_FORWARD ? GPU_CALL_NEGATIVE : 0) |
           (state->on.early ? GPU_CALL_EARLY : 0);
}

uint32_t gpu_units_apart(int64_t q, int64_t k, uint32_t most) {
    for (uint32_t units = most; units > 1; units--)
        if (8 * (gpu_divide_up(q, units) + gpu_divide_up(k, units)) * units <= 9 * (q + k))
            return units;
    return 1;
}

uint32_t gpu_rows_of_block(uint32_t room, int64_t rows) {
    const uint32_t most = room > GPU_BLOCK_Z_MOST ? GPU_BLOCK_Z_MOST : room ? room : 1;
    return (uint32_t)gpu_at_most(rows, most);
}

int gpu_lay_out_rows(const gpu_rope_state *state, const rope_call *call, int32_t geometry,
                     int in_line, gpu_rope_plan *l) {
    const rope_problem *p = &state->problem;
    const int32_t size = gpu_dtype_size(p->dtype);
    const int64_t each = gpu_heads_of(size, geometry);
    const int64_t rows = in_line ? call->batch * call->tokens : call->tokens;
    const uint32_t lanes = (uint32_t)(p->pairs / gpu_vector_of(size, geometry));
    const uint32_t most = GPU_UNITS_THREADS / lanes;
    int64_t q = gpu_divide_up(call->tensor[0].heads, each),
            k = gpu_divide_up(call->tensor[1].heads, each);
    const uint32_t units = gpu_units_apart(q, k, most ? most : 1);
    const uint32_t room = GPU_THREADS(geometry, size, state->on.early) / (lanes * units);
    q = gpu_divide_up(q, units) * units;
    l->block = (dim3){lanes, units, gpu_rows_of_block(room, rows)};
    const int64_t blocks = gpu_divide_up(rows, l->block.z);
    const int64_t z = in_line ? gpu_divide_up(blocks, GPU_GRID_YZ_MOST) : call->batch;
    const int64_t y = in_line ? gpu_divide_up(blocks, z) : blocks;
    if (y > GPU_GRID_YZ_MOST || z > GPU_GRID_YZ_MOST)
        return 0;
    l->grid = (dim3){(uint32_t)gpu_divide_up(q + k, units), (uint32_t)y, (uint32_t)z};
    l->q_units = (int32_t)q;
    l->slab = (int32_t)(in_line ? y * l->block.z : rows);
    return 1;
}

int32_t gpu_vector_geometry(const gpu_rope_state *state, const rope_call *call,
                            const gpu_rope_shape *s) {
    const rope_problem *p = &state->problem;
    const int small = s->size < 8 && p->pairs <= 2 * GPU_PLAIN_THREADS &&
                      s->pairs_each <= GPU_NARROW_PAIRS(s->size);
    int32_t geometry = state->geometry != GPU_BY_SIZE ? state->geometry
                       : small                        ? GPU_NARROW
                                                      : GPU_WIDE;
    while (geometry >= 0 && !(state->kernels->vector[geometry][s->pairing] &&
                              gpu_rope_is_aligned(p, call, gpu_vector_of(s->size, geometry))))
        geometry--;
    return geometry;
}
