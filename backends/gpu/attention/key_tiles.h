/* Tiles of keys and values to shared memory: copied, converted from other types, or element by
 * element. */
#ifndef ROPEKIT_GPU_ATTENTION_KEY_TILES_H
#define ROPEKIT_GPU_ATTENTION_KEY_TILES_H

#include "backends/gpu/attention/tile_block.h"
#include "backends/gpu/cache_element.h"

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
    const bool seen = n >= b->seen.begin && n < b->seen.end;
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
    gpu_repeat<KEYS / STEP, 4>([&](int e) {
        const uint4 four = *(const uint4 *)(const void *)(places + e);
        const uint32_t place[4] = {four.x, four.y, four.z, four.w};
        gpu_repeat<4>([&](int i) {
            gpu_copy_async(to + gpu_swizzled_further<D>(at, (e + i) * STEP),
                           from + 16 * (uint64_t)place[i],
                           ALL || (unsigned)(first + (e + i) * STEP) < count);
        });
    });
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
    const int before = t.b->seen.begin,
              dim = value ? gpu_reread(t.p)->v_head_dim : gpu_reread(t.p)->head_dim;
    const bool there = 8 * chunk < dim && end > before;
    gpu_tile_copy_rows<D, false, KEYS>(there ? from + 16 * chunk : from, places,
                                       first + row - before, there ? (unsigned)(end - before) : 0,
                                       to, at);
}

/* AMD's compiler reaches these elements by flat instructions, and spills. */
#ifdef GPU_QUERIES_LEFT
/* The scale of the block's key n. */
GPU_FN float gpu_tile_scale(const gpu_tile_call &t, int value, int n) {
    const rope_append_operand *o = gpu_tile_operand(t, value);
    const rope_append_steps *steps = value ? &gpu_reread(t.p)->v : &gpu_reread(t.p)->k;
    gpu_key_place place = {0, 0};
    if (steps->scale && (o->scale_stride[0] | o->scale_stride[1]))
        place = gpu_place_from(gpu_reread(t.p), gpu_reread(t.call), o, &t.b->tile.s, t.b->base, n);
    return gpu_place_scale(gpu_reread(t.call), o, steps, place.page, place.slot, t.b->head);
}

/* Converts elements of type STORED, or of any 8 bits, eight at a time. What is loaded together is
 * not looked at before all of it is on its way. */
template <int DTYPE, int STORED, int D, int KEYS>
GPU_FN void gpu_tile_convert_from(const gpu_tile_call &t, int value, int first, char *to) {
    constexpr bool CODES = STORED == ROPE_F8E4M3;
    enum {
        STEP = gpu_copy_step<D>,
        EACH = KEYS / STEP,
        SOME = CODES && EACH > 4 ? 8 : 4,
        BYTES = CODES                ? 8
                : STORED == ROPE_F32 ? 32
                                     : 16
    };
    __shared__ float scales[2][KEYS];
    const int row = gpu_thread() / (D / 8), chunk = gpu_thread() % (D / 8), end = t.b->seen.end,
              before = t.b->seen.begin;
    const rope_append_steps *steps = value ? &gpu_reread(t.p)->v : &gpu_reread(t.p)->k;
    const bool used = 8 * chunk < steps->head_dim, scaled = CODES && steps->scale;
    const char *from = t.b->source[value].data + chunk * BYTES;
    const uint32_t *places = t.b->places[value] + gpu_place_index<D, KEYS>(first + row);
#pragma unroll 1
    for (int e = 0; e < EACH; e += SOME) {
        gpu_vector<CODES ? DTYPE : STORED, GPU_STORED> x[SOME];
#pragma unroll
        for (int i = 0; i < SOME; i++) {
            const int n = first + row + (e + i) * STEP;
            x[i] = {};
            if (used && n >= before && n < end) {
                const char *at = from + (uint64_t)places[e + i] * BYTES;
                if constexpr (CODES)
                    x[i] = gpu_load_vector_as<DTYPE>(STORED, at);
                else
                    x[i] = gpu_load<STORED, GPU_STORED>(at);
            }
        }
        if (scaled && e == 0) {
            const int n = first + gpu_thread();
            if (gpu_thread() < KEYS && n >= before && n < end)
                scales[value][gpu_thread()] = gpu_tile_scale(t, value, n);
            __syncthreads();
        }
#pragma unroll
        for (int i = 0; i < SOME; i++) {
            const int n = row + (e + i) * STEP;
            gpu_vector<DTYPE, GPU_STORED> y;
            if constexpr (CODES) {
                y = gpu_dequantize<DTYPE>(steps->store_dtype, scaled ? scales[value][n] : 1, x[i]);
            } else {
                float z[GPU_STORED];
                gpu_unpack<STORED, GPU_STORED>(x[i], z);
                y = gpu_pack<DTYPE, GPU_STORED>(z);
            }
            if (CODES && !(used && first + n >= before && first + n < end))
                y = {};
            gpu_store<DTYPE, GPU_STORED>(to + gpu_swizzled<D>(n, chunk), y);
        }
    }
}

