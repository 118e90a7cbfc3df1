/* The warp group that loads: warp 0 has tiles copied, warp 1 finds tiles and what their rows see,
 * and has values of pages copied, warps 2 and 3 work on what was copied. */
#ifndef ROPEKIT_GPU_ATTENTION_SM90_PRODUCER_H
#define ROPEKIT_GPU_ATTENTION_SM90_PRODUCER_H

#include "backends/gpu/attention/sm90/nonfinite.h"
#include "backends/gpu/attention/sm90/order.h"
#include "backends/gpu/attention/sm90/rotate.h"

/* Threads of warps 2 and 3. */
enum { SM90_HELPERS = SM90_FETCHERS };

GPU_FN void sm90_wait_turn(uint32_t barriers, int n) {
    sm90_wait(barriers + 8 * (uint32_t)(n % 2), (uint32_t)(n / 2 % 2));
}

/* Until what was turn n - 2 is free. */
GPU_FN void sm90_wait_free(uint32_t barriers, int n) {
    sm90_wait(barriers + 8 * (uint32_t)(n % 2), (uint32_t)(n / 2 % 2 ^ 1));
}

GPU_FN const sm90_tile *sm90_wait_tile(const sm90_block &b, int n) {
    sm90_wait(SM90_BARRIER(b, tile_known, n % SM90_KNOWN), (uint32_t)(n / SM90_KNOWN % 2));
    return &b.header->tile[n % SM90_KNOWN];
}

/* A thread's place in its warp, found anew: registers are few. */
GPU_FN int sm90_lane(void) {
    return gpu_opaque((int)threadIdx.x) % 32;
}

/* Whether keys lie in pages whose values a warp of their own copies. */
template <class T> GPU_FN int sm90_has_two_senders(const sm90_block &b) {
    return T::TWO_SENDERS && b.schedule->page;
}

/* --- copies --- */

/* Copies the queries of the block's tile n; 0 where there is none. */
template <class T> GPU_FN int sm90_send_queries(const sm90_block &b, const sm90_maps &maps, int n) {
    const volatile sm90_tile *t = sm90_wait_tile(b, n);
    sm90_wait_free(SM90_BARRIER(b, queries_free, 0), T::QUERIES == 2 ? n : n + 1);
    const int head = t->head;
    const uint32_t barrier = T::QUERIES == 2 && b.schedule->rotation.pairs
                                 ? SM90_BARRIER(b, queries_sent, n % 2)
                                 : SM90_BARRIER(b, queries_full, n % 2);
    if (threadIdx.x % 32 == 0) {
        if (head < 0) { /* so that phases count tiles */
            sm90_arrive(barrier);
        } else {
            sm90_expect(barrier, T::QUERY_BYTES);
            sm90_load_heads(sm90_queries<T>(b, n % 2), maps.q, barrier,
                            {head, t->q_token, t->q_row}, T::DIM / 64, T::ROWS);
        }
    }
    return head >= 0;
}

/* Where a lane copies from a page of a tile of keys, and to which of its keys: a copy has `page`
 * keys and 64 elements, and lanes from `copies` on have none. Without a table the first lane copies
 * all. */
struct sm90_share {
    sm90_box at;
    int key, copies;
};

/* Reads the page. end: keys from here on are not there. */
template <class T> GPU_FN sm90_share sm90_share_of(const sm90_block &b, sm90_box at, int end) {
    const int page = b.schedule->page, lane = (int)threadIdx.x % 32;
    if (!page)
        return {at, 0, 1};
    const int key = lane / (T::DIM / 64) * page, from = at.token + key,
              copies = __popc(__ballot_sync(~0u, key < T::KEYS && from < end));
    if (lane < copies) {
        const int n = sm90_over(b.schedule->page_size, from);
        at = {at.head, from - n * b.schedule->page_size.by, sm90_page(b.p, b.call, at.row, n),
              lane % (T::DIM / 64) * 64};
    }
    return {at, key, copies};
}

/* Those who send have all passed a wait: a lane behind would miss the phase. */
GPU_FN void sm90_senders_meet(const sm90_block &b) {
    __syncwarp(b.schedule->page ? ~0u : 1u);
}

/* Copies a tile of keys or of values, of PARTS times 64 elements. */
template <class T, int PARTS>
GPU_FN void sm90_copy(const sm90_block &b, uint32_t to, const CUtensorMap *map, uint32_t barrier,
                      const sm90_share &share) {
    const int page = b.schedule->page, lane = (int)threadIdx.x % 32;
    if (lane == 0)
        sm90_expect(barrier, (uint32_t)(page ? share.copies * page : PARTS * T::KEYS) * 128);
    if (!page)
        sm90_load_heads(to, map, barrier, share.at, PARTS, T::KEYS);
    else if (lane < share.copies)
        sm90_load(to + (uint32_t)(share.at.element / 64 * T::KEYS + share.key) * 128, map, barrier,
                  share.at);
}

