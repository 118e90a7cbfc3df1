/*
 * Every descriptor, in fp32: a block has rows of a key head, a thread some of them, first by four
 * keys of each tile, whose scores it sums, then by fours of columns of out. Tiles begin at
 * multiples of GPU_TILE_KEYS, and a tile that a row does not see leaves it as it is, so a row's
 * bits do not depend on its neighbours.
 */
#ifndef ROPEKIT_GPU_ATTENTION_GENERIC_H
#define ROPEKIT_GPU_ATTENTION_GENERIC_H

#include "backends/gpu/attention/generic_block.h"

/* --- a tile --- */

/* Weights of a thread's rows from r on by a key. Every four keys rows move on by four, so that
 * lanes write to banks of their own. */
template <typename S>
GPU_FN float *gpu_generic_weights(const gpu_generic_call<S> &t, int key, int r) {
    return t.m.weights + key * S::ROWS + (gpu_generic_row<S>() + r + key / 4 * 4) % S::ROWS;
}

/* Adds what a thread keeps of its scores where weights go later, unless there is none yet; keeps
 * the sums unless they are whole. */
template <typename S>
GPU_FN void gpu_generic_keep(const gpu_generic_call<S> &t, bool none, bool whole,
                             float s[S::OWN][4]) {
    gpu_repeat<4>([&](int c) {
        gpu_repeat<S::OWN, S::WIDTH>([&](int r) {
            float *kept = gpu_generic_weights<S>(t, gpu_generic_four() + c, r), sums[S::WIDTH] = {};
            if (!none)
                gpu_read_numbers<S::WIDTH>(kept, sums);
            gpu_repeat<S::WIDTH>([&](int i) { s[r + i][c] = sums[i] += s[r + i][c]; });
            if (!whole)
                gpu_write_numbers<S::WIDTH>(kept, sums);
        });
    });
}

/* Scores of a thread's rows and keys: the sum of those of GPU_GENERIC_DEPTH elements each, which
 * rounds less than one sum of all. */
template <typename S>
GPU_FN void gpu_generic_scores(const gpu_generic_call<S> &t, int begin, int end,
                               float s[S::OWN][4]) {
    const int dim = gpu_reread(t.p)->head_dim;
#pragma unroll 1
    for (int first = 0; first < dim; first += GPU_GENERIC_DEPTH) {
        gpu_generic_stage_keys<S>(t, first, begin, end);
        const float *queries = t.m.queries + first * S::ROWS + gpu_generic_row<S>(),
                    *keys = t.m.stage + gpu_generic_four();
        gpu_repeat<S::OWN>([&](int r) { gpu_repeat<4>([&](int c) { s[r][c] = 0; }); });
#pragma unroll 8
        for (int i = 0; i < GPU_GENERIC_DEPTH; i++) {
            float q[S::OWN], k[4];
            gpu_repeat<S::OWN, S::WIDTH>(
                [&](int r) { gpu_read_numbers<S::WIDTH>(queries + i * S::ROWS + r, q + r); });
            gpu_read_numbers<4>(keys + i * GPU_GENERIC_STRIDE, k);
            gpu_repeat<S::OWN>(
                [&](int r) { gpu_repeat<4>([&](int c) { s[r][c] = fmaf(q[r], k[c], s[r][c]); }); });
        }
        gpu_generic_keep<S>(t, first == 0, first + GPU_GENERIC_DEPTH >= dim, s);
        __syncthreads();
    }
}

/* A reduction over the lanes that share a row. */
GPU_FN float gpu_generic_most(float x) {
#pragma unroll
    for (int step = 1; step < GPU_COLUMN_LANES; step *= 2)
        x = fmaxf(x, gpu_shuffle_xor(x, step));
    return x;
}

GPU_FN float gpu_generic_sum(float x) {
#pragma unroll
    for (int step = 1; step < GPU_COLUMN_LANES; step *= 2)
        x += gpu_shuffle_xor(x, step);
    return x;
}

/* Which keys of a thread a tree lets its rows see, where GPU_GENERIC_TREE_LOOP: bit 4 r + c of row
 * r and key c. All without a tree. */
template <typename S> GPU_FN uint32_t gpu_generic_tree(const gpu_generic_call<S> &t, int64_t key) {
    static_assert(4 * S::OWN <= 32, "a bit for each row and key");
    if (!GPU_GENERIC_TREE_LOOP || gpu_reread(t.p)->mask != ROPE_MASK_TREE)
        return ~0u;
    uint32_t sees = 0;
#pragma unroll 1
    for (int n = 0; n < 4 * S::OWN; n++)
        sees |= (uint32_t)gpu_attention_sees(gpu_reread(t.p), gpu_reread(t.call), &t.b->tile.s,
                                             &t.b->rows[gpu_generic_row<S>() + n / 4], key + n % 4)
                << n;
    return sees;
}

