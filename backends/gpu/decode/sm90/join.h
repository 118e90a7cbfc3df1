/* What is done behind an item. Helper warps sum what the compute warps give, and join splits of a
 * series. Joiners count the series that are in memory, and helpers a block's last one, for which
 * nothing is left to do meanwhile. The warp that counts a sequence's last series joins its rows:
 * none waits. Splits are joined as the leaves of a binary tree, whichever are a series. */
#ifndef ROPEKIT_GPU_DECODE_SM90_JOIN_H
#define ROPEKIT_GPU_DECODE_SM90_JOIN_H

#include "backends/gpu/attention/epilogue.h"
#include "backends/gpu/decode/sm90/prepare.h"
#include "backends/gpu/tile/mma.h"

/* A row's sums: a lane has four elements. */
struct decode_sum {
    float4 out;
    float top, sum; /* sum < 0: the sequence is left out */
};

GPU_FN void decode_scale_add(float4 &to, const float4 &x, float by) {
    to.x = fmaf(x.x, by, to.x);
    to.y = fmaf(x.y, by, to.y);
    to.z = fmaf(x.z, by, to.z);
    to.w = fmaf(x.w, by, to.w);
}

/* Two nodes of the tree, of which `a` is the first. */
GPU_FN decode_sum decode_join_two(const decode_sum &a, const decode_sum &b) {
    const float top = fmaxf(a.top, b.top), x = gpu_exp2(a.top - top), y = gpu_exp2(b.top - top);
    decode_sum s = {{a.out.x * x, a.out.y * x, a.out.z * x, a.out.w * x}, top, a.sum * x};
    decode_scale_add(s.out, b.out, y);
    s.sum = a.sum < 0 || b.sum < 0 ? -1 : fmaf(b.sum, y, s.sum);
    return s;
}

/* Of all compute warps. */
template <class S> GPU_FN decode_sum decode_sum_of(const decode_block<S> &b, int at, int row) {
    const float *from =
        b.sums + (at * S::WARPS * S::ROWS + row) * S::SUM_FLOATS + decode_part_lane<S>() * 4;
    decode_sum s = {{0, 0, 0, 0}, b.header->top[at][0][row].x, 0};
    bool left_out = false;
#pragma unroll
    for (int w = 1; w < S::WARPS; w++)
        s.top = fmaxf(s.top, b.header->top[at][w][row].x);
#pragma unroll
    for (int w = 0; w < S::WARPS; w++) {
        const float2 top = b.header->top[at][w][row];
        const float by = gpu_exp2(top.x - s.top);
        left_out |= top.y < 0;
        s.sum = fmaf(top.y, by, s.sum);
        decode_scale_add(s.out, *(const float4 *)(const void *)(from + w * S::ROWS * S::SUM_FLOATS),
                         by);
    }
    s.sum = left_out ? -1 : s.sum;
    return s;
}

/* --- the end of a row --- */

template <class S> GPU_FN int decode_band(const sm90_decode_call *c, const decode_split &of) {
    return S::HAS_BANDS ? decode_over(of.head, c->per_head) : 0;
}

template <class S> GPU_FN int decode_key_head(const sm90_decode_call *c, const decode_split &of) {
    return of.head - decode_band<S>(c, of) * c->k_heads;
}

template <int DTYPE, class S>
GPU_FN void decode_end(const sm90_decode_call *c, const decode_split &of, int of_band,
                       const decode_sum &s) {
    const int row = decode_band<S>(c, of) * S::ROWS + of_band,
              token = decode_over(row, c->per_group),
              head = decode_key_head<S>(c, of) * c->group + row - token * c->group,
              lane = decode_lane();
    if (s.sum < 0)
        return;
    float top = s.top, sum = s.sum;
    const float kept = gpu_join_sink<true>(c->sink_dtype, c->sinks, head, &top, &sum),
                by = sum == 0 ? 0 : kept / sum;
    const uint2 two = {gpu_join<DTYPE>(s.out.x * by, s.out.y * by),
                       gpu_join<DTYPE>(s.out.z * by, s.out.w * by)};
    if (decode_writes<S>())
        *(uint2 *)(void *)(decode_head(&c->out, of.sequence, of.begin + token, head) + lane * 8) =
            two;
    if (c->lse && lane == 0)
        c->lse[of.sequence * c->lse_stride[0] + (of.begin + token) * c->lse_stride[1] +
               head * c->lse_stride[2]] = sum == 0 ? -INFINITY : GPU_LN_2 * (top + log2f(sum));
}

