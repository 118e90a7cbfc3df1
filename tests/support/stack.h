/* Calls on a thread whose stack is small, with memory below it that must stay as it is. */
#ifndef ROPEKIT_TESTS_STACK_H
#define ROPEKIT_TESTS_STACK_H

#include <stddef.h>

/* What a call of the library may take, by rope.h. */
enum { STACK_BYTES = 96 * 1024 };

/* Skips the test where frames are larger than the library's own. */
void stack_required(void);

/* Does work on a thread whose stack has so many bytes, or as many as this system demands (128 KB on
 * arm64). A page that faults lies below them, and below that other memory, which is checked. work
 * calls neither CHECK nor SKIP. */
void stack_run(size_t bytes, void (*work)(void *state), void *state);

/* Has device_with_copy do its work so, until it is given 0. */
void stack_limit(size_t bytes);
size_t stack_limited(void);

#endif
