/* Sizes of a call of "append" as the options have it, with every default of the tool filled in. */
#ifndef ROPEKIT_BENCH_APPEND_SHAPE_H
#define ROPEKIT_BENCH_APPEND_SHAPE_H

#include "bench/options/options.h"

enum { APPEND_Q, APPEND_K, APPEND_V, APPEND_TENSORS };

const rope_append_part *append_part_of(const rope_append_desc *desc, int tensor);
/* Whether keys of the cache are moved. */
bool append_moves(const options *o);
int64_t append_heads(const options *o, int tensor);
int64_t append_head_dim(const options *o, int tensor);
int32_t append_store_dtype(const options *o, int tensor);
bool append_in_place(const options *o, int tensor);
/* Whether a tensor has a cache. */
bool append_is_cached(const options *o, int tensor);
int64_t append_sequences(const options *o);
/* Tokens that a sequence keeps. */
int64_t append_kept_tokens(const options *o);
/* Tokens of a page where a sequence has so many. */
int64_t append_page_size_for(const options *o, int64_t tokens);
int64_t append_page_size(const options *o);
int64_t append_pages_for(const options *o, int64_t tokens);
int64_t append_count_pages(const options *o);
/* Product of sizes, saturated where it would not fit memory. */
int64_t append_count(int64_t a, int64_t b, int64_t c, int64_t d);
/* Bytes that a call has to read and those that it has to write, their mean. */
size_t append_tensor_bytes(const options *o);

#endif
