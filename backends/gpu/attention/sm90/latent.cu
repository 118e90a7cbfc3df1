/* Latent attention by the matrix products of sm_90a. */
#include "backends/gpu/attention/sm90/latent.h"

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

/* --- the work of a block, over [sequence, split, key head, query, rows] --- */

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

/* Of a warp. */
GPU_FN sm90_latent_item sm90_latent_take(const sm90_latent_block &b, const int32_t *failed) {
    const rope_attention_problem *p = b.p;
    const rope_attention_call *call = b.call;
    const int group = (int)gpu_attention_group(call), blocks = GPU_SM90_LATENT_BLOCKS(group),
              queries = (int)b.parts->queries, heads = (int)call->k.heads,
              splits = (int)b.parts->splits;
    int n = (int)blockIdx.x;
    sm90_latent_item at = {};
    const int first = n % blocks * SM90_LATENT_ROWS;
    at.query = (n /= blocks) % queries;
    at.key_head = (n /= queries) % heads;
    at.part = (n /= heads) % splits;
    at.head = at.key_head * group + first;
    at.rows = min(group - first, (int)SM90_LATENT_ROWS);
    const rope_attention_sequence s = rope_attention_sequence_of(p, call, n / splits);
    if (threadIdx.x % 32 == 0)
        b.header->s = s;
    if (s.fails)
        gpu_attention_flag(call);
    if (s.fails || at.query >= s.q_count || !gpu_is_split(*b.parts, &s))
        return at;
    const sm90_latent_splits of = sm90_latent_split(p, &s);
    if (at.part > 0 && at.part >= of.count) /* of no key, the first split ends rows */
        return at;
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

template <int DTYPE>
__global__ void __launch_bounds__(SM90_LATENT_THREADS, 1)
    gpu_attention_latent(const __grid_constant__ CUtensorMap queries,
                         const __grid_constant__ CUtensorMap keys, int box,
                         GPU_PARAMETER rope_attention_problem problem,
                         GPU_PARAMETER rope_attention_call call, const int32_t *failed,
                         GPU_PARAMETER gpu_attention_parts parts) {
    extern __shared__ __align__(1024) char sm90_memory[];
    const uint32_t memory = (uint32_t)__cvta_generic_to_shared(sm90_memory) + SM90_HEADER;
    sm90_latent_block b = {&problem, &call,
                           &parts,   (sm90_latent_header *)(void *)sm90_memory,
                           memory,   memory + SM90_LATENT_TILE};
    const int group = __shfl_sync(~0u, (int)threadIdx.x / 128, 0);
    b.box = box;
    if (threadIdx.x == 0) {
        sm90_prefetch_map(&queries);
        sm90_prefetch_map(&keys);
        sm90_latent_start(b);
    }
    gpu_wait_for_last();
    gpu_let_next_start();
    if (threadIdx.x / 32 == SM90_LATENT_LOADER) {
        const sm90_latent_item found = sm90_latent_take(b, failed);
        if (threadIdx.x % 32 == 0)
            b.header->item = found;
    }
    __syncthreads();
    b.at = b.header->item;
    if (!b.at.found)
        return;
    if (group == 0) {
        sm90_registers_fewer<112>();
        sm90_latent_rate<DTYPE>(b);
    } else if (group < 3) {
        sm90_registers_more<176>();
        sm90_latent_sum<DTYPE>(b, group - 1);
    } else {
        sm90_registers_fewer<40>();
        if (threadIdx.x / 32 == SM90_LATENT_LOADER)
            sm90_latent_load(b, &queries, &keys);
    }
}

/* --- the join --- */

/* A row's weights of its parts, by one warp; what their sum is multiplied by, where it is kept. */
struct sm90_latent_joined {
    float weight[2 * 32], factor;
    int32_t count; /* 0: nothing is joined */
};

/* Parts are at most as many as weights. */
template <typename PART>
GPU_FN void sm90_latent_weights(const rope_attention_problem *p, const rope_attention_call *call,
                                const rope_attention_sequence *s, int query, int head, PART parts,
                                int count, sm90_latent_joined *to) {
    const int lane = (int)threadIdx.x;
    float top[2], sum[2], most, all = 0;
    bool left_out = false;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const bool there = lane + 32 * i < count;
        const auto at =
            parts + (lane + 32 * i) * (SM90_LATENT_VALUE_DIM + 2) + SM90_LATENT_VALUE_DIM;
        top[i] = there ? at[0] : -INFINITY;
        sum[i] = there ? at[1] : 0;
        left_out |= sum[i] == GPU_PART_LEFT_OUT;
    }
    most = fmaxf(top[0], top[1]);
    for (int d = 16; d > 0; d /= 2)
        most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
#pragma unroll
    for (int i = 0; i < 2; i++) {
        to->weight[lane + 32 * i] = exp2f(top[i] - (most == -INFINITY ? 0 : most));
        all = fmaf(to->weight[lane + 32 * i], sum[i], all);
    }
    for (int d = 16; d > 0; d /= 2)
        all += __shfl_xor_sync(~0u, all, d);
    left_out = __any_sync(~0u, left_out);
    if (lane > 0)
        return;
    to->count = left_out ? 0 : count;
    if (!left_out)
        to->factor = gpu_end_row<true>(p, call, s, query, head, most, all);
}

