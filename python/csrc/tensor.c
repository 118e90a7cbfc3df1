#include "python/csrc/tensor.h"

#include "python/csrc/pages.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>

typedef struct element {
    int32_t (*number)(void);
    const char *name;
    int32_t rope; /* 0: none of ropekit's */
} element;

static const element elements[] = {
    {aoti_torch_dtype_bfloat16, "bfloat16", ROPE_BF16},
    {aoti_torch_dtype_float16, "float16", ROPE_F16},
    {aoti_torch_dtype_float32, "float32", ROPE_F32},
    {aoti_torch_dtype_float64, "float64", ROPE_F64},
    {aoti_torch_dtype_int64, "int64", ROPE_I64},
    {aoti_torch_dtype_int32, "int32", ROPE_I32},
    {aoti_torch_dtype_int16, "int16", 0},
    {aoti_torch_dtype_int8, "int8", ROPE_I8},
    {aoti_torch_dtype_uint8, "uint8", 0},
    {aoti_torch_dtype_bool, "bool", 0},
    {aoti_torch_dtype_float8_e4m3fn, "float8_e4m3fn", ROPE_F8E4M3},
    {aoti_torch_dtype_float8_e5m2, "float8_e5m2", ROPE_F8E5M2},
    {aoti_torch_dtype_float8_e4m3fnuz, "float8_e4m3fnuz", ROPE_F8E4M3FNUZ},
};

static const element *element_of(int32_t number) {
    for (size_t i = 0; i < sizeof elements / sizeof elements[0]; i++)
        if (elements[i].number() == number)
            return &elements[i];
    return NULL;
}

static const char *put_shape(tensor *t) {
    int64_t *sizes = NULL, *strides = NULL;
    if (aoti_torch_get_sizes(t->handle, &sizes) || aoti_torch_get_strides(t->handle, &strides))
        return "a tensor has no sizes and strides; allowed are dense tensors with memory";
    t->sizes = sizes;
    t->strides = strides;
    return NULL;
}

const char *tensor_describe(AtenTensorHandle handle, tensor *t) {
    t->handle = handle;
    const char *error = put_shape(t);
    if (error)
        return error;
    if (aoti_torch_get_dim(handle, &t->dims) || aoti_torch_get_dtype(handle, &t->torch_dtype) ||
        aoti_torch_get_device_type(handle, &t->device_type) ||
        aoti_torch_get_device_index(handle, &t->device))
        return "a tensor does not tell its type and device";
    const element *found = element_of(t->torch_dtype);
    t->dtype = found ? found->rope : 0;
    return NULL;
}

const char *tensor_dtype_name(const tensor *t) {
    const element *found = element_of(t->torch_dtype);
    return found ? found->name : "of another type";
}

/* Whether the elements fill their memory without gap or overlap. */
static int is_dense(const tensor *t) {
    int64_t expected = 1;
    int seen[TENSOR_DIMS] = {0};
    for (int64_t found = 0; found < t->dims; found++) {
        int64_t next = -1;
        for (int64_t d = 0; d < t->dims && next < 0; d++)
            if (!seen[d] && (t->sizes[d] == 1 || t->strides[d] == expected))
                next = d;
        if (next < 0)
            return 0;
        seen[next] = 1;
        expected *= t->sizes[next];
    }
    return 1;
}

const char *tensor_new(const tensor *t, int64_t dims, const int64_t *sizes, const int64_t *strides,
                       int32_t torch_dtype, tensor *made) {
    AtenTensorHandle handle;
    if (aoti_torch_empty_strided(dims, sizes, strides, torch_dtype, t->device_type, t->device,
                                 &handle))
        return "no memory for the result";
    *made = *t;
    made->handle = handle;
    made->dims = dims;
    made->torch_dtype = torch_dtype;
    return put_shape(made);
}

/* With the strides of t where they are dense, else contiguous. */
static const char *make(const tensor *t, int dense, int32_t torch_dtype, tensor *made) {
    int64_t strides[TENSOR_DIMS], stride = 1;
    for (int64_t d = t->dims - 1; d >= 0; d--) {
        strides[d] = stride;
        stride *= t->sizes[d] > 1 ? t->sizes[d] : 1;
    }
    return tensor_new(t, t->dims, t->sizes, dense ? t->strides : strides, torch_dtype, made);
}

