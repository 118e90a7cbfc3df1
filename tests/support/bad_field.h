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

/* A descriptor makes a plan, or a provider declines it, and makes none once one of these fields is
 * bad. `create` makes a plan of any descriptor of that size. */
typedef rope_status bad_field_create(const void *desc, rope_plan **plan);
void bad_fields_check(const void *desc, size_t size, bad_field_create *create,
                      const bad_field *list, size_t count);
#define CHECK_BAD_FIELDS(desc, create, ...)                                                        \
    do {                                                                                           \
        static const bad_field list_[] = {__VA_ARGS__};                                            \
        bad_fields_check(&(desc), sizeof(desc), create, list_, sizeof list_ / sizeof list_[0]);    \
    } while (0)

/* The text names `field`, gives `value` unless that is NULL, and says what is allowed. */
void bad_text_check(const char *field, const char *value);

#endif