/* --- splits --- */

/* Of a key head. */
GPU_FN int decode_rows_of(const sm90_decode_call *c, const decode_split &of) {
    return of.tokens * c->group;
}

template <class S> GPU_FN int decode_band_rows(const sm90_decode_call *c, const decode_split &of) {
    return min((int)S::ROWS, decode_rows_of(c, of) - decode_band<S>(c, of) * (int)S::ROWS);
}

/* Results of series 0 of a row of the band. */
template <class S>
GPU_FN int64_t decode_part(const sm90_decode_call *c, const decode_split &of, int row) {
    const int64_t ahead = c->part_tokens ? (int64_t)of.sequence * c->part_tokens : of.begin;
    return (ahead * c->k_heads + decode_key_head<S>(c, of) * of.tokens) * c->most_splits *
               c->group +
           decode_band<S>(c, of) * S::ROWS + row;
}

/* Counts, behind all that the warp has stored and ahead of all that it reads. */
GPU_FN unsigned long long decode_count(unsigned long long *counter) {
    unsigned long long x;
    asm volatile("atom.add.acq_rel.gpu.global.u64 %0, [%1], 1;"
                 : "=l"(x)
                 : "l"(counter)
                 : "memory");
    return x;
}

/* Joins a row with those of the series that wait. False: it waits for another. */
template <class S>
GPU_FN bool decode_join_series(const decode_block<S> &b, const decode_split &of, int row,
                               decode_sum &s) {
    const int lane = decode_lane();
#pragma unroll 1
    for (int level = 0; 1 << level <= of.nth || !of.is_last; level++) {
        float *at = b.waiting + (level * S::ROWS + row) * S::SUM_FLOATS;
        float4 *out = (float4 *)(void *)(at + decode_part_lane<S>() * 4);
        float2 *top = (float2 *)(void *)(at + S::DIM);
        if (of.nth >> level & 1) {
            s = decode_join_two({*out, top->x, top->y}, s);
        } else if (!of.is_last) {
            if (decode_writes<S>())
                *out = s.out;
            if (lane == 0)
                *top = {s.top, s.sum};
            __syncwarp();
            return false;
        }
    }
    return true;
}

/* Ends a row of a sequence that has one series, and leaves that of another in memory. */
template <int DTYPE, class S>
GPU_FN void decode_store(const decode_block<S> &b, const decode_split &to, int row, decode_sum s) {
    const sm90_decode_call *c = b.call;
    const int lane = decode_lane();
    if (!decode_join_series<S>(b, to, row, s))
        return;
    if (to.parts == 1) {
        decode_end<DTYPE, S>(c, to, row, s);
        return;
    }
    const int64_t part = decode_part<S>(c, to, row) + to.part * decode_rows_of(c, to);
    if (decode_writes<S>())
        __stcg((float4 *)(void *)(c->parts.sums + part * S::DIM + lane * 4), s.out);
    if (lane == 0)
        __stcg((float2 *)(void *)(c->parts.tops + part * 2), {s.top, s.sum});
}

/* x: 0 where it is not read. In the order of the program: addresses need few registers. */
GPU_FN void decode_read_if(float4 &x, const float *from, int reads) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %5, 0; mov.f32 %0, 0f00000000; mov.f32 %1, "
                 "0f00000000; mov.f32 %2, 0f00000000; mov.f32 %3, 0f00000000; @p "
                 "ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4]; }"
                 : "=&f"(x.x), "=&f"(x.y), "=&f"(x.z), "=&f"(x.w)
                 : "l"(from), "r"(reads)
                 : "memory");
}

