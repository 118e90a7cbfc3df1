/*
 * Sequences of few queries: a block has all rows of a key head and a split of the keys, and each
 * warp a quarter of every tile. Splits begin at multiples of their size, which is a function of the
 * sequence's keys alone; their results are joined in their order.
 */
#ifndef ROPEKIT_GPU_ATTENTION_SPLITS_H
#define ROPEKIT_GPU_ATTENTION_SPLITS_H

#include "backends/gpu/attention/split_keys.h"
#include "backends/gpu/attention/tile.h"

/* Largest logits and sums of the warps' parts of rows. */
struct gpu_joint {
    alignas(16) float largest[GPU_SPLIT_ROWS * GPU_TILE_WARPS],
        sum[GPU_SPLIT_ROWS * GPU_TILE_WARPS];
};

/* Where element i of a warp's part of a row is kept: rows begin in other banks. */
template <int D> GPU_FN int gpu_kept(int row, int warp, int i) {
    return (row * GPU_TILE_WARPS + warp) * D + (i ^ row % 4 * 8);
}

/* A warp's first rows as parts of the block's, elements [row, warp, D], with a barrier behind;
 * sums: the thread's own, among those of all. */
template <int D, typename SUMS>
GPU_FN void gpu_split_keep(const SUMS *sums, gpu_tile_rows<D, GPU_SPLIT_ROWS> &rows, int count,
                           gpu_joint *j, float *parts) {
    const int lane = gpu_lane(), warp = (int)threadIdx.x / GPU_TILE_LANES;
    gpu_repeat<GPU_LANE_ROWS>([&](int h) {
        const int row = gpu_row_of(lane, h), part = row * GPU_TILE_WARPS + warp;
        if (row >= count)
            return;
        gpu_for_each_pair<D>(rows.out[0], h, [&](int i, float x, float y) {
            *(float2 *)(void *)(parts + gpu_kept<D>(row, warp, i)) = {x, y};
        });
        j->largest[part] =
            ((const gpu_tile_sums<GPU_SPLIT_ROWS> *)(const void *)sums)->largest[0][h];
        j->sum[part] = gpu_tile_sum<GPU_SPLIT_ROWS>(sums, row);
    });
    __syncthreads();
}

/* Joins elements i, i + D / N... of the warps' parts of a row. */
template <int D, int N>
GPU_FN gpu_joined<N> gpu_join_warps(const gpu_joint *j, int row, const float *parts, int i) {
    gpu_joined<N> made = {{}, -INFINITY, 0};
    const float *largest = j->largest + row * GPU_TILE_WARPS, *sum = j->sum + row * GPU_TILE_WARPS;
    gpu_repeat<GPU_TILE_WARPS>(
        [&](int warp) { made.largest = fmaxf(made.largest, largest[warp]); });
    gpu_repeat<GPU_TILE_WARPS>([&](int warp) {
        float out[N];
        gpu_repeat<N>([&](int n) { out[n] = parts[gpu_kept<D>(row, warp, i + n * (D / N))]; });
        gpu_join_part<N>(made, largest[warp], sum[warp], out);
    });
    return made;
}

/* Joins the warps' parts of `count` rows, N elements of a thread at a time: store(row, i, out,
 * largest, sum) takes each. */
template <int D, int N, typename F>
GPU_FN void gpu_join_rows(const gpu_joint *j, const float *parts, int count, F store) {
    enum { EACH = D / N };
#pragma unroll 1
    for (unsigned e = (unsigned)gpu_thread(); e < (unsigned)(count * EACH);
         e += GPU_ATTENTION_THREADS) {
        const int row = (int)(e / EACH), first = (int)(e % EACH);
        const gpu_joined<N> made = gpu_join_warps<D, N>(j, row, parts, first);
        gpu_repeat<N>(
            [&](int n) { store(row, first + n * EACH, made.out[n], made.largest, made.sum); });
    }
}

