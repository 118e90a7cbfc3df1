/* All gradients of heads of up to 128 elements at once, by the matrix products of sm_90a, and what
 * goes before and behind. */
#include "backends/gpu/attention_backward/sm90/joint.h"

/* Whether the call has such a sequence; a barrier of the block. */
GPU_FN int sm90_joint_is_there(const sm90_backward_schedule &s) {
    int there = s.mixed == 0;
    for (int i = (int)threadIdx.x; i < s.mixed; i += (int)blockDim.x)
        there |= s.sequences[i].steps == SM90_JOINT;
    return __syncthreads_or(there);
}

template <int DTYPE, int DIM>
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
        sm90_registers_fewer<sm90_joint_size<DIM>::FEW>();
        if (threadIdx.x < 32)
            sm90_joint_produce<DIM>(b, maps);
        else if (threadIdx.x == 32)
            sm90_joint_find_all<sm90_joint_size<DIM>::BOXES>(b);
        else if (threadIdx.x % 32 == 0)
            sm90_joint_add(b, (int)threadIdx.x / 32 - 2);
    } else {
        sm90_registers_more<sm90_joint_size<DIM>::MANY>();
        sm90_joint_consume<DTYPE, DIM>(b, maps, __shfl_sync(~0u, group, 0) - 1);
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

/* Adds the products of 8 elements. */
template <int DTYPE> GPU_FN float sm90_add_delta(float delta, const uint4 &a, const uint4 &b) {
    const uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 p = sm90_two_of<DTYPE>(x[i]), q = sm90_two_of<DTYPE>(y[i]);
        delta = fmaf(p.y, q.y, fmaf(p.x, q.x, delta));
    }
    return delta;
}

/* Numbers of a tile's rows, of which 8 threads have one; and that nothing was added. */
template <int DTYPE, int DIM>
GPU_FN void sm90_joint_stats(const sm90_backward_schedule &s, const sm90_backward_tile &t) {
    if (threadIdx.x < 2)
        s.added[sm90_joint_slab_of<DIM>(s, t, (int)threadIdx.x)] = ~0u;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = i * 32 + (int)threadIdx.x / 8, query = t.first + (row >> s.pack),
                  head = t.head + (row & ((1 << s.pack) - 1));
        const int64_t token = t.of.q_first + query;
        const uint4 *out = (const uint4 *)((const uint16_t *)s.out.data +
                                           t.of.q_row * s.out.stride[0] + token * s.out.stride[1] +
                                           head * s.out.stride[2]),
                    *dout = (const uint4 *)((const uint16_t *)s.dout.data +
                                            t.of.q_row * s.dout.stride[0] +
                                            token * s.dout.stride[1] + head * s.dout.stride[2]);
        float delta = 0.0f;
#pragma unroll
        for (int chunk = (int)threadIdx.x % 8; chunk < DIM / 8; chunk += 8)
            if (query < t.of.q_count && chunk < s.out.chunks)
                delta = sm90_add_delta<DTYPE>(delta, dout[chunk], out[chunk]);
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

template <int DTYPE, int DIM>
__global__ void __launch_bounds__(SM90_JOINT_THREADS)
    gpu_backward_sm90_joint_stats(GPU_PARAMETER sm90_backward_schedule s) {
    __shared__ sm90_backward_tile t;
    gpu_wait_for_last();
    gpu_let_next_start();
    if (sm90_joint_is_there(s))
        for (int n = (int)blockIdx.x; n < s.order[0].each * s.order[0].units; n += (int)gridDim.x)
            if (sm90_joint_rows_tile(s, n, &t))
                sm90_joint_stats<DTYPE, DIM>(s, t);
}

/* dq of a tile of rows, of which a group has a box. */
template <int DTYPE, int DIM>
GPU_FN void sm90_joint_queries(const sm90_backward_schedule &s, const sm90_backward_tile &t,
                               const CUtensorMap &map, uint32_t box, int32_t *told) {
    const int consumer = (int)threadIdx.x / 128, first = t.first + consumer * sm90_box_queries(s),
              there = s.added[sm90_joint_slab_of<DIM>(s, t, consumer)] != ~0u;
    const float4 *from = sm90_joint_sums_of<DIM>(s, t, consumer);
    float dq[DIM / 2];
#pragma unroll
    for (int i = 0; i < DIM / 8; i++) {
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
    sm90_store_box<DTYPE, DIM>(
        box, s.dq, &map, consumer,
        {{t.head, t.of.q_first + first, t.of.q_row}, s.pack, (t.of.q_count - first) << s.pack});
    if (threadIdx.x % 128 == 0)
        sm90_stores_done();
}

template <int DTYPE, int DIM>
__global__ void __launch_bounds__(SM90_JOINT_THREADS)
    gpu_backward_sm90_joint_queries(const __grid_constant__ CUtensorMap map,
                                    GPU_PARAMETER sm90_backward_schedule s) {
    __shared__ sm90_backward_tile t;
    __shared__ __align__(1024) char boxes[2][DIM / 64 * SM90_JOINT_HALF];
    __shared__ int32_t told; /* of both groups: a tile is listed once, as its sums are written */
    gpu_wait_for_last();
    gpu_let_next_start();
    if (threadIdx.x == 0)
        told = -1;
    if (sm90_joint_is_there(s))
        for (int n = (int)blockIdx.x; n < s.order[0].each * s.order[0].units; n += (int)gridDim.x)
            if (sm90_joint_rows_tile(s, n, &t))
                sm90_joint_queries<DTYPE, DIM>(
                    s, t, map, (uint32_t)__cvta_generic_to_shared(boxes[threadIdx.x / 128]), &told);
}

#define SM90_TWO(kernel, dim)                                                                      \
    { GPU_KERNEL(kernel<GPU_SM90_F16, dim>), GPU_KERNEL(kernel<GPU_SM90_BF16, dim>) }
#define SM90_THREE(dim)                                                                            \
    {                                                                                              \
        SM90_TWO(gpu_backward_sm90_joint_stats, dim), SM90_TWO(gpu_backward_sm90_joint, dim),      \
            SM90_TWO(gpu_backward_sm90_joint_queries, dim)                                         \
    }
const void *const gpu_backward_sm90_joint_kernels[2][3][2] = {SM90_THREE(64), SM90_THREE(128)};
