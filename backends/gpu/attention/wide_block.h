/* A block of wide heads: what its threads share, and its queries, keys and values in shared memory.
 */
#ifndef ROPEKIT_GPU_ATTENTION_WIDE_BLOCK_H
#define ROPEKIT_GPU_ATTENTION_WIDE_BLOCK_H

#include "backends/gpu/attention/split_keys.h"
#include "backends/gpu/attention/tile.h"

#ifdef GPU_QUERIES_LEFT

enum {
    GPU_LATENT_COLUMNS = GPU_LATENT_VALUE_DIM / GPU_TILE_WARPS, /* of a value, a warp's */
    GPU_LATENT_ROW_BYTES = 2 * GPU_LATENT_DIM,
    GPU_LATENT_WEIGHTS = 2 * GPU_LATENT_VALUE_DIM /* bytes of a row before its weights */
};
static_assert((int)GPU_LATENT_DIM - (int)GPU_LATENT_VALUE_DIM == (int)GPU_TILE_KEYS,
              "room for a row's weights");

typedef gpu_tile_rows<GPU_LATENT_COLUMNS, GPU_LATENT_ROWS> gpu_latent_rows;
typedef gpu_tile_sums<GPU_LATENT_ROWS> gpu_latent_sums;

/* Threads of a block share this, beside queries and a tile. */
struct gpu_latent_block {
    gpu_attention_tile tile;
    gpu_key_origin base;      /* the first key of the first tile */
    gpu_key_source source[2]; /* of keys, of values */
    rope_key_range within;    /* keys of the block's split */
    int64_t query, part;      /* of the sequence; of its splits */
    int64_t key_head, head;   /* the first head of q */
    int32_t rows, alone;      /* heads; no other split has keys of them */
    int32_t valid, left_out;  /* there is work; the query has no position */
    int32_t begin, end;       /* keys that the query sees, from the base on */
    float most[GPU_TILE_WARPS][GPU_LATENT_ROWS];
    alignas(16) uint32_t places[2][GPU_TILE_PLACES]; /* as in tile.h */
};

/* Ends of rows, where a tile was: sums of each warp's keys, largest logits, and what elements are
 * multiplied by and where they go. */
struct gpu_latent_end {
    float sum[GPU_TILE_WARPS][GPU_LATENT_ROWS], largest[GPU_LATENT_ROWS];
    gpu_tile_end row[GPU_LATENT_ROWS];
};

struct gpu_latent_call {
    const rope_attention_problem *p;
    const rope_attention_call *call;
    gpu_latent_block *b;
    const int32_t *failed;
    char *queries, *stage; /* in shared memory */
    int32_t fits;          /* GPU_TILE_ */
};

/* --- queries --- */

template <int DTYPE> GPU_FN void gpu_latent_fetch_queries(const gpu_latent_call &t) {
    const rope_operand *o = &gpu_reread(t.call)->rope.tensor[0];
    const int64_t *stride = o->out ? o->out_stride : o->in_stride;
    const rope_attention_sequence *s = &t.b->tile.s;
    const int dim = gpu_reread(t.p)->head_dim;
    const char *from = (const char *)(o->out ? o->out : o->in);
    const int64_t first = s->q_row * stride[0] + (s->q_first + t.b->query) * stride[1];
#pragma unroll 2
    for (int e = gpu_thread(); e < GPU_LATENT_ROWS * GPU_LATENT_DIM / 8;
         e += GPU_ATTENTION_THREADS) {
        const int row = e / (GPU_LATENT_DIM / 8), chunk = e % (GPU_LATENT_DIM / 8);
        const bool there = row < t.b->rows && 8 * chunk < dim;
        char *to = t.queries + gpu_swizzled<GPU_LATENT_DIM>(row, chunk);
        if (t.fits & GPU_TILE_Q) {
            const int64_t at = first + (t.b->head + row) * stride[2] + 8 * chunk;
            gpu_copy_async(to, from + 2 * (there ? at : 0), there);
            continue;
        }
#pragma unroll 1
        for (int i = 0; i < 8; i++)
            ((uint16_t *)(void *)to)[i] = (uint16_t)gpu_narrow<DTYPE>(
                there ? gpu_query_element<DTYPE>(o, s, t.b->query, t.b->head + row, 8 * chunk + i)
                      : 0);
    }
}

