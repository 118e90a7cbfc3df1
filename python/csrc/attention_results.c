#include "python/csrc/attention_results.h"

#include "python/csrc/failure.h"
#include "python/csrc/layout.h"

#include <string.h>

/* Strides of memory by token. */
static const char *make(const tensor *like, int32_t layout, int64_t dims, int64_t last,
                        int32_t torch_dtype, tensor *made) {
    static const int32_t in_order[] = {0, 1, 2, 3}, by_token[] = {0, 2, 1, 3};
    const int32_t *order = layout == LAYOUT_BHSD ? by_token : in_order;
    int64_t sizes[TENSOR_DIMS], strides[TENSOR_DIMS], stride = 1;
    for (int64_t i = like->dims - 1; i >= 0; i--) {
        const int32_t d = order[i];
        sizes[d] = d == like->dims - 1 ? last : like->sizes[d];
        strides[d] = stride;
        stride *= sizes[d] > 1 ? sizes[d] : 1;
    }
    const char *error = tensor_new(like, dims, sizes, strides, torch_dtype, made);
    return fail_as(ROPE_ERROR_OUT_OF_MEMORY, error);
}

const char *results_like(const tensor *like, int32_t layout, int64_t dims, int64_t last, int zeros,
                         tensor *made) {
    const char *error = make(like, layout, dims, last, like->torch_dtype, made);
    return !error && zeros ? fail_as(ROPE_ERROR_DEVICE, tensor_zero(made)) : error;
}

const char *results_lse(const tensor *q, int32_t layout, int partly, tensor *made) {
    const char *error = make(q, layout, q->dims - 1, 1, aoti_torch_dtype_float32(), made);
    return !error && partly ? fail_as(ROPE_ERROR_DEVICE, tensor_minus_infinity(made)) : error;
}

const char *results_none(const tensor *lead, int32_t torch_dtype, tensor *made) {
    const int64_t size = 0, stride = 1;
    return fail_as(ROPE_ERROR_OUT_OF_MEMORY,
                   tensor_new(lead, 1, &size, &stride, torch_dtype, made));
}

void results_put(const tensor *t, int32_t layout, rope_attention_out *out) {
    out->data = tensor_write(t);
    put_strides(t, layout, out->stride);
}

void results_put_lse(const tensor *t, int32_t layout, rope_attention_args *args) {
    tensor heads = *t; /* with a dimension of elements */
    int64_t strides[TENSOR_DIMS], stride[4];
    for (int64_t d = 0; d < TENSOR_DIMS; d++)
        strides[d] = d < heads.dims ? heads.strides[d] : 1;
    heads.strides = strides;
    put_strides(&heads, layout, stride);
    args->lse = tensor_write(t);
    for (int i = 0; i < 3; i++)
        args->lse_stride[i] = stride[i];
}

/* What a plan has told of the last bounds. */
typedef struct answer {
    const plan_entry *entry;
    rope_attention_bounds bounds;
    size_t bytes;
} answer;

/* A thread keeps answers of a GPU's plans, which live on and give the same bytes for the same
 * bounds; those of a CPU follow its threads. */
static const char *ask_bytes(const plan_entry *entry, results_bytes *bytes_of,
                             const rope_attention_bounds *bounds, size_t *bytes) {
    enum { ANSWERS = 16 };
    static _Thread_local answer kept[ANSWERS];
    answer *last = &kept[(uintptr_t)entry / sizeof *entry % ANSWERS];
    if (!entry->key.accelerated)
        return fail_of_library(bytes_of(entry->plan, bounds, bytes));
    if (last->entry != entry || memcmp(&last->bounds, bounds, sizeof *bounds) != 0) {
        const char *error = fail_of_library(bytes_of(entry->plan, bounds, bytes));
        if (error)
            return error;
        *last = (answer){entry, *bounds, *bytes};
    }
    *bytes = last->bytes;
    return NULL;
}

const char *results_workspace(const tensor *lead, const plan_entry *entry, results_bytes *bytes_of,
                              rope_attention_args *args, tensor *memory) {
    enum { ALIGNMENT = 256 };
    const rope_args *rope = &args->rope;
    const rope_attention_bounds bounds = {sizeof bounds,  rope->batch,     rope->tokens,
                                          args->k_tokens, rope->sequences, rope->q.heads,
                                          rope->k.heads};
    const char *error = ask_bytes(entry, bytes_of, &bounds, &args->workspace_bytes);
    if (error || !args->workspace_bytes)
        return error;
    const int64_t size = (int64_t)args->workspace_bytes + ALIGNMENT - 1, stride = 1;
    error = fail_as(ROPE_ERROR_OUT_OF_MEMORY,
                    tensor_new(lead, 1, &size, &stride, aoti_torch_dtype_uint8(), memory));
    if (error)
        return error;
    const uintptr_t first = (uintptr_t)tensor_write(memory);
    args->workspace = (char *)first + (ALIGNMENT - first % ALIGNMENT) % ALIGNMENT;
    return NULL;
}
