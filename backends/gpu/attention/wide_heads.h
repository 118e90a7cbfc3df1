/*
 * Heads of more than GPU_TILE_DIM elements by matrix instructions, as MLA's: a key of 576, of which
 * the value is the first 512. A block has GPU_LATENT_ROWS heads of one query, so all rows see the
 * same keys. A warp multiplies all rows by a quarter of a tile's keys; its weights go through
 * shared memory, where a key has elements beyond those of a value, and all weights are multiplied
 * by a quarter of the values' elements. Values are read where keys lie if they are the same
 * elements, else they are copied over them.
 */
#ifndef ROPEKIT_GPU_ATTENTION_WIDE_HEADS_H
#define ROPEKIT_GPU_ATTENTION_WIDE_HEADS_H

#include "backends/gpu/attention/wide_block.h"

#ifdef GPU_QUERIES_LEFT

/* --- a tile --- */

/* The largest products of all warps, with a barrier, behind which all have read their keys. */
GPU_FN void gpu_latent_largest(const gpu_latent_call &t, gpu_lane_rows<GPU_LATENT_ROWS> &most) {
    enum { BLOCKS = gpu_row_blocks<GPU_LATENT_ROWS> };
    const int lane = gpu_lane(), warp = gpu_thread() / GPU_TILE_LANES;
    if (lane % GPU_ROW_LANES == 0)
        gpu_for_each_row<BLOCKS>(
            [&](int m, int h) { t.b->most[warp][16 * m + gpu_row_of(lane, h)] = most[m][h]; });
    __syncthreads();
    gpu_for_each_row<BLOCKS>([&](int m, int h) {
        gpu_repeat<GPU_TILE_WARPS>([&](int w) {
            most[m][h] = fmaxf(most[m][h], t.b->most[w][16 * m + gpu_row_of(lane, h)]);
        });
    });
}

/* A warp's weights to where a tile's rows have room for them. */
GPU_FN void gpu_latent_keep(const gpu_latent_call &t, const gpu_tile_weights<GPU_LATENT_ROWS> &w) {
    const int lane = gpu_lane(), key = gpu_warp_key<GPU_LATENT_ROWS>() + gpu_first_key_of(lane);
    gpu_repeat<gpu_row_blocks<GPU_LATENT_ROWS>>([&](int m) {
        gpu_repeat<2 * GPU_PARTS>([&](int i) {
            gpu_store_pair<GPU_LATENT_DIM>(t.stage, 16 * m + gpu_row_of(lane, i % 2),
                                           GPU_LATENT_VALUE_DIM + key + gpu_key_of(i / 2, 0),
                                           w.a[0][m][i]);
        });
    });
}

/* Weights of all keys by a warp's columns of values. */
template <int DTYPE> GPU_FN void gpu_latent_add(const gpu_latent_call &t, gpu_latent_rows &rows) {
    const int at = gpu_operand_rows<GPU_LATENT_DIM>(gpu_lane());
    const char *weights = t.stage + GPU_LATENT_WEIGHTS,
               *values = t.stage + gpu_thread() / GPU_TILE_LANES * 2 * GPU_LATENT_COLUMNS;
    gpu_repeat<GPU_TILE_KEYS / 16>([&](int k) {
        uint32_t a[gpu_row_blocks<GPU_LATENT_ROWS>][4];
        gpu_load_rows<GPU_LATENT_DIM>(a, weights, at, k);
        gpu_repeat<GPU_LATENT_COLUMNS / 16>([&](int n) {
            uint32_t b[4];
            gpu_load_transposed(b, values, gpu_moved<GPU_LATENT_DIM>(at, k, n));
            gpu_mma_rows<DTYPE>(rows.out, n, a, b);
        });
    });
}

