/* The operation "attention_backward": the reference. */
#include "backends/cpu/attention_backward/kernel.h"
#include "backends/cpu/candidate_lists.h"

static rope_status query(const rope_candidate *self, const void *problem, int32_t device,
                         char *reason) {
    (void)problem, (void)device;
    const cpu_backward_kernel *kernel = self->data;
    return cpu_isa_query(kernel->attention->needs, reason);
}

#define CANDIDATE(label, kernel, forced)                                                           \
    {                                                                                              \
        .operation = "attention_backward", .version = ROPE_ATTENTION_BACKWARD_VERSION,             \
        .numerics = ROPE_BOUNDED, .name = label, .data = &(kernel), .on_request = (forced),        \
        .query = query, .workspace = cpu_backward_workspace, .run = cpu_backward_call              \
    }

static const rope_candidate candidates[] = {
    CANDIDATE("reference", cpu_backward_reference, 0),
};

const rope_candidate_list cpu_attention_backward_candidates = {
    sizeof(rope_candidate), candidates, sizeof candidates / sizeof candidates[0]};
