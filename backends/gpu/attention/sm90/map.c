#include "backends/gpu/attention/sm90/map.h"

#include "backends/gpu/attention/sm90/kernels.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

/* Toolkits below 12.5 have the function of their own version alone. */
#if CUDART_VERSION < 12050
#define cudaGetDriverEntryPointByVersion(name, function, version, flags, result)                   \
    cudaGetDriverEntryPoint(name, function, flags, result)
#endif

int sm90_map_fits(const sm90_view *v) {
    if (!v->data || (uintptr_t)v->data % 16 || v->element != 1 || v->rows < 1 || v->tokens < 1 ||
        v->heads < 1 || v->tokens > INT32_MAX / 2 || v->rows > INT32_MAX || v->heads > INT32_MAX)
        return 0;
    const int64_t count[3] = {v->rows, v->tokens, v->heads};
    for (int i = 0; i < 3; i++)
        if (count[i] > 1 && (v->stride[i] < 8 || v->stride[i] % 8 || v->stride[i] >> 38))
            return 0;
    return 1;
}

int sm90_map_encode_box(CUtensorMap *map, CUtensorMapDataType type, CUtensorMapSwizzle swizzle,
                        const void *data, cuuint32_t axes, const cuuint64_t *count,
                        const cuuint64_t *stride, const cuuint32_t *box) {
    static PFN_cuTensorMapEncodeTiled_v12000 function; /* the same whoever finds it */
    static const cuuint32_t step[5] = {1, 1, 1, 1, 1};
    PFN_cuTensorMapEncodeTiled_v12000 found = __atomic_load_n(&function, __ATOMIC_RELAXED);
    enum cudaDriverEntryPointQueryResult result;
    if (!found && cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", (void **)&found, 12000,
                                                   cudaEnableDefault, &result) != cudaSuccess)
        return 0;
    if (!found)
        return 0;
    __atomic_store_n(&function, found, __ATOMIC_RELAXED);
    return found(map, type, axes, (void *)(uintptr_t)data, count, stride, box, step,
                 CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

int sm90_map_encode(CUtensorMap *map, int32_t dtype, const sm90_view *v, int32_t heads,
                    int32_t tokens, int32_t parts) {
    const cuuint64_t part = 128,
                     count[5] = {parts > 1 ? 64 : (cuuint64_t)v->dim, (cuuint64_t)v->heads,
                                 (cuuint64_t)v->tokens, (cuuint64_t)parts, (cuuint64_t)v->rows};
    const cuuint64_t stride[4] = {v->heads > 1 ? 2 * (cuuint64_t)v->stride[2] : 2 * part,
                                  v->tokens > 1 ? 2 * (cuuint64_t)v->stride[1] : 2 * part, part,
                                  v->rows > 1 ? 2 * (cuuint64_t)v->stride[0] : 2 * part};
    const cuuint32_t box[5] = {64, (cuuint32_t)heads, (cuuint32_t)tokens, (cuuint32_t)parts, 1};
    return sm90_map_encode_box(map,
                               dtype == ROPE_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                  : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                               CU_TENSOR_MAP_SWIZZLE_128B, v->data, 5, count, stride, box);
}
