#include "common/ops/attention_backward_call.h"

#include "common/abi.h"
#include "common/ops/append_backward_call.h"
#include "common/ops/attention_call.h"
#include "common/ops/attention_norms.h"
#include "common/status.h"

#include <string.h>

/* dout, dq, dk, dv and dsinks. */
enum { GRADIENTS = 5 };

/* What the forward rotated is read in place of what it read. */
static rope_status take_rotated(const rope_attention_problem *problem, const char *name,
                                rope_tensor *t) {
    if (!t->out)
        return ROPE_OK;
    if (t->in != t->out || !rope_all_zero(t->out_stride, 4))
        memcpy(t->in_stride, t->out_stride, sizeof t->in_stride);
    memcpy(t->out_stride, t->in_stride, sizeof t->out_stride);
    t->in = t->out;
    return rope_pointer_check(name, "out", t->out, rope_dtype_size(problem->rope.dtype));
}

static rope_status read_forward(const rope_attention_problem *problem,
                                const rope_attention_args *given, int without,
                                rope_attention_call *call, rope_attention_regions *regions,
                                int *empty) {
    rope_attention_args args = *given;
    rope_status status = take_rotated(problem, "q", &args.rope.q);
    if (status == ROPE_OK)
        status = take_rotated(problem, "k", &args.rope.k);
    if (status == ROPE_OK)
        status = rope_attention_parts_read(problem, &args, without, call, regions, empty);
    return status == ROPE_OK && !*empty ? rope_pointer_check("", "lse", args.lse, 4) : status;
}

/* A gradient that may be absent. */
static rope_status read_gradient(const char *name, const rope_attention_out *given, int32_t element,
                                 const int64_t count[4], void **data, int64_t stride[4],
                                 rope_region *region) {
    const rope_attention_view view = {name, given->data, given->stride, element, 4, 1};
    const int64_t *s = given->stride;
    region->name = NULL;
    *data = given->data;
    if (given->data)
        return rope_attention_view_read(&view, count, stride, region);
    if (rope_all_zero(s, 4))
        return ROPE_OK;
    return rope_fail(ROPE_ERROR_INVALID_VALUE,
                     "the stride of %s is [%lld, %lld, %lld, %lld]; allowed is 0 while it is NULL",
                     name, (long long)s[0], (long long)s[1], (long long)s[2], (long long)s[3]);
}

static rope_status read_sinks(const rope_attention_problem *problem, int64_t heads,
                              const rope_attention_backward_args *args,
                              rope_attention_backward_call *call, rope_region *region) {
    static const int64_t side_by_side[1] = {1};
    const rope_attention_view view = {"dsinks", args->dsinks, side_by_side, 4, 1, 1};
    region->name = NULL;
    call->dsinks = call->forward.sinks ? args->dsinks : NULL;
    if (args->dsinks && !problem->sink_dtype)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "dsinks is %p; allowed is NULL where sink_dtype is 0",
                         (const void *)args->dsinks);
    int64_t stride[3];
    if (!call->dsinks)
        return ROPE_OK;
    rope_status status = rope_attention_view_read(&view, &heads, stride, region);
    region->span.stride = side_by_side;
    return status;
}

static rope_status read_gradients(const rope_attention_problem *problem,
                                  const rope_attention_backward_args *args, int empty,
                                  rope_attention_backward_call *call,
                                  rope_region regions[GRADIENTS]) {
    const rope_attention_call *f = &call->forward;
    const int32_t element = rope_dtype_size(problem->rope.dtype);
    const int64_t batch = f->rope.batch, tokens = f->rope.tokens, heads = f->rope.tensor[0].heads,
                  dout[4] = {batch, tokens, heads, problem->v_head_dim},
                  dq[4] = {batch, tokens, heads, problem->head_dim},
                  dk[4] = {batch, f->k_tokens, f->k.heads, problem->head_dim},
                  dv[4] = {batch, f->k_tokens, f->k.heads, problem->v_head_dim};
    const rope_attention_view view = {"dout", args->dout, args->dout_stride, element, 4, 0};
    rope_status status = ROPE_OK;
    call->dout = call->dq = NULL;
    regions[0].name = regions[1].name = NULL;
    if (!empty) {
        call->dout = args->dout;
        status = rope_attention_view_read(&view, dout, call->dout_stride, &regions[0]);
    }
    if (status == ROPE_OK && !empty)
        status = read_gradient("dq.data", &args->dq, element, dq, &call->dq, call->dq_stride,
                               &regions[1]);
    if (status == ROPE_OK)
        status = read_gradient("dk.data", &args->dk, element, dk, &call->dk, call->dk_stride,
                               &regions[2]);
    if (status == ROPE_OK)
        status = read_gradient("dv.data", &args->dv, element, dv, &call->dv, call->dv_stride,
                               &regions[3]);
    return status == ROPE_OK ? read_sinks(problem, heads, args, call, &regions[4]) : status;
}

/* --- norms --- */

/* What a norm reads, its weights, and where their gradient goes. */
typedef struct norm_regions {
    rope_region in;
    rope_append_weights weights, gradient;
} norm_regions;

/* What the forward read, which what it wrote stands for in a call. */
static rope_status read_normed(const rope_attention_own *own, const rope_tensor *given, int which,
                               int64_t batch, int64_t tokens, rope_append_operand *norm,
                               norm_regions *regions) {
    static const char *const in[ROPE_NORMED] = {"q.in", "k.in"};
    const int64_t count[4] = {batch, tokens, norm->heads, own->problem.head_dim};
    const rope_attention_view view = {
        in[which], given->in, given->in_stride, rope_dtype_size(own->problem.rope.dtype), 4, 0};
    norm->in = given->in;
    if (given->in && given->in == given->out)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "%c.out is %s, %p; allowed is another where %c has a norm, whose gradient "
                         "reads what the norm read",
                         in[which][0], in[which], given->in, in[which][0]);
    return rope_attention_view_read(&view, count, norm->in_stride, &regions->in);
}

