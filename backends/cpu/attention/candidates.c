/* The operation "attention": a candidate for each instruction set, and the reference. */
#include "backends/cpu/attention/kernel.h"
#include "backends/cpu/candidate_lists.h"

#include <stdio.h>

rope_status cpu_attention_query(const cpu_attention_kernel *kernel,
                                const rope_attention_problem *problem, char *reason) {
    if (problem && kernel->dtype && kernel->dtype != problem->rope.dtype) {
        snprintf(reason, ROPE_REASON_SIZE, "declined: bf16 alone");
        return ROPE_DECLINED;
    }
    return cpu_isa_query(kernel->needs, reason);
}

static rope_status query(const rope_candidate *self, const void *problem, int32_t device,
                         char *reason) {
    (void)device;
    return cpu_attention_query(self->data, problem, reason);
}

#define CANDIDATE(label, kernel, forced)                                                           \
    {                                                                                              \
        .operation = "attention", .version = ROPE_ATTENTION_VERSION, .numerics = ROPE_BOUNDED,     \
        .name = label, .data = &(kernel), .on_request = (forced), .query = query,                  \
        .workspace = cpu_attention_workspace, .run = cpu_attention_call,                           \
        .check = cpu_attention_check_call                                                          \
    }

static const rope_candidate candidates[] = {
#if defined(__x86_64__)
    CANDIDATE("amx", cpu_attention_amx, 0),
    CANDIDATE("avx512_bf16", cpu_attention_avx512_bf16, 0),
    CANDIDATE("avx512", cpu_attention_avx512, 0),
    CANDIDATE("avx2", cpu_attention_avx2, 0),
#elif defined(__aarch64__)
    CANDIDATE("neon", cpu_attention_neon, 0),
#endif
    CANDIDATE("scalar", cpu_attention_scalar, 0),
    CANDIDATE("reference", cpu_attention_reference, 1),
};

const rope_candidate_list cpu_attention_candidates = {sizeof(rope_candidate), candidates,
                                                      sizeof candidates / sizeof candidates[0]};
