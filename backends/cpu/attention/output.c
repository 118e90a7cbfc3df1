/* The end of a row: its sink joins, its sums become out and lse. */
#include "backends/cpu/attention/context.h"

#include <math.h>

static double sink_of(const attention_context *ctx, int64_t head) {
    const int dtype = ctx->problem->sink_dtype;
    return dtype ? (double)cpu_load(dtype, ctx->call->sinks, head) : -INFINITY;
}

void attention_finish(const attention_context *ctx, const attention_tile *tile, int64_t row,
                      float max, float sum, float *o) {
    const rope_attention_call *call = ctx->call;
    const int dtype = ctx->problem->rope.dtype, n = ctx->problem->v_head_dim;
    const int64_t token = tile->s.q_first + attention_query_of(ctx, tile, row),
                  head = attention_head_of(ctx, tile, row), batch = tile->s.q_row;
    const double scale = ctx->problem->soft_cap == 0 ? (double)ctx->problem->scale : 1,
                 sink = sink_of(ctx, head), most = (double)max * scale;
    double inverse = sum == 0 ? 0 : 1 / (double)sum, lse = most;
    if (sink != -INFINITY) { /* its term joins by the larger of both exponents */
        const double top = sink > most ? sink : most,
                     all = (double)sum * exp(most - top) + exp(sink - top);
        inverse = exp(most - top) / all;
        lse = top + log(all);
    } else if (call->lse && sum != 0) {
        lse = most + log((double)sum);
    }
    ctx->kernel->scale(o, (float)inverse, cpu_attention_padded(n));
    if (call->lse)
        call->lse[batch * call->lse_stride[0] + token * call->lse_stride[1] +
                  head * call->lse_stride[2]] = (float)lse;
    const int64_t *stride = call->out_stride;
    char *out =
        (char *)call->out + (batch * stride[0] + token * stride[1] + head * stride[2]) * ctx->size;
    if (stride[3] == 1) {
        ctx->kernel->append->store(ROPE_F32, dtype, 1, (const char *)o, out, n);
        return;
    }
    for (int i = 0; i < n; i++)
        cpu_store(dtype, out, i * stride[3], o[i]);
}
