#include "common/ops/append_backward_call.h"

#include "common/abi.h"
#include "common/ops/append_call.h"
#include "common/ops/lists.h"
#include "common/ops/positions.h"
#include "common/ops/tensor.h"
#include "common/status.h"

#include <string.h>

static const char *const names[] = {"q", "k", "v"};
static const char *const in_names[] = {"forward's q.in", "forward's k.in", "forward's v.in"};
static const char *const of_names[] = {"q.in", "k.in", "v.in"};
static const char *const to_names[] = {"q.out", "k.out", "v.out"};
static const char *const weight_names[] = {"q.weight", "k.weight", "v.weight"};

/* What the gradients of one tensor read and write. */
typedef struct gradient_regions {
    rope_tensor_spans input, spans;
    rope_append_weights weight;
    rope_append_weights sums;
} gradient_regions;

static const rope_append_gradient *gradient_of(const rope_append_backward_args *args, int which) {
    return which == ROPE_APPEND_Q ? &args->q : which == ROPE_APPEND_K ? &args->k : &args->v;
}

/* --- what nothing reads --- */

static rope_status fail_stride(int which, const char *field, const int64_t s[4]) {
    return rope_fail(ROPE_ERROR_INVALID_VALUE,
                     "%s.%s_stride is [%lld, %lld, %lld, %lld]; allowed is 0 while %s.%s is NULL",
                     names[which], field, (long long)s[0], (long long)s[1], (long long)s[2],
                     (long long)s[3], names[which], field);
}

static rope_status check_unread(const rope_append_problem *problem, const rope_append_gradient *g,
                                int which, int64_t heads) {
    if (g->in && heads == 0)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "%s.in is %p; allowed is NULL where the forward has no heads of %s",
                         names[which], g->in, names[which]);
    if (!g->in && (g->out || g->weight))
        return rope_fail(ROPE_ERROR_NULL_POINTER,
                         "%s.in is NULL; allowed is the gradient of the forward's %s where %s.out "
                         "or %s.weight is given",
                         names[which], names[which], names[which], names[which]);
    if (g->in && !g->out && !g->weight)
        return rope_fail(ROPE_ERROR_NULL_POINTER,
                         "%s.out and %s.weight are NULL; allowed is that only while %s.in is",
                         names[which], names[which], names[which]);
    if (!g->in && !rope_all_zero(g->in_stride, 4))
        return fail_stride(which, "in", g->in_stride);
    if (!g->out && !rope_all_zero(g->out_stride, 4))
        return fail_stride(which, "out", g->out_stride);
    if (g->weight && problem->steps[which].weight == 0)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "%s.weight is %p; allowed is NULL where the descriptor has no weight",
                         names[which], (void *)g->weight);
    return ROPE_OK;
}

/* --- tensors --- */

/* What the forward read, where the norm has a gradient. */
static rope_status read_input(const rope_append_problem *problem, const rope_append_args *forward,
                              int which, rope_append_operand *o, gradient_regions *regions) {
    const rope_append_steps *steps = &problem->steps[which];
    const rope_tensor *given = rope_append_tensor_of(forward, which);
    const int32_t element = rope_dtype_size(problem->rope.dtype);
    const rope_tensor_form form = {names[which], steps->head_dim, element, element, 1};
    rope_tensor read = *given;
    rope_operand view = {0};
    if (given->in && given->in == given->out)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "forward's %s.out is its in, %p; allowed is another where %s has a norm, "
                         "whose gradient reads what the norm read",
                         names[which], given->in, names[which]);
    read.out = NULL;
    memset(read.out_stride, 0, sizeof read.out_stride);
    rope_status status = rope_tensor_read(&forward->rope, &read, &form, &view, &regions->input);
    o->in = view.in;
    memcpy(o->in_stride, view.in_stride, sizeof o->in_stride);
    regions->input.in.stride = o->in_stride;
    return status;
}

rope_status rope_weight_gradient_read(const char *name, float *given, int64_t dim,
                                      const rope_append_operand *o, rope_append_weights *sums) {
    const int64_t heads = o->weight_stride ? o->heads : 1;
    rope_region *region = &sums->region;
    region->name = NULL;
    if (!given)
        return ROPE_OK;
    rope_status status = rope_pointer_check("", name, given, sizeof(float));
    if (status != ROPE_OK)
        return status;
    *region = (rope_region){name, 1, {heads, dim}, {0}};
    sums->stride[0] = dim;
    sums->stride[1] = 1;
    region->span = (rope_span){2, region->count, sums->stride, sizeof(float), 0, 0};
    return rope_span_place(&region->span, given)
               ? ROPE_OK
               : rope_fail(ROPE_ERROR_OVERFLOW,
                           "%s is %p; allowed is what stays within 64-bit addresses with %lld "
                           "heads of %lld elements",
                           name, (void *)given, (long long)heads, (long long)dim);
}

