/* A block of tiles: all that its threads share, and its call. */
#ifndef ROPEKIT_GPU_ATTENTION_TILE_BLOCK_H
#define ROPEKIT_GPU_ATTENTION_TILE_BLOCK_H

#include "backends/gpu/attention/key_address.h"
#include "backends/gpu/attention/nonfinite.h"
#include "backends/gpu/attention/rows.h"

/* Keys of which it is known where they lie: of as many tiles at a time as a block has threads. */
enum { GPU_TILE_PLACES = 2 * GPU_ATTENTION_THREADS };

/* How a row ends: what gpu_end_row() gives, and the elements from out's element 0 to its own,
 * GPU_TILE_NOWHERE where it is left out. */
constexpr int64_t GPU_TILE_NOWHERE = INT64_MIN;
struct gpu_tile_end {
    float factor;
    int64_t out;
};

/* Keys of the block that some row sees, and from `common` up to `common_end` those that all see.
 * Tiles between `whole` and `end` are copied as they are: none where heads have fewer elements than
 * a tile. */
struct gpu_tile_keys_seen {
    int32_t whole, end, begin, common, common_end;
};

/* Threads of a block share this, beside queries and tiles of keys and values. */
struct gpu_tile_block {
    gpu_attention_tile tile;
    int32_t begin[GPU_TILE_ROWS], end[GPU_TILE_ROWS]; /* keys that a row sees, from `base` on */
    gpu_tile_sums<GPU_TILE_ROWS> sums[GPU_ATTENTION_THREADS];
    gpu_tile_end ends[GPU_ATTENTION_THREADS];
    uint64_t sees[GPU_ATTENTION_THREADS]; /* keys of a tile, by a row of a thread's warp */
    gpu_nonfinite_state nonfinite;
    /* In 16 bytes from element 0, as gpu_place_index orders them. */
    alignas(16) uint32_t places[2][GPU_TILE_PLACES];
    uint32_t queries[GPU_TILE_ROWS]; /* the same, GPU_TILE_NONE where there is none */
    int32_t query[GPU_TILE_ROWS];    /* of a row, from `query0` of its sequence on */
    alignas(16) gpu_tile_keys_seen seen;
    gpu_key_origin base;         /* the first key of the first tile */
    gpu_key_source source[2];    /* of keys, of values */
    int64_t group, query0, next; /* heads of q a key head; the first query; what comes next */
    int32_t head;                /* of keys */
};

/* A block, and values that are not finite: those of a tile, and what reaches a row of a warp. */
template <int D, int ROWS> struct gpu_tile_block_of : gpu_tile_block {
    enum { EACH = 16 * gpu_row_blocks<ROWS>, COUNT = EACH * GPU_TILE_WARPS };
    gpu_nonfinite_row<D> reached[COUNT];
    gpu_nonfinite_tile<D, gpu_block_keys<ROWS>> removed;
};

enum : uint32_t { GPU_TILE_NONE = 0xffffffffu };

/* A block's call. */
struct gpu_tile_call {
    const rope_attention_problem *p;
    const rope_attention_call *call;
    gpu_tile_block *b;
    char *queries, *stage; /* in shared memory */
    int32_t fits;          /* GPU_TILE_ */
};

GPU_FN bool gpu_fits(const gpu_tile_call &t, int32_t what) {
    return gpu_reread(t.fits) & what;
}

/* Those of the thread `further` behind this one. */
template <int ROWS>
GPU_FN gpu_tile_sums<ROWS> &gpu_sums_of(const gpu_tile_call &t, int further = 0) {
    return *(gpu_tile_sums<ROWS> *)(void *)(t.b->sums + gpu_thread() + further);
}

template <int D, int ROWS> GPU_FN gpu_tile_block_of<D, ROWS> &gpu_block_of(const gpu_tile_call &t) {
    return *static_cast<gpu_tile_block_of<D, ROWS> *>(t.b);
}

/* Values that are not finite and reach a row of the thread's warp. */
template <int D, int ROWS>
GPU_FN gpu_nonfinite_row<D> &gpu_tile_reached(const gpu_tile_call &t, int row) {
    gpu_tile_block_of<D, ROWS> &b = gpu_block_of<D, ROWS>(t);
    return b.reached[gpu_thread() / GPU_TILE_LANES * b.EACH + row];
}

#endif
