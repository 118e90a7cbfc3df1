/* How blocks of latents that have attended join the splits of their rows, each some rows. */
#ifndef ROPEKIT_GPU_DECODE_SM90_LATENT_JOIN_H
#define ROPEKIT_GPU_DECODE_SM90_LATENT_JOIN_H

#include "backends/gpu/decode/counter.h"
#include "backends/gpu/decode/sm90/latent.h"

/* Fields of the counter of a query's rows: blocks that have begun; that have left their part; that
 * ended then; and those who stayed, and know how many they are. */
enum {
    DECODE_LATENT_BEGUN = 1,
    DECODE_LATENT_LEFT = 1 << 6,
    DECODE_LATENT_ENDED = 1 << 12,
    DECODE_LATENT_KNOWN = 1 << 18,
    DECODE_LATENT_MOST = 63 /* of each */
};
static_assert((int)SM90_DECODE_LATENT_SPLITS <= (int)DECODE_LATENT_MOST, "splits are counted");

GPU_FN int decode_latent_field(unsigned long long counter, int field) {
    return (int)(counter / (unsigned)field & DECODE_LATENT_MOST);
}

GPU_FN unsigned long long decode_latent_read(const unsigned long long *counter) {
    unsigned long long x;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(x) : "l"(counter) : "memory");
    return x;
}

GPU_FN unsigned long long decode_latent_count(unsigned long long *counter, unsigned long long by) {
    unsigned long long x;
    asm volatile("atom.add.acq_rel.gpu.global.u64 %0, [%1], %2;"
                 : "=l"(x)
                 : "l"(counter), "l"(by)
                 : "memory");
    return x;
}

/* Over [sequence, key head, query, rows]. */
GPU_FN unsigned long long *decode_latent_counter(const sm90_latent_block &b,
                                                 const decode_latent &d) {
    const int group = (int)gpu_attention_group(b.call),
              each = (int)(b.call->k.heads * b.parts->queries) * GPU_SM90_LATENT_BLOCKS(group);
    return d.counters + (int64_t)b.at.sequence * each + (int)blockIdx.x % each;
}

GPU_FN void decode_latent_begin(unsigned long long *counter) {
    decode_mark(counter, decode_latent_read(counter));
    decode_latent_count(counter, DECODE_LATENT_BEGUN);
}

/* Waits for the other splits, where all of them have begun and so none waits for this block to
 * end; x < 0: others join them. The last one to begin stays. */
GPU_FN int2 decode_latent_meet(unsigned long long *counter, int parts) {
    const bool stays =
        decode_latent_field(decode_latent_read(counter), DECODE_LATENT_BEGUN) == parts;
    const unsigned long long before = decode_latent_count(
        counter, stays ? DECODE_LATENT_LEFT : DECODE_LATENT_LEFT + DECODE_LATENT_ENDED);
    unsigned long long now = before + DECODE_LATENT_LEFT;
    if (!stays)
        return {-1, 0};
    while (decode_latent_field(now, DECODE_LATENT_LEFT) < parts)
        now = decode_latent_read(counter);
    return {decode_latent_field(before, DECODE_LATENT_LEFT) -
                decode_latent_field(before, DECODE_LATENT_ENDED),
            parts - decode_latent_field(now, DECODE_LATENT_ENDED)};
}

/* A barrier of the two groups that add values. */
GPU_FN void decode_latent_barrier(void) {
    asm volatile("bar.sync 6, 256;" ::: "memory");
}

GPU_FN auto decode_latent_part(const sm90_latent_block &b, int row) {
    return gpu_part(*b.parts, b.at.sequence, b.at.query, b.at.head + row,
                    b.call->rope.tensor[0].heads, 0, SM90_LATENT_VALUE_DIM);
}

/* The sum from `from` on of every D-th, in the order in which lanes add theirs. */
template <int D, int PARTS> GPU_FN float decode_latent_added(const float (&x)[PARTS], int from) {
    if constexpr (D == PARTS)
        return x[from];
    else
        return decode_latent_added<2 * D>(x, from) + decode_latent_added<2 * D>(x, from + D);
}

/* How threads have rows of up to PARTS splits, of which each asks for many words at a time: so many
 * a row, with pairs of elements LANES pairs apart, and so many rows. */
template <int PARTS> struct decode_latent_lanes {
    enum {
        PAIRS = SM90_LATENT_VALUE_DIM / 2,
        EACH = PARTS > 4 ? 32 / PARTS : 8,
        ROWS = 32 / PARTS / EACH,
        LANES = PAIRS / EACH
    };
};

