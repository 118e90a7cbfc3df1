/* Keys and values of a table's small pages, copied to rows of sequences: copies of whole tiles of
 * them take less time than those of pages where several tiles of queries read each. */
#ifndef ROPEKIT_GPU_ATTENTION_SM90_GATHER_H
#define ROPEKIT_GPU_ATTENTION_SM90_GATHER_H

#include "backends/gpu/attention/sm90/tile.h"

/* A vector of 8 elements of a sequence's key, where `each` lie side by side: the i-th from key
 * `begin` on. */
GPU_FN const uint4 *sm90_cached(const rope_attention_problem *p, const rope_attention_call *call,
                                const rope_append_operand &o, int sequence, int begin, int each,
                                int i) {
    const int key = begin + i / each, eights = each / (int)o.heads, within = i % each;
    const int64_t at = sm90_page(p, call, sequence, key) * o.cache_stride[0] +
                       key % (int)p->page_size * o.cache_stride[1] +
                       within / eights * o.cache_stride[2];
    return (const uint4 *)(const void *)((const uint16_t *)o.cache + at) + within % eights;
}

/* Copies keys `begin` to `end` - 1 of a sequence, and zeros for those that are not used: whole
 * tiles of keys are read. A thread has several vectors on their way. */
GPU_FN void sm90_gather_rows(const rope_attention_problem *p, const rope_attention_call *call,
                             const rope_append_operand &o, const sm90_gathered &to, int dim,
                             int sequence, int begin, int end, rope_key_range used) {
    enum { VECTORS = 4 };
    const int each = (int)o.heads * dim / 8, count = (end - begin) * each,
              first = ((int)used.begin - begin) * each, last = ((int)used.end - begin) * each;
    uint4 *const out = (uint4 *)to.data + (sequence * to.tokens + begin) * each;
    for (int i = (int)threadIdx.x; i < count; i += VECTORS * GPU_ATTENTION_THREADS) {
        uint4 x[VECTORS];
#pragma unroll
        for (int j = 0; j < VECTORS; j++) {
            const int at = i + j * GPU_ATTENTION_THREADS;
            x[j] = {0, 0, 0, 0};
            if (at >= first && at < last)
                x[j] = __ldg(sm90_cached(p, call, o, sequence, begin, each, at));
        }
#pragma unroll
        for (int j = 0; j < VECTORS; j++)
            if (i + j * GPU_ATTENTION_THREADS < count)
                out[i + j * GPU_ATTENTION_THREADS] = x[j];
    }
}

/* Of sequences that do not fail and have more than `few` rows of queries, the tiles of `tile` keys
 * of which these see some. */
__global__ void __launch_bounds__(GPU_ATTENTION_THREADS)
    gpu_attention_sm90_gather(GPU_PARAMETER rope_attention_problem problem,
                              GPU_PARAMETER rope_attention_call call, const int32_t *failed,
                              int few, int tile, sm90_gathered keys, sm90_gathered values) {
    const int64_t parts = (keys.tokens + SM90_GATHERED - 1) / SM90_GATHERED,
                  all = rope_attention_sequences(&call) * parts;
    gpu_wait_for_last();
    gpu_let_next_start();
    for (int64_t n = blockIdx.x; n < all; n += gridDim.x) {
        const int sequence = (int)(n / parts), first = (int)(n % parts) * SM90_GATHERED;
        const rope_attention_sequence s = rope_attention_sequence_of(&problem, &call, sequence);
        if (s.fails || failed[sequence] || s.q_count * gpu_attention_group(&call) <= few)
            continue;
        const rope_key_range used = gpu_keys_used(&problem, &s);
        const int begin = max(first, (int)used.begin / tile * tile),
                  end = min(min(first + SM90_GATHERED, (int)keys.tokens),
                            ((int)used.end + tile - 1) / tile * tile);
        sm90_gather_rows(&problem, &call, call.k, keys, problem.head_dim, sequence, begin, end,
                         used);
        sm90_gather_rows(&problem, &call, call.v, values, problem.v_head_dim, sequence, begin, end,
                         used);
    }
}

#endif
