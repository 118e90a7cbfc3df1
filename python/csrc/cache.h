/* Pages of keys and values with their scales, and the tables of pages: as append writes and
 * attention reads them. */
#ifndef ROPEKIT_PYTHON_CACHE_H
#define ROPEKIT_PYTHON_CACHE_H

#include "python/csrc/tensor.h"

#include <ropekit/append.h>

/* A tensor in a type of its own, and its scale. */
typedef struct stored {
    const char *name, *scale_name;
    const tensor *data;  /* [page, slot, head, element], ... without heads or with blocks; or q's */
    const tensor *scale; /* NULL: none */
    int written;         /* data */
    int scale_written;
} stored;

/* Refuses another type than a cache may have, or another device. */
const char *check_stored(const tensor *lead, const tensor *t, const char *name);

/* Refuses a scale that is no float32 on the lead's device. */
const char *check_scale(const tensor *lead, const stored *s);

/* Refuses a block table, where it is given, that is no matrix of whole numbers. */
const char *check_table(const tensor *lead, const tensor *t);

/* Of a cache as it is: any, so that what is not allowed is refused with its own words. */
int32_t cache_head_dim(const tensor *t);
int64_t cache_heads(const tensor *t);
int64_t cache_page_size(const tensor *t);
int32_t cache_dim_block(const tensor *t);

/* ROPE_SCALE_ of a scale: one number is for the tensor, one dimension for heads, more for tokens
 * and heads. */
int32_t scale_kind(const stored *s);

/* over: sizes of [page, slot, head], or of q's [batch, token, head], with their dimensions in the
 * scale, -1 where it has none. */
const char *put_scale(const stored *s, const int64_t over[3], const int32_t dims[3],
                      rope_scale *target);

/* head_dim 0: any. */
const char *put_cache(const stored *s, int64_t heads, int64_t head_dim, rope_cache *target);

/* Pages of both caches, of which one may be absent. */
const char *put_pages(const tensor *k, const tensor *v, int64_t *pages);

const char *put_table(const tensor *t, int64_t sequences, const void **table, int64_t stride[2],
                      int64_t *pages);

#endif
