#include "backends/gpu/attention/sizes.h"

#include "backends/gpu/device.h"
#include "common/math/attention.h"

gpu_attention_sizes gpu_attention_sizes_of(const rope_attention_problem *problem,
                                           const rope_attention_call *call) {
    const int64_t sequences = rope_attention_sequences(call);
    return (gpu_attention_sizes){sequences,
                                 problem->cache ? sequences : call->rope.batch,
                                 call->k_tokens,
                                 call->k.heads,
                                 call->rope.batch,
                                 call->rope.tokens,
                                 call->rope.tensor[0].heads};
}

gpu_attention_sizes gpu_attention_sizes_within(const rope_attention_problem *problem,
                                               const rope_attention_bounds *b) {
    const int64_t sequences = b->sequences ? b->sequences : b->batch;
    return (gpu_attention_sizes){sequences,
                                 problem->cache ? sequences : b->batch,
                                 b->k_tokens ? b->k_tokens : b->tokens,
                                 b->k_heads,
                                 b->batch,
                                 b->tokens,
                                 b->q_heads};
}

int gpu_workspace_add(const int64_t n[4], size_t element, size_t *bytes, size_t *begin) {
    size_t part = element;
    *begin = *bytes;
    for (int i = 0; i < 4; i++)
        if (__builtin_mul_overflow(part, (size_t)n[i], &part))
            return 0;
    return !__builtin_add_overflow(*bytes, part, bytes) &&
           !__builtin_add_overflow(*bytes,
                                   (GPU_WORKSPACE_ALIGNMENT - *bytes % GPU_WORKSPACE_ALIGNMENT) %
                                       GPU_WORKSPACE_ALIGNMENT,
                                   bytes);
}

rope_status gpu_workspace_overflows(const char *prefix, const gpu_attention_sizes *s) {
    return gpu_host->fail(
        ROPE_ERROR_OVERFLOW,
        "%stokens is %lld and %sk_tokens is %lld with %lld and %lld rows and %lld "
        "and %lld heads; allowed is a workspace below 2^64 bytes",
        prefix, (long long)s->tokens, prefix, (long long)s->k_tokens, (long long)s->q_rows,
        (long long)s->k_rows, (long long)s->q_heads, (long long)s->k_heads);
}

rope_status gpu_workspace_check(size_t bytes, size_t given, const void *workspace) {
    if (bytes == 0)
        return ROPE_OK;
    if (given < bytes)
        return gpu_host->fail(ROPE_ERROR_INVALID_VALUE, "workspace_bytes is %zu; allowed is >= %zu",
                              given, bytes);
    if (!workspace)
        return gpu_host->fail(ROPE_ERROR_NULL_POINTER,
                              "workspace is NULL; allowed is %zu bytes of device memory", bytes);
    return (uintptr_t)workspace % GPU_WORKSPACE_ALIGNMENT
               ? gpu_host->fail(ROPE_ERROR_MISALIGNED,
                                "workspace is %p; allowed is a multiple of %d", workspace,
                                GPU_WORKSPACE_ALIGNMENT)
               : ROPE_OK;
}
