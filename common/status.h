/* Status codes and the thread's error text. */
#ifndef ROPEKIT_COMMON_STATUS_H
#define ROPEKIT_COMMON_STATUS_H

#include <ropekit/rope.h>

/* Sets the thread's error text and returns status. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
rope_status
rope_fail(rope_status status, const char *format, ...);

/* For a pointer of which no more is asked than that it be given. */
rope_status rope_fail_null(const char *name);

#endif
