/* The arguments of operators: their names and order in the schemas, and where a call keeps them. */
#ifndef ROPEKIT_PYTHON_ARGUMENTS_H
#define ROPEKIT_PYTHON_ARGUMENTS_H

#include "python/csrc/tensor.h"

#include <stddef.h>

/* The text of a configuration. */
typedef struct text_argument {
    StringHandle handle; /* owned */
    const char *data;
    size_t length;
} text_argument;

/* Kinds of arguments. A number is an int64_t. */
enum { TENSOR, TEXT, NUMBER };

/* An operator's schema is a bit, as its arguments are some of a list, in the list's order. */
typedef struct argument {
    const char *name; /* NULL ends a list */
    int kind;
    unsigned has;    /* schemas that have it */
    unsigned always; /* those of them in which a tensor is no option */
    size_t offset;   /* in the call */
} argument;

typedef struct signature {
    const argument *list;
    unsigned schema;
} signature;

/* Takes every argument from the stack, also after an error. Returns NULL or what is wrong. */
const char *arguments_take(const signature *s, const StableIValue *stack, void *call);

/* Gives back what was taken. */
void arguments_release(const signature *s, const void *call);

/* Names in order, as in "q config k_lengths?", where ? marks a tensor that may be None. */
void arguments_tell(const signature *s, char *names, size_t size);

#endif
