#include "common/ops/tensor.h"

#include "common/status.h"

/* Strides as given, or contiguous ones where all are 0. Returns 1 when they are contiguous. Those
 * come one by one: a list would be read in pairs right after it was written, and wait for that. */
static int read_strides(const int64_t given[4], int64_t batch, int64_t token, int64_t head,
                        int64_t stride[4]) {
    int zero = rope_all_zero(given, 4);
    stride[0] = zero ? batch : given[0];
    stride[1] = zero ? token : given[1];
    stride[2] = zero ? head : given[2];
    stride[3] = zero ? 1 : given[3];
    return zero || (given[0] == batch && given[1] == token && given[2] == head && given[3] == 1);
}

/* Returns 1 when what is read and what is written are contiguous. */
static int default_strides(const rope_tensor *given, int64_t tokens, int64_t head_dim,
                           rope_operand *operand) {
    const int64_t token = given->heads * head_dim, batch = tokens * token;
    const int same = given->in == given->out && rope_all_zero(given->out_stride, 4);
    const int64_t *out_stride = same ? given->in_stride : given->out_stride;
    int in = read_strides(given->in_stride, batch, token, head_dim, operand->in_stride);
    int out = read_strides(out_stride, batch, token, head_dim, operand->out_stride);
    return in && out;
}

rope_status rope_pointer_check(const char *tensor, const char *field, const void *pointer,
                               int32_t alignment) {
    const char *dot = tensor[0] ? "." : "";
    if (!pointer)
        return rope_fail(ROPE_ERROR_NULL_POINTER,
                         "%s%s%s is NULL; allowed is any other multiple of %d bytes", tensor, dot,
                         field, alignment);
    if ((uintptr_t)pointer & ((uintptr_t)alignment - 1))
        return rope_fail(ROPE_ERROR_MISALIGNED, "%s%s%s is %p; allowed is a multiple of %d bytes",
                         tensor, dot, field, pointer, alignment);
    return ROPE_OK;
}

rope_status rope_sizes_check(const rope_args *args, int64_t heads, int64_t head_dim,
                             const char *name, int64_t *elements) {
    int64_t n;
    if (__builtin_mul_overflow(args->batch, args->tokens, &n) ||
        __builtin_mul_overflow(n, heads, &n) || __builtin_mul_overflow(n, head_dim, elements) ||
        __builtin_mul_overflow(*elements, 8, &n))
        return rope_fail(ROPE_ERROR_OVERFLOW,
                         "%s.heads %lld * head_dim %lld * tokens %lld * batch %lld overflows; "
                         "allowed is below 2^60 elements",
                         name, (long long)heads, (long long)head_dim, (long long)args->tokens,
                         (long long)args->batch);
    return ROPE_OK;
}

static int place(rope_span *span, const void *base, int64_t contiguous_elements) {
    return contiguous_elements
               ? rope_span_place_contiguous(span, base, contiguous_elements * span->element)
               : rope_span_place(span, base);
}

static rope_status check_views(const char *name, const rope_operand *operand,
                               int64_t contiguous_elements, rope_tensor_spans *spans) {
    if (!place(&spans->in, operand->in, contiguous_elements) ||
        (operand->out && !place(&spans->out, operand->out, contiguous_elements)))
        return rope_fail(ROPE_ERROR_OVERFLOW,
                         "%s.in_stride is [%lld, %lld, %lld, %lld] and out_stride is [%lld, %lld, "
                         "%lld, %lld]; allowed is what keeps both views within 64-bit addresses",
                         name, (long long)operand->in_stride[0], (long long)operand->in_stride[1],
                         (long long)operand->in_stride[2], (long long)operand->in_stride[3],
                         (long long)operand->out_stride[0], (long long)operand->out_stride[1],
                         (long long)operand->out_stride[2], (long long)operand->out_stride[3]);
    spans->in_place = 0;
    if (!operand->out)
        return ROPE_OK;
    if (!contiguous_elements && rope_span_aliases(&spans->out))
        return rope_fail(ROPE_ERROR_OVERLAP,
                         "%s.out_stride is [%lld, %lld, %lld, %lld] and may give two elements one "
                         "address; allowed is strides that clear the dimensions below them",
                         name, (long long)operand->out_stride[0], (long long)operand->out_stride[1],
                         (long long)operand->out_stride[2], (long long)operand->out_stride[3]);
    spans->in_place = rope_span_equal(&spans->in, &spans->out);
    if (!spans->in_place && !rope_span_disjoint(&spans->in, &spans->out))
        return rope_fail(ROPE_ERROR_OVERLAP,
                         "%s.in is %p and %s.out is %p: they overlap; allowed is equal or disjoint "
                         "views",
                         name, operand->in, name, operand->out);
    return ROPE_OK;
}

rope_status rope_tensor_read(const rope_args *args, const rope_tensor *given,
                             const rope_tensor_form *form, rope_operand *operand,
                             rope_tensor_spans *spans) {
    const char *name = form->name;
    int64_t elements = 0;
    operand->heads = 0;
    if (given->heads < 0)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "%s.heads is %lld; allowed is >= 0", name,
                         (long long)given->heads);
    rope_status status = rope_sizes_check(args, given->heads, form->head_dim, name, &elements);
    if (status != ROPE_OK || given->heads == 0 || args->batch == 0 || args->tokens == 0)
        return status;
    status = rope_pointer_check(name, "in", given->in, form->in_element);
    if (status == ROPE_OK && (given->out || !form->out_optional))
        status = rope_pointer_check(name, "out", given->out, form->out_element);
    if (status != ROPE_OK)
        return status;
    operand->in = given->in;
    operand->out = given->out;
    operand->heads = given->heads;
    int contiguous = default_strides(given, args->tokens, form->head_dim, operand);
    spans->count[0] = args->batch;
    spans->count[1] = args->tokens;
    spans->count[2] = given->heads;
    spans->count[3] = form->head_dim;
    spans->in = (rope_span){4, spans->count, operand->in_stride, form->in_element, 0, 0};
    spans->out = (rope_span){4, spans->count, operand->out_stride, form->out_element, 0, 0};
    return check_views(name, operand, contiguous ? elements : 0, spans);
}
