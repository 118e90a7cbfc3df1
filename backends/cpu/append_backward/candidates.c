/* The operation "append_backward": a candidate for each instruction set. */
#include "backends/cpu/append_backward/kernel.h"
#include "backends/cpu/candidate_lists.h"

static rope_status query(const rope_candidate *self, const void *problem, int32_t device,
                         char *reason) {
    (void)problem, (void)device;
    return cpu_isa_query(((const cpu_append_backward_kernel *)self->data)->append->needs, reason);
}

#define CANDIDATE(label, kernel)                                                                   \
    {                                                                                              \
        .operation = "append_backward", .version = ROPE_APPEND_BACKWARD_VERSION,                   \
        .numerics = ROPE_BITWISE, .name = label, .data = &(kernel), .query = query,                \
        .workspace = cpu_append_backward_workspace, .run = cpu_append_backward_call                \
    }

static const rope_candidate candidates[] = {
#if defined(__x86_64__)
    CANDIDATE("avx512_bf16", cpu_append_backward_avx512_bf16),
    CANDIDATE("avx512", cpu_append_backward_avx512),
    CANDIDATE("avx2", cpu_append_backward_avx2),
#elif defined(__aarch64__)
    CANDIDATE("neon", cpu_append_backward_neon),
#endif
    CANDIDATE("scalar", cpu_append_backward_scalar),
};

const rope_candidate_list cpu_append_backward_candidates = {
    sizeof(rope_candidate), candidates, sizeof candidates / sizeof candidates[0]};
