/* Fields with a value that is not allowed, and the text of the error that they cause. */
#ifndef ROPEKIT_TESTS_BAD_FIELD_H
#define ROPEKIT_TESTS_BAD_FIELD_H

#include <ropekit/rope.h>

typedef enum field_kind { KIND_I32, KIND_I64, KIND_REAL, KIND_NULL } field_kind;

/* A field, a value that is not allowed, and what comes of it. */
typedef struct bad_field {
    const char *name;
    size_t offset;
    double value;
    field_kind kind;
    rope_status status;
} bad_field;

void bad_field_set(void *record, const bad_field *bad);

/* The text names the field, gives its value and says what is allowed. */
void bad_field_check(const bad_field *bad);

/* The same of a text that holds `field` and, unless that is NULL, `value`. */
void bad_text_check(const char *field, const char *value);

#endif
