/* The operation "attention_merge": its plans and its calls. */
#include "common/abi.h"
#include "common/names.h"
#include "common/ops/regions.h"
#include "common/ops/tensor.h"
#include "common/plan.h"
#include "common/status.h"

#include <ropekit/attention.h>

#include <stdlib.h>
#include <string.h>

/* A view of a call: strides where they are given, else contiguous ones. */
typedef struct merge_view {
    const char *name, *stride_name;
    const void *data;
    const int64_t *given;
    int64_t *stride;
    int first, dims; /* of [part, batch, token, head, dim] */
    int32_t element;
    int written;
} merge_view;

static rope_status read_view(const merge_view *v, const int64_t sizes[ROPE_SPAN_DIMS],
                             rope_region *region) {
    const int zero = rope_all_zero(v->given, v->dims);
    int64_t contiguous = 1;
    region->name = v->name;
    region->written = v->written;
    for (int d = v->dims - 1; d >= 0; d--) {
        region->count[d] = sizes[v->first + d];
        v->stride[d] = zero ? contiguous : v->given[d];
        contiguous *= region->count[d];
    }
    rope_status status = rope_pointer_check("", v->name, v->data, v->element);
    if (status != ROPE_OK)
        return status;
    region->span = (rope_span){v->dims, region->count, v->stride, v->element, 0, 0};
    if (!rope_span_place(&region->span, v->data))
        return rope_fail(ROPE_ERROR_OVERFLOW,
                         "%s begins with %lld and %lld; allowed is what stays within 64-bit "
                         "addresses",
                         v->stride_name, (long long)v->stride[0], (long long)v->stride[1]);
    if (v->written && rope_span_aliases(&region->span))
        return rope_fail(ROPE_ERROR_OVERLAP,
                         "%s begins with %lld and %lld and may give two elements one address; "
                         "allowed is strides that clear the dimensions below them",
                         v->stride_name, (long long)v->stride[0], (long long)v->stride[1]);
    return ROPE_OK;
}

static rope_status check_sizes(const rope_attention_merge_args *args, const int64_t *sizes) {
    static const char *const names[] = {"parts", "batch", "tokens", "heads"};
    int64_t bytes = 8;
    if (args->parts < 1)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "parts is %lld; allowed is > 0",
                         (long long)args->parts);
    for (int d = 1; d < 4; d++)
        if (sizes[d] < 0)
            return rope_fail(ROPE_ERROR_INVALID_VALUE, "%s is %lld; allowed is >= 0", names[d],
                             (long long)sizes[d]);
    for (int d = 0; d < ROPE_SPAN_DIMS; d++)
        if (__builtin_mul_overflow(bytes, sizes[d], &bytes))
            return rope_fail(ROPE_ERROR_OVERFLOW,
                             "parts %lld * batch %lld * tokens %lld * heads %lld overflows; "
                             "allowed is below 2^60 elements",
                             (long long)sizes[0], (long long)sizes[1], (long long)sizes[2],
                             (long long)sizes[3]);
    return ROPE_OK;
}

/* Parts of in or in_lse that `written` is compared with: all, or all but part 0 where that is it.
 */
static void add_parts(const rope_region *in, const void *data, const rope_region *written,
                      rope_region *kept, rope_regions *list) {
    rope_span part = in->span;
    *kept = *in;
    part.dims--, part.count++, part.stride++;
    rope_span_place(&part, data);
    if (written->name && rope_span_equal(&part, &written->span)) {
        const char *rest = (const char *)data + in->span.stride[0] * in->span.element;
        kept->span.count = kept->count;
        if (--kept->count[0] == 0)
            return;
        rope_span_place(&kept->span, rest);
    }
    rope_regions_add_region(list, kept);
}

static rope_status check_overlap(const rope_attention_merge_call *call, const rope_region *in,
                                 const rope_region *in_lse, const rope_region *out,
                                 const rope_region *lse) {
    rope_region kept[2];
    rope_regions list;
    list.count = 0;
    rope_regions_add_region(&list, out);
    rope_regions_add_region(&list, lse);
    add_parts(in, call->in, out, &kept[0], &list);
    add_parts(in_lse, call->in_lse, lse, &kept[1], &list);
    return rope_regions_check(&list);
}