template <class T>
GPU_FN void sm90_send_keys(const sm90_block &b, const sm90_maps &maps, int n,
                           const sm90_share &share) {
    sm90_wait_free(SM90_BARRIER(b, keys_free, 0), n);
    sm90_senders_meet(b);
    sm90_copy<T, T::DIM / 64>(b, sm90_keys<T>(b, n % 2), maps.k, SM90_BARRIER(b, keys_full, n % 2),
                              share);
}

template <class T>
GPU_FN void sm90_send_values(const sm90_block &b, const sm90_maps &maps, int n, uint32_t barrier,
                             const sm90_share &share) {
    sm90_wait_free(SM90_BARRIER(b, values_free, 0), n);
    sm90_senders_meet(b);
    sm90_copy<T, T::V_DIM / 64>(b, sm90_values<T>(b, n % 2), maps.v, barrier, share);
}

/* Tiles of keys ahead of a tile's end at which the next one is found, unless that is early: one
 * that was given out earlier would keep another block from it. Rotations take longer. */
GPU_FN int sm90_ahead(const sm90_block &b) {
    return b.schedule->early ? SM90_FAR : b.schedule->rotation.pairs ? 5 : 3;
}

/* By the first lane of warp 0, where warp 1 does not know by itself when it is to find a tile.
 * Where there may be two senders no other lane is here without pages, and a test takes a register.
 */
template <class T> GPU_FN void sm90_want(const sm90_block &b, int n) {
    if (T::TWO_SENDERS ? !b.schedule->page : threadIdx.x == 0)
        sm90_arrive(SM90_BARRIER(b, tile_wanted, n % 2));
}

/* Where tile j of a tile's keys begins, counted from the last one. */
template <class T> GPU_FN sm90_box sm90_keys_at(const volatile sm90_tile *t, int j) {
    return {t->k_head, t->k_token + (t->first + t->tiles - 1 - j) * T::KEYS, t->k_row};
}

/* Where copies of values end, the n-th of all, of tile j of keys; cleaned: of those so far. */
template <class T>
GPU_FN uint32_t sm90_values_barrier(const sm90_block &b, const volatile sm90_tile *t, int j, int n,
                                    int &cleaned) {
    return sm90_is_cleaned<T>(t, j) ? SM90_BARRIER(b, values_sent, cleaned++ % 2)
                                    : SM90_BARRIER(b, values_full, n % 2);
}

/* Copies of all tiles from tile `n` of the block on: queries a tile ahead, or behind the first of
 * their keys where they have one tile of memory, values, unless warp 1 does, one tile of keys
 * behind their keys. sent, cleaned: tiles of keys so far, and those of values that are cleaned. The
 * number of the tile that ends them. By one lane, or by a warp where pages are copied. */
template <class T>
GPU_FN int sm90_send(const sm90_block &b, const sm90_maps &maps, int n, int &sent, int &cleaned) {
    sm90_want<T>(b, n);
    int more = T::QUERIES == 2 ? sm90_send_queries<T>(b, maps, n) : sm90_wait_tile(b, n)->head >= 0,
        waits = 0;
    uint32_t barrier = 0;
    sm90_share values = {};
    for (; more; n++) {
        const volatile sm90_tile *t = &b.header->tile[n % SM90_KNOWN];
        const int tiles = t->tiles, end = t->end,
                  sends = max(tiles - sm90_ahead(b) + 1, min(1, tiles - 1));
        sm90_box keys = sm90_keys_at<T>(t, 0);
        sm90_share next = sm90_share_of<T>(b, keys, end);
        for (int j = 0; j < tiles; j++) {
            const sm90_share share = next;
            keys.token -= T::KEYS;
            if (j + 1 < tiles)
                next = sm90_share_of<T>(b, keys, end);
            sm90_send_keys<T>(b, maps, sent, share);
            if (waits)
                sm90_send_values<T>(b, maps, sent - 1, barrier, values);
            waits = !sm90_has_two_senders<T>(b);
            if (waits)
                barrier = sm90_values_barrier<T>(b, t, j, sent, cleaned);
            values = share;
            sent++;
            if (j == max(sends - 1, 0))
                sm90_want<T>(b, n + 1);
            if (T::QUERIES == 2 && j == sends)
                more = sm90_send_queries<T>(b, maps, n + 1);
            if (T::QUERIES == 1 && j == 0)
                (void)sm90_send_queries<T>(b, maps, n);
        }
        if (T::QUERIES == 1)
            more = sm90_wait_tile(b, n + 1)->head >= 0;
    }
    if (waits)
        sm90_send_values<T>(b, maps, sent - 1, barrier, values);
    if (T::QUERIES == 1)
        (void)sm90_send_queries<T>(b, maps, n);
    return n;
}

