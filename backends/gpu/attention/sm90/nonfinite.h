/* Values that are not finite. Their products with weights of zero are NaN, also where a row does
 * not see them: a tile of rows with such a result is computed once more, from values without them,
 * to which they are added for the rows that see them. All else has the bits that it had. */
#ifndef ROPEKIT_GPU_ATTENTION_SM90_NONFINITE_H
#define ROPEKIT_GPU_ATTENTION_SM90_NONFINITE_H

#include "backends/gpu/attention/sm90/tile.h"

/* --- what is told --- */

/* A warp lists a tile of rows to be computed again, if it has keys that not all rows see and one of
 * the rows that are there is not finite. nothing: not 0 where a thread's rows are not, of which
 * `row` is the first. */
GPU_FN void sm90_tell_again(const sm90_block &b, sm90_tile *t, int row,
                            const uint32_t (&nothing)[2]) {
    if (!__any_sync(~0u, nothing[0] | nothing[1]))
        return;
    const int is_finite = (!nothing[0] || row >= t->rows) && (!nothing[1] || row + 8 >= t->rows);
    if (__all_sync(~0u, is_finite) || threadIdx.x % 32 || t->whole == t->tiles || t->careful ||
        atomicExch(&t->careful, (int)SM90_TOLD))
        return;
    const uint32_t n = atomicAdd(&b.header->again_count, 1u);
    if (n < SM90_AGAIN)
        b.header->again[n] = t->number;
}

/* Waits for the end of all tiles; whether some are computed again. */
GPU_FN int sm90_ends_again(const sm90_block &b) {
    sm90_wait(SM90_BARRIER(b, all_ended, 0), 0);
    return *(const volatile uint32_t *)&b.header->again_count != 0;
}

/* --- what is taken out --- */

/* Puts zeros for values of a tile that are not finite, of keys from `first` on, and for all from
 * key `end` on; whether a thread's share of the former had any. */
template <class T>
GPU_FN int sm90_clean_values(uint32_t values, int first, int end, int thread, int threads) {
    int found = 0;
#pragma unroll 1
    for (int i = thread; i < T::VALUE_BYTES / 16; i += threads) {
        const int key = i / 8 % T::KEYS;
        if (key < first)
            continue;
        const uint4 eight = sm90_read(values + 16 * (uint32_t)i);
        uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint32_t bits = sm90_nonfinite<T::DTYPE>(words[k]);
            found |= bits && key < end;
            words[k] &= key < end ? ~((bits >> 15) * 0xffffu) : 0;
        }
        sm90_write(values + 16 * (uint32_t)i, {words[0], words[1], words[2], words[3]});
    }
    return found;
}

/* --- what is added --- */

/* Element 0 of a key's value. */
GPU_FN const char *sm90_value(const sm90_block &b, const sm90_tile *t, int64_t key) {
    const rope_append_operand *v = &b.call->v;
    const int64_t head = t->head / b.schedule->shares, size = b.p->page_size;
    if (!b.p->cache)
        return (const char *)v->in +
               2 * (t->k_row * v->in_stride[0] + (t->k_token + key) * v->in_stride[1] +
                    head * v->in_stride[2]);
    const int64_t page = b.schedule->page ? sm90_page(b.p, b.call, t->k_row, (int)key) : t->k_row;
    return (const char *)v->cache +
           2 * (page * v->cache_stride[0] +
                (b.schedule->page ? key % size : key) * v->cache_stride[1] +
                head * v->cache_stride[2]);
}

/* Adds to the thread's elements what is not finite of key `key`, as a product with its weights
 * would. */
template <class T>
GPU_FN void sm90_add_key(const sm90_block &b, const sm90_tile *t, int64_t key,
                         const float (&weight)[2], const int (&sees)[2],
                         float (&out)[T::ELEMENTS]) {
    const char *from = sm90_value(b, t, key) + 2 * (threadIdx.x % 4 * 2);
#pragma unroll
    for (int n = 0; n < T::V_DIM / 8; n++) {
        if (8 * n >= b.p->v_head_dim)
            break;
        const uint32_t two = *(const uint32_t *)(const void *)(from + 16 * n);
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float x = gpu_widen<T::DTYPE>((uint16_t)(two >> 16 * e));
            const bool finite = x - x == 0.0f;
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (!finite && sees[h])
                    out[4 * n + 2 * h + e] += weight[h] * x;
        }
    }
}

/* Adds what was taken out of a tile of values, whose first key is `base`. row: the thread's first.
 */
template <class T>
GPU_FN void sm90_add_nonfinite(const sm90_block &b, const sm90_tile *t, int base, int row,
                               const uint32_t (&weights)[T::WEIGHTS], float (&out)[T::ELEMENTS]) {
    sm90_seen seen[2];
    sm90_see_rows(b, t, row, seen);
#pragma unroll 1
    for (int k = 0; k < T::KEYS; k++) {
        const int key = base + k;
        float weight[2];
        int sees[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t two = 0;
#pragma unroll
            for (int n = 0; n < T::WEIGHTS / 2; n++)
                sm90_take_if(two, weights[2 * n + h], n == k / 8);
            two = __shfl_sync(~0u, two, (int)threadIdx.x % 32 / 4 * 4 + k % 8 / 2);
            weight[h] = gpu_widen<T::DTYPE>((uint16_t)(two >> 16 * (k & 1)));
            sees[h] = key >= seen[h].first && key < seen[h].end;
        }
        if (sees[0] || sees[1])
            sm90_add_key<T>(b, t, key, weight, sees, out);
        __syncwarp();
    }
}

#endif