template <int DTYPE, int D, int KEYS>
GPU_FN void gpu_tile_convert(const gpu_tile_call &t, int value, int first, char *to) {
    constexpr int OTHER = DTYPE == ROPE_F16 ? ROPE_BF16 : ROPE_F16;
    const int type = (value ? gpu_reread(t.p)->v : gpu_reread(t.p)->k).store_dtype;
    if (type >= ROPE_F8E4M3)
        gpu_tile_convert_from<DTYPE, ROPE_F8E4M3, D, KEYS>(t, value, first, to);
    else if (type == ROPE_F32)
        gpu_tile_convert_from<DTYPE, ROPE_F32, D, KEYS>(t, value, first, to);
    else
        gpu_tile_convert_from<DTYPE, OTHER, D, KEYS>(t, value, first, to);
}

#endif

/* Reads a tile's rows, WIDTH elements of each, wherever they lie, one at a time: those of which
 * there(row) holds, zeros for the others. */
template <int DTYPE, int D, int KEYS, int WIDTH, typename CALL, typename F>
GPU_FN void gpu_read_rows(const CALL &t, int value, int64_t head, int first, char *to, F there) {
    const int dim = value ? gpu_reread(t.p)->v_head_dim : gpu_reread(t.p)->head_dim;
    const rope_append_operand *o = value ? &gpu_reread(t.call)->v : &gpu_reread(t.call)->k;
    const rope_append_steps *steps = value ? &gpu_reread(t.p)->v : &gpu_reread(t.p)->k;
#pragma unroll 1
    for (int row = gpu_thread() / GPU_TILE_LANES; row < KEYS; row += GPU_TILE_WARPS) {
        const bool seen = there(row);
        gpu_attention_head h = {0, 1};
        if (seen) {
            const gpu_key_place place = gpu_place_from(gpu_reread(t.p), gpu_reread(t.call), o,
                                                       &t.b->tile.s, t.b->base, first + row);
            h.at = gpu_place_at(t.b->source[value], place);
            if (gpu_is_cached(o))
                h.scale =
                    gpu_place_scale(gpu_reread(t.call), o, steps, place.page, place.slot, head);
        }
        for (int i = gpu_lane(); i < WIDTH; i += GPU_TILE_LANES)
            *gpu_swizzled_element<D>(to, row, i) =
                seen && i < dim
                    ? (uint16_t)gpu_narrow<DTYPE>(gpu_attention_element<DTYPE>(o, steps, h, i))
                    : (uint16_t)0;
    }
}

template <int DTYPE, int D, int KEYS>
GPU_FN void gpu_tile_read(const gpu_tile_call &t, int value, int first, char *to) {
    gpu_read_rows<DTYPE, D, KEYS, D>(t, value, t.b->head, first, to, [&](int row) {
        return first + row >= t.b->seen.begin && first + row < t.b->seen.end;
    });
}

#endif
