/* Copies of chunks, which each warp that multiplies has for itself. Its lanes copy: that reads an
 * H200 as fast as tensor copies whose map promotes nothing, and 6 % faster than those that promote
 * to 256 bytes. */
#ifndef ROPEKIT_GPU_DECODE_SM90_COPIES_H
#define ROPEKIT_GPU_DECODE_SM90_COPIES_H

#include "backends/gpu/decode/sm90/codes.h"

/* A bit beside those of slots: the next item is found already. */
enum { DECODE_KNOWN = 1 << 30 };

/* Copies of a warp: chunks of its items one after the other, whatever the item. */
struct decode_copies {
    decode_walk walk;
    decode_item item;     /* found last */
    int chunk, end;       /* of the item being copied: the warp's next, and behind its last */
    int head, sequence;   /* of that */
    decode_raw page;      /* of the chunk that is the lane's turn */
    int turn;             /* lane of the next chunk */
    decode_raw next_page; /* of the item found last */
    int slot, sent;       /* the next slot; copies so far */
    int failed;           /* slots whose chunk has no page, and DECODE_KNOWN */
};

/* Pages of the next 32 chunks of the warp, from `chunk` on. */
template <class S>
GPU_FN decode_raw decode_pages(const sm90_decode_call *c, int sequence, int chunk, int end) {
    chunk += S::WARPS * (decode_lane());
    return chunk < end ? decode_read_page(c, sequence, chunk) : decode_raw{-1, -1};
}

/* Finds the next item of which this warp has a chunk; without one its `last` is 0. */
template <class S>
GPU_FN void decode_look_ahead(const sm90_decode_call *c, decode_copies &s, int warp) {
    s.failed |= DECODE_KNOWN;
    do {
        if (!decode_find<S, false>(c, s.walk, &s.item)) {
            s.item.last = 0;
            s.item.first = 0;
            return;
        }
    } while (s.item.first + warp >= s.item.last);
    s.next_page = decode_pages<S>(c, s.item.sequence, s.item.first + warp, s.item.last);
}

/* Has the first `rows` keys of a chunk copied; the others are zeros. A lane has 16 bytes of some.
 */
template <class S>
GPU_FN void decode_copy(uint32_t to, const char *from, int64_t stride, int rows, uint64_t policy) {
    enum { COLUMNS = S::STORED / 16, AT_ONCE = 32 / COLUMNS };
    const int column = decode_lane() % COLUMNS, first = decode_lane() / COLUMNS;
    from += first * stride + column * 16;
#pragma unroll
    for (int i = 0; i < SM90_DECODE_CHUNK; i += AT_ONCE, from += AT_ONCE * stride)
        asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(
                         decode_at(to, first + i, column)),
                     "l"(from), "r"(first + i < rows ? 16 : 0), "l"(policy)
                     : "memory");
}

/* Ends a group of copies; waits for the oldest group that was not waited for. */
GPU_FN void decode_copies_mark(void) {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <class S> GPU_FN void decode_copies_wait(void) {
    asm volatile("cp.async.wait_group %0;" ::"n"(S::STAGES - 1) : "memory");
    sm90_dawdle();
    __syncwarp();
}

/* Has the warp's next chunk copied, if it has one. The item that it may begin is known. */
template <class S>
GPU_FN void decode_send_chunk(const decode_block<S> &b, decode_copies &s, int warp) {
    enum : uint64_t { STAYS = 0x1000000000000000u, LEAVES_FIRST = 0x12F0000000000000u };
    const sm90_decode_call *c = b.call;
    if (s.chunk >= s.end) {
        s.chunk = s.item.first + warp;
        s.end = s.item.last;
        s.head = s.item.head;
        s.sequence = s.item.sequence;
        s.page = s.next_page;
        s.turn = 0;
        if (s.end != 0) /* there may be another */
            s.failed &= ~DECODE_KNOWN;
        if (s.chunk >= s.end)
            return;
    }
    const int page = __shfl_sync(~0u, decode_page(c, s.page), s.turn),
              chunk = decode_around(c, s.chunk),
              slot = (chunk - decode_over(chunk, c->per_page) * c->page_chunks) * SM90_DECODE_CHUNK;
    const decode_chunk to = decode_chunk_of(b, warp, s.slot);
    const int rows = page < 0 ? 0 : c->held - chunk * SM90_DECODE_CHUNK;
    const uint64_t policy = s.sent < c->stay ? STAYS : LEAVES_FIRST;
    decode_copy<S>(to.keys, decode_head_of(&c->k_cache, page, slot, s.head), c->k_cache.slot, rows,
                   policy);
    decode_copy<S>(to.values, decode_head_of(&c->v_cache, page, slot, s.head), c->v_cache.slot,
                   rows, policy);
    if (S::CODES && c->flags & SM90_DECODE_SCALED)
        decode_copy_scales(c, to.scales, s.head, slot, page, rows);
    s.failed = (s.failed & ~(1 << s.slot)) | (page < 0 ? 1 << s.slot : 0);
    s.slot = s.slot == S::STAGES - 1 ? 0 : s.slot + 1;
    s.sent++;
    s.chunk += S::WARPS;
    s.turn++;
    if (s.turn == 32 && s.chunk < s.end) {
        s.turn = 0;
        s.page = decode_pages<S>(c, s.sequence, s.chunk, s.end);
    }
}

template <class S> GPU_FN void decode_send(const decode_block<S> &b, decode_copies &s, int warp) {
    decode_send_chunk<S>(b, s, warp);
    decode_copies_mark();
}

#endif
