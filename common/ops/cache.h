/* A paged cache, its scales, and lists of two dimensions as every operation reads them. */
#ifndef ROPEKIT_COMMON_CACHE_READ_H
#define ROPEKIT_COMMON_CACHE_READ_H

#include "common/ops/regions.h"

#include <ropekit/backend.h>

/* What plan and call say of the cache of a tensor. */
typedef struct rope_cache_form {
    const char *name, *scale_name;
    const rope_append_steps *steps;
    int64_t pages, page_size;
    int written; /* 0: it is only read, and may share addresses */
} rope_cache_form;

/* Strides of a list of two dimensions, contiguous where all are 0, and its region. */
rope_status rope_list_read(const char *name, const void *data, const int64_t given[2],
                           int64_t outer, int64_t inner, int32_t element, int64_t stride[2],
                           rope_region *region);

rope_status rope_scale_fail(const char *name, const rope_scale *scale, const char *allowed);

/* Fills an operand's scale and its region. Strides that the kind of scale
 * does not read stay 0. count: over what stride is. */
rope_status rope_scale_read(int32_t kind, const char *name, const rope_scale *given,
                            const int64_t count[3], int written, rope_append_operand *operand,
                            rope_region *region);

/* Fills cache and scale of an operand whose heads are known, and the regions of both. */
rope_status rope_cache_read(const rope_cache_form *form, const rope_cache *given,
                            rope_append_operand *operand, rope_region region[2]);

#endif
