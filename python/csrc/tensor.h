/* A tensor of PyTorch as the library sees it. */
#ifndef ROPEKIT_PYTHON_TENSOR_H
#define ROPEKIT_PYTHON_TENSOR_H

#include "python/csrc/torch_shim.h"

#include <ropekit/rope.h>

enum { TENSOR_DIMS = 4 }; /* of one that is made or widened */

typedef struct tensor {
    AtenTensorHandle handle; /* owned; NULL: absent, and the rest is unset */
    int64_t dims;
    const int64_t *sizes, *strides;
    int32_t dtype;       /* ROPE_ number, or 0 where ropekit has none */
    int32_t torch_dtype; /* PyTorch's number */
    int32_t device_type, device;
} tensor;

/* Reads what a handle tells. Returns NULL or what is wrong. */
const char *tensor_describe(AtenTensorHandle handle, tensor *t);

/* Name of an element type, as in "bfloat16". */
const char *tensor_dtype_name(const tensor *t);

/* An uninitialised tensor on t's device. `made` has its dims, sizes and strides, and t's dtype. */
const char *tensor_new(const tensor *t, int64_t dims, const int64_t *sizes, const int64_t *strides,
                       int32_t torch_dtype, tensor *made);

/* Gives back a tensor that may be absent. */
void tensor_release(const tensor *t);

/* Writes 0, or -infinity, to every element. */
const char *tensor_zero(const tensor *t);
const char *tensor_minus_infinity(const tensor *t);

/* An uninitialised tensor of the same kind and shape: with the same strides where no element of t's
 * memory is left out or shared, else contiguous. */
const char *tensor_like(const tensor *t, tensor *made);

/* The whole numbers of t, of TENSOR_DIMS dimensions at most, as int64 and contiguous. `made` owns
 * its handle after an error too. */
const char *tensor_widen(const tensor *t, tensor *made);

/* Address of the first element; NULL where there is none. */
const void *tensor_read(const tensor *t);
void *tensor_write(const tensor *t);

/* Whether every stride is 0, which the library reads as contiguous, and there are several elements.
 */
int tensor_repeats(const tensor *t);

int32_t tensor_last_size(const tensor *t);
int tensor_same_shape(const tensor *a, const tensor *b);
int tensor_on_cpu(const tensor *t);

/* Whether it, one of q's types, is better filled by a copy that is then rotated in place
 * (python/csrc/pages.h). */
int tensor_wants_copy(const tensor *t);

/* The stream that PyTorch works on, on t's device, which is not the CPU. */
const char *tensor_stream(const tensor *t, void **stream);

#endif
