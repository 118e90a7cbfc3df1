/* What a call reads beside tensors, as lists and tables: none of it is written by the call. */
#ifndef ROPEKIT_COMMON_LISTS_H
#define ROPEKIT_COMMON_LISTS_H

#include "common/ops/regions.h"

#include <ropekit/backend.h>

/* Elements side by side, none where data is NULL. */
rope_status rope_list_check(const rope_regions *written, const char *name, const void *data,
                            int64_t count, int64_t element);

/* The same of a strided view. */
rope_status rope_view_check(const rope_regions *written, const char *name, const void *data,
                            int dims, const int64_t *count, const int64_t *stride, int64_t element);

/* Positions and tables of a checked call that has elements, and the flag. */
rope_status rope_call_lists_check(const rope_regions *written, const rope_problem *problem,
                                  const rope_call *call);

#endif
