/* A block of prompts: its queries, the keys that its rows see, and all else that threads share. */
#ifndef ROPEKIT_GPU_ATTENTION_PROMPT_ROWS_H
#define ROPEKIT_GPU_ATTENTION_PROMPT_ROWS_H

#include "backends/gpu/attention/tile.h"

#if GPU_TILE_AHEAD

/* Where the heads of keys or values lie, in 16 bytes: of key 0 and page 0, and from one to the
 * next. */
struct gpu_prompt_source {
    uint32_t first, page, slot;
    int32_t paged; /* 0: key n is slot n of `first` */
};

/* Keys that some row sees, and from `whole` up to `whole_end` those that all see. */
struct gpu_prompt_limits {
    int32_t begin, end, whole, whole_end;
};

/* Keys that a row sees. */
struct gpu_prompt_row {
    int32_t begin, end;
};

/* Threads of a block share this, beside queries and tiles of keys and values. */
struct gpu_prompt_block {
    alignas(16) uint32_t places[2][2][GPU_TILE_KEYS]; /* [tile % 2, value, key] */
    gpu_prompt_source source[2];
    gpu_prompt_limits limits[GPU_TILE_WARPS], all; /* of a warp's rows, of the block's */
    const char *data[2];                           /* element 0 of keys, of values */
    gpu_prompt_row rows[GPU_TILE_ROWS];
    uint32_t pages[GPU_ATTENTION_THREADS]; /* of keys and values of one tile */
    gpu_attention_tile tile;
    int64_t next; /* what comes next */
    int32_t head; /* of keys */
    gpu_nonfinite_state nonfinite;
};

/* A block's call. */
struct gpu_prompt_call {
    const rope_attention_problem *p;
    const rope_attention_call *call;
    gpu_prompt_block *b;
    char *queries, *stage; /* in shared memory */
};

/* Heads of q a key head. */
GPU_FN uint32_t gpu_prompt_group(const gpu_prompt_call &t) {
    return (uint32_t)gpu_reread(t.call)->rope.tensor[0].heads /
           (uint32_t)gpu_reread(t.call)->k.heads;
}

/* A row of a sequence in 16 bytes from element 0 of a tensor of queries on. */
struct gpu_prompt_walk {
    uint32_t group, query, head; /* of a key head */
    uint32_t at, token_step, head_step;
};

GPU_FN gpu_prompt_walk gpu_prompt_walk_from(const gpu_prompt_call &t, int32_t key_head,
                                            const int64_t *stride, uint32_t row) {
    const rope_attention_sequence *s = &t.b->tile.s;
    gpu_prompt_walk w;
    w.group = gpu_prompt_group(t);
    w.query = row / w.group;
    w.head = row % w.group;
    w.token_step = (uint32_t)(stride[1] / 8);
    w.head_step = (uint32_t)(stride[2] / 8);
    w.at = (uint32_t)s->q_row * (uint32_t)(stride[0] / 8) +
           ((uint32_t)s->q_first + w.query) * w.token_step +
           ((uint32_t)key_head * w.group + w.head) * w.head_step;
    return w;
}

/* `rows` further; queries and heads: of so many rows. */
GPU_FN void gpu_prompt_step(gpu_prompt_walk &w, uint32_t queries, uint32_t heads) {
    w.query += queries;
    w.head += heads;
    w.at += queries * w.token_step + heads * w.head_step;
    if (w.head >= w.group) {
        w.query++;
        w.head -= w.group;
        w.at += w.token_step - w.group * w.head_step;
    }
}

template <int D> GPU_FN void gpu_prompt_copy_queries(const gpu_prompt_call &t, int32_t head) {
    enum { STEP = gpu_copy_step<D> };
    const rope_operand *o = &gpu_reread(t.call)->rope.tensor[0];
    const int thread = gpu_thread(), row = thread / (D / 8), chunk = thread % (D / 8);
    const char *from = (const char *)(o->out ? o->out : o->in) + 16 * chunk;
    char *to = t.queries + gpu_swizzled<D>(row, chunk);
    const uint32_t queries = (uint32_t)t.b->tile.s.q_count;
    gpu_prompt_walk w = gpu_prompt_walk_from(t, head, o->out ? o->out_stride : o->in_stride,
                                             (uint32_t)t.b->tile.first + (uint32_t)row);
    const uint32_t step = STEP / w.group, rest = STEP % w.group;
#pragma unroll 4
    for (int e = 0; e < GPU_TILE_ROWS / STEP; e++) {
        const bool there = w.query < queries;
        gpu_copy_async(to + e * STEP * D * 2, from + 16 * (uint64_t)(there ? w.at : 0), there);
        gpu_prompt_step(w, step, rest);
    }
}

/* Keys that a thread's row sees. */
GPU_FN void gpu_prompt_see(const gpu_prompt_call &t) {
    static_assert(GPU_TILE_ROWS == (int)GPU_ATTENTION_THREADS, "a row each");
    const rope_attention_sequence *s = &t.b->tile.s;
    const uint32_t query =
                       ((uint32_t)t.b->tile.first + (uint32_t)gpu_thread()) / gpu_prompt_group(t),
                   last = (uint32_t)s->q_count - 1;
    const rope_key_range seen = rope_keys_seen(
        gpu_reread(t.p), s, rope_query_index(s, (int64_t)(query < last ? query : last)));
    t.b->rows[gpu_thread()] = {(int32_t)seen.begin, (int32_t)seen.end};
}

/* The limits of rows from `first` to `last`, which lie behind a barrier. */
GPU_FN gpu_prompt_limits gpu_prompt_limits_of(const gpu_prompt_call &t, int first, int last) {
    const gpu_prompt_row before = t.b->rows[first], after = t.b->rows[last];
    return {before.begin, after.end, after.begin, before.end};
}

/* The limits of all rows. Where they see the same, nothing is known of other keys. */
GPU_FN gpu_prompt_limits gpu_prompt_limits_of_all(const gpu_prompt_call &t) {
    gpu_prompt_limits all = gpu_prompt_limits_of(t, 0, GPU_TILE_ROWS - 1);
    if (all.begin == all.whole && all.end == all.whole_end) {
        all.whole = 0;
        all.whole_end = INT32_MAX;
    }
    return all;
}

/* -infinity for keys of the tile from key n on that a row does not see. */
GPU_FN void gpu_prompt_mask(const gpu_prompt_call &t, int n, gpu_tile_scores<GPU_TILE_ROWS> &s) {
    const int lane = gpu_lane();
    n += gpu_first_key_of(lane);
    gpu_mask(s, [&](int m, int h) {
        const gpu_prompt_row row =
            t.b->rows[gpu_warp_row<GPU_TILE_ROWS>() + 16 * m + gpu_row_of(lane, h)];
        const int begin = row.begin - n, end = row.end - n;
        return [begin, end](int key) { return key >= begin && key < end; };
    });
}

#endif
#endif
