/* The operation "attention_merge": partial results of a head, weighed by what they have of its sum.
 */
#include "backends/cpu/candidate_lists.h"
#include "backends/cpu/partition.h"
#include "backends/cpu/scalar.h"

#include <math.h>

static int64_t heads_of(const rope_attention_merge_call *call) {
    return call->batch * call->tokens * call->heads;
}

static int64_t place(const int64_t stride[3], const int64_t at[3]) {
    return at[0] * stride[0] + at[1] * stride[1] + at[2] * stride[2];
}

/* The parts' common logarithm, in double: exp of fp32 differences has no digits to lose. */
static double join(const rope_attention_merge_call *call, const float *lse) {
    double most = -INFINITY, sum = 0;
    for (int64_t p = 0; p < call->parts; p++)
        if (lse[p * call->in_lse_stride[0]] > most)
            most = lse[p * call->in_lse_stride[0]];
    if (isinf(most))
        return most;
    for (int64_t p = 0; p < call->parts; p++)
        sum += exp(lse[p * call->in_lse_stride[0]] - most);
    return most + log(sum);
}

static void merge_head(const rope_attention_merge_problem *problem,
                       const rope_attention_merge_call *call, const int64_t at[3]) {
    float out[ROPE_MAX_ATTENTION_HEAD_DIM] = {0};
    const float *lse = call->in_lse + place(call->in_lse_stride + 1, at);
    const int64_t in = place(call->in_stride + 1, at), to = place(call->out_stride, at);
    const double joined = join(call, lse);
    for (int64_t p = 0; p < call->parts; p++) {
        const float part = lse[p * call->in_lse_stride[0]];
        const int64_t first = in + p * call->in_stride[0];
        const float weight = (float)exp(part - joined);
        if (part == -INFINITY)
            continue;
        for (int64_t i = 0; i < problem->head_dim; i++)
            out[i] += weight * cpu_load(problem->dtype, call->in, first + i * call->in_stride[4]);
    }
    for (int64_t i = 0; i < problem->head_dim; i++)
        cpu_store(problem->dtype, call->out, to + i * call->out_stride[3], out[i]);
    if (call->lse)
        call->lse[place(call->lse_stride, at)] = (float)joined;
}

static void merge_part(const rope_attention_merge_problem *problem,
                       const rope_attention_merge_call *call, int index, int parts) {
    const int64_t last = cpu_part(heads_of(call), index + 1, parts);
    for (int64_t n = cpu_part(heads_of(call), index, parts); n < last; n++) {
        const int64_t row = n / call->heads,
                      at[3] = {row / call->tokens, row % call->tokens, n % call->heads};
        merge_head(problem, call, at);
    }
}

static rope_status run(const void *problem, const void *kernel, const void *given, void *workspace,
                       void *stream) {
    (void)kernel, (void)workspace, (void)stream;
    const rope_attention_merge_call *call = given;
    const rope_attention_merge_problem *p = problem;
    const int parts = cpu_threads_for(heads_of(call) * p->head_dim * (call->parts + 1) *
                                      cpu_dtype_size(p->dtype));
#if defined(_OPENMP)
#pragma omp parallel for num_threads(parts) if (parts > 1)
#endif
    for (int i = 0; i < parts; i++)
        merge_part(p, call, i, parts);
    return ROPE_OK;
}

static const rope_candidate candidates[] = {{.operation = "attention_merge",
                                             .version = ROPE_ATTENTION_MERGE_VERSION,
                                             .numerics = ROPE_BOUNDED,
                                             .name = "scalar",
                                             .run = run}};

const rope_candidate_list cpu_attention_merge_candidates = {sizeof(rope_candidate), candidates, 1};
