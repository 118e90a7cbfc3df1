/* Keys and values of a table's small pages, copied to rows of sequences: copies of whole tiles of
 * them take less time than those of pages where several tiles of queries read each. */
#ifndef ROPEKIT_GPU_ATTENTION_SM90_GATHER_H
#define ROPEKIT_GPU_ATTENTION_SM90_GATHER_H

#include "backends/gpu/attention/element.h"
#include "backends/gpu/attention/sm90/tile.h"
#include "backends/gpu/cache_element.h"

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

/* Has copied, of sequences that do not fail and have more than `few` rows of queries, the tiles of
 * `tile` keys of which these see some. */
template <class F>
GPU_FN void sm90_gather_tiles(const rope_attention_problem &problem,
                              const rope_attention_call &call, const int32_t *failed, int few,
                              int tile, int64_t tokens, F gathers) {
    const int64_t parts = (tokens + SM90_GATHERED - 1) / SM90_GATHERED,
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
                  end = min(min(first + SM90_GATHERED, (int)tokens),
                            ((int)used.end + tile - 1) / tile * tile);
        gathers(sequence, begin, end, used);
    }
}

__global__ void __launch_bounds__(GPU_ATTENTION_THREADS)
    gpu_attention_sm90_gather(GPU_PARAMETER rope_attention_problem problem,
                              GPU_PARAMETER rope_attention_call call, const int32_t *failed,
                              int few, int tile, sm90_gathered keys, sm90_gathered values) {
    sm90_gather_tiles(problem, call, failed, few, tile, keys.tokens,
                      [&](int sequence, int begin, int end, rope_key_range used) {
                          sm90_gather_rows(&problem, &call, call.k, keys, problem.head_dim,
                                           sequence, begin, end, used);
                          sm90_gather_rows(&problem, &call, call.v, values, problem.v_head_dim,
                                           sequence, begin, end, used);
                      });
}

/* --- of other types --- */

/* A vector of a sequence's key in a cache. */
struct sm90_stored {
    int64_t page, slot, head, at; /* at: its first element */
};

/* The i-th from key `begin` on, where `each` lie side by side. */
GPU_FN sm90_stored sm90_stored_of(const rope_attention_problem *p, const rope_attention_call *call,
                                  const rope_append_operand &o, int sequence, int begin, int each,
                                  int i) {
    const int key = begin + i / each, eights = each / (int)o.heads, within = i % each;
    sm90_stored v = {sequence, key, within / eights, within % eights * GPU_STORED};
    if (p->cache == ROPE_CACHE_TABLE) {
        v.page = sm90_page(p, call, sequence, key);
        v.slot = key % (int)p->page_size;
    }
    v.at += v.page * o.cache_stride[0] + v.slot * o.cache_stride[1] + v.head * o.cache_stride[2];
    return v;
}

/* As sm90_gather_rows(). */
template <int DTYPE>
GPU_FN void sm90_convert_rows(const rope_attention_problem *p, const rope_attention_call *call,
                              const rope_append_operand &o, const rope_append_steps &steps,
                              const sm90_gathered &to, int sequence, int begin, int end,
                              rope_key_range used) {
    enum { VECTORS = 4 };
    const int each = (int)o.heads * steps.head_dim / GPU_STORED, count = (end - begin) * each,
              first = ((int)used.begin - begin) * each, last = ((int)used.end - begin) * each,
              type = steps.store_dtype,
              bytes = type >= ROPE_F8E4M3 ? 1
                      : type == ROPE_F32  ? 4
                                          : 2;
    uint4 *const out = (uint4 *)to.data + (sequence * to.tokens + begin) * each;
    for (int i = (int)threadIdx.x; i < count; i += VECTORS * GPU_ATTENTION_THREADS) {
        gpu_vector<DTYPE, GPU_STORED> x[VECTORS];
        float scale[VECTORS];
#pragma unroll
        for (int j = 0; j < VECTORS; j++) {
            const int at = i + j * GPU_ATTENTION_THREADS;
            x[j] = {};
            scale[j] = 1;
            if (at >= first && at < last) {
                const sm90_stored v = sm90_stored_of(p, call, o, sequence, begin, each, at);
                x[j] = gpu_load_vector_as<DTYPE>(type, (const char *)o.cache + v.at * bytes);
                scale[j] = gpu_place_scale(call, &o, &steps, v.page, v.slot, v.head);
            }
        }
#pragma unroll
        for (int j = 0; j < VECTORS; j++) {
            if (i + j * GPU_ATTENTION_THREADS >= count)
                break;
            if (bytes == 1)
                x[j] = gpu_dequantize<DTYPE>(type, scale[j], x[j]);
            gpu_store<DTYPE, GPU_STORED>(out + i + j * GPU_ATTENTION_THREADS, x[j]);
        }
    }
}

template <int DTYPE>
__global__ void __launch_bounds__(GPU_ATTENTION_THREADS)
    gpu_attention_sm90_convert(GPU_PARAMETER rope_attention_problem problem,
                               GPU_PARAMETER rope_attention_call call, const int32_t *failed,
                               int few, int tile, sm90_gathered keys, sm90_gathered values) {
    sm90_gather_tiles(problem, call, failed, few, tile, keys.tokens,
                      [&](int sequence, int begin, int end, rope_key_range used) {
                          sm90_convert_rows<DTYPE>(&problem, &call, call.k, problem.k, keys,
                                                   sequence, begin, end, used);
                          sm90_convert_rows<DTYPE>(&problem, &call, call.v, problem.v, values,
                                                   sequence, begin, end, used);
                      });
}

#endif
