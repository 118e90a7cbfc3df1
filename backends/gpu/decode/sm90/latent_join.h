/* How blocks of latents that have attended join the splits of their rows, each some rows. */
#ifndef ROPEKIT_GPU_DECODE_SM90_LATENT_JOIN_H
#define ROPEKIT_GPU_DECODE_SM90_LATENT_JOIN_H

#include "backends/gpu/attention/sm90/latent_join.h"
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
static_assert(GPU_SPLITS_MOST + 2 <= DECODE_LATENT_MOST, "splits are counted");

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

/* Rows of a block that a thread joins: from the first on every so many. */
struct decode_latent_rows {
    int first, step;
};

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

/* Ends a row by a thread's elements of its splits, and the largest logits and sums of those. */
template <int DTYPE, int PARTS>
GPU_FN void decode_latent_end_row(const sm90_latent_block &b, int head, const float2 (&x)[PARTS][2],
                                  const float2 (&end)[PARTS], int thread) {
    const rope_attention_sequence *s = &b.header->s;
    float most = -INFINITY, all[PARTS];
    bool left_out = false;
    float2 sum[2] = {};
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
        for (int i = 0; i < 2; i++) {
            sum[i].x = fmaf(weight, x[n][i].x, sum[i].x);
            sum[i].y = fmaf(weight, x[n][i].y, sum[i].y);
        }
    }
    float total = decode_latent_added<1>(all, 0);
    const float kept = gpu_join_sink<true>(b.p->sink_dtype, b.call->sinks, head, &most, &total),
                factor = total == 0 ? -1 : kept / total;
    if (thread == 0)
        gpu_attention_store_lse(b.call, s, b.at.query, head, most, total);
    uint16_t *to = gpu_attention_out<DTYPE>(b.call, s, b.at.query, head) + 2 * thread;
#pragma unroll
    for (int i = 0; i < 2; i++)
        *(uint32_t *)(void *)(to + i * (SM90_LATENT_VALUE_DIM / 2)) =
            gpu_end_pair<DTYPE>(sum[i].x, sum[i].y, factor);
}

/* Of up to PARTS splits: as sm90_latent_weights() and sm90_latent_join_row(), but every thread has
 * the weights, and some rows are asked for at a time. */
template <int DTYPE, int PARTS>
GPU_FN void decode_latent_join_few(const sm90_latent_block &b, decode_latent_rows rows) {
    enum { ROWS = 16 / PARTS, HALF = SM90_LATENT_VALUE_DIM / 4, LAST = 2 * HALF, EACH = LAST + 1 };
    const int thread = (int)threadIdx.x % GPU_ATTENTION_THREADS;
#pragma unroll 1
    for (; rows.first < b.at.rows; rows.first += ROWS * rows.step) {
        float2 x[ROWS][PARTS][2], end[ROWS][PARTS]; /* in pairs: halves of a part, what is last */
#pragma unroll
        for (int i = 0; i < ROWS * PARTS; i++) {
            const int r = i / PARTS, n = i % PARTS, row = rows.first + r * rows.step;
            const bool there = row < b.at.rows && n < b.at.parts;
            const float2 *at =
                (const float2 *)(const void *)decode_latent_part(b, there ? row : 0) +
                (there ? n * EACH : 0);
            x[r][n][0] = there ? __ldcg(at + thread) : float2{0, 0};
            x[r][n][1] = there ? __ldcg(at + HALF + thread) : float2{0, 0};
            end[r][n] = there ? __ldcg(at + LAST) : float2{-INFINITY, 0};
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (rows.first + r * rows.step < b.at.rows)
                decode_latent_end_row<DTYPE, PARTS>(b, b.at.head + rows.first + r * rows.step, x[r],
                                                    end[r], thread);
    }
}

/* Of any number of splits, four rows at a time. */
template <int DTYPE>
GPU_FN void decode_latent_join_many(const sm90_latent_block &b, const decode_latent &d, int group,
                                    decode_latent_rows rows) {
    enum { AT_ONCE = GPU_ATTENTION_THREADS / 32 };
    sm90_latent_joined *joined = (sm90_latent_joined *)(void *)d.fresh + group * AT_ONCE;
    const rope_attention_sequence *s = &b.header->s;
    const int thread = (int)threadIdx.x % GPU_ATTENTION_THREADS;
#pragma unroll 1
    for (; rows.first < b.at.rows; rows.first += AT_ONCE * rows.step) {
        const int own = rows.first + thread / 32 * rows.step;
        if (own < b.at.rows)
            sm90_latent_weights(b.p, b.call, s, b.at.query, b.at.head + own,
                                decode_latent_part(b, own), b.at.parts, &joined[thread / 32]);
        sm90_group_barrier(group);
#pragma unroll 1
        for (int i = 0, row = rows.first; i < AT_ONCE && row < b.at.rows; i++, row += rows.step)
            sm90_latent_join_row<DTYPE>(b.call, s, b.at.query, b.at.head + row,
                                        decode_latent_part(b, row), joined[i], thread);
        sm90_group_barrier(group);
    }
}

/* Groups 0 and 1 have the block's rows in turn. */
template <int DTYPE>
GPU_FN void decode_latent_join_rows(const sm90_latent_block &b, const decode_latent &d, int group,
                                    int2 joiner) {
    const decode_latent_rows rows = {joiner.x + group * joiner.y, 2 * joiner.y};
    if (b.at.parts <= 2)
        decode_latent_join_few<DTYPE, 2>(b, rows);
    else if (b.at.parts <= 4)
        decode_latent_join_few<DTYPE, 4>(b, rows);
    else if (b.at.parts <= 8)
        decode_latent_join_few<DTYPE, 8>(b, rows);
    else if (b.at.parts <= 16)
        decode_latent_join_few<DTYPE, 16>(b, rows);
    else
        decode_latent_join_many<DTYPE>(b, d, group, rows);
}

/* Of the groups that add values, behind all that the block leaves. counter: of the thread that
 * counts, of others NULL. */
template <int DTYPE>
GPU_FN void decode_latent_join(const sm90_latent_block &b, const decode_latent &d, int group,
                               unsigned long long *counter) {
    __threadfence();
    decode_latent_barrier();
    if (counter)
        d.header->joiner = decode_latent_meet(counter, b.at.parts);
    decode_latent_barrier();
    const int2 joiner = d.header->joiner;
    if (joiner.x < 0)
        return;
    if (counter && decode_latent_field(decode_latent_count(counter, DECODE_LATENT_KNOWN),
                                       DECODE_LATENT_KNOWN) == joiner.y - 1)
        *counter = DECODE_MARK;
    decode_latent_join_rows<DTYPE>(b, d, group, joiner);
}

#endif
