/* One head a token, by exact angles that nothing scales: they go to it without a row in memory. */
#ifndef ROPEKIT_CPU_ROPE_SINGLE_HEAD_H
#define ROPEKIT_CPU_ROPE_SINGLE_HEAD_H

#include "backends/cpu/rope/rotate.h"
#include "backends/cpu/simd/cos_sin.h"

/* Vectors of pairs that go together, of which 16-bit stores make one. */
enum { ROPE_SINGLE_VECTORS = 2 };

/* The phase of a vector of pairs from pair i on: of a first position, or of the next one, a sum. */
CPU_INLINE simd_turns rope_next_phase(const uint64_t *list, const int64_t *first, simd_u64 *sums,
                                      int i) {
    sums += 2 * i / SIMD_LANES;
    const simd_turns phase =
        first ? simd_phase_at(list, *first, i) : (simd_turns){{sums[0], sums[1]}};
    for (int part = 0; part < 2; part++) {
        simd_u64 step;
        memcpy(&step, list + i + part * SIMD_LANES / 2, sizeof step);
        sums[part] = phase.part[part] + step;
    }
    return phase;
}

CPU_INLINE void rope_single_token(rope_kind kind, const cpu_heads *head, const uint64_t *list,
                                  const int64_t *first, simd_u64 *sums, int pairs, const char *in,
                                  char *out) {
    int i = 0;
    rope_prefetch(head, kind.stream, in, out, 2 * (int64_t)pairs * cpu_dtype_size(kind.dtype));
#pragma GCC unroll 2
    do { /* the window has whole groups of vectors, and one at least */
        simd_cos_sin a[ROPE_SINGLE_VECTORS];
        simd_pair x[ROPE_SINGLE_VECTORS];
#pragma GCC unroll 2
        for (int v = 0; v < ROPE_SINGLE_VECTORS; v += SIMD_GROUP) {
            simd_turns phase[SIMD_GROUP];
            SIMD_EACH(w, SIMD_GROUP)
            phase[w] = rope_next_phase(list, first, sums, i + (v + w) * SIMD_LANES);
            simd_cos_sin_turns(SIMD_GROUP, phase, a + v);
        }
        rope_read(kind, ROPE_SINGLE_VECTORS, in, i, pairs, x);
        SIMD_EACH(v, ROPE_SINGLE_VECTORS)
        x[v] = rope_rotate_vector(kind, x[v], (rope_matrix){a[v].c, a[v].s, a[v].c, a[v].s});
        rope_write(kind, ROPE_SINGLE_VECTORS, out, i, pairs, x);
        i += ROPE_SINGLE_VECTORS * SIMD_LANES;
    } while (i < pairs);
}

/* Tokens of one head each at consecutive positions: `streams` parts, each of `tokens`, side by
 * side.
 */
CPU_INLINE void rope_rotate_single(rope_kind kind, const cpu_heads *head, int64_t position,
                                   int64_t tokens, int streams) {
    const cpu_heads frame = *head; /* stores may alias what the pointers lead to */
    const uint64_t *list = frame.problem->set[0].turns;
    const int pairs = frame.problem->pairs;
    simd_u64 sums[2 * CPU_ROW_PAIRS / SIMD_LANES]; /* of one stream, or of four with a quarter */
    for (int64_t t = 0; t < tokens; t++)
        for (int stream = 0; stream < streams; stream++) {
            const int64_t index = stream * tokens + t, first = rope_sum(position, index);
            rope_single_token(kind, &frame, list, t == 0 ? &first : NULL,
                              sums + 2 * stream * pairs / SIMD_LANES, pairs,
                              frame.in + index * frame.in_step, frame.out + index * frame.out_step);
        }
}

#endif
