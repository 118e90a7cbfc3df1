/* Messages to the person at the terminal. */
#ifndef ROPEKIT_BENCH_MESSAGE_H
#define ROPEKIT_BENCH_MESSAGE_H

#include <ropekit/rope.h>

#include <stdbool.h>
#include <stdio.h>

/* Writes "ropekit: ..." to stderr. */
__attribute__((format(printf, 1, 2))) void message(const char *format, ...);
/* True when status is ROPE_OK; else writes what failed and the library's reason. */
bool succeeded(rope_status status, const char *what);
/* On a terminal shows how far a command is, instead of what it showed before; NULL: nothing more.
 */
void message_progress(int32_t done, int32_t total, const char *label);

/* Where text for people goes: stdout, or nowhere when stdout takes JSON. Close it with text_close.
 */
FILE *text_open(bool json);
/* Writes what was printed so far; false after one message, whatever is flushed later. */
bool text_flush(FILE *file);
void text_close(FILE *file);

#endif
