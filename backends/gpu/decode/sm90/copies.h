/* Copies of chunks, which each warp that multiplies has for itself. */
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
    for (;; s.walk.item += (int)gridDim.x) {
        if (!decode_find<S, false>(c, s.walk, &s.item)) {
            s.item.last = 0;
            s.item.first = 0;
            return;
        }
        if (s.item.first + warp < s.item.last)
            break;
    }
    s.walk.item += (int)gridDim.x;
    s.next_page = decode_pages<S>(c, s.item.sequence, s.item.first + warp, s.item.last);
}

GPU_FN void decode_copy(uint32_t to, const CUtensorMap *map, uint32_t barrier, sm90_box at,
                        uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%3, %4, %5, %3, %6}], [%2], %7;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(0), "r"(at.head), "r"(at.token), "r"(at.row),
                 "l"(policy)
                 : "memory");
}

/* Has the warp's next chunk copied, if it has one. The item that it may begin is known. */
template <class S>
GPU_FN void decode_send(const decode_block<S> &b, const CUtensorMap *k, const CUtensorMap *v,
                        decode_copies &s, int warp) {
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
    if (decode_lane() == 0) {
        const uint32_t to = b.ring + (uint32_t)(warp * S::STAGES + s.slot) * S::SLOT,
                       full = decode_address(&b.header->full[warp][s.slot]);
        const uint64_t policy = s.sent < c->stay ? STAYS : LEAVES_FIRST;
        sm90_expect(full, S::SLOT);
        decode_copy(to, k, full, {s.head, slot, page}, policy);
        decode_copy(to + S::CHUNK_BYTES, v, full, {s.head, slot, page}, policy);
    }
    if (S::CODES && c->flags & SM90_DECODE_SCALED)
        decode_copy_scales(c, decode_chunk_of(b, warp, s.slot).scales,
                           decode_address(&b.header->full[warp][s.slot]), s.head, chunk, slot,
                           page);
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

#endif
