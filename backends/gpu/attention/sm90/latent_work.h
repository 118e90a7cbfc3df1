/* What a block of latent attention has to do, over [sequence, split, key head, query, rows]. */
#ifndef ROPEKIT_GPU_ATTENTION_SM90_LATENT_WORK_H
#define ROPEKIT_GPU_ATTENTION_SM90_LATENT_WORK_H

#include "backends/gpu/attention/sm90/latent.h"

/* A block, which has no work yet. */
GPU_FN sm90_latent_block sm90_latent_block_of(const rope_attention_problem *p,
                                              const rope_attention_call *call,
                                              const gpu_attention_parts *parts, int box,
                                              char *memory) {
    const uint32_t queries = (uint32_t)__cvta_generic_to_shared(memory) + SM90_HEADER;
    return {
        p,   call, parts, (sm90_latent_header *)(void *)memory, queries, queries + SM90_LATENT_TILE,
        box, {}};
}

GPU_FN void sm90_latent_start(const sm90_latent_block &b) {
    sm90_barrier_init(SM90_BARRIER(b, queries, 0), 1);
    sm90_barrier_init(SM90_BARRIER(b, ended, 0), 128);
    for (int i = 0; i < 2; i++) {
        sm90_barrier_init(SM90_BARRIER(b, full, i), 1);
        sm90_barrier_init(SM90_BARRIER(b, weighed, i), 128);
        sm90_barrier_init(SM90_BARRIER(b, empty, i), 8); /* warps that add values */
    }
    sm90_barriers_begun();
}

/* Splits of a sequence that have keys which it uses. */
struct sm90_latent_splits {
    int size, first, count;
};

GPU_FN sm90_latent_splits sm90_latent_split(const rope_attention_problem *p,
                                            const rope_attention_sequence *s) {
    const int most = (int)rope_keys_most(p, s->k_count),
              least = (most <= GPU_SPLIT_SHORT ? GPU_SPLIT_LEAST / 2 : GPU_SPLIT_LEAST)
                      << GPU_SM90_LATENT_LONGER,
              each = most / GPU_SPLITS_MOST + 1,
              size = max(least, (each + GPU_TILE_KEYS - 1) / GPU_TILE_KEYS * GPU_TILE_KEYS);
    const rope_key_range used = gpu_keys_used(p, s);
    const int first = (int)used.begin / size;
    return {size, first, used.begin < used.end ? ((int)used.end - 1) / size + 1 - first : 0};
}

/* Whether a warp's keys have pages. */
GPU_FN bool sm90_latent_has_pages(const rope_attention_problem *p, const rope_attention_call *call,
                                  int64_t sequence, int begin, int end) {
    const int size = (int)p->page_size;
    bool valid = true;
    for (int page = begin / size + (int)threadIdx.x % 32; page * size < end; page += 32) {
        const int64_t at =
            rope_index_of(p->table_wide, call->block_table,
                          sequence * call->table_stride[0] + page * call->table_stride[1]);
        valid &= at >= 0 && at < call->pages;
    }
    return __all_sync(~0u, valid);
}

/* Rows whose keys are not there are left out. */
GPU_FN void sm90_latent_leave_out(const sm90_latent_block &b, const sm90_latent_item &at,
                                  int64_t sequence) {
    gpu_attention_flag(b.call);
    for (int row = (int)threadIdx.x % 32; row < at.rows && !at.alone; row += 32)
        gpu_part(*b.parts, sequence, at.query, at.head + row, b.call->rope.tensor[0].heads, at.part,
                 SM90_LATENT_VALUE_DIM)[SM90_LATENT_VALUE_DIM + 1] = GPU_PART_LEFT_OUT;
}

/* The heads and the split of a block, whatever the sequence has. */
GPU_FN sm90_latent_item sm90_latent_item_of(const sm90_latent_block &b) {
    const int group = (int)gpu_attention_group(b.call), blocks = GPU_SM90_LATENT_BLOCKS(group),
              queries = (int)b.parts->queries, heads = (int)b.call->k.heads,
              splits = (int)b.parts->splits;
    int n = (int)blockIdx.x;
    sm90_latent_item at = {};
    const int first = n % blocks * SM90_LATENT_ROWS;
    at.query = (n /= blocks) % queries;
    at.key_head = (n /= queries) % heads;
    at.part = (n /= heads) % splits;
    at.sequence = n / splits;
    at.head = at.key_head * group + first;
    at.rows = min(group - first, (int)SM90_LATENT_ROWS);
    return at;
}

/* Of a warp. */
GPU_FN sm90_latent_item sm90_latent_take(const sm90_latent_block &b, const int32_t *failed) {
    const rope_attention_problem *p = b.p;
    const rope_attention_call *call = b.call;
    sm90_latent_item at = sm90_latent_item_of(b);
    const rope_attention_sequence s = rope_attention_sequence_of(p, call, at.sequence);
    if (threadIdx.x % 32 == 0)
        b.header->s = s;
    if (s.fails)
        gpu_attention_flag(call);
    if (s.fails || at.query >= s.q_count || !gpu_is_split(*b.parts, &s))
        return at;
    const sm90_latent_splits of = sm90_latent_split(p, &s);
    if (at.part > 0 && at.part >= of.count) /* of no key, the first split ends rows */
        return at;
    at.parts = of.count;
    const rope_key_range all = {(of.first + at.part) * of.size, (of.first + at.part + 1) * of.size},
                         used = gpu_within(gpu_keys_used(p, &s), all),
                         seen =
                             gpu_within(rope_keys_seen(p, &s, rope_query_index(&s, at.query)), all);
    at.alone = of.count <= 1;
    at.base = (int)seen.begin / SM90_LATENT_KEYS * SM90_LATENT_KEYS;
    at.begin = (int)seen.begin - at.base;
    at.end = (int)seen.end - at.base;
    at.found = !(failed && gpu_global(failed)[s.index]) &&
               sm90_latent_has_pages(p, call, s.index, (int)used.begin, (int)used.end);
    if (!at.found)
        sm90_latent_leave_out(b, at, s.index);
    return at;
}

#endif
