/* All gradients of heads of up to 64 elements at once, by the matrix products of sm_90a, and what
 * goes before and behind. */
#include "backends/gpu/attention_backward/sm90/joint.h"

/* Whether the call has such a sequence; a barrier of the block. */
GPU_FN int sm90_joint_is_there(const sm90_backward_schedule &s) {
    int there = s.mixed == 0;
    for (int i = (int)threadIdx.x; i < s.mixed; i += (int)blockDim.x)
        there |= s.sequences[i].steps == SM90_JOINT;
    return __syncthreads_or(there);
}

template <int DTYPE>
__global__ void __launch_bounds__(SM90_THREADS, 1) gpu_backward_sm90_joint(
    const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
    const __grid_constant__ CUtensorMap v, const __grid_constant__ CUtensorMap dout,
    const __grid_constant__ CUtensorMap stats, const __grid_constant__ CUtensorMap dk,
    const __grid_constant__ CUtensorMap dv, GPU_PARAMETER sm90_backward_schedule schedule) {
    extern __shared__ __align__(1024) char sm90_memory[];
    const sm90_joint_block b = {&schedule, (sm90_joint_header *)(void *)sm90_memory,
                                (uint32_t)__cvta_generic_to_shared(sm90_memory) +
                                    SM90_BACKWARD_HEADER};
    const sm90_joint_maps maps = {&q, &k, &v, &dout, &stats, &dk, &dv};
    const int group = (int)threadIdx.x / 128;
    if (threadIdx.x == 0)
        sm90_joint_start(b);
    gpu_wait_for_last();
    gpu_let_next_start();
    if (!sm90_joint_is_there(schedule))
        return;
    if (group == 0) {
        sm90_registers_fewer<40>();
        if (threadIdx.x < 32)
            sm90_joint_produce(b, maps);
        else if (threadIdx.x == 32)
            sm90_joint_find_all(b);
        else if (threadIdx.x % 32 == 0)
            sm90_joint_add(b, (int)threadIdx.x / 32 - 2);
    } else {
        sm90_registers_more<232>();
        sm90_joint_consume<DTYPE>(b, maps, __shfl_sync(~0u, group, 0) - 1);
    }
}

/* Tile n of rows, of all of the block's threads; 0 where there is none, or not of those. */
GPU_FN int sm90_joint_rows_tile(const sm90_backward_schedule &s, int n, sm90_backward_tile *t) {
    __syncthreads(); /* none is at the one before */
    if (threadIdx.x == 0 && !(sm90_rows_tile(s, n, t) && t->of.steps == SM90_JOINT))
        t->head = -1;
    __syncthreads();
    return t->head >= 0;
}

/* Box of rows `c` of a tile, counted from the first of the sequence. */
GPU_FN int sm90_joint_box(const sm90_backward_schedule &s, const sm90_backward_tile &t, int c) {
    return (t.first / sm90_box_queries(s) + c) * (s.shares >> s.pack) +
           (t.head % s.shares >> s.pack);
}

/* Numbers of a tile's rows, of which 8 threads have one; and that nothing was added. */
template <int DTYPE>
GPU_FN void sm90_joint_stats(const sm90_backward_schedule &s, const sm90_backward_tile &t) {
    if (threadIdx.x < 2)
        s.added[t.head / s.shares * s.pairs + t.of.sums +
                sm90_joint_box(s, t, (int)threadIdx.x) / 2] = ~0u;
    const int chunk = (int)threadIdx.x % 8;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = i * 32 + (int)threadIdx.x / 8, query = t.first + (row >> s.pack),
                  head = t.head + (row & ((1 << s.pack) - 1)),
                  there = query < t.of.q_count && chunk < s.out.chunks;
        const int64_t token = t.of.q_first + query;
        uint4 x = {0, 0, 0, 0}, y = x;
        if (there) {
            x = ((const uint4 *)((const uint16_t *)s.out.data + t.of.q_row * s.out.stride[0] +
                                 token * s.out.stride[1] + head * s.out.stride[2]))[chunk];
            y = ((const uint4 *)((const uint16_t *)s.dout.data + t.of.q_row * s.dout.stride[0] +
                                 token * s.dout.stride[1] + head * s.dout.stride[2]))[chunk];
        }
        const uint32_t out[4] = {x.x, x.y, x.z, x.w}, dout[4] = {y.x, y.y, y.z, y.w};
        float delta = 0.0f;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float2 a = sm90_two_of<DTYPE>(dout[e]), o = sm90_two_of<DTYPE>(out[e]);
            delta = fmaf(a.y, o.y, fmaf(a.x, o.x, delta));
        }
