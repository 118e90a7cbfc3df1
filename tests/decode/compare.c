#include "tests/decode/compare.h"

#include "tests/support/device.h"
#include "tests/support/harness.h"

void decode_required(void) {
    device_open();
    if (!device_kernel_of("append", 0) || !device_kernel_of("attention", 0))
        SKIP("%s has no kernels of append and attention", device_backend());
}

typedef struct decode_job {
    const decode_case *c;
    const rope_plan *plan;      /* of decode, or of the append ... */
    const rope_plan *attention; /* ... and then this */
    void *workspace;
    size_t bytes, queries; /* of it: in all, and of rotated queries at its front */
    int32_t graph;
} decode_job;

static void relocate(const decode_job *job, const test_case *c, void *memory,
                     rope_decode_args *args) {
    *args = job->c->args;
    decode_relocate(args, c->arena, memory);
    args->workspace = job->workspace;
    args->workspace_bytes = job->bytes;
}

static rope_status run_decode(const void *state, const test_case *c, void *memory) {
    const decode_job *job = state;
    rope_decode_args args;
    relocate(job, c, memory, &args);
    rope_timing timing = {.struct_size = sizeof timing,
                          .kind = ROPE_TIME_APPLY,
                          .graph = 1,
                          .iterations = 1,
                          .plan = job->plan,
                          .args = &args,
                          .args_count = 1,
                          .workspace = job->workspace};
    const rope_args *rope = &args.append.rope;
    return job->graph && rope->batch && rope->tokens ? rope_time(device_open(), &timing)
                                                     : rope_decode(job->plan, &args);
}

static rope_status run_both(const void *state, const test_case *c, void *memory) {
    const decode_job *job = state;
    rope_decode_args args;
    rope_append_args append;
    rope_attention_args attention;
    relocate(job, c, memory, &args);
    const int own = !args.append.rope.q.out;
    if (own)
        args.append.rope.q.out = job->workspace;
    decode_split_args(job->c, &args, &append, &attention);
    attention.workspace = (char *)job->workspace + (own ? job->queries : 0);
    attention.workspace_bytes = job->bytes - (own ? job->queries : 0);
    const rope_status status = rope_append(job->plan, &append);
    return status == ROPE_OK ? rope_attention(job->attention, &attention) : status;
}

/* Bytes of rotated queries, and what aligns the next. */
static size_t query_bytes(const decode_case *c) {
    const rope_args *rope = &c->args.append.rope;
    const int64_t elements =
        rope->batch * rope->tokens * rope->q.heads * c->desc.append.rope.head_dim;
    return (size_t)(elements * (c->desc.append.rope.dtype == ROPE_F32 ? 4 : 2) + 255) / 256 * 256;
}

rope_status decode_run(const decode_case *c, const char *kernel, int32_t graph,
                       unsigned char *result) {
    const rope_attention_bounds bounds = decode_bounds(c);
    rope_decode_desc desc = c->desc;
    rope_plan *plan = NULL;
    device_choose(&desc.append.rope);
    desc.append.rope.kernel = kernel;
    rope_status status = rope_decode_plan_create(&desc, &plan);
    if (status != ROPE_OK)
        return status;
    decode_job job = {.c = c, .plan = plan, .graph = graph};
    CHECK_STATUS(ROPE_OK, rope_decode_workspace(plan, &bounds, &job.bytes));
    status =
        device_with_workspace(&c->append.base, run_decode, &job, &job.workspace, job.bytes, result);
    rope_plan_destroy(plan);
    return status;
}

rope_status decode_run_both(const decode_case *c, const char *kernel, unsigned char *result) {
    const rope_attention_bounds bounds = decode_bounds(c);
    rope_append_desc append;
    rope_attention_desc attention;
    rope_plan *plans[2] = {NULL, NULL};
    decode_split_desc(&c->desc, &append, &attention);
    device_choose(&append.rope);
    device_choose(&attention.rope);
    attention.rope.kernel = kernel;
    CHECK_STATUS(ROPE_OK, rope_append_plan_create(&append, &plans[0]));
    CHECK_STATUS(ROPE_OK, rope_attention_plan_create(&attention, &plans[1]));
    decode_job job = {.c = c, .plan = plans[0], .attention = plans[1], .queries = query_bytes(c)};
    CHECK_STATUS(ROPE_OK, rope_attention_workspace(plans[1], &bounds, &job.bytes));
    job.bytes += job.queries;
    const rope_status status =
        device_with_workspace(&c->append.base, run_both, &job, &job.workspace, job.bytes, result);
    rope_plan_destroy(plans[0]);
    rope_plan_destroy(plans[1]);
    return status;
}
