/*
 * The part of CPython's stable ABI that undispatched calls use, as Python.h states it since 3.10.
 * Declared here so that a wheel is built without Python and serves every later version, and weak so
 * that a program without Python can load the operators; python/tests/test_shim.py compares it with
 * the installed header.
 */
#ifndef ROPEKIT_PYTHON_PYTHON_SHIM_H
#define ROPEKIT_PYTHON_PYTHON_SHIM_H

#include <stddef.h>

#define WEAK __attribute__((weak))

#ifndef Py_PYTHON_H
typedef ptrdiff_t Py_ssize_t;
typedef struct _object PyObject;
typedef struct _ts PyThreadState;
struct PyMethodDef;
struct _typeobject;
extern PyObject _Py_NoneStruct WEAK, PyUnicode_Type WEAK, PyLong_Type WEAK;
#endif

/* PyMethodDef of a function of METH_FASTCALL. */
typedef struct python_method {
    const char *name;
    PyObject *(*function)(PyObject *self, PyObject *const *arguments, Py_ssize_t count);
    int flags;
    const char *doc;
} python_method;

enum { PYTHON_FASTCALL = 0x80 };

#ifdef __cplusplus
extern "C" {
#endif

void Py_IncRef(PyObject *object) WEAK;
void Py_DecRef(PyObject *object) WEAK;
PyObject *PyObject_Type(PyObject *object) WEAK;
int PyObject_IsTrue(PyObject *object) WEAK;
PyObject *PyObject_CallNoArgs(PyObject *function) WEAK;
PyObject *PyCMethod_New(struct PyMethodDef *method, PyObject *self, PyObject *module,
                        struct _typeobject *type) WEAK;
const char *PyUnicode_AsUTF8AndSize(PyObject *text, Py_ssize_t *size) WEAK;
long long PyLong_AsLongLong(PyObject *number) WEAK;
Py_ssize_t PyTuple_Size(PyObject *tuple) WEAK;
PyObject *PyTuple_GetItem(PyObject *tuple, Py_ssize_t place) WEAK;
PyObject *PyTuple_New(Py_ssize_t size) WEAK;
PyObject *PyTuple_Pack(Py_ssize_t count, ...) WEAK;
PyObject *PyObject_GetAttr(PyObject *object, PyObject *name) WEAK;
void *PyLong_AsVoidPtr(PyObject *number) WEAK;
PyObject *PyUnicode_FromString(const char *text) WEAK;
PyObject *PyErr_Occurred(void) WEAK;
void PyErr_Clear(void) WEAK;
PyThreadState *PyEval_SaveThread(void) WEAK;
void PyEval_RestoreThread(PyThreadState *state) WEAK;

#ifdef __cplusplus
}
#endif
#endif
