/* Gradients of heads of 192 elements with values of 128, and of 256. */
#include "backends/gpu/attention_backward/sm90/wide_keys.h"
#include "backends/gpu/attention_backward/sm90/wide_rows.h"

template <int DTYPE, int DIM, int CAREFUL, int CAP>
__global__ void __launch_bounds__(SM90_THREADS, 1)
    gpu_backward_sm90_wide_rows(const __grid_constant__ CUtensorMap q,
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
            sm90_wide_rows_walk<sm90_wide<DIM>>(b, maps);
        else if (threadIdx.x < 64)
            sm90_find_all_rows<CAREFUL, 1>(b);
        else if (threadIdx.x == 64)
            sm90_wide_rows_own<sm90_wide<DIM>>(b, maps);
    } else {
        sm90_registers_more<SM90_MANY>();
        gpu_wait_for_last();
        sm90_wide_rows_consume<DTYPE, sm90_wide<DIM>, CAREFUL, CAP>(b, maps,
                                                                    __shfl_sync(~0u, group, 0) - 1);
    }
}

template <int DTYPE, int DIM, int CAREFUL, int CAP, int PART>
__global__ void __launch_bounds__(SM90_THREADS, 1) gpu_backward_sm90_wide_keys(
    const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
    const __grid_constant__ CUtensorMap v, const __grid_constant__ CUtensorMap dout,
    const __grid_constant__ CUtensorMap stats, const __grid_constant__ CUtensorMap dk,
    const __grid_constant__ CUtensorMap dv, GPU_PARAMETER sm90_backward_schedule schedule) {
    extern __shared__ __align__(1024) char sm90_memory[];
    const sm90_backward_block b = sm90_backward_block_of(sm90_memory, &schedule);
    const sm90_keys_maps maps = {&q, &k, &v, &dout, &stats, &dk, &dv};
    const int group = (int)threadIdx.x / 128;
    if (threadIdx.x == 0)
        sm90_backward_start(b, 1, 2);
    __syncthreads();
    if (group == 0) {
        sm90_registers_fewer<SM90_FEW>();
        gpu_wait_for_last();
        gpu_let_next_start();
        if (threadIdx.x < 32)
            sm90_wide_keys_walk<sm90_wide<DIM>, PART>(b, maps);
        else if (threadIdx.x == 32)
            sm90_find_all_keys<CAREFUL>(b);
        else if (threadIdx.x == 64)
            sm90_wide_keys_own<sm90_wide<DIM>, PART>(b, maps);
    } else {
        sm90_registers_more<SM90_MANY>();
        gpu_wait_for_last();
        sm90_wide_keys_consume<DTYPE, sm90_wide<DIM>, CAREFUL, CAP, PART>(
            b, maps, __shfl_sync(~0u, group, 0) - 1);
    }
}

/* Capped scores, and tiles of the list, take the kernels of 256 elements. */
#define SM90_PAIR(kernel, dtype, dim, cap, ...)                                                    \
    {                                                                                              \
        GPU_KERNEL(kernel<dtype, dim, 0, cap __VA_ARGS__>),                                        \
            GPU_KERNEL(kernel<dtype, 256, 1, cap __VA_ARGS__>)                                     \
    }
#define SM90_PAIRS(kernel, dim, cap, ...)                                                          \
    {                                                                                              \
        SM90_PAIR(kernel, GPU_SM90_F16, dim, cap, __VA_ARGS__),                                    \
            SM90_PAIR(kernel, GPU_SM90_BF16, dim, cap, __VA_ARGS__)                                \
    }
#define SM90_KERNELS(kernel, ...)                                                                  \
    {                                                                                              \
        {SM90_PAIRS(kernel, 192, 0, __VA_ARGS__), SM90_PAIRS(kernel, 256, 0, __VA_ARGS__)}, {      \
            SM90_PAIRS(kernel, 256, 1, __VA_ARGS__), SM90_PAIRS(kernel, 256, 1, __VA_ARGS__)       \
        }                                                                                          \
    }
#define SM90_COMMA ,

const sm90_backward_pair gpu_backward_sm90_wide_kernels[3][2][2][2] = {
    SM90_KERNELS(gpu_backward_sm90_wide_rows),
    SM90_KERNELS(gpu_backward_sm90_wide_keys, SM90_COMMA 0),
    SM90_KERNELS(gpu_backward_sm90_wide_keys, SM90_COMMA 1),
};
