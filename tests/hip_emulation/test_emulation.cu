/* The emulation behaves as HIP does where the backend relies on it, and shows what it forbids. */
#include <hip/hip_fp16.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

enum { THREADS = 128 };

static int failures;

static void check(bool condition, const char *text) {
    failures += !condition;
    if (!condition)
        std::printf("FAIL wave %d: %s\n", warpSize, text);
}

/* With the barrier each thread reads what its neighbour wrote, in whatever order they run. */
template <bool BARRIER> __global__ void neighbour(uint32_t *out) {
    __shared__ uint32_t written[THREADS];
    written[threadIdx.x] = 0;
    if (BARRIER)
        __syncthreads();
    written[threadIdx.x] = blockIdx.x * THREADS + threadIdx.x;
    if (BARRIER)
        __syncthreads();
    out[blockIdx.x * THREADS + threadIdx.x] = written[(threadIdx.x + 1) % THREADS];
}

__global__ void sum_of_wave(uint64_t *out) {
    uint64_t sum = threadIdx.x;
    for (int mask = warpSize / 2; mask > 0; mask /= 2)
        sum += __shfl_xor(sum, mask);
    out[threadIdx.x] = __ballot(threadIdx.x % 2 == 1) ^ sum;
}

__global__ void uneven_barrier(uint32_t *out) {
    if (threadIdx.x == 0)
        return;
    __syncthreads();
    out[threadIdx.x] = 1;
}

__global__ void overrun(uint32_t *out) {
    extern __shared__ uint64_t memory[];
    memory[out[0]] = 1;
}

__global__ void read_behind(uint32_t *out) {
    out[0] = out[4 * THREADS];
}

static hipError_t launch(const void *kernel, unsigned blocks, unsigned threads, void *out,
                         hipStream_t stream = nullptr, size_t shared_bytes = 0) {
    dim3 grid, block;
    grid.x = blocks;
    block.x = threads;
    void *arguments[] = {&out};
    return hipLaunchKernel(kernel, grid, block, arguments, shared_bytes, stream);
}

static bool neighbours_are_right(const void *kernel, uint32_t *device) {
    uint32_t host[2 * THREADS];
    check(launch(kernel, 2, THREADS, device) == hipSuccess, "launch");
    check(hipMemcpyAsync(host, device, sizeof host, hipMemcpyDeviceToHost, nullptr) == hipSuccess,
          "copy out");
    check(hipStreamSynchronize(nullptr) == hipSuccess, "synchronize");
    bool right = true;
    for (uint32_t i = 0; i < 2 * THREADS; i++)
        right = right && host[i] == i / THREADS * THREADS + (i + 1) % THREADS;
    return right;
}

static void check_barriers(uint32_t *device) {
    check(neighbours_are_right(HIP_KERNEL_NAME(neighbour<true>), device),
          "a barrier orders a block");
    check(!neighbours_are_right(HIP_KERNEL_NAME(neighbour<false>), device),
          "a missing barrier shows");
}

static void check_waves(uint64_t *device) {
    uint64_t wave = (uint64_t)warpSize;
    launch(HIP_KERNEL_NAME(sum_of_wave), 1, THREADS, device);
    hipDeviceSynchronize();
    for (uint64_t i = 0; i < THREADS; i++) {
        uint64_t odd = wave == 32 ? 0xaaaaaaaau : 0xaaaaaaaaaaaaaaaau;
        uint64_t sum = i / wave * wave * wave + wave * (wave - 1) / 2;
        check(device[i] == (odd ^ sum), "shuffles and ballots stay in a wave");
    }
}

