/* What a call of attention takes of the host beside its launches. These are those of a graph of the
 * call, submitted again as they are. */
#include "tests/gpu/fixture.h"

#include <ropekit/attention.h>

#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <time.h>

/* Fewer launches in a round than the driver queues. */
enum { CALLS = 50, ROUNDS = 25, LAUNCHES = 8, Q = 32, K = 8, DIM = 128, PAGE = 16, SEQUENCES = 8 };

/* Seconds of a call beside its launches. */
static const double most = 6e-6;

/* A row of so many queries and keys, or packed sequences; keys in pages of a table, or in a row. */
typedef struct shape {
    int64_t tokens, keys;
    int packed, pages;
} shape;

static const shape shapes[] = {
    {1, 4096, 0, 1}, {512, 512, 0, 0}, {64, 4096, 0, 1}, {2048, 2048, 1, 0}, {2048, 4096, 1, 1}};

static rope_plan *plan_of(const shape *s) {
    rope_attention_desc desc = ROPE_ATTENTION_DESC_INIT;
    rope_plan *plan = NULL;
    desc.rope.dtype = ROPE_BF16;
    desc.rope.head_dim = DIM;
    desc.rope.position_dtype = ROPE_I32;
    desc.rope.backend = GPU_BACKEND_NAME;
    desc.rotation = s->pages ? ROPE_ATTENTION_ROTATE_Q : ROPE_ATTENTION_ROTATE_QK;
    desc.cache = s->pages ? ROPE_CACHE_TABLE : 0;
    desc.page_size = s->pages ? PAGE : 0;
    CHECK_STATUS(ROPE_OK, rope_attention_plan_create(&desc, &plan));
    return plan;
}

/* Memory of 0s, as numbers take no part: boundaries and lengths are 0, too. */
static void *zeros(rope_device *device, size_t bytes) {
    void *memory = NULL;
    CHECK_STATUS(ROPE_OK, rope_device_alloc(device, bytes, &memory));
    CHECK_GPU(cudaMemset(memory, 0, bytes));
    return memory;
}

static rope_attention_args args_of(const shape *s, void *numbers, void *lists) {
    rope_attention_args a = ROPE_ATTENTION_ARGS_INIT;
    a.rope.batch = 1;
    a.rope.tokens = s->tokens;
    a.rope.q = (rope_tensor){.in = numbers, .heads = Q};
    a.rope.k = (rope_tensor){.in = s->pages ? NULL : numbers, .heads = K};
    a.v = (rope_tensor){.in = s->pages ? NULL : numbers, .heads = K};
    a.rope.cu_seqlens = s->packed ? lists : NULL;
    a.rope.sequences = s->packed ? SEQUENCES : 0;
    a.k_cu_seqlens = s->packed && !s->pages ? lists : NULL;
    a.k_tokens = s->keys;
    if (s->pages) {
        a.k_cache.data = a.v_cache.data = numbers;
        a.k_lengths = a.block_table = lists;
        a.pages = a.table_pages = s->keys / PAGE;
    }
    return a;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A call, or the launches of one. */
typedef struct work {
    rope_plan *plan;
    const rope_attention_args *args; /* or NULL */
    CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                       unsigned, CUstream, void **, void **);
    CUDA_KERNEL_NODE_PARAMS node[LAUNCHES];
    size_t nodes;
    gpuStream_t stream;
} work;

static void submit(const work *w) {
    if (w->args)
        CHECK_STATUS(ROPE_OK, rope_attention(w->plan, w->args));
    for (size_t i = 0; i < w->nodes && !w->args; i++) {
        const CUDA_KERNEL_NODE_PARAMS *n = &w->node[i];
        const CUresult result =
            w->launch(n->func ? n->func : (CUfunction)(void *)n->kern, n->gridDimX, n->gridDimY,
                      n->gridDimZ, n->blockDimX, n->blockDimY, n->blockDimZ, n->sharedMemBytes,
                      w->stream, n->kernelParams, n->extra);
        CHECK(result == CUDA_SUCCESS, "launch %zu: %d", i, (int)result);
    }
}

