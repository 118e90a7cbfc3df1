/*
 * The kernels of the operators without autograd, called from Python past PyTorch's
 * dispatcher. Wherever the dispatcher would do more than call them, and on every error, such a call
 * answers None, without an exception and with nothing written: the operator is to be called.
 */
#include "python/csrc/call.h"
#include "python/csrc/python_shim.h"

#include <dlfcn.h>

/* What PyTorch gives, set once, at import. A handle is a pointer to an at::Tensor of its C++, which
 * is one pointer, to the tensor's implementation: Python's _cdata. */
static struct {
    PyObject *type;  /* torch.Tensor */
    PyObject *modes; /* functions that take nothing; a true one is a mode */
    PyObject *cdata; /* "_cdata" */
    PyObject *(*wrap)(AtenTensorHandle tensor); /* leaves the handle an empty tensor */
    bool (*has_callbacks)(void);                /* of a profiler or another observer */
    bool (*is_neg)(AtenTensorHandle tensor);
    bool (*is_inference)(AtenTensorHandle tensor);
    bool (*in_inference_mode)(void);
    bool (*requires_grad)(const void *implementation);
    bool (*has_names)(const void *implementation); /* NULL: this PyTorch has no names */
} torch;

static PyObject *none(void) {
    Py_IncRef(&_Py_NoneStruct);
    return &_Py_NoneStruct;
}

static int is_a(PyObject *object, const PyObject *type) {
    PyObject *found = PyObject_Type(object);
    Py_DecRef(found);
    return found == type;
}

/* Whether a mode may watch or change the call; an exception counts as one. */
static int any_mode(void) {
    int found = 0;
    Py_ssize_t count = PyTuple_Size(torch.modes);
    for (Py_ssize_t i = 0; i < count && !found; i++) {
        PyObject *answer = PyObject_CallNoArgs(PyTuple_GetItem(torch.modes, i));
        found = !answer || PyObject_IsTrue(answer);
        if (answer)
            Py_DecRef(answer);
    }
    return found;
}

static void *implementation(PyObject *object) {
    PyObject *number = PyObject_GetAttr(object, torch.cdata);
    void *found = number ? PyLong_AsVoidPtr(number) : NULL;
    if (number)
        Py_DecRef(number);
    return found;
}

/* Whether memory, sizes, strides and type tell all of a tensor that has them. */
static int is_plain(AtenTensorHandle handle) {
    int32_t kind;
    return aoti_torch_get_device_type(handle, &kind) == 0 &&
           (kind == aoti_torch_device_type_cpu() || kind == aoti_torch_device_type_cuda()) &&
           !torch.is_neg(handle) && !(torch.has_names && torch.has_names(*(void **)handle));
}

/* `slot` is what the handle points to, and lives as long as it. */
static int take_tensor(PyObject *object, void **slot, tensor *t) {
    if (!is_a(object, torch.type) || !(*slot = implementation(object)))
        return 0;
    AtenTensorHandle handle = (AtenTensorHandle)slot;
    return is_plain(handle) && !tensor_describe(handle, t);
}

/* Of q or k. */
static int needs_grad(void *const *slots) {
    return aoti_torch_grad_mode_is_enabled() &&
           (torch.requires_grad(slots[0]) || (slots[1] && torch.requires_grad(slots[1])));
}

/* Whether q or k is an inference tensor outside inference mode, where none is written. */
static int is_frozen(void **slots) {
    return (torch.is_inference((AtenTensorHandle)&slots[0]) ||
            (slots[1] && torch.is_inference((AtenTensorHandle)&slots[1]))) &&
           !torch.in_inference_mode();
}

static int take_text(PyObject *object, call *c) {
    Py_ssize_t size = 0;
    c->text = is_a(object, &PyUnicode_Type) ? PyUnicode_AsUTF8AndSize(object, &size) : NULL;
    c->text_length = (size_t)size;
    return c->text != NULL;
}

static int take_offset(PyObject *object, call *c) {
    if (!is_a(object, &PyLong_Type))
        return 0;
    c->position_offset = PyLong_AsLongLong(object);
    return c->position_offset != -1 || !PyErr_Occurred();
}

static int take_optional(PyObject *object, void **slot, tensor *t) {
    return object == &_Py_NoneStruct || take_tensor(object, slot, t);
}

/* q, k or None, config, position_ids or None, position_offset. */
static int take_all(PyObject *const *arguments, void *slots[3], call *c) {
    return !torch.has_callbacks() && !any_mode() && take_tensor(arguments[0], &slots[0], &c->q) &&
           take_optional(arguments[1], &slots[1], &c->k) && !needs_grad(slots) &&
           !(c->in_place && is_frozen(slots)) && take_text(arguments[2], c) &&
           take_optional(arguments[3], &slots[2], &c->position_ids) && take_offset(arguments[4], c);
}

