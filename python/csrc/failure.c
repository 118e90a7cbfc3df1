#include "python/csrc/failure.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char message[512];
static _Thread_local rope_status last;
static _Thread_local const char *ended_with;

const char *fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return fail_as(ROPE_ERROR_INVALID_VALUE, message);
}

const char *fail_as(rope_status status, const char *text) {
    last = status;
    return text;
}

const char *fail_of_library(rope_status status) {
    return fail_as(status, status == ROPE_OK ? NULL : rope_last_error());
}

const char *fail_last(const char *text) {
    return ended_with = text;
}

/* What an operator last ended with in this thread, and the rope_status of that. */
ROPE_API const char *ropekit_last_error(rope_status *status) {
    *status = last;
    return ended_with;
}