/* forward->tensor[which].heads stays 0 where nothing is wanted. */
static rope_status read_tensor(const rope_append_problem *problem,
                               const rope_append_backward_args *args,
                               const rope_append_args *forward, int which,
                               rope_append_backward_call *call, gradient_regions *regions) {
    const rope_append_steps *steps = &problem->steps[which];
    const rope_append_gradient *g = gradient_of(args, which);
    const int32_t element = rope_dtype_size(problem->rope.dtype);
    const rope_tensor_form form = {names[which], steps->head_dim, element, element, 1};
    rope_tensor given = {.in = g->in, .out = g->out};
    rope_append_operand *o = &call->forward.tensor[which];
    rope_operand *to = &call->gradient[which];
    given.heads = rope_append_tensor_of(forward, which)->heads;
    memcpy(given.in_stride, g->in_stride, sizeof given.in_stride);
    memcpy(given.out_stride, g->out_stride, sizeof given.out_stride);
    rope_status status = check_unread(problem, g, which, given.heads);
    if (status != ROPE_OK || !g->in)
        return status;
    status = rope_tensor_read(&forward->rope, &given, &form, to, &regions->spans);
    o->heads = to->heads;
    if (status != ROPE_OK || o->heads == 0)
        return status;
    if (steps->norm)
        status = read_input(problem, forward, which, o, regions);
    if (status == ROPE_OK)
        status = rope_append_weight_read(problem, forward, which, o, &regions->weight);
    call->weight[which] = g->weight;
    return status == ROPE_OK ? rope_weight_gradient_read(weight_names[which], g->weight,
                                                         steps->norm_dim, o, &regions->sums)
                             : status;
}

/* --- overlap --- */

static void add_tensor(rope_regions *list, const rope_append_backward_call *call, int which,
                       const gradient_regions *regions) {
    const rope_operand *g = &call->gradient[which];
    if (g->out)
        rope_regions_add(list, to_names[which], 1, &regions->spans.out);
    if (!regions->spans.in_place)
        rope_regions_add(list, of_names[which], 0, &regions->spans.in);
    if (call->forward.tensor[which].in)
        rope_regions_add(list, in_names[which], 0, &regions->input.in);
    rope_regions_add_region(list, &regions->weight.region);
    rope_regions_add_region(list, &regions->sums.region);
}

static rope_status check_overlap(const rope_append_problem *problem,
                                 const rope_append_backward_args *args,
                                 const rope_append_backward_call *call,
                                 const gradient_regions regions[ROPE_APPEND_TENSORS]) {
    rope_regions list;
    rope_span workspace;
    list.count = 0;
    for (int t = 0; t < ROPE_APPEND_TENSORS; t++)
        if (call->forward.tensor[t].heads)
            add_tensor(&list, call, t, &regions[t]);
    const int empty = list.count == 0;
    rope_status status =
        rope_regions_add_workspace(&list, args->workspace, args->workspace_bytes, &workspace);
    if (status == ROPE_OK)
        status = rope_regions_check(&list);
    return status == ROPE_OK && !empty
               ? rope_call_lists_check(&list, &problem->rope, &call->forward.rope)
               : status;
}

/* --- a call --- */

/* The forward's arguments without its outs, which nothing reads. */
static rope_append_args without_outs(const rope_append_args *given) {
    rope_append_args args = *given;
    rope_tensor *const tensors[] = {&args.rope.q, &args.rope.k, &args.v};
    for (int t = 0; t < ROPE_APPEND_TENSORS; t++) {
        tensors[t]->out = NULL;
        memset(tensors[t]->out_stride, 0, sizeof tensors[t]->out_stride);
    }
    return args;
}

static rope_status read_all(const rope_append_problem *problem,
                            const rope_append_backward_args *args, const rope_append_args *forward,
                            rope_append_backward_call *call, int *empty) {
    gradient_regions regions[ROPE_APPEND_TENSORS];
    const rope_append_args read = without_outs(forward);
    memset(call, 0, sizeof *call);
    call->workspace_bytes = args->workspace_bytes;
    rope_status status = rope_extent_check(&forward->rope);
    if (status == ROPE_OK)
        status = rope_append_unread_check(problem, &read);
    *empty = 1;
    for (int t = 0; t < ROPE_APPEND_TENSORS && status == ROPE_OK; t++) {
        status = read_tensor(problem, args, forward, t, call, &regions[t]);
        *empty &= call->forward.tensor[t].heads == 0;
    }
    if (status == ROPE_OK)
        status = rope_positions_read(&problem->rope, &forward->rope, *empty, &call->forward.rope);
    return status == ROPE_OK ? check_overlap(problem, args, call, regions) : status;
}

rope_status rope_append_backward_call_read(const void *problem, const void *given, void *call,
                                           void **stream, int *empty) {
    rope_append_backward_args args;
    rope_append_args full;
    rope_status status = rope_abi_read(&args, sizeof args, given, "rope_append_backward_args");
    if (status != ROPE_OK)
        return status;
    if (!args.forward)
        return rope_fail(ROPE_ERROR_NULL_POINTER,
                         "forward is NULL; allowed is the arguments of rope_append");
    const rope_append_args *forward = rope_append_args_read(args.forward, &full, &status);
    if (!forward)
        return status;
    *stream = forward->rope.stream;
    return read_all(problem, &args, forward, call, empty);
}
