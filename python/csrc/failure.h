/* What went wrong last in this thread: a text and the kind of it. */
#ifndef ROPEKIT_PYTHON_FAILURE_H
#define ROPEKIT_PYTHON_FAILURE_H

#include <ropekit/rope.h>

/* A text for an argument's value, valid until the thread's next failure. */
__attribute__((format(printf, 1, 2))) const char *fail(const char *format, ...);

/* The text, or NULL, with the status that goes with it. */
const char *fail_as(rope_status status, const char *text);

/* What the library's last call said, or NULL of ROPE_OK. */
const char *fail_of_library(rope_status status);

/* Keeps what an operator ends with, a text or NULL, for ropekit_last_error. */
const char *fail_last(const char *text);

#endif
