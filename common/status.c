#include "common/status.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char last_error[768];

static const char *const status_names[ROPE_STATUS_COUNT] = {
    "ROPE_OK",
    "ROPE_ERROR_INVALID_VALUE",
    "ROPE_ERROR_NULL_POINTER",
    "ROPE_ERROR_MISALIGNED",
    "ROPE_ERROR_OVERLAP",
    "ROPE_ERROR_OVERFLOW",
    "ROPE_ERROR_ABI",
    "ROPE_ERROR_OUT_OF_MEMORY",
    "ROPE_ERROR_UNSUPPORTED",
    "ROPE_ERROR_NO_BACKEND",
    "ROPE_ERROR_NO_DEVICE",
    "ROPE_ERROR_POSITION_RANGE",
    "ROPE_ERROR_DEVICE",
};

rope_status rope_fail(rope_status status, const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(last_error, sizeof last_error, format, list);
    va_end(list);
    return status;
}

rope_status rope_fail_null(const char *name) {
    return rope_fail(ROPE_ERROR_NULL_POINTER, "%s is NULL; allowed is a pointer that is not", name);
}

const char *rope_last_error(void) {
    return last_error;
}

const char *rope_status_string(rope_status status) {
    if (status < 0 || status >= ROPE_STATUS_COUNT)
        return "unknown status";
    return status_names[status];
}
