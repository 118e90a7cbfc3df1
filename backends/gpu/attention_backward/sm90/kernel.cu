/* Gradients of attention by the matrix products of sm_90a, of heads of up to 128 elements.
 */
#include "backends/gpu/attention_backward/sm90/keys.h"
#include "backends/gpu/attention_backward/sm90/prepare.h"
#include "backends/gpu/attention_backward/sm90/rows.h"

/* Registers of a thread that loads, and of one that multiplies. */
enum { SM90_FEW = 24, SM90_MANY = 240 };

/* fills, frees: arrivals of those who fill what a block owns, and of those who free it. */
GPU_FN void sm90_backward_start(const sm90_backward_block &b, int fills, int frees) {
    for (int i = 0; i < 2; i++) {
        sm90_barrier_init(SM90_BARRIER(b, own_full, i), fills);
        sm90_barrier_init(SM90_BARRIER(b, own_free, i), frees);
        sm90_barrier_init(SM90_BARRIER(b, known, i), 1);
        sm90_barrier_init(SM90_BARRIER(b, numbered, i), 1);
        for (int step = 0; step < 3; step++) {
            sm90_barrier_init(SM90_BARRIER(b, may_send[step], i), 1);
            sm90_barrier_init(SM90_BARRIER(b, sent[step], i), 1);
        }
    }
    sm90_barrier_init(SM90_BARRIER(b, wanted, 0), 1);
    for (int i = 0; i < SM90_STAGES; i++) {
        sm90_barrier_init(SM90_BARRIER(b, full, i), 1);
        sm90_barrier_init(SM90_BARRIER(b, free, i), 2);
    }
    b.header->told[0] = b.header->told[1] = -1;
    sm90_barriers_begun();
}

GPU_FN sm90_backward_block sm90_backward_block_of(char *memory,
                                                  const sm90_backward_schedule *schedule) {
    return {schedule, (sm90_backward_header *)(void *)memory,
            (uint32_t)__cvta_generic_to_shared(memory) + SM90_BACKWARD_HEADER, 0, 0};
}

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
            sm90_rows_produce<DIM>(b, maps);
        else if (threadIdx.x < 64)
            sm90_find_all_rows<CAREFUL>(b);
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
            sm90_keys_produce<DIM>(b, maps);
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
        {SM90_PAIR(kernel, ROPE_F16, 64, cap), SM90_PAIR(kernel, ROPE_BF16, 64, cap)}, {           \
            SM90_PAIR(kernel, ROPE_F16, 128, cap), SM90_PAIR(kernel, ROPE_BF16, 128, cap)          \
        }                                                                                          \
    }
#define SM90_KERNELS(kernel)                                                                       \
    { SM90_OF_CAP(kernel, 0), SM90_OF_CAP(kernel, 1) }

const void *const gpu_backward_sm90_prepare_kernel = GPU_KERNEL(gpu_backward_sm90_prepare);
const void *const gpu_backward_sm90_rows_kernels[2][2][2][2] = SM90_KERNELS(gpu_backward_sm90_rows);
const void *const gpu_backward_sm90_keys_kernels[2][2][2][2] = SM90_KERNELS(gpu_backward_sm90_keys);
