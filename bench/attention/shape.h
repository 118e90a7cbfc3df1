/* Sizes of a call of "attention" as the options have it, with every default of the tool filled in.
 */
#ifndef ROPEKIT_BENCH_ATTENTION_SHAPE_H
#define ROPEKIT_BENCH_ATTENTION_SHAPE_H

#include "bench/options/options.h"

/* A sequence: its queries are the last of its keys. */
typedef struct attention_sequence {
    int64_t queries, keys;
} attention_sequence;

attention_sequence attention_sequence_of(const options *o, int64_t index);
/* The most keys of a sequence that has none in tensors. */
int64_t attention_keys(const options *o);
int32_t attention_rotation(const options *o);
int64_t attention_v_head_dim(const options *o);
int64_t attention_page_size(const options *o);
/* Bytes that a call has to read and those that it has to write, each once, their mean. */
size_t attention_tensor_bytes(const options *o);
/* Of the products of queries with the keys that they see and of weights with these keys' values; of
 * the backward's five products too. */
double attention_flops(const options *o);

#endif