static void fill_call(const rope_attention_merge_args *args, rope_attention_merge_call *call) {
    memset(call, 0, sizeof *call);
    call->parts = args->parts;
    call->batch = args->batch;
    call->tokens = args->tokens;
    call->heads = args->heads;
    call->in = args->in;
    call->in_lse = args->in_lse;
    call->out = args->out.data;
    call->lse = args->lse;
}

static rope_status read_views(const rope_attention_merge_problem *problem,
                              const rope_attention_merge_args *args, const int64_t *sizes,
                              rope_attention_merge_call *c) {
    const int32_t element = rope_dtype_size(problem->dtype);
    const merge_view views[] = {
        {"in", "in_stride", c->in, args->in_stride, c->in_stride, 0, 5, element, 0},
        {"in_lse", "in_lse_stride", c->in_lse, args->in_lse_stride, c->in_lse_stride, 0, 4, 4, 0},
        {"out.data", "out.stride", c->out, args->out.stride, c->out_stride, 1, 4, element, 1},
        {"lse", "lse_stride", c->lse, args->lse_stride, c->lse_stride, 1, 3, 4, 1}};
    rope_region regions[4];
    regions[3].name = NULL;
    if (!c->lse && !rope_all_zero(args->lse_stride, 3))
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "lse_stride begins with %lld; allowed is 0 while lse is NULL",
                         (long long)args->lse_stride[0]);
    for (int i = 0; i < (c->lse ? 4 : 3); i++) {
        rope_status status = read_view(&views[i], sizes, &regions[i]);
        if (status != ROPE_OK)
            return status;
    }
    return check_overlap(c, &regions[0], &regions[1], &regions[2], &regions[3]);
}

static rope_status read_call(const void *canonical, const void *given, void *call, void **stream,
                             int *empty) {
    const rope_attention_merge_problem *problem = canonical;
    rope_attention_merge_args args;
    rope_status status = rope_abi_read(&args, sizeof args, given, "rope_attention_merge_args");
    if (status != ROPE_OK)
        return status;
    const int64_t sizes[ROPE_SPAN_DIMS] = {args.parts, args.batch, args.tokens, args.heads,
                                           problem->head_dim};
    status = check_sizes(&args, sizes);
    *stream = args.stream;
    *empty = args.batch == 0 || args.tokens == 0 || args.heads == 0;
    if (status != ROPE_OK || *empty)
        return status;
    fill_call(&args, call);
    return read_views(problem, &args, sizes, call);
}

static const rope_operation operation = {.name = "attention_merge",
                                         .version = ROPE_ATTENTION_MERGE_VERSION,
                                         .call_size = sizeof(rope_attention_merge_call),
                                         .read = read_call,
                                         .release = free};

static rope_status check_descriptor(const rope_attention_merge_desc *desc) {
    if (desc->dtype < ROPE_F32 || desc->dtype > ROPE_BF16)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "dtype is %s; allowed is ROPE_F32, ROPE_F16 or ROPE_BF16 (1..3)",
                         rope_choice_name(rope_dtype_names, desc->dtype).text);
    if (desc->head_dim < 1 || desc->head_dim > ROPE_MAX_ATTENTION_HEAD_DIM)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "head_dim is %d; allowed is 1..%d",
                         desc->head_dim, ROPE_MAX_ATTENTION_HEAD_DIM);
    if (desc->device < 0)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "device is %d; allowed is >= 0", desc->device);
    return ROPE_OK;
}

rope_status rope_attention_merge_plan_create(const rope_attention_merge_desc *given,
                                             rope_plan **plan) {
    rope_attention_merge_desc desc;
    if (!plan)
        return rope_fail_null("plan");
    rope_status status = rope_abi_read(&desc, sizeof desc, given, "rope_attention_merge_desc");
    if (status == ROPE_OK)
        status = check_descriptor(&desc);
    if (status != ROPE_OK)
        return status;
    rope_attention_merge_problem *problem = malloc(sizeof *problem);
    if (!problem)
        return rope_fail(ROPE_ERROR_OUT_OF_MEMORY, "no memory for a plan");
    *problem = (rope_attention_merge_problem){desc.dtype, desc.head_dim};
    const rope_choice choice = {desc.backend, desc.device, desc.kernel};
    return rope_plan_make(&operation, problem, &choice, plan);
}

rope_status rope_attention_merge(const rope_plan *plan, const rope_attention_merge_args *args) {
    const rope_status status = rope_plan_check(plan, &operation);
    return status == ROPE_OK ? rope_plan_apply_on(plan, args, NULL, NULL) : status;
}
