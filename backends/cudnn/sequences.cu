#include "backends/gpu/platform/device_code.h"

#include "backends/cudnn/sequences.h"

#include "backends/cudnn/visible_keys.h"
#include "common/math/half.h"

namespace {

/* Keys that some query of a sequence may see. */
__device__ rope_key_range used_keys(const rope_attention_problem *p,
                                    const rope_attention_sequence *s) {
    if (s->fails || s->q_count == 0)
        return rope_key_range{0, 0};
    return rope_key_range{rope_keys_seen(p, s, rope_query_index(s, 0)).begin,
                          rope_keys_seen(p, s, rope_query_index(s, s->q_count - 1)).end};
}

__device__ void set_index(const rope_attention_call *c, void *list, int64_t n, int64_t value) {
    if (c->rope.position.wide)
        static_cast<int64_t *>(list)[n] = value;
    else
        static_cast<int32_t *>(list)[n] = static_cast<int32_t>(value);
}

/* Pages of sequence n, of all threads. Whether one lacks that is used. */
__device__ bool fill_table(const dnn_lists &l, const rope_attention_sequence &s, int64_t n) {
    __shared__ int lacks;
    const rope_attention_call &c = l.call;
    const int64_t size = l.problem.page_size;
    const rope_key_range used = used_keys(&l.problem, &s);
    __syncthreads();
    if (threadIdx.x == 0)
        lacks = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < l.table_pages; i += blockDim.x) {
        const int64_t page = rope_index_of(l.problem.table_wide, c.block_table,
                                           n * c.table_stride[0] + i * c.table_stride[1]);
        const bool there = page >= 0 && page < c.pages;
        l.table[n * l.table_pages + i] = there ? static_cast<int32_t>(page) : 0;
        if (!there && i * size < used.end && (i + 1) * size > used.begin)
            lacks = 1;
    }
    __syncthreads();
    return lacks;
}

__device__ bool is_of_keys(int tensor) {
    return tensor == DNN_K || tensor == DNN_V || tensor == DNN_DK || tensor == DNN_DV;
}

__device__ void set_begins(const dnn_lists &l, const rope_attention_sequence &s, int64_t n,
                           int64_t skip, bool fails) {
    const int64_t last = rope_attention_sequences(&l.call) - 1;
    for (int t = 0; t < DNN_TENSORS; t++) {
        if (!l.begin[t])
            continue;
        const bool keys = is_of_keys(t);
        const int64_t row = (keys ? s.k_row : s.q_row) * l.stride[t][0],
                      first = keys ? s.k_first : s.q_first + skip,
                      end = keys ? s.k_first + s.k_count : s.q_first + s.q_count;
        l.begin[t][n] = fails ? 0 : row + first * l.stride[t][1];
        if (n == last)
            l.begin[t][n + 1] = fails ? 0 : row + end * l.stride[t][1];
    }
}

__device__ void set_lengths(const dnn_lists &l, const rope_attention_sequence &s, int64_t n,
                            bool fails) {
    const rope_position_map *map = &l.call.rope.position;
    const int64_t keys = dnn_keys(&l.problem, &s),
                  hidden = fails ? 0 : dnn_hidden(&l.problem, s.q_count, keys),
                  skip = l.skips ? hidden : 0,
                  queries = fails || hidden == s.q_count ? 0 : s.q_count - skip;
    l.q_lengths[n] = static_cast<int32_t>(queries);
    l.k_lengths[n] = queries ? static_cast<int32_t>(keys) : 0;
    l.fails[n] = fails;
    if (fails && l.call.rope.position_flag)
        *l.call.rope.position_flag = 1;
    set_begins(l, s, n, skip, fails);
    if (l.shifts) { /* from a query's index in its sequence to that among all keys, and its offset */
        const int64_t begin = map->cu_seqlens ? rope_index_at(map, map->cu_seqlens, n) : 0,
                      shift = rope_sum(rope_difference(rope_sum(s.q_index, s.k_index), s.q_first),
                                       begin);
        set_index(&l.call, l.shifts, n,
                  fails ? 0
                        : rope_sum(shift, map->offsets ? rope_index_at(map, map->offsets, n) : 0));
    }
}

__device__ float sink_at(const dnn_lists &l, int64_t head) {
    const uint16_t bits = static_cast<const uint16_t *>(l.call.sinks)[head];
    return l.problem.rope.dtype == ROPE_BF16 ? rope_from_bf16(bits) : rope_from_f16(bits);
}

