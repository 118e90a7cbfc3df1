/* A token of "append" as a block keeps it: its status, its place in the cache, its scales. */
#ifndef ROPEKIT_GPU_APPEND_TOKEN_H
#define ROPEKIT_GPU_APPEND_TOKEN_H

#include "backends/gpu/element.h"
#include "common/math/cache.h"
#include "common/math/fp8.h"
#include "common/math/token.h"

GPU_FN void gpu_append_flag(const rope_append_call *call) {
    if (call->rope.position_flag)
        *call->rope.position_flag = 1;
}

GPU_FN bool gpu_is_cached(const rope_append_operand *o, const rope_place *place) {
    return o->cache && place->status == ROPE_PLACE_GIVEN;
}

/* Where the scale of a head lies. */
GPU_FN float *gpu_scale_of(const rope_append_operand *o, int tensor, const rope_site *site,
                           const rope_place *place, int64_t head) {
    const bool q = tensor == ROPE_APPEND_Q;
    return o->scale + (q ? site->batch : place->page) * o->scale_stride[0] +
           (q ? site->token : place->slot) * o->scale_stride[1] + head * o->scale_stride[2];
}

GPU_FN bool gpu_is_scale(float scale) {
    return scale > 0 && scale <= 0x1.fffffep+127f;
}

/* Entry i of a list of f32, f16 or bf16. */
GPU_FN float gpu_entry(int32_t dtype, const void *list, int64_t i) {
    return rope_table_entry(dtype, list, i);
}

/* An element of store_dtype to the one it stands for, and back. */
GPU_FN float gpu_from_stored(int32_t dtype, const void *list, int64_t i, float scale) {
    return dtype < ROPE_F8E4M3 ? gpu_entry(dtype, list, i)
                               : rope_from_8bit(dtype, ((const uint8_t *)list)[i]) * scale;
}

GPU_FN void gpu_to_stored(int32_t dtype, void *list, int64_t i, float x, float scale) {
    if (dtype >= ROPE_F8E4M3)
        ((uint8_t *)list)[i] = rope_to_8bit(dtype, x / scale);
    else if (dtype == ROPE_F32)
        ((float *)list)[i] = x;
    else
        ((uint16_t *)list)[i] = dtype == ROPE_BF16 ? rope_to_bf16(x) : rope_to_f16(x);
}

#endif
