/* From the arguments of "attention" to its call. */
#ifndef ROPEKIT_COMMON_ATTENTION_CALL_H
#define ROPEKIT_COMMON_ATTENTION_CALL_H

#include "common/ops/attention_keys.h"

/* As rope_operation.read. */
rope_status rope_attention_call_read(const void *problem, const void *args, void *call,
                                     void **stream, int *empty);

/* The caller's struct, of any version, or its copy in `full`; NULL after an error. */
const rope_attention_args *rope_attention_args_read(const void *given, rope_attention_args *full,
                                                    rope_status *status);

/* What a call reads and writes. */
typedef struct rope_attention_regions {
    rope_tensor_spans q;
    rope_region out, lse;
    rope_key_regions keys;
} rope_attention_regions;

/* Fills a call but for the question whether what it writes overlaps. Where it has no query, which
 * sets *empty, that is all, or with `without` it is a call of its keys alone, of 0 tokens. */
rope_status rope_attention_parts_read(const rope_attention_problem *problem,
                                      const rope_attention_args *args, int without,
                                      rope_attention_call *call, rope_attention_regions *regions,
                                      int *empty);

void rope_attention_regions_add(const rope_attention_call *call,
                                const rope_attention_regions *regions, rope_regions *list);

/* Nothing that a call reads as a list is among what is written. */
rope_status rope_attention_lists_check(const rope_regions *written,
                                       const rope_attention_problem *problem,
                                       const rope_attention_call *call);

/* A view of a call as it is given: all strides 0 stand for contiguous ones. */
typedef struct rope_attention_view {
    const char *name;
    const void *data;
    const int64_t *stride;
    int32_t element; /* bytes */
    int dims;
    int written; /* 1: no two elements may share an address */
} rope_attention_view;

rope_status rope_attention_view_read(const rope_attention_view *view, const int64_t *count,
                                     int64_t *stride, rope_region *region);

/* The workspace of plans whose bounds are rope_attention_bounds. */
rope_status rope_attention_bounds_read(const rope_plan *plan, const rope_attention_bounds *given,
                                       size_t *bytes);

#endif
