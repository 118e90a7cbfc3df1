#include "common/gpu/operands.h"

#include "common/math/portable.h"

int32_t gpu_size_of(const rope_problem *problem) {
    return problem->dtype == ROPE_F64 ? 8 : problem->dtype == ROPE_F32 ? 4 : 2;
}

/* Elements of a thread's vector, as gpu_shape has them. */
int32_t gpu_vector_of(const rope_problem *problem, int32_t geometry) {
    int32_t size = gpu_size_of(problem);
    return (size == 2 && geometry != GPU_NARROW) || (size == 4 && geometry == GPU_WIDE) ? 4 : 2;
}

/* Heads of a thread. */
int32_t gpu_heads_of(const rope_problem *problem, int32_t geometry) {
    if (geometry == GPU_DEEP)
        return 4;
    return geometry == GPU_NARROW || (geometry == GPU_WIDE && gpu_size_of(problem) == 2) ? 2 : 1;
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

/* Every vector of `vector` elements that a head has lies at a multiple of its size. */
int gpu_is_aligned(const rope_problem *p, const rope_call *call, int32_t vector) {
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
           bytes % (uint64_t)(vector * gpu_size_of(p)) == 0;
}

/* From a token to the next; strides of dimensions with one entry count nothing. */
int64_t gpu_token_stride(const rope_call *call, const int64_t stride[4]) {
    return call->tokens > 1 ? stride[1] : call->batch > 1 ? stride[0] : 0;
}

/* Whether batch rows of q and k follow each other as tokens do. */
int gpu_has_tokens_in_line(const rope_call *call) {
    for (int t = 0; t < 2; t++) {
        const rope_operand *o = &call->tensor[t];
        if (o->heads && call->batch > 1 && call->tokens > 1 &&
            (o->in_stride[0] != call->tokens * o->in_stride[1] ||
             o->out_stride[0] != call->tokens * o->out_stride[1]))
            return 0;
    }
    return 1;
}

/* Pairs of a call a multiprocessor. */
int64_t gpu_pairs_each(const gpu_bound *bound, const rope_call *call) {
    int64_t heads = call->tensor[0].heads + call->tensor[1].heads;
    return call->batch * call->tokens * heads * bound->problem.pairs / bound->multiprocessors;
}

int gpu_set_of(const rope_problem *p, const rope_call *call) {
    const rope_position_map *map = &call->position;
    if (p->frequency_sets < 2)
        return 0;
    if (map->lengths || map->offsets || map->cu_seqlens)
        return -1;
    return rope_sum(map->tokens * map->shard_size, map->offset) > p->long_from;
}

/* Whether 32 bits hold an operand's strides in bytes, and from a thread's first head to its last.
 */
int gpu_is_near(const rope_problem *p, const rope_call *call, const int64_t stride[4]) {
    const int64_t most = INT32_MAX / (GPU_HEADS_MOST - 1) / gpu_size_of(p),
                  token = gpu_token_stride(call, stride);
    return token <= most && token >= -most && stride[2] <= most && stride[2] >= -most;
}

gpu_plain_operand gpu_plain_operand_of(const rope_problem *p, const rope_call *call, int t) {
    const rope_operand *o = &call->tensor[t];
    const int64_t size = gpu_size_of(p), offset = p->rotary_offset[t] * size;
    return (gpu_plain_operand){
        .in = (const char *)o->in + offset,
        .out = (char *)o->out + offset,
        .in_token = (int32_t)(gpu_token_stride(call, o->in_stride) * size),
        .in_head = (int32_t)(o->in_stride[2] * size),
        .out_token = (int32_t)(gpu_token_stride(call, o->out_stride) * size),
        .out_head = (int32_t)(o->out_stride[2] * size),
    };
}

gpu_operands gpu_operands_of(const rope_problem *p, const rope_call *call, int32_t q_units) {
    gpu_operands operands = {.tokens = call->tokens,
                             .rows = call->batch * call->tokens,
                             .q_units = q_units,
                             .pairs = p->pairs};
    int64_t size = gpu_size_of(p);
    for (int t = 0; t < 2; t++) {
        const rope_operand *o = &call->tensor[t];
        if (!o->heads)
            continue;
        operands.heads[t] = (int32_t)o->heads;
        operands.in[t] = (const char *)o->in + p->rotary_offset[t] * size;
        operands.out[t] = (char *)o->out + p->rotary_offset[t] * size;
        operands.in_token[t] = gpu_token_stride(call, o->in_stride) * size;
        operands.out_token[t] = gpu_token_stride(call, o->out_stride) * size;
        operands.in_head[t] = o->in_stride[2] * size;
        operands.out_head[t] = o->out_stride[2] * size;
    }
    return operands;
}