/* Of queries where there are some. */
static rope_status read_norms(const rope_attention_own *own,
                              const rope_attention_backward_args *args,
                              rope_attention_backward_own_call *made,
                              norm_regions regions[ROPE_NORMED]) {
    static const char *const names[ROPE_NORMED] = {"dq_weight", "dk_weight"};
    const rope_attention_args *forward = args->forward;
    const rope_attention_backward_call *call = &made->call;
    float *const weight[ROPE_NORMED] = {args->dq_weight, args->dk_weight};
    rope_append_weights *const weights[ROPE_NORMED] = {&regions[0].weights, &regions[1].weights};
    rope_status status =
        rope_attention_norms_read(own, forward, &call->forward, made->norm, weights);
    for (int t = 0; t < ROPE_NORMED && status == ROPE_OK; t++) {
        rope_append_operand *norm = &made->norm[t];
        const rope_tensor *given = t ? &forward->rope.k : &forward->rope.q;
        const int64_t tokens = t ? call->forward.k_tokens : call->forward.rope.tokens;
        made->weight[t] = norm->heads ? weight[t] : NULL;
        if (norm->heads && given->out && (made->weight[t] || (t ? call->dk : call->dq)))
            status = read_normed(own, given, t, forward->rope.batch, tokens, norm, &regions[t]);
        if (status == ROPE_OK && norm->heads)
            status = rope_weight_gradient_read(names[t], weight[t], own->norms->steps[t].norm_dim,
                                               norm, &regions[t].gradient);
    }
    return status;
}

static rope_status check_gradients_unread(const rope_attention_own *own,
                                          const rope_attention_backward_args *args) {
    const rope_append_problem *norms = own->norms;
    const int q = norms && norms->steps[ROPE_APPEND_Q].weight,
              k = norms && norms->steps[ROPE_APPEND_K].weight;
    if ((args->dq_weight && !q) || (args->dk_weight && !k))
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "dq_weight is %p and dk_weight is %p; allowed is NULL where the "
                         "descriptor has no weight",
                         (void *)args->dq_weight, (void *)args->dk_weight);
    return rope_attention_weights_unread(own, args->forward);
}

static void add_norms(rope_regions *list, const norm_regions regions[ROPE_NORMED]) {
    for (int t = 0; t < ROPE_NORMED; t++) {
        rope_regions_add_region(list, &regions[t].in);
        rope_regions_add_region(list, &regions[t].weights.region);
        rope_regions_add_region(list, &regions[t].gradient.region);
    }
}

/* --- a call --- */

static rope_status read_all(const rope_attention_own *own, const rope_attention_backward_args *args,
                            const rope_attention_args *forward,
                            rope_attention_backward_own_call *made, int *empty) {
    const rope_attention_problem *problem = &own->problem;
    rope_attention_backward_call *call = &made->call;
    norm_regions norms[ROPE_NORMED] = {{.in = {.name = NULL}}};
    rope_attention_regions regions;
    rope_region gradients[GRADIENTS];
    rope_regions list;
    rope_span workspace;
    const int without = forward->rope.batch > 0 && forward->k_tokens > 0 &&
                        (args->dk.data || args->dv.data || args->dsinks || args->dk_weight);
    rope_status status = check_gradients_unread(own, args);
    if (status == ROPE_OK)
        status = read_forward(problem, forward, without, &call->forward, &regions, empty);
    if (status != ROPE_OK || (*empty && !without))
        return status;
    status = read_gradients(problem, args, *empty, call, gradients);
    if (status == ROPE_OK)
        status = read_norms(own, args, made, norms);
    if (status != ROPE_OK)
        return status;
    list.count = 0;
    rope_attention_regions_add(&call->forward, &regions, &list);
    for (int i = 0; i < list.count; i++)
        list.at[i].written = 0;
    for (int i = 0; i < GRADIENTS; i++)
        rope_regions_add_region(&list, &gradients[i]);
    add_norms(&list, norms);
    *empty = !call->dq && !call->dk && !call->dv && !call->dsinks && !made->weight[0] &&
             !made->weight[1];
    status =
        rope_regions_add_workspace(&list, forward->workspace, forward->workspace_bytes, &workspace);
    if (status == ROPE_OK)
        status = rope_regions_check(&list);
    return status == ROPE_OK ? rope_attention_lists_check(&list, problem, &call->forward) : status;
}

const rope_attention_args *rope_attention_backward_args_read(const void *given,
                                                             rope_attention_backward_args *args,
                                                             rope_attention_args *full,
                                                             rope_status *status) {
    *status = rope_abi_read(args, sizeof *args, given, "rope_attention_backward_args");
    if (*status == ROPE_OK && !args->forward)
        *status = rope_fail(ROPE_ERROR_NULL_POINTER,
                            "forward is NULL; allowed is the arguments of rope_attention");
    if (*status != ROPE_OK)
        return NULL;
    args->forward = rope_attention_args_read(args->forward, full, status);
    return args->forward;
}

rope_status rope_attention_backward_call_read(const void *problem, const void *given, void *call,
                                              void **stream, int *empty) {
    rope_attention_backward_args args;
    rope_attention_args full;
    rope_status status;
    const rope_attention_args *forward =
        rope_attention_backward_args_read(given, &args, &full, &status);
    if (!forward)
        return status;
    *stream = forward->rope.stream;
    return read_all(problem, &args, forward, call, empty);
}
