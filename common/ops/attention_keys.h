/* Keys and values of a call of "attention": tensors or caches, lengths and positions. */
#ifndef ROPEKIT_COMMON_ATTENTION_KEYS_H
#define ROPEKIT_COMMON_ATTENTION_KEYS_H

#include "common/ops/regions.h"
#include "common/ops/tensor.h"

#include <ropekit/backend.h>

/* What keys and values read and write. */
typedef struct rope_key_regions {
    rope_tensor_spans spans[2]; /* of k and v without a cache */
    rope_region cached[2][2];   /* of k and v with one: elements, scales */
} rope_key_regions;

/* Fills all of a call that is of keys and values, whose queries and their positions are read. */
rope_status rope_attention_keys_read(const rope_attention_problem *problem,
                                     const rope_attention_args *args, rope_attention_call *call,
                                     rope_key_regions *regions);

/* Adds what rope_attention_keys_read found. */
void rope_attention_keys_regions(const rope_attention_call *call, const rope_key_regions *regions,
                                 rope_regions *list);

#endif
