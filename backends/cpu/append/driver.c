/* Goes through the tokens of a call, each thread through a part of them. */
#include "backends/cpu/append/context.h"
#include "backends/cpu/partition.h"

#if defined(_OPENMP)
#include <omp.h>
#endif

static void run_tokens(append_context *ctx, int64_t first, int64_t last) {
    const rope_problem *p = &ctx->problem->rope;
    const rope_call *call = &ctx->call->rope;
    for (int64_t n = first; n < last; n++) {
        ctx->batch = n / call->tokens;
        ctx->index = n % call->tokens;
        const rope_site site = rope_site_of(&call->position, ctx->batch, ctx->index);
        ctx->place = rope_place_of(ctx->problem, ctx->call, &site);
        ctx->filled = -1;
        if (p->pairs)
            rope_token_read(p, call, ctx->batch, ctx->index, &ctx->token);
        for (int tensor = 0; tensor < ROPE_APPEND_TENSORS; tensor++)
            append_run_tensor(ctx, tensor);
    }
}

/* Read and written. */
static int64_t bytes_of(const rope_append_problem *p, const rope_append_call *call) {
    int64_t bytes = 0;
    for (int t = 0; t < ROPE_APPEND_TENSORS; t++) {
        const int64_t row = call->tensor[t].heads * p->steps[t].head_dim,
                      stores = (call->tensor[t].out != NULL) + (call->tensor[t].cache != NULL);
        bytes += call->rope.batch * call->rope.tokens * row * (1 + stores) *
                 cpu_dtype_size(p->rope.dtype);
    }
    return bytes;
}

void append_context_fill(append_context *ctx, const cpu_append_kernel *kernel,
                         const rope_append_problem *p, const rope_append_call *call, int64_t bytes,
                         char *stage) {
    const cpu_prefetch_policy *policy = cpu_prefetch_policy_chosen();
    ctx->kernel = kernel;
    ctx->problem = p;
    ctx->call = call;
    ctx->size = cpu_dtype_size(p->rope.dtype);
    ctx->in_pairs = cpu_rotates_in_pairs(&p->rope);
    ctx->exceeds = bytes > policy->cache_bytes;
    ctx->ahead = ctx->exceeds ? policy->ahead[ctx->size == 4] : 0;
    ctx->into_l2 = policy->into_l2;
    ctx->token.status = ROPE_TOKEN_PASSES;
    ctx->stage = stage;
}

static CPU_NOINLINE void run_staged(const cpu_append_kernel *kernel, const rope_append_problem *p,
                                    const rope_append_call *call, int64_t bytes, int index,
                                    int parts, char *stage) {
    const int64_t tokens = call->rope.batch * call->rope.tokens;
    append_context ctx;
    append_context_fill(&ctx, kernel, p, call, bytes, stage);
    run_tokens(&ctx, cpu_part(tokens, index, parts), cpu_part(tokens, index + 1, parts));
#if defined(__SSE2__)
    if (ctx.exceeds)
        __builtin_ia32_sfence();
#endif
}

static void run_part(const cpu_append_kernel *kernel, const rope_append_problem *p,
                     const rope_append_call *call, int64_t bytes, int index, int parts) {
    char stage[APPEND_STAGE] __attribute__((aligned(64)));
    run_staged(kernel, p, call, bytes, index, parts, stage);
}

rope_status cpu_append_call(const void *problem, const void *kernel, const void *call,
                            void *workspace, void *stream) {
    (void)workspace, (void)stream;
    const rope_status status = cpu_append_check(problem, call);
    if (status != ROPE_OK)
        return status;
    const int64_t bytes = bytes_of(problem, call);
    const int parts = cpu_threads_for(bytes);
    if (parts == 1) {
        run_part(kernel, problem, call, bytes, 0, 1);
        return ROPE_OK;
    }
#if defined(_OPENMP)
#pragma omp parallel num_threads(parts)
    run_part(kernel, problem, call, bytes, omp_get_thread_num(), omp_get_num_threads());
#endif
    return ROPE_OK;
}
