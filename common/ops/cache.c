#include "common/ops/cache.h"

#include "common/ops/tensor.h"
#include "common/status.h"

#include <string.h>

rope_status rope_list_read(const char *name, const void *data, const int64_t given[2],
                           int64_t outer, int64_t inner, int32_t element, int64_t stride[2],
                           rope_region *region) {
    const int zero = rope_all_zero(given, 2);
    stride[0] = zero ? inner : given[0];
    stride[1] = zero ? 1 : given[1];
    region->name = NULL;
    rope_status status = rope_pointer_check("", name, data, element);
    if (status != ROPE_OK || outer == 0)
        return status;
    region->name = name;
    region->written = 0;
    region->count[0] = outer;
    region->count[1] = inner;
    region->span = (rope_span){2, region->count, stride, element, 0, 0};
    if (!rope_span_place(&region->span, data))
        return rope_fail(ROPE_ERROR_OVERFLOW,
                         "the stride of %s is [%lld, %lld]; allowed is what stays within 64-bit "
                         "addresses with %lld and %lld entries",
                         name, (long long)stride[0], (long long)stride[1], (long long)outer,
                         (long long)inner);
    return ROPE_OK;
}

rope_status rope_scale_fail(const char *name, const rope_scale *scale, const char *allowed) {
    return rope_fail(ROPE_ERROR_INVALID_VALUE,
                     "%s.data is %p and %s.stride is [%lld, %lld, %lld]; allowed is %s", name,
                     scale->data, name, (long long)scale->stride[0], (long long)scale->stride[1],
                     (long long)scale->stride[2], allowed);
}

rope_status rope_scale_read(int32_t kind, const char *name, const rope_scale *given,
                            const int64_t count[3], int written, rope_append_operand *operand,
                            rope_region *region) {
    const int zero = rope_all_zero(given->stride, 3), first = kind == ROPE_SCALE_TENSOR ? 3
                                                              : kind == ROPE_SCALE_HEAD ? 2
                                                                                        : 0;
    int64_t *stride = operand->scale_stride, contiguous = 1;
    if (!rope_all_zero(given->stride, first))
        return rope_scale_fail(name, given,
                               first == 3 ? "0 of a scale that is one for the tensor"
                                          : "0 of a scale a head but for the last stride");
    for (int d = 2; d >= 0; d--) {
        region->count[d] = d < first ? 1 : count[d];
        stride[d] = d < first ? 0 : zero ? contiguous : given->stride[d];
        if (d >= first && __builtin_mul_overflow(contiguous, count[d], &contiguous))
            return rope_fail(ROPE_ERROR_OVERFLOW,
                             "%s has %lld * %lld * %lld entries; allowed is below 2^63", name,
                             (long long)count[0], (long long)count[1], (long long)count[2]);
    }
    rope_status status = rope_pointer_check(name, "data", given->data, 4);
    if (status != ROPE_OK)
        return status;
    operand->scale = given->data;
    region->name = name;
    region->written = written;
    region->span = (rope_span){3, region->count, stride, 4, 0, 0};
    if (!rope_span_place(&region->span, given->data))
        return rope_fail(ROPE_ERROR_OVERFLOW,
                         "%s.stride is [%lld, %lld, %lld]; allowed is what stays within 64-bit "
                         "addresses",
                         name, (long long)stride[0], (long long)stride[1], (long long)stride[2]);
    if (region->written && rope_span_aliases(&region->span))
        return rope_fail(ROPE_ERROR_OVERLAP,
                         "%s.stride is [%lld, %lld, %lld] and may give two entries one address; "
                         "allowed is strides that clear the dimensions below them",
                         name, (long long)stride[0], (long long)stride[1], (long long)stride[2]);
    return ROPE_OK;
}

static rope_status check_cache_span(const char *name, const rope_append_operand *o,
                                    rope_region *region) {
    const int64_t *s = o->cache_stride;
    if (!rope_span_place(&region->span, o->cache))
        return rope_fail(
            ROPE_ERROR_OVERFLOW,
            "%s.stride is [%lld, %lld, %lld, %lld, %lld]; allowed is what stays within "
            "64-bit addresses with pages %lld and page_size %lld",
            name, (long long)s[0], (long long)s[1], (long long)s[2], (long long)s[3],
            (long long)s[4], (long long)region->count[0], (long long)region->count[1]);
    if (region->written && rope_span_aliases(&region->span))
        return rope_fail(
            ROPE_ERROR_OVERLAP,
            "%s.stride is [%lld, %lld, %lld, %lld, %lld] and may give two elements one "
            "address; allowed is strides that clear the dimensions below them",
            name, (long long)s[0], (long long)s[1], (long long)s[2], (long long)s[3],
            (long long)s[4]);
    return ROPE_OK;
}

/* heads * head_dim fits: the tensor's own sizes were checked. */
static rope_status read_cache_strides(const char *name, const rope_cache *given,
                                      const rope_append_steps *steps, int64_t page_size,
                                      rope_append_operand *o) {
    const int64_t slot = o->heads * steps->head_dim;
    int64_t page;
    if (!rope_all_zero(given->stride, 5)) {
        memcpy(o->cache_stride, given->stride, sizeof o->cache_stride);
        return ROPE_OK;
    }
    if (__builtin_mul_overflow(page_size, slot, &page))
        return rope_fail(ROPE_ERROR_OVERFLOW,
                         "a page of %s has page_size %lld * %lld elements; allowed is below 2^63",
                         name, (long long)page_size, (long long)slot);
    const int64_t stride[5] = {page, slot, steps->head_dim, steps->dim_block, 1};
    memcpy(o->cache_stride, stride, sizeof o->cache_stride);
    return ROPE_OK;
}

rope_status rope_cache_read(const rope_cache_form *form, const rope_cache *given,
                            rope_append_operand *o, rope_region region[2]) {
    const rope_append_steps *steps = form->steps;
    const int32_t element = rope_dtype_size(steps->store_dtype);
    const int64_t count[ROPE_SPAN_DIMS] = {form->pages, form->page_size, o->heads,
                                           steps->head_dim / steps->dim_block, steps->dim_block};
    rope_status status = rope_pointer_check(form->name, "data", given->data, element);
    if (status == ROPE_OK && form->pages < 1)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "pages is %lld; allowed is > 0 with a cache",
                         (long long)form->pages);
    if (status == ROPE_OK)
        status = read_cache_strides(form->name, given, steps, form->page_size, o);
    if (status != ROPE_OK)
        return status;
    o->cache = given->data;
    region[0].name = form->name;
    region[0].written = form->written;
    memcpy(region[0].count, count, sizeof count);
    region[0].span = (rope_span){ROPE_SPAN_DIMS, region[0].count, o->cache_stride, element, 0, 0};
    status = check_cache_span(form->name, o, &region[0]);
    const int made = form->written && steps->scale == ROPE_SCALE_TOKEN_HEAD_MAX;
    return status == ROPE_OK && steps->scale
               ? rope_scale_read(steps->scale, form->scale_name, &given->scale, count, made, o,
                                 &region[1])
               : status;
}