/* Joins up to 16 nodes, whose tops and sums lanes have, into x[0] and `s`: `count` are there. */
GPU_FN void decode_join_nodes(float4 (&x)[16], float2 top, int count, decode_sum &s) {
#pragma unroll
    for (int d = 1; d < 16; d *= 2) {
        const float2 other = {__shfl_down_sync(~0u, top.x, d), __shfl_down_sync(~0u, top.y, d)};
        const float most = fmaxf(top.x, other.x);
        const float2 by = {gpu_exp2(top.x - most), gpu_exp2(other.x - most)};
        if (decode_lane() + d < count)
            top = {most, top.y < 0 || other.y < 0 ? -1 : fmaf(other.y, by.y, top.y * by.x)};
#pragma unroll
        for (int i = 0; i + d < 16; i += 2 * d) {
            const float to = __shfl_sync(~0u, by.x, i), from = __shfl_sync(~0u, by.y, i);
            if (i + d >= count)
                continue;
            x[i] = {x[i].x * to, x[i].y * to, x[i].z * to, x[i].w * to};
            decode_scale_add(x[i], x[i + d], from);
        }
    }
    s = {x[0], __shfl_sync(~0u, top.x, 0), __shfl_sync(~0u, top.y, 0)};
}

/* A helper's rows of a sequence and key head whose series are all there. */
template <int DTYPE, class S>
GPU_FN void decode_join_row(const sm90_decode_call *c, const decode_split &split, int row) {
    enum { AT_ONCE = 16 };
    const int lane = decode_lane(), step = decode_rows_of(c, split);
    const int64_t part = decode_part<S>(c, split, row);
    const float2 *tops = (const float2 *)(const void *)(c->parts.tops + part * 2);
    const float *sums = c->parts.sums + part * S::DIM + decode_part_lane<S>() * 4;
    decode_sum s, waiting[2];
#pragma unroll 1
    for (int first = 0, n = 0; first < split.parts; first += AT_ONCE, n++) {
        const int count = min(split.parts - first, (int)AT_ONCE);
        const float2 top =
            lane < count ? __ldcg(tops + (first + lane) * step) : float2{DECODE_LOWEST, 0};
        float4 x[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++, sums += step * S::DIM)
            decode_read_if(x[i], sums, i < count);
        decode_join_nodes(x, top, count, s);
        const bool is_last = first + AT_ONCE >= split.parts;
        if (n & 1)
            s = decode_join_two(waiting[0], s);
        else if (!is_last)
            waiting[0] = s;
        if (n & 2)
            s = (n & 1) || is_last ? decode_join_two(waiting[1], s) : s;
        else if (n & 1)
            waiting[1] = s;
    }
    decode_end<DTYPE, S>(c, split, row, s);
}

/* Counts a series' rows of the helpers whose lanes say so, and joins those of which it is the last.
 * To count takes as long as all copies that are under way. */
template <int DTYPE, class S>
GPU_FN void decode_count_and_join(const sm90_decode_call *c, const decode_split &split,
                                  bool counts) {
    unsigned long long *counter = decode_counter(c, split.sequence, split.head, decode_lane());
    bool last = false;
    if (counts)
        last = (int)(decode_count(counter) & ((1u << DECODE_COUNT_BITS) - 1)) == split.parts - 1;
    const unsigned joins = __ballot_sync(~0u, last);
    if (!joins)
        return;
    __syncwarp();
    if (last)
        *counter = DECODE_MARK;
#pragma unroll 1
    for (int row = 0; row < decode_band_rows<S>(c, split); row++)
        if (joins >> row % SM90_DECODE_HELPERS & 1)
            decode_join_row<DTYPE, S>(c, split, row);
}

/* --- helpers and joiners --- */

/* Has the next joiner count a series; number: of series so far. */
template <class S>
GPU_FN void decode_hand_on(const decode_block<S> &b, const decode_split &split, int helper,
                           int &number) {
    enum { JOINERS = S::JOINERS };
    const int joiner = number % JOINERS, turn = number / JOINERS;
    if (turn > 0)
        sm90_wait(decode_address(&b.header->split_taken[joiner]), (uint32_t)((turn - 1) % 2));
    if (decode_lane() == 0) {
        if (helper == 0)
            b.header->split[joiner] = split;
        sm90_arrive(decode_address(&b.header->split_ready[joiner]));
    }
    number++;
}

/* Tells joiners that they get no other series. */
template <class S> GPU_FN void decode_dismiss(const decode_block<S> &b, int helper, int number) {
#pragma unroll 1
    for (int i = 0; i < S::JOINERS; i++)
        decode_hand_on<S>(b, {}, helper, number);
}

/* Takes what a joiner is handed on. */
template <class S>
GPU_FN void decode_take(const decode_block<S> &b, int joiner, uint32_t turn, decode_split *to) {
    sm90_wait(decode_address(&b.header->split_ready[joiner]), turn % 2);
    if (decode_lane() == 0) {
        *to = b.header->split[joiner];
        sm90_arrive(decode_address(&b.header->split_taken[joiner]));
    }
    __syncwarp();
}