__global__ void __launch_bounds__(DNN_THREADS) lists(GPU_PARAMETER dnn_lists given) {
    const dnn_lists &l = *gpu_parameter<dnn_lists>(given);
    if (l.sinks && blockIdx.x == 0)
        for (int64_t h = threadIdx.x; h < l.call.rope.tensor[0].heads; h += blockDim.x)
            l.sinks[h] = sink_at(l, h);
    if (!l.q_lengths)
        return;
    for (int64_t n = blockIdx.x; n < rope_attention_sequences(&l.call); n += gridDim.x) {
        const rope_attention_sequence s = rope_attention_sequence_of(&l.problem, &l.call, n);
        const bool lacks = l.table && fill_table(l, s, n);
        if (threadIdx.x == 0)
            set_lengths(l, s, n, s.fails || lacks || dnn_keys(&l.problem, &s) < 0);
    }
}

/* The sequence of a token, of queries or of keys; -1: none. */
__device__ int64_t find(const dnn_rows &r, int64_t row, int64_t token) {
    const rope_position_map *map = r.keys ? &r.call.k_position : &r.call.rope.position;
    return map->cu_seqlens ? rope_find_sequence(map, token) : row;
}

__device__ void set_lse(const dnn_rows &r, int64_t row, int64_t token) {
    for (int64_t h = threadIdx.x; h < r.heads; h += blockDim.x)
        r.lse[row * r.call.lse_stride[0] + token * r.call.lse_stride[1] +
              h * r.call.lse_stride[2]] = r.sinks ? r.sinks[h] : -INFINITY;
}

__device__ void set_row(const dnn_rows &r, int64_t row, int64_t token, int64_t tokens, bool zero) {
    for (int64_t i = threadIdx.x; i < r.heads * r.dim; i += blockDim.x)
        r.to[row * r.to_stride[0] + token * r.to_stride[1] + i / r.dim * r.to_stride[2] +
             i % r.dim * r.to_stride[3]] =
            zero ? 0 : r.from[(row * tokens + token) * r.heads * r.dim + i];
}

__global__ void __launch_bounds__(DNN_THREADS) rows(GPU_PARAMETER dnn_rows given) {
    const dnn_rows &r = *gpu_parameter<dnn_rows>(given);
    const int64_t tokens = r.keys ? r.call.k_tokens : r.call.rope.tokens;
    for (int64_t i = blockIdx.x; i < r.call.rope.batch * tokens; i += gridDim.x) {
        const int64_t row = i / tokens, token = i % tokens, n = find(r, row, token);
        if (n < 0 || (r.fails && r.fails[n]))
            continue;
        const rope_attention_sequence s = rope_attention_sequence_of(&r.problem, &r.call, n);
        const int64_t at = token - (r.keys ? s.k_first : s.q_first),
                      hidden = dnn_hidden(&r.problem, s.q_count, dnn_keys(&r.problem, &s));
        if (s.fails || at < 0 || at >= (r.keys ? s.k_count : s.q_count))
            continue;
        const bool unseen = r.keys ? hidden == s.q_count : at < hidden;
        if (r.lse && unseen)
            set_lse(r, row, token);
        if (r.to && (r.from || unseen))
            set_row(r, row, token, tokens, r.zeroes && unseen);
    }
}

__global__ void __launch_bounds__(DNN_THREADS) lse(GPU_PARAMETER dnn_lse given) {
    const dnn_lse &l = *gpu_parameter<dnn_lse>(given);
    const int64_t count = l.size[0] * l.size[1] * l.size[2];
    for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < count;
         i += gridDim.x * static_cast<int64_t>(blockDim.x)) {
        const int64_t head = i % l.size[2], token = i / l.size[2] % l.size[1],
                      row = i / l.size[2] / l.size[1];
        l.to[row * l.to_stride[0] + token * l.to_stride[1] + head * l.to_stride[2]] =
            l.from[row * l.from_stride[0] + token * l.from_stride[1] + head * l.from_stride[2]];
    }
}

} // namespace

static_assert(sizeof(dnn_lists) <= 4096 && sizeof(dnn_rows) <= 4096, "a kernel's parameters");

const void *const dnn_lists_kernel = GPU_KERNEL(lists);
const void *const dnn_rows_kernel = GPU_KERNEL(rows);
const void *const dnn_lse_kernel = GPU_KERNEL(lse);
