/* The launch of vector kernels. */
#include "backends/gpu/rope/launch_plan.h"

#include "backends/gpu/platform/tuning.h"

/* Most units of a tensor, which fields of the parameters hold; bytes of a block's shared memory. */
enum { VECTOR_MOST = INT32_MAX / 2 - GPU_VECTOR_THREADS, SHARED_MOST = 48 << 10 };

const char *gpu_vector_declines(const rope_problem *p) {
    return p->pairs % 2 ? "declined: rotary_dim is no multiple of 4" : NULL;
}

/* Bytes of a token's row of coefficients. */
static size_t row_bytes(const rope_problem *p) {
    int both = p->angle_mode == ROPE_ANGLE_TABLE && p->table_width == ROPE_TABLE_FULL;
    return (size_t)p->pairs * (both ? 4 : 2) * (p->dtype == ROPE_F64 ? 8 : 4);
}

/* Units of a block that may have both: the fewest blocks, filled evenly. */
static uint32_t units_together(int64_t all, uint32_t most) {
    return (uint32_t)gpu_divide_up(all, gpu_divide_up(all, most));
}

/* Tokens of a thread: several where enough blocks are left and their rows fit. */
static uint32_t tokens_of_thread(const gpu_rope_state *state, int64_t blocks, uint32_t slices) {
    uint32_t most = GPU_TOKENS_MOST;
    while (most > 1 && (blocks / most < GPU_BLOCKS_ENOUGH * state->on.multiprocessors ||
                        most * slices * row_bytes(&state->problem) > SHARED_MOST))
        most /= 2;
    return most;
}

/* Grid and block; 0 where a head is too wide for a block, or the call too large for a grid. */
static int lay_out_vector(const gpu_rope_state *state, const rope_call *call,
                          const gpu_rope_shape *s, int32_t geometry, gpu_rope_plan *l) {
    const rope_problem *p = &state->problem;
    const uint32_t lanes = (uint32_t)(p->pairs / gpu_vector_of(s->size, geometry));
    const int64_t each = gpu_heads_of(s->size, geometry);
    int64_t q = gpu_divide_up(call->tensor[0].heads, each),
            k = gpu_divide_up(call->tensor[1].heads, each);
    if (lanes > GPU_PLAIN_THREADS || q > VECTOR_MOST || k > VECTOR_MOST)
        return 0;
    const uint32_t most = GPU_VECTOR_THREADS / lanes;
    const uint32_t units = p->xpos_rate ? gpu_units_apart(q, k, most) : units_together(q + k, most);
    const uint32_t room = GPU_THREADS(geometry, s->size, state->on.early) / (lanes * units);
    const uint32_t slices = (uint32_t)gpu_at_most(
        s->rows, gpu_at_most(room ? room : 1, GPU_ROWS_MOST / GPU_TOKENS_MOST));
    if (p->xpos_rate)
        q = gpu_divide_up(q, units) * units;
    const int64_t x = gpu_divide_up(q + k, units);
    uint32_t tokens = 1;
    if (geometry != GPU_NARROW && s->tokens_in_line)
        tokens = tokens_of_thread(state, x * gpu_divide_up(s->rows, slices), slices);
    const int64_t y = gpu_divide_up(s->rows, slices * tokens),
                  z = gpu_divide_up(y, GPU_GRID_YZ_MOST);
    if (x > GPU_GRID_X_MOST || z > GPU_GRID_YZ_MOST)
        return 0;
    l->block = (dim3){lanes, units, slices};
    l->grid = (dim3){(uint32_t)x, (uint32_t)gpu_divide_up(y, z), (uint32_t)z};
    l->q_units = (int32_t)q;
    l->shared = slices * tokens * row_bytes(p);
    l->vector.tokens = (int32_t)tokens;
    return 1;
}

/* q or k. */
static void fill_vector_operand(const rope_problem *p, const rope_call *call, int t, int32_t vector,
                                gpu_vector_call *v) {
    const rope_operand *o = &call->tensor[t];
    const int64_t size = gpu_dtype_size(p->dtype), offset = p->rotary_offset[t];
    gpu_operands *to = &v->operands;
    to->heads[t] = (int32_t)o->heads;
    to->in[t] = (const char *)o->in + offset * size;
    to->out[t] = (char *)o->out + offset * size;
    to->in_token[t] = gpu_token_stride(call, o->in_stride) * size;
    to->out_token[t] = gpu_token_stride(call, o->out_stride) * size;
    to->in_head[t] = o->in_stride[2] * size;
    to->out_head[t] = o->out_stride[2] * size;
    if (!v->in_line) {
        v->in_batch[t] = o->in_stride[0] * size - call->tokens * to->in_token[t];
        v->out_batch[t] = o->out_stride[0] * size - call->tokens * to->out_token[t];
    }
    v->before[t] = (int32_t)offset / vector;
    v->after[t] = (p->head_dim[t] - (int32_t)offset - 2 * p->pairs) / vector;
    v->copies[t] = o->in != o->out && v->before[t] + v->after[t] > 0;
}

int gpu_plan_vector(const gpu_rope_state *state, const rope_call *call, const gpu_rope_shape *s,
                    gpu_rope_plan *l) {
    const rope_problem *p = &state->problem;
    const int32_t geometry = gpu_vector_geometry(state, call, s);
    if (geometry < 0 || !lay_out_vector(state, call, s, geometry, l))
        return 0;
    l->vector = (gpu_vector_call){.operands = {.tokens = call->tokens,
                                               .rows = s->rows,
                                               .q_units = l->q_units,
                                               .pairs = p->pairs},
                                  .tokens = l->vector.tokens,
                                  .in_line = s->tokens_in_line};
    for (int t = 0; t < 2; t++)
        if (call->tensor[t].heads)
            fill_vector_operand(p, call, t, gpu_vector_of(s->size, geometry), &l->vector);
    l->kernel = state->kernels->vector[geometry][s->pairing];
    l->arguments[0] = (void *)(uintptr_t)p;
    l->arguments[1] = (void *)(uintptr_t)call;
    l->arguments[2] = &l->vector;
    return 1;
}