/* From a warp's keys to weights in shared memory. */
template <int DTYPE>
GPU_FN void gpu_latent_score(const gpu_latent_call &t, int first, gpu_latent_sums &sums,
                             gpu_latent_rows &rows) {
    enum { ROWS = GPU_LATENT_ROWS };
    const int warp_key = gpu_warp_key<ROWS>();
    gpu_tile_scores<ROWS> s;
    gpu_lane_rows<ROWS> most;
    gpu_tile_weights<ROWS> w;
    gpu_tile_products<DTYPE, GPU_LATENT_DIM, ROWS>(t.queries,
                                                   t.stage + warp_key * GPU_LATENT_ROW_BYTES, s);
    const float unit = gpu_tile_cap<ROWS>(gpu_reread(t.p)->scale, gpu_reread(t.p)->soft_cap, s);
    const uint64_t sees = gpu_latent_sees(t, first);
    if (~sees) {
        const uint64_t mine = sees >> (warp_key + gpu_first_key_of(gpu_lane()));
        gpu_mask(s, [&](int, int) { return [&](int key) { return mine >> key & 1; }; });
    }
    gpu_row_max(s, most);
    gpu_latent_largest(t, most);
    gpu_tile_rescale<GPU_LATENT_COLUMNS, ROWS>(unit, most, sums, rows);
    gpu_tile_exponentiate<ROWS>(unit, s, sums);
    gpu_tile_round<DTYPE, ROWS>(s, w);
    gpu_latent_keep(t, w);
    if (!(t.fits & GPU_TILE_SAME))
        gpu_latent_fetch<DTYPE, 1>(t, first);
    gpu_copies_wait<0>();
    __syncthreads();
}

/* All keys that the query sees. */
template <int DTYPE>
GPU_FN void gpu_latent_loop(const gpu_latent_call &t, gpu_latent_sums &sums,
                            gpu_latent_rows &rows) {
#pragma unroll 1
    for (int first = 0; first < t.b->end; first += GPU_TILE_KEYS) {
        gpu_latent_fetch<DTYPE, 0>(t, first);
        if (first % GPU_ATTENTION_THREADS == 0)
            gpu_latent_place(t, first + GPU_ATTENTION_THREADS);
        gpu_copies_wait<0>();
        __syncthreads();
        gpu_latent_score<DTYPE>(t, first, sums, rows);
        gpu_latent_add<DTYPE>(t, rows);
        __syncthreads();
    }
}

/* --- the end of rows --- */

/* A row, a thread's own: to a part of a split, or to what its elements are multiplied by. */
GPU_FN void gpu_latent_end_row(const gpu_latent_call &t, const gpu_attention_parts &parts,
                               gpu_latent_end *end, int row) {
    const rope_attention_call *call = gpu_reread(t.call);
    const rope_attention_sequence *s = &t.b->tile.s;
    const int64_t head = t.b->head + row;
    const int dim = gpu_reread(t.p)->v_head_dim;
    const float largest = end->largest[row],
                sum = (end->sum[0][row] + end->sum[1][row]) + (end->sum[2][row] + end->sum[3][row]);
    if (!t.b->alone) {
        const auto at =
            gpu_part(parts, s->index, t.b->query, head, call->rope.tensor[0].heads, t.b->part, dim);
        at[dim] = largest;
        at[dim + 1] = sum;
        return;
    }
    const int64_t *out = call->out_stride;
    end->row[row] = {gpu_end_row<true>(gpu_reread(t.p), call, s, t.b->query, head, largest, sum),
                     s->q_row * out[0] + (s->q_first + t.b->query) * out[1] + head * out[2]};
}

/* Two elements of a row, from `i` on, of a sequence that is not split. */
template <int DTYPE>
GPU_FN void gpu_latent_store(const gpu_latent_call &t, const gpu_tile_end &end, int i, float x,
                             float y) {
    uint16_t *out = (uint16_t *)gpu_reread(t.call)->out + end.out;
    const uint32_t two = gpu_end_pair<DTYPE>(x, y, end.factor);
    if (t.fits & GPU_TILE_OUT) {
        *(uint32_t *)(void *)(out + i) = two;
        return;
    }
    const int64_t stride = gpu_reread(t.call)->out_stride[3];
    out[i * stride] = (uint16_t)two;
    out[(i + 1) * stride] = (uint16_t)(two >> 16);
}