/* Work waits until somebody waits for it; a graph replays what was captured. */
static void check_streams(uint32_t *device) {
    uint32_t zero[THREADS] = {};
    hipStream_t stream;
    hipGraph_t graph;
    hipGraphExec_t exec;
    const void *kernel = HIP_KERNEL_NAME(neighbour<true>);
    hipFuncAttributes attributes;
    hipFuncGetAttributes(&attributes, kernel);
    hipStreamCreateWithFlags(&stream, hipStreamNonBlocking);
    hipMemcpyAsync(device, zero, sizeof zero, hipMemcpyHostToDevice, stream);
    hipStreamSynchronize(stream);
    launch(kernel, 1, THREADS, device, stream);
    check(device[0] == 0, "a launch does not wait");
    hipStreamSynchronize(stream);
    check(device[0] == 1, "synchronizing waits");
    hipMemcpyAsync(device, zero, sizeof zero, hipMemcpyHostToDevice, stream);
    hipStreamBeginCapture(stream, hipStreamCaptureModeThreadLocal);
    launch(kernel, 1, THREADS, device, stream);
    check(launch(HIP_KERNEL_NAME(overrun), 1, 1, device, stream) ==
              hipErrorStreamCaptureUnsupported,
          "a kernel that is not loaded is not captured");
    hipStreamEndCapture(stream, &graph);
    hipGraphInstantiate(&exec, graph, nullptr, nullptr, 0);
    hipDeviceSynchronize();
    check(device[0] == 0, "a capture does not run");
    hipGraphLaunch(exec, stream);
    hipStreamDestroy(stream);
    check(device[1] == 2, "a graph runs");
    hipGraphExecDestroy(exec);
    hipGraphDestroy(graph);
}

static void check_half() {
    bool exact = true, ties = true;
    for (uint32_t h = 0; h < 0x7c00; h++) {
        float x = emulated_widen((uint16_t)h),
              next = h < 0x7bff ? emulated_widen((uint16_t)(h + 1)) : 65536;
        exact = exact && emulated_narrow(x) == h && emulated_narrow(-x) == (h | 0x8000);
        ties = ties && emulated_narrow((x + next) / 2) == h + h % 2;
    }
    check(exact, "every binary16 survives");
    check(ties, "halves round to even");
}

/* Last, since the first failed launch is every later call's error. */
static void check_forbidden(uint32_t *device) {
    const void *kernel = HIP_KERNEL_NAME(uneven_barrier);
    check(launch(kernel, 1, EMULATED_BLOCK_THREADS + 1, device) == hipErrorInvalidConfiguration,
          "a block has 1024 threads at most");
    check(launch(kernel, 1u << 25, 128, device) == hipErrorInvalidConfiguration,
          "a grid has less than 2^32 threads along x");
    check(hipMemcpyAsync(device, device, 1u << 20, hipMemcpyDeviceToDevice, nullptr) ==
              hipErrorInvalidValue,
          "a copy stays in its allocation");
    launch(kernel, 1, 64, device);
    check(hipDeviceSynchronize() == hipErrorLaunchFailure, "an uneven barrier fails");
}

static void check_overrun(uint32_t *device) {
    device[0] = 2;
    launch(HIP_KERNEL_NAME(overrun), 1, 1, device, nullptr, 16);
    check(hipDeviceSynchronize() == hipErrorLaunchFailure, "an overrun of shared memory fails");
}

/* Ends the program. */
static void check_read_behind(uint32_t *device) {
    std::signal(SIGSEGV, [](int) { std::_Exit(failures != 0); });
    launch(HIP_KERNEL_NAME(read_behind), 1, 1, device);
    hipDeviceSynchronize();
    check(false, "a read behind an allocation faults");
}

int main(int argc, char **argv) {
    void *device = nullptr;
    check(hipMalloc(&device, 2 * THREADS * sizeof(uint64_t)) == hipSuccess, "allocate");
    check_half();
    check_barriers((uint32_t *)device);
    check_waves((uint64_t *)device);
    check_streams((uint32_t *)device);
    if (argc > 1 && std::strcmp(argv[1], "overrun") == 0)
        check_overrun((uint32_t *)device);
    else if (argc > 1 && std::strcmp(argv[1], "behind") == 0)
        check_read_behind((uint32_t *)device);
    else
        check_forbidden((uint32_t *)device);
    return failures != 0;
}