/* Whether it is done. Other threads of Python run meanwhile. */
static int run(call *c) {
    PyThreadState *state = PyEval_SaveThread();
    int done = call_run(c) == NULL;
    PyEval_RestoreThread(state);
    return done;
}

/* Takes over both. NULL where one is. */
static PyObject *pair_of(PyObject *first, PyObject *second) {
    PyObject *pair = first && second ? PyTuple_Pack(2, first, second) : NULL;
    if (first)
        Py_DecRef(first);
    if (second)
        Py_DecRef(second);
    return pair;
}

static PyObject *results(const call *c) {
    if (c->in_place)
        return PyTuple_New(0);
    PyObject *first = torch.wrap(c->q_out.handle);
    return c->k_out.handle ? pair_of(first, torch.wrap(c->k_out.handle)) : first;
}

static PyObject *rotate(PyObject *const *arguments, Py_ssize_t count, int in_place) {
    call c = {.in_place = in_place};
    void *slots[3] = {NULL};
    PyObject *found = NULL;
    if (count == 5 && take_all(arguments, slots, &c) && run(&c))
        found = results(&c);
    call_release_results(&c);
    if (found)
        return found;
    PyErr_Clear();
    return none();
}

static PyObject *rotate_plain(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    (void)self;
    return rotate(arguments, count, 0);
}

static PyObject *rotate_plain_in_place(PyObject *self, PyObject *const *arguments,
                                       Py_ssize_t count) {
    (void)self;
    return rotate(arguments, count, 1);
}

static python_method methods[] = {
    {"rotate_plain", rotate_plain, PYTHON_FASTCALL,
     "(q, k, config, position_ids, position_offset) -> (q, k), q or None"},
    {"rotate_plain_", rotate_plain_in_place, PYTHON_FASTCALL,
     "(q, k, config, position_ids, position_offset) -> () or None"},
};

static void *find(const char *library, const char *name) {
    void *loaded = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    return loaded ? dlsym(loaded, name) : NULL;
}

/* THPVariable_Wrap(at::TensorBase &&), at::hasCallbacks(), at::native::is_neg(at::Tensor const &),
 * at::native::is_inference(at::Tensor const&), c10::InferenceMode::is_enabled(),
 * c10::TensorImpl::requires_grad() const, at::impl::has_names(c10::TensorImpl const *) */
static int find_all(int has_names) {
    static const char cpu[] = "libtorch_cpu.so";
    *(void **)&torch.wrap = find("libtorch_python.so", "_Z16THPVariable_WrapON2at10TensorBaseE");
    *(void **)&torch.has_callbacks = find(cpu, "_ZN2at12hasCallbacksEv");
    *(void **)&torch.is_neg = find(cpu, "_ZN2at6native6is_negERKNS_6TensorE");
    *(void **)&torch.is_inference = find(cpu, "_ZN2at6native12is_inferenceERKNS_6TensorE");
    *(void **)&torch.in_inference_mode = find("libc10.so", "_ZN3c1013InferenceMode10is_enabledEv");
    *(void **)&torch.requires_grad = find("libc10.so", "_ZNK3c1010TensorImpl13requires_gradEv");
    *(void **)&torch.has_names = find(cpu, "_ZN2at4impl9has_namesEPKN3c1010TensorImplE");
    return torch.wrap && torch.has_callbacks && torch.is_neg && torch.is_inference &&
           torch.in_inference_mode && torch.requires_grad && (torch.has_names || !has_names);
}

/* Whether handles are what `torch` takes them for. */
static int handles_are_known(void) {
    const int64_t size = 1;
    AtenTensorHandle handle;
    if (aoti_torch_empty_strided(1, &size, &size, aoti_torch_dtype_float32(),
                                 aoti_torch_device_type_cpu(), -1, &handle))
        return 0;
    const void *expected = *(void **)handle;
    PyObject *object = torch.wrap(handle);
    int known = object && is_a(object, torch.type) && implementation(object) == expected;
    if (object)
        Py_DecRef(object);
    aoti_torch_delete_tensor_object(handle);
    PyErr_Clear();
    return known;
}

static PyObject *function(int i) {
    return PyCMethod_New((struct PyMethodDef *)&methods[i], NULL, NULL, NULL);
}

/* The functions rotate_plain and rotate_plain_, or None where this PyTorch is another than is known
 * here. */
ROPE_API PyObject *ropekit_undispatched(PyObject *type, PyObject *modes, int has_names) {
    Py_IncRef(type);
    Py_IncRef(modes);
    torch.type = type;
    torch.modes = modes;
    torch.cdata = PyUnicode_FromString("_cdata");
    if (!torch.cdata || !find_all(has_names) || !handles_are_known())
        return none();
    return pair_of(function(0), function(1));
}
