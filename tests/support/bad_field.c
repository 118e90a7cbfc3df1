#include "tests/support/bad_field.h"

#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void set_i32(char *at, double value) {
    int32_t x = (int32_t)value;
    memcpy(at, &x, sizeof x);
}

static void set_i64(char *at, double value) {
    int64_t x = (int64_t)value;
    memcpy(at, &x, sizeof x);
}

static void set_field(void *record, const bad_field *bad) {
    char *at = (char *)record + bad->offset;
    if (bad->kind == KIND_I32)
        set_i32(at, bad->value);
    else if (bad->kind == KIND_I64)
        set_i64(at, bad->value);
    else if (bad->kind == KIND_REAL)
        memcpy(at, &bad->value, sizeof bad->value);
    else
        memset(at, 0, sizeof(void *));
}

/* A field that is 0 was not given. */
static void value_text(const bad_field *bad, char *text, size_t room) {
    if (bad->value == 0)
        snprintf(text, room, "not given");
    else if (bad->kind == KIND_REAL)
        snprintf(text, room, "%g", bad->value);
    else
        snprintf(text, room, "%lld", (long long)bad->value);
}

void bad_text_check(const char *field, const char *value) {
    const char *text = rope_last_error();
    CHECK(strstr(text, field), "the text does not name %s: %s", field, text);
    CHECK(!value || strstr(text, value), "the text does not give the value %s: %s", value, text);
    CHECK(strstr(text, "allowed"), "the text does not say what is allowed: %s", text);
}

static void check_text(const bad_field *bad) {
    char value[32];
    value_text(bad, value, sizeof value);
    bad_text_check(bad->name, bad->kind == KIND_NULL ? NULL : value);
}

void bad_fields_check(const void *desc, size_t size, bad_field_create *create,
                      const bad_field *list, size_t count) {
    rope_plan *plan = NULL;
    void *copy = malloc(size);
    const rope_status made = create(desc, &plan);
    if (made != ROPE_ERROR_UNSUPPORTED || !device_is_provider())
        CHECK_STATUS(ROPE_OK, made);
    if (made == ROPE_OK)
        rope_plan_destroy(plan);
    for (size_t i = 0; i < count; i++) {
        rope_plan *untouched = plan = copy;
        memcpy(copy, desc, size);
        set_field(copy, &list[i]);
        test_describe(list[i].name);
        CHECK_STATUS(list[i].status, create(copy, &plan));
        CHECK(plan == untouched, "a plan that was not made was written");
        check_text(&list[i]);
    }
    free(copy);
}
