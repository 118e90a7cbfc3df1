/* From queries and keys to weights, and from weights and values to sums, 64 rows of a warp group.
 */
#ifndef ROPEKIT_GPU_ATTENTION_SM90_SOFTMAX_H
#define ROPEKIT_GPU_ATTENTION_SM90_SOFTMAX_H

#include "backends/gpu/attention/sm90/cap.h"
#include "backends/gpu/attention/sm90/epilogue.h"

/* --- softmax --- */

/* Bits of columns below `column` of those that a thread has of a row: 8 n, 8 n + 1 for n below 16.
 */
GPU_FN uint32_t sm90_columns(int column) {
    const int count = max(min((column >> 3) * 2 + min(column & 7, 2), 32), 0);
    return count < 32 ? (1u << count) - 1 : ~0u;
}

/* Scores of keys that the thread's rows do not see are -infinity. base: the tile's first key. */
template <int N> GPU_FN void sm90_hide(float (&s)[N], const sm90_seen (&seen)[2], int base) {
    base += (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t bits =
            sm90_columns(seen[h].end - base) & ~sm90_columns(seen[h].first - base);
#pragma unroll
        for (int i = 0; i < N; i++)
            if ((i >> 1 & 1) == h && !(bits >> ((i >> 2) * 2 + (i & 1)) & 1))
                s[i] = -INFINITY;
    }
}

/* Whether some row of the warp has a maximum that moves: a thread asks for its share of scores,
 * whose maxima are x, so lanes exchange them where one does alone. The wait for that answer also
 * keeps exponentials from scores of one row behind those of both. */
template <class T>
GPU_FN int sm90_moves(const float (&s)[T::SCORES], sm90_rows &rows, float (&minus)[2], float unit,
                      float (&x)[2]) {
    float y[4]; /* beside products of others a chain's steps are slow */
#pragma unroll
    for (int i = 0; i < T::SCORES; i++)
        y[i & 3] = i < 4 ? s[i] : fmaxf(y[i & 3], s[i]);
    int grows = 0;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        x[h] = fmaxf(y[2 * h], y[2 * h + 1]);
        grows |= (x[h] - rows.most[h]) * unit > 8.0f;
        minus[h] = -(rows.most[h] * unit);
    }
    rows.moves = __any_sync(~0u, grows);
    return rows.moves;
}

/* The largest scores of a thread's rows. One chain a row: more of them are scheduled worse. */
template <class T> GPU_FN void sm90_most_of_thread(const float (&s)[T::SCORES], float (&x)[2]) {
#pragma unroll
    for (int i = 0; i < T::SCORES; i++)
        x[i >> 1 & 1] = i == (i & 2) ? s[i] : fmaxf(x[i >> 1 & 1], s[i]);
}

