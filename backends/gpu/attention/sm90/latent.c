/* Which problems and calls take the kernel of latent attention, and its launch. */
#include "backends/gpu/attention/gather.h"
#include "backends/gpu/attention/sm90/call.h"
#include "common/math/attention.h"

/* Keys of a copy: a page's, or the most that divide both a page and a tile. */
static int32_t box_of(const rope_attention_problem *p) {
    int32_t box = SM90_LATENT_KEYS;
    while (p->page_size % box)
        box /= 2;
    return box;
}

static int takes_cache(const rope_attention_problem *p) {
    return p->cache == ROPE_CACHE_TABLE && !p->ring && !p->rotates[1] &&
           p->page_size <= INT32_MAX / 64 && (gpu_attention_converts(p) || box_of(p) >= 16);
}

/* Whether a query may have no position. */
static int may_fail(const rope_attention_problem *p) {
    return p->rotates[0] && p->rope.angle_mode == ROPE_ANGLE_TABLE &&
           p->rope.out_of_range == ROPE_OUT_OF_RANGE_ERROR;
}

const void *const *gpu_sm90_latent_kernels(const rope_attention_problem *p, int32_t device) {
    int major = 0, minor = 0;
    if (p->head_dim != SM90_LATENT_DIM || p->v_head_dim != SM90_LATENT_VALUE_DIM ||
        p->rope.dtype == ROPE_F32 || !takes_cache(p) || p->soft_cap > 0 ||
        p->mask == ROPE_MASK_TREE || !(p->scale > 0) || may_fail(p))
        return NULL;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess)
        return NULL;
    return major == 9 && minor == 0 ? gpu_attention_sm90_latent_kernels[p->rope.dtype == ROPE_BF16]
                                                                       [gpu_attention_converts(p)]
                                    : NULL;
}

/* Pages, or gathered rows of sequences. */
static sm90_view keys_of(const rope_attention_problem *p, const rope_attention_call *call) {
    const rope_append_operand *k = &call->k;
    if (!k->out)
        return sm90_view_of(p, call, k, p->head_dim, 0);
    return (sm90_view){
        k->out,         k->out_stride, k->out_stride[3], rope_attention_sequences(call),
        call->k_tokens, k->heads,      p->head_dim};
}

int gpu_sm90_latent_fits(const rope_attention_problem *p, const rope_attention_call *call,
                         int32_t fits, int64_t blocks) {
    const int32_t needed = GPU_TILE_K | GPU_TILE_SAME | GPU_TILE_OUT;
    const sm90_view q = sm90_queries_of(p, call), k = keys_of(p, call);
    return (fits & needed) == needed && blocks <= INT32_MAX &&
           call->rope.tensor[0].heads <= UINT16_MAX &&
           (!p->rotates[0] || call->rope.tensor[0].out) &&
           rope_attention_capacity(p, call) <= INT32_MAX / 2 && sm90_map_fits(&q) &&
           sm90_map_fits(&k);
}

gpuError_t sm90_latent_join(const void *kernel, const rope_attention_problem *p,
                            const rope_attention_call *call, const gpu_attention_parts *parts,
                            gpuStream_t stream, int early) {
    void *arguments[] = {(void *)(uintptr_t)p, (void *)(uintptr_t)call, (void *)(uintptr_t)parts};
    const int64_t queries = rope_attention_sequences(call) * parts->queries;
    const dim3 grid = {(uint32_t)queries, (uint32_t)call->rope.tensor[0].heads, 1},
               block = {GPU_ATTENTION_THREADS, 1, 1};
    return gpu_launch_kernel(kernel, grid, block, arguments, 0, stream, early);
}

int sm90_latent_maps(const rope_attention_problem *p, const rope_attention_call *call,
                     CUtensorMap maps[2], int32_t *box) {
    const sm90_view q = sm90_queries_of(p, call), k = keys_of(p, call);
    *box = call->k.out ? (int32_t)SM90_LATENT_KEYS : box_of(p);
    return sm90_map_encode(&maps[0], p->rope.dtype, &q, SM90_LATENT_ROWS, 1, 1) &&
           sm90_map_encode(&maps[1], p->rope.dtype, &k, 1, *box,
                           *box == SM90_LATENT_KEYS ? SM90_LATENT_DIM / 64 : 1);
}

gpuError_t gpu_sm90_latent_launch(const void *const kernels[2], const gpu_sm90_call *l,
                                  const gpu_attention_parts *parts, int64_t blocks) {
    const rope_attention_problem *p = l->problem;
    int32_t box;
    CUtensorMap maps[2];
    if (!sm90_latent_maps(p, l->call, maps, &box))
        return cudaErrorInvalidValue;
    void *arguments[] = {&maps[0],
                         &maps[1],
                         &box,
                         (void *)(uintptr_t)p,
                         (void *)(uintptr_t)l->call,
                         (void *)(uintptr_t)&l->failed,
                         (void *)(uintptr_t)parts};
    const dim3 grid = {(uint32_t)blocks, 1, 1}, block = {SM90_LATENT_THREADS, 1, 1};
    if (blocks < 1)
        return gpuSuccess;
    const gpuError_t error = gpu_launch_kernel(kernels[0], grid, block, arguments,
                                               GPU_SM90_LATENT_SHARED, l->stream, l->early);
    return error == gpuSuccess && parts->splits > 1
               ? sm90_latent_join(kernels[1], p, l->call, parts, l->stream, l->follows_early)
               : error;
}
