/* The queries of a block of tiles: to shared memory, and rotated there. */
#ifndef ROPEKIT_GPU_ATTENTION_QUERY_H
#define ROPEKIT_GPU_ATTENTION_QUERY_H

#include "backends/gpu/attention/tile_block.h"

/* Row `row` of the block as one of its sequence's. */
GPU_FN bool gpu_tile_query(const gpu_tile_call &t, int row, int64_t *query, int64_t *head) {
    *query = t.b->query0 + t.b->query[row];
    *head = t.b->head * t.b->group + t.b->tile.first + row - *query * t.b->group;
    return *query < t.b->tile.s.q_count;
}

/* Where the heads of the block's rows begin. */
template <int ROWS> GPU_FN void gpu_tile_place_queries(const gpu_tile_call &t) {
    const rope_operand *o = &gpu_reread(t.call)->rope.tensor[0];
    const int64_t *stride = o->out ? o->out_stride : o->in_stride;
    const rope_attention_sequence *s = &t.b->tile.s;
    const int row = gpu_thread();
    int64_t query, head;
    if (row < gpu_block_rows<ROWS>)
        t.b->queries[row] = gpu_tile_query(t, row, &query, &head)
                                ? (uint32_t)((s->q_row * stride[0] +
                                              (s->q_first + query) * stride[1] + head * stride[2]) /
                                             8)
                                : (uint32_t)GPU_TILE_NONE;
}

template <int D, int ROWS> GPU_FN void gpu_tile_copy_queries(const gpu_tile_call &t) {
    const rope_operand *o = &gpu_reread(t.call)->rope.tensor[0];
    const char *from = (const char *)(o->out ? o->out : o->in);
    const int dim = gpu_reread(t.p)->head_dim;
#pragma unroll 4
    for (int e = gpu_thread(); e < gpu_block_rows<ROWS> * D / 8; e += GPU_ATTENTION_THREADS) {
        const int row = e / (D / 8), chunk = e % (D / 8);
        const uint32_t at = t.b->queries[row];
        const bool there = at != GPU_TILE_NONE && 8 * chunk < dim;
        gpu_copy_async(t.queries + gpu_swizzled<D>(row, chunk),
                       from + 16 * (there ? (int64_t)at + chunk : 0), there);
    }
}

template <int DTYPE, int D, int ROWS> GPU_FN void gpu_tile_read_queries(const gpu_tile_call &t) {
    int64_t query, head;
    for (int e = gpu_thread(); e < gpu_block_rows<ROWS> * D; e += GPU_ATTENTION_THREADS) {
        const bool there =
            gpu_tile_query(t, e / D, &query, &head) && e % D < gpu_reread(t.p)->head_dim;
        *gpu_swizzled_element<D>(t.queries, e / D, e % D) =
            gpu_narrow<DTYPE>(there ? gpu_query_element<DTYPE>(&gpu_reread(t.call)->rope.tensor[0],
                                                               &t.b->tile.s, query, head, e % D)
                                    : 0);
    }
}

template <int DTYPE, int D, int ROWS> GPU_FN void gpu_tile_fetch_queries(const gpu_tile_call &t) {
    if (gpu_fits(t, GPU_TILE_Q))
        gpu_tile_copy_queries<D, ROWS>(t);
    else
        gpu_tile_read_queries<DTYPE, D, ROWS>(t);
}

/* Rotates queries where they lie. Coefficients of a pair serve all heads of a query; tokens: room
 * for one of each query. */
template <int DTYPE, int D, int ROWS>
GPU_FN void gpu_tile_rotate_queries(const gpu_tile_call &t, rope_token *tokens) {
    const rope_problem *p = &gpu_reread(t.p)->rope;
    const int64_t group = t.b->group, query0 = t.b->query0,
                  to = query0 + t.b->query[gpu_block_rows<ROWS> - 1];
    const int count = (int)((to < t.b->tile.s.q_count ? to + 1 : t.b->tile.s.q_count) - query0);
    for (int n = gpu_thread(); n < count; n += GPU_ATTENTION_THREADS)
        rope_query_token(gpu_reread(t.p), gpu_reread(t.call), &t.b->tile.s, query0 + n, &tokens[n]);
    __syncthreads();
    const int pairs = p->pairs;
    const bool moves = p->pairing_in != p->pairing_out;
    for (int e = gpu_thread(); e < count * pairs; e += GPU_ATTENTION_THREADS) {
        const rope_token *token = &tokens[e / pairs];
        const int i = e % pairs, from = p->rotary_offset[0];
        if (token->status != ROPE_TOKEN_ROTATES && !moves)
            continue;
        rope_coefficients m = {1, 0, 1, 0};
        if (token->status == ROPE_TOKEN_ROTATES)
            m = rope_coefficients_of(gpu_reread(p), &gpu_reread(t.call)->rope, token, i, 0);
        const int64_t row0 = (query0 + e / pairs) * group - t.b->tile.first;
        for (int64_t g = row0 < 0 ? -row0 : 0; g < group && row0 + g < gpu_block_rows<ROWS>; g++) {
            const int row = (int)(row0 + g), first = from + rope_first_of(p->pairing_in, i),
                      second = from + rope_second_of(p->pairing_in, i, pairs);
            rope_pair x;
            if (moves) {
                const rope_operand *o = &gpu_reread(t.call)->rope.tensor[0];
                const int64_t head = t.b->head * group + g, query = query0 + e / pairs;
                x.x1 = gpu_query_element<DTYPE>(o, &t.b->tile.s, query, head, first);
                x.x2 = gpu_query_element<DTYPE>(o, &t.b->tile.s, query, head, second);
            } else {
                x.x1 = gpu_widen<DTYPE>(*gpu_swizzled_element<D>(t.queries, row, first));
                x.x2 = gpu_widen<DTYPE>(*gpu_swizzled_element<D>(t.queries, row, second));
            }
            if (token->status == ROPE_TOKEN_ROTATES)
                x = p->arithmetic == ROPE_ARITHMETIC_MODEL_DTYPE ? gpu_rotate_model<DTYPE>(x, m)
                                                                 : rope_rotate(x, m);
            const uint32_t two = gpu_join<DTYPE>(x.x1, x.x2);
            *gpu_swizzled_element<D>(t.queries, row, from + rope_first_of(p->pairing_out, i)) =
                (uint16_t)two;
            *gpu_swizzled_element<D>(t.queries, row,
                                     from + rope_second_of(p->pairing_out, i, pairs)) =
                (uint16_t)(two >> 16);
        }
    }
}

#endif