/* Ends rows: to results of the split, or where it is the only one, to out. */
template <int DTYPE, int D>
GPU_FN void gpu_split_finish(const gpu_tile_call &t, const gpu_attention_parts &to, int64_t split,
                             bool alone, const gpu_joint *j, const float *parts) {
    const int64_t heads = gpu_reread(t.call)->rope.tensor[0].heads;
    const int dim = gpu_reread(t.p)->v_head_dim;
    const int rows = (int)(t.b->tile.s.q_count * t.b->group); /* at most GPU_SPLIT_ROWS */
    gpu_join_rows<D, 1>(j, parts, rows, [&](int row, int i, float out, float largest, float sum) {
        const bool left_out = t.b->begin[row] == INT32_MAX;
        int64_t query, head;
        (void)gpu_tile_query(t, row, &query, &head);
        if (i < dim && !alone)
            gpu_store_part(gpu_part(to, t.b->tile.s.index, query, head, heads, split, dim), dim, i,
                           out, largest, left_out ? GPU_PART_LEFT_OUT : sum);
        else if (i < dim && !left_out)
            gpu_split_store<DTYPE>(gpu_reread(t.p), gpu_reread(t.call), &t.b->tile.s, query, head,
                                   i, out, largest, sum);
    });
}

template <int DTYPE, int D>
GPU_FN void gpu_split_attend(const gpu_tile_call &t, int32_t head, const gpu_attention_parts &parts,
                             int64_t split, int64_t part, bool alone) {
    __shared__ gpu_joint j;
    float *kept = (float *)(void *)t.stage;
    gpu_tile_begin<DTYPE, D, GPU_SPLIT_ROWS>(t, head,
                                             gpu_split_of(gpu_reread(t.p), &t.b->tile.s, split));
    gpu_tile_rows<D, GPU_SPLIT_ROWS> rows = {};
    gpu_tile_loop<DTYPE, D, GPU_SPLIT_ROWS>(t, rows);
    gpu_split_keep<D>(t.b->sums + gpu_thread(), rows, (int)(t.b->tile.s.q_count * t.b->group), &j,
                      kept);
    gpu_split_finish<DTYPE, D>(t, parts, part, alone, &j, kept);
}

/* Grid x strides over [sequence, used split, key head]. */
template <int DTYPE, int D>
__global__ void __launch_bounds__(GPU_ATTENTION_THREADS, D > GPU_TILE_NARROW ? 2 : GPU_SPLIT_BLOCKS)
    gpu_attention_splits(GPU_PARAMETER rope_attention_problem problem,
                         GPU_PARAMETER rope_attention_call given, const int32_t *failed,
                         int32_t fits, gpu_attention_parts parts) {
    if constexpr (gpu_has_tiles<DTYPE, D>) {
        const rope_attention_problem &p = *gpu_parameter<rope_attention_problem>(problem);
        const rope_attention_call &call =
            *gpu_parameter<rope_attention_call, rope_attention_problem>(given);
        extern __shared__ uint4 memory[];
        __shared__ gpu_tile_block_of<D, GPU_SPLIT_ROWS> b;
        gpu_wait_for_last();
        gpu_let_next_start();
        gpu_split_work w;
        for (int64_t n = blockIdx.x;; n += gridDim.x) {
            if (parts.skips)
                n = gpu_split_skip(gpu_reread(&p), gpu_reread(&call), parts, n, gridDim.x);
            if (!gpu_split_find(gpu_reread(&p), gpu_reread(&call), failed, parts, p.v_head_dim, n,
                                &b.tile, &w))
                return;
            const gpu_tile_call t = {gpu_reread(&p),
                                     gpu_reread(&call),
                                     &b,
                                     (char *)memory,
                                     (char *)memory + GPU_SPLIT_ROWS * D * 2,
                                     fits};
            if (w.valid)
                gpu_split_attend<DTYPE, D>(t, (int32_t)w.head, parts, w.split, w.part, w.alone);
        }
    }
}

#endif
