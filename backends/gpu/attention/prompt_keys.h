/* Keys and values of a block of prompts: where they lie, counted in 32 bits, and their copies to
 * shared memory. */
#ifndef ROPEKIT_GPU_ATTENTION_PROMPT_KEYS_H
#define ROPEKIT_GPU_ATTENTION_PROMPT_KEYS_H

#include "backends/gpu/attention/prompt_rows.h"

#if GPU_TILE_AHEAD

/* Keys, or values. */
GPU_FN const rope_append_operand *gpu_prompt_operand(const gpu_prompt_call &t, int value) {
    return value ? &gpu_reread(t.call)->v : &gpu_reread(t.call)->k;
}

GPU_FN void gpu_prompt_find_source(const gpu_prompt_call &t, int value, int32_t head) {
    const rope_append_operand *o = gpu_prompt_operand(t, value);
    const rope_attention_sequence *s = &t.b->tile.s;
    const gpu_key_source from = gpu_key_source_of(o, s, head);
    gpu_prompt_source source = {(uint32_t)(from.first / 8), (uint32_t)(from.page / 8),
                                (uint32_t)(from.slot / 8),
                                gpu_is_cached(o) && gpu_reread(t.p)->cache == ROPE_CACHE_TABLE};
    if (!source.paged)
        source.first += (uint32_t)s->index * source.page; /* a sequence's, or 0 */
    t.b->source[value] = source;
    t.b->data[value] = from.data;
}

/* Keys of a tile: a thread has one of them, or of its values. */
GPU_FN int gpu_prompt_value(void) {
    static_assert(2 * (int)GPU_TILE_KEYS == (int)GPU_ATTENTION_THREADS, "keys and values");
    return gpu_thread() / GPU_TILE_KEYS;
}

/* Sends for the page of a thread's key n. */
GPU_FN void gpu_prompt_prefetch_page(const gpu_prompt_call &t, int n) {
    const rope_attention_call *call = gpu_reread(t.call);
    const uint32_t turn = (uint32_t)n / (uint32_t)gpu_reread(t.p)->page_size;
    const int64_t at = t.b->tile.s.index * call->table_stride[0] + turn * call->table_stride[1];
    gpu_copy_word(t.b->pages + gpu_thread(),
                  (const char *)call->block_table + (gpu_reread(t.p)->table_wide ? 8 : 4) * at);
}

/* Where a thread's key of the tile from key n on lies. Its page is there; that of the next tile's
 * is sent for. */
GPU_FN uint32_t gpu_prompt_place(const gpu_prompt_call &t, const gpu_prompt_source &source,
                                 const gpu_prompt_limits &all, int n) {
    n += gpu_thread() % GPU_TILE_KEYS;
    uint32_t place = source.first + (uint32_t)n * source.slot;
    if (source.paged) {
        place = source.first + t.b->pages[gpu_thread()] * source.page +
                (uint32_t)n % (uint32_t)gpu_reread(t.p)->page_size * source.slot;
        if (n + GPU_TILE_KEYS >= all.begin && n + GPU_TILE_KEYS < all.end)
            gpu_prompt_prefetch_page(t, n + GPU_TILE_KEYS);
    }
    return n >= all.begin && n < all.end ? place : 0;
}

/* Rows of a tile that threads copy at a time. Places of a thread's lie side by side. */
enum { GPU_PROMPT_STEP = GPU_ATTENTION_THREADS / 8 };
static_assert((int)GPU_TILE_KEYS == 4 * (int)GPU_PROMPT_STEP, "four places a thread");

GPU_FN void gpu_prompt_keep(const gpu_prompt_call &t, int n, uint32_t place) {
    const int key = gpu_thread() % GPU_TILE_KEYS;
    t.b->places[n / GPU_TILE_KEYS % 2][gpu_prompt_value()]
               [key % GPU_PROMPT_STEP * 4 + key / GPU_PROMPT_STEP] = place;
}

/* Where the tile of keys from key n on lies; its values are two tiles behind. */
template <int D> GPU_FN char *gpu_prompt_tile(const gpu_prompt_call &t, int n) {
    return t.stage + (n & GPU_TILE_KEYS) * (D * 2);
}

/* Copies the tile from key n on to shared memory, zeros for keys that no row sees: a thread copies
 * every eighth chunk of its rows. */
template <int D> GPU_FN void gpu_prompt_copy(const gpu_prompt_call &t, int n) {
    enum { STEP = GPU_PROMPT_STEP };
    const int row = gpu_thread() / 8, chunk = gpu_thread() % 8, from = t.b->all.begin,
              end = t.b->all.end;
    const unsigned first = (unsigned)(n + row - from),
                   count = end > from ? (unsigned)(end - from) : 0;
    gpu_repeat<2>([&](int value) {
        const uint4 four =
            *(const uint4 *)(const void *)(t.b->places[n / GPU_TILE_KEYS % 2][value] +
                                           row * (GPU_TILE_KEYS / STEP));
        const uint32_t at[4] = {four.x, four.y, four.z, four.w};
        char *to = gpu_prompt_tile<D>(t, n) + value * 2 * GPU_TILE_KEYS * D * 2 +
                   gpu_swizzled<D>(row, chunk);
        gpu_repeat<GPU_TILE_KEYS / STEP>([&](int e) {
            const char *place = t.b->data[value] + 16 * chunk + 16 * (uint64_t)at[e];
            gpu_repeat<D / 64>([&](int c) {
                gpu_copy_async(to + e * STEP * D * 2 + 128 * c, place + 128 * c,
                               first + e * STEP < count);
            });
        });
    });
    gpu_copies_mark();
}

/* Places of a thread's keys of the first two tiles. */
GPU_FN void gpu_prompt_find_places(const gpu_prompt_call &t, const gpu_prompt_limits &all, int n) {
    const gpu_prompt_source source = t.b->source[gpu_prompt_value()];
    const int mine = n + gpu_thread() % GPU_TILE_KEYS;
    if (source.paged && mine >= all.begin && mine < all.end)
        gpu_prompt_prefetch_page(t, mine);
    gpu_repeat<2 * GPU_TILE_KEYS, GPU_TILE_KEYS>([&](int i) {
        if (source.paged) {
            gpu_copies_mark();
            gpu_copies_wait<0>();
        }
        gpu_prompt_keep(t, n + i, gpu_prompt_place(t, source, all, n + i));
    });
}

#endif
#endif