/* From scores of a row to logits in units of log 2, -infinity where a key is not seen; returns
 * which are. tree: its bits of gpu_generic_tree(). */
template <typename S>
GPU_FN uint32_t gpu_generic_logits(const gpu_generic_call<S> &t, const gpu_attention_row *row,
                                   int64_t key, int begin, int end, uint32_t tree, float s[4]) {
    uint32_t sees = 0;
#pragma unroll /* by gpu_repeat() CDNA's registers spill */
    for (int c = 0; c < 4; c++) {
        const int n = gpu_generic_four() + c;
        const bool seen =
            n >= begin && n < end &&
            (GPU_GENERIC_TREE_LOOP ? gpu_attention_near(row, key + c) && (tree >> c & 1)
                                   : gpu_attention_sees(gpu_reread(t.p), gpu_reread(t.call),
                                                        &t.b->tile.s, row, key + c));
        sees |= (uint32_t)seen << c;
        s[c] = seen ? GPU_LOG2_E * gpu_attention_logit(gpu_reread(t.p), s[c]) : -INFINITY;
    }
    return sees;
}

/* From scores to weights, in shared memory; largest, sum and out move on. */
template <typename S>
GPU_FN void gpu_generic_weigh(const gpu_generic_call<S> &t, int64_t first, int begin, int end,
                              float s[S::OWN][4], gpu_generic_rows<S> &rows) {
    const int64_t key = first + gpu_generic_four();
    const uint32_t tree = gpu_generic_tree<S>(t, key);
    uint32_t seen[4] = {};
    gpu_repeat<S::OWN>([&](int r) {
        const uint32_t sees = gpu_generic_logits(t, &t.b->rows[gpu_generic_row<S>() + r], key,
                                                 begin, end, tree >> 4 * r, s[r]);
        const float most =
                        gpu_generic_most(fmaxf(fmaxf(s[r][0], s[r][1]), fmaxf(s[r][2], s[r][3]))),
                    before = rows.largest[r], now = fmaxf(before, most),
                    kept = before == now ? 1 : exp2f(before - now);
        gpu_repeat<4>([&](int c) {
            s[r][c] = s[r][c] == -INFINITY ? 0 : exp2f(s[r][c] - now);
            seen[c] |= (sees >> c & 1) << r;
        });
        rows.largest[r] = now;
        rows.sum[r] =
            fmaf(rows.sum[r], kept, gpu_generic_sum((s[r][0] + s[r][1]) + (s[r][2] + s[r][3])));
        gpu_repeat<S::COLUMNS>(
            [&](int j) { gpu_repeat<4>([&](int c) { rows.out[r][j][c] *= kept; }); });
    });
    gpu_repeat<4>([&](int c) {
        const int n = gpu_generic_four() + c;
        t.b->sees[n][threadIdx.x / GPU_COLUMN_LANES] = (uint8_t)seen[c];
        gpu_repeat<S::OWN, S::WIDTH>([&](int r) {
            float weights[S::WIDTH];
            gpu_repeat<S::WIDTH>([&](int i) { weights[i] = s[r + i][c]; });
            gpu_write_numbers<S::WIDTH>(gpu_generic_weights<S>(t, n, r), weights);
        });
    });
    __syncthreads();
}

/* Adds VALUES values from `first` of the tile on; FINITE: all are, else each to rows that see it.
 */
template <typename S, bool FINITE>
GPU_FN void gpu_generic_add(const gpu_generic_call<S> &t, int first, gpu_generic_rows<S> &rows) {
    const float *values = t.m.stage + gpu_generic_four();
    [[maybe_unused]] constexpr int AT_ONCE = S::COLUMNS > 4 ? GPU_GENERIC_AT_ONCE : 4;
#pragma unroll AT_ONCE
    for (int n = 0; n < S::VALUES; n++) {
        const uint32_t sees = t.b->sees[first + n][threadIdx.x / GPU_COLUMN_LANES];
        float p[S::OWN];
        gpu_repeat<S::OWN, S::WIDTH>([&](int r) {
            gpu_read_numbers<S::WIDTH>(gpu_generic_weights<S>(t, first + n, r), p + r);
        });
        gpu_repeat<S::COLUMNS>([&](int j) {
            float v[4];
            gpu_read_numbers<4>(values + n * S::DIM + 4 * GPU_COLUMN_LANES * j, v);
            gpu_repeat<S::OWN>([&](int r) {
                gpu_repeat<4>([&](int c) {
                    if (FINITE || (sees >> r & 1))
                        rows.out[r][j][c] = fmaf(p[r], v[c], rows.out[r][j][c]);
                });
            });
        });
    }
    __syncthreads();
}

