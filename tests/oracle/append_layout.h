/* Where the elements of rope_append's tensors and caches lie, by append.h alone. */
#ifndef ROPEKIT_ORACLE_APPEND_LAYOUT_H
#define ROPEKIT_ORACLE_APPEND_LAYOUT_H

#include <ropekit/append.h>

enum { ORACLE_TENSORS = 3 }; /* q, k and v */

/* q, k or v of a call, defaults filled in. Strides in elements. */
typedef struct oracle_tensor {
    const rope_append_part *part;
    const rope_tensor *t;
    int64_t heads, dim;
    int32_t out_dtype, store_dtype;
    int64_t in[4], out[4];
    const rope_norm_weight *weight;
    int32_t weight_dtype;
    int64_t weight_stride;
    int64_t norm_dim;        /* elements of a head that are normalised */
    const rope_cache *cache; /* NULL: none */
    int64_t cache_stride[5], dim_block;
    const rope_scale *scale;
    int64_t scale_stride[3]; /* 0 where scales do not vary */
} oracle_tensor;
oracle_tensor oracle_append_tensor(const rope_append_desc *desc, const rope_append_args *args,
                                   int32_t tensor);

/* Where a token is cached. */
enum { ORACLE_PLACE_NONE = 0, ORACLE_PLACE_GIVEN = 1, ORACLE_PLACE_FAILS = 2 };
typedef struct oracle_place {
    int32_t status;
    int64_t page, slot;
} oracle_place;
oracle_place oracle_append_place(const rope_append_desc *desc, const rope_append_args *args,
                                 int64_t batch, int64_t token);

/* Elements from element 0 of the cache to element i of a head there. */
int64_t oracle_cache_at(const oracle_tensor *t, const oracle_place *place, int64_t head, int64_t i);
/* The same of the scale of a head: of k and v at a place, of q at its token. */
int64_t oracle_scale_at(const oracle_tensor *t, int64_t first, int64_t second, int64_t head);

#endif
