/* From the caller's arguments of "append" to a checked call. */
#ifndef ROPEKIT_COMMON_APPEND_CALL_H
#define ROPEKIT_COMMON_APPEND_CALL_H

#include "common/ops/regions.h"
#include "common/ops/tensor.h"
#include "common/plan.h"

#include <ropekit/backend.h>

/* "append" within another operation, whose problem releases its own. */
extern const rope_operation rope_append_within;

/* Fills call, a rope_append_call, from args, a rope_append_args: rope_operation.read of "append".
 */
rope_status rope_append_call_read(const void *problem, const void *args, void *call, void **stream,
                                  int *empty);

/* The caller's struct, of any version, or its copy in `full`; NULL after an error. */
const rope_append_args *rope_append_args_read(const void *given, rope_append_args *full,
                                              rope_status *status);

/* q, k or v. */
const rope_tensor *rope_append_tensor_of(const rope_append_args *args, int which);

/* What nothing reads is 0. */
rope_status rope_append_unread_check(const rope_append_problem *problem,
                                     const rope_append_args *args);

/* Weights of a norm as a call reads them; the region's name is NULL where there are none. */
typedef struct rope_append_weights {
    rope_region region;
    int64_t stride[2];
} rope_append_weights;

/* Weights that no norm has are not given. */
rope_status rope_norm_weight_unread(const rope_append_steps *steps, const rope_norm_weight *given,
                                    int which);

/* Fills the weights of a tensor whose heads are known, and their region. */
rope_status rope_norm_weight_read(const rope_append_steps *steps, const rope_norm_weight *given,
                                  int which, rope_append_operand *o, rope_append_weights *weights);
rope_status rope_append_weight_read(const rope_append_problem *problem,
                                    const rope_append_args *args, int which, rope_append_operand *o,
                                    rope_append_weights *weights);

/* What one tensor reads and writes. */
typedef struct rope_append_tensor_regions {
    rope_tensor_spans spans; /* unset where it is read from the cache */
    rope_region stored[2];   /* cache and scale */
    rope_append_weights weight;
} rope_append_tensor_regions;

/* What a call does, but for what it reads as lists: mapping is that of slots or of the table. */
typedef struct rope_append_regions {
    rope_append_tensor_regions tensor[ROPE_APPEND_TENSORS];
    rope_region mapping;
} rope_append_regions;

/* Fills a call but for the question whether what it writes overlaps. attended: 1: q may have no
 * out, since attention follows. */
rope_status rope_append_parts_read(const rope_append_problem *problem, const rope_append_args *args,
                                   int attended, rope_append_call *call,
                                   rope_append_regions *regions, int *empty);

void rope_append_regions_add(const rope_append_call *call, const rope_append_regions *regions,
                             rope_regions *list);

/* Nothing that a call reads as a list is among what is written. */
rope_status rope_append_lists_check(const rope_regions *written, const rope_append_problem *problem,
                                    const rope_append_call *call);

#endif