#pragma unroll
        for (int lanes = 1; lanes < 8; lanes *= 2)
            delta += __shfl_xor_sync(~0u, delta, lanes);
        if (query >= t.of.q_count)
            continue;
        const float lse =
            s.lse[t.of.q_row * s.lse_stride[0] + token * s.lse_stride[1] + head * s.lse_stride[2]];
        sm90_store_stats(s, t, row,
                         (lse == -INFINITY ? -INFINITY : -1.44269504f * lse) + SM90_JOINT_MORE,
                         -delta, SM90_JOINT_LESS);
    }
}

template <int DTYPE>
__global__ void __launch_bounds__(SM90_JOINT_THREADS)
    gpu_backward_sm90_joint_stats(GPU_PARAMETER sm90_backward_schedule s) {
    __shared__ sm90_backward_tile t;
    gpu_wait_for_last();
    gpu_let_next_start();
    if (sm90_joint_is_there(s))
        for (int n = (int)blockIdx.x; n < s.order[0].each * s.order[0].units; n += (int)gridDim.x)
            if (sm90_joint_rows_tile(s, n, &t))
                sm90_joint_stats<DTYPE>(s, t);
}

/* dq of a tile of rows, of which a group has a box. */
template <int DTYPE>
GPU_FN void sm90_joint_queries(const sm90_backward_schedule &s, const sm90_backward_tile &t,
                               const CUtensorMap &map, uint32_t box, int32_t *told) {
    const int consumer = (int)threadIdx.x / 128, at = sm90_joint_box(s, t, consumer),
              first = t.first + consumer * sm90_box_queries(s),
              pair = t.head / s.shares * s.pairs + t.of.sums + at / 2, there = s.added[pair] != ~0u;
    const float4 *from = (const float4 *)(s.sums + (int64_t)pair * SM90_JOINT_SUMS) +
                         (at & 1) * 1024 + threadIdx.x % 128;
    float dq[32];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float4 x = there ? from[i * 128] : make_float4(0, 0, 0, 0);
        dq[4 * i] = x.x;
        dq[4 * i + 1] = x.y;
        dq[4 * i + 2] = x.z;
        dq[4 * i + 3] = x.w;
    }
    const int row = (int)threadIdx.x % 128 / 32 * 16 + (int)threadIdx.x % 32 / 4;
    sm90_clear_unseen(dq, sm90_keys_of(s.mask, t.of, first + (row >> s.pack)),
                      sm90_keys_of(s.mask, t.of, first + ((row + 8) >> s.pack)));
    const int bad = sm90_write_box<DTYPE>(box, dq, s.scale, 1);
    sm90_tell<0>(s.turns[0], t, told, bad);
    sm90_writes_known();
    sm90_group_barrier(consumer);
    sm90_store_box<64>(
        box, s.dq, &map, consumer,
        {{t.head, t.of.q_first + first, t.of.q_row}, s.pack, (t.of.q_count - first) << s.pack});
    if (threadIdx.x % 128 == 0)
        sm90_stores_done();
}

template <int DTYPE>
__global__ void __launch_bounds__(SM90_JOINT_THREADS)
    gpu_backward_sm90_joint_queries(const __grid_constant__ CUtensorMap map,
                                    GPU_PARAMETER sm90_backward_schedule s) {
    __shared__ sm90_backward_tile t;
    __shared__ __align__(1024) char boxes[2][SM90_JOINT_HALF];
    __shared__ int32_t told[2];
    const int consumer = (int)threadIdx.x / 128;
    gpu_wait_for_last();
    gpu_let_next_start();
    if (threadIdx.x < 2)
        told[threadIdx.x] = -1;
    if (sm90_joint_is_there(s))
        for (int n = (int)blockIdx.x; n < s.order[0].each * s.order[0].units; n += (int)gridDim.x)
            if (sm90_joint_rows_tile(s, n, &t))
                sm90_joint_queries<DTYPE>(s, t, map,
                                          (uint32_t)__cvta_generic_to_shared(boxes[consumer]),
                                          &told[consumer]);
}

#define SM90_TWO(kernel)                                                                           \
    { GPU_KERNEL(kernel<ROPE_F16>), GPU_KERNEL(kernel<ROPE_BF16>) }
const void *const gpu_backward_sm90_joint_kernels[3][2] = {
    SM90_TWO(gpu_backward_sm90_joint_stats), SM90_TWO(gpu_backward_sm90_joint),
    SM90_TWO(gpu_backward_sm90_joint_queries)};
