/* What is computed ahead of the first tile: angles of queries, whether tables have pages that the
 * cache lacks, and tickets. One launch has all of these, as a launch behind another begins late. */
#ifndef ROPEKIT_GPU_ATTENTION_SM90_AHEAD_H
#define ROPEKIT_GPU_ATTENTION_SM90_AHEAD_H

#include "backends/gpu/attention/sm90/norm.h"

/* --- angles --- */

/* The packed sequence that has a token, if one does: the last that does not begin behind it. */
GPU_FN int64_t sm90_sequence_with(const rope_position_map *map, int64_t token) {
    int64_t low = 0, high = map->sequences;
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (rope_index_at(map, map->cu_seqlens, middle) <= token)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* A query's index among all keys of its sequence. */
GPU_FN int64_t sm90_index(const rope_attention_problem *problem, const rope_attention_call *call,
                          int64_t row, int64_t token) {
    const rope_position_map *map = &call->rope.position;
    const rope_attention_sequence s = rope_attention_sequence_of(
        problem, call, map->cu_seqlens ? sm90_sequence_with(map, token) : row);
    return rope_sum(rope_query_index(&s, token - s.q_first), s.k_index);
}

GPU_FN int64_t sm90_position(const sm90_positions &p, const rope_attention_problem *problem,
                             const rope_attention_call *call, int64_t n) {
    const int64_t row = n / p.tokens, token = n % p.tokens;
    return p.depends ? rope_sum(sm90_index(problem, call, row, token), p.offset)
                     : sm90_given_position(p, row, token);
}

GPU_FN void sm90_write_angles(const sm90_positions &p, const rope_attention_problem *problem,
                              const rope_attention_call *call, int64_t n) {
    if (n >= p.count)
        return;
    const int64_t position = sm90_position(p, problem, call, n / p.fours);
    float4 *to = (float4 *)(void *)p.angles + n / p.fours * p.fours * 2 + n % p.fours;
    sm90_angles_of_four(p, position, (int)(n % p.fours), to[0], to[p.fours]);
}

/* --- pages --- */

/* Pages that a thread reads side by side: one behind another they take longer than all else. */
enum { SM90_PAGES = 8 };

/* The same as gpu_attention_has_pages(), of tables that have no ring. */
GPU_FN int sm90_has_pages(const rope_attention_problem *p, const rope_attention_call *call,
                          const rope_attention_sequence *s, rope_key_range used) {
    if (used.begin >= used.end || p->cache == ROPE_CACHE_SEQUENCE || p->ring)
        return gpu_attention_has_pages(p, call, s, used);
    const int64_t last = (used.end - 1) / p->page_size, row = s->index * call->table_stride[0];
    int valid = 1;
    for (int64_t n = used.begin / p->page_size + threadIdx.x; n <= last;
         n += SM90_PAGES * GPU_ATTENTION_THREADS) {
        int32_t narrow[SM90_PAGES];
        int64_t wide[SM90_PAGES];
#pragma unroll
        for (int i = 0; i < SM90_PAGES; i++) {
            const int64_t page = n + i * GPU_ATTENTION_THREADS < last
                                     ? n + i * GPU_ATTENTION_THREADS
                                     : last,
                          at = row + page * call->table_stride[1];
            if (p->table_wide)
                wide[i] = ((const int64_t *)call->block_table)[at];
            else
                narrow[i] = ((const int32_t *)call->block_table)[at];
        }
#pragma unroll
        for (int i = 0; i < SM90_PAGES; i++) {
            const int64_t page = p->table_wide ? wide[i] : narrow[i];
            valid &= page >= 0 && page < call->pages;
        }
    }
    return valid;
}

/* Looks at every `blocks`-th sequence from `first` on. By a block. */
GPU_FN void sm90_look_at_pages(const sm90_pages &pages, const rope_attention_problem *problem,
                               const rope_attention_call *call, int64_t first, int64_t blocks) {
    const int64_t sequences = rope_attention_sequences(call), group = gpu_attention_group(call);
    int many = 0;
    for (int64_t n = threadIdx.x; pages.none && first == 0 && n < sequences; n += blockDim.x)
        many |= rope_attention_segment_of(&call->rope.position, call->q_lengths, n).count * group >
                pages.few;
    many = __syncthreads_or(many);
    if (first == 0 && threadIdx.x == 0 && pages.none)
        *pages.none = !many;
    for (int64_t n = first; n < sequences; n += blocks) {
        const rope_attention_sequence s = rope_attention_sequence_of(problem, call, n);
        const int good = s.fails || s.q_count * group <= pages.few ||
                         sm90_has_pages(problem, call, &s, gpu_keys_used(problem, &s));
        const int all = __syncthreads_and(good);
        if (threadIdx.x == 0)
            pages.failed[n] = !all;
    }
}

__global__ void __launch_bounds__(GPU_ATTENTION_THREADS)
    gpu_attention_sm90_ahead(GPU_PARAMETER sm90_positions p, GPU_PARAMETER sm90_pages pages,
                             GPU_PARAMETER rope_attention_problem problem,
                             GPU_PARAMETER rope_attention_call call) {
    const int64_t block = blockIdx.x, angles = (p.count + blockDim.x - 1) / blockDim.x;
    gpu_wait_for_last();
    gpu_let_next_start();
    if (block == 0)
        sm90_reset_tickets(p.tickets);
    if (block < angles)
        sm90_write_angles(p, &problem, &call, block * blockDim.x + threadIdx.x);
    else if (pages.failed)
        sm90_look_at_pages(pages, &problem, &call, block - angles, gridDim.x - angles);
}

#endif
