/* Gradients of attention by the matrix products of sm_90a, of heads of up to 128 elements. */
#include "backends/gpu/attention_backward/sm90/keys.h"
#include "backends/gpu/attention_backward/sm90/prepare.h"
#include "backends/gpu/attention_backward/sm90/rows.h"

template <int DTYPE, int DIM, int CAREFUL, int CAP>
__global__ void __launch_bounds__(SM90_THREADS, 1)
    gpu_backward_sm90_rows(const __grid_constant__ CUtensorMap q,
                           const __grid_constant__ CUtensorMap k,
                           const __grid_constant__ CUtensorMap v,
                           const __grid_constant__ CUtensorMap dout,
                           const __grid_constant__ CUtensorMap out,
                           const __grid_constant__ CUtensorMap dq,
                           GPU_PARAMETER sm90_backward_schedule schedule) {
    extern __shared__ __align__(1024) char sm90_memory[];
    const sm90_backward_block b = sm90_backward_block_of(sm90_memory, &schedule);
    const sm90_rows_maps maps = {&q, &k, &v, &dout, &out, &dq};
    const int group = (int)threadIdx.x / 128;
    if (threadIdx.x == 0)
        sm90_backward_start(b, 2, 2);
    __syncthreads();
    if (group == 0) {
        sm90_registers_fewer<SM90_FEW>();
        gpu_wait_for_last();
        gpu_let_next_start();
        if (threadIdx.x < 32)
            sm90_rows_produce<DIM, CAREFUL && !CAP>(b, maps);
        else if (threadIdx.x < 64)
            sm90_find_all_rows<CAREFUL, 0>(b);
    } else {
        sm90_registers_more<SM90_MANY>();
        gpu_wait_for_last();
        sm90_rows_consume<DTYPE, DIM, CAREFUL, CAP>(b, maps, __shfl_sync(~0u, group, 0) - 1);
    }
}

template <int DTYPE, int DIM, int CAREFUL, int CAP>
__global__ void __launch_bounds__(SM90_THREADS, 1) gpu_backward_sm90_keys(
    const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
    const __grid_constant__ CUtensorMap v, const __grid_constant__ CUtensorMap dout,
    const __grid_constant__ CUtensorMap stats, const __grid_constant__ CUtensorMap dk,
    const __grid_constant__ CUtensorMap dv, GPU_PARAMETER sm90_backward_schedule schedule) {
    extern __shared__ __align__(1024) char sm90_memory[];
    sm90_backward_block b = sm90_backward_block_of(sm90_memory, &schedule);
    b.rank = sm90_cluster_rank();
    b.steps = sm90_cluster_steps();
    const sm90_keys_maps maps = {&q, &k, &v, &dout, &stats, &dk, &dv};
    const int group = (int)threadIdx.x / 128;
    if (threadIdx.x == 0)
        sm90_backward_start(b, 1, b.rank ? 2 : 2 << b.steps);
    sm90_cluster_barrier();
    if (group == 0) {
        sm90_registers_fewer<SM90_FEW>();
        gpu_wait_for_last();
        gpu_let_next_start();
        if (threadIdx.x < 32)
            sm90_keys_produce<DIM, CAREFUL && !CAP>(b, maps);
        else if (threadIdx.x == 32)
            sm90_find_all_keys<CAREFUL>(b);
    } else {
        sm90_registers_more<SM90_MANY>();
        gpu_wait_for_last();
        sm90_keys_consume<DTYPE, DIM, CAREFUL, CAP>(b, maps, __shfl_sync(~0u, group, 0) - 1);
        sm90_cluster_barrier();
    }
}

#define SM90_PAIR(kernel, dtype, dim, cap)                                                         \
    { GPU_KERNEL(kernel<dtype, dim, 0, cap>), GPU_KERNEL(kernel<dtype, dim, 1, cap>) }
#define SM90_OF_CAP(kernel, cap)                                                                   \
    {                                                                                              \
        {SM90_PAIR(kernel, GPU_SM90_F16, 64, cap), SM90_PAIR(kernel, GPU_SM90_BF16, 64, cap)}, {   \
            SM90_PAIR(kernel, GPU_SM90_F16, 128, cap), SM90_PAIR(kernel, GPU_SM90_BF16, 128, cap)  \
        }                                                                                          \
    }
#define SM90_KERNELS(kernel)                                                                       \
    { SM90_OF_CAP(kernel, 0), SM90_OF_CAP(kernel, 1) }

const void *const gpu_backward_sm90_prepare_kernel = GPU_KERNEL(gpu_backward_sm90_prepare);
const sm90_backward_pair gpu_backward_sm90_rows_kernels[2][2][2] =
    SM90_KERNELS(gpu_backward_sm90_rows);
const sm90_backward_pair gpu_backward_sm90_keys_kernels[2][2][2] =
    SM90_KERNELS(gpu_backward_sm90_keys);