/* Keys begin..end - 1 of the tile from key `first` on. */
template <typename S>
GPU_FN void gpu_generic_tile(const gpu_generic_call<S> &t, int64_t first, int begin, int end,
                             int32_t *count, gpu_generic_rows<S> &rows) {
    const int n = (int)threadIdx.x;
    float s[S::OWN][4] = {};
    if (n >= begin && n < end) {
        t.b->keys[n] =
            gpu_attention_head_of(gpu_reread(t.p), gpu_reread(t.call), &gpu_reread(t.call)->k,
                                  &gpu_reread(t.p)->k, &t.b->tile.s, first + n, t.b->head);
        t.b->values[n] =
            gpu_attention_head_of(gpu_reread(t.p), gpu_reread(t.call), &gpu_reread(t.call)->v,
                                  &gpu_reread(t.p)->v, &t.b->tile.s, first + n, t.b->head);
    }
    __syncthreads();
    gpu_generic_scores<S>(t, begin, end, s);
    gpu_generic_weigh<S>(t, first, begin, end, s, rows);
#pragma unroll 1
    for (int v = begin / S::VALUES * S::VALUES; v < end; v += S::VALUES) {
        if (gpu_generic_stage_values<S>(t, v, begin, end, ++*count))
            gpu_generic_add<S, true>(t, v, rows);
        else
            gpu_generic_add<S, false>(t, v, rows);
    }
}

/* --- a block --- */

/* A row's elements, one thread's: to out, or to a part. */
template <typename S>
GPU_FN void gpu_generic_end(const gpu_generic_call<S> &t, const gpu_attention_row *row,
                            float largest, float sum, const float out[S::COLUMNS][4]) {
    const int dim = gpu_reread(t.p)->v_head_dim;
    const bool first = gpu_generic_four() == 0;
    float kept = 1;
    auto part = gpu_part(t.b->parts, t.b->tile.s.index, row->query, row->head,
                         gpu_reread(t.call)->rope.tensor[0].heads, t.b->part, dim);
    if (!t.b->alone && first) {
        part[dim] = largest;
        part[dim + 1] = row->live ? sum : GPU_PART_LEFT_OUT;
    }
    if (!row->live)
        return;
    typename gpu_element<S::DTYPE>::bits *to = nullptr;
    int64_t step = 1;
    if (t.b->alone) {
        kept = gpu_join_sink<true>(gpu_reread(t.p)->sink_dtype, gpu_reread(t.call)->sinks,
                                   row->head, &largest, &sum);
        to = gpu_attention_out<S::DTYPE>(gpu_reread(t.call), &t.b->tile.s, row->query, row->head);
        step = gpu_reread(t.call)->out_stride[3];
        if (first)
            gpu_attention_store_lse(gpu_reread(t.call), &t.b->tile.s, row->query, row->head,
                                    largest, sum);
    }
#pragma unroll /* by gpu_repeat() an H100 has registers for fewer blocks */
    for (int j = 0; j < S::COLUMNS; j++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const int i = 4 * GPU_COLUMN_LANES * j + gpu_generic_four() + c;
            if (i < dim && !t.b->alone)
                part[i] = out[j][c];
            if (i < dim && t.b->alone)
                gpu_global(to)[i * step] =
                    gpu_narrow<S::DTYPE>(sum == 0 ? 0 : out[j][c] * kept / sum);
        }
}

/* All keys of the block's rows. */
template <typename S> GPU_FN void gpu_generic_attend(const gpu_generic_call<S> &t) {
    gpu_generic_block<S> *b = t.b;
    gpu_generic_rows<S> rows = {};
    const int n = (int)threadIdx.x;
    int32_t count = 0;
    if (n < S::ROWS) {
        gpu_attention_row *row = &b->rows[n];
        gpu_attention_row_read(gpu_reread(t.p), gpu_reread(t.call), &b->tile.s, b->tile.first + n,
                               b->head, row);
        row->seen = gpu_within(row->seen, b->within);
    }
    __syncthreads();
    if (n == 0) {
        b->all = gpu_attention_seen(b->rows, S::ROWS);
        b->nonfinite = 0;
    }
    gpu_repeat<S::OWN>([&](int r) { rows.largest[r] = -INFINITY; });
    gpu_generic_queries<S>(t);
    __syncthreads();
#pragma unroll 1
    for (int64_t first = b->all.begin / GPU_TILE_KEYS * GPU_TILE_KEYS; first < b->all.end;
         first += GPU_TILE_KEYS) {
        const int64_t left = b->all.end - first, before = b->all.begin - first;
        gpu_generic_tile<S>(t, first, before > 0 ? (int)before : 0,
                            left < GPU_TILE_KEYS ? (int)left : (int)GPU_TILE_KEYS, &count, rows);
    }
    gpu_repeat<S::OWN>([&](int r) {
        const gpu_attention_row *row = &b->rows[gpu_generic_row<S>() + r];
        if (row->query < b->tile.s.q_count)
            gpu_generic_end<S>(t, row, rows.largest[r], rows.sum[r], rows.out[r]);
    });
    __syncthreads();
}

