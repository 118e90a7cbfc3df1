/* The operation "rope": a candidate for each instruction set, and the reference. */
#include "backends/cpu/candidate_lists.h"
#include "backends/cpu/rope/kernel.h"

static rope_status query(const rope_candidate *self, const void *problem, int32_t device,
                         char *reason) {
    (void)problem, (void)device;
    return cpu_isa_query(((const cpu_kernel *)self->data)->needs, reason);
}

#define CANDIDATE(label, kernel, forced)                                                           \
    {                                                                                              \
        .operation = "rope", .version = ROPE_ROPE_VERSION, .numerics = ROPE_BITWISE,               \
        .name = label, .data = &(kernel), .on_request = (forced), .query = query,                  \
        .run = cpu_rotate_call                                                                     \
    }

static const rope_candidate candidates[] = {
#if defined(__x86_64__)
    CANDIDATE("avx512_bf16", cpu_kernel_avx512_bf16, 0),
    CANDIDATE("avx512", cpu_kernel_avx512, 0),
    CANDIDATE("avx2", cpu_kernel_avx2, 0),
#elif defined(__aarch64__)
    CANDIDATE("neon", cpu_kernel_neon, 0),
#endif
    CANDIDATE("scalar", cpu_kernel_scalar, 0),
    CANDIDATE("reference", cpu_kernel_reference, 1),
};

const rope_candidate_list cpu_rope_candidates = {sizeof(rope_candidate), candidates,
                                                 sizeof candidates / sizeof candidates[0]};
