/* Tensors and positions of a call. */
#include "backends/gpu/attention/sm90/call.h"

#include "common/math/attention.h"

sm90_view sm90_view_of(const rope_attention_problem *p, const rope_attention_call *call,
                       const rope_append_operand *o, int32_t dim, int gathered) {
    if (p->cache)
        return (sm90_view){o->cache,
                           o->cache_stride,
                           o->cache_stride[4],
                           gathered ? rope_attention_sequences(call) : call->pages,
                           gathered ? call->k_tokens : p->page_size,
                           o->heads,
                           dim};
    const int64_t *stride = o->out ? o->out_stride : o->in_stride;
    return (sm90_view){o->out ? o->out : o->in,
                       stride,
                       stride[3],
                       call->k_position.cu_seqlens ? 1 : call->rope.batch,
                       call->k_tokens,
                       o->heads,
                       dim};
}

sm90_view sm90_queries_of(const rope_attention_problem *p, const rope_attention_call *call) {
    const rope_operand *q = &call->rope.tensor[0];
    const int64_t *stride = q->out ? q->out_stride : q->in_stride;
    return (sm90_view){q->out ? q->out : q->in, stride,   stride[3],  call->rope.batch,
                       call->rope.tokens,       q->heads, p->head_dim};
}

sm90_view sm90_results_of(const rope_attention_problem *p, const rope_attention_call *call) {
    return (sm90_view){call->out,        call->out_stride,  call->out_stride[3],
                       call->rope.batch, call->rope.tokens, call->rope.tensor[0].heads,
                       p->v_head_dim};
}

int sm90_depends(const rope_attention_call *call) {
    return call->rope.position.cu_seqlens || call->k_position.cu_seqlens || call->q_lengths ||
           call->k_lengths;
}

int sm90_stands_by_lengths(const rope_attention_call *call) {
    return !call->rope.position.ids && sm90_depends(call);
}

int sm90_has_rows(const rope_attention_call *call) {
    const rope_position_map *map = &call->rope.position;
    return call->rope.batch > 1 &&
           (map->ids ? map->id_stride[1] != 0 : sm90_stands_by_lengths(call));
}