/* --- keys and values --- */

GPU_FN const rope_append_operand *gpu_latent_operand(const gpu_latent_call &t, int value) {
    return value ? &gpu_reread(t.call)->v : &gpu_reread(t.call)->k;
}

GPU_FN gpu_key_place gpu_latent_place_of(const gpu_latent_call &t, int value, int n) {
    return gpu_place_from(gpu_reread(t.p), gpu_reread(t.call), gpu_latent_operand(t, value),
                          &t.b->tile.s, t.b->base, n);
}

/* Threads copy 16 rows of a tile at a time, eight threads a row. */
GPU_FN int gpu_latent_index(int n) {
    return gpu_place_index<64>(n);
}

/* Where the heads of a thread's key, of those from `first` of the block's on, begin; of a key that
 * is not seen, 0. */
GPU_FN void gpu_latent_place(const gpu_latent_call &t, int first) {
    const int n = first + gpu_thread();
    const bool seen = n >= t.b->begin && n < t.b->end;
#pragma unroll 1
    for (int value = 0; value < 2; value++)
        t.b->places[value][gpu_latent_index(n)] =
            seen
                ? (uint32_t)(gpu_place_at(t.b->source[value], gpu_latent_place_of(t, value, n)) / 8)
                : 0;
}

/* Which keys of the tile from key `first` of the block's on are seen. */
GPU_FN uint64_t gpu_latent_sees(const gpu_latent_call &t, int first) {
    return gpu_bits_between(t.b->begin - first, t.b->end - first) &
           gpu_tree_sees(gpu_reread(t.p), gpu_reread(t.call), &t.b->tile.s, t.b->query,
                         t.b->base.key + first);
}

/* Keys or values of a tile, those that are seen, else zeros; of a value GPU_LATENT_VALUE_DIM
 * elements. */
template <int VALUE> GPU_FN void gpu_latent_copy(const gpu_latent_call &t, int first) {
    enum { GROUPS = (VALUE ? GPU_LATENT_VALUE_DIM : GPU_LATENT_DIM) / 64, STEP = 16 };
    const int row = gpu_thread() / 8, chunk = gpu_thread() % 8,
              dim = VALUE ? gpu_reread(t.p)->v_head_dim : gpu_reread(t.p)->head_dim;
    const uint64_t sees = gpu_latent_sees(t, first);
    const uint4 four =
        *(const uint4 *)(const void *)(t.b->places[VALUE] + gpu_latent_index(first + row));
    const uint32_t place[4] = {four.x, four.y, four.z, four.w};
    const char *from = t.b->source[VALUE].data;
    char *to = t.stage + gpu_swizzled<GPU_LATENT_DIM>(row, chunk);
    gpu_repeat<GPU_TILE_KEYS / STEP>([&](int i) {
        const bool seen = sees >> (row + i * STEP) & 1;
        const char *row_from = from + 16 * ((uint64_t)place[i] + (unsigned)chunk);
        gpu_repeat<GROUPS>([&](int g) {
            gpu_copy_async(to + i * STEP * GPU_LATENT_ROW_BYTES + 128 * g, row_from + 128 * g,
                           seen && 64 * g + 8 * chunk < dim);
        });
    });
}

/* gpu_latent_copy() of elements that do not lie side by side, or are of another type. */
template <int DTYPE, int VALUE> GPU_FN void gpu_latent_read(const gpu_latent_call &t, int first) {
    const uint64_t sees = gpu_latent_sees(t, first);
    gpu_read_rows<DTYPE, GPU_LATENT_DIM, GPU_TILE_KEYS,
                  VALUE ? (int)GPU_LATENT_VALUE_DIM : (int)GPU_LATENT_DIM>(
        t, VALUE, t.b->key_head, first, t.stage, [&](int row) { return sees >> row & 1; });
}

template <int DTYPE, int VALUE> GPU_FN void gpu_latent_fetch(const gpu_latent_call &t, int first) {
    if (t.fits & (VALUE ? GPU_TILE_V : GPU_TILE_K))
        gpu_latent_copy<VALUE>(t, first);
    else
        gpu_latent_read<DTYPE, VALUE>(t, first);
    gpu_copies_mark();
}

#endif
#endif
