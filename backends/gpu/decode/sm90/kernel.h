/* Decoding in one launch: norms and rotations, the write of new keys and values into their cache,
 * attention and the join of its splits, of heads of 64 or 128 elements. */
#ifndef ROPEKIT_GPU_DECODE_SM90_KERNEL_H
#define ROPEKIT_GPU_DECODE_SM90_KERNEL_H

#include "backends/gpu/decode/sm90/compute.h"
#include "backends/gpu/decode/sm90/join.h"

template <class S> GPU_FN void decode_start(const decode_block<S> &b) {
    for (int i = 0; i < SM90_DECODE_AHEAD; i++) {
        sm90_barrier_init(decode_address(&b.header->queries_ready[i]), SM90_DECODE_HELPERS);
        sm90_barrier_init(decode_address(&b.header->fresh_ready[i]), SM90_DECODE_HELPERS);
    }
    for (int i = 0; i < SM90_DECODE_BEHIND; i++) {
        sm90_barrier_init(decode_address(&b.header->sums_ready[i]), S::WARPS);
        sm90_barrier_init(decode_address(&b.header->sums_free[i]), SM90_DECODE_HELPERS);
    }
    for (int i = 0; i < S::JOINERS; i++) {
        sm90_barrier_init(decode_address(&b.header->split_ready[i]), SM90_DECODE_HELPERS);
        sm90_barrier_init(decode_address(&b.header->split_taken[i]), 1);
    }
    sm90_barriers_begun();
}

/* Rows that no query has are 0. */
template <class S> GPU_FN void decode_clear_queries(const decode_block<S> &b, int helper) {
    const int words = SM90_DECODE_QUERIES_OF(S::ROWS, S::DIM) / 4;
    for (int i = helper * 32 + decode_lane(); i < words; i += 32 * SM90_DECODE_HELPERS)
        ((uint32_t *)(void *)b.queries)[i] = 0;
}

template <int DTYPE, int ROWS, int DIM, int CODES, int BANDS = 0>
__global__ void __launch_bounds__(SM90_DECODE_THREADS_OF(ROWS, CODES), 1)
    gpu_decode_sm90(GPU_PARAMETER sm90_decode_call call) {
    extern __shared__ __align__(1024) char decode_memory[];
    typedef decode_shape<ROWS, DIM, CODES, BANDS> S;
    const decode_block<S> b = decode_block_of<S>(decode_memory, &call);
    const int warp = __shfl_sync(~0u, (int)(threadIdx.x / 32), 0), lane = decode_lane(),
              helper = warp - S::WARPS, joiner = helper - SM90_DECODE_HELPERS;
    decode_lengths read = {};
    decode_constants by = {};
    if (joiner == 0 && lane == 0)
        decode_start<S>(b);
    gpu_wait_for_last();
    if (joiner < 0) /* on their way while barriers begin */
        read = decode_read_lengths(&call, 0, true);
    if (helper < 0) {
        gpu_let_next_start();
    } else if (joiner < 0) {
        by = decode_constants_of<S>(&call);
        decode_clear_queries<S>(b, helper);
    }
    __syncthreads();
    if (helper < 0) {
        decode_compute<DTYPE, S>(b, warp, read);
        return;
    }
    if (joiner < 0)
        decode_help<DTYPE, S>(b, by, helper, read);
    decode_join<DTYPE, S>(b, joiner);
}

#endif