/* Ends a row by a thread's pairs of its splits, and the largest logits and sums of those. */
template <int DTYPE, int PARTS, class S = decode_latent_lanes<PARTS>>
GPU_FN void decode_latent_end_row(const sm90_latent_block &b, int head,
                                  const float2 (&x)[PARTS][S::EACH], const float2 (&end)[PARTS],
                                  int lane) {
    const rope_attention_sequence *s = &b.header->s;
    float most = -INFINITY, all[PARTS];
    bool left_out = false;
    float2 sum[S::EACH] = {};
#pragma unroll
    for (int n = 0; n < PARTS; n++) {
        most = fmaxf(most, end[n].x);
        left_out |= end[n].y == GPU_PART_LEFT_OUT;
    }
    if (left_out)
        return;
#pragma unroll
    for (int n = 0; n < PARTS; n++) {
        const float weight = exp2f(end[n].x - (most == -INFINITY ? 0 : most));
        all[n] = fmaf(weight, end[n].y, 0.0f);
#pragma unroll
        for (int i = 0; i < S::EACH; i++) {
            sum[i].x = fmaf(weight, x[n][i].x, sum[i].x);
            sum[i].y = fmaf(weight, x[n][i].y, sum[i].y);
        }
    }
    float total = decode_latent_added<1>(all, 0);
    const float kept = gpu_join_sink<true>(b.p->sink_dtype, b.call->sinks, head, &most, &total),
                factor = total == 0 ? -1 : kept / total;
    if (lane == 0)
        gpu_attention_store_lse(b.call, s, b.at.query, head, most, total);
    uint32_t *to = (uint32_t *)(void *)gpu_attention_out<DTYPE>(b.call, s, b.at.query, head) + lane;
#pragma unroll
    for (int i = 0; i < S::EACH; i++)
        to[i * S::LANES] = gpu_end_pair<DTYPE>(sum[i].x, sum[i].y, factor);
}

/* Rows of up to PARTS splits, with the bits of the join of `latent`. thread: of the groups that add
 * values. */
template <int DTYPE, int PARTS>
GPU_FN void decode_latent_join_of(const sm90_latent_block &b, int2 joiner, int thread) {
    typedef decode_latent_lanes<PARTS> S;
    const int lane = thread % S::LANES, step = 2 * GPU_ATTENTION_THREADS / S::LANES * joiner.y;
#pragma unroll 1
    for (int first = joiner.x + thread / S::LANES * joiner.y; first < b.at.rows;
         first += S::ROWS * step) {
        float2 x[S::ROWS][PARTS][S::EACH], end[S::ROWS][PARTS];
#pragma unroll
        for (int r = 0; r < S::ROWS; r++) {
            const bool has_row = first + r * step < b.at.rows;
            const float2 *part = (const float2 *)(const void *)decode_latent_part(
                b, has_row ? first + r * step : first);
#pragma unroll
            for (int n = 0; n < PARTS; n++, part += S::PAIRS + 1) {
                const bool there = has_row && n < b.at.parts;
#pragma unroll
                for (int i = 0; i < S::EACH; i++)
                    x[r][n][i] = there ? __ldcg(part + lane + i * S::LANES) : float2{0, 0};
                end[r][n] = there ? __ldcg(part + S::PAIRS) : float2{-INFINITY, 0};
            }
        }
#pragma unroll
        for (int r = 0; r < S::ROWS; r++)
            if (first + r * step < b.at.rows)
                decode_latent_end_row<DTYPE, PARTS>(b, b.at.head + first + r * step, x[r], end[r],
                                                    lane);
    }
}

template <int DTYPE>
GPU_FN void decode_latent_join_rows(const sm90_latent_block &b, int2 joiner, int thread) {
    if (b.at.parts <= 2)
        decode_latent_join_of<DTYPE, 2>(b, joiner, thread);
    else if (b.at.parts <= 4)
        decode_latent_join_of<DTYPE, 4>(b, joiner, thread);
    else if (b.at.parts <= 8)
        decode_latent_join_of<DTYPE, 8>(b, joiner, thread);
    else
        decode_latent_join_of<DTYPE, SM90_DECODE_LATENT_SPLITS>(b, joiner, thread);
}

/* Of the groups that add values, behind all that the block leaves. counter: of the thread that
 * counts, of others NULL. */
template <int DTYPE>
GPU_FN void decode_latent_join(const sm90_latent_block &b, const decode_latent &d, int thread,
                               unsigned long long *counter) {
    decode_latent_barrier(); /* counting releases what all have written */
    if (counter)
        d.header->joiner = decode_latent_meet(counter, b.at.parts);
    decode_latent_barrier();
    const int2 joiner = d.header->joiner;
    if (joiner.x < 0)
        return;
    if (counter && decode_latent_field(decode_latent_count(counter, DECODE_LATENT_KNOWN),
                                       DECODE_LATENT_KNOWN) == joiner.y - 1)
        *counter = DECODE_MARK;
    decode_latent_join_rows<DTYPE>(b, joiner, thread);
}

#endif
