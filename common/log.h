/* The log: what ROPE_VERBOSE asks for, sent to stderr or to the program's function. */
#ifndef ROPEKIT_COMMON_LOG_H
#define ROPEKIT_COMMON_LOG_H

#include <stdint.h>

enum { ROPE_LOG_CHOICE = 1, ROPE_LOG_CANDIDATE = 2 };

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
void rope_log(int32_t level, const char *format, ...);

#define ROPE_LOG_LEVELS "0 (none), 1 (choices) or 2 (every candidate)"
/* Whether ROPE_VERBOSE may have this value; any other is told once, as it wants something. */
int rope_log_level_is_valid(const char *value);

#endif
