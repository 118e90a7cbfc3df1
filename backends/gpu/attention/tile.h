/*
 * 16-bit heads of D and DV elements by matrix instructions: a block has ROWS rows, a warp some
 * 16s of them, and walks over tiles of keys and values. A tile's values and the next one's keys are
 * copied to shared memory while its products are summed. Tiles begin at multiples of their size,
 * and one that a row does not see leaves it as it is, so a row's bits do not depend on its
 * neighbours.
 */
#ifndef ROPEKIT_GPU_ATTENTION_TILE_H
#define ROPEKIT_GPU_ATTENTION_TILE_H

#include "backends/gpu/attention/place.h"
#include "backends/gpu/attention/products.h"
#include "backends/gpu/attention/rows.h"
#include "backends/gpu/stored.h"

/* Keys of which it is known where they lie: of as many tiles at a time as a block has threads. */
enum { GPU_TILE_PLACES = 2 * GPU_ATTENTION_THREADS };

/* Of a thread's rows, largest logits in units of log 2 and sums of its own columns. They wait in
 * shared memory, as registers do not hold them beside a tile's products. */
template <int ROWS> struct gpu_tile_sums {
    float largest[gpu_row_blocks<ROWS>][GPU_LANE_ROWS], sum[gpu_row_blocks<ROWS>][GPU_LANE_ROWS];
};

/* How a row ends: what its elements are multiplied by, whether it saw no key, and the elements from
 * out's element 0 to its own, GPU_TILE_NOWHERE where it is left out. */
constexpr int64_t GPU_TILE_NOWHERE = INT64_MIN;
struct gpu_tile_end {
    float factor;
    int32_t none;
    int64_t out;
};

/* Elements of a head that are infinite, and those that are below 0; NaN is both. */
template <int DV> struct gpu_tile_signs { uint32_t above[DV / 32], below[DV / 32]; };

/* Keys from..end - 1 of the block's are seen by some row, common..common_end - 1 by all. Tiles
 * within whole..end - 1 are copied as they are: none where heads have fewer elements than a tile.
 */
struct gpu_tile_keys_seen {
    int32_t whole, end, from, common, common_end;
};