/* Of the four threads that share a row. */
GPU_FN float sm90_most_of_row(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

/* Takes scores into a row's maximum. That moves only where it grows by more than 2^8, so sums are
 * seldom rescaled; weights are 256 at most. minus: what is added to scores times `unit`. */
template <class T>
GPU_FN void sm90_maximum(const float (&s)[T::SCORES], sm90_rows &rows, float (&minus)[2],
                         float unit, const sm90_cap *cap) {
    float x[2];
    if constexpr (T::ORDERED) {
        if (!sm90_moves<T>(s, rows, minus, unit, x))
            return;
    } else {
        sm90_most_of_thread<T>(s, x);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float most = sm90_most_of_row(x[h]);
        if (T::CAPS)
            most = sm90_cap_any(*cap, most);
        most = fmaxf(most, rows.most[h]);
        if ((most - rows.most[h]) * unit <= 8.0f)
            most = rows.most[h];
        rows.rescale[h] = sm90_exp2((rows.most[h] - most) * unit);
        rows.most[h] = most;
        rows.sum[h] = rows.sum[h] * rows.rescale[h];
        minus[h] = -(most * unit);
    }
}

/* Whether a warp's scores are all near 0, so that the cap is a polynomial: where registers hold the
 * answer. */
template <class T> GPU_FN int sm90_near(const sm90_cap *cap, const float (&s)[T::SCORES]) {
    return T::CAPS && T::DIM <= 192 ? sm90_are_near(*cap, s, 0, T::SCORES) : 0;
}

template <class T>
GPU_FN void sm90_cap_scores(const sm90_cap *cap, int are_near, float (&s)[T::SCORES]) {
    if (T::CAPS)
        sm90_cap_all(*cap, are_near, s);
}

/* From scores to weights, rounded, and their sums. */
template <class T>
GPU_FN void sm90_exponentiate(float (&s)[T::SCORES], sm90_rows &rows, const float (&minus)[2],
                              float unit, uint32_t (&weights)[T::WEIGHTS]) {
#pragma unroll
    for (int i = 0; i < T::SCORES; i++) {
        s[i] = sm90_exp2(fmaf(s[i], unit, minus[i >> 1 & 1]));
        rows.sum[i >> 1 & 1] = rows.sum[i >> 1 & 1] + s[i];
    }
#pragma unroll
    for (int i = 0; i < T::WEIGHTS; i++)
        weights[i] = sm90_join<T::DTYPE>(s[2 * i], s[2 * i + 1]);
}

template <class T> GPU_FN void sm90_rescale(float (&out)[T::ELEMENTS], const sm90_rows &rows) {
    if (T::ORDERED && !T::TALL
            ? !rows.moves
            : !__any_sync(~0u, rows.rescale[0] != 1.0f || rows.rescale[1] != 1.0f))
        return;
#pragma unroll
    for (int i = 0; i < T::ELEMENTS; i++)
        out[i] = out[i] * rows.rescale[i >> 1 & 1];
}

/* --- softmax of a TALL type: without maxima, as long as weights stay small --- */

/* Weights by the maxima that rows have, and the thread's sums of them. */
template <class T>
GPU_FN void sm90_try_weights(const float (&s)[T::SCORES], const sm90_rows &rows, float unit,
                             float (&sum)[2], uint32_t (&weights)[T::WEIGHTS]) {
    const float minus[2] = {-(rows.most[0] * unit), -(rows.most[1] * unit)};
    sum[0] = sum[1] = 0.0f;
#pragma unroll
    for (int i = 0; i < T::WEIGHTS; i++) {
        const float one = sm90_exp2(fmaf(s[2 * i], unit, minus[i & 1])),
                    two = sm90_exp2(fmaf(s[2 * i + 1], unit, minus[i & 1]));
        sum[i & 1] = sum[i & 1] + one + two;
        weights[i] = sm90_join<T::DTYPE>(one, two);
    }
}

/* The maximum of a row moves where one of its threads asks for it. adds: out has sums of the rows.
 */
template <class T>
GPU_FN void sm90_move(const float (&s)[T::SCORES], sm90_rows &rows, float unit, int (&moves)[2],
                      int adds, float (&out)[T::ELEMENTS]) {
    float x[2];
    sm90_most_of_thread<T>(s, x);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float most = sm90_most_of_row(x[h]);
        moves[h] |= __shfl_xor_sync(~0u, moves[h], 1);
        moves[h] |= __shfl_xor_sync(~0u, moves[h], 2);
        most = moves[h] ? fmaxf(most, rows.most[h]) : rows.most[h];
        rows.rescale[h] = sm90_exp2((rows.most[h] - most) * unit);
        rows.most[h] = most;
        rows.sum[h] = rows.sum[h] * rows.rescale[h];
    }
    if (adds)
        sm90_rescale<T>(out, rows);
}

/* From scores to weights and their sums. A row's maximum moves where a thread's weights are more
 * than 255 in sum, or where it has none yet. starts: rows have none, so weights are not tried. */
template <class T>
GPU_FN void sm90_weigh(const float (&s)[T::SCORES], sm90_rows &rows, float unit, float lowest,
                       int starts, uint32_t (&weights)[T::WEIGHTS], float (&out)[T::ELEMENTS]) {
    float sum[2];
    int moves[2] = {1, 1};
    if (!starts) {
        sm90_try_weights<T>(s, rows, unit, sum, weights);
#pragma unroll
        for (int h = 0; h < 2; h++)
            moves[h] = !(sum[h] <= 255.0f) || rows.most[h] == lowest;
    }
    if (__any_sync(~0u, moves[0] | moves[1])) {
        sm90_move<T>(s, rows, unit, moves, !starts, out);
        sm90_try_weights<T>(s, rows, unit, sum, weights);
    }
    rows.sum[0] = rows.sum[0] + sum[0];
    rows.sum[1] = rows.sum[1] + sum[1];
}

/* --- products --- */

/* Descriptors count in 16 bytes: 64 elements of all rows, then the next. */
template <class T> GPU_FN void sm90_score(float (&s)[T::SCORES], uint32_t queries, uint32_t keys) {
#pragma unroll
    for (int i = 0; i < T::DIM / 16; i++)
        sm90_multiply<T::DTYPE>(s, sm90_descriptor(queries + (i / 4) * T::ROWS * 8 + (i % 4) * 2),
                                sm90_descriptor(keys + (i / 4) * T::KEYS * 8 + (i % 4) * 2),
                                i != 0);
}

template <class T>
GPU_FN void sm90_add(float (&out)[T::ELEMENTS], const uint32_t (&weights)[T::WEIGHTS],
                     uint32_t values, int adds) {
#pragma unroll
    for (int i = 0; i < T::KEYS / 16; i++)
        sm90_multiply<T::DTYPE>(out, weights + 4 * i, sm90_descriptor(values + i * 128),
                                i != 0 ? 1 : adds);
}

#endif