const char *tensor_like(const tensor *t, tensor *made) {
    return make(t, is_dense(t), t->torch_dtype, made);
}

void tensor_release(const tensor *t) {
    if (t->handle)
        aoti_torch_delete_tensor_object(t->handle);
}

const char *tensor_zero(const tensor *t) {
    return aoti_torch_zero_(t->handle) ? "the result could not be written" : NULL;
}

/* The logarithm of zeros: the stable ABI has no function that fills with a number. */
const char *tensor_minus_infinity(const tensor *t) {
    AtenTensorHandle lent;
    if (aoti_torch_zero_(t->handle) || aoti_torch_new_tensor_handle(t->handle, &lent))
        return "the result could not be written";
    StableIValue stack[1] = {(uintptr_t)lent};
    if (torch_call_dispatcher("aten::log_", "", stack, TORCH_ABI))
        return "the result could not be written";
    aoti_torch_delete_tensor_object((AtenTensorHandle)(uintptr_t)stack[0]);
    return NULL;
}

const char *tensor_widen(const tensor *t, tensor *made) {
    const char *error = make(t, 0, aoti_torch_dtype_int64(), made);
    if (!error && aoti_torch_copy_(made->handle, t->handle, 1))
        error = "an index tensor could not be copied";
    made->dtype = ROPE_I64;
    return error;
}

const void *tensor_read(const tensor *t) {
    const void *data = NULL;
    return torch_get_const_data_ptr(t->handle, &data) ? NULL : data;
}

void *tensor_write(const tensor *t) {
    void *data = NULL;
    return torch_get_mutable_data_ptr(t->handle, &data) ? NULL : data;
}

int tensor_repeats(const tensor *t) {
    int64_t elements = 1, stride = 0;
    for (int64_t d = 0; d < t->dims; d++) {
        elements *= t->sizes[d] > 1 ? 2 : t->sizes[d]; /* several, or none */
        stride |= t->strides[d];
    }
    return elements > 1 && stride == 0;
}

int32_t tensor_last_size(const tensor *t) {
    return (int32_t)t->sizes[t->dims - 1];
}

int tensor_same_shape(const tensor *a, const tensor *b) {
    return a->dims == b->dims && memcmp(a->sizes, b->sizes, (size_t)a->dims * sizeof(int64_t)) == 0;
}

int tensor_on_cpu(const tensor *t) {
    return t->device_type != aoti_torch_device_type_cuda();
}

int tensor_wants_copy(const tensor *t) {
    int64_t bytes = t->dtype == ROPE_F64 ? 8 : t->dtype == ROPE_F32 ? 4 : 2;
    for (int64_t d = 0; d < t->dims; d++)
        bytes *= t->sizes[d];
    return bytes >= PAGES_LEAST_BYTES && tensor_on_cpu(t) &&
           pages_are_new_and_small(tensor_write(t), bytes);
}

/* In PyTorch's library for the device, which a build for the CPU alone does not have. */
typedef AOTITorchError (*current_stream)(int32_t device, void **stream);

static current_stream find_current_stream(void) {
    static const char *const libraries[] = {"libtorch_cuda.so", "libtorch_hip.so"};
    current_stream found = NULL;
    for (int i = 0; i < 2 && !found; i++) {
        void *library = dlopen(libraries[i], RTLD_LAZY | RTLD_NOLOAD);
        if (library)
            *(void **)&found = dlsym(library, "aoti_torch_get_current_cuda_stream");
    }
    return found;
}

const char *tensor_stream(const tensor *t, void **stream) {
    static _Atomic(current_stream) known;
    current_stream current = atomic_load_explicit(&known, memory_order_relaxed);
    if (!current) {
        current = find_current_stream();
        atomic_store_explicit(&known, current, memory_order_relaxed);
    }
    return current && current(t->device, stream) == 0
               ? NULL
               : "this PyTorch does not tell its current stream";
}