/* --- tiles --- */

/* Whether blocks have spans, not tiles: of all tiles the first, then the second. */
template <class T> GPU_FN int sm90_has_spans(const sm90_block &b) {
    return T::SPANS && b.spans->arrived;
}

/* Where a walk is, or at a later place that has one, the block's next tile, or the same one's span.
 * Those that are computed again have all spans. */
template <class T> GPU_FN void sm90_take(const sm90_block &b, sm90_walk &walk, sm90_tile *t) {
    const int spans = sm90_has_spans<T>(b) && !walk.careful,
              end =
                  walk.careful ? (int)b.header->again_count : b.tiles * (spans ? b.spans->most : 1);
    t->head = -1;
#pragma unroll 1
    for (; walk.next < end; walk.next = sm90_next_number(*b.schedule, walk.next)) {
        const int span = spans ? sm90_over_few(walk.next, b.tiles) : walk.span,
                  n = walk.careful ? b.header->again[walk.next]
                      : spans      ? walk.next - span * b.tiles
                                   : walk.next;
        if (sm90_tile_of<T>(b, n, span, t)) {
            t->number = n;
            break;
        }
        sm90_wait_for_last<T>(b); /* tickets are set to 0 ahead */
    }
    if (walk.careful)
        t->slot = -1;
}

template <class T> GPU_FN void sm90_begin_walk(const sm90_block &b, int careful, sm90_walk &walk) {
    const int32_t *none = b.schedule->none;
    walk.careful = careful;
    walk.has_begun = walk.span = 0;
    walk.next = (int32_t)blockIdx.x;
    if (!careful && none) {
        sm90_wait_for_last<T>(b);
        walk.next = *none ? SM90_FAR : walk.next;
    }
    if (!careful)
        return;
    walk.next = 0;
#pragma unroll 1
    for (int i = 0; i < SM90_KNOWN; i++)
        sm90_list(b, &b.header->tile[i]);
}

/* Goes on from tile `n` of a block, if that was found, to what is behind it. */
template <class T> GPU_FN void sm90_advance(const sm90_block &b, int n, sm90_walk &walk) {
    const sm90_tile *t = &b.header->tile[n % SM90_KNOWN];
    const int has_begun = walk.has_begun;
    walk.has_begun = 1;
    if (!has_begun || (T::SPANS && t->slot < 0 && ++walk.span < t->spans))
        return;
    walk.span = 0;
    walk.next = walk.careful ? walk.next + 1 : sm90_next_number(*b.schedule, walk.next);
}

/* Finds tile `n` of a block. */
template <class T> GPU_FN void sm90_find_one(const sm90_block &b, int n, sm90_walk &walk) {
    sm90_tile *t = &b.header->tile[n % SM90_KNOWN];
    sm90_list(b, t); /* what had its place has ended */
    sm90_take<T>(b, walk, t);
    t->careful = walk.careful || b.header->again_count >= SM90_AGAIN / 2 ? SM90_CAREFUL : 0;
    sm90_arrive(SM90_BARRIER(b, tile_known, n % SM90_KNOWN));
}

/* All tiles of a block from tile `n` on, each when it is wanted. By one lane; where there are two
 * senders by a warp, which has values copied meanwhile: one warp alone would take longer for all
 * copies from small pages than products take. sent, cleaned: as above. The number of the tile that
 * ends them. */
template <class T>
GPU_FN int sm90_find(const sm90_block &b, const sm90_maps &maps, int n, int &sent, int &cleaned) {
    sm90_walk own, &walk = T::TWO_SENDERS ? b.header->walk : own;
    if (sm90_lane() == 0)
        sm90_begin_walk<T>(b, n >= SM90_SECOND_PASS, walk);
#pragma unroll 1
    for (int tiles = 0, finds = 0;; n++) { /* of the tile ahead of n, whose values are copied */
#pragma unroll 1
        for (int j = 0; j == 0 || j < tiles; j++) {
            if (j == finds && sm90_lane() == 0) {
                sm90_advance<T>(b, n + SM90_KNOWN - 1, walk);
                sm90_find_one<T>(b, n, walk);
            }
            if (j >= tiles)
                break;
            const volatile sm90_tile *t = &b.header->tile[(n + SM90_KNOWN - 1) % SM90_KNOWN];
            sm90_send_values<T>(b, maps, sent, sm90_values_barrier<T>(b, t, j, sent, cleaned),
                                sm90_share_of<T>(b, sm90_keys_at<T>(t, j), t->end));
            sent++;
        }
        const volatile sm90_tile *t = sm90_wait_tile(b, n);
        if (t->head < 0)
            return n;
        sm90_wait_for_last<T>(b); /* a first tile may be known ahead of it */
        if (sm90_has_two_senders<T>(b)) {
            sm90_senders_meet(b);
            tiles = t->tiles;
            finds = max(tiles - sm90_ahead(b) - 1, 0);
        } else {
            sm90_wait_turn(SM90_BARRIER(b, tile_wanted, 0), n + 1); /* so tile n was wanted */
        }
    }
}

