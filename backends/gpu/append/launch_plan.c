#include "backends/gpu/append/launch_plan.h"

#include "backends/gpu/platform/tuning.h"

const char *gpu_append_declines_16_bits(const rope_append_problem *p) {
    return p->rope.dtype == ROPE_F32 ? "declined: dtype is f32" : gpu_append_vector_declines(p);
}

const char *gpu_append_declines_angles(const rope_problem *r) {
    if (!r->pairs || r->angle_mode != ROPE_ANGLE_EXACT)
        return "declined: angles are not exact";
    if (r->axes != 1 || r->shard != ROPE_SHARD_NONE || r->xpos_rate || r->frequency_sets > 1)
        return "declined: there are several axes or frequency sets, shards or XPos";
    if (r->arithmetic != ROPE_ARITHMETIC_FP32)
        return "declined: arithmetic is model_dtype";
    return NULL;
}

const char *gpu_append_declines_pairing(const rope_problem *r) {
    return r->pairing_in == r->pairing_out ? NULL : "declined: pairing_in is not pairing_out";
}

const char *gpu_append_declines_whole_heads(const rope_problem *r, const rope_append_steps *s,
                                            int rotates) {
    if (s->head_dim != 2 * r->pairs || (rotates && !s->rotates))
        return "declined: a part of a head does not rotate";
    if (s->factor != 1)
        return "declined: there is a factor";
    if (s->dim_block != s->head_dim)
        return "declined: a cached head lies in blocks";
    if (s->store_dtype != r->dtype && s->store_dtype < ROPE_F8E4M3)
        return "declined: a store_dtype is neither dtype nor of 8 bits";
    return s->scale && s->scale != ROPE_SCALE_TENSOR ? "declined: scales differ within a tensor"
                                                     : NULL;
}

/* Strides that count, over `count` dimensions of these sizes. */
static uint64_t strides_used(const int64_t *stride, const int64_t *size, int count) {
    uint64_t used = 0;
    for (int i = 0; i < count; i++)
        used |= size[i] > 1 ? (uint64_t)stride[i] : 0;
    return used;
}

/* Whether vectors lie at multiples of their size, 16 bytes at most. */
static int is_aligned(const void *pointer, uint64_t strides, int32_t dtype) {
    const uint64_t bytes = GPU_APPEND_V * (uint64_t)gpu_dtype_size(dtype);
    return strides % GPU_APPEND_V == 0 && (uintptr_t)pointer % (bytes > 16 ? 16 : bytes) == 0;
}

int gpu_append_has_vectors(const rope_append_problem *p, const rope_append_call *call, int t) {
    const rope_append_operand *o = &call->tensor[t];
    const rope_append_steps *s = &p->steps[t];
    const int32_t dtype = p->rope.dtype, out = t == ROPE_APPEND_Q ? s->store_dtype : dtype;
    const int64_t heads[] = {call->rope.batch, call->rope.tokens, o->heads},
                  places[] = {call->pages, p->page_size, o->heads, s->head_dim / s->dim_block};
    if (o->in &&
        (o->in_stride[3] != 1 || !is_aligned(o->in, strides_used(o->in_stride, heads, 3), dtype)))
        return 0;
    if (o->out &&
        (o->out_stride[3] != 1 || !is_aligned(o->out, strides_used(o->out_stride, heads, 3), out)))
        return 0;
    if (o->cache &&
        (o->cache_stride[4] != 1 ||
         !is_aligned(o->cache, strides_used(o->cache_stride, places, 4), s->store_dtype)))
        return 0;
    return !s->norm || !s->weight ||
           is_aligned(o->weight, o->heads > 1 ? (uint64_t)o->weight_stride : 0, s->weight_dtype);
}

int gpu_append_is_in_line(const rope_append_call *call, const int64_t *stride) {
    return (call->rope.tokens == 1 || stride[1] == 1) &&
           (call->rope.batch == 1 || stride[0] == call->rope.tokens);
}

int gpu_append_has_one_id(const rope_position_map *map) {
    return map->ids && map->id_stride[1] == 0 && map->id_stride[2] == 0;
}

int gpu_append_is_exact(const rope_append_problem *p, const rope_append_call *call) {
    const rope_problem *r = &p->rope;
    const rope_position_map *map = &call->rope.position;
    return r->angle_mode == ROPE_ANGLE_EXACT && r->axes == 1 && r->shard == ROPE_SHARD_NONE &&
           !r->xpos_rate && r->frequency_sets < 2 && !map->cu_seqlens && !map->offsets &&
           (!map->ids || gpu_append_has_one_id(map) ||
            gpu_append_is_in_line(call, map->id_stride + 1));
}

uint8_t gpu_log2_of(int32_t n) {
    uint8_t log = 0;
    while (n > INT64_C(1) << log)
        log++;
    return log;
}

int64_t gpu_append_token_stride(const rope_append_call *call, const int64_t *stride, int64_t size,
                                int64_t *batch) {
    const int64_t tokens = call->rope.tokens;
    *batch = 0;
    if (tokens == 1)
        return call->rope.batch > 1 ? stride[0] * size : 0;
    if (call->rope.batch > 1)
        *batch = (stride[0] - tokens * stride[1]) * size;
    return stride[1] * size;
}

int32_t gpu_near_stride(int64_t stride, int64_t count, int *near) {
    if (count <= 1)
        return 0;
    *near &= stride <= INT32_MAX && stride >= -INT32_MAX;
    return (int32_t)stride;
}
