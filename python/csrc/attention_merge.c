#include "python/csrc/attention.h"
#include "python/csrc/failure.h"
#include "python/csrc/plans.h"

#include <inttypes.h>

/* Part 0 of a tensor whose first dimension is that of parts. */
static tensor first_part(const tensor *t) {
    tensor part = *t;
    part.dims--, part.sizes++, part.strides++;
    return part;
}

static const char *check(const merge_call *c) {
    const tensor *t = &c->parts, *lse = &c->parts_lse;
    char shape[128];
    if (t->dtype < ROPE_F32 || t->dtype > ROPE_BF16)
        return fail("out is %s; allowed is float32, float16 or bfloat16", tensor_dtype_name(t));
    if (t->dims < 4 || t->dims > 5)
        return fail("out has %" PRId64 " dimensions; allowed is 5, or 4 of packed queries: the "
                    "parts, then those of a result of attention",
                    t->dims);
    if (lse->dtype != ROPE_F32)
        return fail("lse is %s; allowed is float32", tensor_dtype_name(lse));
    int same = lse->dims == t->dims - 1;
    for (int64_t d = 0; d < lse->dims && same; d++)
        same = lse->sizes[d] == t->sizes[d];
    if (!same)
        return fail("lse has the shape [%s]; allowed is that of out without the last dimension",
                    shape_of(lse, shape));
    const int64_t head_dim = t->sizes[t->dims - 1];
    if (head_dim < 1 || head_dim > ROPE_MAX_ATTENTION_HEAD_DIM)
        return fail("out has head_dim %" PRId64 "; allowed is 1..%d", head_dim,
                    ROPE_MAX_ATTENTION_HEAD_DIM);
    if (t->sizes[0] < 1)
        return fail("out has 0 parts; allowed is > 0");
    const char *error = check_repeats(t, "out", "");
    if (!error)
        error = check_repeats(lse, "lse", "");
    return error ? error : check_device(t, lse, "lse");
}

/* Whatever the order of batch, tokens and heads: each of them counts alone. */
static void put(const merge_call *c, rope_attention_merge_args *args) {
    const tensor *t = &c->parts, *lse = &c->parts_lse;
    const int64_t missing = 5 - t->dims; /* of the batch */
    int64_t sizes[4] = {t->sizes[0], 1, 1, 1};
    args->in = tensor_read(t);
    args->in_lse = tensor_read(lse);
    args->out.data = tensor_write(&c->out);
    args->lse = tensor_write(&c->lse);
    args->in_stride[0] = t->strides[0];
    args->in_stride[4] = t->strides[t->dims - 1];
    args->in_lse_stride[0] = lse->strides[0];
    args->out.stride[3] = c->out.strides[c->out.dims - 1];
    for (int64_t d = 1; d < t->dims - 1; d++) {
        sizes[d + missing] = t->sizes[d];
        args->in_stride[d + missing] = t->strides[d];
        args->in_lse_stride[d + missing] = lse->strides[d];
        args->out.stride[d + missing - 1] = c->out.strides[d - 1];
        args->lse_stride[d + missing - 1] = c->lse.strides[d - 1];
    }
    args->parts = sizes[0];
    args->batch = sizes[1];
    args->tokens = sizes[2];
    args->heads = sizes[3];
}

static const char *run(merge_call *c) {
    const char *error = check(c);
    if (error)
        return error;
    plan_key key = {
        .text = "", .head_dim = {tensor_last_size(&c->parts)}, .operation = OPERATION_MERGE};
    const tensor none = {0}, part = first_part(&c->parts), part_lse = first_part(&c->parts_lse);
    plan_key_put(&key, &c->parts, &none);
    const plan_entry *entry = plan_for(&key, &error);
    if (!entry)
        return error;
    error = fail_as(ROPE_ERROR_OUT_OF_MEMORY, tensor_like(&part, &c->out));
    if (!error)
        error = fail_as(ROPE_ERROR_OUT_OF_MEMORY, tensor_like(&part_lse, &c->lse));
    if (error)
        return error;
    rope_attention_merge_args args = {.struct_size = sizeof args};
    put(c, &args);
    if (!tensor_on_cpu(&c->parts))
        error = fail_as(ROPE_ERROR_DEVICE, tensor_stream(&c->parts, &args.stream));
    return error ? error : fail_of_library(rope_attention_merge(entry->plan, &args));
}

const char *merge_run(merge_call *c) {
    return fail_last(run(c));
}

void merge_release_results(const merge_call *c) {
    tensor_release(&c->out);
    tensor_release(&c->lse);
}