/* --- values --- */

GPU_FN void sm90_hand_over(uint32_t barrier, int thread) {
    sm90_writes_known();
    sm90_helpers_barrier();
    if (thread == 0)
        sm90_arrive(barrier);
}

/* Cleans tile j of values, the n-th of all. */
template <class T>
GPU_FN void sm90_clean(const sm90_block &b, const sm90_tile *t, int j, int n, int thread) {
    const int end = j == 0 ? sm90_last_keys<T>(t) : T::KEYS;
    if (thread == 0)
        b.header->found[n % 4] = 0;
    sm90_helpers_barrier();
    if (sm90_clean_values<T>(sm90_values<T>(b, n % 2), t->careful == SM90_CAREFUL ? 0 : end, end,
                             thread, SM90_HELPERS))
        b.header->found[n % 4] = 1;
    sm90_hand_over(SM90_BARRIER(b, values_full, n % 2), thread);
}

/* Rotates, and writes, the queries of tile n of a block; those of the first one are rotated by its
 * consumers, who have nothing else to do. */
template <class T>
GPU_FN void sm90_rotate_queries(const sm90_block &b, const sm90_tile *t, int n, int is_first,
                                int thread) {
    const int queries = t->head < 0 ? 0 : sm90_queries_of(b, t);
    float2 angles = {};
    if (queries > 0)
        angles = sm90_fetch_angles<T>(b, t, 0, thread);
    sm90_wait_turn(SM90_BARRIER(b, queries_sent, 0), n);
    sm90_await_angles(angles);
    if (T::NORMS && !is_first) {
        sm90_find_norms<T>(b, b.header->norms, sm90_queries<T>(b, n % 2), 0,
                           queries << b.schedule->pack, thread, SM90_HELPERS);
        sm90_helpers_barrier();
    }
#pragma unroll 1
    for (int first = 0; first < queries && !is_first;) {
        const int end = min(first + sm90_fetched<T>, queries);
        if (end < queries)
            angles = sm90_fetch_angles<T>(b, t, end, thread);
        sm90_rotate<T>(b, t, sm90_queries<T>(b, n % 2), first, end, thread, SM90_HELPERS,
                       b.header->norms);
        sm90_await_angles(angles);
        first = end;
    }
    sm90_hand_over(SM90_BARRIER(b, queries_full, n % 2), thread);
    if (!T::NORMS && b.schedule->rotation.out && queries > 0 && !is_first)
        sm90_write_queries<T>(b, t, sm90_queries<T>(b, n % 2), 0, t->rows, thread, SM90_HELPERS);
}

/* Rotates queries, and cleans values that have to be. */
template <class T> GPU_FN int sm90_help(const sm90_block &b, int n, int &taken, int &cleaned) {
    const int thread = (int)threadIdx.x - 64, first = n;
    for (;; n++) {
        const sm90_tile *t = sm90_wait_tile(b, n);
        const int is_end = t->head < 0, tiles = is_end                       ? 0
                                                : t->careful == SM90_CAREFUL ? t->tiles
                                                                             : 1;
        if (T::QUERIES == 2 && b.schedule->rotation.pairs)
            sm90_rotate_queries<T>(b, t, n, n == first, thread);
        for (int j = 0; j < tiles; j++) {
            if (!sm90_is_cleaned<T>(t, j))
                continue;
            sm90_wait_turn(SM90_BARRIER(b, values_sent, 0), cleaned++);
            sm90_clean<T>(b, t, j, taken + j, thread);
        }
        taken += is_end ? 0 : t->tiles;
        sm90_helpers_barrier();
        if (thread == 0) { /* both warps have read the tile; consumers may be behind */
            sm90_wait_free(SM90_BARRIER(b, queries_free, 0), n);
            sm90_arrive(SM90_BARRIER(b, queries_free, n % 2));
        }
        if (is_end)
            return n;
    }
}

#endif
