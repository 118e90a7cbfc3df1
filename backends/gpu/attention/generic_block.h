/* A block of the generic kernel: its shape, what threads share, and its queries, keys and values in
 * shared memory. */
#ifndef ROPEKIT_GPU_ATTENTION_GENERIC_BLOCK_H
#define ROPEKIT_GPU_ATTENTION_GENERIC_BLOCK_H

#include "backends/gpu/attention/split_keys.h"
#include "backends/gpu/tile/repeat.h"

/* A block has ROWS_ rows and room for heads of DIM_ elements. GPU_COLUMN_LANES threads side by side
 * share a row's keys, or columns. */
template <int DTYPE_, int DIM_, int ROWS_> struct gpu_generic_shape {
    enum {
        DTYPE = DTYPE_,
        DIM = DIM_,
        ROWS = ROWS_,
        OWN = ROWS * GPU_COLUMN_LANES / GPU_ATTENTION_THREADS, /* rows of a thread */
        WIDTH = OWN < 4 ? OWN : 4,                             /* of a vector of them */
        COLUMNS = DIM / (4 * GPU_COLUMN_LANES),                /* fours of them */
        VALUES = GPU_GENERIC_VALUES(ROWS, DIM)                 /* of a tile, at a time */
    };
};

/* Rows that a thread has, and what is summed of them: largest logits in units of log 2, weights,
 * and values by weights. */
template <typename S> struct gpu_generic_rows {
    float largest[S::OWN], sum[S::OWN];
    float out[S::OWN][S::COLUMNS][4];
};

/* Threads of a block share this. */
template <typename S> struct gpu_generic_block {
    gpu_attention_tile tile;
    gpu_attention_row rows[S::ROWS];
    gpu_attention_head keys[GPU_TILE_KEYS], values[GPU_TILE_KEYS];
    uint8_t sees[GPU_TILE_KEYS][GPU_ATTENTION_THREADS / GPU_COLUMN_LANES];
    rope_key_range within, all; /* keys of the block's split; that some row sees */
    int64_t head, part;         /* of keys; of the sequence's splits */
    int32_t valid, alone;       /* there is work; no other split has keys of these rows */
    int32_t nonfinite;          /* the last values, counted, of which one is not finite */
    gpu_attention_parts parts;
    const int32_t *failed;
    int64_t next; /* what comes next */
};

/* The block's dynamic shared memory: queries [dim][row], weights [key][row]. */
struct gpu_generic_memory {
    float *queries, *weights, *stage;
};

template <typename S> struct gpu_generic_call {
    const rope_attention_problem *p;
    const rope_attention_call *call;
    gpu_generic_block<S> *b;
    gpu_generic_memory m;
    int32_t fits; /* GPU_TILE_ */
};

/* Which rows a thread has, and which keys or columns of them. */
template <typename S> GPU_FN int gpu_generic_row(void) {
    return (int)threadIdx.x / GPU_COLUMN_LANES * S::OWN;
}

GPU_FN int gpu_generic_four(void) {
    return (int)threadIdx.x % GPU_COLUMN_LANES * 4;
}

/* --- queries --- */

/* A thread reads four elements of a row that lie in the same sector. */
template <typename S> GPU_FN void gpu_generic_queries(const gpu_generic_call<S> &t) {
    const int dim = gpu_reread(t.p)->head_dim;
#pragma unroll 1
    for (int e = (int)threadIdx.x; e < S::ROWS * S::DIM / 4; e += GPU_ATTENTION_THREADS) {
        const gpu_attention_row *r = &t.b->rows[e % S::ROWS];
        gpu_repeat<4>([&](int n) {
            const int i = e / S::ROWS * 4 + n;
            t.m.queries[i * S::ROWS + e % S::ROWS] =
                r->live && i < dim
                    ? gpu_query_element<S::DTYPE>(&gpu_reread(t.call)->rope.tensor[0], &t.b->tile.s,
                                                  r->query, r->head, i)
                    : 0;
        });
    }
}

/* --- keys and values --- */