/* Finds a block's n-th work: a tile of rows of a key head, or a split of a short sequence. False
 * where there is no more; a block does nothing where it is not valid. All threads call it. */
template <typename S> GPU_FN bool gpu_generic_find(const gpu_generic_call<S> &t, int64_t n) {
    gpu_generic_block<S> *b = t.b;
    if (gpu_reread(t.fits) & GPU_TILE_BY_SPLITS) {
        gpu_split_work w;
        if (!gpu_split_find(gpu_reread(t.p), gpu_reread(t.call), b->failed, b->parts,
                            gpu_reread(t.p)->v_head_dim, n, &b->tile, &w))
            return false;
        __syncthreads();
        if (threadIdx.x == 0) {
            b->within = gpu_split_of(gpu_reread(t.p), &b->tile.s, w.split);
            b->head = w.head;
            b->part = w.part;
            b->alone = w.alone;
            b->valid = w.valid;
        }
    } else {
        const int64_t heads = gpu_reread(t.call)->k.heads,
                      group = gpu_attention_group(gpu_reread(t.call));
        if (!gpu_attention_find<0>(gpu_reread(t.p), gpu_reread(t.call), b->failed, n / heads, group,
                                   S::ROWS, &b->tile))
            return false;
        if (threadIdx.x == 0) {
            b->within = {0, INT64_MAX};
            b->head = n % heads;
            b->alone = 1;
            b->valid = b->tile.valid && b->tile.first < b->tile.s.q_count * group &&
                       !gpu_is_split(b->parts, &b->tile.s);
        }
    }
    __syncthreads();
    return true;
}

template <int DTYPE, int DIM, int ROWS>
__global__ void __launch_bounds__(GPU_ATTENTION_THREADS, GPU_TILE_BLOCKS)
    gpu_attention_generic(GPU_PARAMETER rope_attention_problem problem,
                          GPU_PARAMETER rope_attention_call given, const int32_t *failed,
                          int32_t fits, gpu_attention_parts parts) {
    const rope_attention_problem &p = *gpu_parameter<rope_attention_problem>(problem);
    const rope_attention_call &call =
        *gpu_parameter<rope_attention_call, rope_attention_problem>(given);
    typedef gpu_generic_shape<DTYPE, DIM, ROWS> S;
    extern __shared__ uint4 memory[];
    __shared__ gpu_generic_block<S> b;
    float *room = (float *)memory;
    if (threadIdx.x == 0) {
        b.parts = parts;
        b.failed = failed;
        b.next = blockIdx.x;
    }
    __syncthreads();
    const gpu_generic_call<S> t = {gpu_reread(&p),
                                   gpu_reread(&call),
                                   &b,
                                   {room, room + ROWS * DIM, room + ROWS * (DIM + GPU_TILE_KEYS)},
                                   fits};
    gpu_wait_for_last();
    gpu_let_next_start();
    while (gpu_generic_find<S>(t, b.next)) {
        if (threadIdx.x == 0)
            b.next += gridDim.x; /* behind a barrier of all that read it */
        if (b.valid)
            gpu_generic_attend<S>(t);
        __syncthreads();
    }
}

/* --- instances --- */

#define GPU_ATTENTION_ROOM(DTYPE, ROWS, DIM)                                                       \
    GPU_KERNEL(gpu_attention_generic<DTYPE, DIM, ROWS(DTYPE, DIM)>)

/* As gpu_generic_dim() has them. */
#define GPU_ATTENTION_ROOMS(DTYPE, ROWS)                                                           \
    {                                                                                              \
        GPU_ATTENTION_ROOM(DTYPE, ROWS, 64), GPU_ATTENTION_ROOM(DTYPE, ROWS, 128),                 \
            GPU_ATTENTION_ROOM(DTYPE, ROWS, 256),                                                  \
            GPU_ATTENTION_ROOM(DTYPE, ROWS, ROPE_MAX_ATTENTION_HEAD_DIM)                           \
    }

#define GPU_ATTENTION_GENERIC(DTYPE)                                                               \
    { GPU_ATTENTION_ROOMS(DTYPE, GPU_PROMPT_ROWS), GPU_ATTENTION_ROOMS(DTYPE, GPU_FEW_ROWS) }

#endif
