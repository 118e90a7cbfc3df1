/* Tensor maps: how copies of sm_90 find their boxes. */
#ifndef ROPEKIT_GPU_ATTENTION_SM90_MAP_H
#define ROPEKIT_GPU_ATTENTION_SM90_MAP_H

#include <cuda.h>
#include <stdint.h>

/* A tensor [row, token, head, element] of heads of `dim` elements of 16 bits. */
typedef struct sm90_view {
    const void *data;
    const int64_t *stride; /* over rows, tokens and heads */
    int64_t element;       /* from one to the next */
    int64_t rows, tokens, heads;
    int32_t dim;
} sm90_view;

/* Whether there is a map of it. */
int sm90_map_fits(const sm90_view *v);

/* Boxes of `heads` by `tokens` by 64 elements: rows of 128 bytes, swizzled. Those of a head that it
 * lacks are zeros. parts: or boxes of several 64 elements, all of a head. 0: the driver refuses. */
int sm90_map_encode(CUtensorMap *map, int32_t dtype, const sm90_view *v, int32_t heads,
                    int32_t tokens, int32_t parts);

/* Of whatever data. */
int sm90_map_encode_box(CUtensorMap *map, CUtensorMapDataType type, CUtensorMapSwizzle swizzle,
                        const void *data, cuuint32_t axes, const cuuint64_t *count,
                        const cuuint64_t *stride, const cuuint32_t *box);

#endif