/* N elements of a head from `first` on, a multiple of a vector's. */
template <int DTYPE, int N>
GPU_FN void gpu_generic_load(const rope_append_operand *o, int64_t first, float x[N]) {
    enum { V = DTYPE == ROPE_F32 ? 4 : 8, SIZE = DTYPE == ROPE_F32 ? 4 : 2 };
    const char *from = (const char *)(gpu_is_cached(o) ? o->cache
                                      : o->out         ? o->out
                                                       : o->in) +
                       first * SIZE;
    gpu_repeat<N, V>([&](int i) {
        const gpu_vector<DTYPE, V> v = gpu_load<DTYPE, V>(from + i * SIZE);
        gpu_unpack<DTYPE, V>(v, x + i);
    });
}

/* Keys begin..end - 1 of the tile, GPU_GENERIC_DEPTH elements of each, 0 for the others. */
template <typename S>
GPU_FN void gpu_generic_stage_keys(const gpu_generic_call<S> &t, int first, int begin, int end) {
    enum { N = GPU_GENERIC_DEPTH * GPU_TILE_KEYS / GPU_ATTENTION_THREADS };
    const int key = (int)threadIdx.x % GPU_TILE_KEYS, from = (int)threadIdx.x / GPU_TILE_KEYS * N,
              dim = gpu_reread(t.p)->head_dim, at = first + from;
    const rope_append_operand *o = &gpu_reread(t.call)->k;
    float *to = t.m.stage + from * GPU_GENERIC_STRIDE + key;
    const bool there = key >= begin && key < end;
    if (there && gpu_reread(t.fits) & GPU_TILE_K && at + N <= dim) {
        float x[N];
        gpu_generic_load<S::DTYPE, N>(o, t.b->keys[key].at + at, x);
        gpu_repeat<N>([&](int i) { to[i * GPU_GENERIC_STRIDE] = x[i]; });
    } else {
#pragma unroll 1
        for (int i = 0; i < N; i++)
            to[i * GPU_GENERIC_STRIDE] =
                there && at + i < dim ? gpu_attention_element<S::DTYPE>(o, &gpu_reread(t.p)->k,
                                                                        t.b->keys[key], at + i)
                                      : 0;
    }
    __syncthreads();
}

/* Eight elements of a value, from `at` on; whether all are finite. */
template <typename S>
GPU_FN bool gpu_generic_stage_eight(const gpu_generic_call<S> &t, int key, int at, bool there,
                                    float *to) {
    const int dim = gpu_reread(t.p)->v_head_dim;
    const rope_append_operand *o = &gpu_reread(t.call)->v;
    bool finite = true;
    if (there && gpu_reread(t.fits) & GPU_TILE_V && at + 8 <= dim) {
        float x[8];
        gpu_generic_load<S::DTYPE, 8>(o, t.b->values[key].at + at, x);
        gpu_repeat<8>([&](int i) {
            finite &= gpu_is_finite(x[i]);
            to[i] = x[i];
        });
    } else {
#pragma unroll 1
        for (int i = 0; i < 8; i++) {
            const float x = there && at + i < dim
                                ? gpu_attention_element<S::DTYPE>(o, &gpu_reread(t.p)->v,
                                                                  t.b->values[key], at + i)
                                : 0;
            finite &= gpu_is_finite(x);
            to[i] = x;
        }
    }
    return finite;
}

/* Values from `first` of the tile on, all elements, 0 for keys that are not begin..end - 1; whether
 * all are finite. count: of such calls. */
template <typename S>
GPU_FN bool gpu_generic_stage_values(const gpu_generic_call<S> &t, int first, int begin, int end,
                                     int32_t count) {
    bool finite = true;
#pragma unroll 1
    for (int e = (int)threadIdx.x; e < S::VALUES * S::DIM / 8; e += GPU_ATTENTION_THREADS) {
        const int n = e / (S::DIM / 8), at = e % (S::DIM / 8) * 8, key = first + n;
        finite &= gpu_generic_stage_eight<S>(t, key, at, key >= begin && key < end,
                                             t.m.stage + n * S::DIM + at);
    }
    if (!finite)
        t.b->nonfinite = count;
    __syncthreads();
    return t.b->nonfinite != count;
}

#endif
