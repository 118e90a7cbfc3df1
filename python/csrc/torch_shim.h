/*
 * The part of PyTorch's stable C ABI that the operators use, as its headers state it since 2.10
 * (torch/csrc/stable/c/shim.h). Declared here so that a wheel is built without PyTorch and serves
 * every later version; python/tests/test_shim.py compares each line with the installed headers.
 */
#ifndef ROPEKIT_PYTHON_TORCH_SHIM_H
#define ROPEKIT_PYTHON_TORCH_SHIM_H

#include <stdbool.h>
#include <stdint.h>

/* Version of the ABI that is declared here: 2.10. */
#define TORCH_ABI ((UINT64_C(2) << 56) | (UINT64_C(10) << 48))

#ifndef __cplusplus
#include <stddef.h>
typedef int32_t AOTITorchError;
typedef uint64_t StableIValue;
typedef struct AtenTensorOpaque *AtenTensorHandle;
typedef struct TorchLibraryOpaque *TorchLibraryHandle;
typedef struct StringOpaque *StringHandle;
#else
extern "C" {
#endif

AOTITorchError aoti_torch_library_init_impl(const char *ns, const char *k, const char *file,
                                            uint32_t line, TorchLibraryHandle *ret_new_torch_lib);
AOTITorchError torch_library_impl(TorchLibraryHandle self, const char *name,
                                  void (*fn)(StableIValue *, uint64_t, uint64_t),
                                  uint64_t extension_build_version);

/* stack holds the arguments, which it owns, then the results, which the caller owns. */
AOTITorchError torch_call_dispatcher(const char *opName, const char *overloadName,
                                     StableIValue *stack, uint64_t extension_build_version);

AOTITorchError aoti_torch_get_dim(AtenTensorHandle tensor, int64_t *ret_dim);
AOTITorchError aoti_torch_get_sizes(AtenTensorHandle tensor, int64_t **ret_sizes);
AOTITorchError aoti_torch_get_strides(AtenTensorHandle tensor, int64_t **ret_strides);
AOTITorchError aoti_torch_get_dtype(AtenTensorHandle tensor, int32_t *ret_dtype);
AOTITorchError aoti_torch_get_device_type(AtenTensorHandle tensor, int32_t *ret_device_type);
AOTITorchError aoti_torch_get_device_index(AtenTensorHandle tensor, int32_t *ret_device_index);
AOTITorchError torch_get_const_data_ptr(AtenTensorHandle tensor, const void **ret_data_ptr);
AOTITorchError torch_get_mutable_data_ptr(AtenTensorHandle tensor, void **ret_data_ptr);
AOTITorchError aoti_torch_empty_strided(int64_t ndim, const int64_t *sizes_ptr,
                                        const int64_t *strides_ptr, int32_t dtype,
                                        int32_t device_type, int32_t device_index,
                                        AtenTensorHandle *ret_new_tensor);
AOTITorchError aoti_torch_copy_(AtenTensorHandle self, AtenTensorHandle src, int32_t non_blocking);
AOTITorchError aoti_torch_zero_(AtenTensorHandle self);
AOTITorchError aoti_torch_new_tensor_handle(AtenTensorHandle orig_handle,
                                            AtenTensorHandle *new_handle);
AOTITorchError aoti_torch_delete_tensor_object(AtenTensorHandle tensor);

AOTITorchError torch_string_length(StringHandle handle, size_t *length);
AOTITorchError torch_string_c_str(StringHandle handle, const char **data);
AOTITorchError torch_delete_string(StringHandle handle);

int32_t aoti_torch_device_type_cuda(void);
int32_t aoti_torch_dtype_bfloat16(void);
int32_t aoti_torch_dtype_float16(void);
int32_t aoti_torch_dtype_float32(void);
int32_t aoti_torch_dtype_float64(void);
int32_t aoti_torch_dtype_uint8(void);
int32_t aoti_torch_dtype_int8(void);
int32_t aoti_torch_dtype_int16(void);
int32_t aoti_torch_dtype_int32(void);
int32_t aoti_torch_dtype_int64(void);
int32_t aoti_torch_dtype_bool(void);
int32_t aoti_torch_dtype_float8_e4m3fn(void);
int32_t aoti_torch_dtype_float8_e5m2(void);
int32_t aoti_torch_dtype_float8_e4m3fnuz(void);

/* Raises msg as a Python RuntimeError: it unwinds the C frames above it. */
void aoti_torch_check(bool cond, const char *func, const char *file, uint32_t line,
                      const char *msg);

#ifdef __cplusplus
}
#endif
#endif
