/* The operation "attention_backward": a candidate for each instruction set, and the reference. */
#include "backends/cpu/attention_backward/kernel.h"
#include "backends/cpu/candidate_lists.h"

static rope_status query(const rope_candidate *self, const void *problem, int32_t device,
                         char *reason) {
    (void)device;
    return cpu_attention_query(((const cpu_backward_kernel *)self->data)->attention, problem,
                               reason);
}

#define CANDIDATE(label, kernel, forced)                                                           \
    {                                                                                              \
        .operation = "attention_backward", .version = ROPE_ATTENTION_BACKWARD_VERSION,             \
        .numerics = ROPE_BOUNDED, .name = label, .data = &(kernel), .on_request = (forced),        \
        .query = query, .workspace = cpu_backward_workspace, .run = cpu_backward_call              \
    }

static const rope_candidate candidates[] = {
#if defined(__x86_64__)
    CANDIDATE("amx", cpu_backward_amx, 0),
    CANDIDATE("avx512_bf16", cpu_backward_avx512_bf16, 0),
    CANDIDATE("avx512", cpu_backward_avx512, 0),
    CANDIDATE("avx2", cpu_backward_avx2, 0),
#elif defined(__aarch64__)
    CANDIDATE("neon", cpu_backward_neon, 0),
#endif
    CANDIDATE("scalar", cpu_backward_scalar, 0),
    CANDIDATE("reference", cpu_backward_reference, 1),
};

const rope_candidate_list cpu_attention_backward_candidates = {
    sizeof(rope_candidate), candidates, sizeof candidates / sizeof candidates[0]};