/* What threads of a block share, beside queries and tiles of keys and values. */
struct gpu_tile_block {
    gpu_attention_tile tile;
    int32_t first[GPU_TILE_ROWS], last[GPU_TILE_ROWS]; /* keys that a row sees, from `base` on */
    gpu_tile_sums<GPU_TILE_ROWS> sums[GPU_ATTENTION_THREADS];
    gpu_tile_end ends[GPU_ATTENTION_THREADS];
    uint64_t sees[GPU_ATTENTION_THREADS]; /* keys of a tile, by a row of a thread's warp */
    int32_t special_tile, has_special; /* the last one that has such values, 0 none; a row does */
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

/* The same, with values that are not finite: those of a tile, and those that reach out, by a row of
 * a warp. */
template <int DV, int ROWS> struct gpu_tile_block_of : gpu_tile_block {
    enum { EACH = 16 * gpu_row_blocks<ROWS>, COUNT = EACH * GPU_TILE_WARPS };
    gpu_tile_signs<DV> special[COUNT];
    uint8_t signs[2][gpu_block_keys<ROWS>][DV / 8];
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

template <int DV, int ROWS>
GPU_FN gpu_tile_block_of<DV, ROWS> &gpu_block_of(const gpu_tile_call &t) {
    return *static_cast<gpu_tile_block_of<DV, ROWS> *>(t.b);
}

/* Of the values that reach out, those of a row of the thread's warp. */
template <int DV, int ROWS>
GPU_FN gpu_tile_signs<DV> &gpu_special_of(const gpu_tile_call &t, int row) {
    gpu_tile_block_of<DV, ROWS> &b = gpu_block_of<DV, ROWS>(t);
    return b.special[gpu_thread() / GPU_TILE_LANES * b.EACH + row];
}

/* --- queries --- */

/* Row `row` of the block as one of its sequence's. */
GPU_FN bool gpu_tile_query(const gpu_tile_call &t, int row, int64_t *query, int64_t *head) {
    *query = t.b->query0 + t.b->query[row];
    *head = t.b->head * t.b->group + t.b->tile.first + row - *query * t.b->group;
    return *query < t.b->tile.s.q_count;
}

/* Where the heads of the block's rows begin. */
template <int ROWS> GPU_FN void gpu_tile_place_queries(const gpu_tile_call &t) {
    const rope_operand *o = &gpu_reread(t.call)->rope.tensor[0];
    const int64_t *stride = o->out ? o->out_stride : o->in_stride;
    const rope_attention_sequence *s = &t.b->tile.s;
    const int row = gpu_thread();
    int64_t query, head;
    if (row < gpu_block_rows<ROWS>)
        t.b->queries[row] = gpu_tile_query(t, row, &query, &head)
                                ? (uint32_t)((s->q_row * stride[0] +
                                              (s->q_first + query) * stride[1] + head * stride[2]) /
                                             8)
                                : (uint32_t)GPU_TILE_NONE;
}

template <int DTYPE, int D, int ROWS> GPU_FN void gpu_tile_copy_queries(const gpu_tile_call &t) {
    const rope_operand *o = &gpu_reread(t.call)->rope.tensor[0];
    const char *from = (const char *)(o->out ? o->out : o->in);
    const int dim = gpu_reread(t.p)->head_dim;
#pragma unroll 4
    for (int e = gpu_thread(); e < gpu_block_rows<ROWS> * D / 8; e += GPU_ATTENTION_THREADS) {
        const int row = e / (D / 8), chunk = e % (D / 8);
        const uint32_t at = t.b->queries[row];
        const bool there = at != GPU_TILE_NONE && 8 * chunk < dim;
        gpu_copy_async(t.queries + gpu_swizzled<D>(row, chunk),
                       from + 16 * (there ? (int64_t)at + chunk : 0), there);
    }
}

template <int DTYPE, int D, int ROWS> GPU_FN void gpu_tile_read_queries(const gpu_tile_call &t) {
    int64_t query, head;
    for (int e = gpu_thread(); e < gpu_block_rows<ROWS> * D; e += GPU_ATTENTION_THREADS) {
        const bool there =
            gpu_tile_query(t, e / D, &query, &head) && e % D < gpu_reread(t.p)->head_dim;
        *gpu_swizzled_element<D>(t.queries, e / D, e % D) =
            gpu_narrow<DTYPE>(there ? gpu_query_element<DTYPE>(&gpu_reread(t.call)->rope.tensor[0],
                                                               &t.b->tile.s, query, head, e % D)
                                    : 0);
    }
}

template <int DTYPE, int D, int ROWS> GPU_FN void gpu_tile_fetch_queries(const gpu_tile_call &t) {
    if (gpu_fits(t, GPU_TILE_Q))
        gpu_tile_copy_queries<DTYPE, D, ROWS>(t);
    else
        gpu_tile_read_queries<DTYPE, D, ROWS>(t);
}

/* Rotates queries where they lie. Coefficients of a pair serve all heads of a query; tokens: room
 * for one of each query. */
template <int DTYPE, int D, int ROWS>
GPU_FN void gpu_tile_rotate_queries(const gpu_tile_call &t, rope_token *tokens) {
    const rope_problem *p = &gpu_reread(t.p)->rope;
    const int64_t group = t.b->group, query0 = t.b->query0,
                  to = query0 + t.b->query[gpu_block_rows<ROWS> - 1];
    const int count = (int)((to < t.b->tile.s.q_count ? to + 1 : t.b->tile.s.q_count) - query0);
    for (int n = gpu_thread(); n < count; n += GPU_ATTENTION_THREADS)
        rope_query_token(gpu_reread(t.p), gpu_reread(t.call), &t.b->tile.s, query0 + n, &tokens[n]);
    __syncthreads();
    const int pairs = p->pairs;
    const bool moves = p->pairing_in != p->pairing_out;
    for (int e = gpu_thread(); e < count * pairs; e += GPU_ATTENTION_THREADS) {
        const rope_token *token = &tokens[e / pairs];
        const int i = e % pairs, from = p->rotary_offset[0];
        if (token->status != ROPE_TOKEN_ROTATES && !moves)
            continue;
        rope_coefficients m = {1, 0, 1, 0};
        if (token->status == ROPE_TOKEN_ROTATES)
            m = rope_coefficients_of(gpu_reread(p), &gpu_reread(t.call)->rope, token, i, 0);
        const int64_t row0 = (query0 + e / pairs) * group - t.b->tile.first;
        for (int64_t g = row0 < 0 ? -row0 : 0; g < group && row0 + g < gpu_block_rows<ROWS>; g++) {
            const int row = (int)(row0 + g), first = from + rope_first_of(p->pairing_in, i),
                      second = from + rope_second_of(p->pairing_in, i, pairs);
            rope_pair x;
            if (moves) {
                const rope_operand *o = &gpu_reread(t.call)->rope.tensor[0];
                const int64_t head = t.b->head * group + g, query = query0 + e / pairs;
                x.x1 = gpu_query_element<DTYPE>(o, &t.b->tile.s, query, head, first);
                x.x2 = gpu_query_element<DTYPE>(o, &t.b->tile.s, query, head, second);
            } else {
                x.x1 = gpu_widen<DTYPE>(*gpu_swizzled_element<D>(t.queries, row, first));
                x.x2 = gpu_widen<DTYPE>(*gpu_swizzled_element<D>(t.queries, row, second));
            }
            if (token->status == ROPE_TOKEN_ROTATES)
                x = p->arithmetic == ROPE_ARITHMETIC_MODEL_DTYPE ? gpu_rotate_model<DTYPE>(x, m)
                                                                 : rope_rotate(x, m);
            const uint32_t two = gpu_join<DTYPE>(x.x1, x.x2);
            *gpu_swizzled_element<D>(t.queries, row, from + rope_first_of(p->pairing_out, i)) =
                (uint16_t)two;
            *gpu_swizzled_element<D>(t.queries, row,
                                     from + rope_second_of(p->pairing_out, i, pairs)) =
                (uint16_t)(two >> 16);
        }
    }
}

/* --- keys that rows see --- */

GPU_FN int32_t gpu_tile_near(int64_t key, int64_t base) {
    const int64_t n = key - base;
    return (int32_t)(n < -1 ? -1 : n > INT32_MAX ? INT32_MAX : n);
}

/* Keys that a query sees, of those within a range. */
GPU_FN rope_key_range gpu_tile_seen(const gpu_tile_call &t, int64_t query, rope_key_range within) {
    const rope_attention_sequence *s = &t.b->tile.s;
    const int64_t last = s->q_count - 1;
    return gpu_within(
        rope_keys_seen(gpu_reread(t.p), s, rope_query_index(s, query < last ? query : last)),
        within);
}

/* Row `row`, a thread's own: its query, and the keys that it sees. A query that has no position
 * sees nothing, and is left out. */
GPU_FN void gpu_tile_see_row(const gpu_tile_call &t, int row, int64_t query,
                             rope_key_range within) {
    gpu_tile_block *b = t.b;
    const rope_key_range seen = gpu_tile_seen(t, query, within);
    b->query[row] = (int32_t)(query - b->query0);
    b->first[row] = gpu_tile_near(seen.first, b->base.key);
    b->last[row] = gpu_tile_near(seen.last, b->base.key);
    if (!gpu_queries_may_fail(gpu_reread(t.p)) || query >= b->tile.s.q_count)
        return;
    rope_token *token = (rope_token *)(void *)t.stage + threadIdx.x;
    rope_query_token(gpu_reread(t.p), gpu_reread(t.call), &b->tile.s, query, token);
    if (token->status == ROPE_TOKEN_FAILS) {
        b->first[row] = INT32_MAX;
        gpu_attention_flag(gpu_reread(t.call));
    }
}

/* What is seen does not fall from a query to the next. */
template <int D, int ROWS>
GPU_FN void gpu_tile_see(const gpu_tile_call &t, int32_t head, rope_key_range within) {
    enum { COUNT = gpu_block_rows<ROWS> };
    gpu_tile_block *b = t.b;
    const int64_t group = gpu_attention_group(gpu_reread(t.call)), first = b->tile.first;
    if (gpu_thread() == 0) {
        const int64_t query0 = first / group;
        const rope_key_range before = gpu_tile_seen(t, query0, within),
                             after = gpu_tile_seen(t, (first + COUNT - 1) / group, within);
        const int64_t base = before.first / GPU_TILE_KEYS * GPU_TILE_KEYS;
        b->head = head;
        b->group = group;
        b->query0 = query0;
        const int32_t from = gpu_tile_near(before.first, base);
        b->seen = {gpu_reread(t.p)->head_dim == D && gpu_reread(t.p)->v_head_dim == D ? from
                                                                                      : INT32_MAX,
                   before.first < after.last ? gpu_tile_near(after.last, base) : 0, from,
                   gpu_tile_near(after.first, base), gpu_tile_near(before.last, base)};
        b->base = gpu_key_origin_of(gpu_reread(t.p), base);
        b->source[0] = gpu_key_source_of(&gpu_reread(t.call)->k, &b->tile.s, head);
        b->source[1] = gpu_key_source_of(&gpu_reread(t.call)->v, &b->tile.s, head);
    }
    __syncthreads();
    for (int row = gpu_thread(); row < COUNT; row += GPU_ATTENTION_THREADS)
        gpu_tile_see_row(t, row, (first + row) / group, within);
    if (gpu_fits(t, GPU_TILE_Q))
        gpu_tile_place_queries<ROWS>(t);
}

/* --- keys and values --- */

/* Rows of a tile that threads copy at a time. */
template <int D> constexpr int gpu_copy_step = GPU_ATTENTION_THREADS * 8 / D;

/* Places of a thread's rows of a tile of KEYS lie side by side. */
template <int D, int KEYS = GPU_TILE_KEYS> GPU_FN int gpu_place_index(int n) {
    enum { STEP = gpu_copy_step<D> };
    const int row = n % KEYS;
    return n % GPU_TILE_PLACES - row + row % STEP * (KEYS / STEP) + row / STEP;
}

/* Keys, or values. */
GPU_FN const rope_append_operand *gpu_tile_operand(const gpu_tile_call &t, int value) {
    return value ? &gpu_reread(t.call)->v : &gpu_reread(t.call)->k;
}

/* Where the heads of a thread's key, of those from `first` of the block's on, begin; of a key that
 * no row sees, 0. */
template <int D, int KEYS> GPU_FN void gpu_tile_place(const gpu_tile_call &t, int first) {
    const int n = first + gpu_thread();
    gpu_tile_block *b = t.b;
    const bool seen = n >= b->seen.from && n < b->seen.end;
#pragma unroll
    for (int value = 0; value < 2; value++)
        b->places[value][gpu_place_index<D, KEYS>(n)] =
            seen ? (uint32_t)(gpu_place_at(b->source[value],
                                           gpu_place_from(gpu_reread(t.p), gpu_reread(t.call),
                                                          gpu_tile_operand(t, value), &b->tile.s,
                                                          b->base, n)) /
                              8)
                 : 0;
}

/* Copies rows of a tile of KEYS, all or those of a range; at: where a thread's first one goes. */
template <int D, bool ALL, int KEYS = GPU_TILE_KEYS>
GPU_FN void gpu_tile_copy_rows(const char *from, const uint32_t *places, int first, unsigned count,
                               char *to, int at) {
    enum { STEP = gpu_copy_step<D> };
#pragma unroll
    for (int e = 0; e < KEYS / STEP; e += 4) {
        const uint4 four = *(const uint4 *)(const void *)(places + e);
        const uint32_t place[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int i = 0; i < 4; i++)
            gpu_copy_async(to + gpu_swizzled_further<D>(at, (e + i) * STEP),
                           from + 16 * (uint64_t)place[i],
                           ALL || (unsigned)(first + (e + i) * STEP) < count);
    }
}

/* Copies a tile's rows to shared memory, zeros for keys that no row sees, and where heads have
 * fewer elements than D. */
template <int D, int KEYS>
GPU_FN void gpu_tile_copy(const gpu_tile_call &t, int value, int first, char *to) {
    const int thread = gpu_thread(), row = thread / (D / 8), chunk = thread % (D / 8),
              at = gpu_swizzled<D>(row, chunk), end = t.b->seen.end;
    const char *from = t.b->source[value].data;
    const uint32_t *places = t.b->places[value] + gpu_place_index<D, KEYS>(first + row);
    if (first >= t.b->seen.whole && first + KEYS <= end) {
        gpu_tile_copy_rows<D, true, KEYS>(from + 16 * chunk, places, 0, 0, to, at);
        return;
    }
    const int before = t.b->seen.from,
              dim = value ? gpu_reread(t.p)->v_head_dim : gpu_reread(t.p)->head_dim;
    const bool there = 8 * chunk < dim && end > before;
    gpu_tile_copy_rows<D, false, KEYS>(there ? from + 16 * chunk : from, places,
                                       first + row - before, there ? (unsigned)(end - before) : 0,
                                       to, at);
}

/* AMD's compiler reaches these elements by flat instructions, and spills. */
#ifdef GPU_QUERIES_LEFT
/* What elements of the block's key n are multiplied by. */
GPU_FN float gpu_tile_scale(const gpu_tile_call &t, int value, int n) {
    const rope_append_operand *o = gpu_tile_operand(t, value);
    const rope_append_steps *steps = value ? &gpu_reread(t.p)->v : &gpu_reread(t.p)->k;
    gpu_key_place place = {0, 0};
    if (steps->scale && (o->scale_stride[0] | o->scale_stride[1]))
        place = gpu_place_from(gpu_reread(t.p), gpu_reread(t.call), o, &t.b->tile.s, t.b->base, n);
    return gpu_place_scale(gpu_reread(t.call), o, steps, place.page, place.slot, t.b->head);
}

/* The same of elements of another type, eight at a time. */
template <int DTYPE, int D, int KEYS>
GPU_FN void gpu_tile_convert(const gpu_tile_call &t, int value, int first, char *to) {
    enum { STEP = gpu_copy_step<D>, SOME = 4 };
    const int row = gpu_thread() / (D / 8), chunk = gpu_thread() % (D / 8),
              type = (value ? gpu_reread(t.p)->v : gpu_reread(t.p)->k).store_dtype,
              bytes = type >= ROPE_F8E4M3 ? 8
                      : type == ROPE_F32  ? 32
                                          : 16;
    const bool used = 8 * chunk < (value ? gpu_reread(t.p)->v_head_dim : gpu_reread(t.p)->head_dim);
    const char *from = t.b->source[value].data + chunk * bytes;
    const uint32_t *places = t.b->places[value] + gpu_place_index<D, KEYS>(first + row);
#pragma unroll 1
    for (int e = 0; e < KEYS / STEP; e += SOME) {
        gpu_vector<DTYPE, GPU_STORED> x[SOME];
#pragma unroll
        for (int i = 0; i < SOME; i++) {
            const int n = first + row + (e + i) * STEP;
            x[i] = {};
            if (used && n >= t.b->seen.from && n < t.b->seen.end)
                x[i] = gpu_load_vector_as<DTYPE>(type, from + (uint64_t)places[e + i] * bytes);
        }
#pragma unroll
        for (int i = 0; i < SOME; i++) {
            const int n = first + row + (e + i) * STEP;
            if (type >= ROPE_F8E4M3 && n >= t.b->seen.from && n < t.b->seen.end)
                x[i] = gpu_dequantize<DTYPE>(type, gpu_tile_scale(t, value, n), x[i]);
            gpu_store<DTYPE, GPU_STORED>(to + gpu_swizzled<D>(row + (e + i) * STEP, chunk), x[i]);
        }
    }
}

#endif

/* The same, one at a time. */
template <int DTYPE, int D, int KEYS>
GPU_FN void gpu_tile_read(const gpu_tile_call &t, int value, int first, char *to) {
    const int dim = value ? gpu_reread(t.p)->v_head_dim : gpu_reread(t.p)->head_dim;
    const rope_append_operand *o = gpu_tile_operand(t, value);
    const rope_append_steps *steps = value ? &gpu_reread(t.p)->v : &gpu_reread(t.p)->k;
#pragma unroll 1
    for (int row = gpu_thread() / GPU_TILE_LANES; row < KEYS; row += GPU_TILE_WARPS) {
        const int n = first + row;
        const bool there = n >= t.b->seen.from && n < t.b->seen.end;
        gpu_attention_head h = {0, 1};
        if (there) {
            const gpu_key_place place =
                gpu_place_from(gpu_reread(t.p), gpu_reread(t.call), o, &t.b->tile.s, t.b->base, n);
            h.at = gpu_place_at(t.b->source[value], place);
            if (gpu_is_cached(o))
                h.scale = gpu_place_scale(gpu_reread(t.call), o, steps, place.page, place.slot,
                                          t.b->head);
        }
        for (int i = gpu_lane(); i < D; i += GPU_TILE_LANES)
            *gpu_swizzled_element<D>(to, row, i) =
                there && i < dim
                    ? (uint16_t)gpu_narrow<DTYPE>(gpu_attention_element<DTYPE>(o, steps, h, i))
                    : (uint16_t)0;
    }
}

/* --- a tile --- */

/* Whether all rows see all keys of a tile, the same ones, or each its own; or a warp's none. */
enum { GPU_TILE_WHOLE, GPU_TILE_ALIKE, GPU_TILE_APART, GPU_TILE_UNSEEN };

/* Of `keys` keys from `first` of the block's on, for a block's rows. */
GPU_FN int32_t gpu_tile_state(const gpu_tile_call &t, const gpu_tile_keys_seen &seen, int first,
                              int keys) {
    if (gpu_reread(t.p)->mask == ROPE_MASK_TREE)
        return GPU_TILE_APART;
    if (first >= seen.common && first + keys <= seen.common_end)
        return GPU_TILE_WHOLE;
    return seen.from == seen.common && seen.end == seen.common_end ? GPU_TILE_ALIKE
                                                                   : GPU_TILE_APART;
}

/* The same for a warp's rows and keys. */
template <int ROWS>
GPU_FN int32_t gpu_warp_state(const gpu_tile_call &t, const gpu_tile_keys_seen &seen, int first) {
    const int32_t state = gpu_tile_state(t, seen, first, gpu_warp_keys<ROWS>);
    return state != GPU_TILE_WHOLE && gpu_reread(t.p)->mask != ROPE_MASK_TREE &&
                   t.b->last[gpu_warp_row<ROWS>() + 16 * gpu_row_blocks<ROWS> - 1] <= first
               ? GPU_TILE_UNSEEN
               : state;
}

/* cap * tanh(x / cap) of x = scale * s. */
template <int ROWS>
GPU_FN void gpu_tile_cap(float scale, float cap,
                         float s[gpu_row_blocks<ROWS>][gpu_key_parts<ROWS>][4]) {
    const float to_cap = scale / cap;
#pragma unroll
    for (int m = 0; m < gpu_row_blocks<ROWS>; m++)
#pragma unroll
        for (int n = 0; n < gpu_key_parts<ROWS>; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[m][n][e] = cap * gpu_tanh(s[m][n][e] * to_cap);
}

/* Bits first.. of a row's words, 1 before bit 0. */
GPU_FN uint64_t gpu_tree_bits(const uint32_t *words, int64_t count, int64_t first) {
    uint32_t w[3];
#pragma unroll
    for (int i = 0; i < 3; i++) {
        const int64_t n = (first >> 5) + i;
        w[i] = n < 0 ? 0xffffffffu : n < count ? words[n] : 0;
    }
    const int shift = (int)(first & 31);
    const uint64_t low = w[0] | (uint64_t)w[1] << 32;
    return shift ? low >> shift | (uint64_t)w[2] << (64 - shift) : low;
}

/* Bits from..to - 1, of 64. */
GPU_FN uint64_t gpu_bits_between(int from, int to) {
    const uint64_t before = from <= 0    ? 0
                            : from >= 64 ? ~UINT64_C(0)
                                         : (UINT64_C(1) << from) - 1,
                   upto = to <= 0    ? 0
                          : to >= 64 ? ~UINT64_C(0)
                                     : (UINT64_C(1) << to) - 1;
    return upto & ~before;
}

/* Which of 64 keys from `key` on are near a query, where keys count by position ids. */
GPU_FN uint64_t gpu_tree_near(const rope_attention_problem *p, const rope_attention_call *call,
                              const rope_attention_sequence *s, int64_t query, int64_t key) {
    const rope_key_range near = rope_keys_near(p, s, rope_query_counted(call, s, query));
    uint64_t sees = 0;
#pragma unroll 1
    for (int n = 0; n < 64 && key + n < s->k_count; n++) {
        const int64_t counted = rope_key_counted(call, s, key + n);
        sees |= (uint64_t)(counted >= near.first && counted < near.last) << n;
    }
    return sees;
}

/* Which of 64 keys from `key` on a query sees by its tree, if there is one. */
GPU_FN uint64_t gpu_tree_sees(const rope_attention_problem *p, const rope_attention_call *call,
                              const rope_attention_sequence *s, int64_t query, int64_t key) {
    if (p->mask != ROPE_MASK_TREE)
        return ~UINT64_C(0);
    const uint64_t sees = gpu_tree_bits(call->tree_bits + s->q_row * call->tree_stride[0] +
                                            (s->q_first + query) * call->tree_stride[1],
                                        (call->tree_keys + 31) / 32, rope_tree_bit(call, s, key));
    return s->by_id ? sees & gpu_tree_near(p, call, s, query, key) : sees;
}

/* Which keys of a tile a row sees; first: the tile's, from the block's base on. */
GPU_FN uint64_t gpu_tile_sees(const gpu_tile_call &t, int row, int first) {
    const int64_t n = t.b->query0 + t.b->query[row];
    const rope_attention_sequence *q = &t.b->tile.s;
    uint64_t sees = gpu_bits_between(t.b->first[row] - first, t.b->last[row] - first);
    if (n < q->q_count)
        sees &= gpu_tree_sees(gpu_reread(t.p), gpu_reread(t.call), q, n, t.b->base.key + first);
    return sees;
}

/* -infinity for keys that a row does not see. Each lane finds out for one row. */
template <int ROWS>
GPU_FN void gpu_tile_mask(const gpu_tile_call &t, int first,
                          float s[gpu_row_blocks<ROWS>][gpu_key_parts<ROWS>][4]) {
    const int lane = gpu_lane();
    uint64_t *rows = t.b->sees + (gpu_thread() - lane);
    rows[lane] = gpu_tile_sees(t, gpu_warp_row<ROWS>() + lane % (16 * gpu_row_blocks<ROWS>), first);
    gpu_warp_barrier();
#pragma unroll
    for (int m = 0; m < gpu_row_blocks<ROWS>; m++)
#pragma unroll
        for (int h = 0; h < GPU_LANE_ROWS; h++) {
            const uint64_t sees = rows[16 * m + gpu_row_of(lane, h)] >> gpu_first_key_of(lane);
#pragma unroll
            for (int n = 0; n < gpu_key_parts<ROWS>; n++)
#pragma unroll
                for (int e = h * GPU_LANE_ELEMENTS; e < (h + 1) * GPU_LANE_ELEMENTS; e++)
                    if (!(sees >> gpu_key_of(n, e) & 1))
                        s[m][n][e] = -INFINITY;
        }
    gpu_warp_barrier();
}

/* A row's largest logit stands for weights up to 2^this: it need not rise for every larger one. */
constexpr float GPU_TILE_SLACK = 8;

/* Of a row of a tile, a lane's largest logit. */
template <int N> GPU_FN float gpu_tile_most(const float s[N][4], int h) {
    float most[N];
#pragma unroll
    for (int n = 0; n < N; n++) {
        const float *x = s[n] + h * GPU_LANE_ELEMENTS;
        most[n] = fmaxf(x[0], x[1]);
#pragma unroll
        for (int e = 2; e < GPU_LANE_ELEMENTS; e += 2)
            most[n] = fmaxf(most[n], fmaxf(x[e], x[e + 1]));
    }
#pragma unroll
    for (int step = 1; step < N; step *= 2)
#pragma unroll
        for (int n = 0; n < N; n += 2 * step)
            most[n] = fmaxf(most[n], most[n + step]);
    return most[0];
}

/* One of each of a lane's rows. */
template <int ROWS> using gpu_lane_rows = float[gpu_row_blocks<ROWS>][GPU_LANE_ROWS];

/* Of a lane's rows the largest products. */
template <int ROWS>
GPU_FN void gpu_tile_largest(const float s[gpu_row_blocks<ROWS>][gpu_key_parts<ROWS>][4],
                             gpu_lane_rows<ROWS> &most) {
#pragma unroll
    for (int m = 0; m < gpu_row_blocks<ROWS>; m++)
#pragma unroll
        for (int h = 0; h < GPU_LANE_ROWS; h++)
            most[m][h] = gpu_tile_most<gpu_key_parts<ROWS>>(s[m], h);
#pragma unroll
    for (int step = 1; step < GPU_ROW_LANES; step *= 2)
#pragma unroll
        for (int m = 0; m < gpu_row_blocks<ROWS>; m++)
#pragma unroll
            for (int h = 0; h < GPU_LANE_ROWS; h++)
                most[m][h] = fmaxf(most[m][h], gpu_shuffle_xor(most[m][h], step * GPU_ROW_STEP));
}

/* Makes room in rows for larger logits, which are `unit` times what `most` has: log2 of e times
 * what a product is multiplied by. */
template <int DV, int ROWS>
GPU_FN void gpu_tile_raise_to(float unit, gpu_lane_rows<ROWS> &most, gpu_tile_sums<ROWS> &sums,
                              gpu_tile_rows<DV, ROWS> &rows) {
    gpu_lane_rows<ROWS> kept;
    bool raised = false;
#pragma unroll
    for (int m = 0; m < gpu_row_blocks<ROWS>; m++)
#pragma unroll
        for (int h = 0; h < GPU_LANE_ROWS; h++) {
            most[m][h] *= unit;
            kept[m][h] = 1;
            raised |= most[m][h] > sums.largest[m][h] + GPU_TILE_SLACK;
        }
    if (!gpu_any(raised))
        return;
#pragma unroll
    for (int m = 0; m < gpu_row_blocks<ROWS>; m++)
#pragma unroll
        for (int h = 0; h < GPU_LANE_ROWS; h++) {
            const float before = sums.largest[m][h];
            if (most[m][h] > before + GPU_TILE_SLACK) {
                sums.largest[m][h] = most[m][h];
                kept[m][h] = gpu_exp2(before - most[m][h]);
            }
            sums.sum[m][h] *= kept[m][h];
#pragma unroll
            for (int n = 0; n < gpu_out_parts<DV>; n++)
#pragma unroll
                for (int e = h * GPU_LANE_ELEMENTS; e < (h + 1) * GPU_LANE_ELEMENTS; e++)
                    rows.out[m][n][e] *= kept[m][h];
        }
}

/* The same of a tile's products. */
template <int DV, int ROWS>
GPU_FN void gpu_tile_raise(float unit, const float s[gpu_row_blocks<ROWS>][gpu_key_parts<ROWS>][4],
                           gpu_tile_sums<ROWS> &sums, gpu_tile_rows<DV, ROWS> &rows) {
    gpu_lane_rows<ROWS> most;
    gpu_tile_largest<ROWS>(s, most);
    gpu_tile_raise_to<DV, ROWS>(unit, most, sums, rows);
}

/* From products to weights, by largest logits that have room for them. */
template <int ROWS>
GPU_FN void gpu_tile_exponents(float unit, float s[gpu_row_blocks<ROWS>][gpu_key_parts<ROWS>][4],
                               gpu_tile_sums<ROWS> &sums) {
#pragma unroll
    for (int m = 0; m < gpu_row_blocks<ROWS>; m++)
#pragma unroll
        for (int h = 0; h < GPU_LANE_ROWS; h++) {
            const float base = sums.largest[m][h] == -INFINITY ? 0 : sums.largest[m][h];
            float part[gpu_key_parts<ROWS>];
#pragma unroll
            for (int n = 0; n < gpu_key_parts<ROWS>; n++) {
                float *x = s[m][n] + h * GPU_LANE_ELEMENTS;
#pragma unroll
                for (int e = 0; e < GPU_LANE_ELEMENTS; e++)
                    x[e] = gpu_exp2(fmaf(x[e], unit, -base));
                part[n] = x[0] + x[1];
#pragma unroll
                for (int e = 2; e < GPU_LANE_ELEMENTS; e += 2)
                    part[n] += x[e] + x[e + 1];
            }
#pragma unroll
            for (int step = 1; step < gpu_key_parts<ROWS>; step *= 2)
#pragma unroll
                for (int n = 0; n < gpu_key_parts<ROWS>; n += 2 * step)
                    part[n] += part[n + step];
            sums.sum[m][h] += part[0];
        }
}

/* From products to weights. */
template <int DV, int ROWS>
GPU_FN void gpu_tile_weigh(float unit, float s[gpu_row_blocks<ROWS>][gpu_key_parts<ROWS>][4],
                           gpu_tile_sums<ROWS> &held, gpu_tile_rows<DV, ROWS> &rows) {
    gpu_tile_sums<ROWS> sums = held;
    gpu_tile_raise<DV, ROWS>(unit, s, sums, rows);
    gpu_tile_exponents<ROWS>(unit, s, sums);
    held = sums;
}

/* --- values that are not finite, which rows that do not see them may not meet --- */

/* Of eight elements, 1 for each that is an infinity of a sign or NaN. */
template <int DTYPE> GPU_FN uint32_t gpu_tile_infinite(uint4 eight, uint32_t sign) {
    const uint32_t infinity = DTYPE == ROPE_BF16 ? 0x7f80u : 0x7c00u,
                   words[4] = {eight.x, eight.y, eight.z, eight.w};
    uint32_t found = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t x = words[i / 2] >> 16 * (i % 2) & 0xffffu;
        found |= (uint32_t)((x & infinity) == infinity && x != (infinity | (sign ^ 0x8000u))) << i;
    }
    return found;
}

/* Takes such values out of a tile; whether it had any. A barrier is behind it. */
template <int DTYPE, int DV, int ROWS>
GPU_FN bool gpu_tile_clean(const gpu_tile_call &t, int first, char *values) {
    auto &signs = gpu_block_of<DV, ROWS>(t).signs;
    bool found = false;
#pragma unroll 1
    for (int e = gpu_thread(); e < gpu_block_keys<ROWS> * DV / 8; e += GPU_ATTENTION_THREADS) {
        const int key = e / (DV / 8), chunk = e % (DV / 8);
        uint4 *eight = (uint4 *)(void *)(values + gpu_swizzled<DV>(key, chunk));
        const uint32_t above = gpu_tile_infinite<DTYPE>(*eight, 0),
                       below = gpu_tile_infinite<DTYPE>(*eight, 0x8000u);
        signs[0][key][chunk] = (uint8_t)above;
        signs[1][key][chunk] = (uint8_t)below;
        for (int i = 0; i < 8; i++)
            if ((above | below) >> i & 1)
                ((uint16_t *)(void *)eight)[i] = 0;
        found |= above | below;
    }
    if (found)
        t.b->special_tile = first + 1;
    __syncthreads();
    return t.b->special_tile == first + 1;
}

/* Which keys of a tile have a weight in a row, one of a thread's. */
template <int ROWS>
GPU_FN uint64_t gpu_tile_weighed(const gpu_tile_weights<ROWS> &w, int m, int h) {
    const int lane = gpu_lane();
    uint32_t keys[2] = {};
#pragma unroll
    for (int n = 0; n < gpu_key_parts<ROWS>; n++)
#pragma unroll
        for (int e = h * GPU_LANE_ELEMENTS; e < (h + 1) * GPU_LANE_ELEMENTS; e += 2) {
            const uint32_t two = w.a[n / GPU_PARTS][m][n % GPU_PARTS * 2 + e / 2];
            keys[gpu_key_of(n, e) / 32] |=
                (two & 0x7fffu ? 1u << gpu_key_of(n, e) % 32 : 0) |
                (two & 0x7fff0000u ? 1u << gpu_key_of(n, e + 1) % 32 : 0);
        }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        keys[i] <<= gpu_first_key_of(lane);
#pragma unroll
        for (int step = 1; step < GPU_ROW_LANES; step *= 2)
            keys[i] |= gpu_shuffle_xor(keys[i], step * GPU_ROW_STEP);
    }
    return keys[0] | (uint64_t)keys[1] << 32;
}

/* What was taken out reaches the rows that see its key, as a product with their weight does: a
 * weight of 0 makes NaN of it. The tile's keys begin at `first` of the block's, a warp's `at`
 * behind. */
template <int DV, int ROWS>
GPU_FN void gpu_tile_mark(const gpu_tile_call &t, int first, int at,
                          const gpu_tile_weights<ROWS> &w) {
    const int thread = gpu_thread(), lane = gpu_lane();
    uint64_t *rows = t.b->sees + (thread - lane);
#pragma unroll
    for (int m = 0; m < gpu_row_blocks<ROWS>; m++)
#pragma unroll
        for (int h = 0; h < GPU_LANE_ROWS; h++)
            rows[16 * m + gpu_row_of(lane, h)] = gpu_tile_weighed<ROWS>(w, m, h);
    gpu_warp_barrier();
    const auto &signs = gpu_block_of<DV, ROWS>(t).signs;
    const int of_warp = lane % (16 * gpu_row_blocks<ROWS>), row = gpu_warp_row<ROWS>() + of_warp;
    gpu_tile_signs<DV> &special = gpu_special_of<DV, ROWS>(t, of_warp);
    const uint64_t sees = gpu_tile_sees(t, row, first + at);
#pragma unroll 1
    for (int n = 0; n < gpu_warp_keys<ROWS> && lane < 16 * gpu_row_blocks<ROWS>; n++) {
        if (!(sees >> n & 1))
            continue;
        const uint32_t none = rows[lane] >> n & 1 ? 0 : 0xffffffffu;
        for (int i = 0; i < DV / 32; i++) {
            const uint32_t above = ((const uint32_t *)(const void *)signs[0][at + n])[i],
                           below = ((const uint32_t *)(const void *)signs[1][at + n])[i];
            special.above[i] |= above | (below & none);
            special.below[i] |= below | (above & none);
        }
    }
    t.b->has_special = 1;
    gpu_warp_barrier();
}

/* Element i of a row of a warp with what was taken out of it. */
template <int DV, int ROWS>
GPU_FN float gpu_tile_with_special(const gpu_tile_call &t, int row, int i, float x) {
    const gpu_tile_signs<DV> &signs = gpu_special_of<DV, ROWS>(t, row);
    if (signs.above[i / 32] >> i % 32 & 1)
        x += INFINITY;
    if (signs.below[i / 32] >> i % 32 & 1)
        x -= INFINITY;
    return x;
}

/* The same of all elements of a thread's rows. */
template <int DV, int ROWS>
GPU_FN void gpu_tile_add_special(const gpu_tile_call &t, gpu_tile_rows<DV, ROWS> &rows) {
    if (!t.b->has_special)
        return;
    const int lane = gpu_lane();
#pragma unroll
    for (int r = 0; r < gpu_runs<DV>; r++)
#pragma unroll
        for (int i = 0; i < GPU_LANE_ROWS * gpu_run<DV>; i++)
#pragma unroll
            for (int m = 0; m < gpu_row_blocks<ROWS>; m++) {
                const int h = i / gpu_run<DV>, at = i % gpu_run<DV>;
                float *x = rows.out[m][gpu_run_part(r, at)] + gpu_run_place(r, h, at);
                *x = gpu_tile_with_special<DV, ROWS>(t, 16 * m + gpu_row_of(lane, h),
                                                     gpu_run_first<DV>(lane, r) + at, *x);
            }
}

/* --- a block --- */

/* The first of the lanes that share a row of a warp, from this one on. */
GPU_FN int gpu_row_lanes(int row) {
    return gpu_first_lane_of(row) - gpu_lane();
}

/* A number of each lane that shares a row: their sum, in the order of gpu_tile_sum(). */
GPU_FN float gpu_lanes_sum(float sum) {
#pragma unroll
    for (int step = 1; step < GPU_ROW_LANES; step *= 2)
        sum += gpu_shuffle_xor(sum, step * GPU_ROW_STEP);
    return sum;
}

/* The sum of a row of a warp; sums: the thread's own, among those of all. */
template <int ROWS, typename SUMS> GPU_FN float gpu_tile_sum(const SUMS *sums, int row) {
    const int first = gpu_row_lanes(row), m = row / 16, h = gpu_held_row(row);
    float sum[GPU_ROW_LANES];
#pragma unroll
    for (int i = 0; i < GPU_ROW_LANES; i++)
        sum[i] = ((const gpu_tile_sums<ROWS> *)(const void *)(sums + first + i * GPU_ROW_STEP))
                     ->sum[m][h];
    return GPU_ROW_LANES == 2
               ? sum[0] + sum[1]
               : (sum[0] + sum[1]) + (sum[GPU_ROW_LANES - 2] + sum[GPU_ROW_LANES - 1]);
}

/* Ends a row, one a lane: what its elements are multiplied by, and where they go. */
template <int ROWS> GPU_FN void gpu_tile_end_row(const gpu_tile_call &t) {
    const int lane = gpu_lane(), row = gpu_warp_row<ROWS>() + lane;
    const rope_attention_sequence *s = &t.b->tile.s;
    int64_t query, head;
    gpu_tile_end *end = t.b->ends + gpu_thread();
    end->out = GPU_TILE_NOWHERE;
    if (lane >= 16 * gpu_row_blocks<ROWS> || !gpu_tile_query(t, row, &query, &head) ||
        t.b->first[row] == INT32_MAX)
        return;
    float largest =
              gpu_sums_of<ROWS>(t, gpu_row_lanes(lane)).largest[lane / 16][gpu_held_row(lane)],
          sum = gpu_tile_sum<ROWS>(t.b->sums + gpu_thread(), lane), kept = 1;
    if (gpu_reread(t.p)->sink_dtype) {
        float one;
        const float sink = 1.44269504f * gpu_attention_sink(gpu_reread(t.p)->sink_dtype,
                                                            gpu_reread(t.call)->sinks, head, &one),
                    now = fmaxf(largest, sink), base = now == -INFINITY ? 0 : now;
        kept = gpu_exp2(largest - base);
        sum = fmaf(sum, kept, one * gpu_exp2(sink - base));
        largest = now;
    }
    const int64_t *out = gpu_reread(t.call)->out_stride, *lse = gpu_reread(t.call)->lse_stride;
    end->factor = sum == 0 ? 0 : kept / sum;
    end->none = sum == 0;
    end->out = s->q_row * out[0] + (s->q_first + query) * out[1] + head * out[2];
    if (gpu_reread(t.call)->lse)
        gpu_reread(t.call)->lse[s->q_row * lse[0] + (s->q_first + query) * lse[1] + head * lse[2]] =
            sum == 0 ? -INFINITY : fmaf(largest, 0.693147182f, logf(sum));
}

/* Elements of a row of a thread's to out. */
template <int DTYPE, int DV, int ROWS>
GPU_FN void gpu_tile_store(const gpu_tile_call &t, int m, int h,
                           const gpu_tile_rows<DV, ROWS> &rows) {
    const int lane = gpu_lane();
    const gpu_tile_end end = t.b->ends[gpu_thread() - lane + 16 * m + gpu_row_of(lane, h)];
    if (end.out == GPU_TILE_NOWHERE)
        return;
    uint16_t *out = (uint16_t *)gpu_reread(t.call)->out + end.out;
#pragma unroll
    for (int r = 0; r < gpu_runs<DV>; r++) {
#pragma unroll
        for (int at = 0; at < gpu_run<DV>; at += 2) {
            const int i = gpu_run_first<DV>(lane, r) + at;
            uint32_t two = gpu_join<DTYPE>(
                fmaf(gpu_run_element<DV, ROWS>(rows, m, r, h, at), end.factor, 0.0f),
                fmaf(gpu_run_element<DV, ROWS>(rows, m, r, h, at + 1), end.factor, 0.0f));
            two = end.none ? 0 : two;
            if (gpu_fits(t, GPU_TILE_OUT)) {
                *(uint32_t *)(out + i) = two;
            } else if (i < gpu_reread(t.p)->v_head_dim) {
                const int64_t stride = gpu_reread(t.call)->out_stride[3];
                out[i * stride] = (uint16_t)two;
                out[(i + 1) * stride] = (uint16_t)(two >> 16);
            }
        }
    }
}

template <int DTYPE, int DV, int ROWS>
GPU_FN void gpu_tile_finish(const gpu_tile_call &t, const gpu_tile_rows<DV, ROWS> &rows) {
    gpu_tile_end_row<ROWS>(t);
    gpu_warp_barrier();
#pragma unroll
    for (int m = 0; m < gpu_row_blocks<ROWS>; m++)
#pragma unroll
        for (int h = 0; h < GPU_LANE_ROWS; h++)
            gpu_tile_store<DTYPE, DV, ROWS>(t, m, h, rows);
}

/* Values of so many tiles have room. Splits wait for memory: there a tile comes whole, ahead. */
template <int D, int ROWS>
constexpr int gpu_value_stages = ROWS == GPU_SPLIT_ROWS ? 1 + gpu_tiles_ahead<D, ROWS> : 1;

/* Where a tile's keys and its values lie. */
template <int D, int ROWS> GPU_FN char *gpu_tile_keys(const gpu_tile_call &t, int first) {
    enum { KEYS = gpu_block_keys<ROWS>, STAGES = 1 + gpu_tiles_ahead<D, ROWS> };
    return t.stage + first / KEYS % STAGES * KEYS * D * 2;
}

template <int D, int ROWS> GPU_FN char *gpu_tile_values(const gpu_tile_call &t, int first) {
    enum { KEYS = gpu_block_keys<ROWS>, STAGES = gpu_value_stages<D, ROWS> };
    return t.stage + ((1 + gpu_tiles_ahead<D, ROWS>)*KEYS + first / KEYS % STAGES * KEYS) * D * 2;
}

/* A tile's keys, or its values. */
template <int DTYPE, int D, int ROWS>
GPU_FN void gpu_tile_fetch(const gpu_tile_call &t, int value, int first) {
    char *to = value ? gpu_tile_values<D, ROWS>(t, first) : gpu_tile_keys<D, ROWS>(t, first);
    if (gpu_fits(t, value ? GPU_TILE_V : GPU_TILE_K))
        gpu_tile_copy<D, gpu_block_keys<ROWS>>(t, value, first, to);
#ifdef GPU_QUERIES_LEFT
    else if (gpu_shares_rows<ROWS> && /* else registers spill */
             gpu_fits(t, value ? GPU_TILE_V_STORED : GPU_TILE_K_STORED))
        gpu_tile_convert<DTYPE, D, gpu_block_keys<ROWS>>(t, value, first, to);
#endif
    else
        gpu_tile_read<DTYPE, D, gpu_block_keys<ROWS>>(t, value, first, to);
}

/* Queries and the first keys on their way. */
template <int DTYPE, int D, int ROWS>
GPU_FN void gpu_tile_begin(const gpu_tile_call &t, int32_t head, rope_key_range within) {
    gpu_tile_block_of<D, ROWS> &b = gpu_block_of<D, ROWS>(t);
    gpu_tile_see<D, ROWS>(t, head, within);
    if ((int)b.COUNT == (int)GPU_ATTENTION_THREADS || gpu_thread() < b.COUNT)
        b.special[threadIdx.x] = {};
    t.b->special_tile = t.b->has_special = 0;
    __syncthreads();
    gpu_tile_fetch_queries<DTYPE, D, ROWS>(t);
    gpu_tile_place<D, gpu_block_keys<ROWS>>(t, 0);
    __syncthreads();
#pragma unroll 1
    for (int value = gpu_value_stages<D, ROWS> - 1; value >= 0; value--)
        gpu_tile_fetch<DTYPE, D, ROWS>(t, value, 0);
    gpu_copies_mark();
    if constexpr (ROWS == GPU_SPLIT_ROWS) {
        if (!gpu_rotates_queries(gpu_reread(t.p), gpu_reread(t.call)))
            return;
        gpu_copies_wait<0>();
        __syncthreads();
        gpu_tile_rotate_queries<DTYPE, D, ROWS>(
            t, (rope_token *)(void *)(gpu_tiles_ahead<D, ROWS>
                                          ? gpu_tile_keys<D, ROWS>(t, GPU_TILE_KEYS)
                                          : gpu_tile_values<D, ROWS>(t, 0)));
    }
}

/* Products of a tile: of wide heads not beyond what those of 192 and 128 have, as MLA's do. */
template <int DTYPE, int D, int ROWS>
GPU_FN void gpu_tile_multiply(const gpu_tile_call &t, const char *keys,
                              float s[gpu_row_blocks<ROWS>][gpu_key_parts<ROWS>][4]) {
    const int dim = gpu_reread(t.p)->head_dim;
    (void)dim;
#if GPU_TILE_DIM > 128
    if constexpr (D > GPU_TILE_NARROW && ROWS != GPU_SPLIT_ROWS)
        if (dim <= 192) {
            gpu_tile_products<DTYPE, D, ROWS, 192>(t.queries, keys, s);
            return;
        }
#endif
    gpu_tile_products<DTYPE, D, ROWS>(t.queries, keys, s);
}

template <int DTYPE, int DV, int ROWS>
GPU_FN void gpu_tile_add_values(const gpu_tile_call &t, const char *values,
                                const gpu_tile_weights<ROWS> &w, gpu_tile_rows<DV, ROWS> &rows) {
    const int dim = gpu_reread(t.p)->v_head_dim;
    (void)dim;
#if GPU_TILE_DIM > 128
    if constexpr (DV > GPU_TILE_NARROW && ROWS != GPU_SPLIT_ROWS)
        if (dim <= 128) {
            gpu_tile_add<DTYPE, DV, ROWS, 128>(values, w, rows);
            return;
        }
#endif
    gpu_tile_add<DTYPE, DV, ROWS>(values, w, rows);
}

/* From keys to weights: the tile from key `first` of the block's on, `keys` a warp's. */
template <int DTYPE, int D, int DV, int ROWS>
GPU_FN void gpu_tile_look(const gpu_tile_call &t, int first, const char *keys, int32_t state,
                          gpu_tile_weights<ROWS> &w, gpu_tile_rows<DV, ROWS> &rows) {
    const float scale = gpu_reread(t.p)->scale, cap = gpu_reread(t.p)->soft_cap;
    float s[gpu_row_blocks<ROWS>][gpu_key_parts<ROWS>][4];
    gpu_tile_multiply<DTYPE, D, ROWS>(t, keys, s);
    if (cap > 0)
        gpu_tile_cap<ROWS>(scale, cap, s);
    if (state != GPU_TILE_WHOLE)
        gpu_tile_mask<ROWS>(t, first, s);
    gpu_tile_weigh<DV, ROWS>(1.44269504f * (cap > 0 ? 1 : scale), s, gpu_sums_of<ROWS>(t), rows);
    gpu_tile_round<DTYPE, ROWS>(s, w);
}

/* Sends for values, a tile ahead where they have room. */
template <int DTYPE, int D, int ROWS>
GPU_FN void gpu_tile_send(const gpu_tile_call &t, int value, int first) {
    const int next = value && gpu_value_stages<D, ROWS> == 1 ? first : first + gpu_block_keys<ROWS>;
    if (next < t.b->seen.end)
        gpu_tile_fetch<DTYPE, D, ROWS>(t, value, next);
    gpu_copies_mark();
}

/* Sends for the keys behind the tile from key `first` of the block's on. */
template <int DTYPE, int D, int ROWS>
GPU_FN void gpu_tile_send_keys(const gpu_tile_call &t, int first) {
    gpu_tile_send<DTYPE, D, ROWS>(t, 0, first);
    if (first % GPU_ATTENTION_THREADS == 0)
        gpu_tile_place<D, gpu_block_keys<ROWS>>(t, first + GPU_ATTENTION_THREADS);
}

/* The tile from key `first` of the block's on. */
template <int DTYPE, int D, int DV, int ROWS>
GPU_FN void gpu_tile_attend(const gpu_tile_call &t, int first, gpu_tile_rows<DV, ROWS> &rows) {
    static_assert(D == DV, "keys and values are fetched by the same code");
    enum { KEYS = gpu_block_keys<ROWS>, AHEAD = gpu_tiles_ahead<D, ROWS> };
    const int at = gpu_warp_key<ROWS>();
    const int32_t state = gpu_warp_state<ROWS>(t, t.b->seen, first + at);
    gpu_tile_weights<ROWS> w;
    gpu_copies_wait<0>();
    __syncthreads();
    gpu_tile_send<DTYPE, D, ROWS>(t, 1, first);
    if (AHEAD)
        gpu_tile_send_keys<DTYPE, D, ROWS>(t, first);
    if (state != GPU_TILE_UNSEEN)
        gpu_tile_look<DTYPE, D, DV, ROWS>(
            t, first + at, gpu_tile_keys<D, ROWS>(t, first) + at * D * 2, state, w, rows);
    if (gpu_value_stages<D, ROWS> == 1) {
        gpu_copies_wait<AHEAD>();
        __syncthreads();
    }
    if (!AHEAD)
        gpu_tile_send_keys<DTYPE, D, ROWS>(t, first);
    char *values = gpu_tile_values<D, ROWS>(t, first);
    if (gpu_tile_state(t, t.b->seen, first, KEYS) == GPU_TILE_APART &&
        gpu_tile_clean<DTYPE, DV, ROWS>(t, first, values) && state != GPU_TILE_UNSEEN)
        gpu_tile_mark<DV, ROWS>(t, first, at, w);
    if (state != GPU_TILE_UNSEEN)
        gpu_tile_add_values<DTYPE, DV, ROWS>(t, values + at * DV * 2, w, rows);
}

/* All keys that the block's rows see. */
template <int DTYPE, int D, int DV, int ROWS>
GPU_FN void gpu_tile_loop(const gpu_tile_call &t, gpu_tile_rows<DV, ROWS> &rows) {
    gpu_tile_sums<ROWS> none = {};
#pragma unroll
    for (int m = 0; m < gpu_row_blocks<ROWS>; m++)
#pragma unroll
        for (int h = 0; h < GPU_LANE_ROWS; h++)
            none.largest[m][h] = -INFINITY;
    gpu_sums_of<ROWS>(t) = none;
#pragma unroll 1
    for (int first = 0; first < t.b->seen.end; first += gpu_block_keys<ROWS>)
        gpu_tile_attend<DTYPE, D, DV, ROWS>(t, first, rows);
    gpu_copies_wait<0>();
    __syncthreads();
    gpu_tile_add_special<DV, ROWS>(t, rows);
}

/* All rows of a block. */
template <int DTYPE, int D, int DV>
GPU_FN void gpu_tile_block_attend(const gpu_tile_call &t, int32_t head) {
    enum { ROWS = gpu_tiles_shape<D> };
    gpu_tile_begin<DTYPE, D, ROWS>(t, head, {0, INT64_MAX});
    gpu_tile_rows<DV, ROWS> rows = {};
    gpu_tile_loop<DTYPE, D, DV, ROWS>(t, rows);
    gpu_tile_finish<DTYPE, DV, ROWS>(t, rows);
    __syncthreads();
}

template <int DTYPE, int D, int DV>
__global__ void __launch_bounds__(GPU_ATTENTION_THREADS, GPU_TILE_BLOCKS)
    gpu_attention_tiles(GPU_PARAMETER rope_attention_problem problem,
                        GPU_PARAMETER rope_attention_call given, const int32_t *failed,
                        int32_t fits) {
    if constexpr (gpu_has_tiles<DTYPE, D>) {
        const rope_attention_problem &p = *gpu_parameter<rope_attention_problem>(problem);
        const rope_attention_call &call =
            *gpu_parameter<rope_attention_call, rope_attention_problem>(given);
        enum { ROWS = gpu_block_rows<gpu_tiles_shape<D>> };
        extern __shared__ uint4 memory[];
        __shared__ gpu_tile_block_of<DV, gpu_tiles_shape<D>> b;
        gpu_wait_for_last();
        gpu_let_next_start();
        for (int64_t n = blockIdx.x;
             gpu_attention_find<0>(&p, &call, failed, n, gpu_attention_group(&call), ROWS, &b.tile);
             n = b.next) {
            if (threadIdx.x == 0)
                b.next = n + gridDim.x;
            __syncthreads();
            if (!b.tile.valid || (fits & GPU_TILE_SPLITS && gpu_is_decoded(&call, &b.tile.s)) ||
                b.tile.first >= b.tile.s.q_count * gpu_attention_group(&call))
                continue;
            const gpu_tile_call t = {gpu_reread(&p),
                                     gpu_reread(&call),
                                     &b,
                                     (char *)memory,
                                     (char *)memory + ROWS * D * 2,
                                     fits};
            for (int32_t head = (int32_t)blockIdx.y; head < call.k.heads;
                 head = b.head + (int32_t)gridDim.y) {
                __syncthreads();
                gpu_tile_block_attend<DTYPE, D, DV>(t, head);
            }
        }
    }
}

#endif