/* A block has a head of a query, a thread four elements. */
template <int DTYPE>
__global__ void __launch_bounds__(GPU_ATTENTION_THREADS)
    gpu_attention_latent_join(GPU_PARAMETER rope_attention_problem problem,
                              GPU_PARAMETER rope_attention_call call,
                              GPU_PARAMETER gpu_attention_parts parts) {
    enum { MANY = 16, HALF = SM90_LATENT_VALUE_DIM / 2 };
    __shared__ sm90_latent_joined row;
    __shared__ rope_attention_sequence s;
    const int query = (int)(blockIdx.x % parts.queries), head = (int)blockIdx.y,
              sequence = (int)(blockIdx.x / parts.queries), first = 2 * (int)threadIdx.x;
    const auto part =
        gpu_part(parts, sequence, query, head, call.rope.tensor[0].heads, 0, SM90_LATENT_VALUE_DIM);
    int splits = 0;
    if (threadIdx.x < 32) { /* of what was there before the launch that made parts */
        const rope_attention_sequence own = rope_attention_sequence_of(&problem, &call, sequence);
        if (!own.fails && query < own.q_count && gpu_is_split(parts, &own))
            splits = sm90_latent_split(&problem, &own).count;
        if (threadIdx.x == 0) {
            s = own;
            row.count = 0;
        }
    }
    gpu_wait_for_last();
    gpu_let_next_start();
    __syncthreads();
    if (splits > 1)
        sm90_latent_weights(&problem, &call, &s, query, head, part, splits, &row);
    __syncthreads();
    const int count = row.count;
    float2 sum[2] = {};
#pragma unroll 1
    for (int n = 0; n < count; n += MANY) {
        float2 x[MANY][2];
#pragma unroll
        for (int i = 0; i < 2 * MANY; i++)
            x[i / 2][i % 2] =
                n + i / 2 < count
                    ? *(const float2 *)(const void *)(part + first + i % 2 * HALF +
                                                      (n + i / 2) * (SM90_LATENT_VALUE_DIM + 2))
                    : float2{0, 0};
#pragma unroll
        for (int i = 0; i < 2 * MANY; i++) {
            const float weight = row.weight[n + i / 2];
            sum[i % 2].x = fmaf(weight, x[i / 2][i % 2].x, sum[i % 2].x);
            sum[i % 2].y = fmaf(weight, x[i / 2][i % 2].y, sum[i % 2].y);
        }
    }
    if (count == 0)
        return;
    uint16_t *to = gpu_attention_out<DTYPE>(&call, &s, query, head) + first;
#pragma unroll
    for (int i = 0; i < 2; i++)
        *(uint32_t *)(void *)(to + i * HALF) = gpu_end_pair<DTYPE>(sum[i].x, sum[i].y, row.factor);
}

#define KERNELS(dtype)                                                                             \
    { GPU_KERNEL(gpu_attention_latent<dtype>), GPU_KERNEL(gpu_attention_latent_join<dtype>) }
const void *const gpu_attention_sm90_latent_kernels[2][2] = {KERNELS(GPU_SM90_F16),
                                                             KERNELS(GPU_SM90_BF16)};
