#include "python/csrc/arguments.h"

#include "python/csrc/failure.h"

#include <stdio.h>
#include <string.h>

/* operator delete of the C++ runtime that PyTorch is linked to, with which it expects the box of an
 * optional argument to be given back. */
void cxx_delete(void *box) __asm__("_ZdlPv");

static const char *take_text(StableIValue value, text_argument *t) {
    t->handle = (StringHandle)(uintptr_t)value;
    return torch_string_c_str(t->handle, &t->data) || torch_string_length(t->handle, &t->length)
               ? fail_last(fail("the configuration is no string"))
               : NULL;
}

static const char *take(const argument *a, int may_be_none, StableIValue value, void *place) {
    if (a->kind == TEXT)
        return take_text(value, place);
    if (a->kind == NUMBER)
        return memcpy(place, &value, sizeof(int64_t)), NULL;
    StableIValue *box = may_be_none ? (StableIValue *)(uintptr_t)value : NULL;
    if (may_be_none && !box)
        return NULL;
    if (box)
        value = *box;
    cxx_delete(box);
    return tensor_describe((AtenTensorHandle)(uintptr_t)value, place);
}

const char *arguments_take(const signature *s, const StableIValue *stack, void *call) {
    const char *error = NULL, *other;
    for (const argument *a = s->list; a->name; a++) {
        if (!(a->has & s->schema))
            continue;
        if ((other = take(a, !(a->always & s->schema), *stack++, (char *)call + a->offset)))
            error = other;
    }
    return error;
}

void arguments_release(const signature *s, const void *call) {
    for (const argument *a = s->list; a->name; a++) {
        const void *place = (const char *)call + a->offset;
        if (a->has & s->schema && a->kind == TENSOR)
            tensor_release(place);
        if (a->has & s->schema && a->kind == TEXT)
            torch_delete_string(((const text_argument *)place)->handle);
    }
}

void arguments_tell(const signature *s, char *names, size_t size) {
    size_t used = 0;
    names[0] = 0;
    for (const argument *a = s->list; a->name; a++)
        if (a->has & s->schema && used < size)
            used += (size_t)snprintf(names + used, size - used, "%s%s%s", used ? " " : "", a->name,
                                     a->kind == TENSOR && !(a->always & s->schema) ? "?" : "");
}