/* A thread's elements of all its rows. */
template <int DTYPE>
GPU_FN void gpu_latent_store_rows(const gpu_latent_call &t, const gpu_attention_parts &parts,
                                  const gpu_latent_end *end, gpu_latent_rows &rows) {
    const int lane = gpu_lane(), dim = gpu_reread(t.p)->v_head_dim,
              column = gpu_thread() / GPU_TILE_LANES * GPU_LATENT_COLUMNS;
    gpu_for_each_row<gpu_row_blocks<GPU_LATENT_ROWS>>([&](int m, int h) {
        const int row = 16 * m + gpu_row_of(lane, h);
        if (row >= t.b->rows)
            return;
        const auto part = gpu_part(parts, t.b->tile.s.index, t.b->query, t.b->head + row,
                                   gpu_reread(t.call)->rope.tensor[0].heads, t.b->part, dim);
        gpu_for_each_pair<GPU_LATENT_COLUMNS>(rows.out[m], h, [&](int n, float x, float y) {
            const int i = column + n;
            if (i < dim && t.b->alone)
                gpu_latent_store<DTYPE>(t, end->row[row], i, x, y);
            else if (i < dim)
                *(float2 *)(void *)(part + i) = {x, y};
        });
    });
}

template <int DTYPE>
GPU_FN void gpu_latent_finish(const gpu_latent_call &t, const gpu_attention_parts &parts,
                              gpu_latent_sums &sums, gpu_latent_rows &rows) {
    gpu_latent_end *end = (gpu_latent_end *)(void *)t.stage;
    const int lane = gpu_lane(), warp = gpu_thread() / GPU_TILE_LANES;
    gpu_for_each_row<gpu_row_blocks<GPU_LATENT_ROWS>>([&](int m, int h) {
        const float sum = gpu_lanes_sum(sums.sum[m][h]);
        const int row = 16 * m + gpu_row_of(lane, h);
        if (gpu_first_lane_of(row) != lane)
            return;
        end->sum[warp][row] = sum;
        if (warp == 0)
            end->largest[row] = sums.largest[m][h];
    });
    __syncthreads();
    if (gpu_thread() < t.b->rows)
        gpu_latent_end_row(t, parts, end, gpu_thread());
    __syncthreads();
    gpu_latent_store_rows<DTYPE>(t, parts, end, rows);
}

/* --- a block --- */

/* A block's rows by one thread, from its query, key head and the first of its heads, counted from
 * the key head's. */
GPU_FN void gpu_latent_see(const gpu_latent_call &t, int64_t first) {
    gpu_latent_block *b = t.b;
    const rope_attention_sequence *s = &b->tile.s;
    const int64_t group = gpu_attention_group(gpu_reread(t.call));
    const rope_key_range seen =
        gpu_within(rope_keys_seen(gpu_reread(t.p), s, rope_query_index(s, b->query)), b->within);
    const int64_t base = seen.begin / GPU_TILE_KEYS * GPU_TILE_KEYS;
    b->head = b->key_head * group + first;
    b->rows = (int32_t)(group - first < GPU_LATENT_ROWS ? group - first : (int64_t)GPU_LATENT_ROWS);
    b->begin = gpu_tile_near(seen.begin, base);
    b->end = seen.begin < seen.end ? gpu_tile_near(seen.end, base) : 0;
    b->base = gpu_key_origin_of(gpu_reread(t.p), base);
    b->source[0] = gpu_key_source_of(&gpu_reread(t.call)->k, s, b->key_head);
    b->source[1] = gpu_key_source_of(&gpu_reread(t.call)->v, s, b->key_head);
    b->left_out = 0;
    if (!gpu_queries_may_fail(gpu_reread(t.p)))
        return;
    rope_token *token = (rope_token *)(void *)t.stage;
    rope_query_token(gpu_reread(t.p), gpu_reread(t.call), s, b->query, token);
    b->left_out = token->status == ROPE_TOKEN_FAILS;
    if (b->left_out)
        gpu_attention_flag(gpu_reread(t.call));
}

/* One thread takes a block's n-th work, behind gpu_split_find() or gpu_attention_find(). */
GPU_FN void gpu_latent_take(const gpu_latent_call &t, const gpu_attention_parts &parts,
                            const gpu_split_work &w, int64_t n) {
    gpu_latent_block *b = t.b;
    const int64_t heads = gpu_reread(t.call)->k.heads,
                  blocks = GPU_LATENT_TILES(gpu_attention_group(gpu_reread(t.call)));
    int64_t block;
    if (t.fits & GPU_TILE_BY_SPLITS) {
        block = n % blocks;
        b->query = n % (parts.queries * blocks) / blocks;
        b->valid = w.valid && b->query < b->tile.s.q_count;
        b->within = gpu_split_of(gpu_reread(t.p), &b->tile.s, w.split);
        b->key_head = w.head;
        b->part = w.part;
        b->alone = w.alone;
    } else {
        block = b->tile.first / GPU_LATENT_ROWS % blocks;
        b->query = b->tile.first / (blocks * GPU_LATENT_ROWS);
        b->valid =
            b->tile.valid && b->query < b->tile.s.q_count && !gpu_is_split(parts, &b->tile.s);
        b->within = {0, INT64_MAX};
        b->key_head = n % heads;
        b->alone = 1;
    }
    if (b->valid)
        gpu_latent_see(t, block * GPU_LATENT_ROWS);
}