/* Joiners: all that they are handed on. Helpers, which are below 0 of these: their block's last
 * series. */
template <int DTYPE, class S> GPU_FN void decode_join(const decode_block<S> &b, int joiner) {
    const int lane = decode_lane();
    for (uint32_t turn = 0;; turn++) {
        const int own = gpu_opaque(joiner), helper = own + SM90_DECODE_HELPERS; /* addresses anew */
        decode_split *taken = &b.header->joined[helper];
        if (joiner >= 0)
            decode_take<S>(b, own, turn, taken);
        const decode_split split = *taken;
        if (split.parts > 1)
            decode_count_and_join<DTYPE, S>(
                b.call, split, joiner < 0 ? lane == helper : lane < SM90_DECODE_HELPERS);
        if (joiner < 0 || split.parts == 0)
            return;
    }
}

/* Leaves the block's last series to decode_join. */
template <int DTYPE, class S>
GPU_FN void decode_help(const decode_block<S> &b, const decode_constants &by, int helper,
                        decode_lengths read) {
    const sm90_decode_call *c = b.call;
    const int lane = decode_lane();
    decode_walk walk = decode_begin<S>(c, read, true);
    decode_item next; /* what is loaded */
    decode_split *ready = b.header->ready[helper];
    decode_loaded<S> loaded;
    int found = 0, handed = 0;
    bool more = true;
    /* Item n is summed, the AHEAD - 1 behind it are ready or become so, and one more is loaded. */
#pragma unroll 1
    for (int n = -S::AHEAD; n < 0 || n < found; n++) {
        const int made = n + S::AHEAD - 1;
        /* Its room was last read in item n - 1, whose sums have been taken. */
        if (made >= 0 && made < found) {
            if (next.counts < 0 && c->position_flag)
                *c->position_flag = 1;
            decode_prepare_queries<DTYPE, S>(b, by, made, next, helper, loaded);
            __syncwarp();
            if (lane == 0)
                sm90_arrive(decode_address(&b.header->queries_ready[made % S::AHEAD]));
            decode_prepare_fresh<DTYPE, S>(b, by, made, next, helper, loaded);
            __syncwarp();
            if (lane == 0) {
                sm90_arrive(decode_address(&b.header->fresh_ready[made % S::AHEAD]));
                const int head = next.band * c->k_heads + next.head;
                decode_mark(decode_counter(c, next.sequence, head, helper), loaded.counter);
                ready[made % S::AHEAD] = {next.sequence,
                                          head,
                                          next.split >> next.levels,
                                          decode_series(next.splits, next.levels),
                                          next.begin,
                                          decode_tokens(next.counts),
                                          next.nth,
                                          next.is_last};
            }
            __syncwarp();
        }
        if (made == found && lane == 0) {
            if (helper == 0)
                b.header->told[made % S::AHEAD].chunks.y = -1;
            sm90_arrive(decode_address(&b.header->queries_ready[made % S::AHEAD]));
        }
        if (more) {
            more = decode_find<S, true>(c, walk, &next);
            found += more;
        }
        if (more)
            decode_load<S>(c, next, helper, loaded);
        if (n >= 0) {
            const int at = n % S::BEHIND;
            const decode_split last = ready[n % S::AHEAD];
            if (n == found - 1)
                decode_dismiss<S>(b, helper, handed);
            sm90_wait(decode_address(&b.header->sums_ready[at]), (uint32_t)(n / S::BEHIND % 2));
#pragma unroll 1
            for (int row = helper; row < decode_band_rows<S>(c, last); row += SM90_DECODE_HELPERS)
                decode_store<DTYPE, S>(b, last, row, decode_sum_of<S>(b, at, row));
            __syncwarp();
            if (lane == 0)
                sm90_arrive(decode_address(&b.header->sums_free[at]));
            if (last.is_last && last.parts > 1 && n < found - 1)
                decode_hand_on<S>(b, last, helper, handed);
        }
    }
    if (found == 0)
        decode_dismiss<S>(b, helper, handed);
    if (lane == 0)
        b.header->joined[helper] = found ? ready[(found - 1) % S::AHEAD] : decode_split{};
    __syncwarp();
}

#endif
