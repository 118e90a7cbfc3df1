/* What is fetched ahead and touched of a slice's windows, as its walk has it. */
#ifndef ROPEKIT_CPU_WALK_LANES_H
#define ROPEKIT_CPU_WALK_LANES_H

#include "backends/cpu/block_lanes.h"

/* Most tokens whose rows are filled before their heads rotate. */
enum { LANES_TOKENS = 4 };

/* Not one head of a token, which lost by it, nor vectors of 16 bytes, which are read at once. */
CPU_INLINE int lanes_touches(const cpu_slice *slice, int64_t heads) {
    return LANES > 4 && slice->touch && heads > 1;
}

/* Bytes fetched ahead of a call that the cache holds, as input or output. */
CPU_INLINE int lanes_bytes_within(const rope_problem *p, const cpu_slice *slice, int output) {
    const cpu_walk *walk = slice->walk;
    const int quiet = walk->quiet && lanes_serves_blocks(p) && lanes_is_block(p->pairs) &&
                      (output || slice->alone);
    return slice->near || quiet ? 0 : walk->within;
}

/* Heads from one to that which is fetched while it rotates, as input or output, where `head` bytes
 * of each are read and written; 0: none is, nor of parts of heads that the cache holds. */
CPU_INLINE int64_t lanes_heads_ahead(const rope_problem *p, const cpu_slice *slice, int size,
                                     int64_t head, int output) {
    int bytes = 0;
    if (slice->exceeds)
        bytes = slice->walk->ahead[size == 4];
    else if (head == 2 * p->pairs * size)
        bytes = lanes_bytes_within(p, slice, output);
    return bytes > head ? bytes / head : bytes > 0;
}

/* The same to the L2: windows of 128 of several heads, the only ones that gained
 * (docs/performance.md). */
CPU_INLINE int64_t lanes_heads_far(const rope_problem *p, const cpu_slice *slice, int64_t heads,
                                   int size, int64_t head) {
    int serves = slice->exceeds && size == 2 && p->pairs == 64 && heads > 1;
    return serves ? slice->walk->far / head : 0;
}

/* The bytes of so many heads: within a token where it has as many, or to another token. One head
 * of some tokens is followed by the same head of the next ones. */
CPU_INLINE int64_t lanes_ahead(const cpu_slice *slice, int64_t ahead, int64_t heads, int64_t stride,
                               int64_t step) {
    int apart = slice->exceeds && slice->walk->apart;
    int64_t each = step, count = LANES_TOKENS;
    if (ahead == 0 || heads == 0)
        return 0;
    if (stride <= step || (apart && heads > 1)) {
        each = heads > ahead ? stride : step;
        count = heads > ahead ? ahead : ahead / heads;
    }
    return (int64_t)((uint64_t)each * (uint64_t)count); /* strides of one step may be anything */
}

#endif