/* Finds a block's n-th work, as gpu_generic_find(): of [split of a sequence, query, rows] or of
 * [tile, key head]. */
GPU_FN bool gpu_latent_find(const gpu_latent_call &t, const gpu_attention_parts &parts, int64_t n) {
    const int64_t heads = gpu_reread(t.call)->k.heads,
                  blocks = GPU_LATENT_TILES(gpu_attention_group(gpu_reread(t.call)));
    gpu_split_work w = {};
    if (t.fits & GPU_TILE_BY_SPLITS) {
        if (!gpu_split_find<true>(gpu_reread(t.p), gpu_reread(t.call), t.failed, parts,
                                  gpu_reread(t.p)->v_head_dim, n / (parts.queries * blocks),
                                  &t.b->tile, &w))
            return false;
        __syncthreads();
    } else if (!gpu_attention_find<0>(gpu_reread(t.p), gpu_reread(t.call), t.failed, n / heads,
                                      blocks * GPU_LATENT_ROWS, GPU_LATENT_ROWS, &t.b->tile)) {
        return false;
    }
    if (threadIdx.x == 0)
        gpu_latent_take(t, parts, w, n);
    __syncthreads();
    return true;
}

/* Rows of a query without a position. */
GPU_FN void gpu_latent_leave_out(const gpu_latent_call &t, const gpu_attention_parts &parts) {
    const int dim = gpu_reread(t.p)->v_head_dim;
    if (!t.b->alone && gpu_thread() < t.b->rows)
        gpu_part(parts, t.b->tile.s.index, t.b->query, t.b->head + gpu_thread(),
                 gpu_reread(t.call)->rope.tensor[0].heads, t.b->part, dim)[dim + 1] =
            GPU_PART_LEFT_OUT;
}

/* All keys of a block's rows. */
template <int DTYPE>
GPU_FN void gpu_latent_attend(const gpu_latent_call &t, const gpu_attention_parts &parts) {
    gpu_latent_place(t, 0);
    gpu_latent_fetch_queries<DTYPE>(t);
    __syncthreads();
    gpu_latent_rows rows = {};
    gpu_latent_sums sums = gpu_no_sums<GPU_LATENT_ROWS>();
    gpu_latent_loop<DTYPE>(t, sums, rows);
    gpu_copies_mark(); /* of queries that see no key */
    gpu_copies_wait<0>();
    gpu_latent_finish<DTYPE>(t, parts, sums, rows);
}

template <int DTYPE>
__global__ void __launch_bounds__(GPU_ATTENTION_THREADS, GPU_TILE_BLOCKS)
    gpu_attention_wide_heads(GPU_PARAMETER rope_attention_problem problem,
                             GPU_PARAMETER rope_attention_call given, const int32_t *failed,
                             int32_t fits, gpu_attention_parts parts) {
    if constexpr (gpu_has_tiles<DTYPE, GPU_LATENT_DIM>) {
        const rope_attention_problem &p = *gpu_parameter<rope_attention_problem>(problem);
        const rope_attention_call &call =
            *gpu_parameter<rope_attention_call, rope_attention_problem>(given);
        extern __shared__ uint4 memory[];
        __shared__ gpu_latent_block b;
        const gpu_latent_call t = {gpu_reread(&p),
                                   gpu_reread(&call),
                                   &b,
                                   failed,
                                   (char *)memory,
                                   (char *)memory + GPU_LATENT_ROWS * GPU_LATENT_ROW_BYTES,
                                   fits};
        gpu_wait_for_last();
        gpu_let_next_start();
        for (int64_t n = blockIdx.x; gpu_latent_find(t, parts, n); n += gridDim.x) {
            if (b.valid && b.left_out)
                gpu_latent_leave_out(t, parts);
            else if (b.valid)
                gpu_latent_attend<DTYPE>(t, parts);
            __syncthreads();
        }
    }
}

#endif
#endif
