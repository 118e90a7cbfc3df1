/* Tensor maps: how copies of sm_90 find their boxes. */
#ifndef ROPEKIT_GPU_ATTENTION_SM90_MAP_H
#define ROPEKIT_GPU_ATTENTION_SM90_MAP_H

#include <cuda.h>
#include <stdint.h>

/* A tensor [row, token, head, element] of heads of 128 elements of 16 bits. */
typedef struct sm90_view {
    const void *data;
    const int64_t *stride;
    int64_t rows, tokens, heads;
} sm90_view;

/* Whether there is a map of it. */
int sm90_map_fits(const sm90_view *v);

/* Boxes of `heads` by `tokens`, and of both halves of a head: rows of 128 bytes, swizzled. 0: the
 * driver refuses. */
int sm90_map_encode(CUtensorMap *map, int32_t dtype, const sm90_view *v, int32_t heads,
                    int32_t tokens);

#endif
