/* Sizes of a case, with every default of the tool filled in. Tensors are those of check_tensors. */
#ifndef ROPEKIT_BENCH_SHAPE_H
#define ROPEKIT_BENCH_SHAPE_H

#include "bench/options/options.h"
#include "bench/workload/check_result.h"

/* Product of sizes, saturated where it would not fit memory. */
int64_t shape_product(int64_t a, int64_t b, int64_t c, int64_t d);

/* Of q, k or v. */
int64_t shape_heads(const options *o, int tensor);
int64_t shape_dim(const options *o, int tensor);
/* Elements of the call's tokens. */
int64_t shape_elements(const options *o, int tensor);
/* Element strides in the options' layout. */
void shape_strides(const options *o, int64_t heads, int64_t dim, int64_t stride[4]);
/* Whether outputs replace inputs. */
bool shape_in_place(const options *o, int tensor);

/* What append does with a tensor, and of which type it is then. */
const rope_append_part *shape_part(const options *o, int tensor);
int32_t shape_store_dtype(const options *o, int tensor);
/* Whether keys of the cache are moved. */
bool shape_moves(const options *o);

/* The cache: whether a tensor has one; its pages, of each sequence and in all. */
bool shape_is_cached(const options *o, int tensor);
int64_t shape_page_size(const options *o);
int64_t shape_table_pages(const options *o);
int64_t shape_pages(const options *o);

/* A sequence of attention: its queries are the last of its keys. */
typedef struct shape_sequence {
    int64_t queries, keys;
} shape_sequence;
int64_t shape_sequences(const options *o);
shape_sequence shape_sequence_of(const options *o, int64_t index);
/* The most keys of a sequence. */
int64_t shape_keys(const options *o);
/* What attention rotates, ROPE_ATTENTION_ROTATE_, and whether a tensor is among it. */
int32_t shape_rotation(const options *o);
bool shape_rotates(const options *o, int tensor);

/* Bytes that a call has to read and those that it has to write, each once, their mean. */
size_t shape_bytes(const options *o);
/* Bytes of q and k where the call is rope_apply, which in place does not touch all; else the same.
 */
size_t shape_tensor_bytes(const options *o);
/* Operations of attention's products of queries with the keys that they see and of weights with
 * these keys' values, of the backward's five products too; 0 of other operations. */
double shape_flops(const options *o);

#endif