/* Seconds of the host, of the round that nothing interrupted. */
static double least_of(const work *w) {
    double least = 1;
    for (int round = 0; round < ROUNDS; round++) {
        CHECK_GPU(gpuStreamSynchronize(w->stream));
        const double begin = now();
        for (int i = 0; i < CALLS; i++)
            submit(w);
        const double seconds = (now() - begin) / CALLS;
        least = seconds < least ? seconds : least;
    }
    CHECK_GPU(gpuStreamSynchronize(w->stream));
    return least;
}

/* Parameters of kernels belong to the graph. */
static void find_launches(work *w, gpuGraph_t graph) {
    CUresult (*parameters)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS *) = NULL;
    cudaGraphNode_t nodes[LAUNCHES];
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(library, "no driver");
    *(void **)&w->launch = dlsym(library, "cuLaunchKernel");
    *(void **)&parameters = dlsym(library, "cuGraphKernelNodeGetParams_v2");
    CHECK(w->launch && parameters, "the driver is too old");
    w->nodes = LAUNCHES;
    CHECK_GPU(cudaGraphGetNodes(graph, nodes, &w->nodes));
    CHECK(w->nodes > 0, "no launch");
    for (size_t i = 0; i < w->nodes; i++)
        CHECK(parameters(nodes[i], &w->node[i]) == CUDA_SUCCESS, "node %zu is no kernel", i);
}

static void check(rope_device *device, const shape *s) {
    const rope_attention_bounds bounds = {
        sizeof bounds, 1, s->tokens, s->keys, s->packed ? SEQUENCES : 0, Q, K};
    work w = {.plan = plan_of(s)};
    size_t bytes;
    gpuGraph_t graph;
    CHECK_STATUS(ROPE_OK, rope_attention_workspace(w.plan, &bounds, &bytes));
    CHECK_GPU(gpuStreamCreateWithFlags(&w.stream, gpuStreamNonBlocking));
    void *const memory[] = {zeros(device, (size_t)(s->tokens * Q + s->keys * K) * DIM * 2),
                            zeros(device, (size_t)(s->keys / PAGE * SEQUENCES + 1) * 4),
                            zeros(device, (size_t)(s->tokens * Q * DIM) * 2),
                            zeros(device, bytes + 1)};
    rope_attention_args args = args_of(s, memory[0], memory[1]);
    args.out.data = memory[2];
    args.workspace = memory[3];
    args.workspace_bytes = bytes;
    args.rope.stream = w.stream;
    CHECK_STATUS(ROPE_OK, rope_attention(w.plan, &args));
    fixture_capture(w.stream);
    const rope_status status = rope_attention(w.plan, &args);
    CHECK_GPU(gpuStreamEndCapture(w.stream, &graph));
    CHECK_STATUS(ROPE_OK, status);
    find_launches(&w, graph);
    const double launches = least_of(&w);
    w.args = &args;
    const double call = least_of(&w);
    printf("%lld queries, %lld keys%s%s: %.2f us, %.2f of them of %zu launches\n",
           (long long)s->tokens, (long long)s->keys, s->packed ? ", packed" : "",
           s->pages ? ", in pages" : "", 1e6 * call, 1e6 * launches, w.nodes);
    CHECK(call - launches <= most, "%.2f us beside launches; allowed are %.2f",
          1e6 * (call - launches), 1e6 * most);
    CHECK_GPU(gpuGraphDestroy(graph));
    CHECK_GPU(gpuStreamDestroy(w.stream));
    for (int i = 0; i < 4; i++)
        CHECK_STATUS(ROPE_OK, rope_device_free(device, memory[i]));
    rope_plan_destroy(w.plan);
}

TEST(host, calls_take_little_beside_their_launches) {
    rope_device *device = fixture_device(0);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        check(device, &shapes[i]);
    rope_device_close(device);
}
