/* Values that are not finite. Their products with weights of zero are NaN, also where a row does
 * not see them: a tile of rows with such a result is computed once more, from values without them,
 * to which they are added for the rows that see them. All else has the bits that it had. */
#ifndef ROPEKIT_GPU_ATTENTION_SM90_NONFINITE_H
#define ROPEKIT_GPU_ATTENTION_SM90_NONFINITE_H

#include "backends/gpu/attention/sm90/tile.h"

/* --- what is told --- */

/* Tells of a tile by a thread's first row: what is not finite is in each row, also where it is not
 * seen, as 0 times it is NaN. nothing: not 0 where the row is not finite. */
GPU_FN void sm90_tell(const sm90_block &b, sm90_tile *t, int row, uint32_t nothing) {
    const int tells = nothing && row < t->rows;
    sm90_write_if(&t->told, 1, tells);
    sm90_write_if(&b.header->told, 1, tells);
}

/* The same by the first row of a consumer's results in shared memory, an element a thread. */
template <class T> GPU_FN void sm90_tell_by_row(const sm90_block &b, sm90_tile *t, int consumer) {
    const uint32_t infinity = T::DTYPE == ROPE_BF16 ? 0x7f80 : 0x7c00;
    const int column = (int)threadIdx.x & (T::V_DIM - 1) & 127;
    const uint32_t bits = sm90_read_half(sm90_results<T>(b, consumer) +
                                         (uint32_t)(column / 64 * 8192 + column % 64 * 2));
    const int tells = (bits & infinity) == infinity && consumer * 64 < t->rows;
    sm90_write_if(&t->told, 1, tells);
    sm90_write_if(&b.header->told, 1, tells);
}

/* Lists a tile that has ended to be computed again, if it was told of and has keys that not all
 * rows see. By one thread. */
GPU_FN void sm90_list(const sm90_block &b, volatile sm90_tile *t) {
    if (t->told && t->masks && !t->careful && b.header->again_count < SM90_AGAIN)
        b.header->again[b.header->again_count++] = t->number;
    t->told = 0;
}

/* Waits for the end of all tiles; whether some may be computed again. */
GPU_FN int sm90_ends_again(const sm90_block &b) {
    sm90_wait(SM90_BARRIER(b, all_ended, 0), 0);
    return *(const volatile int32_t *)&b.header->told;
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
    const int64_t head = t->k_head, size = b.p->page_size;
    if (!b.p->cache)
        return (const char *)v->in +
               2 * (t->k_row * v->in_stride[0] + (t->k_token + key) * v->in_stride[1] +
                    head * v->in_stride[2]);
    const int64_t page =
        b.schedule->page ? sm90_page(b.p, b.call, t->k_row, (int)key / (int)size) : t->k_row;
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
    sm90_see_rows<1, 1>(b, t, row, seen);
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
